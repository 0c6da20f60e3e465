/* The ways of telling classes that classify compares, and the choice among them. */
#ifndef SMALLWORLD_CLASSIFY_WAYS_H
#define SMALLWORLD_CLASSIFY_WAYS_H

#include "classify/predictions.h"

#include <stdbool.h>

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

#endif
