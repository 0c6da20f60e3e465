/* Times operations on a backend: medians over replays of recordings, after a warm-up. */
#ifndef SMALLWORLD_BENCH_TIMING_H
#define SMALLWORLD_BENCH_TIMING_H

#include "ops.h"

typedef struct timing {
    int replays;  /* number of replays of the median */
    double least; /* shortest duration of a recording in seconds, which hides its overhead */
    double most;  /* an operation that takes longer is timed only once more, by the wall clock */
} timing;

/* Measures the seconds of one issue(argument, set). `set` runs through 0 to sets - 1 in turn, so
 * that inputs can rotate. Fails with the device's first error. */
bool time_operation(backend *be, const timing *how, void (*issue)(void *argument, int set),
                    void *argument, int sets, double *seconds, error *err);

/* Returns the median. Sorts `values`. */
double median(double *values, int count);

#endif
