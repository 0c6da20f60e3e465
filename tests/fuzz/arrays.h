/* .npy files, for the mutators of files that are some. */
#ifndef SMALLWORLD_TESTS_FUZZ_ARRAYS_H
#define SMALLWORLD_TESTS_FUZZ_ARRAYS_H

#include "fuzz.h"

/* Adds a .npy file of `rows` x `columns` elements of `type`, NumPy's name, or now and then one
 * whose header says something else. */
void array_build(buffer *b, const char *type, int64_t rows, int64_t columns);

#endif
