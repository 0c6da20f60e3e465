/* Times of operations on a backend: medians over replays of recordings, after a warm-up. */
#ifndef SMALLWORLD_BENCH_TIMING_H
#define SMALLWORLD_BENCH_TIMING_H

#include "ops.h"

typedef struct timing {
    int replays;  /* the median is over so many */
    double least; /* seconds that a recording should last, to hide what surrounds it */
    double most;  /* an operation that lasts longer is timed only once more, by the wall clock */
} timing;

/* Measures the seconds of one issue(argument, set). `set` runs through 0 ... sets - 1 in turn, so
 * that inputs can be rotated. Fails with the device's first error. */
bool time_operation(backend *be, const timing *how, void (*issue)(void *argument, int set),
                    void *argument, int sets, double *seconds, error *err);

/* The median; sorts `values`. */
double median(double *values, int count);

#endif
