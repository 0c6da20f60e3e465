/* The generators of graphs, and the files that graphs are read from. */
#include "core/memory.h"
#include "graph/graph.h"
#include "graph/metrics.h"
#include "graphs.h"
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const graph_kind generators[] = {GRAPH_RANDOM, GRAPH_WATTS_STROGATZ, GRAPH_WATTS_STROGATZ_2D,
                                        GRAPH_BARABASI_ALBERT};
enum { GENERATORS = sizeof generators / sizeof generators[0] };

static void check_symmetric(const graph *g) {
    check_form(g);
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            assert_true(has_block(g, g->column[k], i));
        }
    }
}

#define BETWEEN_HASH 0xe55a80a03486a2ebull

static uint64_t hash_of(graph_options options, int nodes) {
    graph *g = make_graph(options, nodes);
    uint64_t hash = hash_graph(g);
    graph_free(g);
    return hash;
}

static void refused(graph_options options, int nodes, const char *message) {
    error err = {0};
    graph *g = graph_create(&options, nodes, &err);
    if (g) fail_msg("not refused: %s", message);
    assert_int_equal(err.status, STATUS_FAILED);
    assert_string_equal(err.text, message);
}

/* ---------------------------------------------------------------------------------- generators */

static void test_degree_is_met(void **state) {
    (void)state;
    static const int cases[][2] = {{3, 2}, {5, 4}, {6, 4}, {64, 8}, {65, 10}, {210, 20}, {31, 30}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int nodes = cases[c][0], degree = cases[c][1], half = degree / 2;
        for (int k = 0; k < GENERATORS; k++) {
            graph *g = graph_of_degree(generators[k], nodes, degree, 0.3);
            check_symmetric(g);
            int pairs = generators[k] == GRAPH_BARABASI_ALBERT
                            ? half * (half - 1) / 2 + (nodes - half) * half
                            : nodes * half;
            assert_int_equal(graph_blocks(g), nodes + 2 * pairs);
            graph_free(g);
        }
    }
}

/* Cells and hubs on one ring: each reads those nearest to it, which lie around it; rewiring moves
 * about as many as it says, and keeps their number. */
static void test_ring_between(void **state) {
    (void)state;
    static const int sizes[][2] = {{10, 40}, {40, 10}, {17, 29}};
    for (int i = 0; i < 3; i++) {
        const int nodes = sizes[i][0], inputs = sizes[i][1];
        graph_options o = {.kind = GRAPH_WATTS_STROGATZ, .density = 0.3, .seed = 3, .pattern = 1};
        error err;
        graph *g = graph_create_between(&o, nodes, inputs, &err), *again;
        if (!g) fail_msg("%s", err.text);
        assert_int_equal(graph_blocks(g), llround(0.3 * nodes * inputs));
        for (int n = 0; n < nodes; n++) {
            const double middle = (n + 0.5) * inputs / nodes;
            const int count = g->start[n + 1] - g->start[n];
            for (int k = g->start[n]; k < g->start[n + 1]; k++) {
                const double far = fabs(g->column[k] + 0.5 - middle);
                assert_true(fmin(far, inputs - far) <= 0.5 * count + 0.5);
                if (k > g->start[n]) assert_true(g->column[k - 1] < g->column[k]);
            }
        }
        o.rewire = 0.5;
        graph *moved = graph_create_between(&o, nodes, inputs, &err);
        again = graph_create_between(&o, nodes, inputs, &err);
        assert_true(hash_graph(moved) == hash_graph(again));
        assert_memory_equal(moved->start, g->start, ((size_t)nodes + 1) * sizeof *g->start);
        int kept = 0;
        for (int n = 0; n < nodes; n++) {
            for (int k = g->start[n]; k < g->start[n + 1]; k++) {
                for (int at = g->start[n]; at < g->start[n + 1]; at++) {
                    kept += moved->column[at] == g->column[k];
                }
                if (k > g->start[n]) assert_true(moved->column[k - 1] < moved->column[k]);
            }
        }
        assert_in_range(kept, graph_blocks(g) * 4 / 10, graph_blocks(g) * 7 / 10);
        graph_free(g);
        graph_free(moved);
        graph_free(again);
    }
}

/* Wherever nodes and rewiring lie, every input is read, by no node twice. */
static void test_ring_reads_all(void **state) {
    (void)state;
    static const int sizes[][2] = {{5, 3}, {3, 5}, {4, 9}, {30, 7}};
    for (int i = 0; i < 4 * 50; i++) {
        const int nodes = sizes[i % 4][0], inputs = sizes[i % 4][1];
        const graph_options o = {.kind = GRAPH_WATTS_STROGATZ,
                                 .density = 0.5,
                                 .rewire = i / 4 * 0.02,
                                 .seed = i,
                                 .pattern = 1};
        error err;
        graph *g = graph_create_between(&o, nodes, inputs, &err);
        if (!g) fail_msg("%s", err.text);
        int readers[16] = {0};
        for (int n = 0; n < nodes; n++) {
            for (int k = g->start[n]; k < g->start[n + 1]; k++) {
                readers[g->column[k]]++;
                if (k > g->start[n]) assert_true(g->column[k - 1] < g->column[k]);
            }
        }
        for (int j = 0; j < inputs; j++) assert_true(readers[j] > 0);
        graph_free(g);
    }
}

/* Rectangles: as many blocks as asked for, degrees that differ by one at most on both sides, and
 * the same graph from the same seed on every machine. */
static void test_between(void **state) {
    (void)state;
    static const int sizes[][2] = {{3, 40}, {40, 3}, {17, 29}};
    uint64_t hash = 0;
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            const int nodes = sizes[i][0], inputs = sizes[i][1];
            const graph_options o = {.kind = k == 2 ? GRAPH_DENSE : GRAPH_RANDOM,
                                     .density = k ? 0.71 : 0.4,
                                     .seed = 5,
                                     .pattern = 1};
            error err;
            graph *g = graph_create_between(&o, nodes, inputs, &err);
            if (!g) fail_msg("%s", err.text);
            assert_int_equal(g->nodes, nodes);
            assert_int_equal(g->inputs, inputs);
            const double share = k == 2 ? 1 : o.density;
            assert_int_equal(graph_blocks(g), llround(share * nodes * inputs));
            graph_metrics m;
            graph_measure(g, &m);
            assert_in_range(m.degree_max - m.degree_min, 0, 1);
            assert_in_range(m.out_degree_max - m.out_degree_min, 0, 1);
            for (int n = 0; n < nodes; n++) {
                for (int at = g->start[n] + 1; at < g->start[n + 1]; at++) {
                    assert_true(g->column[at - 1] < g->column[at]);
                }
            }
            hash = hash * 31 + hash_graph(g);
            graph_free(g);
        }
    }
    if (hash != BETWEEN_HASH) fail_msg("0x%016llxull", (unsigned long long)hash);
    graph_options grown = {.kind = GRAPH_BARABASI_ALBERT, .degree = 2};
    error err;
    assert_null(graph_create_between(&grown, 4, 8, &err));
    assert_contains(err.text, "model.graph: expected dense, random, watts_strogatz or file");
    graph_options thin = {.kind = GRAPH_RANDOM, .density = 0.01};
    assert_null(graph_create_between(&thin, 4, 8, &err));
    assert_contains(err.text, "expected at least a block for each of 8 and 4 nodes, got 0");

    /* Through hubs a cell reads all cells that its hubs read, and itself. */
    static const int32_t reads[][2] = {{0, 0}, {0, 1}, {1, 3}},
                         makes[][2] = {{0, 0}, {1, 1}, {2, 0}, {2, 1}, {3, 1}};
    graph *hubs = graph_from_pairs(2, 4, reads, 3, &err),
          *cells = graph_from_pairs(4, 2, makes, 5, &err);
    graph *through = graph_through(cells, hubs);
    static const int start[] = {0, 2, 4, 8, 9}, column[] = {0, 1, 1, 3, 0, 1, 2, 3, 3};
    assert_int_equal(through->nodes, 4);
    assert_int_equal(through->inputs, 4);
    assert_memory_equal(through->start, start, sizeof start);
    assert_memory_equal(through->column, column, sizeof column);
    graph_free(through);
    graph_free(cells);
    graph_free(hubs);

    /* As many hubs as cells, or hubs among themselves: nodes read themselves. */
    graph_options square = {.kind = GRAPH_RANDOM, .density = 0.4, .seed = 5};
    graph *between = graph_create_between(&square, 16, 16, &err);
    graph *usual = graph_create(&square, 16, &err);
    assert_non_null(between);
    assert_true(hash_graph(between) == hash_graph(usual));
    graph_free(between);
    graph_free(usual);
}

/* Every number of pairs that a small graph can have, from none to all. */
static void test_density_is_met(void **state) {
    (void)state;
    for (int k = 0; k < GENERATORS; k++) {
        for (int nodes = 1; nodes <= 12; nodes++) {
            for (int pairs = 0; pairs <= nodes * (nodes - 1) / 2; pairs++) {
                double density = (nodes + 2.0 * pairs) / (nodes * nodes);
                graph *g = make_graph((graph_options){.kind = generators[k],
                                                      .density = density,
                                                      .rewire = 0.4,
                                                      .seed = (uint64_t)pairs},
                                      nodes);
                check_symmetric(g);
                assert_int_equal(graph_blocks(g), nodes + 2 * pairs);
                graph_free(g);
            }
        }
    }
    for (int k = 0; k < GENERATORS; k++) {
        for (int percent = 2; percent <= 100; percent += 7) {
            graph *g = make_graph(
                (graph_options){.kind = generators[k], .density = percent / 100.0, .rewire = 0.1},
                100);
            assert_true(abs(graph_blocks(g) - percent * 100) <= 1);
            graph_free(g);
        }
    }
    /* 7 of 16 blocks are 4 of their own and 1.5 pairs, which become 2. */
    graph *half = make_graph((graph_options){.kind = GRAPH_RANDOM, .density = 7 / 16.0}, 4);
    assert_int_equal(graph_blocks(half), 8);
    graph_free(half);
}

static void test_random_is_balanced(void **state) {
    (void)state;
    for (int nodes = 2; nodes <= 80; nodes += 13) {
        int all = nodes * (nodes - 1) / 2;
        for (int pairs = 0; pairs <= all; pairs += 1 + all / 40) {
            double density = (nodes + 2.0 * pairs) / (nodes * nodes);
            graph *g = make_graph((graph_options){.kind = GRAPH_RANDOM, .density = density}, nodes);
            graph_metrics m = metrics_of(g);
            assert_true(m.degree_max - m.degree_min <= 2);
            graph_free(g);
        }
    }
}

static void test_ring(void **state) {
    (void)state;
    graph *g = graph_of_degree(GRAPH_WATTS_STROGATZ, 30, 6, 0);
    for (int i = 0; i < 30; i++) {
        for (int j = 0; j < 30; j++) {
            int distance = abs(i - j) < 15 ? abs(i - j) : 30 - abs(i - j);
            assert_int_equal(has_block(g, i, j), distance <= 3);
        }
    }
    graph_free(g);
}

/* The share of edges that leave the ring is about the probability of rewiring. */
static void test_rewiring(void **state) {
    (void)state;
    enum { NODES = 1000, DEGREE = 20 };
    graph *g = graph_of_degree(GRAPH_WATTS_STROGATZ, NODES, DEGREE, 0.3);
    int kept = 0;
    for (int i = 0; i < NODES; i++) {
        for (int d = 1; d <= DEGREE / 2; d++) kept += has_block(g, i, (i + d) % NODES);
    }
    assert_in_range(kept, 6850, 7200); /* of 10,000 edges; some are drawn onto the ring again */
    graph_metrics m = metrics_of(g);
    assert_int_equal(m.blocks, NODES * (DEGREE + 1));
    assert_true(m.degree_min >= DEGREE / 2);
    graph_free(g);
}

/* The neighbourhoods of all nodes are equal up to a shift. This includes degrees that take only
 * some of the nodes at one distance, and offsets of half a side. */
static void test_torus_is_regular(void **state) {
    (void)state;
    static const int sizes[][2] = {{2, 2}, {2, 3}, {2, 4}, {3, 3}, {4, 4}, {3, 5}, {1, 7}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        int rows = sizes[s][0], columns = sizes[s][1], nodes = rows * columns;
        for (int degree = 2; degree < nodes; degree += 2) {
            graph *g = graph_of_degree(GRAPH_WATTS_STROGATZ_2D, nodes, degree, 0);
            check_symmetric(g);
            for (int i = 0; i < nodes; i++) {
                assert_int_equal(g->start[i + 1] - g->start[i], degree + 1);
                for (int j = 0; j < nodes; j++) {
                    int row = (i / columns + j / columns) % rows;
                    int column = (i % columns + j % columns) % columns;
                    assert_int_equal(has_block(g, 0, j), has_block(g, i, row * columns + column));
                }
            }
            graph_free(g);
        }
    }
    graph *square = graph_of_degree(GRAPH_WATTS_STROGATZ_2D, 4, 2, 0);
    assert_false(has_block(square, 0, 3)); /* the node across the diagonal is the farthest */
    graph_free(square);
}

static void test_barabasi_albert(void **state) {
    (void)state;
    enum { NODES = 2000, CORE = 4 };
    graph *g = graph_of_degree(GRAPH_BARABASI_ALBERT, NODES, 2 * CORE, 0);
    for (int i = 0; i < NODES; i++) {
        int earlier = 0;
        for (int k = g->start[i]; g->column[k] < i; k++) earlier++;
        assert_int_equal(earlier, i < CORE ? i : CORE);
    }
    /* Hubs of order CORE sqrt(NODES) = 179; without preference CORE ln(NODES) = 30. */
    graph_metrics m = metrics_of(g);
    assert_true(m.degree_max > 90);
    assert_int_equal(m.degree_min, CORE);
    assert_int_equal(m.components, 1);
    graph_free(g);
}

/* The graphs that these options made when this test was written. Every machine must make
 * the same. */
static void test_graphs_are_pinned(void **state) {
    (void)state;
    static const struct {
        graph_options options;
        uint64_t hash;
    } pins[] = {
        {{.kind = GRAPH_DENSE}, 0xcc23d3b2251a8d2aull},
        {{.kind = GRAPH_RANDOM, .degree = 6}, 0xa4934e262a6d0e3full},
        {{.kind = GRAPH_WATTS_STROGATZ, .degree = 6, .rewire = 0.2}, 0x26d2bc30754d9f85ull},
        {{.kind = GRAPH_WATTS_STROGATZ_2D, .degree = 6, .rewire = 0.2}, 0xe53b84bfd47d2cdeull},
        {{.kind = GRAPH_BARABASI_ALBERT, .degree = 6}, 0x4a6757408c946116ull},
        {{.kind = GRAPH_RANDOM, .density = 0.6}, 0x9e4216085df7cf7eull},
        {{.kind = GRAPH_WATTS_STROGATZ, .density = 0.3, .rewire = 0.7}, 0x24b0a4bf0aeace17ull},
        {{.kind = GRAPH_WATTS_STROGATZ_2D, .density = 0.3, .rewire = 0.7}, 0x852ddad90c12310bull},
        {{.kind = GRAPH_BARABASI_ALBERT, .density = 0.3}, 0x9daddbf05e05b63dull},
        {{.kind = GRAPH_CORE_PERIPHERY,
          .density = 0.3,
          .core = 0.3,
          .core_reads = 0.1,
          .periphery_reads = 0.7,
          .periphery = GRAPH_RANDOM},
         0xc5398d18c95040bbull},
    };
    for (size_t p = 0; p < sizeof pins / sizeof pins[0]; p++) {
        graph_options options = pins[p].options;
        options.seed = 2017;
        options.pattern = 3;
        uint64_t hash = hash_of(options, 150);
        if (hash != pins[p].hash) {
            fail_msg("pin %zu: 0x%016llxull", p, (unsigned long long)hash);
        }
    }
}

static int count_blocks(const graph *g, int first_output, int end_output, int first_input,
                        int end_input) {
    int count = 0;
    for (int i = first_output; i < end_output; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            count += g->column[k] >= first_input && g->column[k] < end_input;
        }
    }
    return count;
}

/* The core is complete, the other blocks are divided as the options say, and no node reads or is
 * read much more often than others of its kind. */
static void test_core_and_periphery(void **state) {
    (void)state;
    graph_options options = {.kind = GRAPH_CORE_PERIPHERY,
                             .density = 0.3,
                             .core = 0.25,
                             .core_reads = 0.1,
                             .periphery_reads = 0.6,
                             .seed = 5};
    static const graph_kind peripheries[] = {GRAPH_RANDOM, GRAPH_WATTS_STROGATZ,
                                             GRAPH_WATTS_STROGATZ_2D, GRAPH_BARABASI_ALBERT};
    const int nodes = 80, core = 20, rest = 1920 - 400 - 60;
    for (size_t p = 0; p < sizeof peripheries / sizeof peripheries[0]; p++) {
        options.periphery = peripheries[p];
        graph *g = make_graph(options, nodes);
        check_form(g);
        assert_int_equal(graph_blocks(g), 1920);
        assert_int_equal(count_blocks(g, 0, core, 0, core), core * core);
        assert_int_equal(count_blocks(g, 0, core, core, nodes), rest / 10);
        assert_int_equal(count_blocks(g, core, nodes, 0, core), rest * 6 / 10);
        for (int i = 0; i < core; i++) {
            assert_in_range(count_blocks(g, i, i + 1, core, nodes), 7, 8);   /* 146 / 20 */
            assert_in_range(count_blocks(g, core, nodes, i, i + 1), 42, 46); /* 876 / 20 */
        }
        for (int i = core; i < nodes; i++) {
            assert_in_range(count_blocks(g, i, i + 1, 0, core), 14, 15); /* 876 / 60 */
            assert_in_range(count_blocks(g, 0, core, i, i + 1), 1, 4);   /* 146 / 60 */
        }
        graph_free(g);
    }
}

/* Every density from the smallest that the core allows to all blocks. Steps are of one block where
 * the last pair allows it. */
static void test_core_and_periphery_density(void **state) {
    (void)state;
    for (int blocks = 16 + 6; blocks <= 100; blocks++) {
        graph_options options = {.kind = GRAPH_CORE_PERIPHERY,
                                 .density = blocks / 100.0,
                                 .core = 0.4,
                                 .core_reads = 0.2,
                                 .periphery_reads = 0.5,
                                 .periphery = GRAPH_RANDOM,
                                 .seed = (uint64_t)blocks};
        graph *g = make_graph(options, 10);
        check_form(g);
        assert_in_range(graph_blocks(g), blocks - 1, blocks);
        assert_int_equal(metrics_of(g).core >= 4, 1);
        graph_free(g);
    }
    graph_options options = {.kind = GRAPH_CORE_PERIPHERY, .core = 0.5, .degree = 9};
    graph *g = make_graph(options, 20); /* a core of ten nodes, with default shares */
    assert_int_equal(graph_blocks(g), 200);
    graph_free(g);
    /* A core of no given size takes half of the blocks but the self-blocks. */
    static const struct {
        double density;
        int nodes, core;
    } fitted[] = {{0.5, 20, 10}, {0.25, 16, 5}, {1, 20, 14}, {0.05, 20, 1}, {0.1, 20, 4}};
    for (size_t i = 0; i < sizeof fitted / sizeof fitted[0]; i++) {
        const int nodes = fitted[i].nodes, core = fitted[i].core;
        options = (graph_options){
            .kind = GRAPH_CORE_PERIPHERY, .density = fitted[i].density, .periphery = GRAPH_RANDOM};
        g = make_graph(options, nodes);
        int joined = 0;
        for (int k = g->start[0]; k < g->start[1]; k++) joined += g->column[k] < core;
        assert_int_equal(joined, core);
        assert_true(graph_blocks(g) <= llround(fitted[i].density * nodes * nodes));
        graph_free(g);
    }
    refused((graph_options){.kind = GRAPH_CORE_PERIPHERY, .core = 0.5, .density = 0.2}, 20,
            "model.core: a core of 10 of 20 nodes and the self-blocks of the others are a density "
            "of 0.275, more than model.density allows (0.2)");
    refused((graph_options){.kind = GRAPH_CORE_PERIPHERY, .core = 1.5, .density = 0.2}, 20,
            "model.core: expected a share of nodes, from 0 to 1, got 1.5");
    refused((graph_options){.kind = GRAPH_CORE_PERIPHERY,
                            .core = 0.1,
                            .density = 0.2,
                            .core_reads = 0.6,
                            .periphery_reads = 0.5},
            20,
            "model.core_reads, model.periphery_reads: expected shares that sum to at most 1, got "
            "0.6 and 0.5");
}

static void test_seed_and_pattern_matter(void **state) {
    (void)state;
    for (int k = 0; k < GENERATORS; k++) {
        graph_options options = {.kind = generators[k], .degree = 8, .rewire = 0.5, .seed = 1};
        uint64_t first = hash_of(options, 60);
        assert_true(hash_of(options, 60) == first);
        options.seed = 2;
        assert_true(hash_of(options, 60) != first);
        options.seed = 1;
        options.pattern = 1;
        assert_true(hash_of(options, 60) != first);
    }
}

static void test_dense_and_tiny(void **state) {
    (void)state;
    for (int nodes = 1; nodes <= 3; nodes++) {
        graph *g = make_graph((graph_options){.kind = GRAPH_DENSE}, nodes);
        check_symmetric(g);
        assert_int_equal(graph_blocks(g), nodes * nodes);
        const graph_metrics m = metrics_of(g); /* of more nodes: tests/graph_networkx.py */
        assert_int_equal(m.components, 1);
        assert_true(m.path_mean == (nodes > 1) && m.unreachable == 0 && m.reach[0] == 1);
        graph_free(g);
    }
    graph *pair = graph_of_degree(GRAPH_RANDOM, 2, 1, 0);
    assert_int_equal(graph_blocks(pair), 4);
    graph_free(pair);
}

static void test_options_are_refused(void **state) {
    (void)state;
    graph_options ring = {.kind = GRAPH_WATTS_STROGATZ, .degree = 7};
    refused(ring, 16,
            "model.degree: expected an even number, since a node of watts_strogatz has "
            "as many neighbours on either side, got 7");
    refused((graph_options){.kind = GRAPH_BARABASI_ALBERT, .degree = 3}, 16,
            "model.degree: expected an even number, since barabasi_albert wires each node to "
            "model.degree / 2 earlier ones, got 3");
    for (int k = 0; k < GENERATORS; k++) {
        refused((graph_options){.kind = generators[k], .degree = 16}, 16,
                "model.degree: expected below 16, the number of nodes (model.hidden / "
                "model.block), got 16");
        refused((graph_options){.kind = generators[k]}, 16,
                "model.degree, model.density: expected one of them, got neither");
        refused((graph_options){.kind = generators[k], .degree = 2, .density = 0.5}, 16,
                "model.degree, model.density: expected one of them, got both");
        refused((graph_options){.kind = generators[k], .density = 0.05}, 16,
                "model.density: expected at least 0.0625, the share of the self-blocks of 16 nodes "
                "(model.hidden / model.block), got 0.05");
        refused((graph_options){.kind = generators[k], .density = 1.01}, 16,
                "model.density: expected at most 1, got 1.01");
    }
    refused((graph_options){.kind = GRAPH_RANDOM, .degree = -1}, 16,
            "model.degree: expected below 16, the number of nodes (model.hidden / model.block), "
            "got -1");
    refused((graph_options){.kind = GRAPH_WATTS_STROGATZ, .degree = 4, .rewire = (double)NAN}, 16,
            "model.rewire: expected a probability from 0 to 1, got nan");
    refused((graph_options){.kind = GRAPH_DENSE}, 0,
            "expected a graph of 1 to 32768 nodes (model.hidden / model.block), got 0");
    refused(
        (graph_options){.kind = GRAPH_DENSE}, GRAPH_MAX_NODES,
        "model.hidden: a graph of 1073741824 blocks of weights; at most 67108864 are supported");
    refused(
        (graph_options){.kind = GRAPH_WATTS_STROGATZ, .degree = 32000}, GRAPH_MAX_NODES,
        "model.degree: a graph of 1048608768 blocks of weights; at most 67108864 are supported");
    refused((graph_options){.kind = GRAPH_FILE}, 4,
            "model.graph_file: expected a file, since model.graph is file");
}

/* A density is accepted if it is given with the six digits that the refusal prints. */
static void test_self_blocks_alone(void **state) {
    (void)state;
    graph *g = make_graph((graph_options){.kind = GRAPH_RANDOM, .density = 0.333333}, 3);
    assert_int_equal(graph_blocks(g), 3);
    graph_free(g);
}

/* --------------------------------------------------------------------------------------- files */

/* Asserts that the file is refused, with `message` after its path. */
static void file_refused(const char *path, int nodes, const char *message) {
    char *expected = mem_format("%s%s", path, message);
    refused((graph_options){.kind = GRAPH_FILE, .file = path}, nodes, expected);
    free(expected);
}

static void test_edge_list(void **state) {
    (void)state;
    graph *g = graph_from_text("# a triangle that signals cross one way\n"
                               "1 0\n\n  2\t1 # tabs and comments\n0 2\r\n0 0\n1 0",
                               4);
    assert_int_equal(graph_blocks(g), 4 + 3);
    assert_true(has_block(g, 1, 0));
    assert_true(has_block(g, 2, 1));
    assert_true(has_block(g, 0, 2));
    graph_free(g);
    graph *alone = graph_from_text("0 0\n", 1);
    assert_int_equal(graph_blocks(alone), 1);
    graph_free(alone);
}

static void test_bad_edge_lists(void **state) {
    (void)state;
    static const char *const third_lines[] = {"4 0",  "-1 0",  "2 ",   "1 2 3",       "1,2",
                                              "1 2x", "0x1 2", "1 +2", "1 4294967297"};
    for (size_t i = 0; i < sizeof third_lines / sizeof third_lines[0]; i++) {
        char text[64];
        snprintf(text, sizeof text, "0 1\n# comment\n%s\n1 0\n", third_lines[i]);
        file_refused(write_edges(text), 4,
                     ":3: expected an edge, \"OUTPUT INPUT\", of nodes from 0 to 3");
    }
    file_refused(write_edges(""), 4, ": expected lines \"OUTPUT INPUT\", found no edge");
    file_refused(write_edges("# nothing\n\n"), 4,
                 ": expected lines \"OUTPUT INPUT\", found no edge");

    char *missing = mem_format("cannot open %s: No such file or directory", path_of("missing"));
    refused((graph_options){.kind = GRAPH_FILE, .file = path_of("missing")}, 4, missing);
    free(missing);
    char *a_folder = mem_format("cannot read %s: not a regular file", temporary_folder());
    refused((graph_options){.kind = GRAPH_FILE, .file = temporary_folder()}, 4, a_folder);
    free(a_folder);
}

static void check_mask(const char *path) {
    graph *g = make_graph((graph_options){.kind = GRAPH_FILE, .file = path}, 3);
    check_form(g);
    assert_int_equal(graph_blocks(g), 3 + 2);
    assert_true(has_block(g, 0, 1));
    assert_true(has_block(g, 2, 0));
    graph_free(g);
}

static void test_masks(void **state) {
    (void)state;
    static const uint8_t bytes[9] = {0, 1, 0, 0, 1, 0, 1, 0, 0};
    static const int64_t longs[9] = {0, 256, 0, 0, 0, 0, -1, 0, 0};
    static const uint16_t shorts[9] = {0, 1, 0, 0, 0, 0, 0x8000, 0, 0};
    check_mask(write_mask("|b1", 3, 3, bytes, sizeof bytes));
    check_mask(write_mask("|u1", 3, 3, bytes, sizeof bytes));
    check_mask(write_mask("<i8", 3, 3, longs, sizeof longs));
    check_mask(write_mask("<u2", 3, 3, shorts, sizeof shorts));
    check_mask(write_mask(">u2", 3, 3, shorts, sizeof shorts));
}

static void test_bad_masks(void **state) {
    (void)state;
    static const uint8_t bytes[64] = {0, 1};
    file_refused(write_mask("|b1", 3, 4, bytes, 12), 3,
                 ": expected a mask of 3 x 3 nodes (model.hidden / model.block), got 3 x 4");
    file_refused(write_mask("|b1", 4, 4, bytes, 16), 3,
                 ": expected a mask of 3 x 3 nodes (model.hidden / model.block), got 4 x 4");
    file_refused(write_mask("|b1", 9, 0, bytes, 9), 3,
                 ": expected a mask of 3 x 3 nodes (model.hidden / model.block), got 9 x 0");
    file_refused(write_mask("<f4", 3, 3, bytes, 36), 3, ": expected integers or booleans, got <f4");
    file_refused(write_mask("|b1", 3, 3, bytes + 2, 9), 3,
                 ": expected a mask with edges, all of it is 0");
    file_refused(write_mask("<i8", 3, 3, bytes, 60), 3,
                 ": not a whole .npy file of one or two dimensions in C order");
    write_text(path_of("mask.npy"), "0 1\n");
    file_refused(path_of("mask.npy"), 3,
                 ": not a whole .npy file of one or two dimensions in C order");
}

/* A file between cells and hubs, read as it stands and with its rows as inputs. */
static void test_file_between(void **state) {
    (void)state;
    static const int start[] = {0, 1, 3, 4}, column[] = {1, 0, 1, 0}, turned_start[] = {0, 2, 4},
                     turned_column[] = {1, 2, 0, 1};
    error err;
    graph_options o = {.kind = GRAPH_FILE, .file = write_edges("0 1\n1 0\n1 1\n2 0\n")};
    graph *g = graph_create_between(&o, 3, 2, &err);
    if (!g) fail_msg("%s", err.text);
    assert_memory_equal(g->start, start, sizeof start);
    assert_memory_equal(g->column, column, sizeof column);
    graph_free(g);
    o.transposed = true;
    g = graph_create_between(&o, 2, 3, &err);
    if (!g) fail_msg("%s", err.text);
    assert_memory_equal(g->start, turned_start, sizeof turned_start);
    assert_memory_equal(g->column, turned_column, sizeof turned_column);
    graph_free(g);
    o.file = write_edges("0 1\n1 2\n");
    assert_null(graph_create_between(&o, 2, 3, &err));
    assert_contains(err.text, ":2: expected an edge, \"OUTPUT INPUT\", of outputs from 0 to 2 and "
                              "inputs from 0 to 1");
    o.file = write_edges("0 1\n1 0\n");
    assert_null(graph_create_between(&o, 2, 3, &err));
    assert_contains(err.text, ": expected an edge for every node, output 2 has none");
    o.file = write_edges("0 1\n1 1\n2 1\n");
    assert_null(graph_create_between(&o, 2, 3, &err));
    assert_contains(err.text, ": expected an edge for every node, input 0 has none");
    static const uint8_t mask[] = {0, 1, 1, 1, 1, 0};
    o.file = write_mask("|b1", 3, 2, mask, 6);
    g = graph_create_between(&o, 2, 3, &err);
    if (!g) fail_msg("%s", err.text);
    assert_memory_equal(g->column, turned_column, sizeof turned_column);
    graph_free(g);
    o.file = write_mask("|b1", 2, 3, mask, 6);
    assert_null(graph_create_between(&o, 2, 3, &err));
    assert_contains(err.text, ": expected a mask of 3 x 2 nodes (model.hidden / model.block x "
                              "model.hubs / model.block), got 2 x 3");
}

static void blocks_refused(int nodes, const int32_t (*blocks)[2], int count, const char *message) {
    error err = {0};
    assert_null(graph_from_blocks(nodes, blocks, count, &err));
    assert_string_equal(err.text, message);
}

static void test_bad_blocks(void **state) {
    (void)state;
    static const int32_t good[][2] = {{0, 0}, {0, 1}, {1, 1}};
    static const int32_t repeated[][2] = {{0, 0}, {0, 0}, {1, 1}};
    static const int32_t swapped[][2] = {{0, 1}, {0, 0}, {1, 1}};
    static const int32_t falling[][2] = {{1, 1}, {0, 0}};
    static const int32_t outside[][2] = {{0, 0}, {0, 2}, {1, 1}};
    static const int32_t negative[][2] = {{-1, 0}, {0, 0}, {1, 1}};
    error err;
    graph *g = graph_from_blocks(2, good, 3, &err);
    assert_non_null(g);
    graph_free(g);
    blocks_refused(2, repeated, 3,
                   "block 1 (0, 0) follows (0, 0): expected ascending blocks without repeats");
    blocks_refused(2, swapped, 3,
                   "block 1 (0, 0) follows (0, 1): expected ascending blocks without repeats");
    blocks_refused(2, falling, 2,
                   "block 1 (0, 0) follows (1, 1): expected ascending blocks without repeats");
    blocks_refused(2, outside, 3, "block 1 joins nodes 0 and 2: expected 0 to 1");
    blocks_refused(2, negative, 3, "block 0 joins nodes -1 and 0: expected 0 to 1");
    blocks_refused(2, good, 2, "1 self-blocks: expected one for each of 2 nodes");
    blocks_refused(3, good, 3, "2 self-blocks: expected one for each of 3 nodes");
    blocks_refused(2, good, 0, "0 self-blocks: expected one for each of 2 nodes");
    blocks_refused(0, good, 0,
                   "expected a graph of 1 to 32768 nodes (model.hidden / model.block), got 0");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_degree_is_met),
        cmocka_unit_test(test_between),
        cmocka_unit_test(test_ring_between),
        cmocka_unit_test(test_ring_reads_all),
        cmocka_unit_test(test_density_is_met),
        cmocka_unit_test(test_random_is_balanced),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_rewiring),
        cmocka_unit_test(test_torus_is_regular),
        cmocka_unit_test(test_barabasi_albert),
        cmocka_unit_test(test_graphs_are_pinned),
        cmocka_unit_test(test_core_and_periphery),
        cmocka_unit_test(test_core_and_periphery_density),
        cmocka_unit_test(test_seed_and_pattern_matter),
        cmocka_unit_test(test_dense_and_tiny),
        cmocka_unit_test(test_options_are_refused),
        cmocka_unit_test(test_self_blocks_alone),
        cmocka_unit_test(test_edge_list),
        cmocka_unit_test(test_bad_edge_lists),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_bad_masks),
        cmocka_unit_test(test_file_between),
        cmocka_unit_test(test_bad_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
