/* What the gates of a cell do forward and, once more, backward: a unit's inputs on their way, layer
 * norm, and what squashes. The equations stand in ops.h; see gates_forward.cu and
 * gates_backward.cu.
 *
 * A warp takes a unit at a time, VEC columns to a lane, so that a row is read in one stretch and
 * sums over the columns stay within the warp. All that it needs of the next unit is on its way
 * while it computes this one, into registers that this one has just left. A lane reads its column's
 * entries of all four gates at once, from a copy of the table in which they lie side by side; it is
 * made once an update, by prepare_entries.
 *
 * The columns come in spans as wide as a warp, each with statistics of its own. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_GATES_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_GATES_CUH

#include "cell/stages.cuh"
#include "device/philox.cuh"

enum { K = GATES * 2 }; /* a gain and a bias, or two sums, of each gate */

/* A lane's inputs for one unit. Each part is fetched for the next unit as soon as it was used. */
template <typename T, int VEC> struct gate_inputs {
    packet<T, VEC> raw[GATES];
    packet<T, GATES> entry[VEC];
    packet<float, VEC> c;

    __device__ void fetch_raw(const view<T> &v, int unit, int n) {
        const uint32_t row = unit_row(v, unit) + n;
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            raw[gate] = packet<T, VEC>();
            if (has_gate(v, gate))
                load_packet(raw[gate], v.raw + (row + (gate - v.first) * v.gate_rows));
        }
    }

    __device__ void fetch_entries(const view<T> &v, int unit, uint32_t bytes) {
        uint32_t at;
        const bool has = find_entries(v, unit, at);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            entry[i] = packet<T, GATES>();
            if (has) load_packet(entry[i], v.entries + (at + byte_of(bytes, i) * GATES));
        }
    }

    __device__ void fetch_c(const view<T> &v, int unit, int n) {
        load_packet(c, v.c_before + (state_row(v, unit) + n));
    }
};

template <int VEC> struct gate_values {
    float value[GATES][VEC]; /* raw, then normalised, before gain */
    float i[VEC], f[VEC], o[VEC], u[VEC], dropout[VEC];

    /* After it, the packets of raw may be fetched again. */
    template <typename T> __device__ void take_raw(const gate_inputs<T, VEC> &in) {
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) unpack(in.raw[gate], value[gate]);
    }
};

template <int VEC, typename T>
static __device__ inline void dropout_scale(const view<T> &v, int unit, int n,
                                            float (&scale)[VEC]) {
    uint4 block = philox_draw(v.dropout_seed, (uint32_t)unit, (v.dropout_stream + (uint32_t)n) / 4,
                              (uint32_t)v.arguments->update, PHILOX_PURPOSE(PHILOX_DROPOUT, v.t));
    const uint32_t word[4] = {block.x, block.y, block.z, block.w};
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        uint32_t drawn = VEC == 4 || n % 4 == 0 ? word[i] : word[(2 + i) % 4];
        scale[i] = drawn < v.dropout_threshold ? 0 : v.dropout_scale;
    }
}

/* The factor of a gate's argument that turns its exponential into 2^x for bf16. Gains and biases in
 * shared memory include it. */
template <typename T> static __device__ constexpr float slope(int gate) {
    return sizeof(T) == 4 ? 1 : gate == GATE_U ? 2.8853901f : -1.4426950f;
}

/* For bf16 results the error of these two instructions, 2^-22, does not matter. For fp32 results
 * tanh near 0 is computed as on the CPU. */
template <typename T> static __device__ inline float squash_sigmoid(float x) {
    if (sizeof(T) == 2) return reciprocal(1 + exponential2(x));
    return __fdividef(1, 1 + __expf(-x));
}

/* |x| < 0.6 in fp32 is an odd polynomial, where the usual difference would cancel. */
template <typename T> static __device__ inline float squash_tanh(float x) {
    if (sizeof(T) == 2) return fmaf(-2, reciprocal(1 + exponential2(x)), 1);
    float z = x * x, p = -0.0060536987f;
    p = p * z + 0.0209681876f;
    p = p * z - 0.0538449883f;
    p = p * z + 0.133327335f;
    p = p * z - 0.333333284f;
    float far = 1 - __fdividef(2, 1 + __expf(2 * fminf(x, 40.0f)));
    return z < 0.36f ? x + x * z * p : far;
}

/* The smaller; NaN if either is. */
static __device__ inline float smaller_or_nan(float a, float b) {
    float x;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}

/* sigmoid times tanh of arguments that slope has multiplied; for bf16 with one reciprocal for both,
 * and exponents of at most 60, beyond which neither function changes in fp32. */
template <typename T>
static __device__ inline float squash_product(float of_sigmoid, float of_tanh) {
    if (sizeof(T) == 4) return squash_sigmoid<T>(of_sigmoid) * squash_tanh<T>(of_tanh);
    const float a = exponential2(smaller_or_nan(of_sigmoid, 60));
    const float b = exponential2(smaller_or_nan(of_tanh, 60));
    return (b - 1) * reciprocal((1 + a) * (1 + b));
}

/* The cell forward, for every kernel that computes it: from its gates' arguments, dropout included
 * and times their slopes, and c, to the next c. Returns h. */
template <typename T>
static __device__ inline float update_cell(const float (&z)[GATES], float &c,
                                           bool coupled = false) {
    const float f = squash_sigmoid<T>(z[GATE_F]);
    if (coupled) {
        c = f * c + (1 - f) * squash_tanh<T>(z[GATE_U]);
    } else {
        c = f * c + squash_product<T>(z[GATE_I], z[GATE_U]);
    }
    return squash_product<T>(z[GATE_O], slope<T>(GATE_U) * c);
}

/* The arguments z of sigmoid and tanh, once raw was taken. st: the statistics from this lane's
 * columns on, [GATES][2][32 VEC]. gains: this unit's gains and biases, see fetch_gains. */
template <int VEC, typename T>
static __device__ inline void preactivate(const view<T> &v, const float *st, const float *gains,
                                          const gate_inputs<T, VEC> &in, int unit, int n,
                                          gate_values<VEC> &q, float (&z)[GATES][VEC]) {
    const float4 gain4 = *(const float4 *)gains, bias4 = *(const float4 *)(gains + GATES);
    const float gain[GATES] = {gain4.x, gain4.y, gain4.z, gain4.w};
    const float bias[GATES] = {bias4.x, bias4.y, bias4.z, bias4.w};
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) {
        statistics<VEC>(st, 32 * VEC, gate).normalise(q.value[gate]);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            z[gate][i] = gain[gate] * q.value[gate][i] +
                         (in.entry[i].value(gate) * slope<T>(gate) + bias[gate]);
        }
    }
    if (v.dropout_threshold > 0) {
        dropout_scale(v, unit, n, q.dropout);
#pragma unroll
        for (int i = 0; i < VEC; i++) z[GATE_U][i] *= q.dropout[i];
    }
}

/* Fetches the thread block's gains and biases, [unit][gains of the gates, biases]. They may be read
 * after scale_gains and a barrier. */
template <typename T>
static __device__ void fetch_gains(const view<T> &v, int first, int count, float *gains) {
    for (int unit = threadIdx.x; unit < count; unit += blockDim.x) {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const float *from = k < GATES ? v.gain : v.bias;
            float *to = gains + unit * K + k;
            if (from && has_gate(v, k % GATES)) {
                from += (k % GATES - v.first) * v.width + first + unit;
                copy_word_async(shared_address(to), from);
            } else {
                *to = k < GATES;
            }
        }
    }
    copy_commit();
}

/* Waits for this thread's fetches and multiplies them by slope. */
template <typename T> static __device__ void scale_gains(int count, float *gains) {
    copy_wait<0>();
    for (int unit = threadIdx.x; unit < count; unit += blockDim.x) {
#pragma unroll
        for (int k = 0; k < K; k++) gains[unit * K + k] *= slope<T>(k % GATES);
    }
}

#endif
