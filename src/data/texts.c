#include "data/texts.h"

#include "core/file.h"
#include "core/memory.h"
#include "data/paths.h"
#include "data/table.h"

#include <stdlib.h>
#include <string.h>

/* Whether each line is a document. */
static bool is_lines(const char *path, bool whole, const corpus_options *options) {
    return !whole && !paths_is_lines(path) && !table_kind_of(path, options) &&
           !file_ends_in(path, ".list") && (strcmp(path, "-") == 0 || !file_is_folder(path));
}

static corpus *read_all(const char *path, const corpus_options *options, error *err) {
    char *const name = (char *)(strcmp(path, "-") == 0 ? "/dev/stdin" : path);
    return corpus_read(&name, 1, options, err);
}

/* Hands the documents on, some thousand at a time. */
static bool take_all(corpus *c, texts_take *take, void *data, error *err) {
    enum { PART = 4096 };
    if (c->count <= PART) return take(data, c, err);
    bool *chosen = mem_alloc(c->count, sizeof *chosen), taken = true;
    for (size_t first = 0; taken && first < c->count; first += PART) {
        const size_t count = c->count - first < PART ? c->count - first : PART;
        memset(chosen, 0, c->count);
        memset(chosen + first, true, count);
        taken = take(data, corpus_part(c, chosen, true), err);
    }
    free(chosen);
    corpus_free(c);
    return taken;
}

bool texts_each(const char *path, bool whole, const corpus_options *options, texts_take *take,
                void *data, error *err) {
    if (!is_lines(path, whole, options)) {
        corpus *c = read_all(path, options, err);
        return c && take_all(c, take, data, err);
    }
    corpus_lines *l = corpus_lines_open(path, options, err);
    bool read = l != NULL;
    while (read) {
        corpus *part = corpus_next_lines(l, false, err);
        if (!part) {
            read = err->text[0] == '\0';
            break;
        }
        read = take(data, part, err);
    }
    corpus_lines_close(l);
    return read;
}

corpus *texts_read(const char *path, bool whole, const corpus_options *options, error *err) {
    if (!is_lines(path, whole, options)) return read_all(path, options, err);
    corpus_lines *l = corpus_lines_open(path, options, err);
    corpus *c = l ? corpus_next_lines(l, true, err) : NULL;
    corpus_lines_close(l);
    return c;
}

uint64_t texts_cut(corpus *c, uint64_t limit) {
    uint64_t before = c->size, left = limit;
    for (size_t i = 0; i < c->count; i++) {
        document *d = &c->documents[i];
        if (d->length > left) d->length = left;
        left -= d->length;
        if (d->length == 0) {
            c->count = i;
            break;
        }
    }
    c->size = limit - left;
    return before - c->size;
}
