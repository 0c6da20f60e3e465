#include "data/reader.h"

#include "core/memory.h"
#include "data/sequence.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Makes a minibatch. `bytes` has room for steps + 1. */
static void make(const reader *r, const sequence *s, minibatch *m, uint8_t *bytes) {
    for (int k = 0; k < r->streams.count; k++) {
        uint64_t position =
            (uint64_t)(r->streams.first + k) * r->stripe + m->update * (uint64_t)r->steps;
        sequence_copy(s, position, (size_t)r->steps + 1, bytes);
        for (int t = 0; t < r->steps; t++) {
            size_t at = (size_t)t * (size_t)r->columns + (size_t)k;
            m->inputs[at] = bytes[t];
            m->targets[at] = bytes[t + 1];
        }
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
    uint8_t *bytes = mem_alloc((size_t)r->steps + 1, 1);
    sequence *s = NULL;
    for (uint64_t n = 0; wait_for_place(r); n++) {
        minibatch *m = &r->ring[n % RING];
        m->epoch = (r->first + n) / r->updates;
        m->update = (r->first + n) % r->updates;
        if (n == 0 || m->update == 0) {
            sequence_free(s);
            s = sequence_shuffled(r->corpus, r->seed, m->epoch);
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
    }
    free(r);
}
