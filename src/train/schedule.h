/* The length of a run, and its learning rate at each step. */
#ifndef SMALLWORLD_TRAIN_SCHEDULE_H
#define SMALLWORLD_TRAIN_SCHEDULE_H

#include "train/options.h"

/* The number of steps that train.steps and train.epochs allow; INT64_MAX if neither is set. */
int64_t schedule_limit(const train_options *t, uint64_t epoch_updates);

/* Seconds that one of each takes. */
typedef struct schedule_times {
    double update, validation, saving;
} schedule_times;

/* How many more updates fit into `left` seconds, with the validations and the saving among them and
 * after the last. */
int64_t schedule_fit(const train_options *t, const schedule_times *each, double left);

/* The learning rate at `step`, from 0: a warm-up from 0, then a decay to lr * lr_final at step
 * `total`. It does not decay while `total` is unknown (INT64_MAX). */
double schedule_lr(const train_options *t, int64_t step, int64_t total);

#endif
