/* Drawing a byte: what temperature, top_k and top_p leave. The rest of generating is cli.py's. */
#include "support.h"

#include "train/generate.h"

#include <math.h>
#include <string.h>

static const generate_options all = {.temperature = 1, .top_p = 1};

/* 'a' 0.5, 'b' 0.3, 'c' 0.2; other bytes as good as never. */
static void set_logits(double logits[VOCABULARY]) {
    for (int v = 0; v < VOCABULARY; v++) logits[v] = -1000;
    logits['a'] = log(0.5);
    logits['b'] = log(0.3);
    logits['c'] = log(0.2);
}

/* How often each byte comes of 1,000 numbers spread over [0, 1). */
static void count_draws(generate_options how, int counts[VOCABULARY]) {
    double logits[VOCABULARY];
    set_logits(logits);
    memset(counts, 0, VOCABULARY * sizeof *counts);
    for (int i = 0; i < 1000; i++) counts[generate_draw(logits, &how, (i + 0.5) / 1000)]++;
}

static void expect(generate_options how, int a, int b, int c) {
    int counts[VOCABULARY];
    count_draws(how, counts);
    assert_in_range(counts['a'], a - 1, a + 1);
    assert_in_range(counts['b'] + 1, b, b + 2);
    assert_in_range(counts['c'] + 1, c, c + 2);
    assert_int_equal(counts['a'] + counts['b'] + counts['c'], 1000);
}

static void test_temperature(void **state) {
    (void)state;
    generate_options how = all;
    expect(how, 500, 300, 200);
    how.temperature = 0.5; /* squares the probabilities: 25, 9, 4 of 38 */
    expect(how, 658, 237, 105);
    how.temperature = 0;
    expect(how, 1000, 0, 0);
}

static void test_top_k(void **state) {
    (void)state;
    generate_options how = all;
    how.top_k = 2;
    expect(how, 625, 375, 0);
    how.top_k = 1;
    expect(how, 1000, 0, 0);
    how.top_k = VOCABULARY;
    expect(how, 500, 300, 200);
}

static void test_top_p(void **state) {
    (void)state;
    generate_options how = all;
    how.top_p = 0.49; /* always one */
    expect(how, 1000, 0, 0);
    how.top_p = 0.51;
    expect(how, 625, 375, 0);
    how.top_p = 0.81;
    expect(how, 500, 300, 200);
    how.top_p = 0.7; /* of the two that top_k leaves, 'a' has 0.625 */
    how.top_k = 2;
    expect(how, 625, 375, 0);
    how.top_p = 0.6;
    expect(how, 1000, 0, 0);
}

static void test_ties(void **state) {
    (void)state;
    double logits[VOCABULARY] = {0};
    generate_options how = all;
    how.top_k = 3;
    assert_int_equal(generate_draw(logits, &how, 0.0), 0);
    assert_int_equal(generate_draw(logits, &how, 0.9999), 2);
    how.temperature = 0;
    assert_int_equal(generate_draw(logits, &how, 0.5), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_temperature),
        cmocka_unit_test(test_top_k),
        cmocka_unit_test(test_top_p),
        cmocka_unit_test(test_ties),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
