/* .npy files by themselves, and as the features or labels of a probe's dataset. The first byte of
 * an input chooses; the rest is the file. */
#include "arrays.h"

#include "probe/dataset.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, UNITS = 3 };

static const char *features, *labels, *alone;
static char prefix[512];
static buffer good_features, good_labels;

static void release(void) {
    free(good_features.bytes);
    free(good_labels.bytes);
}

static void add_header(buffer *b, const char *type, const char *shape) {
    char header[119];
    memset(header, ' ', 118);
    char text[119];
    const int used = snprintf(
        text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", type, shape);
    memcpy(header, text, (size_t)used);
    header[117] = '\n';
    buffer_add(b, "\x93NUMPY\x01\0\x76\0", 10);
    buffer_add(b, header, 118);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    static const float x[ROWS][UNITS] = {{1, 2, 3}, {0, 1, 0}, {4, 4, 4}, {-1, 0, 1}};
    static const int32_t y[ROWS] = {0, 1, 0, 1, -1, 1};
    features = scratch_path("data.npy");
    labels = scratch_path("data.labels.npy");
    alone = scratch_path("alone.npy");
    snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(features) - 4), features);
    add_header(&good_features, "<f4", "(6, 3)");
    buffer_add(&good_features, x, sizeof x);
    add_header(&good_labels, "<i4", "(6,)");
    buffer_add(&good_labels, y, sizeof y);
    atexit(release);
    return 0;
}

static void read_alone(const uint8_t *data, size_t size) {
    npy array;
    error err;
    scratch_write(alone, data, size);
    if (!npy_open(&array, alone, &err)) {
        require(strstr(err.text, alone) != NULL, "an error that does not name the file");
        return;
    }
    const size_t columns = array.columns ? (size_t)array.columns : 1;
    touch(array.data, (size_t)array.rows * columns * (size_t)atoi(array.type + 2));
    npy_close(&array);
}

static void read_dataset(void) {
    dataset d;
    error err;
    if (!dataset_open(&d, prefix, &err)) return;
    int32_t classes[DATASET_MAX_CLASSES];
    int16_t *class = calloc(d.rows, sizeof *class);
    size_t dropped;
    if (!class) abort();
    const int count = dataset_classes(&d, classes, &err);
    if (count > 0 && dataset_index(&d, classes, count, class, &dropped, &err)) {
        require(dropped < d.rows, "more rows dropped than there are");
        for (size_t i = 0; i < d.rows; i++) {
            require(class[i] >= -1 && class[i] < count, "a class that is not there");
        }
        free(dataset_moments(&d, class).mean);
    }
    free(class);
    dataset_close(&d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const uint8_t *rest = data + 1;
    const size_t left = size - 1;
    switch (data[0] % 3) {
    case 0: read_alone(rest, left); return 0;
    case 1:
        scratch_write(features, rest, left);
        scratch_write(labels, good_labels.bytes, good_labels.size);
        break;
    default:
        scratch_write(features, good_features.bytes, good_features.size);
        scratch_write(labels, rest, left);
    }
    read_dataset();
    return 0;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed) {
    draw_seed(seed);
    if (size > 0 && draw_once_in(2)) return LLVMFuzzerMutate(data, size, capacity);
    buffer b = {0};
    const uint8_t kind = (uint8_t)draw(3);
    buffer_add(&b, &kind, 1);
    array_build(&b, kind == 2 ? "<i4" : "<f4", ROWS, kind == 2 ? 0 : UNITS);
    return buffer_take(&b, data, capacity);
}
