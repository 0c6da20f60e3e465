#include "bench/dense.h"

#include "core/philox.h"

#include <math.h>

enum { FRESH = 1 << 16 }; /* random values that the CPU repeats */

typedef struct dense_job {
    backend *be;
    device_layout *device;
    rival *rival;
    bench_product product;
    int columns;
    void *left, *right, *out, *workspace;
    error err;
    bool failed; /* whether the library failed, which gives err's reason */
} dense_job;

void dense_randomise(backend *be, void *x, bench_math math, size_t count) {
    if (be->bench) {
        be->bench->randomise(be, x, math, count, 1);
        return;
    }
    philox_stream random = philox_start(1, PHILOX_BENCH, 0, 0);
    float *values = x;
    for (size_t i = 0; i < count; i++) {
        values[i] = i < FRESH ? (float)philox_uniform(&random) - 0.5f : values[i - FRESH];
    }
}

static void issue_product(void *argument, int set) {
    dense_job *j = argument;
    backend *be = j->be;
    (void)set;
    if (j->rival) {
        j->failed =
            j->failed || !be->bench->rival_run(j->rival, j->left, j->right, j->out, &j->err);
        return;
    }
    switch (j->product) {
    case PRODUCT_FPROP:
        be->fprop(be, j->device, j->left, j->right, 1, j->columns, j->out, OPERAND);
        return;
    case PRODUCT_DGRAD:
        be->dgrad(be, j->device, j->left, j->right, 1, j->columns, j->out, OPERAND);
        return;
    default:
        be->wgrad(be, j->device, j->left, j->right, 1, j->columns, j->out, j->workspace);
        return;
    }
}

static bool time_library(dense_job *j, const layout *l, bench_math math, const timing *how,
                         double *seconds, error *err) {
    const bench_tools *tools = j->be->bench;
    bool done = true;
    *seconds = INFINITY;
    for (int by_column = 0; by_column < 2 && done; by_column++) {
        bench_problem problem = {j->product, math, l, j->columns, by_column};
        double found = 0;
        j->rival = tools->rival_create(j->be, LIBRARY_CUBLAS, &problem, err);
        if (!j->rival) return false;
        done = time_operation(j->be, how, issue_product, j, 1, &found, err);
        *seconds = fmin(*seconds, found);
        tools->rival_free(j->rival);
        if (done && j->failed) {
            *err = j->err;
            done = false;
        }
    }
    return done;
}

/* Allocates the operands in the order of bench.h. */
static bool take(dense_job *j, const layout *l, bench_math math, error *err) {
    backend *be = j->be;
    size_t columns = (size_t)j->columns, weights = layout_weights(l);
    size_t rows = layout_rows(l) * columns, inputs = layout_inputs(l) * columns;
    size_t count[] = {weights, inputs, rows}; /* left, right, out */
    size_t operand = math == MATH_BF16 ? be->operand_size : be->real_size;
    if (j->product == PRODUCT_DGRAD) count[1] = rows, count[2] = inputs;
    if (j->product == PRODUCT_WGRAD) count[0] = rows, count[2] = weights;
    void **arrays[] = {&j->left, &j->right, &j->out};
    for (int i = 0; i < 3; i++) {
        *arrays[i] = be->allocate(be, count[i] * (i < 2 ? operand : be->real_size));
        if (!*arrays[i])
            return error_set(err, "not enough memory on %s for a dense product", be->device);
        if (i < 2) dense_randomise(be, *arrays[i], math, count[i]);
    }
    if (be->bench || j->product != PRODUCT_WGRAD) return true;
    j->workspace = be->allocate(be, be->wgrad_workspace(be, l, 1, j->columns));
    return j->workspace ||
           error_set(err, "not enough memory on %s for a dense product", be->device);
}

bool dense_time(backend *be, const layout *l, bench_product product, bench_math math, int columns,
                const timing *how, double *seconds, error *err) {
    const int multiple = be->bench ? 1 : be->product_multiple; /* as a minibatch is padded */
    columns = (columns + multiple - 1) / multiple * multiple;
    dense_job j = {.be = be, .product = product, .columns = columns};
    bool done = take(&j, l, math, err);
    if (done && be->bench) {
        done = time_library(&j, l, math, how, seconds, err);
    } else if (done) {
        j.device = be->layout_create(be, l);
        done = time_operation(be, how, issue_product, &j, 1, seconds, err);
        be->layout_free(be, j.device);
    }
    void *arrays[] = {j.left, j.right, j.out, j.workspace};
    for (int i = 0; i < 4; i++) {
        if (arrays[i]) be->release(be, arrays[i]);
    }
    return done;
}
