/* The benchmark of generation: one stream, whose every byte waits for the one before. */
#ifndef SMALLWORLD_BENCH_GENERATION_H
#define SMALLWORLD_BENCH_GENERATION_H

#include "bench/ceilings.h"
#include "train/options.h"

#include <stdio.h>

typedef struct generation_results {
    char device[96];
    int64_t hidden, parameters;
    double byte;    /* seconds a byte by the wall clock: the median of rounds of many bytes */
    double weights; /* bytes of the recurrent weights and the head's, which each byte reads once */
    bool resident;  /* whether they fit the L2, whose bandwidth then sets the floor */
    ceilings ceilings;
} generation_results;

/* Makes the backend and the model that `o` describes, with fresh weights, and has it write for
 * about `seconds`. Does not read the config's data. */
bool generation_measure(options *o, double seconds, generation_results *results, error *err);

void generation_text(const generation_results *r, FILE *out);
void generation_json(const generation_results *r, FILE *out);

#endif
