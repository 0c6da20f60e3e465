/* Pruning: the blocks that are dropped are the weakest, and all others stay. */
#include "graphs.h"
#include "models.h"

#include "core/memory.h"
#include "graph/prune.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 12 };

static philox_stream stream(uint32_t number) {
    return philox_start(7, PHILOX_TEST, 0, number);
}

/* The norms are a shuffled order of ranks; self-blocks have the smallest. */
static double *draw_norms(const graph *g, int *rank_of) {
    int blocks = graph_blocks(g);
    double *norms = mem_alloc((size_t)blocks, sizeof *norms);
    for (int k = 0; k < blocks; k++) rank_of[k] = k;
    for (int k = blocks - 1; k > 0; k--) {
        int other = (int)random_below((uint64_t)k + 1), kept = rank_of[k];
        rank_of[k] = rank_of[other];
        rank_of[other] = kept;
    }
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            norms[k] = g->column[k] == i ? 0 : 1 + rank_of[k];
        }
    }
    return norms;
}

static void test_prune(void **state) {
    (void)state;
    random_restart(3);
    for (int drop = 0; drop <= 4 * NODES; drop += 6) {
        graph *g = graph_of_degree(GRAPH_RANDOM, NODES, 4, 0);
        int rank_of[5 * NODES];
        double *norms = draw_norms(g, rank_of);
        philox_stream random = stream(2);
        graph *made = graph_prune(g, norms, drop, &random);
        check_form(made);
        assert_int_equal(graph_blocks(made), graph_blocks(g) - drop);
        double weakest_kept = 1e9, strongest_dropped = 0;
        int dropped = 0;
        for (int i = 0; i < NODES; i++) {
            for (int k = g->start[i]; k < g->start[i + 1]; k++) {
                bool kept = has_block(made, i, g->column[k]);
                dropped += !kept;
                if (g->column[k] == i) continue;
                if (kept && norms[k] < weakest_kept) weakest_kept = norms[k];
                if (!kept && norms[k] > strongest_dropped) strongest_dropped = norms[k];
            }
        }
        assert_int_equal(dropped, drop);
        assert_true(strongest_dropped < weakest_kept);
        graph_free(made);
        graph_free(g);
        free(norms);
    }
}

/* If all norms are equal, the dropped blocks are drawn, and rows lose about as many each. */
static void test_ties(void **state) {
    (void)state;
    graph *g = graph_of_degree(GRAPH_RANDOM, NODES, 8, 0);
    double *norms = mem_alloc((size_t)graph_blocks(g), sizeof *norms);
    philox_stream random = stream(3), again = stream(3);
    int lost[NODES] = {0};
    for (int draw = 0; draw < 300; draw++) {
        graph *one = graph_prune(g, norms, 24, &random);
        graph *other = graph_prune(g, norms, 24, &again);
        assert_true(hash_graph(one) == hash_graph(other));
        for (int i = 0; i < NODES; i++) {
            lost[i] += g->start[i + 1] - g->start[i] - (one->start[i + 1] - one->start[i]);
        }
        graph_free(one);
        graph_free(other);
    }
    for (int i = 0; i < NODES; i++) assert_true(lost[i] > 450 && lost[i] < 750); /* 600 expected */
    free(norms);
    graph_free(g);
}

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

/* Adds the squares of a stage's weights to those of their rows, [gates][units]. */
static void add_squares(const model *m, const double *arena, int s, double *squares) {
    const int side = (int)m->config.block;
    const graph *g = m->graphs[s];
    for (int i = 0; i < g->nodes; i++) {
        for (int j = 0; j < g->inputs; j++) {
            for (int e = 0; e < m->layouts[s]->gates * side * side; e++) {
                const int row = e / side, unit = (row / side * g->nodes + i) * side + row % side;
                squares[unit] += pow(weight_of(m, arena, s, i, j, row, e % side), 2);
            }
        }
    }
}

/* What products multiply each row of a stage's weights by, [gates][units]: with weight norm gain /
 * |row|, over what the row reads of the layer below too. */
static double *row_scales(const model *m, const double *arena, int s) {
    const bool below = model_stage_place(&m->config, s).stage == STAGE_BELOW;
    const int own = below ? s + 1 : s, units = m->layouts[s]->gates * (int)m->config.hidden;
    double *scales = mem_alloc((size_t)units, sizeof *scales);
    for (int i = 0; i < units; i++) scales[i] = 1;
    if (m->config.norm != NORM_WEIGHT || m->layouts[s]->gates == 1) return scales;
    double *squares = mem_alloc((size_t)units, sizeof *squares);
    add_squares(m, arena, own, squares);
    if (own > 0 && model_stage_place(&m->config, own - 1).stage == STAGE_BELOW) {
        add_squares(m, arena, own - 1, squares);
    }
    char stage[16], name[48];
    snprintf(name, sizeof name, "cell.%s.gain", model_stage_name(&m->config, own, stage));
    const parameter *p = parameter_find(&m->parameters, name);
    for (int i = 0; i < units; i++) {
        scales[i] = arena[p->offset + (size_t)i] / sqrt(squares[i] + WEIGHT_NORM_EPSILON);
    }
    free(squares);
    return scales;
}

/* The weights of a block as products read them, [gates * side][side]. */
static void read_block(const model *m, const double *arena, const double *scales, int s, int output,
                       int input, double *block) {
    const int side = (int)m->config.block;
    for (int e = 0; e < m->layouts[s]->gates * side * side; e++) {
        const int row = e / side;
        const int unit = (row / side * m->graphs[s]->nodes + output) * side + row % side;
        block[e] = scales[unit] * weight_of(m, arena, s, output, input, row, e % side);
    }
}

/* The strongest blocks of a stage are left, and products read them as before. */
static void check_stage(const model *was, const double *before, const model *is,
                        const double *after, int s, double density) {
    enum { MOST = GATES * 16 * 16 };
    const graph *g = was->graphs[s], *kept = is->graphs[s];
    const int blocks = graph_blocks(g), side = (int)was->config.block;
    const int most = (int)fmax(g->nodes, round(density * g->nodes * g->inputs));
    double *scales = row_scales(was, before, s), *scales_after = row_scales(is, after, s);
    double weakest_kept = INFINITY, strongest_dropped = 0, old[MOST], now[MOST];
    assert_int_equal(graph_blocks(kept), most < blocks ? most : blocks);
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            const int j = g->column[k], count = was->layouts[s]->gates * side * side;
            double square = 0;
            read_block(was, before, scales, s, i, j, old);
            for (int e = 0; e < count; e++) square += old[e] * old[e];
            if (find_block(kept, i, j) < 0) {
                strongest_dropped = fmax(strongest_dropped, square);
                continue;
            }
            if (i != j) weakest_kept = fmin(weakest_kept, square);
            read_block(is, after, scales_after, s, i, j, now);
            for (int e = 0; e < count; e++) {
                if (fabs(now[e] - old[e]) > 1e-6 * fabs(old[e])) fail_msg("%g %g", now[e], old[e]);
            }
        }
    }
    assert_true(strongest_dropped <= weakest_kept * (1 + 1e-6));
    free(scales);
    free(scales_after);
}

/* The strongest blocks are left, products read them as before, and all else is the same. */
static void check_pruned(const model_config *config, double density) {
    backend *be = backend_cpu(FP32, 0);
    model *was = create_model(be, config, 1, 1, 1);
    random_restart(31);
    double *values = random_values(was->parameters.total, -1, 1);
    set_array(be, was->weights, values, was->parameters.total, REAL);
    free(values);
    error err;
    model *is = model_prune(was, density, &err);
    if (!is) fail_msg("%s", err.text);
    double *before = get(be, was->weights, was->parameters.total, REAL);
    double *after = get(be, is->weights, is->parameters.total, REAL);
    for (int i = 0; i < is->parameters.count; i++) {
        const parameter *a = &was->parameters.items[i], *b = &is->parameters.items[i];
        assert_string_equal(a->name, b->name);
        const bool gain = config->norm == NORM_WEIGHT && strstr(a->name, "gates.gain");
        if (b->layout || gain) continue;
        assert_int_equal(a->count, b->count);
        assert_memory_equal(before + a->offset, after + b->offset, b->count * sizeof *after);
    }
    for (int s = 0; s < model_stages(config); s++) check_stage(was, before, is, after, s, density);
    free(before);
    free(after);
    model_free(was);
    model_free(is);
    be->memory->destroy(be);
}

static void test_pruned_models(void **state) {
    (void)state;
    for (int kind = CELL_LSTM; kind <= CELL_DEEP; kind++) {
        for (int norm = 0; norm < 2; norm++) {
            model_config config = small_config();
            config.cell = kind;
            config.internal_steps = 2;
            config.norm = norm ? NORM_WEIGHT : NORM_LAYER;
            config.coupled_gates = norm > 0;
            check_pruned(&config, 1);
            check_pruned(&config, 0.4);
            check_pruned(&config, 0.01); /* only self-blocks are left */
            config.layers = 2;
            check_pruned(&config, 0.4);
            config.graph = GRAPH_DENSE;
            config.degree = 0;
            check_pruned(&config, 1);
            check_pruned(&config, 0.5);
        }
    }
}

/* Blocks of equal norm are dropped at random, in each stage by draws of its own. */
static void test_ties_differ(void **state) {
    (void)state;
    backend *be = backend_cpu(FP32, 0);
    model_config config = small_config();
    config.cell = CELL_MLSTM;
    config.graph = GRAPH_DENSE;
    config.degree = 0;
    config.init_noise = 0;
    model *m = create_model(be, &config, 1, 1, 1);
    model_initialise(m);
    error err;
    model *pruned = model_prune(m, 0.5, &err);
    if (!pruned) fail_msg("%s", err.text);
    const graph *a = pruned->graphs[0], *b = pruned->graphs[1];
    assert_int_equal(graph_blocks(a), graph_blocks(b));
    assert_int_not_equal(memcmp(a->column, b->column, (size_t)graph_blocks(a) * sizeof *a->column),
                         0);
    assert_true(model_density(pruned) == 0.5);
    model_free(pruned);
    model_free(m);
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prune),
        cmocka_unit_test(test_ties),
        cmocka_unit_test(test_pruned_models),
        cmocka_unit_test(test_ties_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
