/* Adam, dynamic evaluation's step, and the rounding that follows either. */
#include "cpu.h"

#include <string.h>

void CPU(adam)(backend *be, size_t count, void *weights, const void *gradient, void *moment1,
               void *moment2, void *average, void *operands, const uint8_t *groups,
               const update_arguments *a, update_report *report) {
    FLUSH_DENORMALS(be);
    const real *g = gradient;
    real *w = weights, *m = moment1, *v = moment2, *mean = average;
    double norm = sqrt(CPU(reduce)(cpu_of(be), g, count, true)) * a->gradient_scale;
    report->gradient_norm = norm;
    if (report->failed == 0 && !(isfinite(norm) && isfinite(report->loss))) {
        report->failed = (double)a->update + 1;
    }
    if (report->failed != 0) return;

    double clip = a->clip > 0 && norm > a->clip ? a->clip / norm : 1;
    double done = (double)a->update + 1;
    real scale = (real)(a->gradient_scale * clip);
    real beta1 = (real)a->beta1, beta2 = (real)a->beta2, epsilon = (real)a->epsilon;
    real step = (real)(a->learning_rate / (1 - pow(a->beta1, done)));
    real head_step = (real)(a->head_learning_rate / (1 - pow(a->beta1, done)));
    real correction = (real)(1 / sqrt(1 - pow(a->beta2, done)));
    real decay = (real)a->average, kept = 1 - (real)(a->learning_rate * a->weight_decay);
    real input_kept = 1 - (real)(a->learning_rate * a->input_decay);
    size_t group_count = (count + DECAY_GROUP - 1) / DECAY_GROUP;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t group = 0; group < group_count; group++) {
        const int flags = groups ? groups[group] : 0;
        real size = flags & GROUP_OF_HEAD ? head_step : step;
        real keep = flags & GROUP_DECAYS ? kept : flags & GROUP_OF_INPUT ? input_kept : 1;
        if (flags & GROUP_OF_MUON) continue;
        size_t first = group * DECAY_GROUP;
        size_t last = first + DECAY_GROUP < count ? first + DECAY_GROUP : count;
#pragma omp simd
        for (size_t i = first; i < last; i++) {
            real d = g[i] * scale;
            m[i] = beta1 * m[i] + (1 - beta1) * d;
            v[i] = beta2 * v[i] + (1 - beta2) * d * d;
            w[i] = keep * w[i] - size * m[i] / (sqrt_(v[i]) * correction + epsilon);
            mean[i] = decay * mean[i] + (1 - decay) * w[i];
        }
    }
    if (operands != weights) CPU(round)(be, count, weights, operands);
}

void CPU(adapt)(backend *be, size_t count, void *weights, const void *gradient, const void *trained,
                void *squares, void *operands, const update_arguments *a) {
    FLUSH_DENORMALS(be);
    const real *g = gradient, *from = trained;
    real *w = weights, *v = squares;
    const real scale = (real)a->gradient_scale, step = (real)a->learning_rate;
    const real kept = (real)a->average, epsilon = (real)a->epsilon, pull = (real)a->weight_decay;
#pragma omp parallel for simd num_threads(cpu_of(be)->threads)
    for (size_t i = 0; i < count; i++) {
        real d = g[i] * scale;
        v[i] = kept < 1 ? kept * v[i] + (1 - kept) * d * d : v[i];
        w[i] -= step * d / (sqrt_(v[i]) + epsilon) + pull * (w[i] - from[i]);
    }
    if (operands != weights) CPU(round)(be, count, weights, operands);
}

void CPU(round)(backend *be, size_t count, const void *weights, void *operands) {
    FLUSH_DENORMALS(be);
    if (operands != weights) memcpy(operands, weights, count * sizeof(real));
    round_operands(be, operands, count);
}
