/* Sequences, which join a corpus's documents. */
#include "core/memory.h"
#include "corpora.h"
#include "support.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void assert_copies(const sequence *s) {
    buffer whole = concatenation(s);
    assert_int_equal(s->size, whole.size);
    uint8_t *out = mem_alloc(whole.size + 1, 1);
    philox_stream draws = philox_start(2, PHILOX_TEST, 0, 0);
    for (int i = 0; i < 2000; i++) {
        size_t position = philox_below(&draws, whole.size + 1);
        size_t longest = i % 2 ? whole.size - position : 60;
        if (longest > whole.size - position) longest = whole.size - position;
        size_t count = philox_below(&draws, longest + 1);
        memset(out, 0xee, whole.size + 1);
        sequence_copy(s, position, count, out);
        assert_memory_equal(out, whole.bytes + position, count);
        assert_int_equal(out[count], 0xee);
    }
    for (size_t i = 0; i <= s->count; i++) { /* copy from each document's start to the end */
        sequence_copy(s, s->start[i], whole.size - s->start[i], out);
        assert_memory_equal(out, whole.bytes + s->start[i], whole.size - s->start[i]);
    }
    free(out);
    free(whole.bytes);
}

static void test_sequence_in_order(void **state) {
    (void)state;
    corpus *c = mixed_corpus();
    sequence *s = sequence_in_order(c);
    assert_int_equal(s->count, 303);
    for (size_t i = 0; i < s->count; i++) assert_int_equal(s->order[i], i);
    assert_int_equal(s->size, c->size);
    /* Nothing was dropped from this corpus, so it is the spool itself. */
    buffer whole = concatenation(s);
    assert_memory_equal(whole.bytes, c->bytes, c->size);
    free(whole.bytes);
    assert_copies(s);
    sequence_free(s);

    corpus *part = corpus_split(c, 0.5, 0.5); /* documents with gaps between them */
    s = sequence_in_order(c);
    assert_copies(s);
    sequence_free(s);
    s = sequence_in_order(part);
    assert_copies(s);
    sequence_free(s);
    corpus_free(part);
    corpus_free(c);

    corpus nothing = {0};
    s = sequence_in_order(&nothing);
    assert_int_equal(s->size, 0);
    sequence_copy(s, 0, 0, NULL);
    sequence_free(s);
    sequence_free(NULL);
}

static int places_in_common(const sequence *a, const sequence *b) {
    int common = 0;
    for (size_t i = 0; i < a->count; i++) common += a->order[i] == b->order[i];
    return common;
}

static void test_sequence_shuffled(void **state) {
    (void)state;
    corpus *c = mixed_corpus();
    sequence *s = sequence_shuffled(c, 5, 3), *same = sequence_shuffled(c, 5, 3);
    sequence *epoch = sequence_shuffled(c, 5, 4), *seed = sequence_shuffled(c, 6, 3);
    sequence *in_order = sequence_in_order(c);
    assert_memory_equal(s->order, same->order, s->count * sizeof *s->order);
    assert_in_range(places_in_common(s, epoch), 0, 12); /* 1 expected */
    assert_in_range(places_in_common(s, seed), 0, 12);
    assert_in_range(places_in_common(s, in_order), 0, 12);
    uint8_t seen[303] = {0};
    for (size_t i = 0; i < s->count; i++) {
        assert_in_range(s->order[i], 0, 302);
        assert_int_equal(seen[s->order[i]]++, 0);
    }
    assert_int_equal(s->size, c->size);
    assert_copies(s);
    sequence_free(s);
    sequence_free(same);
    sequence_free(epoch);
    sequence_free(seed);
    sequence_free(in_order);
    corpus_free(c);
}

/* Runs repeat on any machine, so these orders must never change. */
static void test_sequence_pinned(void **state) {
    (void)state;
    static const uint32_t orders[2][10] = {{6, 8, 4, 7, 9, 0, 3, 2, 1, 5},
                                           {0, 3, 1, 2, 4, 8, 9, 6, 7, 5}};
    write_random("ten.tsv", 10, 5, NULL);
    corpus *c = read_one("ten.tsv");
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        sequence *s = sequence_shuffled(c, 7, epoch);
        assert_memory_equal(s->order, orders[epoch], sizeof orders[epoch]);
        sequence_free(s);
    }
    corpus_free(c);
}

int main(void) {
    alarm(300); /* a test that hangs ends all tests */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequence_in_order),
        cmocka_unit_test(test_sequence_shuffled),
        cmocka_unit_test(test_sequence_pinned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
