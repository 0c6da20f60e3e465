#include "model/size.h"

#include "model/internal.h"

#include <math.h>

/* Of a stage's pattern, if a share `density` of its blocks is there, to within a symmetric pair; of
 * a square one with a degree, that decides. */
static double stage_blocks(const model_config *config, int s, double density) {
    const double nodes = model_stage_nodes(config, s), all = nodes * model_stage_inputs(config, s);
    if (config->graph == GRAPH_DENSE) return all;
    return config->degree ? nodes * (double)(config->degree + 1) : round(density * all);
}

/* All but the weights of the stages, with their gates. */
static int64_t other_parameters(const model_config *config) {
    int64_t vectors = 0, input = config->embedding * VOCABULARY;
    bool deep = config->cell == CELL_DEEP, norm = config->norm != NORM_NONE;
    for (table_width w = TABLES_OF_CELLS; w < TABLE_WIDTHS; w++) {
        input += model_tables(config, w) * model_table_units(config, w) * config->embedding;
    }
    if (deep) input += 2 * model_table_units(config, model_inner_tables(config)) * (norm ? 2 : 1);
    for (int s = 0; s < model_stages(config); s++) {
        const int64_t gates = model_stage_gates(config, s);
        const int64_t rows = gates * config->block * model_stage_nodes(config, s);
        if (model_stage_place(config, s).stage == STAGE_BELOW) continue;
        if (norm) vectors += rows;              /* gains */
        if (deep || gates > 1) vectors += rows; /* biases */
    }
    const int64_t outputs = VOCABULARY + config->classes;
    const int64_t head = (config->hidden / config->output_stride + 1) * outputs;
    return config->layers * input + vectors + head;
}

static double count_with(const model_config *config, double density) {
    double blocks = 0;
    for (int s = 0; s < model_stages(config); s++) {
        blocks += stage_blocks(config, s, density) * model_stage_gates(config, s);
    }
    return (double)other_parameters(config) + blocks * (double)(config->block * config->block);
}

double model_parameter_count(const model_config *config) {
    return count_with(config, config->density);
}

static int64_t common_multiple(int64_t a, int64_t b) {
    int64_t multiple = a;
    while (multiple % b) multiple += a;
    return multiple;
}

/* Sets `*width`, a field of `config`, to that multiple of `unit` which comes nearest to so many
 * parameters. Returns the parameters of the widest, or 0 if they are enough. */
static double match(model_config *config, int64_t *width, int64_t unit, int64_t most,
                    double parameters) {
    int64_t low = 1, high = most / unit;
    while (low < high) { /* the first width that has at least as many */
        const int64_t middle = (low + high) / 2;
        *width = middle * unit;
        if (model_parameter_count(config) >= parameters) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    *width = low * unit;
    const double above = model_parameter_count(config);
    *width = (low > 1 ? low - 1 : 1) * unit;
    const double below = model_parameter_count(config);
    if (fabs(above - parameters) < fabs(below - parameters)) *width = low * unit;
    return low == most / unit && above < parameters ? above : 0;
}

/* Refuses a target that even the smallest model is far above. */
static bool check_least(const model_config *config, double parameters, error *err) {
    const double slack = 1.1, least = model_parameter_count(config);
    return least <= slack * parameters ||
           error_key(err, "model.parameters",
                     "expected at least %.0f, of the smallest model, got %.0f", least, parameters);
}

bool model_match_width(model_config *config, double parameters, error *err) {
    int64_t unit = common_multiple(config->block, config->input_stride);
    unit = common_multiple(unit, config->output_stride);
    const double largest =
        match(config, &config->hidden, unit, GRAPH_MAX_NODES * config->block, parameters);
    if (config->hidden < config->hubs) {
        return error_key(err, "model.parameters",
                         "expected more with model.hubs %lld, of which no cell has fewer, got %.0f",
                         (long long)config->hubs, parameters);
    }
    if (largest == 0) return config->hidden > unit || check_least(config, parameters, err);
    return error_key(err, "model.parameters",
                     "expected at most %.0f, of the widest model, got %.0f", largest, parameters);
}

bool model_match_hubs(model_config *config, double parameters, error *err) {
    const int64_t unit = common_multiple(config->block, config->input_stride);
    const double largest = match(config, &config->hubs, unit, config->hidden, parameters);
    if (largest == 0) return config->hubs > unit || check_least(config, parameters, err);
    return error_key(err, "model.parameters",
                     "expected at most %.0f, with as many hubs as model.hidden %lld, got %.0f",
                     largest, (long long)config->hidden, parameters);
}

bool model_match_density(model_config *config, double parameters, error *err) {
    double self = 0, all = 0; /* blocks of the gates' pattern; all patterns are alike */
    for (int s = 0; s < model_stages(config); s++) {
        if (model_stage_gates(config, s) == 1) continue;
        self = model_stage_nodes(config, s);
        all = self * model_stage_inputs(config, s);
    }
    const double none = count_with(config, 0), block = (count_with(config, 1) - none) / all;
    const double blocks = round((parameters - none) / block);
    if (blocks < self || blocks > all) {
        return error_key(err, "model.parameters",
                         "expected from %.0f (self-blocks alone) to %.0f (dense) "
                         "at model.hidden %lld, got %.0f",
                         none + block * self, none + block * all, (long long)config->hidden,
                         parameters);
    }
    config->density = blocks / all;
    return true;
}
