/* The functions of every kernel in the dispatch table; most plans are in plan/plan.h. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_KERNELS_H
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_KERNELS_H

#include "products/products.h"

/* products/hopper */
bool hopper_compiled(void); /* whether this build has code for sm_90a */

kernel_plan wgrad_gates_plan;
kernel_run gather_run, small_blocks_run;
kernel_run wgrad_gates_run, wgrad_one_gate_run, wgrad_small_blocks_run;
kernel_takes small_blocks_prefers;

/* products/portable */
kernel_plan portable_bf16_plan, portable_wgrad_plan;
kernel_run few_columns_run, portable_bf16_run, portable_fp32_run, cublas_run;

#endif
