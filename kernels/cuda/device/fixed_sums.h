/* Layer norm's sums in global memory. */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_FIXED_SUMS_H
#define SMALLWORLD_KERNELS_CUDA_DEVICE_FIXED_SUMS_H

#include "device/device.h"

/* The sums of `gates` gates, or of gates times steps: their size in bytes, and setting them to
 * zero. */
size_t cuda_sums_bytes(backend *be, int gates, int columns);
void cuda_zero_sums(backend *be, void *sums, int gates, int columns);

#endif
