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

/* How well one threshold on a single feature separates two classes of documents: "the sentiment
 * unit" is the one that does it best. */

typedef struct separation {
    size_t feature;
    double threshold;
    double error; /* per cent of the labelled documents on the wrong side */
    bool above;   /* whether the second class lies above the threshold */
} separation;

/* Finds the best threshold on a feature. `class` [rows] is 0, 1 or, for rows left out, -1. */
separation separation_find(const dataset *d, const int16_t *class, size_t feature);

/* Finds the `count` of `hidden` units that separate best, best first, each by the best of its
 * features: those of several poolings follow one another, `hidden` of each. Ranks by the counts in
 * 256 bins. Returns the number found. */
int separation_rank(const dataset *d, const int16_t *class, size_t hidden, size_t *units,
                    int count);

#endif
