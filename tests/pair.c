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
    p->be->memory->destroy(p->be);
    p->trusted->memory->destroy(p->trusted);
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
