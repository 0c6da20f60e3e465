#include "bench/stream.h"

#include "bench/text.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/stop.h"
#include "data/reader.h"
#include "data/store.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#ifdef SMALLWORLD_XZ
#include <lzma.h>
#endif

enum { CHUNK = 1 << 16, SEED = 1 };

static const char *const text_names[] = {"raw", "tsv"};
static const char *const packing_names[] = {"none", "gzip", "xz"};
static const char *const endings[2][3] = {{".txt", ".txt.gz", ".txt.xz"},
                                          {".tsv", ".tsv.gz", ".tsv.xz"}};

/* ---------------------------------------------------------------------------- made-up files */

typedef bool pack(FILE *in, FILE *out);

static bool pack_gzip(FILE *in, FILE *out) {
    uint8_t bytes[CHUNK];
    const int file = dup(fileno(out));
    gzFile packed = file >= 0 ? gzdopen(file, "wb6") : NULL;
    if (!packed) return false;
    size_t count;
    bool written = true;
    while (written && (count = fread(bytes, 1, sizeof bytes, in)) > 0) {
        written = gzwrite(packed, bytes, (unsigned)count) == (int)count;
    }
    return gzclose(packed) == Z_OK && written;
}

static bool pack_xz(FILE *in, FILE *out) {
#ifdef SMALLWORLD_XZ
    enum { PRESET = 1, BLOCK = 1 << 20 };
    uint8_t bytes[CHUNK], packed[CHUNK];
    lzma_stream s = LZMA_STREAM_INIT;
    lzma_ret status = lzma_easy_encoder(&s, PRESET, LZMA_CHECK_CRC32);
    lzma_action action = LZMA_RUN;
    size_t block = 0;
    while (status == LZMA_OK || (status == LZMA_STREAM_END && action == LZMA_FULL_FLUSH)) {
        if (status == LZMA_STREAM_END) block = 0; /* the block is complete */
        if (s.avail_in == 0 && !feof(in) && block < BLOCK) {
            s.next_in = bytes;
            s.avail_in = fread(bytes, 1, sizeof bytes, in);
            block += s.avail_in;
        }
        action = feof(in) ? LZMA_FINISH : block >= BLOCK ? LZMA_FULL_FLUSH : LZMA_RUN;
        s.next_out = packed;
        s.avail_out = sizeof packed;
        status = lzma_code(&s, action);
        fwrite(packed, 1, sizeof packed - s.avail_out, out);
    }
    lzma_end(&s);
    return status == LZMA_STREAM_END;
#else
    (void)in;
    (void)out;
    errno = ENOTSUP;
    return false;
#endif
}

static bool pack_file(pack *how, const char *from, const char *path, error *err) {
    file_writer writer;
    FILE *in = fopen(from, "rbe");
    if (!in) return error_system(err, "open", from);
    bool packed = file_begin(&writer, path, err);
    if (packed && (!how(in, writer.stream) || ferror(in))) {
        packed = error_system(err, "write", path);
        file_abort(&writer);
    }
    fclose(in);
    return packed && file_commit(&writer, err);
}

/* Writes a file and, from it, the packed one, unless they are there. `*size`: unpacked. */
static bool make_file(const stream_options *o, const char *folder, int text, int packing,
                      char **path, double *size, error *err) {
    static pack *const packs[] = {NULL, pack_gzip, pack_xz};
    struct stat status;
    char *plain = mem_format("%s/made-up%s", folder, endings[text][STREAM_PLAIN]);
    *path = mem_format("%s/made-up%s", folder, endings[text][packing]);
    bool made = true;
    if (!file_exists(plain)) {
        log_progress("making %s", plain);
        made = text_write(plain, text == STREAM_DOCUMENTS, (uint64_t)o->file_bytes, err);
    }
    if (made && stat(plain, &status) != 0) made = error_system(err, "open", plain);
    if (made) *size = (double)status.st_size;
    if (made && !file_exists(*path)) {
        log_progress("making %s", *path);
        made = pack_file(packs[packing], plain, *path, err);
    }
    free(plain);
    return made;
}

static void remove_files(const char *folder) {
    for (int text = 0; text < 2; text++) {
        for (int packing = 0; packing < 3; packing++) {
            char *path = mem_format("%s/made-up%s", folder, endings[text][packing]);
            unlink(path);
            free(path);
        }
    }
    rmdir(folder);
}

/* ------------------------------------------------------------------------------------ ranks */

/* What a rank tells. */
typedef struct told {
    double read, seconds, first, memory, processor;
    bool failed;
    error err;
} told;

static void read_streams(const stream_options *o, const corpus *c, stream_share share, told *t) {
    const uint64_t updates = reader_epoch_updates(c, o->batch, o->bptt);
    const double begin = clock_seconds();
    reader *r = reader_start(c, share, share.count, o->bptt, SEED, 0);
    for (uint64_t n = 0; n < updates && !t->failed && !stop_signal(); n++) {
        const minibatch *m = reader_next(r, &t->err);
        t->failed = m == NULL;
        t->seconds = clock_seconds() - begin;
        if (n == 0) t->first = t->seconds;
        if (m) t->read += (double)share.count * o->bptt;
        if (o->seconds > 0 && t->seconds > o->seconds) break;
    }
    reader_stop(r);
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    t->memory = (double)usage.ru_maxrss * 1024;
    t->processor = (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                   1e-6 * (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

static bool read_told(int from, told *t) {
    size_t done = 0;
    while (done < sizeof *t) {
        const ssize_t count = read(from, (char *)t + done, sizeof *t - done);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        done += (size_t)count;
    }
    return true;
}

/* Starts the process of a rank. Returns where it will tell its result, or -1. */
static int start_rank(const stream_options *o, const corpus *c, stream_share share, pid_t *child) {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    fflush(NULL);
    *child = fork();
    if (*child == 0) {
        told t = {0};
        close(ends[0]);
        read_streams(o, c, share, &t);
        _exit(write(ends[1], &t, sizeof t) == sizeof t ? STATUS_OK : STATUS_FAILED);
    }
    close(ends[1]);
    if (*child > 0) return ends[0];
    close(ends[0]);
    return -1;
}

static bool measure_ranks(const stream_options *o, const corpus *c, stream_row *row, error *err) {
    int *from = mem_alloc((size_t)row->ranks, sizeof *from);
    pid_t *child = mem_alloc((size_t)row->ranks, sizeof *child);
    bool done = true;
    for (int k = 0; k < row->ranks; k++) {
        const int first = o->batch * k / row->ranks, end = o->batch * (k + 1) / row->ranks;
        from[k] = start_rank(o, c, (stream_share){o->batch, first, end - first}, &child[k]);
        if (from[k] < 0 && done) done = error_system(err, "start", "a process");
    }
    for (int k = 0; k < row->ranks; k++) {
        told t = {0};
        if (from[k] < 0) continue;
        const bool ended = read_told(from[k], &t);
        close(from[k]);
        waitpid(child[k], NULL, 0);
        if (done && !ended) done = error_set(err, "rank %d ended without a result", k);
        if (done && t.failed) {
            *err = t.err;
            done = false;
        }
        row->read += t.read;
        row->memory += t.memory;
        row->processor += t.processor;
        row->seconds = fmax(row->seconds, t.seconds);
        row->first = fmax(row->first, t.first);
    }
    free(child);
    free(from);
    return done;
}

/* -------------------------------------------------------------------------------- measuring */

/* The bytes of a store's files on the disk, and unpacked. */
static void add_files(const store *s, stream_row *row) {
    for (size_t i = 0; i < s->count; i++) {
        row->disk += (double)s->files[i].stamp.size;
        row->index_bytes += (double)s->files[i].content;
    }
}

/* Measures an epoch of `files`, each named as often as it takes. */
static bool measure_files(const stream_options *o, char *const *files, int count, double size,
                          stream_row row, bool progress, stream_results *results, error *err) {
    const int times = size > 0 ? (int)fmax(1, ceil(o->bytes / size)) : 1;
    char **named = mem_alloc((size_t)times * (size_t)count, sizeof *named);
    for (int i = 0; i < times * count; i++) named[i] = files[i % count];
    const in_place_options how = {.block = (uint64_t)(o->window / (2 * o->batch))};
    const corpus_options plain = {0};
    if (progress) log_progress("reading %s to index it", files[0]);
    const double begin = clock_seconds();
    corpus *c = corpus_read_in_place(named, times * count, &plain, &how, err);
    free(named);
    if (!c) return false;
    row.index_seconds = clock_seconds() - begin;
    row.bytes = (double)c->size;
    add_files(c->store, &row);
    bool done = reader_epoch_updates(c, o->batch, o->bptt) > 0 ||
                error_set(err, "%s: less text than one minibatch of %d x %d bytes", files[0],
                          o->batch, o->bptt);
    for (int i = 0; done && i < o->ranks_count && !stop_signal(); i++) {
        stream_row *r = &results->rows[results->count];
        *r = row;
        r->ranks = o->ranks[i];
        if (progress) log_progress("%d ranks read %s", r->ranks, files[0]);
        done = measure_ranks(o, c, r, err);
        results->count += done;
    }
    corpus_free(c);
    return done;
}

static bool measure_made_up(const stream_options *o, const char *folder, bool progress,
                            stream_results *results, error *err) {
    bool done = true;
    for (int t = 0; t < o->text_count; t++) {
        for (int p = 0; done && p < o->packing_count && !stop_signal(); p++) {
            char *path;
            double size;
            const stream_row row = {.text = o->texts[t], .packing = o->packings[p]};
            done = make_file(o, folder, row.text, row.packing, &path, &size, err) &&
                   measure_files(o, &path, 1, size, row, progress, results, err);
            free(path);
        }
    }
    return done;
}

bool stream_measure(const stream_options *o, bool progress, stream_results *results, error *err) {
    const size_t most = STREAM_MOST * STREAM_MOST * STREAM_MOST;
    *results = (stream_results){.rows = mem_alloc(most, sizeof *results->rows),
                                .window = o->window,
                                .batch = o->batch,
                                .bptt = o->bptt};
    stop_catch();
    if (o->file_count > 0) {
        const stream_row row = {.text = -1};
        return measure_files(o, o->files, o->file_count, 0, row, progress, results, err);
    }
    if (o->folder) {
        return file_make_folder(o->folder, err) &&
               measure_made_up(o, o->folder, progress, results, err);
    }
    char *folder = mem_format("%s/smallworld-bench-XXXXXX", file_scratch_folder());
    bool done = mkdtemp(folder) != NULL || error_system(err, "make folder", folder);
    if (done) {
        done = measure_made_up(o, folder, progress, results, err);
        remove_files(folder);
    }
    free(folder);
    return done;
}

/* -------------------------------------------------------------------------------- reporting */

void stream_report(const stream_results *results, FILE *out) {
    fprintf(out,
            "minibatches of %d x %d bytes; window of %.4g MB; text of %.4g GB an epoch\n"
            "%-6s %-7s %5s | %8s %8s %8s %8s | %8s %8s | %10s\n",
            results->batch, results->bptt, results->window / 1e6,
            results->count > 0 ? results->rows[0].bytes / 1e9 : 0, "text", "packed", "ranks",
            "MB/s", "MB/cpu s", "GB", "first s", "memory", "disk MB", "index MB/s");
    for (int i = 0; i < results->count; i++) {
        const stream_row *r = &results->rows[i];
        fprintf(out, "%-6s %-7s %5d | %8.0f %8.0f %8.2f %8.2f | %5.0f MB %8.1f | %10.0f\n",
                r->text < 0 ? "files" : text_names[r->text],
                r->text < 0 ? "-" : packing_names[r->packing], r->ranks, r->read / r->seconds / 1e6,
                r->read / r->processor / 1e6, r->read / 1e9, r->first, r->memory / 1e6,
                r->disk / 1e6, r->index_bytes / r->index_seconds / 1e6);
    }
}

void stream_json(const stream_results *results, FILE *out) {
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_integer(&w, "batch", results->batch);
    json_integer(&w, "bptt", results->bptt);
    json_number(&w, "window", results->window);
    json_array_begin(&w, "rows");
    for (int i = 0; i < results->count; i++) {
        const stream_row *r = &results->rows[i];
        json_object_begin(&w, NULL);
        json_string(&w, "text", r->text < 0 ? "files" : text_names[r->text]);
        if (r->text >= 0) json_string(&w, "packed", packing_names[r->packing]);
        json_integer(&w, "ranks", r->ranks);
        json_number(&w, "bytes_per_second", r->read / r->seconds);
        json_number(&w, "processor_seconds", r->processor);
        json_number(&w, "read", r->read);
        json_number(&w, "seconds", r->seconds);
        json_number(&w, "first_seconds", r->first);
        json_number(&w, "memory", r->memory);
        json_number(&w, "disk", r->disk);
        json_number(&w, "epoch_bytes", r->bytes);
        json_number(&w, "index_bytes_per_second", r->index_bytes / r->index_seconds);
        json_object_end(&w);
    }
    json_array_end(&w);
    json_object_end(&w);
    fputc('\n', out);
}
