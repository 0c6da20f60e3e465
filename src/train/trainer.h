/* Training: the loop from files to checkpoints.
 *
 * A run that was stopped, by a limit, a signal or a crash, continues from last.state with --resume.
 * It ends in the same models, byte for byte, as a run that was never stopped. train/run_folder.h
 * says which files a run writes. */
#ifndef SMALLWORLD_TRAIN_TRAINER_H
#define SMALLWORLD_TRAIN_TRAINER_H

#include "data/minibatches.h"
#include "model/model.h"
#include "train/run_folder.h"

typedef struct train_result {
    int64_t steps;
    uint64_t bytes;
    double epochs, seconds, bytes_per_second;
    double valid_bpc; /* NaN without validation */
    uint64_t parameters;
    char checkpoint[4096];
    int signal; /* the signal that stopped the run, or 0 */
} train_result;

/* Runs update number `step` of `end`, as recorded in `update`, on a minibatch: hands the text, the
 * labels and the optimiser's numbers to the device first. The minibatch's dropped bytes are set. */
void train_step(model *m, recording *update, const minibatch *batch, const train_options *t,
                int64_t step, int64_t end);

bool train_run(options *o, const char *folder, train_start start, train_result *result, error *err);

#endif
