/* Sums over ranks: one all-reduce of the whole gradient by NCCL after backward, which a recording
 * holds like any kernel.
 *
 * A ring all-reduce of S bytes over n GPUs moves 2 (n - 1) / n S bytes out of each, and as many in:
 * its floor is that over the links' rate.
 *
 * The order of a sum must not change from run to run. NCCL is held to its ring algorithm, in which
 * it is a function of the number of ranks and the size alone, and NVLink multicast is turned off,
 * where switches add up in an order of their own. NCCL's own variables override both.
 *
 * Nothing runs beside a sum: its thread blocks stay on their multiprocessors until those of all
 * ranks have met, and those of a cell must all be there at once (cuda_launch_together), so that the
 * one on one GPU and the other on another could keep each other out for ever.
 *
 * The library is opened when it is needed, so that the program runs without it. What is declared
 * here is NCCL 2's interface, which has not changed since 2.0. */
#include "training/training.h"

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

void cuda_sum_ranks(backend *be, size_t count, void *values) {
    cuda_backend *cuda = cuda_of(be);
    cuda_weights_change(be);
    if (*cuda->failure) return;
    nccl_ok(be,
            nccl.all_reduce(values, values, count, NCCL_FLOAT, NCCL_SUM, cuda->ranks, cuda->stream),
            "all-reduce");
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
    be->memory->zero(be, cuda->partial, REDUCTION_BLOCKS * sizeof *cuda->partial);
    cuda_sum_ranks(be, REDUCTION_BLOCKS, cuda->partial);
    return be->memory->finish(be, err);
}

bool cuda_join(backend *be, ranks *ranks, error *err) {
    if (!open_library(err)) return false;
    be->ranks = ranks;
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
}
