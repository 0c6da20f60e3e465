/* The numbers of core/philox.h on the GPU, drawn by cuRAND's Philox4x32-10. Its header needs no
 * library to link with. tests/test_philox_cuda.cu compares the two bit for bit. */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_PHILOX_CUH
#define SMALLWORLD_KERNELS_CUDA_DEVICE_PHILOX_CUH

#define QUALIFIERS static __forceinline__ __host__ __device__ /* the test calls it on the host */
#include <curand_philox4x32_x.h>
#undef QUALIFIERS

extern "C" {
#include "core/philox.h" /* the purposes */
}

static __host__ __device__ inline uint4 philox_draw(uint64_t key, uint32_t c0, uint32_t c1,
                                                    uint32_t c2, uint32_t c3) {
    return curand_Philox4x32_10(make_uint4(c0, c1, c2, c3),
                                make_uint2((uint32_t)key, (uint32_t)(key >> 32)));
}

#endif
