/* Reading along: what the model holds and expects at every byte of documents, each read from a zero
 * state as smallworld features reads them. Unlike features, which keep a document's end, it keeps
 * every byte, so it is for texts that people look at. */
#ifndef SMALLWORLD_PROBE_READING_H
#define SMALLWORLD_PROBE_READING_H

#include "data/corpus.h"
#include "model/model.h"
#include "probe/features.h"

enum { READING_NEXT = 5, READING_STEPS = 32 /* what `m` is best made for */ };

/* A byte that may come next. */
typedef struct next_byte {
    uint8_t byte, percent;
} next_byte;

typedef struct reading_options {
    feature_state state;
    const size_t *units; /* [count] which units' states to keep; NULL: the `count` whose state
                            deviates most over the text */
    int count;
    pool_list pools;       /* what the features of `weights` are */
    const double *weights; /* NULL, or a probe's: [pools x hidden + 1], the intercept last */
    bool progress;
} reading_options;

/* Position p counts the bytes of all documents in order. */
typedef struct reading {
    size_t bytes;
    int count;
    size_t *units;   /* [count] */
    float *states;   /* [bytes][count], after the byte */
    float *surprise; /* [bytes] bits: -log2 p(byte | those before it); NaN at a document's first */
    float *margin;   /* [bytes] the probe's on the document up to the byte; NULL without one */
    next_byte *next; /* [bytes][READING_NEXT] after the byte, likeliest first */
} reading;

/* `m` is made for inference, in one segment, with the streams and steps that fit. The caller frees
 * the reading with reading_free. */
bool reading_run(model *m, const corpus *c, const reading_options *how, reading *r, error *err);
void reading_free(reading *r);

#endif
