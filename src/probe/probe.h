/* The linear probe measures how well linear functions of features separate classes. Two classes
 * have one function, whose sign decides. More classes have one function each, the logits of a
 * softmax; the largest decides.
 *
 * The protocol is that of Radford, Jozefowicz, Sutskever, "Learning to generate reviews and
 * discovering sentiment" (2017), but with l2 in place of l1, which validation preferred: logistic
 * regression, whose C is chosen from 2^-8, 2^-7 ... 2^4 by the error on validation; the smallest C
 * wins ties. Of features of several poolings each one alone and all together are tried in the same
 * way; the first of those that err least is taken, and the weights of the others stay 0. */
#ifndef SMALLWORLD_PROBE_PROBE_H
#define SMALLWORLD_PROBE_PROBE_H

#include "probe/features.h"
#include "probe/fit.h"

enum {
    PROBE_COSTS = 13, /* values of C */
    PROBE_TOP_UNITS = 10,
    PROBE_CHOICES = POOL_KINDS + 1 /* each pooling's features alone, and all of them */
};

typedef struct probe_options {
    const char *train, *test; /* prefixes, see dataset.h */
    const char *valid;        /* data to choose C on; NULL: a fifth of train, see split.h */
    const bool *held;         /* [rows of train] those to choose C on; NULL: see above */
    const char *out;          /* NULL, or a prefix: PREFIX.weights.npy, float64 [units + 1], the
                          intercept last, for features as they are, and of more than two classes
                          [classes][units + 1]; PREFIX.predictions.npy,
                          int32 labels for every row of test, unlabelled ones too;
                          PREFIX.probe.safetensors, see saved.h */
    bool balanced; /* rows weigh by their class so that all classes count alike, where models are
                      fitted and where they are chosen */
    uint64_t seed;
    bool progress;
} probe_options;

typedef struct probe_result {
    double error, valid_error; /* per cent of the labelled rows */
    double cost;               /* C */
    double scale;              /* of margins, see saved.h */
    pool_list pools;           /* the poolings chosen; none if the features' are not known */
    int choices;               /* number of choices tried, and of each its error on validation */
    pool_list tried[PROBE_CHOICES];
    double choice_error[PROBE_CHOICES];
    double objective, gap; /* see fit.h */
    int classes;
    size_t units, nonzero; /* nonzero: number of units with a weight in some function */
    int top_count;         /* number of units of largest |weight x deviation| below */
    size_t top_units[PROBE_TOP_UNITS];
    size_t train_rows, valid_rows, test_rows; /* labelled; valid_rows may be part of train */
    size_t dropped;                           /* number of unlabelled rows in all files */
    int evaluations;                          /* number of passes over train, over all fits */
    double seconds;
    double majority_error; /* of the class most frequent in train, for every document of test */
    size_t *confusion;     /* [classes][classes] documents of test: true class, then said class */
    double *valid_margin;  /* [valid_rows][functions] by the fit that `valid_error` is of */
    double *test_margin;   /* [test_rows][functions] */
    char **names;          /* [classes] */
} probe_result;

void probe_result_free(probe_result *result);

/* Runs the probe on a backend in FP32. Writes files only after everything else has succeeded. */
bool probe_run(backend *be, const probe_options *how, probe_result *result, error *err);

#endif
