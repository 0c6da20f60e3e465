/* A saved classifier of documents, in a folder that `smallworld classify` makes:
 *
 *   classifier.safetensors          the n-grams' model, the classes, and the weight of the features
 *   probe-SUM.probe.safetensors     the probe on the features (probe/saved.h)
 *   model-SUM.safetensors           the checkpoint that makes the features
 *
 * The first file names the other two, whose names have their checksums. It is written last, so that
 * whatever stops a second `classify`, the folder holds the old classifier or the new one.
 *
 * The tensors are bucket int32 [count], idf float32 [count], weights float32 [count][functions] and
 * intercepts float64 [functions]; see ngrams.h. */
#ifndef SMALLWORLD_CLASSIFY_CLASSIFIER_H
#define SMALLWORLD_CLASSIFY_CLASSIFIER_H

#include "classify/ngrams.h"
#include "probe/saved.h"

#define CLASSIFIER_FILE "classifier.safetensors"

typedef struct classifier {
    safetensors file; /* the open file, which holds all else */
    ngrams ngrams;
    int classes;
    const char *name[MOST_CLASSES];
    double share; /* of the features in log-probabilities: 0 n-grams alone, 1 they alone */
    const char *checkpoint, *probe;         /* relative to the folder */
    bool html_entities;                     /* corpus_options of its documents */
    const char *text_column, *label_column; /* of the tables that it was made of; "": found */
} classifier;

bool classifier_write(const classifier *c, const char *folder, error *err);

/* Copies one of the two other files into the folder, under a name that begins with `kind`, model or
 * probe. Returns that name, which the caller frees, or NULL. */
char *classifier_keep(const char *folder, const char *kind, const safetensors *file, error *err);

/* Removes those of the classifier that this one replaces, `earlier` [model, probe], unless they are
 * this one's too, or the file `given`, which may be NULL. */
void classifier_clean(const classifier *c, const char *folder, char *const earlier[2],
                      const char *given);

/* Refuses a file of a classifier's folder that has another one's name, which says its checksum. */
bool classifier_check_name(const safetensors *file, error *err);

/* Whether the two other files are whole, and those that their names say. */
bool classifier_check(const classifier *c, const char *folder, error *err);

bool classifier_open(classifier *c, const char *folder, error *err);
void classifier_close(classifier *c);

/* Joins two predictions on a document: the probability [classes] in proportion to
 * by_ngrams^(1 - share) by_features^share. Returns the likeliest class, the first of equal ones. */
int classifier_join(int classes, const double *by_ngrams, const double *by_features, double share,
                    double *probability);

#endif
