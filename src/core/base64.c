#include "core/base64.h"

#include <ctype.h>
#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void base64_write(FILE *out, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i += 3) {
        const size_t here = count - i < 3 ? count - i : 3;
        uint32_t bits = 0;
        for (size_t k = 0; k < here; k++) bits |= (uint32_t)bytes[i + k] << (16 - 8 * k);
        for (size_t k = 0; k < 4; k++)
            fputc(k > here ? '=' : digits[bits >> (18 - 6 * k) & 63], out);
    }
}

bool base64_read(char *text) {
    uint32_t bits = 0;
    size_t read = 0, padding = 0;
    char *out = text;
    for (const char *in = text; *in; in++) {
        if (isspace((unsigned char)*in)) continue;
        const char *digit = strchr(digits, *in);
        padding += *in == '=';
        if (!digit && *in != '=') return false;
        if (digit && padding > 0) return false;
        bits = bits << 6 | (digit ? (uint32_t)(digit - digits) : 0);
        if (++read % 4) continue;
        for (int k = 16; k >= 0; k -= 8) *out++ = (char)(bits >> k & 255);
    }
    if (read % 4 || padding > 2) return false;
    out -= padding;
    *out = '\0';
    return strlen(text) == (size_t)(out - text);
}
