#include "classify/predictions.h"

#include "classify/classifier.h"
#include "core/memory.h"
#include "data/classes.h"
#include "probe/calibration.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Joins two on the same rows, see classifier_join. */
static void join(predictions *o, const predictions *by_ngrams, const predictions *by_features,
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
        join(&o, by_ngrams, by_features, classes, share, class);
        const double cost = predictions_cost(&o, class, weight);
        const bool nearer = fabs(share - 0.5) < fabs(chosen - 0.5);
        if (cost < least || (cost == least && nearer)) {
            least = cost;
            chosen = share;
        }
        predictions_end(&o);
    }
    join(best, by_ngrams, by_features, classes, chosen, class);
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

/* ------------------------------------------------------------------------------------ the ways */

const char *const way_names[WAYS] = {"n-grams", "features", "tuned", "n-grams and model"};

void ways_choose(ways *w, int classes, const double *weight, const int16_t *valid_class,
                 const int16_t *test_class) {
    way *of = w->of;
    double cost[WAYS];
    w->partner = w->chosen = BY_NGRAMS;
    w->share = 0;
    w->p_value = NAN;
    for (int k = BY_FEATURES; k <= BY_TUNED; k++) {
        if (!of[k].tried) continue;
        cost[k] = predictions_cost(&of[k].valid, valid_class, weight);
        if (w->partner == BY_NGRAMS || cost[k] < cost[w->partner]) w->partner = k;
    }
    if (w->partner == BY_NGRAMS) return;
    const way *partner = &of[w->partner];
    w->share = predictions_join_best(&of[BY_BOTH].valid, &of[BY_NGRAMS].valid, &partner->valid,
                                     classes, valid_class, weight);
    join(&of[BY_BOTH].tested, &of[BY_NGRAMS].tested, &partner->tested, classes, w->share,
         test_class);
    of[BY_BOTH].tried = true;
    cost[BY_NGRAMS] = predictions_cost(&of[BY_NGRAMS].valid, valid_class, weight);
    cost[BY_BOTH] = predictions_cost(&of[BY_BOTH].valid, valid_class, weight);
    for (int k = 1; k < WAYS; k++) {
        if (!of[k].tried || cost[k] > cost[w->chosen]) continue;
        if (k == BY_BOTH || cost[k] < cost[w->chosen]) w->chosen = k;
    }
    if (w->chosen == BY_NGRAMS) return;
    w->p_value = predictions_mcnemar(&of[w->chosen].tested, &of[BY_NGRAMS].tested, test_class);
}

double ways_saved_share(const ways *w) {
    if (w->chosen == BY_NGRAMS) return 0;
    return w->chosen == BY_BOTH ? w->share : 1;
}

size_t *ways_confusion(const ways *w, int classes, const int16_t *test_class) {
    const size_t count = (size_t)classes;
    const predictions *of = &w->of[w->chosen].tested;
    size_t *confusion = mem_alloc(count * count, sizeof *confusion);
    for (size_t i = 0; i < of->rows; i++) {
        confusion[(size_t)test_class[i] * count + (size_t)of->said[i]]++;
    }
    return confusion;
}

void ways_end(ways *w) {
    for (int k = 0; k < WAYS; k++) {
        predictions_end(&w->of[k].valid);
        predictions_end(&w->of[k].tested);
    }
}

/* -------------------------------------------------------------------------------------- scores */

class_score score_class(const size_t *confusion, int classes, int class) {
    const size_t all = (size_t)classes, at = (size_t) class;
    const size_t right = confusion[at * all + at];
    size_t documents = 0, said = 0;
    for (size_t k = 0; k < all; k++) {
        documents += confusion[at * all + k];
        said += confusion[k * all + at];
    }
    class_score s = {documents, NAN, NAN, NAN};
    if (said > 0) s.precision = (double)right / (double)said;
    if (documents == 0) return s;
    s.recall = (double)right / (double)documents;
    s.f1 = 2 * (double)right / (double)(documents + said);
    return s;
}

double score_macro_f1(const size_t *confusion, int classes) {
    double sum = 0;
    int counted = 0;
    for (int k = 0; k < classes; k++) {
        const class_score s = score_class(confusion, classes, k);
        if (s.documents == 0) continue;
        sum += s.f1;
        counted++;
    }
    return sum / counted;
}

int score_mix_ups(const size_t *confusion, int classes, mix_up *list, int most) {
    int count = 0;
    for (int i = 0; i < classes; i++) {
        for (int k = 0; k < classes; k++) {
            const size_t documents = confusion[(size_t)i * (size_t)classes + (size_t)k];
            if (i == k || documents == 0) continue;
            int at = count;
            while (at > 0 && list[at - 1].documents < documents) at--;
            if (at == most) continue;
            if (count < most) count++;
            memmove(list + at + 1, list + at, (size_t)(count - 1 - at) * sizeof *list);
            list[at] = (mix_up){i, k, documents};
        }
    }
    return count;
}
