#include "model/model.h"

#include "core/memory.h"
#include "core/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------ shape */

/* The number of stages of one layer's cell. */
static int cell_stages(const model_config *config) {
    switch ((cell_kind)config->cell) {
    case CELL_LSTM: return 1;
    case CELL_MLSTM: return 2;
    case CELL_DEEP: return (int)config->internal_steps + 1;
    }
    return 0;
}

int model_stages(const model_config *config) {
    int own = cell_stages(config);
    return own + ((int)config->layers - 1) * (own + 1);
}

int model_most_layers(const model_config *config) {
    int own = cell_stages(config);
    return 1 + (CELL_MAX_STAGES - own) / (own + 1);
}

stage_place model_stage_place(const model_config *config, int stage) {
    int own = cell_stages(config), above = stage - own;
    if (above < 0) return (stage_place){0, stage};
    return (stage_place){1 + above / (own + 1), above % (own + 1) + STAGE_BELOW};
}

/* The number of the stage by which a layer above the first reads the layer below. */
static int below_stage(const model_config *config, int layer) {
    int own = cell_stages(config);
    return own + (layer - 1) * (own + 1);
}

int model_stage_gates(const model_config *config, int stage) {
    stage_place at = model_stage_place(config, stage);
    if (at.stage == STAGE_BELOW) at.stage = 0; /* it adds to that one's rows */
    return at.stage == cell_stages(config) - 1 ? GATES : 1;
}

const char *model_stage_name(const model_config *config, int stage, char name[16]) {
    stage_place at = model_stage_place(config, stage);
    int used = at.layer ? snprintf(name, 16, "layer%d.", at.layer + 1) : 0;
    size_t room = 16 - (size_t)used;
    if (at.stage == STAGE_BELOW) {
        snprintf(name + used, room, "below");
    } else if (at.stage == cell_stages(config) - 1) {
        snprintf(name + used, room, "gates");
    } else {
        snprintf(name + used, room, "step%d", at.stage);
    }
    return name;
}

bool model_graphs(const model_config *config, graph *graphs[CELL_MAX_STAGES], error *err) {
    int stages = model_stages(config);
    for (int s = 0; s < stages; s++) {
        graph_options options = {.kind = (graph_kind)config->graph,
                                 .degree = (int)config->degree,
                                 .density = config->density,
                                 .rewire = config->rewire,
                                 .core = config->core,
                                 .core_reads = config->core_reads,
                                 .periphery_reads = config->periphery_reads,
                                 .periphery = (graph_kind)(GRAPH_RANDOM + config->periphery),
                                 .file = config->graph_file,
                                 .seed = (uint64_t)config->seed,
                                 .pattern = s};
        graphs[s] = graph_create(&options, (int)(config->hidden / config->block), err);
        if (graphs[s]) continue;
        while (s-- > 0) graph_free(graphs[s]);
        return false;
    }
    return true;
}

int model_tables(const model_config *config) {
    static const int tables[] = {[CELL_LSTM] = GATES, [CELL_MLSTM] = 1 + GATES, [CELL_DEEP] = 2};
    return tables[config->cell];
}

static int64_t table_units(const model_config *config) {
    return config->hidden / config->input_stride;
}

/* ------------------------------------------------------------------------------- parameters */

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__, 0})

enum { NONE = -1 }; /* stands for a parameter that does not exist */

/* Appends the parameter named `prefix` and then `name`; returns its number. */
static int add(model *m, const char *prefix, const char *name, const int64_t *shape,
               initialiser initialiser, double scale) {
    char full[48];
    snprintf(full, sizeof full, "%s%s", prefix, name);
    parameter_add(&m->parameters, full, shape, initialiser, scale);
    return m->parameters.count - 1;
}

/* Appends a layer's embedding, projection and the layer norms of its tables. */
static void add_input(model *m, int layer) {
    const model_config *config = &m->config;
    model_layer *y = &m->layer[layer];
    int64_t units = table_units(config), embedding = config->embedding;
    char prefix[24] = "input.", table[40];
    if (layer) snprintf(prefix, sizeof prefix, "input.layer%d.", layer + 1);
    y->embedding = add(m, prefix, "embedding", SHAPE(embedding, VOCABULARY), INIT_NORMAL, 1);
    y->projection = add(m, prefix, "projection", SHAPE(model_tables(config), units, embedding),
                        INIT_NORMAL, 1 / sqrt((double)embedding));
    for (int i = 0; config->cell == CELL_DEEP && i < 2; i++) {
        stage_parameters *p = &y->table_parameters[i];
        snprintf(table, sizeof table, "%s%s", prefix, i ? "add." : "multiply.");
        p->weight = p->gain = NONE;
        if (config->layer_norm) p->gain = add(m, table, "gain", SHAPE(units), INIT_CONSTANT, 1);
        p->bias = add(m, table, "bias", SHAPE(units), INIT_CONSTANT, 0);
    }
}

static void add_stage(model *m, int s) {
    const model_config *config = &m->config;
    const layout *l = m->layouts[s];
    stage_parameters *p = &m->stage_parameters[s];
    int64_t hidden = config->hidden;
    bool four = l->gates == GATES, below = model_stage_place(config, s).stage == STAGE_BELOW;
    const int64_t *weight = four ? SHAPE(l->blocks, GATES, l->out_block, l->in_block)
                                 : SHAPE(l->blocks, l->out_block, l->in_block);
    const int64_t *vector = four ? SHAPE(GATES, hidden) : SHAPE(hidden);
    char stage[16], prefix[32];
    snprintf(prefix, sizeof prefix, "cell.%s.", model_stage_name(config, s, stage));
    p->weight = add(m, prefix, "weight", weight, INIT_IDENTITY, config->init_noise);
    parameter *sparse = &m->parameters.items[p->weight];
    sparse->layout = l;
    sparse->block = (int)config->block;
    sparse->decays = true;
    p->gain = p->bias = NONE;
    if (below) return;
    if (config->layer_norm) p->gain = add(m, prefix, "gain", vector, INIT_CONSTANT, 1);
    if (four) {
        p->bias = add(m, prefix, "bias", vector, INIT_GATE_BIAS, config->forget_bias);
    } else if (config->cell == CELL_DEEP) {
        p->bias = add(m, prefix, "bias", vector, INIT_CONSTANT, 0);
    }
}

static void add_parameters(model *m) {
    const model_config *config = &m->config;
    int layer = -1;
    for (int s = 0; s < model_stages(config); s++) {
        int of = model_stage_place(config, s).layer;
        if (of != layer) add_input(m, of);
        layer = of;
        add_stage(m, s);
    }
    int64_t read = config->hidden / config->output_stride;
    m->head_weight =
        add(m, "head.", "weight", SHAPE(VOCABULARY, read), INIT_NORMAL, 1 / sqrt((double)read));
    m->head_bias = add(m, "head.", "bias", SHAPE(VOCABULARY), INIT_CONSTANT, 0);
}

/* Where a parameter lies in an arena of elements of `size` bytes; NULL if there is no such
 * parameter or no arena. */
static void *place(const model *m, const void *arena, size_t size, int number) {
    if (number == NONE || !arena) return NULL;
    return (char *)(uintptr_t)arena + m->parameters.items[number].offset * size;
}

static void *operand_place(const model *m, int number) {
    return place(m, m->operands, m->be->operand_size, number);
}

static void *value_place(const model *m, int number) {
    return place(m, m->bound, m->be->real_size, number);
}

static void *gradient_place(const model *m, int number) {
    return place(m, m->into, m->be->real_size, number);
}

static void bind_stage(const model *m, stage *g, const stage_parameters *p) {
    g->weight = operand_place(m, p->weight);
    g->gain = value_place(m, p->gain);
    g->bias = value_place(m, p->bias);
}

static void bind_stage_gradients(const model *m, stage *g, const stage_parameters *p) {
    g->dweight = gradient_place(m, p->weight);
    g->dgain = gradient_place(m, p->gain);
    g->dbias = gradient_place(m, p->bias);
}

/* The stage of a layer's cell; NULL for the one that reads the layer below, a product by itself. */
static stage *find_stage(model *m, int s) {
    stage_place at = model_stage_place(&m->config, s);
    return at.stage == STAGE_BELOW ? NULL : &m->layer[at.layer].cell.stage[at.stage];
}

static void bind_all(model *m, void (*bind)(const model *m, stage *g, const stage_parameters *p)) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        stage *g = find_stage(m, s);
        if (g) bind(m, g, &m->stage_parameters[s]);
    }
    for (int i = 0; m->config.cell == CELL_DEEP && i < 2 * m->layers; i++) {
        model_layer *y = &m->layer[i / 2];
        bind(m, &y->tables[i % 2].stage[0], &y->table_parameters[i % 2]);
    }
}

/* Points the cells at the arenas that forward reads. */
static void bind_parameters(model *m) {
    bind_all(m, bind_stage);
}

/* Points backward at the arena that it fills. */
static void bind_gradients(model *m, void *arena) {
    m->into = arena;
    bind_all(m, bind_stage_gradients);
}

/* ----------------------------------------------------------------------------------- memory */

#define ADD(arena, bytes, pointer) plan_add(&m->plan, arena, bytes, (void **)&(pointer))

static void plan_weights(model *m) {
    const backend *be = m->be;
    size_t reals = m->parameters.total * be->real_size;
    ADD(PLAN_WEIGHTS, reals, m->weights);
    if (be->precision == BF16) {
        ADD(PLAN_WEIGHTS, m->parameters.total * be->operand_size, m->rounded);
    }
    if (m->use == MODEL_INFERENCE) return;
    ADD(PLAN_OPTIMISER, reals, m->gradient);
    if (m->segments > 1) ADD(PLAN_OPTIMISER, reals, m->share);
    ADD(PLAN_OPTIMISER, reals, m->moment1);
    ADD(PLAN_OPTIMISER, reals, m->moment2);
    ADD(PLAN_OPTIMISER, reals, m->average);
    ADD(PLAN_OPTIMISER, (m->parameters.total + DECAY_GROUP - 1) / DECAY_GROUP, m->decays);
}

static size_t workspace_bytes(const model *m) {
    backend *be = m->be;
    size_t most = be->wgrad_workspace(be, m->projection_layout, 1, VOCABULARY);
    size_t table = TABLE_WORKSPACE * (size_t)m->segment_steps * (size_t)m->columns;
    int stages = model_stages(&m->config);
    if (table > most) most = table;
    for (int s = 0; s <= stages; s++) {
        const layout *l = s < stages ? m->layouts[s] : m->head_layout;
        size_t bytes = be->wgrad_workspace(be, l, m->segment_steps, m->columns);
        if (bytes > most) most = bytes;
    }
    return most;
}

static size_t plane_bytes(const model *m, size_t element) {
    return (size_t)m->config.hidden * (size_t)m->columns * element;
}

/* Requests h and c of all layers at one step. */
static size_t state_bytes(const model *m) {
    size_t of_one = plane_bytes(m, m->be->operand_size) + plane_bytes(m, m->be->real_size);
    return (size_t)m->layers * of_one;
}

static void plan_stage(model *m, stage *g, bool last) {
    backend *be = m->be;
    bool training = m->use == MODEL_TRAINING;
    size_t kept = training ? (size_t)m->segment_steps : 1;
    size_t plane = plane_bytes(m, be->operand_size);
    size_t sums = be->sums_bytes(be, g->gates, m->columns);
    ADD(PLAN_ACTIVATIONS, kept * plane * (size_t)g->gates, g->raw);
    if (g->layer_norm) ADD(PLAN_ACTIVATIONS, (size_t)m->segment_steps * sums, g->sums);
    if (!last) ADD(PLAN_ACTIVATIONS, kept * plane, g->out);
    if (!training) return;
    ADD(PLAN_ACTIVATIONS, (keeps_dpre(be, g) ? kept : 1) * plane * (size_t)g->gates, g->dpre);
    if (sums_table(be, g)) {
        ADD(PLAN_ACTIVATIONS, table_sums_count((int)m->config.hidden) * be->real_size,
            g->table_sums);
    }
    if (g->table_use == TABLE_MULTIPLY) ADD(PLAN_ACTIVATIONS, kept * plane, g->dentry);
    if (g->layer_norm) ADD(PLAN_ACTIVATIONS, kept * sums, g->dsums);
}

static void plan_layer(model *m, cell *c) {
    const backend *be = m->be;
    size_t steps = (size_t)c->steps;
    size_t operands = plane_bytes(m, be->operand_size), reals = plane_bytes(m, be->real_size);
    for (int s = 0; s < c->stages; s++) plan_stage(m, &c->stage[s], s == c->stages - 1);
    ADD(PLAN_ACTIVATIONS, (steps + 1) * operands, c->h);
    ADD(PLAN_ACTIVATIONS, (steps + 1) * reals, c->c);
    if (m->use == MODEL_INFERENCE) return;
    ADD(PLAN_ACTIVATIONS, operands, c->dx);
    ADD(PLAN_ACTIVATIONS, reals, c->dc);
}

/* Arrays that the layers share are requested for the first one, see connect. */
static void plan_cells(model *m) {
    cell *first = &m->layer[0].cell;
    size_t steps = (size_t)m->segment_steps, plane = plane_bytes(m, m->be->operand_size);
    for (int y = 0; y < m->layers; y++) plan_layer(m, &m->layer[y].cell);
    if (m->layers > 1) {
        ADD(PLAN_ACTIVATIONS, steps * plane * (size_t)first->stage[0].gates, m->below);
    }
    if (m->use == MODEL_INFERENCE) return;
    ADD(PLAN_ACTIVATIONS, steps * plane, first->dh);
    ADD(PLAN_ACTIVATIONS, state_bytes(m), m->carry);
    if (m->segments > 1) {
        ADD(PLAN_ACTIVATIONS, (size_t)(m->segments - 1) * state_bytes(m), m->borders);
    }
    ADD(PLAN_ACTIVATIONS, workspace_bytes(m), first->workspace);
}

/* Requests the projected tables, and in the deep cell the results of their layer norms. */
static void plan_tables(model *m, model_layer *y) {
    backend *be = m->be;
    bool training = m->use == MODEL_TRAINING, deep = m->config.cell == CELL_DEEP;
    size_t tables = layout_rows(m->projection_layout) * VOCABULARY * be->operand_size;
    ADD(PLAN_ACTIVATIONS, tables, y->projected);
    if (training) ADD(PLAN_ACTIVATIONS, tables, y->dprojected);
    if (!deep) {
        ADD(PLAN_ACTIVATIONS, tables / model_tables(&m->config) * GATES, y->cell.entries);
        return;
    }
    ADD(PLAN_ACTIVATIONS, be->sums_bytes(be, 2, VOCABULARY), y->table_sums);
    for (int i = 0; i < 2; i++) {
        stage *g = &y->tables[i].stage[0];
        ADD(PLAN_ACTIVATIONS, tables / 2, g->out);
        if (!training) continue;
        ADD(PLAN_ACTIVATIONS, tables / 2, y->tables[i].dx);
        ADD(PLAN_ACTIVATIONS, be->sums_bytes(be, 1, VOCABULARY), g->dsums);
    }
}

static void plan_ends(model *m) {
    const backend *be = m->be;
    size_t positions = (size_t)m->steps * (size_t)m->columns;
    size_t logits = (size_t)m->segment_steps * (size_t)m->columns * VOCABULARY;
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
}

/* Sets the pointers that follow from the places of the allocated arrays. */
static void connect_layer(model *m, model_layer *y) {
    backend *be = m->be;
    const cell *first = &m->layer[0].cell;
    cell *c = &y->cell;
    size_t table = (size_t)table_units(&m->config) * VOCABULARY * be->operand_size;
    char *projected = y->projected, *dprojected = y->dprojected;
    c->bytes = m->bytes;
    c->arguments = m->arguments;
    c->dh = first->dh;
    c->workspace = first->workspace;
    if (c != first) c->below = m->below;
    if (m->config.cell == CELL_DEEP) {
        for (int i = 0; i < 2; i++) {
            stage *g = &y->tables[i].stage[0];
            y->tables[i].bytes = m->no_bytes;
            g->raw = projected + (size_t)i * table;
            g->sums = (char *)y->table_sums + (size_t)i * be->sums_bytes(be, 1, VOCABULARY);
            g->dpre = dprojected ? dprojected + (size_t)i * table : NULL;
            c->stage[i].table = g->out;
            c->stage[i].dtable = y->tables[i].dx;
        }
        return;
    }
    for (int s = 0; s < c->stages; s++) {
        c->stage[s].table = projected;
        c->stage[s].dtable = dprojected;
        projected += (size_t)c->stage[s].gates * table;
        if (dprojected) dprojected += (size_t)c->stage[s].gates * table;
    }
}

/* --------------------------------------------------------------------------------- lifetime */

/* Each layer has a dropout seed of its own. */
static uint64_t dropout_seed(const model_config *config, int layer) {
    return (uint64_t)config->seed + ((uint64_t)layer << 48);
}

static table_use use_of_table(const model_config *config, int s) {
    bool deep = config->cell == CELL_DEEP, last = s == cell_stages(config) - 1;
    if (deep) return s == 0 ? TABLE_MULTIPLY : s == 1 ? TABLE_ADD : TABLE_NONE;
    return last ? TABLE_ADD : s == 0 ? TABLE_MULTIPLY : TABLE_NONE;
}

static void describe_layer(model *m, int layer) {
    const model_config *config = &m->config;
    bool deep = config->cell == CELL_DEEP;
    int stages = cell_stages(config), units = (int)table_units(config);
    model_layer *y = &m->layer[layer];
    y->cell = (cell){.hidden = (int)config->hidden,
                     .columns = m->columns,
                     .keep = m->use == MODEL_TRAINING,
                     .stages = stages,
                     .dropout = dropout_with(config->dropout, dropout_seed(config, layer))};
    for (int s = 0; s < stages; s++) {
        bool last = s == stages - 1;
        y->cell.stage[s] = (stage){.gates = last ? GATES : 1,
                                   .layer_norm = config->layer_norm,
                                   .relu = deep && !last && s > 0,
                                   .table_use = use_of_table(config, s),
                                   .table_stride = (int)config->input_stride};
    }
    for (int i = 0; i < 2; i++) {
        y->tables[i] =
            (cell){.hidden = units, .columns = VOCABULARY, .steps = 1, .keep = true, .stages = 1};
        y->tables[i].stage[0] = (stage){.block = units,
                                        .gates = 1,
                                        .layer_norm = config->layer_norm,
                                        .table_use = TABLE_NONE,
                                        .table_stride = 1};
    }
}

/* Gives the cells the layouts of their stages. */
static void use_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        stage *g = find_stage(m, s);
        if (!g) continue;
        g->layout = m->devices[s];
        g->block = m->layouts[s]->out_block;
    }
}

static void create_stage_layouts(model *m) {
    int stages = model_stages(&m->config);
    for (int s = 0; s < stages; s++) {
        m->layouts[s] =
            layout_from_graph(m->graphs[s], (int)m->config.block, model_stage_gates(&m->config, s));
        m->devices[s] = m->be->layout_create(m->be, m->layouts[s]);
    }
}

static void free_stage_layouts(model *m) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        m->be->layout_free(m->be, m->devices[s]);
        layout_free(m->layouts[s]);
        graph_free(m->graphs[s]);
    }
}

static void create_layouts(model *m) {
    const model_config *config = &m->config;
    backend *be = m->be;
    create_stage_layouts(m);
    m->projection_layout =
        layout_dense((int)table_units(config), (int)config->embedding, model_tables(config), 1);
    m->head_layout = layout_dense(VOCABULARY, (int)(config->hidden / config->output_stride), 1,
                                  (int)config->output_stride);
    m->projection_device = be->layout_create(be, m->projection_layout);
    m->head_device = be->layout_create(be, m->head_layout);
}

static void plan_model(model *m, int segments) {
    m->plan = (plan){0};
    m->segment_steps = (m->steps + segments - 1) / segments;
    m->segments = (m->steps + m->segment_steps - 1) / m->segment_steps;
    for (int y = 0; y < m->layers; y++) m->layer[y].cell.steps = m->segment_steps;
    plan_weights(m);
    plan_cells(m);
    for (int y = 0; y < m->layers; y++) plan_tables(m, &m->layer[y]);
    plan_ends(m);
    for (int s = 0; s < model_stages(&m->config); s++) {
        plan_count_tables(&m->plan, m->be->layout_bytes(m->devices[s]));
    }
    plan_count_tables(&m->plan, m->be->layout_bytes(m->projection_device));
    plan_count_tables(&m->plan, m->be->layout_bytes(m->head_device));
}

/* Doubles the number of segments until the model fits; 0 if it does not even with one step each. */
static int segments_that_fit(model *m) {
    for (int segments = m->segments; segments < m->steps;) {
        segments = segments > m->steps / 2 ? m->steps : 2 * segments;
        plan_model(m, segments);
        bool fits = plan_total(&m->plan) <= m->be->memory;
        plan_release(&m->plan, m->be);
        if (fits) return segments;
    }
    return 0;
}

static void suggest_segments(model *m, error *err) {
    int segments = m->use == MODEL_TRAINING ? segments_that_fit(m) : 0;
    size_t used = strlen(err->text);
    if (segments == 0) return;
    snprintf(err->text + used, sizeof err->text - used, "; train.recompute: %d would make it fit",
             segments);
}

/* Whether the model is within the limits of the backend's kernels. */
static bool within_limits(const model *m, int segments, error *err) {
    const backend *be = m->be;
    const backend_limits *most = &be->limits;
    const size_t hidden = (size_t)m->config.hidden, columns = (size_t)m->columns;
    const size_t steps = (size_t)(m->steps + segments - 1) / (size_t)segments;
    if (GATES * hidden * columns > most->step_values) {
        return error_set(err,
                         "model.hidden, train.batch: %zu units of %d gates and %zu streams are %zu "
                         "values a step; %s computes at most %zu",
                         hidden, GATES, columns, GATES * hidden * columns, be->device,
                         most->step_values);
    }
    if (steps > most->steps) {
        return error_set(err,
                         "train.bptt, train.recompute: a segment of %zu steps; %s computes at most "
                         "%zu at a time",
                         steps, be->device, most->steps);
    }
    if (steps * columns > most->positions) {
        return error_set(err,
                         "train.bptt, train.batch: %zu steps of %zu streams are %zu bytes of text "
                         "at a time; %s computes at most %zu",
                         steps, columns, steps * columns, be->device, most->positions);
    }
    for (int s = 0; s < model_stages(&m->config); s++) {
        const size_t gates = (size_t)model_stage_gates(&m->config, s);
        const size_t blocks = (size_t)graph_blocks(m->graphs[s]);
        const size_t rows = blocks * gates * (size_t)m->config.block;
        if (rows <= most->weight_rows) continue;
        return error_set(err,
                         "model.hidden, model.block: %zu blocks of %d rows in %zu gates are %zu "
                         "rows of weights; %s computes at most %zu",
                         blocks, (int)m->config.block, gates, rows, be->device, most->weight_rows);
    }
    return true;
}

/* The recurrent weights decay; embedding, projection, head, gains and biases do not. */
static void choose_decays(model *m) {
    size_t groups = (m->parameters.total + DECAY_GROUP - 1) / DECAY_GROUP;
    uint8_t *decays = mem_alloc(groups, 1);
    for (int i = 0; i < m->parameters.count; i++) {
        const parameter *p = &m->parameters.items[i];
        if (!p->decays) continue;
        memset(decays + p->offset / DECAY_GROUP, 1, (p->count + DECAY_GROUP - 1) / DECAY_GROUP);
    }
    m->be->upload(m->be, m->decays, decays, groups);
    free(decays);
}

model *model_create(backend *be, const model_config *config, graph *const *graphs, int batch,
                    int steps, int segments, model_use use, error *err) {
    model *m = mem_alloc(1, sizeof *m);
    int multiple = be->column_multiple;
    *m = (model){.be = be,
                 .config = *config,
                 .use = use,
                 .batch = batch,
                 .steps = steps,
                 .layers = (int)config->layers};
    m->columns = (batch + multiple - 1) / multiple * multiple;
    if (graphs) {
        memcpy(m->graphs, graphs, (size_t)model_stages(config) * sizeof *graphs);
    } else if (!model_graphs(config, m->graphs, err)) {
        free(m);
        return NULL;
    }
    if (!within_limits(m, segments, err)) {
        for (int s = 0; s < model_stages(config); s++) graph_free(m->graphs[s]);
        free(m);
        return NULL;
    }
    create_layouts(m);
    add_parameters(m);
    for (int y = 0; y < m->layers; y++) describe_layer(m, y);
    use_layouts(m);
    plan_model(m, segments);
    if (!plan_commit(&m->plan, be, err)) {
        suggest_segments(m, err);
        model_free(m);
        return NULL;
    }
    for (int y = 0; y < m->layers; y++) connect_layer(m, &m->layer[y]);
    if (use == MODEL_TRAINING) choose_decays(m);
    be->zero(be, m->no_bytes, VOCABULARY);
    be->zero(be, m->bytes, (size_t)steps * (size_t)m->columns);
    be->zero(be, m->targets, (size_t)steps * (size_t)m->columns * sizeof *m->targets);
    be->zero(be, m->arguments, sizeof *m->arguments);
    be->zero(be, m->report, sizeof *m->report);
    be->zero(be, m->evaluation, sizeof *m->evaluation);
    model_zero_state(m);
    return m;
}

void model_free(model *m) {
    if (!m) return;
    backend *be = m->be;
    plan_release(&m->plan, be);
    free_stage_layouts(m);
    be->layout_free(be, m->projection_device);
    be->layout_free(be, m->head_device);
    layout_free(m->projection_layout);
    layout_free(m->head_layout);
    free(m);
}

/* ---------------------------------------------------------------------------------- weights */

static void upload_reals(model *m, void *target, const float *values) {
    backend *be = m->be;
    size_t count = m->parameters.total;
    if (be->real_size == sizeof(float)) {
        be->upload(be, target, values, count * sizeof(float));
        return;
    }
    double *wide = mem_alloc(count, sizeof *wide);
    for (size_t i = 0; i < count; i++) wide[i] = values[i];
    be->upload(be, target, wide, count * sizeof *wide);
    free(wide);
}

static void bind_arena(model *m, void *arena) {
    m->bound = arena;
    m->operands = m->rounded ? m->rounded : arena;
    if (m->rounded) m->be->round(m->be, m->parameters.total, arena, m->rounded);
    bind_parameters(m);
    bind_gradients(m, m->gradient);
}

void model_use_weights(model *m) {
    bind_arena(m, m->weights);
}

void model_use_average(model *m) {
    bind_arena(m, m->average);
}

void model_load(model *m, const float *weights) {
    backend *be = m->be;
    size_t reals = m->parameters.total * be->real_size;
    upload_reals(m, m->weights, weights);
    if (m->use == MODEL_TRAINING) {
        be->copy(be, m->average, m->weights, reals);
        be->zero(be, m->gradient, reals);
        if (m->share) be->zero(be, m->share, reals);
        be->zero(be, m->moment1, reals);
        be->zero(be, m->moment2, reals);
    }
    model_use_weights(m);
}

void model_initialise(model *m) {
    float *values = mem_alloc(m->parameters.total, sizeof *values);
    parameter_initialise(&m->parameters, (uint64_t)m->config.seed, values);
    model_load(m, values);
    free(values);
}

float *model_download(const model *m, const void *arena, size_t first, size_t count) {
    backend *be = m->be;
    const char *from = (const char *)arena + first * be->real_size;
    float *values = mem_alloc(count, sizeof *values);
    if (be->real_size == sizeof(float)) {
        be->download(be, values, from, count * sizeof *values);
        return values;
    }
    double *wide = mem_alloc(count, sizeof *wide);
    be->download(be, wide, from, count * sizeof *wide);
    for (size_t i = 0; i < count; i++) values[i] = (float)wide[i];
    free(wide);
    return values;
}

/* --------------------------------------------------------------------------------- patterns */

static const parameter *stage_weight(const model *m, int s) {
    return &m->parameters.items[m->stage_parameters[s].weight];
}

static size_t state_element(const model *m, model_state_kind kind) {
    return kind == MODEL_H ? m->be->operand_size : m->be->real_size;
}

static void *layer_state(const model *m, int layer, model_state_kind kind, int step) {
    const cell *c = &m->layer[layer].cell;
    size_t plane = plane_bytes(m, state_element(m, kind));
    return (char *)(kind == MODEL_H ? c->h : c->c) + (size_t)step * plane;
}

typedef struct state_place {
    void *h, *c;
} state_place;

/* The place of a layer's state after `step` steps. */
static state_place state_after(const model *m, int layer, int step) {
    return (state_place){layer_state(m, layer, MODEL_H, step),
                         layer_state(m, layer, MODEL_C, step)};
}

/* A row of a block in a stage's weights: those of one output unit. `block` counts the graph's
 * blocks in their order; a complete graph's weights are one matrix [gates][hidden][hidden]. */
static size_t block_row(const layout *l, const graph *g, int side, int block, int gate, int row) {
    if (!layout_is_dense(l)) {
        return (((size_t)block * (size_t)l->gates + (size_t)gate) * (size_t)side + (size_t)row) *
               (size_t)side;
    }
    size_t output = (size_t)(block / g->nodes), input = (size_t)(block % g->nodes);
    size_t width = (size_t)l->in_block;
    return ((size_t)gate * width + output * (size_t)side + (size_t)row) * width +
           input * (size_t)side;
}

/* [blocks of g]; `values` begins with the stage's weights, or with something of their shape. */
static void block_norms(const float *values, const layout *l, const graph *g, int side,
                        double *norms) {
    int blocks = graph_blocks(g);
#pragma omp parallel for
    for (int k = 0; k < blocks; k++) {
        double sum = 0;
        for (int i = 0; i < l->gates * side; i++) {
            const float *row = values + block_row(l, g, side, k, i / side, i % side);
            for (int j = 0; j < side; j++) sum += (double)row[j] * row[j];
        }
        norms[k] = sqrt(sum);
    }
}

void model_block_norms(const model *m, const void *arena, int stage, double *norms) {
    const parameter *p = stage_weight(m, stage);
    float *values = model_download(m, arena, p->offset, p->count);
    block_norms(values, m->layouts[stage], m->graphs[stage], (int)m->config.block, norms);
    free(values);
}

model_wgrad model_wgrad_of(const model *m, int stage) {
    stage_place at = model_stage_place(&m->config, stage);
    const struct stage *g = m->layer[at.layer].cell.stage;
    if (at.stage == STAGE_BELOW) {
        return (model_wgrad){stage_raw_gradient(g), state_after(m, at.layer - 1, 1).h};
    }
    const void *x = at.stage ? g[at.stage - 1].out : m->layer[at.layer].cell.h;
    return (model_wgrad){stage_raw_gradient(&g[at.stage]), x};
}

static void sum_ranks(model *m, size_t count, void *values) {
    if (m->be->sum_ranks) m->be->sum_ranks(m->be, count, values);
}

void model_gradient_norms(model *m, int stage, const graph *blocks, double *norms) {
    backend *be = m->be;
    const model_wgrad in = model_wgrad_of(m, stage);
    const parameter *p = stage_weight(m, stage);
    const int gates = model_stage_gates(&m->config, stage);
    const int first = model_stage_place(&m->config, stage).stage == STAGE_BELOW ? 0 : 1;
    size_t plane = (size_t)first * plane_bytes(m, be->operand_size);
    const char *dy = in.dy, *x = in.x;
    layout *l = layout_from_graph(blocks, (int)m->config.block, gates);
    device_layout *device = be->layout_create(be, l);
    be->wgrad(be, device, dy + plane * (size_t)gates, x + plane, m->segment_steps - first,
              m->columns, (char *)m->gradient + p->offset * be->real_size,
              m->layer[0].cell.workspace);
    sum_ranks(m, layout_weights(l), (char *)m->gradient + p->offset * be->real_size);
    float *values = model_download(m, m->gradient, p->offset, layout_weights(l));
    block_norms(values, l, blocks, (int)m->config.block, norms);
    free(values);
    be->layout_free(be, device);
    layout_free(l);
}

/* The number that block k of one pattern has in another, or -1. `at` is where the search stands. */
static int same_block(const graph *other, int output, int input, int *at) {
    if (*at < other->start[output]) *at = other->start[output];
    while (*at < other->start[output + 1] && other->column[*at] < input) ++*at;
    return *at < other->start[output + 1] && other->column[*at] == input ? *at : -1;
}

/* Copies the blocks that both patterns have; blocks that are neighbours in both go in one copy. */
static void copy_blocks(backend *be, const graph *to, char *target, const graph *from,
                        const char *source, size_t bytes) {
    int run = 0, begin = 0, origin = 0, at = 0;
    for (int i = 0; i < to->nodes; i++) {
        for (int k = to->start[i]; k < to->start[i + 1]; k++) {
            int old = same_block(from, i, to->column[k], &at);
            if (old >= 0 && run > 0 && old == origin + run) {
                run++;
                continue;
            }
            if (run > 0) {
                be->copy(be, target + (size_t)begin * bytes, source + (size_t)origin * bytes,
                         (size_t)run * bytes);
            }
            run = old >= 0;
            begin = k;
            origin = old;
        }
    }
    if (run > 0) {
        be->copy(be, target + (size_t)begin * bytes, source + (size_t)origin * bytes,
                 (size_t)run * bytes);
    }
}

/* Cuts the blocks of `to` out of one dense matrix, on the host. */
static void cut_blocks(model *m, const parameter *to, const graph *blocks, char *target,
                       const parameter *from, const graph *complete, const char *source) {
    backend *be = m->be;
    int side = (int)m->config.block, gates = to->layout->gates;
    size_t size = be->real_size;
    char *matrix = mem_alloc(from->count, size), *cut = mem_alloc(to->count, size);
    be->download(be, matrix, source, from->count * size);
    for (int i = 0; i < blocks->nodes; i++) {
        for (int k = blocks->start[i]; k < blocks->start[i + 1]; k++) {
            int old = i * blocks->nodes + blocks->column[k];
            for (int r = 0; r < gates * side; r++) {
                memcpy(cut + size * block_row(to->layout, blocks, side, k, r / side, r % side),
                       matrix +
                           size * block_row(from->layout, complete, side, old, r / side, r % side),
                       size * (size_t)side);
            }
        }
    }
    be->upload(be, target, cut, to->count * size);
    free(matrix);
    free(cut);
}

/* Rearranges an arena in the new table's order by way of `scratch`; new blocks become zero. */
static void move_arena(model *m, const model *old, void *arena, char *scratch) {
    backend *be = m->be;
    size_t size = be->real_size;
    int stage = 0;
    be->zero(be, scratch, old->parameters.total * size);
    for (int i = 0; i < m->parameters.count; i++) {
        const parameter *to = &m->parameters.items[i], *from = &old->parameters.items[i];
        char *target = scratch + to->offset * size, *source = (char *)arena + from->offset * size;
        if (!to->layout) {
            be->copy(be, target, source, to->count * size);
            continue;
        }
        const graph *g = m->graphs[stage], *before = old->graphs[stage];
        bool dense = layout_is_dense(to->layout);
        if (dense == layout_is_dense(from->layout)) {
            size_t blocks = (size_t)graph_blocks(g);
            copy_blocks(be, g, target, before, source, to->count / blocks * size);
        } else {
            cut_blocks(m, to, g, target, from, before, source);
        }
        stage++;
    }
    be->copy(be, arena, scratch, m->parameters.total * size);
}

void model_set_graphs(model *m, graph *const *graphs) {
    backend *be = m->be;
    model old = *m;
    void *const arenas[] = {m->weights, m->moment1, m->moment2, m->average};
    int stages = model_stages(&m->config);
    memcpy(m->graphs, graphs, (size_t)stages * sizeof *graphs);
    create_stage_layouts(m);
    m->parameters = (parameter_table){0};
    add_parameters(m);
    use_layouts(m);
    for (int i = 0; i < 4; i++) move_arena(m, &old, arenas[i], m->gradient);
    be->zero(be, m->gradient, old.parameters.total * be->real_size);
    if (m->share) be->zero(be, m->share, old.parameters.total * be->real_size);
    choose_decays(m);
    model_use_weights(m);
    free_stage_layouts(&old);
}

/* ------------------------------------------------------------------------------------ state */

void *model_state(const model *m, model_state_kind kind, int step) {
    return layer_state(m, m->layers - 1, kind, step);
}

void model_zero_state(model *m) {
    for (int y = 0; y < m->layers; y++) {
        for (model_state_kind kind = MODEL_H; kind <= MODEL_C; kind++) {
            m->be->zero(m->be, layer_state(m, y, kind, 0), plane_bytes(m, state_element(m, kind)));
        }
    }
}

void model_set_text(model *m, const uint8_t *bytes, const int16_t *targets) {
    size_t positions = (size_t)m->steps * (size_t)m->columns;
    m->be->upload(m->be, m->bytes, bytes, positions);
    if (targets) m->be->upload(m->be, m->targets, targets, positions * sizeof *targets);
}

void model_set_first_stream(model *m, int first) {
    m->first_stream = first;
    for (int y = 0; y < m->layers; y++) m->layer[y].cell.dropout.first_stream = (uint32_t)first;
}

void model_drop_input(const model *m, uint64_t update, uint8_t *bytes) {
    const dropout d = dropout_with(m->config.input_dropout, (uint64_t)m->config.seed);
    if (d.threshold == 0) return;
    for (int t = 0; t < m->steps; t++) {
        uint8_t *step = bytes + (size_t)t * (size_t)m->columns;
        for (int n = 0; n < m->columns; n += 4) {
            philox_block block = philox(d.seed, (uint32_t)t, (uint32_t)(m->first_stream + n) / 4,
                                        (uint32_t)update, PHILOX_PURPOSE(PHILOX_INPUT, 0));
            for (int i = 0; i < 4 && n + i < m->columns; i++) {
                if (block.word[i] < d.threshold) step[n + i] = DROPPED_BYTE;
            }
        }
    }
}

void model_copy_state(const model *m, model_state_kind kind, float *values) {
    size_t hidden = (size_t)m->config.hidden, columns = (size_t)m->columns;
    size_t batch = (size_t)m->batch, size = state_element(m, kind);
    char *raw = mem_alloc(hidden * columns, size);
    for (int y = 0; y < m->layers; y++) {
        m->be->download(m->be, raw, layer_state(m, y, kind, 0), hidden * columns * size);
        for (size_t u = 0; u < hidden; u++) {
            for (size_t n = 0; n < batch; n++) {
                uint32_t bits = 0;
                memcpy((char *)&bits + 4 - size, raw + (u * columns + n) * size, size);
                memcpy(&values[u * batch + n], &bits, sizeof bits);
            }
        }
        values += hidden * batch;
    }
    free(raw);
}

void model_set_state(model *m, model_state_kind kind, const float *values) {
    size_t hidden = (size_t)m->config.hidden, columns = (size_t)m->columns;
    size_t batch = (size_t)m->batch, size = state_element(m, kind);
    char *raw = mem_alloc(hidden * columns, size);
    for (int y = 0; y < m->layers; y++) {
        for (size_t u = 0; u < hidden; u++) {
            for (size_t n = 0; n < batch; n++) {
                uint32_t bits;
                memcpy(&bits, &values[u * batch + n], sizeof bits);
                if (size == 2) bits += 0x7FFF + (bits >> 16 & 1); /* to nearest even */
                memcpy(raw + (u * columns + n) * size, (char *)&bits + 4 - size, size);
            }
        }
        m->be->upload(m->be, layer_state(m, y, kind, 0), raw, hidden * columns * size);
        values += hidden * batch;
    }
    free(raw);
}

/* Copies a layer's state between places of h and c. */
static void copy_state(model *m, state_place to, state_place from) {
    m->be->copy(m->be, to.h, from.h, plane_bytes(m, m->be->operand_size));
    m->be->copy(m->be, to.c, from.c, plane_bytes(m, m->be->real_size));
}

/* The place of a layer's state in an array of all layers' states: each one's h, then c. */
static state_place state_in(const model *m, int layer, void *array) {
    char *h = (char *)array + state_bytes(m) / (size_t)m->layers * (size_t)layer;
    return (state_place){h, h + plane_bytes(m, m->be->operand_size)};
}

static void keep_state(model *m, int step, void *to) {
    for (int y = 0; y < m->layers; y++) {
        copy_state(m, state_in(m, y, to), state_after(m, y, step));
    }
}

static void begin_with_state(model *m, void *from) {
    for (int y = 0; y < m->layers; y++) {
        copy_state(m, state_after(m, y, 0), state_in(m, y, from));
    }
}

void model_save_state(model *m) {
    keep_state(m, 0, m->carry);
}

void model_restore_state(model *m) {
    begin_with_state(m, m->carry);
}

/* ------------------------------------------------------------------------ forward and backward */

/* A layer's cell over segment k. */
static cell segment_of(const model *m, int layer, int k) {
    cell c = m->layer[layer].cell;
    int left = m->steps - k * c.steps;
    c.first_step = k * c.steps;
    if (c.steps > left) c.steps = left;
    c.bytes = m->bytes + (size_t)c.first_step * (size_t)m->columns;
    c.has_earlier_steps = k > 0;
    c.has_later_steps = k < m->segments - 1;
    return c;
}

/* Makes the states after segment k those before the next one. */
static void carry_state(model *m, int k) {
    int steps = segment_of(m, 0, k).steps;
    for (int y = 0; y < m->layers; y++) {
        copy_state(m, state_after(m, y, 0), state_after(m, y, steps));
    }
}

/* The place of the saved states that segment k begins with. */
static void *border(const model *m, int k) {
    return (char *)m->borders + (size_t)k * state_bytes(m);
}

/* A layer's outputs h[1] ... h[steps], which the layer above reads, or the head. */
static void *output_of(const model *m, int layer) {
    return state_after(m, layer, 1).h;
}

static void forward_table(model *m, model_layer *y) {
    backend *be = m->be;
    bool deep = m->config.cell == CELL_DEEP;
    be->fprop(be, m->projection_device, operand_place(m, y->projection),
              operand_place(m, y->embedding), 1, VOCABULARY, y->projected, OPERAND,
              deep && m->config.layer_norm ? y->table_sums : NULL);
    for (int i = 0; deep && i < 2; i++) be->activate(be, &y->tables[i], 0, 0);
    be->prepare_entries(be, &y->cell);
}

void model_prepare_tables(model *m) {
    for (int y = 0; y < m->layers; y++) forward_table(m, &m->layer[y]);
}

/* Runs the layers over segment k. Without `keep`, only h and c of each step are kept. */
static void forward_layers(model *m, int k, bool keep, bool training) {
    backend *be = m->be;
    for (int y = 0; y < m->layers; y++) {
        cell c = segment_of(m, y, k);
        c.keep = keep;
        if (!training) c.dropout.threshold = 0;
        if (y > 0) {
            int s = below_stage(&m->config, y);
            be->fprop(be, m->devices[s], operand_place(m, m->stage_parameters[s].weight),
                      output_of(m, y - 1), c.steps, c.columns, m->below, OPERAND, NULL);
        }
        be->cell_forward(be, &c);
    }
}

static void forward_logits(model *m, const cell *c) {
    m->be->fprop(m->be, m->head_device, operand_place(m, m->head_weight),
                 output_of(m, m->layers - 1), c->steps, m->columns, m->logits, REAL, NULL);
}

static void forward_head(model *m, const cell *c, void *dlogits) {
    backend *be = m->be;
    size_t from = (size_t)c->first_step * (size_t)m->columns;
    forward_logits(m, c);
    be->softmax_cross_entropy(be, m->logits, value_place(m, m->head_bias), m->targets + from,
                              c->steps, m->columns, (char *)m->losses + from * be->real_size,
                              dlogits);
}

/* Adds up the losses of all steps. */
static void sum_losses(model *m, double *loss) {
    m->be->sum(m->be, m->losses, (size_t)m->steps * (size_t)m->columns, loss);
}

static void backward_table(model *m, model_layer *y) {
    backend *be = m->be;
    const void *gradient = y->dprojected;
    if (m->config.cell == CELL_DEEP) {
        for (int i = 0; i < 2; i++) {
            be->activate_backward(be, &y->tables[i], 0, 0);
            if (m->config.layer_norm) be->norm_backward(be, &y->tables[i], 0, 0);
        }
        gradient = stage_raw_gradient(&y->tables[0].stage[0]);
    }
    be->wgrad(be, m->projection_device, gradient, operand_place(m, y->embedding), 1, VOCABULARY,
              gradient_place(m, y->projection), y->cell.workspace);
    be->dgrad(be, m->projection_device, operand_place(m, y->projection), gradient, 1, VOCABULARY,
              gradient_place(m, y->embedding), REAL);
}

static void backward_head(model *m, const cell *c) {
    backend *be = m->be;
    be->row_sums(be, m->dlogits, c->steps, VOCABULARY, m->columns, gradient_place(m, m->head_bias));
    be->wgrad(be, m->head_device, m->dlogits, output_of(m, m->layers - 1), c->steps, m->columns,
              gradient_place(m, m->head_weight), c->workspace);
    be->dgrad(be, m->head_device, operand_place(m, m->head_weight), m->dlogits, c->steps,
              m->columns, c->dh, OPERAND);
}

/* Computes the gradients of U and of the h of the layer below. */
static void backward_below(model *m, int layer, const cell *c) {
    backend *be = m->be;
    int s = below_stage(&m->config, layer), weight = m->stage_parameters[s].weight;
    model_wgrad in = model_wgrad_of(m, s);
    be->wgrad(be, m->devices[s], in.dy, in.x, c->steps, c->columns, gradient_place(m, weight),
              c->workspace);
    be->dgrad(be, m->devices[s], operand_place(m, weight), in.dy, c->steps, c->columns, c->dh,
              OPERAND);
}

/* Runs the cells over segment k as outside training: without dropout, keeping only h and c of each
 * step. */
static void run_segment(model *m, int k, bool head) {
    forward_layers(m, k, false, false);
    if (head) {
        const cell c = segment_of(m, 0, k);
        forward_head(m, &c, NULL);
    }
    carry_state(m, k);
}

void model_run(model *m) {
    model_prepare_tables(m);
    for (int k = 0; k < m->segments; k++) run_segment(m, k, false);
}

void model_forward(model *m) {
    model_prepare_tables(m);
    for (int k = 0; k < m->segments; k++) run_segment(m, k, true);
    sum_losses(m, &m->evaluation->loss);
}

void model_generate(model *m, sampling *state, uint8_t *text) {
    run_segment(m, 0, false);
    forward_logits(m, &m->layer[0].cell);
    m->be->sample(m->be, m->logits, value_place(m, m->head_bias), m->batch, m->columns, state, text,
                  m->bytes);
}

/* ---------------------------------------------------------------------------------- the update */

/* Runs segment k forward for the first time. Only the last segment keeps its activations; of the
 * others h and c remain, until the next one reuses their memory. */
static void forward_segment(model *m, int k) {
    bool last = k == m->segments - 1;
    if (k == 0) model_prepare_tables(m);
    if (!last) keep_state(m, 0, border(m, k));
    forward_layers(m, k, last, true);
    if (!last) {
        carry_state(m, k);
    } else if (k > 0) { /* saved, as running the others again overwrites it */
        keep_state(m, segment_of(m, 0, k).steps, m->carry);
    }
}

static void recompute_segment(model *m, int k) {
    begin_with_state(m, border(m, k));
    model_prepare_tables(m); /* the backward pass of their layer norm overwrote them */
    forward_layers(m, k, true, true);
}

static void head_of_segment(model *m, int k) {
    cell c = segment_of(m, 0, k);
    bind_gradients(m, k == m->segments - 1 ? m->gradient : m->share);
    forward_head(m, &c, m->dlogits);
    backward_head(m, &c);
    if (k == 0) sum_losses(m, &m->report->loss);
}

static void backward_segment(model *m, int k) {
    backend *be = m->be;
    for (int y = m->layers - 1; y >= 0; y--) {
        cell c = segment_of(m, y, k);
        be->cell_backward(be, &c);
        if (y > 0) backward_below(m, y, &c);
        backward_table(m, &m->layer[y]);
    }
    if (m->into == m->share) be->add(be, m->parameters.total, m->gradient, m->share);
    if (m->segments == 1) {
        carry_state(m, k);
    } else if (k == 0) {
        begin_with_state(m, m->carry);
    }
}

static void nothing_begins(void *argument, update_part part) {
    (void)argument, (void)part;
}

static void gradient_parts(model *m, void (*begins)(void *argument, update_part part),
                           void *argument) {
    int last = m->segments - 1;
    for (int k = 0; k <= last; k++) {
        begins(argument, UPDATE_FORWARD);
        forward_segment(m, k);
    }
    for (int k = last; k >= 0; k--) {
        if (k < last) {
            begins(argument, UPDATE_RECOMPUTE);
            recompute_segment(m, k);
        }
        begins(argument, UPDATE_HEAD);
        head_of_segment(m, k);
        begins(argument, UPDATE_BACKWARD);
        backward_segment(m, k);
    }
}

void model_update_parts(model *m, void (*begins)(void *argument, update_part part),
                        void *argument) {
    gradient_parts(m, begins, argument);
    sum_ranks(m, m->parameters.total, m->gradient);
    begins(argument, UPDATE_OPTIMISER);
    m->be->adam(m->be, m->parameters.total, m->weights, m->gradient, m->moment1, m->moment2,
                m->average, m->operands, m->decays, m->arguments, m->report);
}

void model_gradient(model *m) {
    gradient_parts(m, nothing_begins, NULL);
}

void model_update(model *m) {
    model_update_parts(m, nothing_begins, NULL);
}
