#include "bench/grid.h"

#include "core/memory.h"

#include <stdlib.h>

const bench_precision bench_precisions[] = {
    {"bf16", BF16, MATH_BF16},
    {"fp32", FP32, MATH_FP32},
};

const bench_pattern bench_patterns[] = {
    {"random", GRAPH_RANDOM},
    {"watts_strogatz", GRAPH_WATTS_STROGATZ},
    {"barabasi_albert", GRAPH_BARABASI_ALBERT},
};

const char *const bench_product_names[] = {"fprop", "dgrad", "wgrad"};

/* clang-format off */
#define LIST(member, count, ...) .member = {__VA_ARGS__}, \
    .count = sizeof((int[]){__VA_ARGS__}) / sizeof(int)
#define PRECISIONS_(...) LIST(precisions, precision_count, __VA_ARGS__)
#define PRODUCTS_(...)   LIST(products, product_count, __VA_ARGS__)
#define GATES_(...)      LIST(gates, gates_count, __VA_ARGS__)
#define PATTERNS_(...)   LIST(patterns, pattern_count, __VA_ARGS__)
#define BLOCKS_(...)     LIST(blocks, block_count, __VA_ARGS__)
#define COLUMNS_(...)    LIST(columns, columns_count, __VA_ARGS__)
#define DENSITIES_ .densities = {0.5, 0.2, 0.1, 0.05, 0.03, 0.01}, .density_count = 6

enum { B16, F32 };
enum { RANDOM, RING, HUBS };
enum { Y = PRODUCT_FPROP, DX = PRODUCT_DGRAD, DW = PRODUCT_WGRAD };

const grid_axes grid_default = {PRECISIONS_(B16), PRODUCTS_(Y), GATES_(1),   PATTERNS_(RANDOM),
                                BLOCKS_(32),      COLUMNS_(32), DENSITIES_};

static const grid_axes slices[] = {
    /* every N */
    {PRECISIONS_(B16), PRODUCTS_(Y, DX, DW), GATES_(1), PATTERNS_(RANDOM), BLOCKS_(32),
     COLUMNS_(8, 32, 48, 64, 96, 128, 200, 256, 512, 8192), DENSITIES_},
    /* four gates on one pattern, as in the cell */
    {PRECISIONS_(B16), PRODUCTS_(Y, DX, DW), GATES_(4), PATTERNS_(RANDOM, RING), BLOCKS_(32),
     COLUMNS_(32, 128, 512, 8192), DENSITIES_},
    /* the other patterns */
    {PRECISIONS_(B16), PRODUCTS_(Y, DX, DW), GATES_(1), PATTERNS_(RING, HUBS), BLOCKS_(32),
     COLUMNS_(32, 512, 8192), DENSITIES_},
    /* the other blocks */
    {PRECISIONS_(B16), PRODUCTS_(Y, DX, DW), GATES_(1), PATTERNS_(RANDOM), BLOCKS_(8, 16, 64, 128),
     COLUMNS_(32, 512, 8192), DENSITIES_},
    /* the other precision */
    {PRECISIONS_(F32), PRODUCTS_(Y, DX, DW), GATES_(1), PATTERNS_(RANDOM), BLOCKS_(32),
     COLUMNS_(32, 64, 128, 512), DENSITIES_},
};
/* clang-format on */

static bool same(const grid_cell *a, const grid_cell *b) {
    return a->precision == b->precision && a->pattern == b->pattern && a->product == b->product &&
           a->gates == b->gates && a->block == b->block && a->columns == b->columns &&
           a->density == b->density;
}

/* Blocks must divide the units, and the density leave room for more than the self-blocks. */
static bool possible(const grid *g, const grid_cell *cell) {
    const int nodes = g->units / cell->block;
    return g->units % cell->block == 0 && cell->density * nodes >= 1.5;
}

static void add_cell(grid *g, const grid_cell *cell) {
    if (!possible(g, cell)) return;
    for (size_t i = 0; i < g->count; i++) {
        if (same(&g->cells[i], cell)) return;
    }
    g->cells = mem_grow(g->cells, &g->capacity, g->count + 1, sizeof *g->cells);
    g->cells[g->count++] = *cell;
}

void grid_add(grid *g, const grid_axes *a) {
    int sizes[] = {a->precision_count, a->product_count, a->gates_count,  a->pattern_count,
                   a->block_count,     a->columns_count, a->density_count};
    int total = 1;
    for (int i = 0; i < 7; i++) total *= sizes[i];
    for (int n = 0; n < total; n++) {
        int at[7], rest = n;
        for (int i = 6; i >= 0; i--) {
            at[i] = rest % sizes[i];
            rest /= sizes[i];
        }
        add_cell(g, &(grid_cell){.precision = a->precisions[at[0]],
                                 .product = (bench_product)a->products[at[1]],
                                 .gates = a->gates[at[2]],
                                 .pattern = a->patterns[at[3]],
                                 .block = a->blocks[at[4]],
                                 .columns = a->columns[at[5]],
                                 .density = a->densities[at[6]]});
    }
}

void grid_add_full(grid *g) {
    for (size_t i = 0; i < sizeof slices / sizeof slices[0]; i++) grid_add(g, &slices[i]);
}

static int measuring_order(const void *a, const void *b) {
    const grid_cell *x = a, *y = b;
    if (x->precision != y->precision) return x->precision - y->precision;
    if (x->pattern != y->pattern) return x->pattern - y->pattern;
    if (x->block != y->block) return x->block - y->block;
    if (x->density != y->density) return x->density < y->density ? 1 : -1;
    if (x->gates != y->gates) return x->gates - y->gates;
    if (x->product != y->product) return (int)x->product - (int)y->product;
    return x->columns - y->columns;
}

void grid_sort(grid *g) {
    qsort(g->cells, g->count, sizeof *g->cells, measuring_order);
}

void grid_free(grid *g) {
    free(g->cells);
    *g = (grid){0};
}
