#include "core/json.h"

#include "core/base64.h"
#include "core/number.h"
#include "core/utf8.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- writing */

static void put_byte(FILE *out, uint8_t byte) {
    if (byte == '"' || byte == '\\') {
        fprintf(out, "\\%c", byte);
    } else if (byte < 0x20) {
        fprintf(out, "\\u%04x", byte);
    } else {
        fputc(byte, out);
    }
}

/* Writes text, with what is no UTF-8 in it, as a file's name may have, as U+FFFD. */
static void quote_bytes(FILE *out, const uint8_t *bytes, size_t count) {
    fputc('"', out);
    for (size_t i = 0, length; i < count; i += length) {
        length = utf8_length(bytes + i, count - i);
        if (length == 0) fputs("\\ufffd", out);
        for (size_t k = 0; k < length; k++) put_byte(out, bytes[i + k]);
        if (length == 0) length = 1;
    }
    fputc('"', out);
}

static void quote(FILE *out, const char *text) {
    quote_bytes(out, (const uint8_t *)text, strlen(text));
}

static void member(json_writer *w, const char *key) {
    if (w->comma) fputs(", ", w->out);
    w->comma = true;
    if (!key) return;
    quote(w->out, key);
    fputs(": ", w->out);
}

static void begin(json_writer *w, const char *key, char bracket) {
    member(w, key);
    fputc(bracket, w->out);
    w->comma = false;
}

static void end(json_writer *w, char bracket) {
    fputc(bracket, w->out);
    w->comma = true;
}

void json_object_begin(json_writer *w, const char *key) {
    begin(w, key, '{');
}

void json_object_end(json_writer *w) {
    end(w, '}');
}

void json_array_begin(json_writer *w, const char *key) {
    begin(w, key, '[');
}

void json_array_end(json_writer *w) {
    end(w, ']');
}

void json_string(json_writer *w, const char *key, const char *value) {
    member(w, key);
    quote(w->out, value);
}

void json_text(json_writer *w, const char *key, const uint8_t *bytes, size_t count) {
    member(w, key);
    quote_bytes(w->out, bytes, count);
}

void json_base64(json_writer *w, const char *key, const uint8_t *bytes, size_t count) {
    member(w, key);
    fputc('"', w->out);
    base64_write(w->out, bytes, count);
    fputc('"', w->out);
}

void json_integer(json_writer *w, const char *key, int64_t value) {
    member(w, key);
    fprintf(w->out, "%" PRId64, value);
}

void json_number(json_writer *w, const char *key, double value) {
    char text[32] = "null";
    if (isfinite(value)) number_format(text, value);
    member(w, key);
    fputs(text, w->out);
}

/* ---------------------------------------------------------------------------------- reading */

static bool fail(json_reader *r) {
    r->failed = true;
    return false;
}

/* Skips white space and takes `c` if it comes next. */
static bool take(json_reader *r, char c) {
    if (r->failed) return false;
    while (r->next < r->end && strchr(" \t\r\n", *r->next) && *r->next) r->next++;
    if (r->next == r->end || *r->next != c) return false;
    r->next++;
    return true;
}

bool json_read_object(json_reader *r) {
    return take(r, '{') || fail(r);
}

bool json_read_array(json_reader *r) {
    return take(r, '[') || fail(r);
}

/* Whether another member follows inside a container that opened with `open`: a comma, except right
 * after the opening bracket, where the last byte taken is that bracket. */
static bool another(json_reader *r, char open, char close) {
    if (r->failed) return false;
    const char *last = r->next - 1;
    if (take(r, close)) return false;
    if (*last != open && !take(r, ',')) return fail(r);
    return true;
}

bool json_read_member(json_reader *r, char *key, size_t size) {
    return another(r, '{', '}') && json_read_string(r, key, size) && (take(r, ':') || fail(r));
}

bool json_read_element(json_reader *r) {
    return another(r, '[', ']');
}

/* One code point of a \u escape as UTF-8; surrogate pairs are not needed for what we read. */
static int utf8(unsigned code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    out[0] = (char)(0xE0 | code >> 12);
    out[1] = (char)(0x80 | (code >> 6 & 0x3F));
    out[2] = (char)(0x80 | (code & 0x3F));
    return 3;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    c |= 'a' ^ 'A';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Reads an escape after its backslash into `out`. Returns the number of bytes, or 0 if it is not an
 * escape. */
static int escape(json_reader *r, char *out) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char c = *r->next++;
    const char *found = c ? strchr(from, c) : NULL;
    if (found) {
        *out = to[found - from];
        return 1;
    }
    if (c != 'u' || r->end - r->next < 4) return 0;
    unsigned code = 0;
    for (int i = 0; i < 4; i++) {
        int digit = hex_digit(*r->next++);
        if (digit < 0) return 0;
        code = 16 * code + (unsigned)digit;
    }
    return code != 0 ? utf8(code, out) : 0; /* our strings end at a NUL */
}

bool json_read_string(json_reader *r, char *text, size_t size) {
    if (!take(r, '"')) return fail(r);
    size_t length = 0;
    while (r->next < r->end && *r->next != '"') {
        char bytes[4];
        int count = 1;
        bytes[0] = *r->next++;
        if ((unsigned char)bytes[0] < 0x20) return fail(r);
        if (bytes[0] == '\\') count = r->next < r->end ? escape(r, bytes) : 0;
        if (count == 0 || length + (size_t)count >= size) return fail(r);
        memcpy(text + length, bytes, (size_t)count);
        length += (size_t)count;
    }
    if (r->next == r->end) return fail(r);
    r->next++;
    text[length] = '\0';
    return true;
}

bool json_read_integer(json_reader *r, int64_t *value) {
    char digits[24];
    size_t length = 0;
    while (!r->failed && r->next < r->end && strchr(" \t\r\n", *r->next) && *r->next) r->next++;
    while (r->next < r->end && length < sizeof digits - 1 && strchr("-0123456789", *r->next)) {
        if (*r->next == '\0') break;
        digits[length++] = *r->next++;
    }
    digits[length] = '\0';
    char *stop;
    errno = 0;
    *value = strtoll(digits, &stop, 10);
    if (r->failed || length == 0 || *stop != '\0' || errno) return fail(r);
    return true;
}
