/* Every operation of a backend against a more trusted one, on random shapes and patterns, with all
 * outputs poisoned first: the CPU in fp32 and bf16 against the reference in double, the GPU in each
 * precision against the CPU in the same, and in tf32 against the CPU in fp32. */
#include "support.h"

#include "bench.h"
#include "core/memory.h"
#include "graph/graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pair {
    backend *be, *trusted;
    double tolerance; /* relative, in the norm */
} pair;

/* Products of uniform operands rounded to tf32 are 2.6e-4 off, of truncated ones 7e-4. */
static const double tf32_rounded = 4e-4, tf32_truncated = 1.5e-3;

static pair open_pair(precision precision) {
    pair p = {.be = test_backend(precision)};
    if (test_device_is_cuda()) {
        p.trusted = backend_cpu(precision, 0);
        p.tolerance = precision == BF16 ? 2e-3 : precision == TF32 ? tf32_rounded : 1e-5;
    } else {
        p.trusted = backend_cpu_reference(0);
        p.tolerance = precision == BF16 ? 1e-2 : 1e-5;
    }
    return p;
}

static void close_pair(pair *p) {
    p->be->destroy(p->be);
    p->trusted->destroy(p->trusted);
}

static void assert_close(const pair *p, const char *what, const double *found,
                         const double *expected, size_t count) {
    double error = relative_error(found, expected, count);
    if (error <= p->tolerance) return;
    fail_msg("%s on %s: relative error %g, at most %g expected", what, p->be->name, error,
             p->tolerance);
}

/* ---------------------------------------------------------------------------------- patterns */

/* A graph with the given share of blocks, and, to be nasty, empty rows and columns, a row and a
 * column that are full, and rows of one block. Not one that graph.h would make. */
static graph *nasty_graph(int nodes, double share, bool hubs) {
    graph *g = mem_alloc(1, sizeof *g);
    g->nodes = nodes;
    g->start = mem_alloc((size_t)nodes + 1, sizeof *g->start);
    g->column = mem_alloc((size_t)nodes * (size_t)nodes, sizeof *g->column);
    int count = 0;
    for (int i = 0; i < nodes; i++) {
        g->start[i] = count;
        for (int j = 0; j < nodes; j++) {
            bool there = random_uniform() < share;
            if (i == 0) there = j == nodes - 1;           /* a single block */
            if (i == 1) there = false;                    /* an empty row */
            if (j == 2) there = false;                    /* an empty column */
            if (hubs && (i == 3 || j == 4)) there = true; /* a full row, a full column */
            if (there) g->column[count++] = j;
        }
    }
    g->start[nodes] = count;
    return g;
}

static layout *pattern_layout(const graph_options *options, int nodes, int block, int gates) {
    error err;
    graph *g = graph_create(options, nodes, &err);
    assert_non_null(g);
    layout *l = layout_from_graph(g, block, gates);
    graph_free(g);
    return l;
}

typedef struct shape {
    int nodes, block, gates;
    int columns, steps; /* columns: in multiples of those that a product takes */
    double share;
    bool hubs;
} shape;

static void check_layout(pair *p, const layout *l, int columns, int steps, const char *name) {
    size_t weights = layout_weights(l);
    size_t in = layout_inputs(l) * (size_t)columns * (size_t)steps;
    size_t out = layout_rows(l) * (size_t)columns * (size_t)steps;
    double *w = random_values(weights, -1, 1), *x = random_values(in, -1, 1);
    double *dy = random_values(out, -1, 1);
    double *result[2][5];
    bool narrow = columns % wgrad_multiple(p->be); /* for single products, but wgrad */
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p->trusted : p->be;
        device_layout *d = be->layout_create(be, l);
        void *dw = put(be, w, weights, OPERAND), *dx = put(be, x, in, OPERAND);
        void *ddy = put(be, dy, out, OPERAND);
        void *y[5] = {put_poison(be, out, OPERAND), put_poison(be, out, REAL),
                      put_poison(be, in, OPERAND), put_poison(be, in, REAL),
                      put_poison(be, weights, REAL)};
        size_t room = be->wgrad_workspace(be, l, steps, columns);
        void *workspace = room ? be->allocate(be, room) : NULL;
        be->fprop(be, d, dw, dx, steps, columns, y[0], OPERAND, NULL);
        be->fprop(be, d, dw, dx, steps, columns, y[1], REAL, NULL);
        be->dgrad(be, d, dw, ddy, steps, columns, y[2], OPERAND);
        be->dgrad(be, d, dw, ddy, steps, columns, y[3], REAL);
        if (!narrow) be->wgrad(be, d, ddy, dx, steps, columns, y[4], workspace);
        const size_t sizes[5] = {out, out, in, in, weights};
        for (int i = 0; i < 5; i++) {
            result[side][i] = get(be, y[i], sizes[i], i == 0 || i == 2 ? OPERAND : REAL);
            be->release(be, y[i]);
        }
        if (workspace) be->release(be, workspace);
        be->release(be, dw);
        be->release(be, dx);
        be->release(be, ddy);
        be->layout_free(be, d);
    }
    static const char *const what[5] = {"fprop", "fprop to real", "dgrad", "dgrad to real",
                                        "wgrad"};
    const size_t sizes[5] = {out, out, in, in, weights};
    for (int i = 0; i < 5; i++) {
        char text[160];
        snprintf(text, sizeof text, "%s, %s, %d columns, %d steps", what[i], name, columns, steps);
        if (i < 4 || !narrow) assert_close(p, text, result[0][i], result[1][i], sizes[i]);
        free(result[0][i]);
        free(result[1][i]);
    }
    free(w);
    free(x);
    free(dy);
}

static void check_shapes(pair *p, const shape *shapes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const shape *s = &shapes[i];
        graph *g = nasty_graph(s->nodes, s->share, s->hubs);
        layout *l = layout_from_graph(g, s->block, s->gates);
        char name[64];
        snprintf(name, sizeof name, "block %d, %d gates, %d blocks", s->block, s->gates, l->blocks);
        check_layout(p, l, s->columns * p->be->product_multiple, s->steps, name);
        layout_free(l);
        graph_free(g);
    }
}

static void check_products(precision precision) {
    pair p = open_pair(precision);
    random_restart(3);
    static const int blocks[] = {8, 16, 32, 64, 128};
    const int unit = wgrad_multiple(p.be) / p.be->product_multiple; /* what wgrad takes */
    const int columns[] = {1, 3, unit, 2 * unit, 17, unit, 3 * unit};
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        for (int gates = 1; gates <= 4; gates += 3) {
            for (int i = 0; i < 7; i++) {
                const shape s = {.nodes = blocks[b] > 32 ? 6 : 11,
                                 .block = blocks[b],
                                 .gates = gates,
                                 .columns = columns[i],
                                 .steps = i < 5 ? 1 : 3,
                                 .share = 0.1 + 0.5 * random_uniform(),
                                 .hubs = i != 2};
                check_shapes(&p, &s, 1);
            }
        }
    }
    close_pair(&p);
}

static void test_products_fp32(void **state) {
    (void)state;
    check_products(FP32);
}

static void test_products_tf32(void **state) {
    (void)state;
    check_products(TF32);
}

static void test_products_bf16(void **state) {
    (void)state;
    check_products(BF16);
}

/* Shapes for which a GPU has kernels of its own. Products take columns by 32 there, wgrad of
 * bf16 by 64: it is left out for odd multiples. */
static void check_gpu_shapes_in(precision precision, uint64_t seed, const shape *shapes,
                                size_t count) {
    if (!test_device_is_cuda()) skip();
    pair p = open_pair(precision);
    random_restart(seed);
    check_shapes(&p, shapes, count);
    close_pair(&p);
}

static void check_gpu_shapes(uint64_t seed, const shape *shapes, size_t count) {
    check_gpu_shapes_in(BF16, seed, shapes, count);
}

/* wgrad of one gate with more blocks than a GPU makes at a time, so that its thread blocks make
 * several tasks, full ones and the last of a row group, and columns are split among them: of dense
 * patterns in pairs, of sparse ones by single tiles; then few blocks and more depth than shared
 * memory holds at a time, by either. */
static void test_many_blocks(void **state) {
    (void)state;
    static const shape shapes[] = {
        {132, 32, 1, 6, 1, 0.75, true}, {310, 32, 1, 6, 1, 0.02, true},
        {200, 32, 1, 6, 1, 0.1, true},  {100, 64, 1, 6, 1, 0.1, false},
        {40, 32, 1, 4, 11, 0.3, true},  {150, 32, 1, 2, 6, 0.3, false},
        {65, 64, 1, 2, 6, 0.5, true},   {12, 64, 1, 18, 2, 0.3, true},
        {80, 32, 1, 2, 5, 0.5, true},
    };
    check_gpu_shapes(10, shapes, sizeof shapes / sizeof shapes[0]);
    check_gpu_shapes_in(TF32, 10, shapes, 5);
}

/* wgrad of few columns: of more tiles than there are warps, or fewer; steps; rows of a node's gates,
 * and larger blocks. */
static void test_few_columns(void **state) {
    (void)state;
    static const shape shapes[] = {
        {132, 32, 1, 2, 1, 0.3, true}, {130, 32, 1, 4, 1, 0.1, false}, {15, 32, 1, 2, 1, 0.2, true},
        {50, 64, 1, 2, 2, 0.1, false}, {12, 128, 1, 2, 1, 0.3, true},  {33, 32, 4, 4, 1, 0.1, true},
        {11, 64, 4, 2, 1, 0.3, true},  {150, 32, 1, 2, 2, 0.1, true},  {90, 32, 1, 1, 1, 0.3, true},
    };
    check_gpu_shapes(17, shapes, sizeof shapes / sizeof shapes[0]);
    check_gpu_shapes_in(TF32, 17, shapes, sizeof shapes / sizeof shapes[0]);
}

/* dgrad of four gates whose thread blocks have as many nodes as they can, whole or neighbours, share
 * the list of a hub, or make several tiles of columns one after the other, of which the last is not
 * full, nor the last group of tiles; fprop of more tiles than there are thread blocks. */
static void test_many_gates(void **state) {
    (void)state;
    static const shape shapes[] = {
        {700, 32, 4, 2, 1, 0.001, true},  {700, 32, 4, 4, 1, 0.002, false},
        {40, 32, 4, 10, 1, 0.1, true},    {410, 64, 4, 2, 1, 0.001, false},
        {40, 64, 4, 10, 1, 0.02, true},   {270, 128, 4, 2, 1, 0.001, false},
        {20, 128, 4, 6, 1, 0.1, true},    {60, 32, 4, 8, 1, 0.05, true},
        {60, 32, 4, 7, 1, 0.03, false},   {150, 32, 4, 5, 1, 0.005, true},
        {24, 128, 4, 4, 1, 0.25, true},   {60, 64, 4, 4, 1, 0.1, true},
        {13, 128, 4, 20, 1, 0.95, true},  {300, 64, 4, 4, 1, 0.01, false},
        {150, 128, 4, 4, 1, 0.02, false}, {90, 32, 4, 34, 1, 0.02, true},
        {130, 32, 4, 34, 1, 0.01, false}, {60, 64, 4, 20, 1, 0.1, true},
    };
    check_gpu_shapes(11, shapes, sizeof shapes / sizeof shapes[0]);
}

/* fprop and dgrad of one gate and many columns: thread blocks that make several tiles, or none, of
 * columns that end anywhere, lists longer than what a kernel has on its way, and nodes so many that
 * neighbours in a list are far apart. */
static void test_many_columns(void **state) {
    (void)state;
    static const shape shapes[] = {
        {200, 32, 1, 25, 1, 0.01, true},    {300, 32, 1, 4, 1, 0.01, true},
        {90, 32, 1, 5, 1, 0.3, false},      {96, 32, 1, 16, 1, 0.1, true},
        {102, 64, 1, 25, 1, 0.01, true},    {24, 64, 1, 13, 1, 0.3, false},
        {34, 128, 1, 25, 1, 0.03, true},    {12, 128, 1, 4, 1, 0.3, false},
        {1300, 32, 1, 4, 1, 0.0007, false}, {160, 32, 1, 4, 1, 0.5, true},
        {120, 32, 1, 6, 1, 0.7, false},     {395, 32, 1, 4, 1, 0.005, true},
        {120, 32, 1, 33, 1, 0.7, false},
    };
    check_gpu_shapes(13, shapes, sizeof shapes / sizeof shapes[0]);
}

/* fprop and dgrad of blocks of 8 and 16 and many columns: as many thread blocks as there are tiles,
 * or shares of tiles, or both; columns that end anywhere in a tile, or inside of 64; parts and
 * stages that are full, or hold a single node or source. */
static void test_small_blocks(void **state) {
    (void)state;
    static const shape shapes[] = {
        {400, 8, 1, 4, 1, 0.3, true},    {600, 8, 1, 5, 1, 0.05, false},
        {600, 8, 1, 48, 1, 0.01, true},  {300, 8, 1, 8, 1, 0.5, true},
        {49, 8, 1, 25, 1, 0.02, true},   {24, 8, 1, 16, 1, 0.9, false},
        {150, 8, 4, 6, 1, 0.1, true},    {300, 8, 4, 4, 1, 0.02, false},
        {25, 8, 4, 21, 1, 0.3, true},    {330, 16, 1, 4, 1, 0.4, true},
        {200, 16, 1, 9, 1, 0.5, true},   {340, 16, 1, 46, 1, 0.01, false},
        {25, 16, 1, 18, 1, 0.05, true},  {70, 16, 4, 13, 1, 0.3, true},
        {120, 16, 4, 4, 1, 0.05, false}, {13, 16, 4, 24, 1, 0.9, true},
    };
    check_gpu_shapes(15, shapes, sizeof shapes / sizeof shapes[0]);
}

/* wgrad of blocks of 8 and 16, one gate and four: thread blocks that make several tasks, groups of as
 * many rows as there may be, or of one that is cut among tasks, inputs of as many rows as a stage has
 * room for, more steps than stages; and patterns so full that all is multiplied, of rows and columns
 * that end inside a tile. */
static void test_small_gradients(void **state) {
    (void)state;
    static const shape shapes[] = {
        {700, 8, 1, 2, 1, 0.2, true},     {1500, 8, 1, 2, 1, 0.01, true},
        {900, 8, 1, 4, 3, 0.03, false},   {400, 8, 1, 6, 5, 0.1, true},
        {1100, 8, 1, 2, 1, 0.002, false}, {61, 8, 1, 4, 9, 0.15, true},
        {300, 8, 1, 2, 2, 0.6, true},     {299, 8, 1, 4, 1, 0.95, false},
        {200, 8, 4, 2, 2, 0.1, true},     {131, 8, 4, 4, 1, 0.6, true},
        {400, 16, 1, 2, 1, 0.2, true},    {700, 16, 1, 2, 1, 0.02, true},
        {500, 16, 1, 4, 3, 0.05, false},  {41, 16, 1, 6, 7, 0.2, true},
        {150, 16, 1, 2, 2, 0.8, true},    {133, 16, 1, 4, 1, 0.95, false},
        {90, 16, 4, 2, 3, 0.1, true},     {65, 16, 4, 2, 1, 0.95, true},
    };
    check_gpu_shapes(17, shapes, sizeof shapes / sizeof shapes[0]);
}

/* Few columns, and lists so long that thread blocks share them, two to as many as a cluster has; at
 * last short ones. */
static void test_long_lists(void **state) {
    (void)state;
    static const shape shapes[] = {
        {300, 8, 1, 1, 1, 0.005, true},  {150, 8, 4, 1, 1, 0.01, true},
        {200, 8, 1, 2, 1, 0.02, true},   {170, 8, 1, 4, 1, 0.01, true},
        {140, 16, 1, 1, 1, 0.02, true},  {90, 16, 1, 2, 1, 0.1, true},
        {100, 16, 1, 3, 1, 0.02, true},  {50, 16, 1, 4, 1, 0.05, true},
        {140, 32, 1, 1, 1, 0.01, true},  {40, 32, 1, 2, 1, 0.3, true},
        {70, 32, 1, 4, 1, 0.02, true},   {30, 32, 1, 1, 1, 0.1, true},
        {20, 64, 4, 1, 1, 0.1, true},    {20, 128, 1, 2, 1, 0.1, true},
        {300, 32, 1, 2, 1, 0.01, false}, {70, 64, 1, 2, 1, 0.02, false},
    };
    pair p = open_pair(BF16);
    random_restart(12);
    check_shapes(&p, shapes, sizeof shapes / sizeof shapes[0]);
    close_pair(&p);
}

/* Patterns that are the same by rows and by columns, so that fprop and dgrad share tables; with
 * hubs. */
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

/* tf32 whose thread blocks share activations: parts of several nodes or of one, more of them than
 * are made at a time, or with nothing to do, lists longer than what is on its way, columns that end
 * within a tile, many of these; pieces of larger blocks and of gates. */
static void test_shared_activations(void **state) {
    (void)state;
    static const shape shapes[] = {
        {400, 32, 1, 4, 1, 0.02, false},    {420, 32, 1, 5, 1, 0.01, true},
        {90, 32, 1, 9, 1, 0.4, true},       {60, 32, 4, 4, 1, 0.1, true},
        {40, 64, 1, 13, 1, 0.2, false},     {20, 128, 4, 5, 1, 0.2, true},
        {1300, 32, 1, 4, 1, 0.0007, false}, {400, 32, 1, 2, 1, 0.02, false},
        {420, 32, 1, 2, 1, 0.01, true},     {90, 32, 1, 2, 1, 0.4, true},
        {60, 32, 4, 2, 1, 0.1, true},       {40, 64, 1, 2, 1, 0.2, false},
        {20, 128, 4, 2, 1, 0.2, true},      {400, 32, 1, 15, 1, 0.02, true},
        {90, 32, 1, 16, 1, 0.4, true},      {40, 64, 1, 11, 1, 0.2, true},
        {800, 32, 1, 8, 1, 0.002, false},
    };
    check_gpu_shapes_in(TF32, 14, shapes, sizeof shapes / sizeof shapes[0]);
}

/* fp32 with lists longer than a warp looks up at a time, gates, several steps; wgrad of so many tiles
 * that warps have some each. */
static void test_plain_tiles(void **state) {
    (void)state;
    static const shape shapes[] = {
        {300, 32, 1, 1, 1, 0.1, true},  {90, 32, 1, 5, 1, 0.4, false},
        {60, 32, 4, 1, 1, 0.2, true},   {40, 32, 1, 1, 3, 0.2, false},
        {60, 64, 1, 2, 1, 0.3, true},   {20, 128, 4, 3, 3, 0.2, true},
        {80, 32, 1, 18, 2, 0.1, true},  {130, 32, 1, 2, 2, 0.4, true},
        {100, 64, 1, 3, 2, 0.2, false},
    };
    check_gpu_shapes_in(FP32, 15, shapes, sizeof shapes / sizeof shapes[0]);
}

/* Products that each read what the one before wrote, and weights just made, twice: kernels that
 * begin early must still see all of it. */
enum { CHAIN = 24 };

typedef struct chain {
    backend *be;
    const device_layout *layout;
    void *real[2]; /* of the first and the second half */
    void *weights, *x[CHAIN + 1];
    size_t count;
    int columns;
} chain;

static void issue_product(const chain *c, int i) {
    backend *be = c->be;
    if (i % (CHAIN / 2) == 0) be->round(be, c->count, c->real[i / (CHAIN / 2)], c->weights);
    if (i % 2 == 0) {
        be->fprop(be, c->layout, c->weights, c->x[i], 1, c->columns, c->x[i + 1], OPERAND, NULL);
    } else {
        be->dgrad(be, c->layout, c->weights, c->x[i], 1, c->columns, c->x[i + 1], OPERAND);
    }
}

static void issue_chain(void *argument) {
    for (int i = 0; i < CHAIN; i++) issue_product(argument, i);
}

static void check_chain(precision precision, int block, int multiple) {
    pair p = open_pair(precision);
    random_restart(12);
    graph *g = nasty_graph(40, 0.1, true);
    layout *l = layout_from_graph(g, block, 1);
    int columns = multiple * p.be->product_multiple;
    size_t count = layout_weights(l), plane = layout_rows(l) * (size_t)columns;
    double *w[] = {random_values(count, -0.3, 0.3), random_values(count, -0.3, 0.3)};
    double *x = random_values(plane, -1, 1), *result[2][CHAIN];
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        device_layout *d = be->layout_create(be, l);
        chain c = {.be = be, .layout = d, .count = count, .columns = columns};
        for (int i = 0; i < 2; i++) c.real[i] = put(be, w[i], count, REAL);
        c.weights = put_poison(be, count, OPERAND);
        c.x[0] = put(be, x, plane, OPERAND);
        for (int i = 1; i <= CHAIN; i++) c.x[i] = put_poison(be, plane, OPERAND);
        if (!side) {
            recording *recorded = be->record(be, issue_chain, &c);
            for (int i = 0; i < 3; i++) be->replay(be, recorded);
            be->recording_free(be, recorded);
        }
        for (int i = 0; i < CHAIN; i++) {
            if (side && i > 0) { /* it goes on from what the other found */
                void *found = put(be, result[0][i - 1], plane, OPERAND);
                be->copy(be, c.x[i], found, plane * be->operand_size);
                be->release(be, found);
            }
            if (side) issue_product(&c, i);
            result[side][i] = get(be, c.x[i + 1], plane, OPERAND);
        }
        for (int i = 0; i < 2; i++) be->release(be, c.real[i]);
        be->release(be, c.weights);
        for (int i = 0; i <= CHAIN; i++) be->release(be, c.x[i]);
        be->layout_free(be, d);
    }
    for (int i = 0; i < CHAIN; i++) {
        char text[80];
        snprintf(text, sizeof text, "product %d of a chain, block %d, %d columns", i, block,
                 columns);
        assert_close(&p, text, result[0][i], result[1][i], plane);
        free(result[0][i]);
        free(result[1][i]);
    }
    free(w[0]);
    free(w[1]);
    free(x);
    layout_free(l);
    graph_free(g);
    close_pair(&p);
}

static void test_chain(void **state) {
    (void)state;
    check_chain(BF16, 8, 1);
    check_chain(BF16, 32, 1);
    check_chain(BF16, 32, 4);
    check_chain(TF32, 32, 1);
    check_chain(TF32, 32, 4);
    check_chain(FP32, 8, 1);
    check_chain(FP32, 32, 1);
}

/* Four gates in blocks for which a GPU has kernels of its own: few columns and many, odd multiples of
 * 64 of them, sums of a few long rows that are made in parts. */
static const shape gate_shapes[] = {
    {11, 32, GATES, 2, 1, 0.15, false}, {11, 32, GATES, 4, 1, 0.8, true},
    {12, 32, GATES, 8, 1, 0.8, true},   {71, 32, GATES, 4, 1, 0.15, false},
    {71, 32, GATES, 8, 1, 0.15, true},  {35, 32, GATES, 30, 1, 0.8, true},
    {5, 64, GATES, 2, 1, 0.8, false},   {6, 64, GATES, 4, 1, 0.15, true},
    {5, 64, GATES, 8, 1, 0.8, true},    {47, 64, GATES, 24, 1, 0.1, false},
    {5, 128, GATES, 2, 1, 0.8, true},   {6, 128, GATES, 4, 1, 0.2, true},
    {5, 128, GATES, 8, 1, 0.8, false},  {5, 128, GATES, 10, 1, 0.5, true},
};

enum { GATE_SHAPES = sizeof gate_shapes / sizeof gate_shapes[0] };

static void test_gate_products(void **state) {
    (void)state;
    check_gpu_shapes(11, gate_shapes, GATE_SHAPES);
    check_gpu_shapes_in(TF32, 11, gate_shapes, GATE_SHAPES);
}

/* Rows as alike as a small world's, whose tables are made in the nodes' own order. */
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

/* The same bits, however often, from parts that hand on their sums, of a model's size: about one time
 * in thirty something else was read where these arrive, before loads were waited for. */
static void test_repeated_dgrad(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    backend *be = test_backend(BF16);
    graph_options ring = {
        .kind = GRAPH_WATTS_STROGATZ, .density = 0.0665, .rewire = 0.1, .seed = 1};
    layout *l = pattern_layout(&ring, 288, 64, GATES);
    device_layout *device = be->layout_create(be, l);
    enum { COLUMNS = 256, TIMES = 300 };
    size_t weights = layout_weights(l), units = layout_inputs(l), rows = layout_rows(l);
    void *w = be->allocate(be, weights * be->operand_size);
    void *dy = be->allocate(be, rows * COLUMNS * be->operand_size);
    void *dx = be->allocate(be, units * COLUMNS * be->operand_size);
    void *sums = be->allocate(be, units * be->real_size);
    float *first = mem_alloc(units, sizeof *first), *again = mem_alloc(units, sizeof *again);
    be->bench->randomise(be, w, MATH_BF16, weights, 1);
    be->bench->randomise(be, dy, MATH_BF16, rows * COLUMNS, 2);
    for (int i = 0; i < TIMES; i++) {
        be->dgrad(be, device, w, dy, 1, COLUMNS, dx, OPERAND);
        be->row_sums(be, dx, 1, (int)units, COLUMNS, sums);
        be->download(be, i ? again : first, sums, units * sizeof *first);
        if (i) assert_memory_equal(again, first, units * sizeof *first);
    }
    void *arrays[] = {w, dy, dx, sums};
    for (int i = 0; i < 4; i++) be->release(be, arrays[i]);
    free(first);
    free(again);
    be->layout_free(be, device);
    layout_free(l);
    be->destroy(be);
}

static void test_dense_products(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) {
        pair p = open_pair((const precision[]){FP32, TF32, BF16}[i]);
        if (i == 1 && test_device_is_cuda()) p.tolerance = tf32_truncated; /* cuBLAS may */
        int unit = p.be->column_multiple;
        random_restart(4);
        layout *square = layout_dense(40, 40, 4, 1), *wide = layout_dense(256, 328, 1, 1);
        layout *strided = layout_dense(256, 24, 1, 3);
        check_layout(&p, square, unit, 3, "dense gates");
        check_layout(&p, wide, 2 * unit, 2, "dense head");
        check_layout(&p, wide, unit, 1, "dense head");
        check_layout(&p, strided, unit, 2, "dense head with a stride");
        if (p.be->precision == BF16) { /* more tiles than a GPU makes at a time */
            layout *wider = layout_dense(256, 9224, 1, 1);
            check_layout(&p, wider, unit, 2, "wide dense head");
            layout_free(wider);
        }
        layout_free(square);
        layout_free(wide);
        layout_free(strided);
        close_pair(&p);
    }
}

/* --------------------------------------------------------------------------------- cell's parts
 * One step of a stage by itself, for every combination that a cell can have. */

typedef struct part {
    int gates, stride;
    bool layer_norm, relu;
    table_use use;
    double dropout;
    int block;    /* of the pattern ... */
    double share; /* ... and of its blocks, those that are there */
    bool huge;    /* sums of squares that only the coarse ones hold */
    double steep; /* the size of gradients */
} part;

enum { PART_RESULTS = 10 };

static void run_part(backend *be, const part *how, int hidden, int columns, double *const *in,
                     const uint8_t *bytes, double *out[PART_RESULTS], size_t sizes[PART_RESULTS]) {
    size_t plane = (size_t)hidden * (size_t)columns, gates = (size_t)how->gates;
    size_t entries = (size_t)(hidden / how->stride) * VOCABULARY;
    int block = how->block;
    graph *g = nasty_graph(hidden / block, how->share, true);
    layout *l = layout_from_graph(g, block, how->gates);
    device_layout *d = be->layout_create(be, l);
    update_arguments arguments = {.update = 5};
    cell c = {.hidden = hidden,
              .columns = columns,
              .steps = 1,
              .keep = true,
              .stages = 1,
              .dropout = how->dropout,
              .seed = 99};
    stage *s = &c.stage[0];
    *s = (stage){.layout = d,
                 .block = block,
                 .gates = how->gates,
                 .layer_norm = how->layer_norm,
                 .relu = how->relu,
                 .table_use = how->use,
                 .table_stride = how->stride};
    void *device_bytes = be->allocate(be, (size_t)columns);
    be->upload(be, device_bytes, bytes, (size_t)columns);
    c.bytes = device_bytes;
    void *device_arguments = be->allocate(be, sizeof arguments);
    be->upload(be, device_arguments, &arguments, sizeof arguments);
    c.arguments = device_arguments;
    size_t weights = layout_weights(l), sums = be->sums_bytes(be, how->gates, columns);
    const double most = how->huge ? 1000 : 0.3;
    double *w = random_values(weights, -most, most); /* the same for both sides, as the pattern */
    s->weight = put(be, w, weights, OPERAND);
    free(w);
    s->gain = how->layer_norm ? put(be, in[0], gates * (size_t)hidden, REAL) : NULL;
    s->bias = put(be, in[1], gates * (size_t)hidden, REAL);
    s->table = put(be, in[2], gates * entries, OPERAND);
    c.entries = put_poison(be, gates * entries, OPERAND);
    size_t workspace = TABLE_WORKSPACE * (size_t)columns;
    c.workspace = put_poison(be, workspace / be->real_size, REAL);
    s->raw = put_poison(be, gates * plane, OPERAND);
    s->out = put_poison(be, plane, OPERAND);
    s->dpre = put_poison(be, gates * plane, OPERAND);
    s->dentry = put_poison(be, gates * plane, OPERAND);
    s->dgain = put_poison(be, gates * (size_t)hidden, REAL);
    s->dbias = put_poison(be, gates * (size_t)hidden, REAL);
    s->dtable = put_poison(be, gates * entries, OPERAND);
    s->sums = put_poison(be, sums / be->real_size + 1, REAL);
    s->dsums = put_poison(be, sums / be->real_size + 1, REAL);
    void *x = put(be, in[3], plane, OPERAND);
    double *state = mem_alloc(2 * plane, sizeof *state);
    memcpy(state, in[4], plane * sizeof *state);
    for (size_t i = 0; i < plane; i++) state[plane + i] = NAN;
    c.c = put(be, state, 2 * plane, REAL);
    c.h = put_poison(be, 2 * plane, OPERAND);
    c.dh = put(be, in[5], plane, OPERAND);
    c.dx = put(be, in[6], plane, OPERAND);
    c.dc = put(be, in[7], plane, REAL);

    be->fprop(be, d, s->weight, x, 1, columns, s->raw, OPERAND, how->layer_norm ? s->sums : NULL);
    if (how->gates == GATES) {
        be->gates(be, &c, 0);
    } else {
        be->activate(be, &c, 0, 0);
    }
    size_t count[PART_RESULTS] = {gates * plane,
                                  plane,
                                  2 * plane,
                                  2 * plane,
                                  gates * plane,
                                  gates * (size_t)hidden,
                                  gates * (size_t)hidden,
                                  plane,
                                  gates * plane,
                                  gates * entries};
    out[0] = get(be, s->raw, count[0], OPERAND);
    if (how->gates == GATES) {
        be->gates_backward(be, &c, 0);
    } else {
        be->activate_backward(be, &c, 0, 0);
        if (how->layer_norm) be->norm_backward(be, &c, 0, 0);
    }
    if (how->use != TABLE_NONE) be->table_backward(be, &c, 0);
    out[1] = get(be, s->out, count[1], OPERAND);
    out[2] = get(be, c.h, count[2], OPERAND);
    out[3] = get(be, c.c, count[3], REAL);
    out[4] = get(be, s->dpre, count[4], OPERAND);
    out[5] = get(be, s->dgain, count[5], REAL);
    out[6] = get(be, s->dbias, count[6], REAL);
    out[7] = get(be, c.dc, count[7], REAL);
    out[8] = get(be, s->raw, count[8], OPERAND);
    out[9] = get(be, s->dtable, count[9], OPERAND);
    /* What a stage of this kind does not write stays poisoned, on every backend. */
    if (how->gates == GATES) count[1] = 0;
    if (how->gates != GATES) count[2] = count[3] = 0;
    if (how->use == TABLE_NONE) count[9] = 0;
    memcpy(sizes, count, sizeof count);
    void *arrays[] = {(void *)(uintptr_t)s->weight,
                      (void *)(uintptr_t)s->gain,
                      (void *)(uintptr_t)s->bias,
                      (void *)(uintptr_t)s->table,
                      c.entries,
                      c.workspace,
                      s->raw,
                      s->out,
                      s->dpre,
                      s->dentry,
                      s->dgain,
                      s->dbias,
                      s->dtable,
                      s->sums,
                      s->dsums,
                      x,
                      c.c,
                      c.h,
                      c.dh,
                      c.dx,
                      c.dc,
                      device_bytes,
                      device_arguments};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        if (arrays[i]) be->release(be, arrays[i]);
    }
    free(state);
    be->layout_free(be, d);
    layout_free(l);
    graph_free(g);
}

static void check_part(pair *p, const part *how, int hidden, int columns) {
    const double steep = how->steep;
    size_t plane = (size_t)hidden * (size_t)columns, gates = (size_t)how->gates;
    size_t entries = (size_t)(hidden / how->stride) * VOCABULARY;
    double *in[8] = {random_values(gates * (size_t)hidden, 0.5, 1.5),
                     random_values(gates * (size_t)hidden, -1, 1),
                     random_values(gates * entries, -1, 1),
                     random_values(plane, -1, 1),
                     random_values(plane, -2, 2),
                     random_values(plane, -steep, steep),
                     random_values(plane, -steep, steep),
                     random_values(plane, -steep, steep)};
    uint8_t *bytes = mem_alloc((size_t)columns, 1);
    for (int n = 0; n < columns; n++) bytes[n] = (uint8_t)random_below(256);
    double *result[2][PART_RESULTS];
    size_t sizes[PART_RESULTS];
    for (int side = 0; side < 2; side++) {
        random_restart(17); /* the same pattern and weights for both */
        run_part(side ? p->trusted : p->be, how, hidden, columns, in, bytes, result[side], sizes);
    }
    static const char *const what[PART_RESULTS] = {"raw",   "out",   "h",  "c",    "dpre",
                                                   "dgain", "dbias", "dc", "draw", "dtable"};
    for (int i = 0; i < PART_RESULTS; i++) {
        char text[160];
        snprintf(text, sizeof text, "%s of %s%s%s, table %d by %d, dropout %g, %d x %d", what[i],
                 how->gates == GATES ? "gates" : "a step", how->layer_norm ? " with norm" : "",
                 how->relu ? " and relu" : "", how->use, how->stride, how->dropout, hidden,
                 columns);
        size_t skip = i == 2 ? plane : 0; /* h[0] is poison */
        if (sizes[i] > skip) {
            pair loose = *p;
            if (i >= 4 && how->relu) {
                /* Rounding moves some past relu's edge, a share like its own error, and each is
                 * wholly wrong: the norm sees that by its root. */
                loose.tolerance = 2 * sqrt(p->tolerance);
            } else if (i >= 4 && p->be->precision != FP32) {
                loose.tolerance *= 4; /* gradients are made of rounded values */
            }
            assert_close(&loose, text, result[0][i] + skip, result[1][i] + skip, sizes[i] - skip);
        }
        free(result[0][i]);
        free(result[1][i]);
    }
    for (int i = 0; i < 8; i++) free(in[i]);
    free(bytes);
}

static void check_parts(precision precision) {
    pair p = open_pair(precision);
    random_restart(5);
    int unit = p.be->column_multiple;
    const int sizes[][2] = {{64, unit}, {200, 2 * unit}, {1104, unit}, {64, 5 * unit}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int norm = 0; norm < 2; norm++) {
            part gates = {GATES, 1, norm, false, TABLE_ADD, 0, 8, 0.6, false, 1};
            part plain = {GATES, 1, norm, false, TABLE_NONE, 0, 8, 0.6, false, 1};
            part dropped = {GATES, 2, norm, false, TABLE_ADD, 0.3, 8, 0.6, false, 1};
            part multiply = {1, 1, norm, false, TABLE_MULTIPLY, 0, 8, 0.6, false, 1};
            part add = {1, 2, norm, true, TABLE_ADD, 0, 8, 0.6, false, 1};
            part strided = {1, 4, norm, false, TABLE_MULTIPLY, 0, 8, 0.6, false, 1};
            part relu = {1, 1, norm, true, TABLE_NONE, 0, 8, 0.6, false, 1};
            const part *all[] = {&gates, &plain, &dropped, &multiply, &add, &strided, &relu};
            for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
                check_part(&p, all[k], sizes[i][0], sizes[i][1]);
            }
        }
    }
    /* more than shared memory keeps of a step */
    part wide = {GATES, 1, true, false, TABLE_ADD, 0, 8, 0.6, false, 1};
    check_part(&p, &wide, 64, 16 * unit);
    check_part(&p, &wide, 64, 17 * unit);
    /* several spans of columns, each shared by thread blocks that have several units */
    part bare = {GATES, 2, false, false, TABLE_ADD, 0, 8, 0.6, false, 1};
    check_part(&p, &wide, 1104, 6 * unit);
    check_part(&p, &bare, 1104, 6 * unit);
    check_part(&p, &bare, 64, 17 * unit);
    /* more columns than shared memory has room for statistics */
    check_part(&p, &wide, 64, 60 * unit);
    check_part(&p, &wide, 64, 61 * unit);
    /* gradients whose sums are coarse, some of them or all */
    part steep = {GATES, 1, true, false, TABLE_ADD, 0, 8, 0.6, false, 30};
    check_part(&p, &steep, 1104, 3 * unit);
    steep.steep = 1e6;
    check_part(&p, &steep, 1104, 2 * unit);
    close_pair(&p);
}

static void test_parts_fp32(void **state) {
    (void)state;
    check_parts(FP32);
}

static void test_parts_tf32(void **state) {
    (void)state;
    check_parts(TF32);
}

static void test_parts_bf16(void **state) {
    (void)state;
    check_parts(BF16);
}

/* Units enough that a GPU's thread blocks have several in turn, and more than their shared memory
 * keeps until layer norm's sums are there, in several spans of columns. */
static void test_many_units(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    const struct {
        precision precision;
        int hidden, columns, block;
    } cases[] = {
        {BF16, 3360, 6, 32}, {BF16, 3360, 3, 32}, {BF16, 14592, 2, 64}, {FP32, 9728, 4, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pair p = open_pair(cases[i].precision);
        random_restart(13);
        part how = {GATES, 8, true, false, TABLE_ADD, 0.1, cases[i].block, 0.002, false, 1};
        check_part(&p, &how, cases[i].hidden, cases[i].columns * p.be->column_multiple);
        close_pair(&p);
    }
}

/* gate_shapes with layer norm, whose sums those kernels make. */
static void test_gate_sums(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    pair p = open_pair(BF16);
    random_restart(12);
    for (int i = 0; i < GATE_SHAPES; i++) {
        const shape *s = &gate_shapes[i];
        part how = {GATES, 1, true, false, TABLE_NONE, 0, s->block, s->share, false, 1};
        check_part(&p, &how, s->nodes * s->block, s->columns * p.be->product_multiple);
    }
    for (int columns = 4; columns <= 8; columns *= 2) {
        part how = {GATES, 1, true, false, TABLE_NONE, 0, 32, 0.15, true, 1};
        check_part(&p, &how, 71 * 32, columns * p.be->product_multiple);
    }
    for (int i = 0; i < 4; i++) { /* blocks of 8 and 16, one gate and four */
        part how = {i % 2 ? GATES : 1, 1, true, false, TABLE_NONE, 0, i < 2 ? 8 : 16, 0.1, true, 1};
        check_part(&p, &how, 40 * how.block, (4 + 6 * i) * p.be->product_multiple);
    }
    close_pair(&p);
}

/* ----------------------------------------------------------------------------- table's gradient */

/* Text of one byte, of a few that are far apart, of ASCII's letters but for another byte now and
 * then, or of any. */
typedef enum text { ONE_BYTE, FEW_BYTES, ALMOST_ASCII, ANY_BYTES } text;

typedef struct table_shape {
    int hidden, block, gates, stride;
    int columns, steps; /* columns: in multiples of those that a backend takes */
    text text;
} table_shape;

static uint8_t draw_byte(text text) {
    switch (text) {
    case ONE_BYTE: return 200;
    case FEW_BYTES: return (uint8_t)(85 * random_below(4));
    case ALMOST_ASCII:
        return (uint8_t)(random_below(100) ? 64 + random_below(64) : random_below(256));
    default: return (uint8_t)random_below(256);
    }
}

/* `gradient` [steps][gates][hidden][columns] -> [gates][hidden / stride][VOCABULARY]. */
static double *run_table(backend *be, const table_shape *how, int columns, const double *gradient,
                         const uint8_t *bytes) {
    size_t positions = (size_t)(how->steps * columns);
    size_t entries = (size_t)(how->gates * how->hidden / how->stride) * VOCABULARY;
    size_t count = (size_t)(how->gates * how->hidden) * positions;
    cell c = {.hidden = how->hidden, .columns = columns, .steps = how->steps, .stages = 1};
    stage *s = &c.stage[0];
    *s = (stage){.block = how->block,
                 .gates = how->gates,
                 .table_use = how->gates == 1 ? TABLE_MULTIPLY : TABLE_ADD,
                 .table_stride = how->stride};
    void *device_bytes = be->allocate(be, positions), *in = put(be, gradient, count, OPERAND);
    be->upload(be, device_bytes, bytes, positions);
    c.bytes = device_bytes;
    c.workspace = put_poison(be, TABLE_WORKSPACE * positions / be->real_size, REAL);
    s->dtable = put_poison(be, entries, OPERAND);
    *(how->gates == 1 ? &s->dentry : &s->dpre) = in;
    be->table_backward(be, &c, 0);
    double *result = get(be, s->dtable, entries, OPERAND);
    be->release(be, device_bytes);
    be->release(be, in);
    be->release(be, c.workspace);
    be->release(be, s->dtable);
    return result;
}

/* Of whole numbers, whose sums are the same in every order: a GPU makes the very bits of a CPU. */
static void check_table(pair *p, const table_shape *how) {
    int columns = how->columns * p->be->column_multiple;
    size_t positions = (size_t)(how->steps * columns);
    size_t count = (size_t)(how->gates * how->hidden) * positions;
    size_t entries = (size_t)(how->gates * how->hidden / how->stride) * VOCABULARY;
    double *gradient = random_values(count, -8, 8), *result[2];
    uint8_t *bytes = mem_alloc(positions, 1);
    for (size_t i = 0; i < count; i++) gradient[i] = round(gradient[i]);
    for (size_t i = 0; i < positions; i++) bytes[i] = draw_byte(how->text);
    for (int side = 0; side < 2; side++) {
        result[side] = run_table(side ? p->trusted : p->be, how, columns, gradient, bytes);
    }
    char name[160];
    snprintf(
        name, sizeof name,
        "dtable of %d units in blocks of %d, %d gates, stride %d, %d columns, %d steps, text %d",
        how->hidden, how->block, how->gates, how->stride, columns, how->steps, how->text);
    pair exact = *p;
    if (test_device_is_cuda()) exact.tolerance = 0;
    assert_close(&exact, name, result[0], result[1], entries);
    free(result[0]);
    free(result[1]);
    free(gradient);
    free(bytes);
}

/* Rows fewer than a GPU's tile, a multiple of it, and not; blocks that are, and are not, multiples
 * of the stride; texts shorter and longer than what is on its way, or read, at once. */
static void check_tables(precision precision) {
    pair p = open_pair(precision);
    random_restart(14);
    static const table_shape shapes[] = {
        {16, 8, 1, 1, 1, 1, ANY_BYTES},     {16, 8, 4, 1, 1, 1, ONE_BYTE},
        {72, 8, 4, 1, 1, 3, FEW_BYTES},     {96, 32, 4, 1, 2, 9, ALMOST_ASCII},
        {96, 32, 1, 1, 1, 14, ANY_BYTES},   {64, 64, 4, 1, 3, 13, ONE_BYTE},
        {64, 32, 4, 2, 2, 7, ALMOST_ASCII}, {64, 64, 1, 4, 1, 13, ANY_BYTES},
        {40, 8, 1, 8, 1, 5, FEW_BYTES},     {48, 8, 4, 3, 1, 5, ANY_BYTES},
        {33, 33, 4, 1, 2, 5, ALMOST_ASCII}, {16, 16, 4, 1, 1, 100, ALMOST_ASCII},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) check_table(&p, &shapes[i]);
    close_pair(&p);
}

static void test_table_fp32(void **state) {
    (void)state;
    check_tables(FP32);
}

static void test_table_bf16(void **state) {
    (void)state;
    check_tables(BF16);
}

/* -------------------------------------------------------------------------------------- loss */

static void test_softmax(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        pair p = open_pair(kind ? BF16 : FP32);
        random_restart(6);
        int steps = 3, columns = 2 * p.be->column_multiple;
        size_t positions = (size_t)(steps * columns), count = positions * VOCABULARY;
        double *logits = random_values(count, -20, 20), *bias = random_values(VOCABULARY, -3, 3);
        int16_t *targets = mem_alloc(positions, sizeof *targets);
        for (size_t i = 0; i < positions; i++) {
            targets[i] = random_below(4) ? (int16_t)random_below(256) : -1;
        }
        double *losses[2], *gradient[2], *sums[2], total[2] = {0};
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            void *l = put(be, logits, count, REAL), *b = put(be, bias, VOCABULARY, REAL);
            void *loss = put_poison(be, positions, REAL), *d = put_poison(be, count, OPERAND);
            void *rows = put_poison(be, VOCABULARY, REAL);
            int16_t *t = be->allocate(be, positions * sizeof *t);
            double *sum = be->allocate(be, sizeof *sum), start = 100;
            be->upload(be, t, targets, positions * sizeof *t);
            be->upload(be, sum, &start, sizeof start);
            be->softmax_cross_entropy(be, l, b, t, steps, columns, loss, d);
            be->row_sums(be, d, steps, VOCABULARY, columns, rows);
            be->sum(be, loss, positions, sum);
            losses[side] = get(be, loss, positions, REAL);
            gradient[side] = get(be, d, count, OPERAND);
            sums[side] = get(be, rows, VOCABULARY, REAL);
            be->download(be, &total[side], sum, sizeof *sum);
            void *arrays[] = {l, b, loss, d, rows, t, sum};
            for (size_t i = 0; i < 7; i++) be->release(be, arrays[i]);
        }
        pair exact = p;
        exact.tolerance = 1e-5; /* losses and sums do not pass through bf16 */
        assert_close(&exact, "losses", losses[0], losses[1], positions);
        assert_close(&p, "dlogits", gradient[0], gradient[1], count);
        assert_close(&p, "row sums", sums[0], sums[1], VOCABULARY);
        assert_close(&exact, "sum", &total[0], &total[1], 1);
        for (size_t i = 0; i < positions; i++) {
            if (targets[i] < 0) assert_true(losses[0][i] == 0);
        }
        for (int side = 0; side < 2; side++) {
            free(losses[side]);
            free(gradient[side]);
            free(sums[side]);
        }
        free(logits);
        free(bias);
        free(targets);
        close_pair(&p);
    }
}

static void test_nan_is_seen(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    int columns = be->column_multiple;
    size_t count = (size_t)columns * VOCABULARY;
    double *values = random_values(count, -1, 1);
    double *zeros = mem_alloc(VOCABULARY, sizeof *zeros);
    int16_t *targets = mem_alloc((size_t)columns, sizeof *targets);
    values[7 * columns + 3] = NAN;
    void *l = put(be, values, count, REAL), *b = put(be, zeros, VOCABULARY, REAL);
    void *loss = put_poison(be, (size_t)columns, REAL);
    int16_t *t = be->allocate(be, (size_t)columns * sizeof *t);
    be->upload(be, t, targets, (size_t)columns * sizeof *t);
    be->softmax_cross_entropy(be, l, b, t, 1, columns, loss, NULL);
    double *losses = get(be, loss, (size_t)columns, REAL);
    for (int n = 0; n < columns; n++) assert_true(isnan(losses[n]) == (n == 3));
    be->release(be, l);
    be->release(be, b);
    be->release(be, loss);
    be->release(be, t);
    free(values);
    free(zeros);
    free(targets);
    free(losses);
    be->destroy(be);
}

static void test_pool(void **state) {
    (void)state;
    pair p = open_pair(BF16);
    random_restart(7);
    int steps = 9, rows = 24, columns = p.be->column_multiple;
    size_t plane = (size_t)(rows * columns);
    double *x = random_values(plane * (size_t)steps, -1, 1);
    double *start = random_values(plane, -1, 1);
    int32_t *first = mem_alloc((size_t)columns, sizeof *first);
    int32_t *last = mem_alloc((size_t)columns, sizeof *last);
    for (int n = 0; n < columns; n++) {
        first[n] = (int32_t)random_below(5);
        last[n] = first[n] + (int32_t)random_below(5); /* none, for some */
    }
    for (int kind = 0; kind < 6; kind++) {
        element type = kind % 2 ? OPERAND : REAL;
        double *result[2];
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            void *in = put(be, x, plane * (size_t)steps, type), *out = put(be, start, plane, REAL);
            int32_t *f = be->allocate(be, (size_t)columns * 4);
            int32_t *l = be->allocate(be, (size_t)columns * 4);
            be->upload(be, f, first, (size_t)columns * 4);
            be->upload(be, l, last, (size_t)columns * 4);
            be->pool(be, in, type, steps, rows, columns, f, l, (pooling)(kind / 2), out);
            result[side] = get(be, out, plane, REAL);
            be->release(be, in);
            be->release(be, out);
            be->release(be, f);
            be->release(be, l);
        }
        assert_close(&p, "pool", result[0], result[1], plane);
        free(result[0]);
        free(result[1]);
    }
    free(x);
    free(start);
    free(first);
    free(last);
    close_pair(&p);
}

/* -------------------------------------------------------------------------------------- Adam */

static void check_adam(precision precision, double clip) {
    pair p = open_pair(precision);
    random_restart(8);
    const size_t count = 5000;
    double *host[5] = {random_values(count, -1, 1), random_values(count, -50, 50),
                       random_values(count, -0.1, 0.1), random_values(count, 0, 0.1),
                       random_values(count, -1, 1)};
    double *result[2][5];
    update_report reports[2];
    update_arguments arguments = {.learning_rate = 0.01,
                                  .beta1 = 0.9,
                                  .beta2 = 0.99,
                                  .epsilon = 1e-8,
                                  .clip = clip,
                                  .gradient_scale = 0.01,
                                  .average = 0.97,
                                  .update = 4};
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        void *a[5];
        for (int i = 0; i < 5; i++) a[i] = put(be, host[i], count, REAL);
        void *operands = precision == BF16 ? put_poison(be, count, OPERAND) : a[0];
        update_arguments *args = be->allocate(be, sizeof *args);
        update_report *report = be->allocate(be, sizeof *report);
        be->upload(be, args, &arguments, sizeof *args);
        be->zero(be, report, sizeof *report);
        be->adam(be, count, a[0], a[1], a[2], a[3], a[4], operands, args, report);
        const int kept[4] = {0, 2, 3, 4};
        for (int i = 0; i < 4; i++) result[side][i] = get(be, a[kept[i]], count, REAL);
        result[side][4] = get(be, operands, count, OPERAND);
        be->download(be, &reports[side], report, sizeof *report);
        for (int i = 0; i < 5; i++) be->release(be, a[i]);
        if (precision == BF16) be->release(be, operands);
        be->release(be, args);
        be->release(be, report);
    }
    pair exact = p;
    exact.tolerance = 1e-6;
    static const char *const what[5] = {"weights", "moment1", "moment2", "average", "operands"};
    for (int i = 0; i < 5; i++) {
        assert_close(i < 4 ? &exact : &p, what[i], result[0][i], result[1][i], count);
        free(result[0][i]);
        free(result[1][i]);
    }
    assert_true(fabs(reports[0].gradient_norm / reports[1].gradient_norm - 1) < 1e-6);
    assert_true(reports[0].failed == 0);
    for (int i = 0; i < 5; i++) free(host[i]);
    close_pair(&p);
}

static void test_adam(void **state) {
    (void)state;
    check_adam(FP32, 0);
    check_adam(FP32, 1.5);
    check_adam(BF16, 1.5);
}

/* A gradient or loss that is not finite changes nothing, now and from then on. */
static void test_adam_refuses_nan(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    const size_t count = 64;
    for (int kind = 0; kind < 2; kind++) {
        double *values = random_values(count, -1, 1);
        void *w = put(be, values, count, REAL), *m = put(be, values, count, REAL);
        void *v = put(be, values, count, REAL), *mean = put(be, values, count, REAL);
        update_report seen = {.loss = kind ? INFINITY : 1};
        update_arguments arguments = {.learning_rate = 1,
                                      .beta1 = 0.9,
                                      .beta2 = 0.9,
                                      .epsilon = 1e-8,
                                      .gradient_scale = 1,
                                      .update = 11};
        update_report *report = be->allocate(be, sizeof *report);
        update_arguments *args = be->allocate(be, sizeof *args);
        be->upload(be, report, &seen, sizeof seen);
        be->upload(be, args, &arguments, sizeof arguments);
        double *gradients = random_values(count, -1, 1);
        if (kind == 0) gradients[40] = NAN;
        void *g = put(be, gradients, count, REAL);
        be->adam(be, count, w, g, m, v, mean, w, args, report);
        be->download(be, &seen, report, sizeof seen);
        assert_true(seen.failed == 12);
        gradients[40] = 0;
        be->release(be, g);
        g = put(be, gradients, count, REAL);
        seen.loss = 1;
        be->upload(be, report, &seen, sizeof seen);
        be->adam(be, count, w, g, m, v, mean, w, args, report);
        be->download(be, &seen, report, sizeof seen);
        assert_true(seen.failed == 12);
        void *kept[] = {w, m, v, mean};
        for (int i = 0; i < 4; i++) {
            double *after = get(be, kept[i], count, REAL);
            for (size_t k = 0; k < count; k++) assert_true((float)after[k] == (float)values[k]);
            free(after);
            be->release(be, kept[i]);
        }
        be->release(be, g);
        be->release(be, report);
        be->release(be, args);
        free(gradients);
        free(values);
    }
    be->destroy(be);
}

static void test_round(void **state) {
    (void)state;
    pair p = open_pair(BF16);
    random_restart(9);
    const size_t count = 1000;
    double *values = random_values(count, -1e3, 1e3), *result[2];
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        void *in = put(be, values, count, REAL), *out = put_poison(be, count, OPERAND);
        be->round(be, count, in, out);
        result[side] = get(be, out, count, OPERAND);
        be->release(be, in);
        be->release(be, out);
    }
    assert_close(&p, "round", result[0], result[1], count);
    free(values);
    free(result[0]);
    free(result[1]);
    close_pair(&p);
}

static void test_add(void **state) {
    (void)state;
    pair p = open_pair(FP32);
    random_restart(10);
    const size_t count = 5 * 256;
    double *total = random_values(count, -1e3, 1e3), *x = random_values(count, -1, 1), *result[2];
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        void *to = put(be, total, count, REAL), *from = put(be, x, count, REAL);
        be->add(be, count, to, from);
        result[side] = get(be, to, count, REAL);
        be->release(be, to);
        be->release(be, from);
    }
    assert_close(&p, "add", result[0], result[1], count);
    free(total);
    free(x);
    free(result[0]);
    free(result[1]);
    close_pair(&p);
}

/* -------------------------------------------------------------------------------- recordings */

typedef struct replayed {
    backend *be;
    void *x;
    double *sum;
} replayed;

static void issue_sum(void *argument) {
    replayed *r = argument;
    r->be->sum(r->be, r->x, 100, r->sum);
}

static void test_recording(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    double *ones = mem_alloc(100, sizeof *ones), total;
    for (int i = 0; i < 100; i++) ones[i] = 1;
    replayed r = {be, put(be, ones, 100, REAL), be->allocate(be, sizeof(double))};
    be->zero(be, r.sum, sizeof *r.sum);
    recording *recorded = be->record(be, issue_sum, &r);
    be->download(be, &total, r.sum, sizeof total);
    assert_true(total == 0); /* recording runs nothing */
    for (int i = 0; i < 3; i++) be->replay(be, recorded);
    be->download(be, &total, r.sum, sizeof total);
    assert_true(total == 300);
    error err;
    assert_true(be->finish(be, &err));
    be->recording_free(be, recorded);
    be->release(be, r.x);
    be->release(be, r.sum);
    free(ones);
    be->destroy(be);
}

/* A recording with marks before, between and after work of two sizes. */
typedef struct marked {
    backend *be;
    void *x;
    size_t bytes;
} marked;

static void issue_marked(void *argument) {
    const marked *m = argument;
    m->be->mark(m->be, 0);
    m->be->zero(m->be, m->x, m->bytes);
    m->be->mark(m->be, 1);
    for (int i = 0; i < 50; i++) m->be->zero(m->be, m->x, m->bytes);
    m->be->mark(m->be, 20);
}

static void test_marks(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    marked m = {be, be->allocate(be, 16 << 20), 16 << 20};
    recording *recorded = be->record(be, issue_marked, &m);
    for (int i = 0; i < 3; i++) be->replay(be, recorded);
    double one = be->elapsed(be, 0, 1), fifty = be->elapsed(be, 1, 20),
           all = be->elapsed(be, 0, 20);
    assert_true(one > 0 && fifty > 10 * one);
    assert_true(fabs(one + fifty - all) < 0.01 * all);
    be->mark(be, 2); /* outside of a recording */
    assert_true(be->elapsed(be, 20, 2) >= 0);
    error err;
    assert_true(be->finish(be, &err));
    be->recording_free(be, recorded);
    be->release(be, m.x);
    be->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_fp32),
        cmocka_unit_test(test_products_tf32),
        cmocka_unit_test(test_products_bf16),
        cmocka_unit_test(test_many_blocks),
        cmocka_unit_test(test_few_columns),
        cmocka_unit_test(test_many_gates),
        cmocka_unit_test(test_many_columns),
        cmocka_unit_test(test_small_blocks),
        cmocka_unit_test(test_small_gradients),
        cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_symmetric_patterns),
        cmocka_unit_test(test_shared_activations),
        cmocka_unit_test(test_plain_tiles),
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_gate_products),
        cmocka_unit_test(test_small_world),
        cmocka_unit_test(test_repeated_dgrad),
        cmocka_unit_test(test_dense_products),
        cmocka_unit_test(test_parts_fp32),
        cmocka_unit_test(test_parts_tf32),
        cmocka_unit_test(test_parts_bf16),
        cmocka_unit_test(test_many_units),
        cmocka_unit_test(test_gate_sums),
        cmocka_unit_test(test_table_fp32),
        cmocka_unit_test(test_table_bf16),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_nan_is_seen),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_adam_refuses_nan),
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_recording),
        cmocka_unit_test(test_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
