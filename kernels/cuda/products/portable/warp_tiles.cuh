/* What the products with operands of 4 bytes share: which part of the result a warp computes, and
 * where its operands lie.
 *
 * A warp's tile has ROWS rows of the result and WIDE times SPAN of its columns, which are units of
 * x in wgrad. A thread block has MS x NS tiles, and for each tile KS warps, which take turns at
 * stages of DEPTH in k. A lane's four neighbours in k never straddle two blocks, as b is a multiple
 * of 8. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_WARP_TILES_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_WARP_TILES_CUH

#include "products/portable/product.cuh"

#pragma nv_diag_suppress 177 /* a kernel need not use all of these */

enum {
    ROWS = 32,
    SPAN = 32,
    DEPTH = 16,
    SLAB = 512 /* columns that all nodes finish before the next, so that x and dy stay in the L2 */
};

template <int WIDE_, int MS_, int NS_, int KS_> struct split {
    static const int WIDE = WIDE_, MS = MS_, NS = NS_, KS = KS_;
    static const int WARPS = MS * NS * KS, THREADS = WARPS * 32, COLUMNS = NS * WIDE * SPAN;
};

/* A warp's tile. */
template <operation OP, typename S> struct task {
    const product &p;
    int turn, step;      /* turn: which of the KS warps; step: of fprop and dgrad */
    int node, row0;      /* row0: of the node */
    int column0;         /* of the activations; wgrad: units of the group of blocks */
    int first, count, k; /* blocks; how deep the product is */

    __device__ task(const product &p_) : p(p_) {
        const int warp = threadIdx.x / 32, ms = warp / S::KS / S::NS, ns = warp / S::KS % S::NS;
        turn = warp % S::KS;
        column0 = ns * S::WIDE * SPAN;
        if (OP == WGRAD) {
            step = 0;
            row0 = (blockIdx.y * S::MS + ms) * ROWS;
            first = p.start[blockIdx.x];
            count = p.start[blockIdx.x + 1] - first;
            node = p.block[first];
            k = p.steps * p.columns;
        } else {
            const int rows = OP == FPROP ? p.rows : p.b, tall = ROWS * S::MS;
            const int parts = (rows + tall - 1) / tall;
            const int groups = (min(p.columns, SLAB) + S::COLUMNS - 1) / S::COLUMNS;
            const int tile = blockIdx.x / groups;
            step = blockIdx.y;
            column0 += blockIdx.z * SLAB + blockIdx.x % groups * S::COLUMNS;
            node = tile / parts;
            row0 = (tile % parts * S::MS + ms) * ROWS;
            first = p.start[node];
            count = p.start[node + 1] - first;
            k = count * p.taps * (OP == FPROP ? p.b : p.rows);
        }
    }

    __device__ int stages() const {
        return (k + DEPTH - 1) / DEPTH;
    }

    __device__ bool has_row(int row) const {
        return row0 + row < (OP == DGRAD ? p.b : p.rows);
    }

    __device__ bool has_column(int column) const {
        return column0 + column < (OP == WGRAD ? count << p.log_b : p.columns);
    }

    /* Where `row` and `column` of the tile go. */
    __device__ float *result(int row, int column) const {
        row += row0;
        column += column0;
        if (OP == WGRAD) {
            const size_t block = (size_t)(first + (column >> p.log_b)) * p.taps + blockIdx.z;
            size_t at = block * p.rows + row;
            return (float *)p.out + (at << p.log_b) + (column & (p.b - 1));
        }
        size_t at = (size_t)node * (OP == FPROP ? p.rows : p.b) + row;
        return (float *)p.out + step * p.out_step + at * p.columns + column;
    }
};

/* A position in k: within a block and tap, or for wgrad within a step. */
struct place {
    int block, other, offset; /* block: negative past the end; wgrad's step */
    int step;                 /* of the right operand; -1: none */
};

template <operation OP, typename S>
static __device__ inline place find_place(const task<OP, S> &t, int k) {
    const product &p = t.p;
    if (OP == WGRAD) {
        int step = p.steps == 1 ? 0 : k / p.columns;
        place at = {k < t.k ? step : -1, 0, k - step * p.columns, -1};
        if (k < t.k) at.step = step_read(p, step, blockIdx.z);
        return at;
    }
    const int q = OP == FPROP ? k >> p.log_b : block_with(p, k);
    const int entry = p.taps > 1 ? q / p.taps : q, tap = q - entry * p.taps;
    place at = {-1, 0, k - q * (OP == FPROP ? p.b : p.rows), -1};
    if (entry < t.count) {
        const int block = OP == FPROP ? t.first + entry : p.block[t.first + entry];
        at.block = block * p.taps + tap;
        at.other = p.other[t.first + entry];
        at.step = step_read(p, t.step, tap);
    }
    return at;
}

/* The left tile's element at `row` and this place. Neighbours lie along k (fprop, wgrad) or along
 * the rows (dgrad); steps of the other one are left_stride apart. */
template <operation OP, typename S>
static __device__ inline const float *left_at(const task<OP, S> &t, const place &at, int row) {
    const product &p = t.p;
    size_t from;
    if (OP == FPROP) {
        from = (((size_t)at.block * p.rows + t.row0 + row) << p.log_b) + at.offset;
    } else if (OP == DGRAD) {
        from = (((size_t)at.block * p.rows + at.offset) << p.log_b) + t.row0 + row;
    } else {
        from = at.block * p.left_step + ((size_t)t.node * p.rows + t.row0 + row) * p.columns +
               at.offset;
    }
    return (const float *)p.left + from;
}

template <operation OP> static __device__ inline int left_stride(const product &p) {
    return OP == WGRAD ? p.columns : p.b;
}

/* fprop's and dgrad's right tile, whose neighbours lie along the columns; k is p.columns apart. */
template <operation OP, typename S>
static __device__ inline const float *right_at(const task<OP, S> &t, const place &at, int column) {
    const product &p = t.p;
    size_t row = (size_t)at.other * (OP == FPROP ? p.b : p.rows) + at.offset;
    return (const float *)p.right + at.step * p.right_step + row * p.columns + t.column0 + column;
}

/* wgrad's: the row of x that holds a column of the tile, or -1. */
template <typename S> static __device__ inline int right_row(const task<WGRAD, S> &t, int column) {
    const product &p = t.p;
    column += t.column0;
    int q = column >> p.log_b;
    if (q >= t.count) return -1;
    return (p.other[t.first + q] << p.log_b) + (column & (p.b - 1));
}

template <operation OP, typename S> static dim3 grid_of(const product &p, int tiles) {
    const int rows = OP == DGRAD ? p.b : p.rows, tall = ROWS * S::MS;
    const int parts = (rows + tall - 1) / tall;
    if (OP == WGRAD) return dim3(tiles, parts, p.taps);
    const int groups = (min(p.columns, SLAB) + S::COLUMNS - 1) / S::COLUMNS;
    return dim3(tiles * parts * groups, p.steps, (p.columns + SLAB - 1) / SLAB);
}

#endif
