/* The metrics of graphs, and their pictures. */
#include "core/file.h"
#include "core/memory.h"
#include "graph/metrics.h"
#include "graphs.h"
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void near(double value, double expected) {
    if (!(fabs(value - expected) <= 1e-12)) fail_msg("%.15g, expected %.15g", value, expected);
}

/* Returns the metrics of a graph and frees the graph. */
static graph_metrics measure(graph *g) {
    graph_metrics m = metrics_of(g);
    graph_free(g);
    return m;
}

static void test_metrics_of_a_ring(void **state) {
    (void)state;
    static const int cases[][2] = {{9, 2}, {30, 6}, {101, 2}, {200, 8}, {129, 16}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        int nodes = cases[c][0], degree = cases[c][1], half = degree / 2, sum = 0;
        graph_metrics m = measure(graph_of_degree(GRAPH_WATTS_STROGATZ, nodes, degree, 0));
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
    graph_metrics m = measure(make_graph((graph_options){.kind = GRAPH_DENSE}, 70));
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
    graph_metrics m = measure(graph_from_text("0 1\n0 2\n0 3\n0 4\n1 0\n2 0\n3 0\n4 0\n", 5));
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
    /* Node 5 is alone. */
    graph_metrics m = measure(graph_from_text("0 1\n1 0\n1 2\n2 1\n0 2\n2 0\n3 4\n4 3\n", 6));
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
    graph_metrics m = measure(graph_from_text("1 0\n2 1\n3 2\n4 3\n", 5));
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
    graph_metrics m = measure(make_graph((graph_options){.kind = GRAPH_DENSE}, 1));
    near(m.density, 1);
    near(m.clustering, 0);
    near(m.path_mean, 0);
    near(m.unreachable, 0);
    assert_int_equal(m.components, 1);
    assert_int_equal(m.steps, 1);
    near(m.reach[0], 1);
}

/* The metrics of random directed edges, compared with Floyd and Warshall's algorithm and with the
 * definitions. */
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
    graph_metrics m = measure(make_graph((graph_options){.kind = GRAPH_FILE, .file = path}, NODES));

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

/* ------------------------------------------------------------------------------------ pictures */

static uint32_t load(const uint8_t *bytes) {
    return (uint32_t)bytes[0] << 24 | (uint32_t)bytes[1] << 16 | (uint32_t)bytes[2] << 8 | bytes[3];
}

/* Returns the data of the chunk at `*next`, and moves `*next` past it. */
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
    graph *g = graph_from_text("1 0\n2 1\n0 2\n10 3\n5 9\n", NODES);
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
    graph *g = graph_of_degree(GRAPH_RANDOM, 10, 3, 0);
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
