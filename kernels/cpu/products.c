/* The three products with a block-sparse W, and with a dense one, which is a single block if it is
 * small, and goes to BLAS if not.
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
 * streams exchanged, a panel of steps at a time, once for all rows that read it. */
#include "cpu.h"

#include <assert.h>
#include <cblas.h>
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
    MOST_VECTORS = MOST_GROUPS * VECTORS,
    MOST_WIDTH = MOST_GROUPS * COLUMN_GROUP,
    PANEL = 128,                 /* columns x steps that wgrad sums at a time */
    SLICE = 32,                  /* rows of a dense W that a thread computes at a time */
    MOST_TILED_WEIGHTS = 1 << 18 /* of a dense W, which then stays in the L2 */
};

static_assert(COLUMN_GROUP % LANES == 0, "a column group is whole vectors");
static_assert(SLICE % MOST_WIDTH == 0, "strips do not cross slices");

/* Compiled for each constant number of groups that a caller passes, so that sums stay in
 * registers. */
#define BY_GROUPS static inline __attribute__((always_inline))

typedef vec tile_sums[ROWS][MOST_VECTORS];

/* The groups of the next tile, of `left` columns or units. */
static inline int next_groups(size_t left) {
    return left >= MOST_WIDTH ? MOST_GROUPS : 1;
}

/* sum[r] += sum over k < depth of w[r row_stride + k k_stride] x[k columns ...]. The second group's
 * columns are `next` behind the first one's. */
BY_GROUPS void multiply_tile(int groups, tile_sums sum, const real *w, size_t row_stride,
                             size_t k_stride, const real *x, size_t columns, size_t next,
                             int depth) {
    for (int k = 0; k < depth; k++, w += k_stride, x += columns) {
        for (int r = 0; r < ROWS; r++) {
            real weight = w[(size_t)r * row_stride];
            for (int v = 0; v < groups * VECTORS; v++) {
                const vec *in = (const vec *)(x + (size_t)(v / VECTORS) * next);
                sum[r][v] += weight * in[v % VECTORS];
            }
        }
    }
}

BY_GROUPS void store_tile(int groups, const tile_sums sum, real *y, size_t columns, size_t next) {
    for (int r = 0; r < ROWS; r++, y += columns) {
        for (int g = 0; g < groups; g++) {
            memcpy(y + (size_t)g * next, sum[r] + g * VECTORS, VECTORS * sizeof(vec));
        }
    }
}

/* ------------------------------------------------------------------------------------- tiled */

/* Whether a product runs on these tiles: every block-sparse one, and a dense one if all its weights
 * stay in the cache. BLAS packs both operands anew in every step, which only a larger matrix is
 * worth. */
static bool is_tiled(const layout *l) {
    return !layout_is_dense(l) || (layout_weights(l) <= MOST_TILED_WEIGHTS && l->in_stride == 1 &&
                                   layout_rows(l) % TILE == 0 && l->in_block % TILE == 0);
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

/* ROWS rows of node i from `row` on, and `groups` groups of columns from n on. */
BY_GROUPS void fprop_tile(int groups, const layout *l, int i, size_t row, size_t n, const real *w,
                          const real *x, span p, real *y) {
    size_t b = (size_t)l->in_block, rows = node_rows(l);
    tile_sums sum = {0};
    for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
        multiply_tile(groups, sum, w + ((size_t)k * rows + row) * b, b, 1,
                      x + (size_t)l->row_column[k] * b * p.columns + n, p.columns, p.next_in,
                      (int)b);
    }
    store_tile(groups, sum, y + ((size_t)i * rows + row) * p.columns + n, p.columns, p.next_out);
}

static void fprop_slice(const layout *l, slice s, const real *w, const real *x, span p, real *y) {
    const size_t columns = (size_t)p.steps * p.columns;
    for (size_t row = s.first; row < s.first + s.count; row += ROWS) {
        for (size_t n = 0, groups; n < columns; n += groups * COLUMN_GROUP) {
            groups = (size_t)next_groups(columns - n);
            if (groups == 1) {
                fprop_tile(1, l, s.node, row, n, w, x, p, y);
            } else {
                fprop_tile(MOST_GROUPS, l, s.node, row, n, w, x, p, y);
            }
        }
    }
}

/* ROWS units of node j from v on, and `groups` groups of columns from n on. */
BY_GROUPS void dgrad_tile(int groups, const layout *l, int j, size_t v, size_t n, const real *w,
                          const real *dy, span p, real *dx) {
    size_t b = (size_t)l->in_block, rows = node_rows(l);
    tile_sums sum = {0};
    for (int k = l->column_start[j]; k < l->column_start[j + 1]; k++) {
        multiply_tile(groups, sum, w + (size_t)l->column_block[k] * rows * b + v, 1, b,
                      dy + (size_t)l->column_row[k] * rows * p.columns + n, p.columns, p.next_in,
                      (int)rows);
    }
    store_tile(groups, sum, dx + ((size_t)j * b + v) * p.columns + n, p.columns, p.next_out);
}

static void dgrad_slice(const layout *l, slice s, const real *w, const real *dy, span p, real *dx) {
    const size_t columns = (size_t)p.steps * p.columns;
    for (size_t v = s.first; v < s.first + s.count; v += ROWS) {
        for (size_t n = 0, groups; n < columns; n += groups * COLUMN_GROUP) {
            groups = (size_t)next_groups(columns - n);
            if (groups == 1) {
                dgrad_tile(1, l, s.node, v, n, w, dy, p, dx);
            } else {
                dgrad_tile(MOST_GROUPS, l, s.node, v, n, w, dy, p, dx);
            }
        }
    }
}

/* The number of steps in a panel of wgrad. A panel's sums are computed in registers and then added
 * to the result, so that small numbers are not lost in the sum over a long text. */
static int panel_steps(int steps, size_t columns) {
    int panel = (int)(PANEL / columns ? PANEL / columns : 1);
    return panel < steps ? panel : steps;
}

/* The number of an input's units that lie side by side in a packed strip, of `left` units left. */
static inline size_t strip_width(size_t left) {
    return left < COLUMN_GROUP ? TILE : (size_t)next_groups(left) * COLUMN_GROUP;
}

/* `steps` steps of a slice of the input -> strips [steps][columns][width], one behind another. */
static void pack_slice(const layout *l, slice s, const real *x, size_t columns, int steps,
                       real *packed) {
    size_t first = (size_t)s.node * (size_t)l->in_block + s.first;
    packed += first * (size_t)steps * columns;
    size_t width;
    for (size_t v = 0; v < s.count; v += width) {
        width = strip_width(s.count - v);
        for (size_t t = 0; t < (size_t)steps; t++) {
            const real *from = x + (t * layout_inputs(l) + first + v) * columns;
            for (size_t n = 0; n < columns; n += TILE, packed += TILE * width) {
                for (size_t u = 0; u < width; u += TILE) {
                    octet tile[TILE];
                    tile_load(tile, from + u * columns + n, columns);
                    tile_transpose(tile);
                    tile_store(tile, packed + u, width);
                }
            }
        }
    }
}

/* Stores a tile of sums, or adds it to what is there. */
static inline void keep_tile(const real *sum, size_t rows, size_t width, bool add, real *y,
                             size_t stride) {
    for (size_t r = 0; r < rows; r++, y += stride, sum += width) {
        for (size_t v = 0; v < width; v++) y[v] = add ? y[v] + sum[v] : sum[v];
    }
}

/* dw, ROWS rows of a block by `groups` groups of its columns, from rows of dy that are `step` apart
 * from step to step, and a packed panel. */
BY_GROUPS void wgrad_tile(int groups, const real *dy, size_t step, const real *x, size_t columns,
                          int steps, bool add, real *dw, size_t b) {
    const size_t width = (size_t)groups * COLUMN_GROUP;
    tile_sums sum = {0};
    for (int t = 0; t < steps; t++, dy += step, x += columns * width) {
        multiply_tile(groups, sum, dy, columns, 1, x, width, COLUMN_GROUP, (int)columns);
    }
    for (int r = 0; r < ROWS; r++)
        keep_tile((const real *)sum[r], 1, width, add, dw + (size_t)r * b, b);
}

/* The same for a tile of TILE x TILE. */
static inline void wgrad_small_tile(const real *dy, size_t step, const real *x, size_t columns,
                                    int steps, bool add, real *dw, size_t b) {
    octet sum[TILE] = {0}, in;
    for (int t = 0; t < steps; t++, dy += step) {
        for (size_t n = 0; n < columns; n++, x += TILE) {
            memcpy(&in, x, sizeof in);
            for (size_t r = 0; r < TILE; r++) sum[r] += dy[r * columns + n] * in;
        }
    }
    keep_tile((const real *)sum, TILE, TILE, add, dw, b);
}

/* What `steps` steps add to `rows` rows of a block of b columns, or, of the first panel, start them
 * with. */
static void wgrad_block(const real *dy, size_t rows, size_t step, const real *packed,
                        size_t columns, int steps, bool add, real *dw, size_t b) {
    size_t width;
    for (size_t v = 0; v < b; v += width) {
        width = strip_width(b - v);
        const real *x = packed + v * (size_t)steps * columns;
        for (size_t row = 0; row < rows; row += width == TILE ? TILE : ROWS) {
            const real *from = dy + row * columns;
            real *tile = dw + row * b + v;
            if (width == TILE) {
                wgrad_small_tile(from, step, x, columns, steps, add, tile, b);
            } else if (width == COLUMN_GROUP) {
                wgrad_tile(1, from, step, x, columns, steps, add, tile, b);
            } else {
                wgrad_tile(MOST_GROUPS, from, step, x, columns, steps, add, tile, b);
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

static void tiled_wgrad(int threads, const layout *l, const real *dy, const real *x, int steps,
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

/* -------------------------------------------------------------------------------------- BLAS
 * Each thread hands its own rows of the result to a single-threaded BLAS call. */

#ifdef SMALLWORLD_REFERENCE
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

/* The rows of a call, by the shape alone, so that bits do not depend on the threads. Every call
 * packs all of the right-hand side: where that is much, a call has more rows. */
static int row_chunk(int rows, int columns) {
    return rows >= 1024 && columns >= 512 ? 256 : 64;
}

static void gemm(int threads, bool left_transposed, bool right_transposed, int rows, int columns,
                 int depth, const real *left, int left_stride, const real *right, int right_stride,
                 real *out, int out_stride) {
    int most = row_chunk(rows, columns), chunks = (rows + most - 1) / most;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int chunk = 0; chunk < chunks; chunk++) {
        int row = chunk * most, count = rows - row < most ? rows - row : most;
        size_t skip = (size_t)row * (left_transposed ? 1 : (size_t)left_stride);
        GEMM(CblasRowMajor, left_transposed ? CblasTrans : CblasNoTrans,
             right_transposed ? CblasTrans : CblasNoTrans, count, columns, depth, 1, left + skip,
             left_stride, right, right_stride, 0, out + (size_t)row * (size_t)out_stride,
             out_stride);
    }
}

/* [steps][rows with a stride][columns] -> [rows][steps * columns], so that one product sums over
 * all steps. */
static void pack(int threads, const real *x, int steps, size_t rows, size_t stride, size_t columns,
                 real *packed) {
#pragma omp parallel for num_threads(threads)
    for (size_t r = 0; r < rows; r++) {
        for (size_t t = 0; t < (size_t)steps; t++) {
            memcpy(packed + (r * (size_t)steps + t) * columns,
                   x + (t * rows + r) * stride * columns, columns * sizeof *x);
        }
    }
}

static void dense_wgrad(int threads, const layout *l, const real *dy, const real *x, int steps,
                        int columns, real *dw, real *workspace) {
    size_t rows = layout_rows(l), depth = (size_t)steps * (size_t)columns;
    int x_stride = columns * l->in_stride;
    if (steps > 1) {
        real *packed_dy = workspace, *packed_x = workspace + rows * depth;
        pack(threads, dy, steps, rows, 1, (size_t)columns, packed_dy);
        pack(threads, x, steps, (size_t)l->in_block, (size_t)l->in_stride, (size_t)columns,
             packed_x);
        dy = packed_dy, x = packed_x, x_stride = (int)depth;
    }
    gemm(threads, false, true, (int)rows, l->in_block, (int)depth, dy, (int)depth, x, x_stride, dw,
         l->in_block);
}

size_t CPU(wgrad_workspace)(backend *be, const layout *l, int steps, int columns) {
    (void)be;
    if (is_tiled(l)) {
        size_t panel = (size_t)panel_steps(steps, (size_t)columns);
        return sizeof(real) * layout_inputs(l) * panel * (size_t)columns;
    }
    return sizeof(real) * (layout_rows(l) + (size_t)l->in_block) * (size_t)steps * (size_t)columns;
}

/* ------------------------------------------------------------------------------ the operations */

enum { SUM_ROWS = 16 }; /* rows that are summed in real before they are added to a double */

/* Per gate and column, the sums of y and of its square: real [gates][2][columns]. */
static void column_sums(int threads, const layout *l, const real *y, size_t columns, real *sums) {
    size_t b = (size_t)l->out_block, groups = columns / COLUMN_GROUP;
#pragma omp parallel for num_threads(threads)
    for (size_t task = 0; task < (size_t)l->gates * groups; task++) {
        size_t g = task / groups, n0 = task % groups * COLUMN_GROUP;
        double total[2][COLUMN_GROUP] = {0};
        for (size_t i = 0; i < (size_t)l->out_nodes; i++) {
            const real *row = y + (i * (size_t)l->gates + g) * b * columns + n0;
            for (size_t u = 0; u < b; u += SUM_ROWS) {
                vec part[2][VECTORS] = {0};
                size_t past = u + SUM_ROWS < b ? u + SUM_ROWS : b;
                for (size_t r = u; r < past; r++, row += columns) {
                    const vec *in = (const vec *)row;
                    for (int v = 0; v < VECTORS; v++) {
                        part[0][v] += in[v];
                        part[1][v] += in[v] * in[v];
                    }
                }
                real sum[2][COLUMN_GROUP];
                memcpy(sum, part, sizeof sum);
                for (int n = 0; n < COLUMN_GROUP; n++) {
                    total[0][n] += sum[0][n];
                    total[1][n] += sum[1][n];
                }
            }
        }
        for (size_t n = 0; n < COLUMN_GROUP; n++) {
            sums[(g * 2 + 0) * columns + n0 + n] = (real)total[0][n];
            sums[(g * 2 + 1) * columns + n0 + n] = (real)total[1][n];
        }
    }
}

/* The product of all steps on the tiles. */
static void tiled_fprop(int threads, const layout *l, const real *w, const real *x, int steps,
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

static void tiled_dgrad(int threads, const layout *l, const real *w, const real *dy, int steps,
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
                int columns, void *y, element type, void *sums) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    size_t width = (size_t)columns, out = layout_rows(l) * width;
    if (is_tiled(l)) tiled_fprop(threads, l, w, x, steps, width, y);
    for (int t = 0; t < steps; t++) {
        const real *in = (const real *)x + (size_t)t * layout_inputs(l) * width;
        real *result = (real *)y + (size_t)t * out;
        if (!is_tiled(l)) {
            gemm(threads, false, false, (int)layout_rows(l), columns, l->in_block, w, l->in_block,
                 in, columns * l->in_stride, result, columns);
        }
        if (type == OPERAND) round_operands(be, result, out);
        if (sums) {
            real *step = (real *)sums + (size_t)t * 2 * (size_t)l->gates * width;
            column_sums(threads, l, result, width, step);
        }
    }
}

void CPU(add_rows)(backend *be, const device_layout *device, const void *x, int columns, void *y,
                   void *sums) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    size_t width = (size_t)columns, rows = layout_rows(l);
#pragma omp parallel for num_threads(threads)
    for (size_t r = 0; r < rows; r++) {
        const real *from = (const real *)x + r * width;
        real *to = (real *)y + r * width;
        for (size_t n = 0; n < width; n++) to[n] += from[n];
        round_operands(be, to, width);
    }
    if (sums) column_sums(threads, l, y, width, sums);
}

void CPU(dgrad)(backend *be, const device_layout *device, const void *w, const void *dy, int steps,
                int columns, void *dx, element type) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    size_t width = (size_t)columns, out = layout_inputs(l) * width;
    if (is_tiled(l)) tiled_dgrad(threads, l, w, dy, steps, width, dx);
    for (int t = 0; t < steps; t++) {
        const real *in = (const real *)dy + (size_t)t * layout_rows(l) * width;
        real *result = (real *)dx + (size_t)t * out;
        if (!is_tiled(l)) {
            if (l->in_stride > 1) memset(result, 0, out * sizeof *result);
            gemm(threads, true, false, l->in_block, columns, (int)layout_rows(l), w, l->in_block,
                 in, columns, result, columns * l->in_stride);
        }
        if (type == OPERAND) round_operands(be, result, out);
    }
}

void CPU(wgrad)(backend *be, const device_layout *device, const void *dy, const void *x, int steps,
                int columns, void *dw, void *workspace) {
    FLUSH_DENORMALS(be);
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    if (is_tiled(l)) {
        tiled_wgrad(threads, l, dy, x, steps, (size_t)columns, dw, workspace);
    } else {
        dense_wgrad(threads, l, dy, x, steps, columns, dw, workspace);
    }
}
