/* What hopper_tf32 and the tables of its parts agree on; see tf32.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_TF32_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_TF32_CUH

#include "layout.h"

/* Work for Hopper's hopper_tf32: a share of the sources of a part of the output nodes, in pieces
 * of 32. */
enum { TF32_NODES = 6, TF32_CUTS = 2 };

typedef struct tf32_part {
    int first, count; /* sources */
    int block;        /* the first of theirs */
    int nodes, node[TF32_NODES];
} tf32_part;

/* Its node, and in the low bits which of the part's nodes have a block for it. */
typedef uint32_t tf32_source;

typedef struct tf32_parts {
    int count;            /* of whole parts */
    short window, blocks; /* how far apart the shares' first sources, and their blocks, begin */
    tf32_part *part;
    tf32_source *source;
    uint32_t *block; /* where the sources' blocks lie in W */
} tf32_parts;

typedef struct tf32_tables {
    tf32_parts forward[TF32_CUTS], backward[TF32_CUTS];
} tf32_tables;

enum {
    SHARES = 2, /* lists of a part */
    SLOTS = TF32_NODES,
    WINDOW = 16, /* sources that are looked up at a time ... */
    BLOCKS = 32  /* ... and blocks, one a lane */
};

#endif
