/* The logistic loss of many linear models on one dataset, side by side.
 *
 *   z_ik = w_k . x_i + b_k        L_k = sum over i of log(1 + exp(-y_i z_ik)),  y_i in {-1, 0, 1},
 *
 * rows with y_i = 0 left out. The models are the columns of one dense product on the backend, with
 * the features as its weight: margins are its fprop and gradients its dgrad, so that one reading of
 * the features serves all models. Products are in fp32, over panels of documents whose results are
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

/* Makes the loss of up to `models` models. The backend and the dataset must outlive it. If
 * `resident`, the features stay on the device; otherwise each call uploads them. Returns NULL if
 * they do not fit. */
logistic *logistic_create(backend *be, const dataset *d, int models, bool resident, error *err);
void logistic_free(logistic *l);

/* Computes margins [rows][models]. Weights are [models][units + 1] with the intercept last; all but
 * the intercept are rounded to float. */
bool logistic_margins(logistic *l, const double *weights, int models, double *margins, error *err);

/* loss [models], its gradient [models][units + 1] and curvature [models], the mean over rows of the
 * loss's second derivative in z, at most 1/4; sign [rows] holds y. */
bool logistic_evaluate(logistic *l, const double *weights, int models, const int8_t *sign,
                       double *loss, double *gradient, double *curvature, error *err);

/* With a_ik = 1 / (1 + exp(y_i z_ik)) from the latest logistic_evaluate, the sum over i of the
 * entropy, in nats, of a_ik: the smooth part of the dual objective, see fit.c. entropy [models]. */
void logistic_entropy(const logistic *l, int models, const int8_t *sign, double *entropy);

/* The most models of a call: those asked for at the start, rounded up to a multiple that the
 * backend takes. */
int logistic_columns(const logistic *l);

/* product [models][units + 1]: the second moments of the rows whose sign is not 0, each with a last
 * feature of 1, times each model's weights. */
bool logistic_moments(logistic *l, const double *weights, int models, const int8_t *sign,
                      double *product, error *err);

#endif
