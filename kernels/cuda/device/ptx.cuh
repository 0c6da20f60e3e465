/* Inline PTX of sm_80 and later, behind names; what came with sm_90 and is of use to all kernels
 * does nothing before. What only Hopper has is in hopper_ptx.cuh. Reference: PTX ISA, "Warp-level
 * matrix instructions", "Asynchronous copy", "griddepcontrol". */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_PTX_CUH
#define SMALLWORLD_KERNELS_CUDA_DEVICE_PTX_CUH

#include <stdint.h>

static __device__ inline uint32_t shared_address(const void *pointer) {
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Copies 16 bytes from global to shared memory. */
static __device__ inline void copy_async_whole(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}

/* The same, of which `bytes` are read and the others are zero. AHEAD: the L2 then fetches all 256
 * bytes around it. */
template <bool AHEAD = false>
static __device__ inline void copy_async_part(uint32_t to, const void *from, int bytes) {
    if (AHEAD) {
        asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(bytes));
    } else {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                     "r"(bytes));
    }
}

/* The same; where `from` is NULL, 16 zero bytes. */
static __device__ inline void copy_async(uint32_t to, const void *from) {
    copy_async_part(to, from, from ? 16 : 0);
}

/* 4 bytes. */
static __device__ inline void copy_word_async(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

static __device__ inline void copy_commit() {
    asm volatile("cp.async.commit_group;");
}

/* Waits until at most `pending` of this thread's groups are under way. */
template <int pending> static __device__ inline void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending));
}

/* Stores what the L2 shall evict last; from sm_90 on. */
static __device__ inline void store_lasting(uint2 *to, uint2 x) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    const uint64_t evict_last = 0x14F0000000000000;
    asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1, %2}, %3;" ::"l"(to), "r"(x.x),
                 "r"(x.y), "l"(evict_last)
                 : "memory");
#else
    *to = x;
#endif
}

static __device__ inline void store_lasting(uint4 *to, uint4 x) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    const uint64_t evict_last = 0x14F0000000000000;
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(x.x),
                 "r"(x.y), "r"(x.z), "r"(x.w), "l"(evict_last)
                 : "memory");
#else
    *to = x;
#endif
}

/* Has the L2 fetch `bytes` bytes, a multiple of 16; from sm_90 on. */
static __device__ inline void prefetch(const void *from, uint32_t bytes) {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* Where chunk `c` of row `row` lies in a tile whose rows have `width` chunks: permuted so that the
 * eight rows that ldmatrix reads at once fall into different banks. */
template <int width> static __device__ inline int swizzle(int row, int c) {
    const int spread = width % 8 ? width & -width : 8; /* chunks among which a row's are permuted */
    const int rows = 8 / spread;                       /* that fill all banks */
    return row * width + (c ^ (row / rows % spread));
}

/* Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. */
static __device__ inline void load_matrices(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* Loads nothing, without a branch, where `on` is 0, which is the same in all lanes. */
static __device__ inline void load_matrices_if(uint32_t (&r)[4], uint32_t address, int on) {
    asm volatile("{\n.reg .pred on;\nsetp.ne.b32 on, %5, 0;\n"
                 "@on ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n}"
                 : "+r"(r[0]), "+r"(r[1]), "+r"(r[2]), "+r"(r[3])
                 : "r"(address), "r"(on));
}

static __device__ inline void load_matrices_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

/* Transposes an 8 x 8 matrix of 16-bit elements, of which a lane holds two neighbours of a row. */
static __device__ inline uint32_t transpose_matrix(uint32_t r) {
    uint32_t turned;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(turned) : "r"(r));
    return turned;
}

/* 2^x and 1 / x with an error of about 2^-22, in one instruction each. 2^128 and more is infinite,
 * and its inverse is 0. */
static __device__ inline float exponential2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ inline float reciprocal(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* sum [16 x 8] += a [16 x 16] b [16 x 8], bf16 with fp32 sums. */
static __device__ inline void multiply_add(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0,
                                           uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Between two kernels the GPU drains and fills again, which takes some microseconds. From sm_90 on,
 * let_next_start allows the next kernel's thread blocks onto multiprocessors that have room. Until
 * these call wait_for_earlier they may read only what kernels before the current one wrote; after
 * it, the writes of all kernels before theirs. Therefore a kernel calls let_next_start only after
 * it has waited itself. */
static __device__ inline void let_next_start() {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

static __device__ inline void wait_for_earlier() {
#if defined __CUDA_ARCH__ && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

#endif
