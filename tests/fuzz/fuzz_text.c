/* Texts: tables and raw, plain, gzip or xz. The bits of an input's first byte choose the name's
 * ending, whether HTML entities are decoded, and whether the corpus is split; the rest is the file.
 * Only inputs that begin with the magic of gzip or xz are read as such. */
#include "fuzz.h"

#include "core/memory.h"
#include "data/corpus.h"
#include "data/minibatches.h"

#include <stdlib.h>
#include <string.h>

enum { ENTITIES = 2, SPLIT = 4 }; /* bits 0, 3 and 4 choose the name */

static const char *names[8] = {"input.txt", "input.tsv",    "input.jsonl", "input.csv",
                               "input.txt", "input.ft.txt", "input.json",  "input.ft.txt"};

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    for (int i = 0; i < 8; i++) names[i] = scratch_path(names[i]);
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
    char *path = (char *)names[(data[0] & 1) | (data[0] >> 2 & 6)];
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
