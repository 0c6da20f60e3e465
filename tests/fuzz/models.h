/* A model that is small enough for a fuzzer's input, and its files, for the targets of
 * checkpoints. */
#ifndef SMALLWORLD_TESTS_FUZZ_MODELS_H
#define SMALLWORLD_TESTS_FUZZ_MODELS_H

#include "train/options.h"

enum { TINY_BATCH = 2, TINY_STEPS = 4 };

/* Sets the options of a `cell` with three nodes of eight units and five of the nine blocks. The
 * caller frees them. */
void tiny_options(options *o, const char *cell);

/* Makes the model for training, with initial weights. */
model *tiny_model(backend *be, const options *o);

#endif
