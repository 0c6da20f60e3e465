#include "products.h"

#include "graph/graph.h"

#include <stdio.h>
#include <stdlib.h>

layout *pattern_layout(const graph_options *options, int nodes, int block, int gates) {
    error err;
    graph *g = graph_create(options, nodes, &err);
    assert_non_null(g);
    layout *l = layout_from_graph(g, block, gates);
    graph_free(g);
    return l;
}

void check_layout(pair *p, const layout *l, int columns, int steps, const char *name) {
    size_t weights = layout_weights(l);
    size_t in = layout_inputs(l) * (size_t)columns * (size_t)steps;
    size_t out = layout_rows(l) * (size_t)columns * (size_t)steps;
    double *w = random_values(weights, -1, 1), *x = random_values(in, -1, 1);
    double *dy = random_values(out, -1, 1);
    double *result[2][5];
    /* Enough columns for fprop and dgrad, but not for wgrad. */
    bool narrow = columns % wgrad_multiple(p->be);
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p->trusted : p->be;
        device_layout *d = be->memory->layout_create(be, l);
        void *dw = put(be, w, weights, OPERAND), *dx = put(be, x, in, OPERAND);
        void *ddy = put(be, dy, out, OPERAND);
        void *y[5] = {put_poison(be, out, OPERAND), put_poison(be, out, REAL),
                      put_poison(be, in, OPERAND), put_poison(be, in, REAL),
                      put_poison(be, weights, REAL)};
        size_t room = be->products->wgrad_workspace(be, l, steps, columns);
        void *workspace = room ? be->memory->allocate(be, room) : NULL;
        be->products->fprop(be, d, dw, dx, steps, columns, y[0], OPERAND);
        be->products->fprop(be, d, dw, dx, steps, columns, y[1], REAL);
        be->products->dgrad(be, d, dw, ddy, steps, columns, y[2], OPERAND);
        be->products->dgrad(be, d, dw, ddy, steps, columns, y[3], REAL);
        if (!narrow) be->products->wgrad(be, d, ddy, dx, steps, columns, y[4], workspace);
        const size_t sizes[5] = {out, out, in, in, weights};
        for (int i = 0; i < 5; i++) {
            result[side][i] = get(be, y[i], sizes[i], i == 0 || i == 2 ? OPERAND : REAL);
            be->memory->release(be, y[i]);
        }
        if (workspace) be->memory->release(be, workspace);
        be->memory->release(be, dw);
        be->memory->release(be, dx);
        be->memory->release(be, ddy);
        be->memory->layout_free(be, d);
    }
    static const char *const what[5] = {"fprop", "fprop to real", "dgrad", "dgrad to real",
                                        "wgrad"};
    const size_t sizes[5] = {out, out, in, in, weights};
    for (int i = 0; i < 5; i++) {
        char text[240];
        snprintf(text, sizeof text, "%s, %s, %d columns, %d steps", what[i], name, columns, steps);
        /* Wgrad of bf16 keeps fp32 sums of the same operands, so it is as close as fp32. */
        pair as = *p;
        if (i == 4 && test_device_is_cuda() && p->be->precision == BF16) as.tolerance = 1e-5;
        if (i < 4 || !narrow) assert_each_close(&as, text, result[0][i], result[1][i], sizes[i]);
        free(result[0][i]);
        free(result[1][i]);
    }
    free(w);
    free(x);
    free(dy);
}
