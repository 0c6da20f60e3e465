/* Minibatches for training, made ready by a thread of their own.
 *
 * Each epoch joins the documents in a new order and cuts the sequence into `batch` stripes of equal
 * length, one a stream. Update u of an epoch reads `steps` bytes of each stripe, from where the
 * last update stopped; the targets are the bytes one further on. What is left at the end of the
 * stripes, less than one update, is dropped. */
#ifndef SMALLWORLD_DATA_READER_H
#define SMALLWORLD_DATA_READER_H

#include "data/corpus.h"

typedef struct reader reader;

typedef struct minibatch {
    uint8_t *inputs;  /* [steps][columns]; 0 in columns past the streams */
    int16_t *targets; /* [steps][columns]; -1 in columns past the streams */
    uint64_t epoch;   /* from 0 */
    uint64_t update;  /* within the epoch, from 0; 0 means the state starts at zero */
} minibatch;

/* Of the `all` streams of a minibatch those that are wanted. */
typedef struct stream_share {
    int all, first, count;
} stream_share;

static inline stream_share all_streams(int batch) {
    return (stream_share){batch, 0, batch};
}

/* The number of updates in an epoch: 0 where the corpus is shorter than one minibatch. */
uint64_t reader_epoch_updates(const corpus *c, int batch, int steps);

/* The bytes of an epoch that no update predicts: the very first byte and the dropped tail. */
uint64_t reader_epoch_dropped(const corpus *c, int batch, int steps);

/* Starts at update number `first` (from 0, over all epochs). The corpus must outlive the reader,
 * and an epoch must hold at least one update. `columns` >= streams.count is what the backend pads
 * to. */
reader *reader_start(const corpus *c, stream_share streams, int columns, int steps, uint64_t seed,
                     uint64_t first);

/* The next minibatch, valid until the next call. Waits if it is not ready yet. */
const minibatch *reader_next(reader *r);

void reader_stop(reader *r);

#endif
