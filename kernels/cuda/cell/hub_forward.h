/* An mlstm with hubs forward over its whole sequence as one kernel; see hub_forward.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_HUB_FORWARD_H
#define SMALLWORLD_KERNELS_CUDA_CELL_HUB_FORWARD_H

#include "device/device.h"

typedef struct hub_tables hub_tables;

/* Of the layout by which the gates read the hubs. NULL: no cell with it takes the kernel. */
hub_tables *hub_forward_plan(backend *be, device_layout *device, const layout *l);

/* What a cell lacks to be this kernel; NULL: nothing. */
const char *hub_forward_lacks(backend *be, const cell *c);

/* Layer norm's sums of all steps are zero before. */
void hub_forward_run(backend *be, const cell *c);

#endif
