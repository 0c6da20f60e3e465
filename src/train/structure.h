/* Structure learned while training: between updates, the blocks of smallest norm make room for new
 * ones, as in sparse evolutionary training (Mocanu et al. 2018) with the decay of Evci et al. 2020.
 * A stage's gates share one pattern; self-blocks stay. */
#ifndef SMALLWORLD_TRAIN_STRUCTURE_H
#define SMALLWORLD_TRAIN_STRUCTURE_H

#include "train/options.h"

/* Whether these options ever change a pattern. */
bool structure_changes(const train_options *t);

/* Whether a change is due after `step` updates of a run that ends at `end` (INT64_MAX: not known). */
bool structure_is_due(const train_options *t, int64_t step, int64_t end);

/* The share of blocks, self-blocks left out, that are replaced then: train.rewire_share, which decays
 * along half a cosine to 0 at train.rewire_until. While `end` is not known it does not decay. */
double structure_rewire_share(const train_options *t, int64_t step, int64_t end);

typedef struct structure_change {
    int64_t replaced; /* blocks, in all stages */
} structure_change;

/* Changes the model's patterns; see model_set_graphs for what must hold. What is drawn depends on the
 * model's seed and `step` alone. */
structure_change structure_update(model *m, const train_options *t, int64_t step, int64_t end);

#endif
