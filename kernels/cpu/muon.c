/* What of Muon's step is no product, see kernels/muon.c. */
#include "cpu.h"

#include <string.h>

enum { STRIP = 64 }; /* columns of a row that are copied together, so that its lines stay cached */

/* Element `line` [0, shorter side) and `at` [0, longer side) of W or of its transpose. */
static inline size_t place(const muon_matrix *w, size_t line, size_t at) {
    const size_t columns = (size_t)w->columns;
    return w->rows > w->columns ? at * columns + line : line * columns + at;
}

static size_t shorter(const muon_matrix *w) {
    return (size_t)(w->rows < w->columns ? w->rows : w->columns);
}

static size_t longer(const muon_matrix *w) {
    return (size_t)(w->rows < w->columns ? w->columns : w->rows);
}

static size_t padded(const backend *be, size_t side) {
    const size_t multiple = (size_t)be->column_multiple;
    return (side + multiple - 1) / multiple * multiple;
}

void CPU(muon_direction)(backend *be, const muon_matrix *w, const update_arguments *a,
                         const update_report *report, void *direction) {
    FLUSH_DENORMALS(be);
    const size_t count = (size_t)w->rows * (size_t)w->columns, length = padded(be, longer(w));
    const real scale = (real)a->gradient_scale, kept = (real)a->muon_momentum;
    real *g = w->gradient, *m = w->momentum, *to = direction;
    if (report->failed != 0) return;
#pragma omp parallel for simd num_threads(cpu_of(be)->threads)
    for (size_t i = 0; i < count; i++) {
        const real d = g[i] * scale;
        m[i] = kept * m[i] + d;
        g[i] = d + kept * m[i];
    }
    const double norm = sqrt(CPU(reduce)(cpu_of(be), g, count, true));
    const real inverse = (real)(1 / (norm + 1e-7));
    memset(to, 0, padded(be, shorter(w)) * length * sizeof *to);
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t first = 0; first < longer(w); first += STRIP) {
        const size_t last = first + STRIP < longer(w) ? first + STRIP : longer(w);
        for (size_t line = 0; line < shorter(w); line++) {
            real *row = to + line * length;
            for (size_t i = first; i < last; i++) row[i] = inverse * g[place(w, line, i)];
            round_operands(be, row + first, last - first);
        }
    }
}

void CPU(muon_polynomial)(backend *be, int side, const void *a, const void *a_squared, void *p) {
    FLUSH_DENORMALS(be);
    const size_t n = (size_t)side;
    const real *x = a, *square = a_squared;
    real *to = p;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t row = 0; row < n; row++) {
        for (size_t i = row * n; i < (row + 1) * n; i++) {
            to[i] = (real)-4.7750 * x[i] + (real)2.0315 * square[i];
        }
        to[row * n + row] += (real)3.4445;
        round_operands(be, to + row * n, n);
    }
}

void CPU(muon_apply)(backend *be, const muon_matrix *w, const void *direction,
                     const update_arguments *a, const update_report *report) {
    FLUSH_DENORMALS(be);
    const size_t count = (size_t)w->rows * (size_t)w->columns, length = padded(be, longer(w));
    const real step = (real)(a->muon_learning_rate * 0.2 * sqrt((double)longer(w)));
    const real kept = 1 - (real)(a->muon_learning_rate * a->weight_decay), decay = (real)a->average;
    const real *u = direction;
    real *v = w->weights, *mean = w->average;
    if (report->failed != 0) return;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t first = 0; first < longer(w); first += STRIP) {
        const size_t last = first + STRIP < longer(w) ? first + STRIP : longer(w);
        for (size_t line = 0; line < shorter(w); line++) {
            for (size_t i = first; i < last; i++) {
                const size_t at = place(w, line, i);
                v[at] = kept * v[at] - step * u[line * length + i];
                mean[at] = decay * mean[at] + (1 - decay) * v[at];
            }
        }
    }
    if (w->operands != w->weights) CPU(round)(be, count, v, w->operands);
}
