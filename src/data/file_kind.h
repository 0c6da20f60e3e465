/* What bytes look like that are probably not the text they were taken for. */
#ifndef SMALLWORLD_DATA_FILE_KIND_H
#define SMALLWORLD_DATA_FILE_KIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Names the kind of file that begins with these bytes, such as "a ZIP archive" or "UTF-16 text", or
 * returns NULL for text in UTF-8 or in an encoding of one byte a character. */
const char *file_kind(const uint8_t *head, size_t count);

/* Whether they begin with the mark of UTF-16; and what converts such text, for messages. */
#define UTF16_WAY_OUT "`iconv -f UTF-16 -t UTF-8` converts it"
bool file_is_utf16(const uint8_t *head, size_t count);

/* Warns, once in a process, that a file is of such a kind. */
void file_kind_warn(const char *name, const char *kind);

#endif
