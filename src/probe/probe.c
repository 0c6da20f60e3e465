#include "probe/probe.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/philox.h"
#include "probe/saved.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_OUT = 5, SMALLEST_EXPONENT = -8 }; /* one row in five */

/* A dataset and the signs of its rows. */
typedef struct part {
    dataset d;
    int8_t *sign; /* [rows], NULL while closed */
    size_t labelled;
} part;

typedef struct probe {
    backend *be;
    const probe_options *how;
    part train, valid, test; /* valid is closed without --valid */
    int32_t classes[2];
    logistic *l; /* on train */
    double cost[PROBE_COSTS];
    double *weights;     /* [PROBE_COSTS][units + 1] */
    double *deviation;   /* [units] of what the final fit saw */
    int32_t *prediction; /* [rows of test] */
    probe_result *result;
} probe;

/* --------------------------------------------------------------------------------------- split */

static void split_class(const int8_t *sign, size_t rows, uint64_t seed, int8_t class, int8_t *kept,
                        int8_t *held) {
    size_t *member = mem_alloc(rows, sizeof *member), count = 0;
    for (size_t i = 0; i < rows; i++) {
        if (sign[i] == class) member[count++] = i;
    }
    size_t wanted = (count + HELD_OUT / 2) / HELD_OUT;
    if (wanted == 0) wanted = 1;
    philox_stream draws = philox_start(seed, PHILOX_SPLIT, 0, class > 0);
    for (size_t i = 0; i < count; i++) {
        if (i < wanted) { /* Fisher-Yates, as far as it is needed */
            size_t j = i + (size_t)philox_below(&draws, count - i), chosen = member[j];
            member[j] = member[i];
            member[i] = chosen;
        }
        (i < wanted ? held : kept)[member[i]] = class;
    }
    free(member);
}

bool probe_split(const int8_t *sign, size_t rows, uint64_t seed, int8_t *kept, int8_t *held) {
    size_t of_class[2] = {0};
    memset(kept, 0, rows);
    memset(held, 0, rows);
    for (size_t i = 0; i < rows; i++) of_class[sign[i] > 0] += sign[i] != 0;
    if (of_class[0] < 2 || of_class[1] < 2) return false;
    split_class(sign, rows, seed, -1, kept, held);
    split_class(sign, rows, seed, 1, kept, held);
    return true;
}

/* ---------------------------------------------------------------------------------------- input */

/* The first part opened, train, says what the classes are and how many units there are. */
static bool open_part(probe *p, part *part, const char *prefix, error *err) {
    if (!dataset_open(&part->d, prefix, err)) return false;
    dataset *d = &part->d, *train = &p->train.d;
    size_t dropped;
    part->sign = mem_alloc(d->rows, sizeof *part->sign);
    if (d == train && !dataset_classes(d, p->classes, err)) return false;
    if (d->units != train->units) {
        return error_set(err, "%s: %zu units, but %s has %zu", d->features_path, d->units,
                         train->features_path, train->units);
    }
    if (!dataset_signs(d, p->classes, part->sign, &dropped, err)) return false;
    part->labelled = d->rows - dropped;
    p->result->dropped += dropped;
    return true;
}

static void close_part(part *part) {
    if (!part->sign) return;
    dataset_close(&part->d);
    free(part->sign);
}

static bool open_parts(probe *p, error *err) {
    const probe_options *how = p->how;
    if (!open_part(p, &p->train, how->train, err)) return false;
    if (how->valid && !open_part(p, &p->valid, how->valid, err)) return false;
    return open_part(p, &p->test, how->test, err);
}

/* --------------------------------------------------------------------------------------- errors */

/* For each model, how many of the rows whose sign is not 0 it gets wrong; a margin of 0 says -1. */
static void count_errors(const double *margins, const int8_t *sign, size_t rows, int models,
                         size_t *wrong) {
    for (size_t k = 0; k < (size_t)models; k++) {
        wrong[k] = 0;
        for (size_t i = 0; i < rows; i++) {
            int said = margins[i * (size_t)models + k] > 0 ? 1 : -1;
            wrong[k] += sign[i] != 0 && said != sign[i];
        }
    }
}

static double *find_margins(probe *p, const dataset *d, const double *weights, int models,
                            error *err) {
    double *margins = mem_alloc(d->rows * (size_t)models, sizeof *margins);
    bool on_train = d == &p->train.d;
    logistic *l = on_train ? p->l : logistic_create(p->be, d, models, false, err);
    bool found = l && logistic_margins(l, weights, models, margins, err);
    if (!on_train) logistic_free(l);
    if (found) return margins;
    free(margins);
    return NULL;
}

/* ------------------------------------------------------------------------------------- choosing */

static bool fit_on(probe *p, const int8_t *sign, int first, int models, fit_report *reports,
                   error *err) {
    size_t units = p->train.d.units;
    view v = view_create(&p->train.d, sign, p->how->standardize);
    bool fitted =
        fit_models(p->l, &p->train.d, sign, p->how->penalty, &v, p->cost + first, models,
                   p->weights + (size_t)first * (units + 1), reports, p->how->progress, err);
    memcpy(p->deviation, v.deviation, units * sizeof *p->deviation);
    view_free(&v);
    for (int k = 0, most = 0; fitted && k < models; k++) {
        if (reports[k].evaluations <= most) continue;
        p->result->evaluations += reports[k].evaluations - most;
        most = reports[k].evaluations;
    }
    return fitted;
}

/* The index of the smallest C that errs least on the rows of `d` that `sign` marks, or -1. */
static int choose_cost(probe *p, const dataset *d, const int8_t *sign, const fit_report *reports,
                       error *err) {
    double *margins = find_margins(p, d, p->weights, PROBE_COSTS, err);
    if (!margins) return -1;
    size_t wrong[PROBE_COSTS], rows = 0;
    count_errors(margins, sign, d->rows, PROBE_COSTS, wrong);
    free(margins);
    for (size_t i = 0; i < d->rows; i++) rows += sign[i] != 0;
    int best = 0;
    for (int k = 0; k < PROBE_COSTS; k++) {
        if (p->how->progress) {
            log_line("C = 2^%d: validation error %.2f %%, %d evaluations, gap %.1e",
                     k + SMALLEST_EXPONENT, 100 * (double)wrong[k] / (double)rows,
                     reports[k].evaluations, reports[k].gap);
        }
        if (wrong[k] < wrong[best]) best = k;
    }
    p->result->valid_error = 100 * (double)wrong[best] / (double)rows;
    p->result->valid_rows = rows;
    return best;
}

/* Returns the index of the C in use, its weights fitted on all of train, or -1. */
static int fit_and_choose(probe *p, fit_report *report, error *err) {
    fit_report reports[PROBE_COSTS];
    if (p->how->valid) {
        if (!fit_on(p, p->train.sign, 0, PROBE_COSTS, reports, err)) return -1;
        int best = choose_cost(p, &p->valid.d, p->valid.sign, reports, err);
        if (best >= 0) *report = reports[best];
        return best;
    }
    size_t rows = p->train.d.rows;
    int8_t *kept = mem_alloc(2 * rows, sizeof *kept), *held = kept + rows;
    int best = -1;
    if (!probe_split(p->train.sign, rows, p->how->seed, kept, held)) {
        error_set(err, "%s: expected at least two documents of each class to split, or --valid",
                  p->train.d.labels_path);
    } else if (fit_on(p, kept, 0, PROBE_COSTS, reports, err)) {
        best = choose_cost(p, &p->train.d, held, reports, err);
    }
    free(kept);
    if (best < 0 || !fit_on(p, p->train.sign, best, 1, report, err)) return -1;
    return best;
}

/* --------------------------------------------------------------------------------------- results
 */

static void describe_weights(const probe *p, const double *weights) {
    probe_result *r = p->result;
    double size[PROBE_TOP_UNITS];
    for (size_t u = 0; u < r->units; u++) {
        double here = fabs(weights[u]) * p->deviation[u];
        r->nonzero += weights[u] != 0;
        if (!(here > 0)) continue;
        int at = r->top_count;
        while (at > 0 && size[at - 1] < here) at--;
        if (at == PROBE_TOP_UNITS) continue;
        if (r->top_count < PROBE_TOP_UNITS) r->top_count++;
        for (int k = r->top_count - 1; k > at; k--) {
            size[k] = size[k - 1];
            r->top_units[k] = r->top_units[k - 1];
        }
        size[at] = here;
        r->top_units[at] = u;
    }
}

static bool predict(probe *p, const double *weights, error *err) {
    const part *test = &p->test;
    double *margins = find_margins(p, &test->d, weights, 1, err);
    if (!margins) return false;
    size_t wrong;
    count_errors(margins, test->sign, test->d.rows, 1, &wrong);
    for (size_t i = 0; i < test->d.rows; i++) p->prediction[i] = p->classes[margins[i] > 0];
    free(margins);
    p->result->error = 100 * (double)wrong / (double)test->labelled;
    return true;
}

static const double *run(probe *p, error *err) {
    size_t units = p->train.d.units;
    for (int k = 0; k < PROBE_COSTS; k++) p->cost[k] = ldexp(1, k + SMALLEST_EXPONENT);
    p->weights = mem_alloc(PROBE_COSTS * (units + 1), sizeof *p->weights);
    p->deviation = mem_alloc(units, sizeof *p->deviation);
    p->prediction = mem_alloc(p->test.d.rows, sizeof *p->prediction);
    if (p->how->progress) {
        char size[16];
        log_line("%zu documents x %zu units (%s) on %s", p->train.d.rows, units,
                 log_bytes(size, (double)p->train.d.rows * (double)units * sizeof(float)),
                 p->be->device);
    }
    p->l = logistic_create(p->be, &p->train.d, PROBE_COSTS, true, err);
    if (!p->l) return NULL;
    fit_report report;
    int chosen = fit_and_choose(p, &report, err);
    if (chosen < 0) return NULL;
    const double *weights = p->weights + (size_t)chosen * (units + 1);
    if (!predict(p, weights, err)) return NULL;
    p->result->cost = p->cost[chosen];
    p->result->objective = report.objective;
    p->result->gap = report.gap;
    p->result->units = units;
    p->result->train_rows = p->train.labelled;
    p->result->test_rows = p->test.labelled;
    describe_weights(p, weights);
    return weights;
}

/* ---------------------------------------------------------------------------------------- files */

/* The probe as one file. Its classes' names are their labels. */
static bool save_probe(const probe *p, const double *weights, const char *path, error *err) {
    const probe_result *r = p->result;
    char names[2][16];
    saved_probe s = {.classes = 2,
                     .models = 1,
                     .name = {names[0], names[1]},
                     .units = r->units,
                     .weights = weights,
                     .deviation = p->deviation,
                     .cost = r->cost,
                     .error = r->error,
                     .documents = (int64_t)r->test_rows};
    for (int i = 0; i < 2; i++) snprintf(names[i], sizeof names[i], "%d", p->classes[i]);
    snprintf(s.penalty, sizeof s.penalty, p->how->penalty == PENALTY_L1 ? "l1" : "l2");
    return origin_read(&s.origin, p->how->train, err) && saved_write(&s, path, err);
}

/* Both files are begun before the work, so that a folder that cannot be written is known at once.
 */
static bool run_and_write(probe *p, error *err) {
    if (!p->how->out) return run(p, err) != NULL;
    char *weights_path = mem_format("%s.weights.npy", p->how->out);
    char *predictions_path = mem_format("%s.predictions.npy", p->how->out);
    char *probe_path = mem_format("%s.probe.safetensors", p->how->out);
    size_t count = p->train.d.units + 1, rows = p->test.d.rows;
    file_writer weights_file, predictions_file;
    int64_t start;
    bool done = false;
    if (npy_begin(&weights_file, weights_path, "<f8", (int64_t)count, 0, &start, err)) {
        if (npy_begin(&predictions_file, predictions_path, "<i4", (int64_t)rows, 0, &start, err)) {
            const double *weights = run(p, err);
            done =
                weights && file_write(&weights_file, weights, count * sizeof *weights, err) &&
                file_write(&predictions_file, p->prediction, rows * sizeof *p->prediction, err) &&
                file_flush(&weights_file, err) && save_probe(p, weights, probe_path, err);
            if (done) {
                done = file_commit(&predictions_file, err);
            } else {
                file_abort(&predictions_file);
            }
        }
        if (done) {
            done = file_commit(&weights_file, err);
        } else {
            file_abort(&weights_file);
        }
    }
    free(probe_path);
    free(predictions_path);
    free(weights_path);
    return done;
}

bool probe_run(backend *be, const probe_options *how, probe_result *result, error *err) {
    probe p = {.be = be, .how = how, .result = result};
    double start = clock_seconds();
    *result = (probe_result){0};
    bool done = open_parts(&p, err) && run_and_write(&p, err);
    logistic_free(p.l);
    free(p.prediction);
    free(p.deviation);
    free(p.weights);
    close_part(&p.test);
    close_part(&p.valid);
    close_part(&p.train);
    result->seconds = clock_seconds() - start;
    return done;
}
