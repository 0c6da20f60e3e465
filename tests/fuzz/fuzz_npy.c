/* .npy files by themselves, and as the features or labels of a probe's dataset. The first byte of
 * an input chooses; the rest is the file. */
#include "fuzz.h"

#include "probe/dataset.h"

#include <stdlib.h>
#include <string.h>

enum { ROWS = 6, UNITS = 3 };

static const char *features, *labels, *alone;
static char prefix[512];
enum { HEADER = 128 };

static uint8_t good_features[HEADER + ROWS * UNITS * 4], good_labels[HEADER + ROWS * 4];

static void make(uint8_t *file, const char *type, const char *shape, const void *data,
                 size_t size) {
    memset(file, ' ', HEADER);
    memcpy(file, "\x93NUMPY\x01\0\x76\0", 10);
    const int used =
        snprintf((char *)file + 10, HEADER - 10,
                 "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", type, shape);
    file[10 + used] = ' ';
    file[HEADER - 1] = '\n';
    memcpy(file + HEADER, data, size);
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
    make(good_features, "<f4", "(6, 3)", x, sizeof x);
    make(good_labels, "<i4", "(6,)", y, sizeof y);
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
        scratch_write(labels, good_labels, sizeof good_labels);
        break;
    default:
        scratch_write(features, good_features, sizeof good_features);
        scratch_write(labels, rest, left);
    }
    read_dataset();
    return 0;
}
