/* Logistic regression of two classes, with LIBLINEAR's objective (Fan et al. 2008): over weights w
 * and an intercept b, which is penalised as the weight of a constant feature,
 *
 *     penalty(w, b) + C sum over rows log(1 + exp(-y z)),    z = w x + b,    y = +1 or -1
 *
 *     penalty: sum of |w_j| and |b| (l1), or half the sum of their squares (l2)
 *
 * for several costs C at once. */
#ifndef SMALLWORLD_PROBE_LOGISTIC_H
#define SMALLWORLD_PROBE_LOGISTIC_H

#include "ops.h"

typedef enum logistic_penalty { PENALTY_L1, PENALTY_L2 } logistic_penalty;

#define PENALTIES "l1 l2"

/* Rows of labelled features, on a backend. */
typedef struct logistic logistic;

/* Copies rows[0] ... rows[count - 1] of `features` [...][units] to the backend, standardised: less
 * `mean` [units], divided by `deviation` [units]; both NULL: as they are. `positive` [count] says
 * y = +1. `columns` is how many weight vectors are to be evaluated side by side. The backend's
 * precision is FP32. Takes 4 count units bytes of its memory, and is refused by their number where
 * they do not fit. */
logistic *logistic_create(backend *be, const float *features, int units, const int *rows,
                          const bool *positive, int count, int columns, const double *mean,
                          const double *deviation, error *err);
void logistic_free(logistic *l);

/* The sums of log(1 + exp(-y z)) and their gradients, without C and penalty. Weights and gradients
 * are [columns][units + 1], the intercept last. */
void logistic_evaluate(logistic *l, const double *weights, double *losses, double *gradients);

/* Minimises the objective for each of `costs` [columns]. */
bool logistic_solve(logistic *l, logistic_penalty penalty, const double *costs, double *weights,
                    error *err);

#endif
