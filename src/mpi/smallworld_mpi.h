/* What the program needs of MPI, as a module of its own that is loaded when mpirun or srun started
 * it: the program itself runs where there is no MPI. */
#ifndef SMALLWORLD_MPI_SMALLWORLD_MPI_H
#define SMALLWORLD_MPI_SMALLWORLD_MPI_H

#include <stdbool.h>
#include <stddef.h>

typedef struct mpi_module {
    const char *(*version)(void);

    /* This process among all, and among those of its host. */
    bool (*start)(int *rank, int *count, int *local, int *local_count);

    /* The `bytes` of all processes one after another, in all. Calls `silent` once for each process
     * that has not come to it after `patience` seconds: rank 1 does so for rank 0, and rank 0 for
     * all others. */
    bool (*gather)(const void *mine, size_t bytes, void *all, double patience,
                   void (*silent)(int rank));

    void (*abort)(int status); /* of all processes */
    void (*end)(void);
} mpi_module;

/* The module exports `const mpi_module smallworld_mpi`. */
#define MPI_MODULE "smallworld_mpi.so"

#endif
