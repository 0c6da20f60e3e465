/* UTF-8 (RFC 3629), for showing untrusted bytes as text. */
#ifndef SMALLWORLD_CORE_UTF8_H
#define SMALLWORLD_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the length of the character at `text`, of at most `left` bytes, or 0 if there is none. */
size_t utf8_length(const uint8_t *text, size_t left);

/* The number of the character at `text`, which has this length. */
uint32_t utf8_code(const uint8_t *text, size_t length);

/* Whether a terminal or a page would obey this character instead of showing it: control characters,
 * marks of the direction of writing, Unicode's line breaks, and what is no character. */
bool utf8_is_control(uint32_t code);

/* Replaces such characters, and what is not UTF-8, by '?': names and text may hold any byte. */
void utf8_make_printable(char *text);

/* The length of the byte order mark that the text begins with, 3 or 0. */
size_t utf8_mark_length(const uint8_t *text, size_t length);

/* Whether the whole text is valid UTF-8. */
bool utf8_valid(const uint8_t *text, size_t length);

#endif
