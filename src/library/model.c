#include "library/internal.h"

#include "core/memory.h"
#include "data/corpus.h"
#include "probe/saved.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/generate.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_STREAMS = 32, MAX_STREAMS = 4096, STEPS = 64 };

struct smallworld_model {
    pthread_mutex_t lock; /* one call at a time */
    checkpoint checkpoint;
    backend *be;
    model *m;           /* reads `streams` texts side by side, STEPS bytes in each call */
    recording *forward; /* the cell and the head */
    recording *pooled;  /* the cell, then the pooling that `fold` describes */
    model *writer;      /* generates one text, one byte in each call; made on first use */
    uint8_t *bytes;     /* [steps][columns] */
    int16_t *targets;   /* [steps][columns] */
    void *received;     /* memory for results from the device; grows */
    size_t received_size;
    struct {
        smallworld_state state;
        pooling how;
        int32_t *first, *last; /* [columns] on the device */
        void *out;             /* double [units][columns] on the device */
        int32_t *host_first, *host_last;
    } fold;
};

/* ---------------------------------------------------------------------------------- lifetime */

static void issue_forward(void *argument) {
    model_forward(argument);
}

/* Returns the states after each step on the device, and the size of an element. */
static const void *planes(const smallworld_model *s, smallworld_state state, size_t *size) {
    bool cell = state == SMALLWORLD_CELL;
    *size = cell ? s->be->real_size : s->be->operand_size;
    return model_state(s->m, cell ? MODEL_C : MODEL_H, 1);
}

static void issue_pooled(void *argument) {
    smallworld_model *s = argument;
    model *m = s->m;
    size_t size;
    model_run(m);
    const void *states = planes(s, s->fold.state, &size);
    s->be->update->pool(s->be, states, s->fold.state == SMALLWORLD_CELL ? REAL : OPERAND, m->steps,
                        (int)m->config.hidden, m->columns, s->fold.first, s->fold.last, s->fold.how,
                        s->fold.out);
}

static bool take_memory(smallworld_model *s, error *err) {
    backend *be = s->be;
    size_t columns = (size_t)s->m->columns, units = (size_t)s->m->config.hidden;
    s->bytes = mem_alloc((size_t)s->m->steps * columns, 1);
    s->targets = mem_alloc((size_t)s->m->steps * columns, sizeof *s->targets);
    s->fold.host_first = mem_alloc(columns, sizeof(int32_t));
    s->fold.host_last = mem_alloc(columns, sizeof(int32_t));
    s->fold.first = be->memory->allocate(be, columns * sizeof(int32_t));
    s->fold.last = be->memory->allocate(be, columns * sizeof(int32_t));
    s->fold.out = be->memory->allocate(be, units * columns * sizeof(double));
    if (s->fold.first && s->fold.last && s->fold.out) return true;
    return error_set(err, "not enough memory for features on %s", be->device);
}

static bool load(smallworld_model *s, const char *path, const smallworld_options *given,
                 error *err) {
    int streams = given && given->streams ? given->streams : DEFAULT_STREAMS;
    if (streams < 1 || streams > MAX_STREAMS) {
        return error_set(err, "streams: expected 1 to %d, got %d", MAX_STREAMS, streams);
    }
    if (!checkpoint_open(&s->checkpoint, path, err)) return false;
    options *o = &s->checkpoint.options;
    if (library_options(o, given, err)) s->be = library_backend(o, err);
    if (s->be) s->m = checkpoint_model(&s->checkpoint, s->be, streams, STEPS, MODEL_INFERENCE, err);
    if (!s->m || !take_memory(s, err)) return false;
    s->forward = s->be->memory->record(s->be, issue_forward, s->m);
    return s->be->memory->finish(s->be, err);
}

smallworld_model *smallworld_load(const char *path, const smallworld_options *given) {
    error err;
    if (!library_needs(path, "checkpoint", &err)) {
        library_fail(&err);
        return NULL;
    }
    smallworld_model *s = mem_alloc(1, sizeof *s);
    pthread_mutex_init(&s->lock, NULL);
    if (load(s, path, given, &err)) return s;
    library_fail(&err);
    smallworld_free(s);
    return NULL;
}

void smallworld_free(smallworld_model *s) {
    if (!s) return;
    backend *be = s->be;
    if (be) {
        void *blocks[] = {s->fold.first, s->fold.last, s->fold.out};
        for (int i = 0; i < 3; i++) {
            if (blocks[i]) be->memory->release(be, blocks[i]);
        }
        if (s->pooled) be->memory->recording_free(be, s->pooled);
        if (s->forward) be->memory->recording_free(be, s->forward);
        if (s->writer) model_free(s->writer);
        if (s->m) model_free(s->m);
        be->memory->destroy(be);
    }
    checkpoint_close(&s->checkpoint);
    free(s->fold.host_first);
    free(s->fold.host_last);
    free(s->received);
    free(s->targets);
    free(s->bytes);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int smallworld_units(const smallworld_model *s) {
    return s ? (int)s->m->config.hidden : 0;
}

int64_t smallworld_parameters(const smallworld_model *s) {
    int64_t count = 0;
    for (int i = 0; s && i < s->m->parameters.count; i++) {
        count += (int64_t)s->m->parameters.items[i].count;
    }
    return count;
}

const char *smallworld_device(const smallworld_model *s) {
    return s ? s->be->device : "";
}

size_t smallworld_frame(const smallworld_model *s, const uint8_t *text, size_t length,
                        uint8_t *framed) {
    error err;
    if (!library_needs(s, "model", &err) || !library_needs(framed, "framed", &err) ||
        (length > 0 && !library_needs(text, "text", &err))) {
        library_fail(&err);
        return 0;
    }
    corpus_options how = s->checkpoint.options.data.reading;
    framed[0] = '\n';
    framed[1] = ' ';
    if (length) memmove(framed + 2, text, length);
    length = corpus_clean(framed + 2, length, &how);
    framed[2 + length] = ' ';
    return length + 3;
}

/* ----------------------------------------------------------------------------------- reading */

/* The texts of one round, one in each column. A round starts from a zero state. */
typedef struct round {
    const uint8_t *const *texts;
    const size_t *lengths;
    size_t first, count, longest;
} round_of_texts;

/* The number of bytes of the round's text k in the call that starts at byte `from`. */
static size_t bytes_here(const smallworld_model *s, const round_of_texts *r, size_t k,
                         size_t from) {
    size_t length = r->lengths[r->first + k], steps = (size_t)s->m->steps;
    size_t left = length > from ? length - from : 0;
    return left < steps ? left : steps;
}

static void fill(smallworld_model *s, const round_of_texts *r, size_t from) {
    size_t columns = (size_t)s->m->columns, positions = (size_t)s->m->steps * columns;
    memset(s->bytes, 0, positions);
    for (size_t i = 0; i < positions; i++) s->targets[i] = -1;
    for (size_t k = 0; k < columns; k++) {
        size_t here = k < r->count ? bytes_here(s, r, k, from) : 0;
        s->fold.host_first[k] = s->fold.how == POOL_LAST && here > 0 ? (int32_t)here - 1 : 0;
        s->fold.host_last[k] = (int32_t)here;
        for (size_t t = 0; t < here; t++) {
            const uint8_t *text = r->texts[r->first + k] + from;
            s->bytes[t * columns + k] = text[t];
            if (from + t + 1 < r->lengths[r->first + k]) s->targets[t * columns + k] = text[t + 1];
        }
    }
}

/* The destination of results, text after text. `place` counts the bytes of the texts before the
 * round. */
typedef struct destination {
    bool (*take)(smallworld_model *s, const round_of_texts *r, size_t from, void *out,
                 const size_t *place, error *err);
    bool (*finish)(smallworld_model *s, const round_of_texts *r, void *out, error *err);
    void *out;
} destination;

static bool read_texts(smallworld_model *s, const uint8_t *const *texts, const size_t *lengths,
                       size_t count, const destination *d, error *err) {
    size_t batch = (size_t)s->m->batch, done = 0;
    size_t *place = mem_alloc(batch, sizeof *place);
    bool fine = true;
    for (size_t first = 0; first < count && fine; first += batch) {
        round_of_texts r = {texts, lengths, first, count - first < batch ? count - first : batch,
                            0};
        for (size_t k = 0; k < r.count; k++) {
            place[k] = done;
            done += lengths[first + k];
            if (lengths[first + k] > r.longest) r.longest = lengths[first + k];
        }
        model_zero_state(s->m);
        for (size_t from = 0; from < r.longest && fine; from += (size_t)s->m->steps) {
            fill(s, &r, from);
            fine = d->take(s, &r, from, d->out, place, err) && !library_is_interrupted(err);
        }
        if (fine && d->finish) fine = d->finish(s, &r, d->out, err);
        fine = fine && s->be->memory->finish(s->be, err);
    }
    free(place);
    return fine;
}

/* Downloads `bytes` from the device into memory of the model. */
static const void *receive(smallworld_model *s, const void *source, size_t bytes) {
    s->received = mem_grow(s->received, &s->received_size, bytes, 1);
    s->be->memory->download(s->be, s->received, source, bytes);
    return s->received;
}

/* Checks what score, states and features are given; `out` is called `name`. */
static bool check_texts(const smallworld_model *s, const uint8_t *const *texts,
                        const size_t *lengths, size_t count, const void *out, const char *name,
                        error *err) {
    if (!library_here(err) || !library_needs(s, "model", err)) return false;
    if (count == 0) return true;
    if (!library_needs(texts, "texts", err) || !library_needs(lengths, "lengths", err) ||
        !library_needs(out, name, err)) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (lengths[i] == 0) return error_set(err, "text %zu: expected at least one byte", i);
        if (!texts[i]) return error_set(err, "text %zu: expected a pointer, got NULL", i);
    }
    return true;
}

static bool check_state(smallworld_state state, error *err) {
    return state == SMALLWORLD_CELL || state == SMALLWORLD_HIDDEN ||
           error_set(err, "state: expected 0 (cell) or 1 (hidden), got %d", (int)state);
}

static bool check_pool(smallworld_pool pool, error *err) {
    return (pool >= SMALLWORLD_LAST && pool <= SMALLWORLD_MAX) ||
           error_set(err, "pool: expected 0 (last), 1 (mean) or 2 (max), got %d", (int)pool);
}

static bool not_finite(const char *what, error *err) {
    return error_set(err, "%s: not finite: the model's weights are too large", what);
}

/* ------------------------------------------------------------------------------------- score */

static bool take_bits(smallworld_model *s, const round_of_texts *r, size_t from, void *out,
                      const size_t *place, error *err) {
    size_t columns = (size_t)s->m->columns, positions = (size_t)s->m->steps * columns;
    float *bits = out;
    model_set_text(s->m, s->bytes, s->targets);
    s->be->memory->replay(s->be, s->forward);
    const float *losses = receive(s, s->m->losses, positions * sizeof *losses);
    for (size_t k = 0; k < r->count; k++) {
        if (from == 0) bits[place[k]] = NAN;
        for (size_t t = 0; t < bytes_here(s, r, k, from); t++) {
            if (s->targets[t * columns + k] < 0) continue;
            const float loss = losses[t * columns + k];
            if (!isfinite(loss)) return not_finite("score", err);
            bits[place[k] + from + t + 1] = loss / (float)M_LN2;
        }
    }
    return true;
}

bool smallworld_score(smallworld_model *s, const uint8_t *const *texts, const size_t *lengths,
                      size_t count, float *bits) {
    error err;
    destination d = {.take = take_bits, .out = bits};
    if (!check_texts(s, texts, lengths, count, bits, "bits", &err)) return library_fail(&err);
    pthread_mutex_lock(&s->lock);
    const bool done = read_texts(s, texts, lengths, count, &d, &err);
    pthread_mutex_unlock(&s->lock);
    return done || library_fail(&err);
}

/* ------------------------------------------------------------------------------------ states */

static float state_at(const char *states, size_t index, size_t size) {
    uint32_t bits = 0; /* a 2-byte element is a bf16: the upper half of a float */
    float value;
    memcpy((char *)&bits + 4 - size, states + index * size, size);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool take_states(smallworld_model *s, const round_of_texts *r, size_t from, void *out,
                        const size_t *place, error *err) {
    size_t columns = (size_t)s->m->columns, units = (size_t)s->m->config.hidden, size;
    const void *source = planes(s, s->fold.state, &size);
    float *states = out;
    model_set_text(s->m, s->bytes, NULL);
    s->be->memory->replay(s->be, s->forward);
    const char *all = receive(s, source, (size_t)s->m->steps * units * columns * size);
    for (size_t k = 0; k < r->count; k++) {
        for (size_t t = 0; t < bytes_here(s, r, k, from); t++) {
            float *row = states + (place[k] + from + t) * units;
            for (size_t u = 0; u < units; u++) {
                row[u] = state_at(all, (t * units + u) * columns + k, size);
                if (!isfinite(row[u])) return not_finite("states", err);
            }
        }
    }
    return true;
}

bool smallworld_states(smallworld_model *s, const uint8_t *const *texts, const size_t *lengths,
                       size_t count, smallworld_state state, float *states) {
    error err;
    destination d = {.take = take_states, .out = states};
    if (!check_texts(s, texts, lengths, count, states, "states", &err) ||
        !check_state(state, &err)) {
        return library_fail(&err);
    }
    pthread_mutex_lock(&s->lock);
    s->fold.state = state;
    const bool done = read_texts(s, texts, lengths, count, &d, &err);
    pthread_mutex_unlock(&s->lock);
    return done || library_fail(&err);
}

/* ---------------------------------------------------------------------------------- features */

/* Sets the values that pooling starts from: 0, or minus infinity for the maximum. */
static void start_pooling(smallworld_model *s) {
    backend *be = s->be;
    size_t count = (size_t)s->m->config.hidden * (size_t)s->m->columns;
    if (s->fold.how != POOL_MAX) {
        be->memory->zero(be, s->fold.out, count * sizeof(double));
        return;
    }
    double *least = mem_alloc(count, sizeof *least);
    for (size_t i = 0; i < count; i++) least[i] = -INFINITY;
    be->memory->upload(be, s->fold.out, least, count * sizeof *least);
    free(least);
}

static bool take_pooled(smallworld_model *s, const round_of_texts *r, size_t from, void *out,
                        const size_t *place, error *err) {
    backend *be = s->be;
    size_t columns = (size_t)s->m->columns;
    (void)r, (void)out, (void)place, (void)err;
    if (from == 0) start_pooling(s);
    model_set_text(s->m, s->bytes, NULL);
    be->memory->upload(be, s->fold.first, s->fold.host_first, columns * sizeof(int32_t));
    be->memory->upload(be, s->fold.last, s->fold.host_last, columns * sizeof(int32_t));
    be->memory->replay(be, s->pooled);
    return true;
}

static bool write_features(smallworld_model *s, const round_of_texts *r, void *out, error *err) {
    size_t columns = (size_t)s->m->columns, units = (size_t)s->m->config.hidden;
    const double *pooled = receive(s, s->fold.out, units * columns * sizeof *pooled);
    float *features = out;
    for (size_t k = 0; k < r->count; k++) {
        double length = (double)r->lengths[r->first + k];
        double share = s->fold.how == POOL_MEAN ? length : 1;
        for (size_t u = 0; u < units; u++) {
            const float value = (float)(pooled[u * columns + k] / share);
            if (!isfinite(value)) return not_finite("features", err);
            features[(r->first + k) * units + u] = value;
        }
    }
    return true;
}

bool smallworld_features(smallworld_model *s, const uint8_t *const *texts, const size_t *lengths,
                         size_t count, smallworld_state state, smallworld_pool pool,
                         float *features) {
    error err;
    destination d = {.take = take_pooled, .finish = write_features, .out = features};
    if (!check_texts(s, texts, lengths, count, features, "features", &err) ||
        !check_state(state, &err) || !check_pool(pool, &err)) {
        return library_fail(&err);
    }
    pthread_mutex_lock(&s->lock);
    if (s->pooled) s->be->memory->recording_free(s->be, s->pooled);
    s->fold.state = state;
    s->fold.how = (pooling)pool;
    s->pooled = s->be->memory->record(s->be, issue_pooled, s);
    const bool done = read_texts(s, texts, lengths, count, &d, &err);
    pthread_mutex_unlock(&s->lock);
    return done || library_fail(&err);
}

/* ------------------------------------------------------------------------------------ probes */

struct smallworld_probe {
    smallworld_model *model;
    saved_probe saved;
};

smallworld_probe *smallworld_probe_load(smallworld_model *s, const char *path) {
    error err;
    smallworld_probe *p = NULL;
    if (library_needs(s, "model", &err)) {
        if (!path) path = s->checkpoint.file.path;
        p = mem_alloc(1, sizeof *p);
        p->model = s;
        if (saved_open(&p->saved, path, &err)) {
            const saved_probe *saved = &p->saved;
            const int64_t features = s->m->config.hidden * saved->origin.pools.count;
            if (saved->origin.known &&
                saved_check(saved, features, checkpoint_checksum(&s->checkpoint), path, &err))
                return p;
            if (!saved->origin.known) {
                error_set(&err, "%s: expected a probe on features of smallworld features", path);
            }
            saved_close(&p->saved);
        }
        free(p);
    }
    library_fail(&err);
    return NULL;
}

void smallworld_probe_free(smallworld_probe *p) {
    if (!p) return;
    saved_close(&p->saved);
    free(p);
}

int smallworld_probe_classes(const smallworld_probe *p) {
    return p ? p->saved.classes : 0;
}

const char *smallworld_probe_class(const smallworld_probe *p, int k) {
    return p && k >= 0 && k < p->saved.classes ? p->saved.name[k] : "";
}

bool smallworld_predict(smallworld_probe *p, const uint8_t *const *texts, const size_t *lengths,
                        size_t count, double *probability) {
    error err;
    if (!library_needs(p, "probe", &err) ||
        (count > 0 && !library_needs(probability, "probability", &err))) {
        return library_fail(&err);
    }
    const saved_probe *saved = &p->saved;
    const pool_list *pools = &saved->origin.pools;
    const size_t units = (size_t)p->model->m->config.hidden, kinds = (size_t)pools->count;
    const size_t batch = (size_t)p->model->m->batch;
    float *each = mem_alloc(batch * units, sizeof *each);
    float *rows = mem_alloc(batch * units * kinds, sizeof *rows);
    bool done = true;
    for (size_t first = 0; first < count && done; first += batch) {
        const size_t here = count - first < batch ? count - first : batch;
        for (size_t k = 0; k < kinds && done; k++) {
            done = smallworld_features(p->model, texts + first, lengths + first, here,
                                       (smallworld_state)saved->origin.state,
                                       (smallworld_pool)pools->kinds[k], each);
            for (size_t i = 0; i < here; i++) {
                memcpy(rows + (i * kinds + k) * units, each + i * units, units * sizeof *each);
            }
        }
        for (size_t i = 0; i < here && done; i++) {
            saved_apply(saved, rows + i * kinds * units,
                        probability + (first + i) * (size_t)saved->classes);
        }
    }
    free(each);
    free(rows);
    return done;
}

/* ------------------------------------------------------------------------------------ writing */

/* Of the file that was loaded, which is still open, even if another has taken its name. */
static bool make_writer(smallworld_model *s, error *err) {
    if (!s->writer) s->writer = checkpoint_model(&s->checkpoint, s->be, 1, 1, MODEL_INFERENCE, err);
    return s->writer != NULL;
}

static bool check_generate(size_t length, size_t count, double temperature, int top_k, double top_p,
                           error *err) {
    const size_t most = (size_t)1 << 40;
    if (length == 0) return error_set(err, "prompt: expected at least one byte");
    if (length > most || count > most) {
        return error_set(err, "expected at most %zu bytes, got a prompt of %zu and a count of %zu",
                         most, length, count);
    }
    if (!(temperature >= 0) || isinf(temperature)) {
        return error_set(err, "temperature: expected a number from 0, got %g", temperature);
    }
    if (top_k < 0) return error_set(err, "top_k: expected 0 or more, got %d", top_k);
    return (top_p > 0 && top_p <= 1) ||
           error_set(err, "top_p: expected more than 0 and at most 1, got %g", top_p);
}

bool smallworld_generate(smallworld_model *s, const uint8_t *prompt, size_t length, size_t count,
                         double temperature, int top_k, double top_p, uint64_t seed,
                         uint8_t *text) {
    error err;
    generation how = {prompt, length, count, temperature,
                      top_k,  top_p,  seed,  library_is_interrupted};
    if (!library_here(&err) || !library_needs(s, "model", &err) ||
        !library_needs(prompt, "prompt", &err) ||
        (count > 0 && !library_needs(text, "text", &err)) ||
        !check_generate(length, count, temperature, top_k, top_p, &err)) {
        return library_fail(&err);
    }
    uint8_t *whole = mem_alloc(length + count, 1);
    pthread_mutex_lock(&s->lock);
    bool done = make_writer(s, &err) && generate(s->writer, &how, whole, &err);
    pthread_mutex_unlock(&s->lock);
    if (done && count > 0) memcpy(text, whole + length, count); /* text may be NULL */
    free(whole);
    return done || library_fail(&err);
}
