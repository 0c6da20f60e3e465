/* What Hopper's products share: rings of tiles in shared memory that producer warps fill and two
 * warpgroups empty, partial sums, and tensors as TMA sees them. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_HOPPER_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_HOPPER_CUH

#include "device/hopper_ptx.cuh"
#include "device/ptx.cuh"
#include "device/waits.cuh"
#include "products/kernels.h"

#pragma nv_diag_suppress 177 /* the helpers are unused when other GPUs are compiled for */

enum {
    GROUP = 128,                     /* a warpgroup */
    CONSUMERS = CONSUMER_WARPS * 32, /* they multiply */
    THREADS = CONSUMERS + GROUP,
    BOX_ROW = BOX * 2, /* bytes of a box's swizzled row */
    MOST_SHARED = 227 << 10,
    RING_ROOM = 2048 /* of it for what stands beside a ring: barriers, notes, alignment */
};

/* ----------------------------------------------------------------------------------- rings */

/* Call this before a warp releases a stage that it read by ordinary loads, unless the loaded values
 * were used before. mbarrier arrive is not ordered after earlier ld.shared; without this fence the
 * load may read the next copy's data. */
static __device__ inline void finish_loads() {
    shared_fence();
    __syncwarp();
}

/* A position in a ring of stages that producers fill and the consumers' warps empty. */
template <int STAGES> struct cursor {
    uint32_t full, empty; /* barriers, 8 bytes each */
    int at = 0, parity = 0;

    /* `releases`: the warps that must release a stage before it is filled again; `fillers`: the
     * announcements that a stage gets. */
    __device__ void create(uint32_t barriers, int releases = CONSUMER_WARPS, int fillers = 1) {
        full = barriers;
        empty = barriers + STAGES * 8;
        if (threadIdx.x == 0) {
            for (int s = 0; s < STAGES; s++) {
                barrier_init(full + s * 8, fillers);
                barrier_init_warps(empty + s * 8, releases);
            }
        }
    }

    __device__ void next() {
        if (++at == STAGES) {
            at = 0;
            parity ^= 1;
        }
    }

    __device__ void wait_empty() {
        barrier_wait(empty + at * 8, parity ^ 1);
    }

    __device__ uint32_t announce(int bytes) {
        barrier_expect(full + at * 8, bytes);
        return full + at * 8;
    }

    __device__ void wait_full() {
        barrier_wait(full + at * 8, parity);
    }

    __device__ void release(int stage) {
        barrier_arrive_warp(empty + stage * 8);
    }
};

/* Where the thread blocks of a cluster fill each other's stages, all of them must release a
 * stage. */
template <int SHARES, int STAGES>
static __device__ inline void release_everywhere(const cursor<STAGES> &stages, int stage) {
    const uint32_t lane = threadIdx.x % 32, barrier = stages.empty + stage * 8;
    if (SHARES == 1) {
        barrier_arrive_warp(barrier);
    } else if (lane < SHARES) {
        barrier_arrive_at(cluster_address(barrier, lane), WARP_ARRIVALS);
    }
}

/* Multiplies what is in `uses` stages, one after another: issue(stage's number, k) issues the
 * products of 16 steps of the depth, from k on. A stage is released once the next one's products
 * are under way. */
template <int SHARES, int DEPTH, int STAGES, typename Issue>
static __device__ __forceinline__ void multiply_stages(cursor<STAGES> &stages, int uses,
                                                       const Issue &issue) {
    int before = 0;
#pragma unroll 1
    for (int use = 0; use < uses; use++, stages.next()) {
        stages.wait_full();
        product_fence();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) issue(stages.at, k);
        product_commit();
        product_wait<1>();
        if (use > 0) release_everywhere<SHARES>(stages, before);
        before = stages.at;
    }
    product_wait<0>();
    if (uses > 0) release_everywhere<SHARES>(stages, before);
}

static __device__ inline uint32_t pack(float one, float two) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(one, two);
    return *(uint32_t *)&pair;
}

/* ------------------------------------------------------------------------------------- tiles
 *
 * TMA stores wgrad's results, in tiles of 32 columns. Row g of a product's eight is
 * row own_row(g) of dy's: then lanes that leave a tile in shared memory together find different
 * banks. */
enum { STAGED_ROW = 32 * 4, STAGED_BYTES = 16 * STAGED_ROW /* of 16 rows */ };

static __device__ inline int own_row(int g) {
    return 2 * (g % 4) + g / 4;
}

/* The offset of a row's chunk of 16 bytes in a box with TMA's 128-byte swizzle. */
static __device__ inline uint32_t chunk_at(int row, int chunk) {
    return row * BOX_ROW + (chunk ^ (row & 7)) * 16;
}

/* Stores 16 rows of a tile; d as products leave them. */
static __device__ inline void stage_rows(uint32_t to, const float (&d)[4][4]) {
    const int lane = threadIdx.x % 32, t = lane % 4;
    to += chunk_at(own_row(lane / 4), t / 2) + t % 2 * 8;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        shared_store2(to ^ j * 32, d[j][0], d[j][1]);
        shared_store2((to ^ j * 32) + 8 * STAGED_ROW, d[j][2], d[j][3]);
    }
}

/* ------------------------------------------------------------------------------- partial sums
 *
 * Work is cut into parts of equally many blocks, so that a part may begin or end inside a node's
 * list. The part in which the list ends owns the node's results; those before it leave their sums,
 * and the owner adds them up, nearest part first. A part only waits for parts before it. Where a
 * part leaves its sums, each product says. */

/* Marks a slot as full. One thread calls this, after a barrier with those that stored the sums. */
static __device__ inline void raise_flag(int *flag, int value = 1) {
    __threadfence();
    atomicExch(flag, value);
}

/* Waits until a flag has this value, and polls every `every` ns. One thread calls this; after a
 * fence and a barrier the others may read the sums. */
static __device__ inline void await_flag(const partial_sums &p, int *flag, int value, int every) {
    for (patience patience; atomicAdd(flag, 0) != value; patience.lose(p.stuck)) {
        if (every) __nanosleep(every);
    }
}

/* Stores a thread's sums for another part: rows of four sums of each of STRIDE threads. */
template <int STRIDE, int K>
static __device__ __forceinline__ void leave_sums(float4 *to, const float (&sum)[K]) {
#pragma unroll
    for (int j = 0; j < K; j += 4) {
        __stcg(to + j / 4 * STRIDE, make_float4(sum[j], sum[j + 1], sum[j + 2], sum[j + 3]));
    }
}

static __device__ __forceinline__ void add_four_sums(float *sum, float4 more) {
    sum[0] += more.x;
    sum[1] += more.y;
    sum[2] += more.z;
    sum[3] += more.w;
}

/* -------------------------------------------------------------------------------- on the host */

/* Describes a tensor for TMA: `rank` dimensions, innermost first; strides in bytes, of all but the
 * innermost. */
static inline bool make_map_of(CUtensorMapDataType type, backend *be, CUtensorMap *map,
                               const void *base, int rank, const uint64_t *extent,
                               const uint64_t *stride, const uint32_t *box,
                               CUtensorMapSwizzle swizzle) {
    static const uint32_t ones[5] = {1, 1, 1, 1, 1};
    CUresult status = cuda_of(be)->encode_map(
        map, type, (uint32_t)rank, (void *)(uintptr_t)base, extent, stride, box, ones,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return cuda_ok(be, status == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue, "tensor map");
}

/* Of bf16. */
static inline bool make_map(backend *be, CUtensorMap *map, const void *base, int rank,
                            const uint64_t *extent, const uint64_t *stride, const uint32_t *box,
                            CUtensorMapSwizzle swizzle) {
    return make_map_of(CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, be, map, base, rank, extent, stride, box,
                       swizzle);
}

/* Activations [steps][rows][columns], in boxes of `box_rows` rows and the BOX columns of one
 * swizzled row. Rank 2 is one step. */
static inline bool map_activations(backend *be, CUtensorMap *map, int rank, const void *x,
                                   size_t rows, int columns, int steps, int box_rows) {
    const uint64_t row = (uint64_t)columns * sizeof(bf16);
    const uint64_t extent[3] = {(uint64_t)columns, rows, (uint64_t)steps};
    const uint64_t stride[2] = {row, row * rows};
    const uint32_t box[3] = {BOX, (uint32_t)box_rows, 1};
    return make_map(be, map, x, rank, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* dW, in fp32, `copies` of it one after another, in boxes of 32 columns and `box_rows` rows. */
static inline bool map_results(backend *be, CUtensorMap *map, const layout *l, void *dw,
                               int box_rows, int copies) {
    const uint64_t rows = layout_weights(l) / (uint64_t)l->in_block * (uint64_t)copies;
    const uint64_t row = (uint64_t)l->in_block * sizeof(float);
    const uint64_t extent[2] = {(uint64_t)l->in_block, rows}, stride[1] = {row};
    const uint32_t box[2] = {32, (uint32_t)box_rows};
    return make_map_of(CU_TENSOR_MAP_DATA_TYPE_FLOAT32, be, map, dw, 2, extent, stride, box,
                       CU_TENSOR_MAP_SWIZZLE_128B);
}

#endif
