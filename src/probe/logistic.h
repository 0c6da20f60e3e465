/* The logistic loss of many linear models on one dataset, side by side. A model of two classes is
 * one function, a model of more has one for each: the logits of a softmax (multinomial regression),
 * where of two classes the first has 0:
 *
 *   z_ik = w_k . x_i + b_k        L = sum over i of log(sum over k of exp(z_ik)) - z_i,class(i)
 *
 * The functions of all models are the columns of one dense product on the backend, with the
 * features as its weight: margins are its fprop and gradients its dgrad, so that one reading of the
 * features serves all models. Products are in fp32, over panels of documents whose results are
 * summed in double; all else is in double. The same call gives the same bits for any number of
 * threads.
 *
 * Memory: the features once on a GPU, and where the CPU is the backend only the mapped file itself.
 */
#ifndef SMALLWORLD_PROBE_LOGISTIC_H
#define SMALLWORLD_PROBE_LOGISTIC_H

#include "ops.h"
#include "probe/dataset.h"

typedef struct logistic logistic;

/* What the rows are. */
typedef struct targets {
    const int16_t *class; /* [rows] -1: left out */
    const double *weight; /* [classes] of a row's loss by its class; NULL: 1 */
    int functions;        /* of a model: 1 of two classes, else one a class */
} targets;

/* Makes the loss of models of up to `functions` functions together. The backend and the dataset
 * must outlive it. If `resident`, the features stay on the device; otherwise each call uploads
 * them. Returns NULL if they do not fit. */
logistic *logistic_create(backend *be, const dataset *d, int functions, bool resident, error *err);
void logistic_free(logistic *l);

/* Computes margins: functions of a row side by side, those of the next row `stride` numbers after
 * them. Weights are [functions][units + 1] with the intercept last; all but the intercept are
 * rounded to float. */
bool logistic_margins(logistic *l, const double *weights, int functions, double *margins,
                      int stride, error *err);

/* loss [models], its gradient [models][functions][units + 1], as the weights are, and curvature
 * [models], the mean over rows and functions of the loss's second derivative in z, at most 1/4. */
bool logistic_evaluate(logistic *l, const double *weights, int models, const targets *t,
                       double *loss, double *gradient, double *curvature, error *err);

/* With the probabilities that the latest logistic_evaluate found, the sum over rows of their
 * entropy, in nats: the smooth part of the dual objective, see fit.c. entropy [models]. */
void logistic_entropy(const logistic *l, int models, const targets *t, double *entropy);

/* The most functions of a call: those asked for at the start, rounded up to a multiple that the
 * backend takes. */
int logistic_columns(const logistic *l);

size_t logistic_units(const logistic *l);

/* product [functions][units + 1]: the second moments of the rows whose class is not -1, each with a
 * last feature of 1, times each function's weights. */
bool logistic_moments(logistic *l, const double *weights, int functions, const int16_t *class,
                      double *product, error *err);

#endif
