/* What all of the CUDA backend's files share: its state, errors, launches, types.
 *
 * All work but the sums over ranks, which have a stream of their own (training/sum_ranks.cu), is on
 * one stream, so operations run in the order they are issued. A failed call is remembered, the
 * first of them wins, and `finish` reports it; nothing is replayed after that. */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_DEVICE_H
#define SMALLWORLD_KERNELS_CUDA_DEVICE_DEVICE_H

extern "C" {
#include "ops.h"
}

#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

typedef __nv_bfloat16 bf16;

enum {
    COLUMN_MULTIPLE = 64,
    PRODUCT_MULTIPLE = 32, /* columns of a single product */
    STAGING_SLOTS = 32,
    STAGING_BYTES = 512 << 10, /* a slot; larger uploads take several */
    REDUCTION_BLOCKS = 1024,   /* partial sums of a reduction over an arena */
    MOST_TOGETHER = 32,        /* instances of kernels whose thread blocks wait for all others */
    MOST_TOLD = 128,           /* explanations, each of which is given once */
    MOST_WAITING = 16          /* kernels whose thread blocks wait for others */
};

typedef CUresult (*PFN_encode_map)(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank,
                                   void *base, const uint64_t *extent, const uint64_t *stride,
                                   const uint32_t *box, const uint32_t *element_stride,
                                   CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                   CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

/* The number of a kernel's thread blocks that the GPU runs at once, with `shared` bytes of shared
 * memory each. */
typedef struct kernel_room {
    const void *kernel;
    size_t shared;
    int blocks;
} kernel_room;

typedef struct cuda_backend {
    backend table;       /* first: a cuda_backend is a backend */
    cudaStream_t stream; /* what is issued goes here: own_stream, or the caller's */
    cudaStream_t own_stream;
    cudaEvent_t handed_over; /* marks where one stream's work ends and another's goes on */
    cublasHandle_t blas;
    void *blas_workspace;
    int gpu, processors;  /* its number; how many multiprocessors it has */
    bool hopper;          /* the GPU and this build have sm_90a's instructions */
    bool weights_settled; /* see cuda_weights_change */
    const char *kernel;   /* the one that products must take, or NULL; see products/dispatch.cu */
    PFN_encode_map encode_map;
    size_t shared_limit;  /* bytes of shared memory that a thread block may have */
    size_t l2_bytes;      /* of the L2 */
    double *partial;      /* [REDUCTION_BLOCKS] */
    float *part_sums;     /* what thread blocks of portable_bf16 pass on to each other ... */
    uint32_t *part_flags; /* ... and whether it is there; NULL before its first plan */
    struct adam_factors *factors;
    char *staging; /* pinned, STAGING_SLOTS x STAGING_BYTES */
    cudaEvent_t staged[STAGING_SLOTS];
    int next_slot;
    uint32_t *stuck;                   /* pinned, [MOST_WAITING], see cuda_stuck_word */
    const char *waiting[MOST_WAITING]; /* the kernels they belong to */
    kernel_room rooms[MOST_TOGETHER];
    int room_count;
    cudaEvent_t *marks; /* [mark_count]; NULL until first used */
    int mark_count;
    struct ncclComm *ranks;   /* NCCL's, once joined */
    char failure[640];        /* the first error, or "" */
    FILE *explained;          /* where each choice of a kernel is explained, or NULL ... */
    uint64_t told[MOST_TOLD]; /* ... and the hashes of those that were; 0: none */
} cuda_backend;

struct recording {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
};

static inline cuda_backend *cuda_of(backend *be) {
    return (cuda_backend *)be;
}

static inline const cuda_backend *cuda_of(const backend *be) {
    return (const cuda_backend *)be;
}

/* Of a power of two. */
static inline int log2_of(int power) {
    int log = 0;
    while (1 << log < power) log++;
    if (1 << log != power) abort();
    return log;
}

/* Each remembers a failure, if it is the first, and returns whether the call succeeded. */
bool cuda_ok(backend *be, cudaError_t status, const char *what);
bool cuda_fail(backend *be, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool cuda_blas_ok(backend *be, cublasStatus_t status, const char *what);

/* Writes an explanation to `explained`, unless it was written before. */
void cuda_explain(backend *be, const char *text);

/* Raises the kernel's limit on dynamic shared memory to `bytes`, if that is necessary; call it
 * before the launch. */
void cuda_allow_shared(backend *be, const void *kernel, size_t bytes);

/* Launches a kernel in clusters of `cluster` thread blocks. With `early`, which needs a kernel that
 * calls wait_for_earlier, it begins while the kernel before it in its stream ends, where the GPU
 * can do so. */
template <typename... P>
static inline void cuda_launch_clusters(backend *be, const char *what, bool early, int cluster,
                                        void (*kernel)(P...), dim3 grid, int threads, size_t shared,
                                        P... arguments) {
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    if (early && cuda_of(be)->hopper) {
        cudaLaunchAttribute *next = &attribute[config.numAttrs++];
        next->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        next->val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute *next = &attribute[config.numAttrs++];
        next->id = cudaLaunchAttributeClusterDimension;
        next->val.clusterDim = {(unsigned)cluster, 1, 1};
    }
    config.gridDim = grid;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = cuda_of(be)->stream;
    config.attrs = attribute;
    cuda_allow_shared(be, (const void *)kernel, shared);
    cuda_ok(be, cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

/* The same without clusters. */
template <typename... P>
static inline void cuda_launch(backend *be, const char *what, bool early, void (*kernel)(P...),
                               dim3 grid, int threads, size_t shared, P... arguments) {
    cuda_launch_clusters(be, what, early, 1, kernel, grid, threads, shared, arguments...);
}

/* Whether the GPU runs `blocks` thread blocks of the kernel at once; if not, remembers a failure.
 * The occupancy is looked up once for each kernel. */
bool cuda_run_together(backend *be, const char *what, const void *kernel, int blocks, int threads,
                       size_t shared);

/* Launches a kernel whose thread blocks wait for each other, so all of them must run at once. */
template <typename... P>
static inline void cuda_launch_together(backend *be, const char *what, bool early,
                                        void (*kernel)(P...), int blocks, int threads,
                                        size_t shared, P... arguments) {
    if (cuda_run_together(be, what, (const void *)kernel, blocks, threads, shared)) {
        cuda_launch(be, what, early, kernel, dim3(blocks), threads, shared, arguments...);
    }
}

/* A word that the kernel of this name sets before it gives up waiting for other thread blocks: the
 * failure that is remembered then names it. See device/waits.cuh. */
uint32_t *cuda_stuck_word(backend *be, const char *kernel);

/* Call this before you issue anything that writes what products may read as weights. A product that
 * starts early reads its weights without waiting for the kernel before; it may do so only after
 * another product has waited for everything that was issued before. */
static inline void cuda_weights_change(backend *be) {
    cuda_of(be)->weights_settled = false;
}

/* After a launch. */
static inline void cuda_launched(backend *be, const char *what) {
    cuda_ok(be, cudaGetLastError(), what);
}
/* ------------------------------------------------------------------------------------- types */

static __device__ inline float to_float(float x) {
    return x;
}

static __device__ inline float to_float(bf16 x) {
    return __bfloat162float(x);
}

template <typename T> static __device__ inline T from_float(float x);

template <> __device__ inline float from_float<float>(float x) {
    return x;
}

template <> __device__ inline bf16 from_float<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

/* Calls a template with the operand's type: DISPATCH(be, function, arguments). */
#define DISPATCH(be, function, ...)                                                                \
    ((be)->precision == BF16 ? function<bf16>(__VA_ARGS__) : function<float>(__VA_ARGS__))

#endif
