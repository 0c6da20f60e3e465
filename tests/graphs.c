#include "graphs.h"

#include "core/memory.h"
#include "core/npy.h"
#include "support.h"

#include <stdlib.h>
#include <string.h>

graph *make_graph(graph_options options, int nodes) {
    error err;
    graph *g = graph_create(&options, nodes, &err);
    if (!g) {
        fail_msg("%d nodes: %s", nodes, err.text);
        abort(); /* not reached, which the compiler does not know */
    }
    return g;
}

graph *graph_of_degree(graph_kind kind, int nodes, int degree, double rewire) {
    return make_graph((graph_options){.kind = kind, .degree = degree, .rewire = rewire, .seed = 7},
                      nodes);
}

bool has_block(const graph *g, int output, int input) {
    for (int k = g->start[output]; k < g->start[output + 1]; k++) {
        if (g->column[k] == input) return true;
    }
    return false;
}

void check_form(const graph *g) {
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

graph_metrics metrics_of(const graph *g) {
    graph_metrics m;
    memset(&m, 0x7F, sizeof m);
    graph_measure(g, &m);
    return m;
}

uint64_t hash_graph(const graph *g) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (int i = 0; i <= g->nodes + graph_blocks(g); i++) {
        int number = i <= g->nodes ? g->start[i] : g->column[i - g->nodes - 1];
        for (int shift = 0; shift < 32; shift += 8) {
            hash = (hash ^ ((unsigned)number >> shift & 255)) * 0x100000001b3ull;
        }
    }
    return hash;
}

const char *write_edges(const char *text) {
    const char *path = path_of("edges");
    write_text(path, text);
    return path;
}

graph *graph_from_text(const char *text, int nodes) {
    const char *path = write_edges(text);
    graph *g = make_graph((graph_options){.kind = GRAPH_FILE, .file = path}, nodes);
    check_form(g);
    return g;
}

const char *write_mask(const char *type, int rows, int columns, const void *values, size_t bytes) {
    const char *path = path_of("mask.npy");
    file_writer writer;
    int64_t start;
    error err;
    assert_true(npy_begin(&writer, path, type, rows, columns, &start, &err));
    assert_true(file_write(&writer, values, bytes, &err));
    assert_true(file_commit(&writer, &err));
    return path;
}
