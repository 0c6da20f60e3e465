/* The documents that a classifier learns from, is chosen by and is measured on. */
#ifndef SMALLWORLD_CLASSIFY_EXAMPLES_H
#define SMALLWORLD_CLASSIFY_EXAMPLES_H

#include "data/classes.h"

/* Documents and their classes. */
typedef struct labelled {
    corpus *texts;
    int16_t *class; /* [texts->count] */
} labelled;

typedef struct examples {
    corpus *text; /* all but the documents for testing, for a model of the text */
    labelled train, test;
    labelled held; /* of those to train on, a fifth to choose by */
    bool *is_held; /* [documents of train] */
    class_names classes;
    double *weight;    /* [classes] or NULL, see class_weight */
    size_t unlabelled; /* documents */
} examples;

/* Where documents are. */
typedef struct example_files {
    const char *train; /* labelled ones */
    const char *text;  /* more text, or NULL */
    const char *test;  /* labelled ones; NULL: a fifth of `train`, by a hash of the text */
    int64_t drop_rare; /* the fewest documents of a class; of fewer it is left out; 0: none is */
} example_files;

/* Reads the documents. Those for testing are left out of the others. Refuses files without labels,
 * with fewer than two classes or with a label in `test` alone. examples_free after failure too. */
bool examples_read(examples *e, const example_files *from, corpus_options how, bool balanced,
                   error *err);

/* Holds a fifth of each class to train on out, equal texts together. Refuses a class of fewer than
 * two texts. */
bool examples_hold_out(examples *e, const char *path, error *err);

void examples_free(examples *e);

#endif
