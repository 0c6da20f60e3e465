#include "data/corpus.h"

#include "core/file.h"
#include "core/memory.h"
#include "data/paths.h"
#include "data/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------ spool */

struct spool {
    uint8_t *bytes;
    uint64_t size;
    int users;
};

static void spool_release(spool *s) {
    if (!s || --s->users > 0) return;
    if (s->size > 0) {
        file_unguard(s->bytes);
        munmap(s->bytes, s->size);
    }
    free(s);
}

/* The state of reading a corpus. Its size is that of the spool so far. */
typedef struct reading {
    corpus *corpus;
    size_t capacity; /* of the array of documents */
    bool html_entities;
    labels labels;
    const char *folder; /* of the spool */
    FILE *spool;
} reading;

static bool spool_failed(const reading *r, error *err) {
    return error_set(err, "cannot write the spool file in %s: %s; TMPDIR can name another folder",
                     r->folder, strerror(errno));
}

static bool spool_begin(reading *r, error *err) {
    r->folder = file_scratch_folder();
    int file = open(r->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); /* a file without a name */
    if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        char *path = mem_format("%s/smallworld-XXXXXX",
                                r->folder); /* for file systems without unnamed files */
        file = mkostemp(path, O_CLOEXEC);
        if (file >= 0) unlink(path);
        free(path);
    }
    if (file >= 0) r->spool = fdopen(file, "w+b");
    if (file >= 0 && !r->spool) close(file);
    return r->spool || spool_failed(r, err);
}

static bool spool_write(reading *r, const void *bytes, size_t count, error *err) {
    if (fwrite(bytes, 1, count, r->spool) != count) return spool_failed(r, err);
    r->corpus->size += count;
    return true;
}

/* Maps the spool and closes its file: some file systems report a full disk only on closing. */
static bool spool_finish(reading *r, error *err) {
    corpus *c = r->corpus;
    c->spool = mem_alloc(1, sizeof *c->spool);
    *c->spool = (spool){.users = 1};
    void *bytes = NULL;
    bool written = fflush(r->spool) == 0;
    if (written && c->size > 0) {
        bytes = mmap(NULL, c->size, PROT_READ, MAP_SHARED, fileno(r->spool), 0);
        written = bytes != MAP_FAILED;
        if (written) {
            *c->spool = (spool){bytes, c->size, 1};
            file_guard(bytes, c->size, r->folder);
        }
    }
    if (!written) spool_failed(r, err);
    if (fclose(r->spool) != 0 && written) written = spool_failed(r, err);
    r->spool = NULL;
    c->bytes = c->spool->bytes;
    return written;
}

/* ---------------------------------------------------------------------------------- reading */

static document *append(corpus *c, size_t *capacity) {
    c->documents = mem_grow(c->documents, capacity, c->count + 1, sizeof *c->documents);
    return &c->documents[c->count++];
}

static int compare_names(const void *a, const void *b, void *names) {
    char *const *all = names;
    return strcmp(all[*(const int32_t *)a], all[*(const int32_t *)b]);
}

/* Renumbers names in alphabetical order, so that equal sets of names have equal numbers. */
static void sort_names(corpus *c) {
    int32_t order[CORPUS_MAX_NAMES], number[CORPUS_MAX_NAMES];
    char *sorted[CORPUS_MAX_NAMES];
    for (int k = 0; k < c->name_count; k++) order[k] = k;
    qsort_r(order, (size_t)c->name_count, sizeof *order, compare_names, c->names);
    for (int k = 0; k < c->name_count; k++) {
        sorted[k] = c->names[order[k]];
        number[order[k]] = k;
    }
    for (int k = 0; k < c->name_count; k++) c->names[k] = sorted[k];
    for (size_t i = 0; c->names && i < c->count; i++) {
        document *d = &c->documents[i];
        if (!d->raw && d->label >= 0) d->label = number[d->label];
    }
}

/* Adds the document on one line. Changes the line. */
static bool add_line(reading *r, const char *path, uint64_t number, uint8_t *line, size_t length,
                     error *err) {
    parsed_line p;
    if (!document_parse(&r->labels, path, number, line, length, &p, err)) return false;
    const size_t text = corpus_clean(p.text, p.length, &(corpus_options){r->html_entities});
    *append(r->corpus, &r->capacity) = (document){.offset = r->corpus->size,
                                                  .length = text + DOCUMENT_FRAME,
                                                  .hash = p.hash,
                                                  .label = p.label};
    return spool_write(r, "\n ", 2, err) && spool_write(r, p.text, text, err) &&
           spool_write(r, " ", 1, err);
}

static bool read_documents(reading *r, source *s, error *err) {
    lines l = {.source = s, .number = 1};
    bool read;
    for (; (read = lines_next(&l, err)) && l.text; l.number++) {
        if (l.number == 1 && l.length >= 3 && memcmp(l.text, "\xEF\xBB\xBF", 3) == 0) {
            l.text += 3; /* UTF-8's byte order mark */
            l.length -= 3;
        }
        read = add_line(r, source_name(s), l.number, l.text, l.length, err);
        if (!read) break;
    }
    free(l.buffer);
    return read;
}

static bool read_raw(reading *r, source *s, error *err) {
    document d = {.offset = r->corpus->size, .hash = hash_start, .raw = 1};
    uint8_t *bytes = mem_alloc(SOURCE_CHUNK, 1);
    size_t count = 0;
    bool read;
    while ((read = source_read(s, bytes, SOURCE_CHUNK, &count, err)) && count > 0) {
        d.hash = hash_bytes(d.hash, bytes, count);
        read = spool_write(r, bytes, count, err);
        if (!read) break;
    }
    free(bytes);
    d.hash = hash_end(d.hash);
    d.length = r->corpus->size - d.offset;
    *append(r->corpus, &r->capacity) = d;
    return read;
}

static bool read_file(void *reading_, const char *path, error *err) {
    reading *r = reading_;
    const uint64_t before = r->corpus->size;
    source *s = source_open(path, err);
    if (!s) return false;
    const bool documents =
        strcmp(path, "-") == 0 ? source_begins_with_label(s) : paths_is_documents(path);
    bool read = documents ? read_documents(r, s, err) : read_raw(r, s, err);
    if (read && r->corpus->size == before) read = error_set(err, "%s: empty", source_name(s));
    source_close(s);
    return read;
}

corpus *corpus_read(char *const *files, int count, const corpus_options *options, error *err) {
    reading r = {.corpus = mem_alloc(1, sizeof *r.corpus), .html_entities = options->html_entities};
    bool read = spool_begin(&r, err);
    if (read) read = paths_each(files, count, read_file, &r, err);
    if (read && r.corpus->count > UINT32_MAX)
        read = error_set(err, "expected fewer than 2^32 documents");
    if (read) read = spool_finish(&r, err);
    if (r.spool) fclose(r.spool);
    r.corpus->names = r.labels.names;
    r.corpus->name_count = r.labels.count;
    if (!read) {
        corpus_free(r.corpus);
        return NULL;
    }
    r.corpus->documents = mem_resize(r.corpus->documents, r.corpus->count, sizeof(document));
    sort_names(r.corpus);
    return r.corpus;
}

void corpus_free(corpus *c) {
    if (!c) return;
    spool_release(c->spool);
    for (int k = 0; k < c->name_count; k++) free(c->names[k]);
    free(c->names);
    free(c->documents);
    free(c);
}

/* Combines the documents' hashes. Both parts of a split raw text have the hash of the whole, so
 * their places count too. */
int64_t corpus_hash(const corpus *c) {
    uint64_t hash = hash_start;
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        hash = hash_words(hash, (const uint64_t[]){d->hash, d->length, d->offset}, 3);
    }
    return (int64_t)(hash_end(hash) >> 1);
}

/* -------------------------------------------------------------------------------- selection */

static int compare_hashes(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int64_t corpus_exclude(corpus *c, char *const *files, int count, const corpus_options *options,
                       error *err) {
    corpus *other = corpus_read(files, count, options, err);
    if (!other) return -1;
    uint64_t *hashes = mem_alloc(other->count, sizeof *hashes);
    for (size_t i = 0; i < other->count; i++) hashes[i] = other->documents[i].hash;
    qsort(hashes, other->count, sizeof *hashes, compare_hashes);
    size_t kept = 0, before = c->count;
    for (size_t i = 0; i < before; i++) {
        document d = c->documents[i];
        if (bsearch(&d.hash, hashes, other->count, sizeof *hashes, compare_hashes)) {
            c->size -= d.length;
        } else {
            c->documents[kept++] = d;
        }
    }
    c->count = kept;
    free(hashes);
    corpus_free(other);
    return (int64_t)(before - kept);
}

/* The number of bytes at the end of a document that move to the new corpus: some of a raw text, all
 * or none of other documents. */
static uint64_t bytes_to_move(const document *d, double fraction) {
    if (d->raw) return (uint64_t)((double)d->length * fraction);
    return hash_below(d->hash, fraction) ? d->length : 0;
}

/* Both parts of a raw text keep the hash of the whole, so that excluding the text drops both. */
corpus *corpus_split(corpus *c, double fraction) {
    corpus *part = mem_alloc(1, sizeof *part);
    *part = (corpus){.spool = c->spool, .bytes = c->bytes};
    part->spool->users++;
    size_t kept = 0, capacity = 0;
    for (size_t i = 0; i < c->count; i++) {
        document rest = c->documents[i], moved = rest;
        moved.length = bytes_to_move(&rest, fraction);
        rest.length -= moved.length;
        moved.offset += rest.length;
        if (moved.length > 0) *append(part, &capacity) = moved;
        if (rest.length > 0) c->documents[kept++] = rest;
        part->size += moved.length;
    }
    c->count = kept;
    c->size -= part->size;
    return part;
}
