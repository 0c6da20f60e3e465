/* What a classifier says of documents whose classes are known, and comparisons of two. */
#ifndef SMALLWORLD_CLASSIFY_OPINIONS_H
#define SMALLWORLD_CLASSIFY_OPINIONS_H

#include <stddef.h>
#include <stdint.h>

/* Probabilities of documents' classes, and whether the likeliest is wrong. */
typedef struct opinions {
    size_t rows;
    double *probability; /* [rows][classes] */
    int *said;           /* [rows] */
    size_t wrong;
} opinions;

/* From margins [rows][functions]. `class` [rows] is the truth. The caller ends the opinions. */
void opinions_take(opinions *o, const double *margin, size_t rows, int classes, double scale,
                   const int16_t *class);

/* Joins two on the same rows, see classifier_join. */
void opinions_join(opinions *o, const opinions *by_ngrams, const opinions *by_features, int classes,
                   double share, const int16_t *class);

/* Joins two by the share, of the eighths between 0 and 1, with which they err least; of equals that
 * nearest to a half, of those the least. Returns the share. */
double opinions_join_best(opinions *best, const opinions *by_ngrams, const opinions *by_features,
                          int classes, const int16_t *class);
void opinions_end(opinions *o);

/* For a caller that fills in `probability` and `said` in between. */
void opinions_begin(opinions *o, size_t rows, int classes);
void opinions_count(opinions *o, const int16_t *class);

/* The probability, by McNemar's exact test, that two that err equally often differ at least so
 * much. */
double opinions_mcnemar(const opinions *a, const opinions *b, const int16_t *class);

#endif
