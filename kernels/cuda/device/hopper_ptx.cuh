/* Hopper's own instructions (sm_90a), behind names: barriers in shared memory, the tensor copy
 * engine (TMA), and matrix products of a warpgroup (wgmma). Inline PTX that several of Hopper's
 * kernels share is here, or where older GPUs have it too in ptx.cuh. Reference: PTX ISA,
 * "Asynchronous warpgroup-level matrix instructions", "Tensor copy", "mbarrier". */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_HOPPER_PTX_CUH
#define SMALLWORLD_KERNELS_CUDA_DEVICE_HOPPER_PTX_CUH

#include <cuda.h>
#include <stdint.h>

#if defined __CUDA_ARCH_FEAT_SM90_ALL || !defined __CUDA_ARCH__
#define ON_HOPPER 1
#else
#define ON_HOPPER 0 /* this pass compiles empty kernels, which the host never launches */
#endif

/* Swizzled tiles begin at multiples of 1024 bytes: ask for that much more shared memory. */
static __device__ inline char *aligned_tiles(char *shared) {
    return (char *)(((uintptr_t)shared + 1023) & ~(uintptr_t)1023);
}

/* ------------------------------------------------------------------------------------ barriers */

static __device__ inline void barrier_init(uint32_t barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

/* Makes initialised barriers visible to TMA; then synchronise the thread block. */
static __device__ inline void barrier_init_done() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

static __device__ inline void barrier_arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/* The first lane of a warp arrives for all lanes, after __syncwarp, which orders what the other
 * lanes did before. Racecheck counts such an arrival for the first lane alone and reports the
 * others' reads and writes, so with SMALLWORLD_RACECHECK every lane arrives. */
#ifdef SMALLWORLD_RACECHECK
enum { WARP_ARRIVALS = 32 };
#else
enum { WARP_ARRIVALS = 1 };
#endif

/* Initialises a barrier at which `warps` warps arrive. */
static __device__ inline void barrier_init_warps(uint32_t barrier, int warps) {
    barrier_init(barrier, warps * WARP_ARRIVALS);
}

static __device__ inline void barrier_arrive_warp(uint32_t barrier) {
    if (threadIdx.x % 32 < WARP_ARRIVALS) barrier_arrive(barrier);
}

/* The same, if `on`, without a branch, which products under way would not survive. */
static __device__ inline void barrier_arrive_warp_if(uint32_t barrier, bool on) {
    const int arrives = on && threadIdx.x % 32 < WARP_ARRIVALS;
    asm volatile("{\n"
                 ".reg .pred on;\n"
                 "setp.ne.b32 on, %1, 0;\n"
                 "@on mbarrier.arrive.shared::cta.b64 _, [%0];\n"
                 "}" ::"r"(barrier),
                 "r"(arrives)
                 : "memory");
}

/* Arrives `times` times at a barrier of any of the cluster's thread blocks. */
static __device__ inline void barrier_arrive_at(uint32_t barrier, int times) {
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier), "r"(times)
                 : "memory");
}

/* Arrives and announces bytes that copies will bring. */
static __device__ inline void barrier_expect(uint32_t barrier, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* Waits for the phase of this parity to complete. */
static __device__ inline void barrier_wait(uint32_t barrier, int parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}

/* -------------------------------------------------------------------------------------- copies */

/* A box of a tensor at these coordinates, innermost first, to shared memory. */
static __device__ inline void tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                          int x, int y) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y)
                 : "memory");
}

static __device__ inline void tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                          int x, int y, int z) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

static __device__ inline void tensor_load(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                          int x, int y, int z, int u) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(u)
                 : "memory");
}

/* Multicast: the box goes to the same place in each of the cluster's thread blocks in the mask, and
 * completes on the barrier of each. */
static __device__ inline void tensor_load_all(uint32_t to, const CUtensorMap *map, uint32_t barrier,
                                              int x, int y, int z, int mask) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"((uint16_t)mask)
                 : "memory");
}

/* A box of what is read only once: the L2 evicts it first. */
static __device__ inline void tensor_load_once(uint32_t to, const CUtensorMap *map,
                                               uint32_t barrier, int x, int y) {
    const uint64_t evict_first = 0x12F0000000000000;
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
                 "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(evict_first)
                 : "memory");
}

/* Neighbouring bytes, a multiple of 16, to shared memory. */
static __device__ inline void bulk_load(uint32_t to, const void *from, int bytes,
                                        uint32_t barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Makes ordinary stores to global memory that this thread has seen visible to TMA. */
static __device__ inline void global_fence() {
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* ------------------------------------------------------------------------------------ products
 *
 * An operand in shared memory is described by where it starts, its swizzle, and two strides. With a
 * row of 64 or 128 bytes (SWIZZLE_64, SWIZZLE_128) that runs along
 *   k (K-major):    `stride` is the distance of groups of 8 rows; the next 16 of k are 32 bytes on
 *   m or n (major): `stride` is the distance of groups of 8 steps of k, `leading` that of the next
 *                   row's worth of m or n; the next 16 of k are 2 `stride` on */

enum { SWIZZLE_128 = 1, SWIZZLE_64 = 2 };

static __device__ inline uint64_t matrix_descriptor(uint32_t address, int swizzle, int leading,
                                                    int stride) {
    return (uint64_t)((address & 0x3FFFF) >> 4) | (uint64_t)(leading >> 4) << 16 |
           (uint64_t)(stride >> 4) << 32 | (uint64_t)swizzle << 62;
}

static __device__ inline void product_fence() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

static __device__ inline void product_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int pending> static __device__ inline void product_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

/* Makes this thread's ordinary stores to shared memory visible to products and copies, and orders
 * these after its ordinary loads; then synchronise. */
static __device__ inline void shared_fence() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* clang-format off */
#define F1(i)   "+f"(d[i])
#define F4(i)   F1(i), F1(i + 1), F1(i + 2), F1(i + 3)
#define F16(i)  F4(i), F4(i + 4), F4(i + 8), F4(i + 12)
#define F64(i)  F16(i), F16(i + 16), F16(i + 32), F16(i + 48)
#define R8(a)   "%" #a "0, %" #a "1, %" #a "2, %" #a "3, %" #a "4, %" #a "5, %" #a "6, %" #a "7"
#define R10(a)  R8(a) ", %" #a "8, %" #a "9"
#define R0_9    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9"
#define R0_7    "%0, %1, %2, %3, %4, %5, %6, %7"
#define R0_11   R0_9 ", %10, %11"
#define R0_15   R0_9 ", %10, %11, %12, %13, %14, %15"
#define R0_19   R0_9 ", " R10(1)
#define R0_23   R0_19 ", %20, %21, %22, %23"
#define R0_27   R0_23 ", %24, %25, %26, %27"
#define R0_31   R0_9 ", " R10(1) ", " R10(2) ", %30, %31"
#define R0_47   R0_9 ", " R10(1) ", " R10(2) ", " R10(3) ", " R8(4)
#define R0_59   R0_9 ", " R10(1) ", " R10(2) ", " R10(3) ", " R10(4) ", " R10(5)
#define R0_63   R0_9 ", " R10(1) ", " R10(2) ", " R10(3) ", " R10(4) ", " R10(5) \
                ", %60, %61, %62, %63"
#define R0_71   R0_63 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define R0_83   R0_59 ", " R10(6) ", " R10(7) ", %80, %81, %82, %83"
#define R0_95   R0_9 ", " R10(1) ", " R10(2) ", " R10(3) ", " R10(4) ", " R10(5) ", " R10(6) ", " \
                R10(7) ", " R10(8) ", %90, %91, %92, %93, %94, %95"
#define R0_127  R0_9 ", " R10(1) ", " R10(2) ", " R10(3) ", " R10(4) ", " R10(5) ", " R10(6) ", " \
                R10(7) ", " R10(8) ", " R10(9) ", " R10(10) ", " R10(11) \
                ", %120, %121, %122, %123, %124, %125, %126, %127"

/* d [64 x n] += a [64 x 16] b [16 x n] in bf16 with fp32 sums, of one warpgroup. `major` 0:
 * along k; 1: along m (a) or n (b). Thread i holds of row i / 32 * 16 + i % 32 / 4 (+ 8 half)
 * the columns 8 j + i % 4 * 2 (+ e), for every j: d[4 j + 2 half + e].
 * SUMS: how many a thread holds, as their registers; A ... D: the numbers of the operands after. */
#define MULTIPLY(SUMS, n, REGISTERS, A, B, C, D, ...)                                              \
    template <int a_major, int b_major>                                                            \
    static __device__ inline void warpgroup_multiply(float (&d)[SUMS], uint64_t a, uint64_t b) {   \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "                   \
                     "{" REGISTERS "}, %" #A ", %" #B ", 1, 1, 1, %" #C ", %" #D ";"               \
                     : __VA_ARGS__                                                                 \
                     : "l"(a), "l"(b), "n"(a_major), "n"(b_major));                                \
    }
MULTIPLY(8, 16, R0_7, 8, 9, 10, 11, F4(0), F4(4))
MULTIPLY(12, 24, R0_11, 12, 13, 14, 15, F4(0), F4(4), F4(8))
MULTIPLY(16, 32, R0_15, 16, 17, 18, 19, F16(0))
MULTIPLY(20, 40, R0_19, 20, 21, 22, 23, F16(0), F4(16))
MULTIPLY(24, 48, R0_23, 24, 25, 26, 27, F16(0), F4(16), F4(20))
MULTIPLY(28, 56, R0_27, 28, 29, 30, 31, F16(0), F4(16), F4(20), F4(24))
MULTIPLY(32, 64, R0_31, 32, 33, 34, 35, F16(0), F16(16))
MULTIPLY(48, 96, R0_47, 48, 49, 50, 51, F16(0), F16(16), F16(32))
MULTIPLY(60, 120, R0_59, 60, 61, 62, 63, F16(0), F16(16), F16(32), F4(48), F4(52), F4(56))
MULTIPLY(64, 128, R0_63, 64, 65, 66, 67, F64(0))
MULTIPLY(72, 144, R0_71, 72, 73, 74, 75, F64(0), F4(64), F4(68))
MULTIPLY(84, 168, R0_83, 84, 85, 86, 87, F64(0), F16(64), F4(80))
MULTIPLY(96, 192, R0_95, 96, 97, 98, 99, F64(0), F16(64), F16(80))
MULTIPLY(128, 256, R0_127, 128, 129, 130, 131, F64(0), F64(64))

/* The same, or without `adds` d = a b, with a held by the warpgroup's threads: of row
 * i / 32 * 16 + i % 32 / 4 the columns i % 4 * 2 (+ 1) in a[0], 8 rows further in a[1]; 8 columns
 * further in a[2] and a[3]. */
#define MULTIPLY_HELD(SUMS, n, REGISTERS, A, B, C, D, ...)                                         \
    template <int b_major, bool adds = true>                                                       \
    static __device__ inline void warpgroup_multiply(float (&d)[SUMS], const uint32_t (&a)[4],     \
                                                     uint64_t b) {                                 \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32.bf16.bf16 "                   \
                     "{" REGISTERS "}, {" A "}, %" #B ", %" #D ", 1, 1, %" #C ";"                  \
                     : __VA_ARGS__                                                                 \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(b_major),           \
                       "n"((int)adds));                                                            \
    }
MULTIPLY_HELD(16, 32, R0_15, "%16, %17, %18, %19", 20, 21, 22, F16(0))
MULTIPLY_HELD(32, 64, R0_31, "%32, %33, %34, %35", 36, 37, 38, F16(0), F16(16))
MULTIPLY_HELD(64, 128, R0_63, "%64, %65, %66, %67", 68, 69, 70, F64(0))
MULTIPLY_HELD(96, 192, R0_95, "%96, %97, %98, %99", 100, 101, 102, F64(0), F16(64), F16(80))

#undef MULTIPLY
#undef MULTIPLY_HELD
#undef F1
#undef F4
#undef F16
#undef F64
#undef R8
#undef R10
#undef R0_7
#undef R0_9
#undef R0_11
#undef R0_15
#undef R0_19
#undef R0_23
#undef R0_27
#undef R0_31
#undef R0_47
#undef R0_59
#undef R0_63
#undef R0_71
#undef R0_83
#undef R0_95
#undef R0_127
/* clang-format on */

/* -------------------------------------------------------------------------------------- stores */

/* Copies shared memory to a box of a tensor; elements outside the tensor are not stored. */
static __device__ inline void tensor_store(const CUtensorMap *map, uint32_t from, int x, int y) {
    asm volatile(
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
        "r"(from), "r"(x), "r"(y)
        : "memory");
}

static __device__ inline void tensor_store(const CUtensorMap *map, uint32_t from, int x, int y,
                                           int z) {
    asm volatile("cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%2, %3, %4}], "
                 "[%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z)
                 : "memory");
}

static __device__ inline void store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until at most `pending` of this thread's groups of stores still read shared memory. */
template <int pending> static __device__ inline void store_wait() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}

/* The same, until they have reached global memory. */
static __device__ inline void store_finish() {
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

/* ------------------------------------------------------------------------------------- others */

static __device__ inline void shared_store(uint32_t to, uint32_t word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

static __device__ inline uint32_t shared_load(uint32_t from) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

static __device__ inline uint2 shared_load2(uint32_t from) {
    uint2 v;
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(from) : "memory");
    return v;
}

/* Four words. */
static __device__ inline uint4 shared_words(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

static __device__ inline void shared_store2(uint32_t to, float one, float two) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(one), "f"(two) : "memory");
}

static __device__ inline void shared_store4(uint32_t to, float4 v) {
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}

static __device__ inline float4 shared_load4(uint32_t from) {
    float4 v;
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

/* Clusters: a thread block's number; the address in another thread block that corresponds to one in
 * this; and a barrier of all threads, after which they see each other's shared memory. */
static __device__ inline uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

static __device__ inline uint32_t cluster_address(uint32_t address, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}

static __device__ inline void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

static __device__ inline void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
    cluster_wait();
}

/* Stores 16 bytes in another thread block's shared memory, and completes them on a barrier
 * there. */
static __device__ inline void cluster_send4(uint32_t to, float4 v, uint32_t barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 "
                 "[%0], {%1, %2, %3, %4}, [%5];" ::"r"(to),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier)
                 : "memory");
}

/* Waits for the first phase of a barrier that the cluster's thread blocks send to. */
static __device__ inline void cluster_receive(uint32_t barrier) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
                 "@done bra over;\n"
                 "bra again;\n"
                 "over:\n"
                 "}" ::"r"(barrier)
                 : "memory");
}

/* Arrives without waiting. Barriers that a thread initialised before are visible to all threads
 * that have waited. */
static __device__ inline void cluster_arrive() {
    asm volatile("fence.mbarrier_init.release.cluster;\n"
                 "barrier.cluster.arrive.relaxed;" ::
                     : "memory");
}

/* True in one lane of the warp; all lanes call this. ptxas knows that it is a single lane, which it
 * does not know of lane 0, and so issues copies without a loop over lanes. */
static __device__ inline bool elected() {
    uint32_t one = 0;
    asm volatile("{\n.reg .pred one;\n"
                 "elect.sync _|one, 0xFFFFFFFF;\n"
                 "@one mov.u32 %0, 1;\n}"
                 : "+r"(one));
    return one;
}

/* Keeps the compiler from computing a value again wherever it is used. */
static __device__ inline uint32_t kept(uint32_t value) {
    asm volatile("mov.b32 %0, %0;" : "+r"(value));
    return value;
}

/* Sets the number of registers of this warpgroup's threads; every warp of it calls this. */
template <int registers> static __device__ inline void registers_shrink() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

template <int registers> static __device__ inline void registers_grow() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}

/* Four 8 x 8 matrices of 16-bit elements, held as products' sums are; lane i gives the address of
 * column i % 8 of matrix i / 8. */
static __device__ inline void store_matrices_transposed(uint32_t address, const uint32_t (&r)[4]) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
        : "memory");
}

/* A barrier of `threads` threads; its number is 1 to 15. */
static __device__ inline void group_sync(int number, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

/* Arrives at that barrier without waiting. */
static __device__ inline void group_arrive(int number, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

#endif
