/* The gates of a cell, forward and backward, with layer norm. The equations stand in ops.h, those
 * of layer norm's gradient in kernels/cpu/stages.c.
 *
 * Floors, in bytes a unit and stream (bf16): forward 8 raw, 8 c, 2 h; backward 8 raw, 4 c, 8 dc,
 * 4 dh and dx, 8 dpre, and with layer norm 8 for the gradient at raw. Besides, the input table's
 * entries, of which a step of text touches about a third.
 *
 * A warp takes a unit at a time, VEC columns to a lane, so that a row is read in one stretch and
 * sums over the columns stay within the warp. All that it needs of the next unit is on its way
 * while it computes this one. For that a lane reads its column's entries of all four gates at once,
 * from a copy of the table in which they lie side by side; it is made once a sequence.
 *
 * Forward's thread blocks take a span of columns each, as wide as a warp, so that each makes layer
 * norm's statistics of that span alone.
 *
 * Layer norm's gradient needs two sums over all units of each gate and column. Backward therefore
 * runs as one thread block a multiprocessor, all at the same time: each adds its part to the sums,
 * waits for the others, and finishes the gradients. In between, raw and dpre of as many units as
 * fit stay in shared memory; those of the rest, the latest, come again from the L2. It takes all
 * columns, since it adds up each unit's gradients over them, but has statistics of a few spans of
 * them at a time. */
#include "stages.cuh"

extern "C" {
#include "core/philox.h"
}

enum {
    FORWARD_WARPS = 8,
    FORWARD_RESIDENT = 3,
    FORWARD_UNITS = 512, /* at most, whose gains have room */
    BACKWARD_WARPS = 12,
    FEATURE_WARPS = 4, /* whose sums over units have room at a time */
    HELD_SPANS = 4,    /* of which backward has statistics at a time */
    K = GATES * 2
};

/* ------------------------------------------------------------------------------------ entries */

/* table [gates][entries][VOCABULARY] -> entries [entries][VOCABULARY][gates] */
template <typename T> static __global__ void interleave_kernel(const T *table, int entries, T *to) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, rows = (size_t)entries * VOCABULARY;
    if (i >= rows) return;
    packet<T, GATES> side_by_side;
    float x[GATES];
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) x[gate] = to_float(table[gate * rows + i]);
    pack(side_by_side, x);
    store_packet(to + i * GATES, side_by_side);
}

template <typename T> static void run_interleave(backend *be, const cell *c) {
    const stage *g = &c->stage[c->stages - 1];
    int entries = c->hidden / g->table_stride, threads = 256;
    interleave_kernel<T><<<entries * VOCABULARY / threads, threads, 0, cuda_of(be)->stream>>>(
        (const T *)g->table, entries, (T *)c->entries);
    cuda_launched(be, "interleave the table");
}

void cuda_gates_table(backend *be, const cell *c) {
    if (c->stage[c->stages - 1].table_use == TABLE_ADD) DISPATCH(be, run_interleave, be, c);
}

/* ------------------------------------------------------------------------------------- gates */

/* What a lane needs of one unit. */
template <typename T, int VEC> struct gate_inputs {
    packet<T, VEC> raw[GATES];
    packet<T, GATES> entry[VEC];
    packet<float, VEC> c;

    __device__ void fetch_raw(const view<T> &v, int unit, int n) {
        const T *row = v.raw + unit_row(v, unit) + n;
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) load_packet(raw[gate], row + gate * v.gate_rows);
    }

    __device__ void fetch_rest(const view<T> &v, int unit, int n, const uint8_t (&bytes)[VEC]) {
        const T *entries = unit_entries(v, unit);
        load_packet(c, v.c_before + (size_t)unit * v.columns + n);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            if (entries) {
                load_packet(entry[i], entries + bytes[i] * GATES);
            } else {
                entry[i] = packet<T, GATES>();
            }
        }
    }
};

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

/* st: the statistics from this lane's columns on, [GATES][2][32 VEC]. gains: this unit's gains and
 * biases, see fetch_gains. */
template <int VEC, typename T>
static __device__ inline void compute_gates(const view<T> &v, const float *st, const float *gains,
                                            const gate_inputs<T, VEC> &in, int unit, int n,
                                            gate_values<VEC> &q) {
    float z[GATES][VEC];
    const float4 gain4 = *(const float4 *)gains, bias4 = *(const float4 *)(gains + GATES);
    const float gain[GATES] = {gain4.x, gain4.y, gain4.z, gain4.w};
    const float bias[GATES] = {bias4.x, bias4.y, bias4.z, bias4.w};
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) {
        unpack(in.raw[gate], q.value[gate]);
        statistics<VEC>(st, 32 * VEC, gate).normalise(q.value[gate]);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            z[gate][i] = gain[gate] * q.value[gate][i] + bias[gate] + in.entry[i].value(gate);
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

/* The thread block's gains and biases: [unit][gains of the gates, biases]. They are there after
 * copy_wait<0> and a barrier. */
template <typename T>
static __device__ void fetch_gains(const view<T> &v, int first, int count, float *gains) {
    for (int unit = threadIdx.x; unit < count; unit += blockDim.x) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const float *from = k < GATES ? v.gain : v.bias;
            float *to = gains + unit * K + k;
            if (from) {
                from += k % GATES * v.hidden + first + unit;
                copy_word_async(shared_address(to), from);
            } else {
                *to = k < GATES;
            }
        }
    }
    copy_commit();
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(FORWARD_WARPS * 32, FORWARD_RESIDENT)
    gates_kernel(const __grid_constant__ view<T> v) {
    const int SPAN = 32 * VEC, PER_THREAD = GATES * SPAN / (FORWARD_WARPS * 32);
    extern __shared__ __align__(16) float st[]; /* [GATES][2][SPAN] */
    float *gains = st + K * SPAN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = blockIdx.x * v.units, last = min(first + v.units, v.hidden);
    const int n0 = blockIdx.y * SPAN, n = n0 + lane * VEC;
    uint8_t bytes[VEC];
    load_bytes(bytes, v.bytes + n);
    fetch_gains(v, first, last - first, gains);
    int unit = first + warp;
    gate_inputs<T, VEC> next;
    if (unit < last) next.fetch_rest(v, unit, n, bytes);
    wait_for_earlier();
    let_next_start();
    if (unit < last) next.fetch_raw(v, unit, n);
    make_statistics<PER_THREAD>(v, threadIdx.x / SPAN * PER_THREAD, n0 + threadIdx.x % SPAN, SPAN,
                                st + threadIdx.x % SPAN);
    copy_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (; unit < last; unit += FORWARD_WARPS) {
        const gate_inputs<T, VEC> in = next;
        if (unit + FORWARD_WARPS < last) {
            next.fetch_raw(v, unit + FORWARD_WARPS, n);
            next.fetch_rest(v, unit + FORWARD_WARPS, n, bytes);
        }
        size_t at = (size_t)unit * v.columns + n;
        gate_values<VEC> q;
        float state[VEC], h[VEC];
        compute_gates(v, st + lane * VEC, gains + (unit - first) * K, in, unit, n, q);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            state[i] = q.f[i] * in.c.value(i) + q.i[i] * q.u[i];
            h[i] = q.o[i] * tanh_<T>(state[i]);
        }
        store(v.c_after + at, state);
        store(v.h + at, h);
    }
}

/* ----------------------------------------------------------------------------- gates, backward */

template <typename T, int VEC> struct backward_inputs {
    gate_inputs<T, VEC> gates;
    packet<T, VEC> dh, dx;
    packet<float, VEC> dc;

    __device__ void fetch_dx(const view<T> &v, int unit, int n) {
        dx = packet<T, VEC>();
        if (v.asked) load_packet(dx, v.dx + (size_t)unit * v.columns + n);
    }

    __device__ void fetch_rest(const view<T> &v, int unit, int n, const uint8_t (&bytes)[VEC]) {
        size_t at = (size_t)unit * v.columns + n;
        gates.fetch_raw(v, unit, n);
        gates.fetch_rest(v, unit, n, bytes);
        load_packet(dc, v.dc + at);
        load_packet(dh, v.dh + at);
    }
};

/* What is kept of a unit until layer norm's sums are known. */
template <typename T, int VEC> struct alignas(16) kept_unit {
    T raw[GATES][32 * VEC], dpre[GATES][32 * VEC];
};

/* The thread block's arrays in shared memory. */
template <typename T, int VEC> struct backward_arrays {
    float *st;       /* [HELD_SPANS, or fewer][GATES][2][SPAN] */
    float *gains;    /* [units][gains of the gates, biases] */
    float *units;    /* [units][GATES][2]: sums over columns, of dpre and dpre times value */
    float *features; /* [FEATURE_WARPS][K][SPAN]; later the means, as st */
    kept_unit<T, VEC> *kept; /* [BACKWARD_WARPS][v.kept] */

    static const int SPAN = 32 * VEC;

    static __host__ __device__ size_t st_floats(int columns) {
        return (size_t)K * min(columns, (int)HELD_SPANS * SPAN);
    }

    static size_t bytes(const view<T> &v) {
        size_t floats = st_floats(v.columns) + 2 * (size_t)K * v.units + FEATURE_WARPS * K * SPAN;
        return floats * sizeof(float) + BACKWARD_WARPS * v.kept * sizeof(kept_unit<T, VEC>);
    }

    __device__ backward_arrays(const view<T> &v, float *shared) {
        static_assert(HELD_SPANS <= FEATURE_WARPS, "means have room in place of features");
        st = shared;
        gains = st + st_floats(v.columns);
        units = gains + K * v.units;
        features = units + K * v.units;
        kept = (kept_unit<T, VEC> *)(features + FEATURE_WARPS * K * SPAN);
        kept += threadIdx.x / 32 * v.kept;
    }

    /* Where a span begins in st, and in the means. */
    static __device__ int place(int span) {
        return span % HELD_SPANS * K * SPAN;
    }

    /* Statistics of the span's group of HELD_SPANS, and then their means. */
    __device__ void hold_statistics(const view<T> &v, int span) const {
        for (int n = span / HELD_SPANS * HELD_SPANS * SPAN + threadIdx.x; is_held(v, span, n);
             n += blockDim.x) {
            read_statistics<GATES>(v, n, SPAN, st + place(n / SPAN) + n % SPAN);
        }
    }

    __device__ void hold_means(const view<T> &v, int span) const {
        for (int n = span / HELD_SPANS * HELD_SPANS * SPAN + threadIdx.x; is_held(v, span, n);
             n += blockDim.x) {
            read_means<GATES>(v, n, SPAN, features + place(n / SPAN) + n % SPAN);
        }
    }

    static __device__ bool is_held(const view<T> &v, int span, int n) {
        return n < v.columns && n / SPAN / HELD_SPANS == span / HELD_SPANS;
    }
};

/* One span's sums over the thread block's units, to the totals. */
template <typename T, int VEC>
static __device__ void add_features(const view<T> &v, float *features, int span,
                                    const float (&part)[K][VEC]) {
    const int SPAN = 32 * VEC, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int turn = 0; turn * FEATURE_WARPS < BACKWARD_WARPS; turn++) {
        if (warp / FEATURE_WARPS == turn) {
#pragma unroll
            for (int i = 0; i < K; i++) {
                float sum[VEC], *at = features + (warp % FEATURE_WARPS * K + i) * SPAN + lane * VEC;
                if (turn > 0) load(sum, at);
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] = turn > 0 ? sum[j] + part[i][j] : part[i][j];
                store_shared(at, sum);
            }
        }
        __syncthreads();
    }
    for (int i = threadIdx.x; i < K * SPAN; i += blockDim.x) {
        int value = i / SPAN, column = i % SPAN;
        float total = 0;
        for (int w = 0; w < FEATURE_WARPS; w++) total += features[w * K * SPAN + i];
        add_fixed(v.dsums + value / 2 * sums_gate(v.columns), v.columns, value % 2,
                  span * SPAN + column, total, SCALE_DSUM);
    }
    __syncthreads();
}

/* The gradients at norm's result and at c of one unit, from what its gates were. */
template <typename T, int VEC>
static __device__ inline void differentiate(const view<T> &v, const backward_inputs<T, VEC> &in,
                                            const gate_values<VEC> &q, float (&d)[GATES][VEC],
                                            float (&dc)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float before = in.gates.c.value(i);
        float gradient = in.dh.value(i) + in.dx.value(i);
        float squashed = tanh_<T>(q.f[i] * before + q.i[i] * q.u[i]); /* as forward made it */
        float state = in.dc.value(i) + gradient * q.o[i] * (1 - squashed * squashed);
        d[GATE_I][i] = state * q.u[i] * q.i[i] * (1 - q.i[i]);
        d[GATE_F][i] = state * before * q.f[i] * (1 - q.f[i]);
        d[GATE_O][i] = gradient * squashed * q.o[i] * (1 - q.o[i]);
        d[GATE_U][i] = state * q.i[i] * (1 - q.u[i] * q.u[i]);
        dc[i] = state * q.f[i];
        if (v.dropout > 0) d[GATE_U][i] *= q.dropout[i];
    }
}

/* Adds the thread block's sums over columns to the gradients of gains and biases. */
template <typename T>
static __device__ void add_units(const view<T> &v, int first, int count, const float *units) {
    for (int i = threadIdx.x; i < count * K; i += blockDim.x) {
        int unit = i % count, gate = i / count % GATES, which = i / count / GATES;
        float *to = which ? v.dgain : v.dbias;
        if (!to) continue;
        to += gate * v.hidden + first + unit;
        *to = (v.start ? 0 : *to) + units[(unit * GATES + gate) * 2 + which];
    }
}

/* Layer norm's gradient at raw, from dpre, the sums, and raw. */
template <typename T, int VEC>
static __device__ void finish_gradient(const view<T> &v, const backward_arrays<T, VEC> &a,
                                       int first, int last) {
    const int SPAN = 32 * VEC, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int rounds = (last - first - warp + BACKWARD_WARPS - 1) / BACKWARD_WARPS;
    const int spans = v.columns / SPAN;
    for (int span = spans - 1; span >= 0; span--) {
        if (span == spans - 1 || span % HELD_SPANS == HELD_SPANS - 1) {
            if (span < spans - 1) { /* st has those of the last group */
                __syncthreads();
                a.hold_statistics(v, span);
            }
            a.hold_means(v, span);
            __syncthreads();
        }
        const int n = span * SPAN + lane * VEC, held = a.place(span) + lane * VEC;
        float mean[GATES][VEC], scale[GATES][VEC], gradient[GATES][VEC], product[GATES][VEC];
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            const int at = held + gate * 2 * SPAN;
            load(mean[gate], a.st + at);
            load(scale[gate], a.st + at + SPAN);
            load(gradient[gate], a.features + at);
            load(product[gate], a.features + at + SPAN);
        }
#pragma unroll 1
        for (int round = rounds - 1; round >= 0; round--) {
            const int unit = first + warp + round * BACKWARD_WARPS, use = span * rounds + round;
            const size_t row = unit_row(v, unit) + n;
            packet<T, VEC> raw[GATES], dpre[GATES];
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                if (use < v.kept) {
                    load_packet(raw[gate], &a.kept[use].raw[gate][lane * VEC]);
                    load_packet(dpre[gate], &a.kept[use].dpre[gate][lane * VEC]);
                } else {
                    load_packet(raw[gate], v.raw + row + gate * v.gate_rows);
                    load_packet(dpre[gate], v.dpre + row + gate * v.gate_rows);
                }
            }
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                float gain = a.gains[(unit - first) * K + gate], draw[VEC];
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    float value = (raw[gate].value(i) - mean[gate][i]) * scale[gate][i];
                    draw[i] = (gain * dpre[gate].value(i) - gradient[gate][i] -
                               value * product[gate][i]) *
                              scale[gate][i];
                }
                store(v.raw + row + gate * v.gate_rows, draw);
            }
        }
    }
}

/* NORM: with layer norm. */
template <typename T, int VEC, bool NORM>
static __global__ void __launch_bounds__(BACKWARD_WARPS * 32, 1)
    gates_backward_kernel(const __grid_constant__ view<T> v) {
    const int SPAN = 32 * VEC;
    extern __shared__ __align__(16) float shared[];
    const backward_arrays<T, VEC> a(v, shared);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = blockIdx.x * v.units, last = min(first + v.units, v.hidden);
    fetch_gains(v, first, last - first, a.gains);
    for (int i = threadIdx.x; i < v.units * K; i += blockDim.x) a.units[i] = 0;
    int use = 0;
    for (int span = 0; span < v.columns / SPAN; span++) {
        const int n = span * SPAN + lane * VEC;
        float part[K][VEC] = {};
        uint8_t bytes[VEC];
        load_bytes(bytes, v.bytes + n);
        int unit = first + warp;
        backward_inputs<T, VEC> next;
        if (unit < last) next.fetch_rest(v, unit, n, bytes);
        if (span % HELD_SPANS == 0) {
            if (span > 0) __syncthreads();
            a.hold_statistics(v, span);
            copy_wait<0>();
            __syncthreads();
        }
        if (span == 0) {
            wait_for_earlier();
            let_next_start();
        }
        if (unit < last) next.fetch_dx(v, unit, n);
#pragma unroll 1
        for (; unit < last; unit += BACKWARD_WARPS, use++) {
            const backward_inputs<T, VEC> in = next;
            if (unit + BACKWARD_WARPS < last) {
                next.fetch_rest(v, unit + BACKWARD_WARPS, n, bytes);
                next.fetch_dx(v, unit + BACKWARD_WARPS, n);
            }
            const float *gains = a.gains + (unit - first) * K;
            gate_values<VEC> q;
            float d[GATES][VEC], dc[VEC], unit_sums[K] = {};
            compute_gates(v, a.st + a.place(span) + lane * VEC, gains, in.gates, unit, n, q);
            differentiate(v, in, q, d, dc);
            store(v.dc + (size_t)unit * v.columns + n, dc);
            T *dpre = v.dpre + unit_row(v, unit) + n;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                packet<T, VEC> rounded;
                pack(rounded, d[gate]);
                store_packet(dpre + gate * v.gate_rows, rounded);
                if (NORM && use < v.kept) {
                    store_shared(&a.kept[use].raw[gate][lane * VEC], in.gates.raw[gate]);
                    store_shared(&a.kept[use].dpre[gate][lane * VEC], rounded);
                }
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    float value = rounded.value(i), product = value * q.value[gate][i];
                    unit_sums[gate * 2] += value;
                    unit_sums[gate * 2 + 1] += product;
                    part[gate * 2][i] += gains[gate] * value;
                    part[gate * 2 + 1][i] += gains[gate] * product;
                }
            }
            warp_sums(unit_sums);
            if (lane % (32 / K) == 0) a.units[(unit - first) * K + lane / (32 / K)] += unit_sums[0];
        }
        if (NORM) add_features(v, a.features, span, part);
    }
    if (NORM) all_arrive(arrivals(v.dsums, v.columns));
    __syncthreads();
    add_units(v, first, last - first, a.units);
    if (NORM) {
        all_wait(arrivals(v.dsums, v.columns));
        finish_gradient(v, a, first, last);
    }
}

/* ----------------------------------------------------------------------------------- launches */

/* Inside a sequence the kernel just before is a product, which writes nothing that these kernels
 * read before they wait; but the first step backward follows what made the gradient at h. */
static bool starts_early(backend *be) {
    return cuda_of(be)->entries_are_made;
}

template <typename T, int VEC> static void launch_gates(backend *be, view<T> v) {
    const int span = 32 * VEC, spans = v.columns / span;
    int blocks = max(cuda_of(be)->processors * FORWARD_RESIDENT / spans, 1); /* of a span */
    v.units = min((v.hidden + blocks - 1) / blocks, (int)FORWARD_UNITS);
    blocks = (v.hidden + v.units - 1) / v.units;
    cuda_launch(be, "gates", starts_early(be), gates_kernel<T, VEC>, dim3(blocks, spans),
                FORWARD_WARPS * 32, (size_t)K * (span + v.units) * sizeof(float), v);
}

template <typename T> static void run_gates(backend *be, const cell *c, int t) {
    view<T> v = view_step<T>(be, c, c->stages - 1, t);
    v.columns % 128 == 0 ? launch_gates<T, 4>(be, v) : launch_gates<T, 2>(be, v);
}

/* A thread block a multiprocessor. */
template <typename T, int VEC, bool NORM> static void launch_backward(backend *be, view<T> v) {
    typedef backward_arrays<T, VEC> arrays;
    cuda_backend *cuda = cuda_of(be);
    v.units = (v.hidden + cuda->processors - 1) / cuda->processors;
    size_t rest = arrays::bytes(v), round = BACKWARD_WARPS * sizeof(kept_unit<T, VEC>);
    if (NORM && rest < cuda->shared_limit) {
        int rounds = (v.units + BACKWARD_WARPS - 1) / BACKWARD_WARPS * (v.columns / arrays::SPAN);
        v.kept = min((int)((cuda->shared_limit - rest) / round), rounds);
    }
    cuda_launch(be, "gates_backward", !v.start && starts_early(be),
                gates_backward_kernel<T, VEC, NORM>, (v.hidden + v.units - 1) / v.units,
                BACKWARD_WARPS * 32, arrays::bytes(v), v);
}

template <typename T> static void run_backward(backend *be, const cell *c, int t) {
    view<T> v = view_step<T>(be, c, c->stages - 1, t);
    if (v.columns % 128 == 0) {
        v.layer_norm ? launch_backward<T, 4, true>(be, v) : launch_backward<T, 4, false>(be, v);
    } else {
        v.layer_norm ? launch_backward<T, 2, true>(be, v) : launch_backward<T, 2, false>(be, v);
    }
}

static void prepare(backend *be, const cell *c) {
    if (!cuda_of(be)->entries_are_made) cuda_gates_table(be, c);
}

void cuda_gates(backend *be, const cell *c, int t) {
    prepare(be, c);
    DISPATCH(be, run_gates, be, c, t);
}

void cuda_gates_backward(backend *be, const cell *c, int t) {
    prepare(be, c);
    cuda_zero_dsums(be, c, c->stages - 1, t);
    DISPATCH(be, run_backward, be, c, t);
}
