/* The cell over a sequence, and gradients with their sums, one operation after another. A backend
 * that can do better replaces these in its table. */
#include "ops.h"

const char *precision_name(precision precision) {
    static const char *const names[] = {[FP32] = "fp32", [BF16] = "bf16", [FP64] = "fp64"};
    return names[precision];
}

static void *at_step(void *sequence, int step, size_t bytes) {
    return (char *)sequence + (size_t)step * bytes;
}

/* Of one step's [rows][columns]. */
static size_t operand_bytes(const backend *be, const cell *c, int rows) {
    return be->operand_size * (size_t)rows * (size_t)c->columns;
}

/* Where step t's activations of a stage are kept. */
static void *kept(const cell *c, void *sequence, int t, size_t bytes) {
    return at_step(sequence, c->keep ? t : 0, bytes);
}

void cell_forward_steps(backend *be, const cell *c, const cell_operations *own) {
    const size_t state = operand_bytes(be, c, c->hidden);
    for (int t = 0; t < c->steps; t++) {
        const void *x = at_step(c->h, t, state);
        for (int s = 0; s < c->stages; s++) {
            const stage *g = &c->stage[s];
            const size_t rows = operand_bytes(be, c, g->gates * g->units);
            void *raw = kept(c, g->raw, t, rows);
            be->products->fprop(be, g->layout, g->weight, x, 1, c->columns, raw, OPERAND);
            if (s == 0 && c->below) {
                const char *below = (const char *)c->below + (size_t)t * rows;
                be->cell->add_rows(be, g->layout, below, c->columns, raw);
            }
            if (s + 1 == c->stages) {
                own->gates(be, c, t);
            } else {
                own->activate(be, c, s, t);
                x = kept(c, g->out, t, operand_bytes(be, c, g->units));
            }
        }
    }
}

void cell_backward_steps(backend *be, const cell *c, const cell_operations *own) {
    if (!c->has_later_steps) {
        be->memory->zero(be, c->dc, be->real_size * (size_t)c->hidden * (size_t)c->columns);
    }
    for (int t = c->steps - 1; t >= 0; t--) {
        for (int s = c->stages - 1; s >= 0; s--) {
            const stage *g = &c->stage[s];
            if (s + 1 == c->stages) {
                own->gates_backward(be, c, t);
            } else {
                own->activate_backward(be, c, s, t);
            }
            if (t == 0 && s == 0 && !c->has_earlier_steps) break; /* h[0] is a constant */
            void *raw =
                at_step(stage_raw_gradient(g), t, operand_bytes(be, c, g->gates * g->units));
            be->products->dgrad(be, g->layout, g->weight, raw, 1, c->columns, c->dx, OPERAND);
        }
    }
    for (int s = 0; s < c->stages; s++) {
        if (c->stage[s].table_use != TABLE_NONE) be->cell->table_backward(be, c, s);
    }
}
