#include "model/internal.h"

#include <stdio.h>
#include <string.h>

#define ADD(arena, bytes, pointer) plan_add(&m->plan, arena, bytes, (void **)&(pointer))

kept_arena model_kept(const model *m, int i) {
    const size_t all = m->parameters.total;
    const kept_arena arenas[MODEL_KEPT] = {{"weights", m->weights, all},
                                           {"moment1", m->moment1, all},
                                           {"moment2", m->moment2, m->second_moments},
                                           {"average", m->average, all}};
    return arenas[i];
}

static void plan_weights(model *m) {
    const backend *be = m->be;
    size_t reals = m->parameters.total * be->real_size;
    ADD(PLAN_WEIGHTS, reals, m->weights);
    if (be->precision == BF16 || m->config.norm == NORM_WEIGHT) {
        ADD(PLAN_WEIGHTS, m->parameters.total * be->operand_size, m->rounded);
    }
    if (m->use == MODEL_INFERENCE) return;
    ADD(PLAN_OPTIMISER, reals, m->gradient);
    if (m->segments > 1) ADD(PLAN_OPTIMISER, reals, m->share);
    ADD(PLAN_OPTIMISER, reals, m->moment1);
    ADD(PLAN_OPTIMISER, m->second_moments * be->real_size, m->moment2);
    ADD(PLAN_OPTIMISER, reals, m->average);
    ADD(PLAN_OPTIMISER, m->parameters.total / DECAY_GROUP, m->groups);
}

static size_t workspace_bytes(const model *m) {
    backend *be = m->be;
    size_t most = 0;
    int stages = model_stages(&m->config);
    for (int w = 0; w < TABLE_WIDTHS; w++) {
        if (!m->projection_layouts[w]) continue;
        size_t bytes = be->products->wgrad_workspace(be, m->projection_layouts[w], 1, VOCABULARY);
        if (bytes > most) most = bytes;
    }
    for (int s = 0; s <= stages; s++) {
        const layout *l = s < stages ? m->layouts[s] : m->head_layout;
        size_t bytes = be->products->wgrad_workspace(be, l, m->segment_steps, m->columns);
        if (bytes > most) most = bytes;
        bytes =
            s < stages && m->squares[s] ? muon_workspace(be, (int)layout_rows(l), l->in_block) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Whether backward leaves the gradient at the gates in place of raw. */
static bool is_in_place(const stage *g) {
    return makes_gates(g) && !g->layer_norm;
}

static void plan_stage(model *m, stage *g, bool last) {
    backend *be = m->be;
    bool training = m->use != MODEL_INFERENCE;
    size_t kept = training ? (size_t)m->segment_steps : 1;
    size_t plane = (size_t)g->units * (size_t)m->columns * be->operand_size;
    size_t sums = be->cell->sums_bytes(be, last ? GATES : 1, m->columns);
    ADD(PLAN_ACTIVATIONS, kept * plane * (size_t)g->gates, g->raw);
    if (g->layer_norm) ADD(PLAN_ACTIVATIONS, (size_t)m->segment_steps * sums, g->sums);
    if (!last) ADD(PLAN_ACTIVATIONS, kept * plane, g->out);
    if (!training) return;
    if (!is_in_place(g)) {
        ADD(PLAN_ACTIVATIONS, (keeps_dpre(g) ? kept : 1) * plane * (size_t)g->gates, g->dpre);
    }
    if (g->table_use == TABLE_MULTIPLY) ADD(PLAN_ACTIVATIONS, kept * plane, g->dentry);
    if (g->layer_norm) ADD(PLAN_ACTIVATIONS, kept * sums, g->dsums);
}

static void plan_layer(model *m, cell *c) {
    const backend *be = m->be;
    size_t steps = (size_t)c->steps;
    size_t operands = model_plane_bytes(m, be->operand_size);
    size_t reals = model_plane_bytes(m, be->real_size);
    for (int s = 0; s < c->stages; s++) plan_stage(m, &c->stage[s], s == c->stages - 1);
    ADD(PLAN_ACTIVATIONS, (steps + 1) * operands, c->h);
    ADD(PLAN_ACTIVATIONS, (steps + 1) * reals, c->c);
    if (m->use == MODEL_INFERENCE) return;
    ADD(PLAN_ACTIVATIONS, operands, c->dx);
    ADD(PLAN_ACTIVATIONS, reals, c->dc);
}

/* Arrays that the layers share are requested for the first one, see connect_layer. */
static void plan_cells(model *m) {
    cell *first = &m->layer[0].cell;
    size_t steps = (size_t)m->segment_steps, plane = model_plane_bytes(m, m->be->operand_size);
    for (int y = 0; y < m->layers; y++) plan_layer(m, &m->layer[y].cell);
    if (m->layers > 1) {
        ADD(PLAN_ACTIVATIONS, steps * plane * (size_t)first->stage[0].gates, m->below);
    }
    if (m->use == MODEL_INFERENCE) return;
    ADD(PLAN_ACTIVATIONS, steps * plane, first->dh);
    ADD(PLAN_ACTIVATIONS, model_state_bytes(m), m->carry);
    if (m->segments > 1) {
        ADD(PLAN_ACTIVATIONS, (size_t)(m->segments - 1) * model_state_bytes(m), m->borders);
    }
    ADD(PLAN_ACTIVATIONS, workspace_bytes(m), first->workspace);
}

/* Requests the projected tables, and in the deep cell the results of their layer norms. */
static void plan_tables(model *m, model_layer *y) {
    backend *be = m->be;
    bool training = m->use != MODEL_INFERENCE, deep = m->config.cell == CELL_DEEP;
    const size_t row = VOCABULARY * be->operand_size;
    for (int w = 0; w < TABLE_WIDTHS; w++) {
        if (!m->projection_layouts[w]) continue;
        const size_t bytes = layout_rows(m->projection_layouts[w]) * row;
        ADD(PLAN_ACTIVATIONS, bytes, y->inputs[w].projected);
        if (training) ADD(PLAN_ACTIVATIONS, bytes, y->inputs[w].dprojected);
    }
    if (!deep) {
        const size_t entries = (size_t)model_table_units(&m->config, TABLES_OF_CELLS) * GATES;
        ADD(PLAN_ACTIVATIONS, entries * row, y->cell.entries);
        return;
    }
    const table_width inner = model_inner_tables(&m->config);
    const size_t tables = layout_rows(m->projection_layouts[inner]) * row;
    for (int i = 0; i < 2; i++) {
        stage *g = &y->tables[i].stage[0];
        ADD(PLAN_ACTIVATIONS, tables / 2, g->out);
        ADD(PLAN_ACTIVATIONS, be->cell->sums_bytes(be, 1, VOCABULARY), g->sums);
        if (!training) continue;
        ADD(PLAN_ACTIVATIONS, tables / 2, y->tables[i].dx);
        ADD(PLAN_ACTIVATIONS, be->cell->sums_bytes(be, 1, VOCABULARY), g->dsums);
    }
}

static void plan_ends(model *m) {
    const backend *be = m->be;
    size_t positions = (size_t)m->steps * (size_t)m->columns;
    const size_t logits = (size_t)m->segment_steps * (size_t)m->columns * (size_t)m->head_rows;
    ADD(PLAN_ACTIVATIONS, positions, m->bytes);
    ADD(PLAN_ACTIVATIONS, positions * sizeof *m->targets, m->targets);
    ADD(PLAN_ACTIVATIONS, positions * be->real_size, m->losses);
    ADD(PLAN_ACTIVATIONS, logits * be->real_size, m->logits);
    ADD(PLAN_ACTIVATIONS, VOCABULARY, m->no_bytes);
    ADD(PLAN_ACTIVATIONS, sizeof *m->arguments, m->arguments);
    ADD(PLAN_ACTIVATIONS, sizeof *m->report, m->report);
    ADD(PLAN_ACTIVATIONS, sizeof *m->evaluation, m->evaluation);
    if (m->use == MODEL_INFERENCE) return;
    ADD(PLAN_ACTIVATIONS, logits * be->operand_size, m->dlogits);
    if (m->config.classes > 0) {
        ADD(PLAN_ACTIVATIONS, positions * sizeof *m->labels.classes, m->labels.classes);
        ADD(PLAN_ACTIVATIONS, positions * be->real_size, m->labels.weights);
        ADD(PLAN_ACTIVATIONS, positions * be->real_size, m->labels.losses);
        ADD(PLAN_ACTIVATIONS, positions * be->real_size, m->labels.wrong);
    }
    if (m->projection_layouts[TABLES_OF_CELLS] && m->projection_layouts[TABLES_OF_HUBS]) {
        ADD(PLAN_ACTIVATIONS, (size_t)m->config.embedding * VOCABULARY * be->real_size,
            m->dembedding);
    }
}

static void connect_layer(model *m, model_layer *y) {
    backend *be = m->be;
    const cell *first = &m->layer[0].cell;
    cell *c = &y->cell;
    const table_width inner = model_inner_tables(&m->config);
    char *projected[TABLE_WIDTHS], *dprojected[TABLE_WIDTHS];
    size_t table[TABLE_WIDTHS]; /* bytes of one */
    for (table_width w = TABLES_OF_CELLS; w < TABLE_WIDTHS; w++) {
        projected[w] = y->inputs[w].projected;
        dprojected[w] = y->inputs[w].dprojected;
        table[w] = (size_t)model_table_units(&m->config, w) * VOCABULARY * be->operand_size;
    }
    c->bytes = m->bytes;
    c->arguments = m->arguments;
    c->dh = first->dh;
    c->workspace = first->workspace;
    if (c != first) c->below = m->below;
    for (int s = 0; s < c->stages; s++) {
        stage *g = &c->stage[s];
        if (m->use != MODEL_INFERENCE && is_in_place(g)) g->dpre = g->raw;
    }
    if (m->config.cell == CELL_DEEP) {
        for (int i = 0; i < 2; i++) {
            stage *g = &y->tables[i].stage[0];
            y->tables[i].bytes = m->no_bytes;
            g->raw = projected[inner] + (size_t)i * table[inner];
            g->dpre = dprojected[inner] ? dprojected[inner] + (size_t)i * table[inner] : NULL;
            c->stage[i].table = g->out;
            c->stage[i].dtable = y->tables[i].dx;
        }
        return;
    }
    for (int s = 0; s < c->stages; s++) {
        const table_width w = s + 1 == c->stages ? TABLES_OF_CELLS : inner;
        c->stage[s].table = projected[w];
        c->stage[s].dtable = dprojected[w];
        projected[w] += (size_t)c->stage[s].gates * table[w];
        if (dprojected[w]) dprojected[w] += (size_t)c->stage[s].gates * table[w];
    }
}

void model_connect(model *m) {
    for (int y = 0; y < m->layers; y++) connect_layer(m, &m->layer[y]);
}

void model_plan(model *m, int segments) {
    m->plan = (plan){0};
    m->segment_steps = (m->steps + segments - 1) / segments;
    m->segments = (m->steps + m->segment_steps - 1) / m->segment_steps;
    for (int y = 0; y < m->layers; y++) m->layer[y].cell.steps = m->segment_steps;
    plan_weights(m);
    plan_cells(m);
    for (int y = 0; y < m->layers; y++) plan_tables(m, &m->layer[y]);
    plan_ends(m);
    for (int s = 0; s < model_stages(&m->config); s++) {
        plan_count_tables(&m->plan, m->be->memory->layout_bytes(m->devices[s]));
        if (m->squares[s]) plan_count_tables(&m->plan, m->be->memory->layout_bytes(m->squares[s]));
    }
    for (int w = 0; w < TABLE_WIDTHS; w++) {
        if (!m->projection_devices[w]) continue;
        plan_count_tables(&m->plan, m->be->memory->layout_bytes(m->projection_devices[w]));
    }
    plan_count_tables(&m->plan, m->be->memory->layout_bytes(m->head_device));
}

/* Doubles the number of segments until the model fits; 0 if it does not even with one step each. */
static int segments_that_fit(model *m) {
    for (int segments = m->segments; segments < m->steps;) {
        segments = segments > m->steps / 2 ? m->steps : 2 * segments;
        model_plan(m, segments);
        bool fits = plan_total(&m->plan) <= m->be->available;
        plan_release(&m->plan, m->be);
        if (fits) return segments;
    }
    return 0;
}

void model_suggest_segments(model *m, error *err) {
    int segments = m->use != MODEL_INFERENCE ? segments_that_fit(m) : 0;
    size_t used = strlen(err->text);
    if (segments == 0) return;
    snprintf(err->text + used, sizeof err->text - used, "; train.recompute: %d would make it fit",
             segments);
}
