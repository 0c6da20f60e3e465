/* Block layouts of graphs, and graphs of their blocks. */
#include "core/memory.h"
#include "graph/layout.h"
#include "graphs.h"
#include "support.h"

#include <stdlib.h>

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
    graph *graphs[] = {graph_of_degree(GRAPH_BARABASI_ALBERT, 40, 6, 0),
                       graph_from_text("0 3\n3 1\n1 0\n", 4)};
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
    graph *complete = graph_of_degree(GRAPH_RANDOM, 5, 4, 0);
    check_dense(layout_from_graph(complete, 8, 4), 40, 40, 4, 1);
    graph_free(complete);
    graph *alone = make_graph((graph_options){.kind = GRAPH_DENSE}, 1);
    check_dense(layout_from_graph(alone, 64, 1), 64, 64, 1, 1);
    graph_free(alone);
    layout *head = layout_dense(256, 96, 1, 2);
    assert_int_equal(layout_inputs(head), 192);
    check_dense(head, 256, 96, 1, 2);
}

static void test_graph_from_blocks(void **state) {
    (void)state;
    graph *g = graph_of_degree(GRAPH_WATTS_STROGATZ, 30, 4, 0.5);
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout_of_a_graph),
        cmocka_unit_test(test_dense_layouts),
        cmocka_unit_test(test_graph_from_blocks),
        cmocka_unit_test(test_bad_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
