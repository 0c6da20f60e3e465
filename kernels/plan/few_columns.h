/* The tables of few_columns: its tasks. */
#ifndef SMALLWORLD_KERNELS_PLAN_FEW_COLUMNS_H
#define SMALLWORLD_KERNELS_PLAN_FEW_COLUMNS_H

#include "plan/plan.h"

#include <stdalign.h>

enum {
    MOST_UNITS = 32, /* of a task */
    MOST_PARTS = 4   /* tasks that share a list */
};

/* A task: a node's list of entries, or a share of it, and up to 32 rows of the
 * result. */
typedef struct few_columns_task {
    alignas(16) int first;
    int row, count; /* its first entry; of the result; entries */
    int log_parts;  /* of the list's parts; < 0: this is no task */
} few_columns_task;

typedef struct few_columns_tasks {
    int count, cluster; /* cluster: how many tasks are one */
    int depth;          /* of k, the mean of a task */
    few_columns_task *task;
} few_columns_tasks;

typedef struct few_columns_tables {
    few_columns_tasks rows, columns; /* of fprop, of dgrad */
} few_columns_tables;

#endif
