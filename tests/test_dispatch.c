/* The GPU's table of kernels: names that are forced, and choices that are explained. */
#include "products.h"

#include "bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    device_layout *device = be->memory->layout_create(be, l);
    assert_string_equal(be->bench->kernel_name(be, device, PRODUCT_FPROP, 1, 256, &err),
                        "few_columns");
    assert_null(be->bench->kernel_name(be, device, PRODUCT_FPROP, 2, 256, &err));
    assert_contains(err.text, "few_columns does not take fprop");
    assert_non_null(be->bench->kernel_name(be, device, PRODUCT_WGRAD, 2, 256, &err));
    be->memory->layout_free(be, device);
    layout_free(l);
    graph_free(g);
    be->memory->destroy(be);
}

/* Each choice is explained once: the kernel, and what the rows above it need. */
static void test_explanations(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    backend *be = test_backend(FP32);
    graph *g = nasty_graph(11, 0.3, true);
    layout *l = layout_from_graph(g, 32, 1);
    device_layout *device = be->memory->layout_create(be, l);
    const size_t weights = layout_weights(l), values = layout_rows(l) * 64;
    float *w = be->memory->allocate(be, weights * 4), *x = be->memory->allocate(be, values * 4);
    float *y = be->memory->allocate(be, values * 4);
    size_t length = 0;
    char *text = NULL;
    FILE *out = open_memstream(&text, &length);
    be->bench->explain(be, out);
    for (int i = 0; i < 2; i++) be->products->fprop(be, device, w, x, 1, 64, y, OPERAND);
    be->bench->explain(be, NULL);
    fclose(out);
    assert_string_equal(text, "fprop, 1 gate, blocks of 32, 64 columns, 1 step: portable_fp32\n"
                              "    not cublas, which needs a dense W\n");
    free(text);
    be->memory->release(be, w);
    be->memory->release(be, x);
    be->memory->release(be, y);
    be->memory->layout_free(be, device);
    layout_free(l);
    graph_free(g);
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forced_kernels),
        cmocka_unit_test(test_explanations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
