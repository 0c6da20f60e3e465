/* How long a run is and what its learning rate is at each step. */
#ifndef SMALLWORLD_TRAIN_SCHEDULE_H
#define SMALLWORLD_TRAIN_SCHEDULE_H

#include "train/options.h"

/* The steps that the limits in steps and epochs allow; INT64_MAX where neither is set. */
int64_t schedule_limit(const train_options *t, uint64_t epoch_updates);

/* For train.minutes: the steps that fit, once `steps` updates have taken `seconds`. */
int64_t schedule_plan(const train_options *t, int64_t steps, double seconds);

/* Warm-up from 0, then decay to lr * lr_final at step `total`. While `total` is not known yet
 * (INT64_MAX), the decay has not begun. `step` counts from 0. */
double schedule_lr(const train_options *t, int64_t step, int64_t total);

#endif
