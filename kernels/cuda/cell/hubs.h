/* A cell with hubs over its whole sequence as one kernel for each direction; see hubs.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_HUBS_H
#define SMALLWORLD_KERNELS_CUDA_CELL_HUBS_H

#include "device/device.h"

typedef struct hub_tables hub_tables;

/* Of the layout by which the gates read the hubs. NULL: no cell with it takes the kernels. */
hub_tables *hubs_plan(backend *be, device_layout *device, const layout *l);

/* What a cell lacks to be these kernels; NULL: nothing. */
const char *hubs_lack(backend *be, const cell *c);

void hubs_forward(backend *be, const cell *c);

/* All but the gradients of tables. */
void hubs_backward(backend *be, const cell *c);

#endif
