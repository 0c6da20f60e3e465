#include "data/window.h"

#include "core/memory.h"
#include "core/philox.h"
#include "data/source.h"
#include "data/store.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_THREADS = 8, SHUFFLE_IN_PIECE = 1 /* detail of philox's purpose */ };

typedef struct span {
    uint32_t begin, length; /* of a document in the buffer */
} span;

typedef struct text_buffer {
    uint8_t *bytes;
    size_t size, capacity;
    span *documents; /* [count] in the order in which they are read */
    size_t count, document_capacity;
    bool full;
} text_buffer;

/* A stripe. Its thread fills one buffer while the other is read. */
typedef struct channel {
    text_buffer buffers[2];
    int reading, filling;     /* of the buffers */
    size_t document, skipped; /* the place in the one that is read */
    bool ready;               /* whether that one is known to be full */
    bool waiting;             /* for a thread, or with one */

    /* the threads' part */
    uint64_t next, end; /* bytes of the sequence: the first that is not in a buffer; the last */
    uint64_t dropped;   /* bytes to leave out before `next`'s document */
    size_t piece;       /* which is read, by its place in the order */
    uint64_t done;      /* bytes of it that have been read */
    source *source;     /* of its file; NULL: not open */
    lines lines;
} channel;

struct window {
    const sequence *sequence;
    const store *store;
    uint64_t seed, epoch;
    channel *channels;
    int count;
    int threads;
    pthread_t thread[MOST_THREADS];
    atomic_bool stopping;

    pthread_mutex_t lock; /* protects the members below, and of channels `full` and `waiting` */
    pthread_cond_t work, filled;
    int *queue; /* [count] a ring of channels that wait for a thread */
    int queue_first, queue_count;
    bool failed;
    error err;
};

/* ---------------------------------------------------------------------------------- filling */

static const document *piece_of(const window *w, const channel *c) {
    return &w->sequence->corpus->documents[w->sequence->order[c->piece]];
}

static void close_piece(channel *c) {
    source_close(c->source);
    c->source = NULL;
}

/* Opens the piece that the channel reads, at byte `skipped` of a raw text. */
static bool open_piece(window *w, channel *c, uint64_t skipped, error *err) {
    const document *d = piece_of(w, c);
    const stored_file *f = &w->store->files[d->label];
    c->source = store_open(f, d->offset + skipped, &w->stopping, err);
    c->lines = (lines){
        .source = c->source, .buffer = c->lines.buffer, .capacity = c->lines.capacity, .number = 1};
    c->done = skipped;
    return c->source != NULL;
}

static bool changed(const window *w, const channel *c, error *err) {
    return error_set(err, "%s: changed since training began",
                     w->store->files[piece_of(w, c)->label].path);
}

static void add_document(text_buffer *b, size_t begin) {
    b->documents =
        mem_grow(b->documents, &b->document_capacity, b->count + 1, sizeof *b->documents);
    b->documents[b->count++] = (span){(uint32_t)begin, (uint32_t)(b->size - begin)};
}

/* Reads up to `block` bytes of a raw text. */
static bool read_raw(const window *w, channel *c, text_buffer *b, error *err) {
    const uint64_t left = piece_of(w, c)->length - c->done;
    const size_t wanted = left < w->store->block ? (size_t)left : (size_t)w->store->block;
    const size_t begin = b->size;
    b->bytes = mem_grow(b->bytes, &b->capacity, begin + wanted, 1);
    while (b->size < begin + wanted) {
        size_t count = 0;
        if (!source_read(c->source, b->bytes + b->size, begin + wanted - b->size, &count, err)) {
            return false;
        }
        if (count == 0) return changed(w, c, err);
        b->size += count;
    }
    add_document(b, begin);
    return true;
}

/* Reads documents until there are `block` bytes of them or the piece ends. */
static bool read_documents(const window *w, channel *c, text_buffer *b, error *err) {
    const store *s = w->store;
    const document *piece = piece_of(w, c);
    const bool filters = s->fraction > 0 || s->excluded_count > 0;
    const size_t begin = b->size;
    while (c->done + (b->size - begin) < piece->length && b->size - begin < s->block) {
        if (!lines_next(&c->lines, err)) return false;
        uint8_t *text = c->lines.text, *end = text ? text + c->lines.length : NULL;
        uint8_t *tab = text ? memchr(text, '\t', c->lines.length) : NULL;
        if (!tab) return changed(w, c, err);
        size_t length = (size_t)(end - ++tab);
        if (filters && store_use_of(s, document_hash(tab, length)) != STORE_KEPT) continue;
        length = corpus_clean(tab, length, &s->options);
        const size_t at = b->size;
        b->bytes = mem_grow(b->bytes, &b->capacity, at + length + DOCUMENT_FRAME, 1);
        memcpy(b->bytes + at, "\n ", 2);
        memcpy(b->bytes + at + 2, tab, length);
        b->bytes[at + 2 + length] = ' ';
        b->size = at + length + DOCUMENT_FRAME;
        add_document(b, at);
    }
    return c->done + (b->size - begin) <= piece->length || changed(w, c, err);
}

/* Shuffles documents [first, count) by Fisher and Yates. Draws are numbered from `position` on, the
 * place of the first byte in the sequence. */
static void shuffle(const window *w, text_buffer *b, size_t first, uint64_t position) {
    philox_stream draws =
        philox_start(w->seed, PHILOX_SHUFFLE, SHUFFLE_IN_PIECE, (uint32_t)w->epoch);
    draws.draw = position;
    span *documents = b->documents + first;
    for (size_t i = b->count - first; i > 1; i--) {
        const uint64_t chosen = philox_below(&draws, i);
        const span last = documents[i - 1];
        documents[i - 1] = documents[chosen];
        documents[chosen] = last;
    }
}

/* Drops the first `dropped` bytes of the documents in their order. */
static void drop_bytes(text_buffer *b, uint64_t dropped) {
    size_t i = 0;
    for (; dropped >= b->documents[i].length; i++) dropped -= b->documents[i].length;
    b->documents[i].begin += (uint32_t)dropped;
    b->documents[i].length -= (uint32_t)dropped;
    b->count -= i;
    memmove(b->documents, b->documents + i, b->count * sizeof *b->documents);
}

/* Adds the next part of a piece to the buffer: `block` bytes, or all that is left. */
static bool fill_part(window *w, channel *c, text_buffer *b, error *err) {
    const document *piece = piece_of(w, c);
    const size_t bytes = b->size, first = b->count;
    if (!c->source && !open_piece(w, c, piece->raw ? c->dropped : 0, err)) return false;
    if (piece->raw) c->dropped = 0;
    if (!(piece->raw ? read_raw : read_documents)(w, c, b, err)) return false;
    const uint64_t begin = w->sequence->start[c->piece] + c->done, length = b->size - bytes;
    c->done += length;
    if (c->dropped >= length && length > 0) { /* all of it is before the stripe */
        c->dropped -= length;
        b->size = bytes;
        b->count = first;
    } else {
        shuffle(w, b, first, begin);
        c->next = begin + length;
        if (c->dropped > 0) drop_bytes(b, c->dropped);
        c->dropped = 0;
    }
    if (c->done == piece->length) {
        close_piece(c);
        c->piece++;
        c->done = 0;
    }
    return true;
}

static bool fill(window *w, channel *c, text_buffer *b, error *err) {
    b->size = b->count = 0;
    while (b->size < w->store->block && c->next < c->end) {
        if (!fill_part(w, c, b, err)) return false;
    }
    if (c->next >= c->end) close_piece(c);
    if (c->source) source_rest(c->source);
    return true;
}

/* ---------------------------------------------------------------------------------- threads */

static void enqueue(window *w, int channel_) {
    channel *c = &w->channels[channel_];
    if (c->waiting || c->next >= c->end || c->buffers[c->filling].full) return;
    c->waiting = true;
    w->queue[(w->queue_first + w->queue_count++) % w->count] = channel_;
    pthread_cond_signal(&w->work);
}

static void *run(void *window_) {
    window *w = window_;
    pthread_mutex_lock(&w->lock);
    for (;;) {
        while (w->queue_count == 0 && !w->stopping) pthread_cond_wait(&w->work, &w->lock);
        if (w->stopping) break;
        const int k = w->queue[w->queue_first];
        channel *c = &w->channels[k];
        text_buffer *b = &c->buffers[c->filling];
        w->queue_first = (w->queue_first + 1) % w->count;
        w->queue_count--;
        pthread_mutex_unlock(&w->lock);
        error err;
        const bool filled = fill(w, c, b, &err);
        pthread_mutex_lock(&w->lock);
        c->waiting = false;
        b->full = filled;
        c->filling = 1 - c->filling;
        if (filled) {
            enqueue(w, k);
        } else if (!w->failed) {
            w->failed = true;
            w->err = err;
        }
        pthread_cond_broadcast(&w->filled);
        if (w->failed) break;
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* The document that holds byte `position`. */
static void find_begin(const window *w, channel *c) {
    const sequence *s = w->sequence;
    c->piece = sequence_find(s, c->next);
    c->dropped = c->next - s->start[c->piece];
}

window *window_start(const sequence *s, const window_stripe *stripes, int count, uint64_t seed,
                     uint64_t epoch) {
    window *w = mem_alloc(1, sizeof *w);
    *w = (window){.sequence = s,
                  .store = s->corpus->store,
                  .seed = seed,
                  .epoch = epoch,
                  .channels = mem_alloc((size_t)count, sizeof *w->channels),
                  .count = count,
                  .queue = mem_alloc((size_t)count, sizeof *w->queue)};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->filled, NULL);
    for (int k = 0; k < count; k++) {
        channel *c = &w->channels[k];
        c->next = stripes[k].begin;
        c->end = stripes[k].end;
        find_begin(w, c);
        enqueue(w, k);
    }
    const long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int most = processors < MOST_THREADS ? (int)processors : MOST_THREADS;
    if (most > count) most = count;
    int problem = 0;
    while (w->threads < most && !problem) {
        problem = pthread_create(&w->thread[w->threads], NULL, run, w);
        w->threads += !problem;
    }
    if (w->threads == 0) { /* ends the program, as a lack of memory does (core/memory.h) */
        fprintf(stderr, "smallworld: cannot start a thread: %s\n", strerror(problem));
        exit(1);
    }
    return w;
}

/* Waits for the buffer that is read next. */
static bool wait_for(window *w, channel *c, error *err) {
    pthread_mutex_lock(&w->lock);
    const text_buffer *b = &c->buffers[c->reading];
    while (!b->full && !w->failed && !w->stopping) pthread_cond_wait(&w->filled, &w->lock);
    const bool ready = !w->failed && !w->stopping;
    if (w->failed)
        *err = w->err;
    else if (!ready)
        error_set(err, "interrupted");
    pthread_mutex_unlock(&w->lock);
    c->ready = ready;
    return ready;
}

/* Goes on to the other buffer, once the one that is read is used up. */
static bool next_buffer(window *w, int stripe, error *err) {
    channel *c = &w->channels[stripe];
    pthread_mutex_lock(&w->lock);
    c->buffers[c->reading].full = false;
    c->reading = 1 - c->reading;
    c->document = c->skipped = 0;
    enqueue(w, stripe);
    pthread_mutex_unlock(&w->lock);
    return wait_for(w, c, err);
}

bool window_copy(window *w, int stripe, size_t count, uint8_t *out, error *err) {
    channel *c = &w->channels[stripe];
    const text_buffer *b = &c->buffers[c->reading];
    while (count > 0) {
        if (!c->ready && !wait_for(w, c, err)) return false;
        if (c->document == b->count) {
            if (!next_buffer(w, stripe, err)) return false;
            b = &c->buffers[c->reading];
            continue;
        }
        const span *d = &b->documents[c->document];
        const size_t left = d->length - c->skipped, part = left < count ? left : count;
        memcpy(out, b->bytes + d->begin + c->skipped, part);
        out += part;
        count -= part;
        c->skipped += part;
        if (c->skipped == d->length) {
            c->document++;
            c->skipped = 0;
        }
    }
    return true;
}

void window_interrupt(window *w) {
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_broadcast(&w->filled);
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->lock);
}

void window_stop(window *w) {
    if (!w) return;
    window_interrupt(w);
    for (int i = 0; i < w->threads; i++) pthread_join(w->thread[i], NULL);
    for (int k = 0; k < w->count; k++) {
        channel *c = &w->channels[k];
        close_piece(c);
        free(c->lines.buffer);
        for (int i = 0; i < 2; i++) {
            free(c->buffers[i].bytes);
            free(c->buffers[i].documents);
        }
    }
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->work);
    pthread_cond_destroy(&w->filled);
    free(w->channels);
    free(w->queue);
    free(w);
}
