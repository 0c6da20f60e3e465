/* Numbers from text: one decimal number and nothing else. */
#include "support.h"

#include "core/number.h"

static void test_integers(void **state) {
    (void)state;
    static const char *const bad[] = {"",   "-",   "x",   " 1",  "1 ",  "+1",
                                      "1x", "0x1", "1.0", "1e3", "--1", "9223372036854775808"};
    int64_t value = 5;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (number_integer(bad[i], &value)) fail_msg("taken: '%s'", bad[i]);
        assert_int_equal(value, 5);
    }
    assert_true(number_integer("-9223372036854775808", &value));
    assert_true(value == INT64_MIN);
    assert_true(number_integer("0012", &value));
    assert_int_equal(value, 12);
}

static void test_reals(void **state) {
    (void)state;
    static const char *const bad[] = {"",     " 1",    "1 ",     "nan",   "inf", "0x1p3",
                                      "1e9x", "1e999", "-1e999", "1.2.3", "e"};
    double value = 5;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (number_real(bad[i], &value)) fail_msg("taken: '%s'", bad[i]);
        assert_true(value == 5);
    }
    assert_true(number_real("-12.5e-1", &value));
    assert_true(value == -1.25);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers),
        cmocka_unit_test(test_reals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
