/* The tables of small_blocks: parts of its work. */
#ifndef SMALLWORLD_KERNELS_PLAN_SMALL_BLOCKS_H
#define SMALLWORLD_KERNELS_PLAN_SMALL_BLOCKS_H

#include "plan/plan.h"

/* Work for Hopper's small_blocks: parts of 192 units of the result, from long to short, each with
 * the union of its nodes' sources in stages. The four gates count as separate nodes (fprop) or
 * sources (dgrad). */
enum { SMALL_UNITS = 192 };

typedef struct small_blocks_parts {
    int count, stages; /* stages: of all parts together */
    int *stage;        /* [count + 1] a part's first stage */
    int *host_stage;   /* the same, on the host */
    /* [stages] the stage's entries: the first of them and, in 8 bits, their number. */
    uint32_t *list;
    uint16_t *node;   /* [count][192 / b]; 0xFFFF: none */
    uint16_t *source; /* [stages][64 / b]; 0xFFFF: none */
    uint8_t *has;     /* [stages][192 / b] for which of these sources a node has a block */
    /* [blocks] in the order of use: a block's number and, in 8 bits, its place. */
    uint32_t *entry;
} small_blocks_parts;

typedef struct small_blocks_tables {
    small_blocks_parts forward, backward;
    partial_sums partial; /* of tiles that thread blocks share */
} small_blocks_tables;

enum {
    DEPTH = 64,         /* rows of activations of a stage */
    NO_SOURCE = 0xFFFF, /* beyond all rows: TMA brings zeros */
    PLACE_BITS = 8      /* of an entry: its place; of a list: how many entries */
};

#endif
