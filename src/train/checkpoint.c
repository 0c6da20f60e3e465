#include "train/checkpoint.h"

#include "core/json.h"
#include "core/memory.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- metadata */

static void set_entry(metadata *entry, const char *key, const char *value) {
    snprintf(entry->key, sizeof entry->key, "%s", key);
    snprintf(entry->value, sizeof entry->value, "%s", value);
}

static int head(metadata *entries, const char *kind) {
    set_entry(&entries[0], "format", "smallworld");
    set_entry(&entries[1], "version", CHECKPOINT_VERSION);
    set_entry(&entries[2], "kind", kind);
    return 3;
}

/* Opens a file of ours, of this kind and version. */
static bool open_kind(safetensors *file, const char *path, const char *kind, error *err) {
    if (!safetensors_open(file, path, err)) return false;
    const char *format = safetensors_metadata(file, "format");
    const char *version = safetensors_metadata(file, "version");
    const char *found = safetensors_metadata(file, "kind");
    bool ours = format && version && found && strcmp(format, "smallworld") == 0;
    if (!ours) {
        error_set(err, "%s: not written by smallworld", path);
    } else if (strcmp(version, CHECKPOINT_VERSION) != 0) {
        ours = error_set(err, "%s: has format version %s, but this program reads version %s", path,
                         version, CHECKPOINT_VERSION);
    } else if (strcmp(found, kind) != 0) {
        ours = error_set(err, "%s: a %s file; expected a %s file", path, found, kind);
    } else if (!safetensors_metadata(file, "checksum")) {
        ours = error_set(err, "%s: corrupt: it has no checksum", path);
    }
    if (!ours) safetensors_close(file);
    return ours;
}

/* ------------------------------------------------------------------------------------ model */

/* The pattern of a stage as int32 [blocks][2]. */
static int32_t *pattern_blocks(const graph *g) {
    int32_t *blocks = mem_alloc((size_t)graph_blocks(g) * 2, sizeof *blocks), *next = blocks;
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            *next++ = i;
            *next++ = g->column[k];
        }
    }
    return blocks;
}

/* Appends the pattern of each stage; the caller frees their data. */
static int add_patterns(const model *m, tensor *tensors, int32_t *patterns[CELL_MAX_STAGES]) {
    int stages = model_stages(&m->config);
    for (int s = 0; s < stages; s++) {
        char name[16];
        patterns[s] = pattern_blocks(m->graphs[s]);
        tensors[s] = (tensor){.type = TENSOR_I32,
                              .dimensions = 2,
                              .shape = {graph_blocks(m->graphs[s]), 2},
                              .data = patterns[s]};
        snprintf(tensors[s].name, sizeof tensors[s].name, "pattern.%s",
                 model_stage_name(&m->config, s, name));
    }
    return stages;
}

bool checkpoint_save_model(const model *m, const options *o, int64_t step, const char *path,
                           error *err) {
    const parameter_table *table = &m->parameters;
    const void *arena = m->use == MODEL_TRAINING ? m->average : m->weights;
    float *values = model_download(m, arena, 0, table->total);
    tensor *tensors = mem_alloc((size_t)table->count + CELL_MAX_STAGES, sizeof *tensors);
    int32_t *patterns[CELL_MAX_STAGES];
    int count = 0;
    for (; count < table->count; count++) {
        const parameter *p = &table->items[count];
        tensor *t = &tensors[count];
        snprintf(t->name, sizeof t->name, "%s", p->name);
        t->type = TENSOR_F32;
        t->dimensions = p->dimensions;
        memcpy(t->shape, p->shape, sizeof t->shape);
        t->data = values + p->offset;
    }
    int stages = add_patterns(m, tensors + count, patterns);
    count += stages;

    metadata *entries = mem_alloc((size_t)option_count + 8, sizeof *entries);
    int used = head(entries, "model");
    set_entry(&entries[used++], "framing", FRAMING);
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, step);
    set_entry(&entries[used++], "step", number);
    used += options_to_metadata(o, entries + used);
    bool saved =
        m->be->finish(m->be, err) && safetensors_write(path, tensors, count, entries, used, err);
    for (int s = 0; s < stages; s++) free(patterns[s]);
    free(entries);
    free(tensors);
    free(values);
    return saved;
}

/* Leaves what it read in `graphs` also where it fails. */
static bool load_graphs(const safetensors *file, const model_config *config,
                        graph *graphs[CELL_MAX_STAGES], error *err) {
    int nodes = (int)(config->hidden / config->block);
    for (int s = 0; s < model_stages(config); s++) {
        char stage[16], name[32];
        snprintf(name, sizeof name, "pattern.%s", model_stage_name(config, s, stage));
        const tensor *t = safetensors_find(file, name);
        if (!t || t->type != TENSOR_I32 || t->dimensions != 2 || t->shape[1] != 2 ||
            t->shape[0] > INT32_MAX) {
            return error_set(err, "%s: expected a tensor %s of int32 [blocks][2]", file->path,
                             name);
        }
        error inner;
        graphs[s] = graph_from_blocks(nodes, t->data, (int)t->shape[0], &inner);
        if (!graphs[s]) return error_set(err, "%s: %s: %s", file->path, name, inner.text);
    }
    return true;
}

static void free_graphs(graph *graphs[CELL_MAX_STAGES]) {
    for (int s = 0; s < CELL_MAX_STAGES; s++) {
        graph_free(graphs[s]);
        graphs[s] = NULL;
    }
}

bool checkpoint_open(checkpoint *c, const char *path, error *err) {
    memset(c, 0, sizeof *c);
    if (!open_kind(&c->file, path, "model", err)) return false;
    options_begin(&c->options);
    if (options_from_metadata(&c->options, &c->file, err) &&
        load_graphs(&c->file, &c->options.model, c->graphs, err)) {
        return true;
    }
    checkpoint_close(c);
    return false;
}

void checkpoint_close(checkpoint *c) {
    free_graphs(c->graphs);
    options_free(&c->options);
    safetensors_close(&c->file);
}

/* A shape as text, e.g. "[3, 4]". */
static const char *shape_text(int dimensions, const int64_t *shape, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (int d = 0; d < dimensions && used < size; d++) {
        used += (size_t)snprintf(text + used, size - used, "%s%" PRId64, d ? ", " : "[", shape[d]);
    }
    if (used < size) snprintf(text + used, size - used, dimensions ? "]" : "[]");
    return text;
}

static bool all_finite(const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) return false;
    }
    return true;
}

bool checkpoint_load_weights(const checkpoint *c, model *m, error *err) {
    const parameter_table *table = &m->parameters;
    float *values = mem_alloc(table->total, sizeof *values);
    bool loaded = true;
    for (int i = 0; i < table->count && loaded; i++) {
        const parameter *p = &table->items[i];
        const tensor *t = safetensors_find(&c->file, p->name);
        bool same = t && t->type == TENSOR_F32 && t->dimensions == p->dimensions &&
                    memcmp(t->shape, p->shape, sizeof t->shape) == 0;
        if (same && !all_finite(t->data, p->count)) {
            loaded = error_set(err, "%s: tensor %s: expected finite numbers, found others",
                               c->file.path, p->name);
        } else if (same) {
            memcpy(values + p->offset, t->data, p->count * sizeof *values);
        } else {
            char wanted[128], found[128] = "none";
            if (t) shape_text(t->dimensions, t->shape, found, sizeof found);
            loaded = error_set(err, "%s: tensor %s: expected float32 %s, found %s", c->file.path,
                               p->name, shape_text(p->dimensions, p->shape, wanted, sizeof wanted),
                               found);
        }
    }
    if (loaded) model_load(m, values);
    free(values);
    return loaded;
}

static model *make_model(checkpoint *c, backend *be, int batch, int steps, model_use use,
                         error *err) {
    model *m = model_create(be, &c->options.model, c->graphs, batch, steps, 1, use, err);
    /* The graphs are the model's now, also where it was not made. */
    memset(c->graphs, 0, sizeof c->graphs);
    if (!m || checkpoint_load_weights(c, m, err)) return m;
    model_free(m);
    return NULL;
}

model *checkpoint_model(checkpoint *c, backend *be, int batch, int steps, error *err) {
    return make_model(c, be, batch, steps, MODEL_INFERENCE, err);
}

model *checkpoint_training_model(checkpoint *c, backend *be, error *err) {
    return make_model(c, be, 1, 1, MODEL_TRAINING, err);
}

int64_t checkpoint_step(const checkpoint *c) {
    const char *step = safetensors_metadata(&c->file, "step");
    return step ? strtoll(step, NULL, 10) : 0;
}

/* ------------------------------------------------------------------------------------ state */

enum { STATE_NUMBERS = 14, STATE_ARENAS = 6 };

/* The numbers of a run's state by name; int64_t and double both pass through text unharmed. */
typedef struct state_number {
    const char *key;
    int64_t *integer;
    double *real;
    bool later; /* some states were written before there was this number */
} state_number;

static void list_numbers(run_state *s, int64_t *validated, int64_t *finished,
                         state_number list[STATE_NUMBERS]) {
    const state_number numbers[STATE_NUMBERS] = {
        {"step", &s->step, NULL, false},
        {"train_bytes", &s->train_bytes, NULL, false},
        {"total", &s->total, NULL, false},
        {"seconds", NULL, &s->seconds, false},
        {"minutes", NULL, &s->minutes, false},
        {"loss", NULL, &s->loss, false},
        {"loss_updates", &s->loss_updates, NULL, false},
        {"valid_bpc", NULL, &s->valid_bpc, false},
        {"best_bpc", NULL, &s->best_bpc, false},
        {"metrics_bytes", &s->metrics_bytes, NULL, false},
        {"replaced", &s->replaced, NULL, true},
        {"start_density", NULL, &s->start_density, true},
        {"validated", validated, NULL, false},
        {"finished", finished, NULL, false},
    };
    memcpy(list, numbers, sizeof numbers);
}

bool checkpoint_save_state(const model *m, const run_state *state, const char *path, error *err) {
    const void *arenas[] = {m->weights, m->moment1, m->moment2, m->average};
    static const char *const names[] = {"weights", "moment1", "moment2", "average", "h", "c"};
    tensor tensors[STATE_ARENAS + CELL_MAX_STAGES];
    float *values[STATE_ARENAS];
    int32_t *patterns[CELL_MAX_STAGES] = {NULL};
    int count = STATE_ARENAS;
    for (int i = 0; i < STATE_ARENAS; i++) {
        tensor *t = &tensors[i];
        *t = (tensor){.type = TENSOR_F32, .dimensions = 1};
        snprintf(t->name, sizeof t->name, "%s", names[i]);
        if (i < 4) {
            values[i] = model_download(m, arenas[i], 0, m->parameters.total);
            t->shape[0] = (int64_t)m->parameters.total;
        } else {
            values[i] = mem_alloc((size_t)m->config.hidden * (size_t)m->batch, sizeof(float));
            model_copy_state(m, i == 4 ? MODEL_H : MODEL_C, values[i]);
            t->dimensions = 2;
            t->shape[0] = m->config.hidden;
            t->shape[1] = m->batch;
        }
        t->data = values[i];
    }
    count += add_patterns(m, tensors + count, patterns);
    metadata entries[STATE_NUMBERS + 4];
    state_number numbers[STATE_NUMBERS];
    run_state copy = *state;
    int64_t validated = state->validated, finished = state->finished;
    int used = head(entries, "state");
    set_entry(&entries[used++], "precision", precision_name(m->be->precision));
    list_numbers(&copy, &validated, &finished, numbers);
    for (int i = 0; i < STATE_NUMBERS; i++) {
        char text[32];
        if (numbers[i].integer) {
            snprintf(text, sizeof text, "%" PRId64, *numbers[i].integer);
        } else {
            json_format_number(text, *numbers[i].real);
        }
        set_entry(&entries[used++], numbers[i].key, text);
    }
    bool saved =
        m->be->finish(m->be, err) && safetensors_write(path, tensors, count, entries, used, err);
    for (int i = 0; i < STATE_ARENAS; i++) free(values[i]);
    for (int s = 0; s < CELL_MAX_STAGES; s++) free(patterns[s]);
    return saved;
}

static const float *state_tensor(const safetensors *file, const char *name, int64_t rows,
                                 int64_t columns, error *err) {
    const tensor *t = safetensors_find(file, name);
    if (t && t->type == TENSOR_F32 && t->shape[0] == rows && t->shape[1] == columns) return t->data;
    error_set(err, "%s: tensor %s does not fit this model", file->path, name);
    return NULL;
}

static bool read_numbers(const safetensors *file, run_state *state, error *err) {
    state_number numbers[STATE_NUMBERS];
    int64_t validated = 0, finished = 0;
    list_numbers(state, &validated, &finished, numbers);
    for (int i = 0; i < STATE_NUMBERS; i++) {
        const char *text = safetensors_metadata(file, numbers[i].key);
        if (!text && numbers[i].later) continue;
        if (!text) return error_set(err, "%s: its metadata has no %s", file->path, numbers[i].key);
        if (numbers[i].integer) {
            *numbers[i].integer = strtoll(text, NULL, 10);
        } else {
            *numbers[i].real = strtod(text, NULL);
        }
    }
    state->validated = validated != 0;
    state->finished = finished != 0;
    return true;
}

/* States of before it was recorded are taken as they are. */
static bool check_precision(const safetensors *file, const backend *be, error *err) {
    const char *before = safetensors_metadata(file, "precision");
    const char *now = precision_name(be->precision);
    if (!before || strcmp(before, now) == 0) return true;
    return error_key(err, "run.precision",
                     "cannot change on resuming: %s was trained in %s, now it is %s; "
                     "--precision %s goes on in it",
                     file->path, before, now, before);
}

bool checkpoint_state_graphs(const char *path, const model_config *config,
                             graph *graphs[CELL_MAX_STAGES], error *err) {
    safetensors file;
    memset(graphs, 0, CELL_MAX_STAGES * sizeof *graphs);
    if (!open_kind(&file, path, "state", err)) return false;
    bool loaded = load_graphs(&file, config, graphs, err);
    if (!loaded) free_graphs(graphs);
    safetensors_close(&file);
    return loaded;
}

bool checkpoint_load_state(model *m, run_state *state, const char *path, error *err) {
    backend *be = m->be;
    safetensors file;
    if (!open_kind(&file, path, "state", err)) return false;
    int64_t total = (int64_t)m->parameters.total, hidden = m->config.hidden;
    const char *const names[] = {"moment1", "moment2", "average"};
    void *const arenas[] = {m->moment1, m->moment2, m->average};
    const float *weights = state_tensor(&file, "weights", total, 0, err);
    bool loaded = weights && check_precision(&file, be, err) && read_numbers(&file, state, err);
    if (loaded) model_load(m, weights);
    for (int i = 0; i < 3 && loaded; i++) {
        const float *values = state_tensor(&file, names[i], total, 0, err);
        loaded = values != NULL;
        if (loaded) be->upload(be, arenas[i], values, (size_t)total * sizeof *values);
    }
    const float *h = loaded ? state_tensor(&file, "h", hidden, m->batch, err) : NULL;
    const float *c = h ? state_tensor(&file, "c", hidden, m->batch, err) : NULL;
    if (c) {
        model_set_state(m, MODEL_H, h);
        model_set_state(m, MODEL_C, c);
    }
    loaded = c && be->finish(be, err);
    safetensors_close(&file);
    return loaded;
}
