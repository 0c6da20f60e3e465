/* Adam, dynamic evaluation's step, and sums and copies of whole arenas. Floor of Adam: the arenas
 * once each way, 40 bytes a weight. */
#include "training/reduce.cuh"

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
    f->head_step = (float)(a->head_learning_rate / (1 - pow(a->beta1, done)));
    f->correction = (float)(1 / sqrt(1 - pow(a->beta2, done)));
    f->beta1 = (float)a->beta1;
    f->beta2 = (float)a->beta2;
    f->epsilon = (float)a->epsilon;
    f->average = (float)a->average;
    f->kept = 1 - (float)(a->learning_rate * a->weight_decay);
    f->input_kept = 1 - (float)(a->learning_rate * a->input_decay);
}

static __device__ inline void adam_element(const adam_factors &f, float step, float kept, float g,
                                           float &w, float &m, float &v, float &mean) {
    float d = g * f.scale;
    m = f.beta1 * m + (1 - f.beta1) * d;
    v = f.beta2 * v + (1 - f.beta2) * d * d;
    w = kept * w - step * m / (sqrtf(v) * f.correction + f.epsilon);
    mean = f.average * mean + (1 - f.average) * w;
}

/* Four weights a thread. `operands` is NULL where the operands are the weights. */
static __global__ void adam_kernel(size_t quads, float4 *weights, const float4 *gradient,
                                   float4 *moment1, float4 *moment2, float4 *average,
                                   bf16 *operands, const uint8_t *groups,
                                   const adam_factors *factors) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const adam_factors f = *factors;
    if (i >= quads || !f.apply) return;
    const int flags = groups ? groups[i / (DECAY_GROUP / 4)] : 0;
    if (flags & GROUP_OF_MUON) return;
    const float step = flags & GROUP_OF_HEAD ? f.head_step : f.step;
    const float kept = flags & GROUP_DECAYS ? f.kept : flags & GROUP_OF_INPUT ? f.input_kept : 1;
    float4 g = gradient[i], w = weights[i], m = moment1[i], v = moment2[i], a = average[i];
    adam_element(f, step, kept, g.x, w.x, m.x, v.x, a.x);
    adam_element(f, step, kept, g.y, w.y, m.y, v.y, a.y);
    adam_element(f, step, kept, g.z, w.z, m.z, v.z, a.z);
    adam_element(f, step, kept, g.w, w.w, m.w, v.w, a.w);
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
               void *moment2, void *average, void *operands, const uint8_t *groups,
               const update_arguments *arguments, update_report *report) {
    cuda_weights_change(be);
    cuda_backend *cuda = cuda_of(be);
    size_t quads = count / 4;
    int blocks = cuda_partials(be, gradient, count, true);
    factors_kernel<<<1, REDUCE_THREADS, 0, cuda->stream>>>(cuda->partial, blocks, arguments, report,
                                                           cuda->factors);
    adam_kernel<<<(unsigned)((quads + 255) / 256), 256, 0, cuda->stream>>>(
        quads, (float4 *)weights, (const float4 *)gradient, (float4 *)moment1, (float4 *)moment2,
        (float4 *)average, operands == weights ? NULL : (bf16 *)operands, groups, cuda->factors);
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
        if (operands != weights) be->memory->copy(be, operands, weights, count * sizeof(float));
        return;
    }
    round_kernel<<<(unsigned)((count + 255) / 256), 256, 0, cuda_of(be)->stream>>>(
        count, (const float *)weights, (bf16 *)operands);
    cuda_launched(be, "round");
}

const update_operations cuda_update = {
    .softmax_cross_entropy = cuda_softmax_cross_entropy,
    .sample = cuda_sample,
    .row_sums = cuda_row_sums,
    .add = cuda_add,
    .sum = cuda_sum,
    .pool = cuda_pool,
    .norm_rows = cuda_norm_rows,
    .norm_rows_backward = cuda_norm_rows_backward,
    .adam = cuda_adam,
    .muon_direction = cuda_muon_direction,
    .muon_polynomial = cuda_muon_polynomial,
    .muon_apply = cuda_muon_apply,
    .adapt = cuda_adapt,
    .join = cuda_join,
    .sum_ranks = cuda_sum_ranks,
    .round = cuda_round,
};
