/* What few_columns and its plan agree on; see few_columns.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_FEW_COLUMNS_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_FEW_COLUMNS_CUH

#include "products/products.h"

enum {
    MOST_UNITS = 32, /* of a task */
    MOST_PARTS = 4   /* tasks that share a list */
};

/* A task: a node's list of entries, or a share of it, and up to 32 rows of the
 * result. */
typedef struct alignas(16) few_columns_task {
    int first, row, count; /* its first entry; of the result; entries */
    int log_parts;         /* of the list's parts; < 0: this is no task */
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
