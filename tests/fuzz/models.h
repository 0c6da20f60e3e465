/* A model small enough to be a fuzzer's input, and its files, for the targets of checkpoints. */
#ifndef SMALLWORLD_TESTS_FUZZ_MODELS_H
#define SMALLWORLD_TESTS_FUZZ_MODELS_H

#include "train/options.h"

enum { TINY_BATCH = 2, TINY_STEPS = 4 };

/* The options of `cell` with three nodes of eight units, five blocks of nine; the caller frees
 * them. */
void tiny_options(options *o, const char *cell);

/* For training, with initial weights. */
model *tiny_model(backend *be, const options *o);

#endif
