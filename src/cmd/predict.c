/* smallworld predict: classify documents by a model's class head, a saved probe or a classifier. */
#include "classify/classifier.h"
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/classes.h"
#include "data/corpus.h"
#include "probe/calibration.h"
#include "probe/features.h"
#include "probe/saved.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    overrides model;
    cli_documents documents;
    cli_features features;
    const char *checkpoint, *probe, *out;
    int top; /* the number of classes that are told; 0: all, in their order */
} arguments;

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "CHECKPOINT", .offset = offsetof(arguments, checkpoint),
     "a CHECKPOINT or the folder of a classifier"},
    {CLI_TEXT, "probe", "FILE", .offset = offsetof(arguments, probe),
     "Saved probe: FILE.probe.safetensors, or FILE"},
    {CLI_TEXT, "out", "FILE", .offset = offsetof(arguments, out),
     "Write the lines to this file; default: standard output"},
    {CLI_COUNT, "top-k", "K", .offset = offsetof(arguments, top),
     "Tell the probabilities of the K likeliest classes alone, likeliest first", 1, MOST_CLASSES},
    CLI_DOCUMENTS(offsetof(arguments, documents)),
    CLI_FEATURES(offsetof(arguments, features)),
    CLI_MODEL(offsetof(arguments, model)),
};

/* The run, over all parts of the text. */
typedef struct predictor {
    model *m;                 /* NULL: n-grams alone */
    const saved_probe *probe; /* likewise */
    const classifier *joined; /* NULL: the probe alone */
    ngram_reader *ngrams;
    int classes, top;        /* top: as in arguments */
    const char *const *name; /* [classes] */
    feature_options how;
    FILE *out;
    const char *path;  /* of `out`; NULL: standard output */
    int64_t documents; /* before this part */
    size_t labelled, wrong;
    size_t strange; /* of these with a label that is none of the classes */
    char *stranger; /* the first of these labels */

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
    *how = (feature_options){
        .state = (feature_state)chosen.state, .pools = chosen.pools, .progress = true};
    return true;
}

/* The likeliest class that has not been told. */
static int next_likeliest(const double *probability, int classes, const bool *told) {
    int best = -1;
    for (int k = 0; k < classes; k++) {
        if (!told[k] && (best < 0 || probability[k] > probability[best])) best = k;
    }
    return best;
}

static void write_probabilities(const predictor *p, const double *probability, json_writer *w) {
    bool told[MOST_CLASSES] = {false};
    const int count = p->top > 0 && p->top < p->classes ? p->top : p->classes;
    json_object_begin(w, "probability");
    for (int i = 0; i < count; i++) {
        const int k = p->top > 0 ? next_likeliest(probability, p->classes, told) : i;
        told[k] = true;
        json_number(w, p->name[k], probability[k]);
    }
    json_object_end(w);
}

static void write_line(predictor *p, const corpus *c, size_t i) {
    const double *probability = p->probability + i * (size_t)p->classes;
    char text[16];
    const char *label = corpus_label(c, i, text), *said = p->name[p->class[i]];
    json_writer w = {p->out, false};
    json_object_begin(&w, NULL);
    json_integer(&w, "document", p->documents + (int64_t)i);
    if (label) json_string(&w, "label", label);
    json_string(&w, "class", said);
    write_probabilities(p, probability, &w);
    json_object_end(&w);
    fputc('\n', p->out);
    const int class = label ? classes_index(p->name, p->classes, label) : -1;
    if (label && class < 0 && p->strange++ == 0) p->stranger = mem_string(label);
    p->labelled += label != NULL;
    p->wrong += label && class != p->class[i];
}

/* Joins what n-grams say of a document to what the probe said, if that was asked. */
static void join_ngrams(predictor *p, const corpus *c, size_t i) {
    double margin[MOST_CLASSES], by_ngrams[MOST_CLASSES];
    double *probability = p->probability + i * (size_t)p->classes;
    const ngrams *g = &p->joined->ngrams;
    size_t length;
    const uint8_t *text = corpus_text(c, i, &length);
    ngram_reader_apply(p->ngrams, text, length, margin);
    margin_probabilities(margin, g->functions, false, g->scale, by_ngrams);
    p->class[i] =
        classifier_join(p->classes, by_ngrams, probability, p->joined->share, probability);
}

/* Predicts a part of the text, and writes its lines at once. */
static bool take_part(void *argument, corpus *c, error *err) {
    predictor *p = argument;
    p->probability = mem_alloc(c->count * (size_t)p->classes, sizeof *p->probability);
    p->class = mem_alloc(c->count, sizeof *p->class);
    bool done = !p->m || features_each(p->m, c, &p->how, take_row, p, err);
    for (size_t i = 0; done && p->ngrams && i < c->count; i++) join_ngrams(p, c, i);
    for (size_t i = 0; done && i < c->count; i++) write_line(p, c, i);
    done = done && cli_flush(p->out, p->path, err);
    p->documents += (int64_t)c->count;
    free(p->class);
    free(p->probability);
    corpus_free(c);
    return done;
}

static bool run(const arguments *a, const corpus_options *reading, predictor *p, error *err) {
    const cli_documents *d = &a->documents;
    file_writer writer;
    p->top = a->top;
    p->out = stdout;
    p->path = a->out;
    if (a->out && !file_begin(&writer, a->out, err)) return false;
    if (a->out) p->out = writer.stream;
    bool done = texts_each(d->text, d->whole, reading, take_part, p, err);
    if (a->out && done)
        done = file_commit(&writer, err);
    else if (a->out)
        file_abort(&writer);
    log_end();
    if (done && p->strange > 0) {
        log_warning("%zu documents have labels that are none of the classes, such as '%s'",
                    p->strange, p->stranger);
    }
    free(p->stranger);
    if (done && p->labelled > 0) {
        log_line("error %.2f %% of %zu labelled documents",
                 100 * (double)p->wrong / (double)p->labelled, p->labelled);
    }
    return done;
}

/* Whether the folders that files are in may be their classes. */
static bool has_classes(const char *text) {
    return strcmp(text, "-") != 0 && file_is_folder(text);
}

/* Whether the probe is that of the classifier. */
static bool is_part_of(const saved_probe *probe, const predictor *p, error *err) {
    bool same = probe->classes == p->classes;
    for (int k = 0; same && k < p->classes; k++) same = strcmp(probe->name[k], p->name[k]) == 0;
    return classifier_check_name(&probe->file, err) &&
           (same || error_set(err, "%s: other classes than " CLASSIFIER_FILE " beside it has",
                              probe->file.path));
}

/* Predicts by a probe, and by n-grams too where `p` has them. */
static bool predict_features(const arguments *a, const char *checkpoint_path, const char *path,
                             predictor *p, error *err) {
    saved_probe probe;
    loaded_model loaded;
    bool opened = saved_open(&probe, path, err), done = false;
    p->probe = &probe;
    if (opened && (!p->joined || is_part_of(&probe, p, err)) &&
        choose_features(a, &probe, &p->how, err) &&
        loaded_load(&loaded, checkpoint_path, &a->model, 0, FEATURES_STEPS, err)) {
        const checkpoint *c = &loaded.checkpoint;
        corpus_options reading = cli_reading(&a->documents.columns, &c->options);
        if (p->joined) reading.usual_text = p->joined->text_column;
        if (p->joined) reading.usual_label = p->joined->label_column;
        reading.class_folders = p->joined != NULL && has_classes(a->documents.text);
        p->m = loaded.m;
        p->classes = probe.classes;
        p->name = probe.name;
        done = (!p->joined || classifier_check_name(&c->file, err)) &&
               saved_check(&probe, c->options.model.hidden * p->how.pools.count,
                           checkpoint_checksum(c), path, err) &&
               run(a, &reading, p, err);
        loaded_free(&loaded);
    }
    if (opened) saved_close(&probe);
    *p = (predictor){0};
    return done;
}

static bool predict_joined(const arguments *a, error *err) {
    const char *folder = a->checkpoint;
    classifier c;
    if (!classifier_open(&c, folder, err)) return false;
    char *checkpoint_path = mem_format("%s/%s", folder, c.checkpoint);
    char *probe_path = mem_format("%s/%s", folder, c.probe);
    const corpus_options reading = {.html_entities = c.html_entities,
                                    .class_folders = has_classes(a->documents.text),
                                    .usual_text = c.text_column,
                                    .usual_label = c.label_column,
                                    .text_column = a->documents.columns.text,
                                    .label_column = a->documents.columns.label};
    ngram_reader *reader = ngram_reader_create(&c.ngrams);
    predictor p = {.joined = &c, .ngrams = reader, .classes = c.classes, .name = c.name};
    const bool done = c.share > 0 ? predict_features(a, checkpoint_path, probe_path, &p, err)
                                  : run(a, &reading, &p, err);
    ngram_reader_free(reader);
    free(probe_path);
    free(checkpoint_path);
    classifier_close(&c);
    return done;
}

static bool predict(const arguments *a, error *err) {
    predictor p = {0};
    char *path = mem_format("%s/" CLASSIFIER_FILE, a->checkpoint);
    const bool joined = !a->probe && file_exists(path);
    free(path);
    if (joined) return predict_joined(a, err);
    path = a->probe ? cli_probe_path(a->probe) : checkpoint_file(a->checkpoint, err);
    const bool done = path && predict_features(a, a->checkpoint, path, &p, err);
    free(path);
    return done;
}

int cmd_predict(int argc, char **argv) {
    static const cli_command command = {
        "CHECKPOINT --text FILE|-\nCHECKPOINT --probe FILE --text FILE|-\nDIR --text FILE|-",
        "Classify documents by a model that was trained with train.label_weight, by a probe that "
        "smallworld probe --out saved, or by what smallworld classify --out DIR did. Each document "
        "gives a "
        "line of JSON with the probability of every class, as soon as the document is there. If "
        "documents have labels, their error is printed on standard error.\vExample:\n  echo 'A "
        "dull "
        "film.' | smallworld predict runs/quickstart/last.safetensors \\\n      --probe sentiment "
        "--text -",
        CLI_ROWS(rows), NULL, NULL};
    arguments a = {.features = {.state = -1}};
    cli_parse(&command, argc, argv, &a);
    error err;
    return predict(&a, &err) ? STATUS_OK : cli_fail(&err, "predict");
}
