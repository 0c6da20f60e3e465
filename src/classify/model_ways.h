/* The ways of telling classes that have a model, by the time that is left. Each may be skipped,
 * which is no failure. */
#ifndef SMALLWORLD_CLASSIFY_MODEL_WAYS_H
#define SMALLWORLD_CLASSIFY_MODEL_WAYS_H

#include "classify/job.h"

/* Finds whether an earlier job left a model of this text to go on with; one of other text is
 * replaced with --overwrite, or refused. */
bool job_find_run(job *j, error *err);

/* Trains a model on the text of all documents but those for testing, or goes on with that. Nothing
 * to do with a given model; not tried where no time would be left to use it. */
bool job_train_text(job *j, error *err);

/* With an open model: goes on training it with the labels as a second target, and asks it. */
bool job_tune(job *j, error *err);

/* With an open model: fits a probe on its features. */
bool job_fit_features(job *j, error *err);

/* The path of one of the features' files in the job's folder. The caller frees it. */
char *job_features_path(const job *j, const char *name);

#endif
