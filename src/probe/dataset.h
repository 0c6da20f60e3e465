/* Labelled features as `smallworld features` writes them: PREFIX.npy, documents x units, and
 * PREFIX.labels.npy. They are mapped, never copied. */
#ifndef SMALLWORLD_PROBE_DATASET_H
#define SMALLWORLD_PROBE_DATASET_H

#include "core/npy.h"

#include <stddef.h>

enum { UNLABELLED = -1 }; /* rows with this label are ignored */

typedef struct dataset {
    char *features_path, *labels_path;
    npy features, labels;
    size_t rows, units;
    const float *x;       /* [rows][units] */
    const int32_t *label; /* [rows] */
} dataset;

/* Refuses features that are not float32 in two dimensions, labels that are not int32 in one,
 * another number of labels than of rows, files without rows, and numbers that are not finite. */
bool dataset_open(dataset *d, const char *prefix, error *err);
void dataset_close(dataset *d);

enum { DATASET_MAX_CLASSES = 256 };

/* The labels beside UNLABELLED, ascending: classes [DATASET_MAX_CLASSES]. Returns how many; fewer
 * than two, and more than fit, are refused with -1. */
int dataset_classes(const dataset *d, int32_t *classes, error *err);

/* class [rows]: the index of each row's label among `classes` [count], -1 for UNLABELLED rows,
 * whose number is returned through `dropped`. Refuses other labels, and a dataset without labelled
 * rows. */
bool dataset_index(const dataset *d, const int32_t *classes, int count, int16_t *class,
                   size_t *dropped, error *err);

/* mean and deviation [units] over the rows whose sign is not 0; the deviation is the root of the
 * mean square, as in scikit-learn's StandardScaler. */
void dataset_moments(const dataset *d, const int8_t *sign, double *mean, double *deviation);

#endif
