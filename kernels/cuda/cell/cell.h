/* The operations of a cell between products, see ops.h. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_CELL_H
#define SMALLWORLD_KERNELS_CUDA_CELL_CELL_H

#include "backend.h"

void cuda_cell_forward(backend *be, const cell *c);
void cuda_cell_backward(backend *be, const cell *c);
void cuda_prepare_entries(backend *be, const cell *c);
void cuda_activate(backend *be, const cell *c, int s, int t);
void cuda_activate_backward(backend *be, const cell *c, int s, int t);
void cuda_gates(backend *be, const cell *c, int t);
void cuda_gates_backward(backend *be, const cell *c, int t);
void cuda_norm_backward(backend *be, const cell *c, int s, int t);
void cuda_table_backward(backend *be, const cell *c, int s);

/* The operations as a sequence issues them, see sequence.cu: they add to sums that it has zeroed.
 * `early`: the kernel before is a product, which writes nothing that the gates read before they
 * wait for it, so they start while it ends. */
void activate_backward_run(backend *be, const cell *c, int s, int t);
void add_rows_run(backend *be, const device_layout *l, const void *x, int columns, void *y,
                  void *sums);
void gates_run(backend *be, const cell *c, int t, bool early);
void gates_backward_run(backend *be, const cell *c, int t, bool early);

/* A stage with layer norm as one kernel besides its product, where it fits: forward makes the sums
 * of raw, too; backward does norm_backward, too. */
bool whole_stages_fit(const backend *be, const cell *c, bool forward);
void activate_whole_run(backend *be, const cell *c, int s, int t);
void activate_backward_whole_run(backend *be, const cell *c, int s, int t);

/* Layer norm's sums, of so many gates or gates and steps: their size, zeroing them, and making
 * those of y [steps][rows][columns] as stored, where the product did not; they are zero before. */
size_t cuda_sums_bytes(backend *be, int gates, int columns);
void cuda_zero_sums(backend *be, void *sums, int gates, int columns);
void cuda_column_sums(backend *be, const layout *l, const void *y, int steps, int columns,
                      void *sums);

void cuda_add_rows(backend *be, const device_layout *l, const void *x, int columns, void *y,
                   void *sums);

/* The gradient of a one-gate stage's table from that at its entries, by tensor cores; see
 * table_gradient_hopper.cu. */
bool table_gradient_hopper_takes(const backend *be, const stage *g);
void table_gradient_hopper_run(backend *be, const cell *c, int s, const void *gradient);

#endif
