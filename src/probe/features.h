/* Features of documents: the cell's state after reading each one from a zero state.
 *
 * Documents are read side by side in order of length, so that those of a group end at about the
 * same time. The features do not depend on how documents were grouped.
 *
 * Several ranks deal the groups out. The groups are those of a single rank, and so is every byte
 * of the files. */
#ifndef SMALLWORLD_PROBE_FEATURES_H
#define SMALLWORLD_PROBE_FEATURES_H

#include "data/corpus.h"
#include "model/model.h"
#include "probe/origin.h"

/* The best number of steps for feature extraction. If a document ends within a call, the remaining
 * steps of the call are wasted. */
enum { FEATURES_STEPS = 64 };

/* What features has unless it is told otherwise: all that a probe needs to choose the better
 * one. */
#define FEATURE_POOLS ((pool_list){2, {POOL_MEAN, POOL_LAST}})

typedef struct feature_options {
    feature_state state;
    pool_list pools;
    bool progress;
    const char *model; /* the checkpoint's checksum for PREFIX.json; NULL writes no such file */
    ranks *ranks;      /* who share the work, each with the whole corpus; or NULL */
} feature_options;

typedef struct feature_result {
    uint64_t documents, bytes, units; /* units: number of features of a document */
    double seconds;
} feature_result;

/* Writes PREFIX.npy (documents x (pools x units), float32), PREFIX.labels.npy (int32) and
 * PREFIX.json (see origin.h). Rows are in the corpus's order. `m` is made for
 * inference, in one segment, and with the same number of streams on all ranks.
 *
 * Rank 0 begins and commits all files; the others write their rows into its temporary file, so the
 * folder must be visible to all hosts. */
bool features_extract(model *m, const corpus *c, const feature_options *how, const char *prefix,
                      feature_result *result, error *err);

/* The number of groups of `batch` documents, which are what ranks can share. */
size_t features_groups(const corpus *c, int batch);

/* Calls `take` with each document's features [pools x units], longest documents first, instead of
 * writing them; of several ranks each takes its own documents. Only one thread calls it at a time,
 * but not the caller's. The row is valid during the call. */
bool features_each(model *m, const corpus *c, const feature_options *how,
                   void (*take)(void *argument, size_t document, const float *row), void *argument,
                   error *err);

#endif
