/* Sums over ranks: all-reduces by NCCL on a stream of their own, which a recording holds like any
 * kernel.
 *
 * A ring all-reduce of S bytes over n GPUs moves 2 (n - 1) / n S bytes out of each, and as many in:
 * its floor is that over the links' rate.
 *
 * The order of a sum must not change from run to run. NCCL is held to its ring algorithm, in which
 * it is a function of the number of ranks and the size alone, and NVLink multicast is turned off,
 * where switches add up in an order of their own. NCCL's own variables override both.
 *
 * An update ends with wgrad of the gates, and sums run beside it. A sum's thread blocks stay on
 * their multiprocessors until those of all ranks have met, so nothing that they wait for may wait
 * for a multiprocessor that they hold. On each rank a sum waits for the kernels before it. These
 * are wgrad, whose thread blocks, or clusters, run to their ends once they have a place, and wait
 * for no others. So every rank's kernels end and its sums come, on one stream, in the same order on
 * all ranks. Kernels of cells are different: their thread blocks wait for each other and must all
 * be there at once (cuda_launch_together). Beside a sum some of them might find no place until the
 * sum ends, while the sum of another rank cannot begin for the same reason. So the model begins the
 * first sum of an update after the last cell, and Adam waits for the last sum; see sum_beside in
 * ops.h.
 *
 * Sums have the highest priority, so that they take the first multiprocessors that become free.
 *
 * The library is opened when it is needed, so that the program runs without it. What is declared
 * here is NCCL 2's interface, which has not changed since 2.0. */
#include "training/sum_ranks.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct ncclComm *communicator;
typedef struct unique_id {
    char internal[128];
} unique_id;

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7, NCCL_FLOAT = 7, NCCL_SUM = 0 };

static struct {
    void *library;
    int (*version)(int *version);
    int (*get_id)(unique_id *id);
    int (*init)(communicator *c, int count, unique_id id, int rank);
    int (*all_reduce)(const void *send, void *receive, size_t count, int type, int operation,
                      communicator c, cudaStream_t stream);
    int (*abort)(communicator c);
    int (*destroy)(communicator c);
    const char *(*error_string)(int status);
} nccl;

static bool find(const char *name, void *function, error *err) {
    void *found = dlsym(nccl.library, name);
    memcpy(function, &found, sizeof found);
    return found || error_set(err, "NCCL: the library has no %s: expected NCCL 2", name);
}

static bool open_library(error *err) {
    if (nccl.library) return true;
    setenv("NCCL_NVLS_ENABLE", "0", 0);
    setenv("NCCL_ALGO", "Ring", 0);
    const char *name = getenv("SMALLWORLD_NCCL");
    nccl.library = dlopen(name ? name : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!nccl.library) {
        const char *why = dlerror();
        return error_set(err,
                         "NCCL: %s: more than one GPU needs it; install libnccl2, or name the "
                         "library in SMALLWORLD_NCCL",
                         why ? why : "libnccl.so.2 cannot be opened");
    }
    const bool found =
        find("ncclGetVersion", &nccl.version, err) && find("ncclGetUniqueId", &nccl.get_id, err) &&
        find("ncclCommInitRank", &nccl.init, err) && find("ncclAllReduce", &nccl.all_reduce, err) &&
        find("ncclCommAbort", &nccl.abort, err) && find("ncclCommDestroy", &nccl.destroy, err) &&
        find("ncclGetErrorString", &nccl.error_string, err);
    if (!found) {
        dlclose(nccl.library);
        nccl.library = NULL;
    }
    return found;
}

extern "C" const char *backend_nccl_version(char text[NCCL_TEXT]) {
    error err;
    int version = 0;
    if (!open_library(&err)) {
        snprintf(text, NCCL_TEXT, "%.*s", NCCL_TEXT - 1, err.text + strlen("NCCL: "));
    } else if (nccl.version(&version) != NCCL_SUCCESS) {
        snprintf(text, NCCL_TEXT, "of no known version");
    } else {
        snprintf(text, NCCL_TEXT, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    }
    return text;
}

static bool nccl_ok(backend *be, int status, const char *what) {
    if (status == NCCL_SUCCESS || status == NCCL_IN_PROGRESS) return true;
    return cuda_fail(be, "NCCL: %s: %s", what, nccl.error_string(status));
}

/* `later` goes on once all is done that `earlier` holds now. */
static void wait_for(backend *be, cudaStream_t later, cudaStream_t earlier, cudaEvent_t event) {
    cuda_ok(be, cudaEventRecord(event, earlier), "order of streams");
    cuda_ok(be, cudaStreamWaitEvent(later, event, 0), "order of streams");
}

/* After what the stream of the moment holds. */
static void sum_beside(backend *be, size_t count, void *values) {
    cuda_backend *cuda = cuda_of(be);
    cuda_weights_change(be);
    if (*cuda->failure) return;
    wait_for(be, cuda->sums, cuda->stream, cuda->issued);
    nccl_ok(be,
            nccl.all_reduce(values, values, count, NCCL_FLOAT, NCCL_SUM, cuda->ranks, cuda->sums),
            "all-reduce");
}

static void sums_done(backend *be) {
    cuda_backend *cuda = cuda_of(be);
    wait_for(be, cuda->stream, cuda->sums, cuda->done);
    cuda->apart = false;
}

static void sum_ranks(backend *be, size_t count, void *values) {
    sum_beside(be, count, values);
    sums_done(be);
}

/* Parts take turns on two streams, so that the thread blocks of one fill the multiprocessors that
 * the last ones of the part before leave. Each part's sum waits for that part alone. */
static void wgrad_summed(backend *be, const weight_parts *w, const void *dy, const void *x,
                         int steps, int columns, void *dw, void *total, void *workspace) {
    cuda_backend *cuda = cuda_of(be);
    cudaStream_t streams[] = {cuda->stream, cuda->lane};
    float *own = (float *)dw, *sum = (float *)(total ? total : dw);
    cuda->apart = true;
    if (w->count > 1) wait_for(be, streams[1], streams[0], cuda->issued);
    for (int i = 0; i < w->count; i++) {
        cuda->stream = streams[i % 2];
        be->wgrad(be, w->part[i], dy, x, steps, columns, own, workspace);
        if (total) be->add(be, w->weights[i], sum, own);
        sum_beside(be, w->weights[i], sum);
        own += w->weights[i];
        sum += w->weights[i];
    }
    cuda->stream = streams[0];
    if (w->count > 1) wait_for(be, streams[0], streams[1], cuda->issued);
}

/* The first sum makes connections, which cannot be recorded. */
static bool connect_ranks(backend *be, ranks *ranks, error *err) {
    cuda_backend *cuda = cuda_of(be);
    unique_id id;
    memset(&id, 0, sizeof id);
    if (ranks->rank == 0) nccl_ok(be, nccl.get_id(&id), "start");
    ranks_broadcast(ranks, &id, sizeof id);
    if (!*cuda->failure) {
        nccl_ok(be, nccl.init(&cuda->ranks, ranks->count, id, ranks->rank), "connect the ranks");
    }
    be->zero(be, cuda->partial, REDUCTION_BLOCKS * sizeof *cuda->partial);
    sum_ranks(be, REDUCTION_BLOCKS, cuda->partial);
    return be->finish(be, err);
}

static bool make_streams(backend *be) {
    cuda_backend *cuda = cuda_of(be);
    int least = 0, greatest = 0;
    return cuda_ok(be, cudaDeviceGetStreamPriorityRange(&least, &greatest), "priorities") &&
           cuda_ok(be, cudaStreamCreateWithPriority(&cuda->sums, cudaStreamNonBlocking, greatest),
                   "stream") &&
           cuda_ok(be, cudaStreamCreateWithFlags(&cuda->lane, cudaStreamNonBlocking), "stream") &&
           cuda_ok(be, cudaEventCreateWithFlags(&cuda->issued, cudaEventDisableTiming), "event") &&
           cuda_ok(be, cudaEventCreateWithFlags(&cuda->done, cudaEventDisableTiming), "event");
}

/* SMALLWORLD_PARTS, for measurements: in how many parts a stage's weights are summed; 0 sums the
 * whole gradient after backward. */
static bool choose_parts(backend *be, error *err) {
    enum { PARTS = 4, PART_WEIGHTS = 4 << 20 };
    const char *text = getenv("SMALLWORLD_PARTS");
    char *end = NULL;
    const long given = text ? strtol(text, &end, 10) : PARTS;
    if (given < 0 || given > MOST_WEIGHT_PARTS || (text && (end == text || *end))) {
        return error_set(err, "SMALLWORLD_PARTS: expected an integer from 0 to %d, got '%s'",
                         MOST_WEIGHT_PARTS, text);
    }
    be->parts = (int)given;
    be->part_weights = PART_WEIGHTS;
    return true;
}

bool cuda_join(backend *be, ranks *ranks, error *err) {
    if (!open_library(err) || !choose_parts(be, err)) return false;
    be->ranks = ranks;
    be->sum_ranks = sum_ranks;
    be->sum_beside = sum_beside;
    be->wgrad_summed = wgrad_summed;
    be->sums_done = sums_done;
    make_streams(be);
    return connect_ranks(be, ranks, err);
}

/* After a failure other ranks may never come to what destroying waits for. */
void cuda_leave(backend *be) {
    cuda_backend *cuda = cuda_of(be);
    if (cuda->ranks && *cuda->failure) {
        nccl.abort(cuda->ranks);
    } else if (cuda->ranks) {
        nccl.destroy(cuda->ranks);
    }
    cuda->ranks = NULL;
    if (cuda->sums) cudaStreamDestroy(cuda->sums);
    if (cuda->lane) cudaStreamDestroy(cuda->lane);
    if (cuda->issued) cudaEventDestroy(cuda->issued);
    if (cuda->done) cudaEventDestroy(cuda->done);
}
