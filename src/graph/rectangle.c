/* Graphs between unlike numbers of nodes. */
#include "core/memory.h"
#include "core/philox.h"
#include "graph/graph.h"
#include "graph/graph_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_number(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* Chooses `count` of the inputs of lowest degree, drawn among equals. `order` holds all inputs. */
static void choose_inputs(philox_stream *random, int *degree, int32_t *order, int inputs, int count,
                          int32_t *chosen) {
    for (int i = inputs; i > 1; i--) { /* by Fisher and Yates */
        const int k = (int)philox_below(random, (uint64_t)i);
        const int32_t last = order[i - 1];
        order[i - 1] = order[k];
        order[k] = last;
    }
    int found = 0, least = degree[order[0]];
    for (int i = 0; i < inputs; i++) least = degree[order[i]] < least ? degree[order[i]] : least;
    for (; found < count; least++) {
        for (int i = 0; i < inputs && found < count; i++) {
            if (degree[order[i]] == least) chosen[found++] = order[i];
        }
    }
    for (int i = 0; i < count; i++) degree[chosen[i]]++;
    qsort(chosen, (size_t)count, sizeof *chosen, by_number);
}

/* Chooses the `count` inputs nearest to node `i` of `nodes` where both lie evenly on one ring, and
 * moves each with probability `rewire` to another one, drawn among those that are not chosen. */
static void choose_near(philox_stream *random, int i, int nodes, int inputs, int count,
                        double rewire, bool *taken, int32_t *chosen) {
    const double middle = (i + 0.5) * inputs / nodes;
    const int first = (int)floor(middle - 0.5 * count + 0.5) + inputs;
    memset(taken, 0, (size_t)inputs * sizeof *taken);
    for (int k = 0; k < count; k++) taken[(first + k) % inputs] = true;
    for (int k = 0; k < count && count < inputs; k++) {
        const bool moves = philox_uniform(random) < rewire;
        int to = (int)philox_below(random, (uint64_t)(inputs - count));
        if (!moves) continue;
        int at = 0;
        for (; taken[at] || to-- > 0; at++) continue;
        taken[at] = true;
        taken[(first + k) % inputs] = false;
    }
    for (int j = 0, found = 0; j < inputs; j++) {
        if (taken[j]) chosen[found++] = j;
    }
}

/* Gives each input that no node reads to one nearby on the ring, in place of an input that others
 * read too. There are at least as many pairs as inputs. */
static void read_every_input(int32_t (*pairs)[2], int64_t count, int inputs) {
    int *readers = mem_alloc((size_t)inputs, sizeof *readers);
    for (int64_t k = 0; k < count; k++) readers[pairs[k][1]]++;
    for (int j = 0; j < inputs; j++) {
        if (readers[j] > 0) continue;
        int64_t k = count * j / inputs;
        while (readers[pairs[k][1]] < 2) k = k + 1 < count ? k + 1 : 0;
        readers[pairs[k][1]]--;
        readers[j]++;
        pairs[k][1] = j;
    }
    free(readers);
}

/* In order of the nodes, then of their inputs. */
static int by_pair(const void *a, const void *b) {
    const int32_t *one = a, *two = b;
    return one[0] != two[0] ? one[0] - two[0] : one[1] - two[1];
}

/* The graph of o->file, in which every node has an edge. */
static graph *read_between(const graph_options *o, int nodes, int inputs, error *err) {
    const int rows = o->transposed ? inputs : nodes, columns = o->transposed ? nodes : inputs;
    const size_t words = bits_words(columns);
    uint64_t *joined = mem_alloc((size_t)rows * words, sizeof *joined);
    bool *met = mem_alloc((size_t)nodes + (size_t)inputs, sizeof *met); /* outputs, then inputs */
    int32_t(*pairs)[2] = NULL;
    graph *g = NULL;
    int64_t count = 0;
    bool done = graph_file_read(o->file, rows, columns, joined, err);
    for (size_t w = 0; w < (size_t)rows * words; w++) count += __builtin_popcountll(joined[w]);
    if (done && count > GRAPH_MAX_BLOCKS) {
        done = error_set(err, "%s: a graph of %lld blocks; at most %d are supported", o->file,
                         (long long)count, GRAPH_MAX_BLOCKS);
    }
    if (done) pairs = mem_alloc((size_t)count, sizeof *pairs);
    for (int i = 0, k = 0; done && i < nodes; i++) {
        for (int j = 0; j < inputs; j++) {
            const int row = o->transposed ? j : i, column = o->transposed ? i : j;
            if (!bits_get(joined, words, row, column)) continue;
            met[i] = met[nodes + j] = true;
            pairs[k][0] = i;
            pairs[k++][1] = j;
        }
    }
    for (int i = 0; done && i < nodes + inputs; i++) {
        const bool output = i < nodes;
        if (met[i]) continue;
        done = error_set(err, "%s: expected an edge for every node, %s %d has none", o->file,
                         output == o->transposed ? "input" : "output", output ? i : i - nodes);
    }
    if (done) g = graph_from_pairs(nodes, inputs, (const int32_t(*)[2])pairs, (int)count, err);
    free(joined);
    free(met);
    free(pairs);
    return g;
}

graph *graph_create_between(const graph_options *o, int nodes, int inputs, error *err) {
    const double all = (double)nodes * inputs;
    const double wanted = o->kind == GRAPH_DENSE ? all : round(o->density * all);
    const bool ring = o->kind == GRAPH_WATTS_STROGATZ;
    if (o->kind != GRAPH_DENSE && o->kind != GRAPH_RANDOM && !ring && o->kind != GRAPH_FILE) {
        error_key(err, "model.graph",
                  "expected dense, random, watts_strogatz or file with model.hubs");
        return NULL;
    }
    if (nodes == inputs) return graph_create(o, nodes, err);
    if (nodes > GRAPH_MAX_NODES || inputs > GRAPH_MAX_NODES || wanted > GRAPH_MAX_BLOCKS) {
        error_key(err, "model.hidden",
                  "a graph of %.10g blocks between %d and %d nodes; at most "
                  "%d blocks of %d nodes are supported",
                  wanted, inputs, nodes, GRAPH_MAX_BLOCKS, GRAPH_MAX_NODES);
        return NULL;
    }
    if (o->kind == GRAPH_FILE) return read_between(o, nodes, inputs, err);
    const int64_t blocks = (int64_t)wanted;
    if (blocks < nodes || blocks < inputs) {
        error_key(err, "model.density",
                  "expected at least a block for each of %d and %d nodes, got %lld", inputs, nodes,
                  (long long)blocks);
        return NULL;
    }
    int32_t(*pairs)[2] = mem_alloc((size_t)blocks, sizeof *pairs);
    int32_t *order = mem_alloc((size_t)inputs, sizeof *order);
    int32_t *chosen = mem_alloc((size_t)inputs, sizeof *chosen);
    int *degree = mem_alloc((size_t)inputs, sizeof *degree);
    bool *taken = mem_alloc((size_t)inputs, sizeof *taken);
    philox_stream random = philox_start(o->seed, PHILOX_GRAPH, (uint32_t)o->pattern, 0);
    int64_t count = 0;
    for (int j = 0; j < inputs; j++) order[j] = chosen[j] = j;
    for (int i = 0; i < nodes; i++) {
        const int here = (int)(blocks * (i + 1) / nodes - blocks * i / nodes);
        if (ring) {
            choose_near(&random, i, nodes, inputs, here, o->rewire, taken, chosen);
        } else if (here < inputs) {
            choose_inputs(&random, degree, order, inputs, here, chosen);
        }
        for (int k = 0; k < here; k++, count++) {
            pairs[count][0] = i;
            pairs[count][1] = here < inputs ? chosen[k] : k;
        }
    }
    if (ring) {
        read_every_input(pairs, count, inputs);
        qsort(pairs, (size_t)count, sizeof *pairs, by_pair);
    }
    graph *g = graph_from_pairs(nodes, inputs, (const int32_t(*)[2])pairs, (int)count, err);
    free(pairs);
    free(order);
    free(chosen);
    free(degree);
    free(taken);
    return g;
}

graph *graph_through(const graph *second, const graph *first) {
    const size_t nodes = (size_t)second->nodes, inputs = (size_t)first->inputs;
    graph *g = mem_alloc(1, sizeof *g);
    bool *reads = mem_alloc(inputs, sizeof *reads);
    *g = (graph){second->nodes, first->inputs, mem_alloc(nodes + 1, sizeof *g->start), NULL};
    for (int i = 0; i < g->nodes; i++) {
        int count = g->start[i];
        memset(reads, 0, inputs * sizeof *reads);
        for (int k = second->start[i]; k < second->start[i + 1]; k++) {
            const int between = second->column[k];
            for (int j = first->start[between]; j < first->start[between + 1]; j++) {
                reads[first->column[j]] = true;
            }
        }
        if (graph_is_square(g)) reads[i] = true;
        g->column = mem_resize(g->column, (size_t)count + inputs, sizeof *g->column);
        for (int j = 0; j < g->inputs; j++) {
            if (reads[j]) g->column[count++] = j;
        }
        g->start[i + 1] = count;
    }
    free(reads);
    return g;
}
