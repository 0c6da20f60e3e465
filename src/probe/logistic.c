#include "probe/logistic.h"

#include "core/log.h"
#include "core/memory.h"
#include "data/classes.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Rows of one product: many need few transfers and waits, but on the CPU a panel should stay in the
 * cache between its two products. A chunk is the rows that one task of the host sums; its fixed
 * size fixes the order of sums. */
enum { LEAST_PANEL = 1024, MOST_PANEL = 8192, PANEL_NUMBERS = 1 << 24, CHUNK = 256 };

enum { SUM_LOSS, SUM_SLOPE, SUM_CURVATURE, SUMS };

struct logistic {
    backend *be;
    const dataset *d;
    bool on_host;      /* the device reads the mapped features in place */
    size_t most;       /* the largest number of functions, padded: what is allocated */
    size_t columns;    /* number of functions of this call, padded */
    size_t panel;      /* number of rows of a product */
    layout *layout[2]; /* for a whole panel, and for the remaining rows */
    device_layout *device[2];
    float *x; /* the features, or a panel of them */
    bool resident;
    float *device_w, *device_z,
        *device_g;   /* [units][columns], [panel][columns], [units][columns] */
    float *w, *g;    /* their copies on the host */
    float *z;        /* [rows][columns]: the products, later the loss's slopes */
    double *total;   /* [units][columns]: the gradient over panels */
    double *partial; /* [chunks][SUMS][columns] */
    size_t chunks;
};

/* ------------------------------------------------------------------------------------ creation */

static size_t padded(const logistic *l, int functions) {
    size_t multiple = (size_t)l->be->column_multiple;
    return ((size_t)functions + multiple - 1) / multiple * multiple;
}

static bool make_layout(logistic *l, int which, size_t rows) {
    if (rows == 0) return true;
    l->layout[which] = layout_dense((int)rows, (int)l->d->units, 1, 1);
    l->device[which] = l->be->memory->layout_create(l->be, l->layout[which]);
    return l->device[which] != NULL;
}

static bool take_device_memory(logistic *l) {
    backend *be = l->be;
    size_t units = l->d->units, rows = l->resident ? l->d->rows : l->panel;
    if (!l->on_host) {
        l->x = be->memory->allocate(be, rows * units * sizeof(float));
        if (!l->x) return false;
        if (l->resident) be->memory->upload(be, l->x, l->d->x, rows * units * sizeof(float));
    }
    l->device_w = be->memory->allocate(be, units * l->most * sizeof(float));
    l->device_z = be->memory->allocate(be, l->panel * l->most * sizeof(float));
    l->device_g = be->memory->allocate(be, units * l->most * sizeof(float));
    return l->device_w && l->device_z && l->device_g && make_layout(l, 0, l->panel) &&
           make_layout(l, 1, l->d->rows % l->panel);
}

logistic *logistic_create(backend *be, const dataset *d, int functions, bool resident, error *err) {
    logistic *l = mem_alloc(1, sizeof *l);
    *l = (logistic){.be = be, .d = d, .resident = resident};
    l->on_host = !backend_on_gpu(be);
    l->most = padded(l, functions);
    l->panel = MOST_PANEL;
    if (l->on_host && PANEL_NUMBERS / d->units < MOST_PANEL) {
        l->panel = PANEL_NUMBERS / d->units / CHUNK * CHUNK;
        if (l->panel < LEAST_PANEL) l->panel = LEAST_PANEL;
    }
    if (l->panel > d->rows) l->panel = d->rows;
    l->w = mem_alloc(d->units * l->most, sizeof *l->w);
    l->g = mem_alloc(d->units * l->most, sizeof *l->g);
    l->z = mem_alloc(d->rows * l->most, sizeof *l->z);
    l->total = mem_alloc(d->units * l->most, sizeof *l->total);
    l->chunks = (d->rows + CHUNK - 1) / CHUNK;
    l->partial = mem_alloc(l->chunks * SUMS * l->most, sizeof *l->partial);
    if (take_device_memory(l)) return l;
    char size[16];
    error_set(err, "%s: its features (%s) do not fit in the memory of %s", d->features_path,
              log_bytes(size, (double)d->rows * (double)d->units * sizeof(float)), be->device);
    logistic_free(l);
    return NULL;
}

void logistic_free(logistic *l) {
    if (!l) return;
    float *device[] = {l->x, l->device_w, l->device_z, l->device_g};
    for (size_t i = 0; i < sizeof device / sizeof device[0]; i++) {
        if (device[i]) l->be->memory->release(l->be, device[i]);
    }
    for (int i = 0; i < 2; i++) {
        if (l->device[i]) l->be->memory->layout_free(l->be, l->device[i]);
        if (l->layout[i]) layout_free(l->layout[i]);
    }
    free(l->w);
    free(l->g);
    free(l->z);
    free(l->total);
    free(l->partial);
    free(l);
}

/* ------------------------------------------------------------------------------------ products */

static size_t panel_rows(const logistic *l, size_t row) {
    return l->d->rows - row < l->panel ? l->d->rows - row : l->panel;
}

static const device_layout *panel_layout(const logistic *l, size_t row) {
    return l->device[panel_rows(l, row) < l->panel];
}

static const float *panel_features(logistic *l, size_t row) {
    const float *mapped = l->d->x + row * l->d->units;
    if (l->on_host) return mapped;
    if (l->resident) return l->x + row * l->d->units;
    l->be->memory->upload(l->be, l->x, mapped, panel_rows(l, row) * l->d->units * sizeof(float));
    return l->x;
}

static void upload_weights(logistic *l, const double *weights, int functions) {
    size_t units = l->d->units;
    l->columns = padded(l, functions);
#pragma omp parallel for
    for (size_t u = 0; u < units; u++) {
        for (size_t k = 0; k < (size_t)functions; k++) {
            l->w[u * l->columns + k] = (float)weights[k * (units + 1) + u];
        }
    }
    l->be->memory->upload(l->be, l->device_w, l->w, units * l->columns * sizeof(float));
}

/* z = x w for the panel from `row` on. */
static void multiply_panel(logistic *l, size_t row) {
    backend *be = l->be;
    be->products->fprop(be, panel_layout(l, row), panel_features(l, row), l->device_w, 1,
                        (int)l->columns, l->device_z, REAL);
    be->memory->download(be, l->z + row * l->columns, l->device_z,
                         panel_rows(l, row) * l->columns * sizeof(float));
}

/* total += x' z for the panel from `row` on. */
static void add_gradient(logistic *l, size_t row, int functions) {
    backend *be = l->be;
    size_t units = l->d->units;
    be->memory->upload(be, l->device_z, l->z + row * l->columns,
                       panel_rows(l, row) * l->columns * sizeof(float));
    be->products->dgrad(be, panel_layout(l, row), panel_features(l, row), l->device_z, 1,
                        (int)l->columns, l->device_g, REAL);
    be->memory->download(be, l->g, l->device_g, units * l->columns * sizeof(float));
#pragma omp parallel for
    for (size_t u = 0; u < units; u++) {
        for (size_t i = u * l->columns; i < u * l->columns + (size_t)functions; i++) {
            l->total[i] += l->g[i];
        }
    }
}

bool logistic_margins(logistic *l, const double *weights, int functions, double *margins,
                      int stride, error *err) {
    size_t units = l->d->units;
    upload_weights(l, weights, functions);
    for (size_t row = 0; row < l->d->rows; row += l->panel) multiply_panel(l, row);
    for (size_t i = 0; i < l->d->rows; i++) {
        for (size_t k = 0; k < (size_t)functions; k++) {
            margins[i * (size_t)stride + k] =
                l->z[i * l->columns + k] + weights[k * (units + 1) + units];
        }
    }
    return l->be->memory->finish(l->be, err);
}

/* Every panel but the last consists of whole chunks. */
static_assert(LEAST_PANEL % CHUNK == 0 && MOST_PANEL % CHUNK == 0, "a panel is whole chunks");

/* A chunk's rows, and its sums [functions]. */
typedef struct chunk_sums {
    size_t first, last;
    double *loss, *slope, *curvature;
} chunk_sums;

static chunk_sums begin_chunk(logistic *l, size_t chunk, int functions) {
    double *sums = l->partial + chunk * SUMS * l->columns;
    const size_t first = chunk * CHUNK, end = first + CHUNK;
    for (size_t which = 0; which < SUMS; which++) {
        memset(sums + which * l->columns, 0, (size_t)functions * sizeof *sums);
    }
    return (chunk_sums){first, end < l->d->rows ? end : l->d->rows, sums + SUM_LOSS * l->columns,
                        sums + SUM_SLOPE * l->columns, sums + SUM_CURVATURE * l->columns};
}

/* Works on the products of a chunk of rows, of `functions` functions in all, before they are
 * multiplied back. */
typedef void chunk_function(logistic *l, size_t chunk, const double *weights, int functions,
                            const targets *t);

static void sweep_panels(logistic *l, const double *weights, int functions, const targets *t,
                         chunk_function *work) {
    upload_weights(l, weights, functions);
    memset(l->total, 0, l->d->units * l->columns * sizeof *l->total);
    for (size_t row = 0; row < l->d->rows; row += l->panel) {
        size_t first = row / CHUNK, last = (row + panel_rows(l, row) + CHUNK - 1) / CHUNK;
        multiply_panel(l, row);
#pragma omp parallel for
        for (size_t chunk = first; chunk < last; chunk++) work(l, chunk, weights, functions, t);
        add_gradient(l, row, functions);
    }
}

/* The total of one of the sums over all chunks, for function k. */
static double total_of(const logistic *l, int which, int k) {
    double total = 0;
    for (size_t chunk = 0; chunk < l->chunks; chunk++) {
        total += l->partial[(chunk * SUMS + (size_t)which) * l->columns + (size_t)k];
    }
    return total;
}

static void collect_gradient(const logistic *l, int functions, double *gradient) {
    size_t units = l->d->units;
#pragma omp parallel for
    for (int k = 0; k < functions; k++) {
        double *g = gradient + (size_t)k * (units + 1);
        for (size_t u = 0; u < units; u++) g[u] = l->total[u * l->columns + (size_t)k];
        g[units] = total_of(l, SUM_SLOPE, k);
    }
}

/* ---------------------------------------------------------------------------------------- loss */

/* Turns the products of a chunk of rows into slopes of the loss, which are the classes'
 * probabilities, less 1 of the row's class, times the row's weight. Sums these, losses and
 * curvatures. The loss of a model is that of its first function. */
static void chunk_loss(logistic *l, size_t chunk, const double *weights, int functions,
                       const targets *t) {
    const chunk_sums c = begin_chunk(l, chunk, functions);
    const size_t units = l->d->units, each = (size_t)t->functions, implied = each == 1;
    const size_t classes = each + implied;
    double power[DATASET_MAX_CLASSES];
    for (size_t i = c.first; i < c.last; i++) {
        float *z = l->z + i * l->columns;
        if (t->class[i] < 0) {
            memset(z, 0, (size_t)functions * sizeof *z);
            continue;
        }
        const size_t is = (size_t)t->class[i];
        const double weight = class_weight(t->weight, t->class[i]);
        for (size_t model = 0; model < (size_t)functions; model += each) {
            size_t top = 0;
            double others = 0; /* of the sum of powers, but for the largest, which is 1 */
            power[0] = 0;
            for (size_t k = 0; k < each; k++) {
                const double logit = z[model + k] + weights[(model + k) * (units + 1) + units];
                power[k + implied] = logit;
                if (logit > power[top]) top = k + implied;
            }
            const double most = power[top], loss = most - power[is];
            for (size_t k = 0; k < classes; k++) {
                power[k] = exp(power[k] - most);
                if (k != top) others += power[k];
            }
            c.loss[model] += weight * (loss + log1p(others));
            for (size_t k = 0; k < each; k++) {
                const double share = power[k + implied] / (1 + others);
                z[model + k] = (float)(weight * (share - (k + implied == is)));
                c.slope[model + k] += z[model + k];
                c.curvature[model + k] += weight * share * (1 - share);
            }
        }
    }
}

bool logistic_evaluate(logistic *l, const double *weights, int models, const targets *t,
                       double *loss, double *gradient, double *curvature, error *err) {
    const int functions = models * t->functions;
    size_t rows = 0;
    for (size_t i = 0; i < l->d->rows; i++) rows += t->class[i] >= 0;
    sweep_panels(l, weights, functions, t, chunk_loss);
    collect_gradient(l, functions, gradient);
    for (int m = 0; m < models; m++) {
        double second = 0;
        for (int k = 0; k < t->functions; k++) {
            second += total_of(l, SUM_CURVATURE, m * t->functions + k);
        }
        loss[m] = total_of(l, SUM_LOSS, m * t->functions);
        curvature[m] = second / ((double)rows * t->functions);
    }
    return l->be->memory->finish(l->be, err);
}

/* ------------------------------------------------------------------------------------- moments */

int logistic_columns(const logistic *l) {
    return (int)l->most;
}

size_t logistic_units(const logistic *l) {
    return l->d->units;
}

/* Turns the products of a chunk of rows into margins, which are 0 for rows left out, and sums them.
 */
static void chunk_moments(logistic *l, size_t chunk, const double *weights, int functions,
                          const targets *t) {
    const chunk_sums c = begin_chunk(l, chunk, functions);
    const size_t units = l->d->units;
    for (size_t i = c.first; i < c.last; i++) {
        float *z = l->z + i * l->columns;
        for (size_t k = 0; k < (size_t)functions; k++) {
            z[k] = t->class[i] >= 0 ? (float)(z[k] + weights[k * (units + 1) + units]) : 0;
            c.slope[k] += z[k];
        }
    }
}

bool logistic_moments(logistic *l, const double *weights, int functions, const int16_t *class,
                      double *product, error *err) {
    const targets t = {.class = class, .functions = 1};
    sweep_panels(l, weights, functions, &t, chunk_moments);
    collect_gradient(l, functions, product);
    return l->be->memory->finish(l->be, err);
}

/* ------------------------------------------------------------------------------------- entropy */

static double entropy_of(double p) {
    return p > 0 ? -p * log(p) : 0;
}

/* Of a row of this weight, of a model's `functions` slopes, as logistic_evaluate left them. */
static double entropy_of_row(const float *slope, int functions, int class, double weight) {
    const int implied = functions == 1;
    double entropy = 0, rest = 1;
    for (int k = 0; k < functions; k++) {
        const double p = (double)slope[k] / weight + (k + implied == class);
        rest -= p;
        entropy += entropy_of(p);
    }
    return weight * (implied ? entropy + entropy_of(rest) : entropy);
}

void logistic_entropy(const logistic *l, int models, const targets *t, double *entropy) {
    const size_t each = (size_t)t->functions;
#pragma omp parallel for
    for (size_t chunk = 0; chunk < l->chunks; chunk++) {
        size_t first = chunk * CHUNK, end = first + CHUNK;
        size_t last = end < l->d->rows ? end : l->d->rows;
        double *sum = l->partial + chunk * SUMS * l->columns;
        for (size_t m = 0; m < (size_t)models; m++) sum[m * each] = 0;
        for (size_t i = first; i < last; i++) {
            if (t->class[i] < 0) continue;
            const float *z = l->z + i * l->columns;
            for (size_t m = 0; m < (size_t)models; m++) {
                sum[m * each] += entropy_of_row(z + m * each, t->functions, t->class[i],
                                                class_weight(t->weight, t->class[i]));
            }
        }
    }
    for (int m = 0; m < models; m++) entropy[m] = total_of(l, SUM_LOSS, m * t->functions);
}
