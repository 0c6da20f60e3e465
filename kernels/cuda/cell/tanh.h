/* tanh near 0, |x| < 0.6, in fp32: by an odd polynomial, where the usual difference would
 * cancel. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_TANH_H
#define SMALLWORLD_KERNELS_CUDA_CELL_TANH_H

#define TANH_NEAR 0.36f /* z below which it holds */

/* The p of x + x z p, with z = x * x. */
static __device__ inline float tanh_polynomial(float z) {
    float p = -0.0060536987f;
    p = p * z + 0.0209681876f;
    p = p * z - 0.0538449883f;
    p = p * z + 0.133327335f;
    p = p * z - 0.333333284f;
    return p;
}

#endif
