/* The length of a run, and its learning rate at each step. */
#ifndef SMALLWORLD_TRAIN_SCHEDULE_H
#define SMALLWORLD_TRAIN_SCHEDULE_H

#include "train/options.h"

/* The number of steps that train.steps and train.epochs allow; INT64_MAX if neither is set. */
int64_t schedule_limit(const train_options *t, uint64_t epoch_updates);

/* The number of steps that fit into train.minutes, if `steps` updates have taken `seconds`. */
int64_t schedule_plan(const train_options *t, int64_t steps, double seconds);

/* The learning rate at `step`, from 0: a warm-up from 0, then a decay to lr * lr_final at step
 * `total`. It does not decay while `total` is unknown (INT64_MAX). */
double schedule_lr(const train_options *t, int64_t step, int64_t total);

#endif
