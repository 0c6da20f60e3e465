#include "graph/graph.h"

#include "core/memory.h"
#include "core/philox.h"
#include "graph/core_periphery.h"
#include "graph/graph_file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- builder
 * A graph while it grows. Everything drawn at random is compared as integers, or as the exact
 * multiples of 2^-53 that philox_uniform gives, so that every machine takes the same turns. */

typedef struct builder {
    int nodes;
    size_t words;     /* of a row */
    uint64_t *joined; /* [nodes][words] bit j of row i: i reads j; every node reads itself */
    int *degree;      /* [nodes] neighbours without itself; for symmetric graphs only */
    int64_t pairs;    /* of distinct nodes, joined both ways */
    philox_stream random;
} builder;

static void set_bit(builder *b, int output, int input) {
    bits_set(b->joined, b->words, output, input);
}

static void clear_bit(builder *b, int output, int input) {
    b->joined[(size_t)output * b->words + (size_t)input / 64] &= ~(1ull << input % 64);
}

static bool is_joined(const builder *b, int output, int input) {
    return bits_get(b->joined, b->words, output, input);
}

static void join(builder *b, int i, int j) {
    set_bit(b, i, j);
    set_bit(b, j, i);
    b->degree[i]++;
    b->degree[j]++;
    b->pairs++;
}

static void part(builder *b, int i, int j) {
    clear_bit(b, i, j);
    clear_bit(b, j, i);
    b->degree[i]--;
    b->degree[j]--;
    b->pairs--;
}

static int draw_below(builder *b, int bound) {
    return (int)philox_below(&b->random, (uint64_t)bound);
}

static void builder_begin(builder *b, int nodes, const graph_options *o) {
    *b = (builder){.nodes = nodes, .words = bits_words(nodes)};
    b->joined = mem_alloc((size_t)nodes * b->words, sizeof *b->joined);
    b->degree = mem_alloc((size_t)nodes, sizeof *b->degree);
    b->random = philox_start(o->seed, PHILOX_GRAPH, (uint32_t)o->pattern, 0);
    for (int i = 0; i < nodes; i++) set_bit(b, i, i);
}

static void builder_end(builder *b) {
    free(b->joined);
    free(b->degree);
}

static graph *new_graph(int nodes, int inputs, int blocks) {
    graph *g = mem_alloc(1, sizeof *g);
    g->nodes = nodes;
    g->inputs = inputs;
    g->start = mem_alloc((size_t)nodes + 1, sizeof *g->start);
    g->column = mem_alloc((size_t)blocks, sizeof *g->column);
    return g;
}

static graph *builder_graph(const builder *b, int blocks) {
    graph *g = new_graph(b->nodes, b->nodes, blocks);
    int k = 0;
    for (int i = 0; i < b->nodes; i++) {
        for (size_t w = 0; w < b->words; w++) {
            uint64_t bits = b->joined[(size_t)i * b->words + w];
            for (; bits; bits &= bits - 1) g->column[k++] = (int)w * 64 + __builtin_ctzll(bits);
        }
        g->start[i + 1] = k;
    }
    return g;
}

/* --------------------------------------------------------------------- edges at lowest degree */

/* Draws one of `count` nodes that are not joined to `node`, uniformly, or returns -1 if there is
 * none. A few random guesses usually find one; otherwise all nodes are searched. */
static int draw_free(builder *b, int node, const int *among, int count) {
    enum { GUESSES = 16 };
    for (int guess = 0; guess < GUESSES && guess < count; guess++) {
        int other = among[draw_below(b, count)];
        if (!is_joined(b, node, other)) return other;
    }
    int left = 0;
    for (int i = 0; i < count; i++) left += !is_joined(b, node, among[i]);
    if (left == 0) return -1;
    int skip = draw_below(b, left);
    while (is_joined(b, node, *among) || skip-- > 0) among++;
    return *among;
}

/* The nodes sorted by degree, ascending. */
typedef struct ranking {
    int *order, *position; /* [nodes] each other's inverse */
    int *first; /* [nodes + 1] of degree d are order[first[d]] ... order[first[d + 1] - 1] */
} ranking;

static void ranking_begin(ranking *r, const builder *b) {
    size_t nodes = (size_t)b->nodes;
    r->order = mem_alloc(nodes, sizeof *r->order);
    r->position = mem_alloc(nodes, sizeof *r->position);
    r->first = mem_alloc(nodes + 1, sizeof *r->first);
    for (int i = 0; i < b->nodes; i++) r->first[b->degree[i] + 1]++;
    for (int d = 0; d < b->nodes; d++) r->first[d + 1] += r->first[d];
    int *next = mem_alloc(nodes, sizeof *next);
    memcpy(next, r->first, nodes * sizeof *next);
    for (int i = 0; i < b->nodes; i++) {
        r->position[i] = next[b->degree[i]]++;
        r->order[r->position[i]] = i;
    }
    free(next);
}

static void ranking_end(ranking *r) {
    free(r->order);
    free(r->position);
    free(r->first);
}

/* Raises the degree of `node` by one: it swaps places with the last node of equal degree. */
static void ranking_raise(ranking *r, int node, int degree) {
    int last = --r->first[degree + 1], other = r->order[last], place = r->position[node];
    r->order[place] = other;
    r->position[other] = place;
    r->order[last] = node;
    r->position[node] = last;
}

/* Joins a node of lowest degree to one of lowest degree among those it is not joined to, with ties
 * broken at random, until the graph has `pairs` pairs. */
static void join_lowest(builder *b, int64_t pairs) {
    ranking r;
    ranking_begin(&r, b);
    while (b->pairs < pairs) {
        int lowest = b->degree[r.order[0]], other = -1;
        int node = r.order[draw_below(b, r.first[lowest + 1])];
        for (int d = lowest; other < 0; d++) {
            other = draw_free(b, node, r.order + r.first[d], r.first[d + 1] - r.first[d]);
        }
        ranking_raise(&r, node, b->degree[node]);
        ranking_raise(&r, other, b->degree[other]);
        join(b, node, other);
    }
    ranking_end(&r);
}

/* ------------------------------------------------------------------------------ Watts-Strogatz
 * Node i stands at row i / columns, column i % columns of a torus; a ring is a torus of one row. */

typedef struct offset {
    int down, across, distance; /* the distance squared */
    bool halfway;               /* it is its own opposite, so it leads to one neighbour, not two */
} offset;

static int by_distance(const void *a, const void *b) {
    const offset *one = a, *two = b;
    if (one->distance != two->distance) return one->distance < two->distance ? -1 : 1;
    if (one->down != two->down) return one->down < two->down ? -1 : 1;
    return one->across < two->across ? -1 : one->across > two->across;
}

/* Returns one offset of each opposite two, nearest first, until every node has 2 `half` neighbours.
 * Halfway offsets are taken two at a time, so that the degree stays even. */
static offset *nearest_offsets(int rows, int columns, int half, int *count) {
    offset *offsets = mem_alloc((size_t)rows * (size_t)columns, sizeof *offsets);
    int found = 0;
    for (int i = 1; i < rows * columns; i++) {
        int down = i / columns, across = i % columns;
        int up = (rows - down) % rows, back = (columns - across) % columns;
        int opposite = up * columns + back;
        if (opposite < i) continue;
        int y = down < up ? down : up, x = across < back ? across : back;
        offsets[found++] = (offset){down, across, y * y + x * x, opposite == i};
    }
    qsort(offsets, (size_t)found, sizeof *offsets, by_distance);

    offset waiting = {0};
    *count = 0;
    for (int i = 0; half > 0; i++) {
        offset next = offsets[i];
        if (next.halfway && !waiting.halfway) {
            waiting = next;
            continue;
        }
        if (next.halfway) {
            offsets[(*count)++] = waiting;
            waiting.halfway = false;
        }
        offsets[(*count)++] = next;
        half--;
    }
    return offsets;
}

/* Returns the node at the other end of `node`'s edge, or -1 if that node has already listed the
 * edge. */
static int far_end(int node, const offset *o, int rows, int columns) {
    int row = (node / columns + o->down) % rows, column = (node % columns + o->across) % columns;
    int other = row * columns + column;
    return o->halfway && other < node ? -1 : other;
}

/* Returns number `index` of the nodes that `node` is not joined to. */
static int free_node(const builder *b, int node, int index) {
    const uint64_t *row = b->joined + (size_t)node * b->words;
    int word = 0;
    for (;; word++) {
        int zeros = 64 - __builtin_popcountll(row[word]);
        if (index < zeros) break;
        index -= zeros;
    }
    uint64_t zeros = ~row[word];
    while (index-- > 0) zeros &= zeros - 1;
    return word * 64 + __builtin_ctzll(zeros);
}

/* Joins each node to its 2 `half` nearest; then goes over the edges, the shortest first and within
 * a length by node, and moves the far end of each, with probability `rewire`, to a node drawn from
 * those not yet joined, as networkx's watts_strogatz_graph does. The number of edges stays. */
static void watts_strogatz(builder *b, int rows, int half, double rewire) {
    int columns = b->nodes / rows, count;
    offset *offsets = nearest_offsets(rows, columns, half, &count);
    for (int o = 0; o < count; o++) {
        for (int i = 0; i < b->nodes; i++) {
            int other = far_end(i, &offsets[o], rows, columns);
            if (other >= 0) join(b, i, other);
        }
    }
    for (int o = 0; o < count; o++) {
        for (int i = 0; i < b->nodes; i++) {
            int other = far_end(i, &offsets[o], rows, columns);
            if (other < 0 || !(philox_uniform(&b->random) < rewire)) continue;
            int left = b->nodes - 1 - b->degree[i];
            if (left == 0) continue;
            int target = free_node(b, i, draw_below(b, left));
            part(b, i, other);
            join(b, i, target);
        }
    }
    free(offsets);
}

/* The largest divisor of `nodes` that is not above its square root. */
static int torus_rows(int nodes) {
    int rows = 1;
    for (int r = 2; r * r <= nodes; r++) {
        if (nodes % r == 0) rows = r;
    }
    return rows;
}

/* ----------------------------------------------------------------------------- Barabasi-Albert */

/* The number of pairs of a core of `core` nodes and of further nodes with as many targets each. */
static int64_t barabasi_albert_pairs(int nodes, int core) {
    return (int64_t)core * nodes - (int64_t)core * (core + 1) / 2;
}

static void barabasi_albert(builder *b, int core) {
    int *ends = mem_alloc((size_t)barabasi_albert_pairs(b->nodes, core) * 2, sizeof *ends);
    int count = 0; /* of `ends`, which holds each node as often as it has neighbours */
    for (int i = 0; i < b->nodes; i++) {
        int targets = i < core ? i : core, listed = count;
        for (int t = 0; t < targets; t++) {
            int target = t; /* up to the first node after the core, all earlier ones */
            if (i > core) {
                do target = ends[draw_below(b, listed)];
                while (is_joined(b, i, target));
            }
            join(b, i, target);
            ends[count++] = i;
            ends[count++] = target;
        }
    }
    free(ends);
}

/* ---------------------------------------------------------------------------------- generators */

static bool check_degree(const graph_options *o, int nodes, error *err) {
    if (o->degree < 0 || o->degree >= nodes) {
        return error_key(err, "model.degree",
                         "expected below %d, the number of nodes "
                         "(model.hidden / model.block), got %d",
                         nodes, o->degree);
    }
    if (o->degree % 2 == 0 || o->kind == GRAPH_RANDOM || o->kind == GRAPH_CORE_PERIPHERY)
        return true;
    if (o->kind == GRAPH_BARABASI_ALBERT) {
        return error_key(err, "model.degree",
                         "expected an even number, since barabasi_albert wires "
                         "each node to model.degree / 2 earlier ones, got %d",
                         o->degree);
    }
    return error_key(err, "model.degree",
                     "expected an even number, since a node of watts_strogatz "
                     "has as many neighbours on either side, got %d",
                     o->degree);
}

static bool check_density(const graph_options *o, int nodes, error *err) {
    if (!(o->density <= 1)) {
        return error_key(err, "model.density", "expected at most 1, got %.10g", o->density);
    }
    int64_t blocks = llround(o->density * ((double)nodes * nodes));
    if (blocks < nodes) {
        return error_key(err, "model.density",
                         "expected at least %.6g, the share of the self-blocks "
                         "of %d nodes (model.hidden / model.block), got %.10g",
                         1.0 / nodes, nodes, o->density);
    }
    return true;
}

/* Checks that exactly one of degree and density gives the number of blocks. */
static bool check_size(const graph_options *o, int nodes, error *err) {
    if ((o->degree != 0) == (o->density != 0)) {
        return error_set(err, "model.degree, model.density: expected one of them, got %s",
                         o->degree ? "both" : "neither");
    }
    return o->degree ? check_degree(o, nodes, err) : check_density(o, nodes, err);
}

/* The number of pairs nearest to the density: the nearest number of blocks, rounded to whole pairs.
 */
static int64_t density_pairs(const graph_options *o, int nodes) {
    return (llround(o->density * ((double)nodes * nodes)) - nodes + 1) / 2;
}

/* Runs the generator at the given degree, or at the largest one that stays below the density, and
 * then adds random pairs until the density is met. A random graph consists of these alone. */
static bool generate(builder *b, const graph_options *o, error *err) {
    bool ring = o->kind == GRAPH_WATTS_STROGATZ || o->kind == GRAPH_WATTS_STROGATZ_2D;
    if (ring && !(o->rewire >= 0 && o->rewire <= 1)) {
        return error_key(err, "model.rewire", "expected a probability from 0 to 1, got %.10g",
                         o->rewire);
    }
    if (!check_size(o, b->nodes, err)) return false;
    int half;
    int64_t pairs = 0; /* to complete to; a degree needs no completion but `random`'s */
    if (o->degree) {
        half = o->degree / 2;
        if (o->kind == GRAPH_RANDOM) pairs = (int64_t)b->nodes * o->degree / 2;
    } else {
        pairs = density_pairs(o, b->nodes);
        half = (int)(pairs / b->nodes);
        while (o->kind == GRAPH_BARABASI_ALBERT && half < b->nodes &&
               barabasi_albert_pairs(b->nodes, half + 1) <= pairs) {
            half++;
        }
    }
    switch (o->kind) {
    case GRAPH_WATTS_STROGATZ: watts_strogatz(b, 1, half, o->rewire); break;
    case GRAPH_WATTS_STROGATZ_2D: watts_strogatz(b, torus_rows(b->nodes), half, o->rewire); break;
    case GRAPH_BARABASI_ALBERT: barabasi_albert(b, half); break;
    case GRAPH_RANDOM: break; /* its pairs are those that complete any graph */
    default: abort();         /* graph_create makes the others */
    }
    join_lowest(b, pairs);
    return true;
}

/* -------------------------------------------------------------------------------------- graphs */

static bool check_nodes(int nodes, error *err) {
    if (nodes >= 1 && nodes <= GRAPH_MAX_NODES) return true;
    return error_set(err, "expected a graph of 1 to %d nodes (model.hidden / model.block), got %d",
                     GRAPH_MAX_NODES, nodes);
}

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

static graph *build(builder *b, error *err) {
    int64_t blocks = 0;
    for (size_t w = 0; w < (size_t)b->nodes * b->words; w++) {
        blocks += __builtin_popcountll(b->joined[w]);
    }
    if (blocks <= GRAPH_MAX_BLOCKS) return builder_graph(b, (int)blocks);
    error_set(err, "a graph of %lld blocks of weights; at most %d are supported", (long long)blocks,
              GRAPH_MAX_BLOCKS);
    return NULL;
}

graph *graph_create(const graph_options *options, int nodes, error *err) {
    if (!check_nodes(nodes, err) || !check_blocks_wanted(options, nodes, err)) return NULL;
    if (options->kind == GRAPH_CORE_PERIPHERY) {
        return check_size(options, nodes, err) ? core_periphery_create(options, nodes, err) : NULL;
    }
    builder b;
    bool done = true;
    builder_begin(&b, nodes, options);
    if (options->kind == GRAPH_DENSE) {
        for (int i = 0; i < nodes; i++) {
            for (int j = 0; j < nodes; j++) set_bit(&b, i, j);
        }
    } else if (options->kind == GRAPH_FILE) {
        done = graph_file_read(options->file, nodes, nodes, b.joined, err);
    } else {
        done = generate(&b, options, err);
    }
    graph *g = done ? build(&b, err) : NULL;
    builder_end(&b);
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
    if (!check_nodes(nodes, err) || !check_nodes(inputs, err)) return NULL;
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
