/* The forward pass of a cell over a whole sequence, which a backend may run as one kernel. It is
 * compared with the same backend's own operations, step by step, and with a more trusted backend.
 */
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
    double share;                     /* share of the blocks that exist; 1: one dense matrix */
    int stride;                       /* of the tables; 0: 1 */
    bool without_layer_norm, forgets; /* forgets: keeps nothing for a backward pass */
    double dropout;
} sequence_case;

enum { MOST_STAGES = 3, RESULTS = 2 + MOST_STAGES };

typedef struct results {
    /* H, c, and what training keeps: the gates' raw sums, then the stages' outputs. */
    double *value[RESULTS];
    size_t count[RESULTS];
} results;

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
    void *arrays[64];
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
        const int gates = last ? GATES : 1;
        l[i] = layout_from_graph(g, how->block, gates);
        d[i] = be->layout_create(be, l[i]);
        *s = (stage){.layout = d[i],
                     .block = l[i]->out_block,
                     .gates = gates,
                     .layer_norm = !how->without_layer_norm,
                     .relu = i == 1 && !last,
                     .table_use = i == 1 && !last   ? TABLE_NONE
                                  : i == 0 && !last ? TABLE_MULTIPLY
                                                    : TABLE_ADD,
                     .table_stride = stride};
        const size_t weights = layout_weights(l[i]), features = (size_t)gates * hidden;
        const size_t entries = features / (size_t)stride * VOCABULARY;
        const size_t sums = be->sums_bytes(be, gates, how->columns) * steps / be->real_size;
        double *w = random_values(weights, -0.2, 0.2), *table = random_values(entries, -1, 1);
        double *gain = random_values(features, 0.5, 1.5), *bias = random_values(features, -1, 1);
        arrays[count++] = (void *)(uintptr_t)(s->weight = put(be, w, weights, OPERAND));
        arrays[count++] = (void *)(uintptr_t)(s->table = put(be, table, entries, OPERAND));
        if (!how->without_layer_norm) {
            arrays[count++] = (void *)(uintptr_t)(s->gain = put(be, gain, features, REAL));
            arrays[count++] = s->sums = put_poison(be, sums, REAL);
        }
        arrays[count++] = (void *)(uintptr_t)(s->bias = put(be, bias, features, REAL));
        arrays[count++] = s->raw = put_poison(be, kept * (size_t)gates * plane, OPERAND);
        if (!last) arrays[count++] = s->out = put_poison(be, kept * plane, OPERAND);
        free(w);
        free(table);
        free(gain);
        free(bias);
    }
    uint8_t *bytes = mem_alloc(positions, 1);
    for (size_t i = 0; i < positions; i++) bytes[i] = (uint8_t)random_below(256);
    double *h = random_values((steps + 1) * plane, -1, 1);
    double *state = random_values((steps + 1) * plane, -2, 2);
    for (size_t i = plane; i < (steps + 1) * plane; i++) h[i] = state[i] = NAN;
    void *device_bytes = be->allocate(be, positions);
    void *device_arguments = be->allocate(be, sizeof arguments);
    be->upload(be, device_bytes, bytes, positions);
    be->upload(be, device_arguments, &arguments, sizeof arguments);
    c.bytes = arrays[count++] = device_bytes;
    c.arguments = arrays[count++] = device_arguments;
    c.h = arrays[count++] = put(be, h, (steps + 1) * plane, OPERAND);
    c.c = arrays[count++] = put(be, state, (steps + 1) * plane, REAL);
    c.entries = arrays[count++] =
        put_poison(be, GATES * hidden / (size_t)stride * VOCABULARY, OPERAND);
    free(bytes);
    free(h);
    free(state);

    be->prepare_entries(be, &c);
    if (by_steps) {
        cell_forward_steps(be, &c);
    } else {
        be->cell_forward(be, &c);
    }
    error err;
    if (!be->finish(be, &err)) fail_msg("%s: %s", how->reason, err.text);
    *r = (results){
        {get(be, c.h, (steps + 1) * plane, OPERAND), get(be, c.c, (steps + 1) * plane, REAL)},
        {(steps + 1) * plane, (steps + 1) * plane}};
    if (!how->forgets) {
        r->value[2] = get(be, c.stage[how->stages - 1].raw, steps * GATES * plane, OPERAND);
        r->count[2] = steps * GATES * plane;
        for (int i = 0; i + 1 < how->stages; i++) {
            r->value[3 + i] = get(be, c.stage[i].out, steps * plane, OPERAND);
            r->count[3 + i] = steps * plane;
        }
    }
    release_all(be, arrays, count);
    for (int i = 0; i < how->stages; i++) {
        be->layout_free(be, d[i]);
        layout_free(l[i]);
    }
    graph_free(g);
}

static void free_results(results *r) {
    for (int i = 0; i < RESULTS; i++) free(r->value[i]);
}

static void assert_same(const pair *p, const sequence_case *how, const char *than,
                        const results *found, const results *expected) {
    static const char *const what[RESULTS] = {"h", "c", "raw", "first stage", "second stage"};
    for (int i = 0; i < RESULTS; i++) {
        char text[200];
        if (!expected->count[i]) continue;
        snprintf(text, sizeof text, "%s: %s, %d nodes of %d, %d stages, %d columns, %s",
                 how->reason, what[i], how->nodes, how->block, how->stages, how->columns, than);
        assert_close(p, text, found->value[i], expected->value[i], expected->count[i]);
    }
}

static void check(const pair *p, const sequence_case *how) {
    results found, again, steps, trusted;
    run(p->be, how, false, &found);
    run(p->be, how, false, &again);
    for (int i = 0; i < RESULTS; i++) {
        if (found.count[i]) {
            assert_memory_equal(found.value[i], again.value[i],
                                found.count[i] * sizeof *found.value[i]);
        }
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
    {.reason = "scoring, which keeps nothing",
     .nodes = 5, .block = 64, .stages = 2, .columns = 128, .steps = 6, .share = 0.6,
     .forgets = true},
    {.reason = "an internal stage",
     .nodes = 5, .block = 64, .stages = 2, .columns = 128, .steps = 4, .share = 0.6},
    {.reason = "two internal stages, one with relu",
     .nodes = 7, .block = 32, .stages = 3, .columns = 64, .steps = 4, .share = 0.4},
    {.reason = "internal stages without layer norm",
     .nodes = 7, .block = 32, .stages = 3, .columns = 128, .steps = 3, .share = 0.4,
     .stride = 2, .without_layer_norm = true},
    {.reason = "more units than 16 for each multiprocessor",
     .nodes = 48, .block = 64, .stages = 2, .columns = 128, .steps = 3, .share = 0.2},
    {.reason = "the same in blocks of 32",
     .nodes = 75, .block = 32, .stages = 1, .columns = 128, .steps = 3, .share = 0.2},
};
// clang-format on

static void check_all(precision precision) {
    pair p = open_pair(precision);
    /* Values that bf16 rounds the other way add up from step to step. */
    if (precision == BF16) p.tolerance = 1.5e-2;
    if (precision == TF32) p.tolerance *= 10;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const bool wide = cases[i].nodes * cases[i].block > 1024; /* only for a GPU */
        if (!wide || test_device_is_cuda()) check(&p, &cases[i]);
    }
    close_pair(&p);
}

static void test_fp32(void **state) {
    (void)state;
    check_all(FP32);
}

static void test_bf16(void **state) {
    (void)state;
    check_all(BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_fp32), cmocka_unit_test(test_bf16)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
