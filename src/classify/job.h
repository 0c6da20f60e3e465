/* One run of classify: from documents to a classifier in a folder, in the minutes that it has. */
#ifndef SMALLWORLD_CLASSIFY_JOB_H
#define SMALLWORLD_CLASSIFY_JOB_H

#include "classify/examples.h"
#include "classify/ngrams.h"
#include "classify/outcome.h"
#include "train/loaded.h"

#include <pthread.h>

typedef struct job_options {
    example_files files;
    const char *text_column, *label_column; /* of tables; NULL: found by usual names */
    const char *given; /* run or checkpoint whose features to use; NULL: one is trained */
    const char *out;   /* the folder */
    overrides device;  /* its ranks share what a model does */
    double minutes;    /* that all may take, about; 0: n-grams alone; negative: by the device */
    int64_t steps;     /* updates of the model of the text; then no clock decides. 0: minutes do */
    bool overwrite;    /* an earlier classifier of the folder is replaced */
    bool balanced;     /* classes weigh alike */
} job_options;

typedef struct job {
    const job_options *how;
    double began;
    int stage, stages;
    int lock; /* of the folder; -1: none */
    examples examples;
    char *checkpoint;           /* the path of the model of the text */
    loaded_model loaded, tuned; /* that model, and the one that learnt the labels */
    bool is_open, is_tuned;
    bool goes_on;   /* with the model of the text, which an earlier job began */
    double minutes; /* that all may take */
    double rate;    /* bytes of text that training reads in a second; 0: not known */
    double text_seconds, probe_seconds;             /* planned */
    int64_t text_steps, tuning_steps, latest_steps; /* updates that were made */
    ngrams ngrams;
    pthread_t beside; /* fits the n-grams beside the model, while `fitting` */
    bool fitting, fitted;
    error why_not_fitted;
    ways ways;
    char *model_name, *probe_name; /* below the folder, see classifier.h */
    char *earlier[2];              /* those of the classifier that is replaced, or NULL */
} job;

/* Does all of it. A job that fails leaves an earlier classifier of the folder as it was. job_free
 * after failure too. */
bool job_run(job *j, const job_options *how, error *err);
void job_free(job *j);

outcome job_outcome(const job *j);

#endif
