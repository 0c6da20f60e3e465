/* What only a GPU can tell a benchmark, see bench.h: times by events, random data made where it is
 * needed, and an exchange: a thread block a multiprocessor; in each round it leaves a number and
 * waits until it has read at least that of all others, a way to the L2 and one back. */
#include "bench.h"
#include "bench/measure.h"
#include "device/philox.cuh"
#include "device/waits.cuh"
#include "products/products.h"

#include <stdlib.h>
#include <string.h>

enum { THREADS = 256 };

/* ------------------------------------------------------------------------------------- timing */

/* Marks are events. In a recording they become nodes of its graph, so each replay records them
 * again. */
void cuda_mark(backend *be, int number) {
    cuda_backend *cuda = cuda_of(be);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (number >= cuda->mark_count) {
        int count = 2 * number + 16;
        cuda->marks = (cudaEvent_t *)realloc(cuda->marks, (size_t)count * sizeof *cuda->marks);
        if (!cuda->marks) abort();
        for (int i = cuda->mark_count; i < count; i++) cuda->marks[i] = NULL;
        cuda->mark_count = count;
    }
    cudaEvent_t *event = &cuda->marks[number];
    if (!*event) cuda_ok(be, cudaEventCreate(event), "event");
    cuda_ok(be, cudaStreamIsCapturing(cuda->stream, &status), "event");
    unsigned how =
        status == cudaStreamCaptureStatusNone ? cudaEventRecordDefault : cudaEventRecordExternal;
    cuda_ok(be, cudaEventRecordWithFlags(*event, cuda->stream, how), "event");
}

double cuda_elapsed(backend *be, int from, int to) {
    cuda_backend *cuda = cuda_of(be);
    float milliseconds = 0;
    cuda_ok(be, cudaStreamSynchronize(cuda->stream), "time");
    cuda_ok(be, cudaEventElapsedTime(&milliseconds, cuda->marks[from], cuda->marks[to]), "time");
    return milliseconds * 1e-3;
}

/* ------------------------------------------------------------------------------------- device */

static size_t cache_bytes(backend *be) {
    int bytes = 0;
    cuda_ok(be, cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, 0), "device");
    return (size_t)bytes;
}

/* ---------------------------------------------------------------------------------- randomise */

/* [-1, 1) in steps of 2^-23. */
static __device__ inline float unit_value(uint32_t word) {
    return (float)(int)(word >> 8) * 0x1p-23f - 1;
}

/* Each thread fills 4 neighbours at a time; T: float or bf16. */
template <typename T> static __global__ void randomise_kernel(T *x, size_t count, uint64_t seed) {
    size_t quads = (count + 3) / 4, step = (size_t)gridDim.x * THREADS;
    for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < quads; i += step) {
        uint4 block =
            philox_draw(seed, (uint32_t)i, (uint32_t)(i >> 32), 0, PHILOX_PURPOSE(PHILOX_BENCH, 0));
        const uint32_t word[4] = {block.x, block.y, block.z, block.w};
        for (int k = 0; k < 4; k++) {
            if (i * 4 + k < count) x[i * 4 + k] = from_float<T>(unit_value(word[k]));
        }
    }
}

static void randomise(backend *be, void *x, size_t count, uint64_t seed) {
    cuda_backend *cuda = cuda_of(be);
    cuda_weights_change(be);
    int blocks = cuda->processors * 8;
    if (be->precision == BF16) {
        randomise_kernel<<<blocks, THREADS, 0, cuda->stream>>>((bf16 *)x, count, seed);
    } else {
        randomise_kernel<<<blocks, THREADS, 0, cuda->stream>>>((float *)x, count, seed);
    }
    cuda_launched(be, "randomise");
}

/* ----------------------------------------------------------------------------------- exchange */

static __global__ void __launch_bounds__(THREADS)
    exchange_kernel(uint32_t *words, int times, uint32_t *stuck) {
    volatile uint32_t *all = words;
    const uint32_t before = all[blockIdx.x];
    for (int round = 1; round <= times; round++) {
        __syncthreads(); /* all have read `before`, and the others' last words */
        if (threadIdx.x == 0) all[blockIdx.x] = before + round;
        for (int i = threadIdx.x; i < gridDim.x; i += THREADS) {
            for (patience p; (int)(all[i] - before) < round;) p.lose(stuck);
        }
    }
}

static void exchange(backend *be, void *words, int times) {
    cuda_backend *cuda = cuda_of(be);
    const int most = EXCHANGE_BYTES / sizeof(uint32_t);
    exchange_kernel<<<min(cuda->processors, most), THREADS, 0, cuda->stream>>>(
        (uint32_t *)words, times, cuda_stuck_word(be, "exchange"));
    cuda_launched(be, "exchange");
}

static const char *kernel_name(backend *be, const device_layout *l, bench_product product,
                               int steps, int columns, error *err) {
    static const operation operations[PRODUCTS] = {FPROP, DGRAD, WGRAD};
    const product_call c = {operations[product], steps, columns,
                            product == PRODUCT_WGRAD ? REAL : OPERAND};
    return product_kernel_name(be, l, &c, err);
}

static void explain(backend *be, FILE *out) {
    memset(cuda_of(be)->told, 0, sizeof cuda_of(be)->told);
    cuda_of(be)->explained = out;
}

const bench_tools cuda_bench_tools = {cache_bytes, kernel_name, products_force,
                                      explain,     randomise,   exchange};
