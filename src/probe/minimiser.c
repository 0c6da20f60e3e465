#include "probe/minimiser.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BACKTRACKS = 6, /* number of steps back before the history is dropped */
    WINDOW = 15     /* number of evaluations over which progress is judged */
};

static const double armijo = 1e-4, least_progress = 1e-7;

struct minimiser {
    size_t count, each; /* all variables, and those of a block */
    history *past;
    const double *diagonal; /* of the loss's second derivatives, together with `weight` */
    double weight, share;   /* `share`: the one that `past` was scaled with */
    double *w, *gradient;   /* the best point, and the objective's gradient there */
    double *target, *trial; /* the model's minimum; w + step (target - w) */
    double *told;           /* scratch: the objective's gradient at the trial */
    double objective, step;
    double expected; /* predicted first-order change of the objective from w to target, below 0 */
    double earlier[WINDOW];
    int evaluations, backtracks;
    bool stalled;
};

static void set_share(minimiser *m, double share) {
    double *scratch = m->target;
    m->share = fmax(share, 1e-6);
    double weight = m->share * m->weight;
    for (size_t i = 0; i < m->each; i++) scratch[i] = weight * m->diagonal[i] + 1;
    history_set_base(m->past, scratch, weight);
}

minimiser *minimiser_create(size_t each, size_t blocks, const double *start, const double *diagonal,
                            const double *factor, int rank, double weight) {
    minimiser *m = mem_alloc(1, sizeof *m);
    const size_t count = each * blocks;
    *m = (minimiser){.count = count, .each = each, .diagonal = diagonal, .weight = weight};
    m->objective = INFINITY;
    double **arrays[] = {&m->w, &m->gradient, &m->target, &m->trial, &m->told};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        *arrays[i] = mem_alloc(count, sizeof(double));
    }
    memcpy(m->trial, start, count * sizeof *start);
    memcpy(m->w, start, count * sizeof *start);
    m->past = history_create(each, blocks, factor, rank);
    set_share(m, 1);
    return m;
}

void minimiser_free(minimiser *m) {
    if (!m) return;
    history_free(m->past);
    free(m->w);
    free(m->gradient);
    free(m->target);
    free(m->trial);
    free(m->told);
    free(m);
}

const double *minimiser_trial(const minimiser *m) {
    return m->trial;
}

const double *minimiser_best(const minimiser *m) {
    return m->w;
}

double minimiser_objective(const minimiser *m) {
    return m->objective;
}

bool minimiser_stalled(const minimiser *m) {
    return m->stalled;
}

/* --------------------------------------------------------------------------------------- steps */

static double expected_change(const minimiser *m) {
    double change = 0;
    for (size_t i = 0; i < m->count; i++) {
        change += m->gradient[i] * (m->target[i] - m->w[i]);
    }
    return change;
}

static void find_target(minimiser *m) {
    history_newton(m->past, m->w, m->gradient, m->target);
    /* A weight of 0 without a slope is that of a feature that is left out. */
    for (size_t i = 0; i < m->count; i++) {
        if (m->gradient[i] == 0 && m->w[i] == 0) m->target[i] = 0;
    }
    m->expected = expected_change(m);
}

static void make_trial(minimiser *m) {
    for (size_t i = 0; i < m->count; i++) {
        m->trial[i] = m->step == 1 ? m->target[i] /* so that zeros are exact */
                                   : m->w[i] + m->step * (m->target[i] - m->w[i]);
    }
}

/* Finds a new direction from w. Without history its length is uncertain; backtracking finds one. */
static void set_out(minimiser *m) {
    find_target(m);
    if (!(m->expected < 0) && !history_is_empty(m->past)) {
        history_forget(m->past);
        find_target(m);
    }
    if (!(m->expected < 0)) m->stalled = true;
    m->step = 1;
    m->backtracks = 0;
    make_trial(m);
}

static void accept(minimiser *m, double objective, double share) {
    if (isfinite(m->objective)) {
        history_add(m->past, m->w, m->trial, m->gradient, m->told);
    }
    memcpy(m->w, m->trial, m->count * sizeof *m->w);
    memcpy(m->gradient, m->told, m->count * sizeof *m->gradient);
    m->objective = objective;
    if (share < 0.6 * m->share || share > 1.7 * m->share) set_share(m, share);
    set_out(m);
}

/* Shortens the step to the minimum of the parabola through the known values, but to no less than a
 * tenth and no more than a half of it. */
static void reject(minimiser *m, double objective) {
    if (++m->backtracks > BACKTRACKS && !history_is_empty(m->past)) {
        history_forget(m->past);
        set_out(m);
        return;
    }
    double above = objective - m->objective - m->expected * m->step;
    double best = above > 0 ? -m->expected * m->step * m->step / (2 * above) : 0.5 * m->step;
    if (!(best > 0.1 * m->step)) best = 0.1 * m->step;
    if (best > 0.5 * m->step) best = 0.5 * m->step;
    m->step = best;
    make_trial(m);
}

void minimiser_tell(minimiser *m, double loss, const double *gradient, double share) {
    double objective = loss;
    for (size_t i = 0; i < m->count; i++) {
        m->told[i] = gradient[i] + m->trial[i];
        objective += 0.5 * m->trial[i] * m->trial[i];
    }
    /* Infinite before the first step. */
    double wanted = m->objective + armijo * m->step * m->expected;
    if (objective < m->objective && objective <= wanted) {
        accept(m, objective, share);
    } else {
        reject(m, objective);
    }
    double *earlier = &m->earlier[m->evaluations % WINDOW];
    if (m->evaluations >= WINDOW && *earlier - m->objective < least_progress * m->objective) {
        m->stalled = true;
    }
    *earlier = m->objective;
    m->evaluations++;
}
