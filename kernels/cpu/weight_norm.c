/* Weight norm, see norm_rows in ops.h: once an update, a row at a time. Floor: the weights twice
 * through memory, of which the second time the row is in the cache. */
#include "cpu.h"

#define EPSILON 1e-6

/* A row of one unit's gate: `pieces` runs of `length` weights, each `stride` after the one
 * before. */
typedef struct row {
    size_t first, stride, pieces, length;
} row;

static row find_row(const layout *l, size_t gate, size_t unit) {
    const size_t block = (size_t)l->out_block, node = unit / block;
    const size_t begin = (size_t)l->row_start[node], end = (size_t)l->row_start[node + 1];
    const size_t length = (size_t)l->in_block, gates = (size_t)l->gates;
    const size_t at = ((begin * gates + gate) * block + unit % block) * length;
    return (row){at, gates * block * length, end - begin, length};
}

/* The dot product of a row with itself or with its gradient. */
static double dot(const real *a, const real *b, const row *r) {
    double sum = 0;
    for (size_t k = 0; k < r->pieces; k++) {
        const size_t at = r->first + k * r->stride;
        for (size_t j = at; j < at + r->length; j++) sum += (double)a[j] * (double)b[j];
    }
    return sum;
}

void CPU(norm_rows)(backend *be, const normed_rows *w, void *const operand[2]) {
    FLUSH_DENORMALS(be);
    const layout *l = &w->layout[0]->host;
    const size_t units = (size_t)l->out_nodes * (size_t)l->out_block;
    const real *gain = w->gain;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t i = 0; i < (size_t)l->gates * units; i++) {
        double square = EPSILON;
        for (int p = 0; p < w->count; p++) {
            const row r = find_row(&w->layout[p]->host, i / units, i % units);
            square += dot(w->weight[p], w->weight[p], &r);
        }
        const real scale = gain[i] / (real)sqrt(square);
        for (int p = 0; p < w->count; p++) {
            const row r = find_row(&w->layout[p]->host, i / units, i % units);
            for (size_t k = 0; k < r.pieces; k++) {
                const real *from = (const real *)w->weight[p] + r.first + k * r.stride;
                real *to = (real *)operand[p] + r.first + k * r.stride;
                for (size_t j = 0; j < r.length; j++) to[j] = scale * from[j];
                round_operands(be, to, r.length);
            }
        }
    }
}

void CPU(norm_rows_backward)(backend *be, const normed_rows *w, void *const gradient[2],
                             void *dgain) {
    FLUSH_DENORMALS(be);
    const layout *l = &w->layout[0]->host;
    const size_t units = (size_t)l->out_nodes * (size_t)l->out_block;
    const real *gain = w->gain;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t i = 0; i < (size_t)l->gates * units; i++) {
        double square = EPSILON, along = 0;
        for (int p = 0; p < w->count; p++) {
            const row r = find_row(&w->layout[p]->host, i / units, i % units);
            square += dot(w->weight[p], w->weight[p], &r);
            along += dot(w->weight[p], gradient[p], &r);
        }
        const double inverse = 1 / sqrt(square);
        const real scale = gain[i] * (real)inverse, share = (real)(along * inverse * inverse);
        ((real *)dgain)[i] = (real)(along * inverse);
        for (int p = 0; p < w->count; p++) {
            const row r = find_row(&w->layout[p]->host, i / units, i % units);
            for (size_t k = 0; k < r.pieces; k++) {
                const real *from = (const real *)w->weight[p] + r.first + k * r.stride;
                real *d = (real *)gradient[p] + r.first + k * r.stride;
                for (size_t j = 0; j < r.length; j++) d[j] = scale * (d[j] - share * from[j]);
            }
        }
    }
}
