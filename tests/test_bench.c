/* The benchmarks' arithmetic on shapes that can be worked out by hand, and what they write. */
#include "support.h"

#include "bench/conv.h"
#include "bench/report.h"
#include "bench/timing.h"
#include "bench/update.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_near(double found, double expected) {
    if (fabs(found - expected) <= 1e-9 * fabs(expected)) return;
    fail_msg("%.12g, expected %.12g", found, expected);
}

/* -------------------------------------------------------------------------------- the patterns */

/* A layout of 16 nodes, in which row i reads the columns that `reads` gives. */
static layout *layout_where(bool (*reads)(int i, int j), int block, int gates) {
    enum { NODES = 16 };
    int32_t blocks[NODES * NODES][2];
    int count = 0;
    for (int i = 0; i < NODES; i++) {
        for (int j = 0; j < NODES; j++) {
            if (i != j && !reads(i, j)) continue;
            blocks[count][0] = i;
            blocks[count++][1] = j;
        }
    }
    error err;
    graph *g = graph_from_blocks(NODES, blocks, count, &err);
    assert_non_null(g);
    layout *l = layout_from_graph(g, block, gates);
    graph_free(g);
    return l;
}

static bool nobody(int i, int j) {
    (void)i, (void)j;
    return false;
}

/* Each row of a group of four neighbours reads all four of the group. */
static bool cliques(int i, int j) {
    return i / 4 == j / 4;
}

/* --------------------------------------------------------------------------------------- costs */

static void test_product_memory_and_operations(void **state) {
    (void)state;
    layout *l = layout_where(cliques, 32, GATES);
    double weights = 64 * 4 * 32 * 32, x = 512 * 8, y = 4 * x;
    cost f = cost_of_product(l, PRODUCT_FPROP, 8, 2, 2);
    cost d = cost_of_product(l, PRODUCT_DGRAD, 8, 2, 2);
    cost w = cost_of_product(l, PRODUCT_WGRAD, 8, 2, 4);
    assert_near(f.memory, 2 * (weights + x + y));
    assert_near(d.memory, 2 * (weights + x + y));
    assert_near(w.memory, 2 * (x + y) + 4 * weights);
    assert_near(f.operations, 2 * weights * 8);
    assert_near(d.operations, f.operations);
    assert_near(w.operations, f.operations);
    layout_free(l);
}

/* 12,288 units at density 0.1 need 30 MB, and so 7.2 us at 4.2 TB/s. */
static void test_product_floor(void **state) {
    (void)state;
    graph_options options = {.kind = GRAPH_RANDOM, .density = 0.1, .file = "", .seed = 1};
    error err;
    graph *g = graph_create(&options, 384, &err);
    assert_non_null(g);
    layout *l = layout_from_graph(g, 32, 1);
    ceilings c = {.memory = 4.2e12, .rate = {779e12, 51e12}, .cache = 7.6e12};
    cost f = cost_of_product(l, PRODUCT_FPROP, 32, 2, 2);
    limit by;
    double seconds = cost_floor(f, &c, MATH_BF16, &by);
    assert_int_equal(by, LIMIT_MEMORY);
    assert_near(f.memory, 2.0 * (graph_blocks(g) * 1024.0 + 2 * 12288 * 32));
    assert_true(seconds > 7.2e-6 && seconds < 7.7e-6);
    /* With many columns the traffic of blocks of 32 is the limit: 0.41 of the rate. */
    double parts[LIMITS];
    f = cost_of_product(l, PRODUCT_FPROP, 8192, 2, 2);
    cost_floor(f, &c, MATH_BF16, &by);
    cost_seconds(f, &c, MATH_BF16, parts);
    assert_int_equal(by, LIMIT_CACHE);
    assert_true(fabs(parts[LIMIT_ARITHMETIC] / parts[LIMIT_CACHE] - 0.41) < 0.01);
    layout_free(l);
    graph_free(g);
}

/* Bytes out of the L2, in elements of one byte. */
static double gather(bool (*reads)(int i, int j), bench_product product, int columns) {
    layout *l = layout_where(reads, 32, 1);
    double bytes = cost_of_product(l, product, columns, 1, 1).cache;
    layout_free(l);
    return bytes;
}

static void test_gathered_bytes(void **state) {
    (void)state;
    /* Nothing is shared: each block gathers its own tile, and the weights are read once. */
    assert_near(gather(nobody, PRODUCT_FPROP, 64), 16 * 32 * 64 + 16 * 1024);
    assert_near(gather(nobody, PRODUCT_DGRAD, 64), 16 * 32 * 64 + 16 * 1024);
    /* Groups of four share all that they gather: four tiles a group in place of sixteen. */
    assert_near(gather(cliques, PRODUCT_FPROP, 64), 16 * 32 * 64 + 64 * 1024);
    /* wgrad of a clique: 16 blocks of 1,024 sums fit together, so rows and columns are
     * read once. */
    assert_near(gather(cliques, PRODUCT_WGRAD, 64), 2 * 16 * 32 * 64);
    /* The sums of so many columns do not fit, so the weights are read once for each share
     * of them. */
    double wide = gather(cliques, PRODUCT_FPROP, 8192);
    assert_near(wide, 16.0 * 32 * 8192 + 64 * 1024 * 16);
}

static void test_dense_gather(void **state) {
    (void)state;
    layout *l = layout_dense(1024, 512, 1, 1);
    cost c = cost_of_product(l, PRODUCT_FPROP, 1024, 1, 1);
    assert_near(c.cache, 512.0 * (1024 * 4 + 1024 * 4)); /* tiles of 256 x 256 */
    layout_free(l);
}

static void test_floor_skips_what_was_not_measured(void **state) {
    (void)state;
    ceilings c = {.memory = 10, .rate = {[MATH_FP32] = 5}};
    limit by;
    assert_near(cost_floor((cost){10, 100, 1e9}, &c, MATH_FP32, &by), 20);
    assert_int_equal(by, LIMIT_ARITHMETIC);
    assert_near(cost_floor((cost){10, 100, 1e9}, &c, MATH_BF16, &by), 1);
    assert_int_equal(by, LIMIT_MEMORY);
}

static void test_median(void **state) {
    (void)state;
    double odd[] = {3, 1, 2}, even[] = {4, 1, 3, 2};
    assert_near(median(odd, 3), 2);
    assert_near(median(even, 4), 2.5);
}

/* --------------------------------------------------------------------------------- the update */

static const floor_line *find_line(const update_floor *f, const char *what) {
    for (int i = 0; i < f->count; i++) {
        if (strcmp(f->lines[i].what, what) == 0) return &f->lines[i];
    }
    fail_msg("the floor has no line '%s'", what);
    return NULL;
}

static void test_update_floor(void **state) {
    (void)state;
    model_config config = {.layers = 1,
                           .hidden = 64,
                           .block = 8,
                           .embedding = 4,
                           .input_stride = 1,
                           .output_stride = 1,
                           .graph = GRAPH_RANDOM,
                           .density = 0.5,
                           .graph_file = "",
                           .norm = NORM_LAYER,
                           .init_gain = 1,
                           .seed = 1};
    error err;
    backend *be = backend_cpu(FP32, 1);
    model *m = model_create(be, &config, NULL, 3, 5, 1, MODEL_TRAINING, &err);
    assert_non_null(m);
    update_floor f;
    update_floor_describe(m, 0, &f);
    double weights = (double)layout_weights(m->layouts[0]), units = 64 * 3;

    const floor_line *line = find_line(&f, "gates fprop");
    assert_near(line->times, 5);
    assert_near(line->cost.memory, 4 * (weights + 4 * units)); /* W, and W h for backward */
    assert_near(line->cost.operations, 2 * weights * 3);
    assert_near(find_line(&f, "gates dgrad")->times, 4);
    assert_near(find_line(&f, "gates")->cost.memory, units * 8);           /* h and c */
    assert_near(find_line(&f, "gates backward")->cost.memory, units * 56); /* dh, c, W h, 2 grads */
    assert_near(find_line(&f, "gates wgrad")->cost.operations, 2 * weights * 15);
    assert_near(find_line(&f, "Adam")->cost.memory, 40.0 * (double)m->parameters.total);

    ceilings c = {.memory = 1e9, .rate = {[MATH_FP32] = 1e10}};
    double parts[TIME_PARTS], sum = 0;
    double total = update_floor_seconds(&f, &c, MATH_FP32, parts);
    for (int part = 0; part < TIME_PARTS; part++) {
        if (part == TIME_RECOMPUTE) {
            assert_near(parts[part], 0);
        } else {
            assert_true(parts[part] > 0);
        }
        sum += parts[part];
    }
    assert_near(total, sum);

    /* A second layer has the lines of the first, and those of the product that reads the first. */
    config.layers = 2;
    model *two = model_create(be, &config, NULL, 3, 5, 1, MODEL_TRAINING, &err);
    assert_non_null(two);
    update_floor g;
    update_floor_describe(two, 0, &g);
    assert_near(find_line(&g, "layer2.below fprop")->cost.operations, 2 * weights * 15);
    assert_near(find_line(&g, "layer2.below sum")->times, 5);
    assert_near(find_line(&g, "layer2.gates wgrad")->cost.operations, 2 * weights * 15);
    assert_near(find_line(&g, "input tables")->times, 2);
    assert_true(g.waits == 2 * f.waits);
    assert_true(update_floor_seconds(&g, &c, MATH_FP32, NULL) > 1.5 * total);
    model_free(two);

    /* Weights that stay in the cache are not fetched again. Nothing is, if everything
     * stays there. */
    update_floor_describe(m, (size_t)weights * 4, &f);
    assert_near(find_line(&f, "gates fprop")->cost.memory, 4 * 4 * units);
    assert_near(find_line(&f, "gates dgrad")->cost.memory, 0);
    update_floor_describe(m, 1 << 30, &f);
    assert_near(find_line(&f, "Adam")->cost.memory, 0);
    assert_near(find_line(&f, "Adam")->cost.cache, 40.0 * (double)m->parameters.total);
    model_free(m);
    be->destroy(be);
}

/* ------------------------------------------------------------------------------------ the grid */

static void test_grid(void **state) {
    (void)state;
    grid g = {.units = 12288};
    grid_add(&g, &grid_default);
    assert_int_equal(g.count, 6);
    grid_add(&g, &grid_default);
    assert_int_equal(g.count, 6); /* each cell once */
    grid_free(&g);

    g.units = 12288;
    grid_add_full(&g);
    assert_true(g.count > 500);
    static const int between[] = {48, 96, 200}; /* columns that fill no tile of 64 */
    for (int i = 0; i < 3; i++) {
        size_t cells = 0;
        for (size_t k = 0; k < g.count; k++) cells += g.cells[k].columns == between[i];
        assert_int_equal(cells, 3 * 6); /* products, densities */
    }
    grid_sort(&g);
    for (size_t i = 0; i < g.count; i++) {
        const grid_cell *c = &g.cells[i];
        assert_true(c->density * (g.units / c->block) >= 1.5);
        if (i > 0) assert_memory_not_equal(c, c - 1, sizeof *c);
    }
    grid_free(&g);

    g.units = 1000; /* no multiple of 32 */
    grid_add(&g, &grid_default);
    assert_int_equal(g.count, 0);
    grid_free(&g);
}

/* ------------------------------------------------------------------------------------- reports */

enum { ROWS = 4 };

/* The results have two N and two densities, and cuSPARSE's time at the first N alone. */
static matmul_results made_up(matmul_row rows[ROWS]) {
    matmul_results r = {.device = "A <GPU> & more",
                        .units = 12288,
                        .rows = rows,
                        .count = ROWS,
                        .seconds = 1,
                        .ceilings = {.memory = 4e12, .cache = 7e12, .node = 6e-7}};
    for (int i = 0; i < ROWS; i++) {
        rows[i] = (matmul_row){
            .cell = {.gates = 1, .block = 32, .columns = i < 2 ? 32 : 64, .density = 0.1},
            .blocks = 1000,
            .density = i % 2 ? 0.01 : 0.1,
            .padded = 64,
            .ours = 1e-5,
            .library = {i % 2 ? 2e-4 : 1e-4, i < 2 ? 5e-5 : NAN},
            .parts = {7e-6, 1e-6, 2e-6},
            .floor = 7.6e-6,
            .by = LIMIT_MEMORY,
            .kernel = "few_columns",
            .weight_bytes = 2048000,
            .table_bytes = 20480};
    }
    return r;
}

static int occurrences(const char *text, const char *what) {
    int count = 0;
    for (; (text = strstr(text, what)); text++) count++;
    return count;
}

/* Prints to a file what goes to a stream. */
static char *printed(void (*print)(const matmul_results *r, FILE *out), const matmul_results *r) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    print(r, out);
    fclose(out);
    return text;
}

static void test_text_and_json(void **state) {
    (void)state;
    matmul_row rows[ROWS];
    matmul_results r = made_up(rows);
    char *text = printed(report_text, &r);
    assert_int_equal(occurrences(text, "held by"), 2); /* one table for each N */
    assert_int_equal(occurrences(text, "padded to 64"), 1);
    assert_int_equal(occurrences(text, "76 %  memory     few_columns"), ROWS);
    free(text);
    text = printed(report_json, &r);
    assert_int_equal(occurrences(text, "\"blocked_ell_us\": null"), ROWS - 2);
    assert_int_equal(occurrences(text, "\"speedup\": 10"), 2);
    assert_int_equal(occurrences(text, "\"speedup\": 20"), 2);
    assert_int_equal(occurrences(text, "\"table_share\": 0.01"), ROWS);
    assert_int_equal(occurrences(text, "\"kernel\": \"few_columns\""), ROWS);
    free(text);
}

static void test_conv_reports(void **state) {
    (void)state;
    const conv_options o = {
        .features = 1024, .block = 32, .images = 64, .shape = {.in = {32, 32}, .filter = {3, 3}}};
    const conv_results r = {.device = "A GPU",
                            .dense = 1e-3,
                            .rows = {{0.25, {4e-4, 5e-4, 6e-4}}, {0.1, {1e-4, 2e-4, 3e-4}}},
                            .count = 2};
    for (int json = 0; json < 2; json++) {
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        (json ? conv_json : conv_text)(&o, &r, out);
        fclose(out);
        assert_contains(text, json ? "\"dense_us\": 1000" : "dense, at the measured rate: 1000 us");
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
    be->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv_reports),
        cmocka_unit_test(test_product_memory_and_operations),
        cmocka_unit_test(test_product_floor),
        cmocka_unit_test(test_gathered_bytes),
        cmocka_unit_test(test_dense_gather),
        cmocka_unit_test(test_floor_skips_what_was_not_measured),
        cmocka_unit_test(test_median),
        cmocka_unit_test(test_update_floor),
        cmocka_unit_test(test_grid),
        cmocka_unit_test(test_text_and_json),
        cmocka_unit_test(test_time_operation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
