/* The benchmarks' grid and clock, and what they write. */
#include "support.h"

#include "bench/products.h"
#include "bench/timing.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void test_grid(void **state) {
    (void)state;
    product_grid g = {.units = 12288};
    for (int i = 0; i < 2; i++) {
        product_grid_add(&g, &product_default);
        assert_int_equal(g.count, 6); /* each cell once */
    }
    free(g.cells);

    g = (product_grid){.units = 12288};
    product_grid_add_full(&g);
    assert_true(g.count > 500);
    static const int between[] = {48, 96, 200}; /* columns that fill no tile of 64 */
    for (int i = 0; i < 3; i++) {
        size_t cells = 0;
        for (size_t k = 0; k < g.count; k++) {
            cells += g.cells[k].at[AXIS_COLUMNS] == between[i];
            assert_true(g.cells[k].at[AXIS_DENSITY] * (g.units / g.cells[k].at[AXIS_BLOCK]) >=
                        15000);
        }
        assert_int_equal(cells, 3 * 6); /* products, densities */
    }
    free(g.cells);

    g = (product_grid){.units = 1000}; /* no multiple of 32 */
    product_grid_add(&g, &product_default);
    assert_int_equal(g.count, 0);
}

static int occurrences(const char *text, const char *what) {
    int count = 0;
    for (; (text = strstr(text, what)); text++) count++;
    return count;
}

/* Two N and two densities, made up. */
static void test_text_and_json(void **state) {
    (void)state;
    enum { ROWS = 4 };
    product_row rows[ROWS];
    const product_results r = {.device = "A <GPU> & more",
                               .units = 12288,
                               .rows = rows,
                               .count = ROWS,
                               .rates = {4e12, {7e14, 0}}};
    for (int i = 0; i < ROWS; i++) {
        rows[i] = (product_row){
            .cell = {{0, PRODUCT_DGRAD, 1, 0, 32, i < 2 ? 32 : 64, i % 2 ? 100 : 1000}},
            .blocks = 1000,
            .density = i % 2 ? 0.01 : 0.1,
            .padded = 64,
            .ours = 1e-5,
            .dense = i % 2 ? 2e-4 : 1e-4,
            .memory = 7e-6,
            .arithmetic = 1e-6,
            .kernel = "few_columns",
            .weight_bytes = 2048000,
            .table_bytes = 20480};
    }
    for (int json = 0; json < 2; json++) {
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        (json ? products_json : products_text)(&r, out);
        fclose(out);
        if (json) {
            assert_int_equal(occurrences(text, "\"fp32_operations_per_second\": null"), 1);
            assert_int_equal(occurrences(text, "\"product\": \"dgrad\""), ROWS);
            assert_int_equal(occurrences(text, "\"speedup\": 10"), 2);
            assert_int_equal(occurrences(text, "\"speedup\": 20"), 2);
            assert_int_equal(occurrences(text, "\"kernel\": \"few_columns\""), ROWS);
        } else {
            assert_int_equal(occurrences(text, "held by"), 2); /* one table for each N */
            assert_int_equal(occurrences(text, "padded to 64"), 1);
            assert_int_equal(occurrences(text, "70 %  memory     few_columns"), ROWS);
        }
        free(text);
    }
}

static void test_conv_reports(void **state) {
    (void)state;
    const conv_options o = {
        .features = 1024, .block = 32, .images = 64, .shape = {.in = {32, 32}, .filter = {3, 3}}};
    const conv_results r = {
        .device = "A GPU", .dense = 1e-3, .rows = {{0.25, {4e-4, 5e-4, 6e-4}}}, .count = 1};
    for (int json = 0; json < 2; json++) {
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        (json ? conv_json : conv_text)(&o, &r, out);
        fclose(out);
        assert_contains(text, json ? "\"dgrad_us\": 500" : "0.2500    400 us    0.400    500 us");
        free(text);
    }
}

/* A recording that takes almost no time is still timed, and one that fails is reported. */
static int issued;

static void count_issues(void *argument, int set) {
    assert_ptr_equal(argument, &issued);
    assert_in_range(set, 0, 2);
    issued++;
}

static void test_time_operation(void **state) {
    (void)state;
    const timing how = {3, 1e-4, 1};
    double seconds = -1;
    error err;
    backend *be = backend_cpu(FP32, 1);
    issued = 0;
    assert_true(time_operation(be, &how, count_issues, &issued, 3, &seconds, &err));
    assert_true(seconds >= 0 && seconds < 1e-3);
    assert_true(issued > 3 * 4);
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_text_and_json),
        cmocka_unit_test(test_conv_reports),
        cmocka_unit_test(test_time_operation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
