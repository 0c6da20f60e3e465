/* The linear probe: how well linear functions of features tell classes apart. Two classes have one,
 * whose sign decides; more have one each, of that class against the rest, whose largest decides.
 *
 * The protocol is that of Radford, Jozefowicz, Sutskever, "Learning to generate reviews and
 * discovering sentiment" (2017): logistic regression, L1 by default, C from 2^-8, 2^-7 ... 2^0 by
 * the error on validation, the smallest C on ties. */
#ifndef SMALLWORLD_PROBE_PROBE_H
#define SMALLWORLD_PROBE_PROBE_H

#include "probe/fit.h"

enum { PROBE_COSTS = 9, PROBE_TOP_UNITS = 10 };

typedef struct probe_options {
    const char *train, *test; /* prefixes, see dataset.h */
    const char *valid; /* where C is chosen; NULL: on a stratified, seeded fifth of train, and the
                          model is then fitted again on all of train */
    const char *out;   /* NULL, or a prefix: PREFIX.weights.npy, float64 [units + 1], the
                          intercept last, for features as they are, and of more than two classes
                          [classes][units + 1]; PREFIX.predictions.npy,
                          int32 labels for every row of test, unlabelled ones too;
                          PREFIX.probe.safetensors, see saved.h */
    penalty penalty;
    bool standardize;
    uint64_t seed;
    bool progress;
} probe_options;

typedef struct probe_result {
    double error, valid_error; /* per cent of the labelled rows */
    double cost;               /* C */
    double objective, gap;     /* see fit.h, of the functions in use: the sum, and the largest */
    int classes;
    size_t units, nonzero; /* nonzero: units with a weight in some function */
    int top_count;         /* units of largest |weight x deviation|, at most the nonzero ones */
    size_t top_units[PROBE_TOP_UNITS];
    size_t train_rows, valid_rows, test_rows; /* labelled; valid_rows are part of train_rows where a
                                                 fifth of train was held out */
    size_t dropped;                           /* unlabelled, in all files */
    int evaluations;                          /* passes over train, of all fits */
    double seconds;
} probe_result;

/* Runs the probe on a backend in FP32. Writes files only after everything else has succeeded. */
bool probe_run(backend *be, const probe_options *how, probe_result *result, error *err);

/* Splits the rows by their classes, 0 ... classes - 1 or -1 for none: of each class a fifth
 * (rounded, at least one, never all), drawn by `seed`, is held out: held [rows] true. Returns false
 * where a class has fewer than two rows. */
bool probe_split(const int16_t *class, size_t rows, int classes, uint64_t seed, bool *held);

#endif
