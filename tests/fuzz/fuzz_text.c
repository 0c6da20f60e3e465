/* Texts: TSV and raw, gzipped or not. The bits of an input's first byte choose the name's ending
 * (.tsv or .txt), whether HTML entities are decoded, and whether the corpus is split; the rest is
 * the file. Only inputs that begin with gzip's magic are read as gzip. */
#include "fuzz.h"

#include "core/memory.h"
#include "data/corpus.h"
#include "data/sequence.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { TSV = 1, ENTITIES = 2, SPLIT = 4, MAX_TEXT = 1 << 18 };

static const char *documents, *raw;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    documents = scratch_path("input.tsv");
    raw = scratch_path("input.txt");
    return 0;
}

static void check(const corpus *c) {
    uint64_t size = 0;
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        touch(c->bytes + d->offset, d->length);
        size += d->length;
        if (d->raw) continue;
        const uint8_t *text = c->bytes + d->offset;
        require(d->length >= 3 && text[0] == '\n' && text[1] == ' ' && text[d->length - 1] == ' ',
                "a document without its frame");
        require(!memchr(text + 1, '\n', d->length - 1), "a line feed inside a document");
    }
    require(size == c->size, "documents of another total size");
}

static void read_in_order(const corpus *c) {
    sequence *s = sequence_in_order(c);
    uint8_t *copy = malloc(s->size + 1);
    if (!copy) abort();
    sequence_copy(s, 0, s->size, copy);
    touch(copy, s->size);
    free(copy);
    sequence_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    char *path = (char *)(data[0] & TSV ? documents : raw);
    const corpus_options how = {.html_entities = (data[0] & ENTITIES) != 0};
    error err;
    scratch_write(path, data + 1, size - 1);
    corpus *c = corpus_read(&path, 1, &how, &err);
    if (!c) {
        require(strstr(err.text, path) != NULL, "an error that does not name the file");
        return 0;
    }
    check(c);
    if (data[0] & SPLIT) {
        const uint64_t before = c->size;
        corpus *part = corpus_split(c, 0.3);
        require(part->size + c->size == before, "a split that loses bytes");
        check(part);
        corpus_free(part);
        check(c);
    }
    if (c->size > 0) read_in_order(c);
    corpus_free(c);
    return 0;
}

/* -------------------------------------------------------------------------------------- mutator */

/* Returns the content, decompressed as far as possible. */
static void unpack(const uint8_t *data, size_t size, buffer *text) {
    if (size < 2 || data[0] != 0x1f || data[1] != 0x8b) {
        buffer_add(text, data, size);
        return;
    }
    static uint8_t out[MAX_TEXT];
    z_stream z = {.next_in = (uint8_t *)data,
                  .avail_in = (uInt)size,
                  .next_out = out,
                  .avail_out = sizeof out};
    if (inflateInit2(&z, 31) != Z_OK) abort();
    inflate(&z, Z_FINISH);
    buffer_add(text, out, sizeof out - z.avail_out);
    inflateEnd(&z);
}

/* Adds a gzip member of `size` bytes of text, which is damaged now and then. */
static void pack(const uint8_t *text, size_t size, buffer *file) {
    static uint8_t out[MAX_TEXT];
    z_stream z = {.next_in = (uint8_t *)text,
                  .avail_in = (uInt)size,
                  .next_out = out,
                  .avail_out = sizeof out};
    if (deflateInit2(&z, 1 + (int)draw(9), Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) abort();
    deflate(&z, Z_FINISH);
    size_t used = sizeof out - z.avail_out;
    deflateEnd(&z);
    if (draw_once_in(8) && used > 0) used = draw(used);
    if (draw_once_in(8) && used > 0) out[draw(used)] ^= (uint8_t)(1 << draw(8));
    buffer_add(file, out, used);
    if (draw_once_in(16)) buffer_text(file, "%s", draw_text()); /* after the member's end */
}

static void add_line(buffer *text) {
    static const char *const labels[] = {"0",          "1",   "-1", "",           "+1",
                                         "01",         "1.0", " 1", "2147483647", "-2147483648",
                                         "2147483648", "-",   "é"};
    static const char *const parts[] = {
        "a cat",   " ",         "\r",   "\t",         "&amp;",
        "&#65;",   "&#x1F600;", "&#0;", "&#x110000;", "&#99999999999;",
        "&nbsp;",  "&lt",       "&",    "&;",         "&#;",
        "&#x;",    "é",         "\xff", "\xf0\x9f",   "<br />",
        "&#xD800;"};
    static const char *const ends[] = {"\n", "\n", "\n", "\r\n", "", "\n\n", "\r"};
    buffer_text(text, "%s", draw_once_in(4) ? labels[draw(13)] : labels[draw(3)]);
    if (!draw_once_in(16)) buffer_text(text, "\t");
    for (uint64_t count = draw(6); count > 0; count--) buffer_text(text, "%s", parts[draw(21)]);
    if (draw_once_in(32)) buffer_add(text, "\0", 1);
    buffer_text(text, "%s", ends[draw(7)]);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed) {
    draw_seed(seed);
    if (size > 0 && draw_once_in(4)) return LLVMFuzzerMutate(data, size, capacity);
    buffer text = {0}, file = {0};
    uint8_t kind = size > 0 ? data[0] : (uint8_t)draw(8);
    if (draw_once_in(8)) kind = (uint8_t)draw(8);
    if (size > 0) unpack(data + 1, size - 1, &text);
    if (draw_once_in(8)) text.size = 0;
    if (draw_once_in(8)) text.size = draw(text.size + 1);
    for (uint64_t lines = 1 + draw(3); lines > 0; lines--) add_line(&text);
    buffer_add(&file, &kind, 1);
    if (draw_once_in(2)) {
        const size_t first = draw_once_in(4) ? draw(text.size + 1) : text.size;
        pack(text.bytes, first, &file);
        if (first < text.size) pack(text.bytes + first, text.size - first, &file);
    } else {
        buffer_add(&file, text.bytes, text.size);
    }
    free(text.bytes);
    return buffer_take(&file, data, capacity);
}
