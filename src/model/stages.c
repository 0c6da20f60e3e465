#include "model/internal.h"

#include <stdio.h>

int model_cell_stages(const model_config *config) {
    switch ((cell_kind)config->cell) {
    case CELL_LSTM: return 1;
    case CELL_MLSTM: return 2;
    case CELL_DEEP: return (int)config->internal_steps + 1;
    }
    return 0;
}

int model_stages(const model_config *config) {
    int own = model_cell_stages(config);
    return own + ((int)config->layers - 1) * (own + 1);
}

int model_most_layers(const model_config *config) {
    int own = model_cell_stages(config);
    return 1 + (CELL_MAX_STAGES - own) / (own + 1);
}

stage_place model_stage_place(const model_config *config, int stage) {
    int own = model_cell_stages(config), above = stage - own;
    if (above < 0) return (stage_place){0, stage};
    return (stage_place){1 + above / (own + 1), above % (own + 1) + STAGE_BELOW};
}

int model_below_stage(const model_config *config, int layer) {
    int own = model_cell_stages(config);
    return own + (layer - 1) * (own + 1);
}

int model_gates(const model_config *config) {
    return config->coupled_gates ? COUPLED_GATES : GATES;
}

int model_stage_gates(const model_config *config, int stage) {
    stage_place at = model_stage_place(config, stage);
    if (at.stage == STAGE_BELOW) at.stage = 0; /* it adds to that one's rows */
    return at.stage == model_cell_stages(config) - 1 ? model_gates(config) : 1;
}

int64_t model_inner_units(const model_config *config) {
    return config->hubs ? config->hubs : config->hidden;
}

int model_stage_nodes(const model_config *config, int stage) {
    const bool gates = model_stage_gates(config, stage) > 1;
    return (int)((gates ? config->hidden : model_inner_units(config)) / config->block);
}

int model_stage_inputs(const model_config *config, int stage) {
    const bool inner = model_stage_place(config, stage).stage > 0;
    return (int)((inner ? model_inner_units(config) : config->hidden) / config->block);
}

const char *model_stage_name(const model_config *config, int stage, char name[16]) {
    stage_place at = model_stage_place(config, stage);
    int used = at.layer ? snprintf(name, 16, "layer%d.", at.layer + 1) : 0;
    size_t room = 16 - (size_t)used;
    if (at.stage == STAGE_BELOW) {
        snprintf(name + used, room, "below");
    } else if (at.stage == model_cell_stages(config) - 1) {
        snprintf(name + used, room, "gates");
    } else {
        snprintf(name + used, room, "step%d", at.stage);
    }
    return name;
}

graph *model_cells_graph(const model_config *config, graph *const *graphs, int layer) {
    graph *all = NULL;
    const graph *before = NULL;
    for (int s = 0; s < model_stages(config); s++) {
        const stage_place at = model_stage_place(config, s);
        if (at.layer != layer || at.stage == STAGE_BELOW) continue;
        if (before) {
            graph *through = graph_through(graphs[s], before);
            graph_free(all);
            all = through;
        }
        before = all ? all : graphs[s];
    }
    return all;
}

bool model_graphs(const model_config *config, graph *graphs[CELL_MAX_STAGES], error *err) {
    static const graph_kind peripheries[] = {GRAPH_RANDOM, GRAPH_WATTS_STROGATZ,
                                             GRAPH_WATTS_STROGATZ_2D, GRAPH_BARABASI_ALBERT};
    int stages = model_stages(config);
    for (int s = 0; s < stages; s++) {
        graph_options options = {.kind = (graph_kind)config->graph,
                                 .degree = (int)config->degree,
                                 .density = config->density,
                                 .rewire = config->rewire,
                                 .core = config->core,
                                 .core_reads = config->core_reads,
                                 .periphery_reads = config->periphery_reads,
                                 .periphery = peripheries[config->periphery],
                                 .file = config->graph_file,
                                 .seed = (uint64_t)config->seed,
                                 .pattern = s};
        const int nodes = model_stage_nodes(config, s), inputs = model_stage_inputs(config, s);
        if (config->hubs && config->graph == GRAPH_FILE) {
            /* A file says which hubs each cell reads; those read the same cells. */
            options.transposed = model_stage_gates(config, s) == 1;
            if (model_stage_place(config, s).stage > 0 && options.transposed) {
                options.kind = GRAPH_DENSE; /* among hubs */
            }
        }
        graphs[s] = config->hubs ? graph_create_between(&options, nodes, inputs, err)
                                 : graph_create(&options, nodes, err);
        if (graphs[s]) continue;
        while (s-- > 0) graph_free(graphs[s]);
        return false;
    }
    return true;
}

int model_tables(const model_config *config, table_width width) {
    static const int of_inner[] = {[CELL_LSTM] = 0, [CELL_MLSTM] = 1, [CELL_DEEP] = 2};
    const int inner = of_inner[config->cell];
    const int gates = config->cell == CELL_DEEP ? 0 : model_gates(config);
    if (width == TABLES_OF_HUBS) return config->hubs ? inner : 0;
    return config->hubs ? gates : inner + gates;
}

table_width model_inner_tables(const model_config *config) {
    return config->hubs ? TABLES_OF_HUBS : TABLES_OF_CELLS;
}

int64_t model_table_units(const model_config *config, table_width width) {
    return (width == TABLES_OF_HUBS ? config->hubs : config->hidden) / config->input_stride;
}
