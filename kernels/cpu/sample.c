/* Drawing the next byte of a text. */
#include "cpu.h"

#include "core/philox.h"

#include <stdlib.h>

typedef struct ranked {
    double weight;
    int byte;
} ranked;

static int largest_first(const void *a, const void *b) {
    const ranked *left = a, *right = b;
    if (left->weight != right->weight) return left->weight < right->weight ? 1 : -1;
    return left->byte - right->byte;
}

/* Makes the weights zero that top_k and top_p exclude; a byte ranks above another of the same
 * weight if it is lower. Returns the sum of what is left. */
static double cut_weights(double weight[VOCABULARY], const sampling *s) {
    const int top_k = s->top_k > 0 ? s->top_k : VOCABULARY;
    ranked all[VOCABULARY];
    double total = 0, left = 0;
    for (int v = 0; v < VOCABULARY; v++) all[v] = (ranked){weight[v], v};
    qsort(all, VOCABULARY, sizeof *all, largest_first);
    for (int i = 0; i < top_k; i++) total += all[i].weight;
    for (int i = 0; i < VOCABULARY; i++) {
        const bool kept = i == 0 || (i < top_k && left < s->top_p * total);
        if (kept) left += all[i].weight;
        if (!kept) weight[all[i].byte] = 0;
    }
    return left;
}

/* Draws byte number `draw` of a stream; `logits` are `stride` apart. */
static uint8_t draw_byte(const real *logits, size_t stride, const real *bias, const sampling *s,
                         uint32_t stream, uint64_t draw) {
    double z[VOCABULARY], total = 0;
    int best = 0;
    for (size_t v = 0; v < VOCABULARY; v++) {
        z[v] = (double)logits[v * stride] + bias[v];
        if (z[v] > z[best]) best = (int)v;
    }
    if (s->temperature == 0) return (uint8_t)best;
    const double most = z[best];
    for (int v = 0; v < VOCABULARY; v++) {
        z[v] = exp((z[v] - most) / s->temperature);
        total += z[v];
    }
    if (s->top_k > 0 || s->top_p < 1) total = cut_weights(z, s);
    philox_stream random = philox_start(s->seed, PHILOX_GENERATE, 0, stream);
    random.draw = draw;
    double left = philox_uniform(&random) * total;
    for (int v = 0; v < VOCABULARY; v++) {
        left -= z[v];
        if (left < 0) return (uint8_t)v;
    }
    return (uint8_t)best; /* by rounding */
}

void CPU(sample)(backend *be, const void *logits, const void *bias, int streams, int columns,
                 sampling *state, uint8_t *text, uint8_t *bytes) {
    (void)be;
    const uint64_t next = state->position + 1;
    uint8_t *out = text + next * (uint64_t)streams;
    for (int n = 0; n < streams; n++) {
        if (next >= state->prompt) {
            out[n] = draw_byte((const real *)logits + n, (size_t)columns, bias, state, (uint32_t)n,
                               next - state->prompt);
        }
        bytes[n] = out[n];
    }
    state->position = next;
}
