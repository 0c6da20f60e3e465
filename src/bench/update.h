/* The benchmark of a training update: real updates of a model on made-up bytes, as a whole and in
 * parts; and scoring. */
#ifndef SMALLWORLD_BENCH_UPDATE_H
#define SMALLWORLD_BENCH_UPDATE_H

#include "bench.h"
#include "train/options.h"

typedef struct update_options {
    double seconds;     /* rough duration of the measurement; a single update may take longer */
    char *const *files; /* [count] text files to use instead of made-up text */
    int count;
    bool progress;
} update_options;

/* The parts of an update that are measured and printed. */
typedef enum time_part {
    TIME_FORWARD,
    TIME_RECOMPUTE,
    TIME_BACKWARD, /* but for the gradient of the recurrent weights */
    TIME_WEIGHT_GRADIENT,
    TIME_HEAD,
    TIME_OPTIMISER,
    TIME_PARTS
} time_part;

typedef struct update_results {
    char device[96], description[160]; /* descriptions of the device and of the model */
    const char *precision;
    int64_t hidden, parameters, batch, bptt;
    int segments;
    size_t memory[PLAN_ARENAS]; /* planned bytes, which are also the peak */

    /* Seconds. The time of an update with its input, by the wall clock: the median of rounds of
     * many updates. */
    double update;
    double parts[TIME_PARTS]; /* by the device's clock, within one update of each round */
    double forward;           /* scoring a minibatch, with its input */
    char *kernels; /* which kernel computes what, and why; NULL on the CPU; the caller frees it */
} update_results;

/* Makes the backend and the model that `o` describes. Does not read its data. */
bool update_measure(options *o, const update_options *how, update_results *results, error *err);

void update_text(const update_results *r, FILE *out);
void update_json(const update_results *r, FILE *out);

#endif
