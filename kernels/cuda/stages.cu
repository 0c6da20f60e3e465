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
#include "stages.cuh"

enum { WARPS = 8, THREADS = WARPS * 32, MOST_UNITS = 128 };

/* What backward adds up: over the columns of each unit, and over the units of each column. */
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
        bool there = !v.start && from && unit < v.hidden;
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
        if (to && unit < v.hidden) to[unit] = sums->units[i / 2][i % 2];
    }
}

/* Adds one unit's sums over the lanes; one warp owns the unit. */
template <int SPAN>
static __device__ inline void add_unit(backward_sums<SPAN> *sums, int unit, float (&values)[2]) {
    const int lane = threadIdx.x % 32;
    warp_sums(values);
    if (lane % 16 == 0) sums->units[unit][lane / 16] += values[0];
}

/* One span's sums over the thread block's units, to the totals. */
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

template <typename T, int VEC>
static __global__ void __launch_bounds__(THREADS)
    activate_kernel(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float st[];
    for (int n = threadIdx.x; n < v.columns; n += THREADS) {
        make_statistics<1>(v, 0, n, v.columns, st + n);
    }
    __syncthreads();
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.hidden);
    for (int unit = first + warp; unit < last; unit += WARPS) {
        float gain = gain_of(v, 0, unit), bias = bias_of(v, 0, unit);
        const T *table = unit_table(v, unit);
        for (int n = lane * VEC; n < v.columns; n += 32 * VEC) {
            size_t at = (size_t)unit * v.columns + n;
            float y[VEC];
            const uint32_t bytes = load_bytes<VEC>(v.bytes + n);
            load(y, v.raw + at);
            statistics<VEC>(st + n, v.columns, 0).normalise(y);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                y[i] = gain * y[i] + bias;
                if (table && v.use == TABLE_ADD) y[i] += to_float(table[byte_of(bytes, i)]);
                if (table && v.use == TABLE_MULTIPLY) y[i] *= to_float(table[byte_of(bytes, i)]);
                if (v.relu && y[i] < 0) y[i] = 0;
            }
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
    int last = min(first + v.units, v.hidden);
    for (int span = 0; span < v.columns / SPAN; span++) {
        int n = span * SPAN + lane * VEC;
        float part[2][VEC] = {};
        const uint32_t bytes = load_bytes<VEC>(v.bytes + n);
#pragma unroll 1
        for (int unit = first + warp; unit < last; unit += WARPS) {
            size_t at = (size_t)unit * v.columns + n;
            float gain = gain_of(v, 0, unit), bias = bias_of(v, 0, unit);
            const T *table = unit_table(v, unit);
            float value[VEC], d[VEC], y[VEC], unit_sums[2] = {};
            load(value, v.raw + at);
            load(d, v.dx + at);
            statistics<VEC>(st + n, v.columns, 0).normalise(value);
            if (v.relu) {
                load(y, v.out + at);
#pragma unroll
                for (int i = 0; i < VEC; i++) d[i] = y[i] > 0 ? d[i] : 0;
            }
            if (v.use == TABLE_MULTIPLY) {
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    y[i] = table ? d[i] * (gain * value[i] + bias) : 0;
                    if (table) d[i] *= to_float(table[byte_of(bytes, i)]);
                }
                store(v.dentry + at, y);
            }
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
    int last = min(first + v.units, v.hidden);
    for (int n = lane * VEC; n < v.columns; n += 32 * VEC) {
        statistics<VEC> kept(st + n, v.columns, 0);
        float mean[VEC], product[VEC];
        load(mean, means + n);
        load(product, means + v.columns + n);
#pragma unroll 2
        for (int unit = first + warp; unit < last; unit += WARPS) {
            float value[VEC], d[VEC], gain = gain_of(v, 0, unit);
            size_t at = (size_t)unit * v.columns + n;
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

/* ----------------------------------------------------------------------------------- launches */

/* As many units a thread block as fill `resident` thread blocks a multiprocessor once, or more
 * often. `shared`: bytes of shared memory. */
template <typename T>
static void launch(backend *be, void (*kernel)(const view<T>), view<T> v, int resident,
                   size_t shared, const char *what) {
    int blocks = cuda_of(be)->processors * resident;
    while (v.hidden > blocks * MOST_UNITS) blocks *= 2;
    v.units = (v.hidden + blocks - 1) / blocks;
    v.units = (v.units + WARPS - 1) / WARPS * WARPS;
    blocks = (v.hidden + v.units - 1) / v.units;
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

void cuda_activate_backward(backend *be, const cell *c, int s, int t) {
    cuda_zero_dsums(be, c, s, t);
    DISPATCH(be, run_activate_backward, be, c, s, t);
}

void cuda_norm_backward(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_norm_backward, be, c, s, t);
}

/* -------------------------------------------------------------------------------------- sums */

size_t cuda_sums_bytes(backend *be, int gates, int columns) {
    (void)be;
    return gates * sums_gate(columns) * sizeof(fixed);
}

void cuda_zero_sums(backend *be, void *sums, int gates, int columns) {
    if (cuda_of(be)->sums_are_zero) return;
    be->zero(be, sums, cuda_sums_bytes(be, gates, columns));
}

/* A thread block takes 64 rows of one gate and a span of 64 columns. */
enum { SUM_ROWS = 64, SUM_COLUMNS = 64, SUM_LANES = 4 };

template <typename T>
static __global__ void sums_kernel(const T *y, int nodes, int gates, int block, int columns,
                                   fixed *sums) {
    __shared__ float parts[SUM_LANES][2][SUM_COLUMNS];
    int column = threadIdx.x % SUM_COLUMNS, part = threadIdx.x / SUM_COLUMNS;
    int n = blockIdx.y * SUM_COLUMNS + column, gate = blockIdx.z % gates, t = blockIdx.z / gates;
    int units = nodes * block, first = blockIdx.x * SUM_ROWS;
    int last = min(first + SUM_ROWS, units);
    float total = 0, square = 0;
    y += (size_t)t * gates * units * columns;
    for (int unit = first + part; unit < last; unit += SUM_LANES) {
        size_t row = (size_t)(unit / block * gates + gate) * block + unit % block;
        float value = to_float(y[row * columns + n]);
        total += value;
        square += value * value;
    }
    parts[part][0][column] = total;
    parts[part][1][column] = square;
    __syncthreads();
    if (part) return;
    for (int i = 1; i < SUM_LANES; i++) {
        total += parts[i][0][column];
        square += parts[i][1][column];
    }
    fixed *to = sums + blockIdx.z * sums_gate(columns);
    add_fixed(to, columns, 0, n, total, SCALE_SUM);
    add_fixed(to, columns, 1, n, square, SCALE_SQUARE);
}

template <typename T>
static void run_sums(backend *be, const layout *l, const void *y, int steps, int columns,
                     void *sums) {
    int units = l->out_nodes * l->out_block;
    dim3 grid((units + SUM_ROWS - 1) / SUM_ROWS, columns / SUM_COLUMNS, l->gates * steps);
    sums_kernel<T><<<grid, SUM_COLUMNS * SUM_LANES, 0, cuda_of(be)->stream>>>(
        (const T *)y, l->out_nodes, l->gates, l->out_block, columns, (fixed *)sums);
    cuda_launched(be, "column sums");
}

void cuda_column_sums(backend *be, const layout *l, const void *y, int steps, int columns,
                      void *sums) {
    DISPATCH(be, run_sums, be, l, y, steps, columns, sums);
}

/* ---------------------------------------------------------------------------------- sequences
 * As the steps in kernels/cell.c, with all sums zeroed and the gates' table interleaved at once. */

static void zero_all(backend *be, const cell *c, bool backward) {
    for (int s = 0; s < c->stages; s++) {
        const stage *g = &c->stage[s];
        if (!g->layer_norm) continue;
        cuda_zero_sums(be, backward ? g->dsums : g->sums, g->gates * c->steps, c->columns);
    }
}

void cuda_cell_forward(backend *be, const cell *c) {
    zero_all(be, c, false);
    cuda_gates_table(be, c);
    cuda_of(be)->sums_are_zero = cuda_of(be)->entries_are_made = true;
    cell_forward_steps(be, c);
    cuda_of(be)->sums_are_zero = cuda_of(be)->entries_are_made = false;
}

void cuda_cell_backward(backend *be, const cell *c) {
    zero_all(be, c, true);
    cuda_of(be)->sums_are_zero = cuda_of(be)->entries_are_made = true; /* the latter by forward */
    cell_backward_steps(be, c);
    cuda_of(be)->sums_are_zero = cuda_of(be)->entries_are_made = false;
}
