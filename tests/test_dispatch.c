/* The GPU's table of kernels: each kernel by its name, and names that are forced. */
#include "products.h"

#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Every kernel of the dispatch table by its name. Each has a shape for which it must run, if the
 * GPU and the build have it. */
// clang-format off
static const struct kernel_case {
    const char *kernel, *reason;
    precision precision;
    bench_product product;
    shape shape; /* columns in multiples of 32 */
} kernel_cases[] = {
    {"gather", "four gates of a node in parts of six, so that a part has gates of several nodes",
     BF16, PRODUCT_FPROP,
     {.nodes = 71, .block = 32, .gates = GATES, .columns = 4, .steps = 1, .share = 0.15}},
    {"gather", "a hub's list, which several thread blocks share",
     BF16, PRODUCT_DGRAD,
     {.nodes = 60, .block = 32, .gates = GATES, .columns = 8, .steps = 1,
      .share = 0.05, .hubs = true}},
    {"gather", "coupled gates of a node in one part",
     BF16, PRODUCT_FPROP,
     {.nodes = 40, .block = 64, .gates = COUPLED_GATES, .columns = 4, .steps = 1, .share = 0.2}},
    {"gather", "coupled gates in three stages of a block",
     BF16, PRODUCT_DGRAD,
     {.nodes = 70, .block = 32, .gates = COUPLED_GATES, .columns = 4, .steps = 1, .share = 0.1}},
    {"wgrad_gates", "coupled gates, whose last tile of rows is half empty",
     BF16, PRODUCT_WGRAD,
     {.nodes = 11, .block = 64, .gates = COUPLED_GATES, .columns = 4, .steps = 3, .share = 0.3}},
    {"gather", "the fewest columns of one gate that it takes, of long lists",
     BF16, PRODUCT_FPROP,
     {.nodes = 80, .block = 64, .gates = 1, .columns = 3, .steps = 1, .share = 0.5}},
    {"gather", "four gates' lists of like nodes, shared by many thread blocks",
     BF16, PRODUCT_DGRAD,
     {.nodes = 42, .block = 64, .gates = GATES, .columns = 4, .steps = 1, .share = 0.6}},
    {"gather", "lists of like nodes, shared by two thread blocks, and the last group smaller",
     BF16, PRODUCT_FPROP,
     {.nodes = 389, .block = 32, .gates = 1, .columns = 4, .steps = 1, .share = 0.5}},
    {"gather", "shared lists of large blocks",
     BF16, PRODUCT_DGRAD,
     {.nodes = 23, .block = 128, .gates = 1, .columns = 4, .steps = 1, .share = 0.7}},
    {"gather", "hubs whose lists are cut, transposed",
     BF16, PRODUCT_DGRAD,
     {.nodes = 395, .block = 32, .gates = 1, .columns = 16, .steps = 1,
      .share = 0.005, .hubs = true}},
    {"wgrad_gates", "several steps, and rows of four gates that are one tile",
     BF16, PRODUCT_WGRAD,
     {.nodes = 33, .block = 32, .gates = GATES, .columns = 4, .steps = 3, .share = 0.1}},
    {"wgrad_one_gate", "more tiles than thread blocks make at a time",
     BF16, PRODUCT_WGRAD,
     {.nodes = 132, .block = 32, .gates = 1, .columns = 6, .steps = 1, .share = 0.75}},
    {"small_blocks", "four gates, beyond the columns that few_columns takes",
     BF16, PRODUCT_DGRAD,
     {.nodes = 150, .block = 8, .gates = GATES, .columns = 6, .steps = 1, .share = 0.1}},
    {"wgrad_small_blocks", "tasks of neighbouring rows of 16",
     BF16, PRODUCT_WGRAD,
     {.nodes = 500, .block = 16, .gates = 1, .columns = 4, .steps = 3, .share = 0.05}},
    {"few_columns", "a tile of 96 columns",
     BF16, PRODUCT_DGRAD,
     {.nodes = 90, .block = 32, .gates = 1, .columns = 3, .steps = 1, .share = 0.2}},
    {"few_columns", "a tile of 96 columns, blocks of 16 and a hub",
     BF16, PRODUCT_FPROP,
     {.nodes = 150, .block = 16, .gates = 1, .columns = 3, .steps = 1,
      .share = 0.1, .hubs = true}},
    {"few_columns", "a tile of 96 columns, blocks of 8 in short lists",
     BF16, PRODUCT_DGRAD,
     {.nodes = 250, .block = 8, .gates = 1, .columns = 3, .steps = 1, .share = 0.02}},
    {"few_columns", "a hub's list, shared by the thread blocks of a cluster",
     BF16, PRODUCT_FPROP,
     {.nodes = 140, .block = 32, .gates = 1, .columns = 1, .steps = 1,
      .share = 0.01, .hubs = true}},
    {"portable_bf16", "several steps at once, which no other kernel takes",
     BF16, PRODUCT_DGRAD,
     {.nodes = 11, .block = 64, .gates = GATES, .columns = 2, .steps = 3, .share = 0.4}},
    {"portable_fp32", "lists longer than a warp looks up at a time",
     FP32, PRODUCT_WGRAD,
     {.nodes = 90, .block = 32, .gates = 1, .columns = 5, .steps = 1, .share = 0.4}},
};
// clang-format on

/* A kernel for another GPU is not in the table, so it cannot be forced. */
static void check_kernel(const struct kernel_case *k) {
    error err;
    pair p = open_pair(k->precision);
    backend *be = p.be;
    if (be->bench->force_kernel(be, k->kernel, &err)) {
        assert_true(be->bench->force_kernel(be, NULL, &err));
        const shape *s = &k->shape;
        const int columns = s->columns * be->product_multiple;
        graph *g = nasty_graph(s->nodes, s->share, s->hubs);
        layout *l = layout_from_graph(g, s->block, s->gates);
        device_layout *device = be->layout_create(be, l);
        const char *name = be->bench->kernel_name(be, device, k->product, s->steps, columns, &err);
        if (!name || strcmp(name, k->kernel) != 0) {
            fail_msg("%s: expected %s, got %s", k->reason, k->kernel, name ? name : err.text);
        }
        be->layout_free(be, device);
        check_layout(&p, l, columns, s->steps, k->reason);
        layout_free(l);
        graph_free(g);
    }
    close_pair(&p);
}

static void test_kernels_by_name(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    random_restart(18);
    for (size_t i = 0; i < sizeof kernel_cases / sizeof kernel_cases[0]; i++) {
        check_kernel(&kernel_cases[i]);
    }
}

/* An unknown name is refused with one line that lists the names. So is a call that the forced
 * kernel does not take. */
static void test_forced_kernels(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    backend *be = test_backend(BF16);
    error err;
    assert_false(be->bench->force_kernel(be, "no_such_kernel", &err));
    assert_contains(err.text, "no_such_kernel");
    assert_contains(err.text, "portable_bf16");
    assert_false(be->bench->force_kernel(be, "portable_fp32", &err)); /* of another precision */
    assert_true(be->bench->force_kernel(be, "few_columns", &err));
    graph *g = nasty_graph(11, 0.3, true);
    layout *l = layout_from_graph(g, 32, 1);
    device_layout *device = be->layout_create(be, l);
    assert_string_equal(be->bench->kernel_name(be, device, PRODUCT_FPROP, 1, 256, &err),
                        "few_columns");
    assert_null(be->bench->kernel_name(be, device, PRODUCT_FPROP, 2, 256, &err));
    assert_contains(err.text, "few_columns does not take fprop");
    assert_non_null(be->bench->kernel_name(be, device, PRODUCT_WGRAD, 2, 256, &err));
    be->layout_free(be, device);
    layout_free(l);
    graph_free(g);
    be->destroy(be);
}

/* Each choice is explained once: the kernel, and what the rows above it need. */
static void test_explanations(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    backend *be = test_backend(FP32);
    graph *g = nasty_graph(11, 0.3, true);
    layout *l = layout_from_graph(g, 32, 1);
    device_layout *device = be->layout_create(be, l);
    const size_t weights = layout_weights(l), values = layout_rows(l) * 64;
    float *w = be->allocate(be, weights * 4), *x = be->allocate(be, values * 4);
    float *y = be->allocate(be, values * 4);
    size_t length = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, &length);
    be->bench->explain(be, out);
    for (int i = 0; i < 2; i++) be->fprop(be, device, w, x, 1, 64, y, OPERAND);
    be->bench->explain(be, NULL);
    fclose(out);
    assert_string_equal(text, "fprop, 1 gate, blocks of 32, 64 columns, 1 step: portable_fp32\n"
                              "    not cublas, which needs a dense W\n");
    free(text);
    be->release(be, w);
    be->release(be, x);
    be->release(be, y);
    be->layout_free(be, device);
    layout_free(l);
    graph_free(g);
    be->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernels_by_name),
        cmocka_unit_test(test_forced_kernels),
        cmocka_unit_test(test_explanations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
