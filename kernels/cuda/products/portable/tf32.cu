/* The three products through tf32 tensor cores, on any GPU from sm_80 on. On Hopper, hopper_tf32
 * has fprop and dgrad of blocks of 32 and more, of 128 columns and more, and of 64 where that is
 * faster; wgrad_gates and wgrad_one_gate have their wgrad.
 *
 * Floors are those of bf16.cu with 4 bytes an element: at block 32 every block gathers as many
 * bytes from L2 as it has itself for each 32 columns, so few columns are bound by memory and many
 * by L2, long before arithmetic. Hence no tile is shared: a warp makes 32 rows by 32 or more
 * columns, and a thread block's warps take turns in k, or lie side by side where the first-level
 * cache then serves what they have in common.
 *
 * mma.sync takes single elements of 4 bytes, and k, rows and columns in any order, as long as both
 * operands and the result agree. So each lane copies just the chunks of four neighbours that it
 * will multiply: where k runs along memory, those of row g or g + 8 at k = 4 t ... 4 t + 3, the
 * lane being 4 g + t; where columns do, those of columns 4 g ... 4 g + 3 at four such k. Two
 * chunks' first elements are one fragment, their second ones the next. Chunks wait in a ring that
 * is the lane's own, so that nothing but its own copies is ever waited for. Operands are rounded to
 * nearest as they are read. */
#include "device/ptx.cuh"
#include "products/kernels.h"
#include "products/portable/warp_tiles.cuh"

/* A stage of a warp's ring: 16 of k, as chunks of four neighbours, for every lane four of the left
 * tile, then four of each span of the right one. */
template <int WIDE> static constexpr __host__ __device__ int stage_chunks() {
    return (4 + 4 * WIDE) * 32;
}

/* Where a lane's chunk lies among those that 32 lanes copy at once: where k runs along memory in
 * the lanes' order; else four lines of eight, turned so that lanes that read together find
 * different banks. */
static __device__ inline int chunk_at(bool by_k) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    return by_k ? lane : t * 8 + (g ^ 2 * t);
}

static __device__ inline float word(const float4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* Through the first-level cache where other warps want the same. */
template <bool CACHED> static __device__ inline void copy(uint32_t to, const void *from) {
    if (CACHED) {
        copy_async_cached(to, from);
    } else {
        copy_async(to, from);
    }
}

/* Starts a lane's copies of a stage's left tile; `at` is its place in k. */
template <operation OP, typename S>
static __device__ inline void fetch_left(const task<OP, S> &task, const place &at, uint32_t to) {
    const int g = threadIdx.x % 32 / 4, stride = left_stride<OP>(task.p);
    const float *left = left_at(task, at, OP == DGRAD ? 4 * g : g);
    to += chunk_at(OP != DGRAD) * 16;
#pragma unroll
    for (int r = 0; r < 4; r++) {
        bool has = at.block >= 0 && task.has_row(OP == DGRAD ? 4 * g : 8 * r + g);
        const float *from = left + (OP == DGRAD ? r : 8 * r) * stride;
        copy<(S::NS > 1)>(to + r * 32 * 16, has ? from : NULL);
    }
}

template <operation OP, typename S>
static __device__ inline void fetch_right(const task<OP, S> &task, const place &at,
                                          const int (&x_row)[S::WIDE][4], uint32_t to) {
    const product &p = task.p;
    const int g = threadIdx.x % 32 / 4;
    const bool there = at.block >= 0;
    to += (4 * 32 + chunk_at(OP == WGRAD)) * 16;
#pragma unroll
    for (int span = 0; span < S::WIDE; span++) {
        if (OP == WGRAD) {
            const float *x = (const float *)p.right + at.block * p.right_step + at.offset;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                bool has = there && x_row[span][r] >= 0;
                const float *from = x + (size_t)x_row[span][r] * p.columns;
                copy<(S::MS > 1)>(to + (span * 4 + r) * 32 * 16, has ? from : NULL);
            }
        } else {
            bool has = there && task.has_column(span * SPAN);
            const float *from = right_at(task, at, span * SPAN + 4 * g);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                copy<(S::MS > 1)>(to + (span * 4 + r) * 32 * 16, has ? from + r * p.columns : NULL);
            }
        }
    }
}

template <operation OP, int WIDE>
static __device__ inline void multiply(const float4 *stage, float (&sum)[WIDE][2][4][4]) {
    float4 left[4], right[WIDE][4];
#pragma unroll
    for (int r = 0; r < 4; r++) left[r] = stage[r * 32 + chunk_at(OP != DGRAD)];
#pragma unroll
    for (int r = 0; r < 4 * WIDE; r++) {
        right[r / 4][r % 4] = stage[(4 + r) * 32 + chunk_at(OP == WGRAD)];
    }
#pragma unroll
    for (int step = 0; step < 2; step++) { /* 8 of k: those at 2 step, then at 2 step + 1 */
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int q = 0; q < 4; q++) { /* q % 2: rows 8 on; q / 2: 4 of k on */
                float v = OP == DGRAD ? word(left[2 * step + q / 2], 2 * i + q % 2)
                                      : word(left[2 * i + q % 2], 2 * step + q / 2);
                a[i][q] = to_tf32(v);
            }
        }
#pragma unroll
        for (int span = 0; span < WIDE; span++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float4(&x)[4] = right[span];
                float v0 = OP == WGRAD ? word(x[j], 2 * step) : word(x[2 * step], j);
                float v1 = OP == WGRAD ? word(x[j], 2 * step + 1) : word(x[2 * step + 1], j);
                uint32_t b0 = to_tf32(v0), b1 = to_tf32(v1);
                multiply_add_tf32(sum[span][0][j], a[0], b0, b1);
                multiply_add_tf32(sum[span][1][j], a[1], b0, b1);
            }
        }
    }
}

/* A lane's eight results in a row of mma tile i (half: 8 rows on) and a span. */
template <operation OP, typename S>
static __device__ inline void store_row(const task<OP, S> &task, int span, int i, int half,
                                        const float (&v)[4][2]) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int row = OP == DGRAD ? 4 * g + 2 * i + half : 16 * i + 8 * half + g;
    if (!task.has_row(row)) return;
    if (OP == WGRAD) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int column = span * SPAN + 8 * j + 2 * t;
            if (!task.has_column(column)) continue;
            *(float2 *)task.result(row, column) = make_float2(v[j][0], v[j][1]);
        }
    } else if (task.has_column(span * SPAN)) {
        float4 *to = (float4 *)task.result(row, span * SPAN + 8 * t);
        to[0] = make_float4(v[0][0], v[1][0], v[2][0], v[3][0]);
        to[1] = make_float4(v[0][1], v[1][1], v[2][1], v[3][1]);
    }
}

/* Adds up the sums of the warps that took turns at a tile; each of them stores some of its rows. */
template <operation OP, typename S>
static __device__ inline void finish(const task<OP, S> &task, float *memory,
                                     const float (&sum)[S::WIDE][2][4][4]) {
    float(*shared)[S::WIDE * 32][32] = (float(*)[S::WIDE * 32][32]) memory;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (S::KS > 1) {
        const float *mine = &sum[0][0][0][0];
        __syncthreads(); /* the rings are done with */
#pragma unroll
        for (int e = 0; e < S::WIDE * 32; e++) shared[warp][e][lane] = mine[e];
        __syncthreads();
    }
#pragma unroll
    for (int row = 0; row < S::WIDE * 4; row++) {
        const int span = row / 4, i = row / 2 % 2, half = row % 2;
        if (S::KS > 1 && row % S::KS != task.turn) continue;
        float v[4][2];
#pragma unroll
        for (int j = 0; j < 4; j++) {
#pragma unroll
            for (int e = 0; e < 2; e++) {
                v[j][e] = sum[span][i][j][half * 2 + e];
                if (S::KS == 1) continue;
                v[j][e] = 0;
                int at = ((span * 2 + i) * 4 + j) * 4 + half * 2 + e;
#pragma unroll
                for (int turn = 0; turn < S::KS; turn++) {
                    v[j][e] += shared[warp - task.turn + turn][at][lane];
                }
            }
        }
        store_row(task, span, i, half, v);
    }
}

template <typename S, int STAGES> static constexpr size_t shared_bytes() {
    return (size_t)S::WARPS * STAGES * stage_chunks<S::WIDE>() * 16;
}

template <operation OP, typename S, int STAGES, int BLOCKS>
static __global__ void __launch_bounds__(S::THREADS, BLOCKS)
    portable_tf32(const __grid_constant__ product p) {
    extern __shared__ float4 shared[];
    const int lane = threadIdx.x % 32, chunks = stage_chunks<S::WIDE>();
    const float4 *ring = shared + threadIdx.x / 32 * STAGES * chunks;
    const uint32_t ring_at = shared_address(ring);
    const task<OP, S> task(p);
    const int stages = task.stages();
    float sum[S::WIDE][2][4][4] = {};
    int x_row[S::WIDE][4];
#pragma unroll
    for (int j = 0; j < S::WIDE * 4; j++) {
        if constexpr (OP == WGRAD) x_row[j / 4][j % 4] = right_row(task, 8 * j + lane / 4);
    }

    /* Places are looked up one stage before they are needed. Those of the first stages, and where
     * that is allowed also their left tiles, do not wait for the kernel before to end. */
    const int stage_bytes = chunks * 16;
    place first[STAGES];
#pragma unroll
    for (int s = 0; s < STAGES; s++) {
        first[s] = find_place(task, (task.turn + s * S::KS) * DEPTH + 4 * (lane % 4));
        if (s + 1 < STAGES && p.overlap) fetch_left(task, first[s], ring_at + s * stage_bytes);
    }
    wait_for_earlier();
    let_next_start();
#pragma unroll
    for (int s = 0; s + 1 < STAGES; s++) {
        if (!p.overlap) fetch_left(task, first[s], ring_at + s * stage_bytes);
        fetch_right(task, first[s], x_row, ring_at + s * stage_bytes);
        copy_commit();
    }
    place next = first[STAGES - 1];
    int ahead = task.turn + (STAGES - 1) * S::KS, into = STAGES - 1, from = 0;
    for (int i = task.turn; i < stages; i += S::KS) {
        const uint32_t to = ring_at + into * stage_bytes;
        const place at = next;
        copy_wait<STAGES - 2>();
        next = find_place(task, (ahead + S::KS) * DEPTH + 4 * (lane % 4));
        if (ahead < stages) {
            fetch_left(task, at, to);
            fetch_right(task, at, x_row, to);
        }
        copy_commit();
        ahead += S::KS;
        into = into + 1 == STAGES ? 0 : into + 1;
        multiply<OP, S::WIDE>(ring + from * chunks, sum);
        from = from + 1 == STAGES ? 0 : from + 1;
    }
    copy_wait<0>();
    finish(task, (float *)shared, sum);
}

template <operation OP, typename S, int STAGES, int BLOCKS>
static void launch(backend *be, const product &p, int tiles) {
    cuda_launch(be, "product", true, portable_tf32<OP, S, STAGES, BLOCKS>, grid_of<OP, S>(p, tiles),
                S::THREADS, shared_bytes<S, STAGES>(), p);
}

template <operation OP> static void launch_columns(backend *be, const product &p, int tiles) {
    if (p.columns > SLAB) {
        launch<OP, split<4, 1, 2, 1>, 2, 4>(be, p, tiles);
    } else if (p.columns > 64) {
        launch<OP, split<2, 1, 2, 2>, 3, 3>(be, p, tiles);
    } else if (p.columns > 32) {
        launch<OP, split<2, 1, 1, 4>, 3, 3>(be, p, tiles);
    } else {
        launch<OP, split<1, 1, 1, 4>, 4, 3>(be, p, tiles);
    }
}

void portable_tf32_run(backend *be, const device_layout *device, const void *plan,
                       const product_call *c) {
    const int deep = 512; /* of wgrad: from here on wide tiles pay */
    int tiles;
    const product p = product_of(be, device, plan, c, &tiles);
    if (c->op == FPROP) {
        launch_columns<FPROP>(be, p, tiles);
    } else if (c->op == DGRAD) {
        launch_columns<DGRAD>(be, p, tiles);
    } else if (p.steps * p.columns > deep) {
        launch<WGRAD, split<4, 1, 1, 2>, 2, 4>(be, p, tiles);
    } else {
        launch<WGRAD, split<2, 1, 2, 1>, 3, 6>(be, p, tiles);
    }
    cuda_of(be)->weights_settled = true;
}
