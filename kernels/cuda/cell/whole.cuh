/* A stage between its products as one kernel: a thread block a multiprocessor keeps its units' rows
 * in shared memory while all of them add up layer norm's sums. So nothing is read twice, no product
 * makes sums, and fewer kernels wait for the one before.
 *
 * Columns come in spans as wide as a warp, VEC to a lane, one after another. A warp takes every
 * WARPS-th unit; forward, the sums of one gate are those of WARPS / ROWS warps. Units whose rows do
 * not fit are read again. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_WHOLE_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_WHOLE_CUH

#include "cell/stages.cuh"

/* Shared memory and units of a thread block. ROWS: of a unit, the stage's gates. ARRAYS: those
 * whose rows are kept. */
template <typename T, int VEC, int ROWS, int ARRAYS, int WARPS> struct whole_stage {
    static const int SPAN = 32 * VEC, SUMS = 2 * ROWS, THREADS = WARPS * 32;
    float *st;            /* [ROWS][2][SPAN]: statistics of the span */
    float *means;         /* [2][SPAN]: of an internal stage, backward */
    float *features;      /* [WARPS / ROWS][SUMS][SPAN]: each warp's sums over its units */
    float *units;         /* [v.units][SUMS]: gains and biases, or backward sums over columns */
    packet<T, VEC> *kept; /* [v.kept][ARRAYS][ROWS][32] */
    int warp, lane, first, last;

    __device__ whole_stage(const view<T> &v, float *shared) {
        st = shared;
        means = st + SUMS * SPAN;
        features = means + 2 * SPAN;
        units = features + WARPS * 2 * SPAN;
        kept = (packet<T, VEC> *)(units + (v.units + 1) / 2 * 2 * SUMS);
        warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        first = blockIdx.x * v.units;
        last = min(first + v.units, v.width);
    }

    static const size_t KEPT_UNIT = ARRAYS * ROWS * SPAN * sizeof(T);

    static size_t bytes(const view<T> &v) {
        const size_t floats = (size_t)(SUMS + 2 + WARPS * 2) * SPAN + (v.units + 1) / 2 * 2 * SUMS;
        return floats * sizeof(float) + v.kept * KEPT_UNIT;
    }

    __device__ bool keeps(const view<T> &v, int unit) const {
        return unit - first < v.kept;
    }

    /* This lane's columns of the rows that are kept of a unit. */
    __device__ packet<T, VEC> *rows(int unit, int array = 0) const {
        return kept + (((unit - first) * ARRAYS + array) * ROWS) * 32 + lane;
    }

    /* Fetches this lane's columns of a unit's raw, n the first of them. */
    __device__ void fetch_raw(const view<T> &v, int unit, int n,
                              packet<T, VEC> (&raw)[ROWS]) const {
        const packet<T, VEC> *here = rows(unit);
        const T *there = v.raw + (unit_row(v, unit) + n);
        const bool is_kept = keeps(v, unit);
#pragma unroll
        for (int row = 0; row < ROWS; row++) {
            raw[row] = packet<T, VEC>();
            if (!has_gate(v, row)) continue;
            if (is_kept) raw[row] = here[row * 32];
            if (!is_kept) load_packet(raw[row], there + (row - v.first) * v.gate_rows);
        }
    }

    /* Fetches the units from `unit` on, before `past`, into shared memory. */
    __device__ void copy_raw(const view<T> &v, int unit, int past, int n) const {
        for (; unit < past; unit += WARPS) {
            const T *from = v.raw + (unit_row(v, unit) + n);
#pragma unroll
            for (int row = 0; row < ROWS; row++) {
                if (!has_gate(v, row)) continue;
                copy_packet_async(rows(unit) + row * 32, from + (row - v.first) * v.gate_rows);
            }
        }
        copy_commit();
    }

    /* Adds one gate's rows of the units from `unit` on, before `past`, to sums of raw and of its
     * square. */
    __device__ void sum_raw(const view<T> &v, int unit, int past, int n,
                            float (&part)[2][VEC]) const {
        const int gate = warp % ROWS;
        if (!has_gate(v, gate)) return;
#pragma unroll 4
        for (; unit < past; unit += WARPS / ROWS) {
            packet<T, VEC> raw;
            if (keeps(v, unit)) raw = rows(unit)[gate * 32];
            if (!keeps(v, unit)) {
                load_packet(raw, v.raw + (unit_row(v, unit) + (gate - v.first) * v.gate_rows + n));
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float x = raw.value(i);
                part[0][i] += x;
                part[1][i] += x * x;
            }
        }
    }

    /* Adds the thread block's sums over its units to the totals. `part`: a warp's sums of the gate
     * warp % ROWS. */
    __device__ void add(const view<T> &v, fixed *sums, int span, const float (&part)[2][VEC],
                        const float (&scale)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            store_shared(features + (warp * 2 + i) * SPAN + lane * VEC, part[i]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < SUMS * SPAN; i += THREADS) {
            const int which = i / SPAN % 2, column = span * SPAN + i % SPAN;
            float total = 0;
            for (int w = 0; w < WARPS / ROWS; w++) total += features[w * SUMS * SPAN + i];
            add_counted(sums + i / SPAN / 2 * sums_gate(v.columns), v.columns, which, column, total,
                        scale[which]);
        }
    }

    /* Waits until all thread blocks have added their parts of a column's two sums; their means over
     * the units. One lane of a warp polls first: all of them would slow the others' loads down. */
    __device__ void wait_means(const view<T> &v, const fixed *sums, int n, const float (&scale)[2],
                               float (&mean)[2]) const {
        fixed sum[2];
        for (patience p; lane == 31; p.lose(v.stuck)) {
            if (parts_of(fetch_counted(sums, v.columns, 1, n)) == gridDim.x) break;
        }
        __syncwarp();
        for (patience p;; p.lose(v.stuck)) {
            sum[0] = fetch_counted(sums, v.columns, 0, n);
            sum[1] = fetch_counted(sums, v.columns, 1, n);
            if (parts_of(sum[0]) == gridDim.x && parts_of(sum[1]) == gridDim.x) break;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            mean[i] = decode_counted(sum[i], sums, v.columns, i, n, scale[i]) / v.width;
        }
    }

    /* Forward: fetches a span's raw, adds its sums to the totals, and makes the statistics. Without
     * layer norm those of the first span serve all, and others may still be reading them. */
    __device__ void normalise(const view<T> &v, int span) const {
        if (!v.layer_norm && span > 0) return;
        const float scale[2] = {SCALE_SUM, SCALE_SQUARE};
        const int n = span * SPAN + lane * VEC, past = min(last, first + v.kept);
        const int half = min(past, first + v.kept / (2 * WARPS) * WARPS), begin = warp / ROWS;
        float part[2][VEC] = {};
        if (v.layer_norm) {
            copy_raw(v, first + warp, half, n);
            copy_raw(v, half + warp, past, n);
            copy_wait<1>();
            __syncthreads();
            sum_raw(v, first + begin, half, n, part);
            copy_wait<0>();
            __syncthreads();
            sum_raw(v, half + begin, last, n, part);
            add(v, v.sums, span, part, scale);
        }
        for (int i = threadIdx.x; i < ROWS * SPAN; i += THREADS) {
            const int gate = i / SPAN, column = span * SPAN + i % SPAN;
            float *of = st + gate * 2 * SPAN + i % SPAN, mean[2];
            of[0] = 0;
            of[SPAN] = 1;
            if (!v.layer_norm) continue;
            wait_means(v, v.sums + gate * sums_gate(v.columns), column, scale, mean);
            finish_statistics(v, mean[0], mean[1], gate, column, of, SPAN);
        }
        __syncthreads();
    }
};

/* Launches a whole stage, whose kernel KERNEL<T, VEC> has the given rows, arrays and warps: with
 * spans of 128 columns, unless most rows then do not fit. */
#define LAUNCH_WHOLE(be, KERNEL, ROWS, ARRAYS, WARPS, v, early, what)                              \
    do {                                                                                           \
        if (share_whole<whole_stage<T, 4, ROWS, ARRAYS, WARPS>>(be, v)) {                          \
            launch_whole<whole_stage<T, 4, ROWS, ARRAYS, WARPS>>(be, KERNEL<T, 4>, v, early,       \
                                                                 what);                            \
        } else {                                                                                   \
            share_whole<whole_stage<T, 2, ROWS, ARRAYS, WARPS>>(be, v);                            \
            launch_whole<whole_stage<T, 2, ROWS, ARRAYS, WARPS>>(be, KERNEL<T, 2>, v, early,       \
                                                                 what);                            \
        }                                                                                          \
    } while (0)

/* Shares the units out over the multiprocessors, and keeps as many rows as fit. Whether the columns
 * are whole spans and most rows fit. */
template <typename whole, typename T> static bool share_whole(backend *be, view<T> &v) {
    const int most = min(cuda_of(be)->processors, (int)COUNTED_PARTS);
    v.units = (v.width + most - 1) / most;
    v.kept = 0;
    const size_t rest = whole::bytes(v), limit = cuda_of(be)->shared_limit;
    const size_t room = rest < limit ? (limit - rest) / whole::KEPT_UNIT : 0;
    if (v.layer_norm) v.kept = (int)min((size_t)v.units, room);
    return v.columns % whole::SPAN == 0 && (!v.layer_norm || v.kept * 2 >= v.units);
}

template <typename whole, typename T>
static void launch_whole(backend *be, void (*kernel)(const view<T>), view<T> v, bool early,
                         const char *what) {
    v.stuck = cuda_stuck_word(be, what);
    cuda_launch_together(be, what, early, kernel, (v.width + v.units - 1) / v.units, whole::THREADS,
                         whole::bytes(v), v);
}

#endif
