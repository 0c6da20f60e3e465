#include "model/size.h"

#include <math.h>

int64_t model_parameter_count(const model_config *config, int64_t blocks) {
    int64_t hidden = config->hidden, units = hidden / config->input_stride;
    int64_t tables = model_tables(config), weights = 0, vectors = 0;
    bool deep = config->cell == CELL_DEEP, norm = config->layer_norm;
    int64_t input = config->embedding * VOCABULARY + tables * units * config->embedding;
    if (deep) input += 2 * units * (norm ? 2 : 1);
    for (int s = 0; s < model_stages(config); s++) {
        int64_t gates = model_stage_gates(config, s);
        weights += blocks * config->block * config->block * gates;
        if (model_stage_place(config, s).stage == STAGE_BELOW) continue;
        if (norm) vectors += gates * hidden;                   /* gains */
        if (deep || gates == GATES) vectors += gates * hidden; /* biases */
    }
    int64_t head = (hidden / config->output_stride + 1) * VOCABULARY;
    return config->layers * input + weights + vectors + head;
}

/* Of each pattern of a graph with `nodes` nodes. */
static int64_t pattern_blocks(const model_config *config, int64_t nodes) {
    if (config->graph == GRAPH_DENSE) return nodes * nodes;
    if (config->degree) return nodes * (config->degree + 1);
    return llround(config->density * (double)nodes * (double)nodes);
}

static int64_t common_multiple(int64_t a, int64_t b) {
    int64_t multiple = a;
    while (multiple % b) multiple += a;
    return multiple;
}

bool model_match_width(model_config *config, double parameters, error *err) {
    int64_t unit = common_multiple(config->block, config->input_stride);
    unit = common_multiple(unit, config->output_stride);
    int64_t most = GRAPH_MAX_NODES * config->block / unit, low = 1, high = most;
    model_config trial = *config;
    while (low < high) { /* the first width that has at least as many */
        int64_t middle = (low + high) / 2;
        trial.hidden = middle * unit;
        bool enough = (double)model_parameter_count(
                          &trial, pattern_blocks(&trial, trial.hidden / trial.block)) >= parameters;
        if (enough) high = middle;
        if (!enough) low = middle + 1;
    }
    double distance = INFINITY, largest = 0;
    for (int64_t width = low > 1 ? low - 1 : 1; width <= low; width++) {
        trial.hidden = width * unit;
        largest = (double)model_parameter_count(&trial,
                                                pattern_blocks(&trial, trial.hidden / trial.block));
        if (fabs(largest - parameters) >= distance) continue;
        distance = fabs(largest - parameters);
        config->hidden = trial.hidden;
    }
    if (low < most || largest >= parameters) return true;
    return error_key(err, "model.parameters",
                     "expected at most %.0f, of the widest model, got %.0f", largest, parameters);
}

bool model_match_density(model_config *config, double parameters, error *err) {
    int64_t nodes = config->hidden / config->block;
    double none = (double)model_parameter_count(config, 0);
    double block = (double)model_parameter_count(config, 1) - none;
    double blocks = round((parameters - none) / block), all = (double)nodes * (double)nodes;
    if (blocks < (double)nodes || blocks > all) {
        return error_key(err, "model.parameters",
                         "expected from %.0f (self-blocks alone) to %.0f (dense) "
                         "at model.hidden %lld, got %.0f",
                         none + block * (double)nodes, none + block * all,
                         (long long)config->hidden, parameters);
    }
    config->density = blocks / all;
    return true;
}
