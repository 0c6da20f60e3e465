/* Training: the loop from files to checkpoints.
 *
 * The run folder holds config.yaml (resolved), metrics.jsonl, last.safetensors, best.safetensors
 * (by validation) and last.state. A run that was stopped, by a limit, a signal or a crash, goes on
 * from last.state with --resume, and ends in the same models, byte for byte, as a run never
 * stopped. It is locked while a run uses it. A run that starts over replaces an earlier one's files
 * only once its own first checkpoint is on the disk; until then they are in the folder `next`
 * there. */
#ifndef SMALLWORLD_TRAIN_TRAINER_H
#define SMALLWORLD_TRAIN_TRAINER_H

#include "train/options.h"

typedef enum train_start {
    TRAIN_FRESH,    /* a folder that holds a run already is refused */
    TRAIN_RESUME,   /* go on from last.state; from the beginning where there is no model either */
    TRAIN_OVERWRITE /* start over */
} train_start;

typedef struct train_result {
    int64_t steps;
    uint64_t bytes;
    double epochs, seconds, bytes_per_second;
    double valid_bpc; /* NaN without validation */
    uint64_t parameters;
    char checkpoint[4096];
    int signal; /* the signal that stopped the run, or 0 */
} train_result;

bool train(options *o, const char *folder, train_start start, train_result *result, error *err);

#endif
