/* smallworld predict: the classes of documents, by a saved probe. */
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
    const char *checkpoint, *probe, *text, *out;
    int state;       /* -1: what the probe says */
    pool_list pools; /* count 0: likewise */
    bool whole;
} arguments;

enum { KEY_PROBE = 1, KEY_TEXT, KEY_WHOLE, KEY_OUT, KEY_STATE, KEY_POOL };

static const struct argp_option option_table[] = {
    {"probe", KEY_PROBE, "FILE", 0, "A saved probe, FILE.probe.safetensors or its prefix", 0},
    {"text", KEY_TEXT, "FILE|-", 0,
     "Documents: .tsv or .tsv.gz, a line LABEL<TAB>TEXT each; of another file, or standard input, "
     "each line is one",
     0},
    {"whole", KEY_WHOLE, NULL, 0, "The text is one document, its bytes as they are", 0},
    {"out", KEY_OUT, "FILE", 0, "Writes the lines there; default: to standard output", 0},
    {"state", KEY_STATE, "NAME", 0,
     "cell or hidden, for a probe on features that do not say; default: cell", 0},
    {"pool", KEY_POOL, "NAME", 0, "last, mean or max, likewise; default: last", 0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_PROBE: a->probe = text; return 0;
    case KEY_TEXT: a->text = text; return 0;
    case KEY_WHOLE: a->whole = true; return 0;
    case KEY_OUT: a->out = text; return 0;
    case KEY_STATE: a->state = cli_choice(state, "--state", text, FEATURE_STATES); return 0;
    case KEY_POOL:
        if (!origin_parse_pools(text, &a->pools)) {
            argp_error(state,
                       "--pool: expected last, mean or max, or different ones joined by commas; "
                       "got '%s'",
                       text);
        }
        return 0;
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; return 0;
    case ARGP_KEY_ARG:
        if (a->checkpoint) argp_error(state, "expected one CHECKPOINT, got also '%s'", text);
        a->checkpoint = text;
        return 0;
    case ARGP_KEY_END:
        if (!a->checkpoint) argp_error(state, "expected a CHECKPOINT");
        if (!a->probe) argp_error(state, "expected --probe FILE");
        if (!a->text) argp_error(state, "expected --text FILE or --text -");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What is said of each document. */
typedef struct prediction {
    const saved_probe *probe;
    double *probability; /* [documents][classes] */
    int *class;          /* [documents] the likeliest */
} prediction;

static void take(void *argument, size_t document, const float *row) {
    prediction *p = argument;
    p->class[document] =
        saved_apply(p->probe, row, p->probability + document * (size_t)p->probe->classes);
}

static bool choose_features(const arguments *a, const saved_probe *p, feature_options *how,
                            error *err) {
    const origin *o = &p->origin;
    if (o->known && a->state >= 0 && a->state != (int)o->state) {
        return error_usage(err, "--state: the probe was fitted on the %s state",
                           origin_state_name(o->state));
    }
    char pools[ORIGIN_POOLS_TEXT], given[ORIGIN_POOLS_TEXT];
    if (o->known && a->pools.count > 0 &&
        strcmp(origin_pools_text(&o->pools, pools), origin_pools_text(&a->pools, given)) != 0) {
        return error_usage(err, "--pool: the probe was fitted on --pool %s", pools);
    }
    *how = (feature_options){.state = o->known ? o->state : FEATURE_CELL,
                             .pools = o->known ? o->pools : (pool_list){1, {POOL_LAST}},
                             .format = FORMAT_NPY,
                             .progress = log_is_terminal()};
    if (a->state >= 0) how->state = (feature_state)a->state;
    if (a->pools.count > 0) how->pools = a->pools;
    return true;
}

/* The label as the probe names its classes; NULL where there is none. `text` holds 16 bytes. */
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
    corpus *c = texts_read(a->text, a->whole, &reading, err);
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
                           safetensors_metadata(&c->file, "checksum"), path, err) &&
               run(a, &loaded, &probe, &how, err);
        cli_unload(&loaded);
    }
    if (opened) saved_close(&probe);
    free(path);
    return done;
}

int cmd_predict(int argc, char **argv) {
    static const struct argp_child children[] = {{&cli_model_argp, 0, "Device:", 0}, {0}};
    static const struct argp argp = {
        option_table,
        parse,
        "CHECKPOINT --probe FILE --text FILE|-",
        "Say which class documents belong to, by a probe that smallworld probe --out saved: a line "
        "of JSON each, with the probability of every class. Of labelled documents, the error goes "
        "to standard error."
        "\vExample:\n  echo 'A dull film.' | smallworld predict runs/quickstart/last.safetensors "
        "\\\n"
        "      --probe sentiment --text -",
        children,
        NULL,
        NULL};
    arguments a = {.state = -1};
    cli_parse(&argp, argc, argv, &a);
    error err;
    return predict(&a, &err) ? STATUS_OK : cli_fail(&err, "predict");
}
