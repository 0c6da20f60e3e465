/* fixed_sums.cuh says how sums are stored. */
#include "device/fixed_sums.h"

#include "device/fixed_sums.cuh"

size_t cuda_sums_bytes(backend *be, int gates, int columns) {
    (void)be;
    return gates * sums_gate(columns) * sizeof(fixed);
}

void cuda_zero_sums(backend *be, void *sums, int gates, int columns) {
    be->memory->zero(be, sums, cuda_sums_bytes(be, gates, columns));
}
