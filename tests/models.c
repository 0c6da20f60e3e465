#include "models.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

model_config small_config(void) {
    return (model_config){.cell = CELL_LSTM,
                          .internal_steps = 3,
                          .layers = 1,
                          .hidden = 128,
                          .block = 16,
                          .embedding = 8,
                          .input_stride = 1,
                          .output_stride = 1,
                          .graph = GRAPH_WATTS_STROGATZ,
                          .degree = 4,
                          .rewire = 0.2,
                          .graph_file = "",
                          .norm = NORM_LAYER,
                          .init_input = 1,
                          .init_gain = 1,
                          .init_noise = 0.1,
                          .forget_bias = 1,
                          .seed = 3};
}

model *create_model(backend *be, const model_config *config, int batch, int steps, int segments) {
    error err;
    model *m = model_create(be, config, NULL, batch, steps, segments, MODEL_TRAINING, &err);
    if (!m) fail_msg("%s", err.text);
    if (config->classes > 0) {
        m->text_weight = 0.75;
        m->label_weight = 1.5;
    }
    return m;
}

inputs draw_inputs(const model *m) {
    size_t total = m->parameters.total, batch = (size_t)m->batch;
    size_t positions = (size_t)m->steps * batch, plane = (size_t)m->config.hidden * batch;
    float *initial = mem_alloc(total, sizeof *initial);
    parameter_initialise(&m->parameters, 3, initial);
    inputs in = {.weights = mem_alloc(total, sizeof(double)),
                 .h = random_values(plane, -1, 1),
                 .c = random_values(plane, -1, 1),
                 .bytes = mem_alloc(positions, 1),
                 .targets = mem_alloc(positions, sizeof(int16_t))};
    for (int i = 0; i < m->parameters.count; i++) {
        const parameter *p = &m->parameters.items[i];
        for (size_t k = p->offset; k < p->offset + p->count; k++) {
            in.weights[k] = initial[k] + 0.2 * (random_uniform() - 0.5);
        }
    }
    for (size_t i = 0; i < positions; i++) {
        in.bytes[i] = (uint8_t)random_below(random_below(2) ? 5 : 256);
        in.targets[i] = random_below(6) ? (int16_t)random_below(256) : -1;
    }
    free(initial);
    return in;
}

void free_inputs(inputs *in) {
    free(in->weights);
    free(in->h);
    free(in->c);
    free(in->bytes);
    free(in->targets);
}

/* Copies [rows][batch] to a new [rows][columns], with zeros in the other columns. */
static double *widen(const double *values, size_t rows, size_t batch, size_t columns) {
    double *wide = mem_alloc(rows * columns, sizeof *wide);
    for (size_t r = 0; r < rows; r++) {
        memcpy(wide + r * columns, values + r * batch, batch * sizeof *wide);
    }
    return wide;
}

static double *narrow(const double *values, size_t rows, size_t batch, size_t columns) {
    double *tight = mem_alloc(rows * batch, sizeof *tight);
    for (size_t r = 0; r < rows; r++) {
        memcpy(tight + r * batch, values + r * columns, batch * sizeof *tight);
    }
    return tight;
}

/* Fills an array of the backend with these values. */
static void set_array(backend *be, void *target, const double *values, size_t count, element type) {
    void *made = put(be, values, count, type);
    size_t size = type == REAL ? be->real_size : be->operand_size;
    be->memory->copy(be, target, made, count * size);
    error err;
    assert_true(be->memory->finish(be, &err));
    be->memory->release(be, made);
}

static void poison(backend *be, void *block, size_t bytes) {
    char *pattern = mem_alloc(bytes, 1);
    memset(pattern, 0xFF, bytes); /* NaN in every floating-point type */
    be->memory->upload(be, block, pattern, bytes);
    free(pattern);
}

/* Classes and their weights by the text's bytes, so that they are the same of any backend. */
static void load_labels(model *m, const inputs *in) {
    const size_t batch = (size_t)m->batch, columns = (size_t)m->columns;
    const size_t positions = (size_t)m->steps * columns;
    if (m->config.classes == 0) return;
    int16_t *classes = mem_alloc(positions, sizeof *classes);
    float *weights = mem_alloc(positions, sizeof *weights);
    for (size_t i = 0; i < positions; i++) {
        const size_t t = i / columns, n = i % columns;
        const int byte = n < batch ? in->bytes[t * batch + n] : 0;
        classes[i] = n < batch ? (int16_t)(byte % (m->config.classes + 1) - 1) : -1;
        weights[i] = (float)(byte % 7) / 3;
    }
    model_set_labels(m, classes, weights);
    free(classes);
    free(weights);
}

void load_inputs(model *m, const inputs *in) {
    backend *be = m->be;
    size_t batch = (size_t)m->batch, columns = (size_t)m->columns, steps = (size_t)m->steps;
    size_t hidden = (size_t)m->config.hidden;
    poison(be, m->plan.block[PLAN_ACTIVATIONS], m->plan.bytes[PLAN_ACTIVATIONS]);
    /* The padding between parameters. */
    be->memory->zero(be, m->gradient, m->parameters.total * be->real_size);
    if (m->share) be->memory->zero(be, m->share, m->parameters.total * be->real_size);
    for (int i = 0; i < m->parameters.count; i++) {
        const parameter *p = &m->parameters.items[i];
        size_t from = p->offset * be->real_size, bytes = p->count * be->real_size;
        poison(be, (char *)m->gradient + from, bytes);
        if (m->share) poison(be, (char *)m->share + from, bytes);
    }
    set_array(be, m->weights, in->weights, m->parameters.total, REAL);
    model_use_weights(m);
    be->memory->zero(be, m->no_bytes, VOCABULARY);
    be->memory->zero(be, m->report, sizeof *m->report);
    be->memory->zero(be, m->evaluation, sizeof *m->evaluation);
    be->memory->zero(be, m->arguments, sizeof *m->arguments);
    model_zero_state(m); /* also of the layers below the last one */
    double *h = widen(in->h, hidden, batch, columns), *c = widen(in->c, hidden, batch, columns);
    set_array(be, model_state(m, MODEL_H, 0), h, hidden * columns, OPERAND);
    set_array(be, model_state(m, MODEL_C, 0), c, hidden * columns, REAL);
    uint8_t *bytes = mem_alloc(steps * columns, 1);
    int16_t *targets = mem_alloc(steps * columns, sizeof *targets);
    for (size_t t = 0; t < steps; t++) {
        for (size_t n = 0; n < columns; n++) {
            bytes[t * columns + n] = n < batch ? in->bytes[t * batch + n] : 0;
            targets[t * columns + n] = n < batch ? in->targets[t * batch + n] : -1;
        }
    }
    be->memory->upload(be, m->bytes, bytes, steps * columns);
    be->memory->upload(be, m->targets, targets, steps * columns * sizeof *targets);
    load_labels(m, in);
    free(h);
    free(c);
    free(bytes);
    free(targets);
}

outcome collect_outcome(model *m) {
    backend *be = m->be;
    size_t batch = (size_t)m->batch, columns = (size_t)m->columns;
    size_t hidden = (size_t)m->config.hidden;
    update_report report;
    outcome o = {.gradient = get(be, m->gradient, m->parameters.total, REAL)};
    double *h = get(be, model_state(m, MODEL_H, 0), hidden * columns, OPERAND);
    double *c = get(be, model_state(m, MODEL_C, 0), hidden * columns, REAL);
    o.h = narrow(h, hidden, batch, columns);
    o.c = narrow(c, hidden, batch, columns);
    be->memory->download(be, &report, m->report, sizeof report);
    o.loss = report.loss + report.label_loss;
    free(h);
    free(c);
    return o;
}

void free_outcome(outcome *o) {
    free(o->gradient);
    free(o->h);
    free(o->c);
}
