#include "mpi/smallworld_mpi.h"

#include <mpi.h>
#include <stdlib.h>
#include <time.h>

static const char *version(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "of no known version";
    for (int i = 0; i < length; i++) {
        if (text[i] == ',' || text[i] == '\n') text[i] = '\0';
    }
    return text;
}

static bool start(int *rank, int *count, int *local, int *local_count) {
    int provided;
    MPI_Comm host;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) return false;
    MPI_Comm_rank(MPI_COMM_WORLD, rank);
    MPI_Comm_size(MPI_COMM_WORLD, count);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &host);
    MPI_Comm_rank(host, local);
    MPI_Comm_size(host, local_count);
    MPI_Comm_free(&host);
    return true;
}

/* Which rank hears that this one has come to a gathering. */
static int listener_of(int rank) {
    return rank ? 0 : 1;
}

/* Watches until a gathering is done, at first without giving the processor away. */
static void watch(MPI_Request *request, MPI_Request *arrivals, int ranks, double patience,
                  void (*silent)(int rank)) {
    enum { SPINS = 2000 };
    const struct timespec pause = {0, 50000};
    const double start = MPI_Wtime();
    int done = 0;
    bool told = false;
    for (int i = 0; !done; i++) {
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return;
        if (done || i < SPINS) continue;
        nanosleep(&pause, NULL);
        if (told || MPI_Wtime() - start < patience) continue;
        told = true;
        for (int k = 0; k < ranks; k++) {
            int arrived;
            MPI_Test(&arrivals[k], &arrived, MPI_STATUS_IGNORE); /* true of no request */
            if (!arrived) silent(k);
        }
    }
}

static bool gather(const void *mine, size_t bytes, void *all, double patience,
                   void (*silent)(int rank)) {
    int rank, ranks;
    MPI_Request request = MPI_REQUEST_NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Request *arrivals = malloc((size_t)ranks * sizeof *arrivals);
    if (!arrivals) return false;
    for (int k = 0; k < ranks; k++) {
        arrivals[k] = MPI_REQUEST_NULL;
        if (k != rank && listener_of(k) == rank) {
            MPI_Irecv(NULL, 0, MPI_BYTE, k, 0, MPI_COMM_WORLD, &arrivals[k]);
        }
    }
    MPI_Send(NULL, 0, MPI_BYTE, listener_of(rank), 0, MPI_COMM_WORLD);
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, MPI_COMM_WORLD, &request);
    watch(&request, arrivals, ranks, patience, silent);
    const bool gathered = MPI_Wait(&request, MPI_STATUS_IGNORE) == MPI_SUCCESS &&
                          MPI_Waitall(ranks, arrivals, MPI_STATUSES_IGNORE) == MPI_SUCCESS;
    free(arrivals);
    return gathered;
}

static void end_all(int status) {
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void end(void) {
    MPI_Finalize();
}

const mpi_module smallworld_mpi = {version, start, gather, end_all, end};
