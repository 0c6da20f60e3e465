/* The cell over its sequence, by the steps of kernels/cell.c: all sums of layer norm are zeroed at
 * once, before the first step, and kernels start while the product before them ends. With hubs and
 * coupled gates either direction is one kernel, see hubs.cu, or a few a step, see hub_steps.cu. */
#include "cell/cell.h"
#include "cell/hubs.h"
#include "device/layout.h"

#include <string.h>

static void zero_all(backend *be, const cell *c, bool backward) {
    for (int s = 0; s < c->stages; s++) {
        const stage *g = &c->stage[s];
        if (!g->layer_norm) continue;
        const int gates = makes_gates(g) ? GATES : 1;
        cuda_zero_sums(be, backward ? g->dsums : g->sums, gates * c->steps, c->columns);
    }
}

static void gates_early(backend *be, const cell *c, int t) {
    gates_run(be, c, t, true);
}

static void gates_backward_early(backend *be, const cell *c, int t) {
    gates_backward_run(be, c, t, true);
}

static const cell_operations between = {
    .activate = activate_run,
    .activate_backward = activate_backward_run,
    .gates = gates_early,
    .gates_backward = gates_backward_early,
};

/* Tells which kernels make a cell, and what it lacks to be those of hubs. */
static void explain_cell(backend *be, const cell *c, const char *direction, const char *steps_lack,
                         const char *lacks) {
    char text[800];
    const char *kernels = "products, the gates' kernel, and a kernel for each internal stage";
    if (!cuda_of(be)->explained) return;
    if (c->stages == 1) kernels = "products, the gates' kernel";
    if (!lacks) kernels = "hubs";
    if (!steps_lack) kernels = "hubs by steps";
    int used =
        snprintf(text, sizeof text, "cell %s, %d stage%s, %d units, %d columns: %s\n", direction,
                 c->stages, c->stages > 1 ? "s" : "", c->hidden, c->columns, kernels);
    if (steps_lack) {
        used += snprintf(text + used, sizeof text - (size_t)used,
                         "    not hubs by steps, which needs %s\n", steps_lack);
    }
    if (steps_lack && lacks) {
        snprintf(text + used, sizeof text - (size_t)used, "    not hubs, which needs %s\n", lacks);
    }
    cuda_explain(be, text);
}

static void forward(backend *be, const cell *c) {
    const char *steps_lack = hub_steps_lack(be, c), *lacks = hubs_lack(be, c);
    explain_cell(be, c, "forward", steps_lack, lacks);
    if (!steps_lack) {
        hub_steps_forward(be, c);
    } else if (!lacks) {
        hubs_run(be, c, false);
    } else {
        zero_all(be, c, false);
        cell_forward_steps(be, c, &between);
    }
}

static void backward(backend *be, const cell *c) {
    const char *steps_lack = hub_steps_lack(be, c), *lacks = hubs_lack(be, c);
    explain_cell(be, c, "backward", steps_lack, lacks);
    if (!steps_lack) {
        hub_steps_backward(be, c);
    } else if (!lacks) {
        hubs_run(be, c, true);
    } else {
        zero_all(be, c, true);
        cell_backward_steps(be, c, &between);
        return;
    }
    for (int s = 0; s < c->stages; s++) {
        if (c->stage[s].table_use != TABLE_NONE) cuda_table_backward(be, c, s);
    }
}

const cell_operations cuda_cell = {
    .forward = forward,
    .backward = backward,
    .prepare_entries = cuda_prepare_entries,
    .activate = cuda_activate,
    .activate_backward = cuda_activate_backward,
    .gates = cuda_gates,
    .gates_backward = cuda_gates_backward,
    .table_backward = cuda_table_backward,
    .add_rows = cuda_add_rows,
    .sums_bytes = cuda_sums_bytes,
};
