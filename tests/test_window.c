/* Text that stays in its files: the reader's minibatches of it. */
#include "data/reader.h"

#include "core/memory.h"
#include "corpora.h"
#include "data/source.h"
#include "data/store.h"
#include "support.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BATCH = 12, STEPS = 61, SEED = 21, BLOCK = 700 };

static corpus *in_place(int count, const char *const *names, const in_place_options *how) {
    char *files[8];
    error err = {0};
    for (int i = 0; i < count; i++) files[i] = path_of(names[i]);
    corpus *c = corpus_read_in_place(files, count, &plain_text, how, &err);
    if (!c) fail_msg("refused: %s", err.text);
    return c;
}

static const in_place_options small_blocks = {.block = BLOCK};

/* Writes a file as a gzip whose members are of `member` bytes. */
static void zip(const char *from, const char *to, size_t member) {
    size_t size;
    char *text = read_text(path_of(from), &size);
    buffer zipped = {0};
    for (size_t at = 0; at < size; at += member) {
        buffer_add_gzip(&zipped, text + at, size - at < member ? size - at : member);
    }
    write_bytes(path_of(to), zipped.bytes, zipped.size);
    free(zipped.bytes);
    free(text);
}

/* Documents in files of three kinds, and two raw texts, one of them a gzip. */
static const char *const mixed[] = {"plain.tsv", "one.tsv.gz", "many.tsv.gz", "raw.txt", "raw.gz"};
enum { MIXED = 5 };

static int write_mixed(void **state) {
    (void)state;
    write_random("plain.tsv", 301, 40, NULL);
    write_random("other.tsv", 200, 90, NULL);
    zip("other.tsv", "one.tsv.gz", SIZE_MAX / 2);
    write_random("third.tsv", 150, 150, NULL);
    zip("third.tsv", "many.tsv.gz", 100);
    buffer text = {0};
    philox_stream draws = philox_start(1, PHILOX_TEST, 0, 0);
    buffer_add_random(&text, &draws, 9001);
    write_bytes(path_of("raw.txt"), text.bytes, text.size);
    buffer_add_random(&text, &draws, 5000);
    write_bytes(path_of("longer.txt"), text.bytes + 4000, 10001);
    zip("longer.txt", "raw.gz", 300);
    free(text.bytes);
    return 0;
}

/* All text of an epoch, by one stream and one update. */
static buffer epoch_text(const corpus *c, uint64_t epoch) {
    buffer b = {0};
    error err;
    reader *r = reader_start(c, all_streams(1), 1, (int)c->size - 1, SEED, epoch);
    const minibatch *m = reader_next(r, &err);
    assert_non_null(m);
    assert_int_equal(m->epoch, epoch);
    buffer_add(&b, m->inputs, c->size - 1);
    const uint8_t last = (uint8_t)m->targets[c->size - 2];
    buffer_add(&b, &last, 1);
    reader_stop(r);
    return b;
}

static void assert_same_minibatches(const corpus *a, const corpus *b) {
    assert_int_equal(a->size, b->size);
    const uint64_t updates = reader_epoch_updates(a, BATCH, STEPS);
    reader *one = reader_start(a, all_streams(BATCH), BATCH, STEPS, SEED, 0);
    reader *other = reader_start(b, all_streams(BATCH), BATCH, STEPS, SEED, 0);
    for (uint64_t n = 0; n < 2 * updates + 3; n++) {
        error err;
        const minibatch *x = reader_next(one, &err), *y = reader_next(other, &err);
        assert_non_null(y);
        assert_memory_equal(x->inputs, y->inputs, STEPS * BATCH);
        assert_memory_equal(x->targets, y->targets, STEPS * BATCH * sizeof *x->targets);
    }
    reader_stop(one);
    reader_stop(other);
}

/* Of raw text the order is the same as from a spool; `blocks` smaller than an update's share, and
 * larger than all. */
static void test_raw_text(void **state) {
    (void)state;
    static const uint64_t blocks[] = {1, 5, 700, 100000};
    corpus *spooled = read_files(&plain_text, 2, mixed + 3);
    for (int i = 0; i < 4; i++) {
        corpus *c = in_place(2, mixed + 3, &(in_place_options){.block = blocks[i]});
        assert_int_equal(corpus_documents(c), 2);
        assert_int_equal(corpus_hash(c) >= 0, 1);
        assert_same_minibatches(spooled, c);
        corpus_free(c);
    }
    corpus_free(spooled);
}

/* Two documents come in either order. */
static void test_two_documents(void **state) {
    (void)state;
    write_text(path_of("two.tsv"), "0\tone\n1\tother\n");
    const char *const names[] = {"two.tsv"};
    corpus *c = in_place(1, names, &(in_place_options){.block = 700});
    int first[2] = {0};
    for (uint64_t epoch = 0; epoch < 20; epoch++) {
        buffer text = epoch_text(c, epoch);
        const char *one = memmem(text.bytes, text.size, "one", 3);
        const char *other = memmem(text.bytes, text.size, "other", 5);
        assert_true(one && other);
        first[one < other]++;
        free(text.bytes);
    }
    assert_true(first[0] > 2 && first[1] > 2);
    corpus_free(c);
}

/* A gzip of one member is read from within: at its blocks of deflate, with the text that they refer
 * to. */
static void test_deflate_blocks(void **state) {
    (void)state;
    const char *names[] = {"deep.txt", "deep.gz"};
    buffer text = {0};
    philox_stream draws = philox_start(2, PHILOX_TEST, 0, 0);
    while (text.size < 1500000) { /* words that occur again and again */
        char word[16];
        snprintf(word, sizeof word, "%x ", (unsigned)philox_below(&draws, 5000) * 7919);
        buffer_add_text(&text, word);
    }
    write_bytes(path_of(names[0]), text.bytes, text.size);
    free(text.bytes);
    zip(names[0], names[1], SIZE_MAX / 2);
    corpus *spooled = read_one(names[0]);
    static const uint64_t blocks[] = {1000, 60000};
    for (int i = 0; i < 2; i++) {
        corpus *c = in_place(1, names + 1, &(in_place_options){.block = blocks[i]});
        assert_in_range(c->store->files[0].place_count, 4, 40);
        assert_non_null(c->store->files[0].places[1].dictionary);
        assert_same_minibatches(spooled, c);
        corpus_free(c);
    }
    corpus_free(spooled);
}

static int compare_texts(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The documents of a text in alphabetical order, without raw texts. Cuts the text. */
static size_t documents_of(char *text, size_t size, char **found) {
    size_t count = 0;
    text[size - 1] = '\0';
    for (char *next = strtok(text, "\n"); next; next = strtok(NULL, "\n")) found[count++] = next;
    qsort(found, count, sizeof *found, compare_texts);
    return count;
}

/* An epoch has each document once; the order of documents within a piece changes too. */
static void test_documents(void **state) {
    (void)state;
    const char *names[] = {"letters.tsv", "letters.tsv.gz"};
    FILE *out = fopen(path_of(names[0]), "w");
    for (int i = 0; i < 400; i++) fprintf(out, "%d\tdocument %04d\n", i, i);
    fclose(out);
    zip(names[0], names[1], SIZE_MAX / 2);
    corpus *spooled = read_files(&plain_text, 2, names);
    corpus *c = in_place(2, names, &small_blocks);
    assert_int_equal(corpus_documents(c), 800);
    assert_int_equal(c->size, spooled->size);
    assert_in_range(c->count, 10, 20); /* about 9 of the first file, one of the second */
    buffer before = {0};
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        buffer text = epoch_text(c, epoch);
        if (before.size) assert_memory_not_equal(text.bytes, before.bytes, text.size);
        free(before.bytes);
        before = (buffer){0};
        buffer_add(&before, text.bytes, text.size);
        char *found[1000];
        size_t rising = 0;
        for (size_t i = 17; i + 16 < text.size; i += 16) {
            rising += memcmp(text.bytes + i - 16, text.bytes + i, 16) < 0;
        }
        assert_in_range(rising, 300, 500); /* of 799 */
        assert_int_equal(documents_of((char *)text.bytes, text.size, found), 800);
        for (int i = 0; i < 400; i++) {
            char expected[32];
            snprintf(expected, sizeof expected, " document %04d ", i);
            for (int k = 0; k < 2; k++) {
                assert_memory_equal(found[2 * i + k], expected, strlen(expected) - 1);
            }
        }
        free(text.bytes);
    }
    free(before.bytes);
    corpus_free(spooled);
    corpus_free(c);
}

/* Each piece is shuffled by draws of its own: two with equally many documents have other orders. */
static void test_pieces_differ(void **state) {
    (void)state;
    const char *name = "pieces.tsv";
    enum { EACH = 40, LENGTH = 16 };
    FILE *out = fopen(path_of(name), "w");
    for (int i = 0; i < 10 * EACH; i++) fprintf(out, "0\tdocument %04d\n", i);
    fclose(out);
    corpus *c = in_place(1, &name, &small_blocks);
    buffer text = epoch_text(c, 0);
    int orders[2][10 * EACH], lengths[2] = {0}, run[10 * EACH], count = 0, different = 0, last = -1;
    for (size_t i = 0; i + LENGTH <= text.size; i += LENGTH) {
        const int number = atoi((char *)text.bytes + i + strlen("\n document "));
        const bool same_piece = last >= 0 && abs(number - last) < EACH;
        if (!same_piece && count > 0) {
            memcpy(orders[0], orders[1], sizeof run);
            lengths[0] = lengths[1];
            int least = run[0];
            for (int k = 0; k < count; k++) least = run[k] < least ? run[k] : least;
            for (int k = 0; k < count; k++) orders[1][k] = run[k] - least;
            lengths[1] = count;
            different += lengths[0] == count &&
                         memcmp(orders[0], orders[1], (size_t)count * sizeof *run) != 0;
            count = 0;
        }
        run[count++] = last = number;
    }
    assert_true(different > 0);
    free(text.bytes);
    corpus_free(c);
}

/* Streams do not depend on which others are read, nor on where reading began. */
static void test_shares_and_resume(void **state) {
    (void)state;
    corpus *c = in_place(MIXED, mixed, &small_blocks);
    const uint64_t updates = reader_epoch_updates(c, BATCH, STEPS);
    assert_in_range(updates, 50, 1000);
    const stream_share shares[] = {{BATCH, 0, 4}, {BATCH, 4, 8}, {BATCH, 0, BATCH}};
    const uint64_t firsts[] = {0, 1, updates / 3, updates - 1, updates, 2 * updates - 2};
    for (int f = 0; f < 6; f++) {
        reader *whole = reader_start(c, all_streams(BATCH), BATCH, STEPS, SEED, 0), *part[3];
        error err;
        for (uint64_t n = 0; n < firsts[f]; n++) assert_non_null(reader_next(whole, &err));
        for (int i = 0; i < 3; i++) {
            part[i] = reader_start(c, shares[i], BATCH, STEPS, SEED, firsts[f]);
        }
        for (uint64_t n = 0; n < updates + 2; n++) {
            const minibatch *all = reader_next(whole, &err);
            assert_non_null(all);
            for (int i = 0; i < 3; i++) {
                const minibatch *m = reader_next(part[i], &err);
                assert_non_null(m);
                assert_int_equal(m->update, all->update);
                for (int t = 0; t < STEPS; t++) {
                    const int at = t * BATCH;
                    const size_t count = (size_t)shares[i].count;
                    assert_memory_equal(m->inputs + at, all->inputs + at + shares[i].first, count);
                    assert_memory_equal(m->targets + at, all->targets + at + shares[i].first,
                                        count * sizeof *m->targets);
                }
            }
        }
        for (int i = 0; i < 3; i++) reader_stop(part[i]);
        reader_stop(whole);
    }
    corpus_free(c);
}

/* What is left out for validation and what stays are what a split of a spool gives. */
static void test_left_out(void **state) {
    (void)state;
    corpus *kept = read_files(&plain_text, MIXED, mixed), *split;
    char *exclude[] = {path_of("some.tsv")};
    size_t size;
    char *text = read_text(path_of("plain.tsv"), &size);
    char *end = strchr(strchr(text, '\n') + 1, '\n');
    write_bytes(exclude[0], text, (size_t)(end - text)); /* its first two documents */
    free(text);
    error err;
    const int64_t dropped = corpus_exclude(kept, exclude, 1, &plain_text, &err);
    assert_in_range(dropped, 2, 20); /* with all empty ones, if one of them is */
    split = corpus_split(kept, 0.2, 0.2);
    const in_place_options how = {
        .exclude = exclude, .exclude_count = 1, .fraction = 0.2, .block = BLOCK};
    corpus *c = in_place(MIXED, mixed, &how);
    assert_int_equal(corpus_excluded(c), dropped);
    assert_int_equal(c->size, kept->size);
    assert_int_equal(corpus_documents(c), kept->count);
    corpus *left_out = corpus_read_left_out(c, 0, &err);
    assert_non_null(left_out);
    assert_int_equal(left_out->size, split->size);
    sequence *a = sequence_in_order(split), *b = sequence_in_order(left_out);
    buffer x = concatenation(a), y = concatenation(b);
    assert_memory_equal(x.bytes, y.bytes, x.size);
    corpus *some = corpus_read_left_out(c, 1000, &err);
    assert_in_range(some->size, 1000, 1200);
    sequence *s = sequence_in_order(some);
    buffer z = concatenation(s);
    assert_memory_equal(x.bytes, z.bytes, z.size);
    buffer epoch = epoch_text(c, 0);
    assert_int_equal(epoch.size, kept->size);
    uint64_t sums[2] = {0};
    for (size_t i = 0; i < epoch.size; i++) sums[0] += epoch.bytes[i];
    sequence *k = sequence_in_order(kept);
    buffer whole = concatenation(k);
    for (size_t i = 0; i < whole.size; i++) sums[1] += whole.bytes[i];
    assert_int_equal(sums[0], sums[1]);
    buffer *buffers[] = {&x, &y, &z, &epoch, &whole};
    for (int i = 0; i < 5; i++) free(buffers[i]->bytes);
    sequence *sequences[] = {a, b, s, k};
    for (int i = 0; i < 4; i++) sequence_free(sequences[i]);
    corpus *all[] = {kept, split, c, left_out, some};
    for (int i = 0; i < 5; i++) corpus_free(all[i]);
}

/* A file that is named twice is read twice. */
static void test_repeated(void **state) {
    (void)state;
    const char *names[] = {"plain.tsv", "raw.txt", "plain.tsv"};
    corpus *spooled = read_files(&plain_text, 3, names), *c = in_place(3, names, &small_blocks);
    assert_int_equal(c->size, spooled->size);
    assert_int_equal(corpus_documents(c), spooled->count);
    buffer text = epoch_text(c, 0);
    assert_int_equal(text.size, spooled->size);
    free(text.bytes);
    corpus_free(spooled);
    corpus_free(c);
}

/* Writes other text of the same size, a second later. */
static void touch_up(const char *name) {
    struct stat was;
    assert_int_equal(stat(path_of(name), &was), 0);
    FILE *file = fopen(path_of(name), "r+");
    fputs("1", file);
    fclose(file);
    const struct timespec times[2] = {was.st_atim, {was.st_mtim.tv_sec + 1, was.st_mtim.tv_nsec}};
    assert_int_equal(utimensat(AT_FDCWD, path_of(name), times, 0), 0);
}

/* A file that was closed for a while is refused if it has changed, and else read on. */
static void test_rested(void **state) {
    (void)state;
    error err;
    enum { SIZE = 3 * SOURCE_CHUNK };
    char *text = mem_alloc(SIZE, 1), *path = path_of("rested.txt");
    memset(text, 'x', SIZE);
    uint8_t *read = mem_alloc(SIZE, 1);
    for (int change = 0; change < 2; change++) {
        size_t count, all = 0;
        write_bytes(path, text, SIZE);
        source *s = source_open(path, NULL, &err);
        assert_non_null(s);
        assert_true(source_read(s, read, 100, &count, &err));
        source_rest(s);
        if (change) touch_up("rested.txt");
        bool going = true;
        for (all = count; going && count > 0; all += count) {
            going = source_read(s, read, SIZE, &count, &err);
            if (!going) count = 0;
        }
        assert_int_equal(going, !change);
        if (change) assert_contains(err.text, "rested.txt: changed while it was read");
        if (!change) assert_int_equal(all, SIZE);
        source_close(s);
    }
    free(read);
    free(text);
}

/* A file that changes or goes away ends reading with its name. */
static void test_changed(void **state) {
    (void)state;
    const char *name = "changing.tsv";
    for (int change = 0; change < 4; change++) {
        write_random(name, 3000, 40, NULL);
        corpus *c = in_place(1, &name, &small_blocks);
        if (change == 0) write_random(name, 2999, 40, NULL);
        if (change == 1) unlink(path_of(name));
        if (change == 2) assert_int_equal(truncate(path_of(name), 1000), 0);
        if (change == 3) touch_up(name);
        reader *r = reader_start(c, all_streams(BATCH), BATCH, STEPS, SEED, 0);
        error err;
        assert_null(reader_next(r, &err));
        assert_contains(err.text, "changing.tsv");
        assert_contains(err.text, change == 1 ? "No such file" : "changed since training began");
        assert_null(reader_next(r, &err));
        reader_stop(r);
        corpus_free(c);
    }
}

static void assert_refused(const char *name, const char *expected) {
    char *file = path_of(name);
    error err;
    assert_null(corpus_read_in_place(&file, 1, &plain_text, &small_blocks, &err));
    assert_contains(err.text, expected);
}

static void test_refused(void **state) {
    (void)state;
    write_text(path_of("wrong.tsv"), "1\tgood\n2\tgood\nno tab\n");
    assert_refused("wrong.tsv", "wrong.tsv:3: expected LABEL<TAB>TEXT, found no tab");
    write_text(path_of("empty.txt"), "");
    assert_refused("empty.txt", "empty.txt: empty");
    assert_refused("none.txt", "none.txt: No such file");
    assert_int_equal(mkfifo(path_of("pipe"), 0600), 0);
    assert_refused("pipe", "pipe: not a regular file");
}

/* A deadlock ends in main's alarm. */
static void test_stop(void **state) {
    (void)state;
    corpus *c = in_place(MIXED, mixed, &small_blocks);
    for (int i = 0; i < 100; i++) {
        reader *r = reader_start(c, all_streams(BATCH), BATCH, STEPS, SEED, (uint64_t)i);
        error err;
        for (int n = 0; n < i % 7; n++) assert_non_null(reader_next(r, &err));
        if (i % 10 == 0) usleep(2000);
        reader_stop(r);
    }
    corpus_free(c);
}

int main(void) {
    alarm(120); /* a deadlock ends the tests */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_raw_text),          cmocka_unit_test(test_two_documents),
        cmocka_unit_test(test_deflate_blocks),    cmocka_unit_test(test_documents),
        cmocka_unit_test(test_shares_and_resume), cmocka_unit_test(test_left_out),
        cmocka_unit_test(test_repeated),          cmocka_unit_test(test_changed),
        cmocka_unit_test(test_refused),           cmocka_unit_test(test_stop),
        cmocka_unit_test(test_pieces_differ),     cmocka_unit_test(test_rested),
    };
    return cmocka_run_group_tests(tests, write_mixed, NULL);
}
