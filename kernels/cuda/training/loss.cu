/* Softmax cross-entropy, reductions and pooling. Floor: the logits once. Every sum runs in an order
 * fixed by the sizes alone. */
#include "training/reduce.cuh"

/* -------------------------------------------------------------------------------- softmax
 * A thread block takes 32 columns of one step, PARTS threads a column, each with 256 / PARTS logits
 * in registers. */

enum { PARTS = 8, SLICE = VOCABULARY / PARTS };

/* The largest of a column's PARTS values, or their sum; every thread gets the result. */
template <bool largest> static __device__ float combine(float value, float shared[PARTS][32]) {
    int column = threadIdx.x, part = threadIdx.y;
    shared[part][column] = value;
    __syncthreads();
    float result = shared[0][column];
    for (int i = 1; i < PARTS; i++) {
        float other = shared[i][column];
        result = largest ? fmaxf(result, other) : result + other;
    }
    __syncthreads();
    return result;
}

template <typename T> static __global__ void softmax_kernel(const softmax_loss s) {
    __shared__ float shared[PARTS][32];
    const int part = threadIdx.y, n = blockIdx.x * 32 + threadIdx.x;
    const size_t t = blockIdx.y, column = t * s.columns + n;
    const size_t at = (t * s.rows + s.first) * s.columns + n;
    const float *logits = (const float *)s.logits, *bias = (const float *)s.bias;
    const int target = s.targets[column];
    float z[SLICE], most = -INFINITY, total = 0, hit = 0;
    bool broken = false; /* fmaxf passes NaN by */
#pragma unroll
    for (int i = 0; i < SLICE; i++) {
        const int v = i * PARTS + part;
        z[i] = v < s.classes ? logits[at + (size_t)v * s.columns] + bias[v] : -INFINITY;
        most = fmaxf(most, z[i]);
        broken = broken || z[i] != z[i];
    }
    most = combine<true>(most, shared);
    float before = 0; /* another class as likely as the likeliest, before the target */
#pragma unroll
    for (int i = 0; i < SLICE; i++) {
        const int v = i * PARTS + part;
        if (v == target) hit = z[i] - most;
        if (v < target && z[i] == most) before = 1;
        z[i] = __expf(z[i] - most);
        total += z[i];
    }
    if (broken) total = NAN;
    total = combine<false>(total, shared);
    hit = combine<false>(hit, shared);
    if (s.wrong) before = combine<true>(before, shared);
    const float weight = target < 0 ? 0 : s.weights ? ((const float *)s.weights)[column] : 1;
    if (part == 0) {
        ((float *)s.losses)[column] = target < 0 ? 0 : weight * (logf(total) - hit);
        if (s.wrong) ((float *)s.wrong)[column] = hit < 0 || before > 0 ? weight : 0;
    }
    if (!s.dlogits) return;
    const float scale = (float)s.scale * weight;
#pragma unroll
    for (int i = 0; i < SLICE; i++) {
        const int v = i * PARTS + part;
        const float d = target < 0 || v >= s.classes ? 0 : scale * (z[i] / total - (v == target));
        if (s.first + v < s.rows) ((T *)s.dlogits)[at + (size_t)v * s.columns] = from_float<T>(d);
    }
}

template <typename T> static void run_softmax(backend *be, const softmax_loss *s) {
    softmax_kernel<T>
        <<<dim3(s->columns / 32, s->steps), dim3(32, PARTS), 0, cuda_of(be)->stream>>>(*s);
    cuda_launched(be, "softmax_cross_entropy");
}

void cuda_softmax_cross_entropy(backend *be, const softmax_loss *s) {
    DISPATCH(be, run_softmax, be, s);
}

/* ------------------------------------------------------------------------------- reductions */

template <typename T>
static __global__ void row_sums_kernel(const T *x, int steps, int rows, int columns, float *out) {
    float total = 0;
    for (int t = 0; t < steps; t++) {
        const T *row = x + ((size_t)t * rows + blockIdx.x) * columns;
        for (int n = threadIdx.x; n < columns; n += REDUCE_THREADS) total += to_float(row[n]);
    }
    total = block_sum(total);
    if (threadIdx.x == 0) out[blockIdx.x] = total;
}

template <typename T>
static void run_row_sums(backend *be, const void *x, int steps, int rows, int columns, void *out) {
    row_sums_kernel<T><<<rows, REDUCE_THREADS, 0, cuda_of(be)->stream>>>((const T *)x, steps, rows,
                                                                         columns, (float *)out);
    cuda_launched(be, "row_sums");
}

void cuda_row_sums(backend *be, const void *x, int steps, int rows, int columns, void *out) {
    DISPATCH(be, run_row_sums, be, x, steps, rows, columns, out);
}

/* Partial sums of x, or of its square: one for each thread block. */
static __global__ void partial_kernel(const float *x, size_t count, bool square, double *partial) {
    double total = 0;
    size_t step = (size_t)gridDim.x * REDUCE_THREADS;
    for (size_t i = (size_t)blockIdx.x * REDUCE_THREADS + threadIdx.x; i < count; i += step) {
        total += square ? (double)x[i] * x[i] : (double)x[i];
    }
    total = block_sum(total);
    if (threadIdx.x == 0) partial[blockIdx.x] = total;
}

static __global__ void add_kernel(const double *partial, int count, double *out) {
    double total = sum_partials(partial, count);
    if (threadIdx.x == 0) *out += total;
}

int cuda_partials(backend *be, const void *x, size_t count, bool square) {
    size_t wanted = (count + 4 * REDUCE_THREADS - 1) / (4 * REDUCE_THREADS);
    int blocks = wanted < REDUCTION_BLOCKS ? (int)wanted : REDUCTION_BLOCKS;
    partial_kernel<<<blocks, REDUCE_THREADS, 0, cuda_of(be)->stream>>>(
        (const float *)x, count, square, cuda_of(be)->partial);
    cuda_launched(be, "sum");
    return blocks;
}

void cuda_sum(backend *be, const void *x, size_t count, double *out) {
    int blocks = cuda_partials(be, x, count, false);
    add_kernel<<<1, REDUCE_THREADS, 0, cuda_of(be)->stream>>>(cuda_of(be)->partial, blocks, out);
    cuda_launched(be, "sum");
}

/* ---------------------------------------------------------------------------------- pooling */

template <typename T>
static __global__ void pool_kernel(const T *x, int rows, int columns, const int32_t *first,
                                   const int32_t *last, pooling how, double *out) {
    size_t at = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (size_t)rows * columns) return;
    int n = at % columns;
    double result = out[at];
    for (int t = first[n]; t < last[n]; t++) {
        const double value = to_float(x[(size_t)t * rows * columns + at]);
        if (how == POOL_LAST) result = value;
        if (how == POOL_MEAN) result += value;
        if (how == POOL_MAX) result = fmax(result, value);
    }
    out[at] = result;
}

void cuda_pool(backend *be, const void *x, element type, int steps, int rows, int columns,
               const int32_t *first, const int32_t *last, pooling how, void *out) {
    (void)steps;
    size_t count = (size_t)rows * columns;
    unsigned blocks = (unsigned)((count + 255) / 256);
    cudaStream_t stream = cuda_of(be)->stream;
    if (type == OPERAND && be->precision == BF16) {
        pool_kernel<<<blocks, 256, 0, stream>>>((const bf16 *)x, rows, columns, first, last, how,
                                                (double *)out);
    } else {
        pool_kernel<<<blocks, 256, 0, stream>>>((const float *)x, rows, columns, first, last, how,
                                                (double *)out);
    }
    cuda_launched(be, "pool");
}
