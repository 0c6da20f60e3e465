/* A cell with hubs over its whole sequence as one kernel for each direction; see hubs.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_HUBS_H
#define SMALLWORLD_KERNELS_CUDA_CELL_HUBS_H

#include "device/layout.h"

typedef struct hub_tables hub_tables;
typedef struct hub_steps hub_steps;

/* Of the layout by which the gates read the hubs. NULL: no cell with it takes the kernels. */
hub_tables *hubs_plan(backend *be, device_layout *device, const layout *l);

/* What a cell lacks to be these kernels; NULL: nothing. hub_cell_lacks: for them or those of a
 * step, whatever was planned for its layouts. */
const char *hubs_lack(backend *be, const cell *c);
const char *hub_cell_lacks(backend *be, const cell *c);

/* Forward, or all of backward but the gradients of tables. */
void hubs_run(backend *be, const cell *c, bool backward);

/* The same by steps, for cells that those kernels do not take, or that have many hubs; see
 * hub_steps.cu. Planned after them. */
hub_steps *hub_steps_plan(backend *be, device_layout *device, const layout *l);
const char *hub_steps_lack(backend *be, const cell *c);
void hub_steps_forward(backend *be, const cell *c);
void hub_steps_backward(backend *be, const cell *c);

/* Adds up what `blocks` thread blocks have of dgain and dbias, from [blocks][2][width]; with `more`
 * to what is there. */
void hubs_add_gradients(backend *be, const stage *hubs, const float *from, int blocks, int width,
                        bool more);

#endif
