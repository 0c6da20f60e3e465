/* Reads the streams of an epoch from text that stays in its files (data/store.h), in memory that
 * does not grow with the text.
 *
 * The sequence is that of data/sequence.h with pieces in place of documents: they are shuffled,
 * joined, and cut into stripes, one for each stream. A stream reads its stripe a buffer ahead, each
 * of at least store->block bytes and a document more. Within a piece, each store->block bytes of
 * documents are shuffled. What a stripe holds depends on the seed, the epoch and its place alone,
 * not on where reading began nor on which streams are read. Threads fill the buffers. */
#ifndef SMALLWORLD_DATA_WINDOW_H
#define SMALLWORLD_DATA_WINDOW_H

#include "data/sequence.h"

typedef struct window window;

/* The bytes [begin, end) of a sequence that a stream reads. */
typedef struct window_stripe {
    uint64_t begin, end;
} window_stripe;

/* Starts to read `count` stripes of the sequence of epoch `epoch`. The sequence must outlive the
 * window. */
window *window_start(const sequence *s, const window_stripe *stripes, int count, uint64_t seed,
                     uint64_t epoch);

/* Copies the next `count` bytes of a stripe. Waits until they are read. Fails where a file cannot
 * be read or has changed, and after window_interrupt. */
bool window_copy(window *w, int stripe, size_t count, uint8_t *out, error *err);

/* Makes window_copy fail; for another thread than its caller's. */
void window_interrupt(window *w);

void window_stop(window *w);

#endif
