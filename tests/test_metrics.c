/* The metrics of graphs. */
#include "core/memory.h"
#include "graph/metrics.h"
#include "graphs.h"
#include "support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics_of_a_ring),
        cmocka_unit_test(test_metrics_of_a_complete_graph),
        cmocka_unit_test(test_metrics_of_a_star),
        cmocka_unit_test(test_metrics_of_two_parts),
        cmocka_unit_test(test_metrics_of_a_chain),
        cmocka_unit_test(test_metrics_of_one_node),
        cmocka_unit_test(test_metrics_against_plain_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
