/* NumPy's .npy files (format 1.0, C order), as numpy.load reads and numpy.save writes them:
 * https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html */
#ifndef SMALLWORLD_CORE_NPY_H
#define SMALLWORLD_CORE_NPY_H

#include "core/file.h"

/* Starts a .npy file of `rows` x `columns` (0 columns: one dimension) elements of `type`, a NumPy
 * type string such as "<f4". The caller then writes the elements and commits. Returns the offset of
 * the first element through `start`, for writers that fill rows out of order. */
bool npy_begin(file_writer *writer, const char *path, const char *type, int64_t rows,
               int64_t columns, int64_t *start, error *err);

/* Also records the number of a set of files that belong together, in a comment that NumPy's reader
 * skips. 0 means no set. */
bool npy_begin_in_set(file_writer *writer, const char *path, const char *type, int64_t rows,
                      int64_t columns, uint64_t set, int64_t *start, error *err);

/* A mapped .npy file of one or two dimensions. */
typedef struct npy {
    file_map map;
    const void *data;
    char type[8];          /* as in the file, e.g. "<f4" */
    int64_t rows, columns; /* columns is 0 for one dimension */
    uint64_t set;          /* number from npy_begin_in_set, or 0 */
} npy;

/* Refuses Fortran order, more than two dimensions, no columns, and files shorter than their header
 * says. */
bool npy_open(npy *array, const char *path, error *err);
void npy_close(npy *array);

#endif
