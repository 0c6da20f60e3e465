/* Base64 (RFC 4648), for bytes that are no text. */
#ifndef SMALLWORLD_CORE_BASE64_H
#define SMALLWORLD_CORE_BASE64_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

void base64_write(FILE *out, const uint8_t *bytes, size_t count);

/* Decodes a string in place, which white space may divide. Returns false if it is no base64 or
 * holds a NUL byte. */
bool base64_read(char *text);

#endif
