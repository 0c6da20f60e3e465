#include "data/texts.h"

#include "core/file.h"
#include "core/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes each line of `raw`, also an empty one, as "-1<TAB>LINE". */
static void write_lines(const corpus *raw, FILE *out) {
    const uint8_t *next = raw->bytes, *end = raw->bytes + raw->size;
    while (next < end) {
        const uint8_t *stop = memchr(next, '\n', (size_t)(end - next));
        if (!stop) stop = end;
        fputs("-1\t", out);
        fwrite(next, 1, (size_t)(stop - next), out);
        fputc('\n', out);
        next = stop + 1;
    }
}

/* Reads the lines of `raw` as documents. They pass through a temporary file, so that corpus_read
 * frames them as it frames labelled documents. */
static corpus *read_lines(const corpus *raw, const corpus_options *options, error *err) {
    char *path = mem_format("%s/smallworld-XXXXXX.tsv", file_scratch_folder());
    int file = mkstemps(path, 4);
    FILE *out = file < 0 ? NULL : fdopen(file, "wb");
    corpus *c = NULL;
    bool written = out != NULL;
    if (out) {
        write_lines(raw, out);
        written = !ferror(out);
        written = fclose(out) == 0 && written;
    } else if (file >= 0) {
        close(file);
    }
    if (!written) {
        error_set(err, "cannot write %s: %s; TMPDIR can name another folder", path,
                  strerror(errno));
    } else {
        c = corpus_read(&path, 1, options, err);
    }
    if (file >= 0) unlink(path);
    free(path);
    return c;
}

corpus *texts_read(const char *path, bool whole, const corpus_options *options, error *err) {
    bool standard = strcmp(path, "-") == 0;
    char *name = mem_string(standard ? "/dev/stdin" : path);
    corpus *c = corpus_read(&name, 1, options, err);
    free(name);
    if (!c || whole || !c->documents[0].raw) return c;
    corpus *lines = read_lines(c, options, err);
    corpus_free(c);
    return lines;
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
