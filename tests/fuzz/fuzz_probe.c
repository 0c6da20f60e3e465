/* A saved probe, or a saved classifier, is opened and applied, as predict does. */
#include "fuzz.h"

#include "classify/classifier.h"
#include "probe/calibration.h"
#include "probe/saved.h"

#include <stdlib.h>
#include <string.h>

enum { UNITS = 4, CLASSES = 3, MOST_TOP = 8 };

enum { PROBE, CLASSIFIER, KINDS };

static const char *paths[KINDS];
static char *folder;

static void release(void) {
    free(folder);
}

static void make_classifier(void) {
    static const int32_t bucket[] = {3, 70000, NGRAM_BUCKETS - 1};
    static const float idf[] = {1, 2, 0.5f}, weights[] = {1, -1, 0.25f};
    static const double intercept = 0.5;
    const classifier c = {.ngrams = {1, 3, bucket, idf, weights, &intercept, 2, 1.5},
                          .classes = 2,
                          .name = {"one", "two"},
                          .share = 0.25,
                          .checkpoint = "model.safetensors"};
    error err;
    folder = strdup(paths[CLASSIFIER]);
    *strrchr(folder, '/') = '\0';
    require(classifier_write(&c, folder, &err), err.text);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    static const double weights[CLASSES][UNITS + 1] = {{1, -2, 0, 0.5, 1}, {0, 1, 0, 0, -1}};
    static const double deviation[UNITS] = {1, 0.5, 2, 1};
    const saved_probe p = {
        .origin = {.known = true, .pools = {1, {POOL_LAST}}, .model = "0123abcd"},
        .classes = CLASSES,
        .models = CLASSES,
        .name = {"one", "two", "three"},
        .units = UNITS,
        .weights = weights[0],
        .deviation = deviation,
        .cost = 0.25,
        .scale = 1,
        .error = 12.5,
        .documents = 9};
    error err;
    paths[PROBE] = strdup(scratch_path("p.probe.safetensors"));
    paths[CLASSIFIER] = strdup(scratch_path(CLASSIFIER_FILE));
    require(saved_write(&p, paths[PROBE], &err), err.text);
    make_classifier();
    for (int i = 0; i < KINDS; i++) add_seed(paths[i]);
    atexit(release);
    return 0;
}

static void try_classifier(void) {
    static const uint8_t text[] = "A warm, bold film, and a dull one.";
    const char *path = paths[CLASSIFIER];
    classifier c;
    error err;
    if (!classifier_open(&c, folder, &err)) {
        require(strstr(err.text, path) != NULL, "an error that does not name the file");
        return;
    }
    double margin[MOST_CLASSES], probability[MOST_CLASSES];
    ngram_reader *r = ngram_reader_create(&c.ngrams);
    ngram_reader_apply(r, text, sizeof text, margin);
    margin_probabilities(margin, c.ngrams.functions, false, c.ngrams.scale, probability);
    const int class = classifier_join(c.classes, probability, probability, c.share, probability);
    require(class >= 0 && class < c.classes, "a class that is not there");
    ngram_reader_free(r);
    classifier_close(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *path = paths[PROBE];
    saved_probe p;
    error err;
    scratch_write(paths[CLASSIFIER], data, size);
    try_classifier();
    scratch_write(path, data, size);
    if (!saved_open(&p, path, &err)) {
        require(strstr(err.text, path) != NULL, "an error that does not name the file");
        return 0;
    }
    size_t top[MOST_TOP];
    double *probability = calloc((size_t)p.classes, sizeof *probability);
    float *x = calloc(p.units, sizeof *x);
    if (!probability || !x) abort();
    for (size_t u = 0; u < p.units; u++) x[u] = (float)u - 1;
    const int class = saved_apply(&p, x, probability);
    require(class >= 0 && class < p.classes, "a class that is not there");
    touch(probability, (size_t)p.classes * sizeof *probability);
    for (int k = 0; k < p.classes; k++) touch(p.name[k], strlen(p.name[k]) + 1);
    const int64_t hidden = p.units % 2 == 0 ? (int64_t)(p.units / 2) : (int64_t)p.units;
    const int count = saved_top_units(&p, hidden, top, MOST_TOP);
    for (int k = 0; k < count; k++) require(top[k] < (size_t)hidden, "a unit that is not there");
    free(x);
    free(probability);
    saved_close(&p);
    return 0;
}
