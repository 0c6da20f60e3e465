#include "classify/ways.h"

#include "core/memory.h"

#include <math.h>

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
    predictions_join(&of[BY_BOTH].tested, &of[BY_NGRAMS].tested, &partner->tested, classes,
                     w->share, test_class);
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
