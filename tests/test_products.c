/* The three products of a backend against those of a more trusted one (pair.h), on random shapes
 * and patterns, with all outputs poisoned first. */
#include "products.h"

#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* A random number from `least` to `most`, as likely between 1 and 10 as between 10 and 100. */
static double spread(double least, double most) {
    return least * pow(most / least, random_uniform());
}

enum { KERNELS = 12, EACH = 8, MOST_SHAPES = 400, FEWEST = 6 /* nodes: always some blocks */ };

/* Draws a shape of this block: any number of gates, and of columns within and beyond a tile, on
 * patterns from nearly empty to nearly full, mostly of one step. The products take about `work`
 * multiplications at most. */
static shape draw_shape(int block, double work) {
    static const int gates[] = {1, COUPLED_GATES, GATES};
    shape s = {.block = block, .gates = random_uniform() < 0.5 ? 1 : gates[random_below(3)]};
    s.columns = (int)spread(1, 36);
    s.steps = random_uniform() < 0.75 ? 1 : 2 + (int)random_below(8);
    s.share = spread(0.0007, 0.97);
    s.hubs = random_uniform() < 0.5;
    s.nodes = FEWEST + (int)spread(1, 1400);
    for (;;) {
        const double n = s.nodes, blocks = n * n * s.share + n * (1 + 2 * s.hubs);
        const double values = n * block * s.gates * s.columns * 32 * s.steps;
        if (blocks * block * block * s.gates * s.columns * 32 * s.steps < work && values < 1e7)
            break;
        s.nodes = FEWEST + (s.nodes - FEWEST) * 4 / 5;
        if (s.nodes == FEWEST) s.columns = s.steps = 1;
        if (s.nodes == FEWEST) break;
    }
    return s;
}

/* How often kernels were met, in each of their products: several share a name. */
typedef struct census {
    const char *name[KERNELS];
    int count[KERNELS][PRODUCTS];
} census;

/* Notes the kernels of a layout's products. Whether one of them has not been met often. */
static bool note_kernels(backend *be, const layout *l, const shape *s, census *met) {
    device_layout *device = be->memory->layout_create(be, l);
    const int columns = s->columns * be->product_multiple;
    bool news = false;
    for (bench_product product = 0; product < PRODUCTS; product++) {
        error err;
        if (product == PRODUCT_WGRAD && columns % wgrad_multiple(be)) continue;
        const char *name = be->bench->kernel_name(be, device, product, s->steps, columns, &err);
        if (!name) fail_msg("%s", err.text);
        int k = 0;
        while (met->name[k] && strcmp(met->name[k], name) != 0) k++;
        met->name[k] = name;
        if (met->count[k][product]++ < EACH) news = true;
    }
    be->memory->layout_free(be, device);
    return news;
}

/* Checks a random layout of this shape. With `met`, on a GPU, only if it meets a kernel that has
 * not been met often. */
static void check_shape(pair *p, const shape *s, census *met) {
    graph *g = nasty_graph(s->nodes, s->share, s->hubs);
    layout *l = layout_from_graph(g, s->block, s->gates);
    char name[160];
    snprintf(name, sizeof name, "%d nodes of %d, %d gates, %d blocks, hubs %d", s->nodes, s->block,
             s->gates, l->blocks, s->hubs);
    if (!met || note_kernels(p->be, l, s, met)) {
        check_layout(p, l, s->columns * p->be->product_multiple, s->steps, name);
    }
    layout_free(l);
    graph_free(g);
}

/* Random shapes of a block. On a GPU they go on until each kernel that `expected` names, if the GPU
 * has it, was met so often; shapes that meet none of these are passed over. */
static void check_block(precision how, int block, const char *const *expected) {
    pair p = open_pair(how);
    census met = {0};
    random_restart((uint64_t)block + 1000);
    if (!test_device_is_cuda()) {
        for (int i = 0; i < 12; i++) {
            const shape s = draw_shape(block, 1e6);
            check_shape(&p, &s, NULL);
        }
        close_pair(&p);
        return;
    }
    for (int i = 0; i < MOST_SHAPES; i++) {
        const shape s = draw_shape(block, spread(1e7, 2e9));
        check_shape(&p, &s, &met);
    }
    for (; *expected; expected++) {
        error err;
        int k = 0, times = 0;
        if (!p.be->bench->force_kernel(p.be, *expected, &err)) continue; /* of another GPU */
        assert_true(p.be->bench->force_kernel(p.be, NULL, &err));
        while (k < KERNELS && (!met.name[k] || strcmp(met.name[k], *expected) != 0)) k++;
        for (int i = 0; k < KERNELS && i < PRODUCTS; i++) times += met.count[k][i];
        if (times < EACH) fail_msg("blocks of %d: %s met %d times", block, *expected, times);
    }
    close_pair(&p);
}

static const char *const small[] = {"small_blocks", "wgrad_small_blocks", "few_columns",
                                    "portable_bf16", NULL};
static const char *const large[] = {"gather",      "wgrad_gates",   "wgrad_one_gate",
                                    "few_columns", "portable_bf16", NULL};
static const char *const largest[] = {"gather", "wgrad_gates", "few_columns", "portable_bf16",
                                      NULL};

#define TEST_BLOCKS(size, kernels)                                                                 \
    static void test_blocks_of_##size(void **state) {                                              \
        (void)state;                                                                               \
        check_block(BF16, size, kernels);                                                          \
    }
TEST_BLOCKS(8, small)
TEST_BLOCKS(16, small)
TEST_BLOCKS(32, large)
TEST_BLOCKS(64, large)
TEST_BLOCKS(128, largest)

/* fp32 has one kernel. */
static void test_fp32(void **state) {
    (void)state;
    static const char *const plain[] = {"portable_fp32", NULL};
    for (int block = 8; block <= 128; block *= 2) check_block(FP32, block, plain);
}

/* Symmetric patterns with hubs. fprop and dgrad share tables for these. */
static void test_symmetric_patterns(void **state) {
    (void)state;
    static const struct {
        int nodes, block;
        double density;
    } patterns[] = {{400, 8, 0.02}, {200, 16, 0.05}, {130, 32, 0.06}, {40, 64, 0.2}};
    pair p = open_pair(BF16);
    random_restart(16);
    for (int i = 0; i < 4; i++) {
        graph_options hubs = {
            .kind = GRAPH_BARABASI_ALBERT, .density = patterns[i].density, .seed = 1};
        layout *l = pattern_layout(&hubs, patterns[i].nodes, patterns[i].block, 1);
        assert_true(layout_is_symmetric(l));
        for (int units = 1; units <= 8; units *= 2) {
            check_layout(&p, l, units * p.be->product_multiple, 1, "a symmetric pattern");
        }
        layout_free(l);
    }
    close_pair(&p);
}

/* A small world, whose neighbouring rows are alike; its tables keep the nodes' own order. */
static void test_small_world(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    pair p = open_pair(BF16);
    random_restart(14);
    graph_options ring = {.kind = GRAPH_WATTS_STROGATZ, .density = 0.08, .rewire = 0.1, .seed = 1};
    layout *l = pattern_layout(&ring, 181, 32, GATES);
    for (int units = 2; units <= 3; units++) {
        check_layout(&p, l, units * p.be->column_multiple, 1, "four gates of a small world");
    }
    layout_free(l);
    close_pair(&p);
}

/* Gates, heads and strides; in fp32 any number of rows and units, which features have; in bf16
 * wgrad's tiles of 64 to 256 columns, in bands and not. */
static void test_dense_products(void **state) {
    (void)state;
    static const struct {
        int rows, inputs, gates, stride, units, steps, precisions;
    } all[] = {
        {40, 40, 4, 1, 1, 3, 3},     {256, 328, 1, 1, 2, 2, 3},  {256, 328, 1, 1, 1, 1, 3},
        {256, 24, 1, 3, 1, 2, 3},    {333, 205, 1, 1, 3, 2, 1},  {3, 5, 1, 2, 1, 5, 1},
        {256, 7184, 1, 1, 1, 2, 2},  {256, 9224, 1, 1, 1, 2, 2}, {250, 10200, 1, 1, 1, 2, 2},
        {1280, 1032, 1, 1, 1, 2, 2}, {1400, 200, 1, 1, 1, 2, 2}, {1100, 1208, 1, 1, 1, 2, 2}};
    for (precision how = FP32; how <= BF16; how++) {
        pair p = open_pair(how);
        random_restart(4);
        for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
            if (!(all[i].precisions & 1 << how)) continue;
            layout *l = layout_dense(all[i].rows, all[i].inputs, all[i].gates, all[i].stride);
            char name[48];
            snprintf(name, sizeof name, "dense %d x %d, %d gates, stride %d", all[i].rows,
                     all[i].inputs, all[i].gates, all[i].stride);
            check_layout(&p, l, all[i].units * p.be->column_multiple, all[i].steps, name);
            layout_free(l);
        }
        close_pair(&p);
    }
}

/* Rectangles of a few nodes, of one in either direction too: none of them is a dense matrix. */
static void test_few_nodes(void **state) {
    (void)state;
    for (precision how = FP32; how <= BF16; how++) {
        pair p = open_pair(how);
        random_restart(23);
        for (int i = 0; i < 60; i++) {
            const int out = 1 + i % 6, in = 1 + (int)random_below(6);
            const int block = 8 << random_below(5), columns = 1 + (int)random_below(4);
            int32_t pairs[36][2];
            int count = 0;
            for (int k = 0; k < out * in; k++) {
                if (count > 0 && random_uniform() < 0.4) continue;
                pairs[count][0] = k / in;
                pairs[count++][1] = k % in;
            }
            layout *l = layout_pairs(out, in, (const int32_t(*)[2])pairs, count, block, 0);
            assert_false(layout_is_dense(l));
            char name[80];
            snprintf(name, sizeof name, "%d x %d nodes of %d", out, in, block);
            check_layout(&p, l, columns * p.be->product_multiple, 1, name);
            layout_free(l);
        }
        close_pair(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_blocks_of_8),
        cmocka_unit_test(test_blocks_of_16),
        cmocka_unit_test(test_blocks_of_32),
        cmocka_unit_test(test_blocks_of_64),
        cmocka_unit_test(test_blocks_of_128),
        cmocka_unit_test(test_symmetric_patterns),
        cmocka_unit_test(test_small_world),
        cmocka_unit_test(test_dense_products),
        cmocka_unit_test(test_few_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
