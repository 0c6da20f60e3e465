#include "core/json.h"

#include "core/base64.h"
#include "core/number.h"
#include "core/utf8.h"

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
