#include "core/log.h"
#include "core/memory.h"
#include "core/ranks_start.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef SMALLWORLD_MPI
#include <mpi.h>
#endif

/* srun sets its variable also where MPI is not asked for; there each task would be a run of its
 * own. */
int ranks_launched(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && atoi(text) > 0) return atoi(text);
    }
    return 1;
}

void ranks_be_quiet(void) {
    log_silence();
    if (!freopen("/dev/null", "w", stdout)) fclose(stdout);
}

#ifdef SMALLWORLD_MPI

/* Slurm may show each rank a GPU of its own. */
static bool one_gpu_visible(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && *visible && !strchr(visible, ',');
}

/* MPI_Allgather of a fixed size needs no order: every rank sums what it gathered by itself. */
static bool exchange(ranks *r, const void *mine, size_t bytes) {
    MPI_Allgather(mine, (int)bytes, MPI_BYTE, (char *)r->all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD);
    r->stride = bytes;
    return true;
}

/* A mistake in the config is found by all ranks at once: the others leave it to rank 0 to say. */
static void fail(ranks *r, const error *err) {
    if (r->rank > 0) {
        sleep(1);
        fprintf(stderr, "smallworld: rank %d: %s\n", r->rank, err->text);
    }
    fflush(NULL);
    MPI_Abort(MPI_COMM_WORLD, err->status);
}

static void end(ranks *r) {
    MPI_Finalize();
    free((char *)r->all);
    free(r);
}

bool ranks_join_mpi(ranks **r, int started, error *err) {
    int provided;
    MPI_Comm host;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        return error_set(err, "MPI does not start");
    }
    *r = mem_alloc(1, sizeof **r);
    **r = (ranks){.exchange = exchange, .fail = fail, .end = end};
    MPI_Comm_rank(MPI_COMM_WORLD, &(*r)->rank);
    MPI_Comm_size(MPI_COMM_WORLD, &(*r)->count);
    if ((*r)->count != started) {
        return error_set(err,
                         "started as one of %d processes, but MPI knows of %d: expected the "
                         "launcher of the MPI that this program was built with (srun: --mpi=pmix)",
                         started, (*r)->count);
    }
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, &(*r)->local);
    MPI_Comm_size(host, &(*r)->local_count);
    MPI_Comm_free(&host);
    (*r)->gpu = one_gpu_visible() ? 0 : (*r)->local;
    (*r)->all = mem_alloc((size_t)(*r)->count, RANKS_EXCHANGE);
    if ((*r)->rank > 0) ranks_be_quiet();
    return true;
}

const char *ranks_mpi_version(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "of no known version";
    for (int i = 0; i < length; i++) {
        if (text[i] == ',' || text[i] == '\n') text[i] = '\0';
    }
    return text;
}

#else

bool ranks_join_mpi(ranks **r, int started, error *err) {
    (void)r;
    return error_set(err,
                     "started as one of %d processes, but this program was built without MPI: "
                     "expected one process, which --gpus %d multiplies on this host",
                     started, started);
}

const char *ranks_mpi_version(void) {
    return "this program was built without it";
}

#endif
