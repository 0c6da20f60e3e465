/* The loss, Adam, and the smaller operations of a backend against those of a more trusted one
 * (pair.h), with all outputs poisoned first; recordings and marks. */
#include "pair.h"

#include "core/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- loss */

/* The loss of text. */
static void softmax_of(backend *be, const void *logits, const void *bias, const int16_t *targets,
                       int steps, int columns, void *losses, void *dlogits) {
    const softmax_loss s = {.steps = steps,
                            .columns = columns,
                            .rows = VOCABULARY,
                            .classes = VOCABULARY,
                            .logits = logits,
                            .bias = bias,
                            .targets = targets,
                            .scale = 1,
                            .losses = losses,
                            .dlogits = dlogits};
    be->update->softmax_cross_entropy(be, &s);
}

static void test_softmax(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        pair p = open_pair(kind ? BF16 : FP32);
        random_restart(6);
        int steps = 3, columns = 2 * p.be->column_multiple;
        size_t positions = (size_t)(steps * columns), count = positions * VOCABULARY;
        double *logits = random_values(count, -20, 20), *bias = random_values(VOCABULARY, -3, 3);
        int16_t *targets = mem_alloc(positions, sizeof *targets);
        for (size_t i = 0; i < positions; i++) {
            targets[i] = random_below(4) ? (int16_t)random_below(256) : -1;
        }
        double *losses[2], *gradient[2], *sums[2], total[2] = {0};
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            void *l = put(be, logits, count, REAL), *b = put(be, bias, VOCABULARY, REAL);
            void *loss = put_poison(be, positions, REAL), *d = put_poison(be, count, OPERAND);
            void *rows = put_poison(be, VOCABULARY, REAL);
            int16_t *t = be->memory->allocate(be, positions * sizeof *t);
            double *sum = be->memory->allocate(be, sizeof *sum), start = 100;
            be->memory->upload(be, t, targets, positions * sizeof *t);
            be->memory->upload(be, sum, &start, sizeof start);
            softmax_of(be, l, b, t, steps, columns, loss, d);
            be->update->row_sums(be, d, steps, VOCABULARY, columns, rows);
            be->update->sum(be, loss, positions, sum);
            losses[side] = get(be, loss, positions, REAL);
            gradient[side] = get(be, d, count, OPERAND);
            sums[side] = get(be, rows, VOCABULARY, REAL);
            be->memory->download(be, &total[side], sum, sizeof *sum);
            void *arrays[] = {l, b, loss, d, rows, t, sum};
            release_all(be, arrays, sizeof arrays / sizeof arrays[0]);
        }
        pair exact = p;
        exact.tolerance = 1e-5; /* losses and sums are never rounded to bf16 */
        assert_close(&exact, "losses", losses[0], losses[1], positions);
        assert_close(&p, "dlogits", gradient[0], gradient[1], count);
        assert_close(&p, "row sums", sums[0], sums[1], VOCABULARY);
        assert_close(&exact, "sum", &total[0], &total[1], 1);
        for (size_t i = 0; i < positions; i++) {
            if (targets[i] < 0) assert_true(losses[0][i] == 0);
        }
        for (int side = 0; side < 2; side++) {
            free(losses[side]);
            free(gradient[side]);
            free(sums[side]);
        }
        free(logits);
        free(bias);
        free(targets);
        close_pair(&p);
    }
}

/* A softmax over some of the rows, with weights; rows before it stay, rows after it become 0. */
static void test_softmax_of_classes(void **state) {
    (void)state;
    enum { FIRST = 5, ROWS = 24 };
    static const int classes_of[] = {2, 11, 19};
    for (int kind = 0; kind < 6; kind++) {
        pair p = open_pair(kind < 3 ? FP32 : BF16);
        random_restart(8);
        const int steps = 2, columns = 2 * p.be->column_multiple, classes = classes_of[kind % 3];
        const size_t positions = (size_t)(steps * columns), count = positions * ROWS;
        double *logits = random_values(count, -3, 3), *bias = random_values(classes, -1, 1);
        double *weights = random_values(positions, 0, 2), *results[3][2];
        int16_t *targets = mem_alloc(positions, sizeof *targets);
        for (size_t i = 0; i < positions; i++) {
            targets[i] = (int16_t)((int)random_below((uint64_t)classes + 1) - 1);
        }
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            void *l = put(be, logits, count, REAL), *b = put(be, bias, (size_t)classes, REAL);
            void *w = put(be, weights, positions, REAL);
            void *loss = put_poison(be, positions, REAL), *wrong = put_poison(be, positions, REAL);
            void *d = put(be, logits, count, OPERAND);
            int16_t *t = be->memory->allocate(be, positions * sizeof *t);
            be->memory->upload(be, t, targets, positions * sizeof *t);
            const softmax_loss s = {steps, columns, ROWS, FIRST, classes, l, b,
                                    t,     w,       0.7,  loss,  wrong,   d};
            be->update->softmax_cross_entropy(be, &s);
            results[0][side] = get(be, loss, positions, REAL);
            results[1][side] = get(be, d, count, OPERAND);
            results[2][side] = get(be, wrong, positions, REAL);
            void *arrays[] = {l, b, w, loss, wrong, d, t};
            release_all(be, arrays, sizeof arrays / sizeof arrays[0]);
        }
        pair exact = p;
        exact.tolerance = 1e-5;
        assert_close(&exact, "losses", results[0][0], results[0][1], positions);
        assert_close(&p, "dlogits", results[1][0], results[1][1], count);
        size_t wrong = 0;
        for (size_t i = 0; i < positions; i++) {
            const double mine = results[2][0][i];
            assert_true(fabs(mine - results[2][1][i]) < 1e-6);
            assert_true(mine == 0 || mine == (float)weights[i]);
            assert_true(targets[i] >= 0 || (mine == 0 && results[0][0][i] == 0));
            wrong += mine > 0;
            /* The loss is -w log p of the target, and its gradient there w (p - 1). */
            if (targets[i] < 0 || weights[i] < 0.01) continue;
            const size_t step = i / (size_t)columns, n = i % (size_t)columns;
            const size_t row = step * ROWS + FIRST + (size_t)targets[i];
            const double likely = exp(-results[0][0][i] / weights[i]);
            const double expected = 0.7 * weights[i] * (likely - 1);
            assert_true(fabs(results[1][0][row * (size_t)columns + n] - expected) < 0.01);
        }
        assert_true(wrong > positions / 4 && wrong < positions);
        for (size_t i = 0; i < count; i++) {
            const size_t row = i / (size_t)columns % ROWS;
            if (row >= (size_t)(FIRST + classes)) assert_true(results[1][0][i] == 0);
            if (row < FIRST) assert_true(fabs(results[1][0][i] - logits[i]) < 0.02);
        }
        for (int k = 0; k < 3; k++) {
            for (int side = 0; side < 2; side++) free(results[k][side]);
        }
        free(logits);
        free(bias);
        free(weights);
        free(targets);
        close_pair(&p);
    }
}

/* Of classes that are equally likely the first one is chosen. */
static void test_softmax_of_equals(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    const int columns = be->column_multiple;
    const size_t count = (size_t)columns;
    double *zeros = mem_alloc(4 * count, sizeof *zeros);
    int16_t *targets = mem_alloc(count, sizeof *targets);
    for (size_t n = 0; n < count; n++) targets[n] = (int16_t)(n % 4);
    void *l = put(be, zeros, 4 * count, REAL), *loss = put_poison(be, count, REAL);
    void *wrong = put_poison(be, count, REAL);
    int16_t *t = be->memory->allocate(be, count * sizeof *t);
    be->memory->upload(be, t, targets, count * sizeof *t);
    const softmax_loss s = {.steps = 1,
                            .columns = columns,
                            .rows = 4,
                            .classes = 4,
                            .logits = l,
                            .bias = l,
                            .targets = t,
                            .losses = loss,
                            .wrong = wrong};
    be->update->softmax_cross_entropy(be, &s);
    double *found = get(be, wrong, count, REAL), *losses = get(be, loss, count, REAL);
    for (size_t n = 0; n < count; n++) {
        assert_true(found[n] == (n % 4 ? 1 : 0));
        assert_true(fabs(losses[n] - log(4)) < 1e-6);
    }
    void *arrays[] = {l, loss, wrong, t};
    release_all(be, arrays, sizeof arrays / sizeof arrays[0]);
    free(zeros);
    free(targets);
    free(found);
    free(losses);
    be->memory->destroy(be);
}

/* If one byte is nearly certain, the 255 small terms must not be lost beside its large one. The
 * mean of the losses must be right, not only each loss. */
static void test_losses_are_unbiased(void **state) {
    (void)state;
    pair p = open_pair(FP32);
    random_restart(12);
    int steps = 64, columns = p.be->column_multiple;
    size_t positions = (size_t)(steps * columns), count = positions * VOCABULARY;
    double *logits = random_values(count, -24, -8), *bias = random_values(VOCABULARY, 0, 0);
    for (size_t i = 0; i < count; i++) {
        bool sure = i / (size_t)columns % VOCABULARY == 32;
        logits[i] = sure ? 0 : (float)logits[i];
    }
    int16_t *targets = mem_alloc(positions, sizeof *targets);
    for (size_t i = 0; i < positions; i++) targets[i] = 32;
    double mean[2] = {0};
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        void *l = put(be, logits, count, REAL), *b = put(be, bias, VOCABULARY, REAL);
        void *loss = put_poison(be, positions, REAL);
        int16_t *t = be->memory->allocate(be, positions * sizeof *t);
        be->memory->upload(be, t, targets, positions * sizeof *t);
        softmax_of(be, l, b, t, steps, columns, loss, NULL);
        double *losses = get(be, loss, positions, REAL);
        for (size_t i = 0; i < positions; i++) mean[side] += losses[i] / (double)positions;
        free(losses);
        void *arrays[] = {l, b, loss, t};
        release_all(be, arrays, sizeof arrays / sizeof arrays[0]);
    }
    assert_true(fabs(mean[0] - mean[1]) < (test_device_is_cuda() ? 3e-7 : 1e-7));
    free(logits);
    free(bias);
    free(targets);
    close_pair(&p);
}

/* The CPU's threads flush denormals during an operation only. */
static void test_denormals(void **state) {
    (void)state;
    if (test_device_is_cuda()) return;
    enum { THREADS = 3, COUNT = 1 << 16 };
    const float tiny = 1e-40f;
    backend *be = backend_cpu(FP32, THREADS);
    float *x = be->memory->allocate(be, COUNT * sizeof *x),
          *total = be->memory->allocate(be, COUNT * sizeof *x);
    for (int i = 0; i < COUNT; i++) x[i] = tiny;
    memset(total, 0, COUNT * sizeof *total);
    be->update->add(be, COUNT, total, x);
    for (int i = 0; i < COUNT; i++) assert_true(total[i] == 0);
    int kept = 0;
#pragma omp parallel for num_threads(THREADS) reduction(+ : kept)
    for (int i = 0; i < COUNT; i++) {
        volatile float value = x[i];
        kept += value * 2 > 0;
    }
    assert_int_equal(kept, COUNT);
    be->memory->release(be, x);
    be->memory->release(be, total);
    be->memory->destroy(be);
}

static void test_nan_is_seen(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    int columns = be->column_multiple;
    size_t count = (size_t)columns * VOCABULARY;
    double *values = random_values(count, -1, 1);
    double *zeros = mem_alloc(VOCABULARY, sizeof *zeros);
    int16_t *targets = mem_alloc((size_t)columns, sizeof *targets);
    values[7 * columns + 3] = NAN;
    void *l = put(be, values, count, REAL), *b = put(be, zeros, VOCABULARY, REAL);
    void *loss = put_poison(be, (size_t)columns, REAL);
    int16_t *t = be->memory->allocate(be, (size_t)columns * sizeof *t);
    be->memory->upload(be, t, targets, (size_t)columns * sizeof *t);
    softmax_of(be, l, b, t, 1, columns, loss, NULL);
    double *losses = get(be, loss, (size_t)columns, REAL);
    for (int n = 0; n < columns; n++) assert_true(isnan(losses[n]) == (n == 3));
    be->memory->release(be, l);
    be->memory->release(be, b);
    be->memory->release(be, loss);
    be->memory->release(be, t);
    free(values);
    free(zeros);
    free(targets);
    free(losses);
    be->memory->destroy(be);
}

/* ---------------------------------------------------------------------------------- sampling */

enum { STREAMS = 3, PROMPT = 5, TEXT = 1500 };

/* Returns a text of every stream, [TEXT][STREAMS]: the prompt, then bytes drawn again and again
 * from the same logits, which are rounded to float. */
static uint8_t *sampled_text(backend *be, const double *logits, sampling start) {
    size_t columns = (size_t)be->column_multiple, count = VOCABULARY * columns;
    uint8_t *text = mem_alloc(TEXT * STREAMS, 1), *bytes = mem_alloc(columns, 1);
    double bias[VOCABULARY] = {0};
    memset(text, 'p', TEXT * STREAMS);
    memset(bytes, 255, columns);
    start.seed = 77;
    start.prompt = PROMPT;
    void *l = put(be, logits, count, REAL), *b = put(be, bias, VOCABULARY, REAL);
    sampling *s = be->memory->allocate(be, sizeof start);
    uint8_t *t = be->memory->allocate(be, TEXT * STREAMS),
            *next = be->memory->allocate(be, columns);
    be->memory->upload(be, s, &start, sizeof start);
    be->memory->upload(be, t, text, TEXT * STREAMS);
    be->memory->upload(be, next, bytes, columns);
    for (int i = 1; i < TEXT; i++) be->update->sample(be, l, b, STREAMS, (int)columns, s, t, next);
    be->memory->download(be, text, t, TEXT * STREAMS);
    be->memory->download(be, bytes, next, columns);
    be->memory->download(be, &start, s, sizeof start);
    assert_int_equal(start.position, TEXT - 1);
    assert_memory_equal(text, "ppppppppppppppp", PROMPT * STREAMS);
    assert_memory_equal(bytes, text + (TEXT - 1) * STREAMS, STREAMS); /* the next input */
    for (size_t n = STREAMS; n < columns; n++) assert_int_equal(bytes[n], 255);
    void *arrays[] = {l, b, s, t, next};
    release_all(be, arrays, sizeof arrays / sizeof arrays[0]);
    free(bytes);
    return text;
}

/* In every stream bytes 10, 100 and 250 have probability 1/8, 5/8 and 2/8. The draws of streams
 * differ. */
static void test_sample_frequencies(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    size_t columns = (size_t)be->column_multiple;
    double *logits = random_values(VOCABULARY * columns, -200, -200);
    for (size_t n = 0; n < columns; n++) {
        logits[10 * columns + n] = 3;
        logits[100 * columns + n] = (float)(3 + log(5));
        logits[250 * columns + n] = (float)(3 + log(2));
    }
    uint8_t *text = sampled_text(be, logits, (sampling){.temperature = 1, .top_p = 1});
    int seen[STREAMS][VOCABULARY] = {0}, same = 0;
    for (int i = PROMPT; i < TEXT; i++) {
        for (int n = 0; n < STREAMS; n++) seen[n][text[i * STREAMS + n]]++;
        same += text[i * STREAMS] == text[i * STREAMS + 1];
    }
    for (int n = 0; n < STREAMS; n++) { /* within 5 deviations */
        assert_in_range(seen[n][10], TEXT / 8 - 65, TEXT / 8 + 65);
        assert_in_range(seen[n][100], TEXT * 5 / 8 - 95, TEXT * 5 / 8 + 95);
        assert_int_equal(seen[n][10] + seen[n][100] + seen[n][250], TEXT - PROMPT);
    }
    assert_in_range(same, TEXT * 30 / 64 - 100, TEXT * 30 / 64 + 100);
    free(text);

    /* Of equally likely bytes, the lowest is chosen. */
    logits[30 * columns] = logits[100 * columns];
    text = sampled_text(be, logits, (sampling){.top_p = 1});
    for (int i = PROMPT; i < TEXT; i++) {
        assert_int_equal(text[i * STREAMS], 30);
        assert_int_equal(text[i * STREAMS + 1], 100);
    }
    free(text);
    free(logits);
    be->memory->destroy(be);
}

/* The bytes that top_k and top_p leave, of 10, 30, 100 and 250 with probability 2/10, 2/10, 5/10
 * and 1/10. The shares that are drawn in every stream, in thousandths, are right to within 5
 * deviations. */
static void test_sample_cut(void **state) {
    (void)state;
    static const int bytes[] = {10, 30, 100, 250};
    static const struct {
        int top_k;
        double top_p;
        int share[4];
    } cuts[] = {
        {0, 1, {200, 200, 500, 100}},
        {4, 1, {200, 200, 500, 100}},
        {256, 1, {200, 200, 500, 100}},
        {3, 1, {222, 222, 556, 0}},
        {2, 1, {286, 0, 714, 0}}, /* of equally likely bytes, the lower is kept */
        {1, 1, {0, 0, 1000, 0}},
        {0, 0.49, {0, 0, 1000, 0}},
        {0, 1e-9, {0, 0, 1000, 0}},
        {0, 0.51, {286, 0, 714, 0}},
        {0, 0.71, {222, 222, 556, 0}},
        {2, 0.73, {286, 0, 714, 0}}, /* byte 100 has 0.714 of what top_k leaves */
        {2, 0.70, {0, 0, 1000, 0}},
    };
    backend *be = test_backend(FP32);
    size_t columns = (size_t)be->column_multiple;
    double *logits = random_values(VOCABULARY * columns, -200, -200);
    for (size_t n = 0; n < columns; n++) {
        logits[10 * columns + n] = logits[30 * columns + n] = (float)log(2);
        logits[100 * columns + n] = (float)log(5);
        logits[250 * columns + n] = 0;
    }
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0]; i++) {
        sampling how = {.temperature = 1, .top_p = cuts[i].top_p, .top_k = cuts[i].top_k};
        uint8_t *text = sampled_text(be, logits, how);
        for (int n = 0; n < STREAMS; n++) {
            for (int k = 0; k < 4; k++) {
                int seen = 0, expected = (TEXT - PROMPT) * cuts[i].share[k] / 1000;
                int room = cuts[i].share[k] % 1000 ? 100 : 0;
                for (int t = PROMPT; t < TEXT; t++) seen += text[t * STREAMS + n] == bytes[k];
                assert_in_range(seen + room, expected, expected + 2 * room);
            }
        }
        free(text);
    }
    free(logits);
    be->memory->destroy(be);
}

static void test_sample_pair(void **state) {
    (void)state;
    pair p = open_pair(FP32);
    random_restart(13);
    size_t columns = (size_t)p.be->column_multiple, count = VOCABULARY * columns;
    double *logits = random_values(count, -4, 4);
    for (size_t i = 0; i < count; i++) logits[i] = (float)logits[i];
    assert_int_equal(p.trusted->column_multiple <= p.be->column_multiple, 1);
    double *narrow = mem_alloc(count, sizeof *narrow); /* the trusted backend's columns */
    size_t other = (size_t)p.trusted->column_multiple;
    for (size_t v = 0; v < VOCABULARY; v++) {
        memcpy(narrow + v * other, logits + v * columns, STREAMS * sizeof *narrow);
    }
    static const sampling how[] = {{.temperature = 0.7, .top_p = 1},
                                   {.temperature = 0.7, .top_p = 0.8},
                                   {.temperature = 1.5, .top_p = 1, .top_k = 9},
                                   {.temperature = 1.1, .top_p = 0.6, .top_k = 40}};
    for (int i = 0; i < 4; i++) {
        uint8_t *found = sampled_text(p.be, logits, how[i]);
        uint8_t *expected = sampled_text(p.trusted, narrow, how[i]);
        assert_memory_equal(found, expected, TEXT * STREAMS);
        free(found);
        free(expected);
    }
    free(narrow);
    free(logits);
    close_pair(&p);
}

/* The mean over a long document: sums of fp32 would be off by a thousandth. */
static void test_pool_long(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    const int steps = 64, rows = 8, columns = be->column_multiple, calls = 4000;
    const size_t plane = (size_t)(rows * columns);
    double *x = mem_alloc(plane * (size_t)steps, sizeof *x), *sum = mem_alloc(plane, sizeof *sum);
    for (size_t i = 0; i < plane * (size_t)steps; i++) x[i] = 0.1f;
    int32_t *bounds[2] = {mem_alloc((size_t)columns, 4), mem_alloc((size_t)columns, 4)};
    for (int n = 0; n < columns; n++) bounds[1][n] = steps;
    void *in = put(be, x, plane * (size_t)steps, REAL),
         *out = be->memory->allocate(be, plane * sizeof *sum);
    void *at[2];
    for (int i = 0; i < 2; i++) {
        at[i] = be->memory->allocate(be, (size_t)columns * 4);
        be->memory->upload(be, at[i], bounds[i], (size_t)columns * 4);
    }
    be->memory->zero(be, out, plane * sizeof *sum);
    for (int k = 0; k < calls; k++) {
        be->update->pool(be, in, REAL, steps, rows, columns, at[0], at[1], POOL_MEAN, out);
    }
    be->memory->download(be, sum, out, plane * sizeof *sum);
    for (size_t i = 0; i < plane; i++) {
        assert_true(fabs(sum[i] / ((double)steps * calls) - 0.1f) < 1e-9);
    }
    void *const held[] = {in, out, at[0], at[1]};
    release_all(be, held, 4);
    free(x);
    free(sum);
    free(bounds[0]);
    free(bounds[1]);
    be->memory->destroy(be);
}

/* Numbers of rows that nothing divides. */
static const int odd[] = {1, 2, 3, 5, 6, 7, 10, 13, 24};
enum { ODD = sizeof odd / sizeof *odd };

static void check_pool(int rows) {
    pair p = open_pair(BF16);
    random_restart(7);
    int steps = 9, columns = p.be->column_multiple;
    size_t plane = (size_t)(rows * columns);
    double *x = random_values(plane * (size_t)steps, -1, 1);
    double *start = random_values(plane, -1, 1);
    int32_t *first = mem_alloc((size_t)columns, sizeof *first);
    int32_t *last = mem_alloc((size_t)columns, sizeof *last);
    for (int n = 0; n < columns; n++) {
        first[n] = (int32_t)random_below(5);
        last[n] = first[n] + (int32_t)random_below(5); /* some columns have no step */
    }
    for (int kind = 0; kind < 6; kind++) {
        element type = kind % 2 ? OPERAND : REAL;
        double *result[2];
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            void *in = put(be, x, plane * (size_t)steps, type);
            void *out = be->memory->allocate(be, plane * sizeof *start);
            be->memory->upload(be, out, start, plane * sizeof *start);
            int32_t *f = be->memory->allocate(be, (size_t)columns * 4);
            int32_t *l = be->memory->allocate(be, (size_t)columns * 4);
            be->memory->upload(be, f, first, (size_t)columns * 4);
            be->memory->upload(be, l, last, (size_t)columns * 4);
            be->update->pool(be, in, type, steps, rows, columns, f, l, (pooling)(kind / 2), out);
            result[side] = mem_alloc(plane, sizeof(double));
            be->memory->download(be, result[side], out, plane * sizeof *start);
            be->memory->release(be, in);
            be->memory->release(be, out);
            be->memory->release(be, f);
            be->memory->release(be, l);
        }
        assert_close(&p, "pool", result[0], result[1], plane);
        free(result[0]);
        free(result[1]);
    }
    free(x);
    free(start);
    free(first);
    free(last);
    close_pair(&p);
}

static void test_pool(void **state) {
    (void)state;
    for (int i = 0; i < ODD; i++) check_pool(odd[i]);
}

static void test_row_sums(void **state) {
    (void)state;
    enum { STEPS = 3 };
    for (int i = 0; i < 2 * ODD; i++) {
        pair p = open_pair(i % 2 ? BF16 : FP32);
        const size_t rows = (size_t)odd[i / 2], columns = 2 * (size_t)p.be->column_multiple;
        random_restart(18);
        double *x = random_values(STEPS * rows * columns, 0, 1), *result[2];
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            void *in = put(be, x, STEPS * rows * columns, OPERAND);
            void *out = put_poison(be, rows, REAL);
            be->update->row_sums(be, in, STEPS, (int)rows, (int)columns, out);
            result[side] = get(be, out, rows, REAL);
            be->memory->release(be, in);
            be->memory->release(be, out);
        }
        assert_close(&p, "row_sums", result[0], result[1], rows);
        free(x);
        free(result[0]);
        free(result[1]);
        close_pair(&p);
    }
}

/* -------------------------------------------------------------------------------------- Adam */

static void check_adam(precision precision, double clip, double weight_decay) {
    pair p = open_pair(precision);
    random_restart(8);
    const size_t count = 5000;
    double *host[5] = {random_values(count, -1, 1), random_values(count, -50, 50),
                       random_values(count, -0.1, 0.1), random_values(count, 0, 0.1),
                       random_values(count, -1, 1)};
    uint8_t groups[(5000 + DECAY_GROUP - 1) / DECAY_GROUP];
    static const uint8_t flags[5] = {0, GROUP_DECAYS, GROUP_OF_INPUT, GROUP_OF_HEAD, GROUP_OF_MUON};
    for (size_t g = 0; g < sizeof groups; g++) groups[g] = flags[g % 5];
    double *result[2][5];
    update_report reports[2];
    update_arguments arguments = {.learning_rate = 0.01,
                                  .head_learning_rate = 0.04,
                                  .beta1 = 0.9,
                                  .beta2 = 0.99,
                                  .epsilon = 1e-8,
                                  .weight_decay = weight_decay,
                                  .input_decay = 2 * weight_decay,
                                  .clip = clip,
                                  .gradient_scale = 0.01,
                                  .average = 0.97,
                                  .update = 4};
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        void *a[5];
        for (int i = 0; i < 5; i++) a[i] = put(be, host[i], count, REAL);
        void *operands = precision == BF16 ? put_poison(be, count, OPERAND) : a[0];
        update_arguments *args = be->memory->allocate(be, sizeof *args);
        update_report *report = be->memory->allocate(be, sizeof *report);
        be->memory->upload(be, args, &arguments, sizeof *args);
        be->memory->zero(be, report, sizeof *report);
        uint8_t *where = be->memory->allocate(be, sizeof groups);
        be->memory->upload(be, where, groups, sizeof groups);
        be->update->adam(be, count, a[0], a[1], a[2], a[3], a[4], operands, where, args, report);
        const int kept[4] = {0, 2, 3, 4};
        for (int i = 0; i < 4; i++) result[side][i] = get(be, a[kept[i]], count, REAL);
        result[side][4] = get(be, operands, count, OPERAND);
        be->memory->download(be, &reports[side], report, sizeof *report);
        for (int i = 0; i < 5; i++) be->memory->release(be, a[i]);
        if (precision == BF16) be->memory->release(be, operands);
        be->memory->release(be, args);
        be->memory->release(be, where);
        be->memory->release(be, report);
    }
    pair exact = p;
    exact.tolerance = 1e-6;
    static const char *const what[5] = {"weights", "moment1", "moment2", "average", "operands"};
    for (size_t i = 0; i < count; i++) { /* Muon's stay, and nothing is written to their operands */
        if (groups[i / DECAY_GROUP] != GROUP_OF_MUON) continue;
        assert_true(result[0][0][i] == (float)host[0][i]);
        for (int side = 0; side < 2 && precision == BF16; side++) result[side][4][i] = 0;
    }
    for (int i = 0; i < 5; i++) {
        assert_close(i < 4 ? &exact : &p, what[i], result[0][i], result[1][i], count);
        free(result[0][i]);
        free(result[1][i]);
    }
    assert_true(fabs(reports[0].gradient_norm / reports[1].gradient_norm - 1) < 1e-6);
    assert_true(reports[0].failed == 0);
    for (int i = 0; i < 5; i++) free(host[i]);
    close_pair(&p);
}

/* A gradient of 3 and 4, halved, is 2.5 long: clipped at 1 it is 0.6 and 0.8, of which the first
 * moment takes a tenth. */
static void test_clipping(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    enum { COUNT = 4 }; /* a multiple of 4, as in models */
    const double of[COUNT] = {3, 4}, nothing[COUNT] = {0};
    const update_arguments arguments = {.learning_rate = 0.01,
                                        .beta1 = 0.9,
                                        .beta2 = 0.99,
                                        .epsilon = 1e-8,
                                        .gradient_scale = 0.5,
                                        .average = 0.9};
    for (int k = 0; k < 3; k++) {
        const double clip[] = {1, 10, 0}, length[] = {1, 2.5, 2.5};
        update_arguments these = arguments;
        update_report report;
        these.clip = clip[k];
        void *a[5];
        for (int i = 0; i < 5; i++) a[i] = put(be, i == 1 ? of : nothing, COUNT, REAL);
        void *args = be->memory->allocate(be, sizeof these),
             *told = be->memory->allocate(be, sizeof report);
        uint8_t *where = be->memory->allocate(be, 1);
        be->memory->upload(be, args, &these, sizeof these);
        be->memory->zero(be, told, sizeof report);
        be->memory->zero(be, where, 1);
        be->update->adam(be, COUNT, a[0], a[1], a[2], a[3], a[4], a[0], where, args, told);
        be->memory->download(be, &report, told, sizeof report);
        double *moment = get(be, a[2], COUNT, REAL);
        assert_true(fabs(report.gradient_norm - 2.5) < 1e-6);
        for (int i = 0; i < COUNT; i++)
            assert_true(fabs(moment[i] - of[i] * length[k] / 50) < 1e-6);
        free(moment);
        void *const held[] = {a[0], a[1], a[2], a[3], a[4], args, told, where};
        release_all(be, held, 8);
    }
    be->memory->destroy(be);
}

static void test_adam(void **state) {
    (void)state;
    check_adam(FP32, 0, 0);
    check_adam(FP32, 1.5, 0);
    check_adam(FP32, 1.5, 20);
    check_adam(BF16, 1.5, 20);
}

/* Reflects the rows of x [rows][columns], or its columns, at the plane that n is normal to, which
 * leaves singular values as they are. */
static void reflect(double *x, int rows, int columns, const double *n, bool of_rows) {
    for (int i = 0; i < (of_rows ? rows : columns); i++) {
        const int length = of_rows ? columns : rows;
        double *first = of_rows ? x + i * columns : x + i, along = 0;
        const int stride = of_rows ? 1 : columns;
        for (int k = 0; k < length; k++) along += first[k * stride] * n[k];
        for (int k = 0; k < length; k++) first[k * stride] -= 2 * along * n[k];
    }
}

static double *unit_vector(int count) {
    double *n = random_values((size_t)count, -1, 1), square = 0;
    for (int i = 0; i < count; i++) square += n[i] * n[i];
    for (int i = 0; i < count; i++) n[i] /= sqrt(square);
    return n;
}

/* A matrix with known singular values: the step has the same vectors, and each value as the
 * polynomial makes it in five turns. */
static void check_muon(backend *be, int rows, int columns, double tolerance) {
    const int least = rows < columns ? rows : columns, most = rows + columns - least;
    const size_t count = (size_t)rows * (size_t)columns;
    const update_arguments arguments = {.muon_learning_rate = 0.05,
                                        .muon_momentum = 0.9,
                                        .weight_decay = 0.4,
                                        .gradient_scale = 0.5,
                                        .average = 0.75};
    double *given = mem_alloc(count, sizeof *given), *expected = mem_alloc(count, sizeof *given);
    double *before = random_values(count, -1, 1), *mean = random_values(count, -1, 1), square = 0;
    double *left = unit_vector(columns), *above = unit_vector(rows);
    double *start = mem_alloc(count, sizeof *start);
    for (int i = 0; i < least; i++) square += pow(i + 1, 2);
    for (int i = 0; i < least; i++) {
        double value = (i + 1) / sqrt(square);
        given[i * columns + i] = i + 1;
        for (int k = 0; k < 5; k++) {
            value = 3.4445 * value - 4.7750 * pow(value, 3) + 2.0315 * pow(value, 5);
        }
        expected[i * columns + i] = value;
    }
    double *both[] = {given, expected};
    for (int i = 0; i < 2; i++) {
        reflect(both[i], rows, columns, left, true);
        reflect(both[i], rows, columns, above, false);
    }
    for (size_t i = 0; i < count; i++) {
        start[i] = 3 * given[i];
        before[i] = (float)before[i];
        mean[i] = (float)mean[i];
    }
    const int side = muon_side(be, rows, columns);
    layout *l = layout_dense(side, side, 1, 1);
    device_layout *square_layout = be->memory->layout_create(be, l);
    const size_t room = muon_workspace(be, rows, columns);
    muon_matrix w = {rows,
                     columns,
                     square_layout,
                     put(be, before, count, REAL),
                     put(be, start, count, REAL),
                     put(be, mean, count, REAL),
                     put(be, given, count, REAL),
                     NULL,
                     be->memory->allocate(be, room)};
    w.operands = be->precision == BF16 ? put_poison(be, count, OPERAND) : w.weights;
    for (size_t i = 0; i < room; i += 4) { /* NaNs in any precision */
        const uint32_t poison = 0xFFFFFFFF;
        be->memory->upload(be, (char *)w.workspace + i, &poison, sizeof poison);
    }
    update_arguments *args = be->memory->allocate(be, sizeof *args);
    update_report *report = be->memory->allocate(be, sizeof *report);
    be->memory->upload(be, args, &arguments, sizeof *args);
    be->memory->zero(be, report, sizeof *report);
    muon_step(be, &w, args, report);
    double *after = get(be, w.weights, count, REAL), *momentum = get(be, w.momentum, count, REAL);
    double *average = get(be, w.average, count, REAL),
           *operands = get(be, w.operands, count, OPERAND);
    double off = 0, all = 0;
    for (size_t i = 0; i < count; i++) {
        const double step = (before[i] * (1 - 0.05 * 0.4) - after[i]) / (0.05 * 0.2 * sqrt(most));
        off += pow(step - expected[i], 2);
        all += pow(expected[i], 2);
        assert_true(fabs(momentum[i] - (0.9 * start[i] + 0.5 * given[i])) <
                    1e-5 * (1 + fabs(start[i])));
        assert_true(fabs(average[i] - (0.75 * mean[i] + 0.25 * after[i])) < 1e-6);
        assert_true(fabs(operands[i] - after[i]) <=
                    (be->precision == BF16 ? 0x1p-8 : 0) * fabs(after[i]));
    }
    if (sqrt(off / all) > tolerance) {
        fail_msg("%d x %d on %s: the step is off by %g of itself", rows, columns, be->name,
                 sqrt(off / all));
    }
    void *const held[] = {w.weights, w.momentum, w.average, w.gradient, w.workspace, args, report};
    release_all(be, held, 7);
    if (be->precision == BF16) be->memory->release(be, w.operands);
    be->memory->layout_free(be, square_layout);
    layout_free(l);
    double *const values[] = {given, expected, before,   mean,    left,    above,
                              start, after,    momentum, average, operands};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) free(values[i]);
}

static void test_muon(void **state) {
    (void)state;
    static const int shapes[][2] = {{48, 16}, {16, 40},  {24, 24}, {7, 13},
                                    {1, 5},   {200, 70}, {96, 320}};
    random_restart(9);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        backend *all[] = {test_backend(FP32), test_backend(BF16), backend_cpu_reference(2)};
        const double tolerance[] = {2e-4, 0.03, 1e-7};
        for (int k = 0; k < 3; k++) {
            check_muon(all[k], shapes[i][0], shapes[i][1], tolerance[k]);
            all[k]->memory->destroy(all[k]);
        }
    }
}

/* A gradient that is not finite changes nothing. */
static void test_muon_failed(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    enum { ROWS = 8, COLUMNS = 12, COUNT = ROWS * COLUMNS };
    double *values = random_values(COUNT, -1, 1);
    const int side = muon_side(be, ROWS, COLUMNS);
    layout *l = layout_dense(side, side, 1, 1);
    muon_matrix w = {ROWS,
                     COLUMNS,
                     be->memory->layout_create(be, l),
                     put(be, values, COUNT, REAL),
                     put(be, values, COUNT, REAL),
                     put(be, values, COUNT, REAL),
                     put(be, values, COUNT, REAL),
                     NULL,
                     be->memory->allocate(be, muon_workspace(be, ROWS, COLUMNS))};
    const update_arguments arguments = {.muon_learning_rate = 1, .gradient_scale = 1};
    const update_report failed = {.failed = 1};
    w.operands = w.weights;
    void *args = be->memory->allocate(be, sizeof arguments),
         *report = be->memory->allocate(be, sizeof failed);
    be->memory->upload(be, args, &arguments, sizeof arguments);
    be->memory->upload(be, report, &failed, sizeof failed);
    muon_step(be, &w, args, report);
    void *const held[] = {w.weights, w.momentum, w.average, w.gradient, w.workspace, args, report};
    for (int i = 0; i < 3; i++) {
        double *now = get(be, held[i], COUNT, REAL);
        for (int k = 0; k < COUNT; k++) assert_true(now[k] == (float)values[k]);
        free(now);
    }
    release_all(be, held, 7);
    be->memory->layout_free(be, (device_layout *)w.square);
    layout_free(l);
    free(values);
    be->memory->destroy(be);
}

/* Dynamic evaluation's step against the formula, with squares that are averaged and with squares
 * that stay even where the gradient is not finite. */
static void test_adapt(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    random_restart(9);
    for (int stay = 0; stay < 2; stay++) {
        const precision precision = stay ? FP32 : BF16;
        backend *be = test_backend(precision);
        double *w = random_values(COUNT, -1, 1), *g = random_values(COUNT, -50, 50);
        double *trained = random_values(COUNT, -1, 1), *v = random_values(COUNT, 0.01, 0.1);
        if (stay) g[7] = NAN;
        const update_arguments how = {.learning_rate = 0.03,
                                      .epsilon = 0.01,
                                      .gradient_scale = 0.02,
                                      .average = stay ? 1 : 0.75,
                                      .weight_decay = 0.125};
        void *a[4] = {put(be, w, COUNT, REAL), put(be, g, COUNT, REAL),
                      put(be, trained, COUNT, REAL), put(be, v, COUNT, REAL)};
        void *operands = stay ? a[0] : put_poison(be, COUNT, OPERAND);
        update_arguments *arguments = be->memory->allocate(be, sizeof *arguments);
        be->memory->upload(be, arguments, &how, sizeof how);
        be->update->adapt(be, COUNT, a[0], a[1], a[2], a[3], operands, arguments);
        double *weights = get(be, a[0], COUNT, REAL), *squares = get(be, a[3], COUNT, REAL);
        double *rounded = get(be, operands, COUNT, OPERAND);
        for (size_t i = 0; i < COUNT; i++) {
            if (stay && i == 7) {
                assert_true(isnan(weights[i]) && squares[i] == (double)(float)v[i]);
                continue;
            }
            const double d = g[i] * 0.02, square = stay ? v[i] : 0.75 * v[i] + 0.25 * d * d;
            const double step = 0.03 * d / (sqrt(square) + 0.01);
            assert_true(fabs(squares[i] - square) < 1e-6);
            assert_true(fabs(weights[i] - (w[i] - step - 0.125 * (w[i] - trained[i]))) < 1e-6);
            assert_true(fabs(rounded[i] - weights[i]) <= (stay ? 0 : 0.004) * fabs(weights[i]));
        }
        free(weights);
        free(squares);
        free(rounded);
        for (int i = 0; i < 4; i++) be->memory->release(be, a[i]);
        if (!stay) be->memory->release(be, operands);
        be->memory->release(be, arguments);
        free(w);
        free(g);
        free(trained);
        free(v);
        be->memory->destroy(be);
    }
}

/* A gradient or loss that is not finite changes nothing, and nor does any later update. */
static void test_adam_refuses_nan(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    const size_t count = 64;
    for (int kind = 0; kind < 2; kind++) {
        double *values = random_values(count, -1, 1);
        void *w = put(be, values, count, REAL), *m = put(be, values, count, REAL);
        void *v = put(be, values, count, REAL), *mean = put(be, values, count, REAL);
        update_report seen = {.loss = kind ? INFINITY : 1};
        update_arguments arguments = {.learning_rate = 1,
                                      .beta1 = 0.9,
                                      .beta2 = 0.9,
                                      .epsilon = 1e-8,
                                      .gradient_scale = 1,
                                      .update = 11};
        update_report *report = be->memory->allocate(be, sizeof *report);
        update_arguments *args = be->memory->allocate(be, sizeof *args);
        be->memory->upload(be, report, &seen, sizeof seen);
        be->memory->upload(be, args, &arguments, sizeof arguments);
        double *gradients = random_values(count, -1, 1);
        if (kind == 0) gradients[40] = NAN;
        void *g = put(be, gradients, count, REAL);
        be->update->adam(be, count, w, g, m, v, mean, w, NULL, args, report);
        be->memory->download(be, &seen, report, sizeof seen);
        assert_true(seen.failed == 12);
        gradients[40] = 0;
        be->memory->release(be, g);
        g = put(be, gradients, count, REAL);
        seen.loss = 1;
        be->memory->upload(be, report, &seen, sizeof seen);
        be->update->adam(be, count, w, g, m, v, mean, w, NULL, args, report);
        be->memory->download(be, &seen, report, sizeof seen);
        assert_true(seen.failed == 12);
        void *kept[] = {w, m, v, mean};
        for (int i = 0; i < 4; i++) {
            double *after = get(be, kept[i], count, REAL);
            for (size_t k = 0; k < count; k++) assert_true((float)after[k] == (float)values[k]);
            free(after);
            be->memory->release(be, kept[i]);
        }
        be->memory->release(be, g);
        be->memory->release(be, report);
        be->memory->release(be, args);
        free(gradients);
        free(values);
    }
    be->memory->destroy(be);
}

static void test_round(void **state) {
    (void)state;
    pair p = open_pair(BF16);
    random_restart(9);
    const size_t count = 1000;
    double *values = random_values(count, -1e3, 1e3), *result[2];
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        void *in = put(be, values, count, REAL), *out = put_poison(be, count, OPERAND);
        be->update->round(be, count, in, out);
        result[side] = get(be, out, count, OPERAND);
        be->memory->release(be, in);
        be->memory->release(be, out);
    }
    assert_close(&p, "round", result[0], result[1], count);
    free(values);
    free(result[0]);
    free(result[1]);
    close_pair(&p);
}

static void test_add(void **state) {
    (void)state;
    pair p = open_pair(FP32);
    random_restart(10);
    const size_t count = 5 * 256;
    double *total = random_values(count, -1e3, 1e3), *x = random_values(count, -1, 1), *result[2];
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        void *to = put(be, total, count, REAL), *from = put(be, x, count, REAL);
        be->update->add(be, count, to, from);
        result[side] = get(be, to, count, REAL);
        be->memory->release(be, to);
        be->memory->release(be, from);
    }
    assert_close(&p, "add", result[0], result[1], count);
    free(total);
    free(x);
    free(result[0]);
    free(result[1]);
    close_pair(&p);
}

/* Layer norm's sums are tested with the model. */
static void test_add_rows(void **state) {
    (void)state;
    for (int i = 0; i < 2 * ODD; i++) {
        pair p = open_pair(i % 2 ? BF16 : FP32);
        layout *l = layout_dense(odd[i / 2], 8, i % 3 ? 1 : GATES, 1);
        random_restart(14);
        const int columns = 3 * p.be->column_multiple;
        const size_t count = layout_rows(l) * (size_t)columns;
        double *x = random_values(count, -1, 1), *y = random_values(count, -1, 1), *result[2];
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            device_layout *device = be->memory->layout_create(be, l);
            void *from = put(be, x, count, OPERAND), *to = put(be, y, count, OPERAND);
            be->cell->add_rows(be, device, from, columns, to);
            result[side] = get(be, to, count, OPERAND);
            be->memory->layout_free(be, device);
            be->memory->release(be, from);
            be->memory->release(be, to);
        }
        assert_close(&p, "add_rows", result[0], result[1], count);
        free(x);
        free(y);
        free(result[0]);
        free(result[1]);
        layout_free(l);
        close_pair(&p);
    }
}

/* Normed rows of a W whose sides nothing divides. */
static void test_norm_odd_rows(void **state) {
    (void)state;
    for (int i = 0; i < 2 * ODD; i++) {
        pair p = open_pair(i % 2 ? BF16 : FP32);
        const int gates = i % 3 ? 1 : COUPLED_GATES;
        const size_t rows = (size_t)(odd[i / 2] * gates);
        layout *l = layout_dense(odd[i / 2], odd[ODD - 1 - i / 2], gates, 1);
        const size_t weights = layout_weights(l);
        random_restart(17);
        double *gain = random_values(rows, -2, 2), *w = random_values(weights, -1, 1);
        double *d = random_values(weights, -1, 1), *made[2], *turned[2], *dgain[2];
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            device_layout *device = be->memory->layout_create(be, l);
            void *at[] = {put(be, w, weights, REAL), put(be, gain, rows, REAL),
                          put_poison(be, weights, OPERAND), put(be, d, weights, REAL),
                          put_poison(be, rows, REAL)};
            const normed_rows r = {
                .count = 1, .gain = at[1], .layout = {device}, .weight = {at[0]}};
            be->update->norm_rows(be, &r, (void *[2]){at[2]});
            be->update->norm_rows_backward(be, &r, (void *[2]){at[3]}, at[4]);
            made[side] = get(be, at[2], weights, OPERAND);
            turned[side] = get(be, at[3], weights, REAL);
            dgain[side] = get(be, at[4], rows, REAL);
            release_all(be, at, 5);
            be->memory->layout_free(be, device);
        }
        assert_close(&p, "norm_rows", made[0], made[1], weights);
        if (l->in_block > 1) { /* of one column nothing is left */
            assert_true(relative_error(turned[0], turned[1], weights) < 1e-4);
        }
        assert_true(relative_error(dgain[0], dgain[1], rows) < 1e-5);
        for (int side = 0; side < 2; side++)
            free(made[side]), free(turned[side]), free(dgain[side]);
        free(gain);
        free(w);
        free(d);
        layout_free(l);
        close_pair(&p);
    }
}

/* Normed rows of one W and of two, dense and sparse, one of whose rows is zeros and one of whose
 * nodes has no block; and their gradient. */
static void test_norm_rows(void **state) {
    (void)state;
    static const int32_t pairs[][2] = {{0, 1}, {0, 4}, {1, 0}, {3, 2}};
    for (int kind = 0; kind < 8; kind++) {
        const int gates = kind & 1 ? GATES : COUPLED_GATES, count = kind & 2 ? 2 : 1;
        pair p = open_pair(kind & 4 ? BF16 : FP32);
        layout *sparse = layout_pairs(4, 5, pairs, 4, 8, 0),
               *dense = layout_dense(32, 72, gates, 1);
        const size_t rows = (size_t)gates * 32, zero = 35;
        sparse->gates = gates;
        random_restart(16);
        const layout *l[2] = {kind & 1 ? sparse : dense, kind & 1 ? dense : sparse};
        double *gain = random_values(rows, -2, 2), *w[2], *d[2], *made[2][2], *turned[2][2],
               *dgain[2];
        for (int i = 0; i < count; i++) {
            const size_t weights = layout_weights(l[i]);
            w[i] = random_values(weights, -1, 1);
            d[i] = random_values(weights, -1, 1);
            /* Gate 1 of unit 3 is row `zero`, of the first node's two blocks or the dense one. */
            const size_t block = (size_t)l[i]->out_block, in = (size_t)l[i]->in_block;
            for (size_t k = 0; k < (l[i] == sparse ? 2 : 1); k++) {
                memset(w[i] + ((k * (size_t)gates + 1) * block + 3) * in, 0, in * sizeof *w[i]);
            }
        }
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            device_layout *device[2] = {NULL, NULL};
            void *weight[2], *operand[2], *gradient[2], *of_gain = put_poison(be, rows, REAL);
            void *g = put(be, gain, rows, REAL);
            normed_rows r = {.count = count, .gain = g};
            for (int i = 0; i < count; i++) {
                r.layout[i] = device[i] = be->memory->layout_create(be, l[i]);
                r.weight[i] = weight[i] = put(be, w[i], layout_weights(l[i]), REAL);
                operand[i] = put_poison(be, layout_weights(l[i]), OPERAND);
                gradient[i] = put(be, d[i], layout_weights(l[i]), REAL);
            }
            be->update->norm_rows(be, &r, operand);
            be->update->norm_rows_backward(be, &r, gradient, of_gain);
            for (int i = 0; i < count; i++) {
                made[side][i] = get(be, operand[i], layout_weights(l[i]), OPERAND);
                turned[side][i] = get(be, gradient[i], layout_weights(l[i]), REAL);
                be->memory->layout_free(be, device[i]);
                be->memory->release(be, weight[i]);
                be->memory->release(be, operand[i]);
                be->memory->release(be, gradient[i]);
            }
            dgain[side] = get(be, of_gain, rows, REAL);
            be->memory->release(be, of_gain);
            be->memory->release(be, g);
        }
        for (int i = 0; i < count; i++) {
            assert_close(&p, "norm_rows", made[0][i], made[1][i], layout_weights(l[i]));
            assert_true(relative_error(turned[0][i], turned[1][i], layout_weights(l[i])) < 1e-5);
        }
        assert_true(relative_error(dgain[0], dgain[1], rows) < 1e-5);
        assert_true(dgain[0][zero] == 0 && dgain[0][zero + 1] != 0);
        /* Rows of length 1 times their gains, but for what is added. */
        if (l[0] == dense && count == 1) {
            for (size_t row = 0; row < rows; row++) {
                double square = 0;
                for (int j = 0; j < 72; j++)
                    square += made[1][0][row * 72 + j] * made[1][0][row * 72 + j];
                const double wanted = row == zero ? 0 : fabs(gain[row]);
                assert_true(fabs(sqrt(square) - wanted) < 5e-3 * (wanted + 1e-3));
            }
        }
        for (int i = 0; i < count; i++) {
            free(w[i]);
            free(d[i]);
            for (int side = 0; side < 2; side++) free(made[side][i]), free(turned[side][i]);
        }
        free(gain);
        free(dgain[0]);
        free(dgain[1]);
        layout_free(sparse);
        layout_free(dense);
        close_pair(&p);
    }
}

static void test_transpose(void **state) {
    (void)state;
    static const int sizes[][2] = {{64, 64}, {8, 136}, {200, 8}, {136, 264}, {64 << 16, 8}};
    const int count_of_sizes = test_device_is_cuda() ? 5 : 4; /* the last: many tiles for a grid */
    for (int i = 0; i < 2 * count_of_sizes; i++) {
        const int rows = sizes[i / 2][0], columns = sizes[i / 2][1];
        pair p = open_pair(i % 2 ? BF16 : FP32);
        const size_t count = (size_t)rows * (size_t)columns;
        double *x = random_values(count, -1, 1), *result[2];
        random_restart(15);
        for (int side = 0; side < 2; side++) {
            backend *be = side ? p.trusted : p.be;
            void *from = put(be, x, count, OPERAND), *to = put_poison(be, count, OPERAND);
            be->memory->transpose(be, to, from, rows, columns);
            result[side] = get(be, to, count, OPERAND);
            be->memory->release(be, from);
            be->memory->release(be, to);
        }
        assert_close(&p, "transpose", result[0], result[1], count);
        for (int r = 0; r < rows; r += 7) { /* the reference itself */
            const size_t at = (size_t)r * (size_t)columns + 3;
            assert_true(fabs(result[1][3 * (size_t)rows + (size_t)r] - x[at]) < 4e-3);
        }
        free(x);
        free(result[0]);
        free(result[1]);
        close_pair(&p);
    }
}

/* -------------------------------------------------------------------------------- recordings */

typedef struct replayed {
    backend *be;
    void *x;
    double *sum;
} replayed;

static void issue_sum(void *argument) {
    replayed *r = argument;
    r->be->update->sum(r->be, r->x, 100, r->sum);
}

static void test_recording(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    double *ones = mem_alloc(100, sizeof *ones), total;
    for (int i = 0; i < 100; i++) ones[i] = 1;
    replayed r = {be, put(be, ones, 100, REAL), be->memory->allocate(be, sizeof(double))};
    be->memory->zero(be, r.sum, sizeof *r.sum);
    recording *recorded = be->memory->record(be, issue_sum, &r);
    be->memory->download(be, &total, r.sum, sizeof total);
    assert_true(total == 0); /* recording does not run the operations */
    for (int i = 0; i < 3; i++) be->memory->replay(be, recorded);
    be->memory->download(be, &total, r.sum, sizeof total);
    assert_true(total == 300);
    error err;
    assert_true(be->memory->finish(be, &err));
    be->memory->recording_free(be, recorded);
    be->memory->release(be, r.x);
    be->memory->release(be, r.sum);
    free(ones);
    be->memory->destroy(be);
}

/* A recording with marks before, between and after work of two sizes. */
typedef struct marked {
    backend *be;
    void *x;
    size_t bytes;
} marked;

static void issue_marked(void *argument) {
    const marked *m = argument;
    m->be->memory->mark(m->be, 0);
    m->be->memory->zero(m->be, m->x, m->bytes);
    m->be->memory->mark(m->be, 1);
    for (int i = 0; i < 50; i++) m->be->memory->zero(m->be, m->x, m->bytes);
    m->be->memory->mark(m->be, 20);
}

static void test_marks(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    marked m = {be, be->memory->allocate(be, 16 << 20), 16 << 20};
    recording *recorded = be->memory->record(be, issue_marked, &m);
    double least_one = INFINITY, least_fifty = INFINITY; /* other work may interrupt a replay */
    for (int i = 0; i < 8; i++) {
        be->memory->replay(be, recorded);
        const double one = be->memory->elapsed(be, 0, 1), fifty = be->memory->elapsed(be, 1, 20),
                     all = be->memory->elapsed(be, 0, 20);
        assert_true(one > 0 && fabs(one + fifty - all) < 0.01 * all);
        least_one = fmin(least_one, one);
        least_fifty = fmin(least_fifty, fifty);
    }
    assert_true(least_fifty > 10 * least_one);
    be->memory->mark(be, 2); /* outside a recording */
    assert_true(be->memory->elapsed(be, 20, 2) >= 0);
    error err;
    assert_true(be->memory->finish(be, &err));
    be->memory->recording_free(be, recorded);
    be->memory->release(be, m.x);
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_softmax),
        cmocka_unit_test(test_losses_are_unbiased),
        cmocka_unit_test(test_softmax_of_classes),
        cmocka_unit_test(test_softmax_of_equals),
        cmocka_unit_test(test_denormals),
        cmocka_unit_test(test_sample_frequencies),
        cmocka_unit_test(test_sample_cut),
        cmocka_unit_test(test_sample_pair),
        cmocka_unit_test(test_nan_is_seen),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_row_sums),
        cmocka_unit_test(test_pool_long),
        cmocka_unit_test(test_adam),
        cmocka_unit_test(test_muon),
        cmocka_unit_test(test_muon_failed),
        cmocka_unit_test(test_clipping),
        cmocka_unit_test(test_adapt),
        cmocka_unit_test(test_adam_refuses_nan),
        cmocka_unit_test(test_round),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_add_rows),
        cmocka_unit_test(test_recording),
        cmocka_unit_test(test_transpose),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_norm_rows),
        cmocka_unit_test(test_norm_odd_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
