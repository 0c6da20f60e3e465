/* Weight norm, see norm_rows in ops.h: once an update, a warp a row. Floor: weights and, backward,
 * gradients once through memory, and what is written once; a row comes again from the L1 or L2. At
 * 20 M parameters that is 76 MB forward and 150 MB backward, 25 and 50 us at 3 TB/s. */
#include "device/layout.h"
#include "device/ptx.cuh"
#include "training/training.h"

enum { WARPS = 8, THREADS = WARPS * 32 };

/* One W whose rows are normed. */
struct normed_part {
    const float *w;
    const int *row_start; /* NULL: one dense block */
    int out_block, in_block;
};

struct normed_view {
    normed_part part[2];
    int count, gates, units;
    const float *gain;
};

/* A row: `length` weights, of which each `in_block` follow `stride` after those before. */
struct normed_row {
    size_t first, stride;
    int length, in_block;

    __device__ normed_row(const normed_view &v, const normed_part &p, int gate, int unit) {
        const int node = unit / p.out_block;
        const int begin = p.row_start ? p.row_start[node] : 0;
        const int end = p.row_start ? p.row_start[node + 1] : 1;
        in_block = p.in_block;
        stride = (size_t)v.gates * p.out_block * in_block;
        first = begin * stride + ((size_t)gate * p.out_block + unit % p.out_block) * in_block;
        length = (end - begin) * in_block;
    }

    __device__ size_t at(int i) const {
        const int block = i / in_block;
        return first + block * stride + (i - block * in_block);
    }
};

static __device__ inline float sum_of_warp(float x) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) x += __shfl_xor_sync(~0u, x, apart);
    return x;
}

/* The dot product of the warp's row with another array of the same layout; every lane gets it. */
static __device__ inline float dot(const float *a, const float *b, const normed_row &r) {
    float sum = 0;
    for (int i = threadIdx.x % 32; i < r.length; i += 32) {
        const size_t at = r.at(i);
        sum += a[at] * b[at];
    }
    return sum_of_warp(sum);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS)
    norm_rows(const __grid_constant__ normed_view v, T *to0, T *to1) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= v.gates * v.units) return;
    float square = (float)WEIGHT_NORM_EPSILON;
    for (int p = 0; p < v.count; p++) {
        const normed_row r(v, v.part[p], row / v.units, row % v.units);
        square += dot(v.part[p].w, v.part[p].w, r);
    }
    const float scale = v.gain[row] / sqrtf(square);
    for (int p = 0; p < v.count; p++) {
        const normed_row r(v, v.part[p], row / v.units, row % v.units);
        T *to = p ? to1 : to0;
        for (int i = threadIdx.x % 32; i < r.length; i += 32) {
            const size_t at = r.at(i);
            to[at] = from_float<T>(scale * v.part[p].w[at]);
        }
    }
}

static __global__ void __launch_bounds__(THREADS)
    norm_rows_backward(const __grid_constant__ normed_view v, float *d0, float *d1, float *dgain) {
    const int row = blockIdx.x * WARPS + threadIdx.x / 32;
    if (row >= v.gates * v.units) return;
    float square = (float)WEIGHT_NORM_EPSILON, along = 0;
    for (int p = 0; p < v.count; p++) {
        const normed_row r(v, v.part[p], row / v.units, row % v.units);
        square += dot(v.part[p].w, v.part[p].w, r);
        along += dot(v.part[p].w, p ? d1 : d0, r);
    }
    const float inverse = 1 / sqrtf(square);
    const float scale = v.gain[row] * inverse, share = along * inverse * inverse;
    if (threadIdx.x % 32 == 0) dgain[row] = along * inverse;
    for (int p = 0; p < v.count; p++) {
        const normed_row r(v, v.part[p], row / v.units, row % v.units);
        float *d = p ? d1 : d0;
        for (int i = threadIdx.x % 32; i < r.length; i += 32) {
            const size_t at = r.at(i);
            d[at] = scale * (d[at] - share * v.part[p].w[at]);
        }
    }
}

static normed_view view_of(const normed_rows *w) {
    const layout *l = &w->layout[0]->host;
    normed_view v = {};
    v.count = w->count;
    v.gates = l->gates;
    v.units = l->out_nodes * l->out_block;
    v.gain = (const float *)w->gain;
    for (int p = 0; p < w->count; p++) {
        const layout *of = &w->layout[p]->host;
        v.part[p] = {(const float *)w->weight[p], layout_is_dense(of) ? NULL : of->row_start,
                     of->out_block, of->in_block};
    }
    return v;
}

static unsigned grid_of(const normed_view &v) {
    return (unsigned)((v.gates * v.units + WARPS - 1) / WARPS);
}

void cuda_norm_rows(backend *be, const normed_rows *w, void *const operand[2]) {
    const normed_view v = view_of(w);
    cudaStream_t stream = cuda_of(be)->stream;
    cuda_weights_change(be);
    if (be->precision == BF16) {
        norm_rows<bf16>
            <<<grid_of(v), THREADS, 0, stream>>>(v, (bf16 *)operand[0], (bf16 *)operand[1]);
    } else {
        norm_rows<float>
            <<<grid_of(v), THREADS, 0, stream>>>(v, (float *)operand[0], (float *)operand[1]);
    }
    cuda_launched(be, "norm_rows");
}

void cuda_norm_rows_backward(backend *be, const normed_rows *w, void *const gradient[2],
                             void *dgain) {
    const normed_view v = view_of(w);
    norm_rows_backward<<<grid_of(v), THREADS, 0, cuda_of(be)->stream>>>(
        v, (float *)gradient[0], (float *)gradient[1], (float *)dgain);
    cuda_launched(be, "norm_rows_backward");
}
