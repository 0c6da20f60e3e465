/* The cell's sequences where its internal stages are one kernel a step; see stage_chain.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_H
#define SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_H

#include "backend.h"

typedef struct stage_chain_tables stage_chain_tables;

/* NULL: stages with this layout are kernels of their own. */
stage_chain_tables *stage_chain_plan(backend *be, device_layout *device, const layout *l);
bool stage_chain_takes(backend *be, const cell *c);
void stage_chain_cell_forward(backend *be, const cell *c);
void stage_chain_cell_backward(backend *be, const cell *c);

#endif
