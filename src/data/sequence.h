/* The documents of a corpus joined into one sequence of bytes, in some order. */
#ifndef SMALLWORLD_DATA_SEQUENCE_H
#define SMALLWORLD_DATA_SEQUENCE_H

#include "data/corpus.h"

typedef struct sequence {
    const corpus *corpus;
    uint32_t *order; /* [count] documents */
    uint64_t *start; /* [count + 1] where each begins */
    size_t count;
    uint64_t size; /* bytes */
} sequence;

/* The documents in the order of the files, or in the random order of epoch `epoch`, which depends
 * on the seed alone. */
sequence *sequence_in_order(const corpus *c);
sequence *sequence_shuffled(const corpus *c, uint64_t seed, uint64_t epoch);
void sequence_free(sequence *s);

/* The place in the order of the document that holds byte `position`. */
size_t sequence_find(const sequence *s, uint64_t position);

/* Copies bytes [position, position + count) of the sequence to `out`. */
void sequence_copy(const sequence *s, uint64_t position, size_t count, uint8_t *out);

#endif
