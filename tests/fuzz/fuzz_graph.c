/* Files of graphs: edge lists and .npy masks. The first byte of an input gives the kind (its lowest
 * bit) and the number of nodes; the rest is the file. */
#include "fuzz.h"

#include "graph/graph.h"
#include "graph/layout.h"
#include "graph/metrics.h"

#include <stdlib.h>
#include <string.h>

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
