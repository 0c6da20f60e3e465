#include "train/structure.h"

#include "core/memory.h"
#include "graph/exchange.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* -------------------------------------------------------------------------------- schedules */

double structure_density(const model *m) {
    double blocks = 0, all = 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        const graph *g = m->graphs[s];
        blocks += graph_blocks(g);
        all += (double)g->nodes * g->nodes;
    }
    return blocks / all;
}

int structure_blocks(const graph *g, double density) {
    return (int)fmax(g->nodes, round(density * g->nodes * g->nodes));
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

double structure_rewire_share(const train_options *t, const structure_place *at) {
    if (at->end == INT64_MAX) return t->rewire_share;
    double done = (double)at->step / (t->rewire_until * (double)at->end);
    return done < 1 ? t->rewire_share * (1 + cos(M_PI * done)) / 2 : 0;
}

static bool is_multiple(int64_t step, int64_t every) {
    return every > 0 && step % every == 0;
}

/* The share of blocks to replace at this step. */
static double share_due(const train_options *t, const structure_place *at) {
    return is_multiple(at->step, t->rewire_every) ? structure_rewire_share(t, at) : 0;
}

/* The density of a stage after this step. The end of the schedule need not be a multiple of
 * train.prune_every. */
static double density_due(const train_options *t, const structure_place *at) {
    return is_pruned(t, at) || is_multiple(at->step, t->prune_every)
               ? structure_target_density(t, at)
               : 1;
}

bool structure_is_due(const model *m, const train_options *t, const structure_place *at) {
    if (at->step >= at->end) return false;
    double density = density_due(t, at);
    for (int s = 0; s < model_stages(&m->config); s++) {
        const graph *g = m->graphs[s];
        if (graph_blocks(g) > structure_blocks(g, density)) return true;
    }
    return share_due(t, at) > 0;
}

/* ---------------------------------------------------------------------------------- changes */

/* The parameters of one change of all stages. */
typedef struct exchange {
    int64_t step;
    double density; /* upper limit of a stage's density */
    double share;   /* of the remaining blocks, to be replaced */
    bool by_gradient;
} exchange;

/* Chooses at most `count` new blocks and writes them, ascending, to `grown`, which has room for the
 * stage's blocks. By gradient, these are the strongest among as many candidates as fit into the
 * gradient's arena. */
static int choose_new(model *m, int stage, bool by_gradient, int count, philox_stream *random,
                      int32_t (*grown)[2]) {
    const graph *g = m->graphs[stage];
    if (!by_gradient || count == 0) return graph_draw_absent(g, count, random, grown);
    int drawn = graph_draw_absent(g, graph_blocks(g), random, grown);
    int keep = drawn < count ? drawn : count;
    if (drawn == 0) return 0;
    double *norms = mem_alloc((size_t)drawn, sizeof *norms);
    graph *absent = graph_of_absent(g->nodes, (const int32_t(*)[2])grown, drawn);
    model_gradient_norms(m, stage, absent, norms);
    graph_keep_strongest(grown, norms, drawn, keep, random);
    graph_free(absent);
    free(norms);
    return keep;
}

/* Returns a stage's pattern after the change. Adds the number of replaced blocks to *replaced. */
static graph *changed_graph(model *m, int stage, const exchange *e, int64_t *replaced) {
    const graph *g = m->graphs[stage];
    philox_stream random =
        philox_start((uint64_t)m->config.seed, PHILOX_EXCHANGE, (uint32_t)stage, (uint32_t)e->step);
    int blocks = graph_blocks(g), most = structure_blocks(g, e->density);
    int pruned = blocks > most ? blocks - most : 0;
    int count = (int)(e->share * (double)(blocks - pruned - g->nodes));
    double *norms = mem_alloc((size_t)blocks, sizeof *norms);
    int32_t(*grown)[2] = mem_alloc((size_t)blocks, sizeof *grown);
    model_block_norms(m, m->weights, stage, norms);
    count = choose_new(m, stage, e->by_gradient, count, &random, grown);
    graph *made =
        graph_exchange(g, norms, pruned + count, (const int32_t(*)[2])grown, count, &random);
    *replaced += count;
    free(grown);
    free(norms);
    return made;
}

static int64_t change(model *m, const exchange *e) {
    graph *graphs[CELL_MAX_STAGES];
    int64_t replaced = 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        graphs[s] = changed_graph(m, s, e, &replaced);
    }
    model_set_graphs(m, graphs);
    return replaced;
}

int64_t structure_update(model *m, const train_options *t, const structure_place *at) {
    const exchange e = {at->step, density_due(t, at), share_due(t, at),
                        t->rewire_grow == GROW_GRADIENT};
    return change(m, &e);
}

void structure_prune(model *m, double density) {
    const exchange e = {.density = density};
    change(m, &e);
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
    if (t->rewire_every > 0 && t->prune_density == 0 && start_density == 1) {
        return config_refuse(&o->config, err, "train.rewire_every",
                             "has no meaning for complete patterns, in which no block is absent");
    }
    return true;
}
