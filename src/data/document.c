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

/* Leaves out the spaces around a label. */
static const uint8_t *trim_spaces(const uint8_t *text, size_t *length) {
    while (*length > 0 && text[0] == ' ') text++, (*length)--;
    while (*length > 0 && text[*length - 1] == ' ') (*length)--;
    return text;
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

/* Where a label is among the slots, or the empty slot for it. */
static int32_t *slot_of(const labels *l, const uint8_t *text, size_t length) {
    size_t at = (size_t)document_hash(text, length) % l->slot_count;
    for (; l->slot[at]; at = (at + 1) % l->slot_count) {
        const char *name = l->names[l->slot[at] - 1];
        if (strlen(name) == length && memcmp(name, text, length) == 0) break;
    }
    return &l->slot[at];
}

/* Keeps half of the slots empty. */
static void grow_slots(labels *l) {
    if ((size_t)l->count * 2 < l->slot_count) return;
    free(l->slot);
    l->slot_count = l->slot_count ? l->slot_count * 2 : 64;
    l->slot = mem_alloc(l->slot_count, sizeof *l->slot);
    for (int32_t k = 0; k < l->count; k++) {
        *slot_of(l, (const uint8_t *)l->names[k], strlen(l->names[k])) = k + 1;
    }
}

static int32_t number_label(labels *l, const uint8_t *text, size_t length) {
    grow_slots(l);
    int32_t *slot = slot_of(l, text, length);
    if (*slot) return *slot - 1;
    l->names = mem_grow(l->names, &l->room, (size_t)l->count + 1, sizeof *l->names);
    l->names[l->count++] = mem_format("%.*s", (int)length, (const char *)text);
    *slot = l->count;
    return l->count - 1;
}

/* Reads a label as the text that it is. */
static bool read_label(labels *l, const char *path, uint64_t number, const uint8_t *text,
                       size_t length, bool is_row, int32_t *label, error *err) {
    char got[24];
    *label = LABEL_NONE;
    text = trim_spaces(text, &length);
    const bool none = is_row ? length == 0 : length == 2 && memcmp(text, "-1", 2) == 0;
    if (none || !l) return true;
    if (!is_name(text, length)) {
        shown(text, length, got, sizeof got);
        return error_set(err,
                         "%s:%" PRIu64
                         ": expected a label of at most %d bytes of text in UTF-8, got %zu: '%s%s'",
                         path, number, CORPUS_NAME_BYTES, length, got,
                         length >= sizeof got ? "..." : "");
    }
    if (l->count == INT32_MAX - 1) return error_set(err, "%s: too many different labels", path);
    *label = number_label(l, text, length);
    return true;
}

size_t label_whole(const char *text) {
    const size_t digits = strspn(text, "0123456789");
    const char *rest = text + digits;
    if (digits == 0 || (digits > 1 && *text == '0')) return 0;
    if (*rest == '.') rest += 1 + strspn(rest + 1, "0");
    return *rest || rest[-1] == '.' ? 0 : digits;
}

/* Whether all labels are whole numbers; of these some may have a point and zeros. */
static bool are_whole(const labels *l) {
    for (int32_t k = 0; k < l->count; k++) {
        if (!label_whole(l->names[k])) return false;
    }
    return true;
}

/* Cuts 5.0 to 5 where labels are whole numbers, some of them written as 5 is. */
static void cut_zeros(labels *l, int32_t *number) {
    bool both[2] = {false, false};
    for (int32_t k = 0; k < l->count; k++) both[strchr(l->names[k], '.') != NULL] = true;
    if (!both[0] || !both[1] || !are_whole(l)) return;
    labels cut = {0};
    for (int32_t k = 0; k < l->count; k++) {
        const char *name = l->names[k];
        number[k] = number_label(&cut, (const uint8_t *)name, label_whole(name));
    }
    labels_free(l);
    *l = cut;
}

/* The number that a label is, as people write it: without a plus or zeros before it. */
static bool is_integer(const char *text, int32_t *value) {
    char again[16];
    char *end;
    const long long read = strtoll(text, &end, 10);
    if (*end || read < INT32_MIN || read > INT32_MAX) return false;
    *value = (int32_t)read;
    snprintf(again, sizeof again, "%d", *value);
    return *value != LABEL_NONE && strcmp(again, text) == 0;
}

static int compare_names(const void *a, const void *b, void *names) {
    char *const *all = names;
    return strcmp(all[*(const int32_t *)a], all[*(const int32_t *)b]);
}

/* Renumbers names in alphabetical order, so that equal sets of names have equal numbers. */
static void sort_names(labels *l, int32_t *number, int32_t given) {
    const size_t count = (size_t)l->count;
    int32_t *order = mem_alloc(count + 1, sizeof *order),
            *place = mem_alloc(count + 1, sizeof *place);
    char **sorted = mem_alloc(count + 1, sizeof *sorted);
    for (int32_t k = 0; k < l->count; k++) order[k] = k;
    qsort_r(order, count, sizeof *order, compare_names, l->names);
    for (int32_t k = 0; k < l->count; k++) {
        sorted[k] = l->names[order[k]];
        place[order[k]] = k;
    }
    for (int32_t k = 0; k < given; k++) number[k] = place[number[k]];
    free(l->names);
    free(order);
    free(place);
    l->names = sorted;
    l->room = count + 1;
}

int32_t *labels_settle(labels *l) {
    const int32_t given = l->count;
    int32_t *number = mem_alloc((size_t)given + 1, sizeof *number);
    bool integers = true;
    for (int32_t k = 0; k < given; k++) number[k] = k;
    cut_zeros(l, number);
    int32_t *value = mem_alloc((size_t)l->count + 1, sizeof *value);
    for (int32_t k = 0; k < l->count; k++)
        integers = integers && is_integer(l->names[k], value + k);
    if (integers) {
        for (int32_t k = 0; k < given; k++) number[k] = value[number[k]];
        labels_free(l);
    } else {
        sort_names(l, number, given);
    }
    free(value);
    return number;
}

void labels_free(labels *l) {
    for (int32_t k = 0; k < l->count; k++) free(l->names[k]);
    free(l->names);
    free(l->slot);
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
