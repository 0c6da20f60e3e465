#include "data/store.h"

#include "core/log.h"
#include "core/memory.h"
#include "core/utf8.h"
#include "data/looks.h"
#include "data/paths.h"
#include "data/table.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* About the most places in the gzips of a corpus, each of which takes up to 32 KiB of memory, and
 * the ratio of a text to its gzip. */
enum { MOST_PLACES = 2048, RATIO = 4 };

/* The size of a file, unpacked, from which on reading it only from its start is worth a warning. */
static const uint64_t large = 64 << 20;

/* What reading a file finds. */
typedef struct scan {
    const store *store;
    stored_file *file;
    size_t piece_capacity, place_capacity;
    error *err; /* NULL: none */
} scan;

static int compare_hashes(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

store_use store_use_of(const store *s, uint64_t hash) {
    if (s->excluded_count > 0 &&
        bsearch(&hash, s->excluded, s->excluded_count, sizeof hash, compare_hashes)) {
        return STORE_EXCLUDED;
    }
    return hash_below(hash, s->fraction) ? STORE_LEFT_OUT : STORE_KEPT;
}

/* ------------------------------------------------------------------------------- one file */

static void take_place(scan *c, source *s) {
    stored_file *f = c->file;
    source_place place;
    if (!source_take_place(s, &place)) return;
    f->places = mem_grow(f->places, &c->place_capacity, f->place_count + 1, sizeof *f->places);
    f->places[f->place_count++] = place;
}

/* The last place of a file at or before byte `content`, or NULL. */
static const source_place *place_before(const stored_file *f, uint64_t content) {
    size_t low = 0, high = f->place_count;
    if (high == 0 || f->places[0].content > content) return NULL;
    while (high - low > 1) {
        const size_t middle = low + (high - low) / 2;
        if (f->places[middle].content <= content) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &f->places[low];
}

static document *add_piece(scan *c, uint64_t offset, bool raw) {
    stored_file *f = c->file;
    f->pieces = mem_grow(f->pieces, &c->piece_capacity, f->piece_count + 1, sizeof *f->pieces);
    f->pieces[f->piece_count] = (document){.offset = offset, .hash = hash_start, .raw = raw};
    return &f->pieces[f->piece_count++];
}

/* Whether reading can start at byte `content` without what is before byte `begin` of the piece. */
static bool may_start(const scan *c, const source *s, uint64_t begin, uint64_t content) {
    const source_place *place = place_before(c->file, content);
    return source_is_plain(s) || (place && place->content > begin);
}

static void scan_line(scan *c, const source *s, const parsed_line *p, uint64_t begin) {
    const store_use use = store_use_of(c->store, p->hash);
    stored_file *f = c->file;
    f->excluded += use == STORE_EXCLUDED;
    if (use != STORE_KEPT) return;
    document *piece = f->piece_count > 0 ? &f->pieces[f->piece_count - 1] : NULL;
    if (!piece || (piece->length >= c->store->block && may_start(c, s, piece->offset, begin))) {
        piece = add_piece(c, begin, false);
    }
    const uint64_t length = corpus_clean(p->text, p->length, &c->store->options) + DOCUMENT_FRAME;
    piece->hash = hash_words(piece->hash, (const uint64_t[]){p->hash, length}, 2);
    piece->length += length;
    f->texts++;
}

static bool scan_documents(scan *c, source *s, error *err) {
    lines l = {.source = s, .number = 1};
    labels kinds = {0};
    bool read;
    for (; (read = lines_next(&l, err)) && l.text; l.number++) {
        const uint64_t from = l.number == 1 ? 0 : c->file->content;
        const size_t mark = l.number == 1 ? utf8_mark_length(l.text, l.length) : 0;
        parsed_line p;
        read = document_parse(&kinds, source_name(s), l.number, l.text + mark, l.length - mark,
                              false, &p, err);
        if (!read) break;
        scan_line(c, s, &p, from + mark);
        take_place(c, s);
        c->file->content = l.taken;
    }
    for (size_t i = 0; i < c->file->piece_count; i++) {
        c->file->pieces[i].hash = hash_end(c->file->pieces[i].hash);
    }
    labels_free(&kinds);
    free(l.buffer);
    return read;
}

static bool scan_raw(scan *c, source *s, error *err) {
    stored_file *f = c->file;
    uint8_t *bytes = mem_alloc(SOURCE_CHUNK, 1);
    uint64_t hash = hash_start;
    const char *kind = NULL;
    size_t count = 0;
    bool read;
    while ((read = source_read(s, bytes, SOURCE_CHUNK, &count, err)) && count > 0) {
        if (f->content == 0) kind = looks_like(bytes, count);
        hash = hash_bytes(hash, bytes, count);
        f->content += count;
        take_place(c, s);
    }
    free(bytes);
    if (read && kind) looks_warn(source_name(s), kind);
    hash = hash_end(hash);
    f->excluded = c->store->excluded_count > 0 && store_use_of(c->store, hash) == STORE_EXCLUDED;
    if (!read || f->excluded > 0) return read;
    document *piece = add_piece(c, 0, true);
    piece->hash = hash;
    piece->length = f->content - (uint64_t)((double)f->content * c->store->fraction);
    f->texts = 1;
    return true;
}

/* Keeps of the places those that are `block` bytes apart, or the last before a piece. */
static void thin_places(scan *c) {
    stored_file *f = c->file;
    size_t kept = 0, piece = 0;
    for (size_t i = 0; i < f->place_count; i++) {
        const uint64_t here = f->places[i].content;
        const uint64_t next = i + 1 < f->place_count ? f->places[i + 1].content : UINT64_MAX;
        while (piece < f->piece_count && f->pieces[piece].offset < here) piece++;
        const bool needed = piece < f->piece_count && f->pieces[piece].offset < next;
        const uint64_t before = kept > 0 ? f->places[kept - 1].content : 0;
        if (needed || here - before >= c->store->block) {
            f->places[kept++] = f->places[i];
        } else {
            free(f->places[i].dictionary);
        }
    }
    f->place_count = kept;
    f->places = mem_resize(f->places, kept > 0 ? kept : 1, sizeof *f->places);
}

static bool scan_file(scan *c, error *err) {
    stored_file *f = c->file;
    if (table_kind_of(f->path, &c->store->options)) {
        return error_set(err, "%s: with data.window, expected text or " PATHS_LINES ", not a table",
                         f->path);
    }
    source *s = source_open(f->path, NULL, err);
    if (!s) return false;
    f->stamp = source_stamp_of(s);
    f->documents = paths_is_lines(f->path);
    f->packed = !source_is_plain(s);
    source_note_places(s, c->store->spacing);
    bool read = f->documents ? scan_documents(c, s, err) : scan_raw(c, s, err);
    if (read && f->content == 0) read = error_set(err, "%s: empty", f->path);
    source_close(s);
    thin_places(c);
    return read;
}

/* ---------------------------------------------------------------------------- ranks' parts */

static void put(FILE *out, const void *bytes, size_t count) {
    if (count > 0) fwrite(bytes, 1, count, out);
}

static void write_scan(const scan *c, FILE *out) {
    const stored_file *f = c->file;
    const uint64_t head[] = {f->documents, f->place_count, f->piece_count, f->content,
                             f->texts,     f->excluded,    f->packed};
    put(out, head, sizeof head);
    put(out, &f->stamp, sizeof f->stamp);
    put(out, f->places, f->place_count * sizeof *f->places);
    for (size_t i = 0; i < f->place_count; i++) {
        put(out, f->places[i].dictionary, f->places[i].dictionary_size);
    }
    put(out, f->pieces, f->piece_count * sizeof *f->pieces);
}

static const uint8_t *take(const uint8_t *from, void *to, size_t count) {
    if (count > 0) memcpy(to, from, count);
    return from + count;
}

static const uint8_t *read_scan(scan *c, const uint8_t *from) {
    stored_file *f = c->file;
    uint64_t head[7];
    from = take(from, head, sizeof head);
    from = take(from, &f->stamp, sizeof f->stamp);
    f->documents = head[0];
    f->place_count = head[1];
    f->piece_count = head[2];
    f->content = head[3];
    f->texts = head[4];
    f->excluded = head[5];
    f->packed = head[6];
    f->places = mem_alloc(f->place_count + 1, sizeof *f->places);
    f->pieces = mem_alloc(f->piece_count + 1, sizeof *f->pieces);
    from = take(from, f->places, f->place_count * sizeof *f->places);
    for (size_t i = 0; i < f->place_count; i++) {
        source_place *p = &f->places[i];
        if (!p->dictionary) continue;
        p->dictionary = mem_alloc(p->dictionary_size, 1);
        from = take(from, p->dictionary, p->dictionary_size);
    }
    return take(from, f->pieces, f->piece_count * sizeof *f->pieces);
}

/* A number that the ranks of a host share, and no others. */
static uint64_t host_number(void) {
    char text[128] = "";
    FILE *in = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t used = in ? fread(text, 1, 63, in) : 0;
    if (in) fclose(in);
    gethostname(text + used, sizeof text - 1 - used);
    return hash_end(hash_bytes(hash_start, (const uint8_t *)text, strlen(text)));
}

/* Which of its host's ranks this one is, of how many. */
static void find_place(ranks *r, uint64_t host, int *place, int *count) {
    *place = 0;
    *count = 1;
    if (!r) return;
    ranks_exchange(r, &host, sizeof host);
    for (int k = 0; k < r->count; k++) {
        uint64_t other;
        memcpy(&other, ranks_part(r, k), sizeof other);
        if (k == r->rank || other != host) continue;
        *count += 1;
        *place += k < r->rank;
    }
}

/* Gives this rank's scans to the others of its host, and takes theirs. File i is scanned by the
 * host's rank i % parts. */
static void share_scans(ranks *r, uint64_t host, scan *scans, size_t count, int place, int parts) {
    enum { STEP = 1 << 16 };
    char *mine;
    size_t size;
    FILE *out = mem_stream(&mine, &size);
    for (size_t i = (size_t)place; i < count; i += (size_t)parts) write_scan(&scans[i], out);
    mem_stream_end(out);
    const uint64_t told[] = {host, size};
    uint64_t *sizes = mem_alloc((size_t)r->count, sizeof *sizes), most = 0;
    bool *near = mem_alloc((size_t)r->count, sizeof *near);
    ranks_exchange(r, told, sizeof told);
    for (int k = 0; k < r->count; k++) {
        uint64_t other[2];
        memcpy(other, ranks_part(r, k), sizeof other);
        sizes[k] = other[1];
        near[k] = other[0] == host && k != r->rank;
        if (other[1] > most) most = other[1];
    }
    uint8_t **parts_of = mem_alloc((size_t)r->count, sizeof *parts_of), step[STEP];
    for (int k = 0; k < r->count; k++) {
        if (near[k]) parts_of[k] = mem_alloc(sizes[k] + 1, 1);
    }
    for (uint64_t from = 0; from < most; from += STEP) {
        memset(step, 0, sizeof step);
        if (from < size) memcpy(step, mine + from, size - from < STEP ? size - from : STEP);
        ranks_exchange(r, step, sizeof step);
        for (int k = 0; k < r->count; k++) {
            if (!near[k] || from >= sizes[k]) continue;
            const uint64_t left = sizes[k] - from;
            memcpy(parts_of[k] + from, ranks_part(r, k), left < STEP ? left : STEP);
        }
    }
    for (int k = 0, p = 0; k < r->count; k++) {
        if (k == r->rank) p++;
        if (!near[k]) continue;
        const uint8_t *next = parts_of[k];
        for (size_t i = (size_t)p; i < count; i += (size_t)parts) {
            next = read_scan(&scans[i], next);
        }
        p++;
        free(parts_of[k]);
    }
    free(parts_of);
    free(near);
    free(sizes);
    free(mine);
}

/* -------------------------------------------------------------------------------- all files */

/* The files as they are named, each with what tells whether it is one that was named before. */
typedef struct naming {
    struct named_file {
        char *path;
        uint64_t device, file, size;
        size_t order, number; /* place among the names; among the distinct files */
    } * files;
    size_t count, capacity;
} naming;

static bool add_name(void *naming_, const char *path, error *err) {
    naming *n = naming_;
    struct stat status;
    if (stat(path, &status) != 0) return error_system(err, "open", path);
    if (!S_ISREG(status.st_mode)) {
        return error_set(err,
                         "%s: not a regular file: with data.window, text is read where it lies, "
                         "more than once",
                         path);
    }
    n->files = mem_grow(n->files, &n->capacity, n->count + 1, sizeof *n->files);
    n->files[n->count] = (struct named_file){mem_string(path),
                                             (uint64_t)status.st_dev,
                                             (uint64_t)status.st_ino,
                                             (uint64_t)status.st_size,
                                             n->count,
                                             0};
    n->count++;
    return true;
}

static int by_file(const void *a, const void *b) {
    const struct named_file *x = a, *y = b;
    if (x->device != y->device) return x->device < y->device ? -1 : 1;
    if (x->file != y->file) return x->file < y->file ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static int by_first(const void *a, const void *b) {
    const struct named_file *const *x = a, *const *y = b;
    return ((*x)->order > (*y)->order) - ((*x)->order < (*y)->order);
}

/* Lists the distinct files in the order in which they are first named. A file may be named under
 * two names of different kinds, and then counts as two. */
static void list_files(store *s, naming *n) {
    uint64_t bytes = 0;
    qsort(n->files, n->count, sizeof *n->files, by_file);
    struct named_file **first = mem_alloc(n->count + 1, sizeof *first);
    for (size_t i = 0; i < n->count; i++) {
        const struct named_file *f = &n->files[i], *before = i > 0 ? &n->files[i - 1] : NULL;
        const bool again = before && before->device == f->device && before->file == f->file &&
                           paths_is_lines(before->path) == paths_is_lines(f->path);
        if (!again) first[s->count++] = &n->files[i];
        if (!again) bytes += f->size;
        n->files[i].number = s->count - 1; /* for now, in this order */
    }
    size_t *number = mem_alloc(s->count + 1, sizeof *number);
    struct named_file **ordered = mem_alloc(s->count + 1, sizeof *ordered);
    memcpy(ordered, first, s->count * sizeof *ordered);
    qsort(ordered, s->count, sizeof *ordered, by_first);
    s->files = mem_alloc(s->count + 1, sizeof *s->files);
    for (size_t i = 0; i < s->count; i++) {
        s->files[i].path = mem_string(ordered[i]->path);
        number[ordered[i]->number] = i;
    }
    s->name_count = n->count;
    s->named = mem_alloc(n->count + 1, sizeof *s->named);
    for (size_t i = 0; i < n->count; i++) {
        s->named[n->files[i].order] = number[n->files[i].number];
    }
    free(ordered);
    free(number);
    free(first);
    s->spacing = bytes / MOST_PLACES * RATIO;
    if (s->spacing < s->block) s->spacing = s->block;
}

static bool scan_files(store *s, scan *scans, int place, int parts, error *err) {
#pragma omp parallel for schedule(dynamic) num_threads((omp_get_max_threads() + parts - 1) / parts)
    for (size_t i = (size_t)place; i < s->count; i += (size_t)parts) {
        error problem;
        if (scan_file(&scans[i], &problem)) continue;
        scans[i].err = mem_alloc(1, sizeof problem);
        *scans[i].err = problem;
    }
    bool read = true;
    for (size_t i = 0; i < s->count; i++) {
        if (scans[i].err && read) *err = *scans[i].err;
        read = read && !scans[i].err;
        free(scans[i].err);
    }
    return read;
}

/* Warns of large files that can be read only from their start. */
static void warn_of_whole_files(const store *s) {
    const stored_file *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++) {
        const stored_file *f = &s->files[i];
        if (!f->packed || f->place_count > 1 || f->content < large) continue;
        if (!first) first = f;
        count++;
    }
    if (count == 0) return;
    log_warning("%s%s: every stream that begins in it unpacks it from its start; `xz -T0` writes "
                "files that can be read from within",
                first->path, count > 1 ? " and others like it" : "");
}

bool store_index(store *s, char *const *files, int count, ranks *r, error *err) {
    naming n = {0};
    int place, parts;
    const uint64_t host = host_number();
    bool read = paths_each(files, count, add_name, &n, err);
    if (read) list_files(s, &n);
    for (size_t i = 0; i < n.count; i++) free(n.files[i].path);
    free(n.files);
    if (!read) return false;
    find_place(r, host, &place, &parts);
    scan *scans = mem_alloc(s->count + 1, sizeof *scans);
    for (size_t i = 0; i < s->count; i++) scans[i] = (scan){.store = s, .file = &s->files[i]};
    read = scan_files(s, scans, place, parts, err);
    if (read && r) share_scans(r, host, scans, s->count, place, parts);
    if (read && ranks_rank(r) == 0) warn_of_whole_files(s);
    free(scans);
    return read;
}

void store_free(store *s) {
    if (!s) return;
    for (size_t i = 0; i < s->count; i++) {
        for (size_t k = 0; k < s->files[i].place_count; k++) {
            free(s->files[i].places[k].dictionary);
        }
        free(s->files[i].path);
        free(s->files[i].places);
        free(s->files[i].pieces);
    }
    free(s->files);
    free(s->named);
    free(s->excluded);
    free(s);
}

source *store_open(const stored_file *f, uint64_t content, const atomic_bool *stop, error *err) {
    source *s = source_open(f->path, stop, err);
    if (!s) return NULL;
    const source_stamp now = source_stamp_of(s);
    if (memcmp(&now, &f->stamp, sizeof now) != 0) {
        error_set(err, "%s: changed since training began", f->path);
    } else if (source_seek(s, place_before(f, content), content, err)) {
        return s;
    }
    source_close(s);
    return NULL;
}
