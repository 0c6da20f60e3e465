/* Waits for other thread blocks, which end with an error rather than never. */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_WAITS_CUH
#define SMALLWORLD_KERNELS_CUDA_DEVICE_WAITS_CUH

#include <stdint.h>

/* A poll is a trip to the L2 and takes half a microsecond or more, so this many take seconds. A
 * wait without a fault takes milliseconds at most. */
enum { MOST_POLLS = 1 << 23 };

/* Counts the polls of one wait. */
struct patience {
    uint32_t left = MOST_POLLS;

    /* After a poll in vain. The last one sets the kernel's word, see cuda_stuck_word, and ends all
     * work on the device by a store to where there is no memory: with a trap instruction instead,
     * kernels that hold sums while they wait spill a thousand bytes of them. */
    __device__ void lose(uint32_t *stuck) {
        if (--left) return;
        *(volatile uint32_t *)stuck = 1;
        __threadfence_system();
        asm volatile("st.global.u32 [%0], %1;" ::"l"((uint64_t)0), "r"(1) : "memory");
    }
};

/* What a thread wrote before it stored a flag is there for whoever has loaded that flag. */
static __device__ inline uint32_t load_flag(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

static __device__ inline void store_flag(uint32_t *to, uint32_t x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

#endif
