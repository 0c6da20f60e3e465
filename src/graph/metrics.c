#include "graph/metrics.h"

#include "core/integer.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- degrees */

static void measure_degrees(const graph *g, graph_metrics *m) {
    const int self = graph_is_square(g); /* a node is not its own neighbour */
    m->nodes = g->nodes;
    m->inputs = g->inputs;
    m->blocks = graph_blocks(g);
    m->density = m->blocks / ((double)g->nodes * g->inputs);
    m->degree_mean = (double)m->blocks / g->nodes - self;
    m->degree_min = g->inputs;
    m->out_degree_min = g->nodes;
    int *readers = mem_alloc((size_t)g->inputs, sizeof *readers);
    for (int k = 0; k < m->blocks; k++) readers[g->column[k]]++;
    for (int i = 0; i < g->nodes; i++) {
        int degree = g->start[i + 1] - g->start[i] - self;
        m->degree_min = (int)integer_min(m->degree_min, degree);
        m->degree_max = (int)integer_max(m->degree_max, degree);
    }
    for (int j = 0; j < g->inputs; j++) {
        m->out_degree_min = (int)integer_min(m->out_degree_min, readers[j] - self);
        m->out_degree_max = (int)integer_max(m->out_degree_max, readers[j] - self);
    }
    free(readers);
}

/* Node i belongs to the core if it reads all nodes before it and they all read it. */
static void measure_core(const graph *g, graph_metrics *m) {
    /* The number of readers of each node among the nodes before i. */
    int *readers = mem_alloc((size_t)g->nodes, sizeof *readers);
    for (int i = 0; i < g->nodes; i++) {
        int reads = 0;
        for (int k = g->start[i]; k < g->start[i + 1]; k++) reads += g->column[k] < i;
        if (reads < i || readers[i] < i) break;
        for (int k = g->start[i]; k < g->start[i + 1]; k++) readers[g->column[k]]++;
        m->core = i + 1;
    }
    free(readers);
}

/* ------------------------------------------------------------------------------------- paths */

/* Breadth-first searches from 64 nodes at once, a bit of a word each; a node's row is walked again
 * only when a search has newly arrived there (Then et al., "The more the merrier: efficient
 * multi-source graph traversal", 2014). The searches follow the rows, from output to input, against
 * the signal: over all ordered pairs the distances are the same. */
static void measure_paths(const graph *g, graph_metrics *m) {
    size_t nodes = (size_t)g->nodes;
    /* The searches that have reached a node, those that did in the last step, and those that reach
     * it in this step, perhaps again. */
    uint64_t *seen = mem_alloc(nodes, sizeof *seen), *fresh = mem_alloc(nodes, sizeof *fresh);
    uint64_t *next = mem_alloc(nodes, sizeof *next);
    int *active = mem_alloc(nodes, sizeof *active), *touched = mem_alloc(nodes, sizeof *touched);
    int64_t arrivals[METRICS_MAX_STEPS] = {0}, paths = 0, length = 0;

    for (int first = 0; first < g->nodes; first += 64) {
        int active_count = 0;
        memset(seen, 0, nodes * sizeof *seen);
        for (int i = first; i < g->nodes && i < first + 64; i++) {
            seen[i] = fresh[i] = 1ull << (i - first);
            active[active_count++] = i;
        }
        for (int step = 1; active_count > 0; step++) {
            int touched_count = 0;
            for (int a = 0; a < active_count; a++) {
                int node = active[a];
                for (int k = g->start[node]; k < g->start[node + 1]; k++) {
                    int input = g->column[k];
                    if (!next[input]) touched[touched_count++] = input;
                    next[input] |= fresh[node];
                }
            }
            int64_t arrived = 0;
            active_count = 0;
            for (int t = 0; t < touched_count; t++) {
                int node = touched[t];
                fresh[node] = next[node] & ~seen[node];
                next[node] = 0;
                if (!fresh[node]) continue;
                seen[node] |= fresh[node];
                active[active_count++] = node;
                arrived += __builtin_popcountll(fresh[node]);
            }
            if (arrived > 0 && step > m->path_max) m->path_max = step;
            if (step <= METRICS_MAX_STEPS) arrivals[step - 1] += arrived;
            paths += arrived;
            length += arrived * step;
        }
    }
    free(seen);
    free(fresh);
    free(next);
    free(active);
    free(touched);

    int64_t pairs = (int64_t)g->nodes * (g->nodes - 1), reached = g->nodes;
    m->path_mean = paths > 0 ? (double)length / (double)paths : 0;
    m->unreachable = pairs > 0 ? (double)(pairs - paths) / (double)pairs : 0;
    m->steps = m->path_max < 1 ? 1 : m->path_max;
    if (m->steps > METRICS_MAX_STEPS) m->steps = METRICS_MAX_STEPS;
    for (int k = 0; k < m->steps; k++) {
        reached += arrivals[k];
        m->reach[k] = (double)reached / ((double)g->nodes * g->nodes);
    }
}

/* -------------------------------------------------------------------- clustering, components */

static int popcount_both(const uint64_t *a, const uint64_t *b, size_t words) {
    int count = 0;
    for (size_t w = 0; w < words; w++) count += __builtin_popcountll(a[w] & b[w]);
    return count;
}

/* Keeps neighbours as bits. An edge in either direction makes two nodes neighbours. A node is not
 * its own neighbour. */
static void measure_clustering(const graph *g, graph_metrics *m) {
    size_t nodes = (size_t)g->nodes, words = (nodes + 63) / 64;
    uint64_t *joined = mem_alloc(nodes * words, sizeof *joined);
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            int j = g->column[k];
            if (i == j) continue;
            joined[(size_t)i * words + (size_t)j / 64] |= 1ull << j % 64;
            joined[(size_t)j * words + (size_t)i / 64] |= 1ull << i % 64;
        }
    }
    for (size_t i = 0; i < nodes; i++) {
        const uint64_t *row = joined + i * words;
        int64_t neighbours = 0, joined_pairs = 0; /* ordered pairs */
        for (size_t w = 0; w < words; w++) {
            for (uint64_t bits = row[w]; bits; bits &= bits - 1) {
                size_t j = w * 64 + (size_t)__builtin_ctzll(bits);
                joined_pairs += popcount_both(row, joined + j * words, words);
                neighbours++;
            }
        }
        if (neighbours < 2) continue;
        m->clustering += (double)joined_pairs / (double)(neighbours * (neighbours - 1));
    }
    m->clustering /= g->nodes;
    free(joined);
}

/* Returns the representative of the node's component. Halves paths on the way. */
static int find_root(int *parent, int node) {
    while (parent[node] != node) node = parent[node] = parent[parent[node]];
    return node;
}

int graph_components(const graph *g) {
    const int first_input = graph_is_square(g) ? 0 : g->nodes; /* numbers of inputs follow */
    int components = first_input + g->inputs;
    int *parent = mem_alloc((size_t)components, sizeof *parent);
    for (int i = 0; i < components; i++) parent[i] = i;
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            int one = find_root(parent, i), two = find_root(parent, first_input + g->column[k]);
            if (one == two) continue;
            parent[two] = one;
            components--;
        }
    }
    free(parent);
    return components;
}

void graph_measure(const graph *g, graph_metrics *metrics) {
    *metrics = (graph_metrics){0};
    measure_degrees(g, metrics);
    metrics->components = graph_components(g);
    if (!graph_is_square(g)) return;
    measure_core(g, metrics);
    measure_paths(g, metrics);
    measure_clustering(g, metrics);
}
