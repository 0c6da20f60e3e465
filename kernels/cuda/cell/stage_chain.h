/* The internal stages of a step as one kernel; see stage_chain.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_H
#define SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_H

#include "backend.h"

typedef struct stage_chain_tables stage_chain_tables;

/* NULL: stages with this layout are kernels of their own. */
stage_chain_tables *stage_chain_plan(backend *be, device_layout *device, const layout *l);
bool stage_chain_takes(backend *be, const cell *c);

/* Of a sequence: before its first step, each step, and after backward's last, which leaves dgain
 * and dbias. */
void stage_chain_start(backend *be, const cell *c);
void stage_chain_forward_run(backend *be, const cell *c, int t);
void stage_chain_backward_run(backend *be, const cell *c, int t);
void stage_chain_finish(backend *be, const cell *c);

#endif
