#include "mpi/smallworld_mpi.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
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

/* Every rank tells its own to every other, so that each knows whom it waits for: one that has not
 * come, or one that was suspended on its way out. Waits at first without giving the processor away.
 * Rank 0 names who is silent, and rank 1 names rank 0. */
static bool gather(const void *mine, size_t bytes, void *all, double patience,
                   void (*silent)(int rank)) {
    enum { SPINS = 2000 };
    const struct timespec pause = {0, 50000};
    const double start = MPI_Wtime();
    int rank, ranks, done = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Request *requests = malloc(2 * (size_t)ranks * sizeof *requests); /* [from, to][rank] */
    if (!requests) return false;
    for (int k = 0; k < ranks; k++) {
        char *theirs = (char *)all + (size_t)k * bytes;
        if (k == rank) memcpy(theirs, mine, bytes);
        const int other = k == rank ? MPI_PROC_NULL : k;
        MPI_Irecv(theirs, (int)bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, &requests[k]);
        MPI_Isend(mine, (int)bytes, MPI_BYTE, other, 0, MPI_COMM_WORLD, &requests[ranks + k]);
    }
    bool told = rank > 1, well = true;
    for (int i = 0; well && !done; i++) {
        well = MPI_Testall(2 * ranks, requests, &done, MPI_STATUSES_IGNORE) == MPI_SUCCESS;
        if (done || i < SPINS) continue;
        nanosleep(&pause, NULL);
        if (told || MPI_Wtime() - start < patience) continue;
        told = true;
        for (int k = 0; k < (rank == 0 ? ranks : 1); k++) {
            int come, gone;
            MPI_Request_get_status(requests[k], &come, MPI_STATUS_IGNORE);
            MPI_Request_get_status(requests[ranks + k], &gone, MPI_STATUS_IGNORE);
            if (!come || !gone) silent(k);
        }
    }
    free(requests);
    return well;
}

static void end_all(int status) {
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void end(void) {
    MPI_Finalize();
}

const mpi_module smallworld_mpi = {version, start, gather, end_all, end};
