/* Weight norm, see norm_rows in ops.h: once an update, a row at a time. Floor: the weights twice
 * through memory, of which the second time the row is in the cache. */
#include "cpu.h"

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

/* Finds row number i of [gates][units] in each W. Returns the square of their length. */
static double find_rows(const normed_rows *w, size_t i, row rows[2]) {
    const layout *l = &w->layout[0]->host;
    const size_t units = (size_t)l->out_nodes * (size_t)l->out_block;
    double square = WEIGHT_NORM_EPSILON;
    for (int p = 0; p < w->count; p++) {
        rows[p] = find_row(&w->layout[p]->host, i / units, i % units);
        square += dot(w->weight[p], w->weight[p], &rows[p]);
    }
    return square;
}

void CPU(norm_rows)(backend *be, const normed_rows *w, void *const operand[2]) {
    FLUSH_DENORMALS(be);
    const size_t count = layout_rows(&w->layout[0]->host);
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t i = 0; i < count; i++) {
        row rows[2];
        const real scale = ((const real *)w->gain)[i] / (real)sqrt(find_rows(w, i, rows));
        for (int p = 0; p < w->count; p++) {
            for (size_t k = 0; k < rows[p].pieces; k++) {
                const size_t at = rows[p].first + k * rows[p].stride;
                const real *from = (const real *)w->weight[p] + at;
                real *to = (real *)operand[p] + at;
                for (size_t j = 0; j < rows[p].length; j++) to[j] = scale * from[j];
                round_operands(be, to, rows[p].length);
            }
        }
    }
}

void CPU(norm_rows_backward)(backend *be, const normed_rows *w, void *const gradient[2],
                             void *dgain) {
    FLUSH_DENORMALS(be);
    const size_t count = layout_rows(&w->layout[0]->host);
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t i = 0; i < count; i++) {
        row rows[2];
        const double inverse = 1 / sqrt(find_rows(w, i, rows));
        double along = 0;
        for (int p = 0; p < w->count; p++) along += dot(w->weight[p], gradient[p], &rows[p]);
        const real scale = ((const real *)w->gain)[i] * (real)inverse,
                   share = (real)(along * inverse * inverse);
        ((real *)dgain)[i] = (real)(along * inverse);
        for (int p = 0; p < w->count; p++) {
            for (size_t k = 0; k < rows[p].pieces; k++) {
                const size_t at = rows[p].first + k * rows[p].stride;
                const real *from = (const real *)w->weight[p] + at;
                real *d = (real *)gradient[p] + at;
                for (size_t j = 0; j < rows[p].length; j++) d[j] = scale * (d[j] - share * from[j]);
            }
        }
    }
}
