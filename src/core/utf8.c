#include "core/utf8.h"

#include <string.h>

size_t utf8_length(const uint8_t *text, size_t left) {
    uint8_t lead = left ? text[0] : 0xFF;
    size_t length = lead < 0x80                    ? 1
                    : lead >= 0xC2 && lead <= 0xDF ? 2
                    : lead >= 0xE0 && lead <= 0xEF ? 3
                    : lead >= 0xF0 && lead <= 0xF4 ? 4
                                                   : 0;
    if (length > left) return 0;
    for (size_t i = 1; i < length; i++) {
        if ((text[i] & 0xC0) != 0x80) return 0;
    }
    /* Longer than needed, a surrogate, or past U+10FFFF. */
    if ((lead == 0xE0 && text[1] < 0xA0) || (lead == 0xED && text[1] > 0x9F) ||
        (lead == 0xF0 && text[1] < 0x90) || (lead == 0xF4 && text[1] > 0x8F)) {
        return 0;
    }
    return length;
}

uint32_t utf8_code(const uint8_t *text, size_t length) {
    uint32_t code = length > 1 ? text[0] & (0x7Fu >> length) : text[0];
    for (size_t i = 1; i < length; i++) code = code << 6 | (text[i] & 0x3F);
    return code;
}

bool utf8_is_control(uint32_t code) {
    static const uint32_t ranges[][2] = {{0, 0x1F},        {0x7F, 0x9F},     {0x200E, 0x200F},
                                         {0x2028, 0x202E}, {0x2066, 0x2069}, {0xFEFF, 0xFEFF},
                                         {0xFFFE, 0xFFFF}};
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        if (code >= ranges[i][0] && code <= ranges[i][1]) return true;
    }
    return false;
}

size_t utf8_mark_length(const uint8_t *text, size_t length) {
    return length >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
}

bool utf8_valid(const uint8_t *text, size_t length) {
    while (length > 0) {
        size_t size = utf8_length(text, length);
        if (size == 0) return false;
        text += size;
        length -= size;
    }
    return true;
}

void utf8_make_printable(char *text) {
    const uint8_t *in = (const uint8_t *)text;
    char *out = text;
    for (size_t left = strlen(text), length; left > 0; in += length, left -= length) {
        length = utf8_length(in, left);
        if (length > 0 && !utf8_is_control(utf8_code(in, length))) {
            memmove(out, in, length);
            out += length;
        } else {
            *out++ = '?';
            if (length == 0) length = 1;
        }
    }
    *out = '\0';
}
