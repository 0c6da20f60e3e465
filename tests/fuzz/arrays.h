/* Parts of .npy files, for mutators. */
#ifndef SMALLWORLD_TESTS_FUZZ_ARRAYS_H
#define SMALLWORLD_TESTS_FUZZ_ARRAYS_H

#include "fuzz.h"

/* Adds a .npy file of `rows` x `columns` elements of NumPy's `type`. Now and then its header says
 * something else. */
void array_build(buffer *b, const char *type, int64_t rows, int64_t columns);

#endif
