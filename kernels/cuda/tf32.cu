/* The three products through tf32 tensor cores, on any GPU from sm_80 on.
 *
 * Operands go from memory to registers and into mma.sync as they are: k may be taken in any order and
 * a tile's rows and columns too, as long as both operands agree, and then the four neighbours that a
 * 16-byte load brings are what a lane needs. They are rounded to nearest on the way. */
#include "floats.cuh"

static __device__ inline uint32_t to_tf32(float x) {
    uint32_t rounded;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
    return rounded;
}

/* sum [16 x 8] += a [16 x 8] b [8 x 8], tf32 with fp32 sums. */
static __device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* 16 of k: four neighbours of four rows of the left tile, and of each span of the right one. */
template <int WIDE> struct stretch { float4 left[4], right[WIDE][4]; };

static __device__ inline float word(const float4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

template <operation OP, typename S>
static __device__ inline void fetch(const task<OP, S> &task, const place &at,
                                    const int (&x_row)[S::WIDE][4], stretch<S::WIDE> &s) {
    const product &p = task.p;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float4 zero = make_float4(0, 0, 0, 0);
    const bool there = at.block >= 0;
    const int stride = left_stride<OP>(p);
    const float *left = left_at(task, at, OP == DGRAD ? 4 * g : g);
#pragma unroll
    for (int r = 0; r < 4; r++) {
        bool has = there && task.has_row(OP == DGRAD ? 4 * g : 8 * r + g);
        const float4 *from = (const float4 *)(left + (OP == DGRAD ? r : 8 * r) * stride);
        s.left[r] = !has ? zero : OP == WGRAD || S::NS > 1 ? __ldg(from) : __ldcs(from);
    }
#pragma unroll
    for (int span = 0; span < S::WIDE; span++) {
        if (OP == WGRAD) {
            const float *x = (const float *)p.right + at.block * p.right_step + at.offset;
#pragma unroll
            for (int r = 0; r < 4; r++) {
                bool has = there && x_row[span][r] >= 0;
                const float *from = x + (size_t)x_row[span][r] * p.columns;
                s.right[span][r] = has ? __ldg((const float4 *)from) : zero;
            }
        } else {
            bool has = there && task.has_column(span * SPAN);
            const float *from = right_at(task, at, span * SPAN + 4 * g);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                s.right[span][r] = has ? __ldg((const float4 *)(from + r * p.columns)) : zero;
            }
        }
    }
}

template <operation OP, int WIDE>
static __device__ inline void multiply(const stretch<WIDE> &s, float (&sum)[WIDE][2][4][4]) {
#pragma unroll
    for (int step = 0; step < 2; step++) { /* 8 of k: those at 2 step, then at 2 step + 1 */
        uint32_t a[2][4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int q = 0; q < 4; q++) { /* q % 2: rows 8 on; q / 2: 4 of k on */
                float v = OP == DGRAD ? word(s.left[2 * step + q / 2], 2 * i + q % 2)
                                      : word(s.left[2 * i + q % 2], 2 * step + q / 2);
                a[i][q] = to_tf32(v);
            }
        }
#pragma unroll
        for (int span = 0; span < WIDE; span++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float4(&x)[4] = s.right[span];
                float v0 = OP == WGRAD ? word(x[j], 2 * step) : word(x[2 * step], j);
                float v1 = OP == WGRAD ? word(x[j], 2 * step + 1) : word(x[2 * step + 1], j);
                uint32_t b0 = to_tf32(v0), b1 = to_tf32(v1);
                multiply_add(sum[span][0][j], a[0], b0, b1);
                multiply_add(sum[span][1][j], a[1], b0, b1);
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
static __device__ inline void finish(const task<OP, S> &task,
                                     const float (&sum)[S::WIDE][2][4][4]) {
    __shared__ float shared[S::KS > 1 ? S::WARPS : 1][S::KS > 1 ? S::WIDE * 32 : 1][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (S::KS > 1) {
        const float *mine = &sum[0][0][0][0];
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

template <operation OP, typename S, int STAGES, int BLOCKS>
static __global__ void __launch_bounds__(S::THREADS, BLOCKS)
    tf32_kernel(const __grid_constant__ product p) {
    const int lane = threadIdx.x % 32;
    let_next_start();
    const task<OP, S> task(p);
    const int stages = task.stages();
    float sum[S::WIDE][2][4][4] = {};
    stretch<S::WIDE> ring[STAGES];
    int x_row[S::WIDE][4];
#pragma unroll
    for (int j = 0; j < S::WIDE * 4; j++) {
        if constexpr (OP == WGRAD) x_row[j / 4][j % 4] = right_row(task, 8 * j + lane / 4);
    }

    /* Places are looked up one stage before they are needed. */
    int next = task.turn;
    place at = find_place(task, next * DEPTH + 4 * (lane % 4));
    auto fetch_next = [&](stretch<S::WIDE> &s) {
        place now = at;
        next += S::KS;
        at = find_place(task, next * DEPTH + 4 * (lane % 4));
        fetch(task, now, x_row, s);
    };
    wait_for_earlier();
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch_next(ring[s]);
    for (int i = task.turn; i < stages; i += STAGES * S::KS) {
#pragma unroll
        for (int s = 0; s < STAGES; s++) {
            fetch_next(ring[(s + STAGES - 1) % STAGES]);
            multiply<OP, S::WIDE>(ring[s], sum);
        }
    }
    finish(task, sum);
}

template <operation OP, typename S, int STAGES, int BLOCKS>
static void launch(backend *be, const product &p, int tiles) {
    tf32_kernel<OP, S, STAGES, BLOCKS>
        <<<grid_of<OP, S>(p, tiles), S::THREADS, 0, cuda_of(be)->stream>>>(p);
}

template <operation OP> static void launch_columns(backend *be, const product &p, int tiles) {
    if (p.columns >= 256) {
        launch<OP, split<2, 1, 4, 1>, 1, 4>(be, p, tiles);
    } else if (p.columns > 64) {
        launch<OP, split<2, 1, 1, 4>, 2, 2>(be, p, tiles);
    } else {
        launch<OP, split<1, 1, 1, 4>, 3, 3>(be, p, tiles);
    }
}

void tf32_product(backend *be, const product &p, operation op, int tiles) {
    if (op == FPROP) launch_columns<FPROP>(be, p, tiles);
    if (op == DGRAD) launch_columns<DGRAD>(be, p, tiles);
    if (op == WGRAD) launch<WGRAD, split<1, 1, 4, 1>, 2, 4>(be, p, tiles);
}
