#include "model/internal.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* Each layer has a dropout seed of its own. */
static uint64_t dropout_seed(const model_config *config, int layer) {
    return (uint64_t)config->seed + ((uint64_t)layer << 48);
}

static table_use use_of_table(const model_config *config, int s) {
    bool deep = config->cell == CELL_DEEP, last = s == model_cell_stages(config) - 1;
    if (deep) return s == 0 ? TABLE_MULTIPLY : s == 1 ? TABLE_ADD : TABLE_NONE;
    return last ? TABLE_ADD : s == 0 ? TABLE_MULTIPLY : TABLE_NONE;
}

static void describe_layer(model *m, int layer) {
    const model_config *config = &m->config;
    bool deep = config->cell == CELL_DEEP;
    int stages = model_cell_stages(config);
    int units = (int)model_table_units(config, model_inner_tables(config));
    model_layer *y = &m->layer[layer];
    y->cell = (cell){.hidden = (int)config->hidden,
                     .columns = m->columns,
                     .keep = m->use != MODEL_INFERENCE,
                     .stages = stages,
                     .dropout = dropout_with(config->dropout, dropout_seed(config, layer))};
    for (int s = 0; s < stages; s++) {
        bool last = s == stages - 1;
        const int64_t width = last ? config->hidden : model_inner_units(config);
        y->cell.stage[s] =
            (stage){.units = (int)width,
                    .gates = last ? model_gates(config) : 1,
                    .layer_norm = last ? config->norm == NORM_LAYER : config->norm != NORM_NONE,
                    .relu = deep && !last && s > 0,
                    .norm_last = config->norm == NORM_WEIGHT && s == 0 && !last,
                    .table_use = use_of_table(config, s),
                    .table_stride = (int)config->input_stride};
    }
    for (int i = 0; i < 2; i++) {
        y->tables[i] =
            (cell){.hidden = units, .columns = VOCABULARY, .steps = 1, .keep = true, .stages = 1};
        y->tables[i].stage[0] = (stage){.units = units,
                                        .block = units,
                                        .gates = 1,
                                        .layer_norm = config->norm != NORM_NONE,
                                        .table_use = TABLE_NONE,
                                        .table_stride = 1};
    }
}

static void create_layouts(model *m) {
    const model_config *config = &m->config;
    backend *be = m->be;
    model_create_stage_layouts(m);
    for (table_width w = TABLES_OF_CELLS; w < TABLE_WIDTHS; w++) {
        const int tables = model_tables(config, w), units = (int)model_table_units(config, w);
        if (tables == 0) continue;
        m->projection_layouts[w] = layout_dense(units, (int)config->embedding, tables, 1);
        m->projection_devices[w] = be->memory->layout_create(be, m->projection_layouts[w]);
    }
    m->head_layout = layout_dense(m->head_rows, (int)(config->hidden / config->output_stride), 1,
                                  (int)config->output_stride);
    m->head_device = be->memory->layout_create(be, m->head_layout);
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

/* Gives parameter `number`, if the model has it, the flags of its groups. */
static void set_group(const model *m, uint8_t *groups, int number, int flags) {
    if (number < 0) return;
    const parameter *p = &m->parameters.items[number];
    memset(groups + p->offset / DECAY_GROUP, flags, parameter_room(p->count) / DECAY_GROUP);
}

/* The recurrent weights have one decay, the inputs' matrices another; the rest does not decay. The
 * head has a learning rate of its own. */
static void choose_groups(model *m) {
    const size_t count = m->parameters.total / DECAY_GROUP;
    uint8_t *groups = mem_alloc(count, 1);
    for (int s = 0; s < model_stages(&m->config); s++) {
        set_group(m, groups, m->stage_parameters[s].weight,
                  m->squares[s] ? GROUP_OF_MUON : GROUP_DECAYS);
    }
    for (int y = 0; y < m->layers; y++) {
        set_group(m, groups, m->layer[y].embedding, GROUP_OF_INPUT);
        for (table_width w = TABLES_OF_CELLS; w < TABLE_WIDTHS; w++) {
            set_group(m, groups, m->layer[y].inputs[w].projection, GROUP_OF_INPUT);
        }
    }
    set_group(m, groups, m->head_weight, GROUP_OF_HEAD);
    m->be->memory->upload(m->be, m->groups, groups, count);
    free(groups);
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
                 .layers = (int)config->layers,
                 .text_weight = 1,
                 .label_weight = 1};
    m->head_rows = VOCABULARY + (use != MODEL_INFERENCE ? (int)model_class_rows(config) : 0);
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
    model_add_parameters(m);
    for (int y = 0; y < m->layers; y++) describe_layer(m, y);
    model_use_layouts(m);
    model_plan(m, segments);
    if (!plan_commit(&m->plan, be, err)) {
        model_suggest_segments(m, err);
        model_free(m);
        return NULL;
    }
    model_connect(m);
    if (use != MODEL_INFERENCE) choose_groups(m);
    be->memory->zero(be, m->no_bytes, VOCABULARY);
    be->memory->zero(be, m->bytes, (size_t)steps * (size_t)m->columns);
    be->memory->zero(be, m->targets, (size_t)steps * (size_t)m->columns * sizeof *m->targets);
    model_set_labels(m, NULL, NULL);
    be->memory->zero(be, m->arguments, sizeof *m->arguments);
    be->memory->zero(be, m->report, sizeof *m->report);
    be->memory->zero(be, m->evaluation, sizeof *m->evaluation);
    model_zero_state(m);
    return m;
}

void model_free(model *m) {
    if (!m) return;
    backend *be = m->be;
    plan_release(&m->plan, be);
    model_free_stage_layouts(m);
    for (int w = 0; w < TABLE_WIDTHS; w++) {
        be->memory->layout_free(be, m->projection_devices[w]);
        layout_free(m->projection_layouts[w]);
    }
    be->memory->layout_free(be, m->head_device);
    layout_free(m->head_layout);
    free(m);
}

/* -------------------------------------------------------------------------------------- weights */

static void upload_reals(model *m, void *target, const float *values) {
    backend *be = m->be;
    size_t count = m->parameters.total;
    if (be->real_size == sizeof(float)) {
        be->memory->upload(be, target, values, count * sizeof(float));
        return;
    }
    double *wide = mem_alloc(count, sizeof *wide);
    for (size_t i = 0; i < count; i++) wide[i] = values[i];
    be->memory->upload(be, target, wide, count * sizeof *wide);
    free(wide);
}

static void bind_arena(model *m, void *arena) {
    m->bound = arena;
    m->operands = m->rounded ? m->rounded : arena;
    if (m->rounded) m->be->update->round(m->be, m->parameters.total, arena, m->rounded);
    model_norm_rows(m);
    model_bind_parameters(m);
    model_bind_gradients(m, m->gradient);
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
    if (m->use != MODEL_INFERENCE) {
        be->memory->copy(be, m->average, m->weights, reals);
        be->memory->zero(be, m->gradient, reals);
        if (m->share) be->memory->zero(be, m->share, reals);
        be->memory->zero(be, m->moment1, reals);
        be->memory->zero(be, m->moment2, m->second_moments * be->real_size);
    }
    model_use_weights(m);
}

void model_return_to_average(model *m) {
    m->be->memory->copy(m->be, m->weights, m->average, m->parameters.total * m->be->real_size);
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
        be->memory->download(be, values, from, count * sizeof *values);
        return values;
    }
    double *wide = mem_alloc(count, sizeof *wide);
    be->memory->download(be, wide, from, count * sizeof *wide);
    for (size_t i = 0; i < count; i++) values[i] = (float)wide[i];
    free(wide);
    return values;
}
