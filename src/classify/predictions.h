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

/* The ways of telling classes that classify compares, and the choice among them. */

enum { BY_NGRAMS, BY_FEATURES, BY_TUNED, BY_BOTH, WAYS };

extern const char *const way_names[WAYS];

/* What a way says of the documents that were held out, and of those for testing. */
typedef struct way {
    bool tried;
    predictions valid, tested;
    double seconds; /* that it took */
} way;

typedef struct ways {
    way of[WAYS];
    int partner;    /* what n-grams are joined with in BY_BOTH; BY_NGRAMS: with nothing */
    double share;   /* of the partner in BY_BOTH */
    int chosen;     /* the way that is saved */
    double p_value; /* of its errors against those of n-grams; NaN: it is these */
} ways;

/* Joins n-grams to the better of the model's ways, and chooses by the errors on held-out documents,
 * by their class's weight [classes] unless it is NULL; of equals the join, else the simplest.
 * n-grams must have been tried. valid_class and test_class hold the truth. */
void ways_choose(ways *w, int classes, const double *weight, const int16_t *valid_class,
                 const int16_t *test_class);

/* The model's share in what the chosen way says, see classifier_join. */
double ways_saved_share(const ways *w);

/* [classes][classes]: the true class, and what the chosen way said. The caller frees it. */
size_t *ways_confusion(const ways *w, int classes, const int16_t *test_class);

void ways_end(ways *w);

/* What a table of confusions says of each class. */

/* Of a class: its documents, and the shares 0 to 1. Precision is NaN if nothing was said to be of
 * the class, recall and F1 are NaN without documents of it. */
typedef struct class_score {
    size_t documents;
    double precision, recall, f1;
} class_score;

/* confusion [classes][classes]: true class, said class. */
class_score score_class(const size_t *confusion, int classes, int class);

/* The mean F1 of the classes that have documents. */
double score_macro_f1(const size_t *confusion, int classes);

/* Documents of a class that were said to be of another one. */
typedef struct mix_up {
    int class, said;
    size_t documents;
} mix_up;

/* The commonest mix-ups, at most `most`; of equals the first. Returns their number. */
enum { MIX_UPS = 10 /* that people are shown */ };
int score_mix_ups(const size_t *confusion, int classes, mix_up *list, int most);

#endif
