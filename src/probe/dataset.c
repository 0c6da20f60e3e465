#include "probe/dataset.h"

#include "core/memory.h"
#include "probe/origin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_UNITS = 1 << 24,
    STRIP = 256 /* units whose moments one task sums, so that rows are read in runs of 1 KiB */
};

/* ------------------------------------------------------------------------------------- opening */

static bool check_shapes(const dataset *d, error *err) {
    const npy *f = &d->features, *l = &d->labels;
    if (strcmp(f->type, "<f4") != 0 || f->columns == 0) {
        return error_set(err, "%s: expected float32 documents x units, got '%s' in %s",
                         d->features_path, f->type,
                         f->columns ? "two dimensions" : "one dimension");
    }
    if (strcmp(l->type, "<i4") != 0 || l->columns != 0) {
        return error_set(err, "%s: expected one int32 label a document, got '%s' in %s",
                         d->labels_path, l->type, l->columns ? "two dimensions" : "one dimension");
    }
    if (f->rows == 0) return error_set(err, "%s: no documents", d->features_path);
    if (f->columns > MAX_UNITS) {
        return error_set(err, "%s: %lld units; at most %d are supported", d->features_path,
                         (long long)f->columns, MAX_UNITS);
    }
    if (l->set && f->set && l->set != f->set) {
        return error_set(err, "%s: of other features than %s; export them again", d->labels_path,
                         d->features_path);
    }
    if (l->rows == f->rows) return true;
    return error_set(err, "%s: %lld labels for the %lld documents of %s", d->labels_path,
                     (long long)l->rows, (long long)f->rows, d->features_path);
}

static bool row_is_finite(const float *row, size_t units) {
    uint32_t failed = 0;
    for (size_t u = 0; u < units; u++) {
        uint32_t bits;
        memcpy(&bits, &row[u], sizeof bits);
        failed |= (bits & 0x7F800000) == 0x7F800000;
    }
    return !failed;
}

static bool check_finite(const dataset *d, error *err) {
    size_t first = d->rows;
#pragma omp parallel for reduction(min : first)
    for (size_t i = 0; i < d->rows; i++) {
        if (i < first && !row_is_finite(d->x + i * d->units, d->units)) first = i;
    }
    if (first == d->rows) return true;
    size_t u = 0;
    while (isfinite(d->x[first * d->units + u])) u++;
    return error_set(err, "%s: not a finite number in row %zu, unit %zu (both from 0)",
                     d->features_path, first, u);
}

bool dataset_open(dataset *d, const char *prefix, error *err) {
    *d = (dataset){.features_path = mem_format("%s.npy", prefix),
                   .labels_path = mem_format("%s.labels.npy", prefix)};
    bool opened = origin_check_complete(prefix, err) &&
                  npy_open(&d->features, d->features_path, err) &&
                  npy_open(&d->labels, d->labels_path, err) && check_shapes(d, err);
    if (opened) {
        d->rows = (size_t)d->features.rows;
        d->units = (size_t)d->features.columns;
        d->x = d->features.data;
        d->label = d->labels.data;
        opened = check_finite(d, err);
    }
    if (!opened) dataset_close(d);
    return opened;
}

void dataset_close(dataset *d) {
    npy_close(&d->features);
    npy_close(&d->labels);
    free(d->features_path);
    free(d->labels_path);
    *d = (dataset){0};
}

/* ------------------------------------------------------------------------------------- labels */

/* The index of `label` among the ascending classes, or the index at which to insert it. */
static int find_class(const int32_t *classes, int count, int32_t label) {
    int low = 0, high = count;
    while (low < high) {
        int middle = (low + high) / 2;
        if (classes[middle] < label) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

int dataset_classes(const dataset *d, int32_t *classes, error *err) {
    int count = 0;
    for (size_t i = 0; i < d->rows; i++) {
        int32_t label = d->label[i];
        int at = find_class(classes, count, label);
        if (label == UNLABELLED || (at < count && classes[at] == label)) continue;
        if (count == DATASET_MAX_CLASSES) {
            error_set(err, "%s: more than %d classes", d->labels_path, DATASET_MAX_CLASSES);
            return -1;
        }
        memmove(classes + at + 1, classes + at, (size_t)(count++ - at) * sizeof *classes);
        classes[at] = label;
    }
    if (count == 0) {
        error_set(err, "%s: every document is unlabelled (-1)", d->labels_path);
    } else if (count == 1) {
        error_set(err, "%s: expected two classes or more, found only the label %d", d->labels_path,
                  classes[0]);
    }
    return count < 2 ? -1 : count;
}

bool dataset_index(const dataset *d, const int32_t *classes, int count, int16_t *class,
                   size_t *dropped, error *err) {
    *dropped = 0;
    for (size_t i = 0; i < d->rows; i++) {
        int32_t label = d->label[i];
        int at = find_class(classes, count, label);
        if (label == UNLABELLED) {
            class[i] = -1;
            (*dropped)++;
        } else if (at < count && classes[at] == label) {
            class[i] = (int16_t)at;
        } else if (count == 2) {
            return error_set(err, "%s: row %zu: expected the label %d, %d or -1, got %d",
                             d->labels_path, i, classes[0], classes[1], label);
        } else {
            return error_set(err, "%s: row %zu: expected one of train's %d labels or -1, got %d",
                             d->labels_path, i, count, label);
        }
    }
    if (*dropped < d->rows) return true;
    return error_set(err, "%s: every document is unlabelled (-1)", d->labels_path);
}

/* ------------------------------------------------------------------------------------ moments */

/* Sums differences from the first row's values, so that a mean far from 0 costs no precision. */
static void strip_moments(const dataset *d, const int16_t *class, size_t from, size_t count,
                          const moments *m) {
    double sum[STRIP] = {0}, square[STRIP] = {0};
    const float *first = NULL;
    for (size_t i = 0; i < d->rows; i++) {
        if (class[i] < 0) continue;
        const float *x = d->x + i * d->units + from;
        if (!first) first = x;
        for (size_t u = 0; u < count; u++) {
            double difference = (double)x[u] - first[u];
            sum[u] += difference;
            square[u] += difference * difference;
        }
    }
    for (size_t u = 0; u < count && first; u++) {
        double shift = sum[u] / m->rows, variance = square[u] / m->rows - shift * shift;
        m->mean[from + u] = first[u] + shift;
        m->deviation[from + u] = variance > 0 ? sqrt(variance) : 0;
    }
}

moments dataset_moments(const dataset *d, const int16_t *class) {
    const size_t strips = (d->units + STRIP - 1) / STRIP;
    moments m = {.mean = mem_alloc(2 * d->units, sizeof *m.mean)};
    m.deviation = m.mean + d->units;
    for (size_t i = 0; i < d->rows; i++) m.rows += class[i] >= 0;
#pragma omp parallel for schedule(dynamic)
    for (size_t k = 0; k < strips; k++) {
        const size_t from = k * STRIP, left = d->units - from;
        strip_moments(d, class, from, left < STRIP ? left : STRIP, &m);
    }
    return m;
}

/* ---------------------------------------------------------------------------------- separation */

enum {
    BINS = 256,
    FEATURES_AT_ONCE = 64 /* features of one task, so that rows are read in runs */
};

typedef struct labelled_value {
    double value;
    int class;
} labelled_value;

static int compare_values(const void *a, const void *b) {
    const double x = ((const labelled_value *)a)->value, y = ((const labelled_value *)b)->value;
    return (x > y) - (x < y);
}

separation separation_find(const dataset *d, const int16_t *class, size_t feature) {
    labelled_value *all = mem_alloc(d->rows, sizeof *all);
    size_t count = 0, second = 0, below[2] = {0, 0}, best = SIZE_MAX;
    separation s = {.feature = feature};
    for (size_t i = 0; i < d->rows; i++) {
        if (class[i] < 0) continue;
        second += class[i] == 1;
        all[count++] = (labelled_value){d->x[i * d->units + feature], class[i]};
    }
    qsort(all, count, sizeof *all, compare_values);
    for (size_t i = 0; i <= count; i++) {
        if (i == 0 || i == count || all[i].value > all[i - 1].value) {
            /* With the second class above the threshold; else it lies below. */
            const size_t wrong = below[1] + (count - second - below[0]);
            const bool above = wrong <= count - wrong;
            const size_t fewest = above ? wrong : count - wrong;
            if (fewest < best) {
                best = fewest;
                s.above = above;
                s.threshold = i == 0       ? all[0].value
                              : i == count ? all[count - 1].value
                                           : (all[i - 1].value + all[i].value) / 2;
            }
        }
        if (i < count) below[all[i].class]++;
    }
    s.error = 100 * (double)best / (double)count;
    free(all);
    return s;
}

/* The fewest errors of a threshold between bins. */
static uint32_t least_errors(uint32_t counts[BINS][2], uint32_t first, uint32_t second) {
    uint32_t below[2] = {0, 0}, best = first < second ? first : second;
    for (int b = 0; b < BINS; b++) {
        below[0] += counts[b][0];
        below[1] += counts[b][1];
        const uint32_t wrong = below[1] + (first - below[0]), other = first + second - wrong;
        if (wrong < best) best = wrong;
        if (other < best) best = other;
    }
    return best;
}

/* errors [from ... from + count - 1] of the features of a strip. */
static void strip_errors(const dataset *d, const int16_t *class, size_t from, size_t count,
                         uint32_t *errors) {
    float least[FEATURES_AT_ONCE], most[FEATURES_AT_ONCE];
    uint32_t(*counts)[BINS][2] = mem_alloc(FEATURES_AT_ONCE, sizeof *counts), of_class[2] = {0, 0};
    for (size_t u = 0; u < count; u++) {
        least[u] = INFINITY;
        most[u] = -INFINITY;
    }
    for (size_t i = 0; i < d->rows; i++) {
        if (class[i] < 0) continue;
        const float *x = d->x + i * d->units + from;
        of_class[class[i]]++;
        for (size_t u = 0; u < count; u++) {
            least[u] = fminf(least[u], x[u]);
            most[u] = fmaxf(most[u], x[u]);
        }
    }
    for (size_t i = 0; i < d->rows; i++) {
        if (class[i] < 0) continue;
        const float *x = d->x + i * d->units + from;
        for (size_t u = 0; u < count; u++) {
            const float width = most[u] - least[u];
            const int bin = width > 0 ? (int)((x[u] - least[u]) / width * (BINS - 0.5f)) : 0;
            counts[u][bin][class[i]]++;
        }
    }
    for (size_t u = 0; u < count; u++) {
        errors[from + u] = least_errors(counts[u], of_class[0], of_class[1]);
    }
    free(counts);
}

int separation_rank(const dataset *d, const int16_t *class, size_t hidden, size_t *units,
                    int count) {
    const size_t strips = (d->units + FEATURES_AT_ONCE - 1) / FEATURES_AT_ONCE;
    uint32_t *errors = mem_alloc(d->units, sizeof *errors);
#pragma omp parallel for schedule(dynamic)
    for (size_t k = 0; k < strips; k++) {
        const size_t from = k * FEATURES_AT_ONCE, left = d->units - from;
        strip_errors(d, class, from, left < FEATURES_AT_ONCE ? left : FEATURES_AT_ONCE, errors);
    }
    int found = 0;
    while (found < count) {
        size_t chosen = SIZE_MAX;
        for (size_t f = 0; f < d->units; f++) {
            if (errors[f] != UINT32_MAX && (chosen == SIZE_MAX || errors[f] < errors[chosen])) {
                chosen = f;
            }
        }
        if (chosen == SIZE_MAX) break;
        units[found++] = chosen % hidden;
        for (size_t f = chosen % hidden; f < d->units; f += hidden) errors[f] = UINT32_MAX;
    }
    free(errors);
    return found;
}
