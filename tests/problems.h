/* Problems of two classes for the tests of the probe, and their losses in plain doubles. */
#ifndef SMALLWORLD_TESTS_PROBLEMS_H
#define SMALLWORLD_TESTS_PROBLEMS_H

#include "support.h"

#include "probe/probe.h"

/* Features and labels on the host; in memory for the solver, or in files for the whole probe. */
typedef struct problem {
    size_t rows, units;
    float *x;       /* [rows][units] */
    int32_t *label; /* [rows] 0 and 1 */
    int16_t *class; /* [rows] that of the label, for the solver; -1 leaves the row out */
} problem;

/* Draws two classes that overlap. `spread` is the ratio of the largest to the smallest unit's
 * scale, and the means lie up to `mean` deviations from 0. */
problem make_problem(size_t rows, size_t units, double spread, double mean, uint64_t seed);
void free_problem(problem *p);

/* The problem's arrays as a dataset, which does not own them. */
dataset as_dataset(const problem *p);

/* Writes a .npy file PREFIX + `ending` in the temporary folder; one-dimensional with 0 columns. */
void write_npy(const char *prefix, const char *ending, const char *type, size_t rows,
               size_t columns, const void *data, size_t bytes);

/* Writes PREFIX.npy and PREFIX.labels.npy there. */
void write_problem(const char *prefix, const problem *p);

/* Of a model with weights [units + 1], the intercept last: a row's margin, the sum of the rows'
 * losses, its gradient [units + 1], and the objective of a fit. */
double margin_of(const problem *p, const double *w, size_t i);
double loss_of(const problem *p, const double *w);
void slopes_of(const problem *p, const double *w, double *gradient);
double objective_of(const problem *p, const double *w, double cost);

/* The costs that a probe tries, and fits with them, [costs][units + 1], which the
 * caller frees. */
extern const double problem_costs[PROBE_COSTS];
double *fit_all(backend *be, const problem *p, fit_report *reports);

/* The same with the features from `span.first` to `span.end` - 1 alone. */
double *fit_span(backend *be, const problem *p, feature_span span, fit_report *reports);

#endif
