#include "model/internal.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void model_use_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        stage *g = model_find_stage(m, s);
        if (!g) continue;
        g->layout = m->devices[s];
        g->block = m->layouts[s]->out_block;
    }
}

/* Cuts a layout into parts of nearly equal size. */
static void create_parts(model *m, int s) {
    backend *be = m->be;
    const layout *l = m->layouts[s];
    weight_parts *w = &m->parts[s];
    const size_t most = be->part_weights ? layout_weights(l) / be->part_weights : 1;
    const int parts = (size_t)be->parts < most ? be->parts : (int)most;
    *w = (weight_parts){0};
    if (layout_is_dense(l) || parts < 2) {
        *w = (weight_parts){1, {m->devices[s]}, {layout_weights(l)}};
        return;
    }
    int first = 0;
    for (int i = 1; i <= parts; i++) {
        int end = first;
        const int64_t blocks = (int64_t)l->blocks * i / parts;
        while (end < l->out_nodes && (i == parts || l->row_start[end] < blocks)) end++;
        if (l->row_start[end] == l->row_start[first]) continue;
        layout *rows = layout_rows_of(l, first, end);
        w->weights[w->count] = layout_weights(rows);
        w->part[w->count++] = be->layout_create(be, rows);
        layout_free(rows);
        first = end;
    }
}

static void free_parts(model *m, int s) {
    weight_parts *w = &m->parts[s];
    for (int i = 0; i < w->count; i++) {
        if (w->part[i] != m->devices[s]) m->be->layout_free(m->be, w->part[i]);
    }
}

void model_create_stage_layouts(model *m) {
    const bool parts = m->use == MODEL_TRAINING && m->be->parts > 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        const int gates = model_stage_gates(&m->config, s);
        m->layouts[s] = layout_from_graph(m->graphs[s], (int)m->config.block, gates);
        m->devices[s] = m->be->layout_create(m->be, m->layouts[s]);
        if (parts && gates > 1) create_parts(m, s);
    }
}

void model_free_stage_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        free_parts(m, s);
        m->be->layout_free(m->be, m->devices[s]);
        layout_free(m->layouts[s]);
        graph_free(m->graphs[s]);
    }
}

static const parameter *stage_weight(const model *m, int s) {
    return &m->parameters.items[m->stage_parameters[s].weight];
}

/* A row of a block in a stage's weights: those of one output unit. `block` counts the graph's
 * blocks in their order; a complete graph's weights are one matrix [gates][outputs][inputs]. */
static size_t block_row(const layout *l, const graph *g, int side, int block, int gate, int row) {
    if (!layout_is_dense(l)) {
        return (((size_t)block * (size_t)l->gates + (size_t)gate) * (size_t)side + (size_t)row) *
               (size_t)side;
    }
    size_t output = (size_t)(block / g->inputs), input = (size_t)(block % g->inputs);
    return ((size_t)gate * (size_t)l->out_block + output * (size_t)side + (size_t)row) *
               (size_t)l->in_block +
           input * (size_t)side;
}

static float *stage_gains(const model *m, const void *arena, int s) {
    const parameter *p = &m->parameters.items[m->stage_parameters[s].gain];
    return model_download(m, arena, p->offset, p->count);
}

/* Makes of a stage's weights what products read, if its rows are normed. */
static void scale_rows(const model *m, const void *arena, int s, float *values) {
    const int normed = model_normed_stage(m, s), side = (int)m->config.block;
    const layout *l = m->layouts[s];
    const graph *g = m->graphs[s];
    if (normed < 0) return;
    double *norms = model_row_norms(m, arena, s);
    float *gains = stage_gains(m, arena, normed);
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            for (int r = 0; r < l->gates * side; r++) {
                const size_t at = (size_t)(r / side) * (size_t)g->nodes * (size_t)side +
                                  (size_t)i * (size_t)side + (size_t)(r % side);
                float *row = values + block_row(l, g, side, k, r / side, r % side);
                for (int j = 0; j < side; j++) row[j] *= (float)(gains[at] / norms[at]);
            }
        }
    }
    free(gains);
    free(norms);
}

/* After blocks were left out, has products read the others' weights as before. */
static void keep_rows(model *m, void *arena, int s, const double *before) {
    backend *be = m->be;
    const parameter *p = &m->parameters.items[m->stage_parameters[s].gain];
    float *gains = stage_gains(m, arena, s);
    double *after = model_row_norms(m, arena, s);
    char *target = (char *)arena + p->offset * be->real_size;
    double *wide = mem_alloc(p->count, sizeof *wide);
    for (size_t i = 0; i < p->count; i++) {
        wide[i] = gains[i] * after[i] / before[i];
        gains[i] = (float)wide[i];
    }
    if (be->real_size == sizeof *gains) be->upload(be, target, gains, p->count * sizeof *gains);
    if (be->real_size == sizeof *wide) be->upload(be, target, wide, p->count * sizeof *wide);
    free(wide);
    free(after);
    free(gains);
}

/* [blocks of g]; `values` begins with the stage's weights, or with something of their shape. */
static void block_norms(const float *values, const layout *l, const graph *g, int side,
                        double *norms) {
    int blocks = graph_blocks(g);
#pragma omp parallel for
    for (int k = 0; k < blocks; k++) {
        double sum = 0;
        for (int i = 0; i < l->gates * side; i++) {
            const float *row = values + block_row(l, g, side, k, i / side, i % side);
            for (int j = 0; j < side; j++) sum += (double)row[j] * row[j];
        }
        norms[k] = sqrt(sum);
    }
}

void model_block_norms(const model *m, const void *arena, int stage, double *norms) {
    const parameter *p = stage_weight(m, stage);
    float *values = model_download(m, arena, p->offset, p->count);
    scale_rows(m, arena, stage, values);
    block_norms(values, m->layouts[stage], m->graphs[stage], (int)m->config.block, norms);
    free(values);
}

/* The number in `from` of each block of `to`, whose blocks it all has. */
static int *old_numbers(const graph *to, const graph *from) {
    int *old = mem_alloc((size_t)graph_blocks(to), sizeof *old);
    for (int i = 0; i < to->nodes; i++) {
        int at = from->start[i];
        for (int k = to->start[i]; k < to->start[i + 1]; k++, at++) {
            while (from->column[at] != to->column[k]) at++;
            old[k] = at;
        }
    }
    return old;
}

/* Blocks of `bytes` that are neighbours in both patterns go in one copy. */
static void copy_blocks(backend *be, const int *old, int blocks, char *target, const char *source,
                        size_t bytes) {
    for (int k = 0, end; k < blocks; k = end) {
        for (end = k + 1; end < blocks && old[end] == old[end - 1] + 1;) end++;
        be->copy(be, target + (size_t)k * bytes, source + (size_t)old[k] * bytes,
                 (size_t)(end - k) * bytes);
    }
}

/* Cuts blocks out of one dense matrix, on the host. */
static void cut_blocks(model *m, const parameter *to, const graph *blocks, char *target,
                       const parameter *from, const graph *complete, const char *source,
                       const int *old) {
    backend *be = m->be;
    const int side = (int)m->config.block, rows = to->layout->gates * side;
    const size_t size = be->real_size;
    char *matrix = mem_alloc(from->count, size), *cut = mem_alloc(to->count, size);
    be->download(be, matrix, source, from->count * size);
    for (int k = 0; k < graph_blocks(blocks); k++) {
        for (int r = 0; r < rows; r++) {
            const int gate = r / side, row = r % side;
            memcpy(cut + size * block_row(to->layout, blocks, side, k, gate, row),
                   matrix + size * block_row(from->layout, complete, side, old[k], gate, row),
                   size * (size_t)side);
        }
    }
    be->upload(be, target, cut, to->count * size);
    free(matrix);
    free(cut);
}

/* Rearranges an arena in the new table's order by way of `scratch`. */
static void move_arena(model *m, const model *old, void *arena, char *scratch) {
    backend *be = m->be;
    size_t size = be->real_size;
    int stage = 0;
    be->zero(be, scratch, old->parameters.total * size);
    for (int i = 0; i < m->parameters.count; i++) {
        const parameter *to = &m->parameters.items[i], *from = &old->parameters.items[i];
        char *target = scratch + to->offset * size, *source = (char *)arena + from->offset * size;
        if (!to->layout) {
            be->copy(be, target, source, to->count * size);
            continue;
        }
        const graph *g = m->graphs[stage], *before = old->graphs[stage];
        const int blocks = graph_blocks(g);
        int *numbers = old_numbers(g, before);
        if (layout_is_dense(to->layout) == layout_is_dense(from->layout)) {
            copy_blocks(be, numbers, blocks, target, source, to->count / (size_t)blocks * size);
        } else {
            cut_blocks(m, to, g, target, from, before, source, numbers);
        }
        free(numbers);
        stage++;
    }
    be->copy(be, arena, scratch, m->parameters.total * size);
}

void model_set_graphs(model *m, graph *const *graphs) {
    backend *be = m->be;
    model old = *m;
    int stages = model_stages(&m->config);
    double *before[2][CELL_MAX_STAGES] = {{NULL}}; /* rows' norms in weights and average */
    for (int s = 0; s < stages; s++) {
        if (model_normed_stage(m, s) != s) continue;
        before[0][s] = model_row_norms(m, m->weights, s);
        before[1][s] = model_row_norms(m, m->average, s);
    }
    memcpy(m->graphs, graphs, (size_t)stages * sizeof *graphs);
    model_create_stage_layouts(m);
    m->parameters = (parameter_table){0};
    model_add_parameters(m);
    model_use_layouts(m);
    for (int i = 0; i < MODEL_KEPT; i++) move_arena(m, &old, model_kept(&old, i), m->gradient);
    for (int s = 0; s < stages; s++) {
        if (before[0][s]) keep_rows(m, m->weights, s, before[0][s]);
        if (before[1][s]) keep_rows(m, m->average, s, before[1][s]);
        free(before[0][s]);
        free(before[1][s]);
    }
    be->zero(be, m->gradient, old.parameters.total * be->real_size);
    if (m->share) be->zero(be, m->share, old.parameters.total * be->real_size);
    model_choose_decays(m);
    model_use_weights(m);
    model_free_stage_layouts(&old);
}
