/* The internal stages of a step as one kernel; see stage_chain.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_H
#define SMALLWORLD_KERNELS_CUDA_CELL_STAGE_CHAIN_H

#include "backend.h"

typedef struct stage_chain_tables stage_chain_tables;

/* Returns NULL if stages with this layout must be kernels of their own. */
stage_chain_tables *stage_chain_plan(backend *be, device_layout *device, const layout *l);
bool stage_chain_takes(backend *be, const cell *c);

/* start comes before a sequence's first step, and finish, which writes dgain and dbias, after the
 * last step of backward. */
void stage_chain_start(backend *be, const cell *c);
void stage_chain_forward_run(backend *be, const cell *c, int t);
void stage_chain_backward_run(backend *be, const cell *c, int t);
void stage_chain_finish(backend *be, const cell *c);

#endif
