#include "data/corpus.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/utf8.h"
#include "data/files.h"
#include "data/table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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
    corpus_options options;
    labels labels;
    const char *folder; /* of the spool */
    FILE *spool;
    const char *root; /* a folder with a folder for each class, or NULL */
    size_t beside;    /* files beside these folders, which are left out */
    bool text_alone;  /* labels are not read */
} reading;

static bool spool_failed(const reading *r, error *err) {
    return error_set(err,
                     "cannot write the spool file in %s: %s; data.cache or TMPDIR can name another "
                     "folder",
                     r->folder, strerror(errno));
}

static bool spool_begin(reading *r, error *err) {
    const char *cache = r->options.cache;
    r->folder = cache && *cache ? cache : file_scratch_folder();
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

/* Gives documents what their labels became. */
static void settle_labels(corpus *c, labels *l) {
    int32_t *number = labels_settle(l);
    for (size_t i = 0; i < c->count; i++) {
        document *d = &c->documents[i];
        if (document_has_label(d)) d->label = number[d->label];
    }
    c->names = l->names;
    c->name_count = l->count;
    l->names = NULL; /* they are the corpus's */
    l->count = 0;
    labels_free(l);
    free(number);
}

/* Adds the document on one line. Changes the line. */
static bool add_line(reading *r, const char *path, uint64_t number, uint8_t *line, size_t length,
                     bool is_row, error *err) {
    parsed_line p;
    labels *l = r->text_alone ? NULL : &r->labels;
    if (!document_parse(l, path, number, line, length, is_row, &p, err)) return false;
    const size_t text = corpus_clean(p.text, p.length, &r->options);
    *append(r->corpus, &r->capacity) = (document){.offset = r->corpus->size,
                                                  .length = text + DOCUMENT_FRAME,
                                                  .hash = p.hash,
                                                  .label = p.label};
    return spool_write(r, "\n ", 2, err) && spool_write(r, p.text, text, err) &&
           spool_write(r, " ", 1, err);
}

/* Leaves out the byte order mark that the first line may begin with. */
static void skip_mark(lines *l) {
    const size_t mark = l->number == 1 ? utf8_mark_length(l->text, l->length) : 0;
    l->text += mark;
    l->length -= mark;
}

static bool read_documents(reading *r, source *s, error *err) {
    lines l = {.source = s, .number = 1};
    bool read;
    for (; (read = lines_next(&l, err)) && l.text; l.number++) {
        skip_mark(&l);
        if (l.length == 0) continue;
        read = add_line(r, source_name(s), l.number, l.text, l.length, false, err);
        if (!read) break;
    }
    free(l.buffer);
    return read;
}

/* A row of the table that is being read. */
typedef struct table_place {
    reading *reading;
    const char *path;
} table_place;

static bool add_row(void *data, uint64_t row, uint8_t *line, size_t length, error *err) {
    const table_place *at = data;
    return add_line(at->reading, at->path, row, line, length, true, err);
}

static bool read_table(reading *r, source *s, table_kind kind, error *err) {
    table_place at = {r, source_name(s)};
    return table_read(s, kind, &r->options, add_row, &at, err);
}

static bool read_raw(reading *r, source *s, error *err) {
    document d = {.offset = r->corpus->size, .hash = hash_start, .raw = 1};
    uint8_t *bytes = mem_alloc(SOURCE_CHUNK, 1);
    const char *kind = NULL;
    size_t count = 0;
    bool read;
    while ((read = source_read(s, bytes, SOURCE_CHUNK, &count, err)) && count > 0) {
        if (r->corpus->size == d.offset) {
            kind = file_kind(bytes, count);
            const char *table = table_guess(bytes, count);
            if (table)
                log_warning("%s is read as raw text, but looks like %s", source_name(s), table);
        }
        d.hash = hash_bytes(d.hash, bytes, count);
        read = spool_write(r, bytes, count, err);
        if (!read) break;
    }
    free(bytes);
    if (read && kind) file_kind_warn(source_name(s), kind);
    d.hash = hash_end(d.hash);
    d.length = r->corpus->size - d.offset;
    *append(r->corpus, &r->capacity) = d;
    return read;
}

/* The name of the folder that a file lies in, or "" if that stands for no class. */
static char *class_of(const char *path) {
    const char *end = strrchr(path, '/'), *begin = end;
    if (!end) return mem_string("");
    while (begin > path && begin[-1] != '/') begin--;
    char *name = mem_format("%.*s", (int)(end - begin), begin);
    if (strcmp(name, "unsup") == 0 || strcmp(name, "unlabeled") == 0) *name = '\0';
    return name;
}

/* Refuses a file that lies two folders deep in the one with the folders of classes, below train or
 * test if these are on top: either of the two could be its class. */
static bool check_depth(const reading *r, const char *path, error *err) {
    const size_t root = r->root ? strlen(r->root) : 0;
    if (!r->root || strncmp(path, r->root, root) != 0) return true;
    const char *top = path + root;
    while (*top == '/') top++;
    if (strncmp(top, "train/", 6) == 0 || strncmp(top, "test/", 5) == 0) top = strchr(top, '/') + 1;
    const char *next = strchr(top, '/'), *last = strrchr(top, '/');
    if (!next || next == last) return true;
    char *class = class_of(path);
    error_set(err,
              "%s: in folders of folders: its class could be '%.*s' or '%s'; expected one "
              "folder for each class, with its files",
              path, (int)(next - top), top, class);
    free(class);
    return false;
}

/* Reads a whole file as one document, whose class its folder names. */
static bool read_classed(reading *r, source *s, const char *path, error *err) {
    if (!check_depth(r, path, err)) return false;
    char *class = class_of(path);
    if (strchr(class, '\t')) {
        free(class);
        return error_set(err, "%s: expected a folder's name without tabs as class", path);
    }
    const size_t label = strlen(class);
    size_t capacity = 0, length = label + 1, count = 0;
    uint8_t *line = mem_grow(NULL, &capacity, length + SOURCE_CHUNK, 1);
    bool read;
    snprintf((char *)line, label + 2, "%s\t", class);
    while ((read = source_read(s, line + length, SOURCE_CHUNK, &count, err)) && count > 0) {
        length += count;
        if (length > SOURCE_LONGEST) {
            read = error_set(err, "%s: expected a document of at most 64 MiB", path);
            break;
        }
        line = mem_grow(line, &capacity, length + SOURCE_CHUNK, 1);
    }
    while (read && length > label + 1 && strchr("\r\n", line[length - 1])) length--;
    for (size_t i = label + 1; i < length; i++) {
        if (line[i] == '\n') line[i] = ' ';
    }
    read = read && add_line(r, path, 1, line, length, true, err);
    free(line);
    free(class);
    return read;
}

static bool is_beside_classes(const reading *r, const char *path) {
    const size_t root = r->root ? strlen(r->root) : 0;
    return r->root && strncmp(path, r->root, root) == 0 && !strchr(path + root + 1, '/');
}

static bool read_file(void *reading_, const char *path, error *err) {
    reading *r = reading_;
    const uint64_t before = r->corpus->size;
    const table_kind table = table_kind_of(path, &r->options);
    if (!table && !paths_is_lines(path) && is_beside_classes(r, path)) {
        r->beside++;
        return true;
    }
    if (!table && !r->text_alone && !table_check_named(path, &r->options, err)) return false;
    source *s = source_open(path, err);
    if (!s) return false;
    const bool documents =
        strcmp(path, "-") == 0 ? source_begins_with_label(s) : paths_is_lines(path);
    bool read = table                      ? read_table(r, s, table, err)
                : documents                ? read_documents(r, s, err)
                : r->options.class_folders ? read_classed(r, s, path, err)
                                           : read_raw(r, s, err);
    if (read && r->corpus->size == before) read = error_set(err, "%s: empty", source_name(s));
    source_close(s);
    return read;
}

static void reading_begin(reading *r, const corpus_options *options) {
    *r = (reading){.corpus = mem_alloc(1, sizeof *r->corpus), .options = *options};
}

/* Returns the corpus, or NULL if reading has failed. */
static corpus *reading_end(reading *r, bool read, error *err) {
    corpus *c = r->corpus;
    if (read && c->count > UINT32_MAX) read = error_set(err, "expected fewer than 2^32 documents");
    if (read) read = spool_finish(r, err);
    if (r->spool) fclose(r->spool);
    settle_labels(c, &r->labels);
    if (!read) {
        corpus_free(c);
        return NULL;
    }
    c->documents = mem_resize(c->documents, c->count, sizeof(document));
    return c;
}

/* Reads text alone: whatever labels its lines have, its documents have none. */
static bool read_text(reading *r, char *const *file, error *err) {
    r->text_alone = true;
    r->options.class_folders = false;
    return paths_each(file, 1, read_file, r, err);
}

static bool add_file(void *bytes_, const char *path, error *err) {
    uint64_t *bytes = bytes_;
    struct stat status;
    (void)err;
    if (stat(path, &status) == 0 && S_ISREG(status.st_mode)) *bytes += (uint64_t)status.st_size;
    return true;
}

/* Refuses files for which the disk is too small, before they are read: unpacked they take their
 * size at least. */
static bool check_space(const reading *r, char *const *files, int count, error *err) {
    uint64_t bytes = 0;
    return paths_each(files, count, add_file, &bytes, err) &&
           file_check_space(r->folder, (double)bytes, "the text, unpacked,",
                            "data.cache or TMPDIR can name another folder", err);
}

corpus *corpus_read(char *const *files, int count, const corpus_options *options, error *err) {
    reading r;
    reading_begin(&r, options);
    bool read = spool_begin(&r, err) && check_space(&r, files, count, err);
    for (int i = 0; read && i < count; i++) {
        if (options->labelled_files > 0 && i >= options->labelled_files) {
            read = read_text(&r, files + i, err);
            continue;
        }
        r.root = options->class_folders && paths_has_folders(files[i]) ? files[i] : NULL;
        r.beside = 0;
        read = paths_each(files + i, 1, read_file, &r, err);
        if (r.beside == 0) continue;
        log_line("%s: left out what lies beside its folders of classes, files: %zu", files[i],
                 r.beside);
    }
    return reading_end(&r, read, err);
}

/* ------------------------------------------------------------------------------------ lines */

/* A file, or standard input for "-", each of whose lines, also an empty one, is a document without
 * a label (-1). Its path must outlive it. */
typedef struct line_reader {
    source *source;
    lines lines;
    corpus_options options;
    uint8_t *line; /* scratch: "-1<TAB>" and a line */
    size_t capacity;
} line_reader;

static line_reader *open_lines(const char *path, const corpus_options *options, error *err) {
    if (!table_check_named(path, options, err)) return NULL;
    source *s = source_open(path, err);
    if (!s) return NULL;
    line_reader *l = mem_alloc(1, sizeof *l);
    *l = (line_reader){.source = s, .lines = {.source = s, .number = 1}, .options = *options};
    return l;
}

/* Adds the line that was read as a document. */
static bool add_next_line(line_reader *l, reading *r, error *err) {
    lines *from = &l->lines;
    skip_mark(from);
    l->line = mem_grow(l->line, &l->capacity, from->length + 4, 1);
    memcpy(l->line, "-1\t", 3);
    memcpy(l->line + 3, from->text, from->length);
    return add_line(r, source_name(l->source), from->number, l->line, from->length + 3, false, err);
}

/* The documents of all lines, or, unless `all`, of a pipe those that are there, after waiting for
 * one; NULL after the last one, with no text in `err`. */
static corpus *next_documents(line_reader *l, bool all, error *err) {
    reading r;
    err->text[0] = '\0';
    if (!lines_next(&l->lines, err) || !l->lines.text) return NULL;
    if (l->lines.number == 1) {
        const char *kind = file_kind(l->lines.buffer, l->lines.end);
        if (kind) file_kind_warn(source_name(l->source), kind);
    }
    reading_begin(&r, &l->options);
    bool read = spool_begin(&r, err);
    while (read && l->lines.text) {
        read = add_next_line(l, &r, err);
        l->lines.number++;
        if (!all && source_waits(l->source) && !lines_waiting(&l->lines)) break;
        read = read && lines_next(&l->lines, err);
    }
    return reading_end(&r, read, err);
}

static void close_lines(line_reader *l) {
    if (!l) return;
    source_close(l->source);
    free(l->lines.buffer);
    free(l->line);
    free(l);
}

/* ------------------------------------------------------------------------------- the whole text */

void corpus_free(corpus *c) {
    if (!c) return;
    spool_release(c->spool);
    for (int k = 0; k < c->name_count; k++) free(c->names[k]);
    free(c->names);
    free(c->documents);
    free(c->classes);
    free(c->class_weights);
    free(c);
}

const uint8_t *corpus_text(const corpus *c, size_t number, size_t *length) {
    const document *d = &c->documents[number];
    *length = d->raw ? d->length : d->length - DOCUMENT_FRAME;
    return c->bytes + d->offset + (d->raw ? 0 : 2);
}

const char *corpus_label(const corpus *c, size_t number, char *text) {
    const document *d = &c->documents[number];
    if (!document_has_label(d)) return NULL;
    if (c->names) return c->names[d->label];
    snprintf(text, 16, "%d", d->label);
    return text;
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

/* The hashes of a corpus's documents in ascending order, which the caller frees. */
static uint64_t *ordered_hashes(const corpus *c) {
    uint64_t *hashes = mem_alloc(c->count + 1, sizeof *hashes);
    for (size_t i = 0; i < c->count; i++) hashes[i] = c->documents[i].hash;
    qsort(hashes, c->count, sizeof *hashes, compare_hashes);
    return hashes;
}

/* Whether each document occurs in another corpus: [documents], which the caller frees. */
static bool *find_shared(const corpus *c, const corpus *other) {
    uint64_t *hashes = ordered_hashes(other);
    bool *shared = mem_alloc(c->count + 1, sizeof *shared);
    for (size_t i = 0; i < c->count; i++) {
        shared[i] = bsearch(&c->documents[i].hash, hashes, other->count, sizeof *hashes,
                            compare_hashes) != NULL;
    }
    free(hashes);
    return shared;
}

size_t corpus_shared(const corpus *c, const corpus *other) {
    bool *shared = find_shared(c, other);
    size_t count = 0;
    for (size_t i = 0; i < c->count; i++) count += shared[i];
    free(shared);
    return count;
}

size_t corpus_drop(corpus *c, const corpus *other) {
    bool *shared = find_shared(c, other);
    size_t kept = 0, before = c->count;
    for (size_t i = 0; i < before; i++) {
        if (shared[i]) {
            c->size -= c->documents[i].length;
        } else {
            c->documents[kept++] = c->documents[i];
        }
    }
    c->count = kept;
    free(shared);
    return before - kept;
}

int64_t corpus_exclude(corpus *c, char *const *files, int count, const corpus_options *options,
                       error *err) {
    corpus_options how = *options; /* these files need not have the columns that are named */
    how.usual_text = options->text_column;
    how.usual_label = options->label_column;
    how.text_column = how.label_column = NULL;
    corpus *other = corpus_read(files, count, &how, err);
    if (!other) return -1;
    const size_t dropped = corpus_drop(c, other);
    corpus_free(other);
    return (int64_t)dropped;
}

/* The number of bytes at the end of a document that move to the new corpus: some of a raw text, all
 * or none of other documents. */
static uint64_t bytes_to_move(const document *d, double fraction) {
    if (d->raw) return (uint64_t)((double)d->length * fraction);
    return hash_below(d->hash, fraction) ? d->length : 0;
}

static corpus *no_documents_of(const corpus *c) {
    corpus *part = mem_alloc(1, sizeof *part);
    *part = (corpus){.spool = c->spool, .bytes = c->bytes, .name_count = c->name_count};
    part->spool->users++;
    if (c->names) part->names = mem_alloc((size_t)c->name_count, sizeof *part->names);
    for (int i = 0; c->names && i < c->name_count; i++) part->names[i] = mem_string(c->names[i]);
    return part;
}

corpus *corpus_part(const corpus *c, const bool *chosen, bool value) {
    corpus *part = no_documents_of(c);
    size_t capacity = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (chosen && chosen[i] != value) continue;
        *append(part, &capacity) = c->documents[i];
        part->size += c->documents[i].length;
    }
    return part;
}

/* Both parts of a raw text keep the hash of the whole, so that excluding the text drops both. */
corpus *corpus_split(corpus *c, double fraction, double of_labelled) {
    corpus *part = no_documents_of(c);
    size_t kept = 0, capacity = 0;
    for (size_t i = 0; i < c->count; i++) {
        document rest = c->documents[i], moved = rest;
        const double share = document_has_label(&rest) ? of_labelled : fraction;
        moved.length = bytes_to_move(&rest, share);
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

static int longest_first(const void *a, const void *b, void *corpus_) {
    const corpus *c = corpus_;
    const uint32_t i = *(const uint32_t *)a, j = *(const uint32_t *)b;
    const uint64_t left = c->documents[i].length, right = c->documents[j].length;
    if (left != right) return left < right ? 1 : -1;
    return i < j ? -1 : 1;
}

uint32_t *corpus_longest_first(const corpus *c) {
    uint32_t *order = mem_alloc(c->count, sizeof *order);
    for (size_t i = 0; i < c->count; i++) order[i] = (uint32_t)i;
    qsort_r(order, c->count, sizeof *order, longest_first, (void *)(uintptr_t)c);
    return order;
}

/* ----------------------------------------------------------- texts for prediction and for pages */

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
    line_reader *l = open_lines(path, options, err);
    bool read = l != NULL;
    while (read) {
        corpus *part = next_documents(l, false, err);
        if (!part) {
            read = err->text[0] == '\0';
            break;
        }
        read = take(data, part, err);
    }
    close_lines(l);
    return read;
}

corpus *texts_read(const char *path, bool whole, const corpus_options *options, error *err) {
    if (!is_lines(path, whole, options)) return read_all(path, options, err);
    line_reader *l = open_lines(path, options, err);
    corpus *c = l ? next_documents(l, true, err) : NULL;
    close_lines(l);
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
