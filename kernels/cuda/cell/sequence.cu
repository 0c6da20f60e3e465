/* The cell over its sequence, by the steps of kernels/cell.c: all sums of layer norm are zeroed at
 * once, before the first step, and kernels start while the product before them ends. Forward, a
 * narrow cell is one kernel, see sequence_forward.cu; with hubs, so is either direction, see
 * hubs.cu. */
#include "cell/cell.h"
#include "cell/hubs.h"
#include "cell/sequence_forward.h"
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

static const step_operations between = {activate_run, gates_early, activate_backward_run,
                                        gates_backward_early};

static const char *kernels_of_steps(const cell *c) {
    return c->stages == 1 ? "products, the gates' kernel"
                          : "products, the gates' kernel, and a kernel for each internal stage";
}

/* Tells which kernels make a cell. `lacks`: what it lacks to be the kernel `one`, or NULL. */
static void explain_cell(backend *be, const cell *c, const char *direction, const char *kernels,
                         const char *one, const char *lacks) {
    char text[400];
    snprintf(text, sizeof text, "cell %s, %d stage%s, %d units, %d columns: %s\n", direction,
             c->stages, c->stages > 1 ? "s" : "", c->hidden, c->columns, kernels);
    if (lacks) {
        const size_t length = strlen(text);
        snprintf(text + length, sizeof text - length, "    not %s, which needs %s\n", one, lacks);
    }
    cuda_explain(be, text);
}

/* What a cell lacks for one kernel over all steps; NULL: nothing. */
static const char *gates_lack(const cell *c) {
    const stage *last = &c->stage[c->stages - 1];
    if (last->gates != GATES) return "four gates";
    for (int s = 0; s < c->stages; s++) {
        if (c->stage[s].layer_norm != last->layer_norm)
            return "layer norm of all stages or of none";
    }
    return NULL;
}

static bool has_hubs(const cell *c) {
    return c->stages > 1 && c->stage[0].units < c->hidden;
}

void cuda_cell_forward(backend *be, const cell *c) {
    const bool hubs = has_hubs(c);
    const char *one = hubs ? "hubs" : "sequence_forward";
    const char *lacks = hubs ? hubs_lack(be, c) : gates_lack(c);
    if (!lacks && !hubs) lacks = sequence_forward_lacks(be, c);
    if (cuda_of(be)->explained) {
        explain_cell(be, c, "forward", lacks ? kernels_of_steps(c) : one, one, lacks);
    }
    if (!lacks && hubs) {
        hubs_forward(be, c);
        return;
    }
    zero_all(be, c, false);
    if (lacks) {
        cell_forward_steps(be, c, &between);
    } else {
        sequence_forward_run(be, c);
    }
}

void cuda_cell_backward(backend *be, const cell *c) {
    const char *lacks = has_hubs(c) ? hubs_lack(be, c) : "hubs";
    if (cuda_of(be)->explained) {
        explain_cell(be, c, "backward", lacks ? kernels_of_steps(c) : "hubs", NULL, NULL);
    }
    if (lacks) {
        zero_all(be, c, true);
        cell_backward_steps(be, c, &between);
        return;
    }
    hubs_backward(be, c);
    for (int s = 0; s < c->stages; s++) {
        if (c->stage[s].table_use != TABLE_NONE) cuda_table_backward(be, c, s);
    }
}
