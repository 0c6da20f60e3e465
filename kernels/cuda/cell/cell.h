/* The operations of a cell between products, see ops.h. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_CELL_H
#define SMALLWORLD_KERNELS_CUDA_CELL_CELL_H

#include "device/fixed_sums.h"

extern const cell_operations cuda_cell;

void cuda_prepare_entries(backend *be, const cell *c);
void cuda_activate(backend *be, const cell *c, int s, int t);
void cuda_activate_backward(backend *be, const cell *c, int s, int t);
void cuda_gates(backend *be, const cell *c, int t);
void cuda_gates_backward(backend *be, const cell *c, int t);
void cuda_table_backward(backend *be, const cell *c, int s);

/* The operations as a sequence issues them, see sequence.cu. They add to sums that the sequence has
 * zeroed. With `early` a kernel starts while the product before it ends; that product must write
 * nothing that the gates read before they wait for it. */
void activate_run(backend *be, const cell *c, int s, int t);
void activate_backward_run(backend *be, const cell *c, int s, int t);
void gates_run(backend *be, const cell *c, int t, bool early);
void gates_backward_run(backend *be, const cell *c, int t, bool early);

void cuda_add_rows(backend *be, const device_layout *l, const void *x, int columns, void *y);

/* The gradient of a stage's table, from the gradient at its entries, on tensor cores; see
 * table_gradient_hopper.cu. */
bool table_gradient_hopper_takes(const backend *be, const stage *g);
void table_gradient_hopper_run(backend *be, const cell *c, int s, const void *gradient);

#endif
