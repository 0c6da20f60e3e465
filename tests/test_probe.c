/* The probe as a whole: its split, its choice of C, its predictions, and what it refuses. */
#include "problems.h"

#include "core/memory.h"
#include "core/npy.h"
#include "data/classes.h"
#include "probe/calibration.h"
#include "probe/origin.h"
#include "probe/probe.h"
#include "probe/saved.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static backend *be;

/* ---------------------------------------------------------------------------------------- split */

static void test_split(void **state) {
    (void)state;
    enum { ROWS = 1000 };
    int16_t class[ROWS];
    uint64_t group[ROWS];
    bool held[ROWS], again[ROWS];
    int of_class[4] = {0}, held_of[4] = {0}, moved = 0;
    random_restart(60);
    for (int i = 0; i < ROWS; i++) {
        uint64_t draw = random_below(10);
        class[i] = draw == 0 ? -1 : draw < 4 ? 1 : draw < 5 ? 2 : 0;
        group[i] = (uint64_t)(ROWS - i) * 0x9E3779B97F4A7C15;
        of_class[class[i] + 1]++;
    }
    assert_int_equal(split_by_group(class, group, ROWS, 3, 7, held), -1);
    for (int i = 0; i < ROWS; i++) held_of[class[i] + 1] += held[i];
    assert_int_equal(held_of[0], 0);
    for (int k = 1; k < 4; k++) assert_int_equal(held_of[k], (of_class[k] + 2) / 5);
    assert_int_equal(split_by_group(class, group, ROWS, 3, 7, again), -1);
    assert_memory_equal(held, again, sizeof held);
    assert_int_equal(split_by_group(class, group, ROWS, 3, 8, again), -1);
    for (int i = 0; i < ROWS; i++) moved += held[i] != again[i];
    assert_in_range(moved, ROWS / 5, ROWS / 2);
}

/* Rows of equal texts are on one side, also where their classes differ. */
static void test_split_of_repeats(void **state) {
    (void)state;
    enum { ROWS = 900, TEXTS = 300, CLASSES = 2 };
    int16_t class[ROWS];
    uint64_t group[ROWS];
    bool held[ROWS], side[TEXTS];
    int count = 0;
    random_restart(61);
    for (int i = 0; i < ROWS; i++) {
        group[i] = i < TEXTS ? (uint64_t)i : random_below(TEXTS);
        class[i] = (int16_t)(random_below(8) ? group[i] % CLASSES : random_below(CLASSES));
    }
    assert_int_equal(split_by_group(class, group, ROWS, CLASSES, 1, held), -1);
    for (int i = 0; i < TEXTS; i++) side[i] = held[i];
    for (int i = 0; i < ROWS; i++) {
        assert_int_equal(held[i], side[group[i]]);
        count += held[i];
    }
    assert_in_range(count, ROWS / 5, ROWS / 4);
}

/* A text that stands for many rows is held out only where there are too few others. */
static void test_split_of_a_common_text(void **state) {
    (void)state;
    enum { ROWS = 300, COMMON = 100, SEEDS = 20 };
    int16_t class[ROWS] = {0};
    uint64_t group[ROWS], thrice[ROWS];
    bool held[ROWS];
    int moved = 0;
    for (int i = 0; i < ROWS; i++) group[i] = i < COMMON ? 7 : (uint64_t)(1000 + i);
    for (int i = 0; i < ROWS; i++) thrice[i] = (uint64_t)(i / COMMON);
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        int count = 0;
        assert_int_equal(split_by_group(class, group, ROWS, 1, seed, held), -1);
        assert_false(held[0]);
        for (int i = 0; i < ROWS; i++) count += held[i];
        assert_int_equal(count, ROWS / 5);
        assert_int_equal(split_by_group(class, thrice, ROWS, 1, seed, held), -1);
        assert_int_equal(held[0] + held[COMMON] + held[2 * COMMON], 1);
        moved += held[0];
    }
    assert_in_range(moved, 1, SEEDS - 1);
}

static void test_split_of_few(void **state) {
    (void)state;
    static const uint64_t each[5] = {0, 1, 2, 3, 4}, two[5] = {0, 1, 1, 1, 0};
    bool held[5];
    assert_int_equal(split_by_group((int16_t[]){1, 0, -1, 0, 1}, each, 5, 2, 0, held), -1);
    assert_int_equal(held[0] + held[4], 1);
    assert_int_equal(held[1] + held[3], 1);
    assert_false(held[2]);
    assert_int_equal(split_by_group((int16_t[]){1, 0, -1, 1, 1}, each, 5, 2, 0, held), 0);
    assert_int_equal(split_by_group((int16_t[]){-1, 0, -1, 0, -1}, each, 5, 2, 0, held), 1);
    assert_int_equal(split_by_group((int16_t[]){1, 0, 0, 0, 1}, two, 5, 2, 0, held), 0);
}

/* ------------------------------------------------------------------------------------- protocol */

static probe_options default_options(void) {
    return (probe_options){.train = path_of("train"), .test = path_of("test")};
}

static probe_result run_probe(const probe_options *how) {
    probe_result result;
    error err;
    if (!probe_run(be, how, &result, &err)) fail_msg("%s", err.text);
    probe_result_free(&result);
    return result;
}

static void write_three(problem *train, problem *valid, problem *test) {
    *train = make_problem(200, 12, 1, 0, 70);
    /* The same weights; the first rows are the same too. */
    problem rest = make_problem(400, 12, 1, 0, 70);
    *valid = make_problem(100, 12, 1, 0, 71);
    *test = make_problem(150, 12, 1, 0, 72);
    memcpy(valid->x, rest.x + 200 * 12, 100 * 12 * sizeof *rest.x);
    memcpy(valid->label, rest.label + 200, 100 * sizeof *rest.label);
    memcpy(test->x, rest.x + 250 * 12, 150 * 12 * sizeof *rest.x);
    memcpy(test->label, rest.label + 250, 150 * sizeof *rest.label);
    free_problem(&rest);
    write_problem("train", train);
    write_problem("valid", valid);
    write_problem("test", test);
}

/* The test fits all costs itself and counts errors in double. The probe must choose the
 * smallest cost with the fewest errors. */
static void test_chooses_the_smallest_best_cost(void **state) {
    (void)state;
    problem train, valid, test;
    write_three(&train, &valid, &test);
    probe_options how = default_options();
    how.valid = path_of("valid");
    probe_result r = run_probe(&how);
    fit_report reports[PROBE_COSTS];
    double *weights = fit_all(be, &train, reports);
    int best = -1, fewest = 101, test_wrong = 0;
    for (int k = 0; k < PROBE_COSTS; k++) {
        int wrong = 0;
        for (size_t i = 0; i < valid.rows; i++) {
            wrong += (margin_of(&valid, weights + k * 13, i) > 0) != valid.label[i];
        }
        if (wrong >= fewest) continue;
        fewest = wrong;
        best = k;
    }
    size_t nonzero = 0;
    for (size_t i = 0; i < test.rows; i++) {
        test_wrong += (margin_of(&test, weights + best * 13, i) > 0) != test.label[i];
    }
    for (int u = 0; u < 12; u++) nonzero += weights[best * 13 + u] != 0;
    assert_true(r.cost == problem_costs[best]);
    assert_true(fabs(r.valid_error - fewest) < 1e-9);
    assert_true(fabs(r.error - 100 * test_wrong / 150.0) < 1e-9);
    assert_int_equal(r.nonzero, nonzero);
    assert_int_equal(r.train_rows, 200);
    assert_int_equal(r.valid_rows, 100);
    assert_int_equal(r.test_rows, 150);
    free(weights);
    free_problem(&train);
    free_problem(&valid);
    free_problem(&test);
}

/* The classes are far apart, so no C makes errors, and the smallest is chosen. */
static void test_ties_go_to_the_smallest_cost(void **state) {
    (void)state;
    problem p = make_problem(100, 3, 1, 0, 80);
    for (size_t i = 0; i < p.rows; i++) {
        p.label[i] = (int32_t)(i % 2) * 5 + 2; /* labels need not be 0 and 1 */
        p.x[i * 3 + 1] = i % 2 ? 30 : -30;
    }
    write_problem("train", &p);
    write_problem("test", &p);
    probe_options how = default_options();
    how.out = path_of("out");
    probe_result r = run_probe(&how);
    assert_true(r.cost == 0x1p-8 && r.error == 0 && r.valid_error == 0);
    assert_int_equal(r.top_count, 3);
    assert_int_equal(r.top_units[0], 1);
    assert_int_equal(r.valid_rows, 20);
    npy said;
    error err;
    assert_true(npy_open(&said, path_of("out.predictions.npy"), &err));
    assert_string_equal(said.type, "<i4");
    assert_int_equal(said.rows, 100);
    assert_memory_equal(said.data, p.label, 100 * sizeof *p.label);
    npy_close(&said);
    free_problem(&p);
}

/* Writes a problem's features beside as many zeros, as two poolings' features: the problem's as
 * those of the mean or of the last state. */
static void write_two_pools(const char *prefix, const problem *p, bool mean) {
    problem both = make_problem(p->rows, 2 * p->units, 1, 0, 0);
    const origin made = {.known = true, .pools = {2, {POOL_MEAN, POOL_LAST}}, .model = "m"};
    error err;
    for (size_t i = 0; i < p->rows; i++) {
        float *row = both.x + i * 2 * p->units;
        memset(row, 0, 2 * p->units * sizeof *row);
        memcpy(row + (mean ? 0 : p->units), p->x + i * p->units, p->units * sizeof *row);
        both.label[i] = p->label[i];
    }
    write_problem(prefix, &both);
    if (!origin_write(&made, path_of(prefix), &err)) fail_msg("%s", err.text);
    free_problem(&both);
}

/* Of two poolings, one of which says nothing, the probe takes the other, as if it stood alone. */
static void test_chooses_the_pooling(void **state) {
    (void)state;
    error err;
    for (int mean = 0; mean < 2; mean++) {
        problem train, valid, test;
        write_three(&train, &valid, &test);
        probe_options how = default_options();
        how.valid = path_of("valid");
        const probe_result alone = run_probe(&how);
        write_two_pools("train", &train, mean);
        write_two_pools("valid", &valid, mean);
        write_two_pools("test", &test, mean);
        how.out = path_of("out");
        const probe_result r = run_probe(&how);
        assert_int_equal(r.choices, 3);
        assert_int_equal(r.pools.count, 1);
        assert_int_equal(r.pools.kinds[0], mean ? POOL_MEAN : POOL_LAST);
        assert_true(r.cost == alone.cost && r.error == alone.error);
        assert_true(r.valid_error == alone.valid_error && r.choice_error[!mean] == r.valid_error);
        assert_true(r.choice_error[mean] > 30); /* nearly a coin's */
        assert_true(fabs(r.objective / alone.objective - 1) < 2e-5);
        npy weights;
        assert_true(npy_open(&weights, path_of("out.weights.npy"), &err));
        assert_int_equal(weights.rows, 25);
        for (int u = 0; u < 12; u++) {
            assert_true(((const double *)weights.data)[(mean ? 12 : 0) + u] == 0);
        }
        npy_close(&weights);
        free_problem(&train);
        free_problem(&valid);
        free_problem(&test);
    }
    for (int i = 0; i < 3; i++) {
        if (!origin_remove(path_of((const char *[]){"train", "valid", "test"}[i]), &err)) {
            fail_msg("%s", err.text);
        }
    }
}

/* The classes are far apart, so margins say nothing of how often they are wrong; the probability
 * that calibration gives does: one in n + 2 of the n held-out rows of a class. */
static void test_calibrates(void **state) {
    (void)state;
    problem p = make_problem(400, 3, 1, 0, 80);
    for (size_t i = 0; i < p.rows; i++) p.x[i * 3 + 1] = (p.label[i] = i % 2) ? 5 : -5;
    write_problem("train", &p);
    write_problem("test", &p);
    probe_options how = default_options();
    how.out = path_of("out");
    run_probe(&how);
    saved_probe saved;
    error err;
    double mean = 0, probability[2];
    assert_true(saved_open(&saved, path_of("out.probe.safetensors"), &err));
    for (size_t i = 0; i < p.rows; i++) {
        assert_int_equal(saved_apply(&saved, p.x + i * 3, probability), p.label[i]);
        assert_true(fabs(probability[0] + probability[1] - 1) < 1e-12);
        mean += (1 - probability[p.label[i]]) / (double)p.rows;
    }
    assert_true(mean > 0.5 / 42 && mean < 2.0 / 42);
    saved_close(&saved);
    free_problem(&p);
}

/* Units weigh by |weight x deviation| in any pool; those of weight 0 are left out. */
static void test_top_units(void **state) {
    (void)state;
    enum { HIDDEN = 4 };
    const double weights[2 * HIDDEN + 1] = {1, -3, 0, 2, 0, 0, 0, 0.5, 9};
    const double deviation[2 * HIDDEN] = {1, 1, 1, 1, 1, 1, 1, 8};
    const saved_probe p = {.models = 1, .units = 8, .weights = weights, .deviation = deviation};
    size_t units[HIDDEN];
    assert_int_equal(saved_top_units(&p, HIDDEN, units, HIDDEN), 3);
    assert_true(units[0] == 3 && units[1] == 1 && units[2] == 0); /* 4, 3, 1 */
    assert_int_equal(saved_top_units(&p, HIDDEN, units, 1), 1);
    assert_int_equal(units[0], 3);
}

/* A margin of 0 gives the first class; of equal margins the first is taken. */
static void test_ties_of_margins(void **state) {
    (void)state;
    const double margin[3] = {1, 2, 2}, nothing = 0, more = 1e-300, huge[2] = {1e4, 1e4 - log(3)};
    double probability[3];
    assert_int_equal(margin_class(&nothing, 1), 0);
    assert_int_equal(margin_class(&more, 1), 1);
    assert_int_equal(margin_class(margin, 3), 1);
    margin_probabilities(huge, 2, true, 1, probability); /* whose powers overflow */
    assert_true(fabs(probability[0] - 0.75) < 1e-9 && fabs(probability[1] - 0.25) < 1e-9);
}

/* More than two classes: the saved probe's probabilities are a softmax. A file without the mark of
 * that, as older versions wrote it, has each class against the rest. */
static void test_more_classes(void **state) {
    (void)state;
    problem p = make_problem(600, 3, 1, 0, 81);
    for (size_t i = 0; i < p.rows; i++) {
        p.label[i] = (int32_t)(i % 3) * 5; /* 0, 5 and 10 */
        p.x[i * 3 + i % 3] += 2;
    }
    write_problem("train", &p);
    write_problem("test", &p);
    probe_options how = default_options();
    how.out = path_of("out");
    run_probe(&how);
    saved_probe saved;
    error err;
    assert_true(saved_open(&saved, path_of("out.probe.safetensors"), &err));
    assert_true(saved.models == 3);
    for (size_t i = 0; i < p.rows; i++) {
        double probability[3], power[3], sum = 0;
        saved_apply(&saved, p.x + i * 3, probability);
        for (int k = 0; k < 3; k++) {
            const double margin = margin_of(&p, saved.weights + k * 4, i);
            sum += power[k] = exp(saved.scale * margin);
        }
        for (int k = 0; k < 3; k++) {
            assert_true(fabs(probability[k] - power[k] / sum) < 1e-9);
        }
    }
    saved_close(&saved);
    free_problem(&p);
}

static void test_same_seed_same_bytes(void **state) {
    (void)state;
    problem train, valid, test;
    write_three(&train, &valid, &test);
    probe_options how = default_options();
    how.out = path_of("out");
    how.seed = 3;
    static const char *const names[] = {"out.weights.npy", "out.predictions.npy"};
    char *bytes[2][2];
    size_t size[2][2];
    for (int again = 0; again < 2; again++) {
        run_probe(&how);
        for (int k = 0; k < 2; k++) bytes[k][again] = read_text(path_of(names[k]), &size[k][again]);
    }
    for (int k = 0; k < 2; k++) {
        assert_int_equal(size[k][0], size[k][1]);
        assert_memory_equal(bytes[k][0], bytes[k][1], size[k][0]);
        free(bytes[k][0]);
        free(bytes[k][1]);
    }
    free_problem(&train);
    free_problem(&valid);
    free_problem(&test);
}

/* Rows that are held out are not fitted: labels that nothing tells are learned by heart by many
 * features, and yet half of those held out come out wrong. */
static void test_held_rows_are_not_fitted(void **state) {
    (void)state;
    problem p = make_problem(100, 300, 1, 0, 95);
    random_restart(96);
    for (size_t i = 0; i < p.rows; i++) p.label[i] = (int32_t)random_below(2);
    write_problem("train", &p);
    write_problem("test", &p);
    const probe_options how = default_options();
    const probe_result r = run_probe(&how);
    assert_true(r.error == 0 && r.valid_error > 20);
    free_problem(&p);
}

/* Rows labelled -1 change neither the fit nor the errors, whatever their values. They are still
 * predicted. */
static void test_unlabelled_rows_are_dropped(void **state) {
    (void)state;
    problem train, valid, test;
    write_three(&train, &valid, &test);
    probe_options how = default_options();
    how.out = path_of("out");
    probe_result without = run_probe(&how);
    for (int which = 0; which < 2; which++) {
        problem *p = which ? &test : &train;
        problem more = make_problem(2 * p->rows, 12, 1, 0, 90);
        for (size_t i = 0; i < p->rows; i++) {
            memcpy(more.x + 2 * i * 12, p->x + i * 12, 12 * sizeof *p->x);
            for (size_t u = 0; u < 12; u++) more.x[(2 * i + 1) * 12 + u] = which ? 1 : 1000;
            more.label[2 * i] = p->label[i];
            more.label[2 * i + 1] = -1;
        }
        write_problem(which ? "test" : "train", &more);
        free_problem(&more);
    }
    probe_result with = run_probe(&how);
    assert_int_equal(without.dropped, 0);
    assert_int_equal(with.dropped, 350);
    assert_int_equal(with.train_rows, 200);
    assert_int_equal(with.test_rows, 150);
    assert_true(with.cost == without.cost && with.error == without.error);
    assert_true(fabs(with.objective / without.objective - 1) < 2e-5);
    npy said;
    error err;
    assert_true(npy_open(&said, path_of("out.predictions.npy"), &err));
    assert_int_equal(said.rows, 300);
    for (int i = 0; i < 300; i++) {
        assert_in_range(((const int32_t *)said.data)[i], 0, 1);
    }
    npy_close(&said);
    free_problem(&train);
    free_problem(&valid);
    free_problem(&test);
}

/* ------------------------------------------------------------------------------------- refusals */

static void check_refused(const probe_options *how, const char *file, const char *why) {
    probe_result result;
    error err = {0};
    assert_false(probe_run(be, how, &result, &err));
    if (!strstr(err.text, file) || !strstr(err.text, why) || strchr(err.text, '\n')) {
        fail_msg("expected '%s' and '%s' in: %s", file, why, err.text);
    }
    assert_int_equal(err.status, STATUS_FAILED);
    assert_false(file_exists(path_of("refused.weights.npy")));
    assert_false(file_exists(path_of("refused.predictions.npy")));
    assert_false(file_exists(path_of("refused.weights.npy.tmp")));
}

static void test_refusals(void **state) {
    (void)state;
    problem good = make_problem(20, 3, 1, 0, 100);
    for (int i = 0; i < 20; i++) good.label[i] = i % 2;
    write_problem("train", &good);
    write_problem("test", &good);
    write_problem("bad", &good);
    probe_options how = default_options();
    how.out = path_of("refused");

    how.test = path_of("none");
    check_refused(&how, "none.npy", "No such file");
    how.test = path_of("bad");
    remove(path_of("bad.labels.npy"));
    check_refused(&how, "bad.labels.npy", "No such file");
    write_npy("bad", ".labels.npy", "<i4", 19, 0, good.label, 19 * 4);
    check_refused(&how, "bad.labels.npy", "19 labels for the 20 documents");
    write_npy("bad", ".labels.npy", "<i8", 20, 0, good.x, 20 * 8);
    check_refused(&how, "bad.labels.npy", "expected one int32 label");
    write_npy("bad", ".labels.npy", "<i4", 10, 2, good.label, 20 * 4);
    check_refused(&how, "bad.labels.npy", "expected one int32 label");
    write_npy("bad", ".labels.npy", "<i4", 20, 0, good.label, 20 * 4);
    write_npy("bad", ".npy", "<f4", 20, 2, good.x, 20 * 2 * 4);
    check_refused(&how, "bad.npy", "2 units, but");
    write_npy("bad", ".npy", "<i4", 20, 3, good.label, 20 * 4);
    check_refused(&how, "bad.npy", "not a whole .npy file");
    write_npy("bad", ".npy", "<i4", 20, 3, good.x, 20 * 3 * 4);
    check_refused(&how, "bad.npy", "expected float32");
    write_npy("bad", ".npy", "<f4", 0, 3, good.x, 0);
    check_refused(&how, "bad.npy", "no documents");

    float kept = good.x[13 * 3 + 1];
    good.x[13 * 3 + 1] = NAN;
    write_problem("bad", &good);
    check_refused(&how, "bad.npy", "row 13, unit 1");
    good.x[13 * 3 + 1] = kept;
    good.label[4] = 2;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "row 4: expected the label 0, 1 or -1, got 2");
    for (int i = 0; i < 20; i++) good.label[i] = -1;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "every document is unlabelled");

    how.train = how.test = path_of("bad");
    check_refused(&how, "bad.labels.npy", "every document is unlabelled");
    good.label[3] = 1;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "found only the label 1");
    good.label[7] = 0;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "at least two different documents of each class");
    good.label[9] = 5;
    write_problem("bad", &good);
    check_refused(&how, "bad.labels.npy", "at least two different documents of each class");
    for (int i = 0; i < 20; i++) {
        good.label[i] = i % 2;
        for (int u = 0; u < 3; u++)
            good.x[i * 3 + u] = (i % 2 ? FLT_MAX : -FLT_MAX) * (1 - (float)i / 64);
    }
    write_problem("bad", &good);
    check_refused(&how, "bad.npy", "overflow");

    how.train = path_of("train");
    how.test = path_of("test");
    how.valid = path_of("bad");
    write_npy("bad", ".npy", "<f4", 20, 2, good.x, 20 * 2 * 4);
    check_refused(&how, "bad.npy", "2 units, but");
    how.valid = NULL;
    how.out = path_of("no such folder");
    char *inside = mem_format("%s/refused", how.out);
    how.out = inside;
    check_refused(&how, "no such folder", "No such file");
    free(inside);
    free_problem(&good);
}

int main(void) {
    be = test_backend(FP32);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_of_repeats),
        cmocka_unit_test(test_split_of_a_common_text),
        cmocka_unit_test(test_split_of_few),
        cmocka_unit_test(test_chooses_the_smallest_best_cost),
        cmocka_unit_test(test_ties_go_to_the_smallest_cost),
        cmocka_unit_test(test_chooses_the_pooling),
        cmocka_unit_test(test_calibrates),
        cmocka_unit_test(test_more_classes),
        cmocka_unit_test(test_ties_of_margins),
        cmocka_unit_test(test_top_units),
        cmocka_unit_test(test_same_seed_same_bytes),
        cmocka_unit_test(test_held_rows_are_not_fitted),
        cmocka_unit_test(test_unlabelled_rows_are_dropped),
        cmocka_unit_test(test_refusals),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    be->memory->destroy(be);
    return failed;
}
