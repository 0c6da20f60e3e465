/* Logistic regression as scikit-learn's LogisticRegression(solver='liblinear') poses it, for
 * several C at once:
 *
 *     minimise  C sum over i of log(1 + exp(-y_i (w . x_i + b))) + (w . w + b^2) / 2
 *
 * and for more than two classes the loss of a softmax of a function each, see logistic.h, with the
 * same penalty on all of them; rows may weigh differently by their class
 *
 * (Fan et al., "LIBLINEAR: a library for large linear classification", JMLR 2008): the intercept is
 * penalised as the weight of a feature that is always 1.
 *
 * Why not LIBLINEAR itself: it keeps every feature in 16 bytes, 7.4 GB for 25,000 x 18,432 where
 * the file has 1.8, in doubles, on one thread, one C at a time. */
#ifndef SMALLWORLD_PROBE_FIT_H
#define SMALLWORLD_PROBE_FIT_H

#include "probe/curvature.h"
#include "probe/minimiser.h"

typedef struct fit_report {
    double objective;
    double gap; /* objective is at most this share of itself above the minimum, by duality, but for
                   rounding */
    int evaluations;
} fit_report;

typedef struct fit_problem {
    logistic *l;
    const dataset *d;
    targets rows;
    const moments *moments; /* over the rows that are fitted */
    int models;
    const double *cost;       /* [models]: each model's C */
    const feature_span *span; /* [models]: its features, outside which its weights stay 0; NULL
                                 gives each model all */
} fit_problem;

/* weights [models][functions][units + 1]: where to start, then the result. They apply to the
 * features as they are, the intercept last. A fit ends once its gap is at most
 * 1e-5, or once it stalls (see minimiser.h) at the limit of fp32. A fit that does neither in 2,000
 * evaluations gives a warning. Fails if sums of features overflow fp32. */
bool fit_models(const fit_problem *problem, double *weights, fit_report *reports, bool progress,
                error *err);

#endif
