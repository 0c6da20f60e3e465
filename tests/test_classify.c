/* What n-grams read of a text, and how opinions are joined and compared, by known values. */
#include "classify/ngrams.h"
#include "classify/opinions.h"
#include "classify/scores.h"
#include "core/memory.h"
#include "support.h"

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
    const ngrams g = {1, COUNT, bucket, idf, weights, &intercept, 1, 1};
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
}

static opinions opinions_of(size_t rows, double (*of)[2], const int16_t *class) {
    opinions o = {rows, mem_alloc(2 * rows, sizeof(double)), mem_alloc(rows, sizeof(int)), 0};
    for (size_t i = 0; i < rows; i++) {
        for (int k = 0; k < 2; k++) o.probability[2 * i + (size_t)k] = of[i][k];
        o.said[i] = of[i][1] > of[i][0];
        o.wrong += o.said[i] != class[i];
    }
    return o;
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
        opinions one = opinions_of(3, by[0], class), two = opinions_of(3, by[1], class), both;
        near(opinions_join_best(&both, &one, &two, 2, class), cases[c].share);
        assert_int_equal(both.wrong, cases[c].wrong);
        /* The probabilities are those of the share. */
        const double odds = pow(by[0][0][0] / by[0][0][1], 1 - cases[c].share) *
                            pow(by[1][0][0] / by[1][0][1], cases[c].share);
        near(both.probability[0], odds / (1 + odds));
        opinions_end(&one);
        opinions_end(&two);
        opinions_end(&both);
    }
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
        const opinions a = {.rows = ROWS, .said = said[0]}, b = {.rows = ROWS, .said = said[1]};
        near(opinions_mcnemar(&a, &b, class), cases[c].p);
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
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_best_share),
        cmocka_unit_test(test_mcnemar),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
