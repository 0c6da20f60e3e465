/* The folder of a run: who may use it, and where its files are.
 *
 * It holds config.yaml (resolved), metrics.jsonl, last.safetensors, best.safetensors (the model
 * that validated best) and last.state. A run locks its folder while it uses it.
 *
 * A run that starts over keeps its files in the subfolder `next`, which it marks, until its first
 * checkpoint is complete. Then they replace the earlier run's files, last.state as the last of
 * them. A last.state in a marked `next` therefore means that the replacement was interrupted; the
 * next run to use the folder finishes it first. A `next` without the mark is never read nor
 * changed, no link is followed to one, and no run may use a marked one as its own folder. */
#ifndef SMALLWORLD_TRAIN_RUN_FOLDER_H
#define SMALLWORLD_TRAIN_RUN_FOLDER_H

#include "train/options.h"

#include <stdio.h>

typedef enum train_start {
    TRAIN_FRESH,    /* refuse a folder that already holds a run */
    TRAIN_RESUME,   /* continue from last.state, or begin if the folder has no model either */
    TRAIN_OVERWRITE /* start over */
} train_start;

typedef struct run_folder {
    const char *path;  /* the caller's */
    const char *place; /* the folder that files are written to: `path` or `next` */
    char *next;
    train_start start;
    int lock;             /* the lock's descriptor, or -1 */
    bool prepared;        /* this program has made and marked `next` */
    bool resumed;         /* the run continues from last.state */
    bool replaced;        /* this program has just replaced an earlier run's files */
    int64_t steps_before; /* of a resumed run: train.steps and train.epochs as they were */
    double epochs_before;
} run_folder;

/* Writes nothing. run_folder_end frees and unlocks what the other functions made. */
void run_folder_begin(run_folder *run, const char *path, train_start start);
void run_folder_end(run_folder *run);

/* Checks that the run may start or continue here with these options, and sets `resumed` and
 * `place`. Makes no folder, but finishes an interrupted replacement. */
bool run_folder_check(run_folder *run, options *o, error *err);

/* Of a run that is resumed, gives keys that are not set the values that it was begun with, and
 * refuses other values of those that may not change. */
bool run_folder_keep(run_folder *run, options *o, error *err);

/* Makes and locks the folder and writes config.yaml. */
bool run_folder_prepare(run_folder *run, const options *o, error *err);

/* Opens metrics.jsonl for appending, cut to its first `bytes` bytes and to whole lines. Later lines
 * are of updates that the state does not include. */
FILE *run_folder_metrics(const run_folder *run, int64_t bytes, error *err);

/* The path of one of the run's files. The caller frees it. */
char *run_folder_file(const run_folder *run, const char *name);

/* Whether files go to `next` because the folder still holds an earlier run. */
bool run_folder_keeps_earlier(const run_folder *run);

/* Replaces the earlier run's files with those in `next`. If the new run has not `validated`, it has
 * no best.safetensors, and the earlier run's is removed. */
bool run_folder_replace(run_folder *run, bool validated, error *err);

#endif
