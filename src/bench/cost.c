#include "bench/cost.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

const char *const limit_names[] = {"memory", "arithmetic", "L2"};

enum {
    SUMS = 65536,   /* fp32 registers of a multiprocessor */
    LEAST_WIDTH = 8 /* columns of the narrowest tensor-core tile */
};

static double passes(double count, double tile) {
    return ceil(count / tile);
}

/* One side of a product: output nodes that read other nodes. */
typedef struct side {
    const int *start, *other;
    int nodes, others;
    double rows, other_rows; /* rows of a node's tile, with all gates */
} side;

/* Returns the sum, over groups of `group` neighbouring nodes, of the number of other nodes that
 * they read. */
static double gathered(const side *s, int group) {
    int *seen = mem_alloc((size_t)s->others, sizeof *seen);
    double total = 0;
    for (int first = 0, number = 1; first < s->nodes; first += group, number++) {
        int past = first + group < s->nodes ? first + group : s->nodes;
        for (int k = s->start[first]; k < s->start[past]; k++) {
            total += seen[s->other[k]] != number;
            seen[s->other[k]] = number;
        }
    }
    free(seen);
    return total;
}

/* Elements that go into the multiprocessors in a product that gathers tiles of the other side. */
static double gather_elements(const side *s, double weights, double columns) {
    double least = INFINITY;
    for (int group = 1; group < 2 * s->nodes; group *= 2) {
        double width = floor(SUMS / (group * s->rows));
        if (width < LEAST_WIDTH && group > 1) break;
        width = fmin(fmax(width, LEAST_WIDTH), columns);
        double elements =
            gathered(s, group) * s->other_rows * columns + weights * passes(columns, width);
        least = fmin(least, elements);
    }
    return least;
}

/* Elements that go into the multiprocessors in wgrad. The blocks of a group are computed in parts
 * of at most SUMS sums. Each part reads all rows of the group and its share of their inputs. */
static double wgrad_elements(const side *s, double depth) {
    double least = INFINITY, most = fmax(1, floor(SUMS / (s->rows * s->other_rows)));
    for (int group = 1; group < 2 * s->nodes && group <= most; group *= 2) {
        double rows = 0;
        for (int first = 0; first < s->nodes; first += group) {
            int past = first + group < s->nodes ? first + group : s->nodes;
            rows += (past - first) * s->rows * passes(s->start[past] - s->start[first], most);
        }
        least = fmin(least, depth * (rows + gathered(s, group) * s->other_rows));
    }
    return least;
}

/* Elements that go into the multiprocessors in a dense product of m x n sums over `depth`. */
static double dense_elements(double m, double n, double depth) {
    double width = fmin(n, 256), height = SUMS / width;
    return depth * (m * passes(n, width) + n * passes(m, height));
}

static double cache_elements(const layout *l, bench_product product, double columns) {
    double rows = (double)layout_rows(l), inputs = (double)l->in_nodes * l->in_block;
    double weights = (double)layout_weights(l);
    if (layout_is_dense(l)) {
        switch (product) {
        case PRODUCT_FPROP: return dense_elements(rows, columns, inputs);
        case PRODUCT_DGRAD: return dense_elements(inputs, columns, rows);
        default: return dense_elements(rows, inputs, columns);
        }
    }
    double out = (double)l->gates * l->out_block, in = l->in_block;
    side by_row = {l->row_start, l->row_column, l->out_nodes, l->in_nodes, out, in};
    side by_column = {l->column_start, l->column_row, l->in_nodes, l->out_nodes, in, out};
    switch (product) {
    case PRODUCT_FPROP: return gather_elements(&by_row, weights, columns);
    case PRODUCT_DGRAD: return gather_elements(&by_column, weights, columns);
    default: return wgrad_elements(&by_row, columns);
    }
}

cost cost_of_product(const layout *l, bench_product product, int columns, size_t operand,
                     size_t result) {
    double weights = (double)layout_weights(l), n = columns;
    double y = (double)layout_rows(l) * n, x = (double)l->in_nodes * l->in_block * n;
    double in = (double)operand, out = (double)result, memory = 0;
    switch (product) {
    case PRODUCT_FPROP: memory = in * (weights + x) + out * y; break;
    case PRODUCT_DGRAD: memory = in * (weights + y) + out * x; break;
    default: memory = in * (x + y) + out * weights; break;
    }
    return (cost){memory, 2 * weights * n, in * cache_elements(l, product, n)};
}

cost cost_sum(cost a, cost b) {
    return (cost){a.memory + b.memory, a.operations + b.operations, a.cache + b.cache};
}

void cost_seconds(cost c, const ceilings *ceilings, bench_math math, double seconds[LIMITS]) {
    double work[] = {c.memory, c.operations, c.cache};
    double rate[] = {ceilings->memory, ceilings->rate[math], ceilings->cache};
    for (int i = 0; i < LIMITS; i++) seconds[i] = rate[i] > 0 ? work[i] / rate[i] : 0;
}

double cost_floor(cost c, const ceilings *ceilings, bench_math math, limit *by) {
    double seconds[LIMITS];
    cost_seconds(c, ceilings, math, seconds);
    limit largest = LIMIT_MEMORY;
    for (int i = 1; i < LIMITS; i++) {
        if (seconds[i] > seconds[largest]) largest = (limit)i;
    }
    if (by) *by = largest;
    return seconds[largest];
}
