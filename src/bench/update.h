/* The benchmark of a training update: real updates of a model on made-up bytes, as a whole and in
 * parts, compared with their floor; scoring without training; and feature extraction. */
#ifndef SMALLWORLD_BENCH_UPDATE_H
#define SMALLWORLD_BENCH_UPDATE_H

#include "bench/update_floor.h"
#include "train/options.h"

typedef struct update_options {
    double seconds;     /* rough duration of the measurement; a single update may take longer */
    char *const *files; /* [count] text files to use instead of made-up text */
    int count;
    bool progress;
} update_options;

typedef struct update_results {
    char device[96], description[160]; /* descriptions of the device and of the model */
    bench_math math;
    int64_t hidden, parameters, batch, bptt;
    int gates, segments;
    size_t memory[PLAN_ARENAS]; /* planned bytes, which are also the peak */

    /* Seconds. The time of an update with its input, by the wall clock: the median of rounds of
     * many updates. */
    double update, random_update; /* on text, and on random bytes */
    double parts[TIME_PARTS];     /* by the device's clock, within one update of each round */
    double idle;                  /* between two updates */
    double forward;               /* scoring a minibatch, with its input */
    double indexing;              /* reading the text */
    double startup; /* from the program's start to the first update, without indexing */

    /* The recurrent products of a dense model of equal width: seconds of fprop and dgrad of one
     * step, and of wgrad divided by the number of steps. NAN if they are too large to measure. */
    double dense[PRODUCTS];

    /* The model's own recurrent products, likewise; NAN on a GPU, where `bench matmul` measures
     * them. */
    double products[PRODUCTS];
    double product_operations; /* of each, in a step */

    double features_rate; /* bytes per second */

    ceilings ceilings;
    update_floor floor;
    char *kernels; /* which kernel computes what, and why; NULL on the CPU; the caller frees it */
} update_results;

/* Makes the backend and the model that `o` describes. Does not read its data. */
bool update_measure(options *o, const update_options *how, update_results *results, error *err);

void update_text(const update_results *r, FILE *out);
void update_explain(const update_results *r, FILE *out); /* the floor, and the kernels */
void update_json(const update_results *r, FILE *out);

#endif
