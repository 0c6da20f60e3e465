/* The products with a block-sparse or dense W, and how a kernel for them presents itself to the
 * dispatch table in dispatch.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_PRODUCTS_H
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_PRODUCTS_H

#include "device/layout.h"

typedef enum operation { FPROP, DGRAD, WGRAD } operation;

/* One product to compute; see ops.h for the shapes. `workspace`: for wgrad of a dense W. `taps`: of
 * a convolution, whose steps are the positions of the result, of wgrad those of dy; or NULL. */
typedef struct product_call {
    operation op;
    int steps, columns;
    element type;             /* of out */
    const void *left, *right; /* W and x; W and dy; dy and x */
    void *out;                /* y, dx, dW */
    void *workspace;
    const tap_table *taps;
} product_call;

/* A kernel has up to three functions. `plan`, see plan/plan.h, makes its tables for a layout; they
 * belong to the layout. `run` launches it with them. */
typedef bool kernel_takes(const device_layout *device, const void *plan, const product_call *c);
typedef void kernel_run(backend *be, const device_layout *device, const void *plan,
                        const product_call *c);

/* Makes the plans of every kernel that a product with this new layout may take. */
void products_plan(backend *be, device_layout *device, const layout *l);

/* The name of the kernel that computes this product; NULL, with the reason, if the kernel that was
 * forced does not take it. Of `c` only op, steps, columns and type matter. */
const char *product_kernel_name(backend *be, const device_layout *device, const product_call *c,
                                error *err);

/* Forces the kernel of this name: it computes all products with a block-sparse W that it can, in
 * layouts created from now on. NULL or "": the first kernel that takes a product computes it.
 * Fails, with the names there are, if there is no such kernel for the backend's GPU and
 * precision. */
bool products_force(backend *be, const char *name, error *err);

extern const product_operations cuda_products; /* see ops.h */

void cuda_transpose(backend *be, void *target, const void *source, int rows, int columns);

#endif
