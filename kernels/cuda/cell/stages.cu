/* What a cell does between products, other than its gates: internal stages' layer norm, input table
 * and activation, forward and backward, and the sums of layer norm. The equations stand in ops.h,
 * those of layer norm's gradient in kernels/cpu/stages.c.
 *
 * Floors, in bytes a unit and stream (bf16): activate 4; activate_backward 6, with a table that
 * multiplies 8, with relu 2 more; norm_backward 6. Besides, tables' rows of 512 bytes, one a unit,
 * of which text touches about half: gathering them beats copying whole rows to shared memory.
 *
 * A warp takes a unit at a time and walks its columns, VEC to a lane, so that a row is read in one
 * stretch and sums over the columns stay within the warp. A thread block takes `units` units, keeps
 * the statistics of all columns in shared memory, and adds up the sums over its units before it
 * adds them to the totals. A column's byte selects a table entry out of one row, which stays in
 * L1. */
#include "cell/stages.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, MOST_UNITS = 128 };

/* Sums of backward: over the columns of each unit, and over the units of each column. */
template <int SPAN> struct backward_sums {
    float units[MOST_UNITS][2]; /* of dpre, and of dpre times the normalised raw */
    float features[WARPS][2][SPAN];
};

/* The gradients of the thread block's gains and biases so far; the last step starts from zero. */
template <int SPAN, typename T>
static __device__ void start_units(const view<T> &v, backward_sums<SPAN> *sums) {
    for (int i = threadIdx.x; i < v.units * 2; i += THREADS) {
        int unit = blockIdx.x * v.units + i / 2;
        const float *from = i % 2 ? v.dgain : v.dbias;
        bool there = !v.start && from && unit < v.width;
        sums->units[i / 2][i % 2] = there ? from[unit] : 0;
    }
    __syncthreads();
}

template <int SPAN, typename T>
static __device__ void finish_units(const view<T> &v, const backward_sums<SPAN> *sums) {
    __syncthreads();
    for (int i = threadIdx.x; i < v.units * 2; i += THREADS) {
        int unit = blockIdx.x * v.units + i / 2;
        float *to = i % 2 ? v.dgain : v.dbias;
        if (to && unit < v.width) to[unit] = sums->units[i / 2][i % 2];
    }
}

/* Adds one unit's sums over the lanes; one warp owns the unit. */
template <int SPAN>
static __device__ inline void add_unit(backward_sums<SPAN> *sums, int unit, float (&values)[2]) {
    const int lane = threadIdx.x % 32;
    warp_sums(values);
    if (lane % 16 == 0) sums->units[unit][lane / 16] += values[0];
}

/* Adds one span's sums over the thread block's units to the totals. */
template <int SPAN, int VEC, typename T>
static __device__ void add_features(const view<T> &v, backward_sums<SPAN> *sums, int span,
                                    const float (&part)[2][VEC]) {
    if (!v.layer_norm) return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 2; i++) store_shared(&sums->features[warp][i][lane * VEC], part[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < 2 * SPAN; i += THREADS) {
        int which = i / SPAN, column = i % SPAN;
        float total = 0;
        for (int w = 0; w < WARPS; w++) total += sums->features[w][which][column];
        add_fixed(v.dsums, v.columns, which, span * SPAN + column, total, SCALE_DSUM);
    }
    __syncthreads();
}

/* --------------------------------------------------------------------------- internal stages */

/* From normalised values of one unit to its output. */
template <typename T, int VEC>
static __device__ __forceinline__ void activate_columns(const view<T> &v, int unit, uint32_t bytes,
                                                        float (&y)[VEC]) {
    const float gain = gain_of(v, 0, unit), bias = bias_of(v, 0, unit);
    const T *table = unit_table(v, unit);
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        y[i] = gain * y[i] + bias;
        if (table && v.use == TABLE_ADD) y[i] += to_float(table[byte_of(bytes, i)]);
        if (table && v.use == TABLE_MULTIPLY) y[i] *= to_float(table[byte_of(bytes, i)]);
        if (v.relu && y[i] < 0) y[i] = 0;
    }
}

/* From the gradient at one unit's output to that at norm's result; stores that at its entries. */
template <typename T, int VEC>
static __device__ __forceinline__ void
differentiate_columns(const view<T> &v, int unit, int n, uint32_t bytes, const float (&value)[VEC],
                      float (&d)[VEC]) {
    const uint32_t at = state_row(v, unit) + n;
    const T *table = unit_table(v, unit);
    float y[VEC];
    load(d, v.dx + at);
    if (v.relu) {
        load(y, v.out + at);
#pragma unroll
        for (int i = 0; i < VEC; i++) d[i] = y[i] > 0 ? d[i] : 0;
    }
    if (v.use == TABLE_MULTIPLY) {
        const float gain = gain_of(v, 0, unit), bias = bias_of(v, 0, unit);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            y[i] = table ? d[i] * (gain * value[i] + bias) : 0;
            if (table) d[i] *= to_float(table[byte_of(bytes, i)]);
        }
        store(v.dentry + at, y);
    }
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(THREADS)
    activate_kernel(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float st[];
    for (int n = threadIdx.x; n < v.columns; n += THREADS) {
        make_statistics<1>(v, 0, n, v.columns, st + n);
    }
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.width);
    for (int unit = first + warp; unit < last; unit += WARPS) {
        for (int n = lane * VEC; n < v.columns; n += 32 * VEC) {
            uint32_t at = state_row(v, unit) + n;
            float y[VEC];
            load(y, v.raw + at);
            statistics<VEC>(st + n, v.columns, 0).normalise(y);
            activate_columns(v, unit, load_bytes<VEC>(v.bytes + n), y);
            store(v.out + at, y);
        }
    }
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(THREADS)
    activate_backward_kernel(const __grid_constant__ view<T> v) {
    const int SPAN = 32 * VEC;
    typedef backward_sums<SPAN> sums_type;
    extern __shared__ __align__(16) float st[];
    sums_type *sums = (sums_type *)(st + 2 * v.columns);
    for (int n = threadIdx.x; n < v.columns; n += THREADS) {
        read_statistics(v, n, v.columns, st + n);
    }
    start_units(v, sums);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.width);
    for (int span = 0; span < v.columns / SPAN; span++) {
        int n = span * SPAN + lane * VEC;
        float part[2][VEC] = {};
        const uint32_t bytes = load_bytes<VEC>(v.bytes + n);
#pragma unroll 1
        for (int unit = first + warp; unit < last; unit += WARPS) {
            uint32_t at = state_row(v, unit) + n;
            float value[VEC], d[VEC], unit_sums[2] = {}, gain = gain_of(v, 0, unit);
            load(value, v.raw + at);
            statistics<VEC>(st + n, v.columns, 0).normalise(value);
            differentiate_columns(v, unit, n, bytes, value, d);
            store(v.dpre + at, d);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                float kept = to_float(from_float<T>(d[i])), product = kept * value[i];
                unit_sums[0] += kept;
                unit_sums[1] += product;
                part[0][i] += gain * kept;
                part[1][i] += gain * product;
            }
            add_unit(sums, unit - first, unit_sums);
        }
        add_features(v, sums, span, part);
    }
    finish_units(v, sums);
}

/* ------------------------------------------------------------------------------- norm_backward */

template <typename T, int VEC>
static __global__ void __launch_bounds__(THREADS, 4)
    norm_backward_kernel(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float st[]; /* statistics; [2][columns] means of dsums */
    float *means = st + 2 * v.columns;
    for (int n = threadIdx.x; n < v.columns; n += THREADS) {
        read_means(v, n, v.columns, means + n);
        read_statistics(v, n, v.columns, st + n);
    }
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.width);
    for (int n = lane * VEC; n < v.columns; n += 32 * VEC) {
        statistics<VEC> kept(st + n, v.columns, 0);
        float mean[VEC], product[VEC];
        load(mean, means + n);
        load(product, means + v.columns + n);
#pragma unroll 2
        for (int unit = first + warp; unit < last; unit += WARPS) {
            float value[VEC], d[VEC], gain = gain_of(v, 0, unit);
            uint32_t at = state_row(v, unit) + n;
            load(value, v.raw + at);
            load(d, v.dpre + at);
            kept.normalise(value);
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                d[k] = (gain * d[k] - mean[k] - value[k] * product[k]) * kept.scale[k];
            }
            store(v.raw + at, d);
        }
    }
}

/* ------------------------------------------------------------------------------ whole stages
 * Within a sequence a stage with layer norm is one kernel in either direction: a thread block a
 * multiprocessor keeps its units' rows in shared memory while all of them add up their sums. So
 * nothing is read twice, and fewer kernels wait for the one before: with 18,432 units, 128
 * columns and one such stage beside the gates, a step takes 114 us forward and 156 backward. */

enum { WHOLE_WARPS = 16, WHOLE_THREADS = WHOLE_WARPS * 32 };

/* Shared memory of a whole stage: ARRAYS rows of each unit, statistics and sums. */
template <typename T, int VEC, int ARRAYS> struct whole_stage {
    static const int SPAN = 32 * VEC;
    float *st, *means;            /* [2][columns]: statistics; backward, means of dsums */
    float (*features)[2][SPAN];   /* [WHOLE_WARPS] */
    float (*units)[2];            /* [units]: backward, sums over columns */
    packet<T, VEC> *kept[ARRAYS]; /* [units][columns / VEC] */
    int warp, lane, first, last;

    __device__ whole_stage(const view<T> &v, float *shared) {
        st = shared;
        means = st + 2 * v.columns;
        features = (float(*)[2][SPAN])(means + 2 * v.columns);
        units = (float(*)[2])(features + WHOLE_WARPS);
        for (int i = 0; i < ARRAYS; i++) {
            kept[i] = (packet<T, VEC> *)(units + (v.units + 1) / 2 * 2) +
                      (size_t)i * v.units * v.columns / VEC;
        }
        warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        first = blockIdx.x * v.units;
        last = min(first + v.units, v.width);
    }

    static size_t bytes(const view<T> &v) {
        size_t floats = 4 * (size_t)v.columns + WHOLE_WARPS * 2 * SPAN + 2 * ((size_t)v.units + 1);
        return floats * sizeof(float) + ARRAYS * (size_t)v.units * v.columns * sizeof(T);
    }

    __device__ packet<T, VEC> &row(int array, const view<T> &v, int unit, int n) {
        return kept[array][((unit - first) * v.columns + n) / VEC];
    }

    /* Adds one span's sums over the thread block's units to the totals. */
    __device__ void add(const view<T> &v, fixed *sums, int span, const float (&part)[2][VEC],
                        const float (&scale)[2]) {
#pragma unroll
        for (int i = 0; i < 2; i++) store_shared(&features[warp][i][lane * VEC], part[i]);
        __syncthreads();
        for (int i = threadIdx.x; i < 2 * SPAN; i += WHOLE_THREADS) {
            const int which = i / SPAN, column = i % SPAN;
            float total = 0;
            for (int w = 0; w < WHOLE_WARPS; w++) total += features[w][which][column];
            add_counted(sums, v.columns, which, span * SPAN + column, total, scale[which]);
        }
        __syncthreads();
    }

    /* Waits until all thread blocks have added their sums, and stores the means over all units, of
     * all columns. */
    __device__ void take(const view<T> &v, const fixed *sums, const float (&scale)[2]) {
        for (int i = threadIdx.x; i < 2 * v.columns; i += WHOLE_THREADS) {
            const int which = i / v.columns, n = i % v.columns;
            fixed sum;
            for (patience p;; p.lose(v.stuck)) {
                sum = fetch_counted(sums, v.columns, which, n);
                if (parts_of(sum) == gridDim.x) break;
            }
            means[i] = decode_counted(sum, sums, v.columns, which, n, scale[which]) / v.width;
        }
        __syncthreads();
    }
};

template <typename T, int VEC>
static __global__ void __launch_bounds__(WHOLE_THREADS, 1)
    whole_activate_kernel(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float shared[];
    whole_stage<T, VEC, 1> a(v, shared);
    const int SPAN = 32 * VEC, spans = v.columns / SPAN;
    const float scale[2] = {SCALE_SUM, SCALE_SQUARE};
    wait_for_earlier();
    let_next_start();
    for (int span = 0; span < spans; span++) {
        const int n = span * SPAN + a.lane * VEC;
        float part[2][VEC] = {};
#pragma unroll 4
        for (int unit = a.first + a.warp; unit < a.last; unit += WHOLE_WARPS) {
            packet<T, VEC> raw;
            load_packet(raw, v.raw + (state_row(v, unit) + n));
            a.row(0, v, unit, n) = raw;
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                part[0][i] += raw.value(i);
                part[1][i] += raw.value(i) * raw.value(i);
            }
        }
        a.add(v, v.sums, span, part, scale);
    }
    a.take(v, v.sums, scale);
    for (int n = threadIdx.x; n < v.columns; n += WHOLE_THREADS) {
        finish_statistics(v, a.means[n], a.means[v.columns + n], 0, n, a.st + n, v.columns);
    }
    __syncthreads();
    for (int span = 0; span < spans; span++) {
        const int n = span * SPAN + a.lane * VEC;
        const uint32_t bytes = load_bytes<VEC>(v.bytes + n);
        const statistics<VEC> st(a.st + n, v.columns, 0);
#pragma unroll 2
        for (int unit = a.first + a.warp; unit < a.last; unit += WHOLE_WARPS) {
            float y[VEC];
            unpack(a.row(0, v, unit, n), y);
            st.normalise(y);
            activate_columns(v, unit, bytes, y);
            store(v.out + (state_row(v, unit) + n), y);
        }
    }
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(WHOLE_THREADS, 1)
    whole_backward_kernel(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float shared[];
    whole_stage<T, VEC, 2> a(v, shared);
    const int SPAN = 32 * VEC, spans = v.columns / SPAN;
    const float scale[2] = {SCALE_DSUM, SCALE_DSUM};
    for (int n = threadIdx.x; n < v.columns; n += WHOLE_THREADS) {
        read_statistics(v, n, v.columns, a.st + n);
    }
    for (int i = threadIdx.x; i < v.units * 2; i += WHOLE_THREADS) {
        const int unit = a.first + i / 2;
        const float *from = i % 2 ? v.dgain : v.dbias;
        a.units[i / 2][i % 2] = !v.start && from && unit < v.width ? from[unit] : 0;
    }
    __syncthreads();
    wait_for_earlier();
    let_next_start();
    for (int span = 0; span < spans; span++) {
        const int n = span * SPAN + a.lane * VEC;
        const uint32_t bytes = load_bytes<VEC>(v.bytes + n);
        const statistics<VEC> st(a.st + n, v.columns, 0);
        float part[2][VEC] = {};
#pragma unroll 2
        for (int unit = a.first + a.warp; unit < a.last; unit += WHOLE_WARPS) {
            packet<T, VEC> raw, kept;
            float value[VEC], d[VEC], unit_sums[2] = {}, gain = gain_of(v, 0, unit);
            load_packet(raw, v.raw + (state_row(v, unit) + n));
            a.row(0, v, unit, n) = raw;
            unpack(raw, value);
            st.normalise(value);
            differentiate_columns(v, unit, n, bytes, value, d);
            pack(kept, d);
            a.row(1, v, unit, n) = kept;
            /* Nothing reads the gradient at norm's result of a table that multiplies. */
            if (v.use != TABLE_MULTIPLY) store_packet(v.dpre + (state_row(v, unit) + n), kept);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float product = kept.value(i) * value[i];
                unit_sums[0] += kept.value(i);
                unit_sums[1] += product;
                part[0][i] += gain * kept.value(i);
                part[1][i] += gain * product;
            }
            warp_sums(unit_sums);
            if (a.lane % 16 == 0) a.units[unit - a.first][a.lane / 16] += unit_sums[0];
        }
        a.add(v, v.dsums, span, part, scale);
    }
    for (int i = threadIdx.x; i < v.units * 2; i += WHOLE_THREADS) {
        const int unit = a.first + i / 2;
        float *to = i % 2 ? v.dgain : v.dbias;
        if (to && unit < v.width) to[unit] = a.units[i / 2][i % 2];
    }
    a.take(v, v.dsums, scale);
    for (int span = 0; span < spans; span++) {
        const int n = span * SPAN + a.lane * VEC;
        const statistics<VEC> st(a.st + n, v.columns, 0);
        float mean[VEC], product[VEC];
        load(mean, a.means + n);
        load(product, a.means + v.columns + n);
#pragma unroll 2
        for (int unit = a.first + a.warp; unit < a.last; unit += WHOLE_WARPS) {
            const float gain = gain_of(v, 0, unit);
            const packet<T, VEC> kept = a.row(1, v, unit, n);
            float value[VEC], d[VEC];
            unpack(a.row(0, v, unit, n), value);
            st.normalise(value);
#pragma unroll
            for (int k = 0; k < VEC; k++) {
                d[k] = (gain * kept.value(k) - mean[k] - value[k] * product[k]) * st.scale[k];
            }
            store(v.raw + (state_row(v, unit) + n), d);
        }
    }
}

/* ----------------------------------------------------------------------------------- launches */

/* Chooses the units of a thread block so that `resident` thread blocks on each multiprocessor take
 * all units, or several rounds of them do. `shared`: bytes of shared memory. */
template <typename T>
static void launch(backend *be, void (*kernel)(const view<T>), view<T> v, int resident,
                   size_t shared, const char *what) {
    int blocks = cuda_of(be)->processors * resident;
    while (v.width > blocks * MOST_UNITS) blocks *= 2;
    v.units = (v.width + blocks - 1) / blocks;
    v.units = (v.units + WARPS - 1) / WARPS * WARPS;
    blocks = (v.width + v.units - 1) / v.units;
    cuda_allow_shared(be, (const void *)kernel, shared);
    kernel<<<blocks, THREADS, shared, cuda_of(be)->stream>>>(v);
    cuda_launched(be, what);
}

/* Launches KERNEL<T, 4> where rows are whole spans of 128 columns, else KERNEL<T, 2>. */
#define LAUNCH(be, KERNEL, v, resident, shared4, shared2, what)                                    \
    do {                                                                                           \
        if ((v).columns % 128 == 0) {                                                              \
            launch(be, KERNEL<T, 4>, v, resident, shared4, what);                                  \
        } else {                                                                                   \
            launch(be, KERNEL<T, 2>, v, resident, shared2, what);                                  \
        }                                                                                          \
    } while (0)

static_assert(COLUMN_MULTIPLE % 64 == 0, "rows are whole spans of 64 columns");

/* Bytes of [arrays] of a float for every column. */
template <typename T> static size_t per_column(const view<T> &v, int arrays) {
    return (size_t)arrays * v.columns * sizeof(float);
}

static int whole_units(const backend *be, const stage *g) {
    const int most = min(cuda_of((backend *)(uintptr_t)be)->processors, (int)COUNTED_PARTS);
    return (g->units + most - 1) / most;
}

/* Launches a whole stage. The kernel before it in a sequence is a product, which writes nothing
 * that this one reads before it waits, so it starts early. */
template <typename T, int VEC> static void launch_whole(backend *be, view<T> v, bool forward) {
    const int blocks = (v.width + v.units - 1) / v.units;
    const char *name = forward ? "activate" : "activate_backward";
    v.stuck = cuda_stuck_word(be, name);
    cuda_launch_together(
        be, name, true, forward ? whole_activate_kernel<T, VEC> : whole_backward_kernel<T, VEC>,
        blocks, WHOLE_THREADS,
        forward ? whole_stage<T, VEC, 1>::bytes(v) : whole_stage<T, VEC, 2>::bytes(v), v);
}

template <typename T>
static void run_whole(backend *be, const cell *c, int s, int t, bool forward) {
    view<T> v = view_step<T>(be, c, s, t);
    v.units = whole_units(be, &c->stage[s]);
    if (v.columns % 128 == 0) {
        launch_whole<T, 4>(be, v, forward);
    } else {
        launch_whole<T, 2>(be, v, forward);
    }
}

/* Whether the rows fit that a thread block keeps. All internal stages have layer norm, or none, and
 * they are equally wide. */
template <typename T> static bool whole_fits(const backend *be, const cell *c, bool forward) {
    view<T> v = {};
    if (c->stages < 2 || !c->stage[0].layer_norm) return false;
    v.columns = c->columns;
    v.units = whole_units(be, &c->stage[0]);
    return (forward ? whole_stage<T, 4, 1>::bytes(v) : whole_stage<T, 4, 2>::bytes(v)) <=
           cuda_of((backend *)(uintptr_t)be)->shared_limit;
}

bool whole_stages_fit(const backend *be, const cell *c, bool forward) {
    return DISPATCH(be, whole_fits, be, c, forward);
}

void activate_whole_run(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_whole, be, c, s, t, true);
}

void activate_backward_whole_run(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_whole, be, c, s, t, false);
}

template <typename T> static void run_activate(backend *be, const cell *c, int s, int t) {
    view<T> v = view_step<T>(be, c, s, t);
    LAUNCH(be, activate_kernel, v, 4, per_column(v, 2), per_column(v, 2), "activate");
}

template <typename T> static void run_activate_backward(backend *be, const cell *c, int s, int t) {
    view<T> v = view_step<T>(be, c, s, t);
    size_t st = per_column(v, 2);
    LAUNCH(be, activate_backward_kernel, v, 2, st + sizeof(backward_sums<128>),
           st + sizeof(backward_sums<64>), "activate_backward");
}

template <typename T> static void run_norm_backward(backend *be, const cell *c, int s, int t) {
    view<T> v = view_step<T>(be, c, s, t);
    LAUNCH(be, norm_backward_kernel, v, 4, per_column(v, 4), per_column(v, 4), "norm_backward");
}

void cuda_zero_dsums(backend *be, const cell *c, int s, int t) {
    const stage *g = &c->stage[s];
    size_t step = cuda_sums_bytes(be, g->gates, c->columns);
    if (g->layer_norm) {
        cuda_zero_sums(be, (char *)g->dsums + t * step, g->gates, c->columns);
    }
}

void cuda_activate(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_activate, be, c, s, t);
}

void activate_backward_run(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_activate_backward, be, c, s, t);
}

void cuda_activate_backward(backend *be, const cell *c, int s, int t) {
    cuda_zero_dsums(be, c, s, t);
    activate_backward_run(be, c, s, t);
}

void cuda_norm_backward(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_norm_backward, be, c, s, t);
}

/* --------------------------------------------------------------------------------- add_rows */

enum { ADD_THREADS = 256 };

/* Four columns a thread; columns are a multiple of 64. Floor: 3 elements of memory traffic each. */
template <typename T>
static __global__ void __launch_bounds__(ADD_THREADS)
    add_rows_kernel(const T *x, size_t count, T *y) {
    const size_t i = 4 * ((size_t)blockIdx.x * ADD_THREADS + threadIdx.x);
    float a[4], b[4];
    if (i >= count) return;
    load(a, x + i);
    load(b, y + i);
#pragma unroll
    for (int k = 0; k < 4; k++) a[k] += b[k];
    store(y + i, a);
}

template <typename T>
static void run_add_rows(backend *be, const layout *l, const void *x, int columns, void *y) {
    const size_t count = layout_rows(l) * columns, each = 4 * ADD_THREADS;
    add_rows_kernel<T>
        <<<(unsigned)((count + each - 1) / each), ADD_THREADS, 0, cuda_of(be)->stream>>>(
            (const T *)x, count, (T *)y);
    cuda_launched(be, "add rows");
}

/* The same with layer norm's sums of the result as stored. A thread block takes 64 rows of one gate
 * and a span of 64 columns, four columns a thread. */
template <typename T>
static __global__ void __launch_bounds__(ADD_THREADS)
    add_with_sums_kernel(const T *x, T *y, int units, int gates, int block, int columns,
                         fixed *sums) {
    const int VEC = 4, WIDE = SUM_COLUMNS / VEC, LANES = ADD_THREADS / WIDE;
    __shared__ __align__(16) float parts[LANES][2][SUM_COLUMNS];
    const int column = threadIdx.x % WIDE * VEC, part = threadIdx.x / WIDE, gate = blockIdx.z;
    const int first = blockIdx.x * SUM_ROWS, last = min(first + SUM_ROWS, units);
    const int from = blockIdx.y * SUM_COLUMNS;
    float total[VEC] = {}, square[VEC] = {};
    for (int unit = first + part; unit < last; unit += LANES) {
        const size_t row = (size_t)(unit / block * gates + gate) * block + unit % block;
        const size_t at = row * columns + from + column;
        float a[VEC], b[VEC];
        packet<T, VEC> stored;
        load(a, x + at);
        load(b, y + at);
#pragma unroll
        for (int k = 0; k < VEC; k++) a[k] += b[k];
        pack(stored, a);
        store_packet(y + at, stored);
        unpack(stored, a);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            total[k] += a[k];
            square[k] += a[k] * a[k];
        }
    }
    store_shared(&parts[part][0][column], total);
    store_shared(&parts[part][1][column], square);
    __syncthreads();
    if (threadIdx.x >= 2 * SUM_COLUMNS) return;
    const int which = threadIdx.x / SUM_COLUMNS, n = threadIdx.x % SUM_COLUMNS;
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += parts[i][which][n];
    add_fixed(sums + gate * sums_gate(columns), columns, which, from + n, sum,
              which ? SCALE_SQUARE : SCALE_SUM);
}

template <typename T>
static void run_add_with_sums(backend *be, const layout *l, const void *x, int columns, void *y,
                              void *sums) {
    const int units = l->out_nodes * l->out_block;
    const dim3 grid((units + SUM_ROWS - 1) / SUM_ROWS, columns / SUM_COLUMNS, l->gates);
    add_with_sums_kernel<T><<<grid, ADD_THREADS, 0, cuda_of(be)->stream>>>(
        (const T *)x, (T *)y, units, l->gates, l->out_block, columns, (fixed *)sums);
    cuda_launched(be, "add rows");
}

void add_rows_run(backend *be, const device_layout *device, const void *x, int columns, void *y,
                  void *sums) {
    const layout *l = &device->host;
    if (sums) {
        DISPATCH(be, run_add_with_sums, be, l, x, columns, y, sums);
    } else {
        DISPATCH(be, run_add_rows, be, l, x, columns, y);
    }
}

void cuda_add_rows(backend *be, const device_layout *device, const void *x, int columns, void *y,
                   void *sums) {
    if (sums) cuda_zero_sums(be, sums, device->host.gates, columns);
    add_rows_run(be, device, x, columns, y, sums);
}
