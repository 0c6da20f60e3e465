/* Gradients of every parameter of every kind of cell against finite differences, in double, through
 * the whole model over several steps, in one segment and in several. */
#include "models.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 3, STEPS = 5 };

static model_config tiny_config(void) {
    model_config config = small_config();
    config.internal_steps = 2;
    config.hidden = 32;
    config.block = 8;
    config.embedding = 5;
    config.graph = GRAPH_RANDOM;
    config.degree = 1;
    return config;
}

/* A model, and the point at which its gradient is taken. */
typedef struct fixture {
    model *m;
    inputs in;
} fixture;

/* The loss in nats, of text and of labels by their weights. */
static double loss_of(fixture *f) {
    model *m = f->m;
    update_report report;
    load_inputs(m, &f->in);
    model_gradient(m);
    m->be->memory->download(m->be, &report, m->report, sizeof report);
    return m->text_weight * report.loss + m->label_weight * report.label_loss;
}

/* Returns the derivative of the loss along `direction`, by central differences. */
static double difference(fixture *f, const double *direction) {
    const double step = 1e-6; /* so small that no relu's edge is crossed */
    size_t total = f->m->parameters.total;
    double *at = f->in.weights, *moved = mem_alloc(total, sizeof *moved), value[2];
    f->in.weights = moved;
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < total; i++) {
            moved[i] = at[i] + (side ? step : -step) * direction[i];
        }
        value[side] = loss_of(f);
    }
    f->in.weights = at;
    free(moved);
    return (value[1] - value[0]) / (2 * step);
}

/* Drops bytes of the input as an update would, between the padding of a backend. */
static void drop_input(fixture *f) {
    const size_t columns = (size_t)f->m->columns;
    uint8_t *padded = mem_alloc(STEPS * columns, 1);
    for (size_t t = 0; t < STEPS; t++) memcpy(padded + t * columns, f->in.bytes + t * BATCH, BATCH);
    model_drop_input(f->m, 3, padded);
    for (size_t t = 0; t < STEPS; t++) memcpy(f->in.bytes + t * BATCH, padded + t * columns, BATCH);
    free(padded);
}

/* For each parameter, compares the derivative along a random direction of the whole tensor and
 * along single elements. */
static void check_gradients(const model_config *config, int segments) {
    backend *be = backend_cpu_reference(1);
    fixture f = {.m = create_model(be, config, BATCH, STEPS, segments)};
    size_t total = f.m->parameters.total;
    f.in = draw_inputs(f.m);
    drop_input(&f);
    loss_of(&f);
    double *gradient = get(be, f.m->gradient, total, REAL);
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
    free_inputs(&f.in);
    model_free(f.m);
    be->memory->destroy(be);
}

static void test_cells(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int how = 0; how < 6; how++) {
            model_config config = tiny_config();
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
    model_config config = tiny_config();
    config.cell = CELL_DEEP;
    config.internal_steps = 4;
    check_gradients(&config, 1);
}

static void test_dense(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        model_config config = tiny_config();
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
        model_config config = tiny_config();
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
            model_config config = tiny_config();
            config.cell = kind;
            config.layers = kind == CELL_LSTM ? 3 : 2;
            config.norm = norm;
            config.coupled_gates = norm == NORM_WEIGHT;
            config.dropout = 0.3;
            check_gradients(&config, norm == NORM_LAYER ? 1 : 2);
        }
    }
    model_config config = tiny_config();
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
        model_config config = tiny_config();
        config.cell = kind;
        config.input_stride = 2;
        config.output_stride = 4;
        check_gradients(&config, 1);
    }
}

static void test_dropout(void **state) {
    (void)state;
    model_config config = tiny_config();
    config.dropout = 0.4;
    check_gradients(&config, 1);
    check_gradients(&config, STEPS);
}

static void test_input_dropout(void **state) {
    (void)state;
    model_config config = tiny_config();
    config.input_dropout = 0.5;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        config.cell = kind;
        check_gradients(&config, 1);
    }
}

static void test_other_blocks(void **state) {
    (void)state;
    model_config config = tiny_config();
    config.hidden = 64;
    config.block = 16;
    check_gradients(&config, 1);
}

/* A class head beside the text's, of few classes and of more than a tile of rows. */
static void test_classes(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        model_config config = tiny_config();
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
