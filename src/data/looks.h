/* What bytes look like that are probably not the text they were taken for. */
#ifndef SMALLWORLD_DATA_LOOKS_H
#define SMALLWORLD_DATA_LOOKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names the kind of file that begins with these bytes, such as "a ZIP archive" or "UTF-16 text", or
 * returns NULL for text in UTF-8 or in an encoding of one byte a character. */
const char *looks_like(const uint8_t *head, size_t count);

/* Whether they begin with the mark of UTF-16; and what converts such text, for messages. */
#define UTF16_WAY_OUT "`iconv -f UTF-16 -t UTF-8` converts it"
bool looks_marked_utf16(const uint8_t *head, size_t count);

/* Warns, once in a process, that a file is of such a kind. */
void looks_warn(const char *name, const char *kind);

#endif
