#include "train/structure.h"

#include "core/memory.h"
#include "graph/prune.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* -------------------------------------------------------------------------------- schedules */

double structure_density(const model *m) {
    double blocks = 0, all = 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        const graph *g = m->graphs[s];
        blocks += graph_blocks(g);
        all += (double)g->nodes * g->inputs;
    }
    return blocks / all;
}

int structure_blocks(const graph *g, double density) {
    return (int)fmax(g->nodes, round(density * g->nodes * g->inputs));
}

/* Whether pruning is over: from the first update that ends train.prune_until of the run, and at
 * the latest before the last update, so that the model is pruned and then trained. */
static bool is_pruned(const train_options *t, const structure_place *at) {
    return (double)at->step >= fmin(t->prune_until * (double)at->end, (double)(at->end - 1));
}

double structure_target_density(const train_options *t, const structure_place *at) {
    if (t->prune_density == 0 || at->end == INT64_MAX) return 1;
    double done = (double)at->step / (double)at->end;
    if (is_pruned(t, at)) return t->prune_density;
    if (done < t->prune_from) return 1;
    double left = (t->prune_until - done) / (t->prune_until - t->prune_from);
    return t->prune_density + (at->start_density - t->prune_density) * left * left * left;
}

/* The density of a stage after this step. The end of the schedule need not be a multiple of
 * train.prune_every. */
static double density_due(const train_options *t, const structure_place *at) {
    return is_pruned(t, at) || at->step % t->prune_every == 0 ? structure_target_density(t, at) : 1;
}

bool structure_is_due(const model *m, const train_options *t, const structure_place *at) {
    if (at->step >= at->end) return false;
    double density = density_due(t, at);
    for (int s = 0; s < model_stages(&m->config); s++) {
        const graph *g = m->graphs[s];
        if (graph_blocks(g) > structure_blocks(g, density)) return true;
    }
    return false;
}

/* ---------------------------------------------------------------------------------- changes */

static void prune(model *m, double density, int64_t step) {
    graph *graphs[CELL_MAX_STAGES];
    for (int s = 0; s < model_stages(&m->config); s++) {
        const graph *g = m->graphs[s];
        const int blocks = graph_blocks(g), most = structure_blocks(g, density);
        double *norms = mem_alloc((size_t)blocks, sizeof *norms);
        philox_stream random =
            philox_start((uint64_t)m->config.seed, PHILOX_PRUNE, (uint32_t)s, (uint32_t)step);
        model_block_norms(m, m->weights, s, norms);
        graphs[s] = graph_prune(g, norms, blocks > most ? blocks - most : 0, &random);
        free(norms);
    }
    model_set_graphs(m, graphs);
}

void structure_update(model *m, const train_options *t, const structure_place *at) {
    prune(m, density_due(t, at), at->step);
}

void structure_prune(model *m, double density) {
    prune(m, density, 0);
}

bool structure_check(const options *o, double start_density, int64_t end, error *err) {
    const train_options *t = &o->train;
    if (t->prune_density > 0 && end < 2) {
        return config_refuse(&o->config, err, "train.prune_density",
                             "expected a run of at least 2 updates, since an update follows the "
                             "last step of pruning, got one of %" PRId64,
                             end);
    }
    if (t->prune_density > 0 && t->prune_density >= start_density) {
        return config_refuse(&o->config, err, "train.prune_density",
                             "expected below %.6g, the density of the patterns that training "
                             "starts with, got %.6g",
                             start_density, t->prune_density);
    }
    return true;
}
