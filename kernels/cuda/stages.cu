/* What a cell does between products: layer norm, the input table, activations and gates, forward
 * and backward. The equations stand in ops.h, those of layer norm's gradient in
 * kernels/cpu/stages.c.
 *
 * Floors, in bytes a unit and stream (bf16): gates 8 raw + 8 c + 2 h; gates_backward 8 raw + 8 dpre
 * + 4 c + 8 dc + 4 dh, dx; norm_backward 24. Besides, tables' rows of 512 bytes, one a unit and
 * gate, of which text touches about half: gathering them beats copying whole rows to shared memory.
 *
 * A warp takes a unit at a time and walks its columns, VEC to a lane, so that a row is read in one
 * stretch and sums over the columns stay within the warp. A thread block takes `units` units, keeps
 * the statistics of all columns in shared memory, and adds up the sums over its units before it
 * adds them to the totals. A column's byte selects a table entry out of one row, which stays in L1.
 */
#include "cuda.h"
#include "ptx.cuh"

extern "C" {
#include "core/philox.h"
}

enum { WARPS = 8, THREADS = WARPS * 32, MOST_UNITS = 128 };

/* One step of a stage, as a kernel sees it. */
template <typename T> struct view {
    int hidden, columns, gates, units; /* units: of a thread block, at most MOST_UNITS */
    int log_block, node_rows; /* a node's first row lies node_rows after its first unit's number */
    size_t gate_rows, gate_table; /* elements from one gate of a unit to the next */
    bool layer_norm, relu;
    bool start, asked; /* dgain and dbias start here; dx asks something of h */
    table_use use;
    int stride;
    const float *gain, *bias;
    const T *table;
    T *raw, *out, *dpre, *dentry;
    fixed *sums, *dsums;
    float *dgain, *dbias;
    const uint8_t *bytes;
    /* gates only */
    const float *c_before;
    float *c_after, *dc;
    T *h;
    const T *dh, *dx;
    float dropout;
    uint64_t seed;
    const update_arguments *arguments;
    int t;
};

template <typename T> static T *offset(void *array, size_t count) {
    return array ? (T *)array + count : NULL;
}

template <typename T> static view<T> view_step(backend *be, const cell *c, int s, int t) {
    const stage *g = &c->stage[s];
    size_t columns = c->columns, gates = g->gates, plane = (size_t)c->hidden * columns;
    size_t kept = c->keep ? t : 0, sums = gates * sums_gate(c->columns);
    view<T> v = {};
    v.hidden = c->hidden;
    v.columns = c->columns;
    v.gates = g->gates;
    v.log_block =
        g->block < c->hidden ? log2_of(g->block) : 31; /* one node of any size: number 0 */
    v.node_rows = (g->gates - 1) * g->block;
    v.gate_rows = (size_t)g->block * columns;
    v.gate_table = (size_t)(c->hidden / g->table_stride) * VOCABULARY;
    v.layer_norm = g->layer_norm;
    v.relu = g->relu;
    v.start = t == c->steps - 1;
    v.asked = !v.start || c->more_after;
    v.use = g->table_use;
    v.stride = g->table_stride;
    v.gain = (const float *)g->gain;
    v.bias = (const float *)g->bias;
    v.table = (const T *)g->table;
    v.raw = offset<T>(g->raw, kept * gates * plane);
    v.out = offset<T>(g->out, kept * plane);
    v.dpre = offset<T>(g->dpre, kept * gates * plane);
    v.dentry = offset<T>(g->dentry, kept * gates * plane);
    v.sums = offset<fixed>(g->sums, kept * sums);
    v.dsums = offset<fixed>(g->dsums, kept * sums);
    v.dgain = (float *)g->dgain;
    v.dbias = (float *)g->dbias;
    v.bytes = c->bytes + (size_t)t * columns;
    v.c_before = offset<float>(c->c, t * plane);
    v.c_after = offset<float>(c->c, (t + 1) * plane);
    v.h = offset<T>(c->h, (t + 1) * plane);
    v.dh = offset<T>(c->dh, t * plane);
    v.dx = (const T *)c->dx;
    v.dc = (float *)c->dc;
    v.dropout = (float)c->dropout;
    v.seed = c->seed;
    v.arguments = c->arguments;
    v.t = c->first + t;
    return v;
}

/* ---------------------------------------------------------------------------- device helpers */

/* For bf16 results two instructions' error of 2^-22 is nothing. For fp32 ones tanh goes near 0 by
 * an odd polynomial, where the difference would cancel; as the CPU does it. */
template <typename T> static __device__ inline float sigmoid_(float x) {
    if (sizeof(T) == 2) return reciprocal(1 + exponential2(-1.4426950f * x));
    return __fdividef(1, 1 + __expf(-x));
}

template <typename T> static __device__ inline float tanh_(float x) {
    if (sizeof(T) == 2) return 1 - 2 * reciprocal(1 + exponential2(2.8853901f * x));
    float z = x * x;
    float p = -0.0060536987f;
    p = p * z + 0.0209681876f;
    p = p * z - 0.0538449883f;
    p = p * z + 0.133327335f;
    p = p * z - 0.333333284f;
    float far = 1 - __fdividef(2, 1 + __expf(2 * fminf(x, 40.0f)));
    return z < 0.36f ? x + x * z * p : far;
}

/* VEC neighbouring columns. */
template <int VEC, typename T> static __device__ inline void load(float (&x)[VEC], const T *from) {
    struct alignas(VEC * sizeof(T)) packet {
        T value[VEC];
    } p = *(const packet *)from;
#pragma unroll
    for (int i = 0; i < VEC; i++) x[i] = to_float(p.value[i]);
}

template <int VEC, typename T> static __device__ inline void store(T *to, const float (&x)[VEC]) {
    struct alignas(VEC * sizeof(T)) packet {
        T value[VEC];
    } p;
#pragma unroll
    for (int i = 0; i < VEC; i++) p.value[i] = from_float<T>(x[i]);
    *(packet *)to = p;
}

template <int VEC>
static __device__ inline void load_bytes(uint8_t (&x)[VEC], const uint8_t *from) {
    struct alignas(VEC) packet {
        uint8_t value[VEC];
    } p = *(const packet *)from;
#pragma unroll
    for (int i = 0; i < VEC; i++) x[i] = p.value[i];
}

/* Where a unit's row of gate 0 begins. */
template <typename T> static __device__ inline size_t unit_row(const view<T> &v, int unit) {
    return (size_t)(unit + (unit >> v.log_block) * v.node_rows) * v.columns;
}

/* A unit's table of gate 0; NULL if it has none. */
template <typename T> static __device__ inline const T *unit_table(const view<T> &v, int unit) {
    if (v.use == TABLE_NONE) return NULL;
    if (v.stride == 1) return v.table + (size_t)unit * VOCABULARY;
    return unit % v.stride ? NULL : v.table + (size_t)(unit / v.stride) * VOCABULARY;
}

/* Mean and 1 / deviation of every gate and column into shared memory: [gates][2][columns]. Forward
 * makes them from the sums, and its first thread block keeps them for backward, which reads them.
 */
template <typename T> static __device__ void make_statistics(const view<T> &v, float *st) {
    for (int i = threadIdx.x; i < v.gates * v.columns; i += THREADS) {
        int gate = i / v.columns, n = i % v.columns;
        float mean = 0, scale = 1;
        if (v.layer_norm) {
            fixed *sums = v.sums + gate * sums_gate(v.columns);
            mean = read_fixed(sums, v.columns, 0, n, SCALE_SUM) / v.hidden;
            float square = read_fixed(sums, v.columns, 1, n, SCALE_SQUARE) / v.hidden;
            float variance = square - mean * mean;
            if (variance < 0) variance = 0; /* by rounding; NaN stays NaN */
            scale = rsqrtf(variance + 1e-6f);
            if (blockIdx.x == 0) {
                kept_statistics(sums, v.columns)[n] = mean;
                kept_statistics(sums, v.columns)[v.columns + n] = scale;
            }
        }
        st[gate * 2 * v.columns + n] = mean;
        st[(gate * 2 + 1) * v.columns + n] = scale;
    }
    __syncthreads();
}

template <typename T> static __device__ void read_statistics(const view<T> &v, float *st) {
    for (int i = threadIdx.x; i < v.gates * 2 * v.columns; i += THREADS) {
        int gate = i / (2 * v.columns), at = i % (2 * v.columns);
        st[i] = at >= v.columns;
        if (v.layer_norm)
            st[i] = kept_statistics(v.sums + gate * sums_gate(v.columns), v.columns)[at];
    }
    __syncthreads();
}

/* Of VEC columns of one gate. */
template <int VEC> struct statistics {
    float mean[VEC], scale[VEC];

    __device__ statistics(const float *st, int columns, int gate, int n) {
        load(mean, st + gate * 2 * columns + n);
        load(scale, st + (gate * 2 + 1) * columns + n);
    }

    __device__ void normalise(float (&x)[VEC]) const {
#pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = (x[i] - mean[i]) * scale[i];
    }
};

template <typename T> static __device__ inline float gain_of(const view<T> &v, int gate, int unit) {
    return v.gain ? v.gain[gate * v.hidden + unit] : 1;
}

template <typename T> static __device__ inline float bias_of(const view<T> &v, int gate, int unit) {
    return v.bias ? v.bias[gate * v.hidden + unit] : 0;
}

/* What backward adds up: over the columns of each unit, and over the units of each column. */
template <int GATES_, int SPAN> struct backward_sums {
    float units[MOST_UNITS][GATES_][2]; /* of dpre, and of dpre times the normalised raw */
    float features[WARPS][GATES_ * 2][SPAN];
};

/* Sums K values over a warp's lanes at once, halving the values a lane holds at each exchange; the
 * total of value k ends up in x[0] of the lanes with lane / (32 / K) == k. K is a power of two. */
template <int K> static __device__ inline void warp_sums(float (&x)[K]) {
    int lane = threadIdx.x % 32, step = 16;
#pragma unroll
    for (int half = K / 2; half > 0; half /= 2, step /= 2) {
        bool upper = lane & step;
#pragma unroll
        for (int i = 0; i < half; i++) {
            float kept = upper ? x[half + i] : x[i], given = upper ? x[i] : x[half + i];
            x[i] = kept + __shfl_xor_sync(~0u, given, step);
        }
    }
    for (; step > 0; step /= 2) x[0] += __shfl_xor_sync(~0u, x[0], step);
}

/* The gradients of the thread block's gains and biases so far; the last step starts from zero. */
template <int GATES_, int SPAN, typename T>
static __device__ void start_units(const view<T> &v, backward_sums<GATES_, SPAN> *sums) {
    for (int i = threadIdx.x; i < v.units * GATES_ * 2; i += THREADS) {
        int unit = blockIdx.x * v.units + i / (GATES_ * 2), gate = i / 2 % GATES_;
        const float *from = i % 2 ? v.dgain : v.dbias;
        bool there = !v.start && from && unit < v.hidden;
        (&sums->units[0][0][0])[i] = there ? from[gate * v.hidden + unit] : 0;
    }
    __syncthreads();
}

template <int GATES_, int SPAN, typename T>
static __device__ void finish_units(const view<T> &v, const backward_sums<GATES_, SPAN> *sums) {
    __syncthreads();
    for (int i = threadIdx.x; i < v.units * GATES_ * 2; i += THREADS) {
        int unit = blockIdx.x * v.units + i / (GATES_ * 2), gate = i / 2 % GATES_;
        float *to = i % 2 ? v.dgain : v.dbias;
        if (to && unit < v.hidden) to[gate * v.hidden + unit] = (&sums->units[0][0][0])[i];
    }
}

/* Adds one unit's sums over the lanes; one warp owns the unit. */
template <int GATES_, int SPAN>
static __device__ inline void add_unit(backward_sums<GATES_, SPAN> *sums, int unit,
                                       float (&values)[GATES_ * 2]) {
    const int K = GATES_ * 2, lane = threadIdx.x % 32;
    warp_sums(values);
    if (lane % (32 / K) == 0) (&sums->units[unit][0][0])[lane / (32 / K)] += values[0];
}

/* One span's sums over the thread block's units, to the totals. */
template <int GATES_, int SPAN, int VEC, typename T>
static __device__ void add_features(const view<T> &v, backward_sums<GATES_, SPAN> *sums, int span,
                                    const float (&part)[GATES_ * 2][VEC]) {
    if (!v.layer_norm) return;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < GATES_ * 2; i++) store(&sums->features[warp][i][lane * VEC], part[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < GATES_ * 2 * SPAN; i += THREADS) {
        int value = i / SPAN, column = i % SPAN;
        float total = 0;
        for (int w = 0; w < WARPS; w++) total += sums->features[w][value][column];
        add_fixed(v.dsums + value / 2 * sums_gate(v.columns), v.columns, value % 2,
                  span * SPAN + column, total, SCALE_DSUM);
    }
    __syncthreads();
}

/* ------------------------------------------------------------------------------------- gates */

template <int VEC> struct gate_values {
    float value[GATES][VEC]; /* normalised, before gain */
    float i[VEC], f[VEC], o[VEC], u[VEC], dropout[VEC];
};

template <int VEC, typename T>
static __device__ inline void dropout_scale(const view<T> &v, int unit, int n,
                                            float (&scale)[VEC]) {
    uint32_t threshold = (uint32_t)((double)v.dropout * 4294967296.0);
    float kept = 1 / (1 - v.dropout);
    philox_block block = philox(v.seed, (uint32_t)unit, (uint32_t)n / 4,
                                (uint32_t)v.arguments->update, PHILOX_PURPOSE(PHILOX_DROPOUT, v.t));
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        uint32_t word = VEC == 4 || n % 4 == 0 ? block.word[i] : block.word[(2 + i) % 4];
        scale[i] = word < threshold ? 0 : kept;
    }
}

template <int VEC, typename T>
static __device__ inline void compute_gates(const view<T> &v, const float *st, int unit, int n,
                                            const uint8_t (&bytes)[VEC], gate_values<VEC> &q) {
    float z[GATES][VEC];
    const T *raw = v.raw + unit_row(v, unit) + n, *table = unit_table(v, unit);
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) load(q.value[gate], raw + gate * v.gate_rows);
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) {
        float gain = gain_of(v, gate, unit), bias = bias_of(v, gate, unit);
        statistics<VEC>(st, v.columns, gate, n).normalise(q.value[gate]);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            z[gate][i] = gain * q.value[gate][i] + bias;
            if (table) z[gate][i] += to_float(table[gate * v.gate_table + bytes[i]]);
        }
    }
    if (v.dropout > 0) {
        dropout_scale(v, unit, n, q.dropout);
#pragma unroll
        for (int i = 0; i < VEC; i++) z[GATE_U][i] *= q.dropout[i];
    }
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        q.i[i] = sigmoid_<T>(z[GATE_I][i]);
        q.f[i] = sigmoid_<T>(z[GATE_F][i]);
        q.o[i] = sigmoid_<T>(z[GATE_O][i]);
        q.u[i] = tanh_<T>(z[GATE_U][i]);
    }
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(THREADS, 4)
    gates_kernel(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float st[];
    make_statistics(v, st);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.hidden);
    for (int n = lane * VEC; n < v.columns; n += 32 * VEC) {
        uint8_t bytes[VEC];
        load_bytes(bytes, v.bytes + n);
#pragma unroll 1
        for (int unit = first + warp; unit < last; unit += WARPS) {
            size_t at = (size_t)unit * v.columns + n;
            gate_values<VEC> q;
            float state[VEC], h[VEC];
            load(state, v.c_before + at);
            compute_gates(v, st, unit, n, bytes, q);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                state[i] = q.f[i] * state[i] + q.i[i] * q.u[i];
                h[i] = q.o[i] * tanh_<T>(state[i]);
            }
            store(v.c_after + at, state);
            store(v.h + at, h);
        }
    }
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(THREADS, 2)
    gates_backward_kernel(const __grid_constant__ view<T> v) {
    const int SPAN = 32 * VEC;
    typedef backward_sums<GATES, SPAN> sums_type;
    extern __shared__ __align__(16) float st[];
    sums_type *sums = (sums_type *)(st + GATES * 2 * v.columns);
    read_statistics(v, st);
    start_units(v, sums);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.hidden);
    for (int span = 0; span < v.columns / SPAN; span++) {
        int n = span * SPAN + lane * VEC;
        float part[GATES * 2][VEC] = {};
        uint8_t bytes[VEC];
        load_bytes(bytes, v.bytes + n);
#pragma unroll 1
        for (int unit = first + warp; unit < last; unit += WARPS) {
            size_t at = (size_t)unit * v.columns + n;
            gate_values<VEC> q;
            float before[VEC], dh[VEC], dx[VEC] = {}, dc[VEC], d[GATES][VEC];
            load(before, v.c_before + at);
            load(dh, v.dh + at);
            load(dc, v.dc + at);
            if (v.asked) load(dx, v.dx + at);
            compute_gates(v, st, unit, n, bytes, q);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                float gradient = dh[i] + dx[i]; /* c_after is made anew, as forward made it */
                float squashed = tanh_<T>(q.f[i] * before[i] + q.i[i] * q.u[i]);
                float state = dc[i] + gradient * q.o[i] * (1 - squashed * squashed);
                d[GATE_I][i] = state * q.u[i] * q.i[i] * (1 - q.i[i]);
                d[GATE_F][i] = state * before[i] * q.f[i] * (1 - q.f[i]);
                d[GATE_O][i] = gradient * squashed * q.o[i] * (1 - q.o[i]);
                d[GATE_U][i] = state * q.i[i] * (1 - q.u[i] * q.u[i]);
                dc[i] = state * q.f[i];
                if (v.dropout > 0) d[GATE_U][i] *= q.dropout[i];
            }
            store(v.dc + at, dc);
            float unit_sums[GATES * 2] = {};
            T *dpre = v.dpre + unit_row(v, unit) + n;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                float gain = gain_of(v, gate, unit);
                store(dpre + gate * v.gate_rows, d[gate]);
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    float kept = to_float(from_float<T>(d[gate][i]));
                    float product = kept * q.value[gate][i];
                    unit_sums[gate * 2] += kept;
                    unit_sums[gate * 2 + 1] += product;
                    part[gate * 2][i] += gain * kept;
                    part[gate * 2 + 1][i] += gain * product;
                }
            }
            add_unit(sums, unit - first, unit_sums);
        }
        add_features(v, sums, span, part);
    }
    finish_units(v, sums);
}

/* --------------------------------------------------------------------------- internal stages */

template <typename T, int VEC>
static __global__ void __launch_bounds__(THREADS)
    activate_kernel(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float st[];
    make_statistics(v, st);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.hidden);
    for (int unit = first + warp; unit < last; unit += WARPS) {
        float gain = gain_of(v, 0, unit), bias = bias_of(v, 0, unit);
        const T *table = unit_table(v, unit);
        for (int n = lane * VEC; n < v.columns; n += 32 * VEC) {
            size_t at = (size_t)unit * v.columns + n;
            float y[VEC];
            uint8_t bytes[VEC];
            load(y, v.raw + at);
            load_bytes(bytes, v.bytes + n);
            statistics<VEC>(st, v.columns, 0, n).normalise(y);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                y[i] = gain * y[i] + bias;
                if (table && v.use == TABLE_ADD) y[i] += to_float(table[bytes[i]]);
                if (table && v.use == TABLE_MULTIPLY) y[i] *= to_float(table[bytes[i]]);
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
    typedef backward_sums<1, SPAN> sums_type;
    extern __shared__ __align__(16) float st[];
    sums_type *sums = (sums_type *)(st + 2 * v.columns);
    read_statistics(v, st);
    start_units(v, sums);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.hidden);
    for (int span = 0; span < v.columns / SPAN; span++) {
        int n = span * SPAN + lane * VEC;
        float part[2][VEC] = {};
        uint8_t bytes[VEC];
        load_bytes(bytes, v.bytes + n);
#pragma unroll 1
        for (int unit = first + warp; unit < last; unit += WARPS) {
            size_t at = (size_t)unit * v.columns + n;
            float gain = gain_of(v, 0, unit), bias = bias_of(v, 0, unit);
            const T *table = unit_table(v, unit);
            float value[VEC], d[VEC], y[VEC], unit_sums[2] = {};
            load(value, v.raw + at);
            load(d, v.dx + at);
            statistics<VEC>(st, v.columns, 0, n).normalise(value);
            if (v.relu) {
                load(y, v.out + at);
#pragma unroll
                for (int i = 0; i < VEC; i++) d[i] = y[i] > 0 ? d[i] : 0;
            }
            if (v.use == TABLE_MULTIPLY) {
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    y[i] = table ? d[i] * (gain * value[i] + bias) : 0;
                    if (table) d[i] *= to_float(table[bytes[i]]);
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
    extern __shared__ __align__(16) float st[]; /* statistics; [gates][2][columns] means of dsums */
    float *means = st + v.gates * 2 * v.columns;
    for (int i = threadIdx.x; i < v.gates * 2 * v.columns; i += THREADS) {
        int gate = i / (2 * v.columns), which = i / v.columns % 2, n = i % v.columns;
        const fixed *sums = v.dsums + gate * sums_gate(v.columns);
        means[i] = read_fixed(sums, v.columns, which, n, SCALE_DSUM) / v.hidden;
    }
    read_statistics(v, st);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * v.units;
    int last = min(first + v.units, v.hidden);
    for (int n = lane * VEC; n < v.columns; n += 32 * VEC) {
        for (int gate = 0; gate < v.gates; gate++) {
            statistics<VEC> kept(st, v.columns, gate, n);
            float mean[VEC], product[VEC];
            load(mean, means + gate * 2 * v.columns + n);
            load(product, means + (gate * 2 + 1) * v.columns + n);
            const size_t offset = gate * v.gate_rows + n;
#pragma unroll 2
            for (int unit = first + warp; unit < last; unit += WARPS) {
                float value[VEC], d[VEC], gain = gain_of(v, gate, unit);
                size_t at = unit_row(v, unit) + offset;
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

/* Bytes of [arrays] of a float for every gate and column. */
template <typename T> static size_t per_column(const view<T> &v, int arrays) {
    return (size_t)arrays * v.gates * v.columns * sizeof(float);
}

template <typename T> static void run_gates(backend *be, const cell *c, int t) {
    view<T> v = view_step<T>(be, c, c->stages - 1, t);
    LAUNCH(be, gates_kernel, v, 4, per_column(v, 2), per_column(v, 2), "gates");
}

template <typename T> static void run_gates_backward(backend *be, const cell *c, int t) {
    view<T> v = view_step<T>(be, c, c->stages - 1, t);
    size_t st = per_column(v, 2);
    LAUNCH(be, gates_backward_kernel, v, 2, st + sizeof(backward_sums<GATES, 128>),
           st + sizeof(backward_sums<GATES, 64>), "gates_backward");
}

template <typename T> static void run_activate(backend *be, const cell *c, int s, int t) {
    view<T> v = view_step<T>(be, c, s, t);
    LAUNCH(be, activate_kernel, v, 4, per_column(v, 2), per_column(v, 2), "activate");
}

template <typename T> static void run_activate_backward(backend *be, const cell *c, int s, int t) {
    view<T> v = view_step<T>(be, c, s, t);
    size_t st = per_column(v, 2);
    LAUNCH(be, activate_backward_kernel, v, 2, st + sizeof(backward_sums<1, 128>),
           st + sizeof(backward_sums<1, 64>), "activate_backward");
}

template <typename T> static void run_norm_backward(backend *be, const cell *c, int s, int t) {
    view<T> v = view_step<T>(be, c, s, t);
    LAUNCH(be, norm_backward_kernel, v, 4, per_column(v, 4), per_column(v, 4), "norm_backward");
}

static void zero_dsums(backend *be, const cell *c, int s, int t) {
    const stage *g = &c->stage[s];
    size_t step = cuda_sums_bytes(be, g->gates, c->columns);
    if (g->layer_norm) {
        cuda_zero_sums(be, (char *)g->dsums + (c->keep ? t : 0) * step, g->gates, c->columns);
    }
}

void cuda_gates(backend *be, const cell *c, int t) {
    DISPATCH(be, run_gates, be, c, t);
}

void cuda_gates_backward(backend *be, const cell *c, int t) {
    zero_dsums(be, c, c->stages - 1, t);
    DISPATCH(be, run_gates_backward, be, c, t);
}

void cuda_activate(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_activate, be, c, s, t);
}

void cuda_activate_backward(backend *be, const cell *c, int s, int t) {
    zero_dsums(be, c, s, t);
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
 * As the steps in kernels/cell.c, with all sums zeroed at once. */

static void zero_all(backend *be, const cell *c, bool backward) {
    for (int s = 0; s < c->stages; s++) {
        const stage *g = &c->stage[s];
        int kept = c->keep ? c->steps : 1;
        if (!g->layer_norm) continue;
        cuda_zero_sums(be, backward ? g->dsums : g->sums, g->gates * kept, c->columns);
    }
}

void cuda_cell_forward(backend *be, const cell *c) {
    bool at_once = c->keep; /* a stage that keeps one step zeroes its sums at each */
    if (at_once) zero_all(be, c, false);
    cuda_of(be)->sums_are_zero = at_once;
    cell_forward_steps(be, c);
    cuda_of(be)->sums_are_zero = false;
}

void cuda_cell_backward(backend *be, const cell *c) {
    zero_all(be, c, true);
    cuda_of(be)->sums_are_zero = true;
    cell_backward_steps(be, c);
    cuda_of(be)->sums_are_zero = false;
}
