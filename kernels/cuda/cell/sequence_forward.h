/* The cell forward over its whole sequence as one kernel; see sequence_forward.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_SEQUENCE_FORWARD_H
#define SMALLWORLD_KERNELS_CUDA_CELL_SEQUENCE_FORWARD_H

#include "device/device.h"

typedef struct sequence_tables {
    int units;          /* of a thread block */
    uint32_t *counters; /* by which the thread blocks wait for each other */
    bf16 *table;        /* the stage's, turned, see sequence.cuh */
} sequence_tables;

/* NULL: no cell with this layout takes the kernel. */
sequence_tables *sequence_forward_plan(backend *be, device_layout *device, const layout *l);

/* What a cell lacks to be this kernel; NULL: nothing. */
const char *sequence_forward_lacks(backend *be, const cell *c);

/* Layer norm's sums of all steps are zero before. */
void sequence_forward_run(backend *be, const cell *c);

#endif
