#include "probe/separation.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = 256, STRIP = 64 /* features of one task, so that rows are read in runs */ };

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
    float least[STRIP], most[STRIP];
    uint32_t(*counts)[BINS][2] = mem_alloc(STRIP, sizeof *counts), of_class[2] = {0, 0};
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
    const size_t strips = (d->units + STRIP - 1) / STRIP;
    uint32_t *errors = mem_alloc(d->units, sizeof *errors);
#pragma omp parallel for schedule(dynamic)
    for (size_t k = 0; k < strips; k++) {
        const size_t from = k * STRIP, left = d->units - from;
        strip_errors(d, class, from, left < STRIP ? left : STRIP, errors);
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
