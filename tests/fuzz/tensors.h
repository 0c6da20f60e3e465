/* The structure of safetensors files, for mutators. */
#ifndef SMALLWORLD_TESTS_FUZZ_TENSORS_H
#define SMALLWORLD_TESTS_FUZZ_TENSORS_H

#include "fuzz.h"

/* Makes another file of `data`, or of `valid` if `data` is no safetensors file. Most of the time
 * its offsets, lengths and checksum are right again. */
size_t tensors_mutate(uint8_t *data, size_t size, size_t capacity, const uint8_t *valid,
                      size_t valid_size);

#endif
