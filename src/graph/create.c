/* Graphs of a layer by their kind. */
#include "core/memory.h"
#include "graph/bits.h"
#include "graph/core_periphery.h"
#include "graph/graph_file.h"
#include "graph/symmetric.h"

#include <stdlib.h>

/* Checks the number of blocks before the graph is made. */
static bool check_blocks_wanted(const graph_options *o, int nodes, error *err) {
    double square = (double)nodes * nodes, blocks = square * o->density;
    const char *key = o->kind == GRAPH_DENSE ? "model.hidden" : "model.density";
    if (o->kind == GRAPH_FILE) return true;
    if (o->kind == GRAPH_DENSE) blocks = square;
    if (o->kind != GRAPH_DENSE && o->degree) {
        key = "model.degree";
        blocks = (double)nodes * (o->degree + 1.0);
    }
    if (!(blocks > GRAPH_MAX_BLOCKS)) return true;
    return error_key(err, key, "a graph of %.10g blocks of weights; at most %d are supported",
                     blocks, GRAPH_MAX_BLOCKS);
}

/* The graph of a file, in which each node reads itself too. */
static graph *from_file(const char *path, int nodes, error *err) {
    const size_t words = bits_words(nodes);
    uint64_t *joined = mem_alloc((size_t)nodes * words, sizeof *joined);
    for (int i = 0; i < nodes; i++) bits_set(joined, words, i, i);
    const bool done = graph_file_read(path, nodes, nodes, joined, err);
    graph *g = done ? graph_from_bits(joined, nodes, nodes, err) : NULL;
    free(joined);
    return g;
}

graph *graph_create(const graph_options *options, int nodes, error *err) {
    if (!graph_check_nodes(nodes, err) || !check_blocks_wanted(options, nodes, err)) return NULL;
    switch (options->kind) {
    case GRAPH_FILE: return from_file(options->file, nodes, err);
    case GRAPH_CORE_PERIPHERY: return core_periphery_create(options, nodes, err);
    default: return graph_symmetric(options, nodes, err);
    }
}
