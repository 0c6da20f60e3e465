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

/* Whether the whole text is valid UTF-8. */
bool utf8_valid(const uint8_t *text, size_t length);

#endif
