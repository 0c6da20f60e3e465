#include "graph/core_periphery.h"

#include "core/integer.h"
#include "core/memory.h"
#include "core/philox.h"
#include "graph/bits.h"
#include "graph/symmetric.h"

#include <math.h>
#include <stdlib.h>

/* The number of blocks between core and periphery, without self-blocks. */
typedef struct budget {
    int core, periphery;     /* nodes */
    int64_t core_reads;      /* blocks through which core nodes read the periphery */
    int64_t periphery_reads; /* blocks through which periphery nodes read the core */
    int64_t pairs;           /* pairs of periphery nodes that read each other */
} budget;

static bool check_shares(const graph_options *o, error *err) {
    if (!(o->core >= 0 && o->core <= 1)) {
        return error_key(err, "model.core", "expected a share of nodes, from 0 to 1, got %.10g",
                         o->core);
    }
    if (!(o->core_reads >= 0 && o->periphery_reads >= 0 &&
          o->core_reads + o->periphery_reads <= 1)) {
        return error_set(err,
                         "model.core_reads, model.periphery_reads: expected shares that sum to at "
                         "most 1, got %.10g and %.10g",
                         o->core_reads, o->periphery_reads);
    }
    return true;
}

/* The nodes of a core that takes half of the blocks that are not self-blocks: c^2 - c of them. */
static int fitting_core(int nodes, int64_t blocks) {
    const double others = fmax(0, (double)(blocks - nodes));
    return (int)integer_min(nodes, llround((1 + sqrt(1 + 2 * others)) / 2));
}

/* Divides the blocks outside the core by the given shares. Blocks that do not fit into one part go
 * to the next: first the periphery itself, then the periphery's reads of the core, then the core's
 * reads. */
static bool make_budget(const graph_options *o, int nodes, budget *b, error *err) {
    if (!check_shares(o, err)) return false;
    const int64_t all = (int64_t)nodes * nodes;
    const int64_t blocks =
        o->degree ? (int64_t)nodes * (o->degree + 1) : llround(o->density * (double)all);
    b->core = o->core > 0 ? (int)integer_min(nodes, llround(fmax(1, o->core * nodes)))
                          : fitting_core(nodes, blocks);
    b->periphery = nodes - b->core;
    const int64_t core = b->core, periphery = b->periphery;
    int64_t fixed = core * core + periphery, rest = integer_min(blocks, all) - fixed;
    if (rest < 0) {
        return error_key(err, "model.core",
                         "a core of %d of %d nodes and the self-blocks of the others are "
                         "a density of %.4g, more than model.%s allows (%.4g)",
                         b->core, nodes, (double)fixed / (double)all,
                         o->degree ? "degree" : "density", (double)blocks / (double)all);
    }
    int64_t across = core * periphery; /* the most blocks by which either side can read the other */
    b->core_reads = integer_min(llround(o->core_reads * (double)rest), across);
    b->periphery_reads = integer_min(llround(o->periphery_reads * (double)rest), across);
    b->pairs = integer_min((rest - b->core_reads - b->periphery_reads) / 2,
                           periphery * (periphery - 1) / 2);
    int64_t left = rest - b->core_reads - b->periphery_reads - 2 * b->pairs;
    int64_t more = integer_min(left, across - b->periphery_reads);
    b->periphery_reads += more;
    b->core_reads += integer_min(left - more, across - b->core_reads);
    return true;
}

/* ----------------------------------------------------------------------------------- blocks */

typedef struct block_mask {
    int nodes;
    uint64_t *there; /* bits [output][input] */
} block_mask;

static bool has_block(const block_mask *m, int output, int input) {
    return bits_get(m->there, bits_words(m->nodes), output, input);
}

static void add_block(block_mask *m, int output, int input) {
    bits_set(m->there, bits_words(m->nodes), output, input);
}

static void shuffle(int *deck, int count, philox_stream *random) {
    for (int i = count - 1; i > 0; i--) {
        int other = (int)philox_below(random, (uint64_t)i + 1), kept = deck[i];
        deck[i] = deck[other];
        deck[other] = kept;
    }
}

/* Adds `count` blocks from `inputs` nodes to `outputs` nodes. The outputs' numbers of reads differ
 * by at most one. Inputs are dealt from shuffled decks, so that all are read about equally often.
 */
static void deal_blocks(block_mask *m, int first_output, int outputs, int first_input, int inputs,
                        int64_t count, philox_stream *random) {
    if (count == 0) return;
    int *deck = mem_alloc((size_t)inputs, sizeof *deck), next = inputs;
    for (int i = 0; i < inputs; i++) deck[i] = first_input + i;
    for (int o = 0; o < outputs; o++) {
        int output = first_output + o;
        int64_t reads = count / outputs + (o < count % outputs);
        for (int64_t k = 0; k < reads; k++) {
            if (next == inputs) {
                shuffle(deck, inputs, random);
                next = 0;
            }
            /* Takes the next card that this output has not read; there is one. */
            int card = next;
            while (card < inputs && has_block(m, output, deck[card])) card++;
            if (card == inputs) {
                do card = (int)philox_below(random, (uint64_t)inputs);
                while (has_block(m, output, deck[card]));
                add_block(m, output, deck[card]);
                continue;
            }
            int dealt = deck[card];
            deck[card] = deck[next];
            deck[next++] = dealt;
            add_block(m, output, dealt);
        }
    }
    free(deck);
}

/* Adds the blocks among periphery nodes, by another generator. */
static bool add_periphery(block_mask *m, const graph_options *o, const budget *b, error *err) {
    if (b->periphery == 0) return true;
    const double all = (double)b->periphery * b->periphery;
    graph_options inner = *o;
    inner.kind = o->periphery;
    inner.degree = 0;
    inner.density = ((double)b->periphery + 2.0 * (double)b->pairs) / all;
    graph *g = graph_symmetric(&inner, b->periphery, err);
    if (!g) return false;
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            add_block(m, b->core + i, b->core + g->column[k]);
        }
    }
    graph_free(g);
    return true;
}

graph *core_periphery_create(const graph_options *options, int nodes, error *err) {
    budget b = {0};
    if (!graph_check_size(options, nodes, err)) return NULL;
    if (!make_budget(options, nodes, &b, err)) return NULL;
    block_mask m = {nodes, mem_alloc((size_t)nodes * bits_words(nodes), sizeof *m.there)};
    philox_stream random = philox_start(options->seed, PHILOX_GRAPH, (uint32_t)options->pattern, 1);
    for (int i = 0; i < b.core; i++) {
        for (int j = 0; j < b.core; j++) add_block(&m, i, j);
    }
    deal_blocks(&m, 0, b.core, b.core, b.periphery, b.core_reads, &random);
    deal_blocks(&m, b.core, b.periphery, 0, b.core, b.periphery_reads, &random);
    graph *g =
        add_periphery(&m, options, &b, err) ? graph_from_bits(m.there, nodes, nodes, err) : NULL;
    free(m.there);
    return g;
}
