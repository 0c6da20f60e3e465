/* Evaluation in stripes, exactly, and of a prefix of the text. */
#include "runs.h"

#include "core/memory.h"
#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static evaluation score(const char *name, char *path, int batch, int steps, uint64_t limit,
                        bool exact) {
    loaded l;
    load(&l, name, batch, steps);
    corpus *c = read_corpus(path);
    sequence *s = sequence_in_order(c);
    recording *r = evaluate_record(l.m);
    evaluation e;
    error err;
    if (!evaluate(l.m, r, s, limit, exact, false, &e, &err)) fail_msg("%s", err.text);
    l.be->memory->recording_free(l.be, r);
    sequence_free(s);
    corpus_free(c);
    unload(&l);
    return e;
}

static void test_evaluation(void **state) {
    (void)state;
    train_result r = run("scored", TRAIN_FRESH, "run.precision=fp32 train.valid_bytes=0");
    evaluation e = score("scored", valid_file, 4, 16, 0, false);
    if (!(fabs(e.bpc - r.valid_bpc) < 1e-6)) fail_msg("%.9g, in training %.9g", e.bpc, r.valid_bpc);

    /* This text is long enough for 8 stripes of 1,024 bytes and more. */
    char *path = path_of("long.tsv");
    write_documents(path, 400, 3);
    corpus *c = read_corpus(path);
    uint64_t size = c->size;
    assert_true(size > 9 * 1024);
    corpus_free(c);
    evaluation exact = score("scored", path, 1, 50, 0, true);
    assert_int_equal(exact.bytes, size - 1);
    assert_true(exact.bpc > 1 && exact.bpc < 4);
    static const int batches[] = {1, 5, 12};
    for (int i = 0; i < 3; i++) {
        evaluation striped = score("scored", path, batches[i], 37, 0, false);
        assert_int_equal(striped.bytes, size - 1);
        double most = batches[i] == 1 ? 1e-6 : 2e-3;
        if (!(fabs(striped.bpc - exact.bpc) < most)) {
            fail_msg("%d stripes: %.9g, exact %.9g", batches[i], striped.bpc, exact.bpc);
        }
    }
    evaluation one = score("scored", path, 6, 16, 0, true); /* exact for any batch */
    assert_true(fabs(one.bpc - exact.bpc) < 1e-6);

    /* A limit means a prefix. The smallest has 2 bytes, of which 1 is predicted. */
    char *prefix = path_of("prefix.txt"), *whole = path_of("whole.txt");
    c = read_corpus(path);
    write_bytes(whole, c->bytes, (size_t)size);
    write_bytes(prefix, c->bytes, 777);
    corpus_free(c);
    evaluation limited = score("scored", path, 4, 16, 777, false);
    assert_int_equal(limited.bytes, 776);
    assert_true(fabs(limited.bpc - score("scored", prefix, 4, 16, 0, false).bpc) < 1e-6);
    assert_int_equal(score("scored", path, 4, 16, 2, false).bytes, 1);
    assert_int_equal(score("scored", path, 4, 16, size + 5, true).bytes, size - 1);
    /* A TSV is scored as its framed documents, joined. */
    assert_true(fabs(score("scored", whole, 1, 50, 0, true).bpc - exact.bpc) < 1e-9);
}

/* The nats of `bytes` [from, end) of a text, exactly. */
static double nats_of(const corpus *c, size_t from, size_t end) {
    char *path = path_of("slice.txt");
    write_bytes(path, c->bytes + from, end - from);
    const evaluation e = score("lasting", path, 1, 64, 0, true);
    return e.bpc * (double)e.bytes;
}

/* A stripe for each whole warm-up among the predicted bytes, and at least one. */
static void test_stripes_of_short_texts(void **state) {
    (void)state;
    assert_int_equal(evaluate_stripes(2), 1);
    assert_int_equal(evaluate_stripes(EVALUATE_WARM_UP), 1);
    assert_int_equal(evaluate_stripes(EVALUATE_WARM_UP + 1), 1);
    assert_int_equal(evaluate_stripes(2 * EVALUATE_WARM_UP), 1);
    assert_int_equal(evaluate_stripes(2 * EVALUATE_WARM_UP + 1), 2);
}

/* A stripe but the first is warmed up on exactly the 1,024 bytes before it. The model forgets
 * nothing, so that one byte less would show. */
static void test_warm_up(void **state) {
    (void)state;
    run("lasting", TRAIN_FRESH, "run.precision=fp32 model.forget_bias=12 train.steps=3");
    char *path = path_of("stripes.tsv");
    write_documents(path, 300, 5);
    corpus *c = read_corpus(path);
    const size_t size = c->size, count = 4;
    assert_true(size > (count + 1) * 1024);
    double nats = 0;
    for (size_t k = 0; k < count; k++) {
        const size_t first = 1 + (size - 1) / count * k + (size - 1) % count * k / count;
        const size_t end = 1 + (size - 1) / count * (k + 1) + (size - 1) % count * (k + 1) / count;
        const size_t read = k > 0 ? first - 1024 : 0;
        nats += nats_of(c, read, end) - (k > 0 ? nats_of(c, read, first) : 0);
    }
    const evaluation striped = score("lasting", path, (int)count, 64, 0, false);
    assert_true(fabs(striped.bpc * (double)striped.bytes / nats - 1) < 2e-7);
    corpus_free(c);
}

/* ------------------------------------------------------------------------- dynamic evaluation */

static evaluation learn(loaded *l, const sequence *s, uint64_t limit, double rate, double decay) {
    recording *segment = evaluate_record_dynamic(l->m);
    const dynamic_rates rates = {.rate = rate, .decay = decay};
    evaluation e;
    error err;
    if (!evaluate_dynamic(l->m, segment, s, limit, &rates, false, &e, &err)) {
        fail_msg("%s", err.text);
    }
    l->be->memory->recording_free(l->be, segment);
    return e;
}

/* The bits of a text of one stripe by the definition: a segment is scored, then every weight takes
 * its step on the host. */
static double learn_on_host(loaded *l, const corpus *c, uint64_t size, double rate, double decay) {
    model *m = l->m;
    const size_t total = m->parameters.total, positions = (size_t)(m->steps * m->columns);
    float *trained = model_download(m, m->average, 0, total), *w = mem_alloc(total, sizeof *w);
    double *squares = mem_alloc(total, sizeof *squares), nats = 0;
    uint8_t *bytes = mem_alloc(positions, 1);
    int16_t *targets = mem_alloc(positions, sizeof *targets);
    const size_t values = (size_t)m->config.hidden;
    float *h = mem_alloc(values, sizeof *h), *cell = mem_alloc(values, sizeof *cell);
    memcpy(w, trained, total * sizeof *w);
    model_zero_state(m);
    for (uint64_t from = 0, n = 1; from + 1 < size; from += (uint64_t)m->steps, n++) {
        int scored = 0;
        memset(bytes, 0, positions);
        for (size_t i = 0; i < positions; i++) targets[i] = -1;
        for (int t = 0; t < m->steps && from + (uint64_t)t + 1 < size; t++, scored++) {
            bytes[t * m->columns] = c->bytes[from + (uint64_t)t];
            targets[t * m->columns] = c->bytes[from + (uint64_t)t + 1];
        }
        update_report report = {0};
        model_copy_state(m, MODEL_H, h);
        model_copy_state(m, MODEL_C, cell);
        model_load(m, w);
        model_set_state(m, MODEL_H, h);
        model_set_state(m, MODEL_C, cell);
        l->be->memory->upload(l->be, m->report, &report, sizeof report);
        model_set_text(m, bytes, targets);
        model_gradient(m);
        l->be->memory->download(l->be, &report, m->report, sizeof report);
        nats += report.loss;
        float *g = model_download(m, m->gradient, 0, total);
        for (size_t i = 0; i < total; i++) {
            const double d = (double)g[i] / scored;
            squares[i] += (d * d - squares[i]) / (double)n;
            const double step = squares[i] > 0 ? rate * d / (sqrt(squares[i]) + 1e-6) : 0;
            w[i] = (float)(w[i] - step - decay * ((double)w[i] - trained[i]));
        }
        free(g);
    }
    model_load(m, trained);
    free(h);
    free(cell);
    free(targets);
    free(bytes);
    free(squares);
    free(w);
    free(trained);
    return nats / (log(2) * (double)(size - 1));
}

static void test_dynamic(void **state) {
    (void)state;
    run("learning", TRAIN_FRESH, "run.precision=fp32 train.steps=5");
    char *path = path_of("dynamic.tsv");
    write_documents(path, 120, 11);
    corpus *c = read_corpus(path);
    sequence *s = sequence_in_order(c);
    loaded l;
    load_for(&l, "learning", 1, EVALUATE_SEGMENT, MODEL_TRAINING);
    const uint64_t most = 4000;
    const double still = score("learning", path, 1, 50, most, true).bpc;
    assert_true(fabs(learn(&l, s, most, 0, 0).bpc - still) < 1e-6);

    const double learnt = learn(&l, s, most, 1e-3, 1e-3).bpc;
    assert_true(learnt < still - 0.3);
    assert_true(learn(&l, s, most, 1e-3, 1e-3).bpc == learnt); /* from the trained weights again */
    /* The first steps by the definition; each is near the gradient's sign, so fp32 shows. */
    const double few = learn(&l, s, 300, 1e-3, 0.02).bpc;
    const double host = learn_on_host(&l, c, 300, 1e-3, 0.02);
    if (!(fabs(few - host) < 1e-4)) fail_msg("%.9g, on the host %.9g", few, host);
    assert_true(fabs(few - learn(&l, s, 300, 1e-3, 0).bpc) > 1e-4);

    /* Tuning finds rates that are better than those it begins with, and squares to go on with. */
    recording *segment = evaluate_record_dynamic(l.m);
    dynamic_rates rates = {.rate = 1e-5, .decay = 1e-3};
    evaluation untuned, tuned, again;
    error err;
    assert_true(evaluate_tune(l.m, segment, s, false, &rates, &untuned, &tuned, &err));
    assert_true(tuned.bpc < untuned.bpc - 0.3);
    assert_true(rates.squares_known && rates.rate > 4e-5);
    assert_true(evaluate_dynamic(l.m, segment, s, 0, &rates, false, &again, &err));
    assert_true(again.bpc == tuned.bpc); /* the whole text is shorter than what tuning reads */
    l.be->memory->recording_free(l.be, segment);
    unload(&l);
    sequence_free(s);
    corpus_free(c);
}

/* Bytes that only warm a stripe up are not learnt from. */
static void test_dynamic_stripes(void **state) {
    (void)state;
    char *path = path_of("dynamic.tsv");
    corpus *c = read_corpus(path);
    sequence *s = sequence_in_order(c);
    loaded l;
    load_for(&l, "learning", 4, EVALUATE_SEGMENT, MODEL_TRAINING);
    const evaluation still = score("learning", path, 4, 32, 0, false);
    const evaluation none = learn(&l, s, 0, 0, 0), some = learn(&l, s, 0, 1e-3, 1e-3);
    assert_true(fabs(none.bpc - still.bpc) < 1e-6);
    assert_int_equal(some.bytes, still.bytes);
    assert_true(some.bpc < still.bpc - 0.2);
    assert_true(learn(&l, s, 0, 1e-3, 1e-3).bpc == some.bpc);
    unload(&l);
    sequence_free(s);
    corpus_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_evaluation), TEST(test_stripes_of_short_texts), TEST(test_warm_up),
        TEST(test_dynamic),    TEST(test_dynamic_stripes),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
