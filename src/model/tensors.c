#include "model/internal.h"

#include <math.h>
#include <stdio.h>

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
    int64_t embedding = config->embedding;
    int64_t units = model_table_units(config, model_inner_tables(config));
    char prefix[24] = "input.", table[40];
    if (layer) snprintf(prefix, sizeof prefix, "input.layer%d.", layer + 1);
    y->embedding =
        add(m, prefix, "embedding", SHAPE(embedding, VOCABULARY), INIT_NORMAL, config->init_input);
    for (table_width w = TABLES_OF_CELLS; w < TABLE_WIDTHS; w++) {
        const int64_t tables = model_tables(config, w);
        const int64_t *shape = SHAPE(tables, model_table_units(config, w), embedding);
        const char *name = w == TABLES_OF_HUBS ? "hubs.projection" : "projection";
        y->inputs[w].projection = NONE;
        if (tables == 0) continue;
        y->inputs[w].projection =
            add(m, prefix, name, shape, INIT_NORMAL, 1 / sqrt((double)embedding));
    }
    for (int i = 0; config->cell == CELL_DEEP && i < 2; i++) {
        stage_parameters *p = &y->table_parameters[i];
        snprintf(table, sizeof table, "%s%s", prefix, i ? "add." : "multiply.");
        p->weight = p->gain = NONE;
        if (config->norm != NORM_NONE) {
            p->gain = add(m, table, "gain", SHAPE(units), INIT_CONSTANT, 1);
        }
        p->bias = add(m, table, "bias", SHAPE(units), INIT_CONSTANT, 0);
    }
}

static void add_stage(model *m, int s) {
    const model_config *config = &m->config;
    const layout *l = m->layouts[s];
    stage_parameters *p = &m->stage_parameters[s];
    bool gates = l->gates > 1, below = model_stage_place(config, s).stage == STAGE_BELOW;
    const int64_t *weight = gates ? SHAPE(l->blocks, l->gates, l->out_block, l->in_block)
                                  : SHAPE(l->blocks, l->out_block, l->in_block);
    const int64_t *vector =
        gates ? SHAPE(l->gates, config->hidden) : SHAPE(model_inner_units(config));
    const double gain = gates && config->norm == NORM_WEIGHT ? config->init_gain : 1;
    char stage[16], prefix[32];
    snprintf(prefix, sizeof prefix, "cell.%s.", model_stage_name(config, s, stage));
    p->weight = add(m, prefix, "weight", weight, INIT_IDENTITY, config->init_noise);
    parameter *sparse = &m->parameters.items[p->weight];
    sparse->layout = l;
    sparse->block = (int)config->block;
    p->gain = p->bias = NONE;
    if (below) return;
    if (config->norm != NORM_NONE) {
        p->gain = add(m, prefix, "gain", vector, INIT_CONSTANT, gain);
    }
    if (gates) {
        p->bias = add(m, prefix, "bias", vector, INIT_GATE_BIAS, config->forget_bias);
    } else if (config->cell == CELL_DEEP) {
        p->bias = add(m, prefix, "bias", vector, INIT_CONSTANT, 0);
    }
}

int64_t model_class_rows(const model_config *config) {
    enum { ROWS = 8 }; /* what the products' rows are a multiple of */
    return (config->classes + ROWS - 1) / ROWS * ROWS;
}

/* Appends a parameter of the class head with room for all its rows, right after that of the head,
 * whose product makes both. */
static int add_of_classes(model *m, const char *name, int64_t columns) {
    const int64_t classes = m->config.classes;
    const int64_t *shape = columns == 1 ? SHAPE(classes) : SHAPE(classes, columns);
    if (classes == 0) return NONE;
    const int number = add(m, "class.", name, shape, INIT_CONSTANT, 0);
    parameter_reserve(&m->parameters, (size_t)(model_class_rows(&m->config) * columns));
    return number;
}

/* Moves what Muon trains to the arena's end, so that the second moments of the rest, which Adam
 * needs, are an arena without gaps. */
static void place_muon_last(model *m) {
    parameter_table *table = &m->parameters;
    m->second_moments = table->total;
    for (int s = 0; s < model_stages(&m->config); s++) {
        if (!m->squares[s]) continue;
        parameter *moved = &table->items[m->stage_parameters[s].weight];
        const size_t from = moved->offset, size = parameter_room(moved->count);
        for (int i = 0; i < table->count; i++) {
            if (table->items[i].offset > from) table->items[i].offset -= size;
        }
        moved->offset = table->total - size;
        m->second_moments -= size;
    }
}

void model_add_parameters(model *m) {
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
    m->class_weight = add_of_classes(m, "weight", read);
    m->head_bias = add(m, "head.", "bias", SHAPE(VOCABULARY), INIT_CONSTANT, 0);
    m->class_bias = add_of_classes(m, "bias", 1);
    place_muon_last(m);
}

void *model_address(const model *m, const void *arena, size_t size, int number) {
    if (number == NONE || !arena) return NULL;
    return (char *)(uintptr_t)arena + m->parameters.items[number].offset * size;
}

void *model_operand_address(const model *m, int number) {
    return model_address(m, m->operands, m->be->operand_size, number);
}

void *model_value_address(const model *m, int number) {
    return model_address(m, m->bound, m->be->real_size, number);
}

void *model_gradient_address(const model *m, int number) {
    return model_address(m, m->into, m->be->real_size, number);
}

/* Gains of normed rows are in the operands. */
static bool has_gains(const model *m, const stage *g) {
    return !(makes_gates(g) && m->config.norm == NORM_WEIGHT);
}

static void bind_stage(const model *m, stage *g, const stage_parameters *p) {
    g->weight = model_operand_address(m, p->weight);
    g->gain = has_gains(m, g) ? model_value_address(m, p->gain) : NULL;
    g->bias = model_value_address(m, p->bias);
}

static void bind_stage_gradients(const model *m, stage *g, const stage_parameters *p) {
    g->dgain = has_gains(m, g) ? model_gradient_address(m, p->gain) : NULL;
    g->dbias = model_gradient_address(m, p->bias);
}

stage *model_find_stage(model *m, int s) {
    stage_place at = model_stage_place(&m->config, s);
    return at.stage == STAGE_BELOW ? NULL : &m->layer[at.layer].cell.stage[at.stage];
}

static void bind_all(model *m, void (*bind)(const model *m, stage *g, const stage_parameters *p)) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        stage *g = model_find_stage(m, s);
        if (g) bind(m, g, &m->stage_parameters[s]);
    }
    for (int i = 0; m->config.cell == CELL_DEEP && i < 2 * m->layers; i++) {
        model_layer *y = &m->layer[i / 2];
        bind(m, &y->tables[i % 2].stage[0], &y->table_parameters[i % 2]);
    }
}

void model_bind_parameters(model *m) {
    bind_all(m, bind_stage);
}

void model_bind_gradients(model *m, void *arena) {
    m->into = arena;
    bind_all(m, bind_stage_gradients);
}
