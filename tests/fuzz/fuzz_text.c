/* Texts: TSV and raw, plain, gzip or xz. The bits of an input's first byte choose the name's ending
 * (.tsv, .txt, .csv or .jsonl), whether HTML entities are decoded, and whether the corpus is split;
 * the rest is the file. Only inputs that begin with the magic of gzip or xz are read as such. */
#include "fuzz.h"

#include "core/memory.h"
#include "data/corpus.h"
#include "data/sequence.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#ifdef SMALLWORLD_XZ
#include <lzma.h>
#endif

enum { TSV = 1, ENTITIES = 2, SPLIT = 4, TABLE = 8, MAX_TEXT = 1 << 18 };

static const char *names[2][2]; /* [table][.tsv] */

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    names[0][0] = scratch_path("input.txt");
    names[0][1] = scratch_path("input.tsv");
    names[1][0] = scratch_path("input.jsonl");
    names[1][1] = scratch_path("input.csv");
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
    char *path = (char *)names[(data[0] & TABLE) != 0][data[0] & TSV];
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
        corpus *part = corpus_split(c, 0.3, 0.3);
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

#ifdef SMALLWORLD_XZ
static bool unpack_xz(const uint8_t *data, size_t size, uint8_t *out, size_t *used) {
    static const uint8_t magic[] = {0xfd, '7', 'z', 'X', 'Z', 0};
    if (size < sizeof magic || memcmp(data, magic, sizeof magic) != 0) return false;
    uint64_t memory = 1 << 26;
    size_t at = 0;
    if (lzma_stream_buffer_decode(&memory, 0, NULL, data, &at, size, out, used, MAX_TEXT) !=
        LZMA_OK) {
        *used = 0;
    }
    return true;
}

static size_t pack_xz(const uint8_t *text, size_t size, uint8_t *out) {
    size_t used = 0;
    if (lzma_easy_buffer_encode((uint32_t)draw(2),
                                draw_once_in(2) ? LZMA_CHECK_CRC32 : LZMA_CHECK_CRC64, NULL, text,
                                size, out, &used, MAX_TEXT) != LZMA_OK) {
        used = 0;
    }
    return used;
}
#else
static bool unpack_xz(const uint8_t *data, size_t size, uint8_t *out, size_t *used) {
    (void)data, (void)size, (void)out, (void)used;
    return false;
}

static size_t pack_xz(const uint8_t *text, size_t size, uint8_t *out) {
    memcpy(out, text, size);
    return size;
}
#endif

/* Adds the content, decompressed as far as possible. */
static void unpack(const uint8_t *data, size_t size, buffer *text) {
    static uint8_t out[MAX_TEXT];
    size_t used = 0;
    if (unpack_xz(data, size, out, &used)) {
        buffer_add(text, out, used);
        return;
    }
    if (size < 2 || data[0] != 0x1f || data[1] != 0x8b) {
        buffer_add(text, data, size);
        return;
    }
    z_stream z = {.next_in = (uint8_t *)data,
                  .avail_in = (uInt)size,
                  .next_out = out,
                  .avail_out = sizeof out};
    if (inflateInit2(&z, 31) != Z_OK) abort();
    inflate(&z, Z_FINISH);
    buffer_add(text, out, sizeof out - z.avail_out);
    inflateEnd(&z);
}

static size_t pack_gzip(const uint8_t *text, size_t size, uint8_t *out) {
    z_stream z = {
        .next_in = (uint8_t *)text, .avail_in = (uInt)size, .next_out = out, .avail_out = MAX_TEXT};
    if (deflateInit2(&z, 1 + (int)draw(9), Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) != Z_OK) abort();
    deflate(&z, Z_FINISH);
    deflateEnd(&z);
    return MAX_TEXT - z.avail_out;
}

/* Adds a gzip member, or an xz stream, of `size` bytes of text. Now and then it is damaged. */
static void pack(const uint8_t *text, size_t size, bool xz, buffer *file) {
    static uint8_t out[MAX_TEXT];
    size_t used = xz ? pack_xz(text, size, out) : pack_gzip(text, size, out);
    if (draw_once_in(8) && used > 0) used = draw(used);
    if (draw_once_in(8) && used > 0) out[draw(used)] ^= (uint8_t)(1 << draw(8));
    buffer_add(file, out, used);
    if (draw_once_in(16)) buffer_text(file, "%s", draw_text()); /* after the end */
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
    uint8_t kind = size > 0 ? data[0] : (uint8_t)draw(16);
    if (draw_once_in(8)) kind = (uint8_t)draw(16);
    if (size > 0) unpack(data + 1, size - 1, &text);
    if (draw_once_in(8)) text.size = 0;
    if (draw_once_in(8)) text.size = draw(text.size + 1);
    for (uint64_t lines = 1 + draw(3); lines > 0; lines--) add_line(&text);
    buffer_add(&file, &kind, 1);
    if (draw_once_in(2)) {
        const size_t first = draw_once_in(4) ? draw(text.size + 1) : text.size;
        const bool xz = draw_once_in(3);
        pack(text.bytes, first, xz, &file);
        if (first < text.size) pack(text.bytes + first, text.size - first, xz, &file);
    } else {
        buffer_add(&file, text.bytes, text.size);
    }
    free(text.bytes);
    return buffer_take(&file, data, capacity);
}
