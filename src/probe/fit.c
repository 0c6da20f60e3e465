#include "probe/fit.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

enum { MAX_EVALUATIONS = 2000 };

static const double enough = 1e-5; /* the gap at which a fit ends */

typedef struct fit {
    fit_problem p;
    size_t units, functions;
    /* [models] The curvature of each model's features is that of its owner, the first model with
     * the same ones. */
    curvature *curvatures;
    int *owner;
    int *open, opened; /* the models that are not done: open[0] to open[opened - 1] */
    /* Of the open models, in the order of `open`, at the latest evaluation. */
    double *weights, *gradient;      /* [opened][functions][units + 1] */
    double *loss, *second, *entropy; /* [opened] */
    double *dual;                    /* [models], the largest so far */
    minimiser **minimisers;
    fit_report *reports;
} fit;

static bool is_done(const fit *f, int k) {
    return f->reports[k].gap <= enough || minimiser_stalled(f->minimisers[k]);
}

static size_t count_of(const fit *f) {
    return f->functions * (f->units + 1);
}

/* The dual of the problem, in a distribution a_i over the classes k of each row (the loss's
 * conjugate is the entropy H; y_ik is 1 of the row's class, else 0):
 *     maximise  C sum H(a_i) - q.q / 2,  q_k = C sum (y_ik - a_ik) x_i.
 * The slopes of the loss at any weights give such a_i: no minimum lies below that value. */
static void find_duals(fit *f) {
    size_t count = count_of(f);
    logistic_entropy(f->p.l, f->opened, &f->p.rows, f->entropy);
    for (int i = 0; i < f->opened; i++) {
        int k = f->open[i];
        double dual = f->p.cost[k] * f->entropy[i];
        for (size_t j = 0; j < count; j++) {
            double q = f->gradient[(size_t)i * count + j];
            dual -= 0.5 * q * q;
        }
        f->dual[k] = fmax(f->dual[k], dual);
    }
}

/* Leaves only the slopes of a function along its model's own features and its intercept. */
static void keep_span(const fit *f, int k, double *gradient) {
    if (!f->p.span) return;
    for (size_t j = 0; j < f->units; j++) {
        if (j < f->p.span[k].first || j >= f->p.span[k].end) gradient[j] = 0;
    }
}

/* weights = point, all but the intercepts rounded to float. */
static void round_weights(const fit *f, const double *point, double *weights) {
    for (size_t j = 0; j < count_of(f); j++) {
        weights[j] = (j + 1) % (f->units + 1) == 0 ? point[j] : (float)point[j];
    }
}

/* Evaluates every open model once and leaves open those that are still not done. Returns false
 * after an error of the device. */
static bool evaluate(fit *f, error *err) {
    size_t count = count_of(f), each = f->units + 1;
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < f->opened; i++) {
        round_weights(f, minimiser_trial(f->minimisers[f->open[i]]),
                      f->weights + (size_t)i * count);
    }
    if (!logistic_evaluate(f->p.l, f->weights, f->opened, &f->p.rows, f->loss, f->gradient,
                           f->second, err)) {
        return false;
    }
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < f->opened; i++) {
        double *gradient = f->gradient + (size_t)i * count;
        for (size_t at = 0; at < count; at += each) keep_span(f, f->open[i], gradient + at);
        for (size_t j = 0; j < count; j++) gradient[j] *= f->p.cost[f->open[i]];
    }
    find_duals(f);
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < f->opened; i++) {
        int k = f->open[i];
        fit_report *r = &f->reports[k];
        r->evaluations++;
        minimiser_tell(f->minimisers[k], f->p.cost[k] * f->loss[i], f->gradient + (size_t)i * count,
                       4 * f->second[i]);
        r->objective = minimiser_objective(f->minimisers[k]);
        r->gap = (r->objective - f->dual[k]) / r->objective;
    }
    int before = f->opened;
    f->opened = 0;
    for (int i = 0; i < before; i++) {
        if (!is_done(f, f->open[i])) f->open[f->opened++] = f->open[i];
    }
    return true;
}

static void show(const fit *f, int evaluations, double *shown) {
    double now = clock_seconds(), worst = 0;
    if (now - *shown < (log_is_terminal() ? 0.5 : 20)) return;
    *shown = now;
    for (int k = 0; k < f->p.models; k++) worst = fmax(worst, f->reports[k].gap);
    log_progress("fit: %d evaluations, %d of %d models done, largest gap %.1e", evaluations,
                 f->p.models - f->opened, f->p.models, worst);
}

/* Later, a step that overflows counts as one that does not descend. The start has no alternative,
 * so it must be finite. */
static bool start_is_finite(const fit *f) {
    for (size_t i = 0; i < (size_t)f->p.models * count_of(f); i++) {
        if (!isfinite(f->gradient[i])) return false;
    }
    return true;
}

static bool run(fit *f, bool progress, error *err) {
    double shown = clock_seconds();
    for (int n = 1; n <= MAX_EVALUATIONS && f->opened > 0; n++) {
        if (!evaluate(f, err)) return false;
        if (n == 1 && !start_is_finite(f)) {
            return error_set(err, "%s: the numbers are so large that their sums overflow float32",
                             f->p.d->features_path);
        }
        if (progress) show(f, n, &shown);
    }
    return true;
}

static bool find_curvatures(fit *f, error *err) {
    for (int k = 0; k < f->p.models; k++) {
        const feature_span span = f->p.span ? f->p.span[k] : (feature_span){0, f->units};
        f->owner[k] = k;
        for (int j = 0; j < k && f->owner[k] == k; j++) {
            const bool same =
                !f->p.span || (f->p.span[j].first == span.first && f->p.span[j].end == span.end);
            if (same) f->owner[k] = j;
        }
        if (f->owner[k] == k &&
            !curvature_find(&f->curvatures[k], f->p.l, f->p.rows.class, f->p.moments, span, err)) {
            return false;
        }
    }
    return true;
}

/* Starts the minimisers: all models are open. The logistic loss's second derivative is at most 1/4,
 * its value at 0. */
static void start(fit *f) {
    size_t count = count_of(f), each = f->units + 1;
#pragma omp parallel for schedule(dynamic)
    for (int k = 0; k < f->p.models; k++) {
        const curvature *c = &f->curvatures[f->owner[k]];
        f->minimisers[k] = minimiser_create(each, f->functions, f->weights + (size_t)k * count,
                                            c->diagonal, c->factor, c->rank, f->p.cost[k] / 4);
        f->reports[k] = (fit_report){.gap = INFINITY};
        f->dual[k] = -INFINITY;
        f->open[k] = k;
    }
    f->opened = f->p.models;
}

static void end(fit *f, bool fitted) {
    for (int k = 0; k < f->p.models; k++) {
        if (fitted && !is_done(f, k)) {
            log_warning(
                "C = %g: the fit did not converge in %d evaluations; its objective may be %.2g %% "
                "above its minimum",
                f->p.cost[k], f->reports[k].evaluations, 100 * f->reports[k].gap);
        }
        round_weights(f, minimiser_best(f->minimisers[k]), f->weights + (size_t)k * count_of(f));
        minimiser_free(f->minimisers[k]);
    }
}

bool fit_models(const fit_problem *problem, double *weights, fit_report *reports, bool progress,
                error *err) {
    size_t count = (size_t)problem->models;
    fit f = {.p = *problem,
             .units = problem->d->units,
             .functions = (size_t)problem->rows.functions,
             .weights = weights,
             .reports = reports};
    f.gradient = mem_alloc(count * count_of(&f), sizeof *f.gradient);
    f.loss = mem_alloc(4 * count, sizeof *f.loss);
    f.second = f.loss + count;
    f.dual = f.second + count;
    f.entropy = f.dual + count;
    f.minimisers = mem_alloc(count, sizeof *f.minimisers);
    f.curvatures = mem_alloc(count, sizeof *f.curvatures);
    f.owner = mem_alloc(2 * count, sizeof *f.owner);
    f.open = f.owner + count;
    bool fitted = find_curvatures(&f, err);
    if (fitted) {
        start(&f);
        fitted = run(&f, progress, err);
        end(&f, fitted);
    }
    for (int k = 0; k < problem->models; k++) curvature_free(&f.curvatures[k]);
    free(f.curvatures);
    free(f.owner);
    free(f.minimisers);
    free(f.loss);
    free(f.gradient);
    return fitted;
}
