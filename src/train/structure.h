/* Structure learned while training. Between updates the blocks of smallest norm go, and
 *   rewiring   as many new ones come, at random places as in sparse evolutionary training
 *              (Mocanu et al. 2018) or where the gradient is largest (Evci et al. 2020);
 *   pruning    none comes, until a density is met, along the cubic schedule of Zhu and Gupta 2017.
 * A stage's gates share one pattern; self-blocks stay. docs/structure.md says more. */
#ifndef SMALLWORLD_TRAIN_STRUCTURE_H
#define SMALLWORLD_TRAIN_STRUCTURE_H

#include "train/options.h"

/* The share of blocks that are there, over all stages. */
double structure_density(const model *m);

/* The blocks that a stage of `density` has: at least the self-blocks. */
int structure_blocks(const graph *g, double density);

/* Where a run stands: after `step` updates of `end` (INT64_MAX: not known), from a pattern of
 * `start_density`. */
typedef struct structure_place {
    int64_t step, end;
    double start_density;
} structure_place;

/* What the schedules ask for there: the density that pruning has come to, and the share of the
 * blocks, self-blocks left out, that rewiring replaces, which decays along half a cosine to 0 at
 * train.rewire_until. While the end is not known, pruning has not begun and the share does not
 * decay. */
double structure_target_density(const train_options *t, const structure_place *at);
double structure_rewire_share(const train_options *t, const structure_place *at);

/* Whether a change is due. */
bool structure_is_due(const model *m, const train_options *t, const structure_place *at);

/* Changes the model's patterns straight after an update, whose gradient may choose the new blocks;
 * see model_set_graphs for what must hold. What is drawn depends on the model's seed and the step
 * alone. Returns how many blocks were replaced, in all stages. */
int64_t structure_update(model *m, const train_options *t, const structure_place *at);

/* Prunes every stage to `density` at once. */
void structure_prune(model *m, double density);

/* Refuses what can never happen to patterns of that density. */
bool structure_check(const options *o, double start_density, error *err);

#endif
