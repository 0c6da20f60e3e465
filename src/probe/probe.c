#include "probe/probe.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/classes.h"
#include "probe/calibration.h"
#include "probe/saved.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALLEST_EXPONENT = -8,
    MOST_MODELS = PROBE_CHOICES * PROBE_COSTS,
    MOST_TOGETHER = 1024, /* functions of models that are fitted side by side */
    FIT_NUMBERS = 1 << 28 /* and their weights, in as many copies as minimisers keep */
};

/* A dataset with the classes of its rows. */
typedef struct part {
    dataset d;
    origin origin;
    int32_t *label; /* [rows] renumbered as in train; NULL if the file's numbers serve */
    int16_t *class; /* [rows] -1: unlabelled; NULL while closed */
    size_t labelled;
} part;

typedef struct probe {
    backend *be;
    const probe_options *how;
    part train, valid, test; /* valid is closed without --valid */
    int32_t classes[DATASET_MAX_CLASSES];
    int class_count, functions; /* functions: 1 for two classes, else one a class */
    int together;               /* models that are fitted side by side */
    logistic *l;                /* the loss on train */
    feature_span choice[PROBE_CHOICES];
    /* Each choice of features with each C. */
    int models;
    double cost[MOST_MODELS];
    feature_span span[MOST_MODELS];
    int16_t *fitted;     /* [rows of train] the class, or -1: not of this fit */
    double *weight;      /* [classes] or NULL, see class_weight */
    double *weights;     /* [models][functions][units + 1] */
    double *chosen;      /* [functions][units + 1] */
    double *deviation;   /* [units] over the rows of the final fit */
    int32_t *prediction; /* [rows of test] */
    probe_result *result;
} probe;

/* ---------------------------------------------------------------------------------------- input */

/* Renumbers a part's named labels as in train. */
static bool rename_labels(probe *p, part *part, error *err) {
    const origin *ours = &part->origin, *theirs = &p->train.origin;
    const dataset *d = &part->d;
    if (!ours->names != !theirs->names) {
        return error_set(err, "%s: labels are %s, but those of %s are %s", d->labels_path,
                         ours->names ? "names" : "integers", p->train.d.labels_path,
                         theirs->names ? "names" : "integers");
    }
    if (!ours->names) return true;
    part->label = mem_alloc(d->rows, sizeof *part->label);
    for (size_t i = 0; i < d->rows; i++) {
        int32_t label = d->label[i];
        int found = 0;
        if (label >= ours->name_count || label < UNLABELLED) {
            return error_set(err, "%s: row %zu: label %d is none of the %d names", d->labels_path,
                             i, label, ours->name_count);
        }
        for (; label != UNLABELLED && found < theirs->name_count; found++) {
            if (strcmp(ours->names[label], theirs->names[found]) == 0) break;
        }
        if (label != UNLABELLED && found == theirs->name_count) {
            return error_set(err, "%s: row %zu: label '%s' is not among those of %s",
                             d->labels_path, i, ours->names[label], p->train.d.labels_path);
        }
        part->label[i] = label == UNLABELLED ? UNLABELLED : found;
    }
    part->d.label = part->label;
    return true;
}

/* Refuses a part whose features were made otherwise than those of train. */
static bool check_pools(const probe *p, const part *part, error *err) {
    const origin *ours = &part->origin, *theirs = &p->train.origin;
    char our_text[ORIGIN_POOLS_TEXT], their_text[ORIGIN_POOLS_TEXT];
    if (!ours->known || !theirs->known) return true;
    origin_pools_text(&ours->pools, our_text);
    origin_pools_text(&theirs->pools, their_text);
    return strcmp(our_text, their_text) == 0 ||
           error_set(err, "%s: features of --pool %s, but those of %s are of %s",
                     part->d.features_path, our_text, p->train.d.features_path, their_text);
}

/* Opens a part. The first one, train, determines the classes and the number of units. */
static bool open_part(probe *p, part *part, const char *prefix, error *err) {
    if (!dataset_open(&part->d, prefix, err)) return false;
    dataset *d = &part->d, *train = &p->train.d;
    size_t dropped;
    part->class = mem_alloc(d->rows, sizeof *part->class);
    if (!origin_read(&part->origin, prefix, err) || !rename_labels(p, part, err) ||
        !check_pools(p, part, err)) {
        return false;
    }
    if (d == train) {
        p->class_count = dataset_classes(d, p->classes, err);
        if (p->class_count < 0) return false;
        p->functions = p->class_count == 2 ? 1 : p->class_count;
    }
    if (d->units != train->units) {
        return error_set(err, "%s: %zu units, but %s has %zu", d->features_path, d->units,
                         train->features_path, train->units);
    }
    if (!dataset_index(d, p->classes, p->class_count, part->class, &dropped, err)) return false;
    part->labelled = d->rows - dropped;
    p->result->dropped += dropped;
    return true;
}

static void close_part(part *part) {
    if (!part->class) return;
    dataset_close(&part->d);
    origin_free(&part->origin);
    free(part->label);
    free(part->class);
}

static bool open_parts(probe *p, error *err) {
    const probe_options *how = p->how;
    if (!open_part(p, &p->train, how->train, err)) return false;
    if (how->valid && !open_part(p, &p->valid, how->valid, err)) return false;
    return open_part(p, &p->test, how->test, err);
}

/* ------------------------------------------------------------------------------------- margins */

/* The models from number `first` on that are computed side by side. */
static int group_of(const probe *p, int first, int models) {
    return models - first < p->together ? models - first : p->together;
}

/* Computes the margins [rows][models][functions] of `models` models by their weights, a group of
 * them in turn. The caller frees them. */
static double *find_margins(probe *p, const dataset *d, const double *weights, int models,
                            error *err) {
    const int stride = models * p->functions;
    const size_t length = p->train.d.units + 1;
    double *margins = mem_alloc(d->rows * (size_t)stride, sizeof *margins);
    bool on_train = d == &p->train.d;
    const int most = group_of(p, 0, models) * p->functions;
    logistic *l = on_train ? p->l : logistic_create(p->be, d, most, false, err);
    bool found = l != NULL;
    for (int first = 0; found && first < models; first += p->together) {
        const size_t before = (size_t)first * (size_t)p->functions;
        found = logistic_margins(l, weights + before * length,
                                 group_of(p, first, models) * p->functions, margins + before,
                                 stride, err);
    }
    if (!on_train) logistic_free(l);
    if (found) return margins;
    free(margins);
    return NULL;
}

/* The margins [functions] of a model for row i. */
static const double *margin_at(const probe *p, const double *margins, size_t i, int model,
                               int models) {
    return margins + (i * (size_t)models + (size_t)model) * (size_t)p->functions;
}

/* Whether a row is labelled and, where `held` says which rows are, among these. */
static bool is_counted(const part *part, const bool *held, size_t i) {
    return part->class[i] >= 0 && (!held || held[i]);
}

/* Counts, for each model, the labelled rows that it gets wrong, among all or among those of `held`,
 * by their weight unless that is NULL. Returns the weight of all these rows. */
static double count_errors(const probe *p, const double *margins, const part *part,
                           const bool *held, int models, const double *weight, double *wrong) {
    double rows = 0;
    memset(wrong, 0, (size_t)models * sizeof *wrong);
    for (size_t i = 0; i < part->d.rows; i++) {
        if (!is_counted(part, held, i)) continue;
        const double each = class_weight(weight, part->class[i]);
        rows += each;
        for (int c = 0; c < models; c++) {
            const double *at = margin_at(p, margins, i, c, models);
            if (margin_class(at, p->functions) != part->class[i]) wrong[c] += each;
        }
    }
    return rows;
}

/* ------------------------------------------------------------------------------------- choosing */

/* Fits the models from number `first` on, as many as are fitted side by side, on the rows of train
 * that are not in `held`. */
static bool fit_on(probe *p, const bool *held, int first, int models, double *weights,
                   fit_report *reports, error *err) {
    const dataset *d = &p->train.d;
    for (size_t i = 0; i < d->rows; i++) {
        p->fitted[i] = held && held[i] ? -1 : p->train.class[i];
    }
    moments m = dataset_moments(d, p->fitted);
    const fit_problem problem = {.l = p->l,
                                 .d = d,
                                 .rows = {p->fitted, p->weight, p->functions},
                                 .moments = &m,
                                 .models = models,
                                 .cost = p->cost + first,
                                 .span = p->span + first};
    bool fitted = fit_models(&problem, weights, reports, p->how->progress, err);
    memcpy(p->deviation, m.deviation, d->units * sizeof *p->deviation);
    free(m.mean);
    int most = 0;
    for (int k = 0; fitted && k < models; k++) {
        if (reports[k].evaluations > most) most = reports[k].evaluations;
    }
    p->result->evaluations += most;
    return fitted;
}

/* The poolings of a choice: one of several alone, or all; none if they are not known. */
static pool_list chosen_pools(const probe *p, int choice) {
    const origin *o = &p->train.origin;
    if (!o->known) return (pool_list){0};
    if (choice < o->pools.count) return (pool_list){1, {o->pools.kinds[choice]}};
    return o->pools;
}

/* The margins [rows][functions] of one model, of the labelled rows, or of those in `held`; their
 * classes go to `class`, if it is not NULL. The caller frees them. */
static double *margins_of(const probe *p, const double *margins, const part *part, const bool *held,
                          int model, int models, int16_t *class) {
    const size_t rows = part->d.rows, functions = (size_t)p->functions;
    double *of = mem_alloc(rows * functions, sizeof *of), *to = of;
    for (size_t i = 0, at = 0; i < rows; i++) {
        if (!is_counted(part, held, i)) continue;
        if (class) class[at++] = part->class[i];
        memcpy(to, margin_at(p, margins, i, model, models), functions * sizeof *to);
        to += functions;
    }
    return of;
}

/* Returns the number of the first model with the fewest errors on the part, or on its rows in
 * `held`; -1 on failure. */
static int choose_model(probe *p, const part *part, const bool *held, const fit_report *reports,
                        error *err) {
    double *margins = find_margins(p, &part->d, p->weights, p->models, err);
    if (!margins) return -1;
    double wrong[MOST_MODELS];
    const double all = count_errors(p, margins, part, held, p->models, p->weight, wrong);
    probe_result *r = p->result;
    size_t rows = 0;
    for (size_t i = 0; i < part->d.rows; i++) rows += is_counted(part, held, i);
    int best = 0;
    for (int m = 0; m < p->models; m++) {
        const int choice = m / PROBE_COSTS;
        const double error = 100 * wrong[m] / all;
        const pool_list pools = chosen_pools(p, choice);
        if (p->how->progress) {
            char text[ORIGIN_POOLS_TEXT];
            log_line("%s%sC = 2^%d: validation error %.2f %%, %d evaluations, gap %.1e",
                     origin_pools_text(&pools, text), pools.count ? ", " : "",
                     m % PROBE_COSTS + SMALLEST_EXPONENT, error, reports[m].evaluations,
                     reports[m].gap);
        }
        double *least = &r->choice_error[choice];
        r->tried[choice] = pools;
        if (m % PROBE_COSTS == 0 || error < *least) *least = error;
        if (wrong[m] < wrong[best]) best = m;
    }
    r->valid_error = 100 * wrong[best] / all;
    r->valid_rows = rows;
    int16_t *class = mem_alloc(rows, sizeof *class);
    r->valid_margin = margins_of(p, margins, part, held, best, p->models, class);
    r->scale = calibrate(r->valid_margin, class, rows, p->functions, true);
    free(class);
    free(margins);
    return best;
}

/* Fits all models, groups of them in turn. A model that is fitted alone begins where the last one
 * of the same features ended. */
static bool fit_all(probe *p, const bool *held, fit_report *reports, error *err) {
    const size_t size = (size_t)p->functions * (p->train.d.units + 1);
    for (int first = 0; first < p->models; first += p->together) {
        double *weights = p->weights + (size_t)first * size;
        if (p->together == 1 && first % PROBE_COSTS > 0) {
            memcpy(weights, weights - size, size * sizeof *weights);
        }
        if (!fit_on(p, held, first, group_of(p, first, p->models), weights, reports + first, err)) {
            return false;
        }
    }
    return true;
}

/* Holds a fifth of train out. Rows of equal features, as equal texts have, stay together. */
static bool split(const probe *p, bool *held, error *err) {
    const dataset *d = &p->train.d;
    const size_t size = d->units * sizeof *d->x;
    uint64_t *group = mem_alloc(d->rows, sizeof *group);
#pragma omp parallel for
    for (size_t i = 0; i < d->rows; i++) {
        group[i] = document_hash((const uint8_t *)(d->x + i * d->units), size);
    }
    const int lacking =
        split_by_group(p->train.class, group, d->rows, p->class_count, p->how->seed, held);
    free(group);
    return lacking < 0 || error_set(err,
                                    "%s: expected at least two different documents of each class "
                                    "to split, or --valid; '%s' has fewer",
                                    d->labels_path, p->result->names[lacking]);
}

/* Fits the chosen model on all of train into p->chosen. Returns its number, or -1. */
static int fit_and_choose(probe *p, fit_report *report, error *err) {
    fit_report reports[MOST_MODELS] = {0};
    size_t rows = p->train.d.rows, length = p->train.d.units + 1;
    bool *held = p->how->valid ? NULL : mem_alloc(rows, sizeof *held);
    int best = -1;
    if (held && p->how->held) memcpy(held, p->how->held, rows * sizeof *held);
    if (held && !p->how->held && !split(p, held, err)) {
        best = -1;
    } else if (fit_all(p, held, reports, err)) {
        best = choose_model(p, held ? &p->train : &p->valid, held, reports, err);
    }
    bool again = held != NULL;
    free(held);
    if (best < 0) return -1;
    *report = reports[best];
    memcpy(p->chosen, p->weights + (size_t)best * (size_t)p->functions * length,
           (size_t)p->functions * length * sizeof *p->chosen);
    if (again && !fit_on(p, NULL, best, 1, p->chosen, report, err)) return -1;
    return best;
}

/* -------------------------------------------------------------------------------------- results */

static void describe_weights(const probe *p) {
    probe_result *r = p->result;
    double size[PROBE_TOP_UNITS];
    for (size_t u = 0; u < r->units; u++) {
        double largest = 0;
        for (int k = 0; k < p->functions; k++) {
            largest = fmax(largest, fabs(p->chosen[(size_t)k * (r->units + 1) + u]));
        }
        double here = largest * p->deviation[u];
        r->nonzero += largest != 0;
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

/* The error of giving all `rows` labelled documents of test the class most frequent in train. */
static void find_majority(const probe *p, size_t rows) {
    size_t of_class[DATASET_MAX_CLASSES] = {0}, most = 0, right = 0;
    for (size_t i = 0; i < p->train.d.rows; i++) {
        if (p->train.class[i] >= 0) of_class[p->train.class[i]]++;
    }
    for (size_t k = 1; k < (size_t)p->class_count; k++) {
        if (of_class[k] > of_class[most]) most = k;
    }
    for (size_t i = 0; i < p->test.d.rows; i++) right += p->test.class[i] == (int16_t)most;
    p->result->majority_error = 100 * (double)(rows - right) / (double)rows;
}

/* Names the classes as the labels' file does. */
static void name_classes(probe *p) {
    const origin *o = &p->train.origin;
    p->result->names = mem_alloc((size_t)p->class_count, sizeof *p->result->names);
    for (int k = 0; k < p->class_count; k++) {
        p->result->names[k] =
            o->names ? mem_string(o->names[p->classes[k]]) : mem_format("%d", p->classes[k]);
    }
}

void probe_result_free(probe_result *r) {
    for (int k = 0; r->names && k < r->classes; k++) free(r->names[k]);
    free(r->names);
    free(r->confusion);
    free(r->valid_margin);
    free(r->test_margin);
    r->names = NULL;
    r->confusion = NULL;
    r->valid_margin = r->test_margin = NULL;
}

static bool predict(probe *p, error *err) {
    const part *test = &p->test;
    probe_result *r = p->result;
    const size_t classes = (size_t)p->class_count;
    double *margins = find_margins(p, &test->d, p->chosen, 1, err);
    if (!margins) return false;
    double wrong;
    const double rows = count_errors(p, margins, test, NULL, 1, NULL, &wrong);
    r->confusion = mem_alloc(classes * classes, sizeof *r->confusion);
    for (size_t i = 0; i < test->d.rows; i++) {
        const int said = margin_class(margin_at(p, margins, i, 0, 1), p->functions);
        p->prediction[i] = p->classes[said];
        if (test->class[i] >= 0) r->confusion[(size_t)test->class[i] * classes + (size_t)said]++;
    }
    r->test_margin = margins_of(p, margins, test, NULL, 0, 1, NULL);
    free(margins);
    r->error = 100 * wrong / rows;
    find_majority(p, test->labelled);
    return true;
}

/* Lists the models: each choice of features with each C. */
static void make_models(probe *p) {
    const origin *o = &p->train.origin;
    const size_t units = p->train.d.units, pools = o->known ? (size_t)o->pools.count : 1;
    for (size_t k = 0; pools > 1 && units % pools == 0 && k < pools; k++) {
        p->choice[p->result->choices++] =
            (feature_span){k * (units / pools), (k + 1) * (units / pools)};
    }
    p->choice[p->result->choices++] = (feature_span){0, units};
    p->models = p->result->choices * PROBE_COSTS;
    for (int m = 0; m < p->models; m++) {
        p->cost[m] = ldexp(1, m % PROBE_COSTS + SMALLEST_EXPONENT);
        p->span[m] = p->choice[m / PROBE_COSTS];
    }
}

static bool run(probe *p, error *err) {
    size_t units = p->train.d.units, functions = (size_t)p->functions;
    p->result->classes = p->class_count;
    name_classes(p);
    make_models(p);
    if (p->how->balanced) {
        p->weight = mem_alloc((size_t)p->class_count, sizeof *p->weight);
        classes_balance(p->train.class, p->train.d.rows, p->class_count, p->weight);
    }
    p->fitted = mem_alloc(p->train.d.rows, sizeof *p->fitted);
    p->together = p->models;
    while (p->together > 1 &&
           (p->together * p->functions > MOST_TOGETHER ||
            (size_t)p->together * functions * (units + 1) > FIT_NUMBERS / MINIMISER_COPIES)) {
        p->together = (p->together + 1) / 2;
    }
    p->weights = mem_alloc((size_t)p->models * functions * (units + 1), sizeof *p->weights);
    p->chosen = mem_alloc(functions * (units + 1), sizeof *p->chosen);
    p->deviation = mem_alloc(units, sizeof *p->deviation);
    p->prediction = mem_alloc(p->test.d.rows, sizeof *p->prediction);
    if (p->how->progress) {
        char size[16];
        log_line("%zu documents x %zu units (%s) on %s", p->train.d.rows, units,
                 log_bytes(size, (double)p->train.d.rows * (double)units * sizeof(float)),
                 p->be->device);
    }
    p->l = logistic_create(p->be, &p->train.d, p->together * p->functions, true, err);
    if (!p->l) return false;
    fit_report report;
    int chosen = fit_and_choose(p, &report, err);
    if (chosen < 0 || !predict(p, err)) return false;
    p->result->cost = p->cost[chosen];
    p->result->objective = report.objective;
    p->result->gap = report.gap;
    p->result->pools = chosen_pools(p, chosen / PROBE_COSTS);
    p->result->units = units;
    p->result->train_rows = p->train.labelled;
    p->result->test_rows = p->test.labelled;
    describe_weights(p);
    return true;
}

/* ---------------------------------------------------------------------------------------- files */

/* Saves the probe as one file, with the names or numbers of its classes. */
static bool save_probe(const probe *p, const char *path, error *err) {
    const probe_result *r = p->result;
    const origin *o = &p->train.origin;
    saved_probe *s = mem_alloc(1, sizeof *s);
    *s = (saved_probe){.origin = *o,
                       .classes = p->class_count,
                       .models = p->functions,
                       .units = r->units,
                       .weights = p->chosen,
                       .deviation = p->deviation,
                       .cost = r->cost,
                       .scale = r->scale,
                       .error = r->error,
                       .documents = (int64_t)r->test_rows};
    for (int k = 0; k < p->class_count; k++) s->name[k] = r->names[k];
    bool saved = saved_write(s, path, err);
    free(s);
    return saved;
}

/* Begins all files before the work, so that a folder that cannot be written is found at once. */
static bool run_and_write(probe *p, error *err) {
    if (!p->how->out) return run(p, err);
    char *weights_path = mem_format("%s.weights.npy", p->how->out);
    char *predictions_path = mem_format("%s.predictions.npy", p->how->out);
    char *probe_path = mem_format("%s.probe.safetensors", p->how->out);
    size_t length = p->train.d.units + 1, functions = (size_t)p->functions;
    size_t rows = p->test.d.rows;
    bool one = functions == 1;
    file_writer weights_file, predictions_file;
    int64_t start;
    bool done = false;
    if (npy_begin(&weights_file, weights_path, "<f8", (int64_t)(one ? length : functions),
                  one ? 0 : (int64_t)length, &start, err)) {
        if (npy_begin(&predictions_file, predictions_path, "<i4", (int64_t)rows, 0, &start, err)) {
            done =
                run(p, err) &&
                file_write(&weights_file, p->chosen, functions * length * sizeof(double), err) &&
                file_write(&predictions_file, p->prediction, rows * sizeof *p->prediction, err) &&
                file_flush(&weights_file, err) && save_probe(p, probe_path, err);
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
    probe *p = mem_alloc(1, sizeof *p);
    *p = (probe){.be = be, .how = how, .result = result};
    double start = clock_seconds();
    *result = (probe_result){0};
    bool done = open_parts(p, err) && run_and_write(p, err);
    logistic_free(p->l);
    free(p->prediction);
    free(p->deviation);
    free(p->chosen);
    free(p->weights);
    free(p->fitted);
    free(p->weight);
    close_part(&p->test);
    close_part(&p->valid);
    close_part(&p->train);
    free(p);
    result->seconds = clock_seconds() - start;
    if (!done) probe_result_free(result);
    return done;
}
