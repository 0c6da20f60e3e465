/* The library's products on the caller's device memory and streams, compared with sums in double;
 * and what the library refuses. Models are tested by tests/library.py. */
#include "support.h"

#include "core/memory.h"
#include "library/smallworld.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct problem {
    int nodes, block, count, columns;
    int32_t (*blocks)[2];
    size_t weights, values; /* the lengths of w and dw, and of x, dy, y and dx */
    double *w, *x, *dy, *y, *dx, *dw;
} problem;

static smallworld_options options_of(precision precision) {
    return (smallworld_options){test_device_is_cuda() ? "cuda" : "cpu",
                                precision == BF16 ? "bf16" : "fp32", 1, 0};
}

static problem make_problem(int nodes, int block, double share) {
    problem p = {.nodes = nodes, .block = block};
    p.blocks = mem_alloc((size_t)(nodes * nodes), sizeof *p.blocks);
    for (int i = 0; i < nodes; i++) {
        for (int j = 0; j < nodes; j++) {
            if (i != j && random_uniform() >= share) continue;
            p.blocks[p.count][0] = i;
            p.blocks[p.count++][1] = j;
        }
    }
    return p;
}

static smallworld_product *create_product(problem *p, const smallworld_options *how) {
    smallworld_product *product = smallworld_product_create(
        p->nodes, p->block, (const int32_t(*)[2])p->blocks, p->count, how);
    if (!product) fail_msg("%s", smallworld_error());
    p->columns = smallworld_product_columns(product) * smallworld_product_wgrad_columns(product);
    p->weights = (size_t)(p->count * p->block * p->block);
    p->values = (size_t)(p->nodes * p->block) * (size_t)p->columns;
    return product;
}

/* Draws w, x and dy; y, dx and dW are sums over every weight, in double. */
static void draw_values(problem *p) {
    size_t b = (size_t)p->block, n = (size_t)p->columns;
    p->w = random_values(p->weights, -1, 1);
    p->x = random_values(p->values, -1, 1);
    p->dy = random_values(p->values, -1, 1);
    p->y = mem_alloc(p->values, sizeof *p->y);
    p->dx = mem_alloc(p->values, sizeof *p->dx);
    p->dw = mem_alloc(p->weights, sizeof *p->dw);
    for (size_t k = 0; k < (size_t)p->count; k++) {
        for (size_t e = 0; e < b * b; e++) {
            size_t row = ((size_t)p->blocks[k][0] * b + e / b) * n;
            size_t source = ((size_t)p->blocks[k][1] * b + e % b) * n;
            for (size_t c = 0; c < n; c++) {
                p->y[row + c] += p->w[k * b * b + e] * p->x[source + c];
                p->dx[source + c] += p->w[k * b * b + e] * p->dy[row + c];
                p->dw[k * b * b + e] += p->dy[row + c] * p->x[source + c];
            }
        }
    }
}

static void free_values(problem *p) {
    free(p->w);
    free(p->x);
    free(p->dy);
    free(p->y);
    free(p->dx);
    free(p->dw);
}

static void check_close(backend *be, const void *array, const double *expected, size_t count,
                        element type, double tolerance) {
    double *got = get(be, array, count, type);
    double error = relative_error(got, expected, count);
    if (!(error < tolerance)) fail_msg("relative error %g, expected below %g", error, tolerance);
    free(got);
}

typedef struct calls {
    smallworld_product *product;
    void **arrays;
    int columns;
    char failure[256];
} calls;

/* A thread that has not used the device before. */
static void *multiply_in_thread(void *argument) {
    calls *c = argument;
    void **a = c->arrays;
    if (!smallworld_fprop(c->product, a[0], a[1], a[3], c->columns, NULL) ||
        !smallworld_dgrad(c->product, a[0], a[2], a[4], c->columns, NULL) ||
        !smallworld_wgrad(c->product, a[2], a[1], a[5], c->columns, NULL)) {
        snprintf(c->failure, sizeof c->failure, "%s", smallworld_error());
    }
    return NULL;
}

static void check_products(precision precision, int nodes, int block, double share) {
    backend *be = test_backend(precision);
    smallworld_options how = options_of(precision);
    problem p = make_problem(nodes, block, share);
    smallworld_product *product = create_product(&p, &how);
    assert_int_equal(smallworld_product_on_gpu(product), test_device_is_cuda());
    assert_int_equal((size_t)smallworld_product_element_size(product), be->operand_size);
    const size_t weights = p.weights, values = p.values;
    draw_values(&p);

    error err;
    void *arrays[] = {put(be, p.w, weights, OPERAND),  put(be, p.x, values, OPERAND),
                      put(be, p.dy, values, OPERAND),  put_poison(be, values, OPERAND),
                      put_poison(be, values, OPERAND), put_poison(be, weights, REAL)};
    assert_true(be->memory->finish(be, &err));
    calls c = {product, arrays, p.columns, ""};
    for (int again = 0; again < 2; again++) {
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, multiply_in_thread, &c), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        if (c.failure[0]) fail_msg("%s", c.failure);
    }
    if (!smallworld_product_wait(product)) fail_msg("%s", smallworld_error());
    double tolerance = precision == BF16 ? 8e-3 : 1e-5;
    check_close(be, arrays[3], p.y, values, OPERAND, tolerance);
    check_close(be, arrays[4], p.dx, values, OPERAND, tolerance);
    check_close(be, arrays[5], p.dw, weights, REAL, tolerance);

    assert_false(smallworld_fprop(product, arrays[0], arrays[1], arrays[3], 0, NULL));
    assert_string_equal(smallworld_error(), "columns: expected at least 1, got 0");
    assert_false(smallworld_wgrad(product, arrays[2], arrays[1], arrays[5], 0, NULL));
    release_all(be, arrays, sizeof arrays / sizeof arrays[0]);
    smallworld_product_free(product);
    free_values(&p);
    free(p.blocks);
    be->memory->destroy(be);
}

static void test_products(void **state) {
    (void)state;
    random_restart(22);
    for (int kind = 0; kind < (test_device_is_cuda() ? 2 : 1); kind++) {
        precision precision = kind ? BF16 : FP32;
        check_products(precision, 9, 8, 0.3);
        check_products(precision, 5, 16, 0.4);
        check_products(precision, 7, 32, 0.3);
        check_products(precision, 3, 64, 0.2);
        check_products(precision, 2, 128, 0.5);
        check_products(precision, 4, 32, 1.0);
        check_products(precision, 1, 32, 1.0);
    }
}

/* What convolutions compute is tested by tests/library.py and, on a GPU, tests/torch_layers.py. */
static void test_refused_convolutions(void **state) {
    (void)state;
    enum { OUT = 2, IN = 3, BLOCK = 16, COUNT = 3 };
    static const int32_t blocks[COUNT][2] = {{0, 0}, {0, 2}, {1, 2}};
    const smallworld_conv_shape shape = {{3, 4}, {2, 3}, {1, 1}, {1, 1}, {{1, 0}, {1, 1}}};
    smallworld_options how = options_of(FP32);
    backend *be = test_backend(FP32);
    int out[2];
    assert_true(smallworld_conv_out(&shape, out));
    assert_true(out[0] == 3 && out[1] == 4);
    assert_null(smallworld_conv_create(OUT, IN, BLOCK, blocks, 0, &shape, &how));
    assert_contains(smallworld_error(), "blocks: expected 1 to ");
    assert_null(smallworld_conv_create(OUT, 2, BLOCK, blocks, COUNT, &shape, &how));
    assert_contains(smallworld_error(), "block 1 joins nodes 0 and 2: expected 0 to 1");
    smallworld_conv_shape wrong = shape;
    wrong.filter[0] = 9;
    assert_null(smallworld_conv_create(OUT, IN, BLOCK, blocks, COUNT, &wrong, &how));
    assert_contains(smallworld_error(), "filter[0]: expected a reach");
    wrong = (smallworld_conv_shape){{4000, 4000}, {9, 9}, {1, 1}, {1, 1}, {{4, 4}, {4, 4}}};
    if (be->available < 40e9) { /* whose quarter the tables do not fit */
        assert_null(smallworld_conv_create(OUT, IN, BLOCK, blocks, COUNT, &wrong, &how));
        assert_contains(smallworld_error(), " MB of tables for 81 taps of 16000000 pixels");
    }
    be->memory->destroy(be);
}

/* ---------------------------------------------------------------------------------- streams
 * On a GPU the arrays are the CUDA driver's own allocations, on streams of the caller that do not
 * wait for the default stream. The driver is loaded as the program runs, so that this file needs no
 * CUDA toolkit. */

typedef struct driver {
    int (*allocate)(uintptr_t *array, size_t bytes);
    int (*release)(uintptr_t array);
    int (*to_device)(uintptr_t to, const void *from, size_t bytes, void *stream);
    int (*to_host)(void *to, uintptr_t from, size_t bytes, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_wait)(void *stream);
} driver;

static void load_driver(driver *d) {
    static const char *const names[] = {
        "cuMemAlloc_v2",  "cuMemFree_v2",       "cuMemcpyHtoDAsync_v2", "cuMemcpyDtoHAsync_v2",
        "cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize"};
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) fail_msg("%s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *function = dlsym(library, names[i]);
        if (!function) fail_msg("libcuda.so.1 has no %s", names[i]);
        memcpy((char *)d + i * sizeof function, &function, sizeof function);
    }
}

static float *floats(const double *values, size_t count) {
    float *array = mem_alloc(count, sizeof *array);
    for (size_t i = 0; i < count; i++) array[i] = values ? (float)values[i] : NAN;
    return array;
}

static void check_floats(const float *got, const double *expected, size_t count) {
    double *values = mem_alloc(count, sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = got[i];
    double error = relative_error(values, expected, count);
    if (!(error < 1e-5)) fail_msg("relative error %g, expected below 1e-5", error);
    free(values);
}

/* Inputs are copied to the device and multiplied, and results are copied back, in the order of one
 * stream and without other synchronisation. A second stream then does the same with the same
 * product. */
static void test_streams(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    enum { NODES = 6, BLOCK = 32, ARRAYS = 6, NON_BLOCKING = 1 };
    backend *be = test_backend(FP32); /* makes the primary context current */
    driver cu;
    load_driver(&cu);
    random_restart(23);
    smallworld_options how = options_of(FP32);
    problem p = make_problem(NODES, BLOCK, 0.4);
    smallworld_product *product = create_product(&p, &how);
    const size_t weights = p.weights, values = p.values;
    void *streams[2];
    for (int s = 0; s < 2; s++) assert_int_equal(cu.stream_create(&streams[s], NON_BLOCKING), 0);
    for (int s = 0; s < 2; s++) {
        draw_values(&p);
        /* w, x, dy; then y, dx, dw, which begin as NaN */
        const size_t counts[ARRAYS] = {weights, values, values, values, values, weights};
        const double *inputs[ARRAYS] = {p.w, p.x, p.dy};
        const double *results[ARRAYS] = {[3] = p.y, p.dx, p.dw};
        float *host[ARRAYS];
        uintptr_t array[ARRAYS];
        for (int i = 0; i < ARRAYS; i++) {
            const size_t bytes = counts[i] * sizeof(float);
            host[i] = floats(inputs[i], counts[i]);
            assert_int_equal(cu.allocate(&array[i], bytes), 0);
            assert_int_equal(cu.to_device(array[i], host[i], bytes, streams[s]), 0);
        }
        void *at[ARRAYS];
        /* NOLINTNEXTLINE: addresses of the device */
        for (int i = 0; i < ARRAYS; i++) at[i] = (void *)array[i];
        assert_true(smallworld_fprop(product, at[0], at[1], at[3], p.columns, streams[s]));
        assert_true(smallworld_dgrad(product, at[0], at[2], at[4], p.columns, streams[s]));
        assert_true(smallworld_wgrad(product, at[2], at[1], at[5], p.columns, streams[s]));
        for (int i = 3; i < ARRAYS; i++) {
            assert_int_equal(cu.to_host(host[i], array[i], counts[i] * sizeof(float), streams[s]),
                             0);
        }
        assert_int_equal(cu.stream_wait(streams[s]), 0);
        for (int i = 3; i < ARRAYS; i++) check_floats(host[i], results[i], counts[i]);
        if (!smallworld_product_wait(product)) fail_msg("%s", smallworld_error());
        for (int i = 0; i < ARRAYS; i++) {
            assert_int_equal(cu.release(array[i]), 0);
            free(host[i]);
        }
        free_values(&p);
    }
    smallworld_product_free(product);
    for (int s = 0; s < 2; s++) assert_int_equal(cu.stream_destroy(streams[s]), 0);
    free(p.blocks);
    be->memory->destroy(be);
}

/* ---------------------------------------------------------------------------------- refusals */

static void refused(int nodes, int block, const int32_t (*blocks)[2], int count,
                    const smallworld_options *how, const char *part) {
    assert_null(smallworld_product_create(nodes, block, blocks, count, how));
    assert_contains(smallworld_error(), part);
}

static void test_refusals(void **state) {
    (void)state;
    static const int32_t own[][2] = {{0, 0}, {1, 1}}, lacking[][2] = {{0, 0}, {1, 0}};
    smallworld_options how = options_of(FP32), unknown = how;
    refused(0, 8, own, 2, &how, "nodes: expected");
    refused(2, 24, own, 2, &how, "block: expected");
    refused(2, 8, own, 1, &how, "blocks: expected");
    refused(2, 8, lacking, 2, &how, "self-blocks");
    unknown.device = "abacus";
    refused(2, 8, own, 2, &unknown, "run.device");
    smallworld_product *product = smallworld_product_create(2, 8, own, 2, &how);
    static float x[64] __attribute__((aligned(16))), y[64] __attribute__((aligned(16)));
    assert_false(smallworld_transpose(product, x, 7, 8, y, NULL));
    assert_string_equal(smallworld_error(), "rows, columns: expected multiples of 8, got 7 and 8");
    assert_false(smallworld_transpose(product, x, 8, 8, x, NULL));
    assert_contains(smallworld_error(), "y: expected memory that x does not overlap");
    assert_false(smallworld_fprop(product, x, x, x, 1, NULL));
    assert_contains(smallworld_error(), "does not overlap");
    assert_false(smallworld_transpose(product, NULL, 8, 8, y, NULL));
    assert_false(smallworld_transpose(NULL, x, 8, 8, y, NULL));
    smallworld_product_free(product);
    how.device = "cpu";
    how.precision = "bf16";
    refused(2, 8, own, 2, &how, "bf16");
    assert_null(smallworld_load("/nowhere/m.safetensors", NULL));
    assert_contains(smallworld_error(), "/nowhere/m.safetensors");
    smallworld_free(NULL);
    smallworld_product_free(NULL);
    assert_string_equal(smallworld_version(), SMALLWORLD_VERSION);
}

int main(void) {
    backend *be = test_backend(FP32); /* or skip */
    be->memory->destroy(be);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_refused_convolutions),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
