/* Gradients of every parameter of every kind of cell against finite differences, in double, through
 * the whole model over several steps, in one segment and in several. */
#include "support.h"

#include "core/memory.h"
#include "model/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, STEPS = 5 };

static model_config small_config(void) {
    return (model_config){.cell = CELL_LSTM,
                          .internal_steps = 2,
                          .layers = 1,
                          .hidden = 32,
                          .block = 8,
                          .embedding = 5,
                          .input_stride = 1,
                          .output_stride = 1,
                          .graph = GRAPH_RANDOM,
                          .degree = 1,
                          .graph_file = "",
                          .norm = NORM_LAYER,
                          .init_gain = 1,
                          .init_noise = 0.3,
                          .forget_bias = 1,
                          .seed = 7};
}

typedef struct fixture {
    backend *be;
    model *m;
    double *weights; /* the point at which the gradient is taken */
    double *h, *c;   /* the state it starts from */
} fixture;

static void set_weights(fixture *f, const double *weights) {
    f->be->memory->upload(f->be, f->m->weights, weights, f->m->parameters.total * sizeof *weights);
    model_use_weights(f->m); /* rows are normed */
}

/* Returns the loss in nats, starting from the fixture's state. */
static double loss_of(fixture *f) {
    backend *be = f->be;
    size_t plane = (size_t)f->m->config.hidden * (size_t)f->m->columns * sizeof(double);
    model_zero_state(f->m); /* of layers below the last one */
    be->memory->upload(be, model_state(f->m, MODEL_H, 0), f->h, plane);
    be->memory->upload(be, model_state(f->m, MODEL_C, 0), f->c, plane);
    be->memory->zero(be, f->m->report, sizeof *f->m->report);
    model_gradient(f->m);
    update_report report;
    be->memory->download(be, &report, f->m->report, sizeof report);
    return f->m->text_weight * report.loss + f->m->label_weight * report.label_loss;
}

/* Gives some of the bytes a class, and the two losses other weights than 1. */
static void draw_labels(model *m) {
    const size_t positions = (size_t)(STEPS * m->columns);
    if (m->config.classes == 0) return;
    int16_t *classes = mem_alloc(positions, sizeof *classes);
    float *weights = mem_alloc(positions, sizeof *weights);
    for (size_t i = 0; i < positions; i++) {
        const bool padding = i % (size_t)m->columns >= BATCH;
        classes[i] =
            (int16_t)(padding ? -1 : (int)random_below((uint64_t)m->config.classes + 1) - 1);
        weights[i] = (float)(2 * random_uniform());
    }
    model_set_labels(m, classes, weights);
    m->text_weight = 0.7;
    m->label_weight = 1.9;
    free(classes);
    free(weights);
}

static fixture create(const model_config *config, int segments) {
    error err;
    fixture f = {.be = backend_cpu_reference(1)};
    f.m = model_create(f.be, config, NULL, BATCH, STEPS, segments, MODEL_TRAINING, &err);
    if (!f.m) fail_msg("%s", err.text);
    model_initialise(f.m);
    size_t total = f.m->parameters.total, positions = (size_t)(STEPS * f.m->columns);
    size_t plane = (size_t)config->hidden * (size_t)f.m->columns;

    /* The point is not the initial one, whose identities, ones and zeros are special. */
    f.weights = get(f.be, f.m->weights, total, REAL);
    for (size_t i = 0; i < total; i++) f.weights[i] += 0.4 * (random_uniform() - 0.5);
    set_weights(&f, f.weights);
    f.h = random_values(plane, -1, 1);
    f.c = random_values(plane, -1, 1);

    uint8_t *bytes = mem_alloc(positions, 1);
    int16_t *targets = mem_alloc(positions, sizeof *targets);
    for (size_t i = 0; i < positions; i++) {
        bool padding = i % (size_t)f.m->columns >= BATCH;
        /* Few different bytes, so that some repeat within a step. */
        bytes[i] = (uint8_t)(1 + random_below(6));
        targets[i] = padding || random_below(5) == 0 ? -1 : (int16_t)random_below(256);
    }
    draw_labels(f.m);
    model_drop_input(f.m, 3, bytes);
    f.be->memory->upload(f.be, f.m->bytes, bytes, positions);
    f.be->memory->upload(f.be, f.m->targets, targets, positions * sizeof *targets);
    free(bytes);
    free(targets);
    return f;
}

static void release(fixture *f) {
    model_free(f->m);
    f->be->memory->destroy(f->be);
    free(f->weights);
    free(f->h);
    free(f->c);
}

/* Returns the derivative of the loss along `direction`, by central differences. */
static double difference(fixture *f, const double *direction) {
    const double step = 1e-6; /* so small that no relu's edge is crossed */
    size_t total = f->m->parameters.total;
    double *moved = mem_alloc(total, sizeof *moved), value[2];
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < total; i++) {
            moved[i] = f->weights[i] + (side ? step : -step) * direction[i];
        }
        set_weights(f, moved);
        value[side] = loss_of(f);
    }
    set_weights(f, f->weights);
    free(moved);
    return (value[1] - value[0]) / (2 * step);
}

/* For each parameter, compares the derivative along a random direction of the whole tensor and
 * along single elements. */
static void check_gradients(const model_config *config, int segments) {
    fixture f = create(config, segments);
    size_t total = f.m->parameters.total;
    loss_of(&f);
    double *gradient = get(f.be, f.m->gradient, total, REAL);
    double *direction = mem_alloc(total, sizeof *direction);
    for (int p = 0; p < f.m->parameters.count; p++) {
        const parameter *item = &f.m->parameters.items[p];
        for (int trial = 0; trial < 5; trial++) {
            if (trial > 0 && !takes_case()) continue;
            memset(direction, 0, total * sizeof *direction);
            size_t from = trial == 0 ? 0 : random_below(item->count);
            size_t to = trial == 0 ? item->count : from + 1;
            double expected = 0, size = 0;
            for (size_t i = item->offset + from; i < item->offset + to; i++) {
                direction[i] = trial == 0 ? random_uniform() - 0.5 : 1;
                expected += direction[i] * gradient[i];
                size += direction[i] * direction[i];
            }
            double found = difference(&f, direction);
            if (fabs(found - expected) > 1e-6 * (fabs(expected) + sqrt(size))) {
                fail_msg("%s, trial %d: gradient %.12g, finite difference %.12g", item->name, trial,
                         expected, found);
            }
        }
    }
    free(direction);
    free(gradient);
    release(&f);
}

static void test_cells(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int how = 0; how < 6; how++) {
            model_config config = small_config();
            config.cell = kind;
            config.norm = how % 3;
            config.coupled_gates = how / 3;
            check_gradients(&config, 1);
            check_gradients(&config, 2); /* segments of three and of two steps */
        }
    }
}

static void test_more_internal_steps(void **state) {
    (void)state;
    model_config config = small_config();
    config.cell = CELL_DEEP;
    config.internal_steps = 4;
    check_gradients(&config, 1);
}

static void test_dense(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        model_config config = small_config();
        config.cell = kind;
        config.graph = GRAPH_DENSE;
        config.degree = 0;
        check_gradients(&config, 1);
        config.norm = NORM_WEIGHT;
        config.coupled_gates = true;
        check_gradients(&config, 1);
    }
}

/* Narrow internal stages, dense and sparse, with strides and a further layer. */
static void test_hubs(void **state) {
    (void)state;
    for (int kind = 0; kind < 16; kind++) {
        model_config config = small_config();
        config.cell = kind % 2 ? CELL_DEEP : CELL_MLSTM;
        config.norm = kind / 8 ? NORM_WEIGHT : NORM_LAYER;
        config.coupled_gates = kind / 8;
        config.graph = kind / 2 % 2 ? GRAPH_RANDOM : GRAPH_DENSE;
        config.degree = 0;
        config.density = 0.7;
        config.hidden = 32;
        config.hubs = 16;
        const int layers = 1 + kind / 4 % 2;
        if (layers == 2) config.layers = 2, config.input_stride = 2;
        check_gradients(&config, layers);
    }
}

static void test_layers(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int norm = NORM_WEIGHT; norm <= NORM_NONE; norm++) {
            model_config config = small_config();
            config.cell = kind;
            config.layers = kind == CELL_LSTM ? 3 : 2;
            config.norm = norm;
            config.coupled_gates = norm == NORM_WEIGHT;
            config.dropout = 0.3;
            check_gradients(&config, norm == NORM_LAYER ? 1 : 2);
        }
    }
    model_config config = small_config();
    config.cell = CELL_MLSTM;
    config.layers = 2;
    config.graph = GRAPH_DENSE;
    config.degree = 0;
    config.input_stride = 2;
    check_gradients(&config, STEPS);
}

static void test_strides(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        model_config config = small_config();
        config.cell = kind;
        config.input_stride = 2;
        config.output_stride = 4;
        check_gradients(&config, 1);
    }
}

static void test_dropout(void **state) {
    (void)state;
    model_config config = small_config();
    config.dropout = 0.4;
    check_gradients(&config, 1);
    check_gradients(&config, STEPS);
}

static void test_input_dropout(void **state) {
    (void)state;
    model_config config = small_config();
    config.input_dropout = 0.5;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        config.cell = kind;
        check_gradients(&config, 1);
    }
}

static void test_other_blocks(void **state) {
    (void)state;
    model_config config = small_config();
    config.hidden = 64;
    config.block = 16;
    check_gradients(&config, 1);
}

/* A class head beside the text's, of few classes and of more than a tile of rows. */
static void test_classes(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        model_config config = small_config();
        config.cell = kind;
        config.norm = NORM_WEIGHT;
        config.classes = kind == CELL_MLSTM ? 2 : 11;
        config.output_stride = 2;
        config.layers = 2;
        check_gradients(&config, 1);
        check_gradients(&config, 2);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells),         cmocka_unit_test(test_more_internal_steps),
        cmocka_unit_test(test_dense),         cmocka_unit_test(test_strides),
        cmocka_unit_test(test_dropout),       cmocka_unit_test(test_layers),
        cmocka_unit_test(test_input_dropout), cmocka_unit_test(test_other_blocks),
        cmocka_unit_test(test_hubs),          cmocka_unit_test(test_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
