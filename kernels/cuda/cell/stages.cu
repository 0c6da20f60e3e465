/* What a cell does between products, other than its gates: internal stages' layer norm, input table
 * and activation, forward and backward; and the sum of two products. The equations stand in ops.h,
 * those of layer norm's gradient in kernels/cpu/stages.c; how units and columns are shared out, in
 * whole.cuh.
 *
 * Floors, in bytes a unit and stream (bf16): activate 4; activate_backward 6, with a table that
 * multiplies 2 more, with relu 2 more. Besides, tables' rows of 512 bytes, one a unit, of which
 * text touches about half: gathering them beats copying whole rows to shared memory. A column's
 * byte selects an entry out of one row, which stays in L1. */
#include "cell/whole.cuh"

enum { WARPS = 16, THREADS = WARPS * 32 };

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
static __global__ void __launch_bounds__(THREADS, 1) activate(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float shared[];
    const whole_stage<T, VEC, 1, 1, WARPS> a(v, shared);
    wait_for_earlier();
    let_next_start();
    for (int span = 0; span < v.columns / a.SPAN; span++) {
        const int n = span * a.SPAN + a.lane * VEC;
        const uint32_t bytes = load_bytes<VEC>(v.bytes + n);
        a.normalise(v, span);
        const statistics<VEC> st(a.st + a.lane * VEC, a.SPAN, 0);
#pragma unroll 2
        for (int unit = a.first + a.warp; unit < a.last; unit += WARPS) {
            packet<T, VEC> raw[1];
            float y[VEC];
            a.fetch_raw(v, unit, n, raw);
            unpack(raw[0], y);
            st.normalise(y);
            activate_columns(v, unit, bytes, y);
            store(v.out + (state_row(v, unit) + n), y);
        }
    }
}

/* The gradient at raw, once those at norm's result are there, see kernels/cpu/stages.c. */
template <typename T, int VEC>
static __device__ __forceinline__ void finish_gradient(const view<T> &v,
                                                       const whole_stage<T, VEC, 1, 2, WARPS> &a,
                                                       const statistics<VEC> &st, int span) {
    const float scale[2] = {SCALE_DSUM, SCALE_DSUM};
    const int n = span * a.SPAN + a.lane * VEC;
    float mean[VEC], product[VEC];
    for (int i = threadIdx.x; i < a.SPAN; i += THREADS) {
        float of[2];
        a.wait_means(v, v.dsums, span * a.SPAN + i, scale, of);
        a.means[i] = of[0];
        a.means[a.SPAN + i] = of[1];
    }
    __syncthreads();
    load(mean, a.means + a.lane * VEC);
    load(product, a.means + a.SPAN + a.lane * VEC);
#pragma unroll 2
    for (int unit = a.first + a.warp; unit < a.last; unit += WARPS) {
        const uint32_t at = state_row(v, unit) + n;
        const float gain = gain_of(v, 0, unit);
        packet<T, VEC> raw[1], dpre;
        float value[VEC], d[VEC];
        a.fetch_raw(v, unit, n, raw);
        if (a.keeps(v, unit)) dpre = *a.rows(unit, 1);
        if (!a.keeps(v, unit)) load_packet(dpre, v.dpre + at);
        unpack(raw[0], value);
        st.normalise(value);
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            d[k] = (gain * dpre.value(k) - mean[k] - value[k] * product[k]) * st.scale[k];
        }
        store(v.raw + at, d);
    }
}

template <typename T, int VEC>
static __global__ void __launch_bounds__(THREADS, 1)
    activate_backward(const __grid_constant__ view<T> v) {
    extern __shared__ __align__(16) float shared[];
    const whole_stage<T, VEC, 1, 2, WARPS> a(v, shared);
    const float scale[2] = {SCALE_DSUM, SCALE_DSUM};
    for (int i = threadIdx.x; i < v.units * 2; i += THREADS) {
        const int unit = a.first + i / 2;
        const float *from = i % 2 ? v.dgain : v.dbias;
        a.units[i] = !v.start && from && unit < v.width ? from[unit] : 0;
    }
    wait_for_earlier();
    let_next_start();
    for (int span = 0; span < v.columns / a.SPAN; span++) {
        const int n = span * a.SPAN + a.lane * VEC;
        const uint32_t bytes = load_bytes<VEC>(v.bytes + n);
        float part[2][VEC] = {};
        for (int i = threadIdx.x; i < a.SPAN; i += THREADS) {
            read_statistics(v, span * a.SPAN + i, a.SPAN, a.st + i);
        }
        __syncthreads();
        const statistics<VEC> st(a.st + a.lane * VEC, a.SPAN, 0);
#pragma unroll 2
        for (int unit = a.first + a.warp; unit < a.last; unit += WARPS) {
            const uint32_t at = state_row(v, unit) + n;
            const bool keeps = a.keeps(v, unit);
            packet<T, VEC> raw, dpre;
            float value[VEC], d[VEC], unit_sums[2] = {}, gain = gain_of(v, 0, unit);
            load_packet(raw, v.raw + at);
            unpack(raw, value);
            st.normalise(value);
            differentiate_columns(v, unit, n, bytes, value, d);
            pack(dpre, d);
            if (keeps) *a.rows(unit) = raw;
            if (keeps) *a.rows(unit, 1) = dpre;
            if (!keeps || !v.scratch) store_packet(v.dpre + at, dpre);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float kept = dpre.value(i), product = kept * value[i];
                unit_sums[0] += kept;
                unit_sums[1] += product;
                part[0][i] += gain * kept;
                part[1][i] += gain * product;
            }
            warp_sums(unit_sums);
            if (a.lane % 16 == 0) a.units[(unit - a.first) * 2 + a.lane / 16] += unit_sums[0];
        }
        if (v.layer_norm) {
            a.add(v, v.dsums, span, part, scale);
            finish_gradient(v, a, st, span);
        }
        __syncthreads(); /* the statistics and means may be overwritten */
    }
    for (int i = threadIdx.x; i < v.units * 2; i += THREADS) {
        const int unit = a.first + i / 2;
        float *to = i % 2 ? v.dgain : v.dbias;
        if (to && unit < v.width) to[unit] = a.units[i];
    }
}

/* Forward, of a table that multiplies before norm: raw <- raw table[byte], entry <- raw. Backward:
 * from the gradient d at that product, entry <- d entry, raw <- d table[byte]. entry: NULL where
 * nothing is kept. A warp takes 64 columns of a unit at a time. */
template <typename T, bool BACKWARD>
static __global__ void __launch_bounds__(THREADS)
    multiply_first(T *raw, T *entry, const T *table, const uint8_t *bytes, int units, int stride,
                   int columns) {
    const int unit = blockIdx.x * WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool fed = unit < units && unit % stride == 0;
    const T *of = table + (size_t)(unit / stride) * VOCABULARY;
    wait_for_earlier();
    let_next_start();
    if (unit >= units) return;
    for (int n = 2 * lane; n < columns; n += 64) {
        const size_t at = (size_t)unit * columns + n;
        const uint32_t two = load_bytes<2>(bytes + n);
        float x[2], kept[2] = {};
        load(x, raw + at);
        if (BACKWARD) load(kept, entry + at);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            kept[i] = !BACKWARD ? x[i] : fed ? x[i] * kept[i] : 0;
            if (fed) x[i] *= to_float(of[byte_of(two, i)]);
        }
        store(raw + at, x);
        if (entry) store(entry + at, kept);
    }
}

template <typename T>
static void run_multiply_first(backend *be, const cell *c, int s, int t, bool backward) {
    const stage *g = &c->stage[s];
    const size_t kept = c->keep ? (size_t)t * g->units * c->columns : 0;
    T *raw = (T *)g->raw + kept, *entry = c->keep ? offset<T>(g->dentry, kept) : NULL;
    cuda_launch(be, "multiply_first", true,
                backward ? multiply_first<T, true> : multiply_first<T, false>,
                dim3((g->units + WARPS - 1) / WARPS), THREADS, 0, raw, entry, (const T *)g->table,
                c->bytes + (size_t)t * c->columns, g->units, g->table_stride, c->columns);
}

template <typename T> static void run_activate(backend *be, const cell *c, int s, int t) {
    view<T> v = view_step<T>(be, c, s, t);
    if (c->stage[s].norm_last) run_multiply_first<T>(be, c, s, t, false);
    LAUNCH_WHOLE(be, activate, 1, 1, WARPS, v, true, "activate");
}

template <typename T> static void run_activate_backward(backend *be, const cell *c, int s, int t) {
    view<T> v = view_step<T>(be, c, s, t);
    LAUNCH_WHOLE(be, activate_backward, 1, 2, WARPS, v, true, "activate_backward");
    if (c->stage[s].norm_last) run_multiply_first<T>(be, c, s, t, true);
}

void stage_zero_sums(backend *be, const cell *c, int s, int t, bool backward) {
    const stage *g = &c->stage[s];
    char *sums = (char *)(backward ? g->dsums : g->sums);
    const int gates = makes_gates(g) ? GATES : 1;
    if (!g->layer_norm) return;
    cuda_zero_sums(be, sums + t * cuda_sums_bytes(be, gates, c->columns), gates, c->columns);
}

/* The kernel before one of these in a sequence is a product, which writes nothing that they read
 * before they wait, so they start early. */
void activate_run(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_activate, be, c, s, t);
}

void activate_backward_run(backend *be, const cell *c, int s, int t) {
    DISPATCH(be, run_activate_backward, be, c, s, t);
}

void cuda_activate(backend *be, const cell *c, int s, int t) {
    stage_zero_sums(be, c, s, t, false);
    activate_run(be, c, s, t);
}

void cuda_activate_backward(backend *be, const cell *c, int s, int t) {
    stage_zero_sums(be, c, s, t, true);
    activate_backward_run(be, c, s, t);
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

void cuda_add_rows(backend *be, const device_layout *device, const void *x, int columns, void *y) {
    DISPATCH(be, run_add_rows, be, &device->host, x, columns, y);
}
