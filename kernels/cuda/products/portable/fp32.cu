/* The three products in true fp32, by plain multiply-adds, on any GPU from sm_80 on.
 *
 * Floors are those of bf16.cu with 4 bytes an element and the rate of multiply-adds, a
 * fourteenth of tf32's here: at 32 columns memory and arithmetic take the same time, beyond them
 * arithmetic rules. So what counts is multiply-adds an instruction issued: a lane has 8 x 8 sums
 * and loads 16 numbers from shared memory for 64 of them. A warp makes 32 rows by 64 columns, or by
 * 32 with its halves at different k; every warp has a ring of stages that it alone fills and
 * empties, so no warp waits for another before the sums meet, in a fixed order, at the end. */
#include "device/ptx.cuh"
#include "products/kernels.h"
#include "products/portable/warp_tiles.cuh"

/* A stage of a warp's ring, in chunks of four floats: left [32 rows][16 k], or for dgrad
 * [16 k][32 rows]; right [16 k][columns], or for wgrad [columns][16 k]. */
template <operation OP, typename S> struct shape {
    static const bool LEFT_BY_K = OP != DGRAD, RIGHT_BY_K = OP == WGRAD;
    static const int WIDE = S::WIDE, HALVES = WIDE == 1 ? 2 : 1; /* of a warp, on their own k */
    static const int ACROSS = 4 * WIDE;                          /* lanes along the columns */
    static const int LEFT = ROWS * DEPTH / 4, RIGHT = WIDE * SPAN * DEPTH / 4;
    static const int STAGE = LEFT + RIGHT;

    /* Where a chunk lies: lanes that read together find different banks. */
    static __device__ int by_k(int line, int k) {
        return line * (DEPTH / 4) + (k / 4 ^ line / 2 % 4);
    }
    template <int LINES> static __device__ int by_line(int k, int line) {
        return k * (LINES / 4) + (line / 4 ^ (HALVES == 2 ? k / 8 * 4 : 0));
    }
};

/* Where a lane's chunks of a stage come from. */
struct places {
    place left, right;
};

template <operation OP, typename S>
static __device__ inline places find_places(const task<OP, S> &task, int k0) {
    const int lane = threadIdx.x % 32;
    const place far = find_place(task, k0 + 4 * (lane / 8)); /* along the rows or columns */
    const place near = OP == DGRAD ? far : find_place(task, k0 + 4 * (lane % 4)); /* along k */
    return {near, OP == WGRAD ? near : far};
}

template <operation OP, typename S>
static __device__ inline void copy_left(const task<OP, S> &task, const place &at, uint32_t to) {
    typedef shape<OP, S> T;
    const int lane = threadIdx.x % 32, by_k = 4 * (lane % 4), by_line = 4 * (lane / 8);
    const int row0 = T::LEFT_BY_K ? lane / 4 : 4 * (lane % 8);
    const float *left = left_at(task, at, row0);
    const int stride = left_stride<OP>(task.p);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        int row = row0 + (T::LEFT_BY_K ? 8 * r : 0);
        bool has = at.block >= 0 && task.has_row(row);
        int chunk = T::LEFT_BY_K ? T::by_k(row, by_k) : T::template by_line<ROWS>(by_line + r, row);
        copy_async(to + chunk * 16, has ? left + (T::LEFT_BY_K ? 8 * r : r) * stride : NULL);
    }
}

template <operation OP, typename S>
static __device__ inline void copy_right(const task<OP, S> &task, const place &at,
                                         const int (&x_row)[S::WIDE * 4], uint32_t to) {
    typedef shape<OP, S> T;
    const product &p = task.p;
    const int lane = threadIdx.x % 32, by_k = 4 * (lane % 4), by_line = 4 * (lane / 8);
    to += T::LEFT * 16;
    if constexpr (OP == WGRAD) {
        const float *x = (const float *)p.right + at.step * p.right_step + at.offset;
#pragma unroll
        for (int r = 0; r < S::WIDE * 4; r++) {
            bool has = at.step >= 0 && x_row[r] >= 0;
            copy_async(to + T::by_k(lane / 4 + 8 * r, by_k) * 16,
                       has ? x + (size_t)x_row[r] * p.columns : NULL);
        }
    } else {
        const int line = 4 * (lane % 8);
#pragma unroll
        for (int span = 0; span < S::WIDE; span++) {
            bool has = at.step >= 0 && task.has_column(span * SPAN);
            const float *x = right_at(task, at, span * SPAN + line);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                int chunk = T::template by_line<S::WIDE * SPAN>(by_line + r, span * SPAN + line);
                copy_async(to + chunk * 16, has ? x + r * p.columns : NULL);
            }
        }
    }
}

static __device__ inline void spread(float (&to)[4], const float4 &v) {
    to[0] = v.x;
    to[1] = v.y;
    to[2] = v.z;
    to[3] = v.w;
}

template <operation OP, typename S>
static __device__ inline void multiply(const float4 *stage, float (&sum)[8][8]) {
    typedef shape<OP, S> T;
    const int lane = threadIdx.x % 32, half = lane / (4 * T::ACROSS);
    const int i = lane / T::ACROSS % 4, j = lane % T::ACROSS;
    const float4 *left = stage, *right = stage + T::LEFT;
#pragma unroll
    for (int k0 = 0; k0 < DEPTH / T::HALVES; k0 += 4) {
        const int k = half * 8 + k0;
        float a[8][4], b[8][4];
        if (T::LEFT_BY_K) {
#pragma unroll
            for (int r = 0; r < 8; r++) spread(a[r], left[T::by_k(i + 4 * r, k)]);
        }
        if (T::RIGHT_BY_K) {
#pragma unroll
            for (int c = 0; c < 8; c++) spread(b[c], right[T::by_k(j + T::ACROSS * c, k)]);
        }
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float u[8], v[8];
            if (!T::LEFT_BY_K) {
#pragma unroll
                for (int r = 0; r < 8; r += 4) {
                    float4 w = left[T::template by_line<ROWS>(k + e, 4 * r + 4 * i)];
                    u[r] = w.x, u[r + 1] = w.y, u[r + 2] = w.z, u[r + 3] = w.w;
                }
            }
            if (!T::RIGHT_BY_K) {
#pragma unroll
                for (int c = 0; c < 8; c += 4) {
                    float4 w =
                        right[T::template by_line<S::WIDE * SPAN>(k + e, T::ACROSS * c + 4 * j)];
                    v[c] = w.x, v[c + 1] = w.y, v[c + 2] = w.z, v[c + 3] = w.w;
                }
            }
#pragma unroll
            for (int r = 0; r < 8; r++) {
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    sum[r][c] += (T::LEFT_BY_K ? a[r][e] : u[r]) * (T::RIGHT_BY_K ? b[c][e] : v[c]);
                }
            }
        }
    }
}

template <operation OP, typename S, int STAGES> static constexpr size_t shared_bytes() {
    return (size_t)S::WARPS * STAGES * shape<OP, S>::STAGE * 16;
}

/* Adds up the sums of the warps, and half warps, that took turns at a tile. */
template <operation OP, typename S>
static __device__ inline void finish(const task<OP, S> &task, float *shared,
                                     const float (&sum)[8][8]) {
    typedef shape<OP, S> T;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = lane / (4 * T::ACROSS);
    const int i = lane / T::ACROSS % 4, j = lane % T::ACROSS;
    __syncthreads(); /* the rings are done with */
#pragma unroll
    for (int e = 0; e < 64; e++) shared[(warp * 64 + e) * 32 + lane] = sum[e / 8][e % 8];
    __syncthreads();
    for (int piece = task.turn * T::HALVES + half; piece < 16; piece += S::KS * T::HALVES) {
        const int r = piece / 2, c = piece % 2 * 4;
        const int row = OP == DGRAD ? 4 * i + r % 4 + r / 4 * 16 : i + 4 * r;
        float v[4] = {};
        for (int turn = 0; turn < S::KS; turn++) {
            for (int other = 0; other < T::HALVES; other++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    int from = warp - task.turn + turn, at = r * 8 + c + e;
                    v[e] += shared[(from * 64 + at) * 32 + (lane ^ other * 16)];
                }
            }
        }
        if (!task.has_row(row)) continue;
        if (OP == WGRAD) {
#pragma unroll
            for (int e = 0; e < 4; e++) {
                int column = j + T::ACROSS * (c + e);
                if (task.has_column(column)) *task.result(row, column) = v[e];
            }
        } else {
            int column = T::ACROSS * c + 4 * j;
            if (!task.has_column(column)) continue;
            *(float4 *)task.result(row, column) = make_float4(v[0], v[1], v[2], v[3]);
        }
    }
}

template <operation OP, typename S, int STAGES, int BLOCKS>
static __global__ void __launch_bounds__(S::THREADS, BLOCKS)
    portable_fp32(const __grid_constant__ product p) {
    typedef shape<OP, S> T;
    extern __shared__ float4 chunks[];
    const int lane = threadIdx.x % 32;
    float4 *ring = chunks + threadIdx.x / 32 * STAGES * T::STAGE;
    const uint32_t ring_at = shared_address(ring);
    const task<OP, S> task(p);
    const int stages = task.stages();
    float sum[8][8] = {};
    int x_row[S::WIDE * 4];
#pragma unroll
    for (int r = 0; r < S::WIDE * 4; r++) {
        if constexpr (OP == WGRAD) x_row[r] = right_row(task, lane / 4 + 8 * r);
    }

    /* The first left tiles may be fetched while the kernel before this one ends. */
    const int stage_bytes = T::STAGE * 16;
    for (int s = 0; s + 1 < STAGES && p.overlap; s++) {
        const places at = find_places(task, (task.turn + s * S::KS) * DEPTH);
        copy_left(task, at.left, ring_at + s * stage_bytes);
    }
    wait_for_earlier();
    let_next_start();
    int next = task.turn, into = 0, from = 0;
    auto copy_next = [&](bool left) {
        if (next < stages) {
            const places at = find_places(task, next * DEPTH);
            const uint32_t to = ring_at + into * stage_bytes;
            if (left) copy_left(task, at.left, to);
            copy_right(task, at.right, x_row, to);
        }
        copy_commit();
        next += S::KS;
        into = into + 1 == STAGES ? 0 : into + 1;
    };
    for (int s = 0; s + 1 < STAGES; s++) copy_next(!p.overlap);
    for (int i = task.turn; i < stages; i += S::KS) {
        copy_wait<STAGES - 2>();
        __syncwarp();
        copy_next(true);
        multiply<OP, S>(ring + from * T::STAGE, sum);
        from = from + 1 == STAGES ? 0 : from + 1;
    }
    copy_wait<0>();
    finish(task, (float *)chunks, sum);
}

template <operation OP, typename S, int STAGES, int BLOCKS>
static void launch(backend *be, const product &p, int tiles) {
    cuda_launch(be, "product", true, portable_fp32<OP, S, STAGES, BLOCKS>, grid_of<OP, S>(p, tiles),
                S::THREADS, shared_bytes<OP, S, STAGES>(), p);
}

template <operation OP> static void launch_columns(backend *be, const product &p, int tiles) {
    if (p.columns > 64 && OP == FPROP) { /* whose left tile takes registers */
        launch<OP, split<2, 1, 1, 4>, 4, 2>(be, p, tiles);
    } else if (p.columns > 32) {
        launch<OP, split<2, 1, 1, 4>, 3, 3>(be, p, tiles);
    } else {
        launch<OP, split<1, 1, 1, 4>, 4, 3>(be, p, tiles);
    }
}

void portable_fp32_run(backend *be, const device_layout *device, const void *plan,
                       const product_call *c) {
    int tiles;
    const product p = product_of(be, device, plan, c, &tiles);
    if (c->op == FPROP) {
        launch_columns<FPROP>(be, p, tiles);
    } else if (c->op == DGRAD) {
        launch_columns<DGRAD>(be, p, tiles);
    } else {
        launch<WGRAD, split<2, 1, 2, 2>, 4, 2>(be, p, tiles);
    }
    cuda_of(be)->weights_settled = true;
}
