/* The logistic loss of several models at a time: margins, losses, gradients and curvature. */
#include "problems.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

static backend *be;

static void check_loss(size_t rows, size_t units, bool resident) {
    enum { MODELS = 3 };
    problem p = make_problem(rows, units, 10, 1, rows);
    dataset d = as_dataset(&p);
    for (size_t i = 3; i < rows; i += 7) p.class[i] = -1;
    double size = 0.5 / sqrt((double)units); /* saturated margins would test little */
    double *w = random_values(MODELS * (units + 1), -size, size);
    for (size_t i = 0; i < MODELS * (units + 1); i++) w[i] = (float)w[i];
    const targets t = {.class = p.class, .functions = 1};
    double loss[MODELS], curvature[MODELS], entropy[MODELS];
    double *gradient = mem_alloc(MODELS * (units + 1), sizeof *gradient);
    double *margins = mem_alloc(MODELS * rows, sizeof *margins);
    double *expected = mem_alloc(units + 1, sizeof *expected);
    error err;
    logistic *l = logistic_create(be, &d, MODELS, resident, &err);
    assert_non_null(l);
    assert_true(logistic_margins(l, w, MODELS, margins, MODELS, &err));
    assert_true(logistic_evaluate(l, w, MODELS, &t, loss, gradient, curvature, &err));
    logistic_entropy(l, MODELS, &t, entropy);
    for (size_t k = 0; k < MODELS; k++) {
        const double *weights = w + k * (units + 1);
        double sums[2] = {0}, counted = 0;
        for (size_t i = 0; i < rows; i++) {
            double z = margin_of(&p, weights, i);
            assert_true(fabs(margins[i * MODELS + k] - z) < 1e-4);
            if (p.class[i] < 0) continue;
            double a = 1 / (1 + exp(z));
            counted++;
            sums[0] += a * (1 - a);
            sums[1] -= a * log(a) + (1 - a) * log(1 - a);
        }
        slopes_of(&p, weights, expected);
        assert_true(fabs(loss[k] / loss_of(&p, weights) - 1) < 1e-6);
        assert_true(relative_error(gradient + k * (units + 1), expected, units + 1) < 1e-5);
        assert_true(fabs(curvature[k] * counted / sums[0] - 1) < 1e-5);
        assert_true(fabs(entropy[k] - sums[1]) <= 1e-5 * sums[1]);
    }
    logistic_free(l);
    free(expected);
    free(margins);
    free(gradient);
    free(w);
    free_problem(&p);
}

static void test_loss(void **state) {
    (void)state;
    check_loss(1, 1, true);
    check_loss(255, 33, true);
    check_loss(1500, 20000, true); /* several panels on the CPU */
    check_loss(2500, 5, false);
    check_loss(9000, 3, true); /* several panels on every backend */
    check_loss(9000, 3, false);
}

/* Two models of three classes: losses, their gradient by differences of plain sums in double, the
 * mean curvature, and the entropy. Some rows are left out. */
static void test_softmax(void **state) {
    (void)state;
    enum { UNITS = 5, CLASSES = 3, MODELS = 2, EACH = CLASSES * (UNITS + 1), ROWS = 700 };
    problem p = make_problem(ROWS, UNITS, 3, 1, 5);
    dataset d = as_dataset(&p);
    int16_t class[ROWS];
    double *w = random_values(MODELS * EACH, -0.5, 0.5), gradient[MODELS * EACH];
    double loss[MODELS], curvature[MODELS], entropy[MODELS];
    for (int i = 0; i < MODELS * EACH; i++) w[i] = (float)w[i];
    for (int i = 0; i < ROWS; i++) {
        class[i] = (int16_t)(i % 7 == 3 ? -1 : (int)random_below(CLASSES));
    }
    const targets t = {.class = class, .functions = CLASSES};
    error err;
    logistic *l = logistic_create(be, &d, MODELS * CLASSES, true, &err);
    assert_true(logistic_evaluate(l, w, MODELS, &t, loss, gradient, curvature, &err));
    logistic_entropy(l, MODELS, &t, entropy);
    for (int m = 0; m < MODELS; m++) {
        double sums[3] = {0}, counted = 0, expected[EACH] = {0};
        for (size_t i = 0; i < ROWS; i++) {
            double share[CLASSES], total = 0;
            if (class[i] < 0) continue;
            counted++;
            for (int k = 0; k < CLASSES; k++) {
                total += share[k] = exp(margin_of(&p, w + m * EACH + k * (UNITS + 1), i));
            }
            for (int k = 0; k < CLASSES; k++) {
                share[k] /= total;
                sums[1] += share[k] * (1 - share[k]) / CLASSES;
                sums[2] -= share[k] * log(share[k]);
                double *slope = expected + k * (UNITS + 1), z = share[k] - (k == class[i]);
                for (int u = 0; u < UNITS; u++) slope[u] += z * p.x[i * UNITS + (size_t)u];
                slope[UNITS] += z;
            }
            sums[0] -= log(share[class[i]]);
        }
        assert_true(fabs(loss[m] / sums[0] - 1) < 1e-6);
        assert_true(fabs(curvature[m] * counted / sums[1] - 1) < 1e-5);
        assert_true(fabs(entropy[m] / sums[2] - 1) < 1e-5);
        assert_true(relative_error(gradient + m * EACH, expected, EACH) < 1e-5);
    }
    logistic_free(l);
    free(w);
    free_problem(&p);
}

/* Of rows whose class weighs 3 everything counts three times, as a sum over three equal rows. */
static void test_weights(void **state) {
    (void)state;
    enum { UNITS = 5, MOST = 3, ROWS = 300 };
    problem p = make_problem(ROWS, UNITS, 3, 1, 6);
    dataset d = as_dataset(&p);
    int16_t class[ROWS], some[ROWS];
    double *w = random_values(MOST * (UNITS + 1), -0.5, 0.5);
    const double weight[MOST] = {1, 3, 1};
    error err;
    for (int functions = 1; functions <= MOST; functions += MOST - 1) {
        const size_t count = (size_t)functions * (UNITS + 1);
        double loss[3], curvature[3], entropy[3], gradient[3][MOST * (UNITS + 1)];
        size_t of_class = 0;
        for (int i = 0; i < ROWS; i++) {
            class[i] = functions > 1 ? (int16_t)random_below(MOST) : p.class[i];
            some[i] = class[i] == 1 ? 1 : -1;
            of_class += class[i] == 1;
        }
        logistic *l = logistic_create(be, &d, functions, true, &err);
        for (int k = 0; k < 3; k++) { /* weighted; all alike; the class alone */
            const targets t = {k == 2 ? some : class, k ? NULL : weight, functions};
            assert_true(logistic_evaluate(l, w, 1, &t, &loss[k], gradient[k], &curvature[k], &err));
            logistic_entropy(l, 1, &t, &entropy[k]);
        }
        curvature[2] *= (double)of_class / ROWS;
        for (size_t j = 0; j < count; j++) gradient[1][j] += 2 * gradient[2][j];
        assert_true(fabs(loss[0] / (loss[1] + 2 * loss[2]) - 1) < 1e-6);
        assert_true(fabs(curvature[0] / (curvature[1] + 2 * curvature[2]) - 1) < 1e-6);
        assert_true(fabs(entropy[0] / (entropy[1] + 2 * entropy[2]) - 1) < 1e-6);
        assert_true(relative_error(gradient[0], gradient[1], count) < 1e-5);
        logistic_free(l);
    }
    free(w);
    free_problem(&p);
}

/* With fewer units than directions, the diagonal holds only its least share. */
static void test_curvature_is_that_of_the_moments(void **state) {
    (void)state;
    enum { UNITS = 12, COUNT = UNITS + 1 };
    problem p = make_problem(400, UNITS, 100, 5, 4);
    dataset d = as_dataset(&p);
    for (size_t i = 0; i < p.rows; i += 5) p.class[i] = -1;
    error err;
    logistic *l = logistic_create(be, &d, 5, true, &err);
    moments m = dataset_moments(&d, p.class);
    curvature c;
    assert_true(curvature_find(&c, l, p.class, &m, (feature_span){0, UNITS}, &err));
    double expected[COUNT][COUNT] = {0};
    for (size_t i = 0; i < p.rows; i++) {
        double x[COUNT] = {[UNITS] = 1};
        for (size_t u = 0; u < UNITS; u++) x[u] = p.x[i * UNITS + u];
        for (size_t j = 0; j < COUNT && p.class[i] >= 0; j++) {
            for (size_t k = 0; k < COUNT; k++) expected[j][k] += x[j] * x[k];
        }
    }
    for (size_t j = 0; j < COUNT; j++) {
        for (size_t k = 0; k < COUNT; k++) {
            double sum = j == k ? c.diagonal[j] : 0, size = expected[j][j] * expected[k][k];
            for (size_t r = 0; r < (size_t)c.rank; r++) {
                sum += c.factor[j * (size_t)c.rank + r] * c.factor[k * (size_t)c.rank + r];
            }
            assert_true(fabs(sum - expected[j][k]) < 1e-3 * sqrt(size));
        }
    }
    curvature_free(&c);
    free(m.mean);
    logistic_free(l);
    free_problem(&p);
}

int main(void) {
    be = test_backend(FP32);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_curvature_is_that_of_the_moments),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    be->memory->destroy(be);
    return failed;
}
