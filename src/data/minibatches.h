/* Minibatches: the documents of a corpus joined into one sequence of bytes, in some order, and a
 * thread that cuts these into minibatches for training. */
#ifndef SMALLWORLD_DATA_MINIBATCHES_H
#define SMALLWORLD_DATA_MINIBATCHES_H

#include "data/corpus.h"

/* ------------------------------------------------------------------------------------ sequences */

typedef struct sequence {
    const corpus *corpus;
    uint32_t *order; /* [count] documents */
    uint64_t *start; /* [count + 1] where each begins */
    size_t count;
    uint64_t size; /* bytes */
} sequence;

/* The documents in the order of the files. */
sequence *sequence_in_order(const corpus *c);

/* The documents in the random order of epoch `epoch`, cut into stripes of `stripe` > 0 bytes which
 * are read side by side. It depends on the seed, the epoch and, after epoch 0, the stripe. Each
 * document keeps to the half of the stripes that epoch 0 put it in, but for a few where the halves
 * meet: so, wherever a run ends, it read nothing again before about half an epoch had passed. */
sequence *sequence_shuffled(const corpus *c, uint64_t seed, uint64_t epoch, uint64_t stripe);
void sequence_free(sequence *s);

/* Copies bytes [position, position + count) of the sequence to `out`. */
void sequence_copy(const sequence *s, uint64_t position, size_t count, uint8_t *out);

/* ----------------------------------------------------------------------------------- the reader */

/* Each epoch joins the documents in a new order and cuts the sequence into `batch` stripes of equal
 * length, one for each stream. Update u of an epoch reads the next `steps` bytes of each stripe.
 * The targets are the bytes that follow each of them. The rest at the end of the stripes, shorter
 * than an update, is dropped. */

typedef struct reader reader;

typedef struct minibatch {
    uint8_t *inputs;  /* [steps][columns]; 0 in columns past the streams */
    int16_t *targets; /* [steps][columns]; -1 in columns past the streams */
    int16_t *classes; /* likewise: of the document that the input is of; NULL without
                         corpus.classes */
    float *weights; /* likewise: of byte i of n of a document 2 (i + 1) / (n + 1), from about 0 to 2
                         and 1 in the mean */
    uint64_t epoch; /* from 0 */
    uint64_t update; /* within the epoch, from 0; at 0 the state starts as zeros */
} minibatch;

/* A share of the `all` streams of a minibatch: `count` streams from `first` on. */
typedef struct stream_share {
    int all, first, count;
} stream_share;

static inline stream_share all_streams(int batch) {
    return (stream_share){batch, 0, batch};
}

/* The number of updates in an epoch, 0 if the corpus is shorter than one minibatch. */
uint64_t reader_epoch_updates(const corpus *c, int batch, int steps);

/* The number of bytes of an epoch that no update predicts: the first byte and the dropped rest. */
uint64_t reader_epoch_dropped(const corpus *c, int batch, int steps);

/* Starts at update number `first`, from 0 over all epochs. The corpus must outlive the reader, and
 * an epoch must have at least one update. `columns` is at least streams.count: the backend pads to
 * it. */
reader *reader_start(const corpus *c, stream_share streams, int columns, int steps, uint64_t seed,
                     uint64_t first);

/* Returns the next minibatch, which is valid until the next call. Waits until it is ready. */
const minibatch *reader_next(reader *r);

/* Waits until the next minibatch is ready, or for some seconds. Returns
 * whether reader_next need not wait. */
bool reader_wait(reader *r, double seconds);

void reader_stop(reader *r);

#endif
