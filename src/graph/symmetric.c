#include "graph/symmetric.h"

#include "core/memory.h"
#include "core/philox.h"
#include "graph/bits.h"

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

bool graph_check_size(const graph_options *o, int nodes, error *err) {
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
    if (o->kind == GRAPH_DENSE) {
        for (int i = 0; i < b->nodes; i++) {
            for (int j = 0; j < b->nodes; j++) set_bit(b, i, j);
        }
        return true;
    }
    bool ring = o->kind == GRAPH_WATTS_STROGATZ || o->kind == GRAPH_WATTS_STROGATZ_2D;
    if (ring && !(o->rewire >= 0 && o->rewire <= 1)) {
        return error_key(err, "model.rewire", "expected a probability from 0 to 1, got %.10g",
                         o->rewire);
    }
    if (!graph_check_size(o, b->nodes, err)) return false;
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

graph *graph_symmetric(const graph_options *options, int nodes, error *err) {
    builder b;
    builder_begin(&b, nodes, options);
    graph *g = generate(&b, options, err) ? graph_from_bits(b.joined, nodes, nodes, err) : NULL;
    builder_end(&b);
    return g;
}
