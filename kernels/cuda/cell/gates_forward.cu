/* The gates of a cell, with layer norm. The equations stand in ops.h; how units and columns are
 * shared out, in gates.cuh.
 *
 * Floor, in bytes a unit and stream (bf16): 8 raw, 8 c, 2 h. Besides, the input table's entries, of
 * which a step of text touches about a third.
 *
 * Thread blocks take one span of columns each, so that each makes layer norm's statistics of that
 * span alone. What did not help: docs/kernels/cell.md. */
#include "cell/gates.cuh"

enum {
    FORWARD_WARPS = 8,
    FORWARD_UNITS = 512 /* at most, whose gains have room */
};

/* Thread blocks on a multiprocessor. From 256 columns on, four in bf16 are 1 us a step faster than
 * three; four in fp32 would spill registers. */
template <typename T> static constexpr __host__ __device__ int forward_resident() {
    return sizeof(T) == 2 ? 4 : 3;
}

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

void cuda_prepare_entries(backend *be, const cell *c) {
    if (c->stage[c->stages - 1].table_use == TABLE_ADD) DISPATCH(be, run_interleave, be, c);
}

/* ------------------------------------------------------------------------------------- gates */

template <typename T, int VEC>
static __global__ void __launch_bounds__(FORWARD_WARPS * 32, forward_resident<T>())
    gates_forward(const __grid_constant__ view<T> v) {
    const int SPAN = 32 * VEC, PER_THREAD = GATES * SPAN / (FORWARD_WARPS * 32);
    extern __shared__ __align__(16) float st[]; /* [GATES][2][SPAN] */
    float *gains = st + K * SPAN;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int first = blockIdx.x * v.units, last = min(first + v.units, v.width);
    const int n0 = blockIdx.y * SPAN, n = n0 + lane * VEC;
    const uint32_t bytes = load_bytes<VEC>(v.bytes + n);
    fetch_gains(v, first, last - first, gains);
    int unit = first + warp;
    gate_inputs<T, VEC> in;
    if (unit < last) {
        in.fetch_entries(v, unit, bytes);
        in.fetch_c(v, unit, n);
    }
    wait_for_earlier();
    let_next_start();
    if (unit < last) in.fetch_raw(v, unit, n);
    make_statistics<PER_THREAD>(v, threadIdx.x / SPAN * PER_THREAD, n0 + threadIdx.x % SPAN, SPAN,
                                st + threadIdx.x % SPAN);
    scale_gains<T>(last - first, gains);
    __syncthreads();
#pragma unroll 1
    for (; unit < last; unit += FORWARD_WARPS) {
        const int after = unit + FORWARD_WARPS;
        const uint32_t at = state_row(v, unit) + n;
        gate_values<VEC> q;
        float z[GATES][VEC], state[VEC], h[VEC];
        q.take_raw(in);
        preactivate(v, st + lane * VEC, gains + (unit - first) * K, in, unit, n, q, z);
        if (after < last) {
            in.fetch_raw(v, after, n);
            in.fetch_entries(v, after, bytes);
        }
        squash<T>(z, q);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            state[i] = q.f[i] * in.c.value(i) + q.i[i] * q.u[i];
            h[i] = q.o[i] * tanh_<T>(state[i]);
        }
        if (after < last) in.fetch_c(v, after, n);
        store(v.c_after + at, state);
        store(v.h + at, h);
    }
}

template <typename T, int VEC> static void launch_gates(backend *be, view<T> v, bool early) {
    const int span = 32 * VEC, spans = v.columns / span;
    int blocks = max(cuda_of(be)->processors * forward_resident<T>() / spans, 1); /* of a span */
    v.units = min((v.width + blocks - 1) / blocks, (int)FORWARD_UNITS);
    blocks = (v.width + v.units - 1) / v.units;
    cuda_launch(be, "gates", early, gates_forward<T, VEC>, dim3(blocks, spans), FORWARD_WARPS * 32,
                (size_t)K * (span + v.units) * sizeof(float), v);
}

template <typename T> static void launch_spans(backend *be, const cell *c, int t, bool early) {
    view<T> v = view_step<T>(be, c, c->stages - 1, t);
    v.columns % 128 == 0 ? launch_gates<T, 4>(be, v, early) : launch_gates<T, 2>(be, v, early);
}

void gates_run(backend *be, const cell *c, int t, bool early) {
    DISPATCH(be, launch_spans, be, c, t, early);
}

void cuda_gates(backend *be, const cell *c, int t) {
    gates_run(be, c, t, false);
}
