#include "page/reading.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Documents that are read side by side, one in each column, and the results of a call. */
typedef struct reader_state {
    model *m;
    const corpus *c;
    const reading_options *how;
    reading *r;
    recording *step;
    size_t *start;      /* [documents] the position of each document's first byte */
    uint8_t *bytes;     /* [steps][columns] */
    char *states;       /* [steps][hidden][columns] elements of `size` bytes */
    float *logits;      /* [steps][256][columns] */
    float *bias;        /* [256] of the head */
    size_t size;        /* size of a state's element: 2 for bf16 */
    bool choosing;      /* whether this is the first pass, over the moments of all units */
    double *sum, *sum2; /* [hidden] */
    double *pooled;     /* [columns][pools][hidden] pooled states of each document so far */
    double begun, shown;
} reader_state;

static void forward(void *argument) {
    model_forward(argument);
}

/* ---------------------------------------------------------------------------------- one byte */

static float state_at(const reader_state *s, size_t t, size_t unit, size_t column) {
    size_t hidden = (size_t)s->m->config.hidden, columns = (size_t)s->m->columns;
    uint32_t bits = 0;
    float value;
    memcpy((char *)&bits + 4 - s->size,
           s->states + ((t * hidden + unit) * columns + column) * s->size, s->size);
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void take_moments(reader_state *s, size_t t, size_t column) {
    for (size_t u = 0; u < (size_t)s->m->config.hidden; u++) {
        double value = state_at(s, t, u, column);
        s->sum[u] += value;
        s->sum2[u] += value * value;
    }
}

/* Records the likeliest next bytes, and the surprise of the actual one. */
static void take_next(reader_state *s, size_t t, size_t column, size_t position, int came) {
    size_t columns = (size_t)s->m->columns;
    const float *raw = s->logits + t * VOCABULARY * columns + column;
    double logits[VOCABULARY], largest = -INFINITY, total = 0;
    for (size_t v = 0; v < VOCABULARY; v++) {
        logits[v] = (double)raw[v * columns] + s->bias[v];
        largest = fmax(largest, logits[v]);
    }
    for (int v = 0; v < VOCABULARY; v++) total += exp(logits[v] - largest);
    double norm = largest + log(total);
    if (came >= 0) s->r->surprise[position + 1] = (float)((norm - logits[came]) / M_LN2);
    for (int k = 0; k < READING_NEXT; k++) {
        int best = 0;
        for (int v = 1; v < VOCABULARY; v++) {
            if (logits[v] > logits[best]) best = v;
        }
        double percent = 100 * exp(logits[best] - norm);
        s->r->next[position * READING_NEXT + (size_t)k] =
            (next_byte){(uint8_t)best, (uint8_t)lround(percent)};
        logits[best] = -INFINITY;
    }
}

/* Adds the state after byte `step` of a document to its pooled features. */
static void pool_state(reader_state *s, size_t t, size_t column, uint64_t step) {
    const size_t hidden = (size_t)s->m->config.hidden, pools = (size_t)s->how->pools.count;
    for (size_t p = 0; p < pools; p++) {
        double *value = s->pooled + (column * pools + p) * hidden;
        const pooling kind = s->how->pools.kinds[p];
        for (size_t u = 0; u < hidden; u++) {
            const double state = state_at(s, t, u, column);
            if (step == 0 || kind == POOL_LAST) {
                value[u] = state;
            } else if (kind == POOL_MEAN) {
                value[u] += state;
            } else {
                value[u] = fmax(value[u], state);
            }
        }
    }
}

/* Applies each of the probe's functions to a document as if it ended after byte `step`. */
static void take_margins(reader_state *s, size_t column, size_t position, uint64_t step) {
    const reading_options *how = s->how;
    const size_t hidden = (size_t)s->m->config.hidden, pools = (size_t)how->pools.count;
    for (size_t k = 0; k < (size_t)how->models; k++) {
        const double *weights = how->weights + k * (pools * hidden + 1);
        double margin = weights[pools * hidden];
        for (size_t p = 0; p < pools; p++) {
            const double *value = s->pooled + (column * pools + p) * hidden;
            double total = 0;
            for (size_t u = 0; u < hidden; u++) total += weights[p * hidden + u] * value[u];
            margin += how->pools.kinds[p] == POOL_MEAN ? total / (double)(step + 1) : total;
        }
        s->r->margin[position * (size_t)how->models + k] = (float)margin;
    }
}

/* Gives the bytes of each word the margins at its end, because states within a word say more about
 * how it may go on than about the document. */
static void hold_by_word(reader_state *s) {
    const size_t models = (size_t)s->how->models;
    for (size_t i = 0; i < s->c->count; i++) {
        const document *d = &s->c->documents[i];
        for (uint64_t k = d->length - 1; k-- > 0;) {
            float *margin = s->r->margin + (s->start[i] + k) * models;
            if (s->c->bytes[d->offset + k] == ' ') continue;
            memcpy(margin, margin + models, models * sizeof *margin);
        }
    }
}

static void take_states(reader_state *s, const document *d, size_t t, size_t column,
                        size_t position, uint64_t step) {
    reading *r = s->r;
    for (int k = 0; k < r->count; k++) {
        r->states[position * (size_t)r->count + (size_t)k] = state_at(s, t, r->units[k], column);
    }
    if (!r->margin) return;
    const bool last = step + 1 == d->length;
    pool_state(s, t, column, step);
    if (last || s->c->bytes[d->offset + step] == ' ') take_margins(s, column, position, step);
}

/* ------------------------------------------------------------------------------------ passes */

static void run_call(reader_state *s, size_t first, size_t count, uint64_t from) {
    model *m = s->m;
    backend *be = m->be;
    size_t columns = (size_t)m->columns, steps = (size_t)m->steps;
    size_t plane = (size_t)m->config.hidden * columns * s->size;
    bool cell = s->how->state == FEATURE_CELL;
    memset(s->bytes, 0, steps * columns);
    for (size_t k = 0; k < count; k++) {
        const document *d = &s->c->documents[first + k];
        for (size_t t = 0; t < steps && from + t < d->length; t++) {
            s->bytes[t * columns + k] = s->c->bytes[d->offset + from + t];
        }
    }
    model_set_text(m, s->bytes, NULL);
    be->memory->replay(be, s->step);
    be->memory->download(be, s->states, model_state(m, cell ? MODEL_C : MODEL_H, 1), steps * plane);
    be->memory->download(be, s->logits, m->logits,
                         steps * VOCABULARY * columns * sizeof *s->logits);
    for (size_t k = 0; k < count; k++) {
        const document *d = &s->c->documents[first + k];
        for (size_t t = 0; t < steps && from + t < d->length; t++) {
            size_t position = s->start[first + k] + from + t;
            bool last = from + t + 1 == d->length;
            if (s->choosing) {
                take_moments(s, t, k);
            } else {
                take_states(s, d, t, k, position, from + t);
                take_next(s, t, k, position, last ? -1 : s->c->bytes[d->offset + from + t + 1]);
            }
        }
    }
}

static void show(reader_state *s, size_t done) {
    double now = clock_seconds(), pause = log_is_terminal() ? 0.5 : 20;
    if (!s->how->progress || now - s->shown < pause) return;
    s->shown = now;
    log_progress("%s %.1f %%, %.0f bytes/s", s->choosing ? "choosing units," : "read",
                 100 * (double)done / (double)s->c->size, (double)done / (now - s->begun));
}

static bool run_pass(reader_state *s, error *err) {
    size_t batch = (size_t)s->m->batch, done = 0;
    s->begun = s->shown = clock_seconds();
    for (size_t first = 0; first < s->c->count; first += batch) {
        size_t count = s->c->count - first < batch ? s->c->count - first : batch;
        uint64_t longest = 0;
        for (size_t k = 0; k < count; k++) {
            uint64_t length = s->c->documents[first + k].length;
            if (length > longest) longest = length;
            done += length;
        }
        model_zero_state(s->m);
        for (uint64_t from = 0; from < longest; from += (uint64_t)s->m->steps) {
            run_call(s, first, count, from);
        }
        if (!s->m->be->memory->finish(s->m->be, err)) return false;
        show(s, done);
    }
    return true;
}

/* Finds the units of largest deviation, largest first. */
static bool choose_units(reader_state *s, error *err) {
    size_t hidden = (size_t)s->m->config.hidden;
    reading *r = s->r;
    double n = (double)s->c->size;
    s->sum = mem_alloc(2 * hidden, sizeof *s->sum);
    s->sum2 = s->sum + hidden;
    s->choosing = true;
    bool done = run_pass(s, err);
    s->choosing = false;
    for (size_t u = 0; u < hidden; u++) s->sum2[u] = s->sum2[u] / n - s->sum[u] * s->sum[u] / n / n;
    for (int k = 0; done && k < r->count; k++) {
        size_t best = 0;
        for (size_t u = 1; u < hidden; u++) {
            if (s->sum2[u] > s->sum2[best]) best = u;
        }
        r->units[k] = best;
        s->sum2[best] = -INFINITY;
    }
    free(s->sum);
    return done;
}

static void take_memory(reader_state *s) {
    model *m = s->m;
    reading *r = s->r;
    size_t steps = (size_t)m->steps, columns = (size_t)m->columns;
    size_t bytes = s->c->size, count = (size_t)r->count;
    r->bytes = bytes;
    r->units = mem_alloc(count, sizeof *r->units);
    r->states = mem_alloc(bytes * count, sizeof *r->states);
    r->surprise = mem_alloc(bytes, sizeof *r->surprise);
    r->next = mem_alloc(bytes * READING_NEXT, sizeof *r->next);
    if (s->how->weights) {
        size_t features = (size_t)s->how->pools.count * (size_t)m->config.hidden;
        r->models = s->how->models;
        r->margin = mem_alloc(bytes * (size_t)r->models, sizeof *r->margin);
        s->pooled = mem_alloc(columns * features, sizeof *s->pooled);
    }
    s->start = mem_alloc(s->c->count, sizeof *s->start);
    s->bytes = mem_alloc(steps * columns, 1);
    s->states = mem_alloc(steps * (size_t)m->config.hidden * columns, s->size);
    s->logits = mem_alloc(steps * VOCABULARY * columns, sizeof *s->logits);
    s->bias = mem_alloc(VOCABULARY, sizeof *s->bias);
    size_t at = 0;
    for (size_t i = 0; i < s->c->count; i++) {
        s->start[i] = at;
        r->surprise[at] = NAN;
        at += s->c->documents[i].length;
    }
}

static bool check_finite(const reader_state *s, error *err) {
    for (size_t i = 0; i < s->c->count; i++) {
        for (uint64_t k = 1; k < s->c->documents[i].length; k++) {
            if (isfinite(s->r->surprise[s->start[i] + k])) continue;
            return error_set(err, "the model's outputs are not finite: its weights are too large");
        }
    }
    return true;
}

bool reading_run(model *m, const corpus *c, const reading_options *how, reading *r, error *err) {
    backend *be = m->be;
    reader_state s = {.m = m, .c = c, .how = how, .r = r};
    *r = (reading){.count = how->count};
    if ((int64_t)r->count > m->config.hidden) r->count = (int)m->config.hidden;
    s.size = how->state == FEATURE_CELL ? be->real_size : be->operand_size;
    take_memory(&s);
    const parameter *bias = parameter_find(&m->parameters, "head.bias");
    be->memory->download(be, s.bias, (const char *)m->bound + bias->offset * be->real_size,
                         VOCABULARY * sizeof *s.bias);
    s.step = be->memory->record(be, forward, m);
    bool done = true;
    if (how->units) {
        memcpy(r->units, how->units, (size_t)r->count * sizeof *r->units);
    } else {
        done = choose_units(&s, err);
    }
    done = done && run_pass(&s, err) && check_finite(&s, err);
    if (done && r->margin) hold_by_word(&s);
    be->memory->recording_free(be, s.step);
    free(s.pooled);
    free(s.bias);
    free(s.logits);
    free(s.states);
    free(s.bytes);
    free(s.start);
    if (!done) reading_free(r);
    return done;
}

void reading_free(reading *r) {
    free(r->next);
    free(r->margin);
    free(r->surprise);
    free(r->states);
    free(r->units);
    *r = (reading){0};
}
