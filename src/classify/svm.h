/* Linear support vector machines of sparse rows: for each class one function, of it against the
 * rest, that minimises
 *
 *   1/2 |w|^2 + C sum over rows of weight max(0, 1 - y w.x)^2        y = 1 for the class, else -1
 *
 * by dual coordinate descent with shrinking (Hsieh, Chang, Lin, Keerthi, Sundararajan, ICML 2008).
 * The intercept is the weight of a feature that is 1 in each row. LIBLINEAR solves the same as its
 * solver 1; here functions share a walk over the rows, rows have weights, a fit begins where one of
 * another C has ended, and the clock is looked at between passes. The order of rows is a function
 * of the pass alone, and each function's numbers do not depend on the others', so results repeat
 * with any number of threads. */
#ifndef SMALLWORLD_CLASSIFY_SVM_H
#define SMALLWORLD_CLASSIFY_SVM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SVM_ROOM = 16 };

typedef struct svm_rows {
    int count;
    size_t *start;    /* [count + 1] */
    int32_t *feature; /* [start[count] + SVM_ROOM] the last ones any valid feature */
    float *value;     /* likewise */
    int16_t *class;   /* [count] */
    bool *held;       /* [count] those that are left out unless all are fitted */
} svm_rows;

typedef struct svm {
    const svm_rows *rows;
    int64_t features;
    int functions;        /* 1: of class 1 against class 0; else of each class */
    const double *weight; /* of a row by its class, or NULL: 1 */
    int lanes, blocks;    /* functions that share a walk; and how often that many are walked */
    float *w;             /* [blocks][features + 1][lanes] the intercept comes last */
    float *alpha;         /* [blocks][rows][lanes] the dual variables */
} svm;

svm svm_begin(const svm_rows *rows, int64_t features, int functions, const double *weight);
void svm_end(svm *s);

/* Goes on from what the svm holds to the optimum for `cost`, on all rows or on those that are not
 * held, until the violations of optimality differ by at most `tolerance`, or for the passes that
 * begin before `deadline` on clock_seconds, but one. Returns the passes of the function that took
 * most; negative: the time was over first. */
int svm_fit(svm *s, double cost, bool all, double tolerance, double deadline);

/* The margins [functions] of a row of so many features. */
void svm_margins(const svm *s, const int32_t *feature, const float *value, size_t count,
                 double *margin);

/* Copies a function's weights [features]; returns its intercept. */
double svm_weights(const svm *s, int function, float *to);

#endif
