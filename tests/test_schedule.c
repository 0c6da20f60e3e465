/* The schedules of the learning rate and of minutes, which are functions of the step. */
#include "support.h"

#include "train/schedule.h"

#include <math.h>

static void assert_lr(const train_options *t, int64_t step, int64_t total, double expected) {
    double lr = schedule_lr(t, step, total);
    if (!(fabs(lr - expected) < 1e-12)) fail_msg("step %d: %.15g", (int)step, lr);
}

static void test_schedule(void **state) {
    (void)state;
    train_options t = {.lr = 0.5, .lr_final = 0.1, .warmup = 10, .schedule = SCHEDULE_LINEAR};
    assert_lr(&t, 0, 110, 0.05);
    assert_lr(&t, 9, 110, 0.5);
    assert_lr(&t, 10, 110, 0.5);
    assert_lr(&t, 60, 110, 0.275);
    assert_lr(&t, 110, 110, 0.05);
    assert_lr(&t, 300, 110, 0.05);
    assert_lr(&t, 60, INT64_MAX, 0.5);
    assert_lr(&t, 5, 8, 0.3);
    t.schedule = SCHEDULE_COSINE;
    assert_lr(&t, 60, 110, 0.275);
    assert_lr(&t, 35, 110, 0.5 * (0.1 + 0.9 * (1 + sqrt(0.5)) / 2));
    t.schedule = SCHEDULE_CONSTANT;
    assert_lr(&t, 60, 110, 0.5);
    t.warmup = 0;
    assert_lr(&t, 0, 110, 0.5);

    t = (train_options){0};
    assert_true(schedule_limit(&t, 10) == INT64_MAX);
    t.epochs = 1.5;
    assert_int_equal(schedule_limit(&t, 10), 15);
    t.steps = 12;
    assert_int_equal(schedule_limit(&t, 10), 12);
    t.steps = 20;
    assert_int_equal(schedule_limit(&t, 10), 15);
    t.epochs = 1.56;
    assert_int_equal(schedule_limit(&t, 10), 16);
    t.epochs = 1e-6;
    assert_int_equal(schedule_limit(&t, 10), 1);
}

static void test_fit(void **state) {
    (void)state;
    const train_options t = {.valid_every = 10, .checkpoint_minutes = 0.5};
    assert_int_equal(schedule_fit(&t, &(schedule_times){.update = 2}, 61), 30);
    assert_int_equal(schedule_fit(&t, &(schedule_times){.update = 2}, -1), 0);
    /* Nine validations within, and one at the end. */
    assert_int_equal(schedule_fit(&t, &(schedule_times){2, 5, 0}, 5 + 90 * 2.5), 90);
    /* A save after each 30 seconds, or 12 updates, and one at the end. */
    assert_int_equal(schedule_fit(&t, &(schedule_times){2, 5, 12}, 5 + 12 + 36 * 3.5), 36);
    const train_options always = {.valid_every = 1, .checkpoint_minutes = 0};
    assert_int_equal(schedule_fit(&always, &(schedule_times){1, 2, 3}, 5 + 6 * 7), 7);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
