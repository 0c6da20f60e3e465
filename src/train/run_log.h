/* Reads the metrics.jsonl of a run as columns of numbers. */
#ifndef SMALLWORLD_TRAIN_RUN_LOG_H
#define SMALLWORLD_TRAIN_RUN_LOG_H

#include "core/error.h"

#include <stddef.h>
#include <stdio.h>

/* The columns, and their names in the file, in its order. */
#define LOG_NAMES(X)                                                                               \
    X(STEP, "step")                                                                                \
    X(BYTES, "bytes")                                                                              \
    X(EPOCH, "epoch")                                                                              \
    X(SECONDS, "seconds")                                                                          \
    X(BPC, "bpc")                                                                                  \
    X(LR, "lr")                                                                                    \
    X(GRAD_NORM, "grad_norm")                                                                      \
    X(RATE, "bytes_per_second")                                                                    \
    X(VALID_BPC, "valid_bpc")                                                                      \
    X(LABEL_LOSS, "label_loss")                                                                    \
    X(VALID_LABEL_LOSS, "valid_label_loss")                                                        \
    X(VALID_LABEL_ERROR, "valid_label_error")

#define LOG_COLUMN(column, name) LOG_##column,
typedef enum log_column { LOG_NAMES(LOG_COLUMN) LOG_COLUMNS } log_column;

extern const char *const run_log_names[LOG_COLUMNS];

typedef struct run_log {
    size_t count;               /* lines */
    double *value[LOG_COLUMNS]; /* [count] each; NaN where a line has null or no such key */
} run_log;

/* Reads FOLDER/metrics.jsonl. Leaves out a last line without a line break, because it is still
 * being written. Ignores members that are not numbers. Refuses any other line that is not a JSON
 * object, with its number in the error. */
bool run_log_read(run_log *log, const char *folder, error *err);
void run_log_free(run_log *log);

/* The last value of a column, and the least; NaN if it has none. */
double run_log_last(const run_log *log, log_column column);
double run_log_least(const run_log *log, log_column column);

/* Appends the lines as CSV, each with `name` in front. Numbers keep the digits of the file. */
bool run_log_csv(const char *folder, const char *name, FILE *out, error *err);

#endif
