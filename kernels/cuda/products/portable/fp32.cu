/* The three products in true fp32, by plain multiply-adds, on any GPU from sm_80 on: one kernel
 * without the arts of bf16's, in which models train.
 *
 *   out [32 rows][64 columns] = sum over k  left [rows][k]  right [k][columns]
 *
 * A thread has 4 x 4 sums. While it multiplies a chunk of 16 k it fetches what it brings of the
 * next one, four neighbours at a time: along k, which never straddles two blocks or steps, as these
 * are multiples of 8, or along the other side. Sums are in the order of k. */
#include "products/kernels.h"
#include "products/portable/product.cuh"

enum { HIGH = 32, WIDE = 64, CHUNK = 16, MAKERS = HIGH * WIDE / 16 };

/* A position in k: a block and tap, or of wgrad a step, and how far in it. */
struct place {
    int block, other, offset;
    int step; /* of the right operand; -1: none */
};

/* What a thread block makes: some rows of a node, by some columns of the activations or of wgrad by
 * some units of a group of blocks. */
template <operation OP> struct task {
    static const bool LEFT_BY_K = OP != DGRAD,
                      RIGHT_BY_K = OP == WGRAD; /* neighbours lie along k */
    const product &p;
    int first, count, node;   /* blocks, or of wgrad the group's; the node whose rows are made */
    int row0, column0, which; /* which: step, or of wgrad the tap */
    int rows, columns, depth; /* extents of the whole result, and of k */

    __device__ task(const product &p_) : p(p_) {
        first = p.start[blockIdx.x];
        count = p.start[blockIdx.x + 1] - first;
        node = OP == WGRAD ? p.block[first] : blockIdx.x;
        rows = OP == DGRAD ? p.b : p.rows;
        columns = OP == WGRAD ? count * p.b : p.columns;
        depth = OP == WGRAD ? p.steps * p.columns : count * p.taps * (OP == FPROP ? p.b : p.rows);
        const int down = (rows + HIGH - 1) / HIGH;
        row0 = blockIdx.y % down * HIGH;
        column0 = blockIdx.y / down * WIDE;
        which = blockIdx.z;
    }

    __device__ place find(int k) const {
        if (OP == WGRAD) {
            const int step = p.steps == 1 ? 0 : k / p.columns;
            return {step, 0, k - step * p.columns, step_read(p, step, which)};
        }
        const int q = OP == FPROP ? k >> p.log_b : block_with(p, k);
        const int entry = p.taps > 1 ? q / p.taps : q, tap = q - entry * p.taps;
        const int block = OP == FPROP ? first + entry : p.block[first + entry];
        return {block * p.taps + tap, p.other[first + entry], k - q * (OP == FPROP ? p.b : p.rows),
                step_read(p, which, tap)};
    }

    /* Four neighbours of the left operand. */
    __device__ float4 left(int row, int k) const {
        row += row0;
        if (row >= rows || k >= depth) return make_float4(0, 0, 0, 0);
        const place at = find(k);
        const float *from = (const float *)p.left;
        if (OP == FPROP) from += ((size_t)at.block * p.rows + row) * p.b + at.offset;
        if (OP == DGRAD) from += ((size_t)at.block * p.rows + at.offset) * p.b + row;
        if (OP == WGRAD) {
            from += at.block * p.left_step + ((size_t)node * p.rows + row) * p.columns + at.offset;
        }
        return *(const float4 *)from;
    }

    /* Likewise of the right one. */
    __device__ float4 right(int k, int column) const {
        column += column0;
        if (column >= columns || k >= depth) return make_float4(0, 0, 0, 0);
        const place at = find(k);
        if (at.step < 0) return make_float4(0, 0, 0, 0);
        const float *from = (const float *)p.right + at.step * p.right_step;
        if (OP == WGRAD) {
            const size_t unit = p.other[first + (column >> p.log_b)] * p.b + (column & (p.b - 1));
            return *(const float4 *)(from + unit * p.columns + at.offset);
        }
        const size_t row = (size_t)at.other * (OP == FPROP ? p.b : p.rows) + at.offset;
        return *(const float4 *)(from + row * p.columns + column);
    }

    __device__ void store(int row, int column, const float (&v)[4]) const {
        row += row0;
        column += column0;
        if (row >= rows || column >= columns) return;
        size_t at = which * p.out_step + ((size_t)node * rows + row) * p.columns + column;
        if (OP == WGRAD) {
            const size_t block = (size_t)(first + (column >> p.log_b)) * p.taps + which;
            at = (block * p.rows + row) * p.b + (column & (p.b - 1));
        }
        *(float4 *)((float *)p.out + at) = make_float4(v[0], v[1], v[2], v[3]);
    }
};

/* Where a thread brings its i-th four neighbours of a chunk to. */
template <bool BY_K, int LINES> struct spot {
    int k, line;

    __device__ spot(int i) : k(BY_K ? i % 4 * 4 : i / (LINES / 4)), line(BY_K ? i / 4 : 0) {
        if (!BY_K) line = i % (LINES / 4) * 4;
    }

    __device__ void put(float (&to)[CHUNK][LINES + 4], const float4 &v) const {
        to[k][line] = v.x;
        to[k + BY_K][line + !BY_K] = v.y;
        to[k + 2 * BY_K][line + 2 * !BY_K] = v.z;
        to[k + 3 * BY_K][line + 3 * !BY_K] = v.w;
    }
};

template <operation OP>
static __global__ void __launch_bounds__(MAKERS) portable_fp32(const __grid_constant__ product p) {
    __shared__ __align__(16) float left[2][CHUNK][HIGH + 4], right[2][CHUNK][WIDE + 4];
    const task<OP> task(p);
    const int i = threadIdx.x, down = i / (WIDE / 4) * 4, across = i % (WIDE / 4) * 4;
    const spot<task.LEFT_BY_K, HIGH> a(i);
    const spot<task.RIGHT_BY_K, WIDE> b(i), c(i + MAKERS);
    float sum[4][4] = {};
    float4 next[3];
    auto fetch = [&](int k0) {
        next[0] = task.left(a.line, k0 + a.k);
        next[1] = task.right(k0 + b.k, b.line);
        next[2] = task.right(k0 + c.k, c.line);
    };
    fetch(0);
    for (int k0 = 0; k0 < task.depth; k0 += CHUNK) {
        const int slot = k0 / CHUNK % 2;
        a.put(left[slot], next[0]);
        b.put(right[slot], next[1]);
        c.put(right[slot], next[2]);
        __syncthreads();
        fetch(k0 + CHUNK);
#pragma unroll
        for (int k = 0; k < CHUNK; k++) {
            const float4 four = *(const float4 *)&left[slot][k][down];
            const float4 other = *(const float4 *)&right[slot][k][across];
            const float u[4] = {four.x, four.y, four.z, four.w};
            const float v[4] = {other.x, other.y, other.z, other.w};
#pragma unroll
            for (int e = 0; e < 16; e++) sum[e / 4][e % 4] += u[e / 4] * v[e % 4];
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++) task.store(down + r, across, sum[r]);
}

template <operation OP> static void launch(backend *be, const product &p, int nodes) {
    const int rows = OP == DGRAD ? p.b : p.rows, columns = OP == WGRAD ? WGRAD_COLUMNS : p.columns;
    const int tiles = ((rows + HIGH - 1) / HIGH) * ((columns + WIDE - 1) / WIDE);
    if (nodes == 0) return;
    portable_fp32<OP>
        <<<dim3(nodes, tiles, OP == WGRAD ? p.taps : p.steps), MAKERS, 0, cuda_of(be)->stream>>>(p);
}

void portable_fp32_run(backend *be, const device_layout *device, const void *plan,
                       const product_call *c) {
    int nodes;
    const product p = product_of(be, device, plan, c, &nodes);
    if (c->op == FPROP) launch<FPROP>(be, p, nodes);
    if (c->op == DGRAD) launch<DGRAD>(be, p, nodes);
    if (c->op == WGRAD) launch<WGRAD>(be, p, nodes);
}
