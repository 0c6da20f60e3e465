/* The gates of a cell, with layer norm. The equations stand in ops.h; how units and columns are
 * shared out, in whole.cuh.
 *
 * Floor, in bytes a unit and stream (bf16): 8 raw, 8 c, 2 h. Besides, the input table's entries, of
 * which a step of text touches about a third. What did not help: docs/kernels/cell.md. */
#include "cell/gates.cuh"
#include "cell/whole.cuh"

/* Twice as many warps of bf16 as of fp32, whose registers would spill. */
template <typename T> static constexpr __host__ __device__ int forward_warps() {
    return sizeof(T) == 2 ? 32 : 16;
}

/* ------------------------------------------------------------------------------------ entries */

/* table [gates][entries][VOCABULARY] -> entries [entries][VOCABULARY][GATES], zeros for gates
 * before the first one */
template <typename T>
static __global__ void interleave_kernel(const T *table, int entries, int first, T *to) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x, rows = (size_t)entries * VOCABULARY;
    if (i >= rows) return;
    packet<T, GATES> side_by_side;
    float x[GATES];
#pragma unroll
    for (int gate = 0; gate < GATES; gate++) {
        x[gate] = gate < first ? 0 : to_float(table[(gate - first) * rows + i]);
    }
    pack(side_by_side, x);
    store_packet(to + i * GATES, side_by_side);
}

template <typename T> static void run_interleave(backend *be, const cell *c) {
    const stage *g = &c->stage[c->stages - 1];
    int entries = c->hidden / g->table_stride, threads = 256;
    interleave_kernel<T><<<entries * VOCABULARY / threads, threads, 0, cuda_of(be)->stream>>>(
        (const T *)g->table, entries, first_gate(g), (T *)c->entries);
    cuda_launched(be, "interleave the table");
}

void cuda_prepare_entries(backend *be, const cell *c) {
    if (c->stage[c->stages - 1].table_use == TABLE_ADD) DISPATCH(be, run_interleave, be, c);
}

/* ------------------------------------------------------------------------------------- gates */

template <typename T, int VEC>
static __global__ void __launch_bounds__(forward_warps<T>() * 32, 1)
    gates_forward(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float shared[];
    const int WARPS = forward_warps<T>();
    const whole_stage<T, VEC, GATES, 1, WARPS> a(v, shared);
    const int start = a.first + a.warp, column = a.lane * VEC;
    gate_inputs<T, VEC> in;
    uint32_t bytes = load_bytes<VEC>(v.bytes + column);
    fetch_gains(v, a.first, a.last - a.first, a.units);
    if (start < a.last) {
        in.fetch_entries(v, start, bytes);
        in.fetch_c(v, start, column);
    }
    wait_for_earlier();
    let_next_start();
    scale_gains<T>(a.last - a.first, a.units);
    for (int span = 0; span < v.columns / a.SPAN; span++) {
        const int n = span * a.SPAN + column;
        if (span > 0 && start < a.last) {
            bytes = load_bytes<VEC>(v.bytes + n);
            in.fetch_entries(v, start, bytes);
            in.fetch_c(v, start, n);
        }
        a.normalise(v, span);
        if (start < a.last) a.fetch_raw(v, start, n, in.raw);
#pragma unroll 1
        for (int unit = start; unit < a.last; unit += WARPS) {
            const int after = unit + WARPS;
            const uint32_t at = state_row(v, unit) + n;
            gate_values<VEC> q;
            float z[GATES][VEC], state[VEC], h[VEC];
            q.take_raw(in);
            preactivate(v, a.st + column, a.units + (unit - a.first) * K, in, unit, n, q, z);
            if (after < a.last) {
                a.fetch_raw(v, after, n, in.raw);
                in.fetch_entries(v, after, bytes);
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float of[GATES] = {z[0][i], z[1][i], z[2][i], z[3][i]};
                state[i] = in.c.value(i);
                h[i] = update_cell<T>(of, state[i], v.first > 0);
            }
            if (after < a.last) in.fetch_c(v, after, n);
            store(v.c_after + at, state);
            store(v.h + at, h);
        }
    }
}

template <typename T> static void run_gates(backend *be, const cell *c, int t, bool early) {
    view<T> v = view_step<T>(be, c, c->stages - 1, t);
    LAUNCH_WHOLE(be, gates_forward, GATES, 1, forward_warps<T>(), v, early, "gates");
}

void gates_run(backend *be, const cell *c, int t, bool early) {
    DISPATCH(be, run_gates, be, c, t, early);
}

void cuda_gates(backend *be, const cell *c, int t) {
    stage_zero_sums(be, c, c->stages - 1, t, false);
    gates_run(be, c, t, false);
}
