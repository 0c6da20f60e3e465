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

/* The results for each document. */
typedef struct prediction {
    const saved_probe *probe;
    double *probability; /* [documents][classes] */
    int *class;          /* [documents] the likeliest class */
} prediction;

static void take(void *argument, size_t document, const float *row) {
    prediction *p = argument;
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

static void write_lines(const prediction *p, const corpus *c, FILE *out) {
    const saved_probe *s = p->probe;
    char text[16];
    for (size_t i = 0; i < c->count; i++) {
        const char *label = label_of(c, &c->documents[i], text);
        json_writer w = {out, false};
        json_object_begin(&w, NULL);
        json_integer(&w, "document", (int64_t)i);
        if (label) json_string(&w, "label", label);
        json_string(&w, "class", s->name[p->class[i]]);
        json_object_begin(&w, "probability");
        for (int k = 0; k < s->classes; k++) {
            json_number(&w, s->name[k], p->probability[i * (size_t)s->classes + (size_t)k]);
        }
        json_object_end(&w);
        json_object_end(&w);
        fputc('\n', out);
    }
}

static void report_error(const prediction *p, const corpus *c) {
    size_t labelled = 0, wrong = 0;
    char text[16];
    for (size_t i = 0; i < c->count; i++) {
        const char *label = label_of(c, &c->documents[i], text);
        if (!label) continue;
        labelled++;
        wrong += strcmp(label, p->probe->name[p->class[i]]) != 0;
    }
    if (labelled == 0) return;
    log_line("error %.2f %% of %zu labelled documents", 100 * (double)wrong / (double)labelled,
             labelled);
}

static bool write_file(const prediction *p, const corpus *c, const char *path, error *err) {
    file_writer writer;
    if (!file_begin(&writer, path, err)) return false;
    write_lines(p, c, writer.stream);
    return file_commit(&writer, err);
}

static bool run(const arguments *a, cli_loaded *loaded, const saved_probe *probe,
                const feature_options *how, error *err) {
    const corpus_options reading = {.html_entities = loaded->checkpoint.options.data.html_entities};
    corpus *c = texts_read(a->documents.text, a->documents.whole, &reading, err);
    if (!c) return false;
    prediction p = {.probe = probe,
                    .probability = mem_alloc(c->count * (size_t)probe->classes, sizeof(double)),
                    .class = mem_alloc(c->count, sizeof(int))};
    bool done = features_each(loaded->m, c, how, take, &p, err);
    if (done && a->out) {
        done = write_file(&p, c, a->out, err);
    } else if (done) {
        write_lines(&p, c, stdout);
    }
    log_end();
    if (done) report_error(&p, c);
    free(p.class);
    free(p.probability);
    corpus_free(c);
    return done;
}

static bool predict(const arguments *a, error *err) {
    char *path = cli_probe_path(a->probe);
    saved_probe probe;
    feature_options how;
    cli_loaded loaded;
    bool opened = saved_open(&probe, path, err), done = false;
    if (opened && choose_features(a, &probe, &how, err) &&
        cli_load(&loaded, a->checkpoint, &a->model, 0, FEATURES_STEPS, err)) {
        const checkpoint *c = &loaded.checkpoint;
        done = saved_check(&probe, c->options.model.hidden * how.pools.count,
                           checkpoint_checksum(c), path, err) &&
               run(a, &loaded, &probe, &how, err);
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
        "line of JSON with the probability of every class. If documents have labels, their error "
        "is printed on standard error.\vExample:\n  echo 'A dull film.' | smallworld predict "
        "runs/quickstart/last.safetensors \\\n      --probe sentiment --text -",
        children,
        NULL,
        NULL};
    arguments a = {0};
    cli_parse(&argp, argc, argv, &a);
    error err;
    return predict(&a, &err) ? STATUS_OK : cli_fail(&err, "predict");
}
