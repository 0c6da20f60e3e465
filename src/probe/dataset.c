#include "probe/dataset.h"

#include "core/memory.h"
#include "probe/origin.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_UNITS = 1 << 24,
    STRIP = 256 /* units whose moments one task sums: rows are read in runs of 1 KiB */
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

bool dataset_classes(const dataset *d, int32_t classes[2], error *err) {
    int found = 0;
    for (size_t i = 0; i < d->rows; i++) {
        int32_t label = d->label[i];
        if (label == UNLABELLED || (found > 0 && label == classes[0]) ||
            (found > 1 && label == classes[1])) {
            continue;
        }
        if (found == 2) {
            return error_set(err, "%s: expected two classes, found the labels %d, %d and %d",
                             d->labels_path, classes[0], classes[1], label);
        }
        classes[found++] = label;
    }
    if (found == 0) return error_set(err, "%s: every document is unlabelled (-1)", d->labels_path);
    if (found == 1) {
        return error_set(err, "%s: expected two classes, found only the label %d", d->labels_path,
                         classes[0]);
    }
    if (classes[0] > classes[1]) {
        int32_t larger = classes[0];
        classes[0] = classes[1];
        classes[1] = larger;
    }
    return true;
}

bool dataset_signs(const dataset *d, const int32_t classes[2], int8_t *sign, size_t *dropped,
                   error *err) {
    *dropped = 0;
    for (size_t i = 0; i < d->rows; i++) {
        int32_t label = d->label[i];
        if (label != UNLABELLED && label != classes[0] && label != classes[1]) {
            return error_set(err, "%s: row %zu: expected the label %d, %d or -1, got %d",
                             d->labels_path, i, classes[0], classes[1], label);
        }
        sign[i] = (int8_t)((label == classes[1]) - (label == classes[0]));
        *dropped += sign[i] == 0;
    }
    if (*dropped < d->rows) return true;
    return error_set(err, "%s: every document is unlabelled (-1)", d->labels_path);
}

/* ------------------------------------------------------------------------------------ moments */

/* Sums differences from the first row's values, so that a mean far from 0 costs no digits. */
static void strip_moments(const dataset *d, const int8_t *sign, size_t from, size_t count,
                          double *mean, double *deviation) {
    double sum[STRIP] = {0}, square[STRIP] = {0}, rows = 0;
    const float *first = NULL;
    for (size_t i = 0; i < d->rows; i++) {
        if (sign[i] == 0) continue;
        const float *x = d->x + i * d->units + from;
        if (!first) first = x;
        rows++;
        for (size_t u = 0; u < count; u++) {
            double difference = (double)x[u] - first[u];
            sum[u] += difference;
            square[u] += difference * difference;
        }
    }
    for (size_t u = 0; u < count && first; u++) {
        double shift = sum[u] / rows, variance = square[u] / rows - shift * shift;
        mean[from + u] = first[u] + shift;
        deviation[from + u] = variance > 0 ? sqrt(variance) : 0;
    }
}

void dataset_moments(const dataset *d, const int8_t *sign, double *mean, double *deviation) {
    size_t strips = (d->units + STRIP - 1) / STRIP;
#pragma omp parallel for schedule(dynamic)
    for (size_t k = 0; k < strips; k++) {
        size_t from = k * STRIP, left = d->units - from;
        strip_moments(d, sign, from, left < STRIP ? left : STRIP, mean, deviation);
    }
}
