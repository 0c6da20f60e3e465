/* Plans: how a kernel of products on a GPU cuts its work, as tables that it walks. They are made on
 * the host, once for each layout, and need no GPU to be made or tested. A file of this folder plans
 * for the kernel of its name in kernels/cuda/products; its header has the tables. */
#ifndef SMALLWORLD_KERNELS_PLAN_PLAN_H
#define SMALLWORLD_KERNELS_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define PLAN_CONSTANT static constexpr __host__ __device__ inline
extern "C" {
#else
#define PLAN_CONSTANT static inline
#endif

#include "graph/layout.h"

enum {
    BOX = 64,                /* columns of activations that Hopper's kernels load as one box */
    CONSUMER_WARPS = 8,      /* that multiply, in most of them */
    PARTIAL_FLOATS = 8 << 20 /* in all slots of partial sums together, at most */
};

/* What parts of a node's sum pass on to each other. */
typedef struct partial_sums {
    float *sums;     /* slots of equal size */
    int *full;       /* a flag for each slot; all are 0 between launches */
    uint32_t *stuck; /* see cuda/device/waits.cuh */
} partial_sums;

/* The GPU that plans are made for, and where their memory comes from. All of it belongs to the
 * layout, and goes with it.
 *   host      zeroed memory on the host
 *   table     memory on the GPU, with a copy of `table` or, if that is NULL, anything
 *   partial   `slots` slots of `floats` floats, for the kernel of this name */
typedef struct planner planner;
struct planner {
    int processors; /* multiprocessors */
    bool clusters;  /* whether it has clusters of thread blocks */
    void *(*host)(planner *p, size_t bytes);
    void *(*table)(planner *p, const void *table, size_t bytes);
    partial_sums (*partial)(planner *p, const char *kernel, size_t slots, size_t floats);
};

/* Makes the tables of a kernel for this layout; never NULL. */
typedef void *kernel_plan(planner *p, const layout *l);

kernel_plan gather_plan, small_blocks_plan, few_columns_plan;
kernel_plan wgrad_one_gate_plan, wgrad_small_blocks_plan;

/* Groups of neighbouring blocks of a row, for wgrad: one tile of dy serves a group. */
typedef struct row_groups {
    int count;
    int *first; /* [count + 1] on the device: the first block of each */
    int *row;   /* [blocks] on the device: the output node of each block */
} row_groups;

/* Makes groups of at most `width` units of x, so that all groups of a row are of nearly equal
 * size. */
row_groups *row_groups_plan(planner *p, const layout *l, int width);

#ifdef __CUDACC__
}
#else
/* A table of `count` elements, copied to the GPU. */
#define PLAN_TABLE(gpu, from, count) (gpu)->table(gpu, from, (count) * sizeof *(from))

/* As CUDA has them. */
static inline int min(int a, int b) {
    return a < b ? a : b;
}

static inline int max(int a, int b) {
    return a > b ? a : b;
}
#endif

#endif
