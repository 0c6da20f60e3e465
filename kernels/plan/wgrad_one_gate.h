/* The tables of wgrad_one_gate: its tasks. */
#ifndef SMALLWORLD_KERNELS_PLAN_WGRAD_ONE_GATE_H
#define SMALLWORLD_KERNELS_PLAN_WGRAD_ONE_GATE_H

#include "plan/plan.h"

/* Work for Hopper's wgrad_one_gate: tasks, each of a few rows of the pattern in tiles of EDGE x
 * EDGE, whose tiles are made in batches. A tile's position is that of its block in the row's list;
 * NO_TILE: none. */
enum { EDGE = 32, SAMPLED_BATCHES = 3 };

typedef struct sampled_task {
    int first; /* where its list begins: of its rows, then of each batch's inputs */
    uint16_t rows, inputs[SAMPLED_BATCHES];
} sampled_task;

typedef struct sampled_slot {
    uint16_t position;
    unsigned char row, column; /* which of the task's rows, of its batch's inputs */
} sampled_slot;

typedef struct wgrad_one_gate_tables {
    int tasks, batches; /* batches: of a task */
    int rows, inputs;   /* the most that a task, a batch has */
    int row_tiles;      /* of the operand tiles in shared memory */
    int splits;         /* of a convolution's positions, where there are few tasks; else 1 */
    float *partial;     /* dW of each split */
    sampled_task *task;
    uint16_t *tile;     /* the tasks' lists */
    sampled_slot *slot; /* [tasks][batches][warps][tiles of a warp] */
} wgrad_one_gate_tables;

enum {
    TILES = 52,        /* operand tiles in shared memory */
    RING_BATCHES = 16, /* that a ring has, at most */
    SLOTS = 2,         /* tiles that a warp makes in a batch */
    BATCH = CONSUMER_WARPS * SLOTS,
    NO_TILE = 0xFFFF
};

#endif
