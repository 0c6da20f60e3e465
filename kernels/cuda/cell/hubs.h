/* A cell with hubs over its whole sequence as one kernel for each direction; see hubs.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_HUBS_H
#define SMALLWORLD_KERNELS_CUDA_CELL_HUBS_H

#include "device/layout.h"

typedef struct hub_plan hub_plan;

/* Of the layout by which the gates read the hubs. NULL: no cell with it takes the kernels. */
hub_plan *hubs_plan(backend *be, device_layout *device, const layout *l);

/* What a cell lacks to be these kernels; NULL: nothing. */
const char *hubs_lack(backend *be, const cell *c);

/* Forward, or all of backward but the gradients of tables. */
void hubs_run(backend *be, const cell *c, bool backward);

/* The same by steps, for what those kernels do not take, and for many hubs or columns or few cells;
 * see hub_steps.cu. */
const char *hub_steps_lack(backend *be, const cell *c);
void hub_steps_forward(backend *be, const cell *c);
void hub_steps_backward(backend *be, const cell *c);

#endif
