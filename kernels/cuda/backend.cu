/* The CUDA backend: memory, asynchronous uploads, recordings as CUDA graphs. Only this
 * folder knows CUDA. Its rooms, of which each uses those below it:
 *
 *   bench/     marks in time, and what only a GPU can tell a benchmark
 *   cell/, training/  what a cell does between products; the loss, reductions and the update
 *   products/  the products with W: dispatch.cu has the table of all kernels and chooses among
 *              them; portable/ has those for any GPU from sm_80 on, hopper/ those for sm_90a
 *   device/    the backend's state, errors and launches, inline PTX behind names, random numbers,
 *              sums that do not depend on their order
 *
 * A file X.cu holds kernel X; the tables that it walks, if any, are made in plan/X.c, beside this
 * folder, and plan/X.h has what these two agree on. */
#include "bench/measure.h"
#include "cell/cell.h"
#include "cell/hubs.h"
#include "device/layout.h"
#include "products/kernels.h"
#include "training/training.h"

#include <stdio.h>
#include <string.h>

enum { BLAS_WORKSPACE = 32 << 20, MEMORY_RESERVE = 256 << 20 };

static bool finish(backend *be, error *err) {
    cuda_backend *cuda = cuda_of(be);
    cuda_ok(be, cudaStreamSynchronize(cuda->stream), "synchronise");
    return *cuda->failure ? error_set(err, "GPU: %s", cuda->failure) : true;
}

/* ------------------------------------------------------------------------------------- memory */

static void *allocate(backend *be, size_t bytes) {
    void *block = NULL;
    (void)be;
    if (cudaMalloc(&block, bytes ? bytes : 1) == cudaSuccess) return block;
    cudaGetLastError(); /* not an error of what follows */
    return NULL;
}

static void release(backend *be, void *block) {
    cuda_ok(be, cudaFree(block), "free");
}

static void zero(backend *be, void *block, size_t bytes) {
    cuda_weights_change(be);
    cuda_ok(be, cudaMemsetAsync(block, 0, bytes, cuda_of(be)->stream), "zero");
}

static void copy(backend *be, void *target, const void *source, size_t bytes) {
    cuda_weights_change(be);
    cuda_ok(be,
            cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToDevice, cuda_of(be)->stream),
            "copy");
}

static void copy_rows(backend *be, void *target, size_t target_pitch, const void *source,
                      size_t source_pitch, size_t bytes, size_t rows) {
    cuda_weights_change(be);
    cuda_ok(be,
            cudaMemcpy2DAsync(target, target_pitch, source, source_pitch, bytes, rows,
                              cudaMemcpyDeviceToDevice, cuda_of(be)->stream),
            "copy of rows");
}

/* Copies through a ring of pinned slots, and waits only for a slot whose last copy is not done. */
static void upload(backend *be, void *target, const void *source, size_t bytes) {
    cuda_backend *cuda = cuda_of(be);
    cuda_weights_change(be);
    for (size_t done = 0; done < bytes; done += STAGING_BYTES) {
        size_t part = bytes - done < STAGING_BYTES ? bytes - done : STAGING_BYTES;
        int slot = cuda->next_slot++ % STAGING_SLOTS;
        char *staging = cuda->staging + (size_t)slot * STAGING_BYTES;
        cuda_ok(be, cudaEventSynchronize(cuda->staged[slot]), "upload");
        memcpy(staging, (const char *)source + done, part);
        cuda_ok(be,
                cudaMemcpyAsync((char *)target + done, staging, part, cudaMemcpyHostToDevice,
                                cuda->stream),
                "upload");
        cuda_ok(be, cudaEventRecord(cuda->staged[slot], cuda->stream), "upload");
    }
}

static void download(backend *be, void *target, const void *source, size_t bytes) {
    cuda_backend *cuda = cuda_of(be);
    cuda_ok(be, cudaMemcpyAsync(target, source, bytes, cudaMemcpyDeviceToHost, cuda->stream),
            "download");
    cuda_ok(be, cudaStreamSynchronize(cuda->stream), "download");
}

/* --------------------------------------------------------------------------------- recordings */

static recording *record(backend *be, void (*issue)(void *argument), void *argument) {
    cuda_backend *cuda = cuda_of(be);
    recording *r = (recording *)calloc(1, sizeof *r);
    if (!r) abort();
    cuda_ok(be, cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal), "record");
    cuda_weights_change(be);
    issue(argument);
    cuda_weights_change(be); /* what was recorded has not run */
    cuda_ok(be, cudaStreamEndCapture(cuda->stream, &r->graph), "record");
    /* Sums over ranks keep the priority of their stream. */
    const unsigned flags = cuda->ranks ? cudaGraphInstantiateFlagUseNodePriority : 0;
    if (!*cuda->failure) {
        cuda_ok(be, cudaGraphInstantiate(&r->executable, r->graph, flags), "record");
    }
    return r;
}

static void replay(backend *be, recording *r) {
    cuda_backend *cuda = cuda_of(be);
    if (*cuda->failure) return;
    cuda_weights_change(be);
    cuda_ok(be, cudaGraphLaunch(r->executable, cuda->stream), "replay");
}

static void recording_free(backend *be, recording *r) {
    if (r->executable) cuda_ok(be, cudaGraphExecDestroy(r->executable), "free");
    if (r->graph) cuda_ok(be, cudaGraphDestroy(r->graph), "free");
    free(r);
}

/* ------------------------------------------------------------------------------------ streams */

static bool set_blas_stream(backend *be) {
    cuda_backend *cuda = cuda_of(be); /* a new stream takes cuBLAS's workspace away */
    return cuda_blas_ok(be, cublasSetStream(cuda->blas, cuda->stream), "cuBLAS") &&
           cuda_blas_ok(be, cublasSetWorkspace(cuda->blas, cuda->blas_workspace, BLAS_WORKSPACE),
                        "cuBLAS");
}

/* Products share scratch memory, so the new stream waits for the old one. A stream that is being
 * captured cannot wait for work outside the capture; there, order is the caller's. A thread that
 * has not used the GPU has no context yet, without which no tensor map is made; setting the device
 * that it has makes it. */
static bool use_stream(backend *be, void *stream, error *err) {
    cuda_backend *cuda = cuda_of(be);
    cudaStream_t next = (cudaStream_t)stream;
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    int current = -1;
    if (cuda_ok(be, cudaGetDevice(&current), "device") && current != cuda->gpu) {
        return error_set(err, "GPU: expected device %d to be the thread's current one, got %d",
                         cuda->gpu, current);
    }
    cuda_ok(be, cudaSetDevice(current), "device");
    if (next != cuda->stream) {
        cuda_ok(be, cudaStreamIsCapturing(next, &capturing), "stream");
        if (capturing == cudaStreamCaptureStatusNone) {
            cuda_ok(be, cudaEventRecord(cuda->handed_over, cuda->stream), "stream");
            cuda_ok(be, cudaStreamWaitEvent(next, cuda->handed_over, 0), "stream");
        }
        cuda->stream = next;
        set_blas_stream(be);
    }
    cuda_weights_change(be);
    return *cuda->failure ? error_set(err, "GPU: %s", cuda->failure) : true;
}

/* ----------------------------------------------------------------------------------- lifetime */

static void destroy(backend *be) {
    cuda_backend *cuda = cuda_of(be);
    cudaStreamSynchronize(cuda->stream);
    cuda_leave(be);
    for (int i = 0; i < STAGING_SLOTS; i++) {
        if (cuda->staged[i]) cudaEventDestroy(cuda->staged[i]);
    }
    for (int i = 0; i < cuda->mark_count; i++) {
        if (cuda->marks[i]) cudaEventDestroy(cuda->marks[i]);
    }
    free(cuda->marks);
    if (cuda->blas) cublasDestroy(cuda->blas);
    cudaFree(cuda->blas_workspace);
    cudaFree(cuda->partial);
    cudaFree(cuda->part_sums);
    cudaFree(cuda->part_flags);
    cudaFree(cuda->factors);
    cudaFreeHost(cuda->staging);
    cudaFreeHost(cuda->stuck);
    if (cuda->handed_over) cudaEventDestroy(cuda->handed_over);
    if (cuda->own_stream) cudaStreamDestroy(cuda->own_stream);
    free(cuda);
}

/* A layout with what the kernels of products and cells plan for it. */
static device_layout *create_layout(backend *be, const layout *l) {
    device_layout *device = cuda_layout_create(be, l);
    products_plan(be, device, l);
    device->hubs = hubs_plan(be, device, l);
    return device;
}

static const memory_operations memory = {
    .allocate = allocate,
    .release = release,
    .zero = zero,
    .copy = copy,
    .copy_rows = copy_rows,
    .transpose = cuda_transpose,
    .upload = upload,
    .download = download,
    .finish = finish,
    .record = record,
    .replay = replay,
    .recording_free = recording_free,
    .mark = cuda_mark,
    .elapsed = cuda_elapsed,
    .layout_create = create_layout,
    .layout_free = cuda_layout_free,
    .layout_bytes = cuda_layout_bytes,
    .taps_create = cuda_taps_create,
    .taps_free = cuda_taps_free,
    .use_stream = use_stream,
    .destroy = destroy,
};

static void set_tables(backend *be, precision precision) {
    be->memory = &memory;
    be->products = &cuda_products;
    be->cell = &cuda_cell;
    be->update = &cuda_update;
    be->bench = &cuda_bench_tools;
    be->name = "cuda";
    be->precision = precision;
    be->real_size = sizeof(float);
    be->operand_size = precision == BF16 ? sizeof(bf16) : sizeof(float);
    be->column_multiple = COLUMN_MULTIPLE;
    be->product_multiple = PRODUCT_MULTIPLE;
    be->limits.step_values = UINT32_MAX;
    be->limits.positions = be->limits.weight_rows = INT32_MAX;
    be->limits.steps = 65535; /* a grid's second dimension */
}

/* Whether this build holds sm_90a code and the GPU runs it. SMALLWORLD_PORTABLE=1, which the tests
 * set, selects the portable kernels all the same. */
static bool find_hopper(backend *be, const cudaDeviceProp *properties) {
    cuda_backend *cuda = cuda_of(be);
    cudaDriverEntryPointQueryResult found;
    if (properties->major != 9 || getenv("SMALLWORLD_PORTABLE") || !hopper_compiled()) return false;
    return cuda_ok(be,
                   cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled",
                                                    (void **)&cuda->encode_map, 12000,
                                                    cudaEnableDefault, &found),
                   "find cuTensorMapEncodeTiled") &&
           found == cudaDriverEntryPointSuccess;
}

/* Makes streams, handles and scratch. If that fails, returns false and remembers the failure. */
static bool set_up(backend *be, int gpu) {
    cuda_backend *cuda = cuda_of(be);
    cudaDeviceProp properties;
    size_t available = 0, total = 0;
    bool done = cuda_ok(be, cudaSetDevice(gpu), "device") &&
                cuda_ok(be, cudaGetDeviceProperties(&properties, gpu), "device") &&
                (properties.major >= 8 ||
                 cuda_fail(be, "%s has compute capability %d.%d; expected 8.0 or later",
                           properties.name, properties.major, properties.minor)) &&
                cuda_ok(be, cudaMallocHost(&cuda->stuck, MOST_WAITING * sizeof *cuda->stuck),
                        "pinned memory") &&
                cuda_ok(be, cudaStreamCreateWithFlags(&cuda->own_stream, cudaStreamNonBlocking),
                        "stream") &&
                cuda_ok(be, cudaEventCreateWithFlags(&cuda->handed_over, cudaEventDisableTiming),
                        "event") &&
                cuda_ok(be, cudaMallocHost(&cuda->staging, (size_t)STAGING_SLOTS * STAGING_BYTES),
                        "pinned memory") &&
                cuda_ok(be, cudaMalloc(&cuda->partial, REDUCTION_BLOCKS * sizeof *cuda->partial),
                        "memory") &&
                cuda_ok(be, cudaMalloc(&cuda->factors, sizeof *cuda->factors), "memory") &&
                cuda_ok(be, cudaMalloc(&cuda->blas_workspace, BLAS_WORKSPACE), "memory");
    if (done) memset(cuda->stuck, 0, MOST_WAITING * sizeof *cuda->stuck);
    cuda->stream = cuda->own_stream;
    for (int i = 0; i < STAGING_SLOTS && done; i++) {
        done = cuda_ok(be, cudaEventCreateWithFlags(&cuda->staged[i], cudaEventDisableTiming),
                       "event");
    }
    done = done && cuda_blas_ok(be, cublasCreate(&cuda->blas), "cuBLAS") && set_blas_stream(be) &&
           cuda_ok(be, cudaMemGetInfo(&available, &total), "memory");
    if (!done) return false;
    cuda->gpu = gpu;
    cuda->processors = properties.multiProcessorCount;
    cuda->shared_limit = properties.sharedMemPerBlockOptin;
    cuda->l2_bytes = (size_t)properties.l2CacheSize;
    cuda->hopper = find_hopper(be, &properties);
    be->kernels = cuda->hopper ? "sm_90a" : "sm_80 and later";
    be->available = available > MEMORY_RESERVE ? available - MEMORY_RESERVE : 0;
    snprintf(be->device, sizeof be->device, "%.95s", properties.name);
    return true;
}

/* Without a driver, or with one that finds no device, there is no GPU. Any other error means that
 * there is one that cannot be used. */
extern "C" bool backend_cuda_expected(void) {
    int driver = 0, devices = 0;
    if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) return false;
    return cudaGetDeviceCount(&devices) != cudaErrorNoDevice;
}

extern "C" backend *backend_cuda(precision precision, int gpu, error *err) {
    int devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&devices);
    if (found != cudaSuccess || devices == 0) {
        error_set(err, "device cuda: no GPU found: %s",
                  !backend_cuda_expected() ? "NVIDIA's driver is not loaded"
                  : found == cudaSuccess   ? cudaGetErrorString(cudaErrorNoDevice)
                                           : cudaGetErrorString(found));
        return NULL;
    }
    if (gpu >= devices) {
        error_set(err, "device cuda: no GPU number %d: this host has %d, numbered from 0", gpu,
                  devices);
        return NULL;
    }
    cuda_backend *cuda = (cuda_backend *)calloc(1, sizeof *cuda);
    if (!cuda) abort();
    error forced;
    set_tables(&cuda->table, precision);
    if (!set_up(&cuda->table, gpu)) {
        error_set(err, "device cuda: %s", cuda->failure);
    } else if (!products_force(&cuda->table, getenv("SMALLWORLD_KERNEL"), &forced)) {
        error_set(err, "SMALLWORLD_KERNEL: %s", forced.text);
    } else {
        return &cuda->table;
    }
    destroy(&cuda->table);
    return NULL;
}
