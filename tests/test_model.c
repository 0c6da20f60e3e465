/* The whole model on a backend against a more trusted one: states, losses and every gradient, with
 * the memory of activations and gradients poisoned first. Recorded and issued updates agree, runs
 * repeat bit for bit, recomputation changes only the order of sums, and training learns. */
#include "models.h"

#include "core/log.h"
#include "core/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How much a gradient may differ, about twice what was seen. In bf16 a GPU is held against the CPU
 * in bf16, the CPU against exact sums; rounding moves some of the deep cell's sums past relu's
 * edge, and their gradients are then wholly wrong. */
static double gradient_tolerance(precision precision, int64_t cell) {
    if (precision == FP32) return 5e-5;
    if (test_device_is_cuda()) return cell == CELL_DEEP ? 0.1 : 0.03;
    return cell == CELL_DEEP ? 0.4 : 0.15;
}

/* Compares both backends, and a second gradient on the first one bit for bit. `batch` is no
 * multiple of what a backend pads to. */
static void compare(const model_config *config, const char *name, precision precision, int batch,
                    double tolerance) {
    if (!takes_case()) return;
    backend *be[2] = {test_backend(precision),
                      test_device_is_cuda() ? backend_cpu(precision, 0) : backend_cpu_reference(0)};
    outcome o[2];
    model *m[2];
    inputs in = {0};
    random_restart(21);
    for (int side = 0; side < 2; side++) {
        m[side] = create_model(be[side], config, batch, 5, 1);
        if (side == 0) in = draw_inputs(m[0]);
        load_inputs(m[side], &in);
        model_gradient(m[side]);
        o[side] = collect_outcome(m[side]);
    }
    load_inputs(m[0], &in);
    model_gradient(m[0]);
    outcome again = collect_outcome(m[0]);
    assert_memory_equal(again.gradient, o[0].gradient,
                        m[0]->parameters.total * sizeof *again.gradient);
    free_outcome(&again);
    size_t plane = (size_t)config->hidden * (size_t)batch;
    double error = relative_error(o[0].h, o[1].h, plane);
    if (error > tolerance) fail_msg("%s, h: relative error %g", name, error);
    error = relative_error(o[0].c, o[1].c, plane);
    if (error > tolerance) fail_msg("%s, c: relative error %g", name, error);
    if (!(fabs(o[0].loss / o[1].loss - 1) <= tolerance)) {
        fail_msg("%s, loss: %.10g, expected %.10g", name, o[0].loss, o[1].loss);
    }
    for (int i = 0; i < m[0]->parameters.count; i++) {
        const parameter *p = &m[0]->parameters.items[i];
        error = relative_error(o[0].gradient + p->offset, o[1].gradient + p->offset, p->count);
        if (error > gradient_tolerance(precision, config->cell)) {
            fail_msg("%s, gradient of %s: relative error %g", name, p->name, error);
        }
    }
    for (int side = 0; side < 2; side++) {
        free_outcome(&o[side]);
        model_free(m[side]);
        be[side]->memory->destroy(be[side]);
    }
    free_inputs(&in);
}

/* The ways in which small models differ, each for the code that it alone runs. */
enum variant {
    PLAIN,
    WITHOUT_NORM,
    WEIGHT_NORM, /* with three classes of documents */
    COUPLED,     /* gates, with layer norm */
    WEIGHT_NORM_COUPLED,
    DENSE,             /* products of whole matrices */
    DENSE_WEIGHT_NORM, /* with coupled gates and dropout, of two layers */
    STRIDES,      /* some units alone read the byte and are read by the head; dropout; classes */
    LARGE_BLOCKS, /* of 64 units, with more streams than a tile has columns */
    LONG_LISTS,   /* a few nodes read by many, in as many lists of very unlike lengths */
    LONG_LISTS_STRIDE, /* the same with a table for every second unit */
    VARIANTS
};

static const char *const variant_names[VARIANTS] = {"plain",
                                                    "without norm",
                                                    "weight norm, classes",
                                                    "coupled gates",
                                                    "weight norm, coupled",
                                                    "dense",
                                                    "dense, weight norm, coupled, two layers",
                                                    "strides, classes",
                                                    "large blocks",
                                                    "long lists",
                                                    "long lists, stride"};

/* Of streams, none a multiple of what a backend pads to. */
static const int batches[VARIANTS] = {11, 11, 11, 130, 70, 11, 130, 11, 150, 100, 11};

static model_config varied(int cell, enum variant variant) {
    model_config config = small_config();
    config.cell = cell;
    switch (variant) {
    case WITHOUT_NORM: config.norm = NORM_NONE; break;
    case WEIGHT_NORM:
        config.norm = NORM_WEIGHT;
        config.classes = 3;
        break;
    case COUPLED: config.coupled_gates = true; break;
    case WEIGHT_NORM_COUPLED:
        config.norm = NORM_WEIGHT;
        config.coupled_gates = true;
        config.input_stride = 2;
        break;
    case DENSE_WEIGHT_NORM:
        config.norm = NORM_WEIGHT;
        config.coupled_gates = true;
        config.dropout = 0.25;
        config.layers = 2;
        config.graph = GRAPH_DENSE;
        config.degree = 0;
        break;
    case DENSE:
        config.graph = GRAPH_DENSE;
        config.degree = 0;
        break;
    case STRIDES:
        config.input_stride = 2;
        config.output_stride = 4;
        config.block = 8;
        config.dropout = 0.25;
        config.classes = 20;
        break;
    case LARGE_BLOCKS:
        config.hidden = 512;
        config.block = 64;
        config.degree = 2;
        break;
    case LONG_LISTS_STRIDE:
        config.input_stride = 2;
        config.internal_steps = 2;
        /* fall through */
    case LONG_LISTS:
        config.hidden = 1344;
        config.block = 32;
        config.graph = GRAPH_BARABASI_ALBERT;
        config.degree = 6;
        break;
    case PLAIN:
    case VARIANTS: break;
    }
    return config;
}

/* Each cell in each variant; those of long lists are for bf16's kernels. */
static void compare_all(precision precision, double tolerance) {
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int v = 0; v < (precision == BF16 ? VARIANTS : LONG_LISTS); v++) {
            const model_config config = varied(kind, (enum variant)v);
            compare(&config, variant_names[v], precision, batches[v], tolerance);
        }
    }
}

/* Hubs, of dense wiring, of random and of nearest cells, in small blocks and large ones; further
 * layers read them too. The width of internal stages is no power of two. */
enum { HUB_VARIANTS = 7 };

static const char *const hub_names[HUB_VARIANTS] = {"dense hubs",
                                                    "random hubs",
                                                    "hubs on a ring",
                                                    "hubs in two layers",
                                                    "hubs, stride, no norm",
                                                    "hubs, weight norm, coupled",
                                                    "random hubs, weight norm, coupled"};

static model_config hubs_config(int kind, int variant) {
    static const int block[HUB_VARIANTS] = {64, 16, 64, 32, 64, 64, 32};
    model_config config = small_config();
    config.cell = kind;
    config.internal_steps = 2;
    config.degree = 0;
    config.density = 0.5;
    config.block = block[variant];
    config.hidden = 10 * config.block;
    config.hubs = 3 * config.block;
    config.graph = GRAPH_DENSE;
    if (variant == 1) config.graph = GRAPH_RANDOM;
    if (variant == 2) config.graph = GRAPH_WATTS_STROGATZ;
    if (variant == 3) config.layers = 2;
    if (variant == 4) config.input_stride = 2, config.norm = NORM_NONE;
    if (variant > 4) config.norm = NORM_WEIGHT, config.coupled_gates = true;
    if (variant == 6) config.graph = GRAPH_RANDOM;
    return config;
}

static void compare_hubs(precision precision, double tolerance) {
    for (int kind = CELL_MLSTM; kind <= CELL_DEEP; kind++) {
        for (int variant = 0; variant < HUB_VARIANTS; variant++) {
            const model_config config = hubs_config(kind, variant);
            compare(&config, hub_names[variant], precision, variant == 2 || variant == 5 ? 130 : 11,
                    tolerance);
        }
    }
}

/* Noise leaves the identity of self-blocks, and the self-blocks of all gates, as they are. */
static void test_initial_identity(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    const model_config config = small_config();
    model *m = create_model(be, &config, 1, 1, 1);
    model_initialise(m);
    const parameter *p = parameter_find(&m->parameters, "cell.gates.weight");
    const layout *l = p->layout;
    float *all = model_download(m, m->weights, p->offset, p->count);
    const size_t b = (size_t)config.block;
    int others = 0;
    for (int i = 0; i < l->out_nodes; i++) {
        for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
            for (size_t row = 0; row < GATES * b; row++) {
                for (size_t column = 0; column < b; column++) {
                    const float w = all[((size_t)k * GATES * b + row) * b + column];
                    if (l->row_column[k] != i)
                        others += w != 0;
                    else
                        assert_true(w == (row % b == column ? 1 : 0));
                }
            }
        }
    }
    assert_int_equal(others, ((size_t)l->blocks - (size_t)l->out_nodes) * GATES * b * b);
    free(all);
    model_free(m);
    be->memory->destroy(be);
}

static void test_initial_input(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = small_config();
    config.embedding = 64;
    config.init_input = 0.3;
    model *m = create_model(be, &config, 1, 1, 1);
    model_initialise(m);
    const parameter *p = parameter_find(&m->parameters, "input.embedding");
    float *all = model_download(m, m->weights, p->offset, p->count);
    double squares = 0;
    for (size_t i = 0; i < p->count; i++) squares += (double)all[i] * all[i];
    const double deviation = sqrt(squares / (double)p->count); /* 16,384 values: within .002 */
    assert_true(fabs(deviation - 0.3) < 0.01);
    free(all);
    model_free(m);
    be->memory->destroy(be);
}

/* A hub begins as the scaled sum of its own cells, and a cell's gates as its hub. */
static void test_initial_hubs(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = small_config();
    config.cell = CELL_MLSTM;
    config.graph = GRAPH_DENSE;
    config.degree = 0;
    config.init_noise = 0;
    config.hubs = 32;
    model *m = create_model(be, &config, 1, 1, 1);
    model_initialise(m);
    const parameter *v = parameter_find(&m->parameters, "cell.step0.weight");
    const parameter *w = parameter_find(&m->parameters, "cell.gates.weight");
    float *all = model_download(m, m->weights, 0, m->parameters.total);
    const size_t cells = 128, hubs = 32;
    for (size_t hub = 0; hub < hubs; hub++) {
        for (size_t cell = 0; cell < cells; cell++) {
            const double own = cell % hubs == hub;
            assert_true(fabs(all[v->offset + hub * cells + cell] - 0.5 * own) < 1e-6);
            for (size_t gate = 0; gate < GATES; gate++) {
                const size_t at = (gate * cells + cell) * hubs + hub;
                assert_true(all[w->offset + at] == (float)own);
            }
        }
    }
    free(all);
    model_free(m);
    be->memory->destroy(be);
}

static void test_hubs(void **state) {
    (void)state;
    compare_hubs(FP32, 2e-5);
    compare_hubs(BF16, 5e-2);
}

static void test_fp32(void **state) {
    (void)state;
    compare_all(FP32, 2e-5);
}

static void test_bf16(void **state) {
    (void)state;
    compare_all(BF16, 2e-2);
}

/* --------------------------------------------------------------------------------- generation */

enum { WRITTEN = 14, GIVEN = 4 };

/* Has the model write `text` from these inputs, in calls of so many bytes, and downloads the last
 * logits of its one stream. */
static double *write_with(model *m, const inputs *in, sampling how, const int *calls,
                          uint8_t text[WRITTEN]) {
    backend *be = m->be;
    sampling *state = be->memory->allocate(be, sizeof how);
    uint8_t *on_device = be->memory->allocate(be, WRITTEN);
    load_inputs(m, in);
    model_prepare_tables(m);
    be->memory->upload(be, state, &how, sizeof how);
    be->memory->upload(be, on_device, text, WRITTEN);
    be->memory->copy(be, m->bytes, on_device, 1);
    for (int i = 0; calls[i]; i++) model_generate(m, state, on_device, calls[i]);
    be->memory->download(be, text, on_device, WRITTEN);
    be->memory->download(be, &how, state, sizeof how);
    assert_int_equal(how.position, WRITTEN - 1);
    uint8_t last;
    be->memory->download(be, &last, m->bytes, 1);
    assert_int_equal(last, text[WRITTEN - 1]);
    const size_t columns = (size_t)m->columns;
    double *all = get(be, m->logits, VOCABULARY * columns, REAL);
    double *logits = mem_alloc(VOCABULARY, sizeof *logits);
    for (size_t v = 0; v < VOCABULARY; v++) logits[v] = all[v * columns];
    be->memory->release(be, state);
    be->memory->release(be, on_device);
    free(all);
    return logits;
}

/* The byte that a backend draws from one stream's logits. */
static uint8_t draw(backend *be, const double *logits, const double *bias, sampling how) {
    const size_t columns = (size_t)be->column_multiple;
    double *wide = mem_alloc(VOCABULARY * columns, sizeof *wide);
    for (size_t v = 0; v < VOCABULARY; v++) wide[v * columns] = logits[v];
    uint8_t *text = be->memory->allocate(be, WRITTEN), *bytes = be->memory->allocate(be, columns),
            drawn;
    sampling *state = be->memory->allocate(be, sizeof how);
    void *l = put(be, wide, VOCABULARY * columns, REAL), *b = put(be, bias, VOCABULARY, REAL);
    be->memory->upload(be, state, &how, sizeof how);
    be->update->sample(be, l, b, 1, (int)columns, state, text, bytes);
    be->memory->download(be, &drawn, bytes, 1);
    void *blocks[] = {text, bytes, state, l, b};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) be->memory->release(be, blocks[i]);
    free(wide);
    return drawn;
}

/* Compares a text's last logits and state with those of a more trusted backend that reads it, its
 * last byte with the one that backend draws from these logits, and texts of one and of many calls
 * bit for bit. */
static void compare_text(const model_config *config, precision precision, double tolerance) {
    static const int at_once[] = {WRITTEN - 1, 0}, parts[] = {1, 7, 4, 1, 0};
    if (!takes_case()) return;
    backend *be[2] = {test_backend(precision),
                      test_device_is_cuda() ? backend_cpu(precision, 0) : backend_cpu_reference(0)};
    sampling how = {.temperature = 0.8, .top_p = 0.97, .top_k = 60, .seed = 5, .prompt = GIVEN};
    uint8_t text[3][WRITTEN] = {"text", "text"};
    double *logits[3];
    outcome o[2];
    model *m[2];
    inputs in = {0};
    random_restart(23);
    for (int side = 0; side < 2; side++) {
        m[side] = create_model(be[side], config, 1, 1, 1);
        if (side == 0) in = draw_inputs(m[0]);
    }
    logits[1] = write_with(m[0], &in, how, at_once, text[1]);
    logits[0] = write_with(m[0], &in, how, parts, text[0]);
    if (memcmp(text[0], text[1], WRITTEN) ||
        memcmp(logits[0], logits[1], VOCABULARY * sizeof *logits[0])) {
        fail_msg("%s, cell %d of %d units, block %d, %d layers, norm %d: calls differ",
                 precision == FP32 ? "fp32" : "bf16", config->cell, (int)config->hidden,
                 (int)config->block, (int)config->layers, config->norm);
    }
    memcpy(text[2], text[0], WRITTEN);
    o[0] = collect_outcome(m[0]);
    how.position = WRITTEN - 2;
    const double *bias = in.weights + m[0]->parameters.items[m[0]->head_bias].offset;
    assert_int_equal(text[0][WRITTEN - 1], draw(be[1], logits[0], bias, how));
    how.position = 0;
    how.prompt = WRITTEN;
    logits[2] = write_with(m[1], &in, how, at_once, text[2]);
    o[1] = collect_outcome(m[1]);
    const double errors[] = {relative_error(logits[0], logits[2], VOCABULARY),
                             relative_error(o[0].h, o[1].h, (size_t)config->hidden),
                             relative_error(o[0].c, o[1].c, (size_t)config->hidden)};
    for (int i = 0; i < 3; i++) {
        if (!(errors[i] <= tolerance)) {
            fail_msg("%s: relative error %g", (const char *const[]){"logits", "h", "c"}[i],
                     errors[i]);
        }
    }
    for (int i = 0; i < 3; i++) free(logits[i]);
    for (int side = 0; side < 2; side++) {
        free_outcome(&o[side]);
        model_free(m[side]);
        be[side]->memory->destroy(be[side]);
    }
    free_inputs(&in);
}

static void test_generate(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int v = 0; v < LONG_LISTS_STRIDE; v++) {
            model_config config = varied(kind, (enum variant)v);
            config.internal_steps = 2;
            if (v == LARGE_BLOCKS) config.layers = 2;
            compare_text(&config, FP32, 5e-5);
            if (kind != CELL_DEEP) compare_text(&config, BF16, 5e-2); /* see gradient_tolerance */
        }
        for (int variant = 0; variant < HUB_VARIANTS && kind != CELL_LSTM; variant++) {
            const model_config config = hubs_config(kind, variant);
            compare_text(&config, FP32, 5e-5);
            compare_text(&config, BF16, kind == CELL_DEEP ? 0.2 : 5e-2);
        }
    }
}

/* ---------------------------------------------------------------------------------- recompute */

/* Compares five steps at once with segments of two, two and one. */
static void compare_segments(const model_config *config, precision precision, double tolerance) {
    backend *be = test_backend(precision);
    outcome o[2];
    model *m[2];
    inputs in = {0};
    random_restart(22);
    for (int side = 0; side < 2; side++) {
        m[side] = create_model(be, config, 11, 5, side ? 3 : 1);
        if (side == 0) in = draw_inputs(m[0]);
        load_inputs(m[side], &in);
        model_gradient(m[side]);
        o[side] = collect_outcome(m[side]);
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
    be->memory->destroy(be);
}

static void test_layers(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int v = 0; v <= LARGE_BLOCKS; v++) {
            model_config config = varied(kind, (enum variant)v);
            config.internal_steps = 2;
            config.layers = v == PLAIN ? 3 : 2;
            config.dropout = 0.25;
            compare(&config, variant_names[v], FP32, batches[v], 2e-5);
            if (kind == CELL_DEEP) continue; /* see gradient_tolerance */
            compare(&config, variant_names[v], BF16, batches[v], 2e-2);
        }
    }
}

/* Each layer has its own patterns, initial weights and dropout. */
static void test_layers_differ(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = small_config();
    config.layers = 3;
    config.dropout = 0.5;
    assert_int_equal(model_stages(&config), 5);
    model *m = create_model(be, &config, 4, 3, 1);
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
    be->memory->destroy(be);
}

static void test_recompute(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int variant = 0; variant < 5; variant++) {
            model_config config = small_config();
            config.cell = kind;
            if (variant == 1) config.norm = NORM_NONE;
            if (variant == 2 || variant == 4) config.dropout = 0.25;
            if (variant == 4) config.layers = 2;
            if (variant == 3) {
                config.graph = GRAPH_DENSE;
                config.degree = 0;
            }
            compare_segments(&config, FP32, 1e-6);
            /* The table's gradients are rounded for each segment. */
            compare_segments(&config, BF16, 1e-2);
        }
    }
}

/* ---------------------------------------------------------------------------- sums over ranks */

/* The sum over two ranks with equal gradients. */
static void double_values(backend *be, size_t count, void *values) {
    assert_int_equal(count % 4, 0);
    be->update->add(be, count, values, values);
}

/* The gradient of an update is summed once, all of it. */
static void compare_sums(const model_config *config, precision precision, int segments) {
    double *gradient[2];
    size_t total = 0;
    for (int side = 0; side < 2; side++) {
        backend *be = test_backend(precision);
        update_operations doubled = *be->update;
        ranks two = {.count = 2};
        doubled.sum_ranks = double_values;
        if (side) be->update = &doubled;
        if (side) be->ranks = &two;
        random_restart(23);
        model *m = create_model(be, config, 11, 5, segments);
        inputs in = draw_inputs(m);
        load_inputs(m, &in);
        side ? model_update(m) : model_gradient(m);
        total = m->parameters.total;
        gradient[side] = get(be, m->gradient, total, REAL);
        free_inputs(&in);
        model_free(m);
        be->memory->destroy(be);
    }
    for (size_t i = 0; i < total; i++) assert_true(gradient[1][i] == 2 * gradient[0][i]);
    free(gradient[0]);
    free(gradient[1]);
}

static void test_sums(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        model_config config = small_config();
        config.cell = kind;
        config.internal_steps = 2;
        for (int layers = 1; layers <= 2; layers++) {
            config.layers = layers;
            compare_sums(&config, FP32, 1);
            compare_sums(&config, BF16, 3);
        }
        config.hidden = 512;
        config.block = 32;
        compare_sums(&config, BF16, 1);
        config.graph = GRAPH_DENSE;
        config.degree = 0;
        compare_sums(&config, FP32, 2);
    }
}

/* ----------------------------------------------------------------------------------- training */

static void issue_update(void *argument) {
    model_update(argument);
}

/* Trains on a short text that repeats. Returns the loss of the last update in bits per byte, and
 * all weights if `weights` is given. */
static double learn(precision precision, const model_config *config, int segments, int updates,
                    bool recorded, double **weights) {
    static const char text[] = "the cat sat on the mat. ";
    enum { BATCH = 8, STEPS = 12 };
    backend *be = test_backend(precision);
    model *m = create_model(be, config, BATCH, STEPS, segments);
    size_t columns = (size_t)m->columns, length = sizeof text - 1, at = 0;
    model_initialise(m);
    recording *r = recorded ? be->memory->record(be, issue_update, m) : NULL;
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
                                      .head_learning_rate = 0.01,
                                      .beta1 = 0.9,
                                      .beta2 = 0.99,
                                      .epsilon = 1e-8,
                                      .clip = 1,
                                      .average = 0.5,
                                      .gradient_scale = 1.0 / (BATCH * STEPS),
                                      .update = (uint64_t)u};
        be->memory->upload(be, m->bytes, bytes, STEPS * columns);
        be->memory->upload(be, m->targets, targets, STEPS * columns * sizeof *targets);
        be->memory->upload(be, m->arguments, &arguments, sizeof arguments);
        be->memory->zero(be, m->report, sizeof report);
        if (recorded) {
            be->memory->replay(be, r);
        } else {
            model_update(m);
        }
    }
    be->memory->download(be, &report, m->report, sizeof report);
    error err;
    if (!be->memory->finish(be, &err)) fail_msg("%s", err.text);
    if (weights) *weights = get(be, m->weights, m->parameters.total, REAL);
    free(bytes);
    free(targets);
    if (r) be->memory->recording_free(be, r);
    model_free(m);
    be->memory->destroy(be);
    return report.loss / (BATCH * STEPS * M_LN2);
}

static void test_learns(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int half = 0; half < 2; half++) {
            model_config config = small_config();
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
        model_config config = small_config();
        double *weights[3];
        config.dropout = 0.2;
        for (int run = 0; run < 3; run++) {
            learn(half ? BF16 : FP32, &config, 2, 12, run != 2, &weights[run]);
        }
        backend *be = test_backend(FP32);
        model *m = create_model(be, &config, 1, 1, 1);
        size_t bytes = m->parameters.total * sizeof(double);
        assert_memory_equal(weights[0], weights[1], bytes);
        assert_memory_equal(weights[0], weights[2], bytes);
        model_free(m);
        be->memory->destroy(be);
        for (int run = 0; run < 3; run++) free(weights[run]);
    }
}

/* Targets index the logits, so they are 0 where nobody sets them, as in generation. */
static void test_no_targets(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = small_config();
    error err;
    model *m = create_model(be, &config, 3, 5, 1);
    size_t positions = (size_t)m->steps * (size_t)m->columns;
    int16_t *targets = mem_alloc(positions, sizeof *targets);
    be->memory->download(be, targets, m->targets, positions * sizeof *targets);
    if (!be->memory->finish(be, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < positions; i++) assert_int_equal(targets[i], 0);
    free(targets);
    model_free(m);
    be->memory->destroy(be);
}

/* ------------------------------------------------------------------------------------ refusals */

static void test_does_not_fit(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = small_config();
    error err;
    be->available = 1000000;
    assert_null(model_create(be, &config, NULL, 4, 4, 1, MODEL_TRAINING, &err));
    assert_contains(err.text, "does not fit");
    assert_contains(err.text, "weights");
    assert_contains(err.text, "free");
    assert_null(strstr(err.text, "recompute")); /* more segments would not help */

    be->available = (size_t)1 << 40;
    model *m = create_model(be, &config, 40, 100, 1);
    be->available = plan_total(&m->plan) / 3;
    model_free(m);
    assert_null(model_create(be, &config, NULL, 40, 100, 1, MODEL_TRAINING, &err));
    const char *advice = strstr(err.text, "train.recompute: ");
    assert_non_null(advice);
    int segments = atoi(strchr(advice, ' '));
    assert_in_range(segments, 2, 100);
    assert_null(model_create(be, &config, NULL, 40, 100, segments / 2, MODEL_TRAINING, &err));
    m = create_model(be, &config, 40, 100, segments);
    assert_true(plan_total(&m->plan) <= be->available);
    model_free(m);
    be->memory->destroy(be);
}

static void assert_limited(backend *be, const char *expected) {
    model_config config = small_config();
    error err;
    assert_null(model_create(be, &config, NULL, 4, 6, 2, MODEL_TRAINING, &err));
    assert_string_equal(err.text, expected);
}

/* Sizes beyond the limits of the backend's kernels are refused with the names of the keys. Sizes at
 * the limits are accepted. */
static void test_limits(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = small_config();
    const backend_limits whole = be->limits;
    model *m = create_model(be, &config, 4, 6, 2);
    const size_t columns = (size_t)m->columns, values = GATES * (size_t)config.hidden * columns;
    const int blocks = m->layouts[0]->blocks, block = m->layouts[0]->out_block;
    const size_t rows = (size_t)blocks * GATES * (size_t)block;
    char expected[256];
    model_free(m);
    snprintf(be->device, sizeof be->device, "X");

    be->limits = (backend_limits){values, 3 * columns, rows, 3};
    model_free(create_model(be, &config, 4, 6, 2));

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
    be->memory->destroy(be);
}

/* The plan includes the layouts' tables. With one byte less than the whole plan, the model does not
 * fit. */
static void test_plan_counts_tables(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = small_config();
    char text[128], tables[16];
    error err;
    config.layers = 2;
    model *m = create_model(be, &config, 4, 4, 1);
    size_t bytes = be->memory->layout_bytes(m->projection_devices[TABLES_OF_CELLS]) +
                   be->memory->layout_bytes(m->head_device);
    for (int s = 0; s < model_stages(&config); s++)
        bytes += be->memory->layout_bytes(m->devices[s]);
    assert_int_equal(m->plan.bytes[PLAN_TABLES], bytes);
    assert_true(bytes >= sizeof(int) * (size_t)m->layouts[0]->blocks);
    snprintf(text, sizeof text, "tables %s", log_bytes(tables, (double)bytes));
    char whole[128];
    assert_contains(plan_text(&m->plan, whole), text);
    size_t sum = 0;
    for (int a = 0; a < PLAN_ARENAS; a++) sum += m->plan.bytes[a];
    assert_int_equal(plan_total(&m->plan), sum);
    be->available = plan_total(&m->plan);
    model_free(m);
    model_free(create_model(be, &config, 4, 4, 1));
    be->available--;
    assert_null(model_create(be, &config, NULL, 4, 4, 1, MODEL_TRAINING, &err));
    assert_contains(err.text, text);
    be->memory->destroy(be);
}

/* The draw for a byte depends on neither the padding nor the number of streams and steps, so every
 * backend, and a resumed run, drops the same bytes. */
static void test_input_dropout(void **state) {
    (void)state;
    model_config config = small_config();
    config.input_dropout = 0.25;
    backend *be = test_backend(FP32);
    model *narrow = create_model(be, &config, 6, 40, 1),
          *wide = create_model(be, &config, 100, 80, 1);
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
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_layers_differ),
        cmocka_unit_test(test_recompute),
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_input_dropout),
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_no_targets),
        cmocka_unit_test(test_does_not_fit),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_plan_counts_tables),
        cmocka_unit_test(test_initial_identity),
        cmocka_unit_test(test_initial_input),
        cmocka_unit_test(test_initial_hubs),
        cmocka_unit_test(test_hubs),
        cmocka_unit_test(test_generate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
