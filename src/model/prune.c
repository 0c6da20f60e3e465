#include "graph/prune.h"
#include "core/memory.h"
#include "model/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

double model_density(const model *m) {
    double blocks = 0, all = 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        const graph *g = m->graphs[s];
        blocks += graph_blocks(g);
        all += (double)g->nodes * g->inputs;
    }
    return blocks / all;
}

/* Where a row of a block, that of one output unit, begins in a stage's weights. `block` counts the
 * graph's blocks in their order; a complete graph's weights are one matrix,
 * [gates][outputs][inputs]. */
static size_t block_row(const layout *l, const graph *g, int side, int block, int row) {
    const size_t wide = (size_t)side, gate = (size_t)(row / side), r = (size_t)(row % side);
    if (!layout_is_dense(l)) {
        return (((size_t)block * (size_t)l->gates + gate) * wide + r) * wide;
    }
    const size_t output = (size_t)(block / g->inputs), input = (size_t)(block % g->inputs);
    return (gate * (size_t)l->out_block + output * wide + r) * (size_t)l->in_block + input * wide;
}

static const parameter *weight_of(const model *m, int s) {
    return &m->parameters.items[m->stage_parameters[s].weight];
}

/* What normed rows of a stage are multiplied by where products read them, [gates][units], from all
 * parameters' values; NULL if they are not normed. The caller frees it. */
static double *row_scales(const model *m, const float *values, int s) {
    const int normed = model_normed_stage(m, s);
    if (normed < 0) return NULL;
    const parameter *p = &m->parameters.items[m->stage_parameters[normed].gain];
    double *scales = model_row_norms(m, m->weights, s);
    for (size_t i = 0; i < p->count; i++) scales[i] = values[p->offset + i] / scales[i];
    return scales;
}

/* The Euclidean norm of each block of a stage as products read it, all gates together. */
static double *block_norms(const model *m, const float *values, int s) {
    const graph *g = m->graphs[s];
    const layout *l = m->layouts[s];
    const int side = (int)m->config.block, rows = l->gates * side;
    const float *weights = values + weight_of(m, s)->offset;
    double *norms = mem_alloc((size_t)graph_blocks(g), sizeof *norms);
    double *scales = row_scales(m, values, s);
#pragma omp parallel for
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            double sum = 0;
            for (int r = 0; r < rows; r++) {
                const float *row = weights + block_row(l, g, side, k, r);
                const size_t unit = (size_t)(r / side * g->nodes + i) * (size_t)side;
                const double scale = scales ? scales[unit + (size_t)(r % side)] : 1;
                for (int j = 0; j < side; j++) sum += scale * row[j] * scale * row[j];
            }
            norms[k] = sqrt(sum);
        }
    }
    free(scales);
    return norms;
}

static graph *prune_stage(const model *m, const float *values, int s, double density) {
    const graph *g = m->graphs[s];
    const int blocks = graph_blocks(g);
    const int most = (int)fmax(g->nodes, round(density * g->nodes * g->inputs));
    double *norms = block_norms(m, values, s);
    philox_stream random = philox_start((uint64_t)m->config.seed, PHILOX_PRUNE, (uint32_t)s, 0);
    graph *kept = graph_prune(g, norms, blocks > most ? blocks - most : 0, &random);
    free(norms);
    return kept;
}

/* Copies a stage's blocks, of which `to` has some. */
static void copy_blocks(const model *to, float *target, const model *from, const float *source,
                        int s) {
    const graph *kept = to->graphs[s], *all = from->graphs[s];
    const int side = (int)to->config.block, rows = to->layouts[s]->gates * side;
    for (int i = 0; i < kept->nodes; i++) {
        int old = all->start[i];
        for (int k = kept->start[i]; k < kept->start[i + 1]; k++, old++) {
            while (all->column[old] != kept->column[k]) old++;
            for (int r = 0; r < rows; r++) {
                memcpy(target + block_row(to->layouts[s], kept, side, k, r),
                       source + block_row(from->layouts[s], all, side, old, r),
                       (size_t)side * sizeof *target);
            }
        }
    }
}

/* Has products read normed rows, of which blocks are gone, as before. */
static void keep_rows(const model *to, float *values, const model *from) {
    for (int s = 0; s < model_stages(&to->config); s++) {
        if (model_normed_stage(to, s) != s) continue;
        const parameter *p = &to->parameters.items[to->stage_parameters[s].gain];
        double *before = model_row_norms(from, from->weights, s);
        double *after = model_row_norms(to, to->weights, s);
        float *gains = values + p->offset;
        for (size_t i = 0; i < p->count; i++) {
            gains[i] = (float)(gains[i] * after[i] / before[i]);
        }
        free(after);
        free(before);
    }
}

/* Loads what is left of the values of `from`. */
static void load_kept(model *to, const model *from, const float *source) {
    float *target = mem_alloc(to->parameters.total, sizeof *target);
    for (int i = 0; i < from->parameters.count; i++) {
        const parameter *old = &from->parameters.items[i], *p = &to->parameters.items[i];
        if (old->layout) continue;
        memcpy(target + p->offset, source + old->offset, old->count * sizeof *target);
    }
    for (int s = 0; s < model_stages(&from->config); s++) {
        copy_blocks(to, target + weight_of(to, s)->offset, from,
                    source + weight_of(from, s)->offset, s);
    }
    model_load(to, target);
    keep_rows(to, target, from);
    model_load(to, target);
    free(target);
}

model *model_prune(const model *m, double density, error *err) {
    graph *graphs[CELL_MAX_STAGES];
    float *values = model_download(m, m->weights, 0, m->parameters.total);
    for (int s = 0; s < model_stages(&m->config); s++) {
        graphs[s] = prune_stage(m, values, s, density);
    }
    model *pruned = model_create(m->be, &m->config, graphs, m->batch, m->steps, 1, m->use, err);
    if (pruned) load_kept(pruned, m, values);
    free(values);
    return pruned;
}
