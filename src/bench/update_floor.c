#include "bench/update_floor.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

const char *const time_part_names[] = {"forward",         "recompute", "backward",
                                       "weight_gradient", "head",      "optimiser"};

/* The quantities that lines are computed from. */
typedef struct shape {
    const model *m;
    update_floor *f;
    double units;      /* hidden x streams, of one step: of the gates */
    double s, r;       /* bytes of an operand and of a real */
    bool resident;     /* whether the recurrent weights stay in the L2 */
    bool all_resident; /* whether everything stays in the L2 */
} shape;

static void add(shape *p, time_part part, double times, cost c, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

static void add(shape *p, time_part part, double times, cost c, const char *format, ...) {
    floor_line *line = &p->f->lines[p->f->count++];
    va_list arguments;
    if (p->all_resident) c = (cost){0, c.operations, fmax(c.cache, c.memory)};
    *line = (floor_line){.part = part, .times = times, .cost = c};
    va_start(arguments, format);
    vsnprintf(line->what, sizeof line->what, format, arguments);
    va_end(arguments);
}

/* ------------------------------------------------------------------------------- recurrent part */

/* fprop or dgrad of one step. Its memory traffic is the weights. */
static cost recurrent(const shape *p, const layout *l, bench_product product) {
    cost c = cost_of_product(l, product, p->m->batch, (size_t)p->s, (size_t)p->s);
    c.memory = p->resident ? 0 : (double)layout_weights(l) * p->s;
    return c;
}

static cost gates_forward(const shape *p, const stage *g) {
    double s = p->s, r = p->r, gates = g->gates, table = gates / g->table_stride;
    double kept = s + r, handed = gates * s + table * s + r + kept;
    return (cost){p->units * kept, 0, p->units * handed};
}

static cost gates_backward(const shape *p, const stage *g) {
    double s = p->s, r = p->r, gates = g->gates, table = gates / g->table_stride;
    double kept = s + gates * s + r + gates * s;
    double handed = 2 * s + gates * s + table * s + 2 * r + 2 * r + gates * s;
    if (g->layer_norm) { /* raw and dpre stay on chip until the sums are known */
        kept += keeps_dpre(g) ? gates * s : 0;
        handed += gates * s;
    }
    return (cost){p->units * kept, 0, p->units * handed};
}

static cost stage_forward(const shape *p, const stage *g) {
    double s = p->s, table = g->table_use == TABLE_NONE ? 0 : 1.0 / g->table_stride;
    return (cost){p->units * s, 0, p->units * s * (2 + table)};
}

static cost stage_backward(const shape *p, const stage *g) {
    double s = p->s, table = g->table_use == TABLE_NONE ? 0 : 1.0 / g->table_stride;
    double entry = g->table_use == TABLE_MULTIPLY ? 1 : 0;
    double kept = 2 + entry, handed = 3 + table + entry;
    if (g->layer_norm) {
        kept += 1;
        handed += 3;
    }
    return (cost){p->units * s * kept, 0, p->units * s * handed};
}

/* Returns the stage of a cell, skipping the product with the layer below. */
static const stage *stage_of(const model *m, int s) {
    const stage_place at = model_stage_place(&m->config, s);
    return &m->layer[at.layer].cell.stage[at.stage];
}

static void add_forward(shape *p, time_part part, int s, double steps, bool kept, const char *how) {
    const model *m = p->m;
    const stage *g = stage_of(m, s);
    cost product = recurrent(p, m->layouts[s], PRODUCT_FPROP);
    cost rest = makes_gates(g) ? gates_forward(p, g) : stage_forward(p, g);
    char name[16];
    if (steps == 0) return;
    model_stage_name(&m->config, s, name);
    if (kept) {
        product.memory += (double)g->gates * p->units * p->s;
    } else {
        rest.memory = 0;
    }
    add(p, part, steps, product, "%s fprop%s", name, how);
    add(p, part, steps, rest, "%s%s", name, how);
}

/* Adds the product with the layer below: its products over all steps, and its sum with the stage's
 * own product, which adds to the traffic of the L2. */
static void add_below(shape *p, int s) {
    const model *m = p->m;
    const layout *l = m->layouts[s];
    const size_t z = (size_t)p->s;
    const int positions = m->batch * m->steps;
    double before = (double)(m->segments - 1) * m->segment_steps, times = 1 + before / m->steps;
    cost sum = {(double)l->gates * p->units * p->s, 0, 3.0 * l->gates * p->units * p->s};
    char name[16];
    model_stage_name(&m->config, s, name);
    add(p, TIME_FORWARD, times, cost_of_product(l, PRODUCT_FPROP, positions, z, z), "%s fprop",
        name);
    add(p, TIME_FORWARD, m->steps + before, sum, "%s sum", name);
    add(p, TIME_BACKWARD, 1, cost_of_product(l, PRODUCT_DGRAD, positions, z, z), "%s dgrad", name);
    add(p, TIME_WEIGHT_GRADIENT, 1, cost_of_product(l, PRODUCT_WGRAD, positions, z, (size_t)p->r),
        "%s wgrad", name);
}

static void add_stage(shape *p, int s) {
    const model *m = p->m;
    const stage_place at = model_stage_place(&m->config, s);
    if (at.stage == STAGE_BELOW) {
        add_below(p, s);
        return;
    }
    const stage *g = stage_of(m, s);
    const layout *l = m->layouts[s];
    bool last = makes_gates(g);
    double steps = m->steps, entries = (double)g->gates / g->table_stride;
    double before = (double)(m->segments - 1) * m->segment_steps; /* all segments but the last */
    char name[16];
    model_stage_name(&m->config, s, name);
    add_forward(p, TIME_FORWARD, s, before, false, ", not kept");
    add_forward(p, TIME_FORWARD, s, steps - before, true, "");
    add_forward(p, TIME_RECOMPUTE, s, before, true, ", again");
    add(p, TIME_BACKWARD, steps, last ? gates_backward(p, g) : stage_backward(p, g), "%s backward",
        name);
    /* Nothing needs the gradient at h[0]. */
    add(p, TIME_BACKWARD, at.stage == 0 ? steps - 1 : steps, recurrent(p, l, PRODUCT_DGRAD),
        "%s dgrad", name);
    add(p, TIME_WEIGHT_GRADIENT, 1,
        cost_of_product(l, PRODUCT_WGRAD, m->batch * m->steps, (size_t)p->s, (size_t)p->r),
        "%s wgrad", name);
    if (g->table_use == TABLE_NONE) return;
    double table = entries * (double)m->config.hidden * VOCABULARY;
    double gradients = entries * p->units * steps;
    add(p, TIME_BACKWARD, 1, (cost){p->s * (gradients + table), 0, 0}, "%s table gradient", name);
}

/* ------------------------------------------------------------------------------------ the rest */

static void add_tables(shape *p) {
    size_t s = (size_t)p->s, r = (size_t)p->r;
    for (int w = 0; w < TABLE_WIDTHS; w++) {
        const layout *l = p->m->projection_layouts[w];
        if (!l) continue;
        add(p, TIME_FORWARD, p->m->layers, cost_of_product(l, PRODUCT_FPROP, VOCABULARY, s, s),
            "input tables");
        add(p, TIME_BACKWARD, p->m->layers,
            cost_sum(cost_of_product(l, PRODUCT_DGRAD, VOCABULARY, s, r),
                     cost_of_product(l, PRODUCT_WGRAD, VOCABULARY, s, r)),
            "input tables backward");
    }
}

static void add_head(shape *p) {
    const model *m = p->m;
    const layout *l = m->head_layout;
    size_t s = (size_t)p->s, r = (size_t)p->r;
    int positions = m->batch * m->steps;
    double logits = (double)VOCABULARY * positions;
    add(p, TIME_HEAD, 1, cost_of_product(l, PRODUCT_FPROP, positions, s, r), "head fprop");
    add(p, TIME_HEAD, 1, (cost){logits * (p->r + p->s), 0, 0}, "softmax");
    add(p, TIME_HEAD, 1, cost_of_product(l, PRODUCT_WGRAD, positions, s, r), "head wgrad");
    add(p, TIME_HEAD, 1, cost_of_product(l, PRODUCT_DGRAD, positions, s, s), "head dgrad");
}

static void add_segments(shape *p) {
    double others = p->m->segments - 1;
    if (others == 0) return;
    add(p, TIME_BACKWARD, others, (cost){(double)p->m->parameters.total * 3 * p->r, 0, 0},
        "segments' sum");
}

static void add_waits(shape *p) {
    const model *m = p->m;
    update_floor *f = p->f;
    double steps = m->steps, before = (double)(m->segments - 1) * m->segment_steps;
    int stages = model_stages(&m->config) - (m->layers - 1);
    f->waits = stages; /* for products' inputs; and for layer norm's sums */
    for (int s = 0; s < model_stages(&m->config); s++) {
        const bool below = model_stage_place(&m->config, s).stage == STAGE_BELOW;
        if (!below && stage_of(m, s)->layer_norm) f->waits++;
    }
    for (int part = 0; part < TIME_PARTS; part++) f->waited[part] = 0;
    f->waited[TIME_FORWARD] = f->waited[TIME_BACKWARD] = steps * f->waits;
    f->waited[TIME_RECOMPUTE] = before * f->waits;
}

static void add_optimiser(shape *p) {
    double each = 10 * p->r + (p->m->rounded ? p->s : 0);
    add(p, TIME_OPTIMISER, 1, (cost){(double)p->m->parameters.total * each, 0, 0}, "Adam");
}

void update_floor_describe(const model *m, size_t cache_size, update_floor *f) {
    shape p = {.m = m,
               .f = f,
               .units = (double)m->config.hidden * (double)m->batch,
               .s = (double)m->be->operand_size,
               .r = (double)m->be->real_size};
    double weights = 0;
    int stages = model_stages(&m->config);
    for (int s = 0; s < stages; s++) weights += (double)layout_weights(m->layouts[s]);
    p.resident = weights * p.s <= (double)cache_size;
    p.all_resident = plan_total(&m->plan) <= cache_size;
    f->count = 0;
    for (int s = 0; s < stages; s++) add_stage(&p, s);
    add_tables(&p);
    add_head(&p);
    add_segments(&p);
    add_optimiser(&p);
    add_waits(&p);
}

double update_floor_seconds(const update_floor *f, const ceilings *c, bench_math math,
                            double parts[TIME_PARTS]) {
    double total = 0;
    for (int i = 0; parts && i < TIME_PARTS; i++) parts[i] = 0;
    for (int i = 0; i < f->count; i++) {
        const floor_line *line = &f->lines[i];
        double seconds = line->times * cost_floor(line->cost, c, math, NULL);
        if (parts) parts[line->part] += seconds;
        total += seconds;
    }
    return total;
}

double update_floor_chain(const update_floor *f, const ceilings *c, bench_math math,
                          time_part part) {
    double parts[TIME_PARTS];
    update_floor_seconds(f, c, math, parts);
    return parts[part] + f->waited[part] * c->exchange;
}

void update_floor_print(const update_floor *f, const ceilings *c, bench_math math, FILE *out) {
    char text[160];
    double parts[TIME_PARTS];
    fprintf(out, "ceilings: %s\n", ceilings_text(c, text));
    fprintf(out, "%-24s %6s %10s %10s %10s %10s  %s\n", "floor of an update", "times", "memory MB",
            "GFLOP", "L2 MB", "us each", "held by");
    double total = update_floor_seconds(f, c, math, parts);
    for (int part = 0; part < TIME_PARTS; part++) {
        if (part == TIME_RECOMPUTE && f->waited[part] == 0) continue;
        fprintf(out, "%s: %.3f ms\n", time_part_names[part], parts[part] * 1e3);
        for (int i = 0; i < f->count; i++) {
            const floor_line *line = &f->lines[i];
            if (line->part != (time_part)part) continue;
            limit by;
            double seconds = cost_floor(line->cost, c, math, &by);
            fprintf(out, "  %-22s %6.0f %10.3f %10.3f %10.3f %10.2f  %s\n", line->what, line->times,
                    line->cost.memory * 1e-6, line->cost.operations * 1e-9, line->cost.cache * 1e-6,
                    seconds * 1e6, limit_names[by]);
        }
    }
    fprintf(out, "in all: %.3f ms\n", total * 1e3);
    fprintf(out,
            "the chain: %d waits a step in each direction, of %.2f us each: forward %.3f ms, "
            "backward %.3f ms\n",
            f->waits, c->exchange * 1e6, update_floor_chain(f, c, math, TIME_FORWARD) * 1e3,
            update_floor_chain(f, c, math, TIME_BACKWARD) * 1e3);
}
