#include "corpora.h"

#include "core/memory.h"
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

const corpus_options plain_text = {0};

void buffer_add(buffer *b, const void *bytes, size_t size) {
    b->bytes = mem_grow(b->bytes, &b->capacity, b->size + size + 1, 1);
    memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
}

void buffer_add_text(buffer *b, const char *text) {
    buffer_add(b, text, strlen(text));
}

/* Random bytes without line ends. */
static void buffer_add_random(buffer *b, philox_stream *draws, size_t size) {
    for (size_t i = 0; i < size; i++) {
        uint8_t byte = (uint8_t)philox_below(draws, 256);
        if (byte == '\n' || byte == '\r') byte = 'n';
        buffer_add(b, &byte, 1);
    }
}

void buffer_add_gzip(buffer *b, const void *bytes, size_t size) {
    z_stream z = {.next_in = (uint8_t *)bytes, .avail_in = (unsigned)size};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t bound = deflateBound(&z, size);
    uint8_t *out = mem_alloc(bound, 1);
    z.next_out = out;
    z.avail_out = (unsigned)bound;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    buffer_add(b, out, bound - z.avail_out);
    deflateEnd(&z);
    free(out);
}

corpus *read_files(const corpus_options *options, int count, const char *const *names) {
    char *files[8];
    error err = {0};
    for (int i = 0; i < count; i++) files[i] = path_of(names[i]);
    corpus *c = corpus_read(files, count, options, &err);
    if (!c) fail_msg("refused: %s", err.text);
    return c;
}

corpus *read_one(const char *name) {
    return read_files(&plain_text, 1, &name);
}

void write_random(const char *name, size_t count, size_t longest, buffer *framed) {
    philox_stream draws = philox_start(count, PHILOX_TEST, 0, (uint32_t)longest);
    buffer file = {0};
    for (size_t i = 0; i < count; i++) {
        char label[32];
        snprintf(label, sizeof label, "%zu\t", i);
        buffer_add_text(&file, label);
        size_t before = file.size;
        buffer_add_random(&file, &draws, philox_below(&draws, longest + 1));
        if (framed) {
            buffer_add_text(framed, "\n ");
            buffer_add(framed, file.bytes + before, file.size - before);
            buffer_add_text(framed, " ");
        }
        buffer_add_text(&file, "\n");
    }
    write_bytes(path_of(name), file.bytes, file.size);
    free(file.bytes);
}

corpus *mixed_corpus(void) {
    const char *names[] = {"mixed.tsv", "mixed.txt", "mixed_long.txt"};
    write_random("mixed.tsv", 301, 40, NULL);
    write_text(path_of("mixed.txt"), "x");
    buffer text = {0};
    philox_stream draws = philox_start(1, PHILOX_TEST, 0, 0);
    buffer_add_random(&text, &draws, 9001);
    write_bytes(path_of("mixed_long.txt"), text.bytes, text.size);
    free(text.bytes);
    return read_files(&plain_text, 3, names);
}

buffer concatenation(const sequence *s) {
    buffer b = {.bytes = mem_alloc(s->size + 1, 1), .capacity = s->size + 1};
    for (size_t i = 0; i < s->count; i++) {
        const document *d = &s->corpus->documents[s->order[i]];
        buffer_add(&b, s->corpus->bytes + d->offset, d->length);
    }
    return b;
}
