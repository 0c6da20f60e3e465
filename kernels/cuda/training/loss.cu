/* Softmax cross-entropy, reductions, pooling, and Adam.
 *
 * Floors: the logits once (softmax), the arenas once each way (Adam: 40 bytes a weight). Every sum
 * runs in an order fixed by the sizes alone. */
#include "training/training.h"

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

enum { REDUCE_THREADS = 256 };

/* The sum of a value of every thread, in a fixed order; thread 0 gets it. */
template <typename V> static __device__ V block_sum(V value) {
    __shared__ V shared[REDUCE_THREADS];
    shared[threadIdx.x] = value;
    for (int half = REDUCE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    return shared[0];
}

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

static __device__ double sum_partials(const double *partial, int count) {
    double total = 0;
    for (int i = threadIdx.x; i < count; i += REDUCE_THREADS) total += partial[i];
    return block_sum(total);
}

static __global__ void add_kernel(const double *partial, int count, double *out) {
    double total = sum_partials(partial, count);
    if (threadIdx.x == 0) *out += total;
}

static int launch_partials(backend *be, const void *x, size_t count, bool square) {
    size_t wanted = (count + 4 * REDUCE_THREADS - 1) / (4 * REDUCE_THREADS);
    int blocks = wanted < REDUCTION_BLOCKS ? (int)wanted : REDUCTION_BLOCKS;
    partial_kernel<<<blocks, REDUCE_THREADS, 0, cuda_of(be)->stream>>>(
        (const float *)x, count, square, cuda_of(be)->partial);
    cuda_launched(be, "sum");
    return blocks;
}

void cuda_sum(backend *be, const void *x, size_t count, double *out) {
    int blocks = launch_partials(be, x, count, false);
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

/* ------------------------------------------------------------------------------------- Adam */

/* The norm of the gradient, whether the update may go on, and the factors it uses. */
static __global__ void factors_kernel(const double *partial, int count, const update_arguments *a,
                                      update_report *report, adam_factors *f) {
    double norm = sqrt(sum_partials(partial, count));
    if (threadIdx.x) return;
    norm *= a->gradient_scale;
    report->gradient_norm = norm;
    if (report->failed == 0 && !(isfinite(norm) && isfinite(report->loss))) {
        report->failed = (double)a->update + 1;
    }
    double clip = a->clip > 0 && norm > a->clip ? a->clip / norm : 1;
    double done = (double)a->update + 1;
    f->apply = report->failed == 0;
    f->scale = (float)(a->gradient_scale * clip);
    f->step = (float)(a->learning_rate / (1 - pow(a->beta1, done)));
    f->correction = (float)(1 / sqrt(1 - pow(a->beta2, done)));
    f->beta1 = (float)a->beta1;
    f->beta2 = (float)a->beta2;
    f->epsilon = (float)a->epsilon;
    f->average = (float)a->average;
    f->kept = 1 - (float)(a->learning_rate * a->weight_decay);
}

static __device__ inline void adam_element(const adam_factors &f, float kept, float g, float &w,
                                           float &m, float &v, float &mean) {
    float d = g * f.scale;
    m = f.beta1 * m + (1 - f.beta1) * d;
    v = f.beta2 * v + (1 - f.beta2) * d * d;
    w = kept * w - f.step * m / (sqrtf(v) * f.correction + f.epsilon);
    mean = f.average * mean + (1 - f.average) * w;
}

/* Four weights a thread. `operands` is NULL where the operands are the weights. */
static __global__ void adam_kernel(size_t quads, float4 *weights, const float4 *gradient,
                                   float4 *moment1, float4 *moment2, float4 *average,
                                   bf16 *operands, const uint8_t *decays,
                                   const adam_factors *factors) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const adam_factors f = *factors;
    if (i >= quads || !f.apply) return;
    const float kept = decays && decays[i / (DECAY_GROUP / 4)] ? f.kept : 1;
    float4 g = gradient[i], w = weights[i], m = moment1[i], v = moment2[i], a = average[i];
    adam_element(f, kept, g.x, w.x, m.x, v.x, a.x);
    adam_element(f, kept, g.y, w.y, m.y, v.y, a.y);
    adam_element(f, kept, g.z, w.z, m.z, v.z, a.z);
    adam_element(f, kept, g.w, w.w, m.w, v.w, a.w);
    weights[i] = w;
    moment1[i] = m;
    moment2[i] = v;
    average[i] = a;
    if (operands) {
        __nv_bfloat162 *to = (__nv_bfloat162 *)(operands + 4 * i);
        to[0] = __floats2bfloat162_rn(w.x, w.y);
        to[1] = __floats2bfloat162_rn(w.z, w.w);
    }
}

/* `count` is a multiple of 4: arenas are padded. */
void cuda_adam(backend *be, size_t count, void *weights, const void *gradient, void *moment1,
               void *moment2, void *average, void *operands, const uint8_t *decays,
               const update_arguments *arguments, update_report *report) {
    cuda_weights_change(be);
    cuda_backend *cuda = cuda_of(be);
    size_t quads = count / 4;
    int blocks = launch_partials(be, gradient, count, true);
    factors_kernel<<<1, REDUCE_THREADS, 0, cuda->stream>>>(cuda->partial, blocks, arguments, report,
                                                           cuda->factors);
    adam_kernel<<<(unsigned)((quads + 255) / 256), 256, 0, cuda->stream>>>(
        quads, (float4 *)weights, (const float4 *)gradient, (float4 *)moment1, (float4 *)moment2,
        (float4 *)average, operands == weights ? NULL : (bf16 *)operands, decays, cuda->factors);
    cuda_launched(be, "adam");
}

/* Floor: 26 bytes a weight. */
static __global__ void adapt_kernel(size_t count, float *weights, const float *gradient,
                                    const float *trained, float *squares, bf16 *operands,
                                    const update_arguments *a) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float kept = (float)a->average;
    if (i >= count) return;
    const float d = gradient[i] * (float)a->gradient_scale, w = weights[i];
    const float v = kept < 1 ? kept * squares[i] + (1 - kept) * d * d : squares[i];
    const float next = w - ((float)a->learning_rate * d / (sqrtf(v) + (float)a->epsilon) +
                            (float)a->weight_decay * (w - trained[i]));
    squares[i] = v;
    weights[i] = next;
    if (operands) operands[i] = __float2bfloat16_rn(next);
}

void cuda_adapt(backend *be, size_t count, void *weights, const void *gradient, const void *trained,
                void *squares, void *operands, const update_arguments *arguments) {
    cuda_weights_change(be);
    adapt_kernel<<<(unsigned)((count + 255) / 256), 256, 0, cuda_of(be)->stream>>>(
        count, (float *)weights, (const float *)gradient, (const float *)trained, (float *)squares,
        operands == weights ? NULL : (bf16 *)operands, arguments);
    cuda_launched(be, "adapt");
}

/* `count` is a multiple of 4. Floor: 12 bytes an element. */
static __global__ void add_kernel(size_t quads, float4 *total, const float4 *x) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    float4 a = total[i], b = x[i];
    total[i] = make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

void cuda_add(backend *be, size_t count, void *total, const void *x) {
    size_t quads = count / 4;
    add_kernel<<<(unsigned)((quads + 255) / 256), 256, 0, cuda_of(be)->stream>>>(
        quads, (float4 *)total, (const float4 *)x);
    cuda_launched(be, "add");
}

static __global__ void round_kernel(size_t count, const float *from, bf16 *to) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count) to[i] = __float2bfloat16_rn(from[i]);
}

void cuda_round(backend *be, size_t count, const void *weights, void *operands) {
    cuda_weights_change(be);
    if (be->precision != BF16) {
        if (operands != weights) be->copy(be, operands, weights, count * sizeof(float));
        return;
    }
    round_kernel<<<(unsigned)((count + 255) / 256), 256, 0, cuda_of(be)->stream>>>(
        count, (const float *)weights, (bf16 *)operands);
    cuda_launched(be, "round");
}
