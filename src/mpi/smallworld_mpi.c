#include "mpi/smallworld_mpi.h"

#include <mpi.h>

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

static bool gather(const void *mine, size_t bytes, void *all) {
    const int count = (int)bytes;
    return MPI_Allgather(mine, count, MPI_BYTE, all, count, MPI_BYTE, MPI_COMM_WORLD) ==
           MPI_SUCCESS;
}

static void end_all(int status) {
    MPI_Abort(MPI_COMM_WORLD, status);
}

static void end(void) {
    MPI_Finalize();
}

const mpi_module smallworld_mpi = {version, start, gather, end_all, end};
