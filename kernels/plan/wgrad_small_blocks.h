/* The tables of wgrad_small_blocks: its tasks. */
#ifndef SMALLWORLD_KERNELS_PLAN_WGRAD_SMALL_BLOCKS_H
#define SMALLWORLD_KERNELS_PLAN_WGRAD_SMALL_BLOCKS_H

#include "plan/plan.h"

/* Work for Hopper's wgrad_small_blocks: tasks, each of some rows of blocks and some columns,
 * whose operands come in boxes of one of them or of LARGE_BOX that are neighbours, and the
 * strips of b rows x 16 units of dW that a thread block makes from them: a block of 16, or up to
 * two of 8. A block's position is that in its row's list. */
enum { LARGE_BOX = 8, NO_POSITION = 0xFFFF };
#define NO_BLOCK (~0u)

typedef struct strip_task {
    int first, slot;   /* where its list of boxes begins, and its strips */
    uint16_t boxes[4]; /* large and single ones of rows, then of columns */
    uint16_t slots, unused;
} strip_task;

typedef struct strip_tables {
    int tasks;
    int tiles, slots; /* the most operand tiles of 8 rows that a task has, strips that a warp has */
    int panel;        /* columns of a stage */
    strip_task *task;
    uint16_t *box;      /* the tasks' lists: a box's first row or column */
    uint32_t *place;    /* of each strip: which of the task's rows, and which two tiles of its
                         * columns; a byte each */
    uint16_t *position; /* of its blocks: one, or two */
} strip_tables;

/* There are kernels for a few and for some strips a warp, and for the most; this one, with
 * blocks of 8, leaves out in fours what its warps do not have. */
enum {
    STRIP_WARPS = 12, /* that multiply */
    STRIP_SUMS = 112, /* of a thread */
    FEW_STRIPS = 4,
    SOME_STRIPS = 8,
    STRIP_STEP = 4,
    STRIP_TILES = 220, /* in shared memory, of 8 rows x 64 columns */
    STRIP_BOXES = 256  /* of a stage, at most */
};

/* Strips that a warp makes, at most. */
PLAN_CONSTANT int strip_slots(int b) {
    return STRIP_SUMS / (b / 2);
}

#endif
