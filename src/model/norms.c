#include "model/internal.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

int model_normed_stage(const model *m, int s) {
    const stage_place at = model_stage_place(&m->config, s);
    if (m->config.norm != NORM_WEIGHT || model_stage_gates(&m->config, s) == 1) return -1;
    return at.stage == STAGE_BELOW ? s + 1 : s;
}

/* The numbers of the stages whose rows are normed together: s, and what its rows read of the layer
 * below. Returns how many they are. */
static int find_stages(const model *m, int s, int stages[2]) {
    const stage_place at = model_stage_place(&m->config, s);
    stages[0] = s;
    stages[1] = s - 1;
    return at.layer > 0 && at.stage == 0 ? 2 : 1;
}

/* The rows of stage s in the bound arena, and where they lie in another one of elements of `size`
 * bytes. */
static normed_rows rows_of(const model *m, int s, const void *arena, size_t size, void *of[2]) {
    int stages[2];
    normed_rows rows = {.count = find_stages(m, s, stages),
                        .gain = model_value_address(m, m->stage_parameters[s].gain)};
    for (int i = 0; i < rows.count; i++) {
        const int weight = m->stage_parameters[stages[i]].weight;
        rows.layout[i] = m->devices[stages[i]];
        rows.weight[i] = model_value_address(m, weight);
        of[i] = model_address(m, arena, size, weight);
    }
    return rows;
}

void model_norm_rows(model *m) {
    void *operands[2];
    for (int s = 0; s < model_stages(&m->config); s++) {
        if (model_normed_stage(m, s) != s) continue;
        const normed_rows rows = rows_of(m, s, m->operands, m->be->operand_size, operands);
        m->be->update->norm_rows(m->be, &rows, operands);
    }
}

void model_norm_rows_backward(model *m) {
    const size_t size = m->be->real_size;
    void *gradients[2];
    for (int s = 0; s < model_stages(&m->config); s++) {
        if (model_normed_stage(m, s) != s) continue;
        const normed_rows rows = rows_of(m, s, m->gradient, size, gradients);
        m->be->update->norm_rows_backward(
            m->be, &rows, gradients,
            model_address(m, m->gradient, size, m->stage_parameters[s].gain));
    }
}

/* Adds the squares of a stage's weights to those of their rows, [gates][units]. */
static void add_squares(const model *m, const void *arena, int s, double *squares) {
    const parameter *p = &m->parameters.items[m->stage_parameters[s].weight];
    const layout *l = m->layouts[s];
    const size_t block = (size_t)l->out_block, gates = (size_t)l->gates, in = (size_t)l->in_block;
    const size_t units = (size_t)l->out_nodes * block;
    float *values = model_download(m, arena, p->offset, p->count);
    for (size_t node = 0; node < (size_t)l->out_nodes; node++) {
        for (size_t k = (size_t)l->row_start[node]; k < (size_t)l->row_start[node + 1]; k++) {
            for (size_t r = 0; r < gates * block; r++) {
                const float *row = values + (k * gates * block + r) * in;
                double *sum = &squares[r / block * units + node * block + r % block];
                for (size_t j = 0; j < in; j++) *sum += (double)row[j] * row[j];
            }
        }
    }
    free(values);
}

double *model_row_norms(const model *m, const void *arena, int s) {
    const int normed = model_normed_stage(m, s);
    if (normed < 0) return NULL;
    const size_t rows = layout_rows(m->layouts[normed]);
    double *norms = mem_alloc(rows, sizeof *norms);
    int stages[2];
    const int count = find_stages(m, normed, stages);
    for (int i = 0; i < count; i++) add_squares(m, arena, stages[i], norms);
    for (size_t i = 0; i < rows; i++) norms[i] = sqrt(norms[i] + WEIGHT_NORM_EPSILON);
    return norms;
}

double model_row_length(const model *m, int s) {
    const size_t rows = layout_rows(m->layouts[s]);
    double *squares = mem_alloc(rows, sizeof *squares), sum = 0;
    add_squares(m, m->weights, s, squares);
    for (size_t i = 0; i < rows; i++) sum += sqrt(squares[i]);
    free(squares);
    return sum / (double)rows;
}
