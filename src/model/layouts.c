#include "model/internal.h"

void model_use_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        stage *g = model_find_stage(m, s);
        if (!g) continue;
        g->layout = m->devices[s];
        g->block = m->layouts[s]->out_block;
    }
}

void model_create_stage_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        const int gates = model_stage_gates(&m->config, s);
        m->layouts[s] = layout_from_graph(m->graphs[s], (int)m->config.block, gates);
        m->devices[s] = m->be->memory->layout_create(m->be, m->layouts[s]);
        if (m->use != MODEL_MUON || !layout_is_dense(m->layouts[s])) continue;
        const int rows = (int)layout_rows(m->layouts[s]), columns = m->layouts[s]->in_block;
        const int side = muon_side(m->be, rows, columns);
        layout *square = layout_dense(side, side, 1, 1);
        m->squares[s] = m->be->memory->layout_create(m->be, square);
        layout_free(square);
    }
}

bool model_uses_muon(const model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        if (m->squares[s]) return true;
    }
    return false;
}

void model_free_stage_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        m->be->memory->layout_free(m->be, m->devices[s]);
        if (m->squares[s]) m->be->memory->layout_free(m->be, m->squares[s]);
        layout_free(m->layouts[s]);
        graph_free(m->graphs[s]);
    }
}
