/* Graphs, their block layouts, their metrics and their pictures. */
#include "core/memory.h"
#include "core/npy.h"
#include "graph/graph.h"
#include "graph/layout.h"
#include "graph/metrics.h"
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static const graph_kind generators[] = {GRAPH_RANDOM, GRAPH_WATTS_STROGATZ, GRAPH_WATTS_STROGATZ_2D,
                                        GRAPH_BARABASI_ALBERT};
enum { GENERATORS = sizeof generators / sizeof generators[0] };

static graph *create(graph_options options, int nodes) {
    error err;
    graph *g = graph_create(&options, nodes, &err);
    if (!g) {
        fail_msg("%d nodes: %s", nodes, err.text);
        abort(); /* not reached; cmocka does not tell the compiler */
    }
    return g;
}

static graph *by_degree(graph_kind kind, int nodes, int degree, double rewire) {
    return create((graph_options){.kind = kind, .degree = degree, .rewire = rewire, .seed = 7},
                  nodes);
}

static bool has_block(const graph *g, int output, int input) {
    for (int k = g->start[output]; k < g->start[output + 1]; k++) {
        if (g->column[k] == input) return true;
    }
    return false;
}

/* Well-formed: ascending columns in range, every self-block. */
static void check_form(const graph *g) {
    assert_int_equal(g->start[0], 0);
    for (int i = 0; i < g->nodes; i++) {
        assert_true(g->start[i] < g->start[i + 1]);
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            assert_in_range(g->column[k], 0, g->nodes - 1);
            if (k > g->start[i]) assert_true(g->column[k - 1] < g->column[k]);
        }
        assert_true(has_block(g, i, i));
    }
}

static void check_symmetric(const graph *g) {
    check_form(g);
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            assert_true(has_block(g, g->column[k], i));
        }
    }
}

static graph_metrics measure(const graph *g) {
    graph_metrics m;
    memset(&m, 0x7F, sizeof m);
    graph_measure(g, &m);
    return m;
}

/* FNV-1a over the numbers of a graph, in an order of bytes of its own. */
static uint64_t hash_graph(const graph *g) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (int i = 0; i <= g->nodes + graph_blocks(g); i++) {
        int number = i <= g->nodes ? g->start[i] : g->column[i - g->nodes - 1];
        for (int shift = 0; shift < 32; shift += 8) {
            hash = (hash ^ ((unsigned)number >> shift & 255)) * 0x100000001b3ull;
        }
    }
    return hash;
}

static uint64_t hash_of(graph_options options, int nodes) {
    graph *g = create(options, nodes);
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
            graph *g = by_degree(generators[k], nodes, degree, 0.3);
            check_symmetric(g);
            int pairs = generators[k] == GRAPH_BARABASI_ALBERT
                            ? half * (half - 1) / 2 + (nodes - half) * half
                            : nodes * half;
            assert_int_equal(graph_blocks(g), nodes + 2 * pairs);
            graph_free(g);
        }
    }
}

static void test_odd_degrees_of_random(void **state) {
    (void)state;
    graph *even = by_degree(GRAPH_RANDOM, 10, 3, 0), *odd = by_degree(GRAPH_RANDOM, 11, 3, 0);
    assert_int_equal(graph_blocks(even), 10 + 30);
    assert_int_equal(graph_blocks(odd), 11 + 32); /* 16 of 16.5 pairs */
    graph_free(even);
    graph_free(odd);
}

/* Every number of pairs that small graphs can have, down to none and up to all. */
static void test_density_is_met(void **state) {
    (void)state;
    for (int k = 0; k < GENERATORS; k++) {
        for (int nodes = 1; nodes <= 12; nodes++) {
            for (int pairs = 0; pairs <= nodes * (nodes - 1) / 2; pairs++) {
                double density = (nodes + 2.0 * pairs) / (nodes * nodes);
                graph *g = create((graph_options){.kind = generators[k],
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
            graph *g = create(
                (graph_options){.kind = generators[k], .density = percent / 100.0, .rewire = 0.1},
                100);
            assert_true(abs(graph_blocks(g) - percent * 100) <= 1);
            graph_free(g);
        }
    }
}

static void test_random_is_balanced(void **state) {
    (void)state;
    for (int nodes = 2; nodes <= 80; nodes += 13) {
        int all = nodes * (nodes - 1) / 2;
        for (int pairs = 0; pairs <= all; pairs += 1 + all / 40) {
            double density = (nodes + 2.0 * pairs) / (nodes * nodes);
            graph *g = create((graph_options){.kind = GRAPH_RANDOM, .density = density}, nodes);
            graph_metrics m = measure(g);
            assert_true(m.degree_max - m.degree_min <= 2);
            graph_free(g);
        }
    }
}

/* Completion lifts the nodes of lowest degree: a ring without rewiring stays within one of even. */
static void test_completion_is_balanced(void **state) {
    (void)state;
    graph_options options = {.kind = GRAPH_WATTS_STROGATZ, .density = (100 + 2.0 * 430) / 10000};
    graph *g = create(options, 100); /* 400 pairs in the ring of degree 8, 30 added */
    graph_metrics m = measure(g);
    assert_int_equal(m.blocks, 960);
    assert_int_equal(m.degree_min, 8);
    assert_int_equal(m.degree_max, 9);
    for (int i = 0; i < 100; i++) {
        for (int d = 1; d <= 4; d++) assert_true(has_block(g, i, (i + d) % 100));
    }
    graph_free(g);
}

static void test_ring(void **state) {
    (void)state;
    graph *g = by_degree(GRAPH_WATTS_STROGATZ, 30, 6, 0);
    for (int i = 0; i < 30; i++) {
        for (int j = 0; j < 30; j++) {
            int distance = abs(i - j) < 15 ? abs(i - j) : 30 - abs(i - j);
            assert_int_equal(has_block(g, i, j), distance <= 3);
        }
    }
    graph_free(g);
}

/* The share of edges that leave the ring is the probability, give or take. */
static void test_rewiring(void **state) {
    (void)state;
    enum { NODES = 1000, DEGREE = 20 };
    graph *g = by_degree(GRAPH_WATTS_STROGATZ, NODES, DEGREE, 0.3);
    int kept = 0;
    for (int i = 0; i < NODES; i++) {
        for (int d = 1; d <= DEGREE / 2; d++) kept += has_block(g, i, (i + d) % NODES);
    }
    assert_in_range(kept, 6850, 7200); /* of 10,000; some drawn edges fall back onto the ring */
    graph_metrics m = measure(g);
    assert_int_equal(m.blocks, NODES * (DEGREE + 1));
    assert_true(m.degree_min >= DEGREE / 2);
    graph_free(g);
}

static void test_torus(void **state) {
    (void)state;
    enum { ROWS = 6, COLUMNS = 8, NODES = ROWS * COLUMNS };
    static const struct {
        int degree, distance; /* the farthest neighbour's, squared */
    } rings[] = {{4, 1}, {8, 2}, {12, 4}, {20, 5}};
    for (size_t r = 0; r < sizeof rings / sizeof rings[0]; r++) {
        graph *g = by_degree(GRAPH_WATTS_STROGATZ_2D, NODES, rings[r].degree, 0);
        for (int i = 0; i < NODES; i++) {
            for (int j = 0; j < NODES; j++) {
                int y = abs(i / COLUMNS - j / COLUMNS), x = abs(i % COLUMNS - j % COLUMNS);
                if (y > ROWS / 2) y = ROWS - y;
                if (x > COLUMNS / 2) x = COLUMNS - x;
                assert_int_equal(has_block(g, i, j), y * y + x * x <= rings[r].distance);
            }
        }
        graph_free(g);
    }
}

/* Where degrees cut through equal distances, and where halfway offsets count: each node's
 * neighbourhood must still be every other's, moved. */
static void test_torus_is_regular(void **state) {
    (void)state;
    static const int sizes[][2] = {{2, 2}, {2, 3}, {2, 4}, {3, 3}, {4, 4}, {3, 5}, {1, 7}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        int rows = sizes[s][0], columns = sizes[s][1], nodes = rows * columns;
        for (int degree = 2; degree < nodes; degree += 2) {
            graph *g = by_degree(GRAPH_WATTS_STROGATZ_2D, nodes, degree, 0);
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
    graph *square = by_degree(GRAPH_WATTS_STROGATZ_2D, 4, 2, 0);
    assert_false(has_block(square, 0, 3)); /* the diagonal is the farthest */
    graph_free(square);
}

static void test_torus_of_a_prime_is_a_ring(void **state) {
    (void)state;
    graph_options options = {.kind = GRAPH_WATTS_STROGATZ, .degree = 10, .rewire = 0.2};
    uint64_t ring = hash_of(options, 101);
    options.kind = GRAPH_WATTS_STROGATZ_2D;
    assert_true(hash_of(options, 101) == ring);
}

static void test_barabasi_albert(void **state) {
    (void)state;
    enum { NODES = 2000, CORE = 4 };
    graph *g = by_degree(GRAPH_BARABASI_ALBERT, NODES, 2 * CORE, 0);
    for (int i = 0; i < NODES; i++) {
        int earlier = 0;
        for (int k = g->start[i]; g->column[k] < i; k++) earlier++;
        assert_int_equal(earlier, i < CORE ? i : CORE);
    }
    /* Hubs of order CORE sqrt(NODES) = 179; without preference CORE ln(NODES) = 30. */
    graph_metrics m = measure(g);
    assert_true(m.degree_max > 90);
    assert_int_equal(m.degree_min, CORE);
    assert_int_equal(m.components, 1);
    graph_free(g);
}

/* What these options made when they were first written: another machine must make the same. */
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
        graph *g = create((graph_options){.kind = GRAPH_DENSE}, nodes);
        check_symmetric(g);
        assert_int_equal(graph_blocks(g), nodes * nodes);
        graph_free(g);
    }
    graph *pair = by_degree(GRAPH_RANDOM, 2, 1, 0);
    assert_int_equal(graph_blocks(pair), 4);
    graph_free(pair);
}

static void test_options_are_refused(void **state) {
    (void)state;
    graph_options ring = {.kind = GRAPH_WATTS_STROGATZ, .degree = 7};
    refused(ring, 16,
            "model.degree: expected an even number, since a node of watts_strogatz has "
            "as many neighbours on either side, got 7");
    ring.kind = GRAPH_WATTS_STROGATZ_2D;
    ring.degree = 5;
    refused(ring, 16,
            "model.degree: expected an even number, since a node of watts_strogatz has "
            "as many neighbours on either side, got 5");
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
        refused((graph_options){.kind = generators[k], .density = -1}, 16,
                "model.density: expected at least 0.0625, the share of the self-blocks of 16 nodes "
                "(model.hidden / model.block), got -1");
        refused((graph_options){.kind = generators[k], .density = 1.01}, 16,
                "model.density: expected at most 1, got 1.01");
    }
    refused((graph_options){.kind = GRAPH_RANDOM, .degree = -1}, 16,
            "model.degree: expected below 16, the number of nodes (model.hidden / model.block), "
            "got -1");
    refused((graph_options){.kind = GRAPH_WATTS_STROGATZ, .degree = 4, .rewire = 1.5}, 16,
            "model.rewire: expected a probability from 0 to 1, got 1.5");
    refused((graph_options){.kind = GRAPH_WATTS_STROGATZ, .degree = 4, .rewire = (double)NAN}, 16,
            "model.rewire: expected a probability from 0 to 1, got nan");
    refused((graph_options){.kind = GRAPH_DENSE}, 0,
            "expected a graph of 1 to 32768 nodes (model.hidden / model.block), got 0");
    refused((graph_options){.kind = GRAPH_DENSE}, GRAPH_MAX_NODES + 1,
            "expected a graph of 1 to 32768 nodes (model.hidden / model.block), got 32769");
    refused((graph_options){.kind = GRAPH_FILE}, 4,
            "model.graph_file: expected a file, since model.graph is file");
}

/* A density printed with six digits, as the refusal prints it, is accepted. */
static void test_self_blocks_alone(void **state) {
    (void)state;
    graph *g = create((graph_options){.kind = GRAPH_RANDOM, .density = 0.333333}, 3);
    assert_int_equal(graph_blocks(g), 3);
    graph_free(g);
}

/* --------------------------------------------------------------------------------------- files */

/* The path of a temporary file; lives until the next call. */
static const char *path_of(const char *name) {
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", temporary_folder(), name);
    return path;
}

static const char *write_edges(const char *text) {
    const char *path = path_of("edges");
    write_text(path, text);
    return path;
}

/* The graph of a text file. */
static graph *from_text(const char *text, int nodes) {
    const char *path = write_edges(text);
    graph *g = create((graph_options){.kind = GRAPH_FILE, .file = path}, nodes);
    check_form(g);
    return g;
}

/* Refused with `message` after the file's path. */
static void file_refused(const char *path, int nodes, const char *message) {
    char *expected = mem_format("%s%s", path, message);
    refused((graph_options){.kind = GRAPH_FILE, .file = path}, nodes, expected);
    free(expected);
}

static const char *write_mask(const char *type, int rows, int columns, const void *values,
                              size_t bytes) {
    const char *path = path_of("mask.npy");
    file_writer writer;
    int64_t start;
    error err;
    assert_true(npy_begin(&writer, path, type, rows, columns, &start, &err));
    assert_true(file_write(&writer, values, bytes, &err));
    assert_true(file_commit(&writer, &err));
    return path;
}

static void test_edge_list(void **state) {
    (void)state;
    graph *g = from_text("# a triangle that signals cross one way\n"
                         "1 0\n\n  2\t1 # tabs and comments\n0 2\r\n0 0\n1 0",
                         4);
    assert_int_equal(graph_blocks(g), 4 + 3);
    assert_true(has_block(g, 1, 0));
    assert_true(has_block(g, 2, 1));
    assert_true(has_block(g, 0, 2));
    graph_free(g);
    graph *alone = from_text("0 0\n", 1);
    assert_int_equal(graph_blocks(alone), 1);
    graph_free(alone);
}

static void test_bad_edge_lists(void **state) {
    (void)state;
    static const char *const third_lines[] = {"4 0",
                                              "0 4",
                                              "-1 0",
                                              "2",
                                              "2 ",
                                              "1 2 3",
                                              "1,2",
                                              "1 2x",
                                              "x 2",
                                              "0x1 2",
                                              "1.0 2",
                                              "1 +2",
                                              "99999999999999999999 1",
                                              "1 4294967297",
                                              "1 \x01"};
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
    graph *g = create((graph_options){.kind = GRAPH_FILE, .file = path}, 3);
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

/* -------------------------------------------------------------------------------------- layouts */

static void check_layout(const layout *l, const graph *g) {
    assert_int_equal(l->blocks, graph_blocks(g));
    assert_memory_equal(l->row_start, g->start, ((size_t)g->nodes + 1) * sizeof(int));
    assert_memory_equal(l->row_column, g->column, (size_t)l->blocks * sizeof(int));
    assert_int_equal(l->column_start[0], 0);
    assert_int_equal(l->column_start[l->in_nodes], l->blocks);
    for (int j = 0; j < l->in_nodes; j++) {
        for (int p = l->column_start[j]; p < l->column_start[j + 1]; p++) {
            int row = l->column_row[p], k = l->column_block[p];
            if (p > l->column_start[j]) assert_true(l->column_row[p - 1] < row);
            assert_in_range(k, l->row_start[row], l->row_start[row + 1] - 1);
            assert_int_equal(l->row_column[k], j);
        }
    }
}

static void test_layout_of_a_graph(void **state) {
    (void)state;
    graph *graphs[] = {by_degree(GRAPH_BARABASI_ALBERT, 40, 6, 0), from_text("0 3\n3 1\n1 0\n", 4)};
    for (int i = 0; i < 2; i++) {
        graph *g = graphs[i];
        layout *l = layout_from_graph(g, 32, 4);
        check_layout(l, g);
        assert_int_equal(l->out_nodes, g->nodes);
        assert_int_equal(l->in_nodes, g->nodes);
        assert_int_equal(l->out_block, 32);
        assert_int_equal(l->in_block, 32);
        assert_int_equal(l->in_stride, 1);
        assert_false(layout_is_dense(l));
        assert_true(layout_is_symmetric(l) == (i == 0));
        assert_int_equal(layout_rows(l), (size_t)g->nodes * 4 * 32);
        assert_int_equal(layout_inputs(l), (size_t)g->nodes * 32);
        assert_int_equal(layout_weights(l), (size_t)graph_blocks(g) * 4 * 32 * 32);
        layout_free(l);
        graph_free(g);
    }
}

static void check_dense(layout *l, int rows, int columns, int gates, int stride) {
    assert_true(layout_is_dense(l));
    assert_int_equal(l->blocks, 1);
    assert_int_equal(l->out_block, rows);
    assert_int_equal(l->in_block, columns);
    assert_int_equal(l->gates, gates);
    assert_int_equal(l->in_stride, stride);
    assert_int_equal(l->row_start[0], 0);
    assert_int_equal(l->row_start[1], 1);
    assert_int_equal(l->column_start[0], 0);
    assert_int_equal(l->column_start[1], 1);
    assert_int_equal(l->row_column[0], 0);
    assert_int_equal(l->column_row[0], 0);
    assert_int_equal(l->column_block[0], 0);
    assert_int_equal(layout_weights(l), (size_t)gates * rows * columns);
    layout_free(l);
}

static void test_dense_layouts(void **state) {
    (void)state;
    graph *complete = by_degree(GRAPH_RANDOM, 5, 4, 0);
    check_dense(layout_from_graph(complete, 8, 4), 40, 40, 4, 1);
    graph_free(complete);
    graph *alone = create((graph_options){.kind = GRAPH_DENSE}, 1);
    check_dense(layout_from_graph(alone, 64, 1), 64, 64, 1, 1);
    graph_free(alone);
    layout *head = layout_dense(256, 96, 1, 2);
    assert_int_equal(layout_inputs(head), 192);
    check_dense(head, 256, 96, 1, 2);
}

static void test_graph_from_blocks(void **state) {
    (void)state;
    graph *g = by_degree(GRAPH_WATTS_STROGATZ, 30, 4, 0.5);
    layout *l = layout_from_graph(g, 8, 1);
    int32_t(*blocks)[2] = mem_alloc((size_t)l->blocks, sizeof *blocks);
    for (int i = 0; i < l->out_nodes; i++) {
        for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
            blocks[k][0] = i;
            blocks[k][1] = l->row_column[k];
        }
    }
    error err;
    graph *again = graph_from_blocks(30, blocks, l->blocks, &err);
    assert_non_null(again);
    assert_true(hash_graph(again) == hash_graph(g));
    graph_free(again);
    free(blocks);
    layout_free(l);
    graph_free(g);
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

/* -------------------------------------------------------------------------------------- metrics */

static void near(double value, double expected) {
    if (!(fabs(value - expected) <= 1e-12)) fail_msg("%.15g, expected %.15g", value, expected);
}

static void test_metrics_of_a_ring(void **state) {
    (void)state;
    static const int cases[][2] = {{9, 2}, {30, 6}, {101, 2}, {200, 8}, {129, 16}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int nodes = cases[c][0], degree = cases[c][1], half = degree / 2, sum = 0;
        graph *g = by_degree(GRAPH_WATTS_STROGATZ, nodes, degree, 0);
        graph_metrics m = measure(g);
        graph_free(g);
        for (int d = 1; d < nodes; d++) {
            sum += ((d <= nodes / 2 ? d : nodes - d) + half - 1) / half;
        }
        assert_int_equal(m.nodes, nodes);
        assert_int_equal(m.blocks, nodes * (degree + 1));
        near(m.density, (degree + 1.0) / nodes);
        assert_int_equal(m.degree_min, degree);
        assert_int_equal(m.degree_max, degree);
        near(m.degree_mean, degree);
        near(m.clustering, 0.75 * (degree - 2) / (degree - 1));
        near(m.path_mean, (double)sum / (nodes - 1));
        assert_int_equal(m.path_max, (nodes / 2 + half - 1) / half);
        near(m.unreachable, 0);
        assert_int_equal(m.components, 1);
        assert_int_equal(m.steps, m.path_max < METRICS_MAX_STEPS ? m.path_max : METRICS_MAX_STEPS);
        for (int k = 0; k < m.steps; k++) {
            int reached = 1 + degree * (k + 1);
            near(m.reach[k], reached < nodes ? (double)reached / nodes : 1);
        }
    }
}

static void test_metrics_of_a_complete_graph(void **state) {
    (void)state;
    graph *g = create((graph_options){.kind = GRAPH_DENSE}, 70);
    graph_metrics m = measure(g);
    graph_free(g);
    near(m.density, 1);
    assert_int_equal(m.degree_min, 69);
    near(m.clustering, 1);
    near(m.path_mean, 1);
    assert_int_equal(m.path_max, 1);
    assert_int_equal(m.steps, 1);
    near(m.reach[0], 1);
}

static void test_metrics_of_a_star(void **state) {
    (void)state;
    graph *g = from_text("0 1\n0 2\n0 3\n0 4\n1 0\n2 0\n3 0\n4 0\n", 5);
    graph_metrics m = measure(g);
    graph_free(g);
    assert_int_equal(m.degree_min, 1);
    assert_int_equal(m.degree_max, 4);
    near(m.degree_mean, 1.6);
    near(m.clustering, 0);
    near(m.path_mean, (8 * 1 + 12 * 2) / 20.0);
    assert_int_equal(m.path_max, 2);
    near(m.reach[0], 13 / 25.0);
    near(m.reach[1], 1);
}

static void test_metrics_of_two_parts(void **state) {
    (void)state;
    graph *g = from_text("0 1\n1 0\n1 2\n2 1\n0 2\n2 0\n3 4\n4 3\n", 6); /* node 5 is alone */
    graph_metrics m = measure(g);
    graph_free(g);
    assert_int_equal(m.components, 3);
    assert_int_equal(m.degree_min, 0);
    near(m.clustering, 0.5);
    near(m.path_mean, 1);
    near(m.unreachable, 22 / 30.0);
    assert_int_equal(m.steps, 1);
    near(m.reach[0], 14 / 36.0);
}

/* Node i + 1 reads node i: a signal runs up the chain, never down. */
static void test_metrics_of_a_chain(void **state) {
    (void)state;
    graph *g = from_text("1 0\n2 1\n3 2\n4 3\n", 5);
    graph_metrics m = measure(g);
    graph_free(g);
    assert_int_equal(m.degree_min, 0);
    assert_int_equal(m.degree_max, 1);
    near(m.degree_mean, 0.8);
    near(m.clustering, 0);
    near(m.path_mean, 2);
    assert_int_equal(m.path_max, 4);
    near(m.unreachable, 0.5);
    assert_int_equal(m.components, 1);
    assert_int_equal(m.steps, 4);
    for (int k = 0; k < 4; k++) {
        static const int reached[] = {9, 12, 14, 15};
        near(m.reach[k], reached[k] / 25.0);
    }
}

static void test_metrics_of_one_node(void **state) {
    (void)state;
    graph *g = create((graph_options){.kind = GRAPH_DENSE}, 1);
    graph_metrics m = measure(g);
    graph_free(g);
    near(m.density, 1);
    near(m.clustering, 0);
    near(m.path_mean, 0);
    near(m.unreachable, 0);
    assert_int_equal(m.components, 1);
    assert_int_equal(m.steps, 1);
    near(m.reach[0], 1);
}

/* Directed edges drawn at random, against Floyd and Warshall's algorithm and the definitions. */
static void test_metrics_against_plain_ones(void **state) {
    (void)state;
    enum { NODES = 150, UNREACHED = 1000 };
    static uint8_t mask[NODES][NODES];
    static int distance[NODES][NODES];
    random_restart(5);
    for (int e = 0; e < 300; e++) {
        mask[random_below(NODES)][random_below(NODES)] = 1;
    }
    const char *path = write_mask("|u1", NODES, NODES, mask, sizeof mask);
    graph *g = create((graph_options){.kind = GRAPH_FILE, .file = path}, NODES);
    graph_metrics m = measure(g);
    graph_free(g);

    for (int i = 0; i < NODES; i++) {
        for (int j = 0; j < NODES; j++) distance[i][j] = i == j ? 0 : mask[i][j] ? 1 : UNREACHED;
    }
    for (int via = 0; via < NODES; via++) {
        for (int i = 0; i < NODES; i++) {
            for (int j = 0; j < NODES; j++) {
                int around = distance[i][via] + distance[via][j];
                if (around < distance[i][j]) distance[i][j] = around;
            }
        }
    }
    int paths = 0, sum = 0, longest = 0;
    double clustering = 0;
    for (int i = 0; i < NODES; i++) {
        int pairs = 0, joined = 0;
        for (int j = 0; j < NODES; j++) {
            if (i == j) continue;
            if (distance[i][j] < UNREACHED) {
                paths++;
                sum += distance[i][j];
                if (distance[i][j] > longest) longest = distance[i][j];
            }
            for (int k = 0; k < j && (mask[i][j] || mask[j][i]); k++) {
                if (k == i || !(mask[i][k] || mask[k][i])) continue;
                pairs++;
                joined += mask[j][k] || mask[k][j];
            }
        }
        if (pairs) clustering += (double)joined / pairs;
    }
    assert_true(longest > 5 && paths < NODES * (NODES - 1) && clustering > 0);
    near(m.path_mean, (double)sum / paths);
    assert_int_equal(m.path_max, longest);
    near(m.unreachable, 1 - paths / (NODES * (NODES - 1.0)));
    near(m.clustering, clustering / NODES);
}

/* ------------------------------------------------------------------------------------- pictures */

static uint32_t load(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* The data of the chunk at `*next`, which moves past it. */
static const uint8_t *read_chunk(const uint8_t **next, const uint8_t *end, const char *type,
                                 uint32_t *length) {
    assert_true(end - *next >= 12);
    *length = load(*next);
    assert_true(*length <= (size_t)(end - *next - 12));
    assert_memory_equal(*next + 4, type, 4);
    const uint8_t *data = *next + 8;
    assert_int_equal(crc32(0, *next + 4, *length + 4), load(data + *length));
    *next = data + *length + 4;
    return data;
}

static void test_picture(void **state) {
    (void)state;
    enum { NODES = 11, SCALE = 3, SIDE = NODES * SCALE };
    graph *g = from_text("1 0\n2 1\n0 2\n10 3\n5 9\n", NODES);
    error err;
    const char *path = path_of("graph.png");
    assert_true(graph_draw(g, SCALE, path, &err));

    size_t size;
    char *file = read_text(path, &size);
    const uint8_t *next = (uint8_t *)file, *end = next + size;
    assert_true(size > 8);
    assert_memory_equal(next, "\x89PNG\r\n\x1a\n", 8);
    next += 8;
    uint32_t length;
    const uint8_t *header = read_chunk(&next, end, "IHDR", &length);
    assert_int_equal(length, 13);
    assert_int_equal(load(header), SIDE);
    assert_int_equal(load(header + 4), SIDE);
    assert_memory_equal(header + 8, "\x08\0\0\0\0", 5);
    const uint8_t *compressed = read_chunk(&next, end, "IDAT", &length);
    uint8_t lines[SIDE][1 + SIDE];
    uLongf inflated = sizeof lines;
    assert_int_equal(uncompress((uint8_t *)lines, &inflated, compressed, length), Z_OK);
    assert_int_equal(inflated, sizeof lines);
    read_chunk(&next, end, "IEND", &length);
    assert_int_equal(length, 0);
    assert_ptr_equal(next, end);
    for (int y = 0; y < SIDE; y++) {
        assert_int_equal(lines[y][0], 0);
        for (int x = 0; x < SIDE; x++) {
            assert_int_equal(lines[y][1 + x], has_block(g, y / SCALE, x / SCALE) ? 0 : 255);
        }
    }
    free(file);
    graph_free(g);
}

static void test_bad_pictures(void **state) {
    (void)state;
    graph *g = by_degree(GRAPH_RANDOM, 10, 3, 0);
    error err;
    static const int scales[] = {0, -1, 3277};
    for (size_t s = 0; s < sizeof scales / sizeof scales[0]; s++) {
        char *expected = mem_format("%s: cannot draw 10 nodes %d pixels wide: expected 1 to 3276",
                                    path_of("graph.png"), scales[s]);
        assert_false(graph_draw(g, scales[s], path_of("graph.png"), &err));
        assert_string_equal(err.text, expected);
        free(expected);
    }
    char *expected =
        mem_format("cannot write %s.tmp: No such file or directory", path_of("missing/graph.png"));
    assert_false(graph_draw(g, 1, path_of("missing/graph.png"), &err));
    assert_string_equal(err.text, expected);
    free(expected);
    assert_false(file_exists(path_of("missing")));
    graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_degree_is_met),
        cmocka_unit_test(test_odd_degrees_of_random),
        cmocka_unit_test(test_density_is_met),
        cmocka_unit_test(test_random_is_balanced),
        cmocka_unit_test(test_completion_is_balanced),
        cmocka_unit_test(test_ring),
        cmocka_unit_test(test_rewiring),
        cmocka_unit_test(test_torus),
        cmocka_unit_test(test_torus_is_regular),
        cmocka_unit_test(test_torus_of_a_prime_is_a_ring),
        cmocka_unit_test(test_barabasi_albert),
        cmocka_unit_test(test_graphs_are_pinned),
        cmocka_unit_test(test_seed_and_pattern_matter),
        cmocka_unit_test(test_dense_and_tiny),
        cmocka_unit_test(test_options_are_refused),
        cmocka_unit_test(test_self_blocks_alone),
        cmocka_unit_test(test_edge_list),
        cmocka_unit_test(test_bad_edge_lists),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_bad_masks),
        cmocka_unit_test(test_layout_of_a_graph),
        cmocka_unit_test(test_dense_layouts),
        cmocka_unit_test(test_graph_from_blocks),
        cmocka_unit_test(test_bad_blocks),
        cmocka_unit_test(test_metrics_of_a_ring),
        cmocka_unit_test(test_metrics_of_a_complete_graph),
        cmocka_unit_test(test_metrics_of_a_star),
        cmocka_unit_test(test_metrics_of_two_parts),
        cmocka_unit_test(test_metrics_of_a_chain),
        cmocka_unit_test(test_metrics_of_one_node),
        cmocka_unit_test(test_metrics_against_plain_ones),
        cmocka_unit_test(test_picture),
        cmocka_unit_test(test_bad_pictures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
