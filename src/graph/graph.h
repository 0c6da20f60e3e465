/* Small-world graphs over the nodes of a recurrent layer, where a node is a block of units and an
 * edge says that one node feeds another. Every node feeds itself. The same options and seed give
 * the same graph on every machine.
 *
 *   dense              every node feeds every node
 *   random             edges one by one between nodes of lowest degree: degrees differ by 1 or 2
 *                      at most
 *   watts_strogatz     a ring of `degree` nearest neighbours, each edge rewired with probability
 *                      `rewire` (Watts, Strogatz 1998)
 *   watts_strogatz_2d  the same on a torus as square as the number of nodes allows, the nearest
 *                      neighbours by distance
 *   barabasi_albert    a complete core of `degree` / 2 nodes; each further node is wired to
 *                      `degree` / 2 earlier ones, chosen in proportion to their degree
 *                      (Barabasi, Albert 1999)
 *   core_periphery     the first nodes, a share `core` of all, are joined to each other; of the
 *                      blocks left, core nodes read the periphery through a share `core_reads`,
 *                      periphery nodes the core through a share `periphery_reads`, both at random
 *                      and evenly, and the rest joins periphery nodes as another generator,
 *                      `periphery`, would
 *   file               read from an edge list or a mask
 *
 * Between the cells and the hubs of a layer a graph is a rectangle, of other output nodes than
 * input nodes, see graph_create_between.
 *
 * All but `core_periphery` and `file` are symmetric. A graph has a `degree`, the mean number of
 * neighbours of a node, itself not counted, or a `density`, the share of all blocks that exist,
 * self-blocks included. (barabasi_albert falls short of its degree by about degree^2 / (4 nodes),
 * since its first nodes find fewer nodes to join: a degree of 40 among 100 nodes has a mean of
 * 35.8.) A density is met to within one symmetric pair: the generator runs at
 * the nearest lower degree, and random edges are added at the nodes of lowest degree. */
#ifndef SMALLWORLD_GRAPH_GRAPH_H
#define SMALLWORLD_GRAPH_GRAPH_H

#include "core/error.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum graph_kind {
    GRAPH_DENSE,
    GRAPH_RANDOM,
    GRAPH_WATTS_STROGATZ,
    GRAPH_WATTS_STROGATZ_2D,
    GRAPH_BARABASI_ALBERT,
    GRAPH_CORE_PERIPHERY,
    GRAPH_FILE
} graph_kind;

#define GRAPH_KINDS                                                                                \
    "dense random watts_strogatz watts_strogatz_2d barabasi_albert core_periphery file"

/* The generators of a core_periphery graph's periphery. */
#define PERIPHERY_KINDS "random watts_strogatz watts_strogatz_2d barabasi_albert"

typedef struct graph_options {
    graph_kind kind;
    int degree;                               /* 0: density decides */
    double density;                           /* 0: degree decides */
    double rewire;                            /* probability */
    double core, core_reads, periphery_reads; /* shares, of core_periphery */
    graph_kind periphery;                     /* random, watts_strogatz... or barabasi_albert */
    const char *file;                         /* GRAPH_FILE */
    bool transposed; /* of a file between unlike nodes: its rows are the inputs */
    uint64_t seed;
    int pattern; /* graphs of one model differ by this number */
} graph_options;

/* Compressed rows: output node i reads input nodes column[start[i]] ... column[start[i + 1] - 1],
 * ascending; of a square, itself among them. */
typedef struct graph {
    int nodes;   /* output nodes */
    int inputs;  /* input nodes; as many in a square */
    int *start;  /* [nodes + 1] */
    int *column; /* [start[nodes]] */
} graph;

/* Blocks: as many of the smallest are 64 GiB of weights. */
enum { GRAPH_MAX_NODES = 32768, GRAPH_MAX_BLOCKS = 1 << 26 };

/* NULL where the options do not fit: a degree that is odd for a ring, or not below the number of
 * nodes; a density below the self-blocks'; a bad file.
 *
 * A file is a .npy mask [output node][input node] of any integer or boolean type, or text: a line
 * "OUTPUT INPUT" an edge, nodes from 0, `#` starts a comment. A square's self-edges need not be
 * listed. */
graph *graph_create(const graph_options *options, int nodes, error *err);

/* The graph of a rectangle, without self-blocks: dense; random, in which the degrees of output
 * nodes differ by one at most, and those of input nodes too; watts_strogatz, in which outputs and
 * inputs lie evenly on one ring, and an output reads the inputs nearest to it, each moved with
 * probability `rewire`; or that of a file, in which every node has an edge. NULL for other kinds.
 * Of as many outputs as inputs it is graph_create's. */
graph *graph_create_between(const graph_options *options, int nodes, int inputs, error *err);

/* Whether a graph may have so many nodes. */
bool graph_check_nodes(int nodes, error *err);

/* From a matrix of bits [nodes][bits_words(inputs)], see bits.h: output node, input node. */
graph *graph_from_bits(const uint64_t *joined, int nodes, int inputs, error *err);

/* Refuses a list of `count` blocks (output node, input node) that is not ascending, has repeats, or
 * names a node that is not there. */
bool graph_check_pairs(int out_nodes, int in_nodes, const int32_t (*pairs)[2], int count,
                       error *err);

/* From an explicit list of `count` blocks (output node, input node), as checkpoints keep it; the
 * list must be ascending, without repeats, and hold every self-block. */
graph *graph_from_blocks(int nodes, const int32_t (*blocks)[2], int count, error *err);

/* The same of a rectangle, which needs no self-blocks. */
graph *graph_from_pairs(int nodes, int inputs, const int32_t (*blocks)[2], int count, error *err);
void graph_free(graph *g);

/* What the outputs of `second` read of the inputs of `first`, whose outputs are second's inputs. Of
 * a square, every node also reads itself. */
graph *graph_through(const graph *second, const graph *first);

/* Whether outputs and inputs are the same nodes. */
static inline bool graph_is_square(const graph *g) {
    return g->nodes == g->inputs;
}

static inline int graph_blocks(const graph *g) {
    return g->start[g->nodes];
}

#endif
