/* The three products with a block-sparse W, and with a dense one through BLAS.
 *
 *   fprop  y_i  = sum over blocks (i, j)  W_ij  x_j
 *   dgrad  dx_j = sum over blocks (i, j)  W_ij' dy_i
 *   wgrad  dW_ij = sum over t             dy_i[t] x_j[t]'
 *
 * Floor: 2 blocks gates block^2 columns operations each. fprop and dgrad share one inner kernel, a
 * tile of ROWS x COLUMN_GROUP sums held in registers while it walks the blocks of its row (or
 * column): each step loads ROWS weights and a group of columns, and does ROWS x COLUMN_GROUP
 * multiply-adds. wgrad holds a tile of dot products over the columns and steps instead, in panels that
 * it packs, so that rows are long. */
#include "cpu.h"

#include <assert.h>
#include <cblas.h>
#include <omp.h>
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
    ROWS = VECTORS == 1 ? 8 : 4,       /* 8 independent sums hide the latency of a multiply-add */
    DOTS = VECTOR_BYTES == 64 ? 4 : 2, /* columns of W that wgrad makes at a time, of 4 rows */
    PANEL = 1024                       /* columns x steps that it sums at a time */
};

static_assert(COLUMN_GROUP % LANES == 0, "a column group is whole vectors");

/* sum[r] += sum over k < depth of w[r row_stride + k k_stride] x[k columns ...] */
static inline void multiply_tile(vec sum[ROWS][VECTORS], const real *w, size_t row_stride,
                                 size_t k_stride, const real *x, size_t columns, int depth) {
    for (int k = 0; k < depth; k++, w += k_stride, x += columns) {
        const vec *in = (const vec *)x;
        for (int r = 0; r < ROWS; r++) {
            real weight = w[(size_t)r * row_stride];
            for (int v = 0; v < VECTORS; v++) sum[r][v] += weight * in[v];
        }
    }
}

static inline void store_tile(const vec sum[ROWS][VECTORS], real *y, size_t columns) {
    for (int r = 0; r < ROWS; r++) memcpy(y + (size_t)r * columns, sum[r], sizeof sum[r]);
}

/* ------------------------------------------------------------------------------------ sparse */

static void sparse_fprop_row(const layout *l, int i, const real *w, const real *x, size_t columns,
                             real *y) {
    size_t b = (size_t)l->in_block, block = b * b;
    for (size_t row = 0; row < (size_t)l->gates * b; row += ROWS) {
        for (size_t n = 0; n < columns; n += COLUMN_GROUP) {
            vec sum[ROWS][VECTORS] = {0};
            for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
                multiply_tile(sum, w + (size_t)k * (size_t)l->gates * block + row * b, b, 1,
                              x + (size_t)l->row_column[k] * b * columns + n, columns, (int)b);
            }
            store_tile(sum, y + ((size_t)i * (size_t)l->gates * b + row) * columns + n, columns);
        }
    }
}

static void sparse_dgrad_column(const layout *l, int j, const real *w, const real *dy,
                                size_t columns, real *dx) {
    size_t b = (size_t)l->in_block, rows = (size_t)l->gates * b;
    for (size_t v = 0; v < b; v += ROWS) {
        for (size_t n = 0; n < columns; n += COLUMN_GROUP) {
            vec sum[ROWS][VECTORS] = {0};
            for (int k = l->column_start[j]; k < l->column_start[j + 1]; k++) {
                multiply_tile(sum, w + (size_t)l->column_block[k] * rows * b + v, 1, b,
                              dy + (size_t)l->column_row[k] * rows * columns + n, columns,
                              (int)rows);
            }
            store_tile(sum, dx + ((size_t)j * b + v) * columns + n, columns);
        }
    }
}

/* dw[r][0..DOTS-1] += over `depth`, row r of dy times the rows of x. */
static inline void dot_tile(const real *dy, const real *x, size_t stride, size_t depth, real *dw,
                            size_t b) {
    enum { U = 4, V = DOTS };
    vec sum[U][V] = {0};
    for (size_t n = 0; n < depth; n += LANES) {
        vec in[V];
        for (size_t v = 0; v < V; v++) in[v] = *(const vec *)(x + v * stride + n);
        for (size_t u = 0; u < U; u++) {
            vec out = *(const vec *)(dy + u * stride + n);
            for (size_t v = 0; v < V; v++) sum[u][v] += out * in[v];
        }
    }
    for (size_t u = 0; u < U; u++) {
        for (size_t v = 0; v < V; v++) dw[u * b + v] += add_up((const real *)&sum[u][v], LANES);
    }
}

/* The steps that wgrad sums at a time, and how far apart it then packs rows: not by a power of two,
 * at which they would meet in the same places of the caches, as steps of the activations do. */
static int panel_steps(int steps, size_t columns) {
    int panel = (int)(PANEL / columns ? PANEL / columns : 1);
    return panel < steps ? panel : steps;
}

static size_t panel_stride(int steps, size_t columns) {
    return (size_t)panel_steps(steps, columns) * columns + COLUMN_GROUP;
}

/* `rows` rows of steps t0 ... t1 - 1, `step` apart -> [rows][stride]. */
static void pack_panel(const real *x, size_t step, size_t rows, size_t columns, int t0, int t1,
                       size_t stride, real *packed) {
    for (int t = t0; t < t1; t++) {
        const real *from = x + (size_t)t * step;
        real *to = packed + (size_t)(t - t0) * columns;
        for (size_t r = 0; r < rows; r++, from += columns, to += stride) {
            for (size_t n = 0; n < columns; n += LANES) *(vec *)(to + n) = *(const vec *)(from + n);
        }
    }
}

/* The blocks of row i. `packed`: room for a panel of the rows of an output and of an input node. */
static void sparse_wgrad_row(const layout *l, int i, const real *dy, const real *x, int steps,
                             size_t columns, real *dw, real *packed) {
    size_t b = (size_t)l->in_block, rows = (size_t)l->gates * b, block = rows * b;
    size_t stride = panel_stride(steps, columns);
    int first = l->row_start[i], last = l->row_start[i + 1], panel = panel_steps(steps, columns);
    real *packed_x = packed + rows * stride;
    memset(dw + (size_t)first * block, 0, (size_t)(last - first) * block * sizeof *dw);
    for (int t0 = 0; t0 < steps; t0 += panel) {
        int t1 = t0 + panel < steps ? t0 + panel : steps;
        size_t depth = (size_t)(t1 - t0) * columns;
        pack_panel(dy + (size_t)i * rows * columns, layout_rows(l) * columns, rows, columns, t0, t1,
                   stride, packed);
        for (int k = first; k < last; k++) {
            pack_panel(x + (size_t)l->row_column[k] * b * columns, layout_inputs(l) * columns, b,
                       columns, t0, t1, stride, packed_x);
            for (size_t u = 0; u < rows; u += 4) {
                for (size_t v = 0; v < b; v += DOTS) {
                    dot_tile(packed + u * stride, packed_x + v * stride, stride, depth,
                             dw + (size_t)k * block + u * b + v, b);
                }
            }
        }
    }
}

/* ------------------------------------------------------------------------------------- dense
 * Each thread hands its own rows of the result to a single-threaded BLAS call. */

#ifdef SMALLWORLD_REFERENCE
#define GEMM cblas_dgemm
#else
#define GEMM cblas_sgemm
#endif

enum { ROW_CHUNK = 64 };

static void gemm(int threads, bool left_transposed, bool right_transposed, int rows, int columns,
                 int depth, const real *left, int left_stride, const real *right, int right_stride,
                 real *out, int out_stride) {
    int chunks = (rows + ROW_CHUNK - 1) / ROW_CHUNK;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int chunk = 0; chunk < chunks; chunk++) {
        int row = chunk * ROW_CHUNK, count = rows - row < ROW_CHUNK ? rows - row : ROW_CHUNK;
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
    real *packed_dy = workspace, *packed_x = workspace + rows * depth;
    pack(threads, dy, steps, rows, 1, (size_t)columns, packed_dy);
    pack(threads, x, steps, (size_t)l->in_block, (size_t)l->in_stride, (size_t)columns, packed_x);
    gemm(threads, false, true, (int)rows, l->in_block, (int)depth, packed_dy, (int)depth, packed_x,
         (int)depth, dw, l->in_block);
}

/* Of a thread's panels. */
static size_t packed_count(const layout *l, int steps, int columns) {
    size_t rows = (size_t)(l->gates + 1) * (size_t)l->in_block;
    return rows * panel_stride(steps, (size_t)columns);
}

size_t CPU(wgrad_workspace)(backend *be, const layout *l, int steps, int columns) {
    if (!layout_is_dense(l)) {
        return sizeof(real) * packed_count(l, steps, columns) * (size_t)cpu_of(be)->threads;
    }
    return sizeof(real) * (layout_rows(l) + (size_t)l->in_block) * (size_t)steps * (size_t)columns;
}

/* ------------------------------------------------------------------------------ the operations */

/* Per gate and column, the sums of y and of its square: real [gates][2][columns]. */
static void column_sums(int threads, const layout *l, const real *y, size_t columns, real *sums) {
    size_t b = (size_t)l->out_block, groups = columns / COLUMN_GROUP;
#pragma omp parallel for num_threads(threads)
    for (size_t task = 0; task < (size_t)l->gates * groups; task++) {
        size_t g = task / groups, n0 = task % groups * COLUMN_GROUP;
        double total[2][COLUMN_GROUP] = {0};
        for (size_t i = 0; i < (size_t)l->out_nodes; i++) {
            for (size_t u = 0; u < b; u++) {
                const real *row = y + ((i * (size_t)l->gates + g) * b + u) * columns + n0;
                for (int n = 0; n < COLUMN_GROUP; n++) {
                    total[0][n] += row[n];
                    total[1][n] += (double)row[n] * row[n];
                }
            }
        }
        for (size_t n = 0; n < COLUMN_GROUP; n++) {
            sums[(g * 2 + 0) * columns + n0 + n] = (real)total[0][n];
            sums[(g * 2 + 1) * columns + n0 + n] = (real)total[1][n];
        }
    }
}

void CPU(fprop)(backend *be, const device_layout *device, const void *w, const void *x, int steps,
                int columns, void *y, element type, void *sums) {
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    size_t width = (size_t)columns, out = layout_rows(l) * width;
    for (int t = 0; t < steps; t++) {
        const real *in = (const real *)x + (size_t)t * layout_inputs(l) * width;
        real *result = (real *)y + (size_t)t * out;
        if (layout_is_dense(l)) {
            gemm(threads, false, false, (int)layout_rows(l), columns, l->in_block, w, l->in_block,
                 in, columns * l->in_stride, result, columns);
        } else {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
            for (int i = 0; i < l->out_nodes; i++) sparse_fprop_row(l, i, w, in, width, result);
        }
        if (type == OPERAND) round_operands(be, result, out);
        if (sums) {
            real *step = (real *)sums + (size_t)t * 2 * (size_t)l->gates * width;
            column_sums(threads, l, result, width, step);
        }
    }
}

void CPU(dgrad)(backend *be, const device_layout *device, const void *w, const void *dy, int steps,
                int columns, void *dx, element type) {
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    size_t width = (size_t)columns, out = layout_inputs(l) * width;
    for (int t = 0; t < steps; t++) {
        const real *in = (const real *)dy + (size_t)t * layout_rows(l) * width;
        real *result = (real *)dx + (size_t)t * out;
        if (layout_is_dense(l)) {
            if (l->in_stride > 1) memset(result, 0, out * sizeof *result);
            gemm(threads, true, false, l->in_block, columns, (int)layout_rows(l), w, l->in_block,
                 in, columns, result, columns * l->in_stride);
        } else {
#pragma omp parallel for num_threads(threads) schedule(dynamic)
            for (int j = 0; j < l->in_nodes; j++) sparse_dgrad_column(l, j, w, in, width, result);
        }
        if (type == OPERAND) round_operands(be, result, out);
    }
}

void CPU(wgrad)(backend *be, const device_layout *device, const void *dy, const void *x, int steps,
                int columns, void *dw, void *workspace) {
    const layout *l = &device->host;
    int threads = cpu_of(be)->threads;
    if (layout_is_dense(l)) {
        dense_wgrad(threads, l, dy, x, steps, columns, dw, workspace);
        return;
    }
    size_t packed = packed_count(l, steps, columns);
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int i = 0; i < l->out_nodes; i++) {
        sparse_wgrad_row(l, i, dy, x, steps, (size_t)columns, dw,
                         (real *)workspace + (size_t)omp_get_thread_num() * packed);
    }
}
