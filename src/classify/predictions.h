/* What a classifier says of documents whose classes are known, and comparisons of two. */
#ifndef SMALLWORLD_CLASSIFY_PREDICTIONS_H
#define SMALLWORLD_CLASSIFY_PREDICTIONS_H

#include "core/ranks.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Probabilities of documents' classes, and whether the likeliest is wrong. */
typedef struct predictions {
    size_t rows;
    double *probability; /* [rows][classes] */
    int *said;           /* [rows] */
    size_t wrong;
} predictions;

/* From margins [rows][functions] with their scale, see calibration.h. `class` [rows] is the truth.
 * The caller ends the predictions. */
void predictions_take(predictions *o, const double *margin, size_t rows, int classes,
                      bool multinomial, double scale, const int16_t *class);

/* Joins two on the same rows, see classifier_join. */
void predictions_join(predictions *o, const predictions *by_ngrams, const predictions *by_features,
                      int classes, double share, const int16_t *class);

/* Per cent of the rows that are wrong. */
double predictions_error(const predictions *o);

/* The weight of the rows that are wrong, by weight [classes] of a row's class; NULL: 1 each. */
double predictions_cost(const predictions *o, const int16_t *class, const double *weight);

/* Joins two by the share, of the eighths between 0 and 1, with which they cost least; of equals
 * that nearest to a half, of those the least. Returns the share. */
double predictions_join_best(predictions *best, const predictions *by_ngrams,
                             const predictions *by_features, int classes, const int16_t *class,
                             const double *weight);
void predictions_end(predictions *o);

/* For a caller that fills in `probability` and `said` in between. */
void predictions_begin(predictions *o, size_t rows, int classes);
void predictions_count(predictions *o, const int16_t *class);

/* Joins what ranks have filled in, each for documents of its own, with zeros for the others. */
void predictions_gather(predictions *o, int classes, ranks *r);

/* The probability, by McNemar's exact test, that two that err equally often differ at least so
 * much. */
double predictions_mcnemar(const predictions *a, const predictions *b, const int16_t *class);

#endif
