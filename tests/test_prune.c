/* Pruning: the blocks that are dropped are the weakest, and ties are drawn. What a pruned model
 * computes is tested by tests/training.py. */
#include "graphs.h"
#include "models.h"

#include "core/memory.h"
#include "graph/prune.h"

#include <stdlib.h>
#include <string.h>

enum { NODES = 12 };

static philox_stream stream(uint32_t number) {
    return philox_start(7, PHILOX_TEST, 0, number);
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

static void test_prune(void **state) {
    (void)state;
    random_restart(3);
    for (int drop = 0; drop <= 4 * NODES; drop += 6) {
        graph *g = graph_of_degree(GRAPH_RANDOM, NODES, 4, 0);
        int rank_of[5 * NODES];
        double *norms = draw_norms(g, rank_of);
        philox_stream random = stream(2);
        graph *made = graph_prune(g, norms, drop, &random);
        check_form(made);
        assert_int_equal(graph_blocks(made), graph_blocks(g) - drop);
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
        graph *one = graph_prune(g, norms, 24, &random);
        graph *other = graph_prune(g, norms, 24, &again);
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

/* Blocks of equal norm are dropped at random, in each stage by draws of its own. */
static void test_ties_differ(void **state) {
    (void)state;
    backend *be = backend_cpu(FP32, 0);
    model_config config = small_config();
    config.cell = CELL_MLSTM;
    config.graph = GRAPH_DENSE;
    config.degree = 0;
    config.init_noise = 0;
    model *m = create_model(be, &config, 1, 1, 1);
    model_initialise(m);
    error err;
    model *pruned = model_prune(m, 0.5, &err);
    if (!pruned) fail_msg("%s", err.text);
    const graph *a = pruned->graphs[0], *b = pruned->graphs[1];
    assert_int_equal(graph_blocks(a), graph_blocks(b));
    assert_int_not_equal(memcmp(a->column, b->column, (size_t)graph_blocks(a) * sizeof *a->column),
                         0);
    assert_true(model_density(pruned) == 0.5);
    model_free(pruned);
    model_free(m);
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_ties_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
