#include "data/document.h"

#include "core/memory.h"
#include "core/utf8.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- entities */

static const struct {
    const char *name;
    uint32_t code;
} entities[] = {{"&amp;", '&'},  {"&lt;", '<'},    {"&gt;", '>'},
                {"&quot;", '"'}, {"&apos;", '\''}, {"&nbsp;", 0xa0}};

static int digit_value(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    byte |= 'a' ^ 'A';
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : 16;
}

/* The length of "&#N;" or "&#xN;" at `text`. Returns 0 if there is none or if N is not a character.
 */
static size_t number_at(const uint8_t *text, size_t length, uint32_t *code) {
    if (length < 3 || text[1] != '#') return 0;
    bool hexadecimal = text[2] == 'x' || text[2] == 'X';
    size_t i = hexadecimal ? 3 : 2;
    int base = hexadecimal ? 16 : 10;
    *code = 0;
    for (; i < length && digit_value(text[i]) < base && *code <= 0x10ffff; i++) {
        *code = *code * (uint32_t)base + (uint32_t)digit_value(text[i]);
    }
    bool character = *code > 0 && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
    return character && i < length && text[i] == ';' ? i + 1 : 0;
}

static size_t entity_at(const uint8_t *text, size_t length, uint32_t *code) {
    for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++) {
        size_t size = strlen(entities[i].name);
        if (size <= length && memcmp(text, entities[i].name, size) == 0) {
            *code = entities[i].code;
            return size;
        }
    }
    return number_at(text, length, code);
}

static size_t put_utf8(uint8_t *out, uint32_t code) {
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (uint8_t)(lead[more] | code >> 6 * more);
    for (int i = 1; i <= more; i++) out[i] = (uint8_t)(0x80 | (code >> 6 * (more - i) & 0x3f));
    return (size_t)more + 1;
}

/* Decodes entities once, in place, and returns the new length. No entity is shorter than its UTF-8.
 * Incomplete entities stay as they are. */
static size_t decode_entities(uint8_t *text, size_t length) {
    size_t out = 0, in = 0;
    while (in < length) {
        uint8_t *found = memchr(text + in, '&', length - in);
        size_t plain = found ? (size_t)(found - text) - in : length - in;
        memmove(text + out, text + in, plain);
        out += plain;
        in += plain;
        if (!found) break;
        uint32_t code;
        size_t size = entity_at(text + in, length - in, &code);
        out += put_utf8(text + out, size ? code : '&');
        in += size ? size : 1;
    }
    return out;
}
size_t corpus_clean(uint8_t *text, size_t length, const corpus_options *options) {
    if (options->html_entities) length = decode_entities(text, length);
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r' || text[i] == '\n') text[i] = ' ';
    }
    return length;
}

/* ----------------------------------------------------------------------------------- labels */

static bool parse_label(const uint8_t *text, size_t length, int32_t *label) {
    const int64_t limit = (int64_t)INT32_MAX + 1;
    size_t sign = length > 0 && (text[0] == '-' || text[0] == '+');
    int64_t value = 0;
    for (size_t i = sign; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || value > limit) return false;
        value = 10 * value + (text[i] - '0');
    }
    if (sign && text[0] == '-') value = -value;
    *label = (int32_t)value;
    return length > sign && value == *label;
}

/* Leaves out the spaces around a label. */
static const uint8_t *trim_spaces(const uint8_t *text, size_t *length) {
    while (*length > 0 && text[0] == ' ') text++, (*length)--;
    while (*length > 0 && text[*length - 1] == ' ') (*length)--;
    return text;
}

/* The length of a label without the zeros of 5.0, as which pandas writes 5 where some are missing.
 */
static size_t trim_number(const uint8_t *label, size_t length) {
    const uint8_t *at = label, *end = label + length;
    while (at < end && ((*at >= '0' && *at <= '9') || *at == '-')) at++;
    const uint8_t *point = at;
    if (point == label || point == end || *point != '.') return length;
    for (at++; at < end && *at == '0'; at++) continue;
    return at == end ? (size_t)(point - label) : length;
}

/* The first few bytes as text for a message. */
static const char *shown(const uint8_t *bytes, size_t length, char *text, size_t size) {
    size_t i = 0;
    for (; i < length && i + 1 < size; i++) {
        text[i] = (char)(bytes[i] >= ' ' && bytes[i] <= '~' ? bytes[i] : '?');
    }
    text[i] = '\0';
    return text;
}

/* Whether a label can be a name: any short text, but for the mark of a file that was joined to
 * another one. */
static bool is_name(const uint8_t *text, size_t length) {
    if (length == 0 || length > CORPUS_NAME_BYTES || !utf8_valid(text, length)) return false;
    if (utf8_mark_length(text, length) > 0) return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < ' ' || text[i] == 0x7F) return false;
    }
    return true;
}

int32_t labels_number(labels *l, const uint8_t *text, size_t length) {
    for (int k = 0; k < l->count; k++) {
        if (strlen(l->names[k]) == length && memcmp(l->names[k], text, length) == 0) return k;
    }
    if (l->count == CORPUS_MAX_NAMES) return -1;
    l->names = mem_resize(l->names, (size_t)l->count + 1, sizeof *l->names);
    l->names[l->count] = mem_format("%.*s", (int)length, (const char *)text);
    return l->count++;
}

/* Reads a label. Labels are integers until one is not; all of them are names then. */
static bool read_label(labels *l, const char *path, uint64_t number, const uint8_t *text,
                       size_t length, bool is_row, int32_t *label, error *err) {
    char got[24];
    text = trim_spaces(text, &length);
    length = trim_number(text, length);
    bool integer = parse_label(text, length, label);
    if (is_row ? length == 0 : integer && *label == LABEL_NONE) {
        *label = LABEL_NONE;
        return true;
    }
    if (is_row && *label == LABEL_MINUS_ONE) integer = false; /* it stands for -1 */
    if (integer && !l->names) {
        l->minus_one = l->minus_one || *label == -1;
        if (*label == -1) *label = LABEL_MINUS_ONE;
        l->integers = true;
        return true;
    }
    if (!is_name(text, length)) {
        shown(text, length, got, sizeof got);
        return error_set(err,
                         "%s:%" PRIu64
                         ": expected a label of at most %d bytes of text in UTF-8, got %zu: '%s%s'",
                         path, number, CORPUS_NAME_BYTES, length, got,
                         length >= sizeof got ? "..." : "");
    }
    *label = labels_number(l, text, length);
    return *label >= 0 ||
           error_set(err, "%s:%" PRIu64 ": more than %d different labels; are they the texts?",
                     path, number, CORPUS_MAX_NAMES);
}

void labels_free(labels *l) {
    for (int k = 0; k < l->count; k++) free(l->names[k]);
    free(l->names);
    *l = (labels){0};
}

bool document_parse(labels *l, const char *path, uint64_t number, uint8_t *line, size_t length,
                    bool is_row, parsed_line *parsed, error *err) {
    uint8_t *tab = memchr(line, '\t', length);
    if (!tab) {
        return error_set(err, "%s:%" PRIu64 ": expected LABEL<TAB>TEXT, found no tab", path,
                         number);
    }
    const size_t label = (size_t)(tab - line);
    if (!read_label(l, path, number, line, label, is_row, &parsed->label, err)) return false;
    parsed->text = tab + 1;
    parsed->length = length - label - 1;
    parsed->hash = document_hash(parsed->text, parsed->length);
    return true;
}
