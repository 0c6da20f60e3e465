/* What the files of the trainer share:
 *   setup.c    everything before the first update: text, model, state, what the run prints at first
 *   records.c  what a run leaves: metrics, validation, checkpoints
 *   trainer.c  the clock and the loop */
#ifndef SMALLWORLD_TRAIN_INTERNAL_H
#define SMALLWORLD_TRAIN_INTERNAL_H

#include "data/minibatches.h"
#include "train/checkpoint.h"
#include "train/run_folder.h"
#include "train/schedule.h"

/* What the run leaves, by records.c. */
typedef struct run_records {
    FILE *metrics;
    bool has_state;      /* this run has written a state */
    bool best_due;       /* best.safetensors must be written, with the next state */
    float *best;         /* its weights; NULL: the model's */
    bool metrics_failed; /* metrics.jsonl could not be written */
    double trained_bpc;  /* of the updates up to the last line of metrics; 0: not known */
    double saved, shown; /* times of the last save and of the last progress line */
} run_records;

/* How many updates fit into train.minutes, by trainer.c. */
typedef struct run_plan {
    double began; /* when the first update began, had the run never been stopped */
    schedule_times
        lately;  /* what an update took, and the latest validation and save, 0: not known */
    double due;  /* when to plan next, in seconds since `began` */
    double from; /* since when updates are timed, and which was the first */
    int64_t step;
} run_plan;

typedef struct trainer {
    options *o;
    ranks *ranks;         /* NULL: the run is this process's alone */
    stream_share streams; /* of the minibatch, this rank's */
    run_folder run;
    backend *be;
    corpus *train, *valid;
    int64_t excluded;
    uint64_t epoch_updates;
    model *m;
    recording *update, *evaluation;
    sequence *valid_text;
    run_state state;
    safetensors state_file; /* the state to resume from, while it is loaded */
    int64_t end;            /* the run's last step; INT64_MAX until it is known */
    double segment_start;   /* when the clock was last started or stopped */
    run_records records;
    run_plan plan;
} trainer;

/* Whether this rank writes the run's files: rank 0, or the only process. */
bool trainer_leads(const trainer *tr);

/* Only updates and their input count: the clock stops for validation and saving. Stopping it waits
 * for the device. All ranks go by rank 0's clock, so that what depends on time comes at the same
 * update. */
void trainer_clock_start(trainer *tr);
bool trainer_clock_stop(trainer *tr, error *err);

/* Bytes of text in an update, and in all updates so far, on all ranks. */
uint64_t trainer_update_bytes(const trainer *tr);
double trainer_bytes_done(const trainer *tr);

/* Reads the text, makes the model and the run's folder, and loads the state of a resumed run.
 * Refuses everything that can be refused before it prints or writes anything. */
bool trainer_set_up(trainer *tr, error *err);

/* Prints the device, the model, its memory and the text. */
void trainer_describe(const trainer *tr);

/* Writes a line of metrics.jsonl for the updates since the last one, and shows progress. */
bool trainer_log_metrics(trainer *tr, error *err);

/* Scores the validation text by the moving average. */
bool trainer_validate(trainer *tr, error *err);

/* Saves the state and the models that are due. */
bool trainer_save(trainer *tr, error *err);

/* Saves the best model, if that is due. */
bool trainer_save_best(trainer *tr, error *err);

/* Writes models that are missing or damaged again, if the state holds their weights. A run may have
 * been killed after it saved its state and before it saved the models. */
bool trainer_repair_models(trainer *tr, error *err);

#endif
