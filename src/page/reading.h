/* Records the model's states and predictions at every byte of documents. Each document is read from
 * a zero state, as smallworld features reads it. Since every byte is kept, this is for short texts
 * that people look at. */
#ifndef SMALLWORLD_PAGE_READING_H
#define SMALLWORLD_PAGE_READING_H

#include "data/corpus.h"
#include "model/model.h"
#include "probe/features.h"

enum { READING_NEXT = 5, READING_STEPS = 32 /* the best number of steps for `m` */ };

/* A possible next byte and its probability. */
typedef struct next_byte {
    uint8_t byte, percent;
} next_byte;

typedef struct reading_options {
    feature_state state;
    const size_t *units; /* [count] units to keep; NULL: those that vary most */
    int count;
    pool_list pools; /* the features that `weights` are for */
    int models;      /* a probe's functions, and their weights [models][pools x hidden + 1], */
    const double *weights; /* the intercepts last; NULL without a probe */
    bool progress;
} reading_options;

/* Position p counts the bytes of all documents in order. */
typedef struct reading {
    size_t bytes;
    int count;
    size_t *units;   /* [count] */
    float *states;   /* [bytes][count], after the byte */
    float *surprise; /* [bytes] bits: -log2 p(byte | those before it); NaN at a document's first */
    int models;
    float *margin; /* [bytes][models] the probe's on the document up to the end of the byte's word,
                        which is a space or the document's last byte; NULL without a probe */
    next_byte *next; /* [bytes][READING_NEXT] after the byte, likeliest first */
} reading;

/* `m` is made for inference, in one segment, with any streams and steps. The caller frees the
 * reading with reading_free. */
bool reading_run(model *m, const corpus *c, const reading_options *how, reading *r, error *err);
void reading_free(reading *r);

#endif
