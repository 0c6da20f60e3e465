/* smallworld predict: classify documents by a saved probe. */
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/texts.h"
#include "probe/saved.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    cli_model model;
    cli_documents documents;
    cli_features features;
    const char *checkpoint, *probe, *out;
} arguments;

enum { KEY_PROBE = 1, KEY_OUT };

static const struct argp_option option_table[] = {
    {"probe", KEY_PROBE, "FILE", 0, "Saved probe: FILE.probe.safetensors, or FILE", 0},
    {"out", KEY_OUT, "FILE", 0, "Write the lines to this file; default: standard output", 0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_PROBE: a->probe = text; return 0;
    case KEY_OUT: a->out = text; return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->documents;
        state->child_inputs[1] = &a->features;
        state->child_inputs[2] = &a->model;
        return 0;
    case ARGP_KEY_ARG: cli_take(state, "CHECKPOINT", &a->checkpoint, text); return 0;
    case ARGP_KEY_END:
        if (!a->checkpoint) cli_refuse(state, "expected a CHECKPOINT");
        if (!a->probe) cli_refuse(state, "expected --probe FILE");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* The run, over all parts of the text. */
typedef struct predictor {
    model *m;
    const saved_probe *probe;
    feature_options how;
    FILE *out;
    int64_t documents; /* before this part */
    size_t labelled, wrong;

    /* Of this part's documents. */
    double *probability; /* [documents][classes] */
    int *class;          /* [documents] the likeliest class */
} predictor;

static void take_row(void *argument, size_t document, const float *row) {
    predictor *p = argument;
    p->class[document] =
        saved_apply(p->probe, row, p->probability + document * (size_t)p->probe->classes);
}

static bool choose_features(const arguments *a, const saved_probe *p, feature_options *how,
                            error *err) {
    cli_features chosen;
    if (!cli_choose_features(&a->features, &p->origin, &chosen, err)) return false;
    *how = (feature_options){.state = (feature_state)chosen.state,
                             .pools = chosen.pools,
                             .format = FORMAT_NPY,
                             .progress = log_is_terminal()};
    return true;
}

/* Returns the label as the probe names its classes, or NULL if there is none. `text` has room for
 * 16 bytes. */
static const char *label_of(const corpus *c, const document *d, char *text) {
    if (d->raw || d->label == -1) return NULL;
    if (c->names) return c->names[d->label];
    snprintf(text, 16, "%d", d->label);
    return text;
}

static void write_line(predictor *p, const corpus *c, size_t i) {
    const saved_probe *s = p->probe;
    const double *probability = p->probability + i * (size_t)s->classes;
    char text[16];
    const char *label = label_of(c, &c->documents[i], text), *said = s->name[p->class[i]];
    json_writer w = {p->out, false};
    json_object_begin(&w, NULL);
    json_integer(&w, "document", p->documents + (int64_t)i);
    if (label) json_string(&w, "label", label);
    json_string(&w, "class", said);
    json_object_begin(&w, "probability");
    for (int k = 0; k < s->classes; k++) json_number(&w, s->name[k], probability[k]);
    json_object_end(&w);
    json_object_end(&w);
    fputc('\n', p->out);
    p->labelled += label != NULL;
    p->wrong += label && strcmp(label, said) != 0;
}

/* Predicts a part of the text, and writes its lines at once. */
static bool take_part(void *argument, corpus *c, error *err) {
    predictor *p = argument;
    p->probability = mem_alloc(c->count * (size_t)p->probe->classes, sizeof *p->probability);
    p->class = mem_alloc(c->count, sizeof *p->class);
    const bool done = features_each(p->m, c, &p->how, take_row, p, err);
    for (size_t i = 0; done && i < c->count; i++) write_line(p, c, i);
    fflush(p->out);
    p->documents += (int64_t)c->count;
    free(p->class);
    free(p->probability);
    corpus_free(c);
    return done;
}

static bool run(const arguments *a, cli_loaded *loaded, predictor *p, error *err) {
    const corpus_options reading = {.html_entities = loaded->checkpoint.options.data.html_entities};
    const cli_documents *d = &a->documents;
    file_writer writer;
    p->m = loaded->m;
    p->out = stdout;
    if (a->out && !file_begin(&writer, a->out, err)) return false;
    if (a->out) p->out = writer.stream;
    bool done = texts_each(d->text, d->whole, &reading, take_part, p, err);
    if (a->out && done)
        done = file_commit(&writer, err);
    else if (a->out)
        file_abort(&writer);
    log_end();
    if (done && p->labelled > 0) {
        log_line("error %.2f %% of %zu labelled documents",
                 100 * (double)p->wrong / (double)p->labelled, p->labelled);
    }
    return done;
}

static bool predict(const arguments *a, error *err) {
    char *path = cli_probe_path(a->probe);
    saved_probe probe;
    predictor p = {.probe = &probe};
    cli_loaded loaded;
    bool opened = saved_open(&probe, path, err), done = false;
    if (opened && choose_features(a, &probe, &p.how, err) &&
        cli_load(&loaded, a->checkpoint, &a->model, 0, FEATURES_STEPS, err)) {
        const checkpoint *c = &loaded.checkpoint;
        done = saved_check(&probe, c->options.model.hidden * p.how.pools.count,
                           checkpoint_checksum(c), path, err) &&
               run(a, &loaded, &p, err);
        cli_unload(&loaded);
    }
    if (opened) saved_close(&probe);
    free(path);
    return done;
}

int cmd_predict(int argc, char **argv) {
    static const struct argp_child children[] = {{&cli_documents_argp, 0, NULL, 0},
                                                 {&cli_features_argp, 0, NULL, 0},
                                                 {&cli_model_argp, 0, "Device:", 0},
                                                 {0}};
    static const struct argp argp = {
        option_table,
        parse,
        "CHECKPOINT --probe FILE --text FILE|-",
        "Classify documents by a probe that smallworld probe --out saved. Each document gives a "
        "line of JSON with the probability of every class, as soon as the document is there. If "
        "documents have labels, their error is printed on standard error.\vExample:\n  echo 'A "
        "dull "
        "film.' | smallworld predict runs/quickstart/last.safetensors \\\n      --probe sentiment "
        "--text -",
        children,
        NULL,
        NULL};
    arguments a = {0};
    cli_parse(&argp, argc, argv, &a);
    error err;
    return predict(&a, &err) ? STATUS_OK : cli_fail(&err, "predict");
}
