/* The schedules of the learning rate, rewiring and pruning, which are functions of the step. */
#include "support.h"

#include "train/schedule.h"
#include "train/structure.h"

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

static void test_structure_schedules(void **state) {
    (void)state;
    const train_options t = {
        .prune_density = 0.2, .prune_every = 10, .prune_from = 0.1, .prune_until = 0.6};
    structure_place at = {0, 100, 1};
    static const struct {
        int64_t step;
        double density;
    } expected[] = {
        {0, 1},    {5, 1},   {10, 1}, {25, 0.2 + 0.8 * 0.343}, {35, 0.3}, {50, 0.2 + 0.8 * 0.008},
        {60, 0.2}, {99, 0.2}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        at.step = expected[i].step;
        assert_true(fabs(structure_target_density(&t, &at) - expected[i].density) < 1e-12);
    }
    at = (structure_place){90, INT64_MAX, 1}; /* the last step is not known */
    assert_true(structure_target_density(&t, &at) == 1);
    at = (structure_place){99, 100, 0.5};
    assert_true(structure_target_density(&t, &at) == 0.2);
    train_options late = t; /* whose end falls into the last update */
    late.prune_until = 0.999;
    at = (structure_place){198, 200, 1};
    assert_true(structure_target_density(&late, &at) > 0.2);
    at.step = 199;
    assert_true(structure_target_density(&late, &at) == 0.2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedule),
        cmocka_unit_test(test_fit),
        cmocka_unit_test(test_structure_schedules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
