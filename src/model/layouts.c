#include "model/internal.h"

void model_use_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        stage *g = model_find_stage(m, s);
        if (!g) continue;
        g->layout = m->devices[s];
        g->block = m->layouts[s]->out_block;
    }
}

/* Cuts a layout into parts of nearly equal size. */
static void create_parts(model *m, int s) {
    backend *be = m->be;
    const layout *l = m->layouts[s];
    weight_parts *w = &m->parts[s];
    const size_t most = be->part_weights ? layout_weights(l) / be->part_weights : 1;
    const int parts = (size_t)be->parts < most ? be->parts : (int)most;
    *w = (weight_parts){0};
    if (layout_is_dense(l) || parts < 2) {
        *w = (weight_parts){1, {m->devices[s]}, {layout_weights(l)}};
        return;
    }
    int first = 0;
    for (int i = 1; i <= parts; i++) {
        int end = first;
        const int64_t blocks = (int64_t)l->blocks * i / parts;
        while (end < l->out_nodes && (i == parts || l->row_start[end] < blocks)) end++;
        if (l->row_start[end] == l->row_start[first]) continue;
        layout *rows = layout_rows_of(l, first, end);
        w->weights[w->count] = layout_weights(rows);
        w->part[w->count++] = be->layout_create(be, rows);
        layout_free(rows);
        first = end;
    }
}

static void free_parts(model *m, int s) {
    weight_parts *w = &m->parts[s];
    for (int i = 0; i < w->count; i++) {
        if (w->part[i] != m->devices[s]) m->be->layout_free(m->be, w->part[i]);
    }
}

void model_create_stage_layouts(model *m) {
    const bool parts = m->use == MODEL_TRAINING && m->be->parts > 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        const int gates = model_stage_gates(&m->config, s);
        m->layouts[s] = layout_from_graph(m->graphs[s], (int)m->config.block, gates);
        m->devices[s] = m->be->layout_create(m->be, m->layouts[s]);
        if (parts && gates > 1) create_parts(m, s);
    }
}

void model_free_stage_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        free_parts(m, s);
        m->be->layout_free(m->be, m->devices[s]);
        layout_free(m->layouts[s]);
        graph_free(m->graphs[s]);
    }
}
