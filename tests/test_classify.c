/* What n-grams read of a text, and how predictions are joined and compared, by known values. */
#include "classify/ngrams.h"
#include "classify/predictions.h"
#include "classify/svm.h"
#include "core/memory.h"
#include "data/classes.h"
#include "support.h"

#include <linear.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void near(double value, double expected) {
    if (!(fabs(value - expected) <= 1e-6)) fail_msg("%.9g, expected %.9g", value, expected);
}

/* The sum of a text's values, of words or of pieces: of a model that has all features and whose
 * weights are 1 for those and 0 for the others. */
static double sum_of_values(const char *text, bool pieces) {
    enum { COUNT = NGRAM_BUCKETS };
    int32_t *bucket = mem_alloc(COUNT, sizeof *bucket);
    float *idf = mem_alloc(COUNT, sizeof *idf), *weights = mem_alloc(COUNT, sizeof *weights);
    const double intercept = 0;
    for (int32_t i = 0; i < COUNT; i++) {
        bucket[i] = i;
        idf[i] = 1;
        weights[i] = (i >= COUNT / 2) == pieces ? 1 : 0;
    }
    const ngrams g = {1, COUNT, bucket, idf, weights, &intercept, 1, 1, 1};
    ngram_reader *r = ngram_reader_create(&g);
    double margin;
    ngram_reader_apply(r, (const uint8_t *)text, strlen(text), &margin);
    ngram_reader_free(r);
    free(bucket);
    free(idf);
    free(weights);
    return margin;
}

/* Words and pieces have length sqrt(1/2) each; k times weigh 1 + log k. */
static void test_values(void **state) {
    (void)state;
    const double twice = 1 + log(2), half = sqrt(0.5);
    near(sum_of_values("zz", false), half);
    near(sum_of_values("zz", true), half);
    near(sum_of_values("zz ZZ", false), half * (twice + 1) / hypot(twice, 1));
    near(sum_of_values("abc", true), half * 3 / sqrt(3)); /* ab, bc, abc */
    near(sum_of_values("one two three", false), half * 5 / sqrt(5));
    near(sum_of_values("a-b", false), half * 3 / sqrt(3)); /* a, b, and their pair */
    near(sum_of_values("don't", false), half);
    near(sum_of_values("r2d2", false), half);
    near(sum_of_values("\xC3\xA9t\xC3\xA9", false), half);
    near(sum_of_values("Hello hELLO", false), half * (twice + 1) / hypot(twice, 1));
    /* What follows the first 16 KiB is not read: here a second word. */
    char *text = mem_alloc(NGRAM_BYTES + 8, 1);
    memset(text, '.', NGRAM_BYTES);
    memcpy(text, "one", 3);
    memcpy(text + NGRAM_BYTES, " two", 4);
    near(sum_of_values(text, false), half);
    free(text);
}

static predictions predictions_of(size_t rows, double (*of)[2], const int16_t *class) {
    predictions o = {rows, mem_alloc(2 * rows, sizeof(double)), mem_alloc(rows, sizeof(int)), 0};
    for (size_t i = 0; i < rows; i++) {
        for (int k = 0; k < 2; k++) o.probability[2 * i + (size_t)k] = of[i][k];
        o.said[i] = of[i][1] > of[i][0];
        o.wrong += o.said[i] != class[i];
    }
    return o;
}

static double margin_of_text(const ngrams *g, const char *text) {
    ngram_reader *r = ngram_reader_create(g);
    double margin;
    ngram_reader_apply(r, (const uint8_t *)text, strlen(text), &margin);
    ngram_reader_free(r);
    return margin;
}

/* What occurs in two documents counts, and what occurs in one does not. */
static void test_vocabulary(void **state) {
    (void)state;
    enum { ROWS = 10 };
    char *path = path_of("few.tsv"), text[ROWS * 16] = "";
    for (int i = 0; i < ROWS; i++) {
        const char *word = i == 1 || i == 3 ? "qqxx" : i == 5 ? "jjvv" : i % 2 ? "good" : "bad";
        sprintf(text + strlen(text), "%d\t%s\n", i % 2, word);
    }
    write_text(path, text);
    const corpus_options plain = {.html_entities = false};
    error err;
    corpus *c = corpus_read(&path, 1, &plain, &err);
    int16_t class[ROWS];
    bool held[ROWS] = {[8] = true, [9] = true};
    for (int i = 0; i < ROWS; i++) class[i] = (int16_t)(i % 2);
    ngrams g;
    double *valid;
    assert_true(ngrams_fit(&g, c, class, 2, NULL, held, NULL, INFINITY, &valid, NULL, &err));
    /* "good" and "qqxx", with 6 pieces each, are in 2 of the 10 texts, "bad", with 3, in 5. Of the
     * rows that are not held "bad" is in 4 of class 0, and "qqxx" in 2 of class 1, "good" in 1. */
    const double all[2] = {18 + 4 * 4, 18 + 3 * 7};
    const double idf[3] = {log(1 + ROWS / 2.0), log(1 + ROWS / 2.0), log(1 + ROWS / 5.0)};
    const double ratio[3] = {log(2 / all[1] * all[0]), log(3 / all[1] * all[0]),
                             log(5 / all[0] * all[1])};
    int found[3] = {0};
    for (int64_t i = 0; i < g.count; i++) {
        for (int k = 0; k < 3; k++) found[k] += fabs(g.idf[i] - idf[k] * ratio[k]) < 1e-6;
    }
    assert_int_equal(found[0], 1 + 6);
    assert_int_equal(found[1], 1 + 6);
    assert_int_equal(found[2], 1 + 3);
    assert_int_equal(g.count, 18);
    const double nothing = margin_of_text(&g, "");
    near(margin_of_text(&g, "jjvv"), nothing);
    assert_true(margin_of_text(&g, "qqxx") > nothing + 0.01);
    assert_true(margin_of_text(&g, "good") > margin_of_text(&g, "bad") + 0.1);
    free(valid);
    ngrams_free(&g);

    /* Half as many documents of a class with twice the weight: their prior is that of equals. */
    class[1] = class[3] = class[5] = -1;
    double weight[2];
    classes_balance(class, ROWS, 2, weight);
    near(weight[0], 0.7);
    near(weight[1], 7.0 / 4);
    double neutral[2];
    for (int k = 0; k < 2; k++) {
        assert_true(ngrams_fit(&g, c, class, 2, k ? weight : NULL, held, NULL, INFINITY, &valid,
                               NULL, &err));
        neutral[k] = margin_of_text(&g, "");
        free(valid);
        ngrams_free(&g);
    }
    assert_true(neutral[1] > neutral[0] + 0.1);
    /* A class whose documents are all held out: no function speaks for it. */
    for (int i = 0; i < ROWS; i++) held[i] = (class[i] = (int16_t)(i % 3)) == 2;
    assert_true(ngrams_fit(&g, c, class, 3, NULL, held, NULL, INFINITY, &valid, NULL, &err));
    for (int row = 0; row < 3; row++) assert_true(valid[row * 3 + 2] < 0);
    free(valid);
    ngrams_free(&g);
    corpus_free(c);
}

/* A machine's objective: 1/2 |w|^2 + C sum weight max(0, 1 - y w.x)^2. */
static double objective(const svm *s, double cost, int function) {
    const svm_rows *r = s->rows;
    float *w = mem_alloc((size_t)s->features, sizeof *w);
    const double intercept = svm_weights(s, function, w);
    double sum = intercept * intercept / 2;
    for (int64_t j = 0; j < s->features; j++) sum += (double)w[j] * w[j] / 2;
    for (int i = 0; i < r->count; i++) {
        double margin[MOST_CLASSES];
        svm_margins(s, r->feature + r->start[i], r->value + r->start[i],
                    r->start[i + 1] - r->start[i], margin);
        const bool positive = r->class[i] == (s->functions == 1 ? 1 : function);
        const double lacks = fmax(0, 1 - (positive ? 1 : -1) * margin[function]);
        if (!r->held[i]) sum += cost * class_weight(s->weight, r->class[i]) * lacks * lacks;
    }
    free(w);
    return sum;
}

/* LIBLINEAR's solver of the same, of one weight for each side. */
static double reference(const svm_rows *r, int features, double cost, int positive, double weight) {
    struct feature_node *nodes =
        mem_alloc(r->start[r->count] + 2 * (size_t)r->count, sizeof *nodes);
    struct feature_node **x = mem_alloc((size_t)r->count, sizeof *x), *to = nodes;
    double *y = mem_alloc((size_t)r->count, sizeof *y), sides[] = {1, weight};
    int names[] = {-1, 1};
    struct problem all = {.n = features + 1, .y = y, .x = x, .bias = 1};
    for (int i = 0; i < r->count; i++) {
        if (r->held[i]) continue;
        y[all.l] = r->class[i] == positive ? 1 : -1;
        x[all.l++] = to;
        for (size_t j = r->start[i]; j < r->start[i + 1]; j++) {
            *to++ = (struct feature_node){r->feature[j] + 1, r->value[j]};
        }
        *to++ = (struct feature_node){features + 1, 1};
        *to++ = (struct feature_node){-1, 0};
    }
    const struct parameter how = {.solver_type = L2R_L2LOSS_SVC,
                                  .eps = 1e-6,
                                  .C = cost,
                                  .nr_weight = 2,
                                  .weight_label = names,
                                  .weight = sides};
    struct model *fitted = train(&all, &how);
    const int side = fitted->label[0];
    double sum = 0;
    for (int j = 0; j <= features; j++) sum += fitted->w[j] * fitted->w[j] / 2;
    for (int i = 0, row = 0; i < r->count; i++) {
        double margin = fitted->w[features];
        if (r->held[i]) continue;
        for (size_t j = r->start[i]; j < r->start[i + 1]; j++) {
            margin += fitted->w[r->feature[j]] * r->value[j];
        }
        const double lacks = fmax(0, 1 - y[row] * side * margin);
        sum += cost * (y[row] > 0 ? weight : 1) * lacks * lacks;
        row++;
    }
    free_and_destroy_model(&fitted);
    free(nodes);
    free(x);
    free(y);
    return sum;
}

static void say_nothing(const char *text) {
    (void)text;
}

/* The optimum is LIBLINEAR's, for one function and for more than share a walk, from scratch and
 * from another C; rows weigh by their own class; equal calls give equal bits. */
static void test_svm(void **state) {
    (void)state;
    enum { ROWS = 300, FEATURES = 40, EACH = 6 };
    static size_t start[ROWS + 1];
    static int32_t feature[ROWS * EACH + SVM_ROOM];
    static float value[ROWS * EACH];
    static int16_t class[ROWS];
    static bool held[ROWS];
    static const int functions[] = {1, 3, 19};
    set_print_string_function(say_nothing);
    random_restart(21);
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < EACH; k++) {
            feature[i * EACH + k] = (int32_t)random_below(FEATURES / EACH) * EACH + k;
            value[i * EACH + k] = (float)random_below(1000) / 1000;
        }
        start[i + 1] = (size_t)(i + 1) * EACH;
        held[i] = i % 7 == 3;
    }
    for (int kind = 0; kind < 6; kind++) {
        const int count = functions[kind / 2], classes = count == 1 ? 2 : count;
        double weight[19];
        for (int k = 0; k < classes; k++) weight[k] = kind % 2 ? 0.5 + k % 3 : 1;
        for (int i = 0; i < ROWS; i++) class[i] = (int16_t)(feature[i * EACH] / 3 % classes);
        const svm_rows rows = {ROWS, start, feature, value, class, held};
        svm s = svm_begin(&rows, FEATURES, count, weight), again;
        again = svm_begin(&rows, FEATURES, count, weight);
        assert_true(svm_fit(&s, 1, false, 1e-4, INFINITY) > 1);
        assert_true(svm_fit(&s, 5, false, 1e-4, INFINITY) > 1);
        assert_true(svm_fit(&again, 5, false, 1e-4, INFINITY) > 1);
        for (int f = 0; f < count; f++) {
            const double found = objective(&s, 5, f);
            assert_true(fabs(objective(&again, 5, f) / found - 1) < 1e-4);
            if (kind % 2 == 0 || count == 1) { /* one weight for each side */
                const double expected =
                    reference(&rows, FEATURES, 5 * weight[0], count == 1 ? 1 : f,
                              count == 1 ? weight[1] / weight[0] : 1);
                if (fabs(found / expected - 1) > 1e-4) fail_msg("%g, expected %g", found, expected);
            } else { /* less than with all rows of equal weight, by the measure that has weights */
                svm plain = svm_begin(&rows, FEATURES, count, NULL);
                svm_fit(&plain, 5, false, 1e-4, INFINITY);
                plain.weight = weight;
                assert_true(found < objective(&plain, 5, f));
                svm_end(&plain);
            }
        }
        svm same = svm_begin(&rows, FEATURES, count, weight);
        svm_fit(&same, 5, false, 1e-4, INFINITY);
        const size_t bytes = (size_t)(s.blocks * s.lanes) * (FEATURES + 1) * sizeof *s.w;
        assert_memory_equal(same.w, again.w, bytes);
        assert_true(svm_fit(&same, 5, true, 1e-9, 0) == -1); /* without time one pass */
        svm_end(&same);
        svm_end(&s);
        svm_end(&again);
    }
}

/* A text whose features all classes have alike says nothing. */
static void test_features_of_all(void **state) {
    (void)state;
    enum { ROWS = 4 };
    char *path = path_of("alike.tsv");
    write_text(path, "0\tsame\n1\tsame\n0\tsame\n1\tsame\n");
    const corpus_options plain = {.html_entities = false};
    error err;
    corpus *c = corpus_read(&path, 1, &plain, &err);
    int16_t class[ROWS];
    bool held[ROWS] = {[2] = true, [3] = true};
    for (int i = 0; i < ROWS; i++) class[i] = (int16_t)(i % 2);
    ngrams g;
    double *valid;
    assert_true(ngrams_fit(&g, c, class, 2, NULL, held, NULL, INFINITY, &valid, NULL, &err));
    near(margin_of_text(&g, "same"), margin_of_text(&g, ""));
    near(g.cost, 0.03); /* of equal errors the smallest */
    assert_true(isfinite(margin_of_text(&g, "same")));
    free(valid);
    ngrams_free(&g);
    corpus_free(c);
}

/* The search begins with C = 0.1, and ends there, with this fit, without time. */
static void test_many_classes(void **state) {
    (void)state;
    enum { CLASSES = 6, ROWS = 240 };
    static const char *const words[CLASSES] = {"aqua", "bell", "corn", "dusk", "elms", "figs"};
    char *path = path_of("many.tsv"), *text = mem_alloc(ROWS, 40), *to = text;
    int16_t class[ROWS];
    bool held[ROWS];
    for (int i = 0; i < ROWS; i++) {
        const int of = i % CLASSES, said = i % 5 == 2 ? i * 7 % CLASSES : of;
        class[i] = (int16_t)of;
        held[i] = i % 4 == 1;
        to +=
            sprintf(to, "%d\t%s x%dy\n", of, words[i % 7 == 3 ? (of + 1) % CLASSES : said], i / 2);
    }
    write_text(path, text);
    const corpus_options plain = {.html_entities = false};
    error err;
    corpus *c = corpus_read(&path, 1, &plain, &err);
    assert_int_equal(c->count, ROWS);
    double *valid, cost[2];
    for (int k = 0; k < 2; k++) {
        ngrams g;
        assert_true(ngrams_fit(&g, c, class, CLASSES, NULL, held, NULL, k ? INFINITY : 0, &valid,
                               NULL, &err));
        cost[k] = g.cost;
        /* Only a fit on all rows says something else of those held out than the search's fit. */
        double apart = 0, margin[CLASSES], *of = valid;
        ngram_reader *r = ngram_reader_create(&g);
        for (int i = 0; i < ROWS; i++) {
            size_t length;
            const uint8_t *said = corpus_text(c, (size_t)i, &length);
            if (!held[i]) continue;
            ngram_reader_apply(r, said, length, margin);
            for (int f = 0; f < CLASSES; f++) apart = fmax(apart, fabs(margin[f] - *of++));
        }
        ngram_reader_free(r);
        assert_true(k ? apart > 0.1 : apart < 1e-5);
        free(valid);
        ngrams_free(&g);
    }
    near(cost[0], 0.1);
    assert_true(cost[1] >= 0.03);
    corpus_free(c);
    free(text);
}

/* The log odds of the right class are joined by (1 - f) of the n-grams' and f of the features'. */
static void test_best_share(void **state) {
    (void)state;
    static const struct {
        double ngrams[3], features[3]; /* the probability of the right class */
        double share;
        size_t wrong;
    } cases[] = {
        /* Equals: the share nearest to a half. */
        {{0.9, 0.9, 0.9}, {0.8, 0.8, 0.8}, 0.5, 0},
        {{0.9, 0.2, 0.9}, {0.8, 0.1, 0.8}, 0.5, 1},
        {{0.6, 0.6, 0.99}, {0.99, 0.99, 0.4}, 0.5, 0},
        /* 0.405 (1 - f) > 2.197 f holds for f = 1/8 alone. */
        {{0.6, 0.6, 0.6}, {0.1, 0.1, 0.6}, 0.125, 0},
        /* 2.197 (1 - f) < 0.405 f from f = 0.844 on: 7/8. */
        {{0.1, 0.1, 0.6}, {0.6, 0.6, 0.6}, 0.875, 0},
        /* 0.847 (1 - f) > 1.386 f below f = 0.379: 3/8 is nearer than 1/8 and 1/4. */
        {{0.7, 0.7, 0.7}, {0.2, 0.7, 0.7}, 0.375, 0},
    };
    static const int16_t class[3] = {0, 1, 0};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        double by[2][3][2];
        for (int i = 0; i < 3; i++) {
            by[0][i][class[i]] = cases[c].ngrams[i];
            by[1][i][class[i]] = cases[c].features[i];
            for (int w = 0; w < 2; w++) by[w][i][1 - class[i]] = 1 - by[w][i][class[i]];
        }
        predictions one = predictions_of(3, by[0], class), two = predictions_of(3, by[1], class),
                    both;
        near(predictions_join_best(&both, &one, &two, 2, class, NULL), cases[c].share);
        assert_int_equal(both.wrong, cases[c].wrong);
        /* The probabilities are those of the share. */
        const double odds = pow(by[0][0][0] / by[0][0][1], 1 - cases[c].share) *
                            pow(by[1][0][0] / by[1][0][1], cases[c].share);
        near(both.probability[0], odds / (1 + odds));
        predictions_end(&one);
        predictions_end(&two);
        predictions_end(&both);
    }
}

/* A way that says the right class of each document, but of those in `wrong` ("0110"), each time as
 * sure. */
static void say(way *w, const char *wrong, double sure, const int16_t *class) {
    for (int k = 0; k < 2; k++) {
        double of[4][2];
        for (int i = 0; i < 4; i++) {
            const int said = wrong[i] == '1' ? 1 - class[i] : class[i];
            of[i][said] = sure;
            of[i][1 - said] = 1 - sure;
        }
        *(k ? &w->tested : &w->valid) = predictions_of(4, of, class);
    }
    w->tried = true;
}

/* The way that errs least on what was held out is saved, by its own share of the model. */
static void test_choice(void **state) {
    (void)state;
    static const int16_t class[4] = {0, 1, 1, 1};
    static const struct {
        const char *ngrams, *features, *tuned; /* NULL: not tried */
        double sure;                           /* of n-grams; the others' is .7 */
        int partner, chosen;
        double share;
        double weight[2]; /* of the classes; 0: none are given */
    } cases[] = {
        {"1100", NULL, NULL, 0.7, BY_NGRAMS, BY_NGRAMS, 0, {0}},
        {"1100", "0100", NULL, 0.9999, BY_FEATURES, BY_FEATURES, 1, {0}},
        {"1100", "0100", "0000", 0.9999, BY_TUNED, BY_TUNED, 1, {0}},
        {"1100", "0000", "0000", 0.9999, BY_FEATURES, BY_FEATURES, 1, {0}},
        {"0000", "0100", "1100", 0.7, BY_FEATURES, BY_BOTH, 0.375, {0}}, /* of equals the join */
        {"1000", "1001", NULL, 0.7, BY_FEATURES, BY_BOTH, 0.375, {0}},
        {"1111", "1000", "0110", 0.9999, BY_FEATURES, BY_FEATURES, 1, {0}},
        {"1111", "1000", "0110", 0.9999, BY_TUNED, BY_TUNED, 1, {3, 1}},
        {"0110", "1000", NULL, 0.99, BY_FEATURES, BY_BOTH, 0.5, {3, 1}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ways w = {.chosen = WAYS, .share = 0.5};
        say(&w.of[BY_NGRAMS], cases[i].ngrams, cases[i].sure, class);
        if (cases[i].features) say(&w.of[BY_FEATURES], cases[i].features, 0.7, class);
        if (cases[i].tuned) say(&w.of[BY_TUNED], cases[i].tuned, 0.7, class);
        /* n-grams, so sure of what they get wrong, spoil each share of theirs. */
        ways_choose(&w, 2, cases[i].weight[0] > 0 ? cases[i].weight : NULL, class, class);
        assert_int_equal(w.partner, cases[i].partner);
        assert_int_equal(w.of[BY_BOTH].tried, cases[i].partner != BY_NGRAMS);
        assert_int_equal(w.chosen, cases[i].chosen);
        near(ways_saved_share(&w), cases[i].share);
        assert_int_equal(isnan(w.p_value) != 0, cases[i].chosen == BY_NGRAMS);
        size_t *confusion = ways_confusion(&w, 2, class);
        const char *wrong = w.chosen == BY_FEATURES ? cases[i].features
                            : w.chosen == BY_TUNED  ? cases[i].tuned
                                                    : cases[i].ngrams;
        assert_int_equal(confusion[1], wrong[0] == '1');
        assert_int_equal(confusion[2], (wrong[1] == '1') + (wrong[2] == '1') + (wrong[3] == '1'));
        assert_int_equal(confusion[0] + confusion[1], 1);
        free(confusion);
        ways_end(&w);
    }
    /* Joined they err on nothing: each is sure where the other is not. */
    double ngrams[4][2] = {{0.99, 0.01}, {0.01, 0.99}, {0.6, 0.4}, {0.01, 0.99}};
    double features[4][2] = {{0.4, 0.6}, {0.01, 0.99}, {0.01, 0.99}, {0.01, 0.99}};
    ways w = {.chosen = WAYS};
    for (int k = 0; k < 2; k++) {
        *(k ? &w.of[BY_NGRAMS].tested : &w.of[BY_NGRAMS].valid) = predictions_of(4, ngrams, class);
        *(k ? &w.of[BY_TUNED].tested : &w.of[BY_TUNED].valid) = predictions_of(4, features, class);
    }
    w.of[BY_NGRAMS].tried = w.of[BY_TUNED].tried = true;
    ways_choose(&w, 2, NULL, class, class);
    assert_int_equal(w.chosen, BY_BOTH);
    near(ways_saved_share(&w), 0.5);
    near(w.p_value, 1); /* one document of four */
    ways_end(&w);

    /* The share is chosen on what was held out, where 1/8 alone is right, and not on the tests. */
    double sure[4][2] = {{0.6, 0.4}, {0.4, 0.6}, {0.4, 0.6}, {0.4, 0.6}};
    double wrong[4][2] = {{0.1, 0.9}, {0.9, 0.1}, {0.9, 0.1}, {0.9, 0.1}};
    w = (ways){.chosen = WAYS};
    w.of[BY_NGRAMS] =
        (way){true, predictions_of(4, sure, class), predictions_of(4, wrong, class), 0};
    w.of[BY_TUNED] =
        (way){true, predictions_of(4, wrong, class), predictions_of(4, sure, class), 0};
    ways_choose(&w, 2, NULL, class, class);
    near(w.share, 0.125);
    assert_int_equal(w.of[BY_BOTH].valid.wrong, 0);
    assert_int_equal(w.of[BY_BOTH].tested.wrong, 4);
    ways_end(&w);
}

/* Exact binomial tails: of n documents on which one alone errs, `least` are the fewer side's. */
static void test_mcnemar(void **state) {
    (void)state;
    static const struct {
        int only_a, only_b;
        double p;
    } cases[] = {
        {2, 8, 2 * 56.0 / 1024}, {8, 2, 2 * 56.0 / 1024}, {0, 5, 2.0 / 32}, {3, 3, 1}, {0, 0, 1},
        {1, 6, 2 * 8.0 / 128}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        enum { ROWS = 20 };
        int16_t class[ROWS] = {0};
        int said[2][ROWS] = {{0}};
        said[0][18] = said[1][18] = 1; /* both err: no evidence */
        for (int i = 0; i < cases[c].only_a; i++) said[0][i] = 1;
        for (int i = 0; i < cases[c].only_b; i++) said[1][10 + i] = 1;
        const predictions a = {.rows = ROWS, .said = said[0]}, b = {.rows = ROWS, .said = said[1]};
        near(predictions_mcnemar(&a, &b, class), cases[c].p);
    }
}

/* By hand: the first class is said too often, the third has no documents, nothing is said to be of
 * the fourth. */
static void test_scores(void **state) {
    (void)state;
    static const size_t confusion[16] = {6,      2, 0, 0, /**/ 3, 9, 0, 0,
                                         /**/ 0, 0, 0, 0, /**/ 3, 0, 1, 0};
    const class_score first = score_class(confusion, 4, 0), third = score_class(confusion, 4, 2);
    const class_score fourth = score_class(confusion, 4, 3);
    assert_int_equal(first.documents, 8);
    assert_true(first.precision == 0.5 && first.recall == 0.75 && fabs(first.f1 - 0.6) < 1e-15);
    assert_int_equal(third.documents, 0);
    assert_true(third.precision == 0 && isnan(third.recall) && isnan(third.f1));
    assert_int_equal(fourth.documents, 4);
    assert_true(isnan(fourth.precision) && fourth.recall == 0 && fourth.f1 == 0);
    const double second = 2 * 9.0 / (12 + 11);
    assert_true(fabs(score_macro_f1(confusion, 4) - (0.6 + second) / 3) < 1e-15);
    mix_up list[3];
    assert_int_equal(score_mix_ups(confusion, 4, list, 3), 3);
    assert_true(list[0].class == 1 && list[0].said == 0 && list[0].documents == 3);
    assert_true(list[1].class == 3 && list[1].said == 0 && list[1].documents == 3);
    assert_true(list[2].class == 0 && list[2].said == 1 && list[2].documents == 2);
    mix_up all[16];
    assert_int_equal(score_mix_ups(confusion, 4, all, 16), 4);
    assert_true(all[3].class == 3 && all[3].said == 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),          cmocka_unit_test(test_best_share),
        cmocka_unit_test(test_choice),          cmocka_unit_test(test_vocabulary),
        cmocka_unit_test(test_features_of_all), cmocka_unit_test(test_svm),
        cmocka_unit_test(test_many_classes),    cmocka_unit_test(test_mcnemar),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
