#include "problems.h"

#include "core/memory.h"
#include "core/npy.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

problem make_problem(size_t rows, size_t units, double spread, double mean, uint64_t seed) {
    problem p = {rows, units, mem_alloc(rows * units, sizeof(float)),
                 mem_alloc(rows, sizeof(int32_t)), mem_alloc(rows, sizeof(int16_t))};
    random_restart(seed);
    double *weight = random_values(units, -1, 1), *center = random_values(units, -mean, mean);
    for (size_t i = 0; i < rows; i++) {
        double z = 0, shared = random_normal();
        for (size_t u = 0; u < units; u++) {
            double scale = pow(spread, units > 1 ? (double)u / (double)(units - 1) - 0.5 : 0);
            double x = 0.5 * shared + random_normal();
            z += weight[u] * x;
            p.x[i * units + u] = (float)(scale * (x + center[u]));
        }
        p.label[i] = z + random_normal() > 0;
        p.class[i] = (int16_t)p.label[i];
    }
    free(weight);
    free(center);
    return p;
}

void free_problem(problem *p) {
    free(p->x);
    free(p->label);
    free(p->class);
}

dataset as_dataset(const problem *p) {
    return (dataset){.features_path = "x.npy",
                     .labels_path = "x.labels.npy",
                     .rows = p->rows,
                     .units = p->units,
                     .x = p->x,
                     .label = p->label};
}

void write_npy(const char *prefix, const char *ending, const char *type, size_t rows,
               size_t columns, const void *data, size_t bytes) {
    char *path = mem_format("%s/%s%s", temporary_folder(), prefix, ending);
    file_writer writer;
    error err;
    int64_t start;
    if (!npy_begin(&writer, path, type, (int64_t)rows, (int64_t)columns, &start, &err) ||
        !file_write(&writer, data, bytes, &err) || !file_commit(&writer, &err)) {
        fail_msg("%s", err.text);
    }
    free(path);
}

void write_problem(const char *prefix, const problem *p) {
    write_npy(prefix, ".npy", "<f4", p->rows, p->units, p->x, p->rows * p->units * sizeof *p->x);
    write_npy(prefix, ".labels.npy", "<i4", p->rows, 0, p->label, p->rows * sizeof *p->label);
}

/* ------------------------------------------------------------------- the same, in plain doubles */

double margin_of(const problem *p, const double *w, size_t i) {
    double z = w[p->units];
    for (size_t u = 0; u < p->units; u++) z += w[u] * p->x[i * p->units + u];
    return z;
}

/* The margin on the side of the row's class. */
static double right_of(const problem *p, const double *w, size_t i) {
    return p->class[i] == 1 ? margin_of(p, w, i) : -margin_of(p, w, i);
}

double loss_of(const problem *p, const double *w) {
    double loss = 0;
    for (size_t i = 0; i < p->rows; i++) {
        if (p->class[i] < 0) continue;
        const double z = right_of(p, w, i);
        loss += z > 0 ? log1p(exp(-z)) : log1p(exp(z)) - z;
    }
    return loss;
}

void slopes_of(const problem *p, const double *w, double *gradient) {
    memset(gradient, 0, (p->units + 1) * sizeof *gradient);
    for (size_t i = 0; i < p->rows; i++) {
        if (p->class[i] < 0) continue;
        const double r = (p->class[i] == 1 ? -1 : 1) / (1 + exp(right_of(p, w, i)));
        for (size_t u = 0; u < p->units; u++) gradient[u] += r * p->x[i * p->units + u];
        gradient[p->units] += r;
    }
}

double objective_of(const problem *p, const double *w, double cost) {
    double sum = cost * loss_of(p, w);
    for (size_t u = 0; u <= p->units; u++) {
        sum += 0.5 * w[u] * w[u];
    }
    return sum;
}

/* ----------------------------------------------------------------------------------------- fits */

const double problem_costs[PROBE_COSTS] = {0x1p-8, 0x1p-7, 0x1p-6, 0x1p-5, 0x1p-4, 0x1p-3, 0x1p-2,
                                           0x1p-1, 1,      2,      4,      8,      16};

double *fit_span(backend *be, const problem *p, feature_span span, fit_report *reports) {
    dataset d = as_dataset(p);
    error err;
    moments m = dataset_moments(&d, p->class);
    const int costs = PROBE_COSTS;
    logistic *l = logistic_create(be, &d, costs, true, &err);
    double *weights = mem_alloc((size_t)costs * (p->units + 1), sizeof *weights);
    const targets rows = {.class = p->class, .functions = 1};
    feature_span spans[PROBE_COSTS];
    for (int k = 0; k < costs; k++) spans[k] = span;
    const fit_problem asked = {l, &d, rows, &m, costs, problem_costs, spans};
    if (!l || !fit_models(&asked, weights, reports, false, &err)) {
        fail_msg("%s", err.text);
    }
    logistic_free(l);
    free(m.mean);
    return weights;
}

double *fit_all(backend *be, const problem *p, fit_report *reports) {
    return fit_span(be, p, (feature_span){0, p->units}, reports);
}
