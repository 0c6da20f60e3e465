#include "data/minibatches.h"

#include "core/memory.h"
#include "core/philox.h"
#include "data/classes.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ------------------------------------------------------------------------------------ sequences */

static void set_starts(sequence *s) {
    for (size_t i = 0; i < s->count; i++) {
        s->start[i + 1] = s->start[i] + s->corpus->documents[s->order[i]].length;
    }
    s->size = s->start[s->count];
}

static sequence *begin(const corpus *c) {
    sequence *s = mem_alloc(1, sizeof *s);
    *s = (sequence){.corpus = c,
                    .order = mem_alloc(c->count, sizeof *s->order),
                    .start = mem_alloc(c->count + 1, sizeof *s->start),
                    .count = c->count};
    for (size_t i = 0; i < s->count; i++) s->order[i] = (uint32_t)i;
    return s;
}

sequence *sequence_in_order(const corpus *c) {
    sequence *s = begin(c);
    set_starts(s);
    return s;
}

/* Shuffles by Fisher and Yates, from the last place to the first. */
static void shuffle(sequence *s, uint64_t seed, uint64_t epoch) {
    philox_stream draws = philox_start(seed, PHILOX_SHUFFLE, 0, (uint32_t)epoch);
    for (size_t i = s->count; i > 1; i--) {
        uint64_t chosen = philox_below(&draws, i);
        uint32_t last = s->order[i - 1];
        s->order[i - 1] = s->order[chosen];
        s->order[chosen] = last;
    }
}

/* Whether a byte is in the later half of its stripe, which the later half of an epoch reads. */
static bool is_late(uint64_t position, uint64_t stripe) {
    return position % stripe >= stripe - stripe / 2;
}

/* Orders the documents anew so that each is in that half of a stripe in which its middle was in the
 * first epoch. Within the halves, and from stripe to stripe, the order stays random. */
static void keep_halves(sequence *s, const sequence *first, uint64_t stripe) {
    bool *is_late_document = mem_alloc(s->count, sizeof *is_late_document);
    for (size_t i = 0; i < s->count; i++) {
        const uint64_t middle = (first->start[i] + first->start[i + 1]) / 2;
        is_late_document[first->order[i]] = is_late(middle, stripe);
    }
    uint32_t *pool = mem_alloc(s->count, sizeof *pool); /* [0, early) and [late, count) are left */
    size_t early = 0, late = s->count;
    for (size_t i = 0; i < s->count; i++) {
        pool[is_late_document[s->order[i]] ? --late : early++] = s->order[i];
    }
    uint64_t position = 0;
    for (size_t i = 0; i < s->count; i++) {
        const bool take_late = early == 0 || (late < s->count && is_late(position, stripe));
        s->order[i] = pool[take_late ? late++ : --early];
        position += s->corpus->documents[s->order[i]].length;
    }
    free(pool);
    free(is_late_document);
}

sequence *sequence_shuffled(const corpus *c, uint64_t seed, uint64_t epoch, uint64_t stripe) {
    sequence *s = begin(c);
    shuffle(s, seed, epoch);
    if (epoch > 0) {
        sequence *first = sequence_shuffled(c, seed, 0, stripe);
        keep_halves(s, first, stripe);
        sequence_free(first);
    }
    set_starts(s);
    return s;
}

void sequence_free(sequence *s) {
    if (!s) return;
    free(s->order);
    free(s->start);
    free(s);
}

/* The place in the order of the document that holds byte `position`. */
static size_t find_document(const sequence *s, uint64_t position) {
    size_t low = 0, high = s->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->start[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

void sequence_copy(const sequence *s, uint64_t position, size_t count, uint8_t *out) {
    for (size_t i = find_document(s, position); count > 0; i++) {
        const document *d = &s->corpus->documents[s->order[i]];
        uint64_t skipped = position - s->start[i], left = d->length - skipped;
        size_t part = left < count ? (size_t)left : count;
        memcpy(out, s->corpus->bytes + d->offset + skipped, part);
        out += part;
        position += part;
        count -= part;
    }
}

/* ----------------------------------------------------------------------------------- the reader */

enum { RING = 4 }; /* the caller has one minibatch; the others are ready or being made */

struct reader {
    const corpus *corpus;
    stream_share streams;
    int columns, steps;
    uint64_t seed, first;
    uint64_t updates; /* number of updates in an epoch */
    uint64_t stripe;  /* bytes between the starts of two stripes */
    minibatch ring[RING];
    pthread_t thread;

    pthread_mutex_t lock; /* protects the members below */
    pthread_cond_t changed;
    uint64_t made, taken; /* minibatches made and taken so far; number n is in ring[n % RING] */
    bool stopping;
};

static uint64_t stripe_length(const corpus *c, int batch) {
    return c->size > 0 ? (c->size - 1) / (uint64_t)batch : 0;
}

uint64_t reader_epoch_updates(const corpus *c, int batch, int steps) {
    return stripe_length(c, batch) / (uint64_t)steps;
}

uint64_t reader_epoch_dropped(const corpus *c, int batch, int steps) {
    return c->size - reader_epoch_updates(c, batch, steps) * (uint64_t)batch * (uint64_t)steps;
}

/* ------------------------------------------------------------------------------- the thread */

enum { TILE = 16 }; /* streams whose bytes are put into a minibatch together */

/* Puts bytes [TILE][steps + 1] of `count` streams from `first` on into a minibatch: the byte of a
 * step is the input of that step and the target of the one before. */
static void put(const reader *r, minibatch *m, int first, int count, const uint8_t *bytes) {
    const size_t length = (size_t)r->steps + 1, columns = (size_t)r->columns;
    for (size_t t = 0; t < length; t++) {
        uint8_t row[TILE];
        for (size_t k = 0; k < TILE; k++) row[k] = bytes[k * length + t];
        const size_t at = t * columns + (size_t)first;
        if (t + 1 < length) memcpy(m->inputs + at, row, (size_t)count);
        int16_t *targets = t > 0 ? m->targets + at - columns : NULL;
        if (count == TILE && targets) {
            for (int k = 0; k < TILE; k++) targets[k] = row[k];
        } else if (targets) {
            for (int k = 0; k < count; k++) targets[k] = row[k];
        }
    }
}

/* The classes of a stream's inputs, from `position` of the sequence on. */
static void put_classes(const reader *r, const sequence *s, minibatch *m, int stream,
                        uint64_t position) {
    const size_t columns = (size_t)r->columns;
    size_t i = find_document(s, position), at = (size_t)stream;
    for (int t = 0; t < r->steps; t++, at += columns, position++) {
        while (position >= s->start[i + 1]) i++;
        const double place = (double)(position - s->start[i] + 1);
        const double ramp = 2 * place / (double)(s->start[i + 1] - s->start[i] + 1);
        m->classes[at] = r->corpus->classes[s->order[i]];
        const double weight = class_weight(r->corpus->class_weights, m->classes[at]);
        m->weights[at] = m->classes[at] < 0 ? 0 : (float)(ramp * weight);
    }
}

static uint64_t stripe_begin(const reader *r, int stream) {
    return (uint64_t)(r->streams.first + stream) * r->stripe;
}

/* Makes a minibatch. `bytes` has room for [TILE][steps + 1]. */
static void make(const reader *r, const sequence *s, minibatch *m, uint8_t *bytes) {
    const size_t steps = (size_t)r->steps;
    for (int first = 0; first < r->streams.count; first += TILE) {
        const int left = r->streams.count - first, count = left < TILE ? left : TILE;
        for (int k = 0; k < count; k++) {
            const uint64_t position = stripe_begin(r, first + k) + m->update * steps;
            sequence_copy(s, position, steps + 1, bytes + (size_t)k * (steps + 1));
            if (m->classes) put_classes(r, s, m, first + k, position);
        }
        put(r, m, first, count, bytes);
    }
}

/* Waits for a free place in the ring. Returns false if the reader stops. */
static bool wait_for_place(reader *r) {
    pthread_mutex_lock(&r->lock);
    while (!r->stopping && r->made - r->taken == RING - 1) pthread_cond_wait(&r->changed, &r->lock);
    bool going = !r->stopping;
    pthread_mutex_unlock(&r->lock);
    return going;
}

static void *run(void *argument) {
    reader *r = argument;
    uint8_t *bytes = mem_alloc((size_t)r->steps + 1, TILE);
    sequence *s = NULL;
    for (uint64_t n = 0; wait_for_place(r); n++) {
        minibatch *m = &r->ring[n % RING];
        m->epoch = (r->first + n) / r->updates;
        m->update = (r->first + n) % r->updates;
        if (n == 0 || m->update == 0) {
            sequence_free(s);
            s = sequence_shuffled(r->corpus, r->seed, m->epoch, r->stripe);
        }
        make(r, s, m, bytes);
        pthread_mutex_lock(&r->lock);
        r->made++;
        pthread_cond_signal(&r->changed);
        pthread_mutex_unlock(&r->lock);
    }
    sequence_free(s);
    free(bytes);
    return NULL;
}

/* ------------------------------------------------------------------------------- the caller */

reader *reader_start(const corpus *c, stream_share streams, int columns, int steps, uint64_t seed,
                     uint64_t first) {
    reader *r = mem_alloc(1, sizeof *r);
    *r = (reader){.corpus = c,
                  .streams = streams,
                  .columns = columns,
                  .steps = steps,
                  .seed = seed,
                  .first = first,
                  .updates = reader_epoch_updates(c, streams.all, steps),
                  .stripe = stripe_length(c, streams.all)};
    size_t size = (size_t)steps * (size_t)columns;
    for (int i = 0; i < RING; i++) {
        r->ring[i].inputs = mem_alloc(size, sizeof *r->ring[i].inputs);
        r->ring[i].targets = mem_alloc(size, sizeof *r->ring[i].targets);
        memset(r->ring[i].targets, -1, size * sizeof *r->ring[i].targets);
        if (!c->classes) continue;
        r->ring[i].classes = mem_alloc(size, sizeof *r->ring[i].classes);
        r->ring[i].weights = mem_alloc(size, sizeof *r->ring[i].weights);
        memset(r->ring[i].classes, -1, size * sizeof *r->ring[i].classes);
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    int problem = pthread_create(&r->thread, NULL, run, r);
    if (problem) { /* ends the program, as a lack of memory does (core/memory.h) */
        fprintf(stderr, "smallworld: cannot start a thread: %s\n", strerror(problem));
        exit(1);
    }
    return r;
}

bool reader_wait(reader *r, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += (long)(seconds * 1e9);
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    int problem = 0;
    pthread_mutex_lock(&r->lock);
    while (r->made == r->taken && problem != ETIMEDOUT) {
        problem = pthread_cond_timedwait(&r->changed, &r->lock, &until);
    }
    const bool ready = r->made > r->taken;
    pthread_mutex_unlock(&r->lock);
    return ready;
}

const minibatch *reader_next(reader *r) {
    pthread_mutex_lock(&r->lock);
    while (r->made == r->taken) pthread_cond_wait(&r->changed, &r->lock);
    const minibatch *m = &r->ring[r->taken++ % RING];
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    return m;
}

void reader_stop(reader *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->stopping = true;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->changed);
    for (int i = 0; i < RING; i++) {
        free(r->ring[i].inputs);
        free(r->ring[i].targets);
        free(r->ring[i].classes);
        free(r->ring[i].weights);
    }
    free(r);
}
