/* The block layout of a weight matrix: which blocks are there, and the tables the three products
 * walk. A layout is plain data on the host; a backend makes its own copy, see kernels/ops.h.
 *
 * The matrix has `out_nodes` x `in_nodes` blocks of `out_block` x `in_block`, of which `blocks` are
 * non-zero, and stands for `gates` matrices that share this pattern. Its weights are stored as
 *
 *     weight [blocks][gates][out_block][in_block]
 *
 * in the order of the rows' tables (output node, then input node), and its product's rows as
 * [out_nodes][gates][out_block], so that all gates of a node lie together.
 *
 * A convolution of one gate has weights [blocks][taps][out_block][in_block] in their place; which
 * input each of them reads at an output's position is not the layout's affair, see
 * kernels/ops.h.
 *
 * A dense matrix is one block of its whole size, with rows [gates][out_block]; a GPU hands it to
 * cuBLAS. Only a dense matrix may have out_block != in_block, or read every `in_stride`-th row
 * of its input. */
#ifndef SMALLWORLD_GRAPH_LAYOUT_H
#define SMALLWORLD_GRAPH_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct graph;

typedef struct layout {
    int out_nodes, in_nodes;
    int out_block, in_block;
    int gates;
    int taps; /* of a convolution; 0: a product */
    int in_stride;
    bool dense; /* one block of the whole size, made by layout_dense */
    int blocks;
    int *row_start; /* [out_nodes + 1] block k is in row i for row_start[i] <= k < row_start[i+1] */
    int *row_column;   /* [blocks] the input node of block k, ascending within a row */
    int *column_start; /* [in_nodes + 1] likewise by input node, for the transposed product */
    int *column_row;   /* [blocks] the output node, ascending within a column */
    int *column_block; /* [blocks] which block k it is */
} layout;

/* Makes a layout. A complete graph becomes one dense block. Any other graph has one block of
 * weights for each edge and self-loop. */
layout *layout_from_graph(const struct graph *g, int block, int gates);

/* Makes one block of weights for each edge and self-loop, even of a complete graph. */
layout *layout_blocks(const struct graph *g, int block, int gates);

/* Makes a block of weights for each of `count` pairs (output node, input node), which are ascending
 * and without repeats; of a convolution with `taps` taps each, or of a product with 0. */
layout *layout_pairs(int out_nodes, int in_nodes, const int32_t (*pairs)[2], int count, int block,
                     int taps);

/* Makes one dense block. `rows` is the number of rows of each gate. */
layout *layout_dense(int rows, int columns, int gates, int in_stride);

void layout_free(layout *l);

static inline bool layout_is_dense(const layout *l) {
    return l->dense;
}

/* Whether the pattern is symmetric, as of the graphs made here. The columns' lists then equal the
 * rows'. */
bool layout_is_symmetric(const layout *l);

/* Rows of the product, gates included. */
static inline size_t layout_rows(const layout *l) {
    return (size_t)l->out_nodes * (size_t)l->gates * (size_t)l->out_block;
}

/* Rows of the input that the product reads from, strides included. */
static inline size_t layout_inputs(const layout *l) {
    return (size_t)l->in_nodes * (size_t)l->in_block * (size_t)l->in_stride;
}

static inline size_t layout_weights(const layout *l) {
    const int matrices = l->taps ? l->taps : l->gates; /* of a block */
    return (size_t)l->blocks * (size_t)matrices * (size_t)l->out_block * (size_t)l->in_block;
}

#endif
