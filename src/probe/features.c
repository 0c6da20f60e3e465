#include "probe/features.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/npy.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Documents that are read side by side, one in each column. */
typedef struct group {
    const uint32_t *documents;
    int count;
    double *pooled; /* [pools][units][columns], copied from the device */
} group;

typedef struct extractor {
    model *m;
    const corpus *c;
    const feature_options *how;
    uint32_t *order;       /* [count] documents, longest first */
    int *owner;            /* [groups] the rank that reads each group */
    recording *step;       /* the cell over m->steps bytes, then pooling */
    size_t plane;          /* units x columns */
    int32_t *first, *last; /* [columns] on the device: the first and last step to pool */
    int32_t *latest;       /* [columns] on the device: the last one of them */
    void *pooled;          /* double [pools][units][columns] on the device */
    /* [pools][units][columns]: the device fills one while the writer reads the other */
    double *host[2];
    uint8_t *bytes; /* [steps][columns] */
    int32_t *host_latest, *host_last;

    /* A thread writes the rows of one group while the backend reads the next. */
    pthread_t writer;
    bool writing, written; /* written: without an error */
    group handed;          /* the group that the writer has */
    float *rows;           /* [batch][pools][units], in the order of the file */
    file_writer features;
    int64_t start; /* place of the first row in the .npy file */
    /* Takes rows in place of a file, or NULL. */
    void (*take)(void *argument, size_t document, const float *row);
    void *argument;
    error write_error;

    double began, shown; /* seconds: when reading began, and progress was last shown */
    uint64_t done, mine; /* bytes: of the groups that are read, and of all of this rank's */
} extractor;

/* ----------------------------------------------------------------------------------- grouping */

size_t features_groups(const corpus *c, int batch) {
    return (c->count + (size_t)batch - 1) / (size_t)batch;
}

/* Gives each group, longest first, to the rank that has the fewest steps so far. */
static int *deal(const extractor *e) {
    const size_t groups = features_groups(e->c, e->m->batch), batch = (size_t)e->m->batch;
    const int ranks = ranks_count(e->how->ranks);
    const uint64_t steps = (uint64_t)e->m->steps;
    int *owner = mem_alloc(groups, sizeof *owner);
    uint64_t *load = mem_alloc((size_t)ranks, sizeof *load);
    for (size_t i = 0; i < groups; i++) {
        for (int k = 1; k < ranks; k++) {
            if (load[k] < load[owner[i]]) owner[i] = k;
        }
        load[owner[i]] += (e->c->documents[e->order[i * batch]].length + steps - 1) / steps;
    }
    free(load);
    return owner;
}

/* ---------------------------------------------------------------------------------- extraction */

static void issue_step(void *argument) {
    extractor *e = argument;
    model *m = e->m;
    backend *be = m->be;
    model_run(m);
    bool cell = e->how->state == FEATURE_CELL;
    for (int p = 0; p < e->how->pools.count; p++) {
        pooling how = e->how->pools.kinds[p];
        be->update->pool(be, model_state(m, cell ? MODEL_C : MODEL_H, 1), cell ? REAL : OPERAND,
                         m->steps, (int)m->config.hidden, m->columns,
                         how == POOL_LAST ? e->latest : e->first, e->last, how,
                         (double *)e->pooled + (size_t)p * e->plane);
    }
}

/* Sets the values that pooling starts from: 0, or minus infinity for the maximum. They pass through
 * `host`. */
static void start_pooling(extractor *e, double *host) {
    backend *be = e->m->be;
    for (int p = 0; p < e->how->pools.count; p++) {
        double *pooled = (double *)e->pooled + (size_t)p * e->plane;
        if (e->how->pools.kinds[p] != POOL_MAX) {
            be->memory->zero(be, pooled, e->plane * sizeof(double));
            continue;
        }
        for (size_t i = 0; i < e->plane; i++) host[i] = -INFINITY;
        be->memory->upload(be, pooled, host, e->plane * sizeof(double));
    }
}

/* Runs the model over the group's documents from step `from` on. */
static void run_step(extractor *e, const group *g, uint64_t from) {
    model *m = e->m;
    backend *be = m->be;
    size_t columns = (size_t)m->columns, steps = (size_t)m->steps;
    memset(e->bytes, 0, steps * columns);
    for (size_t k = 0; k < columns; k++) {
        size_t here = 0;
        if (k < (size_t)g->count) {
            const document *d = &e->c->documents[g->documents[k]];
            uint64_t left = d->length > from ? d->length - from : 0;
            here = left < steps ? (size_t)left : steps;
            const uint8_t *text = e->c->bytes + d->offset + from;
            for (size_t t = 0; t < here; t++) e->bytes[t * columns + k] = text[t];
        }
        e->host_last[k] = (int32_t)here;
        e->host_latest[k] = here > 0 ? (int32_t)here - 1 : 0;
    }
    model_set_text(m, e->bytes, NULL);
    be->memory->upload(be, e->latest, e->host_latest, columns * sizeof *e->host_latest);
    be->memory->upload(be, e->last, e->host_last, columns * sizeof *e->host_last);
    be->memory->replay(be, e->step);
}

/* Bytes of the group's documents, of each at most its first `most`. */
static uint64_t bytes_of(const extractor *e, const uint32_t *documents, size_t count,
                         uint64_t most) {
    uint64_t bytes = 0;
    for (size_t k = 0; k < count; k++) {
        const uint64_t length = e->c->documents[documents[k]].length;
        bytes += length < most ? length : most;
    }
    return bytes;
}

/* Shows from time to time how much has been read, `from` bytes of each of the group's documents
 * included. */
static void show_progress(extractor *e, const group *g, uint64_t from) {
    const double now = clock_seconds(), pause = log_is_terminal() ? 0.5 : 20;
    if (!e->how->progress || now - e->shown <= pause) return;
    char left[32];
    const uint64_t read = e->done + bytes_of(e, g->documents, (size_t)g->count, from);
    const double share = (double)read / (double)e->mine, seconds = now - e->began;
    e->shown = now;
    if (read == 0) return;
    log_progress("read %.1f %%, %.0f bytes/s, %s left", 100 * share,
                 share * (double)e->c->size / seconds,
                 log_duration(left, seconds / share * (1 - share)));
}

static void run_group(extractor *e, const group *g) {
    backend *be = e->m->be;
    uint64_t longest = e->c->documents[g->documents[0]].length;
    model_zero_state(e->m);
    start_pooling(e, g->pooled);
    for (uint64_t from = 0; from < longest; from += (uint64_t)e->m->steps) {
        run_step(e, g, from);
        show_progress(e, g, from + (uint64_t)e->m->steps);
    }
    size_t count = (size_t)e->how->pools.count * e->plane;
    be->memory->download(be, g->pooled, e->pooled, count * sizeof(double));
}

/* ------------------------------------------------------------------------------------- rows */

/* Transposes one pooling's features of the group into rows, 16 units at a time, so that each cache
 * line is filled at once. */
static void turn_over(const extractor *e, const group *g, int p) {
    const size_t units = (size_t)e->m->config.hidden, columns = (size_t)e->m->columns, tile = 16;
    const size_t width = units * (size_t)e->how->pools.count;
    const double *pooled = g->pooled + (size_t)p * e->plane;
    for (size_t u0 = 0; u0 < units; u0 += tile) {
        size_t u1 = u0 + tile < units ? u0 + tile : units;
        for (size_t k = 0; k < (size_t)g->count; k++) {
            bool mean = e->how->pools.kinds[p] == POOL_MEAN;
            double share = mean ? (double)e->c->documents[g->documents[k]].length : 1;
            float *row = e->rows + k * width + (size_t)p * units;
            for (size_t u = u0; u < u1; u++) row[u] = (float)(pooled[u * columns + k] / share);
        }
    }
}

/* Writes rows to their documents' places in the file, or hands them to `take`. */
static bool write_rows(extractor *e, const group *g, error *err) {
    size_t units = (size_t)e->m->config.hidden * (size_t)e->how->pools.count;
    for (size_t i = 0; i < (size_t)g->count * units; i++) {
        if (isfinite(e->rows[i])) continue;
        return error_set(err,
                         "document %u: its features are not finite: the model's weights are "
                         "too large",
                         g->documents[i / units]);
    }
    for (int k = 0; e->take && k < g->count; k++) {
        e->take(e->argument, g->documents[k], e->rows + (size_t)k * units);
    }
    for (int k = 0; !e->take && k < g->count; k++) {
        off_t at = (off_t)e->start + (off_t)g->documents[k] * (off_t)(units * sizeof *e->rows);
        if (fseeko(e->features.stream, at, SEEK_SET) != 0) {
            return error_system(err, "write", e->features.temporary);
        }
        const float *row = e->rows + (size_t)k * units;
        if (!file_write(&e->features, row, units * sizeof *row, err)) return false;
    }
    if (!e->take) file_begin_flush(&e->features);
    return true;
}

static void *write_group(void *argument) {
    extractor *e = argument;
    for (int p = 0; p < e->how->pools.count; p++) turn_over(e, &e->handed, p);
    e->written = write_rows(e, &e->handed, &e->write_error);
    return NULL;
}

/* Waits until the writer is done with its group. */
static bool finish_writing(extractor *e, error *err) {
    if (!e->writing) return true;
    pthread_join(e->writer, NULL);
    e->writing = false;
    if (!e->written) *err = e->write_error;
    return e->written;
}

static bool hand_over(extractor *e, const group *g, error *err) {
    if (!finish_writing(e, err)) return false;
    e->handed = *g;
    int status = pthread_create(&e->writer, NULL, write_group, e);
    e->writing = status == 0;
    return e->writing || error_set(err, "cannot start a thread: %s", strerror(status));
}

/* Runs this rank's groups. Ranks have about equal numbers of steps, so rank 0's progress stands for
 * all. */
static bool run_groups(extractor *e, error *err) {
    const size_t batch = (size_t)e->m->batch, all = e->c->count;
    const int rank = ranks_rank(e->how->ranks);
    bool going = true;
    e->began = e->shown = clock_seconds();
    for (size_t i = 0; i < all; i += batch) {
        const size_t count = all - i < batch ? all - i : batch;
        if (e->owner[i / batch] == rank) e->mine += bytes_of(e, e->order + i, count, UINT64_MAX);
    }
    for (size_t i = 0, n = 0; i < all && going; i += batch) {
        if (e->owner[i / batch] != rank) continue;
        size_t count = all - i < batch ? all - i : batch;
        group g = {e->order + i, (int)count, e->host[n++ % 2]};
        run_group(e, &g);
        going = e->m->be->memory->finish(e->m->be, err) && hand_over(e, &g, err);
        e->done += bytes_of(e, g.documents, count, UINT64_MAX);
    }
    error ignored;
    return finish_writing(e, going ? err : &ignored) && going;
}

static bool take_memory(extractor *e, error *err) {
    backend *be = e->m->be;
    size_t columns = (size_t)e->m->columns, all = (size_t)e->how->pools.count * e->plane;
    size_t numbers = columns * sizeof(int32_t);
    e->first = be->memory->allocate(be, numbers);
    e->last = be->memory->allocate(be, numbers);
    e->latest = be->memory->allocate(be, numbers);
    e->pooled = be->memory->allocate(be, all * sizeof(double));
    for (int i = 0; i < 2; i++) e->host[i] = mem_alloc(all, sizeof *e->host[i]);
    e->rows = mem_alloc(all, sizeof *e->rows);
    e->bytes = mem_alloc((size_t)e->m->steps * columns, 1);
    e->host_latest = mem_alloc(columns, sizeof *e->host_latest);
    e->host_last = mem_alloc(columns, sizeof *e->host_last);
    bool taken = e->first && e->last && e->latest && e->pooled;
    if (taken) be->memory->zero(be, e->first, numbers);
    return taken || error_set(err, "not enough memory for features on %s", be->device);
}

static void release_memory(extractor *e) {
    backend *be = e->m->be;
    if (e->first) be->memory->release(be, e->first);
    if (e->last) be->memory->release(be, e->last);
    if (e->latest) be->memory->release(be, e->latest);
    if (e->pooled) be->memory->release(be, e->pooled);
    for (int i = 0; i < 2; i++) free(e->host[i]);
    free(e->rows);
    free(e->bytes);
    free(e->host_latest);
    free(e->host_last);
}

/* ------------------------------------------------------------------------------------- files */

/* Writes the labels and flushes them to the disk, but does not yet give the file its name. */
static bool write_labels(const corpus *c, file_writer *writer, error *err) {
    for (size_t i = 0; i < c->count; i++) {
        if (!file_write(writer, &c->documents[i].label, sizeof(int32_t), err)) return false;
    }
    return file_flush(writer, err);
}

/* A number that depends on the documents, their labels and the options. The same files give it
 * again. */
static uint64_t set_number(const extractor *e) {
    uint64_t number = (uint64_t)corpus_hash(e->c);
    const char *model = e->how->model ? e->how->model : "";
    for (size_t i = 0; i < e->c->count; i++) {
        number = number * 0x100000001b3 + (uint32_t)e->c->documents[i].label;
    }
    for (; *model; model++) number = number * 0x100000001b3 + (unsigned char)*model;
    number = number * 8 + (uint64_t)e->how->state;
    for (int i = 0; i < e->how->pools.count; i++) {
        number = number * 8 + 1 + (uint64_t)e->how->pools.kinds[i];
    }
    return number ? number : 1;
}

/* Gives features and labels their names, one after the other. In between PREFIX.json marks them as
 * incomplete. */
static bool commit_pair(extractor *e, file_writer *labels, const char *prefix, error *err) {
    origin o = {true, e->how->state, e->how->pools, "", e->c->names, e->c->name_count};
    if (!origin_mark(prefix, err)) {
        file_abort(&e->features);
        file_abort(labels);
        return false;
    }
    if (!file_commit(&e->features, err)) {
        file_abort(labels);
        return false;
    }
    if (!file_commit(labels, err)) return false;
    if (!e->how->model) return origin_remove(prefix, err);
    snprintf(o.model, sizeof o.model, "%s", e->how->model);
    return origin_write(&o, prefix, err);
}

/* Makes the file as long as it will be, so that no rank's file system takes what another one writes
 * for bytes beyond the end. */
static bool begin_shared(extractor *e, int64_t width, uint64_t identity[2], error *err) {
    struct stat status;
    const off_t size = (off_t)e->start + (off_t)e->c->count * (off_t)width * (off_t)sizeof(float);
    FILE *stream = e->features.stream;
    if (fflush(stream) != 0 || ftruncate(fileno(stream), size) != 0 ||
        fstat(fileno(stream), &status) != 0) {
        return error_system(err, "write", e->features.temporary);
    }
    identity[0] = (uint64_t)status.st_ino;
    identity[1] = (uint64_t)status.st_size;
    return true;
}

/* Opens rank 0's temporary file. */
static bool join_rows(extractor *e, const char *path, const uint64_t identity[2], error *err) {
    struct stat status;
    if (!file_join(&e->features, path, err)) return false;
    if (fstat(fileno(e->features.stream), &status) != 0) {
        return error_system(err, "read", e->features.temporary);
    }
    return ((uint64_t)status.st_ino == identity[0] && (uint64_t)status.st_size == identity[1]) ||
           error_set(err,
                     "%s is not the file that rank 0 writes: expected a folder that all hosts "
                     "see",
                     e->features.temporary);
}

/* Rank 0 begins the file, and thereby locks it; then the others join. */
static bool begin_rows(extractor *e, const char *path, uint64_t set, error *err) {
    int64_t width = e->m->config.hidden * e->how->pools.count, rows = (int64_t)e->c->count;
    uint64_t identity[3] = {0};
    ranks *r = e->how->ranks;
    if (ranks_rank(r) == 0) {
        bool begun = npy_begin_in_set(&e->features, path, "<f4", rows, width, set, &e->start, err);
        if (!begun || !r) return begun;
        if (!begin_shared(e, width, identity, err)) return false;
        identity[2] = (uint64_t)e->start;
    }
    ranks_broadcast(r, identity, sizeof identity);
    e->start = (int64_t)identity[2];
    return ranks_rank(r) == 0 || join_rows(e, path, identity, err);
}

/* Waits until all ranks have written their rows to the disk; those but rank 0 are then done. */
static bool gather_rows(extractor *e, error *err) {
    ranks *r = e->how->ranks;
    if (ranks_rank(r) > 0 && !file_leave(&e->features, err)) return false;
    ranks_wait(r);
    return true;
}

/* Closes the temporary file, if it is open; rank 0 also removes it. */
static void give_up_rows(extractor *e) {
    error ignored;
    if (!e->features.stream) return;
    if (ranks_rank(e->how->ranks) == 0) {
        file_abort(&e->features);
    } else {
        file_leave(&e->features, &ignored);
    }
}

/* Begins, and thereby locks, both files before the work. */
static bool write_pair(extractor *e, const char *prefix, uint64_t set, error *err) {
    char *path = mem_format("%s.npy", prefix), *labels_path = mem_format("%s.labels.npy", prefix);
    const bool leads = ranks_rank(e->how->ranks) == 0;
    file_writer labels = {0};
    int64_t start, rows = (int64_t)e->c->count;
    bool done =
        begin_rows(e, path, set, err) &&
        (!leads || npy_begin_in_set(&labels, labels_path, "<i4", rows, 0, set, &start, err)) &&
        run_groups(e, err) && (!leads || write_labels(e->c, &labels, err)) && gather_rows(e, err);
    if (done && leads) {
        done = commit_pair(e, &labels, prefix, err);
    } else {
        if (labels.stream) file_abort(&labels);
        give_up_rows(e);
    }
    free(labels_path);
    free(path);
    return done;
}

/* Does the work, with files, or without for those who take rows. */
static bool extract(extractor *e, const char *prefix, uint64_t set, error *err) {
    backend *be = e->m->be;
    e->order = corpus_longest_first(e->c);
    e->plane = (size_t)e->m->config.hidden * (size_t)e->m->columns;
    bool done = take_memory(e, err);
    if (done) {
        e->owner = deal(e);
        e->step = be->memory->record(be, issue_step, e);
        done = prefix ? write_pair(e, prefix, set, err) : run_groups(e, err);
        be->memory->recording_free(be, e->step);
        free(e->owner);
    }
    release_memory(e);
    free(e->order);
    return done;
}

bool features_extract(model *m, const corpus *c, const feature_options *how, const char *prefix,
                      feature_result *result, error *err) {
    extractor e = {.m = m, .c = c, .how = how};
    const double start = clock_seconds();
    const uint64_t set = set_number(&e);
    const bool done = ranks_same(how->ranks, (int64_t)set, "its documents, labels or model", err) &&
                      ranks_same(how->ranks, m->batch, "its number of streams", err) &&
                      extract(&e, prefix, set, err);
    *result = (feature_result){c->count, c->size, (uint64_t)(m->config.hidden * how->pools.count),
                               clock_seconds() - start};
    return done;
}

bool features_each(model *m, const corpus *c, const feature_options *how,
                   void (*take)(void *argument, size_t document, const float *row), void *argument,
                   error *err) {
    extractor e = {.m = m, .c = c, .how = how, .take = take, .argument = argument};
    return extract(&e, NULL, 0, err);
}
