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

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_evaluation),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
