/* Files of graphs: edge lists and .npy masks. The first byte of an input gives the kind (its lowest
 * bit) and the number of nodes; the rest is the file. */
#include "arrays.h"

#include "graph/graph.h"
#include "graph/layout.h"
#include "graph/metrics.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_NODES = 128 };

static const char *edges, *mask;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    edges = scratch_path("edges.txt");
    mask = scratch_path("mask.npy");
    return 0;
}

static void check(const graph *g, int nodes) {
    require(g->nodes == nodes, "another number of nodes");
    for (int i = 0; i < nodes; i++) {
        bool self = false;
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            require(g->column[k] >= 0 && g->column[k] < nodes, "a node that is not there");
            require(k == g->start[i] || g->column[k - 1] < g->column[k], "a row not ascending");
            self |= g->column[k] == i;
        }
        require(self, "a node that does not feed itself");
    }
    require(graph_components(g) >= 1, "no component");
    layout *l = layout_from_graph(g, 8, 4);
    require(l->blocks >= 1, "no block");
    layout_free(l);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const char *path = data[0] & 1 ? mask : edges;
    const int nodes = 1 + data[0] / 2;
    const graph_options how = {.kind = GRAPH_FILE, .file = path};
    error err;
    scratch_write(path, data + 1, size - 1);
    graph *g = graph_create(&how, nodes, &err);
    if (g) {
        check(g, nodes);
        graph_free(g);
    } else {
        require(strstr(err.text, path) != NULL, "an error that does not name the file");
    }
    return 0;
}

static void add_edges(buffer *b, uint64_t nodes) {
    static const char *const blanks[] = {" ", "\t", "  ", "", ",", "\r", "\v", " # "};
    static const char *const ends[] = {"\n", "\n", "\n", "\r\n", "", " \n", "# x\n", "\n\n", "%\n"};
    for (uint64_t lines = draw(40); lines > 0; lines--) {
        const char *blank = draw_once_in(8) ? blanks[draw(8)] : " ";
        const char *end = draw_once_in(4) ? ends[draw(9)] : "\n";
        const long long output = draw_once_in(16) ? draw_integer() : (int64_t)draw(nodes);
        const long long input = draw_once_in(16) ? draw_integer() : (int64_t)draw(nodes);
        buffer_text(b, "%lld%s%lld%s", output, blank, input, end);
        if (draw_once_in(32)) buffer_text(b, "%s\n", draw_text());
    }
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed) {
    draw_seed(seed);
    if (size > 0 && draw_once_in(2)) return LLVMFuzzerMutate(data, size, capacity);
    buffer b = {0};
    const uint8_t kind = (uint8_t)draw(2 * (draw_once_in(4) ? MAX_NODES : 8));
    const int nodes = 1 + kind / 2;
    buffer_add(&b, &kind, 1);
    if (kind & 1) {
        array_build(&b, "|u1", nodes, nodes);
    } else {
        add_edges(&b, (uint64_t)nodes);
    }
    return buffer_take(&b, data, capacity);
}
