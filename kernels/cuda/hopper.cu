/* The three products on Hopper (sm_90a): blocks of 32, 64 and 128 in bf16, by TMA and wgmma.
 *
 * Floors are those of products.cu. What these kernels add is width: a producer warp runs ahead
 * with bulk copies through a ring of stages in shared memory, so that 64 KB and more are on their
 * way into each multiprocessor, and two warpgroups multiply what has arrived.
 *
 *   rows_product     fprop of four gates: M = 128, the gates of 32 units; N = columns. A stage is one
 *                    block's weights (A) and the activation tile it gathers (B). Weights come in an
 *                    order that leaves all four gates of a unit in one thread.
 *   columns_product  dgrad, and fprop of one matrix: M = columns, N = the units of one node. With
 *                    activations as A, one gathered tile serves all of `slots` neighbouring nodes,
 *                    whose sums stay in registers while the union of their sources goes by once.
 *   deep_product     wgrad: M = 128 rows of dy, N = up to 256 units of x; K = columns and steps.
 *
 * Operands are described to wgmma where they lie; no data is transposed on the way. */
#include "cuda.h"
#include "hopper.cuh"
#include "ptx.cuh"

#include <stdlib.h>

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__
#define ON_HOPPER 1
#else
#define ON_HOPPER 0 /* this pass compiles empty kernels, which the host never launches */
#endif

enum {
    CONSUMERS = 256, /* two warpgroups */
    THREADS = CONSUMERS + 128,
    CONSUMER_WARPS = CONSUMERS / 32,
    BOX = 64,            /* columns of a box of activations: one swizzled row of 128 bytes */
    BOX_ROW = BOX * 2,   /* its bytes */
    PADDING = 16,        /* bytes between rows of a tile that is staged for storing */
    MOST_SHARED = 227 << 10
};

/* ----------------------------------------------------------------------------------- rings */

/* A ring of stages: the producer fills, the consumers empty. Both count uses from 0. */
template <int STAGES> struct ring {
    uint32_t full, empty; /* barriers, 8 bytes each */

    __device__ void create(uint32_t at) {
        full = at;
        empty = at + STAGES * 8;
        if (threadIdx.x == 0) {
            for (int s = 0; s < STAGES; s++) {
                barrier_init(full + s * 8, 1);
                barrier_init(empty + s * 8, CONSUMER_WARPS);
            }
        }
    }

    static __device__ int stage(int use) {
        return use % STAGES;
    }

    __device__ void wait_empty(int use) {
        barrier_wait(empty + stage(use) * 8, (use / STAGES & 1) ^ 1);
    }

    __device__ uint32_t announce(int use, int bytes) {
        barrier_expect(full + stage(use) * 8, bytes);
        return full + stage(use) * 8;
    }

    __device__ void wait_full(int use) {
        barrier_wait(full + stage(use) * 8, use / STAGES & 1);
    }

    __device__ void release(int use) {
        if (threadIdx.x % 32 == 0) barrier_arrive(empty + stage(use) * 8);
    }
};

static __device__ inline uint32_t pack(float one, float two) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(one, two);
    return *(uint32_t *)&pair;
}

/* ------------------------------------------------------------------------------- rows_product */

typedef struct rows_arguments {
    const int *start, *column;
    bf16 *y;
    fixed *sums;
    int columns, b;
} rows_arguments;

/* KC: of a block's b columns, those in a stage. N: columns of the tile. */
template <int KC, int N> struct rows_shape {
    static const int HALF = N / 2; /* columns of a warpgroup */
    static const int W_BYTES = 128 * KC * 2, X_BYTES = KC * N * 2, STAGE = W_BYTES + X_BYTES;
    static const int BLOCKS = N <= 128 ? 2 : 1; /* thread blocks a multiprocessor */
    static const int PITCH = N * 2 + PADDING, STAGED = 128 * PITCH;
    static const int FIT = (MOST_SHARED / BLOCKS - 2048) / STAGE;
    static const int STAGES = FIT < 8 ? FIT : 8;
    static const int BYTES = (STAGES * STAGE > STAGED ? STAGES * STAGE : STAGED) + 1024 + 256;
};

template <int KC, int N>
static __global__ void __launch_bounds__(THREADS, (rows_shape<KC, N>::BLOCKS))
    rows_product(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ rows_arguments p) {
#if ON_HOPPER
    typedef rows_shape<KC, N> S;
    extern __shared__ char unaligned[];
    char *tiles = (char *)(((uintptr_t)unaligned + 1023) & ~(uintptr_t)1023);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const int parts = p.b / 32, node = blockIdx.y / parts, part = blockIdx.y % parts;
    const int column0 = blockIdx.x * N, first = p.start[node], chunks = p.b / KC;
    const int uses = (p.start[node + 1] - first) * chunks;
    ring<S::STAGES> stages;
    stages.create(base + S::BYTES - 1024 - 256);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        if (S::BLOCKS == 2) {
            registers_shrink<32>();
        } else {
            registers_shrink<40>();
        }
        if (warp > CONSUMER_WARPS) return;
        int lane = threadIdx.x % 32, columns_of_32 = 0;
        for (int use = 0; use < uses; use++) {
            int k = use / chunks;
            if (use % (32 * chunks) == 0) {
                bool there = first + k + lane < p.start[node + 1];
                columns_of_32 = there ? p.column[first + k + lane] : 0;
            }
            int column = __shfl_sync(~0u, columns_of_32, k % 32);
            if (lane) continue;
            stages.wait_empty(use);
            uint32_t barrier = stages.announce(use, S::STAGE), kc = use % chunks * KC;
            uint32_t to = base + stages.stage(use) * S::STAGE;
            tensor_load(to, &w_map, barrier, kc, 0, 0, part * 4, 2 * (first + k));
            for (int box = 0; box < N / BOX; box++) {
                tensor_load(to + S::W_BYTES + box * KC * BOX_ROW, &x_map, barrier,
                            column0 + box * BOX, column * p.b + kc);
            }
        }
        return;
    }

    if (S::BLOCKS == 2) {
        registers_grow<104>();
    } else {
        registers_grow<232>();
    }
    const int group = warp / 4;
    const int swizzle = KC == 32 ? SWIZZLE_64 : SWIZZLE_128, eight_rows = KC * 2 * 8;
    float sum[2][S::HALF / 2] = {};
    for (int use = 0; use < uses; use++) {
        uint32_t w = base + stages.stage(use) * S::STAGE, x = w + S::W_BYTES;
        x += S::HALF < BOX ? group * S::HALF * 2 : group * (S::HALF / BOX) * KC * BOX_ROW;
        stages.wait_full(use);
        product_fence();
#pragma unroll
        for (int k = 0; k < KC; k += 16) {
            uint64_t b = matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, KC * BOX_ROW, 1024);
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                uint64_t a = matrix_descriptor(w + pair * 64 * KC * 2 + k * 2, swizzle, 16,
                                               eight_rows);
                warpgroup_multiply<0, 1>(sum[pair], a, b);
            }
        }
        product_commit();
        product_wait<1>();
        if (use > 0) stages.release(use - 1);
    }
    product_wait<0>();

    /* Rows of the tile are [gate][unit]; a thread holds gates 2 pair + half of unit 8 warp + lane / 4. */
    group_sync(1, CONSUMERS);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
#pragma unroll
        for (int j = 0; j < S::HALF / 8; j += 2) {
            const float *d = &sum[pair][j * 4];
            uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]), pack(d[6], d[7])};
            int row = (2 * pair + lane / 8 % 2) * 32 + warp % 4 * 8 + lane % 8;
            int column = group * S::HALF + (j + lane / 16) * 8;
            store_matrices(base + row * S::PITCH + column * 2, r);
        }
    }
    group_sync(1, CONSUMERS);
    for (int i = threadIdx.x; p.sums && i < 4 * N / 2; i += CONSUMERS) {
        int gate = i / (N / 2), column = i % (N / 2) * 2;
        float total[2] = {}, square[2] = {};
        for (int unit = 0; unit < 32; unit++) {
            float2 v = __bfloat1622float2(
                *(__nv_bfloat162 *)(tiles + (gate * 32 + unit) * S::PITCH + column * 2));
            total[0] += v.x;
            total[1] += v.y;
            square[0] += v.x * v.x;
            square[1] += v.y * v.y;
        }
        fixed *sums = p.sums + gate * sums_gate(p.columns);
        for (int e = 0; e < 2; e++) {
            add_fixed(sums, p.columns, 0, column0 + column + e, total[e], SCALE_SUM);
            add_fixed(sums, p.columns, 1, column0 + column + e, square[e], SCALE_SQUARE);
        }
    }
    for (int i = threadIdx.x; i < 128 * N / 8; i += CONSUMERS) {
        int row = i / (N / 8), chunk = i % (N / 8), gate = row / 32, unit = part * 32 + row % 32;
        size_t to = ((size_t)(node * GATES + gate) * p.b + unit) * p.columns + column0 + chunk * 8;
        *(uint4 *)(p.y + to) = *(const uint4 *)(tiles + row * S::PITCH + chunk * 16);
    }
#endif
}

/* ---------------------------------------------------------------------------- columns_product */

typedef struct columns_arguments {
    const int *start;  /* [groups + 1] into the two below */
    const int *source; /* the source tile of each block: a node's rows, or a slice of them */
    const int *block;  /* (row of W in slices) << 4 | slot << 1 | whether the source is new */
    bf16 *y;
    int columns, nodes, slots;
} columns_arguments;

enum { FRESH = 1, SLOT_SHIFT = 1, SLOT_MASK = 7, BLOCK_SHIFT = 4 };

/* KS: rows of a source tile. B: units of a node. FORWARD: W is [B][KS], else [KS][B]. */
template <int KS, int B, bool FORWARD> struct columns_shape {
    static const int N = 128;                                  /* columns of the tile */
    static const int SLOTS = B == 32 ? 6 : B == 64 ? 3 : 1;    /* nodes, at most */
    static const int X_BYTES = KS * N * 2, W_BYTES = KS * B * 2;
    static const int X_STAGES = KS == 128 ? 3 : 6, W_STAGES = W_BYTES >= (32 << 10) ? 3 : 8;
    static const int PITCH = N * 2 + PADDING;
    static const int RINGS = X_STAGES * X_BYTES + W_STAGES * W_BYTES;
    static const int STAGED = SLOTS * B * PITCH;
    static const int TILES = RINGS > STAGED ? RINGS : STAGED;
    static const int BYTES = TILES + 1024 + 512;
};

/* sum += X' W over one block: X [KS][64 columns of a warpgroup], W as FORWARD says. */
template <int KS, int B, bool FORWARD>
static __device__ inline void multiply_block(float (&sum)[B / 2], uint32_t x, uint32_t w) {
    const int row = B >= 64 ? 128 : 64; /* bytes of a row of W's box */
    const int swizzle = B >= 64 ? SWIZZLE_128 : SWIZZLE_64;
    product_fence();
#pragma unroll
    for (int k = 0; k < KS; k += 16) {
        uint64_t a = matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, 16, 1024);
        if (FORWARD) { /* boxes [B rows][64 of k] */
            uint32_t at = w + k / 64 * B * row + k % 64 * 2;
            warpgroup_multiply<1, 0>(sum, a, matrix_descriptor(at, swizzle, 16, 8 * row));
        } else { /* boxes [KS rows][64 units] */
            warpgroup_multiply<1, 1>(sum, a,
                                     matrix_descriptor(w + k * row, swizzle, KS * row, 8 * row));
        }
    }
    product_commit();
    product_wait<0>(); /* the sums of slots would else be in flight across branches */
}

template <int KS, int B, bool FORWARD>
static __global__ void __launch_bounds__(THREADS, 1)
    columns_product(const __grid_constant__ CUtensorMap w_map,
                    const __grid_constant__ CUtensorMap x_map,
                    const __grid_constant__ columns_arguments p) {
#if ON_HOPPER
    typedef columns_shape<KS, B, FORWARD> S;
    extern __shared__ char unaligned[];
    char *tiles = (char *)(((uintptr_t)unaligned + 1023) & ~(uintptr_t)1023);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const uint32_t w_base = base + S::X_STAGES * S::X_BYTES;
    volatile int *slots = (volatile int *)(tiles + S::TILES + 256); /* of each W stage */
    const int first = p.start[blockIdx.y], count = p.start[blockIdx.y + 1] - first;
    const int column0 = blockIdx.x * S::N;
    ring<S::X_STAGES> sources;
    ring<S::W_STAGES> blocks;
    sources.create(base + S::TILES);
    blocks.create(base + S::TILES + S::X_STAGES * 16);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<40>();
        if (warp > CONSUMER_WARPS) return;
        int lane = threadIdx.x % 32, source_of_32 = 0, block_of_32 = 0, fresh = 0;
        for (int i = 0; i < count; i++) {
            if (i % 32 == 0) {
                bool there = i + lane < count;
                source_of_32 = there ? p.source[first + i + lane] : 0;
                block_of_32 = there ? p.block[first + i + lane] : 0;
            }
            int source = __shfl_sync(~0u, source_of_32, i % 32);
            int block = __shfl_sync(~0u, block_of_32, i % 32);
            if (lane) continue;
            if (block & FRESH) {
                sources.wait_empty(fresh);
                uint32_t barrier = sources.announce(fresh, S::X_BYTES);
                uint32_t to = base + sources.stage(fresh) * S::X_BYTES;
                for (int box = 0; box < S::N / BOX; box++) {
                    tensor_load(to + box * KS * BOX_ROW, &x_map, barrier, column0 + box * BOX,
                                source * KS);
                }
                fresh++;
            }
            blocks.wait_empty(i);
            slots[blocks.stage(i)] = block;
            uint32_t barrier = blocks.announce(i, S::W_BYTES);
            uint32_t to = w_base + blocks.stage(i) * S::W_BYTES;
            int row = (block >> BLOCK_SHIFT) * (FORWARD ? B : KS);
            for (int part = 0; part < (B > 64 ? 2 : 1); part++) {
                tensor_load(to + part * S::W_BYTES / 2, &w_map, barrier, part * 64, row);
            }
        }
        return;
    }

    registers_grow<232>();
    const int group = warp / 4;
    float sum[S::SLOTS][B / 2] = {};
    int fresh = -1; /* the use of `sources` that this block needs */
    for (int i = 0; i < count; i++) {
        blocks.wait_full(i);
        int block = slots[blocks.stage(i)];
        if (block & FRESH) {
            if (fresh >= 0) sources.release(fresh);
            sources.wait_full(++fresh);
        }
        uint32_t x = base + sources.stage(fresh) * S::X_BYTES + group * KS * BOX_ROW;
        uint32_t w = w_base + blocks.stage(i) * S::W_BYTES;
        switch (block >> SLOT_SHIFT & SLOT_MASK) {
        case 0: multiply_block<KS, B, FORWARD>(sum[0], x, w); break;
        case 1: multiply_block<KS, B, FORWARD>(sum[1 % S::SLOTS], x, w); break;
        case 2: multiply_block<KS, B, FORWARD>(sum[2 % S::SLOTS], x, w); break;
        case 3: multiply_block<KS, B, FORWARD>(sum[3 % S::SLOTS], x, w); break;
        case 4: multiply_block<KS, B, FORWARD>(sum[4 % S::SLOTS], x, w); break;
        default: multiply_block<KS, B, FORWARD>(sum[5 % S::SLOTS], x, w); break;
        }
        blocks.release(i);
    }

    /* Tiles are staged as [slot][unit][column]; a thread holds columns, so matrices are transposed. */
    group_sync(1, CONSUMERS);
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int slot = 0; slot < S::SLOTS; slot++) {
#pragma unroll
        for (int j = 0; j < B / 8; j += 2) {
            const float *d = &sum[slot][j * 4];
            uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]), pack(d[6], d[7])};
            int unit = slot * B + (j + lane / 16) * 8 + lane % 8;
            int column = group * 64 + warp % 4 * 16 + lane / 8 % 2 * 8;
            store_matrices_transposed(base + unit * S::PITCH + column * 2, r);
        }
    }
    group_sync(1, CONSUMERS);
    int node0 = blockIdx.y * p.slots, nodes = min(p.slots, p.nodes - node0);
    for (int i = threadIdx.x; i < nodes * B * S::N / 8; i += CONSUMERS) {
        int unit = i / (S::N / 8), column = column0 + i % (S::N / 8) * 8;
        if (column >= p.columns) continue;
        *(uint4 *)(p.y + ((size_t)node0 * B + unit) * p.columns + column) =
            *(const uint4 *)(tiles + unit * S::PITCH + i % (S::N / 8) * 16);
    }
#endif
}

/* ------------------------------------------------------------------------------- deep_product */

typedef struct deep_arguments {
    const int *start, *row, *column; /* first block of each tile; each block's nodes */
    float *dw;
    int columns, steps, b, rows; /* rows: gates b */
} deep_arguments;

enum {
    DEEP_M = 128,
    DEEP_N = 256,
    DEEP_LEFT = DEEP_M * BOX_ROW,
    DEEP_STAGE = DEEP_LEFT + DEEP_N * BOX_ROW,
    DEEP_STAGES = 4,
    DEEP_BYTES = DEEP_STAGES * DEEP_STAGE + 1024 + 256
};

/* N: columns of W that a tile has, of which the last may be nobody's. */
template <int N>
static __device__ inline void deep_consume(const deep_arguments &p, ring<DEEP_STAGES> &stages,
                                           uint32_t base, int uses, int first, int count) {
    const int warp = threadIdx.x / 32, group = warp / 4, lane = threadIdx.x % 32;
    float sum[N / 2] = {};
    for (int use = 0; use < uses; use++) {
        uint32_t left = base + stages.stage(use) * DEEP_STAGE + group * 64 * BOX_ROW;
        uint32_t right = base + stages.stage(use) * DEEP_STAGE + DEEP_LEFT;
        stages.wait_full(use);
        product_fence();
#pragma unroll
        for (int k = 0; k < BOX; k += 16) {
            warpgroup_multiply<0, 0>(sum, matrix_descriptor(left + k * 2, SWIZZLE_128, 16, 1024),
                                     matrix_descriptor(right + k * 2, SWIZZLE_128, 16, 1024));
        }
        product_commit();
        product_wait<1>();
        if (use > 0) stages.release(use - 1);
    }
    product_wait<0>();
    int row = blockIdx.y * DEEP_M + group * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        int column = j * 8 + lane % 4 * 2, q = column / p.b;
        if (q >= count) continue;
        float *to = p.dw + ((size_t)(first + q) * p.rows + row) * p.b + column % p.b;
        *(float2 *)to = make_float2(sum[j * 4], sum[j * 4 + 1]);
        *(float2 *)(to + 8 * p.b) = make_float2(sum[j * 4 + 2], sum[j * 4 + 3]);
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    deep_product(const __grid_constant__ CUtensorMap dy_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ deep_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    char *tiles = (char *)(((uintptr_t)unaligned + 1023) & ~(uintptr_t)1023);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const int first = p.start[blockIdx.x], count = p.start[blockIdx.x + 1] - first;
    const int node = p.row[first], spans = p.columns / BOX, uses = p.steps * spans;
    ring<DEEP_STAGES> stages;
    stages.create(base + DEEP_STAGES * DEEP_STAGE);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<40>();
        if (threadIdx.x != CONSUMERS) return;
        int bytes = DEEP_LEFT + count * p.b * BOX_ROW, column[DEEP_N / 32];
        for (int q = 0; q < DEEP_N / 32; q++) column[q] = q < count ? p.column[first + q] : 0;
        int row = node * p.rows + blockIdx.y * DEEP_M;
        for (int use = 0; use < uses; use++) {
            int t = use / spans, n = use % spans * BOX;
            stages.wait_empty(use);
            uint32_t barrier = stages.announce(use, bytes);
            uint32_t to = base + stages.stage(use) * DEEP_STAGE;
            tensor_load(to, &dy_map, barrier, n, row, t);
#pragma unroll
            for (int q = 0; q < DEEP_N / 32; q++) {
                if (q >= count) break;
                tensor_load(to + DEEP_LEFT + q * p.b * BOX_ROW, &x_map, barrier, n,
                            column[q] * p.b, t);
            }
        }
        return;
    }
    registers_grow<232>();
    if (count * p.b > 128) {
        deep_consume<256>(p, stages, base, uses, first, count);
    } else if (count * p.b > 64) {
        deep_consume<128>(p, stages, base, uses, first, count);
    } else {
        deep_consume<64>(p, stages, base, uses, first, count);
    }
#endif
}

/* ---------------------------------------------------------------------------------------- maps */

/* A tensor of bf16 as TMA sees it: `rank` dimensions, innermost first; strides in bytes, of all but
 * the innermost. */
static bool make_map(backend *be, CUtensorMap *map, const void *base, int rank,
                     const uint64_t *extent, const uint64_t *stride, const uint32_t *box,
                     CUtensorMapSwizzle swizzle) {
    static const uint32_t ones[5] = {1, 1, 1, 1, 1};
    CUresult status = cuda_of(be)->encode_map(
        map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (uint32_t)rank, (void *)(uintptr_t)base, extent,
        stride, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return cuda_ok(be, status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "tensor map");
}

/* Activations [steps][rows][columns], in boxes of 64 columns and `box_rows` rows; rank 2 is one step. */
static bool map_activations(backend *be, CUtensorMap *map, int rank, const void *x, size_t rows,
                            int columns, int steps, int box_rows) {
    const uint64_t extent[3] = {(uint64_t)columns, rows, (uint64_t)steps};
    const uint64_t stride[2] = {(uint64_t)columns * 2, (uint64_t)columns * rows * 2};
    const uint32_t box[3] = {BOX, (uint32_t)box_rows, 1};
    return make_map(be, map, x, rank, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

static CUtensorMapSwizzle weight_swizzle(int b) {
    return b >= 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
}

/* W for rows_product: boxes of 32 units and four gates, in the order [gates i f | o u][8 units]
 * [two gates][unit][min(b, 64)]. */
static bool map_gates(backend *be, CUtensorMap *map, const layout *l, const void *w) {
    const uint64_t b = (uint64_t)l->in_block, row = b * 2, gate = b * row;
    const uint64_t extent[5] = {b, 8, 2, b / 8, 2 * (uint64_t)l->blocks};
    const uint64_t stride[4] = {row, gate, 8 * row, 2 * gate};
    const uint32_t box[5] = {b >= 64 ? 64u : 32u, 8, 2, 4, 2};
    return make_map(be, map, w, 5, extent, stride, box, weight_swizzle(l->in_block));
}

/* W for columns_product: all rows of all blocks, in boxes of `box_rows`. */
static bool map_blocks(backend *be, CUtensorMap *map, const layout *l, const void *w,
                       int box_rows) {
    const uint64_t b = (uint64_t)l->in_block;
    const uint64_t extent[2] = {b, b * (uint64_t)l->gates * (uint64_t)l->blocks};
    const uint64_t stride[1] = {b * 2};
    const uint32_t box[2] = {b >= 64 ? 64u : 32u, (uint32_t)box_rows};
    return make_map(be, map, w, 2, extent, stride, box, weight_swizzle(l->in_block));
}

/* ------------------------------------------------------------------------------------- tables */

enum { WGRAD_MOST = DEEP_N };

static int *host_table(size_t count) {
    int *table = (int *)calloc(count ? count : 1, sizeof *table);
    if (!table) abort();
    return table;
}

/* Groups of `slots` output nodes, and for each the union of their sources in ascending order, with
 * the blocks that each source feeds. start/other: the output nodes' lists; block: which block of W.
 * A source of more than 128 rows is several, one a slice. */
static void build_groups(backend *be, hopper_groups *groups, int nodes, const int *start,
                         const int *other, const int *block, int slots, int slices) {
    int count = (nodes + slots - 1) / slots, used = 0;
    int blocks = start[nodes];
    int *group_start = host_table((size_t)count + 1);
    int *source = host_table((size_t)blocks * slices), *op = host_table((size_t)blocks * slices);
    for (int g = 0; g < count; g++) {
        int at[8], node0 = g * slots, members = nodes - node0 < slots ? nodes - node0 : slots;
        group_start[g] = used;
        for (int m = 0; m < members; m++) at[m] = start[node0 + m];
        for (;;) {
            int next = -1; /* the smallest source not yet taken */
            for (int m = 0; m < members; m++) {
                bool left = at[m] < start[node0 + m + 1];
                if (left && (next < 0 || other[at[m]] < next)) next = other[at[m]];
            }
            if (next < 0) break;
            for (int slice = 0; slice < slices; slice++) {
                int fresh = FRESH;
                for (int m = 0; m < members; m++) {
                    if (at[m] == start[node0 + m + 1] || other[at[m]] != next) continue;
                    int row = (block ? block[at[m]] : at[m]) * slices + slice;
                    source[used] = next * slices + slice;
                    op[used++] = row << BLOCK_SHIFT | m << SLOT_SHIFT | fresh;
                    fresh = 0;
                }
            }
            for (int m = 0; m < members; m++) {
                if (at[m] < start[node0 + m + 1] && other[at[m]] == next) at[m]++;
            }
        }
    }
    group_start[count] = used;
    groups->count = count;
    groups->slots = slots;
    groups->start = cuda_table(be, group_start, count + 1);
    groups->source = cuda_table(be, source, used);
    groups->block = cuda_table(be, op, used);
    free(group_start);
    free(source);
    free(op);
}

static void build_deep(backend *be, device_layout *device, const layout *l) {
    int most = WGRAD_MOST / l->in_block, tiles = 0;
    int *first = host_table((size_t)l->blocks + 1);
    for (int i = 0; i < l->out_nodes; i++) {
        int from = l->row_start[i], count = l->row_start[i + 1] - from;
        int parts = (count + most - 1) / most; /* of nearly equal size */
        for (int part = 0; part < parts; part++) first[tiles++] = from + count * part / parts;
    }
    first[tiles] = l->blocks;
    device->deep_tiles = tiles;
    device->deep_start = cuda_table(be, first, tiles + 1);
    free(first);
}

bool hopper_compiled(void) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, deep_product) == cudaSuccess) {
        return attributes.numRegs > 100; /* an empty kernel has few */
    }
    cudaGetLastError();
    return false;
}

bool hopper_fits(const backend *be, const layout *l) {
    return cuda_of((backend *)(uintptr_t)be)->hopper && be->precision == BF16 &&
           l->in_block >= 32 && !layout_is_dense(l);
}

/* As many neighbours a thread block as keep every multiprocessor busy, and registers hold. */
static int group_slots(const cuda_backend *cuda, int nodes, int b) {
    int most = b == 32 ? 6 : b == 64 ? 3 : 1;
    int slots = (nodes + cuda->processors - 1) / cuda->processors;
    return slots < 1 ? 1 : slots < most ? slots : most;
}

void hopper_create(backend *be, device_layout *device, const layout *l) {
    const cuda_backend *cuda = cuda_of(be);
    int b = l->in_block, rows = l->gates * b;
    build_groups(be, &device->backward, l->in_nodes, l->column_start, l->column_row,
                 l->column_block, group_slots(cuda, l->in_nodes, b), rows > 128 ? rows / 128 : 1);
    if (l->gates == 1) {
        build_groups(be, &device->forward, l->out_nodes, l->row_start, l->row_column, NULL,
                     group_slots(cuda, l->out_nodes, b), 1);
    }
    build_deep(be, device, l);
}

/* ----------------------------------------------------------------------------------- launches */

/* Raises the limit on shared memory the first time. */
static bool allow_shared(backend *be, const void *kernel, int bytes) {
    return cuda_ok(be,
                   cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                   "raise the limit on shared memory");
}

template <int KC, int N>
static bool launch_rows(backend *be, const device_layout *device, const CUtensorMap &w_map,
                        const void *x, int columns, void *y, void *sums) {
    typedef rows_shape<KC, N> S;
    const layout *l = &device->host;
    CUtensorMap x_map;
    rows_arguments p = {l->row_start, l->row_column, (bf16 *)y, (fixed *)sums, columns, l->in_block};
    dim3 grid(columns / N, l->out_nodes * (l->in_block / 32));
    if (!map_activations(be, &x_map, 2, x, layout_inputs(l), columns, 1, KC)) return false;
    allow_shared(be, (const void *)rows_product<KC, N>, S::BYTES);
    rows_product<KC, N><<<grid, THREADS, S::BYTES, cuda_of(be)->stream>>>(w_map, x_map, p);
    return true;
}

template <int KC>
static bool launch_rows_by_columns(backend *be, const device_layout *device, const void *w,
                                   const void *x, int columns, void *y, void *sums) {
    CUtensorMap w_map;
    if (!map_gates(be, &w_map, &device->host, w)) return false;
    if (columns % 256 == 0) return launch_rows<KC, 256>(be, device, w_map, x, columns, y, sums);
    if (columns % 128 == 0) return launch_rows<KC, 128>(be, device, w_map, x, columns, y, sums);
    return launch_rows<KC, 64>(be, device, w_map, x, columns, y, sums);
}

template <int KS, int B, bool FORWARD>
static bool launch_columns(backend *be, const layout *l, const hopper_groups *groups,
                           const void *w, const void *x, size_t x_rows, int nodes, int columns,
                           void *y) {
    typedef columns_shape<KS, B, FORWARD> S;
    CUtensorMap w_map, x_map;
    columns_arguments p = {groups->start, groups->source, groups->block, (bf16 *)y,
                           columns,       nodes,          groups->slots};
    dim3 grid((columns + S::N - 1) / S::N, groups->count);
    if (!map_blocks(be, &w_map, l, w, FORWARD ? B : KS)) return false;
    if (!map_activations(be, &x_map, 2, x, x_rows, columns, 1, KS)) return false;
    allow_shared(be, (const void *)columns_product<KS, B, FORWARD>, S::BYTES);
    columns_product<KS, B, FORWARD><<<grid, THREADS, S::BYTES, cuda_of(be)->stream>>>(w_map, x_map,
                                                                                      p);
    return true;
}

bool hopper_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                  int columns, void *y, void *sums) {
    const layout *l = &device->host;
    const hopper_groups *groups = &device->forward;
    size_t rows = layout_inputs(l);
    int b = l->in_block, nodes = l->out_nodes;
    if (l->gates == GATES && b == 32) {
        return launch_rows_by_columns<32>(be, device, w, x, columns, y, sums);
    }
    if (l->gates == GATES) {
        return launch_rows_by_columns<64>(be, device, w, x, columns, y, sums);
    }
    bool done = false;
    if (b == 32) {
        done = launch_columns<32, 32, true>(be, l, groups, w, x, rows, nodes, columns, y);
    } else if (b == 64) {
        done = launch_columns<64, 64, true>(be, l, groups, w, x, rows, nodes, columns, y);
    } else {
        done = launch_columns<128, 128, true>(be, l, groups, w, x, rows, nodes, columns, y);
    }
    if (done && sums) cuda_column_sums(be, l, y, 1, columns, sums);
    return done;
}

bool hopper_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                  int columns, void *dx) {
    const layout *l = &device->host;
    const hopper_groups *groups = &device->backward;
    size_t rows = layout_rows(l);
    int b = l->in_block, nodes = l->in_nodes;
    bool wide = l->gates * b >= 128;
    if (b == 32) {
        return wide ? launch_columns<128, 32, false>(be, l, groups, w, dy, rows, nodes, columns, dx)
                    : launch_columns<32, 32, false>(be, l, groups, w, dy, rows, nodes, columns, dx);
    }
    if (b == 64) {
        return wide ? launch_columns<128, 64, false>(be, l, groups, w, dy, rows, nodes, columns, dx)
                    : launch_columns<64, 64, false>(be, l, groups, w, dy, rows, nodes, columns, dx);
    }
    return launch_columns<128, 128, false>(be, l, groups, w, dy, rows, nodes, columns, dx);
}

bool hopper_wgrad(backend *be, const device_layout *device, const void *dy, const void *x,
                  int steps, int columns, void *dw) {
    const layout *l = &device->host;
    int rows = l->gates * l->in_block;
    CUtensorMap dy_map, x_map;
    deep_arguments p = {device->deep_start, device->block_row, l->row_column, (float *)dw,
                        columns,            steps,             l->in_block,   rows};
    if (!map_activations(be, &dy_map, 3, dy, layout_rows(l), columns, steps, DEEP_M)) return false;
    if (!map_activations(be, &x_map, 3, x, layout_inputs(l), columns, steps, l->in_block)) return false;
    allow_shared(be, (const void *)deep_product, DEEP_BYTES);
    deep_product<<<dim3(device->deep_tiles, rows / DEEP_M), THREADS, DEEP_BYTES,
                   cuda_of(be)->stream>>>(dy_map, x_map, p);
    return true;
}
