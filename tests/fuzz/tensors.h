/* The structure of a safetensors file, for the mutators of files with tensors. */
#ifndef SMALLWORLD_TESTS_FUZZ_TENSORS_H
#define SMALLWORLD_TESTS_FUZZ_TENSORS_H

#include "fuzz.h"

/* Makes of `data`, or of `valid` where that is no safetensors file, another one. Most of the time
 * its offsets, lengths and checksum are right again, whatever was changed. */
size_t tensors_mutate(uint8_t *data, size_t size, size_t capacity, const uint8_t *valid,
                      size_t valid_size);

#endif
