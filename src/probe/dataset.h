/* Labelled features as `smallworld features` writes them: PREFIX.npy, documents x units, and
 * PREFIX.labels.npy. Both files are mapped. */
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

/* Opens both files. Refuses features that are not a float32 matrix, labels that are not an int32
 * vector of equal length, files without rows, and numbers that are not finite. */
bool dataset_open(dataset *d, const char *prefix, error *err);
void dataset_close(dataset *d);

enum { DATASET_MAX_CLASSES = 256 };

/* Finds the distinct labels but UNLABELLED, ascending: classes [DATASET_MAX_CLASSES]. Returns their
 * number, or -1 if there are fewer than two or more than fit. */
int dataset_classes(const dataset *d, int32_t *classes, error *err);

/* Finds the index of each row's label among `classes` [count]: class [rows], -1 for UNLABELLED
 * rows, whose number goes to `dropped`. Refuses other labels, and a dataset without labelled rows.
 */
bool dataset_index(const dataset *d, const int32_t *classes, int count, int16_t *class,
                   size_t *dropped, error *err);

/* Mean and deviation [units] of features over some rows. The deviation is the root of the mean
 * squared difference, as in scikit-learn's StandardScaler. */
typedef struct moments {
    double rows;
    double *mean, *deviation;
} moments;

/* Finds them over the rows whose class is not -1. The caller frees mean, and deviation with it. */
moments dataset_moments(const dataset *d, const int16_t *class);

#endif
