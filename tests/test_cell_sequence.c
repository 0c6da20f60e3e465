/* A cell forward and backward over a whole sequence, for which a backend may have kernels of its
 * own. Both passes are compared with the same backend's operations, step by step, and with a more
 * trusted backend. */
#include "pair.h"

#include "core/memory.h"
#include "graph/graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct sequence_case {
    const char *reason;
    int nodes, block, stages, columns, steps;
    double share; /* share of the blocks that exist; 1: one dense matrix */
    int hubs;     /* of the internal stage of a dense cell; 0: as many as units */
    int stride;   /* of the tables; 0: 1 */
    bool without_layer_norm, forgets; /* forgets: keeps nothing for a backward pass */
    bool inner;                       /* a segment of an update, with earlier and later steps */
    bool below;                       /* a layer below adds to the first stage */
    bool coupled;                     /* f o u, without layer norm at the gates */
    bool norm_last;                   /* of the first stage */
    double dropout;
} sequence_case;

enum { MOST_STAGES = 4, MOST_RESULTS = 4 + 6 * MOST_STAGES };

typedef struct result {
    char what[40];
    double *value;
    size_t count;
    bool gradient;
} result;

typedef struct results {
    result of[MOST_RESULTS];
    int count;
} results;

/* Downloads an array of a stage, or with stage -1 of the cell. */
static void keep_result(results *r, backend *be, const char *what, int stage, const void *array,
                        size_t count, element type, bool gradient) {
    assert_true(r->count < MOST_RESULTS);
    result *to = &r->of[r->count++];
    *to = (result){.value = get(be, array, count, type), .count = count, .gradient = gradient};
    if (stage < 0) {
        snprintf(to->what, sizeof to->what, "%s", what);
    } else {
        snprintf(to->what, sizeof to->what, "%s of stage %d", what, stage);
    }
}

/* A random graph with all self-blocks and this share of the blocks. */
static graph *drawn_graph(int nodes, double share) {
    const graph_options options = {
        .kind = share == 1 ? GRAPH_DENSE : GRAPH_RANDOM, .density = share, .seed = 9};
    error err;
    graph *g = graph_create(&options, nodes, &err);
    if (!g) fail_msg("%s", err.text);
    return g;
}

static void run(backend *be, const sequence_case *how, bool by_steps, results *r) {
    const size_t hidden = (size_t)(how->nodes * how->block), columns = (size_t)how->columns;
    const size_t plane = hidden * columns, steps = (size_t)how->steps;
    const int stride = how->stride ? how->stride : 1;
    const size_t kept = how->forgets ? 1 : steps, positions = steps * columns;
    graph *g = drawn_graph(how->nodes, how->share);
    layout *l[MOST_STAGES];
    device_layout *d[MOST_STAGES];
    void *arrays[16 + 16 * MOST_STAGES];
    size_t count = 0;
    update_arguments arguments = {.update = 7};
    cell c = {.hidden = (int)hidden,
              .columns = how->columns,
              .steps = how->steps,
              .keep = !how->forgets,
              .stages = how->stages,
              .dropout = dropout_with(how->dropout, 99)};
    c.dropout.first_stream = 12; /* as on a rank after the first */
    random_restart(3);           /* every call draws the same */
    for (int i = 0; i < how->stages; i++) {
        stage *s = &c.stage[i];
        const bool last = i + 1 == how->stages;
        const int gates = !last ? 1 : how->coupled ? COUPLED_GATES : GATES;
        const bool norm = !how->without_layer_norm && !(last && how->coupled);
        const size_t units = how->hubs && !last ? (size_t)how->hubs : hidden;
        const size_t features = (size_t)gates * units, width = units * columns;
        l[i] = !how->hubs ? layout_from_graph(g, how->block, gates)
                          : layout_dense((int)units, i ? how->hubs : (int)hidden, gates, 1);
        d[i] = be->memory->layout_create(be, l[i]);
        *s = (stage){.layout = d[i],
                     .units = (int)units,
                     .block = l[i]->out_block,
                     .gates = gates,
                     .layer_norm = norm,
                     .norm_last = how->norm_last && i == 0,
                     .relu = i == 1 && !last,
                     .table_use = i == 2 && !last   ? TABLE_NONE
                                  : i == 0 && !last ? TABLE_MULTIPLY
                                                    : TABLE_ADD,
                     .table_stride = stride};
        const size_t weights = layout_weights(l[i]);
        const size_t entries = features / (size_t)stride * VOCABULARY;
        const size_t sums = be->cell->sums_bytes(be, gates, how->columns) * steps / be->real_size;
        double *w = random_values(weights, -0.2, 0.2), *table = random_values(entries, -1, 1);
        double *gain = random_values(features, 0.5, 1.5), *bias = random_values(features, -1, 1);
        arrays[count++] = (void *)(uintptr_t)(s->weight = put(be, w, weights, OPERAND));
        arrays[count++] = (void *)(uintptr_t)(s->table = put(be, table, entries, OPERAND));
        if (norm) {
            arrays[count++] = (void *)(uintptr_t)(s->gain = put(be, gain, features, REAL));
            arrays[count++] = s->sums = put_poison(be, sums, REAL);
        }
        arrays[count++] = (void *)(uintptr_t)(s->bias = put(be, bias, features, REAL));
        arrays[count++] = s->raw = put_poison(be, kept * (size_t)gates * width, OPERAND);
        if (!last) arrays[count++] = s->out = put_poison(be, kept * width, OPERAND);
        if (!how->forgets) {
            const size_t gradients = (keeps_dpre(s) ? steps : 1) * (size_t)gates * width;
            s->dpre =
                last && !norm ? s->raw : put_poison(be, gradients, OPERAND); /* as in models */
            if (s->dpre != s->raw) arrays[count++] = s->dpre;
            arrays[count++] = s->dentry = put_poison(be, steps * (size_t)gates * width, OPERAND);
            arrays[count++] = s->dsums = put_poison(be, sums, REAL);
            if (s->gain) arrays[count++] = s->dgain = put_poison(be, features, REAL);
            arrays[count++] = s->dbias = put_poison(be, features, REAL);
            arrays[count++] = s->dtable = put_poison(be, entries, OPERAND);
        }
        free(w);
        free(table);
        free(gain);
        free(bias);
    }
    uint8_t *bytes = mem_alloc(positions, 1);
    for (size_t i = 0; i < positions; i++) bytes[i] = (uint8_t)random_below(256);
    if (how->below) {
        const stage *first = &c.stage[0];
        const size_t count_below = steps * (size_t)(first->gates * first->units) * columns;
        double *below = random_values(count_below, -1, 1);
        arrays[count++] = (void *)(uintptr_t)(c.below = put(be, below, count_below, OPERAND));
        free(below);
    }
    double *h = random_values((steps + 1) * plane, -1, 1);
    double *state = random_values((steps + 1) * plane, -2, 2);
    double *dh = random_values(steps * plane, -1, 1);
    for (size_t i = plane; i < (steps + 1) * plane; i++) h[i] = state[i] = NAN;
    void *device_bytes = be->memory->allocate(be, positions);
    void *device_arguments = be->memory->allocate(be, sizeof arguments);
    be->memory->upload(be, device_bytes, bytes, positions);
    be->memory->upload(be, device_arguments, &arguments, sizeof arguments);
    c.bytes = arrays[count++] = device_bytes;
    c.arguments = arrays[count++] = device_arguments;
    c.h = arrays[count++] = put(be, h, (steps + 1) * plane, OPERAND);
    c.c = arrays[count++] = put(be, state, (steps + 1) * plane, REAL);
    c.entries = arrays[count++] =
        put_poison(be, GATES * hidden / (size_t)stride * VOCABULARY, OPERAND);
    if (!how->forgets) {
        c.has_later_steps = c.has_earlier_steps = how->inner;
        c.dh = arrays[count++] = put(be, dh, steps * plane, OPERAND);
        c.dx = arrays[count++] =
            how->inner ? put(be, dh, plane, OPERAND) : put_poison(be, plane, OPERAND);
        c.dc = arrays[count++] =
            how->inner ? put(be, dh, plane, REAL) : put_poison(be, plane, REAL);
    }
    free(bytes);
    free(h);
    free(state);
    free(dh);

    *r = (results){0};
    be->cell->prepare_entries(be, &c);
    if (by_steps) {
        cell_forward_steps(be, &c, be->cell);
    } else {
        be->cell->forward(be, &c);
    }
    error err;
    if (!be->memory->finish(be, &err)) fail_msg("%s: %s", how->reason, err.text);
    keep_result(r, be, "h", -1, c.h, (steps + 1) * plane, OPERAND, false);
    const size_t earlier = how->coupled && !how->forgets ? steps : 0; /* the backend's own matter */
    keep_result(r, be, "c", -1, (char *)c.c + earlier * plane * be->real_size,
                (steps + 1 - earlier) * plane, REAL, false);
    for (int i = 0; !how->forgets && i < how->stages; i++) {
        const stage *s = &c.stage[i];
        const size_t width = steps * (size_t)s->units * columns;
        if (!how->coupled) { /* else the backend's own matter */
            keep_result(r, be, "raw", i, s->raw, (size_t)s->gates * width, OPERAND, false);
        }
        if (s->out) keep_result(r, be, "out", i, s->out, width, OPERAND, false);
    }
    if (!how->forgets) {
        if (by_steps) {
            cell_backward_steps(be, &c, be->cell);
        } else {
            be->cell->backward(be, &c);
        }
        if (!be->memory->finish(be, &err)) fail_msg("%s: %s", how->reason, err.text);
    }
    for (int i = 0; !how->forgets && i < how->stages; i++) {
        const stage *s = &c.stage[i];
        const size_t features = (size_t)(s->gates * s->units);
        keep_result(r, be, "the gradient at raw", i, stage_raw_gradient(s),
                    steps * features * columns, OPERAND, true);
        if (s->dgain) keep_result(r, be, "dgain", i, s->dgain, features, REAL, true);
        keep_result(r, be, "dbias", i, s->dbias, features, REAL, true);
        if (s->table_use != TABLE_NONE) {
            keep_result(r, be, "dtable", i, s->dtable, features / (size_t)stride * VOCABULARY,
                        OPERAND, true);
        }
    }
    if (how->inner) {
        keep_result(r, be, "dx", -1, c.dx, plane, OPERAND, true);
        keep_result(r, be, "dc", -1, c.dc, plane, REAL, true);
    }
    release_all(be, arrays, count);
    for (int i = 0; i < how->stages; i++) {
        be->memory->layout_free(be, d[i]);
        layout_free(l[i]);
    }
    graph_free(g);
}

static void free_results(results *r) {
    for (int i = 0; i < r->count; i++) free(r->of[i].value);
}

static void assert_same(const pair *p, const sequence_case *how, const char *than,
                        const results *found, const results *expected) {
    assert_int_equal(found->count, expected->count);
    for (int i = 0; i < expected->count; i++) {
        char text[250];
        const result *one = &found->of[i], *other = &expected->of[i];
        pair loose = *p;
        /* Gradients are made of rounded values; rounding moves some past relu's edge, too. */
        if (one->gradient)
            loose.tolerance *= p->be->precision != BF16 ? 2 : how->stages > 2 ? 8 : 4;
        snprintf(text, sizeof text, "%s: %s, %d nodes of %d, %d stages, %d columns, %s",
                 how->reason, one->what, how->nodes, how->block, how->stages, how->columns, than);
        assert_close(&loose, text, one->value, other->value, other->count);
    }
}

static void check(const pair *p, const sequence_case *how) {
    results found, again, steps, trusted;
    run(p->be, how, false, &found);
    run(p->be, how, false, &again);
    for (int i = 0; i < found.count; i++) {
        assert_memory_equal(found.of[i].value, again.of[i].value,
                            found.of[i].count * sizeof *found.of[i].value);
    }
    run(p->be, how, true, &steps);
    assert_same(p, how, "than step by step", &found, &steps);
    run(p->trusted, how, false, &trusted);
    assert_same(p, how, "than the trusted backend", &found, &trusted);
    free_results(&found);
    free_results(&again);
    free_results(&steps);
    free_results(&trusted);
}

// clang-format off
static const sequence_case cases[] = {
    {.reason = "blocks of 32, half as many units to a thread block",
     .nodes = 6, .block = 32, .stages = 1, .columns = 64, .steps = 3, .share = 0.5},
    {.reason = "blocks of 64",
     .nodes = 5, .block = 64, .stages = 1, .columns = 128, .steps = 4, .share = 0.6},
    {.reason = "without layer norm",
     .nodes = 5, .block = 64, .stages = 1, .columns = 128, .steps = 4, .share = 0.6,
     .without_layer_norm = true},
    {.reason = "blocks of 128, an odd multiple of 64 columns",
     .nodes = 3, .block = 128, .stages = 1, .columns = 192, .steps = 3, .share = 0.7},
    {.reason = "one dense matrix",
     .nodes = 9, .block = 32, .stages = 1, .columns = 128, .steps = 3, .share = 1},
    {.reason = "dropout, and a table for every second unit",
     .nodes = 5, .block = 64, .stages = 1, .columns = 128, .steps = 5, .share = 0.6,
     .stride = 2, .dropout = 0.3},
    {.reason = "a layer below",
     .nodes = 5, .block = 64, .stages = 1, .columns = 192, .steps = 4, .share = 0.6,
     .below = true},
    {.reason = "a layer below an internal stage, in blocks of 128",
     .nodes = 3, .block = 128, .stages = 2, .columns = 128, .steps = 3, .share = 0.7,
     .below = true},
    {.reason = "scoring, which keeps nothing",
     .nodes = 5, .block = 64, .stages = 2, .columns = 128, .steps = 6, .share = 0.6,
     .forgets = true},
    {.reason = "an internal stage",
     .nodes = 5, .block = 64, .stages = 2, .columns = 128, .steps = 4, .share = 0.6},
    {.reason = "a segment with earlier and later steps",
     .nodes = 5, .block = 64, .stages = 2, .columns = 192, .steps = 3, .share = 0.6,
     .inner = true},
    {.reason = "three internal stages: a table that multiplies, one that adds before relu, none",
     .nodes = 5, .block = 64, .stages = 4, .columns = 64, .steps = 3, .share = 0.6},
    {.reason = "two internal stages, one with relu",
     .nodes = 7, .block = 32, .stages = 3, .columns = 64, .steps = 4, .share = 0.4},
    {.reason = "internal stages without layer norm",
     .nodes = 7, .block = 32, .stages = 3, .columns = 128, .steps = 3, .share = 0.4,
     .stride = 2, .without_layer_norm = true},
    {.reason = "more units than 16 for each multiprocessor",
     .nodes = 48, .block = 64, .stages = 2, .columns = 128, .steps = 3, .share = 0.2},
    {.reason = "hubs",
     .nodes = 12, .block = 32, .stages = 2, .columns = 128, .steps = 4, .share = 1, .hubs = 64},
    {.reason = "hubs of two internal stages, one with relu",
     .nodes = 10, .block = 32, .stages = 3, .columns = 64, .steps = 3, .share = 1, .hubs = 64},
    {.reason = "a layer below hubs, within a segment",
     .nodes = 96, .block = 32, .stages = 2, .columns = 128, .steps = 3, .share = 1, .hubs = 160,
     .inner = true, .below = true},
    {.reason = "hubs without layer norm, and tables for every second unit",
     .nodes = 97, .block = 32, .stages = 2, .columns = 64, .steps = 3, .share = 1, .hubs = 32,
     .stride = 2, .without_layer_norm = true},
    {.reason = "coupled gates and hubs, norm after the table",
     .nodes = 1, .block = 320, .stages = 2, .columns = 128, .steps = 4, .share = 1, .hubs = 64,
     .coupled = true, .norm_last = true},
    {.reason = "coupled gates, hubs in several chunks, one column group",
     .nodes = 1, .block = 392, .stages = 2, .columns = 64, .steps = 3, .share = 1, .hubs = 200,
     .coupled = true},
    {.reason = "a layer below coupled gates and hubs, within a segment",
     .nodes = 1, .block = 480, .stages = 2, .columns = 192, .steps = 3, .share = 1, .hubs = 160,
     .coupled = true, .norm_last = true, .inner = true, .below = true},
    {.reason = "coupled gates and hubs without any norm, dropout, every second unit in tables",
     .nodes = 1, .block = 512, .stages = 2, .columns = 128, .steps = 4, .share = 1, .hubs = 104,
     .coupled = true, .without_layer_norm = true, .dropout = 0.3, .stride = 2},
    {.reason = "scoring with coupled gates and hubs",
     .nodes = 1, .block = 448, .stages = 2, .columns = 256, .steps = 5, .share = 1, .hubs = 64,
     .coupled = true, .norm_last = true, .forgets = true},
    {.reason = "one step of coupled gates and hubs",
     .nodes = 1, .block = 640, .stages = 2, .columns = 128, .steps = 1, .share = 1, .hubs = 136,
     .coupled = true, .norm_last = true},
    {.reason = "more chunks of hubs than a multiprocessor keeps",
     .nodes = 1, .block = 1088, .stages = 2, .columns = 128, .steps = 3, .share = 1, .hubs = 832,
     .coupled = true, .norm_last = true},
    {.reason = "a layer below many hubs, within a segment",
     .nodes = 1, .block = 1024, .stages = 2, .columns = 128, .steps = 2, .share = 1, .hubs = 840,
     .coupled = true, .norm_last = true, .inner = true, .below = true},
    {.reason = "scoring with more hubs than one kernel takes",
     .nodes = 1, .block = 1152, .stages = 2, .columns = 320, .steps = 3, .share = 1, .hubs = 1096,
     .coupled = true, .norm_last = true, .forgets = true},
    {.reason = "hubs of all threads of an owner, and more columns than multiprocessors",
     .nodes = 1, .block = 1056, .stages = 2, .columns = 192, .steps = 2, .share = 1, .hubs = 2056,
     .coupled = true, .norm_last = true},
    {.reason = "more cells than all multiprocessors have at once",
     .nodes = 1, .block = 10200, .stages = 2, .columns = 192, .steps = 3, .share = 1, .hubs = 72,
     .coupled = true, .inner = true, .dropout = 0.3},
    {.reason = "many hubs without any norm, every second unit in tables",
     .nodes = 1, .block = 1024, .stages = 2, .columns = 64, .steps = 2, .share = 1, .hubs = 776,
     .coupled = true, .without_layer_norm = true, .stride = 2},
    {.reason = "40 cells to each of most multiprocessors",
     .nodes = 1, .block = 5120, .stages = 2, .columns = 128, .steps = 4, .share = 1, .hubs = 64,
     .coupled = true, .norm_last = true},
    {.reason = "48 cells to each, hubs in several chunks, one column group",
     .nodes = 1, .block = 5664, .stages = 2, .columns = 64, .steps = 3, .share = 1, .hubs = 200,
     .coupled = true},
    {.reason = "56 cells to each, a layer below, within a segment",
     .nodes = 1, .block = 7168, .stages = 2, .columns = 128, .steps = 3, .share = 1, .hubs = 160,
     .coupled = true, .norm_last = true, .inner = true, .below = true},
    {.reason = "64 cells to each, without any norm, dropout, every second unit in tables",
     .nodes = 1, .block = 8192, .stages = 2, .columns = 128, .steps = 4, .share = 1, .hubs = 104,
     .coupled = true, .without_layer_norm = true, .dropout = 0.3, .stride = 2},
    {.reason = "scoring with 64 cells to each",
     .nodes = 1, .block = 8256, .stages = 2, .columns = 128, .steps = 1, .share = 1, .hubs = 136,
     .coupled = true, .norm_last = true, .forgets = true},
    {.reason = "hubs of all multiprocessors",
     .nodes = 1, .block = 7168, .stages = 2, .columns = 128, .steps = 3, .share = 1, .hubs = 576,
     .coupled = true, .norm_last = true, .inner = true},
};
// clang-format on

/* Checks the cases with coupled gates, or those without. */
static void check_all(precision precision, bool coupled) {
    pair p = open_pair(precision);
    /* Values that bf16 rounds the other way add up from step to step. */
    if (precision == BF16) p.tolerance = 1.5e-2;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool wide = cases[i].nodes * cases[i].block > 1024; /* only for a GPU */
        if (cases[i].coupled != coupled || (wide && (!test_device_is_cuda() || is_watched()))) {
            continue;
        }
        check(&p, &cases[i]);
    }
    close_pair(&p);
}

static void test_fp32(void **state) {
    (void)state;
    check_all(FP32, false);
}

static void test_bf16(void **state) {
    (void)state;
    check_all(BF16, false);
}

static void test_coupled_fp32(void **state) {
    (void)state;
    check_all(FP32, true);
}

static void test_coupled_bf16(void **state) {
    (void)state;
    check_all(BF16, true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fp32),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_coupled_fp32),
        cmocka_unit_test(test_coupled_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
