#include "classify/predictions.h"

#include "classify/classifier.h"
#include "core/memory.h"
#include "data/classes.h"
#include "probe/calibration.h"

#include <math.h>
#include <stdlib.h>

void predictions_begin(predictions *o, size_t rows, int classes) {
    *o = (predictions){.rows = rows};
    o->probability = mem_alloc(rows * (size_t)classes, sizeof *o->probability);
    o->said = mem_alloc(rows, sizeof *o->said);
}

void predictions_gather(predictions *o, int classes, ranks *r) {
    double *said = mem_alloc(o->rows, sizeof *said);
    for (size_t i = 0; i < o->rows; i++) said[i] = o->said[i];
    ranks_sum(r, said, o->rows);
    ranks_sum(r, o->probability, o->rows * (size_t)classes);
    for (size_t i = 0; i < o->rows; i++) o->said[i] = (int)said[i];
    free(said);
}

void predictions_count(predictions *o, const int16_t *class) {
    o->wrong = 0;
    for (size_t i = 0; i < o->rows; i++) o->wrong += o->said[i] != class[i];
}

void predictions_end(predictions *o) {
    free(o->probability);
    free(o->said);
}

void predictions_take(predictions *o, const double *margin, size_t rows, int classes,
                      bool multinomial, double scale, const int16_t *class) {
    const int functions = classes == 2 ? 1 : classes;
    predictions_begin(o, rows, classes);
    for (size_t i = 0; i < rows; i++) {
        const double *of = margin + i * (size_t)functions;
        margin_probabilities(of, functions, multinomial, scale,
                             o->probability + i * (size_t)classes);
        o->said[i] = margin_class(of, functions);
        o->wrong += o->said[i] != class[i];
    }
}

void predictions_join(predictions *o, const predictions *by_ngrams, const predictions *by_features,
                      int classes, double share, const int16_t *class) {
    predictions_begin(o, by_ngrams->rows, classes);
    for (size_t i = 0; i < o->rows; i++) {
        const size_t at = i * (size_t)classes;
        o->said[i] = classifier_join(classes, by_ngrams->probability + at,
                                     by_features->probability + at, share, o->probability + at);
        o->wrong += o->said[i] != class[i];
    }
}

double predictions_error(const predictions *o) {
    return 100 * (double)o->wrong / (double)o->rows;
}

double predictions_cost(const predictions *o, const int16_t *class, const double *weight) {
    double cost = 0;
    for (size_t i = 0; i < o->rows; i++) {
        if (o->said[i] != class[i]) cost += class_weight(weight, class[i]);
    }
    return cost;
}

double predictions_join_best(predictions *best, const predictions *by_ngrams,
                             const predictions *by_features, int classes, const int16_t *class,
                             const double *weight) {
    enum { STEPS = 8 };
    double chosen = 0, least = INFINITY;
    for (int k = 1; k < STEPS; k++) {
        const double share = (double)k / STEPS;
        predictions o;
        predictions_join(&o, by_ngrams, by_features, classes, share, class);
        const double cost = predictions_cost(&o, class, weight);
        const bool nearer = fabs(share - 0.5) < fabs(chosen - 0.5);
        if (cost < least || (cost == least && nearer)) {
            least = cost;
            chosen = share;
        }
        predictions_end(&o);
    }
    predictions_join(best, by_ngrams, by_features, classes, chosen, class);
    return chosen;
}

double predictions_mcnemar(const predictions *a, const predictions *b, const int16_t *class) {
    int64_t only_a = 0, only_b = 0;
    for (size_t i = 0; i < a->rows; i++) {
        const bool wrong_a = a->said[i] != class[i], wrong_b = b->said[i] != class[i];
        only_a += wrong_a && !wrong_b;
        only_b += wrong_b && !wrong_a;
    }
    const int64_t n = only_a + only_b, least = only_a < only_b ? only_a : only_b;
    double tail = 0;
    for (int64_t k = 0; k <= least; k++) {
        tail += exp(lgamma((double)n + 1) - lgamma((double)k + 1) - lgamma((double)(n - k) + 1) -
                    (double)n * log(2));
    }
    return fmin(1, 2 * tail);
}
