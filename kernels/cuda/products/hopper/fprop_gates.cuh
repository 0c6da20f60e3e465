/* What fprop_gates and its plan agree on; see fprop_gates.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_FPROP_GATES_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_FPROP_GATES_CUH

#include "products/hopper/hopper.cuh"

enum {
    UNITS = 32, /* of a tile, of each gate */
    TILE_ROWS = GATES * UNITS,
    MOST_COLUMNS = 256, /* of a tile */
    MOST_PARTS = 160    /* of the list of all sources, as many as thread blocks */
};

/* The tiles of 128 rows that have blocks, and the sources that each reads. */
typedef struct fprop_gates_source {
    int node, block; /* block: the tile's part of it */
} fprop_gates_source;

typedef struct fprop_gates_tile {
    int first, number; /* first: of its sources */
} fprop_gates_tile;

typedef struct fprop_gates_tables {
    int count, sources; /* count: of tiles */
    fprop_gates_source *source;
    fprop_gates_tile *tile;      /* [count + 1] */
    fprop_gates_tile *host_tile; /* the same, on the host */
    bool empty_rows;             /* whether there are rows without blocks, which no tile covers */
    partial_sums partial;        /* of tiles that are cut */
} fprop_gates_tables;

#endif
