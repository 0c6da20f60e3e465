/* One step of a stage, as the kernels between products see it, and what they share: layer norm's
 * statistics, and rows of a few columns a thread. See stages.cu and gates.cuh. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_STAGES_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_STAGES_CUH

#include "cell/cell.h"
#include "device/fixed_sums.cuh"
#include "device/layout.h"
#include "device/ptx.cuh"
#include "device/waits.cuh"

/* One step of a stage, as a kernel sees it. */
template <typename T> struct view {
    int width, columns, gates; /* width: units of the stage */
    int first; /* of the gates i f o u: those before it have no rows, and zeros in registers */
    int units; /* of a thread block */
    int kept;  /* of these: whose rows stay in shared memory */
    int log_block, node_rows; /* a node's first row lies node_rows after its first unit's number */
    uint32_t gate_rows;       /* elements from one gate of a unit to the next */
    bool layer_norm, relu;
    bool scratch;      /* dpre of this step alone */
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
    const T *entries; /* [width / stride][VOCABULARY][GATES]: the table, interleaved; or NULL */
    bool lasting;     /* dc stays in the L2 until the next step */
    const float *c_before;
    float *c_after, *dc;
    T *h;
    const T *dh, *dx;
    uint32_t dropout_threshold; /* see dropout in ops.h; 0: none */
    float dropout_scale;
    uint64_t dropout_seed;
    uint32_t dropout_stream; /* dropout.first_stream */
    const update_arguments *arguments;
    int t;
    uint32_t *stuck; /* see device/waits.cuh */
};

template <typename T> static T *offset(void *array, size_t count) {
    return array ? (T *)array + count : NULL;
}

template <typename T> static view<T> view_step(backend *be, const cell *c, int s, int t) {
    const stage *g = &c->stage[s];
    size_t columns = c->columns, gates = g->gates, plane = (size_t)g->units * columns;
    size_t kept = c->keep ? t : 0;
    size_t sums = (makes_gates(g) ? GATES : 1) * sums_gate(c->columns);
    view<T> v = {};
    cuda_ok(be, gates * plane <= UINT32_MAX ? cudaSuccess : cudaErrorInvalidValue,
            "a step's gates, of more than 2^32 values");
    v.width = g->units;
    v.columns = c->columns;
    v.gates = g->gates;
    v.first = makes_gates(g) ? first_gate(g) : 0;
    v.log_block = g->block < g->units ? log2_of(g->block) : 31; /* one node of any size: number 0 */
    v.node_rows = (g->gates - 1) * g->block;
    v.gate_rows = (uint32_t)((size_t)g->block * columns);
    v.layer_norm = g->layer_norm;
    v.relu = g->relu;
    v.start = t == c->steps - 1;
    v.asked = !v.start || c->has_later_steps;
    v.use = use_after_norm(g);
    v.stride = g->table_stride;
    v.gain = (const float *)g->gain;
    v.bias = (const float *)g->bias;
    v.table = (const T *)g->table;
    v.raw = offset<T>(g->raw, kept * gates * plane);
    v.out = offset<T>(g->out, kept * plane);
    v.scratch = !keeps_dpre(g);
    v.dpre = offset<T>(g->dpre, v.scratch ? 0 : kept * gates * plane);
    v.dentry = offset<T>(g->dentry, kept * gates * plane);
    v.sums = offset<fixed>(g->sums, t * sums);
    v.dsums = offset<fixed>(g->dsums, t * sums);
    v.dgain = (float *)g->dgain;
    v.dbias = (float *)g->dbias;
    v.bytes = c->bytes + (size_t)t * columns;
    v.entries = g->table_use == TABLE_ADD ? (const T *)c->entries : NULL;
    v.c_before = offset<float>(c->c, t * plane);
    v.c_after = offset<float>(c->c, (t + 1) * plane);
    v.h = offset<T>(c->h, (t + 1) * plane);
    v.dh = offset<T>(c->dh, t * plane);
    v.dx = (const T *)c->dx;
    v.dc = (float *)c->dc;
    v.dropout_threshold = c->dropout.threshold;
    v.dropout_scale = (float)c->dropout.scale;
    v.dropout_seed = c->dropout.seed;
    v.dropout_stream = c->dropout.first_stream;
    v.arguments = c->arguments;
    v.t = c->first_step + t;
    return v;
}

/* ---------------------------------------------------------------------------- device helpers */

/* COUNT neighbours as they lie in memory, moved in one instruction; the compiler would split a
 * struct of bf16 into stores of two bytes. A load is waited for only when a value is used. */
template <typename T, int COUNT> struct alignas(COUNT * sizeof(T)) packet {
    static const int WORDS = COUNT * sizeof(T) / 4;
    uint32_t word[WORDS];

    __device__ float value(int i) const {
        if (sizeof(T) == 4) return __uint_as_float(word[i]);
        return __uint_as_float(i % 2 ? word[i / 2] & 0xFFFF0000u : word[i / 2] << 16);
    }
};

template <typename T, int COUNT>
static __device__ inline void set_packet(packet<T, COUNT> &p, uint4 x) {
    const uint32_t words[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int i = 0; i < p.WORDS; i++) p.word[i] = words[i];
}

template <typename T, int COUNT>
static __device__ inline void load_packet(packet<T, COUNT> &p, const T *from) {
    uint4 x = {};
    if (p.WORDS == 1) x.x = *(const uint32_t *)from;
    if (p.WORDS == 2) *(uint2 *)&x = *(const uint2 *)from;
    if (p.WORDS == 4) x = *(const uint4 *)from;
    set_packet(p, x);
}

/* Loads what is not read again soon: the L2 evicts it first. */
template <typename T, int COUNT>
static __device__ inline void load_packet_once(packet<T, COUNT> &p, const T *from) {
    uint4 x = {};
    if (p.WORDS == 1) x.x = __ldcs((const uint32_t *)from);
    if (p.WORDS == 2) *(uint2 *)&x = __ldcs((const uint2 *)from);
    if (p.WORDS == 4) x = __ldcs((const uint4 *)from);
    set_packet(p, x);
}

template <typename T, int COUNT>
static __device__ inline void store_packet(T *to, const packet<T, COUNT> &p) {
    const uint32_t *w = p.word;
    if (p.WORDS == 1) __stwb((uint32_t *)to, w[0]);
    if (p.WORDS == 2) __stwb((uint2 *)to, make_uint2(w[0], w[p.WORDS / 2]));
    if (p.WORDS == 4) {
        __stwb((uint4 *)to, make_uint4(w[0], w[p.WORDS / 4], w[p.WORDS / 2], w[p.WORDS - 1]));
    }
}

template <typename T, int COUNT>
static __device__ inline void store_shared(T *to, const packet<T, COUNT> &p) {
    const uint32_t *w = p.word;
    if (p.WORDS == 1) *(uint32_t *)to = w[0];
    if (p.WORDS == 2) *(uint2 *)to = make_uint2(w[0], w[p.WORDS / 2]);
    if (p.WORDS == 4)
        *(uint4 *)to = make_uint4(w[0], w[p.WORDS / 4], w[p.WORDS / 2], w[p.WORDS - 1]);
}

template <typename T, int COUNT>
static __device__ inline void unpack(const packet<T, COUNT> &p, float (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) x[i] = p.value(i);
}

template <int COUNT>
static __device__ inline void pack(packet<float, COUNT> &p, const float (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++) p.word[i] = __float_as_uint(x[i]);
}

template <int COUNT>
static __device__ inline void pack(packet<bf16, COUNT> &p, const float (&x)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        __nv_bfloat162 pair = __floats2bfloat162_rn(x[i], x[i + 1]);
        p.word[i / 2] = *(uint32_t *)&pair;
    }
}

template <int VEC, typename T> static __device__ inline void load(float (&x)[VEC], const T *from) {
    packet<T, VEC> p;
    load_packet(p, from);
    unpack(p, x);
}

template <int VEC, typename T> static __device__ inline void store(T *to, const float (&x)[VEC]) {
    packet<T, VEC> p;
    pack(p, x);
    store_packet(to, p);
}

/* Stores fp32 values that the L2 shall evict last. */
template <int VEC> static __device__ inline void store_lasting(float *to, const float (&x)[VEC]) {
    packet<float, VEC> p;
    pack(p, x);
    const uint32_t *w = p.word;
    if (VEC == 2) store_lasting((uint2 *)to, make_uint2(w[0], w[1]));
    if (VEC == 4) store_lasting((uint4 *)to, make_uint4(w[0], w[1], w[VEC / 2], w[VEC - 1]));
}

template <int VEC> static __device__ inline void store_shared(float *to, const float (&x)[VEC]) {
    packet<float, VEC> p;
    pack(p, x);
    store_shared(to, p);
}

/* Copies a packet to shared memory; see copy_async_whole. */
template <typename T, int COUNT>
static __device__ inline void copy_packet_async(packet<T, COUNT> *to, const T *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(to)), "l"(from),
                 "n"(COUNT * sizeof(T))
                 : "memory");
}

/* The bytes of VEC columns. */
template <int VEC> static __device__ inline uint32_t load_bytes(const uint8_t *from) {
    return VEC == 4 ? *(const uint32_t *)from : *(const uint16_t *)from;
}

static __device__ inline int byte_of(uint32_t bytes, int i) {
    return bytes >> 8 * i & 255;
}

/* Whether a gate has rows, which all but i always have. */
template <typename T> static __device__ inline bool has_gate(const view<T> &v, int gate) {
    return gate > GATE_I || v.first == 0;
}

/* Where a unit's row begins, in elements: of arrays [width][columns], and of gate 0 in raw and
 * dpre. A step has fewer than 2^32 of them; in 64 bits the kernels of the gates are 8 % longer. */
template <typename T> static __device__ inline uint32_t state_row(const view<T> &v, int unit) {
    return (uint32_t)unit * (uint32_t)v.columns;
}

template <typename T> static __device__ inline uint32_t unit_row(const view<T> &v, int unit) {
    return (uint32_t)(unit + (unit >> v.log_block) * v.node_rows) * (uint32_t)v.columns;
}

/* A unit's table of gate 0; NULL if it has none. */
template <typename T> static __device__ inline const T *unit_table(const view<T> &v, int unit) {
    if (v.use == TABLE_NONE) return NULL;
    if (v.stride == 1) return v.table + (size_t)unit * VOCABULARY;
    return unit % v.stride ? NULL : v.table + (size_t)(unit / v.stride) * VOCABULARY;
}

/* Whether a unit has entries, of all gates, and where they begin. */
template <typename T>
static __device__ inline bool find_entries(const view<T> &v, int unit, uint32_t &at) {
    int entry = unit;
    bool has = v.entries != NULL;
    if (v.stride > 1) {
        entry = unit / v.stride;
        has = has && entry * v.stride == unit;
    }
    at = (uint32_t)entry * (VOCABULARY * GATES);
    return has;
}

/* - mean / deviation and 1 / deviation from a column's means of values and of their squares. */
static __device__ inline void find_statistics(float mean, float square, float &shift,
                                              float &scale) {
    float variance = fmaf(-mean, mean, square); /* whatever the compiler would choose */
    if (variance < 0) variance = 0;             /* by rounding; NaN stays NaN */
    scale = rsqrtf(variance + 1e-6f);
    shift = -mean * scale;
}

/* The same. The first thread block that has the column also stores them for backward. */
template <typename T>
static __device__ inline void finish_statistics(const view<T> &v, float mean, float square,
                                                int gate, int n, float *st, int stride) {
    float shift, scale;
    find_statistics(mean, square, shift, scale);
    st[0] = shift;
    st[stride] = scale;
    if (blockIdx.x > 0) return;
    float *kept = kept_statistics(v.sums + gate * sums_gate(v.columns), v.columns);
    kept[n] = shift;
    kept[v.columns + n] = scale;
}

/* Backward: reads the statistics of a stage's one gate. */
template <typename T>
static __device__ void read_statistics(const view<T> &v, int n, int stride, float *st) {
    const float *kept = kept_statistics(v.sums, v.columns) + n;
#pragma unroll
    for (int i = 0; i < 2; i++) st[i * stride] = v.layer_norm ? kept[i * v.columns] : i;
}

/* The statistics of VEC columns of one gate; st points to the first of them. */
template <int VEC> struct statistics {
    float shift[VEC], scale[VEC];

    __device__ statistics(const float *st, int stride, int gate) {
        load(shift, st + gate * 2 * stride);
        load(scale, st + (gate * 2 + 1) * stride);
    }

    __device__ void normalise(float (&x)[VEC]) const {
#pragma unroll
        for (int i = 0; i < VEC; i++) x[i] = x[i] * scale[i] + shift[i];
    }
};

template <typename T> static __device__ inline float gain_of(const view<T> &v, int gate, int unit) {
    return v.gain ? v.gain[gate * v.width + unit] : 1;
}

template <typename T> static __device__ inline float bias_of(const view<T> &v, int gate, int unit) {
    return v.bias ? v.bias[gate * v.width + unit] : 0;
}

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

/* Zeroes a stage's sums of a step, or dsums. */
void stage_zero_sums(backend *be, const cell *c, int s, int t, bool backward);

#endif
