/* How ranks come to be: ranks_start's own business. */
#ifndef SMALLWORLD_CORE_RANKS_START_H
#define SMALLWORLD_CORE_RANKS_START_H

#include "core/ranks.h"

/* As one of how many processes mpirun or srun says that it started this one; else 1. */
int ranks_launched(void);

bool ranks_join_mpi(ranks **r, int started, error *err);
bool ranks_fork(ranks **r, int count, error *err);

/* The seconds after which a rank that others wait for is named. */
double ranks_longest_silence(void);

/* Ranks other than 0 print nothing: standard output is closed to them and messages are off. */
void ranks_be_quiet(void);

#endif
