/* Softmax cross-entropy, reductions and pooling. */
#include "cpu.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

enum { CHUNK = 4096 }; /* elements a reduction sums at a time */

/* log sum exp over the classes with the largest logit taken out. */
void CPU(softmax_cross_entropy)(backend *be, const softmax_loss *s) {
    FLUSH_DENORMALS(be);
    const size_t width = (size_t)s->columns, groups = width / COLUMN_GROUP;
    const size_t classes = (size_t)s->classes;
    const real *b = s->bias;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t task = 0; task < (size_t)s->steps * groups; task++) {
        const size_t t = task / groups, n0 = task % groups * COLUMN_GROUP, at = t * width + n0;
        const size_t logits = (t * (size_t)s->rows + (size_t)s->first) * width + n0;
        const real *in = (const real *)s->logits + logits;
        const int16_t *target = s->targets + at;
        real largest[COLUMN_GROUP], weight[COLUMN_GROUP];
        int16_t likeliest[COLUMN_GROUP] = {0};
        double total[COLUMN_GROUP] = {0}; /* a float loses the smallest terms, always downwards */
        for (int n = 0; n < COLUMN_GROUP; n++) largest[n] = in[n] + b[0];
        for (size_t v = 1; v < classes; v++) {
            for (int n = 0; n < COLUMN_GROUP; n++) {
                real z = in[v * width + (size_t)n] + b[v];
                likeliest[n] = z > largest[n] ? (int16_t)v : likeliest[n];
                largest[n] = z > largest[n] ? z : largest[n];
            }
        }
        for (size_t v = 0; v < classes; v++) {
            for (int n = 0; n < COLUMN_GROUP; n++) {
                total[n] += exp_(in[v * width + (size_t)n] + b[v] - largest[n]);
            }
        }
        for (size_t n = 0; n < COLUMN_GROUP; n++) {
            const bool scored = target[n] >= 0;
            const size_t hit = scored ? (size_t)target[n] : 0;
            const double logit = (double)in[hit * width + n] + b[hit];
            const double loss = log(total[n]) + largest[n] - logit;
            weight[n] = !scored ? 0 : s->weights ? ((const real *)s->weights)[at + n] : 1;
            ((real *)s->losses)[at + n] = scored ? (real)(weight[n] * loss) : 0;
            if (s->wrong) {
                ((real *)s->wrong)[at + n] = scored && likeliest[n] != target[n] ? weight[n] : 0;
            }
        }
        if (!s->dlogits) continue;
        real *out = (real *)s->dlogits + logits;
        for (size_t v = 0; v < classes; v++) {
            for (size_t n = 0; n < COLUMN_GROUP; n++) {
                const real p = exp_(in[v * width + n] + b[v] - largest[n]) / (real)total[n];
                const real scale = (real)s->scale * weight[n];
                out[v * width + n] = target[n] < 0 ? 0 : scale * (p - (target[n] == (int16_t)v));
            }
            round_operands(be, out + v * width, COLUMN_GROUP);
        }
        for (size_t v = classes; v < VOCABULARY && s->first + (int)v < s->rows; v++) {
            memset(out + v * width, 0, COLUMN_GROUP * sizeof *out);
        }
    }
}

void CPU(row_sums)(backend *be, const void *x, int steps, int rows, int columns, void *out) {
    FLUSH_DENORMALS(be);
    const real *in = x;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t r = 0; r < (size_t)rows; r++) {
        double total = 0;
        for (size_t t = 0; t < (size_t)steps; t++) {
            const real *row = in + (t * (size_t)rows + r) * (size_t)columns;
            real part = 0;
            for (size_t n = 0; n < (size_t)columns; n++) part += row[n];
            total += part;
        }
        ((real *)out)[r] = (real)total;
    }
}

double CPU(reduce)(cpu_backend *be, const real *x, size_t count, bool square) {
    size_t chunks = (count + CHUNK - 1) / CHUNK;
    be->partial = mem_grow(be->partial, &be->partial_count, chunks, sizeof *be->partial);
#pragma omp parallel for num_threads(be->threads)
    for (size_t chunk = 0; chunk < chunks; chunk++) {
        size_t end = (chunk + 1) * CHUNK < count ? (chunk + 1) * CHUNK : count;
        double total = 0;
        for (size_t i = chunk * CHUNK; i < end; i++) {
            total += square ? (double)x[i] * x[i] : (double)x[i];
        }
        be->partial[chunk] = total;
    }
    double total = 0;
    for (size_t chunk = 0; chunk < chunks; chunk++) total += be->partial[chunk];
    return total;
}

void CPU(add)(backend *be, size_t count, void *total, const void *x) {
    FLUSH_DENORMALS(be);
    real *to = total;
    const real *from = x;
#pragma omp parallel for simd num_threads(cpu_of(be)->threads)
    for (size_t i = 0; i < count; i++) to[i] += from[i];
}

void CPU(sum)(backend *be, const void *x, size_t count, double *out) {
    FLUSH_DENORMALS(be);
    *out += CPU(reduce)(cpu_of(be), x, count, false);
}

void CPU(pool)(backend *be, const void *x, element type, int steps, int rows, int columns,
               const int32_t *first, const int32_t *last, pooling how, void *out) {
    FLUSH_DENORMALS(be);
    (void)type, (void)steps;
    size_t width = (size_t)columns;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t r = 0; r < (size_t)rows; r++) {
        double *row = (double *)out + r * width;
        for (size_t n = 0; n < width; n++) {
            for (int32_t t = first[n]; t < last[n]; t++) {
                real value = ((const real *)x)[((size_t)t * (size_t)rows + r) * width + n];
                if (how == POOL_LAST) row[n] = value;
                if (how == POOL_MEAN) row[n] += value;
                if (how == POOL_MAX) row[n] = value > row[n] ? value : row[n];
            }
        }
    }
}
