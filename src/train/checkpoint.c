#include "train/checkpoint.h"

#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/number.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------------- metadata */

static int head(metadata *entries, const char *kind) {
    int count = 0;
    metadata_add(entries, &count, "format", "smallworld");
    metadata_add(entries, &count, "version", CHECKPOINT_VERSION);
    metadata_add(entries, &count, "kind", kind);
    return count;
}

/* Opens a smallworld file of this kind and this version. */
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

/* A pattern as int32 [blocks][2], which the caller frees. */
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

/* Appends a tensor for each pattern to `tensors`. The caller frees `patterns`. */
static int add_patterns(const model *m, tensor *tensors, int count, int32_t *patterns[]) {
    for (int s = 0; s < model_stages(&m->config); s++) {
        char name[16];
        patterns[s] = pattern_blocks(m->graphs[s]);
        tensor *t = &tensors[count++];
        *t = (tensor){.type = TENSOR_I32,
                      .dimensions = 2,
                      .shape = {graph_blocks(m->graphs[s]), 2},
                      .data = patterns[s]};
        snprintf(t->name, sizeof t->name, "pattern.%s", model_stage_name(&m->config, s, name));
    }
    return count;
}

/* The values of an arena: on the CPU itself, so that saving needs no more memory than was planned;
 * else a copy, which the caller frees. */
static const float *arena_values(const model *m, const void *arena, size_t count, float **copy) {
    const bool here = !backend_on_gpu(m->be) && m->be->real_size == sizeof **copy;
    *copy = here ? NULL : model_download(m, arena, 0, count);
    return here ? arena : *copy;
}

bool checkpoint_save_model(const model *m, const float *values, const options *o, int64_t step,
                           const char *path, error *err) {
    const parameter_table *table = &m->parameters;
    const void *arena = m->use != MODEL_INFERENCE ? m->average : m->weights;
    float *copy = NULL;
    if (!values) values = arena_values(m, arena, table->total, &copy);
    tensor *tensors = mem_alloc((size_t)table->count + CELL_MAX_STAGES, sizeof *tensors);
    int32_t *patterns[CELL_MAX_STAGES] = {0};
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
    count = add_patterns(m, tensors, count, patterns);

    metadata *entries = mem_alloc((size_t)option_count + 8 + MOST_CLASSES, sizeof *entries);
    int used = head(entries, "model");
    metadata_add(entries, &used, "framing", FRAMING);
    char number[32];
    snprintf(number, sizeof number, "%" PRId64, step);
    metadata_add(entries, &used, "step", number);
    used += options_to_metadata(o, entries + used);
    if (o->classes.count > 0) {
        metadata_add_classes(entries, &used, (const char *const *)o->classes.name,
                             o->classes.count);
    }
    bool saved = m->be->memory->finish(m->be, err) &&
                 safetensors_write(path, tensors, count, entries, used, err);
    for (int s = 0; s < model_stages(&m->config); s++) free(patterns[s]);
    free(entries);
    free(tensors);
    free(copy);
    return saved;
}

static void free_graphs(graph *graphs[CELL_MAX_STAGES]) {
    for (int s = 0; s < CELL_MAX_STAGES; s++) {
        graph_free(graphs[s]);
        graphs[s] = NULL;
    }
}

/* Reads the patterns of a model of `config`. Frees those already read if one of them fails. */
static bool load_graphs(const safetensors *file, const model_config *config, graph *graphs[],
                        error *err) {
    memset(graphs, 0, CELL_MAX_STAGES * sizeof *graphs);
    for (int s = 0; s < model_stages(config); s++) {
        char stage[16], name[32];
        error inner = {.text = "expected a tensor of int32 [blocks][2]"};
        snprintf(name, sizeof name, "pattern.%s", model_stage_name(config, s, stage));
        const tensor *t = safetensors_find(file, name);
        if (t && t->type == TENSOR_I32 && t->dimensions == 2 && t->shape[1] == 2 &&
            t->shape[0] <= INT32_MAX) {
            const int nodes = model_stage_nodes(config, s), inputs = model_stage_inputs(config, s);
            const int count = (int)t->shape[0];
            graphs[s] = config->hubs ? graph_from_pairs(nodes, inputs, t->data, count, &inner)
                                     : graph_from_blocks(nodes, t->data, count, &inner);
        }
        if (graphs[s]) continue;
        free_graphs(graphs);
        return error_set(err, "%s: %s: %s", file->path, name, inner.text);
    }
    return true;
}

static bool check_framing(const safetensors *file, error *err) {
    const char *framing = safetensors_metadata(file, "framing");
    return (framing && strcmp(framing, FRAMING) == 0) ||
           error_set(err, "%s: metadata framing: expected '%s', got '%s'", file->path, FRAMING,
                     framing ? framing : "");
}

/* A model has no classes, or names all of them. */
static bool read_classes(const safetensors *file, options *o, error *err) {
    const char *name[MOST_CLASSES];
    if (!safetensors_metadata(file, "classes")) return true;
    o->classes.count = safetensors_classes(file, name);
    for (int k = 0; k < o->classes.count; k++) o->classes.name[k] = mem_string(name[k]);
    o->model.classes = o->classes.count;
    return o->classes.count > 0 ||
           error_set(err, "%s: metadata classes: expected 2 to %d, each with its name class.N",
                     file->path, MOST_CLASSES);
}

char *checkpoint_file(const char *path, error *err) {
    if (!file_is_folder(path)) return mem_string(path);
    char *file = mem_format("%s/last.safetensors", path);
    if (file_exists(file)) return file;
    error_set(err,
              "%s: expected the folder of a run, with last.safetensors, or, for predict, of a "
              "classifier, with classifier.safetensors",
              path);
    free(file);
    return NULL;
}

bool checkpoint_open(checkpoint *c, const char *path, error *err) {
    memset(c, 0, sizeof *c);
    char *file = checkpoint_file(path, err);
    const bool opened = file && open_kind(&c->file, file, "model", err);
    free(file);
    if (!opened) return false;
    options_begin(&c->options);
    if (check_framing(&c->file, err) && options_from_metadata(&c->options, &c->file, err) &&
        read_classes(&c->file, &c->options, err) &&
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

static bool check_finite(const safetensors *file, const tensor *t, error *err) {
    const float *values = t->data;
    for (size_t i = 0; i < tensor_bytes(t) / sizeof *values; i++) {
        if (isfinite(values[i])) continue;
        return error_set(err, "%s: tensor %s: expected finite numbers, found others", file->path,
                         t->name);
    }
    return true;
}

static bool is_of_classes(const char *name) {
    return strncmp(name, "class.", strlen("class.")) == 0;
}

/* Refuses a tensor that this model has no place for: the file is of another one. */
static bool check_names(const checkpoint *c, const parameter_table *table, error *err) {
    for (int i = 0; i < c->file.tensor_count; i++) {
        const char *name = c->file.tensors[i].name;
        if (strncmp(name, "pattern.", strlen("pattern.")) == 0) continue;
        if (is_of_classes(name)) continue; /* of other classes or of none */
        if (parameter_find(table, name)) continue;
        return error_set(err, "%s: tensor %s: not one of a model with this metadata", c->file.path,
                         name);
    }
    return true;
}

bool checkpoint_check_weights(const checkpoint *c, error *err) {
    for (int i = 0; i < c->file.tensor_count; i++) {
        const tensor *t = &c->file.tensors[i];
        if (t->type == TENSOR_F32 && !check_finite(&c->file, t, err)) return false;
    }
    return true;
}

static bool are_same(const class_names *a, const class_names *b) {
    int k = 0;
    while (k < a->count && k < b->count && strcmp(a->name[k], b->name[k]) == 0) k++;
    return k == a->count && k == b->count;
}

bool checkpoint_load_weights(const checkpoint *c, model *m, const class_names *classes,
                             error *err) {
    const parameter_table *table = &m->parameters;
    const bool same_classes = are_same(classes, &c->options.classes);
    if (!check_names(c, table, err)) return false;
    if (!same_classes && c->options.classes.count > 0) {
        log_warning("%s: its class head, of %d classes, is left out, as the classes here are %s",
                    c->file.path, c->options.classes.count, classes->count ? "others" : "none");
    }
    float *values = mem_alloc(table->total, sizeof *values);
    bool loaded = true;
    for (int i = 0; i < table->count && loaded; i++) {
        const parameter *p = &table->items[i];
        const tensor *t = safetensors_find(&c->file, p->name);
        if (is_of_classes(p->name) && !same_classes) continue; /* it begins as zeros */
        bool same = t && t->type == TENSOR_F32 && t->dimensions == p->dimensions &&
                    memcmp(t->shape, p->shape, sizeof t->shape) == 0;
        if (same) {
            loaded = check_finite(&c->file, t, err);
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

model *checkpoint_model(checkpoint *c, backend *be, int batch, int steps, model_use use,
                        error *err) {
    if (!c->graphs[0] && !load_graphs(&c->file, &c->options.model, c->graphs, err)) return NULL;
    model *m = model_create(be, &c->options.model, c->graphs, batch, steps, 1, use, err);
    /* The graphs belong to the model now, even if it could not be made. */
    memset(c->graphs, 0, sizeof c->graphs);
    if (!m || checkpoint_load_weights(c, m, &c->options.classes, err)) return m;
    model_free(m);
    return NULL;
}

int64_t checkpoint_step(const checkpoint *c) {
    const char *text = safetensors_metadata(&c->file, "step");
    int64_t step = 0;
    if (text) number_integer(text, &step);
    return step;
}

const char *checkpoint_checksum(const checkpoint *c) {
    return safetensors_metadata(&c->file, "checksum");
}

/* ------------------------------------------------------------------------------------ state */

enum { STATE_TENSORS = MODEL_KEPT + 2 /* h and c */, STATE_NUMBERS = 26 };

static const char *state_name(const model *m, int i) {
    return i < MODEL_KEPT ? model_kept(m, i).name : i == MODEL_KEPT ? "h" : "c";
}

/* The names of the numbers in a run's state, and their ranges. A number is an int64_t or a double;
 * both keep their exact value as text. */
typedef struct state_number {
    const char *key;
    int64_t *integer;
    double *real; /* NULL for an integer */
    double most;  /* the largest value; the smallest is 0 */
    bool unknown; /* whether INT64_MAX or NaN is allowed too */
    bool later;   /* whether older files lack it: it is 0 then, or NaN if that is allowed */
} state_number;

static const double most_steps = 1e15, most_bytes = 1e18, most_seconds = 1e12, most_nats = 1e30;

static void list_numbers(run_state *s, int64_t flags[2], state_number list[STATE_NUMBERS]) {
    const double hash = 0x1p63;
    const state_number numbers[] = {
        {"step", &s->step, NULL, most_steps, false, false},
        {"train_bytes", &s->train_bytes, NULL, most_bytes, false, false},
        {"train_text", &s->train_text, NULL, hash, false, false},
        {"valid_text", &s->valid_text, NULL, hash, false, false},
        {"train_labels", &s->train_labels, NULL, hash, false, true},
        {"valid_labels", &s->valid_labels, NULL, hash, false, true},
        {"total", &s->total, NULL, most_steps, true, false},
        {"seconds", NULL, &s->seconds, most_seconds, false, false},
        {"elapsed", NULL, &s->elapsed, most_seconds, false, false},
        {"minutes", NULL, &s->minutes, most_seconds, false, false},
        {"loss", NULL, &s->loss, most_nats, false, false},
        {"label_loss", NULL, &s->label_loss, most_nats, false, true},
        {"label_weight", NULL, &s->label_weight, most_nats, false, true},
        {"loss_updates", &s->loss_updates, NULL, most_steps, false, false},
        {"gradient_norm", NULL, &s->gradient_norm, HUGE_VAL, true, false},
        {"valid_bpc", NULL, &s->valid_bpc, most_nats, true, false},
        {"best_bpc", NULL, &s->best_bpc, most_nats, true, false},
        {"valid_label_loss", NULL, &s->valid_label_loss, most_nats, true, true},
        {"valid_label_error", NULL, &s->valid_label_error, 1, true, true},
        {"best_label_loss", NULL, &s->best_label_loss, most_nats, true, true},
        {"best_label_error", NULL, &s->best_label_error, 1, true, true},
        {"best_step", &s->best_step, NULL, most_steps, false, false},
        {"metrics_bytes", &s->metrics_bytes, NULL, most_bytes, false, false},
        {"pending", &s->pending, NULL, PENDING_METRICS, false, false},
        {"validated", &flags[0], NULL, 1, false, false},
        {"finished", &flags[1], NULL, 1, false, false},
    };
    static_assert(sizeof numbers == STATE_NUMBERS * sizeof *list, "the list has room for all");
    memcpy(list, numbers, sizeof numbers);
}

/* The carried state of all ranks' streams, [units][streams], on rank 0; NULL elsewhere. */
static float *gather_streams(const model *m, model_state_kind kind) {
    ranks *r = m->be->ranks;
    const size_t units = (size_t)m->config.hidden * (size_t)m->layers, mine = (size_t)m->batch;
    int64_t before;
    const size_t all = (size_t)ranks_place(r, m->batch, &before);
    float *own = mem_alloc(units * mine, sizeof *own);
    model_copy_state(m, kind, own);
    float *parts = ranks_gather(r, own, units * mine);
    free(own);
    int64_t count = m->batch;
    if (r) ranks_exchange(r, &count, sizeof count);
    if (!parts || mine == all) return parts;
    float *values = mem_alloc(units * all, sizeof *values), *part = parts;
    size_t column = 0;
    for (int k = 0; k < r->count; k++) {
        const size_t streams = (size_t) * (const int64_t *)ranks_part(r, k);
        for (size_t u = 0; u < units; u++, part += streams) {
            memcpy(values + u * all + column, part, streams * sizeof *values);
        }
        column += streams;
    }
    free(parts);
    return values;
}

bool checkpoint_save_state(const model *m, const run_state *state, const char *path, error *err) {
    tensor tensors[STATE_TENSORS + CELL_MAX_STAGES];
    float *values[STATE_TENSORS]; /* what is a copy, or NULL */
    int32_t *patterns[CELL_MAX_STAGES] = {0};
    int64_t before;
    const int64_t batch = ranks_place(m->be->ranks, m->batch, &before);
    for (int i = MODEL_KEPT; i < STATE_TENSORS; i++) {
        values[i] = gather_streams(m, i == MODEL_KEPT ? MODEL_H : MODEL_C);
    }
    if (ranks_rank(m->be->ranks) > 0) return m->be->memory->finish(m->be, err);
    for (int i = 0; i < STATE_TENSORS; i++) {
        tensor *t = &tensors[i];
        *t = (tensor){.type = TENSOR_F32, .dimensions = 1};
        snprintf(t->name, sizeof t->name, "%s", state_name(m, i));
        if (i < MODEL_KEPT) {
            const kept_arena a = model_kept(m, i);
            t->data = arena_values(m, a.values, a.count, &values[i]);
            t->shape[0] = (int64_t)a.count;
        } else {
            int64_t units = m->config.hidden * m->layers;
            t->dimensions = 2;
            t->shape[0] = units;
            t->shape[1] = batch;
            t->data = values[i];
        }
    }
    int count = add_patterns(m, tensors, STATE_TENSORS, patterns);
    metadata entries[STATE_NUMBERS + 4];
    state_number numbers[STATE_NUMBERS];
    run_state copy = *state;
    int64_t flags[2] = {state->validated, state->finished};
    int used = head(entries, "state");
    metadata_add(entries, &used, "precision", precision_name(m->be->precision));
    list_numbers(&copy, flags, numbers);
    for (int i = 0; i < STATE_NUMBERS; i++) {
        char text[32] = "nan";
        if (numbers[i].integer) {
            snprintf(text, sizeof text, "%" PRId64, *numbers[i].integer);
        } else if (!isnan(*numbers[i].real)) {
            number_format(text, *numbers[i].real);
        }
        metadata_add(entries, &used, numbers[i].key, text);
    }
    bool saved = m->be->memory->finish(m->be, err) &&
                 safetensors_write(path, tensors, count, entries, used, err);
    for (int i = 0; i < STATE_TENSORS; i++) free(values[i]);
    for (int i = STATE_TENSORS; i < count; i++) free(patterns[i - STATE_TENSORS]);
    return saved;
}

/* Finds a tensor of this shape; `columns` 0 means that it has one dimension. */
static const float *state_tensor(const safetensors *file, const char *name, int64_t rows,
                                 int64_t columns, error *err) {
    const tensor *t = safetensors_find(file, name);
    bool fits = t && t->type == TENSOR_F32 && t->dimensions == (columns ? 2 : 1) &&
                t->shape[0] == rows && (!columns || t->shape[1] == columns);
    if (!fits) {
        error_set(err,
                  "%s: tensor %s does not fit this model; if an older version wrote it, a new run "
                  "with train.init goes on from its weights",
                  file->path, name);
    }
    return fits && check_finite(file, t, err) ? t->data : NULL;
}

static bool read_number(const state_number *n, const char *text) {
    if (n->integer) {
        return number_integer(text, n->integer) &&
               ((*n->integer >= 0 && (double)*n->integer <= n->most) ||
                (n->unknown && *n->integer == INT64_MAX));
    }
    if (n->unknown && strcmp(text, "nan") == 0) {
        *n->real = NAN;
        return true;
    }
    return number_real(text, n->real) && *n->real >= 0 && *n->real <= n->most;
}

static bool read_numbers(const safetensors *file, run_state *state, error *err) {
    state_number numbers[STATE_NUMBERS];
    int64_t flags[2] = {0};
    list_numbers(state, flags, numbers);
    for (int i = 0; i < STATE_NUMBERS; i++) {
        const state_number *n = &numbers[i];
        const char *text = safetensors_metadata(file, n->key);
        if (!text && n->real == &state->elapsed) text = safetensors_metadata(file, "seconds");
        if (!text && n->later) text = n->unknown ? "nan" : "0";
        if (!text) return error_set(err, "%s: its metadata has no %s", file->path, n->key);
        if (!read_number(n, text)) {
            return error_set(err, "%s: metadata %s: expected %s from 0 to %g, got '%s'", file->path,
                             n->key, n->integer ? "an integer" : "a number", n->most, text);
        }
    }
    state->validated = flags[0];
    state->finished = flags[1];
    return true;
}

/* Accepts states written before the precision was recorded. */
static bool check_precision(const safetensors *file, const backend *be, error *err) {
    const char *before = safetensors_metadata(file, "precision");
    const char *now = precision_name(be->precision);
    if (!before || strcmp(before, now) == 0) return true;
    return error_key(err, "run.precision",
                     "cannot change on resuming: %s was trained in %s, now it is %s; "
                     "--precision %s goes on in it",
                     file->path, before, now, before);
}

bool checkpoint_open_state(safetensors *file, run_state *state, const char *path, error *err) {
    if (!open_kind(file, path, "state", err)) return false;
    if (read_numbers(file, state, err)) return true;
    safetensors_close(file);
    return false;
}

bool checkpoint_state_graphs(const safetensors *file, const model_config *config,
                             graph *graphs[CELL_MAX_STAGES], error *err) {
    return load_graphs(file, config, graphs, err);
}

/* Of `all` streams those that this model has, from `first` on. */
static void set_streams(model *m, model_state_kind kind, const float *values, int64_t all,
                        int64_t first) {
    const size_t units = (size_t)m->config.hidden * (size_t)m->layers, mine = (size_t)m->batch;
    float *own = mem_alloc(units * mine, sizeof *own);
    for (size_t u = 0; u < units; u++) {
        memcpy(own + u * mine, values + u * (size_t)all + (size_t)first, mine * sizeof *own);
    }
    model_set_state(m, kind, own);
    free(own);
}

bool checkpoint_load_state(const safetensors *file, model *m, error *err) {
    backend *be = m->be;
    const int64_t units = m->config.hidden * m->layers;
    const float *values[STATE_TENSORS];
    int64_t before;
    const int64_t batch = ranks_place(be->ranks, m->batch, &before);
    for (int i = 0; i < STATE_TENSORS; i++) {
        const bool kept = i < MODEL_KEPT;
        const int64_t rows = kept ? (int64_t)model_kept(m, i).count : units;
        values[i] = state_tensor(file, state_name(m, i), rows, kept ? 0 : batch, err);
        if (!values[i]) return false;
    }
    if (!check_precision(file, be, err)) return false;
    model_load(m, values[0]);
    for (int i = 1; i < MODEL_KEPT; i++) {
        const kept_arena a = model_kept(m, i);
        be->memory->upload(be, a.values, values[i], a.count * sizeof *values[0]);
    }
    set_streams(m, MODEL_H, values[MODEL_KEPT], batch, before);
    set_streams(m, MODEL_C, values[MODEL_KEPT + 1], batch, before);
    return be->memory->finish(be, err);
}
