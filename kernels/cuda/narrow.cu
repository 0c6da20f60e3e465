/* fprop and dgrad of few columns (32 to 128) in bf16, on any GPU from sm_80 on, for all block sizes.
 *
 *   y [32 units][columns] = sum over k  A [32][k] X [k][columns],  A = W, or W' for dgrad
 *
 * Floor: memory. Weights pass once, and their blocks' activations come out of L2, as many bytes
 * again at block 32 and N = 32; arithmetic is a tenth of that. So nothing may stand between memory
 * and the tensor cores: no shared memory, no barriers. A thread block makes 32 units; its warps
 * take turns at stretches of 32 in k, each 16-byte load brings one lane's share, and several
 * stretches are on their way in registers while one is multiplied by mma.sync. Warps' sums meet in
 * shared memory at the end, in a fixed order. What is lost at low density is three waits for cold
 * memory, one after another: the row's start, its columns, the activations.
 *
 * mma.sync wants pairs along k in a register. Weights have them: k may be taken in any order, as
 * long as W and X agree, so lane 4 g + t takes k = 8 t ... 8 t + 7 of row g. X runs along the
 * columns, and W' along its rows: movmatrix turns 8 x 8 of those over. Row
 *
 *   k = 8 (g / 2) + 2 r + g % 2
 *
 * of X in register set r makes both orders the same; results then lie in 8 neighbouring columns a
 * lane. */
#include "cuda.h"
#include "ptx.cuh"

enum { WARPS = 4, THREADS = WARPS * 32, UNITS = 32, DEPTH = 32 };

typedef struct narrow_arguments {
    const bf16 *w, *x;
    bf16 *y;
    const int *start, *other, *block; /* the output nodes' lists; block: NULL in order */
    int b, gates, columns;
    int log_k; /* of k a block: b, or for dgrad gates b */
    int tiles; /* of 32 units a node, gates counted for fprop */
} narrow_arguments;

/* 32 of k: rows 8 r + g of W, or for dgrad rows of k, as those of X. */
template <int SPANS> struct stretch { uint4 w[4], x[SPANS][4]; };

static __device__ inline uint32_t word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Where a lane finds its blocks of a stretch: eight of k never straddle two. */
struct place {
    int block, other, offset; /* offset: of k in the block; block < 0: past the end */

    __device__ place(const narrow_arguments &p, int first, int count, int k) {
        int entry = k >> p.log_k;
        bool there = entry < count;
        offset = k & ((1 << p.log_k) - 1);
        block = !there ? -1 : p.block ? p.block[first + entry] : first + entry;
        other = there ? p.other[first + entry] : 0;
    }
};

template <int SPANS, bool FORWARD>
static __device__ inline void fetch(const narrow_arguments &p, const place &left,
                                    const place &right, int gate, int part, stretch<SPANS> &s) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const int size = min(p.b, UNITS), column0 = blockIdx.y * SPANS * 32;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = FORWARD ? part * UNITS + 8 * r + g : left.offset + 2 * r + g % 2;
        int column = FORWARD ? left.offset : part * UNITS + 8 * t;
        bool there = left.block >= 0 && (FORWARD ? 8 * r + g : 8 * t) < size;
        size_t base = FORWARD ? (size_t)left.block * p.gates + gate : (size_t)left.block * p.gates;
        s.w[r] = there ? __ldcs((const uint4 *)(p.w + (base * p.b + row) * p.b + column)) : zero;
        size_t from = ((size_t)right.other << p.log_k) + right.offset + 2 * r + g % 2;
#pragma unroll
        for (int span = 0; span < SPANS; span++) {
            const bf16 *x = p.x + from * p.columns + column0 + span * 32 + 8 * t;
            s.x[span][r] = right.block >= 0 ? __ldg((const uint4 *)x) : zero;
        }
    }
}

template <int SPANS, bool FORWARD>
static __device__ inline void multiply(const stretch<SPANS> &s, float (&sum)[SPANS][2][4][4]) {
#pragma unroll
    for (int step = 0; step < 2; step++) { /* 16 of k */
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int q = 0; q < 4; q++) { /* q % 2: rows 8 on; q / 2: 8 of k on */
                a[i][q] = FORWARD ? word(s.w[2 * i + q % 2], 2 * step + q / 2)
                                  : transpose_matrix(word(s.w[2 * step + q / 2], 2 * i + q % 2));
            }
        }
#pragma unroll
        for (int span = 0; span < SPANS; span++) {
#pragma unroll
            for (int c = 0; c < 4; c++) {
                uint32_t b0 = transpose_matrix(word(s.x[span][2 * step], c));
                uint32_t b1 = transpose_matrix(word(s.x[span][2 * step + 1], c));
                multiply_add(sum[span][0][c], a[0], b0, b1);
                multiply_add(sum[span][1][c], a[1], b0, b1);
            }
        }
    }
}

template <int SPANS, bool FORWARD>
static __global__ void __launch_bounds__(THREADS, SPANS == 1 ? 3 : 2)
    narrow_kernel(const __grid_constant__ narrow_arguments p) {
    const int STAGES = SPANS == 1 ? 3 : 2;
    __shared__ float shared[WARPS][SPANS * 32][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int node = blockIdx.x / p.tiles, tile = blockIdx.x % p.tiles;
    const int parts = p.b > UNITS ? p.b / UNITS : 1, gate = tile / parts, part = tile % parts;
    const int first = p.start[node], count = p.start[node + 1] - first;
    const int stretches = ((count << p.log_k) + DEPTH - 1) / DEPTH;
    float sum[SPANS][2][4][4] = {};
    stretch<SPANS> ring[STAGES];

    /* Places are looked up one stretch before they are needed. */
    auto left_of = [&](int i) {
        return place(p, first, count, i * DEPTH + 8 * (FORWARD ? t : g / 2));
    };
    auto right_of = [&](int i) { return place(p, first, count, i * DEPTH + 8 * (g / 2)); };
    place left = left_of(warp), right = right_of(warp);
    int next = warp;
    auto fetch_next = [&](stretch<SPANS> &s) {
        place l = left, r = right;
        next += WARPS;
        left = left_of(next);
        right = right_of(next);
        fetch<SPANS, FORWARD>(p, l, r, gate, part, s);
    };
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch_next(ring[s]);
    for (int i = warp; i < stretches; i += STAGES * WARPS) {
#pragma unroll
        for (int s = 0; s < STAGES; s++) {
            fetch_next(ring[(s + STAGES - 1) % STAGES]);
            multiply<SPANS, FORWARD>(ring[s], sum);
        }
    }

    float *mine = &sum[0][0][0][0];
#pragma unroll
    for (int i = 0; i < SPANS * 32; i++) shared[warp][i][lane] = mine[i];
    __syncthreads();

    /* Warp w ends with rows g of 8 w: tile w / 2, its half w % 2. */
    int unit = FORWARD ? 8 * warp + g : 8 * (g / 2) + 2 * warp + g % 2;
    if (unit >= p.b) return;
#pragma unroll
    for (int span = 0; span < SPANS; span++) {
        uint32_t packed[4];
#pragma unroll
        for (int c = 0; c < 4; c++) {
            float total[2] = {};
#pragma unroll
            for (int e = 0; e < 2; e++) {
                int at = ((span * 2 + warp / 2) * 4 + c) * 4 + warp % 2 * 2 + e;
#pragma unroll
                for (int w = 0; w < WARPS; w++) total[e] += shared[w][at][lane];
            }
            __nv_bfloat162 pair = __floats2bfloat162_rn(total[0], total[1]);
            packed[c] = *(uint32_t *)&pair;
        }
        size_t row = ((size_t)node * (FORWARD ? p.gates : 1) + gate) * p.b + part * UNITS + unit;
        *(uint4 *)(p.y + row * p.columns + (blockIdx.y * SPANS + span) * 32 + 8 * t) =
            make_uint4(packed[0], packed[1], packed[2], packed[3]);
    }
}

bool narrow_fits(const backend *be, const layout *l, int columns) {
    bool few =
        columns == 32 || (columns <= 128 && l->gates == 1); /* beyond, tiles are worth sharing */
    return be->precision == BF16 && few && !layout_is_dense(l);
}

static void launch(backend *be, const narrow_arguments &p, int nodes, bool forward) {
    cudaStream_t stream = cuda_of(be)->stream;
    int spans = p.columns % 64 == 0 ? 2 : 1;
    dim3 grid(nodes * p.tiles, p.columns / (spans * 32));
    if (forward && spans == 1) narrow_kernel<1, true><<<grid, THREADS, 0, stream>>>(p);
    if (forward && spans == 2) narrow_kernel<2, true><<<grid, THREADS, 0, stream>>>(p);
    if (!forward && spans == 1) narrow_kernel<1, false><<<grid, THREADS, 0, stream>>>(p);
    if (!forward && spans == 2) narrow_kernel<2, false><<<grid, THREADS, 0, stream>>>(p);
}

void narrow_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                  int columns, void *y) {
    const layout *l = &device->host;
    int b = l->in_block, parts = b > UNITS ? b / UNITS : 1;
    narrow_arguments p = {
        (const bf16 *)w, (const bf16 *)x, (bf16 *)y,  l->row_start,    l->row_column, NULL, b,
        l->gates,        columns,         log2_of(b), l->gates * parts};
    launch(be, p, l->out_nodes, true);
}

void narrow_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                  int columns, void *dx) {
    const layout *l = &device->host;
    int b = l->in_block, parts = b > UNITS ? b / UNITS : 1;
    narrow_arguments p = {(const bf16 *)w, (const bf16 *)dy,      (bf16 *)dx, l->column_start,
                          l->column_row,   l->column_block,       b,          l->gates,
                          columns,         log2_of(b * l->gates), parts};
    launch(be, p, l->in_nodes, false);
}
