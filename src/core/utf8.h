/* UTF-8 (RFC 3629), where bytes that strangers wrote are shown as text. */
#ifndef SMALLWORLD_CORE_UTF8_H
#define SMALLWORLD_CORE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The length of the character at `text`, of at most `left` bytes; 0 where there is none. */
size_t utf8_length(const uint8_t *text, size_t left);

/* Whether the text is characters throughout. */
bool utf8_valid(const uint8_t *text, size_t length);

#endif
