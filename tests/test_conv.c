/* Convolutions of a block-sparse pattern against their definition, in double: all three products,
 * with outputs poisoned first. */
#include "support.h"

#include "core/memory.h"
#include "graph/taps.h"

#include <stdlib.h>

typedef struct conv_case {
    const char *reason;
    int out_nodes, in_nodes, block;
    conv_shape shape;
} conv_case;

// clang-format off
static const conv_case cases[] = {
    {"one pixel and one tap: a rectangular product",
     5, 3, 8, {{1, 1}, {1, 1}, {1, 1}, {1, 1}, {{0, 0}, {0, 0}}, {0, 0}}},
    {"a causal signal with dilation",
     3, 4, 16, {{1, 13}, {1, 3}, {1, 1}, {1, 2}, {{0, 0}, {4, 0}}, {0, 0}}},
    {"the usual filter of an image",
     4, 5, 32, {{5, 7}, {3, 3}, {1, 1}, {1, 1}, {{1, 1}, {1, 1}}, {0, 0}}},
    {"a filter shifted down and to the right",
     3, 3, 32, {{6, 4}, {2, 3}, {1, 1}, {1, 1}, {{1, 0}, {1, 1}}, {0, 0}}},
    {"strides, by which some inputs are read by few taps",
     4, 3, 64, {{8, 9}, {3, 3}, {2, 2}, {1, 1}, {{1, 1}, {1, 1}}, {0, 0}}},
    {"strides without overlap: inputs that nothing reads",
     3, 4, 8, {{7, 8}, {1, 1}, {2, 3}, {1, 1}, {{0, 0}, {0, 0}}, {0, 0}}},
    {"unlike strides and dilations, wide padding",
     4, 3, 16, {{6, 11}, {3, 5}, {1, 2}, {2, 1}, {{3, 2}, {4, 4}}, {0, 0}}},
    {"large blocks",
     3, 2, 128, {{3, 4}, {3, 3}, {1, 1}, {1, 1}, {{1, 1}, {1, 1}}, {0, 0}}},
    {"more taps than pixels",
     9, 8, 32, {{2, 2}, {5, 5}, {1, 1}, {1, 1}, {{2, 2}, {2, 2}}, {0, 0}}},
};
// clang-format on

/* Draws a pattern whose second row and last column are empty if there are more, of pairs
 * [out_nodes * in_nodes]. */
static int draw_pairs(const conv_case *c, int32_t (*pairs)[2]) {
    int count = 0;
    for (int i = 0; i < c->out_nodes; i++) {
        for (int j = 0; j < c->in_nodes; j++) {
            if (count > 0 && j + 1 == c->in_nodes) continue;
            if (i == 1 || (i > 0 && random_uniform() > 0.6)) continue;
            pairs[count][0] = i;
            pairs[count++][1] = j;
        }
    }
    return count;
}

/* The arrays of one convolution, on the host in double. */
typedef struct arrays {
    size_t weights, inputs, outputs; /* numbers of elements */
    double *w, *x, *dy, *y, *dx, *dw;
} arrays;

/* y, dx and dw by the definition in graph/taps.h. */
static void convolve(const conv_case *c, const conv_shape *s, int32_t (*pairs)[2], int count,
                     size_t columns, arrays *a) {
    const size_t b = (size_t)c->block, taps = (size_t)conv_positions(s->filter);
    a->y = mem_alloc(a->outputs, sizeof(double));
    a->dx = mem_alloc(a->inputs, sizeof(double));
    a->dw = mem_alloc(a->weights, sizeof(double));
    for (int p = 0; p < conv_positions(s->out); p++) {
        for (size_t t = 0; t < taps; t++) {
            const int f = (int)t / s->filter[1], g = (int)t % s->filter[1];
            const int row = p / s->out[1] * s->stride[0] + f * s->dilation[0] - s->pad[0][0];
            const int column = p % s->out[1] * s->stride[1] + g * s->dilation[1] - s->pad[1][0];
            if (row < 0 || row >= s->in[0] || column < 0 || column >= s->in[1]) continue;
            const size_t q = (size_t)(row * s->in[1] + column);
            for (size_t k = 0; k < (size_t)count; k++) {
                for (size_t e = 0; e < b * b; e++) {
                    const size_t w = (k * taps + t) * b * b + e;
                    const size_t out = (size_t)p * (size_t)c->out_nodes + (size_t)pairs[k][0];
                    const size_t in = q * (size_t)c->in_nodes + (size_t)pairs[k][1];
                    const size_t to = (out * b + e / b) * columns,
                                 from = (in * b + e % b) * columns;
                    for (size_t n = 0; n < columns; n++) {
                        a->y[to + n] += a->w[w] * a->x[from + n];
                        a->dx[from + n] += a->w[w] * a->dy[to + n];
                        a->dw[w] += a->dy[to + n] * a->x[from + n];
                    }
                }
            }
        }
    }
}

static void check_array(backend *be, const conv_case *c, const char *what, const void *array,
                        const double *expected, size_t count, element type, double tolerance) {
    double *found = get(be, array, count, type);
    const double error = relative_error(found, expected, count);
    if (!(error < tolerance)) {
        fail_msg("%s, %s: relative error %g, expected below %g", c->reason, what, error, tolerance);
    }
    free(found);
}

static void check_case(backend *be, const conv_case *c, int columns) {
    if (!takes_case()) return;
    error err;
    conv_shape s = c->shape;
    if (!conv_shape_finish(&s, &err)) fail_msg("%s: %s", c->reason, err.text);
    int32_t(*pairs)[2] = mem_alloc((size_t)(c->out_nodes * c->in_nodes), sizeof *pairs);
    const int count = draw_pairs(c, pairs), taps = conv_positions(s.filter);
    layout *l =
        layout_pairs(c->out_nodes, c->in_nodes, (const int32_t(*)[2])pairs, count, c->block, taps);
    arrays a = {.weights = layout_weights(l),
                .inputs = layout_inputs(l) * (size_t)(conv_positions(s.in) * columns),
                .outputs = layout_rows(l) * (size_t)(conv_positions(s.out) * columns)};
    double *drawn[] = {random_values(a.weights, -1, 1), random_values(a.inputs, -1, 1),
                       random_values(a.outputs, -1, 1)};
    void *at[] = {put(be, drawn[0], a.weights, OPERAND), put(be, drawn[1], a.inputs, OPERAND),
                  put(be, drawn[2], a.outputs, OPERAND), put_poison(be, a.outputs, OPERAND),
                  put_poison(be, a.inputs, OPERAND),     put_poison(be, a.weights, REAL)};
    a.w = get(be, at[0], a.weights, OPERAND); /* as they were rounded */
    a.x = get(be, at[1], a.inputs, OPERAND);
    a.dy = get(be, at[2], a.outputs, OPERAND);
    convolve(c, &s, pairs, count, (size_t)columns, &a);

    tap_table *table = taps_of(&s), *on_device = be->memory->taps_create(be, table);
    device_layout *device = be->memory->layout_create(be, l);
    be->products->conv_fprop(be, device, on_device, at[0], at[1], columns, at[3]);
    be->products->conv_dgrad(be, device, on_device, at[0], at[2], columns, at[4]);
    be->products->conv_wgrad(be, device, on_device, at[2], at[1], columns, at[5]);
    const double tolerance = be->precision == FP64 ? 1e-13 : 1e-5;
    const double stored = be->precision == BF16 ? 4e-3 : tolerance;
    check_array(be, c, "fprop", at[3], a.y, a.outputs, OPERAND, stored);
    check_array(be, c, "dgrad", at[4], a.dx, a.inputs, OPERAND, stored);
    check_array(be, c, "wgrad", at[5], a.dw, a.weights, REAL, tolerance);

    be->memory->taps_free(be, on_device);
    taps_free(table);
    be->memory->layout_free(be, device);
    layout_free(l);
    release_all(be, at, sizeof at / sizeof at[0]);
    double *const values[] = {drawn[0], drawn[1], drawn[2], a.w, a.x, a.dy, a.y, a.dx, a.dw};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) free(values[i]);
    free(pairs);
}

static int between(int least, int most) {
    return least + (int)random_below((uint64_t)(most - least + 1));
}

/* Draws images of 1 to 12 pixels a side and patterns of 1 to 6 nodes. */
static conv_case draw_case(void) {
    error err;
    for (;;) {
        conv_case c = {.reason = "random",
                       .out_nodes = between(1, 6),
                       .in_nodes = between(1, 6),
                       .block = 8 << between(0, 2)};
        for (int i = 0; i < 2; i++) {
            c.shape.in[i] = between(1, 12);
            c.shape.filter[i] = between(1, 4);
            c.shape.stride[i] = between(1, 3);
            c.shape.dilation[i] = between(1, 3);
            for (int k = 0; k < 2; k++) c.shape.pad[i][k] = between(0, 3);
        }
        conv_shape s = c.shape;
        if (!conv_shape_finish(&s, &err)) continue;
        const double work = (double)conv_positions(s.out) * conv_positions(s.filter) * c.out_nodes *
                            c.in_nodes * c.block * c.block;
        if (work < 1e6) return c;
    }
}

static void check_all(backend *be) {
    random_restart(31);
    for (int i = 0; i < 30; i++) {
        const conv_case c = draw_case();
        check_case(be, &c, between(1, 3) * be->product_multiple);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int k = 1; k <= 3; k++) check_case(be, &cases[i], k * be->product_multiple);
    }
    be->memory->destroy(be);
}

static void test_fp32(void **state) {
    (void)state;
    check_all(test_backend(FP32));
}

static void test_bf16(void **state) {
    (void)state;
    check_all(test_backend(BF16));
}

static void test_reference(void **state) {
    (void)state;
    if (test_device_is_cuda()) skip();
    check_all(backend_cpu_reference(0));
}

/* The transposed convolution is dgrad: it takes the output's shape to the input's. */
static void test_sizes(void **state) {
    (void)state;
    error err;
    conv_shape s = {{32, 30}, {3, 5}, {2, 1}, {1, 2}, {{1, 1}, {0, 0}}, {0, 0}};
    assert_true(conv_shape_finish(&s, &err));
    assert_int_equal(s.out[0], 16);
    assert_int_equal(s.out[1], 22);
    s.in[1] = 8;
    assert_false(conv_shape_finish(&s, &err));
    assert_string_equal(err.text,
                        "filter[1]: expected a reach of at most the padded input, 8, got 9");
    s = (conv_shape){{4000, 4000}, {20, 20}, {1, 1}, {1, 1}, {{0, 0}, {0, 0}}, {0, 0}};
    assert_false(conv_shape_finish(&s, &err));
    assert_string_equal(err.text,
                        "filter: expected at most 134 taps of 16000000 positions, got 400");
    s.stride[0] = 0;
    assert_false(conv_shape_finish(&s, &err));
    assert_contains(err.text, "stride[0]: expected 1 to ");
    s.pad[0][0] = -1;
    s.stride[0] = 1;
    assert_false(conv_shape_finish(&s, &err));
    assert_contains(err.text, "pad[0]: expected 0 to ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
