/* A saved probe is opened and applied, as predict does. */
#include "tensors.h"

#include "probe/saved.h"

#include <stdlib.h>
#include <string.h>

enum { UNITS = 4, CLASSES = 3, MOST_TOP = 8 };

static const char *path;
static uint8_t *valid;
static size_t valid_size;

static void release(void) {
    free(valid);
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
        .penalty = "l1",
        .cost = 0.25,
        .error = 12.5,
        .documents = 9};
    error err;
    path = scratch_path("p.probe.safetensors");
    require(saved_write(&p, path, &err), err.text);
    valid = scratch_read(path, &valid_size);
    atexit(release);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    saved_probe p;
    error err;
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

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed) {
    draw_seed(seed);
    return tensors_mutate(data, size, capacity, valid, valid_size);
}
