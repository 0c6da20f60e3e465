/* The gates of a cell backward. The equations stand in ops.h, those of layer norm's gradient in
 * kernels/cpu/stages.c; how units and columns are shared out, in gates.cuh.
 *
 * Floor, in bytes a unit and stream (bf16): 8 raw, 4 c, 8 dc, 4 dh and dx, and 8 for the gradient
 * at raw; coupled gates 4 less. Besides, the input table's entries.
 *
 * A thread block has neighbouring units for all columns, so it alone sums their gains' and biases'
 * gradients. Without layer norm the gradient at norm's result is that at raw, and this is all. With
 * it, each thread block adds its part to the sums over all units, and a second kernel finishes the
 * gradient at raw, from raw and dpre in memory: layer norm at the gates need not be fast.
 *
 * A unit's inputs are fetched while the unit before is computed. Loads and stores tell the L2 what
 * to evict first, namely what backward reads for the last time, and what last, namely dc, where it
 * fits. What did not help, and where the time went: docs/kernels/cell.md. */
#include "cell/gates.cuh"

enum {
    BACKWARD_WARPS = 8,
    BACKWARD_THREADS = BACKWARD_WARPS * 32,
    TOGETHER = 2,     /* thread blocks of a multiprocessor */
    LASTING_SHARE = 5 /* dc is kept in the L2 from step to step if it is at most a fifth of it */
};

template <typename T, int VEC> struct backward_inputs {
    gate_inputs<T, VEC> gates;
    packet<T, VEC> dh, dx; /* dx: dL/dh from the later step, or 0 */
    packet<float, VEC> dc;

    __device__ void fetch_state(const view<T> &v, int unit, int n) {
        const uint32_t at = state_row(v, unit) + n;
        load_packet_once(gates.c, v.c_before + at);
        load_packet(dc, v.dc + at);
        load_packet_once(dh, v.dh + at);
    }

    __device__ void fetch_dx(const view<T> &v, int unit, int n) {
        if (v.asked) load_packet_once(dx, v.dx + (state_row(v, unit) + n));
    }
};

template <typename T> static __device__ inline float tanh_(float x) {
    return squash_tanh<T>(slope<T>(GATE_U) * x);
}

template <typename T, int VEC>
static __device__ inline void squash(const float (&z)[GATES][VEC], bool coupled,
                                     gate_values<VEC> &q) {
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        q.f[i] = squash_sigmoid<T>(z[GATE_F][i]);
        q.i[i] = coupled ? 1 - q.f[i] : squash_sigmoid<T>(z[GATE_I][i]);
        q.o[i] = squash_sigmoid<T>(z[GATE_O][i]);
        q.u[i] = squash_tanh<T>(z[GATE_U][i]);
    }
}

/* The gradients at norm's result and at c of one unit, from the values of its gates. */
template <typename T, int VEC>
static __device__ inline void differentiate(const view<T> &v, const backward_inputs<T, VEC> &in,
                                            const gate_values<VEC> &q, float (&d)[GATES][VEC],
                                            float (&dc)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float before = in.gates.c.value(i), gradient = in.dh.value(i) + in.dx.value(i);
        float squashed = tanh_<T>(q.f[i] * before + q.i[i] * q.u[i]); /* as forward made it */
        float by_o = gradient * q.o[i], o = by_o * squashed;
        float state = in.dc.value(i) + by_o - o * squashed;
        float by_i = state * q.i[i], i_u = by_i * q.u[i], by_f = state * q.f[i];
        float f = by_f * (v.first > 0 ? before - q.u[i] : before);
        d[GATE_I][i] = v.first > 0 ? 0 : i_u - i_u * q.i[i];
        d[GATE_F][i] = f - f * q.f[i];
        d[GATE_O][i] = o - o * q.o[i];
        d[GATE_U][i] = by_i - i_u * q.u[i];
        dc[i] = by_f;
        if (v.dropout_threshold > 0) d[GATE_U][i] *= q.dropout[i];
    }
}

/* A thread block's arrays in shared memory, and its units. */
template <typename T, int VEC> struct backward_arrays {
    static const int SPAN = 32 * VEC;
    float *st;       /* [GATES][2][SPAN]: the span's statistics */
    float *features; /* [BACKWARD_WARPS][K][SPAN]: the warps' sums over their units; layer norm's
                        means over all units while it finishes */
    float *gains;    /* [units][gains of the gates, biases] */
    float *sums;     /* [units][K]: over columns, of dpre and dpre times value */
    int first, last;

    static size_t bytes(const view<T> &v) {
        return (K * SPAN * (1 + BACKWARD_WARPS) + 2 * (size_t)K * v.units) * sizeof(float);
    }

    __device__ backward_arrays(const view<T> &v, float *shared) {
        st = shared;
        features = st + K * SPAN;
        gains = features + BACKWARD_WARPS * K * SPAN;
        sums = gains + K * v.units;
        first = blockIdx.x * v.units;
        last = min(first + v.units, v.width);
    }

    /* They may be read after a barrier. */
    __device__ void fetch_statistics(const view<T> &v, int span) const {
        for (int i = threadIdx.x; i < K * SPAN; i += BACKWARD_THREADS) {
            const int gate = i / SPAN / 2, which = i / SPAN % 2, n = span * SPAN + i % SPAN;
            const float *kept = kept_statistics(v.sums + gate * sums_gate(v.columns), v.columns);
            st[i] = v.layer_norm ? kept[which * v.columns + n] : which;
        }
    }

    /* Adds the span's sums over the thread block's units, with gains as scale_gains made them, to
     * the totals. */
    __device__ void add_features(const view<T> &v, int span, const float (&part)[K][VEC]) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int i = 0; i < K; i++) {
            store_shared(features + (warp * K + i) * SPAN + lane * VEC, part[i]);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < K * SPAN; i += BACKWARD_THREADS) {
            const int gate = i / SPAN / 2, which = i / SPAN % 2;
            const float inverse = 1 / slope<T>(gate == GATE_U ? GATE_U : GATE_I);
            float total = 0;
            for (int w = 0; w < BACKWARD_WARPS; w++) total += features[w * K * SPAN + i];
            add_counted(v.dsums + gate * sums_gate(v.columns), v.columns, which,
                        span * SPAN + i % SPAN, total * inverse);
        }
    }

    /* Adds the sums over columns to the gradients of gains and biases, which no other thread block
     * adds to. */
    __device__ void add_units(const view<T> &v) const {
        const int count = last - first;
        for (int i = threadIdx.x; i < count * K; i += BACKWARD_THREADS) {
            const int unit = i % count, gate = i / count % GATES, which = i / count / GATES;
            const float sum = sums[(unit * GATES + gate) * 2 + which];
            float *to = which ? v.dgain : v.dbias;
            if (!to || gate < v.first) continue;
            to += (gate - v.first) * v.width + first + unit;
            if (v.start) {
                *to = sum;
            } else {
                atomicAdd(to, sum); /* not waited for */
            }
        }
    }
};

template <typename T, int VEC, bool NORM>
static __global__ void __launch_bounds__(BACKWARD_THREADS, TOGETHER)
    gates_backward(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float shared[];
    const backward_arrays<T, VEC> a(v, shared);
    const int lane = threadIdx.x % 32, start = a.first + (int)threadIdx.x / 32;
    backward_inputs<T, VEC> in;
    uint32_t bytes = load_bytes<VEC>(v.bytes + lane * VEC);
    fetch_gains(v, a.first, a.last - a.first, a.gains);
    for (int i = threadIdx.x; i < v.units * K; i += BACKWARD_THREADS) a.sums[i] = 0;
    if (start < a.last) {
        in.gates.fetch_raw(v, start, lane * VEC);
        in.gates.fetch_entries(v, start, bytes);
        in.fetch_state(v, start, lane * VEC);
    }
    scale_gains<T>(a.last - a.first, a.gains);
    wait_for_earlier();
    let_next_start();
    in.dx = packet<T, VEC>();
    if (start < a.last) in.fetch_dx(v, start, lane * VEC);
#pragma unroll 1
    for (int span = 0; span < v.columns / a.SPAN; span++) {
        const int n = span * a.SPAN + lane * VEC, n_next = n + a.SPAN;
        float part[K][VEC] = {};
        __syncthreads(); /* the last span's arrays are free */
        a.fetch_statistics(v, span);
        __syncthreads();
#pragma unroll 1
        for (int unit = start; unit < a.last; unit += BACKWARD_WARPS) {
            const bool done = unit + BACKWARD_WARPS >= a.last, more = !done || n_next < v.columns;
            const int after = done ? start : unit + BACKWARD_WARPS, n_after = done ? n_next : n;
            const float *gains = a.gains + (unit - a.first) * K;
            gate_values<VEC> q;
            float z[GATES][VEC], d[GATES][VEC], dc[VEC], unit_sums[K];
            q.take_raw(in.gates);
            if (more) in.gates.fetch_raw(v, after, n_after);
            if (more && done) bytes = load_bytes<VEC>(v.bytes + n_next);
            preactivate(v, a.st + lane * VEC, gains, in.gates, unit, n, q, z);
            if (more) in.gates.fetch_entries(v, after, bytes);
            squash<T>(z, v.first > 0, q);
            differentiate(v, in, q, d, dc);
            if (more) {
                in.fetch_state(v, after, n_after);
                in.fetch_dx(v, after, n_after);
            }
            float *dc_at = v.dc + (state_row(v, unit) + n);
            v.lasting ? store_lasting(dc_at, dc) : store(dc_at, dc);
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                if (has_gate(v, gate)) {
                    store(v.dpre + (unit_row(v, unit) + n + (gate - v.first) * v.gate_rows),
                          d[gate]);
                }
                float *of = unit_sums + gate * 2;
                of[0] = of[1] = 0;
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    const float product = d[gate][i] * q.value[gate][i];
                    of[0] += d[gate][i];
                    of[1] += product;
                    if (!NORM) continue;
                    part[gate * 2][i] += gains[gate] * d[gate][i];
                    part[gate * 2 + 1][i] += gains[gate] * product;
                }
            }
            warp_sums(unit_sums);
            if (lane % (32 / K) == 0) {
                a.sums[(unit - a.first) * K + lane / (32 / K)] += unit_sums[0];
            }
        }
        if (NORM) a.add_features(v, span, part);
    }
    __syncthreads();
    a.add_units(v);
}

/* Layer norm's gradient at raw, once the sums over all units are there:
 *
 *   scale (gain dpre - mean - value product) */
template <typename T, int VEC>
static __global__ void __launch_bounds__(BACKWARD_THREADS, TOGETHER)
    finish_gates_gradient(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float shared[];
    const backward_arrays<T, VEC> a(v, shared);
    const int lane = threadIdx.x % 32, start = a.first + (int)threadIdx.x / 32;
    wait_for_earlier();
    let_next_start();
    for (int span = 0; span < v.columns / a.SPAN; span++) {
        const int n = span * a.SPAN + lane * VEC;
        __syncthreads(); /* the last span's arrays are free */
        a.fetch_statistics(v, span);
        for (int i = threadIdx.x; i < K * a.SPAN; i += BACKWARD_THREADS) {
            const int which = i / a.SPAN % 2, column = span * a.SPAN + i % a.SPAN;
            const fixed *sums = v.dsums + i / a.SPAN / 2 * sums_gate(v.columns);
            const fixed sum = fetch_counted(sums, v.columns, which, column);
            a.features[i] = decode_counted(sum, sums, v.columns, which, column) / v.width;
        }
        __syncthreads();
        for (int unit = start; unit < a.last; unit += BACKWARD_WARPS) {
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                if (!has_gate(v, gate)) continue;
                const uint32_t row = unit_row(v, unit) + (gate - v.first) * v.gate_rows;
                const float *of = a.features + gate * 2 * a.SPAN + lane * VEC;
                const statistics<VEC> st(a.st + lane * VEC, a.SPAN, gate);
                float value[VEC], d[VEC], mean[VEC], product[VEC];
                load(value, v.raw + (row + n));
                load(d, v.dpre + (row + n));
                load(mean, of);
                load(product, of + a.SPAN);
                st.normalise(value);
#pragma unroll
                for (int i = 0; i < VEC; i++) {
                    d[i] = st.scale[i] * (gain_of(v, gate - v.first, unit) * d[i] - mean[i] -
                                          value[i] * product[i]);
                }
                store(v.raw + (row + n), d);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------ launch */

template <typename T, int VEC> static void launch_backward(backend *be, view<T> v, bool early) {
    typedef backward_arrays<T, VEC> arrays;
    const dim3 blocks((v.width + v.units - 1) / v.units);
    const size_t shared = arrays::bytes(v);
    cuda_launch(be, "gates_backward", !v.start && early,
                v.layer_norm ? gates_backward<T, VEC, true> : gates_backward<T, VEC, false>, blocks,
                BACKWARD_THREADS, shared, v);
    if (!v.layer_norm) return;
    cuda_launch(be, "finish_gates_gradient", true, finish_gates_gradient<T, VEC>, blocks,
                BACKWARD_THREADS, shared, v);
}

template <typename T> static void run_backward(backend *be, const cell *c, int t, bool early) {
    const cuda_backend *cuda = cuda_of(be);
    const int most = min(TOGETHER * cuda->processors, (int)COUNTED_PARTS);
    view<T> v = view_step<T>(be, c, c->stages - 1, t);
    v.units = (v.width + most - 1) / most;
    v.lasting = (size_t)v.width * v.columns * sizeof *v.dc <= cuda->l2_bytes / LASTING_SHARE;
    v.columns % 128 == 0 ? launch_backward<T, 4>(be, v, early)
                         : launch_backward<T, 2>(be, v, early);
}

/* The last step follows the kernel that computed the gradient at h, so it does not start early. */
void gates_backward_run(backend *be, const cell *c, int t, bool early) {
    DISPATCH(be, run_backward, be, c, t, early);
}

void cuda_gates_backward(backend *be, const cell *c, int t) {
    stage_zero_sums(be, c, c->stages - 1, t, true);
    gates_backward_run(be, c, t, false);
}
