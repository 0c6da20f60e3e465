/* The whole model on a backend against a more trusted one: states, losses and every gradient, with
 * all of the activations' and gradients' memory poisoned first; that recorded and issued updates
 * agree; that runs repeat bit for bit; that recomputation changes nothing but the order of sums;
 * and that training learns. */
#include "support.h"

#include "core/log.h"
#include "core/memory.h"
#include "graph/exchange.h"
#include "model/size.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static model_config base_config(void) {
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
                          .layer_norm = true,
                          .init_noise = 0.1,
                          .forget_bias = 1,
                          .seed = 3};
}

static model *create(backend *be, const model_config *config, int batch, int steps, int segments) {
    error err;
    model *m = model_create(be, config, NULL, batch, steps, segments, MODEL_TRAINING, &err);
    if (!m) fail_msg("%s", err.text);
    return m;
}

/* What both sides start from; sizes by streams of the batch, not by padded columns. */
typedef struct inputs {
    double *weights, *h, *c;
    uint8_t *bytes;
    int16_t *targets;
} inputs;

static inputs draw_inputs(const model *m) {
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

static void free_inputs(inputs *in) {
    free(in->weights);
    free(in->h);
    free(in->c);
    free(in->bytes);
    free(in->targets);
}

/* [rows][batch] on the host -> [rows][columns], other columns `fill`. */
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

/* Fills an array of the backend from one made by `put`. */
static void set(backend *be, void *target, const double *values, size_t count, element type) {
    void *made = put(be, values, count, type);
    size_t size = type == REAL ? be->real_size : be->operand_size;
    be->copy(be, target, made, count * size);
    error err;
    assert_true(be->finish(be, &err));
    be->release(be, made);
}

static void poison(backend *be, void *block, size_t bytes) {
    char *pattern = mem_alloc(bytes, 1);
    memset(pattern, 0xFF, bytes); /* NaN in every floating-point type */
    be->upload(be, block, pattern, bytes);
    free(pattern);
}

static void load(model *m, const inputs *in) {
    backend *be = m->be;
    size_t batch = (size_t)m->batch, columns = (size_t)m->columns, steps = (size_t)m->steps;
    size_t hidden = (size_t)m->config.hidden;
    poison(be, m->plan.block[PLAN_ACTIVATIONS], m->plan.bytes[PLAN_ACTIVATIONS]);
    be->zero(be, m->gradient, m->parameters.total * be->real_size); /* what pads parameters */
    if (m->share) be->zero(be, m->share, m->parameters.total * be->real_size);
    for (int i = 0; i < m->parameters.count; i++) {
        const parameter *p = &m->parameters.items[i];
        size_t from = p->offset * be->real_size, bytes = p->count * be->real_size;
        poison(be, (char *)m->gradient + from, bytes);
        if (m->share) poison(be, (char *)m->share + from, bytes);
    }
    set(be, m->weights, in->weights, m->parameters.total, REAL);
    model_use_weights(m);
    be->zero(be, m->no_bytes, VOCABULARY);
    be->zero(be, m->report, sizeof *m->report);
    be->zero(be, m->evaluation, sizeof *m->evaluation);
    be->zero(be, m->arguments, sizeof *m->arguments);
    model_zero_state(m); /* of layers below the last one */
    double *h = widen(in->h, hidden, batch, columns), *c = widen(in->c, hidden, batch, columns);
    set(be, model_state(m, MODEL_H, 0), h, hidden * columns, OPERAND);
    set(be, model_state(m, MODEL_C, 0), c, hidden * columns, REAL);
    uint8_t *bytes = mem_alloc(steps * columns, 1);
    int16_t *targets = mem_alloc(steps * columns, sizeof *targets);
    for (size_t t = 0; t < steps; t++) {
        for (size_t n = 0; n < columns; n++) {
            bytes[t * columns + n] = n < batch ? in->bytes[t * batch + n] : 0;
            targets[t * columns + n] = n < batch ? in->targets[t * batch + n] : -1;
        }
    }
    be->upload(be, m->bytes, bytes, steps * columns);
    be->upload(be, m->targets, targets, steps * columns * sizeof *targets);
    free(h);
    free(c);
    free(bytes);
    free(targets);
}

typedef struct outcome {
    double *gradient, *h, *c, loss;
} outcome;

static outcome collect(model *m) {
    backend *be = m->be;
    size_t batch = (size_t)m->batch, columns = (size_t)m->columns;
    size_t hidden = (size_t)m->config.hidden;
    update_report report;
    outcome o = {.gradient = get(be, m->gradient, m->parameters.total, REAL)};
    double *h = get(be, model_state(m, MODEL_H, 0), hidden * columns, OPERAND);
    double *c = get(be, model_state(m, MODEL_C, 0), hidden * columns, REAL);
    o.h = narrow(h, hidden, batch, columns);
    o.c = narrow(c, hidden, batch, columns);
    be->download(be, &report, m->report, sizeof report);
    o.loss = report.loss;
    free(h);
    free(c);
    return o;
}

static void free_outcome(outcome *o) {
    free(o->gradient);
    free(o->h);
    free(o->c);
}

/* A second time the gradient is the same. `batch` is not a multiple of what any backend pads to. */
static void compare(const model_config *config, precision precision, int batch, double tolerance,
                    double of_gradients) {
    backend *be[2] = {test_backend(precision),
                      test_device_is_cuda() ? backend_cpu(precision, 0) : backend_cpu_reference(0)};
    outcome o[2];
    model *m[2];
    inputs in = {0};
    random_restart(21);
    for (int side = 0; side < 2; side++) {
        m[side] = create(be[side], config, batch, 5, 1);
        if (side == 0) in = draw_inputs(m[0]);
        load(m[side], &in);
        model_gradient(m[side]);
        o[side] = collect(m[side]);
    }
    load(m[0], &in);
    model_gradient(m[0]);
    outcome again = collect(m[0]);
    assert_memory_equal(again.gradient, o[0].gradient,
                        m[0]->parameters.total * sizeof *again.gradient);
    free_outcome(&again);
    size_t plane = (size_t)config->hidden * (size_t)batch;
    double error = relative_error(o[0].h, o[1].h, plane);
    if (error > tolerance) fail_msg("h: relative error %g", error);
    error = relative_error(o[0].c, o[1].c, plane);
    if (error > tolerance) fail_msg("c: relative error %g", error);
    if (!(fabs(o[0].loss / o[1].loss - 1) <= tolerance)) {
        fail_msg("loss: %.10g, expected %.10g", o[0].loss, o[1].loss);
    }
    for (int i = 0; i < m[0]->parameters.count; i++) {
        const parameter *p = &m[0]->parameters.items[i];
        error = relative_error(o[0].gradient + p->offset, o[1].gradient + p->offset, p->count);
        if (error > of_gradients) fail_msg("gradient of %s: relative error %g", p->name, error);
    }
    for (int side = 0; side < 2; side++) {
        free_outcome(&o[side]);
        model_free(m[side]);
        be[side]->destroy(be[side]);
    }
    free_inputs(&in);
}

/* Rounding moves some of the deep cell's sums past relu's edge, and their gradients are then wholly
 * wrong. */
static void compare_all(precision precision, double tolerance, double of_gradients) {
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int variant = 0; variant < (precision == BF16 ? 7 : 5); variant++) {
            model_config config = base_config();
            const int batch[] = {11, 11, 11, 11, 150, 100, 11};
            config.cell = kind;
            if (variant == 1) config.layer_norm = false;
            if (variant == 2) {
                config.graph = GRAPH_DENSE;
                config.degree = 0;
            }
            if (variant == 3) {
                config.input_stride = 2;
                config.output_stride = 4;
                config.block = 8;
                config.dropout = 0.25;
            }
            if (variant == 4) {
                config.hidden = 512;
                config.block = 64;
                config.degree = 2;
            }
            if (variant >= 5) { /* hubs, and a kernel for all internal stages of a step */
                config.hidden = 1344;
                config.block = 32;
                config.graph = GRAPH_BARABASI_ALBERT;
                config.degree = 6;
            }
            if (variant == 6) {
                config.input_stride = 2;
                config.internal_steps = 2;
            }
            compare(&config, precision, batch[variant], tolerance, of_gradients);
        }
    }
}

static void test_fp32(void **state) {
    (void)state;
    compare_all(FP32, 2e-5, 2e-4);
}

static void test_tf32(void **state) {
    (void)state;
    bool rounds = test_device_is_cuda();
    compare_all(TF32, rounds ? 2.5e-3 : 2e-5, rounds ? 0.1 : 2e-4);
}

static void test_bf16(void **state) {
    (void)state;
    compare_all(BF16, 2e-2, 0.2);
}

/* ---------------------------------------------------------------------------------- recompute */

/* Five steps at once and in segments of two, two and one. */
static void compare_segments(const model_config *config, precision precision, double tolerance) {
    backend *be = test_backend(precision);
    outcome o[2];
    model *m[2];
    inputs in = {0};
    random_restart(22);
    for (int side = 0; side < 2; side++) {
        m[side] = create(be, config, 11, 5, side ? 3 : 1);
        if (side == 0) in = draw_inputs(m[0]);
        load(m[side], &in);
        model_gradient(m[side]);
        o[side] = collect(m[side]);
    }
    assert_int_equal(m[1]->segments, 3);
    size_t plane = (size_t)config->hidden * 11;
    assert_memory_equal(o[0].h, o[1].h, plane * sizeof *o[0].h);
    assert_memory_equal(o[0].c, o[1].c, plane * sizeof *o[0].c);
    assert_memory_equal(&o[0].loss, &o[1].loss, sizeof o[0].loss);
    for (int i = 0; i < m[0]->parameters.count; i++) {
        const parameter *p = &m[0]->parameters.items[i];
        double error =
            relative_error(o[1].gradient + p->offset, o[0].gradient + p->offset, p->count);
        if (error > tolerance) fail_msg("gradient of %s: relative error %g", p->name, error);
    }
    for (int side = 0; side < 2; side++) {
        free_outcome(&o[side]);
        model_free(m[side]);
    }
    free_inputs(&in);
    be->destroy(be);
}

static void test_layers(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int variant = 0; variant < 4; variant++) {
            model_config config = base_config();
            config.cell = kind;
            config.internal_steps = 2;
            config.layers = variant ? 2 : 3;
            config.dropout = 0.25;
            if (variant == 1) config.layer_norm = false;
            if (variant == 2) {
                config.graph = GRAPH_DENSE;
                config.degree = 0;
            }
            if (variant == 3) { /* a single layer of these would be a chain of stages on a GPU */
                config.hidden = 512;
                config.block = 32;
            }
            compare(&config, FP32, variant == 3 ? 100 : 11, 2e-5, 2e-4);
            if (kind == CELL_DEEP) continue; /* see compare_all */
            compare(&config, BF16, variant == 3 ? 100 : 11, 2e-2, 0.2);
        }
    }
}

/* Each layer has patterns, first weights and dropout of its own. */
static void test_layers_differ(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = base_config();
    config.layers = 3;
    config.dropout = 0.5;
    assert_int_equal(model_stages(&config), 5);
    model *m = create(be, &config, 4, 3, 1);
    static const char *const names[] = {"gates", "layer2.below", "layer2.gates", "layer3.below",
                                        "layer3.gates"};
    for (int s = 0; s < 5; s++) {
        char name[16];
        assert_string_equal(model_stage_name(&config, s, name), names[s]);
        assert_int_equal(model_stage_gates(&config, s), GATES);
        for (int r = 0; r < s; r++) {
            size_t blocks = (size_t)graph_blocks(m->graphs[r]);
            assert_int_equal(blocks, graph_blocks(m->graphs[s]));
            assert_memory_not_equal(m->graphs[r]->column, m->graphs[s]->column,
                                    blocks * sizeof *m->graphs[r]->column);
        }
    }
    assert_true(m->layer[0].cell.dropout.seed == 3); /* as without layers */
    for (int y = 1; y < 3; y++) {
        assert_true(m->layer[y].cell.dropout.seed != m->layer[y - 1].cell.dropout.seed);
    }
    assert_true(model_state(m, MODEL_C, 0) == m->layer[2].cell.c);
    model_free(m);
    be->destroy(be);
}

static void test_recompute(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int variant = 0; variant < 5; variant++) {
            model_config config = base_config();
            config.cell = kind;
            if (variant == 1) config.layer_norm = false;
            if (variant == 2 || variant == 4) config.dropout = 0.25;
            if (variant == 4) config.layers = 2;
            if (variant == 3) {
                config.graph = GRAPH_DENSE;
                config.degree = 0;
            }
            compare_segments(&config, FP32, 1e-6);
            compare_segments(&config, BF16, 1e-2); /* a segment's table gradients are rounded */
        }
    }
}

/* ----------------------------------------------------------------------------------- training */

static void issue_update(void *argument) {
    model_update(argument);
}

/* Learns to repeat a short text; returns the loss in bits per byte of the last of `updates`, and
 * all weights if asked. */
static double learn(precision precision, const model_config *config, int segments, int updates,
                    bool recorded, double **weights) {
    static const char text[] = "the cat sat on the mat. ";
    enum { BATCH = 8, STEPS = 12 };
    backend *be = test_backend(precision);
    model *m = create(be, config, BATCH, STEPS, segments);
    size_t columns = (size_t)m->columns, length = sizeof text - 1, at = 0;
    model_initialise(m);
    recording *r = recorded ? be->record(be, issue_update, m) : NULL;
    update_report report = {0};
    uint8_t *bytes = mem_alloc(STEPS * columns, 1);
    int16_t *targets = mem_alloc(STEPS * columns, sizeof *targets);
    for (int u = 0; u < updates; u++) {
        for (size_t t = 0; t < STEPS; t++, at++) {
            for (size_t n = 0; n < columns; n++) {
                bytes[t * columns + n] = (uint8_t)text[(at + n) % length];
                targets[t * columns + n] = n < BATCH ? text[(at + n + 1) % length] : -1;
            }
        }
        update_arguments arguments = {.learning_rate = 0.01,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .epsilon = 1e-8,
                                      .clip = 1,
                                      .average = 0.5,
                                      .gradient_scale = 1.0 / (BATCH * STEPS),
                                      .update = (uint64_t)u};
        be->upload(be, m->bytes, bytes, STEPS * columns);
        be->upload(be, m->targets, targets, STEPS * columns * sizeof *targets);
        be->upload(be, m->arguments, &arguments, sizeof arguments);
        be->zero(be, m->report, sizeof report);
        if (recorded) {
            be->replay(be, r);
        } else {
            model_update(m);
        }
    }
    be->download(be, &report, m->report, sizeof report);
    error err;
    if (!be->finish(be, &err)) fail_msg("%s", err.text);
    if (weights) *weights = get(be, m->weights, m->parameters.total, REAL);
    free(bytes);
    free(targets);
    if (r) be->recording_free(be, r);
    model_free(m);
    be->destroy(be);
    return report.loss / (BATCH * STEPS * M_LN2);
}

static void test_learns(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int half = 0; half < 2; half++) {
            model_config config = base_config();
            config.cell = kind;
            config.internal_steps = 2;
            double bits =
                learn(half ? BF16 : FP32, &config, kind == CELL_LSTM ? 1 : 3, 150, true, NULL);
            if (!(bits < 0.2)) fail_msg("cell %d: %g bits per byte after 150 updates", kind, bits);
        }
    }
}

static void test_repeats(void **state) {
    (void)state;
    for (int half = 0; half < 2; half++) {
        model_config config = base_config();
        double *weights[3];
        config.dropout = 0.2;
        for (int run = 0; run < 3; run++) {
            learn(half ? BF16 : FP32, &config, 2, 12, run != 2, &weights[run]);
        }
        backend *be = test_backend(FP32);
        model *m = create(be, &config, 1, 1, 1);
        size_t bytes = m->parameters.total * sizeof(double);
        assert_memory_equal(weights[0], weights[1], bytes);
        assert_memory_equal(weights[0], weights[2], bytes);
        model_free(m);
        be->destroy(be);
        for (int run = 0; run < 3; run++) free(weights[run]);
    }
}

/* Targets, which index the logits, are 0 where nobody sets them: generate does not. */
static void test_no_targets(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = base_config();
    error err;
    model *m = create(be, &config, 3, 5, 1);
    size_t positions = (size_t)m->steps * (size_t)m->columns;
    int16_t *targets = mem_alloc(positions, sizeof *targets);
    be->download(be, targets, m->targets, positions * sizeof *targets);
    if (!be->finish(be, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < positions; i++) assert_int_equal(targets[i], 0);
    free(targets);
    model_free(m);
    be->destroy(be);
}

/* ------------------------------------------------------------------------------------ refusals */

static void test_does_not_fit(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = base_config();
    error err;
    be->memory = 1000000;
    assert_null(model_create(be, &config, NULL, 4, 4, 1, MODEL_TRAINING, &err));
    assert_contains(err.text, "does not fit");
    assert_contains(err.text, "weights");
    assert_contains(err.text, "free");
    assert_null(strstr(err.text, "recompute")); /* which would not help */

    be->memory = (size_t)1 << 40;
    model *m = create(be, &config, 40, 100, 1);
    be->memory = plan_total(&m->plan) / 3;
    model_free(m);
    assert_null(model_create(be, &config, NULL, 40, 100, 1, MODEL_TRAINING, &err));
    const char *advice = strstr(err.text, "train.recompute: ");
    assert_non_null(advice);
    int segments = atoi(strchr(advice, ' '));
    assert_in_range(segments, 2, 100);
    assert_null(model_create(be, &config, NULL, 40, 100, segments / 2, MODEL_TRAINING, &err));
    m = create(be, &config, 40, 100, segments);
    assert_true(plan_total(&m->plan) <= be->memory);
    model_free(m);
    be->destroy(be);
}

static void assert_limited(backend *be, const char *expected) {
    model_config config = base_config();
    error err;
    assert_null(model_create(be, &config, NULL, 4, 6, 2, MODEL_TRAINING, &err));
    assert_string_equal(err.text, expected);
}

/* What the backend's kernels cannot count is refused by name, and what they just can is not. */
static void test_limits(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = base_config();
    const backend_limits whole = be->limits;
    model *m = create(be, &config, 4, 6, 2);
    const size_t columns = (size_t)m->columns, values = GATES * (size_t)config.hidden * columns;
    const int blocks = m->layouts[0]->blocks, block = m->layouts[0]->out_block;
    const size_t rows = (size_t)blocks * GATES * (size_t)block;
    char expected[256];
    model_free(m);
    snprintf(be->device, sizeof be->device, "X");

    be->limits = (backend_limits){values, 3 * columns, rows, 3};
    model_free(create(be, &config, 4, 6, 2));

    be->limits = whole;
    be->limits.step_values = values - 1;
    snprintf(expected, sizeof expected,
             "model.hidden, train.batch: %" PRId64 " units of 4 gates and %zu streams are %zu "
             "values a step; X computes at most %zu",
             config.hidden, columns, values, values - 1);
    assert_limited(be, expected);

    be->limits = whole;
    be->limits.steps = 2;
    assert_limited(be, "train.bptt, train.recompute: a segment of 3 steps; X computes at most 2 at "
                       "a time");

    be->limits = whole;
    be->limits.positions = 3 * columns - 1;
    snprintf(expected, sizeof expected,
             "train.bptt, train.batch: 3 steps of %zu streams are %zu bytes of text at a time; X "
             "computes at most %zu",
             columns, 3 * columns, 3 * columns - 1);
    assert_limited(be, expected);

    be->limits = whole;
    be->limits.weight_rows = rows - 1;
    snprintf(expected, sizeof expected,
             "model.hidden, model.block: %d blocks of %d rows in 4 gates are %zu rows of weights; "
             "X computes at most %zu",
             blocks, block, rows, rows - 1);
    assert_limited(be, expected);
    be->destroy(be);
}

/* The layouts' tables are part of the plan: with one byte less than all of it, it does not fit. */
static void test_plan_counts_tables(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = base_config();
    char text[128], tables[16];
    error err;
    config.layers = 2;
    model *m = create(be, &config, 4, 4, 1);
    size_t bytes = be->layout_bytes(m->projection_device) + be->layout_bytes(m->head_device);
    for (int s = 0; s < model_stages(&config); s++) bytes += be->layout_bytes(m->devices[s]);
    assert_int_equal(m->plan.bytes[PLAN_TABLES], bytes);
    assert_true(bytes >= sizeof(int) * (size_t)m->layouts[0]->blocks);
    snprintf(text, sizeof text, "tables %s", log_bytes(tables, (double)bytes));
    char whole[128];
    assert_contains(plan_text(&m->plan, whole), text);
    be->memory = plan_total(&m->plan);
    model_free(m);
    model_free(create(be, &config, 4, 4, 1));
    be->memory--;
    assert_null(model_create(be, &config, NULL, 4, 4, 1, MODEL_TRAINING, &err));
    assert_contains(err.text, text);
    be->destroy(be);
}

/* The count from the config alone is that of the table, for every cell and option that matters. */
static void test_parameter_count(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    for (int kind = 0; kind < 48; kind++) {
        model_config config = base_config();
        config.cell = kind % 3;
        config.layer_norm = kind / 3 % 2;
        if (kind / 6 % 2) config.graph = GRAPH_DENSE, config.degree = 0;
        if (kind / 12 % 2) config.input_stride = 2, config.output_stride = 4;
        if (kind / 24) config.layers = model_most_layers(&config);
        model *m = create(be, &config, 1, 1, 1);
        assert_int_equal(model_parameter_count(&config, graph_blocks(m->graphs[0])),
                         parameter_scalars(&m->parameters));
        model_free(m);
    }
    be->destroy(be);
}

static double gap_of(const model_config *dense, double wanted) {
    int64_t nodes = dense->hidden / dense->block;
    return fabs((double)model_parameter_count(dense, nodes * nodes) - wanted);
}

/* No other width or number of blocks comes nearer to the wanted number of parameters. */
static void test_matching_parameters(void **state) {
    (void)state;
    error err;
    for (int k = 1; k < 40; k++) {
        const double wanted = 5000.0 * k * k;
        model_config config = base_config();
        config.graph = GRAPH_DENSE;
        config.output_stride = 3;
        assert_true(model_match_width(&config, wanted, &err));
        assert_int_equal(config.hidden % 48, 0);
        double gap = gap_of(&config, wanted);
        for (int64_t hidden = 48; hidden < 2000; hidden += 48) {
            model_config other = config;
            other.hidden = hidden;
            assert_true(gap_of(&other, wanted) >= gap);
        }
    }
    model_config config = base_config();
    config.degree = 0;
    config.hidden = 512;
    assert_true(model_match_density(&config, 300000, &err));
    int64_t blocks = llround(config.density * 32 * 32);
    double gap = fabs((double)model_parameter_count(&config, blocks) - 300000);
    assert_true(gap <= 16 * 16 * 4 / 2);
    assert_false(model_match_density(&config, 3e6, &err));
    assert_string_equal(err.text, "model.parameters: expected from 186624 (self-blocks alone) to "
                                  "1202432 (dense) at model.hidden 512, got 3000000");
}

/* With no gradient, an update only shrinks what decays: the recurrent weights of every stage. */
static void test_weight_decay(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = base_config();
    config.cell = CELL_DEEP;
    model *m = create(be, &config, 2, 3, 1);
    size_t total = m->parameters.total;
    float *before = mem_alloc(total, sizeof *before);
    parameter_initialise(&m->parameters, (uint64_t)config.seed, before);
    model_load(m, before);
    const update_arguments arguments = {.learning_rate = 0.5,
                                        .weight_decay = 0.25,
                                        .beta1 = 0.9,
                                        .beta2 = 0.9,
                                        .epsilon = 1e-8,
                                        .gradient_scale = 1};
    be->upload(be, m->arguments, &arguments, sizeof arguments);
    be->adam(be, total, m->weights, m->gradient, m->moment1, m->moment2, m->average, m->operands,
             m->decays, m->arguments, m->report);
    double *after = get(be, m->weights, total, REAL);
    int decayed = 0;
    for (int i = 0; i < m->parameters.count; i++) {
        const parameter *p = &m->parameters.items[i];
        bool recurrent = strncmp(p->name, "cell.", 5) == 0 && strstr(p->name, ".weight");
        decayed += recurrent;
        for (size_t k = p->offset; k < p->offset + p->count; k++) {
            assert_true((float)after[k] == before[k] * (recurrent ? 0.875f : 1));
        }
    }
    assert_int_equal(decayed, 4); /* three internal steps and the gates */
    free(after);
    free(before);
    model_free(m);
    be->destroy(be);
}

/* ------------------------------------------------------------------------------------ patterns */

static int find_block(const graph *g, int output, int input) {
    for (int k = g->start[output]; k < g->start[output + 1]; k++) {
        if (g->column[k] == input) return k;
    }
    return -1;
}

/* The weight [gate][row][column] of the block (output, input) of a stage in an arena, or 0. */
static double weight_of(const model *m, const double *arena, int s, int output, int input, int row,
                        int column) {
    char stage[16], name[48];
    snprintf(name, sizeof name, "cell.%s.weight", model_stage_name(&m->config, s, stage));
    const parameter *p = parameter_find(&m->parameters, name);
    const int side = (int)m->config.block, nodes = m->graphs[s]->nodes;
    const int block = find_block(m->graphs[s], output, input);
    if (block < 0) return 0;
    size_t at = ((size_t)block * (p->layout->gates * side) + row) * side + column;
    if (graph_blocks(m->graphs[s]) == nodes * nodes) { /* one matrix [gates][hidden][hidden] */
        size_t wide = (size_t)nodes * side;
        size_t of_gate = row / side * wide + (size_t)output * side + row % side;
        at = of_gate * wide + (size_t)input * side + column;
    }
    return arena[p->offset + at];
}

/* Replaces `grow` blocks of each stage and drops others. */
static void change_graphs(model *m, int drop, int grow) {
    graph *graphs[CELL_MAX_STAGES];
    philox_stream random = philox_start(5, PHILOX_TEST, 0, 0);
    for (int s = 0; s < model_stages(&m->config); s++) {
        double *norms = mem_alloc((size_t)graph_blocks(m->graphs[s]), sizeof *norms);
        int32_t grown[64][2];
        model_block_norms(m, m->weights, s, norms);
        int count = graph_draw_absent(m->graphs[s], grow, &random, grown);
        graphs[s] =
            graph_exchange(m->graphs[s], norms, drop, (const int32_t(*)[2])grown, count, &random);
        free(norms);
    }
    model_set_graphs(m, graphs);
}

static void check_moved(const model *was, const double *before, const model *is,
                        const double *after) {
    for (int i = 0; i < is->parameters.count; i++) {
        const parameter *a = &was->parameters.items[i], *b = &is->parameters.items[i];
        assert_string_equal(a->name, b->name);
        if (b->layout) continue;
        assert_int_equal(a->count, b->count);
        assert_memory_equal(before + a->offset, after + b->offset, b->count * sizeof *after);
    }
    const int side = (int)is->config.block;
    for (int s = 0; s < model_stages(&is->config); s++) {
        const graph *g = is->graphs[s];
        for (int i = 0; i < g->nodes; i++) {
            for (int k = g->start[i]; k < g->start[i + 1]; k++) {
                for (int e = 0; e < is->layouts[s]->gates * side * side; e++) {
                    int row = e / side, column = e % side, j = g->column[k];
                    assert_true(weight_of(is, after, s, i, j, row, column) ==
                                weight_of(was, before, s, i, j, row, column));
                }
            }
        }
    }
}

/* A model whose patterns changed holds in every arena what it held, and has the gradient of a model
 * that was made with its patterns and weights, on a more trusted backend. */
static void check_change(const model_config *config, int drop, int grow) {
    backend *be = test_backend(FP32);
    backend *trusted = test_device_is_cuda() ? backend_cpu(FP32, 0) : backend_cpu_reference(0);
    model *m = create(be, config, 11, 5, 1), *was = create(be, config, 11, 5, 1);
    random_restart(31);
    inputs in = draw_inputs(m);
    load(m, &in);
    void *const arenas[] = {m->weights, m->moment1, m->moment2, m->average};
    double *before[4];
    for (int a = 0; a < 4; a++) {
        double *values = random_values(m->parameters.total, -1, 1);
        if (a > 0) set(be, arenas[a], values, m->parameters.total, REAL);
        before[a] = get(be, arenas[a], m->parameters.total, REAL);
        free(values);
    }
    change_graphs(m, drop, grow);
    size_t total = m->parameters.total;
    double *after[4], *gradient = get(be, m->gradient, total, REAL);
    for (int a = 0; a < 4; a++) {
        after[a] = get(be, arenas[a], total, REAL);
        check_moved(was, before[a], m, after[a]);
    }
    for (size_t i = 0; i < total; i++) assert_true(gradient[i] == 0);
    free(gradient);

    graph *graphs[CELL_MAX_STAGES];
    philox_stream random = philox_start(6, PHILOX_TEST, 0, 0);
    for (int s = 0; s < model_stages(config); s++) {
        double *norms = mem_alloc((size_t)graph_blocks(m->graphs[s]), sizeof *norms);
        graphs[s] = graph_exchange(m->graphs[s], norms, 0, NULL, 0, &random);
        free(norms);
    }
    error err;
    model *fresh = model_create(trusted, config, graphs, 11, 5, 1, MODEL_TRAINING, &err);
    if (!fresh) fail_msg("%s", err.text);
    assert_int_equal(fresh->parameters.total, total);
    free(in.weights);
    in.weights = after[0];
    model *models[] = {m, fresh};
    outcome o[2];
    for (int i = 0; i < 2; i++) {
        load(models[i], &in);
        model_gradient(models[i]);
        o[i] = collect(models[i]);
    }
    for (int i = 0; i < m->parameters.count; i++) {
        const parameter *p = &m->parameters.items[i];
        double error =
            relative_error(o[0].gradient + p->offset, o[1].gradient + p->offset, p->count);
        if (error > 2e-4) fail_msg("gradient of %s: relative error %g", p->name, error);
    }
    for (int i = 0; i < 2; i++) free_outcome(&o[i]);
    for (int a = 0; a < 4; a++) {
        free(before[a]);
        if (a > 0) free(after[a]);
    }
    free_inputs(&in);
    model_free(was);
    model_free(m);
    model_free(fresh);
    trusted->destroy(trusted);
    be->destroy(be);
}

/* The weights of `m` for a model that has every block: zeros where `m` has none. */
static double *fill_up(const model *m, const double *weights, const model *full) {
    const int width = (int)m->config.hidden, side = (int)m->config.block;
    double *filled = mem_alloc(full->parameters.total, sizeof *filled);
    int stage = -1;
    for (int i = 0; i < full->parameters.count; i++) {
        const parameter *from = &m->parameters.items[i], *to = &full->parameters.items[i];
        stage += to->layout != NULL;
        for (int e = 0; e < (int)to->count; e++) {
            const int gate = e / width / width, row = e / width % width, column = e % width;
            filled[to->offset + (size_t)e] =
                to->layout ? weight_of(m, weights, stage, row / side, column / side,
                                       gate * side + row % side, column % side)
                           : weights[from->offset + (size_t)e];
        }
    }
    return filled;
}

/* The norms of the gradient at absent blocks, which leave out the first step, against the gradient
 * of a model that has every block. From a zero state the first step adds nothing to the first
 * stage's, nor to the mlstm's second. */
static void check_gradient_norms(int kind, int layers) {
    backend *be = test_backend(FP32);
    backend *trusted = test_device_is_cuda() ? backend_cpu(FP32, 0) : backend_cpu_reference(0);
    model_config config = base_config();
    config.cell = kind;
    config.internal_steps = 2;
    config.layers = layers;
    config.layer_norm = false; /* of zeros would not be zero */
    random_restart(41);
    model *m = create(be, &config, 11, 5, 1);
    config.graph = GRAPH_DENSE;
    config.degree = 0;
    model *full = create(trusted, &config, 11, 5, 1);
    inputs in = draw_inputs(m), filled;
    memset(in.h, 0, (size_t)config.hidden * 11 * sizeof *in.h);
    filled = in;
    filled.weights = fill_up(m, in.weights, full);
    load(m, &in);
    model_gradient(m);
    load(full, &filled);
    model_gradient(full);
    double *expected = get(trusted, full->gradient, full->parameters.total, REAL);
    philox_stream random = philox_start(8, PHILOX_TEST, 0, 0);
    for (int s = 0; s < model_stages(&config); s++) {
        const stage_place at = model_stage_place(&config, s);
        if (at.stage > (kind == CELL_MLSTM && at.layer == 0)) continue;
        int32_t absent[20][2];
        double norms[20];
        assert_int_equal(graph_draw_absent(m->graphs[s], 20, &random, absent), 20);
        graph *g = graph_of_absent(m->graphs[s]->nodes, (const int32_t(*)[2])absent, 20);
        model_gradient_norms(m, s, g, norms);
        for (int k = 0; k < 20; k++) {
            const int side = (int)config.block, output = absent[k][0], input = absent[k][1];
            double sum = 0;
            for (int e = 0; e < m->layouts[s]->gates * side * side; e++) {
                sum += pow(weight_of(full, expected, s, output, input, e / side, e % side), 2);
            }
            if (!(fabs(norms[k] / sqrt(sum) - 1) < 1e-3)) {
                fail_msg("stage %d, block %d: %g, expected %g", s, k, norms[k], sqrt(sum));
            }
        }
        graph_free(g);
    }
    free(expected);
    free(filled.weights);
    free_inputs(&in);
    model_free(full);
    model_free(m);
    trusted->destroy(trusted);
    be->destroy(be);
}

static void test_gradient_norms(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        check_gradient_norms(kind, 1);
        check_gradient_norms(kind, 2);
    }
}

static void test_changed_patterns(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        model_config config = base_config();
        config.cell = kind;
        config.internal_steps = 2;
        check_change(&config, 0, 0);
        check_change(&config, 13, 13);
        check_change(&config, 17, 0);
        check_change(&config, 32, 0); /* self-blocks alone are left */
        config.graph = GRAPH_DENSE;
        config.degree = 0;
        check_change(&config, 0, 0);
        check_change(&config, 30, 0);
        config.layers = 2;
        check_change(&config, 30, 0);
        config = base_config();
        config.cell = kind;
        config.internal_steps = 2;
        config.layers = 2;
        check_change(&config, 13, 13);
    }
}

/* A byte's draw is its own, whatever the padding and the number of streams and steps; so every
 * backend, and a run that was resumed, drops the same ones. */
static void test_input_dropout(void **state) {
    (void)state;
    model_config config = base_config();
    config.input_dropout = 0.25;
    backend *be = test_backend(FP32);
    model *narrow = create(be, &config, 6, 40, 1), *wide = create(be, &config, 100, 80, 1);
    uint8_t *few = mem_alloc((size_t)(40 * narrow->columns), 1);
    uint8_t *many = mem_alloc((size_t)(80 * wide->columns), 1);
    int dropped = 0, moved = 0;
    for (uint64_t update = 0; update < 5; update++) {
        memset(few, 'x', (size_t)(40 * narrow->columns));
        memset(many, 'x', (size_t)(80 * wide->columns));
        model_drop_input(narrow, update, few);
        model_drop_input(wide, update, many);
        for (int t = 0; t < 80; t++) {
            for (int n = 0; n < 100; n++) {
                uint8_t byte = many[t * wide->columns + n];
                dropped += byte == DROPPED_BYTE;
                if (byte != DROPPED_BYTE) assert_int_equal(byte, 'x');
                if (t < 40 && n < 6) assert_int_equal(few[t * narrow->columns + n], byte);
            }
        }
        uint8_t last = many[79 * wide->columns + 99];
        memset(many, 'x', (size_t)(80 * wide->columns));
        model_drop_input(wide, update + 1000, many);
        moved += many[79 * wide->columns + 99] != last;
    }
    assert_in_range(dropped, 9700, 10300); /* of 40,000, within 3.5 deviations */
    assert_in_range(moved, 1, 5);
    free(few);
    free(many);
    model_free(narrow);
    model_free(wide);
    be->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_tf32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_layers_differ),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_parameter_count),
        cmocka_unit_test(test_matching_parameters),
        cmocka_unit_test(test_weight_decay),
        cmocka_unit_test(test_input_dropout),
        cmocka_unit_test(test_changed_patterns),
        cmocka_unit_test(test_gradient_norms),
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_no_targets),
        cmocka_unit_test(test_does_not_fit),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_plan_counts_tables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
