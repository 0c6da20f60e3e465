/* Changes of a model's patterns: which values stay, and the gradients afterwards. */
#include "models.h"

#include "core/memory.h"
#include "graph/prune.h"
#include "train/structure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int find_block(const graph *g, int output, int input) {
    for (int k = g->start[output]; k < g->start[output + 1]; k++) {
        if (g->column[k] == input) return k;
    }
    return -1;
}

/* Returns a weight of the block (output, input) of a stage in an arena, or 0 if there is no such
 * block. `row` counts the rows of all gates. */
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

/* Drops `drop` blocks of each stage. */
static void change_graphs(model *m, int drop) {
    graph *graphs[CELL_MAX_STAGES];
    philox_stream random = philox_start(5, PHILOX_TEST, 0, 0);
    for (int s = 0; s < model_stages(&m->config); s++) {
        double *norms = mem_alloc((size_t)graph_blocks(m->graphs[s]), sizeof *norms);
        model_block_norms(m, m->weights, s, norms);
        graphs[s] = graph_prune(m->graphs[s], norms, drop, &random);
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

/* After its patterns have changed, a model holds the same values in every arena. Its gradient is
 * that of a model that was made with the new patterns and weights on a more trusted backend. */
static void check_change(const model_config *config, int drop) {
    backend *be = test_backend(FP32);
    backend *trusted = test_device_is_cuda() ? backend_cpu(FP32, 0) : backend_cpu_reference(0);
    model *m = create_model(be, config, 11, 5, 1), *was = create_model(be, config, 11, 5, 1);
    random_restart(31);
    inputs in = draw_inputs(m);
    load_inputs(m, &in);
    void *const arenas[] = {m->weights, m->moment1, m->moment2, m->average};
    double *before[4];
    for (int a = 0; a < 4; a++) {
        double *values = random_values(m->parameters.total, -1, 1);
        if (a > 0) set_array(be, arenas[a], values, m->parameters.total, REAL);
        before[a] = get(be, arenas[a], m->parameters.total, REAL);
        free(values);
    }
    change_graphs(m, drop);
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
        graphs[s] = graph_prune(m->graphs[s], norms, 0, &random);
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
        load_inputs(models[i], &in);
        model_gradient(models[i]);
        o[i] = collect_outcome(models[i]);
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

static void test_changed_patterns(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        model_config config = small_config();
        config.cell = kind;
        config.internal_steps = 2;
        check_change(&config, 0);
        check_change(&config, 13);
        check_change(&config, 17);
        check_change(&config, 32); /* only self-blocks are left */
        config.graph = GRAPH_DENSE;
        config.degree = 0;
        check_change(&config, 0);
        check_change(&config, 30);
        config.layers = 2;
        check_change(&config, 30);
        config = small_config();
        config.cell = kind;
        config.internal_steps = 2;
        config.layers = 2;
        check_change(&config, 13);
    }
}

/* Blocks of equal norm are dropped at random, in each stage by draws of its own. */
static void test_ties_differ(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    model_config config = small_config();
    config.cell = CELL_MLSTM;
    config.graph = GRAPH_DENSE;
    config.degree = 0;
    config.init_noise = 0;
    model *m = create_model(be, &config, 1, 1, 1);
    model_initialise(m);
    structure_prune(m, 0.5);
    const graph *a = m->graphs[0], *b = m->graphs[1];
    assert_int_equal(graph_blocks(a), graph_blocks(b));
    assert_int_not_equal(memcmp(a->column, b->column, (size_t)graph_blocks(a) * sizeof *a->column),
                         0);
    model_free(m);
    be->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_changed_patterns),
        cmocka_unit_test(test_ties_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
