/* The number of parameters of a config, and configs for a wanted number of parameters. */
#include "models.h"

#include "core/memory.h"
#include "model/size.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The count from a config alone equals that of the parameter table, for every cell and every option
 * that matters. */
static void test_parameter_count(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    for (int kind = 0; kind < 192; kind++) {
        model_config config = small_config();
        config.cell = kind % 3;
        config.norm = kind / 96 ? NORM_WEIGHT : kind / 3 % 2 ? NORM_LAYER : NORM_NONE;
        config.coupled_gates = kind / 96 && kind / 3 % 2;
        if (kind / 6 % 2) config.graph = GRAPH_DENSE, config.degree = 0;
        if (kind / 12 % 2) config.input_stride = 2, config.output_stride = 4;
        if (kind / 24 % 2) config.layers = model_most_layers(&config);
        const bool hubs = kind / 48 % 2;
        if (hubs && config.cell == CELL_LSTM) continue;
        if (hubs) config.hubs = 64, config.degree = 0;
        if (hubs && config.graph != GRAPH_DENSE) {
            config.graph = GRAPH_RANDOM;
            config.density = 0.625; /* of a square's 16 blocks, 4 and 3 pairs */
        }
        model *m = create_model(be, &config, 1, 1, 1);
        assert_true(model_parameter_count(&config) == (double)parameter_scalars(&m->parameters));
        model_free(m);
    }
    be->memory->destroy(be);
}

static double gap_of(const model_config *dense, double wanted) {
    return fabs(model_parameter_count(dense) - wanted);
}

/* No other width or number of blocks comes nearer to the wanted number of parameters. */
static void test_matching_parameters(void **state) {
    (void)state;
    error err;
    for (int k = 1; k < 40; k++) {
        const double wanted = 5000.0 * k * k;
        model_config config = small_config();
        config.graph = GRAPH_DENSE;
        config.output_stride = 3;
        if (k == 1) { /* far below the smallest model */
            assert_false(model_match_width(&config, wanted, &err));
            assert_non_null(strstr(err.text, "expected at least"));
            continue;
        }
        assert_true(model_match_width(&config, wanted, &err));
        assert_int_equal(config.hidden % 48, 0);
        double gap = gap_of(&config, wanted);
        for (int64_t hidden = 48; hidden < 2000; hidden += 48) {
            model_config other = config;
            other.hidden = hidden;
            assert_true(gap_of(&other, wanted) >= gap);
        }
    }
    model_config config = small_config();
    config.degree = 0;
    config.hidden = 512;
    assert_true(model_match_density(&config, 300000, &err));
    double gap = fabs(model_parameter_count(&config) - 300000);
    assert_true(gap <= 16 * 16 * 4 / 2);
    assert_false(model_match_density(&config, 3e6, &err));
    assert_string_equal(err.text, "model.parameters: expected from 186624 (self-blocks alone) to "
                                  "1202432 (dense) at model.hidden 512, got 3000000");
}

/* Hubs at a given width, and the width at given hubs. */
static void test_matching_hubs(void **state) {
    (void)state;
    error err;
    model_config config = small_config();
    config.cell = CELL_MLSTM;
    config.graph = GRAPH_DENSE;
    config.degree = 0;
    config.hidden = 512;
    config.hubs = 16;
    assert_true(model_match_hubs(&config, 300000, &err));
    const double gap = gap_of(&config, 300000);
    for (int64_t hubs = 16; hubs <= 512; hubs += 16) {
        model_config other = config;
        other.hubs = hubs;
        assert_true(gap_of(&other, 300000) >= gap);
    }
    const int64_t hubs = config.hubs;
    const double parameters = model_parameter_count(&config);
    config.hidden = 16;
    assert_true(model_match_width(&config, parameters, &err));
    assert_int_equal(config.hidden, 512);
    assert_int_equal(config.hubs, hubs);
    assert_false(model_match_hubs(&config, 1e7, &err));
    assert_contains(err.text, "model.parameters: expected at most ");
    assert_false(model_match_width(&config, 100, &err));
    assert_contains(err.text, "of which no cell has fewer");
}

/* The forget gate alone, of [i f o u] or of [f o u], begins with a bias. */
static void test_forget_bias(void **state) {
    (void)state;
    backend *be = test_backend(FP32);
    for (int coupled = 0; coupled < 2; coupled++) {
        model_config config = small_config();
        config.coupled_gates = coupled;
        config.forget_bias = 0.75;
        model *m = create_model(be, &config, 1, 1, 1);
        float *values = mem_alloc(m->parameters.total, sizeof *values);
        int found = 0;
        parameter_initialise(&m->parameters, 1, values);
        for (int i = 0; i < m->parameters.count; i++) {
            const parameter *p = &m->parameters.items[i];
            if (p->initialiser != INIT_GATE_BIAS) continue;
            const size_t hidden = (size_t)config.hidden, forget = coupled ? 0 : 1;
            assert_int_equal(p->count, (coupled ? 3 : 4) * hidden);
            for (size_t k = 0; k < p->count; k++) {
                assert_true(values[p->offset + k] == (k / hidden == forget ? 0.75F : 0));
            }
            found++;
        }
        assert_int_equal(found, 1);
        free(values);
        model_free(m);
    }
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forget_bias),
        cmocka_unit_test(test_parameter_count),
        cmocka_unit_test(test_matching_parameters),
        cmocka_unit_test(test_matching_hubs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
