/* The labels of documents as classes. */
#ifndef SMALLWORLD_DATA_CLASSES_H
#define SMALLWORLD_DATA_CLASSES_H

#include "core/safetensors.h"
#include "data/corpus.h"

typedef struct class_names {
    char *name[MOST_CLASSES]; /* [count] */
    int count;
} class_names;

/* Names the labels of a corpus, and of a share of the same text unless that is NULL, in the order
 * of names or of numbers. Returns their number, of which MOST_CLASSES + 1 stands for any larger
 * one; names are given to 2 to MOST_CLASSES. */
size_t classes_find(class_names *k, const corpus *c, const corpus *share);
void classes_free(class_names *k);

/* The number of a name [count]; -1 if there is none such. Where all are whole numbers, 5.0 is found
 * as 5, as other files may have it. */
int classes_index(const char *const *name, int count, const char *label);

/* Finds the class of each document: class [documents], -1 without a label. Returns a label that is
 * none of the classes, of which `room` has place for 16 bytes; else NULL. */
const char *classes_number(const class_names *k, const corpus *c, int16_t *class, char *room);

/* Takes the label from the documents of labels that fewer than `least` have. Returns how many these
 * documents are. */
size_t classes_drop_rare(corpus *c, size_t least);

/* Takes the label from the documents whose label is none of the classes. */
void classes_drop_others(const class_names *k, corpus *c);

/* What a document of a class counts for: weight [classes], or NULL, where all count 1, as one
 * without a class (-1) does. */
static inline double class_weight(const double *weight, int class) {
    return weight && class >= 0 ? weight[class] : 1;
}

/* The weights [classes] with which every class counts alike: rows / (classes of its own rows), on
 * average 1. class [rows], -1 counts for none. */
void classes_balance(const int16_t *class, size_t rows, int classes, double *weight);

/* Splits the rows of each class (0 to classes - 1; -1 is none): random ones, a fifth, rounded, but
 * at least one and never all, are held out: held [rows] is true. Rows of equal `group` [rows], as
 * those of equal texts, stay together, with the class of the first of them, so a class may give a
 * few rows more. A text that would make up more than a tenth of what its class holds out is not
 * held out, unless there are too few others: an error there would count as many. Returns the first
 * class that has fewer than two groups, or -1. */
int split_by_group(const int16_t *class, const uint64_t *group, size_t rows, int classes,
                   uint64_t seed, bool *held);

#endif
