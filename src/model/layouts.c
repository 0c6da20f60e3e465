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
        m->devices[s] = m->be->layout_create(m->be, m->layouts[s]);
    }
}

void model_free_stage_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        m->be->layout_free(m->be, m->devices[s]);
        layout_free(m->layouts[s]);
        graph_free(m->graphs[s]);
    }
}
