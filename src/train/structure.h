/* Prunes while training: between updates the blocks of smallest norm are removed, until a target
 * density is reached, on the cubic schedule of Zhu and Gupta 2017. The gates of a stage share one
 * pattern. Self-blocks are never removed. See docs/structure.md. */
#ifndef SMALLWORLD_TRAIN_STRUCTURE_H
#define SMALLWORLD_TRAIN_STRUCTURE_H

#include "train/options.h"

/* The number of blocks over the number of places for blocks, over all stages. */
double structure_density(const model *m);

/* The number of blocks of a stage with this density: at least its self-blocks. */
int structure_blocks(const graph *g, double density);

/* The position of a run: after `step` of `end` updates (INT64_MAX: unknown), from patterns of
 * `start_density`. */
typedef struct structure_place {
    int64_t step, end;
    double start_density;
} structure_place;

/* The density that pruning has reached at this position. While the end is unknown, pruning does not
 * begin. */
double structure_target_density(const train_options *t, const structure_place *at);

/* Whether the structure changes at this position. */
bool structure_is_due(const model *m, const train_options *t, const structure_place *at);

/* Prunes every stage to what is due at this position. See model_set_graphs for its conditions.
 * Random choices depend on the model's seed and the step alone. */
void structure_update(model *m, const train_options *t, const structure_place *at);

/* Prunes every stage to `density` at once. */
void structure_prune(model *m, double density);

/* Refuses settings that patterns of this density, or a run of `end` updates, can never meet. */
bool structure_check(const options *o, double start_density, int64_t end, error *err);

#endif
