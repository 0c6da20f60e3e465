#include "graph/graph.h"

#include "core/memory.h"
#include "graph/bits.h"

#include <stdlib.h>

static graph *new_graph(int nodes, int inputs, int blocks) {
    graph *g = mem_alloc(1, sizeof *g);
    g->nodes = nodes;
    g->inputs = inputs;
    g->start = mem_alloc((size_t)nodes + 1, sizeof *g->start);
    g->column = mem_alloc((size_t)blocks, sizeof *g->column);
    return g;
}

bool graph_check_nodes(int nodes, error *err) {
    if (nodes >= 1 && nodes <= GRAPH_MAX_NODES) return true;
    return error_set(err, "expected a graph of 1 to %d nodes (model.hidden / model.block), got %d",
                     GRAPH_MAX_NODES, nodes);
}

graph *graph_from_bits(const uint64_t *joined, int nodes, int inputs, error *err) {
    const size_t words = bits_words(inputs);
    int64_t blocks = 0;
    int k = 0;
    for (size_t w = 0; w < (size_t)nodes * words; w++) blocks += __builtin_popcountll(joined[w]);
    if (blocks > GRAPH_MAX_BLOCKS) {
        error_set(err, "a graph of %lld blocks of weights; at most %d are supported",
                  (long long)blocks, GRAPH_MAX_BLOCKS);
        return NULL;
    }
    graph *g = new_graph(nodes, inputs, (int)blocks);
    for (int i = 0; i < nodes; i++) {
        for (size_t w = 0; w < words; w++) {
            uint64_t bits = joined[(size_t)i * words + w];
            for (; bits; bits &= bits - 1) g->column[k++] = (int)w * 64 + __builtin_ctzll(bits);
        }
        g->start[i + 1] = k;
    }
    return g;
}

bool graph_check_pairs(int out_nodes, int in_nodes, const int32_t (*pairs)[2], int count,
                       error *err) {
    for (int k = 0; k < count; k++) {
        const int output = pairs[k][0], input = pairs[k][1];
        const bool bad_output = output < 0 || output >= out_nodes;
        if (bad_output || input < 0 || input >= in_nodes) {
            return error_set(err, "block %d joins nodes %d and %d: expected 0 to %d", k, output,
                             input, (bad_output ? out_nodes : in_nodes) - 1);
        }
        const int32_t *last = pairs[k > 0 ? k - 1 : 0];
        if (k > 0 && (output < last[0] || (output == last[0] && input <= last[1]))) {
            return error_set(err,
                             "block %d (%d, %d) follows (%d, %d): expected ascending blocks "
                             "without repeats",
                             k, output, input, last[0], last[1]);
        }
    }
    return true;
}

static bool check_selves(int nodes, const int32_t (*blocks)[2], int count, error *err) {
    int selves = 0;
    for (int k = 0; k < count; k++) selves += blocks[k][0] == blocks[k][1];
    if (selves == nodes) return true;
    return error_set(err, "%d self-blocks: expected one for each of %d nodes", selves, nodes);
}

graph *graph_from_pairs(int nodes, int inputs, const int32_t (*blocks)[2], int count, error *err) {
    if (!graph_check_nodes(nodes, err) || !graph_check_nodes(inputs, err)) return NULL;
    if (count > GRAPH_MAX_BLOCKS) {
        error_set(err, "%d blocks; at most %d are supported", count, GRAPH_MAX_BLOCKS);
        return NULL;
    }
    if (!graph_check_pairs(nodes, inputs, blocks, count, err)) return NULL;
    graph *g = new_graph(nodes, inputs, count);
    for (int k = 0; k < count; k++) {
        g->start[blocks[k][0] + 1]++;
        g->column[k] = blocks[k][1];
    }
    for (int i = 0; i < nodes; i++) g->start[i + 1] += g->start[i];
    return g;
}

graph *graph_from_blocks(int nodes, const int32_t (*blocks)[2], int count, error *err) {
    graph *g = graph_from_pairs(nodes, nodes, blocks, count, err);
    if (!g || check_selves(nodes, blocks, count, err)) return g;
    graph_free(g);
    return NULL;
}

void graph_free(graph *g) {
    if (!g) return;
    free(g->start);
    free(g->column);
    free(g);
}
