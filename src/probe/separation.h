/* How well one threshold on a single feature separates two classes of documents: "the sentiment
 * unit" is the one that does it best. */
#ifndef SMALLWORLD_PROBE_SEPARATION_H
#define SMALLWORLD_PROBE_SEPARATION_H

#include "probe/dataset.h"

typedef struct separation {
    size_t feature;
    double threshold;
    double error; /* per cent of the labelled documents on the wrong side */
    bool above;   /* whether the second class lies above the threshold */
} separation;

/* Finds the best threshold on a feature. `class` [rows] is 0, 1 or, for rows left out, -1. */
separation separation_find(const dataset *d, const int16_t *class, size_t feature);

/* Finds the `count` of `hidden` units that separate best, best first, each by the best of its
 * features: those of several poolings follow one another, `hidden` of each. Ranks by the counts in
 * 256 bins. Returns the number found. */
int separation_rank(const dataset *d, const int16_t *class, size_t hidden, size_t *units,
                    int count);

#endif
