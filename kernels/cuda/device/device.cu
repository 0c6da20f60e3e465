#include "device/device.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

uint32_t *cuda_stuck_word(backend *be, const char *kernel) {
    cuda_backend *cuda = cuda_of(be);
    int i = 0;
    while (i < MOST_WAITING && cuda->waiting[i] && strcmp(cuda->waiting[i], kernel)) i++;
    if (i == MOST_WAITING) abort();
    cuda->waiting[i] = kernel;
    return &cuda->stuck[i];
}

/* The kernel that gave up waiting, or NULL. */
static const char *stuck_kernel(const cuda_backend *cuda) {
    for (int i = 0; i < MOST_WAITING && cuda->stuck && cuda->waiting[i]; i++) {
        if (*(volatile uint32_t *)&cuda->stuck[i]) return cuda->waiting[i];
    }
    return NULL;
}

bool cuda_ok(backend *be, cudaError_t status, const char *what) {
    cuda_backend *cuda = cuda_of(be);
    if (status == cudaSuccess || *cuda->failure) return status == cudaSuccess;
    const char *stuck = stuck_kernel(cuda);
    if (stuck) {
        snprintf(cuda->failure, sizeof cuda->failure,
                 "%s: a thread block waited for seconds for others that never came", stuck);
    } else {
        snprintf(cuda->failure, sizeof cuda->failure, "%s: %s", what, cudaGetErrorString(status));
    }
    return status == cudaSuccess;
}

bool cuda_fail(backend *be, const char *format, ...) {
    cuda_backend *cuda = cuda_of(be);
    va_list arguments;
    va_start(arguments, format);
    if (!*cuda->failure) vsnprintf(cuda->failure, sizeof cuda->failure, format, arguments);
    va_end(arguments);
    return false;
}

bool cuda_blas_ok(backend *be, cublasStatus_t status, const char *what) {
    cuda_backend *cuda = cuda_of(be);
    if (status != CUBLAS_STATUS_SUCCESS && !*cuda->failure) {
        snprintf(cuda->failure, sizeof cuda->failure, "%s: %s", what,
                 cublasGetStatusString(status));
    }
    return status == CUBLAS_STATUS_SUCCESS;
}

void cuda_explain(backend *be, const char *text) {
    cuda_backend *cuda = cuda_of(be);
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    int i = 0;
    for (const char *at = text; *at; at++) hash = (hash ^ (uint8_t)*at) * 1099511628211u;
    while (i < MOST_TOLD && cuda->told[i] && cuda->told[i] != hash) i++;
    if (i < MOST_TOLD && cuda->told[i] == 0) {
        cuda->told[i] = hash;
        fputs(text, cuda->explained);
    }
}

void cuda_allow_shared(backend *be, const void *kernel, size_t bytes) {
    if (bytes <= 40 << 10) return; /* the default limit is 48 KB, static shared memory included */
    const bool fits = bytes <= cuda_of(be)->shared_limit;
    cuda_ok(be,
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
            fits ? "set the limit on shared memory"
                 : "more units or streams than this GPU's shared memory has room for");
}

bool cuda_run_together(backend *be, const char *what, const void *kernel, int blocks, int threads,
                       size_t shared) {
    cuda_backend *cuda = cuda_of(be);
    int i = 0, each = 0;
    while (i < cuda->room_count &&
           (cuda->rooms[i].kernel != kernel || cuda->rooms[i].shared != shared))
        i++;
    if (i == cuda->room_count) {
        cuda_allow_shared(be, kernel, shared);
        const cudaError_t status =
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared);
        if (!cuda_ok(be, status, what)) return false;
        if (i == MOST_TOGETHER) i = cuda->room_count = 0; /* and look the others up again */
        cuda->rooms[cuda->room_count++] = {kernel, shared, each * cuda->processors};
    }
    if (blocks <= cuda->rooms[i].blocks) return true;
    return cuda_fail(
        be,
        "%s: %d thread blocks wait for each other, and this GPU runs %d at once; fewer "
        "units or streams need fewer",
        what, blocks, cuda->rooms[i].blocks);
}
