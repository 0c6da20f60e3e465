/* smallworld classify: from labelled documents to a classifier, beside an n-gram baseline. */
#include "classify/classifier.h"
#include "classify/opinions.h"
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/utf8.h"
#include "page/classified.h"
#include "probe/probe.h"
#include "probe/split.h"
#include "train/defaults.h"
#include "train/trainer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    HELD_OUT_PERCENT = 20, /* for testing, without --test */
    MISTAKES = 20,
    SHOWN = 4, /* mistakes that are coloured */
    SHOWN_BYTES = 8000,
    SHOWN_UNITS = 8
};

typedef struct arguments {
    cli_model model;
    cli_columns columns;
    const char *train, *test, *given, *out; /* given: a run or checkpoint */
    double minutes;
    bool json;
} arguments;

enum { KEY_TRAIN = 1, KEY_TEST, KEY_MODEL, KEY_MINUTES, KEY_OUT, KEY_JSON };

static const struct argp_option option_table[] = {
    {"train", KEY_TRAIN, "FILE", 0,
     "Labelled documents: .csv or .jsonl with a column of texts and one of labels, .tsv with a "
     "line LABEL<TAB>TEXT each, fastText's lines as .ft.txt, or a folder with a folder of files "
     "for each class",
     0},
    {"test", KEY_TEST, "FILE", 0,
     "Labelled documents to measure errors on; default: a fifth of the others, chosen by a hash of "
     "the text",
     0},
    {"model", KEY_MODEL, "RUN|CHECKPOINT", 0,
     "Model whose features to use; default: one is trained on the documents' text first", 0},
    {"minutes", KEY_MINUTES, "N", 0, "Minutes to train that model for; default 10", 0},
    {"out", KEY_OUT, "DIR", 0, "Folder for the classifier, its page and its table", 0},
    CLI_JSON(KEY_JSON),
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_TRAIN: a->train = text; return 0;
    case KEY_TEST: a->test = text; return 0;
    case KEY_MODEL: a->given = text; return 0;
    case KEY_MINUTES: a->minutes = cli_number(state, "--minutes", text, 0.01, 1e6); return 0;
    case KEY_OUT: a->out = text; return 0;
    case KEY_JSON: a->json = true; return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->columns;
        state->child_inputs[1] = &a->model;
        return 0;
    case ARGP_KEY_ARG: cli_refuse(state, "unexpected argument '%s'", text); return 0;
    case ARGP_KEY_END:
        if (!a->train) cli_refuse(state, "expected --train FILE");
        if (!a->out || !*a->out) cli_refuse(state, "expected --out DIR");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* ---------------------------------------------------------------------------------- documents */

/* Documents and their classes. */
typedef struct part {
    corpus *texts;
    int16_t *class; /* [texts->count] -1: unlabelled */
    size_t labelled;
} part;

typedef struct classes {
    char *name[DATASET_MAX_CLASSES];
    int32_t label[DATASET_MAX_CLASSES]; /* as the training documents have it */
    int count;
} classes;

static int by_number(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Finds the classes of labelled documents, in the order in which a probe has them. */
static bool find_classes(classes *k, const corpus *c, const char *path, error *err) {
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        int at = 0;
        if (d->raw || d->label == UNLABELLED) continue;
        while (at < k->count && k->label[at] != d->label) at++;
        if (at < k->count) continue;
        if (k->count == DATASET_MAX_CLASSES) {
            return error_set(err, "%s: more than %d different labels", path, DATASET_MAX_CLASSES);
        }
        k->label[k->count++] = d->label;
    }
    if (k->count < 2) {
        return error_set(err, "%s: expected documents of two classes or more, found %s", path,
                         k->count ? "one" : "no label");
    }
    qsort(k->label, (size_t)k->count, sizeof *k->label, by_number);
    for (int i = 0; i < k->count; i++) {
        k->name[i] = c->names ? mem_string(c->names[k->label[i]]) : mem_format("%d", k->label[i]);
    }
    return true;
}

/* Finds the class of each document. */
static bool find_class(part *p, const classes *k, const char *path, const char *train, error *err) {
    const corpus *c = p->texts;
    p->class = mem_alloc(c->count, sizeof *p->class);
    for (size_t i = 0; i < c->count; i++) {
        char text[16];
        const char *name = corpus_label(c, i, text);
        int at = 0;
        p->class[i] = -1;
        if (!name) continue;
        while (at < k->count && strcmp(k->name[at], name) != 0) at++;
        if (at == k->count) {
            return error_set(err, "%s: label '%s' is not among those of %s", path, name, train);
        }
        p->class[i] = (int16_t)at;
        p->labelled++;
    }
    return p->labelled > 0 ||
           error_set(err,
                     "%s: expected labelled documents, of which some can be for training and "
                     "others for testing",
                     path);
}

/* --------------------------------------------------------------------------------- classifying */

enum { BY_NGRAMS, BY_FEATURES, BY_BOTH, WAYS };

static const char *const way_names[WAYS] = {"n-grams", "features", "n-grams and features"};

typedef struct work {
    const arguments *a;
    int lock;                      /* of the folder; -1: none */
    char *checkpoint;              /* its path */
    char *model_name, *probe_name; /* below the folder, see classifier.h */
    size_t unlabelled;
    cli_loaded loaded;
    bool is_open;
    part train, test;
    classes classes;
    bool *held;                        /* [documents of train] held out to choose by */
    int16_t *test_class, *valid_class; /* of labelled rows, in order */
    size_t valid_rows;
    ngrams ngrams;
    probe_result probed;
    double *valid_margin, *test_margin; /* of the n-grams */
    opinions valid[WAYS], tested[WAYS];
    double share; /* of the features in BY_BOTH */
    int way;      /* the chosen one */
    double p_value;
} work;

/* Names what no error will speak of: documents without a label, and classes without a test. */
static void say_what_lacks(work *w) {
    bool tested[DATASET_MAX_CLASSES] = {false};
    const part *parts[] = {&w->train, &w->test};
    for (int i = 0; i < 2; i++) w->unlabelled += parts[i]->texts->count - parts[i]->labelled;
    if (w->unlabelled > 0) log_line("%zu documents have no label", w->unlabelled);
    for (size_t i = 0; i < w->test.texts->count; i++) {
        if (w->test.class[i] >= 0) tested[w->test.class[i]] = true;
    }
    for (int k = 0; k < w->classes.count; k++) {
        if (tested[k]) continue;
        log_warning("class '%s' is not among the test documents, so no error is measured of it",
                    w->classes.name[k]);
    }
}

/* Reads the documents and, without --test, holds a fifth out. */
static bool read_documents(work *w, error *err) {
    const arguments *a = w->a;
    corpus_options how = {.text_column = a->columns.text, .label_column = a->columns.label};
    if (w->is_open) how = cli_reading(&a->columns, &w->loaded.checkpoint.options);
    how.class_folders = true;
    char *train = (char *)(uintptr_t)a->train, *test = (char *)(uintptr_t)a->test;
    w->train.texts = corpus_read(&train, 1, &how, err);
    if (!w->train.texts || !find_classes(&w->classes, w->train.texts, a->train, err)) return false;
    w->test.texts = test ? corpus_read(&test, 1, &how, err)
                         : corpus_split(w->train.texts, HELD_OUT_PERCENT / 100.0);
    if (!w->test.texts || !find_class(&w->test, &w->classes, test ? test : a->train, a->train, err))
        return false;
    const size_t shared = corpus_drop(w->train.texts, w->test.texts);
    if (shared > 0) {
        log_line("%s: %zu documents that stand in %s too are left out", a->train, shared, test);
    }
    if (!find_class(&w->train, &w->classes, a->train, a->train, err)) return false;
    say_what_lacks(w);
    return true;
}

/* Trains a model on the text of the training documents, or goes on with that. */
static bool train_model(work *w, error *err) {
    const arguments *a = w->a;
    char *folder = mem_format("%s/run", a->out), *state = mem_format("%s/last.state", folder);
    char *minutes = mem_format("train.minutes=%.17g", a->minutes), *files[] = {NULL};
    char *held = mem_format("data.valid_fraction=%g", HELD_OUT_PERCENT / 100.0);
    options o;
    train_result trained;
    const bool again = file_exists(state);
    files[0] = (char *)(uintptr_t)a->train;
    options_begin(&o);
    log_line("without --model, one is trained on the text for %g minutes", a->minutes);
    bool done = cli_apply(&a->model, &o, err) && config_assign(&o.config, minutes, err);
    /* The documents for testing are not read: the same hash tells them. */
    if (done && !a->test) done = config_assign(&o.config, held, err);
    done = done && config_assign_string(&o.config, "data.exclude", a->test, err) &&
           config_assign_string(&o.config, "data.text_column", a->columns.text, err) &&
           config_assign_string(&o.config, "data.label_column", a->columns.label, err) &&
           config_assign(&o.config, "data.class_folders=true", err) &&
           defaults_choose(&o, files, 1, err) && options_check(&o, err) &&
           train_run(&o, folder, again ? TRAIN_RESUME : TRAIN_FRESH, &trained, err);
    options_free(&o);
    log_end();
    if (done && trained.signal) {
        done = error_set(err, "stopped; the same command goes on");
    } else if (!done && again) {
        const error why = *err;
        error_set(err, "%s; to train anew, remove %s or name another --out", why.text, folder);
    }
    w->checkpoint = mem_format("%s/last.safetensors", folder);
    free(held);
    free(minutes);
    free(state);
    free(folder);
    return done;
}

static char *features_path(const work *w, const char *name) {
    return mem_format("%s/features/%s", w->a->out, name);
}

/* Copies the model and the probe to where predict finds them. */
static bool keep_parts(work *w, error *err) {
    char *path = features_path(w, "probe.probe.safetensors");
    saved_probe probe;
    bool kept = saved_open(&probe, path, err);
    if (kept) {
        w->probe_name = classifier_keep(w->a->out, "probe", &probe.file, err);
        saved_close(&probe);
        kept = w->probe_name != NULL;
    }
    if (kept) {
        w->model_name = classifier_keep(w->a->out, "model", &w->loaded.checkpoint.file, err);
    }
    free(path);
    return w->model_name != NULL;
}

/* Gathers the classes of labelled rows, of all or of those in `held`. Returns their number. */
static size_t gather(const part *p, const bool *held, int16_t **class) {
    size_t rows = 0;
    *class = mem_alloc(p->texts->count, sizeof **class);
    for (size_t i = 0; i < p->texts->count; i++) {
        if (p->class[i] >= 0 && (!held || held[i])) (*class)[rows++] = p->class[i];
    }
    return rows;
}

/* The n-grams' margins of the labelled test documents. */
static double *apply_ngrams(const ngrams *g, const part *p) {
    double *margin = mem_alloc(p->labelled * (size_t)g->functions, sizeof *margin), *to = margin;
    ngram_reader *r = ngram_reader_create(g);
    for (size_t i = 0; i < p->texts->count; i++) {
        size_t length;
        const uint8_t *text = corpus_text(p->texts, i, &length);
        if (p->class[i] < 0) continue;
        ngram_reader_apply(r, text, length, to);
        to += g->functions;
    }
    ngram_reader_free(r);
    return margin;
}

/* Fits n-grams, with the same rows held out as the probe will have. */
static bool fit_ngrams(work *w, error *err) {
    const corpus *c = w->train.texts;
    uint64_t *group = mem_alloc(c->count, sizeof *group);
    for (size_t i = 0; i < c->count; i++) group[i] = c->documents[i].hash;
    w->held = mem_alloc(c->count, sizeof *w->held);
    const int lacking =
        split_by_group(w->train.class, group, c->count, w->classes.count, 0, w->held);
    free(group);
    if (lacking >= 0) {
        return error_set(err,
                         "%s: expected at least two different documents of each class beside those "
                         "for testing; class '%s' has fewer",
                         w->a->train, w->classes.name[lacking]);
    }
    gather(&w->test, NULL, &w->test_class);
    w->valid_rows = gather(&w->train, w->held, &w->valid_class);
    if (!ngrams_fit(&w->ngrams, c, w->train.class, w->classes.count, w->held, &w->valid_margin,
                    err)) {
        return false;
    }
    w->test_margin = apply_ngrams(&w->ngrams, &w->test);
    return true;
}

static bool extract(work *w, const part *p, const char *prefix, error *err) {
    const feature_options how = {.pools = FEATURE_POOLS,
                                 .format = FORMAT_NPY,
                                 .progress = true,
                                 .model = checkpoint_checksum(&w->loaded.checkpoint)};
    feature_result made;
    return features_extract(w->loaded.m, p->texts, &how, prefix, &made, err);
}

/* Features and a probe on them. The model stays, for the page. */
static bool fit_features(work *w, error *err) {
    char *train = features_path(w, "train"), *test = features_path(w, "test");
    char *out = features_path(w, "probe"), *folder = features_path(w, "");
    const probe_options how = {
        .train = train, .test = test, .held = w->held, .out = out, .progress = true};
    bool done = file_make_folder(folder, err) &&
                cli_make(&w->loaded, 0, FEATURES_STEPS, cli_any_text, err) &&
                extract(w, &w->train, train, err) && extract(w, &w->test, test, err);
    backend *be = done ? cli_probe_backend(&w->a->model, err) : NULL;
    done = be && probe_run(be, &how, &w->probed, err);
    if (be) be->destroy(be);
    free(folder);
    free(out);
    free(test);
    free(train);
    return done;
}

/* Judges each way and both together, and chooses by validation; of equals the simplest. */
static void choose(work *w) {
    const int classes = w->classes.count;
    const probe_result *r = &w->probed;
    opinions_take(&w->valid[BY_NGRAMS], w->valid_margin, w->valid_rows, classes, w->ngrams.scale,
                  w->valid_class);
    opinions_take(&w->valid[BY_FEATURES], r->valid_margin, w->valid_rows, classes, r->scale,
                  w->valid_class);
    opinions_take(&w->tested[BY_NGRAMS], w->test_margin, w->test.labelled, classes, w->ngrams.scale,
                  w->test_class);
    opinions_take(&w->tested[BY_FEATURES], r->test_margin, w->test.labelled, classes, r->scale,
                  w->test_class);
    w->share = opinions_join_best(&w->valid[BY_BOTH], &w->valid[BY_NGRAMS], &w->valid[BY_FEATURES],
                                  classes, w->valid_class);
    opinions_join(&w->tested[BY_BOTH], &w->tested[BY_NGRAMS], &w->tested[BY_FEATURES], classes,
                  w->share, w->test_class);
    for (int way = 1; way < WAYS; way++) {
        if (w->valid[way].wrong < w->valid[w->way].wrong) w->way = way;
    }
    w->p_value = w->way == BY_NGRAMS
                     ? NAN
                     : opinions_mcnemar(&w->tested[w->way], &w->tested[BY_NGRAMS], w->test_class);
}

static double percent(size_t wrong, size_t rows) {
    return 100 * (double)wrong / (double)rows;
}

static double deviation(double error, size_t rows) {
    return sqrt(error * (100 - error) / (double)rows);
}

/* ------------------------------------------------------------------------------------- results */

static bool save(const work *w, error *err) {
    classifier c = {.ngrams = w->ngrams,
                    .classes = w->classes.count,
                    .share = w->way == BY_NGRAMS     ? 0
                             : w->way == BY_FEATURES ? 1
                                                     : w->share,
                    .checkpoint = w->model_name,
                    .probe = w->probe_name,
                    .html_entities = w->loaded.checkpoint.options.data.reading.html_entities};
    for (int k = 0; k < c.classes; k++) c.name[k] = w->classes.name[k];
    if (!classifier_write(&c, w->a->out, err)) return false;
    classifier_clean(&c, w->a->out);
    return true;
}

static void list_contenders(const work *w, contender list[1 + WAYS]) {
    const size_t rows = w->test.labelled;
    const double commonest = w->probed.majority_error;
    list[0] = (contender){"always the commonest class", commonest, deviation(commonest, rows), NAN,
                          false};
    for (int way = 0; way < WAYS; way++) {
        const double error = percent(w->tested[way].wrong, rows);
        list[1 + way] = (contender){way_names[way], error, deviation(error, rows),
                                    percent(w->valid[way].wrong, w->valid_rows), way == w->way};
    }
}

static void write_json(const work *w, FILE *out) {
    static const char *const keys[] = {"commonest_error", "ngram_error", "features_error",
                                       "both_error"};
    contender list[1 + WAYS];
    json_writer j = {out, false};
    list_contenders(w, list);
    json_object_begin(&j, NULL);
    for (int i = 0; i < 1 + WAYS; i++) json_number(&j, keys[i], list[i].error);
    json_object_begin(&j, "standard_error");
    for (int i = 0; i < 1 + WAYS; i++) json_number(&j, keys[i], list[i].deviation);
    json_object_end(&j);
    json_object_begin(&j, "valid_error");
    for (int i = 1; i < 1 + WAYS; i++) json_number(&j, keys[i], list[i].valid_error);
    json_object_end(&j);
    json_string(&j, "chosen", way_names[w->way]);
    json_number(&j, "share_of_features", w->share);
    json_number(&j, "p_value", w->p_value);
    json_array_begin(&j, "class_names");
    for (int k = 0; k < w->classes.count; k++) json_string(&j, NULL, w->classes.name[k]);
    json_array_end(&j);
    json_integer(&j, "train_documents", (int64_t)w->train.labelled);
    json_integer(&j, "test_documents", (int64_t)w->test.labelled);
    json_string(&j, "classifier", w->a->out);
    json_object_end(&j);
    fputc('\n', out);
}

static void print_table(const work *w) {
    contender list[1 + WAYS];
    list_contenders(w, list);
    printf("%-28s%12s%16s%20s\n", "classed by", "error, %", "standard error",
           "validation error, %");
    for (int i = 0; i < 1 + WAYS; i++) {
        printf("%-28s%12.2f%16.2f", list[i].name, list[i].error, list[i].deviation);
        if (isnan(list[i].valid_error)) {
            printf("\n");
        } else {
            printf("%20.2f%s\n", list[i].valid_error, list[i].chosen ? "  saved" : "");
        }
    }
    if (!isnan(w->p_value)) printf("saved against n-grams: p = %.2g\n", w->p_value);
}

static int by_probability(const void *a, const void *b) {
    const mistake *x = a, *y = b;
    return (x->probability < y->probability) - (x->probability > y->probability);
}

/* Lists the documents that the chosen way gets wrong, surest first. Returns their number. */
static int list_mistakes(const work *w, mistake **list) {
    const opinions *o = &w->tested[w->way];
    int count = 0;
    size_t row = 0;
    *list = mem_alloc(o->wrong + 1, sizeof **list);
    for (size_t i = 0; i < w->test.texts->count; i++) {
        if (w->test.class[i] < 0) continue;
        const int said = o->said[row];
        const double probability = o->probability[row++ * (size_t)w->classes.count + (size_t)said];
        if (said == w->test.class[i] || w->test.texts->documents[i].raw) continue;
        (*list)[count++] = (mistake){i, w->test.class[i], said, probability};
    }
    qsort(*list, (size_t)count, sizeof **list, by_probability);
    return count < MISTAKES ? count : MISTAKES;
}

/* Reads the first mistakes as the probe sees them. */
static bool read_mistakes(work *w, const mistake *list, int count, corpus *some, saved_probe *probe,
                          reading *r, error *err) {
    size_t units[SHOWN_UNITS];
    uint64_t bytes = 0;
    *some = *w->test.texts;
    some->documents = mem_alloc(SHOWN, sizeof *some->documents);
    some->count = 0;
    for (int i = 0; i < count && some->count < SHOWN; i++) {
        const document *d = &w->test.texts->documents[list[i].document];
        if (bytes + d->length > SHOWN_BYTES) continue;
        bytes += d->length;
        some->documents[some->count++] = *d;
    }
    some->size = bytes;
    if (some->count == 0) return true;
    const int chosen = show_choose_units(NULL, probe, w->loaded.checkpoint.options.model.hidden,
                                         units, SHOWN_UNITS);
    const bool coloured = probe->classes <= SHOW_MAX_CLASSES;
    const reading_options how = {.state = probe->origin.state,
                                 .units = chosen ? units : NULL,
                                 .count = chosen ? chosen : SHOWN_UNITS,
                                 .pools = probe->origin.pools,
                                 .models = coloured ? probe->models : 0,
                                 .weights = coloured ? probe->weights : NULL};
    return reading_run(w->loaded.m, some, &how, r, err);
}

static size_t *confusion_of(const work *w) {
    const size_t classes = (size_t)w->classes.count;
    size_t *confusion = mem_alloc(classes * classes, sizeof *confusion);
    for (size_t i = 0; i < w->test.labelled; i++) {
        confusion[(size_t)w->test_class[i] * classes + (size_t)w->tested[w->way].said[i]]++;
    }
    return confusion;
}

static bool write_page(work *w, error *err) {
    contender list[1 + WAYS];
    mistake *mistakes;
    corpus some;
    saved_probe probe;
    reading read = {0};
    char *path = mem_format("%s/%s", w->a->out, w->probe_name);
    char *page = mem_format("%s/index.html", w->a->out), *folder = utf8_shell_path(w->a->out);
    char *title = mem_format("Classes of %s", w->a->train);
    char *command = mem_format("smallworld predict %s --text FILE", folder);
    size_t *confusion = confusion_of(w);
    const int count = list_mistakes(w, &mistakes);
    list_contenders(w, list);
    bool done = saved_open(&probe, path, err);
    if (done) {
        done = read_mistakes(w, mistakes, count, &some, &probe, &read, err);
        const bool coloured = probe.classes <= SHOW_MAX_CLASSES;
        const show_part show = {&some, &read, coloured ? &probe : NULL, NULL, NULL};
        const classified c = {.title = title,
                              .contenders = list,
                              .contender_count = 1 + WAYS,
                              .p_value = w->p_value,
                              .train = w->train.labelled,
                              .test = w->test.labelled,
                              .unlabelled = w->unlabelled,
                              .classes = w->classes.count,
                              .names = w->classes.name,
                              .confusion = confusion,
                              .texts = w->test.texts,
                              .mistakes = mistakes,
                              .mistake_count = count,
                              .command = command,
                              .show = some.count > 0 ? &show : NULL};
        done = done && classified_write_page(&c, page, err);
        free(some.documents);
        reading_free(&read);
        saved_close(&probe);
    }
    free(mistakes);
    free(confusion);
    free(command);
    free(title);
    free(folder);
    free(page);
    free(path);
    return done;
}

static bool write_results(const work *w, error *err) {
    char *path = mem_format("%s/results.json", w->a->out);
    file_writer writer;
    bool done = file_begin(&writer, path, err);
    if (done) {
        write_json(w, writer.stream);
        done = file_commit(&writer, err);
    }
    free(path);
    return done;
}

/* ------------------------------------------------------------------------------------- command */

static bool open_given(work *w, error *err) {
    if (!w->a->given) return true;
    w->checkpoint = mem_string(w->a->given);
    w->is_open = cli_open(&w->loaded, w->checkpoint, &w->a->model, err);
    return w->is_open;
}

static bool open_trained(work *w, error *err) {
    if (w->is_open) return true;
    if (!train_model(w, err)) return false;
    w->is_open = cli_open(&w->loaded, w->checkpoint, &w->a->model, err);
    return w->is_open;
}

/* Makes and locks the folder, and marks it. Refuses one with files of others that this would
 * replace. */
static bool take_folder(work *w, error *err) {
    static const char *const replaced[] = {"index.html", "results.json", "features"};
    const char *folder = w->a->out;
    char *mark = mem_format("%s/.classify", folder);
    char *classifier = mem_format("%s/" CLASSIFIER_FILE, folder);
    bool taken = file_make_folder(folder, err);
    if (taken) w->lock = file_lock_folder(folder, err);
    taken = taken && w->lock >= 0;
    const bool ours = file_exists(mark) || file_exists(classifier);
    for (int i = 0; i < 3 && taken && !ours; i++) {
        char *path = mem_format("%s/%s", folder, replaced[i]);
        taken = !file_exists(path) ||
                error_set(
                    err, "%s: not made by classify, which would replace it; expected another --out",
                    path);
        free(path);
    }
    taken = taken && file_write_whole(folder, ".classify", "", 0, err);
    free(classifier);
    free(mark);
    return taken;
}

static bool run(work *w, error *err) {
    if (!open_given(w, err) || !read_documents(w, err) || !take_folder(w, err) ||
        !fit_ngrams(w, err) || !open_trained(w, err) || !fit_features(w, err) ||
        !keep_parts(w, err)) {
        return false;
    }
    choose(w);
    return save(w, err) && write_results(w, err) && write_page(w, err);
}

static void free_part(part *p) {
    corpus_free(p->texts);
    free(p->class);
}

static void free_work(work *w) {
    for (int way = 0; way < WAYS; way++) {
        opinions_end(&w->valid[way]);
        opinions_end(&w->tested[way]);
    }
    probe_result_free(&w->probed);
    ngrams_free(&w->ngrams);
    free(w->valid_margin);
    free(w->test_margin);
    free(w->test_class);
    free(w->valid_class);
    for (int k = 0; k < w->classes.count; k++) free(w->classes.name[k]);
    free_part(&w->test);
    free_part(&w->train);
    if (w->is_open) cli_unload(&w->loaded);
    free(w->checkpoint);
    free(w->model_name);
    free(w->probe_name);
    free(w->held);
    if (w->lock >= 0) close(w->lock);
    free(w);
}

int cmd_classify(int argc, char **argv) {
    static const struct argp_child children[] = {
        {&cli_columns_argp, 0, NULL, 0}, {&cli_model_argp, 0, "Device:", 0}, {0}};
    static const struct argp argp = {
        option_table,
        parse,
        "--train FILE --out DIR",
        "Make a classifier of documents, and measure it beside what it should beat: the commonest "
        "class, and logistic regression on n-grams of words and bytes. Of the n-grams, a model's "
        "features and both together, the one that errs least on held-out training documents is "
        "saved. DIR then is all that predict needs, and DIR/index.html shows errors and mistakes."
        "\vExample:\n  smallworld classify --train reviews.csv --out reviews\n  echo 'A dull "
        "film.' "
        "| smallworld predict reviews --text -",
        children,
        NULL,
        NULL};
    arguments a = {.minutes = 10};
    cli_parse(&argp, argc, argv, &a);
    error err;
    work *w = mem_alloc(1, sizeof *w);
    w->a = &a;
    w->lock = -1;
    const bool done = run(w, &err);
    log_end();
    if (done && a.json) write_json(w, stdout);
    if (done && !a.json) {
        print_table(w);
        printf("%s/index.html\n", a.out);
    }
    free_work(w);
    return done ? STATUS_OK : cli_fail(&err, "classify");
}
