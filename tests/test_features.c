/* The features of a document depend on that document alone. */
#include "runs.h"

#include "core/memory.h"
#include "core/npy.h"
#include "probe/features.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *extract(const char *name, char *path, const char *prefix, int batch, int steps,
                     feature_options how) {
    loaded l;
    load(&l, name, batch, steps);
    corpus *c = read_corpus(path);
    feature_result r;
    error err;
    char *out = path_of(prefix);
    if (!features_extract(l.m, c, &how, out, &r, &err)) fail_msg("%s", err.text);
    assert_int_equal(r.documents, c->count);
    assert_int_equal(r.bytes, c->size);
    assert_int_equal(r.units, 64);
    corpus_free(c);
    unload(&l);
    return out;
}

static npy open_npy(const char *prefix, const char *ending) {
    npy array;
    error err;
    char *path = mem_format("%s%s", prefix, ending);
    if (!npy_open(&array, path, &err)) fail_msg("%s", err.text);
    free(path);
    return array;
}

/* Writes documents of many lengths, with an empty one; `backwards` reverses their order. */
static void write_mixed(const char *path, bool backwards) {
    enum { COUNT = 23 };
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    for (int k = 0; k < COUNT; k++) {
        int i = backwards ? COUNT - 1 - k : k, length = i * 37 % COUNT * (i % 5) * 3;
        fprintf(out, "%d\t", i - 3);
        random_restart((uint64_t)i);
        for (int n = 0; n < length; n++) fputc((int)random_below(90) + 32, out);
        fputc('\n', out);
    }
    assert_int_equal(fclose(out), 0);
}

static void compare_features(const char *name, const char *base, const char *other, bool backwards,
                             double tolerance) {
    npy a = open_npy(base, ".npy"), b = open_npy(other, ".npy");
    npy labels = open_npy(other, ".labels.npy");
    assert_int_equal(a.rows, b.rows);
    assert_int_equal(a.columns, b.columns);
    assert_int_equal(labels.rows, a.rows);
    for (int64_t i = 0; i < a.rows; i++) {
        int64_t at = backwards ? a.rows - 1 - i : i;
        assert_int_equal(((const int32_t *)labels.data)[at], i - 3);
        const float *x = (const float *)a.data + i * a.columns;
        const float *y = (const float *)b.data + at * a.columns;
        for (int64_t u = 0; u < a.columns; u++) {
            if (!(fabs((double)x[u] - y[u]) <= tolerance)) {
                fail_msg("%s: document %d, unit %d: %.9g and %.9g", name, (int)i, (int)u,
                         (double)x[u], (double)y[u]);
            }
        }
    }
    npy_close(&a);
    npy_close(&b);
    npy_close(&labels);
}

/* Asserts that a document's features are the state of one stream that reads it byte by byte from a
 * zero state. */
static void check_against_model(const char *name, char *path, const char *prefix) {
    loaded l;
    load(&l, name, 1, 1);
    corpus *c = read_corpus(path);
    npy features = open_npy(prefix, ".npy");
    size_t columns = (size_t)l.m->columns;
    for (size_t i = 0; i < c->count; i += 4) {
        const document *d = &c->documents[i];
        model_zero_state(l.m);
        for (uint64_t p = 0; p < d->length; p++) {
            l.be->memory->upload(l.be, l.m->bytes, c->bytes + d->offset + p, 1);
            model_run(l.m);
        }
        double *cells = get(l.be, model_state(l.m, MODEL_C, 0), 64 * columns, REAL);
        const float *row = (const float *)features.data + i * 64;
        for (size_t u = 0; u < 64; u++) assert_true(fabs(cells[u * columns] - row[u]) < 1e-5);
        free(cells);
    }
    npy_close(&features);
    corpus_free(c);
    unload(&l);
}

static void test_features(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        bool dense;
    } models[] = {
        {"train.steps=9", false},
        {"train.steps=9 model.cell=mlstm", false},
        {"train.steps=9 model.cell=deep model.norm=none model.init_noise=0.1", false},
        {"train.steps=9 model.graph=dense model.degree=null", true},
    };
    char *forwards = path_of("mixed.tsv"), *backwards = path_of("backwards.tsv");
    write_mixed(forwards, false);
    write_mixed(backwards, true);
    const feature_options how = {FEATURE_CELL, {1, {POOL_LAST}}, false, NULL, NULL};
    for (int i = 0; i < 4; i++) {
        /* A BLAS may sum in another order if the number of columns differs: with cuBLAS the
         * difference at the end of a document was 1.3e-5. This program's own products keep the
         * order. */
        double tolerance = !models[i].dense ? 0 : test_device_is_cuda() ? 1e-4 : 1e-5;
        const char *name = models[i].settings;
        run("featured", TRAIN_OVERWRITE, models[i].settings);
        char *base = extract("featured", forwards, "base", 1, 16, how);
        check_against_model("featured", forwards, base);
        char *other = extract("featured", forwards, "other", 5, 7, how);
        compare_features(name, base, other, false, tolerance);
        other = extract("featured", backwards, "other", 70, 64, how);
        compare_features(name, base, other, true, tolerance);
    }
    /* The other kinds of features are only compared between batches and orders. */
    for (int s = 0; s < 2; s++) {
        for (int p = 0; p < 3; p++) {
            const feature_options kind = {(feature_state)s, {1, {(pooling)p}}, false, NULL, NULL};
            char *base = extract("featured", forwards, "base", 2, 16, kind);
            char *other = extract("featured", backwards, "other", 9, 16, kind);
            compare_features("kinds", base, other, true, 1e-5);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_features),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
