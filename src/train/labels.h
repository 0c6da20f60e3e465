/* The labels of documents as classes that a model learns. */
#ifndef SMALLWORLD_TRAIN_LABELS_H
#define SMALLWORLD_TRAIN_LABELS_H

#include "data/corpus.h"
#include "train/options.h"

/* The share of the labelled documents that is held out to validate on, at least. */
#define LABELS_HELD_OUT 0.1

/* Makes classes of the labels in `train`, and numbers the documents of both by them
 * (corpus.classes); o->classes gets their names, in the order of names or of numbers. With
 * `is_share`, `valid` is a share of the same text; NULL: there is none. Refuses a text with fewer
 * than two classes or with too many, and, unless it is a share, other labels in `valid`. */
bool labels_find(options *o, corpus *train, corpus *valid, bool is_share, error *err);

/* The number of documents that have a class; of NULL 0. */
size_t labels_count(const corpus *c);

/* A number that depends on the classes and on each document's, at least 0. */
int64_t labels_hash(const options *o, const corpus *c);

#endif
