/* Drawing the next byte of texts, each by a warp, whose lanes have the logits of 8 neighbouring
 * bytes. The weights exp((z - max) / temperature) are summed in double, first within the lanes,
 * then over them; the draw falls into one lane, which finds the byte. */
#include "device/philox.cuh"
#include "training/training.h"

enum { PER_LANE = VOCABULARY / 32, SAMPLE_WARPS = 8 };

/* The lowest byte whose logit is the largest; every lane gets it. */
static __device__ int likeliest(const double z[PER_LANE], double &most) {
    int best = threadIdx.x % 32 * PER_LANE;
    most = z[0];
#pragma unroll
    for (int i = 1; i < PER_LANE; i++) {
        if (z[i] <= most) continue;
        most = z[i];
        best = threadIdx.x % 32 * PER_LANE + i;
    }
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) {
        const double value = __shfl_xor_sync(~0u, most, apart);
        const int byte = __shfl_xor_sync(~0u, best, apart);
        if (value < most || (value == most && byte > best)) continue;
        most = value;
        best = byte;
    }
    return best;
}

/* Uniform in [0, 1), as philox_uniform has it. */
static __device__ double uniform(const sampling *s, uint32_t stream, uint64_t draw) {
    const uint4 block = philox_draw(s->seed, (uint32_t)draw, (uint32_t)(draw >> 32), stream,
                                    PHILOX_PURPOSE(PHILOX_GENERATE, 0));
    return (double)(((uint64_t)block.y << 32 | block.x) >> 11) * 0x1p-53;
}

static __device__ double sum_over_lanes(double value) {
#pragma unroll
    for (int apart = 16; apart > 0; apart /= 2) value += __shfl_xor_sync(~0u, value, apart);
    return value;
}

/* Sets the weights that top_k and top_p exclude to zero. Of two bytes of equal weight the lower one
 * ranks first. */
static __device__ void cut_weights(double weight[PER_LANE], const sampling *s) {
    const int top_k = s->top_k > 0 ? s->top_k : VOCABULARY;
    double above[PER_LANE] = {}, total = 0; /* above: the sum of what ranks above */
    int rank[PER_LANE] = {};
    for (int lane = 0; lane < 32; lane++) {
#pragma unroll
        for (int k = 0; k < PER_LANE; k++) {
            const double other = __shfl_sync(~0u, weight[k], lane);
            const int u = lane * PER_LANE + k;
#pragma unroll
            for (int i = 0; i < PER_LANE; i++) {
                const int v = threadIdx.x % 32 * PER_LANE + i;
                const bool higher = other > weight[i] || (other == weight[i] && u < v);
                rank[i] += higher;
                above[i] += higher ? other : 0;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) total += rank[i] < top_k ? weight[i] : 0;
    total = sum_over_lanes(total);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const bool kept = rank[i] == 0 || (rank[i] < top_k && above[i] < s->top_p * total);
        weight[i] = kept ? weight[i] : 0;
    }
}

/* Of a byte whose logit is so far from the largest. */
static __device__ inline double weight_of(double below, const sampling *s) {
    return exp(s->temperature == 1 ? below : below / s->temperature);
}

/* Draws by the weights z; `best` is the likeliest byte. */
static __device__ int pick(double (&z)[PER_LANE], int best, const sampling *s, uint32_t stream,
                           uint64_t draw) {
    const int lane = threadIdx.x % 32;
    double sum = 0;
    if (s->top_k > 0 || s->top_p < 1) cut_weights(z, s);
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) sum += z[i];
    double up_to = sum; /* the sum of this lane and all before it */
#pragma unroll
    for (int apart = 1; apart < 32; apart *= 2) {
        const double before = __shfl_up_sync(~0u, up_to, apart);
        if (lane >= apart) up_to += before;
    }
    const double at = uniform(s, stream, draw) * __shfl_sync(~0u, up_to, 31);
    const uint32_t past = __ballot_sync(~0u, at < up_to);
    if (past == 0) return best; /* by rounding */
    const double left = at - (up_to - sum);
    double before = 0;
    int passed = 0; /* bytes of the lane */
#pragma unroll
    for (int i = 0; i < PER_LANE - 1; i++) {
        before += z[i];
        passed += left >= before;
    }
    const int byte = lane * PER_LANE + passed;
    return __shfl_sync(~0u, byte, __ffs(past) - 1);
}

/* A warp draws number `draw` of a stream; `logits` are `stride` apart. */
static __device__ int draw_byte(const float *logits, int stride, const float *bias,
                                const sampling *s, uint32_t stream, uint64_t draw) {
    double z[PER_LANE], most;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) {
        const int v = threadIdx.x % 32 * PER_LANE + i;
        z[i] = (double)logits[(size_t)v * stride] + bias[v];
    }
    const int best = likeliest(z, most);
    if (s->temperature == 0) return best;
#pragma unroll
    for (int i = 0; i < PER_LANE; i++) z[i] = weight_of(z[i] - most, s);
    return pick(z, best, s, stream, draw);
}

static __global__ void __launch_bounds__(32 * SAMPLE_WARPS)
    sample_kernel(const float *logits, const float *bias, int streams, int columns, sampling *s,
                  uint8_t *text, uint8_t *bytes) {
    const uint64_t next = s->position + 1;
    for (int n = threadIdx.y; n < streams; n += SAMPLE_WARPS) {
        uint8_t *to = text + next * streams + n;
        int byte;
        if (next >= s->prompt) {
            byte = draw_byte(logits + n, columns, bias, s, n, next - s->prompt);
        } else {
            byte = *to;
        }
        if (threadIdx.x == 0) *to = bytes[n] = (uint8_t)byte;
    }
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) s->position = next;
}

void cuda_sample(backend *be, const void *logits, const void *bias, int streams, int columns,
                 sampling *state, uint8_t *text, uint8_t *bytes) {
    sample_kernel<<<1, dim3(32, SAMPLE_WARPS), 0, cuda_of(be)->stream>>>(
        (const float *)logits, (const float *)bias, streams, columns, state, text, bytes);
    cuda_launched(be, "sample");
}
