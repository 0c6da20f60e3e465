/* The cell over its sequence. The steps are those of kernels/cell.c; all sums of layer norm are
 * zeroed at once, before the first step. An internal stage is a product and, if `whole`, one
 * kernel, see stages.cu; otherwise it is a kernel for each operation. Forward, a narrow cell is one
 * kernel, see sequence_forward.cu and hub_forward.cu. */
#include "cell/cell.h"
#include "cell/hub_forward.h"
#include "cell/sequence_forward.h"
#include "layout.h"
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

/* raw[t] = W x[t] of stage s, and what the layer below adds to the first one. With `makes_sums` and
 * layer norm, also the sums of raw. */
static void multiply_stage(backend *be, const cell *c, int s, int t, bool makes_sums) {
    const stage *g = &c->stage[s];
    const int kept = c->keep ? t : 0, rows = g->gates * g->units;
    const void *x = s ? at_step(be, c, c->stage[s - 1].out, c->stage[s - 1].units, kept)
                      : at_step(be, c, c->h, c->hidden, t);
    void *sums = NULL;
    if (makes_sums && g->layer_norm) {
        sums = (char *)g->sums + t * cuda_sums_bytes(be, g->gates, c->columns);
    }
    void *raw = at_step(be, c, g->raw, rows, kept);
    const bool adds = s == 0 && c->below;
    products_fprop_adding(be, g->layout, g->weight, x, c->columns, raw, adds ? NULL : sums);
    if (adds) {
        const void *below = at_step(be, c, (void *)(uintptr_t)c->below, rows, t);
        add_rows_run(be, g->layout, below, c->columns, raw, sums);
    }
}

static const char *kernels_of_steps(const cell *c, bool whole) {
    return c->stages == 1 ? "products, the gates' kernel"
           : whole        ? "products, the gates' kernel, and a kernel for each internal stage"
                   : "products, the gates' kernel, and for internal stages a kernel for each "
                     "operation";
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
    const bool whole = whole_stages_fit(be, c, true);
    const int last = c->stages - 1;
    const bool hubs = c->stages > 1 && c->stage[0].units < c->hidden;
    const char *one = hubs ? "hub_forward" : "sequence_forward";
    const char *lacks = hubs ? hub_forward_lacks(be, c) : sequence_forward_lacks(be, c);
    if (cuda_of(be)->explained) {
        explain_cell(be, c, "forward", lacks ? kernels_of_steps(c, whole) : one, one, lacks);
    }
    zero_all(be, c, false);
    if (!lacks) {
        hubs ? hub_forward_run(be, c) : sequence_forward_run(be, c);
        return;
    }
    for (int t = 0; t < c->steps; t++) {
        for (int s = 0; s < last; s++) {
            multiply_stage(be, c, s, t, !whole);
            whole ? activate_whole_run(be, c, s, t) : cuda_activate(be, c, s, t);
        }
        multiply_stage(be, c, last, t, true);
        gates_run(be, c, t, true);
    }
}

void cuda_cell_backward(backend *be, const cell *c) {
    const bool whole = whole_stages_fit(be, c, false);
    const int last = c->stages - 1;
    if (cuda_of(be)->explained) {
        explain_cell(be, c, "backward", kernels_of_steps(c, whole), NULL, NULL);
    }
    zero_all(be, c, true);
    if (!c->has_later_steps) {
        be->zero(be, c->dc, be->real_size * (size_t)c->hidden * (size_t)c->columns);
    }
    for (int t = c->steps - 1; t >= 0; t--) {
        gates_backward_run(be, c, t, true);
        for (int s = last; s >= 0; s--) {
            const stage *g = &c->stage[s];
            if (s < last && whole) activate_backward_whole_run(be, c, s, t);
            if (s < last && !whole) {
                activate_backward_run(be, c, s, t);
                if (g->layer_norm) cuda_norm_backward(be, c, s, t);
            }
            if (t == 0 && s == 0 && !c->has_earlier_steps) break; /* h[0] is a constant */
            void *raw = at_step(be, c, stage_raw_gradient(g), g->gates * g->units, t);
            cuda_dgrad(be, g->layout, g->weight, raw, 1, c->columns, c->dx, OPERAND);
        }
    }
    cell_backward_tables(be, c);
}
