/* Exchanges of blocks: those that are added were absent and are drawn uniformly, those that are
 * dropped are the weakest, and all others stay. */
#include "graphs.h"
#include "support.h"

#include "core/memory.h"
#include "graph/exchange.h"

#include <stdlib.h>
#include <string.h>

enum { NODES = 12, DRAWS = 20000 };

static philox_stream stream(uint32_t number) {
    return philox_start(7, PHILOX_TEST, 0, number);
}

/* Every absent block is drawn about equally often, and no other. */
static void test_draws(void **state) {
    (void)state;
    graph *g = graph_of_degree(GRAPH_WATTS_STROGATZ, NODES, 4, 0.3);
    const int absent = NODES * NODES - graph_blocks(g), count = 7;
    int times[NODES][NODES] = {{0}};
    philox_stream random = stream(0);
    for (int draw = 0; draw < DRAWS; draw++) {
        int32_t drawn[7][2];
        assert_int_equal(graph_draw_absent(g, count, &random, drawn), count);
        for (int k = 0; k < count; k++) {
            times[drawn[k][0]][drawn[k][1]]++;
            if (k == 0) continue;
            const int32_t *last = drawn[k - 1], *next = drawn[k];
            assert_true(last[0] < next[0] || (last[0] == next[0] && last[1] < next[1]));
        }
    }
    const double expected = (double)DRAWS * count / absent; /* its deviation is below 40 */
    for (int i = 0; i < NODES; i++) {
        for (int j = 0; j < NODES; j++) {
            const double low = has_block(g, i, j) ? 0 : expected - 250;
            const double high = has_block(g, i, j) ? 0 : expected + 250;
            assert_true(times[i][j] >= low && times[i][j] <= high);
        }
    }
    graph_free(g);
}

/* If more are asked for than are absent, all absent ones are drawn. */
static void test_draws_all(void **state) {
    (void)state;
    graph *g = graph_of_degree(GRAPH_RANDOM, NODES, 9, 0);
    const int absent = NODES * NODES - graph_blocks(g);
    int32_t drawn[NODES * NODES][2];
    philox_stream random = stream(1);
    assert_int_equal(graph_draw_absent(g, NODES * NODES, &random, drawn), absent);
    for (int k = 0; k < absent; k++) assert_false(has_block(g, drawn[k][0], drawn[k][1]));
    graph_free(g);
    g = make_graph((graph_options){.kind = GRAPH_DENSE}, NODES);
    assert_int_equal(graph_draw_absent(g, 5, &random, drawn), 0);
    graph_free(g);
}

/* The norms are a shuffled order of ranks; self-blocks have the smallest. */
static double *draw_norms(const graph *g, int *rank_of) {
    int blocks = graph_blocks(g);
    double *norms = mem_alloc((size_t)blocks, sizeof *norms);
    for (int k = 0; k < blocks; k++) rank_of[k] = k;
    for (int k = blocks - 1; k > 0; k--) {
        int other = (int)random_below((uint64_t)k + 1), kept = rank_of[k];
        rank_of[k] = rank_of[other];
        rank_of[other] = kept;
    }
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            norms[k] = g->column[k] == i ? 0 : 1 + rank_of[k];
        }
    }
    return norms;
}

static void test_exchange(void **state) {
    (void)state;
    random_restart(3);
    for (int drop = 0; drop <= 4 * NODES; drop += 6) {
        graph *g = graph_of_degree(GRAPH_RANDOM, NODES, 4, 0);
        int rank_of[5 * NODES], grow = drop < 20 ? drop : 0;
        double *norms = draw_norms(g, rank_of);
        int32_t grown[20][2];
        philox_stream random = stream(2);
        graph_draw_absent(g, grow, &random, grown);
        graph *made = graph_exchange(g, norms, drop, (const int32_t(*)[2])grown, grow, &random);
        check_form(made);
        assert_int_equal(graph_blocks(made), graph_blocks(g) - drop + grow);
        for (int k = 0; k < grow; k++) assert_true(has_block(made, grown[k][0], grown[k][1]));
        double weakest_kept = 1e9, strongest_dropped = 0;
        int dropped = 0;
        for (int i = 0; i < NODES; i++) {
            for (int k = g->start[i]; k < g->start[i + 1]; k++) {
                bool kept = has_block(made, i, g->column[k]);
                dropped += !kept;
                if (g->column[k] == i) continue;
                if (kept && norms[k] < weakest_kept) weakest_kept = norms[k];
                if (!kept && norms[k] > strongest_dropped) strongest_dropped = norms[k];
            }
        }
        assert_int_equal(dropped, drop);
        assert_true(strongest_dropped < weakest_kept);
        graph_free(made);
        graph_free(g);
        free(norms);
    }
}

/* If all norms are equal, the dropped blocks are drawn, and rows lose about as many each. */
static void test_ties(void **state) {
    (void)state;
    graph *g = graph_of_degree(GRAPH_RANDOM, NODES, 8, 0);
    double *norms = mem_alloc((size_t)graph_blocks(g), sizeof *norms);
    philox_stream random = stream(3), again = stream(3);
    int lost[NODES] = {0};
    for (int draw = 0; draw < 300; draw++) {
        graph *one = graph_exchange(g, norms, 24, NULL, 0, &random);
        graph *other = graph_exchange(g, norms, 24, NULL, 0, &again);
        assert_true(hash_graph(one) == hash_graph(other));
        for (int i = 0; i < NODES; i++) {
            lost[i] += g->start[i + 1] - g->start[i] - (one->start[i + 1] - one->start[i]);
        }
        graph_free(one);
        graph_free(other);
    }
    for (int i = 0; i < NODES; i++) assert_true(lost[i] > 450 && lost[i] < 750); /* 600 expected */
    free(norms);
    graph_free(g);
}

/* The strongest blocks of a list stay, in the list's order. The graph of a list has only its
 * blocks. */
static void test_strongest(void **state) {
    (void)state;
    graph *g = graph_of_degree(GRAPH_RANDOM, NODES, 4, 0);
    int32_t absent[40][2], all[40][2];
    double norms[40];
    philox_stream random = stream(4);
    assert_int_equal(graph_draw_absent(g, 40, &random, absent), 40);
    memcpy(all, absent, sizeof all);
    for (int k = 0; k < 40; k++) norms[k] = k * 7 % 40;
    graph *made = graph_of_absent(NODES, (const int32_t(*)[2])absent, 40);
    assert_int_equal(graph_blocks(made), 40);
    for (int k = 0; k < 40; k++) assert_true(has_block(made, all[k][0], all[k][1]));
    graph_keep_strongest(absent, norms, 40, 11, &random);
    int kept = 0;
    for (int k = 0; k < 40; k++) {
        if (norms[k] < 29) continue;
        assert_int_equal(absent[kept][0], all[k][0]);
        assert_int_equal(absent[kept++][1], all[k][1]);
    }
    assert_int_equal(kept, 11);
    graph_free(made);
    graph_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_draws),     cmocka_unit_test(test_draws_all),
        cmocka_unit_test(test_exchange),  cmocka_unit_test(test_ties),
        cmocka_unit_test(test_strongest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
