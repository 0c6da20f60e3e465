/* The three products with a block-sparse W, or with a dense one, which is a single block of any
 * size.
 *
 *   fprop  y_i  = sum over blocks (i, j)  W_ij  x_j
 *   dgrad  dx_j = sum over blocks (i, j)  W_ij' dy_i
 *   wgrad  dW_ij = sum over t             dy_i[t] x_j[t]'
 *
 * Floor: 2 blocks gates block^2 columns operations each. All share one inner kernel, a tile of ROWS
 * x COLUMN_GROUP sums held in registers: each step loads ROWS numbers of the one operand and a
 * group of the other's, and does ROWS x COLUMN_GROUP multiply-adds; where there are registers for
 * it, tiles are two groups wide, since a load for each multiply-add keeps the load units busier
 * than the multipliers. In fprop (dgrad) the tile's
 * columns are streams, and it walks the blocks of its row (column). In wgrad they are units of x_j,
 * and it walks streams and steps; so that these units lie side by side, x is packed with units and
 * streams exchanged, a panel of steps at a time, once for all rows that read it.
 *
 * A dense W is cut into slices of rows, or of input units, that threads take. Its dgrad reads a few
 * units of every row; rows whose length is a power of two would all fall into the same few sets of
 * the cache, so a slice of some rows is copied together first, unless a tile uses whole lines. */
#include "cpu.h"

#include "core/memory.h"

#include <assert.h>
#include <stdlib.h>

#if defined __AVX512F__
enum { VECTOR_BYTES = 64 };
#elif defined __AVX__
enum { VECTOR_BYTES = 32 };
#else
enum { VECTOR_BYTES = 16 };
#endif

typedef real vec __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real))));

enum {
    LANES = VECTOR_BYTES / sizeof(real),
    VECTORS = COLUMN_GROUP / LANES,
    ROWS = VECTORS == 1 ? 8 : 4,        /* 8 independent sums hide the latency of a multiply-add */
    MOST_GROUPS = VECTORS == 1 ? 2 : 1, /* of a tile */
    TALL = VECTORS == 1 ? 16 : ROWS,    /* units of a tile whose W is read once: a cache line */
    MOST_VECTORS = MOST_GROUPS * VECTORS,
    MOST_WIDTH = MOST_GROUPS * COLUMN_GROUP,
    PANEL = 128, /* columns x steps that wgrad sums at a time */
    SLICE = 32,  /* rows or input units of a dense W that a thread computes at a time */
    DEPTH = 128, /* rows of a dense W that dgrad sums at a time */
    AHEAD = 24   /* rows of a dense W that are fetched ahead */
};

static_assert(COLUMN_GROUP % LANES == 0, "a column group is whole vectors");
static_assert(SLICE % MOST_WIDTH == 0, "strips do not cross slices");

/* Compiled for each constant shape that a caller passes, so that sums stay in registers. */
#define BY_SHAPE static inline __attribute__((always_inline))

/* Calls a function for a tile of `rows` x `groups`: ROWS or, where fewer rows are left, 1, and
 * MOST_GROUPS or 1. */
#define CALL_BY_SHAPE(function, rows, groups, ...)                                                 \
    ((rows) == 1                                                                                   \
         ? (groups) == 1 ? function(1, 1, __VA_ARGS__) : function(1, MOST_GROUPS, __VA_ARGS__)     \
     : (groups) == 1 ? function(ROWS, 1, __VA_ARGS__)                                              \
                     : function(ROWS, MOST_GROUPS, __VA_ARGS__))

typedef vec tile_sums[TALL][MOST_VECTORS];

/* The rows of the next tile, of `left` rows. */
static inline size_t next_rows(size_t left) {
    return left >= ROWS ? ROWS : 1;
}

/* The groups of the next tile, of `left` columns or units. */
static inline int next_groups(size_t left) {
    return left >= MOST_WIDTH ? MOST_GROUPS : 1;
}

/* sum[r] += sum over k < depth of w[r row_stride + k k_stride] x[k x_stride ...]. The second
 * group's columns are `next` behind the first one's. */
BY_SHAPE void multiply_tile(int rows, int groups, tile_sums sum, const real *w, size_t row_stride,
                            size_t k_stride, const real *x, size_t x_stride, size_t next,
                            size_t depth) {
    for (size_t k = 0; k < depth; k++, w += k_stride, x += x_stride) {
        for (int r = 0; r < rows; r++) {
            real weight = w[(size_t)r * row_stride];
            for (int v = 0; v < groups * VECTORS; v++) {
                const vec *in = (const vec *)(x + (size_t)(v / VECTORS) * next);
                sum[r][v] += weight * in[v % VECTORS];
            }
        }
    }
}

/* Stores a tile's sums, or adds them to what is there. */
BY_SHAPE void store_tile(int rows, int groups, const tile_sums sum, bool add, real *y,
                         size_t row_stride, size_t next) {
    for (int r = 0; r < rows; r++, y += row_stride) {
        for (int v = 0; v < groups * VECTORS; v++) {
            vec *out = (vec *)(y + (size_t)(v / VECTORS) * next) + v % VECTORS;
            *out = add ? *out + sum[r][v] : sum[r][v];
        }
    }
}

/* Rows of one node's product, gates included. */
static inline size_t node_rows(const layout *l) {
    return (size_t)l->gates * (size_t)l->out_block;
}

/* A part of a node's rows, or of its inputs' units, that one thread computes. */
typedef struct slice {
    int node;
    size_t first, count;
} slice;

/* Slice `task` of nodes with `size` rows each. Only a dense matrix, which is one node, is cut. */
static inline slice slice_of(const layout *l, size_t size, size_t task) {
    if (!layout_is_dense(l)) return (slice){(int)task, 0, size};
    size_t first = task * SLICE;
    return (slice){0, first, size - first < SLICE ? size - first : SLICE};
}

static inline size_t slices(const layout *l, int nodes, size_t size) {
    return layout_is_dense(l) ? (size + SLICE - 1) / SLICE : (size_t)nodes;
}

/* The columns of fprop and dgrad: one step's, or two steps' if one fills only one group of a tile.
 * The second group is `next_in` behind the first one in the input, and `next_out` in the result. */
typedef struct span {
    int steps;
    size_t columns, next_in, next_out;
} span;

static inline span span_of(size_t columns, int left, size_t inputs, size_t outputs) {
    if (MOST_GROUPS > 1 && columns == COLUMN_GROUP && left > 1) {
        return (span){2, columns, inputs * columns, outputs * columns};
    }
    return (span){1, columns, COLUMN_GROUP, COLUMN_GROUP};
}

/* ------------------------------------------------------------------------------------- fprop */

/* Rows of node i from `row` on, and columns from n on. */
BY_SHAPE void fprop_tile(int rows, int groups, const layout *l, int i, size_t row, size_t n,
                         const real *w, const real *x, span p, real *y) {
    const size_t b = (size_t)l->in_block, node = node_rows(l);
    const size_t stride = (size_t)l->in_stride * p.columns;
    tile_sums sum = {0};
    for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
        multiply_tile(rows, groups, sum, w + ((size_t)k * node + row) * b, b, 1,
                      x + (size_t)l->row_column[k] * b * stride + n, stride, p.next_in, b);
    }
    store_tile(rows, groups, sum, false, y + ((size_t)i * node + row) * p.columns + n, p.columns,
               p.next_out);
}

static void fprop_slice(const layout *l, slice s, const real *w, const real *x, span p, real *y) {
    const size_t columns = (size_t)p.steps * p.columns, end = s.first + s.count;
    for (size_t row = s.first, rows; row < end; row += rows) {
        rows = next_rows(end - row);
        for (size_t n = 0, groups; n < columns; n += groups * COLUMN_GROUP) {
            groups = (size_t)next_groups(columns - n);
            CALL_BY_SHAPE(fprop_tile, rows, groups, l, s.node, row, n, w, x, p, y);
        }
    }
}

/* ------------------------------------------------------------------------------------- dgrad */

/* Units of node j from v on, and columns from n on. */
BY_SHAPE void dgrad_tile(int units, int groups, const layout *l, int j, size_t v, size_t n,
                         const real *w, const real *dy, span p, real *dx) {
    const size_t b = (size_t)l->in_block, node = node_rows(l);
    tile_sums sum = {0};
    for (int k = l->column_start[j]; k < l->column_start[j + 1]; k++) {
        multiply_tile(units, groups, sum, w + (size_t)l->column_block[k] * node * b + v, 1, b,
                      dy + (size_t)l->column_row[k] * node * p.columns + n, p.columns, p.next_in,
                      node);
    }
    store_tile(units, groups, sum, false, dx + ((size_t)j * b + v) * p.columns + n, p.columns,
               p.next_out);
}

/* What `depth` rows of a dense W give to some units: w [depth][SLICE], and dx with `dx_stride` from
 * unit to unit. */
BY_SHAPE void dense_dgrad_tile(int units, int groups, const real *w, const real *dy, size_t depth,
                               bool add, span p, real *dx, size_t dx_stride) {
    tile_sums sum = {0};
    multiply_tile(units, groups, sum, w, 1, SLICE, dy, p.columns, p.next_in, depth);
    store_tile(units, groups, sum, add, dx, dx_stride, p.next_out);
}

/* What all rows of a dense W give to TALL units and one group: each line of W is used once, from
 * where it lies, and fetched AHEAD rows before. */
static void tall_dgrad_tile(const real *w, size_t b, size_t rows, const real *dy, span p, real *dx,
                            size_t dx_stride) {
    for (size_t k = 0; k < rows;) {
        const bool add = k > 0;
        const size_t end = rows - k < DEPTH ? rows : k + DEPTH;
        tile_sums sum = {0};
        for (; k < end; k++, w += b, dy += p.columns) {
            __builtin_prefetch(w + (rows - k > AHEAD ? AHEAD : 0) * b);
            multiply_tile(TALL, 1, sum, w, 1, b, dy, p.columns, 0, 1);
        }
        store_tile(TALL, 1, sum, add, dx, dx_stride, 0);
    }
}

/* `depth` rows of a slice of a dense W, rows of `b` units -> [depth][SLICE]. */
static void pack_weights(const real *w, size_t b, size_t count, size_t depth, real *packed) {
    for (size_t k = 0; k < depth; k++, w += b, packed += SLICE) {
        if (count == SLICE) {
            memcpy(packed, w, SLICE * sizeof *w);
        } else {
            memcpy(packed, w, count * sizeof *w);
        }
    }
}

static void dense_dgrad_slice(const layout *l, slice s, const real *w, const real *dy, span p,
                              real *dx) {
    const size_t b = (size_t)l->in_block, columns = (size_t)p.steps * p.columns;
    const size_t dx_stride = (size_t)l->in_stride * p.columns, rows = node_rows(l);
    if (TALL > ROWS && columns == COLUMN_GROUP && s.count % TALL == 0) {
        for (size_t v = s.first; v < s.first + s.count; v += TALL) {
            tall_dgrad_tile(w + v, b, rows, dy, p, dx + v * dx_stride, dx_stride);
        }
        return;
    }
    real packed[DEPTH * SLICE];
    for (size_t k = 0; k < rows; k += DEPTH) {
        const size_t depth = rows - k < DEPTH ? rows - k : DEPTH;
        pack_weights(w + k * b + s.first, b, s.count, depth, packed);
        for (size_t v = 0, units; v < s.count; v += units) {
            units = next_rows(s.count - v);
            for (size_t n = 0, groups; n < columns; n += groups * COLUMN_GROUP) {
                groups = (size_t)next_groups(columns - n);
                CALL_BY_SHAPE(dense_dgrad_tile, units, groups, packed + v, dy + k * p.columns + n,
                              depth, k > 0, p, dx + (s.first + v) * dx_stride + n, dx_stride);
            }
        }
    }
}

static void dgrad_slice(const layout *l, slice s, const real *w, const real *dy, span p, real *dx) {
    if (layout_is_dense(l)) {
        dense_dgrad_slice(l, s, w, dy, p, dx);
        return;
    }
    const size_t columns = (size_t)p.steps * p.columns;
    for (size_t v = 0; v < s.count; v += ROWS) {
        for (size_t n = 0, groups; n < columns; n += groups * COLUMN_GROUP) {
            groups = (size_t)next_groups(columns - n);
            CALL_BY_SHAPE(dgrad_tile, ROWS, groups, l, s.node, v, n, w, dy, p, dx);
        }
    }
}

/* ------------------------------------------------------------------------------------- wgrad */

/* The number of steps in a panel of wgrad. A panel's sums are computed in registers and then added
 * to the result, so that small numbers are not lost in the sum over a long text. */
static int panel_steps(int steps, size_t columns) {
    int panel = (int)(PANEL / columns ? PANEL / columns : 1);
    return panel < steps ? panel : steps;
}

/* The number of an input's units that lie side by side in a packed strip, of `left` units left. A
 * strip of fewer than TILE units has room for TILE. */
static inline size_t strip_width(size_t left) {
    return left < COLUMN_GROUP ? TILE : (size_t)next_groups(left) * COLUMN_GROUP;
}

/* TILE columns of up to TILE units, which are `stride` apart -> [columns][width]; 0 in units that
 * are not there. */
static inline void pack_tile(const real *from, size_t units, size_t stride, real *packed,
                             size_t width) {
    octet tile[TILE] = {0};
    if (units >= TILE) {
        tile_load(tile, from, stride);
    } else {
        for (size_t u = 0; u < units; u++) memcpy(&tile[u], from + u * stride, sizeof tile[u]);
    }
    tile_transpose(tile);
    tile_store(tile, packed, width);
}

/* `steps` steps of a slice of the input -> strips [steps][columns][width], one behind another. */
static void pack_slice(const layout *l, slice s, const real *x, size_t columns, int steps,
                       real *packed) {
    const size_t stride = (size_t)l->in_stride * columns;
    const size_t first = (size_t)s.node * (size_t)l->in_block + s.first;
    packed += first * (size_t)steps * columns;
    size_t width;
    for (size_t v = 0; v < s.count; v += width) {
        width = strip_width(s.count - v);
        for (size_t t = 0; t < (size_t)steps; t++) {
            const real *from = x + t * layout_inputs(l) * columns + (first + v) * stride;
            for (size_t n = 0; n < columns; n += TILE, packed += TILE * width) {
                for (size_t u = 0; u < width; u += TILE) {
                    pack_tile(from + u * stride + n, s.count - v - u, stride, packed + u, width);
                }
            }
        }
    }
}

/* dw, rows of a block by `groups` groups of its columns, from rows of dy that are `step` apart from
 * step to step, and a packed panel. */
BY_SHAPE void wgrad_tile(int rows, int groups, const real *dy, size_t step, const real *x,
                         size_t columns, int steps, bool add, real *dw, size_t b) {
    const size_t width = (size_t)groups * COLUMN_GROUP;
    tile_sums sum = {0};
    for (int r = 0; r < rows; r++) {
        for (size_t v = 0; v < width; v += 64 / sizeof(real)) {
            __builtin_prefetch(dw + (size_t)r * b + v, 1);
        }
    }
    for (int t = 0; t < steps; t++, dy += step, x += columns * width) {
        multiply_tile(rows, groups, sum, dy, columns, 1, x, width, COLUMN_GROUP, columns);
    }
    store_tile(rows, groups, sum, add, dw, b, COLUMN_GROUP);
}

/* The same for a tile of up to TILE x TILE. */
BY_SHAPE void wgrad_small_tile(size_t rows, size_t units, const real *dy, size_t step,
                               const real *x, size_t columns, int steps, bool add, real *dw,
                               size_t b) {
    octet sum[TILE] = {0}, in;
    for (int t = 0; t < steps; t++, dy += step) {
        for (size_t n = 0; n < columns; n++, x += TILE) {
            memcpy(&in, x, sizeof in);
            for (size_t r = 0; r < rows; r++) sum[r] += dy[r * columns + n] * in;
        }
    }
    for (size_t r = 0; r < rows; r++, dw += b) {
        for (size_t u = 0; u < units; u++) dw[u] = add ? dw[u] + sum[r][u] : sum[r][u];
    }
}

/* What `steps` steps add to `rows` rows of a block of b columns, or, of the first panel, start them
 * with. */
static void wgrad_block(const real *dy, size_t rows, size_t step, const real *packed,
                        size_t columns, int steps, bool add, real *dw, size_t b) {
    size_t width;
    for (size_t v = 0; v < b; v += width) {
        width = strip_width(b - v);
        const real *x = packed + v * (size_t)steps * columns;
        for (size_t row = 0, count; row < rows; row += count) {
            const real *from = dy + row * columns;
            real *tile = dw + row * b + v;
            if (width == TILE) {
                const size_t units = b - v < TILE ? b - v : TILE;
                count = rows - row < TILE ? rows - row : TILE;
                if (count == TILE && units == TILE) {
                    wgrad_small_tile(TILE, TILE, from, step, x, columns, steps, add, tile, b);
                } else {
                    wgrad_small_tile(count, units, from, step, x, columns, steps, add, tile, b);
                }
            } else {
                count = next_rows(rows - row);
                CALL_BY_SHAPE(wgrad_tile, count, width / COLUMN_GROUP, from, step, x, columns,
                              steps, add, tile, b);
            }
        }
    }
}

static void wgrad_slice(const layout *l, slice s, const real *dy, const real *packed,
                        size_t columns, int steps, bool add, real *dw) {
    size_t b = (size_t)l->in_block, rows = node_rows(l), step = layout_rows(l) * columns;
    dy += ((size_t)s.node * rows + s.first) * columns;
    for (int k = l->row_start[s.node]; k < l->row_start[s.node + 1]; k++) {
        const real *x = packed + (size_t)l->row_column[k] * b * (size_t)steps * columns;
        wgrad_block(dy, s.count, step, x, columns, steps, add,
                    dw + ((size_t)k * rows + s.first) * b, b);
    }
}

static void all_wgrad(int threads, const layout *l, const real *dy, const real *x, int steps,
                      size_t columns, real *dw, real *workspace) {
    size_t in = (size_t)l->in_block, out = node_rows(l);
    size_t packs = slices(l, l->in_nodes, in), tasks = slices(l, l->out_nodes, out);
    int panel = panel_steps(steps, columns);
    for (int t0 = 0; t0 < steps; t0 += panel) {
        int count = steps - t0 < panel ? steps - t0 : panel;
        const real *x0 = x + (size_t)t0 * layout_inputs(l) * columns;
        const real *dy0 = dy + (size_t)t0 * layout_rows(l) * columns;
#pragma omp parallel num_threads(threads)
        {
#pragma omp for
            for (size_t i = 0; i < packs; i++) {
                pack_slice(l, slice_of(l, in, i), x0, columns, count, workspace);
            }
#pragma omp for schedule(dynamic)
            for (size_t i = 0; i < tasks; i++) {
                wgrad_slice(l, slice_of(l, out, i), dy0, workspace, columns, count, t0 > 0, dw);
            }
        }
    }
}

size_t CPU(wgrad_workspace)(backend *be, const layout *l, int steps, int columns) {
    (void)be;
    size_t units = ((size_t)l->in_block + TILE - 1) / TILE * TILE;
    size_t panel = (size_t)panel_steps(steps, (size_t)columns);
    return sizeof(real) * (size_t)l->in_nodes * units * panel * (size_t)columns;
}

/* ---------------------------------------------------------------------------- convolutions
 * fprop and dgrad are one loop: over a node's list, and for each block over the taps that read
 * something at this position. `from` [taps] are the positions read. */

BY_SHAPE void conv_tile(int rows, int groups, const layout *l, bool forward, int node, size_t row,
                        size_t n, const real *w, const real *x, const int *from, size_t columns,
                        real *y) {
    const size_t b = (size_t)l->in_block;
    const size_t step = (forward ? layout_inputs(l) : layout_rows(l)) * columns;
    const int *start = forward ? l->row_start : l->column_start;
    const int *other = forward ? l->row_column : l->column_row;
    tile_sums sum = {0};
    for (int k = start[node]; k < start[node + 1]; k++) {
        const size_t block = (size_t)(forward ? k : l->column_block[k]) * (size_t)l->taps;
        for (int t = 0; t < l->taps; t++) {
            if (from[t] < 0) continue;
            multiply_tile(rows, groups, sum,
                          w + (block + (size_t)t) * b * b + row * (forward ? b : 1),
                          forward ? b : 1, forward ? 1 : b,
                          x + (size_t)from[t] * step + (size_t)other[k] * b * columns + n, columns,
                          COLUMN_GROUP, b);
        }
    }
    store_tile(rows, groups, sum, false, y + row * columns + n, columns, COLUMN_GROUP);
}

static void convolve(backend *be, const layout *l, bool forward, const tap_table *taps,
                     const real *w, const real *x, size_t columns, real *y) {
    const size_t nodes = (size_t)(forward ? l->out_nodes : l->in_nodes), b = (size_t)l->in_block;
    const size_t positions = (size_t)(forward ? taps->out_positions : taps->in_positions);
    const int *map = forward ? taps->source : taps->target;
#pragma omp parallel for num_threads(cpu_of(be)->threads) schedule(dynamic)
    for (size_t task = 0; task < positions * nodes; task++) {
        const int *from = map + task / nodes * (size_t)l->taps, node = (int)(task % nodes);
        real *result = y + task * b * columns;
        for (size_t row = 0; row < b; row += ROWS) {
            for (size_t n = 0, groups; n < columns; n += groups * COLUMN_GROUP) {
                groups = (size_t)next_groups(columns - n);
                CALL_BY_SHAPE(conv_tile, ROWS, groups, l, forward, node, row, n, w, x, from,
                              columns, result);
            }
        }
        round_operands(be, result, b * columns);
    }
}

/* One tap's gradient of block k, which is in row i, from all of a packed x. */
static void conv_wgrad_tap(const layout *l, const tap_table *taps, int i, int k, int tap,
                           const real *dy, const real *packed, size_t columns, real *dw) {
    const size_t b = (size_t)l->in_block, in = layout_inputs(l), out = layout_rows(l);
    bool add = false;
    for (int p = 0; p < taps->out_positions; p++) {
        const int q = taps->source[p * l->taps + tap];
        if (q < 0) continue;
        wgrad_block(dy + ((size_t)p * out + (size_t)i * b) * columns, b, 0,
                    packed + ((size_t)q * in + (size_t)l->row_column[k] * b) * columns, columns, 1,
                    add, dw, b);
        add = true;
    }
    if (!add) memset(dw, 0, b * b * sizeof *dw);
}

/* ------------------------------------------------------------------------------ the operations */

static void all_fprop(int threads, const layout *l, const real *w, const real *x, int steps,
                      size_t columns, real *y) {
    const size_t in = layout_inputs(l), out = layout_rows(l), rows = node_rows(l);
    span p;
    for (int t = 0; t < steps; t += p.steps) {
        p = span_of(columns, steps - t, in, out);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
        for (size_t i = 0; i < slices(l, l->out_nodes, rows); i++) {
            fprop_slice(l, slice_of(l, rows, i), w, x + (size_t)t * in * columns, p,
                        y + (size_t)t * out * columns);
        }
    }
}

static void all_dgrad(int threads, const layout *l, const real *w, const real *dy, int steps,
                      size_t columns, real *dx) {
    const size_t in = layout_rows(l), out = layout_inputs(l), units = (size_t)l->in_block;
    span p;
    for (int t = 0; t < steps; t += p.steps) {
        p = span_of(columns, steps - t, in, out);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
        for (size_t i = 0; i < slices(l, l->in_nodes, units); i++) {
            dgrad_slice(l, slice_of(l, units, i), w, dy + (size_t)t * in * columns, p,
                        dx + (size_t)t * out * columns);
        }
    }
}

void CPU(fprop)(backend *be, const device_layout *device, const void *w, const void *x, int steps,
                int columns, void *y, element type) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    size_t width = (size_t)columns, out = layout_rows(l) * width;
    all_fprop(cpu_of(be)->threads, l, w, x, steps, width, y);
    if (type == OPERAND) round_operands(be, y, (size_t)steps * out);
}

void CPU(add_rows)(backend *be, const device_layout *device, const void *x, int columns, void *y) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    size_t width = (size_t)columns, rows = layout_rows(l);
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t r = 0; r < rows; r++) {
        const real *from = (const real *)x + r * width;
        real *to = (real *)y + r * width;
        for (size_t n = 0; n < width; n++) to[n] += from[n];
        round_operands(be, to, width);
    }
}

void CPU(dgrad)(backend *be, const device_layout *device, const void *w, const void *dy, int steps,
                int columns, void *dx, element type) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    size_t width = (size_t)columns, out = layout_inputs(l) * width;
    if (l->in_stride > 1) memset(dx, 0, (size_t)steps * out * sizeof(real));
    all_dgrad(threads, l, w, dy, steps, width, dx);
    if (type == OPERAND) round_operands(be, dx, (size_t)steps * out);
}

void CPU(wgrad)(backend *be, const device_layout *device, const void *dy, const void *x, int steps,
                int columns, void *dw, void *workspace) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    all_wgrad(threads, l, dy, x, steps, (size_t)columns, dw, workspace);
}

void CPU(conv_fprop)(backend *be, const device_layout *device, const tap_table *taps, const void *w,
                     const void *x, int columns, void *y) {
    FLUSH_DENORMALS(be);
    convolve(be, &device->host, true, taps, w, x, (size_t)columns, y);
}

void CPU(conv_dgrad)(backend *be, const device_layout *device, const tap_table *taps, const void *w,
                     const void *dy, int columns, void *dx) {
    FLUSH_DENORMALS(be);
    convolve(be, &device->host, false, taps, w, dy, (size_t)columns, dx);
}

void CPU(conv_wgrad)(backend *be, const device_layout *device, const tap_table *taps,
                     const void *dy, const void *x, int columns, void *dw) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    const size_t b = (size_t)l->in_block, width = (size_t)columns, in = layout_inputs(l) * width;
    const size_t nodes = (size_t)l->in_nodes, packs = (size_t)taps->in_positions * nodes;
    real *packed = mem_alloc((size_t)taps->in_positions * in, sizeof *packed);
#pragma omp parallel num_threads(cpu_of(be)->threads)
    {
#pragma omp for
        for (size_t i = 0; i < packs; i++) {
            const size_t at = i / nodes * in;
            pack_slice(l, slice_of(l, b, i % nodes), (const real *)x + at, width, 1, packed + at);
        }
#pragma omp for schedule(dynamic)
        for (int i = 0; i < l->out_nodes; i++) {
            for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
                for (int t = 0; t < l->taps; t++) {
                    conv_wgrad_tap(l, taps, i, k, t, dy, packed, width,
                                   (real *)dw + (size_t)(k * l->taps + t) * b * b);
                }
            }
        }
    }
    free(packed);
}
