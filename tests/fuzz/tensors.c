#include "tensors.h"

#include "core/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { MAX_TENSORS = 48, MAX_ENTRIES = 64, MAX_SHAPE = 8, MAX_FILE = 1 << 16, PREFIX = 8 };

typedef struct item {
    char name[96], type[12];
    int dimensions;
    int64_t shape[MAX_SHAPE], begin, end;
} item;

typedef struct entry {
    char key[96], value[320];
} entry;

typedef struct contents {
    item items[MAX_TENSORS];
    entry entries[MAX_ENTRIES];
    int item_count, entry_count;
    const uint8_t *data;
    size_t size;
} contents;

/* ---------------------------------------------------------------------------------- reading */

static bool read_integers(json_reader *r, int64_t *values, int most, int *count) {
    if (!json_read_array(r)) return false;
    for (*count = 0; json_read_element(r); (*count)++) {
        if (*count == most || !json_read_integer(r, &values[*count])) return false;
    }
    return !r->failed;
}

static bool read_item(json_reader *r, item *t) {
    char key[32];
    int64_t offsets[2] = {0};
    int count = 0;
    if (!json_read_object(r)) return false;
    while (json_read_member(r, key, sizeof key)) {
        bool read = false;
        if (strcmp(key, "dtype") == 0) read = json_read_string(r, t->type, sizeof t->type);
        if (strcmp(key, "shape") == 0) read = read_integers(r, t->shape, MAX_SHAPE, &t->dimensions);
        if (strcmp(key, "data_offsets") == 0) read = read_integers(r, offsets, 2, &count);
        if (!read) return false;
    }
    t->begin = offsets[0];
    t->end = offsets[1];
    return !r->failed;
}

static bool read_entries(json_reader *r, contents *c) {
    if (!json_read_object(r)) return false;
    entry e;
    while (json_read_member(r, e.key, sizeof e.key)) {
        if (c->entry_count == MAX_ENTRIES || !json_read_string(r, e.value, sizeof e.value)) {
            return false;
        }
        if (strcmp(e.key, "checksum") != 0) c->entries[c->entry_count++] = e;
    }
    return !r->failed;
}

static bool read_contents(contents *c, const uint8_t *data, size_t size) {
    uint64_t length = 0;
    *c = (contents){0};
    if (size < PREFIX) return false;
    for (int i = 0; i < PREFIX; i++) length |= (uint64_t)data[i] << 8 * i;
    if (length > size - PREFIX) return false;
    json_reader r = {(const char *)data + PREFIX, (const char *)data + PREFIX + length, false};
    c->data = data + PREFIX + length;
    c->size = size - PREFIX - length;
    if (!json_read_object(&r)) return false;
    item t = {0};
    while (json_read_member(&r, t.name, sizeof t.name)) {
        if (strcmp(t.name, "__metadata__") == 0) {
            if (!read_entries(&r, c)) return false;
        } else {
            if (c->item_count == MAX_TENSORS || !read_item(&r, &t)) return false;
            c->items[c->item_count++] = t;
        }
        t = (item){0};
    }
    return !r.failed && c->item_count > 0;
}

/* ---------------------------------------------------------------------------------- writing */

static size_t element_size(const char *type) {
    const char *digits = type + strcspn(type, "0123456789");
    const int bits = atoi(digits);
    return bits == 64 ? 8 : bits == 16 ? 2 : bits == 8 ? 1 : 4;
}

/* Finds the number of bytes of the shape. Returns false if there are too many for a test. */
static bool wanted_bytes(const item *t, size_t *bytes) {
    *bytes = element_size(t->type);
    for (int d = 0; d < t->dimensions; d++) {
        if (t->shape[d] < 0 || t->shape[d] > MAX_FILE) return false;
        *bytes *= (size_t)t->shape[d];
        if (*bytes > MAX_FILE) return false;
    }
    return true;
}

/* Returns the number of bytes of a tensor's data, or 0 if its offsets are outside the file. */
static size_t data_bytes(const contents *c, const item *t) {
    const bool inside = t->begin >= 0 && t->end >= t->begin && (uint64_t)t->end <= c->size;
    return inside ? (size_t)(t->end - t->begin) : 0;
}

/* Lays out the tensors' data again, one after another, each cut or filled up to its shape. */
static void repair_offsets(contents *c, buffer *data) {
    int64_t at = 0;
    for (int i = 0; i < c->item_count; i++) {
        item *t = &c->items[i];
        size_t bytes;
        const size_t there = data_bytes(c, t);
        if (!wanted_bytes(t, &bytes)) bytes = there;
        const size_t copied = bytes < there ? bytes : there;
        static const uint8_t zeros[MAX_FILE];
        if (copied > 0) buffer_add(data, c->data + t->begin, copied);
        buffer_add(data, zeros, bytes - copied);
        t->begin = at;
        at += (int64_t)bytes;
        t->end = at;
    }
}

static void write_integers(json_writer *w, const char *key, const int64_t *values, int count) {
    json_array_begin(w, key);
    for (int i = 0; i < count; i++) json_integer(w, NULL, values[i]);
    json_array_end(w);
}

static char *write_header(const contents *c, size_t *length) {
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    if (!out) abort();
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_object_begin(&w, "__metadata__");
    json_string(&w, "checksum", "00000000");
    for (int i = 0; i < c->entry_count; i++) {
        json_string(&w, c->entries[i].key, c->entries[i].value);
    }
    json_object_end(&w);
    for (const item *t = c->items; t < c->items + c->item_count; t++) {
        json_object_begin(&w, t->name);
        json_string(&w, "dtype", t->type);
        write_integers(&w, "shape", t->shape, t->dimensions);
        write_integers(&w, "data_offsets", (const int64_t[]){t->begin, t->end}, 2);
        json_object_end(&w);
    }
    json_object_end(&w);
    while (ftell(out) % 8) fputc(' ', out);
    fclose(out);
    return text;
}

static void set_checksum(buffer *file) {
    static const char key[] = "\"checksum\": \"";
    uint8_t *found = memmem(file->bytes, file->size, key, sizeof key - 1);
    if (!found) return;
    char digits[9];
    snprintf(digits, sizeof digits, "%08lx", crc32(0, file->bytes, (uInt)file->size));
    memcpy(found + sizeof key - 1, digits, 8);
}

static void write_contents(contents *c, buffer *file) {
    buffer data = {0};
    if (draw_once_in(8)) {
        buffer_add(&data, c->data, c->size);
    } else {
        repair_offsets(c, &data);
    }
    size_t length;
    char *header = write_header(c, &length);
    uint64_t stated = length;
    if (draw_once_in(32)) stated = (uint64_t)draw_integer();
    for (int i = 0; i < PREFIX; i++) buffer_add(file, &(uint8_t){(uint8_t)(stated >> 8 * i)}, 1);
    buffer_add(file, header, length);
    buffer_add(file, data.bytes, data.size);
    free(header);
    free(data.bytes);
    if (!draw_once_in(16)) set_checksum(file);
}

/* ---------------------------------------------------------------------------------- changes */

static void copy_text(char *target, size_t size, const char *text) {
    const size_t length = strnlen(text, size - 1);
    memmove(target, text, length);
    target[length] = '\0';
}

static void change_shape(item *t) {
    const int d = t->dimensions ? (int)draw((uint64_t)t->dimensions) : 0;
    switch (draw(6)) {
    case 0: /* one more dimension, which may leave no data at all */
        if (t->dimensions < MAX_SHAPE) t->shape[t->dimensions++] = (int64_t)draw(3);
        break;
    case 1:
        if (t->dimensions > 0) t->dimensions--;
        break;
    case 2: t->shape[d] = draw_integer(); break;
    case 3: t->shape[d] = (int64_t)((uint64_t)t->shape[d] + draw(3) - 1); break;
    case 4:
        if (t->dimensions > 1) {
            const int64_t first = t->shape[0];
            t->shape[0] = t->shape[1];
            t->shape[1] = first;
        }
        break;
    default: t->shape[d] = 0;
    }
}

static void change_item(contents *c) {
    static const char *const types[] = {"F32", "F64",  "I32", "U8", "F16",
                                        "I64", "BF16", "X",   "",   "BOOL"};
    item *t = &c->items[draw((uint64_t)c->item_count)];
    item *other = &c->items[draw((uint64_t)c->item_count)];
    const item kept = *t;
    switch (draw(10)) {
    case 0: copy_text(t->type, sizeof t->type, types[draw(sizeof types / sizeof types[0])]); break;
    case 1: copy_text(t->name, sizeof t->name, draw_text()); break;
    case 2: copy_text(t->name, sizeof t->name, other->name); break;
    case 3: /* the order matters to readers that walk */
        *t = *other;
        *other = kept;
        break;
    case 4:
        if (c->item_count < MAX_TENSORS) c->items[c->item_count++] = kept;
        break;
    case 5:
        if (c->item_count > 1) *t = c->items[--c->item_count];
        break;
    case 6: t->begin = draw_integer(); break;
    case 7: t->end = draw_once_in(2) ? t->begin : draw_integer(); break;
    default: change_shape(t);
    }
}

static void change_entry(contents *c) {
    if (c->entry_count == 0) return;
    entry *e = &c->entries[draw((uint64_t)c->entry_count)];
    switch (draw(6)) {
    case 0: copy_text(e->key, sizeof e->key, draw_text()); break;
    case 1:
        if (c->entry_count < MAX_ENTRIES) c->entries[c->entry_count++] = *e;
        break;
    case 2: *e = c->entries[--c->entry_count]; break;
    default: copy_text(e->value, sizeof e->value, draw_text());
    }
}

/* Sets one element of a tensor to a number that no healthy file has. */
static void change_element(contents *c, uint8_t *data) {
    static const float odd[] = {NAN, INFINITY, -INFINITY, 3e38f, 1e-45f, -1, 0};
    const item *t = &c->items[draw((uint64_t)c->item_count)];
    const size_t elements = data_bytes(c, t) / 4;
    if (elements == 0) return;
    uint8_t *element = data + t->begin + 4 * draw(elements);
    if (strcmp(t->type, "I32") == 0) {
        memcpy(element, &(int32_t){(int32_t)draw_integer()}, 4);
    } else {
        memcpy(element, &odd[draw(sizeof odd / sizeof odd[0])], 4);
    }
}

size_t tensors_mutate(uint8_t *data, size_t size, size_t capacity, const uint8_t *valid,
                      size_t valid_size) {
    static contents c;
    if (draw_once_in(32)) return LLVMFuzzerMutate(data, size, capacity);
    const bool again = draw_once_in(16) || !read_contents(&c, data, size);
    if (again && !read_contents(&c, valid, valid_size)) return 0;
    uint8_t *elements = malloc(c.size + 1);
    if (!elements) abort();
    memcpy(elements, c.data, c.size);
    c.data = elements;
    for (uint64_t changes = 1 + draw(3); changes > 0; changes--) {
        switch (draw(4)) {
        case 0: change_element(&c, elements); break;
        case 1: change_entry(&c); break;
        default: change_item(&c);
        }
    }
    buffer file = {0};
    write_contents(&c, &file);
    free(elements);
    return buffer_take(&file, data, capacity);
}
