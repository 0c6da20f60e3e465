#include "train/structure.h"

#include "core/memory.h"
#include "graph/exchange.h"

#include <math.h>
#include <stdlib.h>

bool structure_changes(const train_options *t) {
    return t->rewire_every > 0;
}

static double progress(double until, int64_t step, int64_t end) {
    return end == INT64_MAX ? 0 : (double)step / (until * (double)end);
}

bool structure_is_due(const train_options *t, int64_t step, int64_t end) {
    if (t->rewire_every == 0 || step % t->rewire_every != 0 || step >= end) return false;
    return progress(t->rewire_until, step, end) < 1;
}

double structure_rewire_share(const train_options *t, int64_t step, int64_t end) {
    double done = progress(t->rewire_until, step, end);
    return done < 1 ? t->rewire_share * (1 + cos(M_PI * done)) / 2 : 0;
}

/* A stage's pattern after a change; adds to *replaced. */
static graph *exchange(const model *m, int stage, int64_t step, double share, int64_t *replaced) {
    const graph *g = m->graphs[stage];
    philox_stream random =
        philox_start((uint64_t)m->config.seed, PHILOX_EXCHANGE, (uint32_t)stage, (uint32_t)step);
    size_t blocks = (size_t)graph_blocks(g);
    int count = (int)(share * (double)(graph_blocks(g) - g->nodes));
    double *norms = mem_alloc(blocks, sizeof *norms);
    int32_t(*grown)[2] = mem_alloc((size_t)count + 1, sizeof *grown);
    model_block_norms(m, m->weights, stage, norms);
    count = graph_draw_absent(g, count, &random, grown);
    graph *made = graph_exchange(g, norms, count, (const int32_t(*)[2])grown, count, &random);
    *replaced += count;
    free(grown);
    free(norms);
    return made;
}

structure_change structure_update(model *m, const train_options *t, int64_t step, int64_t end) {
    structure_change change = {0};
    graph *graphs[CELL_MAX_STAGES];
    double share = structure_rewire_share(t, step, end);
    for (int s = 0; s < model_stages(&m->config); s++) {
        graphs[s] = exchange(m, s, step, share, &change.replaced);
    }
    model_set_graphs(m, graphs);
    return change;
}
