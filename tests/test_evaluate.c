/* Evaluation in stripes, exactly, and of a prefix of the text. */
#include "runs.h"

#include "train/evaluate.h"

#include <math.h>

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
    l.be->recording_free(l.be, r);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_evaluation),
        TEST(test_stripes_of_short_texts),
        TEST(test_warm_up),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
