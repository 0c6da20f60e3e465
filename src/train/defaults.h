/* Chooses a config for a text: a model and training settings that suit the size of the text, the
 * device and the number of ranks. */
#ifndef SMALLWORLD_TRAIN_DEFAULTS_H
#define SMALLWORLD_TRAIN_DEFAULTS_H

#include "train/options.h"

/* Sets data.train to `files`, sets every key of the chosen config that is not yet set, and prints
 * the choice on stderr. `o` already holds assignments and flags. The caller calls options_check
 * afterwards. `bytes` of text; 0: by the files' sizes, of which a pipe's is not known. */
bool defaults_choose(options *o, char *const *files, int count, uint64_t bytes, error *err);

#endif
