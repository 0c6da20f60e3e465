/* The three products on Hopper (sm_90a): blocks of 32, 64 and 128 in bf16, by TMA and wgmma.
 *
 * Floors are those of products.cu. What these kernels add is width: a producer warp runs ahead
 * with bulk copies through a ring of stages in shared memory, so that 64 KB and more are on their
 * way into each multiprocessor, and two warpgroups multiply what has arrived.
 *
 *   rows_product     fprop of four gates: M = 128, the gates of 32 units; N = columns. A stage is one
 *                    block's weights (A) and the activation tile it gathers (B).
 *   columns_product  dgrad, and fprop of one matrix: M = columns, N = the units of one node. With
 *                    activations as A, one gathered tile serves all of a part's neighbouring nodes,
 *                    whose sums stay in registers while the union of their sources goes by once.
 *   deep_product     wgrad: M = 128 rows of dy, N = up to 256 units of x; K = columns and steps.
 *
 * What holds them, at 18,432 units, block 32, 22,064 blocks of four gates and 128 columns on an H200:
 * rows_product brings 361 MB into the multiprocessors in 80 us, half of it cold, and without its
 * multiplications takes 76; columns_product brings 447 MB in 94 us, and without them 83. So loads
 * set the pace, at about 4.6 TB/s, not arithmetic. Clusters of two thread blocks that share activation
 * tiles by multicast move less and took longer (146 and 116 us): each stage then waits for the slower
 * of two. deep_product runs at 88 % of the matrix rate.
 *
 * Operands are described to wgmma where they lie; no data is transposed on the way. */
#include "cuda.h"
#include "hopper.cuh"
#include "ptx.cuh"

#include <stdlib.h>

#pragma nv_diag_suppress 177 /* passes for other GPUs leave the helpers unused */

enum {
    CONSUMERS = 256, /* two warpgroups */
    THREADS = CONSUMERS + 128,
    CONSUMER_WARPS = CONSUMERS / 32,
    BOX = 64,          /* columns of a box of activations: one swizzled row of 128 bytes */
    BOX_ROW = BOX * 2, /* its bytes */
    PADDING = 16,      /* bytes between rows of a tile that is staged for storing */
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

/* ------------------------------------------------------------------------------ shared tiles
 *
 * Work is cut into parts of equally many blocks, so that a part may begin or end inside a row. The
 * part in which a row's list ends owns the row's tile; those before it leave their sums in a ring
 * of slots, and the owner adds them up, nearest part first. A part only waits for parts before it.
 */

typedef struct exchange {
    float *sums; /* [SHARED_SLOTS][SHARED_FLOATS] */
    int *full;   /* [SHARED_SLOTS]; all 0 between launches */
} exchange;

static __device__ inline void wait_for(int *flag, int value) {
    if (threadIdx.x == 0) {
        while (atomicAdd(flag, 0) != value) __nanosleep(100);
        __threadfence();
    }
    group_sync(1, CONSUMERS);
}

static __device__ inline void set_flag(int *flag, int value) {
    __threadfence();
    group_sync(1, CONSUMERS);
    if (threadIdx.x == 0) atomicExch(flag, value);
}

template <int K>
static __device__ __forceinline__ void give_sums(const exchange &e, int block, int slots,
                                                 const float (&sum)[K]) {
    int slot = block % slots;
    float4 *to = (float4 *)(e.sums + (size_t)slot * K * CONSUMERS) + threadIdx.x;
    wait_for(&e.full[slot], 0);
#pragma unroll
    for (int j = 0; j < K; j += 4) {
        __stcg(to + j / 4 * CONSUMERS, make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]));
    }
    set_flag(&e.full[slot], 1);
}

template <int K>
static __device__ __forceinline__ void take_sums(const exchange &e, int block, int slots,
                                                 float (&sum)[K]) {
    int slot = block % slots;
    const float4 *from = (const float4 *)(e.sums + (size_t)slot * K * CONSUMERS) + threadIdx.x;
    wait_for(&e.full[slot], 1);
#pragma unroll
    for (int j = 0; j < K; j += 4) {
        float4 v = __ldcg(from + j / 4 * CONSUMERS);
        sum[j] += v.x;
        sum[j + 1] += v.y;
        sum[j + 2] += v.z;
        sum[j + 3] += v.w;
    }
    set_flag(&e.full[slot], 0);
}

/* ------------------------------------------------------------------------------- rows_product */

typedef struct rows_arguments {
    const int *start, *column, *row; /* row: of each block */
    bf16 *y;
    fixed *sums;
    int columns, b, blocks;
    exchange shared;
} rows_arguments;

/* KC: of a block's b columns, those in a stage. N: columns of the tile. One warpgroup has the even
 * units, one the odd: so rows of 32 weights can be read two at a time, as 128 bytes. */
template <int KC, int N> struct rows_shape {
    static const int W_BYTES = 128 * KC * 2, X_BYTES = KC * N * 2, STAGE = W_BYTES + X_BYTES;
    static const int PITCH = N * 2 + PADDING, STAGED = 128 * PITCH;
    static const int FIT = (MOST_SHARED - 2048 - STAGED) / STAGE;
    static const int STAGES = FIT < 12 ? FIT : 12;
    static const int BARRIERS = STAGES * STAGE + STAGED, BYTES = BARRIERS + 1024 + 256;
};

/* A stretch of one tile's list: blocks [begin, end) of those that stand from `row_begin`. A node of
 * b > 32 units is b / 32 tiles, whose lists are the same; blocks are counted over all of them. */
struct stretch {
    int node, part, first; /* first: the node's first block */
    int begin, end, row_begin, row_end;
};

static __device__ inline stretch stretch_before(const rows_arguments &p, int least, int end) {
    stretch s;
    int parts = p.b / 32, last = end - 1;
    s.node = p.row[last / parts];
    s.first = p.start[s.node];
    int length = p.start[s.node + 1] - s.first;
    s.part = (last - parts * s.first) / length;
    s.row_begin = parts * s.first + s.part * length;
    s.row_end = s.row_begin + length;
    s.begin = max(s.row_begin, least);
    s.end = end;
    return s;
}

static __device__ inline int part_begin(const rows_arguments &p, int part) {
    return (int)((long long)p.blocks * (p.b / 32) * part / gridDim.y);
}

/* A finished tile of 4 gates x 32 units: layer norm's sums, and the values in bf16. Of the rows
 * [gate][unit] a warp holds every second unit of one gate. */
template <int KC, int N>
static __device__ void finish_rows(const rows_arguments &p, const stretch &s, char *staged,
                                   const float (&sum)[N / 2]) {
    typedef rows_shape<KC, N> S;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column0 = blockIdx.x * N;
    group_sync(1, CONSUMERS);
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
        const float *d = &sum[j * 4];
        uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]), pack(d[6], d[7])};
        int row = warp % 4 * 32 + lane % 16 * 2 + warp / 4, column = (j + lane / 16) * 8;
        store_matrices(shared_address(staged) + row * S::PITCH + column * 2, r);
    }
    group_sync(1, CONSUMERS);
    for (int i = threadIdx.x; i < 128 * N / 8; i += CONSUMERS) {
        int row = i / (N / 8), chunk = i % (N / 8), gate = row / 32, unit = s.part * 32 + row % 32;
        size_t to =
            ((size_t)(s.node * GATES + gate) * p.b + unit) * p.columns + column0 + chunk * 8;
        *(uint4 *)(p.y + to) = *(const uint4 *)(staged + row * S::PITCH + chunk * 16);
    }
    for (int i = threadIdx.x; p.sums && i < GATES * N / 2; i += CONSUMERS) {
        int gate = i / (N / 2), column = i % (N / 2) * 2;
        float total[2] = {}, square[2] = {};
#pragma unroll 8
        for (int unit = 0; unit < 32; unit++) {
            float2 v = __bfloat1622float2(
                *(__nv_bfloat162 *)(staged + (gate * 32 + unit) * S::PITCH + column * 2));
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
}

template <int KC, int N>
static __global__ void __launch_bounds__(THREADS, 1)
    rows_product(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ rows_arguments p) {
#if ON_HOPPER
    typedef rows_shape<KC, N> S;
    extern __shared__ char unaligned[];
    char *tiles = (char *)(((uintptr_t)unaligned + 1023) & ~(uintptr_t)1023);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const int begin = part_begin(p, blockIdx.y), end = part_begin(p, blockIdx.y + 1);
    const int chunks = p.b / KC;
    ring<S::STAGES> stages;
    stages.create(base + S::BARRIERS);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<40>();
        if (warp > CONSUMER_WARPS) return;
        const int lane = threadIdx.x % 32, column0 = blockIdx.x * N;
        int use = 0;
        for (int at = end; at > begin;) {
            stretch s = stretch_before(p, begin, at);
            int k0 = s.first + s.begin - s.row_begin, columns_of_32 = 0;
            for (int i = 0; i < s.end - s.begin; i++) {
                if (i % 32 == 0) {
                    columns_of_32 = i + lane < s.end - s.begin ? p.column[k0 + i + lane] : 0;
                }
                int column = __shfl_sync(~0u, columns_of_32, i % 32);
                for (int chunk = 0; chunk < chunks && lane == 0; chunk++, use++) {
                    stages.wait_empty(use);
                    uint32_t barrier = stages.announce(use, S::STAGE);
                    uint32_t to = base + stages.stage(use) * S::STAGE;
                    if (KC == 32) {
                        tensor_load(to, &w_map, barrier, 0, (k0 + i) * 64);
                    } else {
                        tensor_load(to, &w_map, barrier, chunk * KC, s.part * 16, GATES * (k0 + i),
                                    0);
                    }
                    for (int box = 0; box < N / BOX; box++) {
                        tensor_load(to + S::W_BYTES + box * KC * BOX_ROW, &x_map, barrier,
                                    column0 + box * BOX, column * p.b + chunk * KC);
                    }
                }
            }
            at = s.begin;
        }
        return;
    }

    registers_grow<232>();
    const int block = blockIdx.y * gridDim.x + blockIdx.x,
              slots = SHARED_FLOATS / (N / 2 * CONSUMERS);
    int use = 0;
    for (int at = end; at > begin;) {
        stretch s = stretch_before(p, begin, at);
        float sum[N / 2] = {};
        for (int i = 0; i < (s.end - s.begin) * chunks; i++, use++) {
            uint32_t w = base + stages.stage(use) * S::STAGE, x = w + S::W_BYTES;
            w += warp / 4 * (KC == 32 ? 64 : S::W_BYTES / 2);
            stages.wait_full(use);
            product_fence();
#pragma unroll
            for (int k = 0; k < KC; k += 16) {
                warpgroup_multiply<0, 1>(
                    sum, matrix_descriptor(w + k * 2, SWIZZLE_128, 16, 1024),
                    matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, KC * BOX_ROW, 1024));
            }
            product_commit();
            product_wait<1>();
            if (i > 0) stages.release(use - 1);
        }
        product_wait<0>();
        stages.release(use - 1);
        if (s.end < s.row_end) {
            give_sums(p.shared, block, slots, sum);
        } else {
            for (int part = blockIdx.y; part_begin(p, part) > s.row_begin; part--) {
                take_sums(p.shared, (part - 1) * gridDim.x + blockIdx.x, slots, sum);
            }
            finish_rows<KC, N>(p, s, tiles + S::STAGES * S::STAGE, sum);
        }
        at = s.begin;
    }
#endif
}

/* ---------------------------------------------------------------------------- columns_product */

typedef struct columns_arguments {
    const hopper_part *part;
    const hopper_source *source;
    bf16 *y;
    int columns, rows, slices; /* rows: of a source node, `slices` times KS */
    int tile0;                 /* of columns, the launch's first */
    exchange shared;
} columns_arguments;

/* KS: rows of a source tile. B: units of a node. FORWARD: W is [B][rows], else [rows][B]. PAIRED:
 * rows of 32 weights are read two at a time, as 128 bytes, so the even rows of a source come before
 * the odd. */
template <int KS, int B, bool FORWARD> struct columns_shape {
    static const bool PAIRED = B == 32 && !FORWARD;
    static const int N = 128, SLOTS = B == 32 ? 6 : B == 64 ? 4 : 2; /* columns, most nodes */
    static const int X_BYTES = KS * N * 2, W_BYTES = KS * B * 2, STAGE = X_BYTES + SLOTS * W_BYTES;
    static const int FIT = (MOST_SHARED - 2048) / STAGE, STAGES = FIT < 10 ? FIT : 10;
    static const int PITCH = N * 2 + PADDING, STAGED = SLOTS * B * PITCH;
    static const int BARRIERS = STAGES * STAGE > STAGED ? STAGES *STAGE : STAGED;
    static const int BYTES = BARRIERS + 1024 + 256;
};

/* sum += X' W over one block: X [KS][64 columns of a warpgroup], W as FORWARD says. */
template <int KS, int B, bool FORWARD>
static __device__ inline void multiply_block(float (&sum)[B / 2], uint32_t x, uint32_t w, int on) {
#pragma unroll
    for (int k = 0; k < KS; k += 16) {
        uint64_t a = matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, 16, 1024);
        if (FORWARD) { /* a box [B rows][KS] */
            const int row = KS * 2, swizzle = row == 128 ? SWIZZLE_128 : SWIZZLE_64;
            warpgroup_multiply<1, 0>(sum, a, matrix_descriptor(w + k * 2, swizzle, 16, 8 * row),
                                     on);
        } else if (columns_shape<KS, B, FORWARD>::PAIRED) { /* a box [KS / 2][row % 2][32 units] */
            uint32_t at = w + k % (KS / 2) * 128 + k / (KS / 2) * 64;
            warpgroup_multiply<1, 1>(sum, a, matrix_descriptor(at, SWIZZLE_128, 16, 1024), on);
        } else { /* boxes [KS rows][64 units] */
            uint64_t b = matrix_descriptor(w + k * 128, SWIZZLE_128, KS * 128, 1024);
            warpgroup_multiply<1, 1>(sum, a, b, on);
        }
    }
}

template <int KS, int B, bool FORWARD>
static __device__ void produce_columns(const CUtensorMap &w_map, const CUtensorMap &x_map,
                                       const columns_arguments &p, const hopper_part &part,
                                       uint32_t base,
                                       ring<columns_shape<KS, B, FORWARD>::STAGES> &stages) {
    typedef columns_shape<KS, B, FORWARD> S;
    const int column0 = (p.tile0 + blockIdx.x) * S::N;
    hopper_source next = p.source[part.first];
    for (int i = 0, use = 0; i < part.count; i++) {
        hopper_source source = next;
        if (i + 1 < part.count) next = p.source[part.first + i + 1];
        int bytes = S::X_BYTES + __popc(source.mask) * S::W_BYTES;
        for (int slice = 0; slice < p.slices; slice++, use++) {
            stages.wait_empty(use);
            uint32_t barrier = stages.announce(use, bytes);
            uint32_t to = base + stages.stage(use) * S::STAGE;
            for (int box = 0; box < S::N / BOX; box++) {
                int row = source.node * p.rows + slice * KS, at = to + box * KS * BOX_ROW;
                if (S::PAIRED) {
                    tensor_load(at, &x_map, barrier, column0 + box * BOX, row / 2, 0);
                } else {
                    tensor_load(at, &x_map, barrier, column0 + box * BOX, row);
                }
            }
            to += S::X_BYTES;
#pragma unroll
            for (int slot = 0; slot < S::SLOTS; slot++, to += S::W_BYTES) {
                if (!(source.mask >> slot & 1)) continue;
                int row = source.block[slot] * (FORWARD ? B : p.rows) + (FORWARD ? 0 : slice * KS);
                if (FORWARD) {
                    tensor_load(to, &w_map, barrier, slice * KS, row);
                } else if (S::PAIRED) {
                    tensor_load(to, &w_map, barrier, 0, row / 2);
                } else {
                    tensor_load(to, &w_map, barrier, 0, row);
                    if (B == 128) tensor_load(to + KS * BOX_ROW, &w_map, barrier, 64, row);
                }
            }
        }
    }
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
    const hopper_part part = p.part[blockIdx.y];
    ring<S::STAGES> stages;
    stages.create(base + S::BARRIERS);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<40>();
        if (threadIdx.x == CONSUMERS) {
            produce_columns<KS, B, FORWARD>(w_map, x_map, p, part, base, stages);
        }
        return;
    }

    registers_grow<232>();
    const int group = warp / 4, lane = threadIdx.x % 32;
    float sum[S::SLOTS][B / 2] = {};
    int next = p.source[part.first].mask;
    for (int i = 0, use = 0; i < part.count; i++) {
        int mask = next;
        if (i + 1 < part.count) next = p.source[part.first + i + 1].mask;
        for (int slice = 0; slice < p.slices; slice++, use++) {
            uint32_t x = base + stages.stage(use) * S::STAGE, w = x + S::X_BYTES;
            x += group * KS * BOX_ROW;
            stages.wait_full(use);
            product_fence();
#pragma unroll
            for (int slot = 0; slot < S::SLOTS; slot++) {
                multiply_block<KS, B, FORWARD>(sum[slot], x, w + slot * S::W_BYTES,
                                               mask >> slot & 1);
            }
            product_commit();
            product_wait<1>();
            if (use > 0) stages.release(use - 1);
        }
    }
    product_wait<0>();

    /* Sums of the first and the last node may be shared with other parts; give before waiting. */
    const int block = blockIdx.y * gridDim.x + blockIdx.x,
              slots = SHARED_FLOATS / (B / 2 * CONSUMERS);
    if (part.continues) {
        float last[B / 2];
#pragma unroll
        for (int slot = 0; slot < S::SLOTS; slot++) {
#pragma unroll
            for (int j = 0; j < B / 2; j++) {
                if (slot == 0 || slot == part.nodes - 1) last[j] = sum[slot][j];
            }
        }
        give_sums(p.shared, block, slots, last);
    }
    for (int before = blockIdx.y; !(part.continues && part.nodes == 1) && before > part.first_part;
         before--) {
        take_sums(p.shared, (before - 1) * gridDim.x + blockIdx.x, slots, sum[0]);
    }

    /* Tiles are staged as [slot][unit][column]; a thread holds columns: matrices are turned over. */
    group_sync(1, CONSUMERS);
#pragma unroll
    for (int slot = 0; slot < S::SLOTS; slot++) {
#pragma unroll
        for (int j = 0; j < B / 8; j += 2) {
            const float *d = &sum[slot][j * 4];
            uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]),
                             pack(d[6], d[7])};
            int unit = slot * B + (j + lane / 16) * 8 + lane % 8;
            int column = group * 64 + warp % 4 * 16 + lane / 8 % 2 * 8;
            store_matrices_transposed(base + unit * S::PITCH + column * 2, r);
        }
    }
    group_sync(1, CONSUMERS);
    int whole = part.nodes - part.continues, column0 = (p.tile0 + blockIdx.x) * S::N;
    for (int i = threadIdx.x; i < whole * B * S::N / 8; i += CONSUMERS) {
        int unit = i / (S::N / 8), column = column0 + i % (S::N / 8) * 8;
        if (column >= p.columns) continue;
        *(uint4 *)(p.y + ((size_t)part.node * B + unit) * p.columns + column) =
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
                tensor_load(to + DEEP_LEFT + q * p.b * BOX_ROW, &x_map, barrier, n, column[q] * p.b,
                            t);
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

/* Activations [steps][rows][columns], in boxes of 64 columns and `box_rows` rows; rank 2 is one
 * step. */
static bool map_activations(backend *be, CUtensorMap *map, int rank, const void *x, size_t rows,
                            int columns, int steps, int box_rows) {
    const uint64_t extent[3] = {(uint64_t)columns, rows, (uint64_t)steps};
    const uint64_t stride[2] = {(uint64_t)columns * 2, (uint64_t)columns * rows * 2};
    const uint32_t box[3] = {BOX, (uint32_t)box_rows, 1};
    return make_map(be, map, x, rank, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* W with rows of 32, two of them at a time: `rows` rows of 64 numbers. */
static bool map_pairs(backend *be, CUtensorMap *map, const void *w, uint64_t rows, int box_rows) {
    const uint64_t extent[2] = {64, rows}, stride[1] = {128};
    const uint32_t box[2] = {64, (uint32_t)box_rows};
    return make_map(be, map, w, 2, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* W for rows_product, 32 units of four gates at a time: for b = 32 a whole block, [gate][unit / 2]
 * [unit % 2][32 of k]; else [unit % 2][gate][unit / 2][64 of k]. */
static bool map_gates(backend *be, CUtensorMap *map, const layout *l, const void *w) {
    const uint64_t b = (uint64_t)l->in_block, gates = GATES * (uint64_t)l->blocks;
    if (b == 32) return map_pairs(be, map, w, gates * 16, 64);
    const uint64_t extent[4] = {b, b / 2, gates, 2};
    const uint64_t stride[3] = {b * 4, b * b * 2, b * 2};
    const uint32_t box[4] = {64, 16, GATES, 2};
    return make_map(be, map, w, 4, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* W for columns_product: all rows of all blocks, in boxes of `box_rows`. */
static bool map_blocks(backend *be, CUtensorMap *map, const layout *l, const void *w, int box_rows,
                       bool paired) {
    const uint64_t b = (uint64_t)l->in_block, rows = b * (uint64_t)l->gates * (uint64_t)l->blocks;
    const uint64_t extent[2] = {b, rows}, stride[1] = {b * 2};
    const uint32_t box[2] = {b >= 64 ? 64u : 32u, (uint32_t)box_rows};
    if (paired) return map_pairs(be, map, w, rows / 2, box_rows / 2);
    return make_map(be, map, w, 2, extent, stride, box,
                    b >= 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

/* One step's activations for it; paired: first the even rows of a box, then the odd ones. */
static bool map_sources(backend *be, CUtensorMap *map, const void *x, size_t rows, int columns,
                        int box_rows, bool paired) {
    if (!paired) return map_activations(be, map, 2, x, rows, columns, 1, box_rows);
    const uint64_t row = (uint64_t)columns * 2, extent[3] = {(uint64_t)columns, rows / 2, 2};
    const uint64_t stride[2] = {2 * row, row};
    const uint32_t box[3] = {BOX, (uint32_t)box_rows / 2, 2};
    return make_map(be, map, x, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* ------------------------------------------------------------------------------------- tables */

enum { WGRAD_MOST = DEEP_N };

static int *host_table(size_t count) {
    int *table = (int *)calloc(count ? count : 1, sizeof *table);
    if (!table) abort();
    return table;
}

/* The output nodes' lists as columns_product walks them: start/other are the lists, `block` says
 * which block of W each entry is (NULL: in order). */
typedef struct node_lists {
    int nodes;
    const int *start, *other, *block;
} node_lists;

/* Merges entries [begin, end), which are those of nodes [node, node + nodes), by source in
 * ascending order; returns how many sources there are. */
static int merge_sources(const node_lists *l, int node, int nodes, int begin, int end,
                         hopper_source *sources) {
    int at[PART_NODES], stop[PART_NODES], count = 0;
    for (int m = 0; m < nodes; m++) {
        at[m] = l->start[node + m] > begin ? l->start[node + m] : begin;
        stop[m] = l->start[node + m + 1] < end ? l->start[node + m + 1] : end;
    }
    for (;; count++) {
        hopper_source next = {};
        next.node = -1;
        for (int m = 0; m < nodes; m++) {
            bool left = at[m] < stop[m];
            if (left && (next.node < 0 || l->other[at[m]] < next.node)) next.node = l->other[at[m]];
        }
        if (next.node < 0) return count;
        for (int m = 0; m < nodes; m++) {
            if (at[m] >= stop[m] || l->other[at[m]] != next.node) continue;
            next.mask |= 1 << m;
            next.block[m] = l->block ? l->block[at[m]] : at[m];
            at[m]++;
        }
        sources[count] = next;
    }
}

/* Cuts the lists into about `count` parts of equally many entries and at most `slots` nodes, and
 * returns how many it took; without `parts`, only counts. */
static int cut_parts(const node_lists *l, int count, int slots, hopper_part *parts,
                     hopper_source *sources) {
    int total = l->start[l->nodes], made = 0, used = 0, node = 0, node_part = 0;
    for (int begin = 0, end; node < l->nodes; begin = end, made++) {
        int target = (int)((long long)total * (made + 1) / count), last = node;
        while (last + 1 < l->nodes && last + 1 < node + slots && l->start[last + 1] < target)
            last++;
        end = l->start[last + 1] < target || target <= begin ? l->start[last + 1] : target;
        bool continues = end < l->start[last + 1];
        if (parts) {
            hopper_part part = {used, 0, node, last - node + 1, node_part, continues};
            part.count = merge_sources(l, node, part.nodes, begin, end, sources + used);
            used += part.count;
            parts[made] = part;
        }
        if (!continues) {
            node_part = made + 1;
        } else if (last > node || begin == l->start[node]) {
            node_part = made;
        }
        node = continues ? last : last + 1;
    }
    return made;
}

/* As many parts as keep every multiprocessor equally busy. */
static void build_parts(backend *be, hopper_parts *parts, const node_lists *l, int slots) {
    int processors = cuda_of(be)->processors, total = l->start[l->nodes], count = processors;
    while (count < total && cut_parts(l, count, slots, NULL, NULL) > count) count += processors;
    int most = cut_parts(l, count, slots, NULL, NULL);
    hopper_part *part = (hopper_part *)calloc((size_t)most, sizeof *part);
    hopper_source *source = (hopper_source *)calloc((size_t)total + 1, sizeof *source);
    if (!part || !source) abort();
    parts->count = cut_parts(l, count, slots, part, source);
    parts->span = 1;
    for (int i = 0; i < parts->count; i++) {
        parts->span = max(parts->span, i - part[i].first_part + 1);
    }
    int used = parts->count ? part[parts->count - 1].first + part[parts->count - 1].count : 0;
    parts->part = (hopper_part *)cuda_table(be, part, (size_t)most * sizeof *part);
    parts->source = (hopper_source *)cuda_table(be, source, ((size_t)used + 1) * sizeof *source);
    free(part);
    free(source);
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
    device->deep_start = (int *)cuda_table(be, first, ((size_t)tiles + 1) * sizeof *first);
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

void hopper_create(backend *be, device_layout *device, const layout *l) {
    int b = l->in_block, slots = b == 32 ? 6 : b == 64 ? 4 : 2;
    node_lists columns = {l->in_nodes, l->column_start, l->column_row, l->column_block};
    build_parts(be, &device->backward, &columns, slots);
    if (l->gates == 1) {
        node_lists rows = {l->out_nodes, l->row_start, l->row_column, NULL};
        build_parts(be, &device->forward, &rows, slots);
    }
    for (int i = 0; i < l->out_nodes; i++) {
        device->empty_rows |= l->row_start[i] == l->row_start[i + 1];
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

static exchange exchange_of(backend *be) {
    exchange e = {cuda_of(be)->shared_sums, cuda_of(be)->shared_full};
    return e;
}

template <int KC, int N>
static bool launch_rows(backend *be, const device_layout *device, const CUtensorMap &w_map,
                        const void *x, int columns, void *y, void *sums) {
    typedef rows_shape<KC, N> S;
    const layout *l = &device->host;
    CUtensorMap x_map;
    rows_arguments p = {l->row_start, l->row_column, device->block_row,
                        (bf16 *)y,    (fixed *)sums, columns,
                        l->in_block,  l->blocks,     exchange_of(be)};
    int tiles = columns / N, parts = cuda_of(be)->processors / tiles;
    int most = l->blocks * (l->in_block / 32); /* a block each */
    dim3 grid(tiles, parts < 1 ? 1 : parts < most ? parts : most);
    if (!map_activations(be, &x_map, 2, x, layout_inputs(l), columns, 1, KC)) return false;
    if (device->empty_rows) be->zero(be, y, layout_rows(l) * columns * sizeof(bf16));
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
static bool launch_columns(backend *be, const layout *l, const hopper_parts *parts, const void *w,
                           const void *x, int columns, void *y) {
    typedef columns_shape<KS, B, FORWARD> S;
    CUtensorMap w_map, x_map;
    int rows = FORWARD ? B : l->gates * B;
    size_t x_rows = FORWARD ? layout_inputs(l) : layout_rows(l);
    columns_arguments p = {parts->part, parts->source, (bf16 *)y,      columns,
                           rows,        rows / KS,     0,              exchange_of(be)};
    const int slots = SHARED_FLOATS / (B / 2 * CONSUMERS); /* enough for the parts of a node, or a
                                                              part might wait for one after it */
    const int tiles = (columns + S::N - 1) / S::N, most = max(slots / parts->span, 1);
    if (!map_blocks(be, &w_map, l, w, FORWARD ? B : KS, S::PAIRED)) return false;
    if (!map_sources(be, &x_map, x, x_rows, columns, KS, S::PAIRED)) return false;
    allow_shared(be, (const void *)columns_product<KS, B, FORWARD>, S::BYTES);
    for (; p.tile0 < tiles; p.tile0 += most) {
        dim3 grid(min(most, tiles - p.tile0), parts->count);
        columns_product<KS, B, FORWARD>
            <<<grid, THREADS, S::BYTES, cuda_of(be)->stream>>>(w_map, x_map, p);
    }
    return true;
}

bool hopper_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                  int columns, void *y, void *sums) {
    const layout *l = &device->host;
    const hopper_parts *parts = &device->forward;
    if (l->gates == GATES) {
        return l->in_block == 32 ? launch_rows_by_columns<32>(be, device, w, x, columns, y, sums)
                                 : launch_rows_by_columns<64>(be, device, w, x, columns, y, sums);
    }
    bool done = l->in_block == 32   ? launch_columns<32, 32, true>(be, l, parts, w, x, columns, y)
                : l->in_block == 64 ? launch_columns<64, 64, true>(be, l, parts, w, x, columns, y)
                                    : launch_columns<64, 128, true>(be, l, parts, w, x, columns, y);
    if (done && sums) cuda_column_sums(be, l, y, 1, columns, sums);
    return done;
}

bool hopper_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                  int columns, void *dx) {
    const layout *l = &device->host;
    const hopper_parts *parts = &device->backward;
    if (l->in_block == 32 && l->gates == 1) {
        return launch_columns<32, 32, false>(be, l, parts, w, dy, columns, dx);
    }
    return l->in_block == 32   ? launch_columns<64, 32, false>(be, l, parts, w, dy, columns, dx)
           : l->in_block == 64 ? launch_columns<64, 64, false>(be, l, parts, w, dy, columns, dx)
                               : launch_columns<64, 128, false>(be, l, parts, w, dy, columns, dx);
}

bool hopper_wgrad(backend *be, const device_layout *device, const void *dy, const void *x,
                  int steps, int columns, void *dw) {
    const layout *l = &device->host;
    int rows = l->gates * l->in_block;
    CUtensorMap dy_map, x_map;
    deep_arguments p = {device->deep_start,
                        device->block_row,
                        l->row_column,
                        (float *)dw,
                        columns,
                        steps,
                        l->in_block,
                        rows};
    if (!map_activations(be, &dy_map, 3, dy, layout_rows(l), columns, steps, DEEP_M)) return false;
    if (!map_activations(be, &x_map, 3, x, layout_inputs(l), columns, steps, l->in_block))
        return false;
    allow_shared(be, (const void *)deep_product, DEEP_BYTES);
    deep_product<<<dim3(device->deep_tiles, rows / DEEP_M), THREADS, DEEP_BYTES,
                   cuda_of(be)->stream>>>(dy_map, x_map, p);
    return true;
}
