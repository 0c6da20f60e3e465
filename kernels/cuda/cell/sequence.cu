/* The cell over its sequence. The steps are those of kernels/cell.c; all sums of layer norm are
 * zeroed at once, before the first step. Forward, a narrow cell is one kernel, see
 * sequence_forward.cu and hub_forward.cu. */
#include "cell/cell.h"
#include "cell/hub_forward.h"
#include "cell/sequence_forward.h"
#include "device/layout.h"
#include "products/products.h"

#include <string.h>

static void zero_all(backend *be, const cell *c, bool backward) {
    for (int s = 0; s < c->stages; s++) {
        const stage *g = &c->stage[s];
        if (!g->layer_norm) continue;
        cuda_zero_sums(be, backward ? g->dsums : g->sums, g->gates * c->steps, c->columns);
    }
}

/* Element 0 of a step: of operands [steps][rows][columns]. */
static void *at_step(const backend *be, const cell *c, void *sequence, int rows, int t) {
    return (char *)sequence + (size_t)t * (size_t)rows * (size_t)c->columns * be->operand_size;
}

/* raw[t] = W x[t] of stage s, and what the layer below adds to the first one. */
static void multiply_stage(backend *be, const cell *c, int s, int t) {
    const stage *g = &c->stage[s];
    const int kept = c->keep ? t : 0, rows = g->gates * g->units;
    const void *x = s ? at_step(be, c, c->stage[s - 1].out, c->stage[s - 1].units, kept)
                      : at_step(be, c, c->h, c->hidden, t);
    void *raw = at_step(be, c, g->raw, rows, kept);
    cuda_fprop(be, g->layout, g->weight, x, 1, c->columns, raw, OPERAND);
    if (s == 0 && c->below) {
        const void *below = at_step(be, c, (void *)(uintptr_t)c->below, rows, t);
        cuda_add_rows(be, g->layout, below, c->columns, raw);
    }
}

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

void cuda_cell_forward(backend *be, const cell *c) {
    const int last = c->stages - 1;
    const bool hubs = c->stages > 1 && c->stage[0].units < c->hidden;
    const char *one = hubs ? "hub_forward" : "sequence_forward";
    const char *lacks = hubs ? hub_forward_lacks(be, c) : sequence_forward_lacks(be, c);
    if (cuda_of(be)->explained) {
        explain_cell(be, c, "forward", lacks ? kernels_of_steps(c) : one, one, lacks);
    }
    zero_all(be, c, false);
    if (!lacks) {
        hubs ? hub_forward_run(be, c) : sequence_forward_run(be, c);
        return;
    }
    for (int t = 0; t < c->steps; t++) {
        for (int s = 0; s < last; s++) {
            multiply_stage(be, c, s, t);
            activate_run(be, c, s, t);
        }
        multiply_stage(be, c, last, t);
        gates_run(be, c, t, true);
    }
}

void cuda_cell_backward(backend *be, const cell *c) {
    const int last = c->stages - 1;
    if (cuda_of(be)->explained) {
        explain_cell(be, c, "backward", kernels_of_steps(c), NULL, NULL);
    }
    zero_all(be, c, true);
    if (!c->has_later_steps) {
        be->zero(be, c->dc, be->real_size * (size_t)c->hidden * (size_t)c->columns);
    }
    for (int t = c->steps - 1; t >= 0; t--) {
        gates_backward_run(be, c, t, true);
        for (int s = last; s >= 0; s--) {
            const stage *g = &c->stage[s];
            if (s < last) activate_backward_run(be, c, s, t);
            if (t == 0 && s == 0 && !c->has_earlier_steps) break; /* h[0] is a constant */
            void *raw = at_step(be, c, stage_raw_gradient(g), g->gates * g->units, t);
            cuda_dgrad(be, g->layout, g->weight, raw, 1, c->columns, c->dx, OPERAND);
        }
    }
    cell_backward_tables(be, c);
}
