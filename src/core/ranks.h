/* Ranks: the processes that share a run, numbered from 0, and what they tell each other.
 *
 * They are started by mpirun or srun, where the program was built with MPI, or by ranks_start
 * itself, which forks them on this host. Rank 0 alone prints and writes files.
 *
 * Every function below ranks_start takes NULL, which is a process by itself. ranks_exchange and
 * what is built on it are collective: every rank calls them in the same order. Where another rank
 * has failed they do not return, but end the process: the rank that failed says why. */
#ifndef SMALLWORLD_CORE_RANKS_H
#define SMALLWORLD_CORE_RANKS_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

enum { RANKS_MOST = 1024, RANKS_EXCHANGE = 1 << 20 /* bytes at a time */ };

typedef struct ranks ranks;

struct ranks {
    int rank, count;
    int local, local_count; /* likewise, among the ranks of this host */
    int gpu;                /* the number of the GPU that this rank takes */
    const char *all;        /* what the last exchange brought, see ranks_part */
    size_t stride;
    bool (*exchange)(ranks *r, const void *mine, size_t bytes);
    void (*fail)(ranks *r, const error *err);
    void (*end)(ranks *r);
};

/* Joins the ranks that mpirun or srun started, or forks `processes` of them; sets *r to NULL where
 * neither asks for any. The forking process does not return: it waits for the ranks, passes on the
 * signals that ask to stop, ends all of them when one dies, and exits. Threads must not have been
 * started before. */
bool ranks_start(ranks **r, int processes, error *err);
void ranks_end(ranks *r);

/* Says that this rank failed, and why; with MPI it ends all ranks at once. Rank 0 is to print its
 * error before. */
void ranks_fail(ranks *r, const error *err);

/* "MPI: ...", for --version. */
const char *ranks_mpi_version(void);

static inline int ranks_rank(const ranks *r) {
    return r ? r->rank : 0;
}

static inline int ranks_count(const ranks *r) {
    return r ? r->count : 1;
}

/* Gives `bytes` (at most RANKS_EXCHANGE, the same number on all ranks) to all ranks. Until the next
 * exchange, ranks_part points at those of each. Not for NULL. */
void ranks_exchange(ranks *r, const void *mine, size_t bytes);

static inline const void *ranks_part(const ranks *r, int rank) {
    return r->all + (size_t)rank * r->stride;
}

/* Waits until all ranks have come here. */
void ranks_wait(ranks *r);

/* Rank 0's bytes. */
void ranks_broadcast(ranks *r, void *bytes, size_t count);

/* The sum of each value over the ranks, in their order. */
void ranks_sum(ranks *r, double *values, size_t count);

/* The sum of a count over all ranks and, in *before, over the ranks before this one. */
int64_t ranks_place(ranks *r, int64_t mine, int64_t *before);

/* The ranks' arrays of floats one after another, on rank 0; NULL elsewhere. The caller frees. */
float *ranks_gather(ranks *r, const float *mine, size_t count);

/* The signal that asked any rank to stop (core/stop.h), which all of them then remember; or 0. */
int ranks_stop(ranks *r);

/* Fails where the ranks' values differ: "rank 1: WHAT differs from rank 0's". */
bool ranks_same(ranks *r, int64_t value, const char *what, error *err);

#endif
