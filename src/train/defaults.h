/* A config for text that comes without one: a model and a recipe by the size of the text and the
 * device. */
#ifndef SMALLWORLD_TRAIN_DEFAULTS_H
#define SMALLWORLD_TRAIN_DEFAULTS_H

#include "train/options.h"

/* Sets data.train to `files`, and every key of the chosen recipe that is not set yet; says on
 * stderr what was chosen. `o` holds assignments and flags already. Call options_check after it. */
bool defaults_choose(options *o, char *const *files, int count, error *err);

#endif
