/* Layer norm's sums in global memory. */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_FIXED_SUMS_H
#define SMALLWORLD_KERNELS_CUDA_DEVICE_FIXED_SUMS_H

#include "backend.h"

/* The sums of `gates` gates, or of gates times steps: their size in bytes; setting them
 * to zero; and adding those of y [steps][rows][columns] as stored, for products that do not add
 * them themselves. The sums are zero before. */
size_t cuda_sums_bytes(backend *be, int gates, int columns);
void cuda_zero_sums(backend *be, void *sums, int gates, int columns);
void cuda_column_sums(backend *be, const layout *l, const void *y, int steps, int columns,
                      void *sums);

#endif
