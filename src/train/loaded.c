#include "train/loaded.h"

#include "core/integer.h"
#include "train/evaluate.h"

#include <string.h>

bool overrides_apply(const overrides *given, options *o, error *err) {
    const struct {
        const char *text, *path, *option;
    } all[] = {
        {given->device, "run.device", "--device"},
        {given->precision, "run.precision", "--precision"},
        {given->batch, "train.batch", "--batch"},
        {given->threads, "run.threads", "--threads"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (!all[i].text) continue;
        if (!config_set(&o->config, all[i].path, all[i].text, all[i].option, err)) {
            err->status = STATUS_USAGE;
            return false;
        }
    }
    o->run.ranks = given->ranks;
    return true;
}

backend *overrides_backend(const overrides *given, error *err) {
    options o;
    backend *be = NULL;
    options_begin(&o);
    if (overrides_apply(given, &o, err)) {
        o.run.precision = PRECISION_FP32;
        o.run.ranks = NULL;
        be = options_backend(&o.run, err);
    }
    options_free(&o);
    return be;
}

bool loaded_open(loaded_model *loaded, const char *path, const overrides *given, error *err) {
    memset(loaded, 0, sizeof *loaded);
    if (!checkpoint_open(&loaded->checkpoint, path, err)) return false;
    loaded->batch_given = given->batch != NULL;
    if (overrides_apply(given, &loaded->checkpoint.options, err)) return true;
    loaded_free(loaded);
    return false;
}

/* Approximate bytes of activations for each position: h, c, and shares of gates and logits. */
static double position_bytes(const model_config *config) {
    return 8.0 * (double)config->hidden * (double)config->layers + 4.0 * 256 + 16;
}

const text_limits any_text = {INT64_MAX, INT64_MAX / 2}; /* leaves room to add the warm-up */

bool loaded_make(loaded_model *loaded, int batch, int steps, text_limits text, error *err) {
    const double free_bytes = 0x1p32, share = 16;
    options *o = &loaded->checkpoint.options;
    int64_t columns = batch ? batch : o->train.batch, rows = steps ? steps : o->train.bptt;
    columns = integer_min(columns, text.streams);
    rows = integer_min(rows, text.bytes / columns + 1 + EVALUATE_WARM_UP);
    double most = free_bytes + share * (double)loaded->checkpoint.file.map.size;
    int64_t positions = (int64_t)(most / position_bytes(&o->model));
    if (rows > positions / columns) rows = positions / columns;
    if (rows < 1) rows = 1;
    if (!batch && !loaded->batch_given) columns = integer_min(columns, positions);
    loaded->be = options_backend(&o->run, err);
    if (!loaded->be) return false;
    loaded->m = checkpoint_model(&loaded->checkpoint, loaded->be, (int)columns, (int)rows,
                                 loaded->use, err);
    return loaded->m != NULL;
}

bool loaded_load(loaded_model *loaded, const char *path, const overrides *given, int batch,
                 int steps, error *err) {
    if (!loaded_open(loaded, path, given, err)) return false;
    if (loaded_make(loaded, batch, steps, any_text, err)) return true;
    loaded_free(loaded);
    return false;
}

void loaded_free(loaded_model *loaded) {
    model_free(loaded->m);
    if (loaded->be) loaded->be->memory->destroy(loaded->be);
    checkpoint_close(&loaded->checkpoint);
}
