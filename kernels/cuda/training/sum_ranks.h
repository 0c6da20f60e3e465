/* Sums over ranks by NCCL; see join in ops.h. */
#ifndef SMALLWORLD_KERNELS_CUDA_TRAINING_SUM_RANKS_H
#define SMALLWORLD_KERNELS_CUDA_TRAINING_SUM_RANKS_H

#include "device/device.h"

bool cuda_join(backend *be, ranks *ranks, error *err);

/* Ends NCCL's part, if it was joined. */
void cuda_leave(backend *be);

#endif
