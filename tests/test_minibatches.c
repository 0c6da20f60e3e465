/* Sequences, which join a corpus's documents, and the minibatches that the reader cuts of them. */
#include "data/minibatches.h"

#include "core/memory.h"
#include "corpora.h"
#include "support.h"

#include <inttypes.h>
#include <math.h>
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
    const uint64_t stripe = (c->size - 1) / 7;
    sequence *s = sequence_shuffled(c, 5, 3, stripe), *same = sequence_shuffled(c, 5, 3, stripe);
    sequence *epoch = sequence_shuffled(c, 5, 4, stripe),
             *seed = sequence_shuffled(c, 6, 3, stripe);
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
                                           {6, 8, 2, 5, 7, 9, 3, 0, 4, 1}};
    write_random("ten.tsv", 10, 5, NULL);
    corpus *c = read_one("ten.tsv");
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        sequence *s = sequence_shuffled(c, 7, epoch, c->size / 2);
        assert_memory_equal(s->order, orders[epoch], sizeof orders[epoch]);
        sequence_free(s);
    }
    corpus_free(c);
}

/* The share of its stripe that is read before the middle of each document. */
static double *middles(const sequence *s, uint64_t stripe) {
    double *middle = mem_alloc(s->count, sizeof *middle);
    for (size_t i = 0; i < s->count; i++) {
        const uint64_t at = (s->start[i] + s->start[i + 1]) / 2;
        middle[s->order[i]] = (double)(at % stripe) / (double)stripe;
    }
    return middle;
}

/* A document is read in the same half of every epoch, but for a few where the halves meet; its
 * place within the half is random, and so is its stripe. */
static void test_sequence_halves(void **state) {
    (void)state;
    enum { DOCUMENTS = 2000 };
    write_random("many.tsv", DOCUMENTS, 60, NULL);
    corpus *c = read_one("many.tsv");
    for (uint64_t batch = 1; batch <= 16; batch *= 4) {
        const uint64_t stripe = (c->size - 1) / batch;
        sequence *first = sequence_shuffled(c, 7, 0, stripe);
        double *was = middles(first, stripe);
        for (uint64_t epoch = 1; epoch < 4; epoch++) {
            sequence *s = sequence_shuffled(c, 7, epoch, stripe);
            double *is = middles(s, stripe), together = 0;
            uint64_t moved = 0;
            for (size_t i = 0; i < DOCUMENTS; i++) {
                moved += (was[i] < 0.5) != (is[i] < 0.5);
                together += (fmod(was[i], 0.5) - 0.25) * (fmod(is[i], 0.5) - 0.25);
            }
            assert_in_range(moved, 0, 2 * batch);
            assert_true(fabs(together * 48 / DOCUMENTS) < 0.1); /* correlation, error .022 */
            assert_in_range(places_in_common(s, first), 0, 12);
            free(is);
            sequence_free(s);
        }
        free(was);
        sequence_free(first);
    }
    corpus_free(c);
}

enum { BATCH = 6, COLUMNS = 8, STEPS = 11, SEED = 21 };

static void assert_minibatch(const minibatch *m, const uint8_t *whole, size_t size) {
    size_t stripe = (size - 1) / BATCH;
    for (size_t t = 0; t < STEPS; t++) {
        for (size_t k = 0; k < COLUMNS; k++) {
            size_t position = k * stripe + m->update * STEPS + t, at = t * COLUMNS + k;
            assert_int_equal(m->inputs[at], k < BATCH ? whole[position] : 0);
            assert_int_equal(m->targets[at], k < BATCH ? whole[position + 1] : -1);
        }
    }
}

/* Each input has the class of its document, and a weight that rises with its place in that, also
 * where a stripe begins within it; without a class it weighs nothing. */
static void test_reader_classes(void **state) {
    (void)state;
    corpus *c = mixed_corpus();
    c->classes = mem_alloc(c->count, sizeof *c->classes);
    for (size_t i = 0; i < c->count; i++) c->classes[i] = (int16_t)((int)(i % 5) - 1);
    c->class_weights = mem_alloc(4, sizeof *c->class_weights);
    for (int k = 0; k < 4; k++) c->class_weights[k] = 1 + k;
    const uint64_t updates = reader_epoch_updates(c, BATCH, STEPS);
    const size_t stripe = (c->size - 1) / BATCH;
    reader *r = reader_start(c, all_streams(BATCH), COLUMNS, STEPS, SEED, 0);
    sequence *s = sequence_shuffled(c, SEED, 0, stripe);
    int16_t *class = mem_alloc(c->size, sizeof *class);
    float *weight = mem_alloc(c->size, sizeof *weight);
    double total = 0;
    for (size_t i = 0, at = 0; i < s->count; i++) {
        const size_t length = c->documents[s->order[i]].length;
        for (size_t k = 0; k < length; k++, at++) {
            class[at] = c->classes[s->order[i]];
            const double ramp = 2.0 * (double)(k + 1) / (double)(length + 1);
            weight[at] = (float)(ramp * (class[at] < 0 ? 0 : 1 + class[at]));
            total += ramp;
        }
    }
    assert_true(total / (double)c->size > 0.9999 && total / (double)c->size < 1.0001);
    for (uint64_t update = 0; update < updates; update++) {
        const minibatch *m = reader_next(r);
        for (size_t i = 0; i < STEPS * COLUMNS; i++) {
            const size_t k = i % COLUMNS, at = k * stripe + update * STEPS + i / COLUMNS;
            assert_int_equal(m->classes[i], k < BATCH ? class[at] : -1);
            if (k < BATCH) assert_true(m->weights[i] == weight[at]);
        }
    }
    free(class);
    free(weight);
    sequence_free(s);
    reader_stop(r);
    corpus_free(c);
}

static void test_reader(void **state) {
    (void)state;
    corpus *c = mixed_corpus();
    uint64_t updates = reader_epoch_updates(c, BATCH, STEPS);
    assert_int_equal(updates, (c->size - 1) / BATCH / STEPS);
    assert_in_range(updates, 100, 1000);
    reader *r = reader_start(c, all_streams(BATCH), COLUMNS, STEPS, SEED, 0);
    for (uint64_t epoch = 0; epoch < 2; epoch++) {
        sequence *s = sequence_shuffled(c, SEED, epoch, (c->size - 1) / BATCH);
        buffer whole = concatenation(s);
        for (uint64_t update = 0; update < updates; update++) {
            const minibatch *m = reader_next(r);
            assert_int_equal(m->epoch, epoch);
            assert_int_equal(m->update, update);
            assert_minibatch(m, whole.bytes, whole.size);
            if (update == updates / 2) { /* the batch stays valid while the thread runs ahead */
                usleep(20000);
                assert_int_equal(m->update, update);
                assert_minibatch(m, whole.bytes, whole.size);
            }
        }
        free(whole.bytes);
        sequence_free(s);
    }
    reader_stop(r);
    corpus_free(c);
}

/* Every byte is predicted at most once, and those that are dropped are counted. */
static void test_reader_dropped(void **state) {
    (void)state;
    write_random("small.tsv", 20, 40, NULL);
    corpus *c = read_one("small.tsv");
    uint64_t size = c->size;
    for (int batch = 1; batch < 12; batch++) {
        for (int steps = 1; steps < 40; steps += 3) {
            uint64_t updates = reader_epoch_updates(c, batch, steps);
            uint8_t *predicted = mem_alloc(size, 1);
            for (uint64_t k = 0; k < (uint64_t)batch; k++) {
                for (uint64_t t = 0; t < updates * (uint64_t)steps; t++) {
                    uint64_t target = k * ((size - 1) / (uint64_t)batch) + t + 1;
                    assert_in_range(target, 1, size - 1);
                    assert_int_equal(predicted[target]++, 0);
                }
            }
            uint64_t dropped = 0;
            for (uint64_t i = 0; i < size; i++) dropped += !predicted[i];
            assert_int_equal(reader_epoch_dropped(c, batch, steps), dropped);
            assert_in_range(dropped, 1, (uint64_t)(batch * steps + batch));
            free(predicted);
        }
    }
    assert_int_equal(reader_epoch_updates(c, 1, (int)size - 1), 1);
    assert_int_equal(reader_epoch_dropped(c, 1, (int)size - 1), 1);
    assert_int_equal(reader_epoch_updates(c, 1, (int)size), 0);
    assert_int_equal(reader_epoch_dropped(c, 1, (int)size), size);
    assert_int_equal(reader_epoch_updates(c, (int)size, 1), 0);
    corpus_free(c);
    corpus nothing = {0};
    assert_int_equal(reader_epoch_updates(&nothing, 4, 4), 0);
    assert_int_equal(reader_epoch_dropped(&nothing, 4, 4), 0);
}

static void test_reader_first(void **state) {
    (void)state;
    corpus *c = mixed_corpus();
    uint64_t updates = reader_epoch_updates(c, BATCH, STEPS);
    uint64_t firsts[] = {1, updates - 1, updates, updates + updates / 2, 3 * updates - 1};
    for (int i = 0; i < 5; i++) {
        reader *all = reader_start(c, all_streams(BATCH), COLUMNS, STEPS, SEED, 0);
        for (uint64_t skipped = 0; skipped < firsts[i]; skipped++) reader_next(all);
        reader *later = reader_start(c, all_streams(BATCH), COLUMNS, STEPS, SEED, firsts[i]);
        for (uint64_t n = 0; n < updates + 5; n++) {
            const minibatch *a = reader_next(all), *b = reader_next(later);
            assert_int_equal(b->epoch, (firsts[i] + n) / updates);
            assert_int_equal(b->update, (firsts[i] + n) % updates);
            assert_int_equal(a->epoch, b->epoch);
            assert_int_equal(a->update, b->update);
            assert_memory_equal(a->inputs, b->inputs, STEPS * COLUMNS);
            assert_memory_equal(a->targets, b->targets, STEPS * COLUMNS * sizeof *a->targets);
        }
        reader_stop(all);
        reader_stop(later);
    }
    corpus_free(c);
}

/* main's alarm ends a deadlock. */
static void test_reader_stop(void **state) {
    (void)state;
    corpus *c = mixed_corpus();
    for (int i = 0; i < 300; i++) {
        reader *r = reader_start(c, all_streams(BATCH), COLUMNS, STEPS, SEED, (uint64_t)i);
        for (int n = 0; n < i % 7; n++) reader_next(r);
        if (i % 10 == 0) usleep(2000); /* the ring is full, and the thread sleeps */
        reader_stop(r);
    }
    reader_stop(NULL);

    /* an epoch is one update, so each minibatch has its own order */
    reader *r = reader_start(c, all_streams(1), 1, (int)c->size - 1, SEED, 0);
    for (uint64_t epoch = 0; epoch < 10; epoch++) {
        const minibatch *m = reader_next(r);
        sequence *s = sequence_shuffled(c, SEED, epoch, c->size - 1);
        buffer whole = concatenation(s);
        assert_int_equal(m->epoch, epoch);
        assert_int_equal(m->update, 0);
        assert_memory_equal(m->inputs, whole.bytes, whole.size - 1);
        free(whole.bytes);
        sequence_free(s);
    }
    reader_stop(r);
    corpus_free(c);
}

int main(void) {
    alarm(300); /* a deadlock ends the tests */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequence_in_order),
        cmocka_unit_test(test_sequence_shuffled),
        cmocka_unit_test(test_sequence_pinned),
        cmocka_unit_test(test_sequence_halves),
        cmocka_unit_test(test_reader),
        cmocka_unit_test(test_reader_classes),
        cmocka_unit_test(test_reader_dropped),
        cmocka_unit_test(test_reader_first),
        cmocka_unit_test(test_reader_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
