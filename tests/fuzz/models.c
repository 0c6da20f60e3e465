#include "models.h"

#include "fuzz.h"

void tiny_options(options *o, const char *cell) {
    const struct {
        const char *path, *value;
    } set[] = {
        {"model.cell", cell},        {"model.hidden", "24"},        {"model.block", "8"},
        {"model.graph", "random"},   {"model.density", "0.6"},      {"model.embedding", "1"},
        {"model.input_stride", "8"}, {"model.output_stride", "24"}, {"run.device", "cpu"},
        {"run.threads", "1"},
    };
    error err;
    options_begin(o);
    for (size_t i = 0; i < sizeof set / sizeof set[0]; i++) {
        require(config_set(&o->config, set[i].path, set[i].value, "fuzz", &err), err.text);
    }
    require(options_check(o, &err), err.text);
}

model *tiny_model(backend *be, const options *o) {
    error err;
    graph *graphs[CELL_MAX_STAGES];
    require(model_graphs(&o->model, graphs, &err), err.text);
    model *m = model_create(be, &o->model, graphs, TINY_BATCH, TINY_STEPS, 1, MODEL_TRAINING, &err);
    require(m != NULL, err.text);
    model_initialise(m);
    return m;
}
