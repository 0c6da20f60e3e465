/* A product with a block-sparse W, as the kernels that walk its blocks see it. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_PRODUCT_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_PRODUCT_CUH

#include "backend.h"

/* What an operation works on, as its kernel needs it. */
typedef struct product {
    const void *left, *right; /* W and x; W and dy; dy and x */
    void *out;
    const int *start, *other, *block; /* tables of the row or column that a tile belongs to */
    fixed *sums;
    size_t right_step, out_step; /* elements between steps */
    size_t left_step;
    int columns, steps;
    int b, log_b, rows, log_rows; /* rows: gates b */
    int real;                     /* the result is fp32 */
    int overlap; /* `left` may be read before the kernel before ends; see cuda_weights_change */
} product;

/* Which one. Its tiles: fprop's and dgrad's output nodes; wgrad's groups of a row's blocks. */
typedef enum operation { FPROP, DGRAD, WGRAD } operation;

/* With operands of 4 bytes: through tf32 tensor cores, and in true fp32. */
void portable_tf32_run(backend *be, const product &p, operation op, int tiles);
void portable_fp32_run(backend *be, const product &p, operation op, int tiles);

/* The latter on Hopper, of blocks of 32 and more; `blocks`: of W. */
bool hopper_fp32_takes(backend *be, const product &p, operation op);
void hopper_fp32_run(backend *be, const product &p, operation op, int tiles, int blocks);

#endif
