/* last.state is read into an existing model, as train --resume does. */
#include "fuzz.h"
#include "models.h"

#include "train/checkpoint.h"

#include <stdlib.h>
#include <string.h>

static const char *path;
static options o;
static backend *be;
static model *m;

static void release(void) {
    model_free(m);
    be->memory->destroy(be);
    options_free(&o);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    const run_state state = {.step = 7, .train_bytes = 100, .total = 20, .seconds = 1.5};
    error err;
    path = scratch_path("last.state");
    tiny_options(&o, "lstm");
    be = options_backend(&o.run, &err);
    m = tiny_model(be, &o);
    require(checkpoint_save_state(m, &state, path, &err), err.text);
    add_seed(path);
    atexit(release);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    run_state state = {0};
    safetensors file;
    graph *graphs[CELL_MAX_STAGES] = {0};
    error err;
    scratch_write(path, data, size);
    if (!checkpoint_open_state(&file, &state, path, &err)) {
        require(strstr(err.text, path) != NULL, "an error that does not name the file");
        return 0;
    }
    require(state.step >= 0 && state.total >= 0 && state.metrics_bytes >= 0 &&
                state.train_bytes >= 0 && state.loss_updates >= 0 && state.seconds >= 0,
            "a negative number in a state");
    bool loaded = checkpoint_state_graphs(&file, &o.model, graphs, &err) &&
                  checkpoint_load_state(&file, m, &err);
    require(loaded || strstr(err.text, path) != NULL, "an error that does not name the file");
    for (int s = 0; s < CELL_MAX_STAGES; s++) graph_free(graphs[s]);
    safetensors_close(&file);
    return 0;
}
