#include "pair.h"

#include "core/memory.h"
#include "graph/graph.h"

#include <math.h>

pair open_pair(precision precision) {
    pair p = {.be = test_backend(precision)};
    if (test_device_is_cuda()) {
        p.trusted = backend_cpu(precision, 0);
        p.tolerance = precision == BF16 ? 2e-3 : 1e-5;
    } else {
        p.trusted = backend_cpu_reference(0);
        p.tolerance = precision == BF16 ? 1e-2 : 1e-5;
    }
    return p;
}

void close_pair(pair *p) {
    p->be->destroy(p->be);
    p->trusted->destroy(p->trusted);
}

void assert_close(const pair *p, const char *what, const double *found, const double *expected,
                  size_t count) {
    double error = relative_error(found, expected, count);
    if (error <= p->tolerance) return;
    fail_msg("%s on %s: relative error %g, at most %g expected", what, p->be->name, error,
             p->tolerance);
}

void assert_each_close(const pair *p, const char *what, const double *found, const double *expected,
                       size_t count) {
    /* Times the tolerance of the norm, since rounding errors differ between elements. */
    const double times = 32;
    double square = 0;
    assert_close(p, what, found, expected, count);
    for (size_t i = 0; i < count; i++) square += expected[i] * expected[i];
    double mean = count ? sqrt(square / (double)count) : 0;
    for (size_t i = 0; i < count; i++) {
        double most = times * p->tolerance * (mean + fabs(expected[i]));
        if (fabs(found[i] - expected[i]) <= most) continue;
        fail_msg("%s on %s: element %zu is %g, %g expected, at most %g off", what, p->be->name, i,
                 found[i], expected[i], most);
    }
}

graph *nasty_graph(int nodes, double share, bool hubs) {
    graph *g = mem_alloc(1, sizeof *g);
    g->nodes = g->inputs = nodes;
    g->start = mem_alloc((size_t)nodes + 1, sizeof *g->start);
    g->column = mem_alloc((size_t)nodes * (size_t)nodes, sizeof *g->column);
    int count = 0;
    for (int i = 0; i < nodes; i++) {
        g->start[i] = count;
        for (int j = 0; j < nodes; j++) {
            bool there = random_uniform() < share;
            if (i == 0) there = j == nodes - 1;           /* a single block */
            if (i == 1) there = false;                    /* an empty row */
            if (j == 2) there = false;                    /* an empty column */
            if (hubs && (i == 3 || j == 4)) there = true; /* a full row, a full column */
            if (there) g->column[count++] = j;
        }
    }
    g->start[nodes] = count;
    return g;
}

// clang-format off
const shape gate_shapes[GATE_SHAPES] = {
    {.reason = "a few nodes and blocks, the fewest columns",
     .nodes = 11, .block = 32, .gates = GATES, .columns = 2, .share = 0.15},
    {.reason = "nearly all blocks there, 128 columns: one tile",
     .nodes = 11, .block = 32, .gates = GATES, .columns = 4, .share = 0.8, .hubs = true},
    {.reason = "256 columns: the widest tile of fprop, two boxes a warpgroup of dgrad",
     .nodes = 12, .block = 32, .gates = GATES, .columns = 8, .share = 0.8, .hubs = true},
    {.reason = "more parts than nodes: lists are cut between thread blocks",
     .nodes = 71, .block = 32, .gates = GATES, .columns = 4, .share = 0.15},
    {.reason = "a hub's list in twelve parts, 256 columns",
     .nodes = 71, .block = 32, .gates = GATES, .columns = 8, .share = 0.15, .hubs = true},
    {.reason = "960 columns: fprop makes 896 in tiles of 128, then 64; dgrad's fourth tile is not "
               "full",
     .nodes = 35, .block = 32, .gates = GATES, .columns = 30, .share = 0.8, .hubs = true},
    {.reason = "blocks of 64, the fewest columns",
     .nodes = 5, .block = 64, .gates = GATES, .columns = 2, .share = 0.8},
    {.reason = "blocks of 64 with rows and columns that are empty or full, 128 columns",
     .nodes = 6, .block = 64, .gates = GATES, .columns = 4, .share = 0.15, .hubs = true},
    {.reason = "blocks of 64, 256 columns: two tiles of dgrad",
     .nodes = 5, .block = 64, .gates = GATES, .columns = 8, .share = 0.8, .hubs = true},
    {.reason = "blocks of 64, whole nodes of like sources, six tiles",
     .nodes = 47, .block = 64, .gates = GATES, .columns = 24, .share = 0.1},
    {.reason = "blocks of 128, the fewest columns",
     .nodes = 5, .block = 128, .gates = GATES, .columns = 2, .share = 0.8, .hubs = true},
    {.reason = "blocks of 128, 128 columns",
     .nodes = 6, .block = 128, .gates = GATES, .columns = 4, .share = 0.2, .hubs = true},
    {.reason = "blocks of 128, 256 columns: two tiles of dgrad",
     .nodes = 5, .block = 128, .gates = GATES, .columns = 8, .share = 0.8},
    {.reason = "blocks of 128, 320 columns: fprop's last 64 by themselves, dgrad's last tile "
               "half empty",
     .nodes = 5, .block = 128, .gates = GATES, .columns = 10, .share = 0.5, .hubs = true},
};
// clang-format on
