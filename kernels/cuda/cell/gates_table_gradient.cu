/* The gradient of the gates' input table in bf16:
 *
 *   dtable [gate][unit][byte] = sum over steps and columns of that byte of  dpre [gate][unit]
 *
 * Backward of the gates has dpre on the chip and sums it there: for one span of columns and the
 * rows of four units at a time, as a product with a one-hot matrix of the bytes that occur in the
 * span. So a step makes one addition in the L2 for each unit, gate and different byte of a span;
 * 128 columns of text have some 34. With layer norm, memory holds dpre of the current step alone.
 *
 * At 18,432 units on an H200, updates of 128, 256 and 512 columns take 30.0, 52.9 and 96.4 ms and
 * 6.8, 11.4 and 20.6 GiB in this way; on random bytes, of which a span has three times as many
 * different ones, 4 to 6 % longer. See docs/kernels/cell.md for what that replaced.
 *
 * The sums lie in fp32 in the order in which they are added, [pair of units][byte][unit][gate].
 * Only one warp adds to each, so the order of its additions is the same every time. A gradient that
 * is not finite makes NaN of its unit's sums of a gate for all bytes of the span. */
#include "cell/gates_table_gradient.cuh"
#include "cell/stages.cuh"

/* A thread a byte; a thread block a span. */
template <int SPAN>
static __global__ void column_text_kernel(const uint8_t *bytes, column_text<SPAN> *texts) {
    __shared__ uint32_t occurs[VOCABULARY / 32];
    const int i = threadIdx.x;
    column_text<SPAN> *text = &texts[blockIdx.x];
    bytes += (size_t)blockIdx.x * SPAN;
    if (i < VOCABULARY / 32) occurs[i] = 0;
    __syncthreads();
    if (i < SPAN) atomicOr(&occurs[bytes[i] / 32], 1u << bytes[i] % 32);
    __syncthreads();
    int before = 0, count = 0;
    for (int k = 0; k < VOCABULARY / 32; k++) {
        const int here = __popc(occurs[k]);
        count += here;
        if (k < i / 32) before += here;
        if (k == i / 32) before += __popc(occurs[k] & ((1u << i % 32) - 1));
    }
    if (occurs[i / 32] >> i % 32 & 1) text->label[before] = (uint16_t)label(i);
    if (i >= count) text->label[i] = 0;
    if (i < SPAN / 2) {
        text->pair[pair_place(i)] = label_pair(bytes[i * 2], bytes[i * 2 + 1]);
    }
    if (i == 0) text->count = count;
}

static float *sums_of(const cell *c) {
    return (float *)c->stage[c->stages - 1].table_sums;
}

template <int SPAN> static void read_text(backend *be, const cell *c) {
    static_assert(sizeof(column_text<SPAN>) <= TABLE_WORKSPACE * SPAN, "a text fits");
    column_text_kernel<<<c->steps * c->columns / SPAN, VOCABULARY, 0, cuda_of(be)->stream>>>(
        c->bytes, (column_text<SPAN> *)c->workspace);
    cuda_launched(be, "text of spans");
}

void cuda_start_table_sums(backend *be, const cell *c, int span) {
    be->zero(be, sums_of(c), table_sums_count(c->hidden) * sizeof(float));
    span == 128 ? read_text<128>(be, c) : read_text<64>(be, c);
}

/* A thread a byte; a thread block a pair of units. */
static __global__ void gates_table_gradient(const float *sums, int hidden, int stride, int first,
                                            bf16 *dtable) {
    const int byte = threadIdx.x, entries = hidden / stride;
    const float4 *of = (const float4 *)sums + ((size_t)blockIdx.x * VOCABULARY + byte) * PAIR;
#pragma unroll
    for (int i = 0; i < PAIR; i++) {
        const int unit = blockIdx.x * PAIR + i;
        if (unit >= hidden || unit % stride) continue;
        const float4 four = of[i];
        const float gate[GATES] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int k = 0; k < GATES; k++) {
            if (k < first) continue;
            const size_t row = (size_t)(k - first) * entries + unit / stride;
            dtable[row * VOCABULARY + byte] = __float2bfloat16_rn(gate[k]);
        }
    }
}

void cuda_finish_table_sums(backend *be, const cell *c) {
    const stage *g = &c->stage[c->stages - 1];
    gates_table_gradient<<<(c->hidden + PAIR - 1) / PAIR, VOCABULARY, 0, cuda_of(be)->stream>>>(
        sums_of(c), c->hidden, g->table_stride, first_gate(g), (bf16 *)g->dtable);
    cuda_launched(be, "table_backward");
}
