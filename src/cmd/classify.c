/* smallworld classify: from labelled documents to a classifier, beside an n-gram baseline. */
#include "classify/classifier.h"
#include "classify/outcome.h"
#include "classify/ways.h"
#include "cmd/cli.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/utf8.h"
#include "data/classes.h"
#include "page/classified.h"
#include "probe/probe.h"
#include "probe/split.h"
#include "train/defaults.h"
#include "train/trainer.h"

#include <math.h>
#include <pthread.h>
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
    const char *train, *text, *test, *given, *out; /* given: a run or checkpoint */
    double minutes;
    bool balanced, json;
} arguments;

enum {
    KEY_TRAIN = 1,
    KEY_TEXT,
    KEY_TEST,
    KEY_MODEL,
    KEY_MINUTES,
    KEY_CLASS_WEIGHT,
    KEY_OUT,
    KEY_JSON
};

static const struct argp_option option_table[] = {
    {"train", KEY_TRAIN, "FILE", 0,
     "Labelled documents: .csv or .jsonl with a column of texts and one of labels, .tsv with a "
     "line LABEL<TAB>TEXT each, fastText's lines as .ft.txt, or a folder with a folder of files "
     "for each class",
     0},
    {"text", KEY_TEXT, "FILE", 0,
     "More text of the same kind, whose labels, if any, are not read; the model learns from it", 0},
    {"test", KEY_TEST, "FILE", 0,
     "Labelled documents to measure errors on; default: a fifth of the others, chosen by a hash of "
     "the text",
     0},
    {"model", KEY_MODEL, "RUN|CHECKPOINT", 0,
     "Model whose features to use; default: one is trained on the documents' text first", 0},
    {"minutes", KEY_MINUTES, "N", 0,
     "Minutes that all may take, about; what cannot be done in them is not tried; 0: n-grams "
     "alone; default 10",
     0},
    {"class-weight", KEY_CLASS_WEIGHT, "NAME", 0,
     "balanced: documents weigh by their class so that all classes count alike, in fits and in "
     "choices; default none",
     0},
    {"out", KEY_OUT, "DIR", 0, "Folder for the classifier, its page and its table", 0},
    CLI_JSON(KEY_JSON),
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_TRAIN: a->train = text; return 0;
    case KEY_TEXT: a->text = text; return 0;
    case KEY_TEST: a->test = text; return 0;
    case KEY_MODEL: a->given = text; return 0;
    case KEY_MINUTES: a->minutes = cli_number(state, "--minutes", text, 0, 1e6); return 0;
    case KEY_CLASS_WEIGHT:
        a->balanced = cli_choice(state, "--class-weight", text, CLASS_WEIGHTS);
        return 0;
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
    int16_t *class; /* [texts->count] */
} part;

/* Finds the classes of labelled documents, in the order in which a probe has them. */
static bool find_classes(class_names *k, const corpus *c, const char *path, error *err) {
    const size_t found = classes_find(k, c, NULL);
    if (found == 0) {
        return error_set(
            err,
            "%s: found no label: expected a table (.csv, .jsonl, or .tsv with lines "
            "LABEL<TAB>TEXT), fastText's lines (.ft.txt), or a folder with a folder of "
            "files for each class",
            path);
    }
    if (found > MOST_CLASSES) {
        return error_set(err, "%s: more than %d different labels", path, MOST_CLASSES);
    }
    return found >= 2 ||
           error_set(err, "%s: expected documents of two classes or more, found one", path);
}

/* Finds the class of each document. */
static bool find_class(part *p, const class_names *k, const char *path, const char *train,
                       error *err) {
    char room[16];
    p->class = mem_alloc(p->texts->count, sizeof *p->class);
    const char *unknown = classes_number(k, p->texts, p->class, room);
    return !unknown ||
           error_set(err, "%s: label '%s' is not among those of %s", path, unknown, train);
}

/* --------------------------------------------------------------------------------- classifying */

typedef struct work {
    const arguments *a;
    double began;
    int stage, stages;
    int lock;                      /* of the folder; -1: none */
    char *checkpoint;              /* the path of the model of the text */
    char *model_name, *probe_name; /* below the folder, see classifier.h */
    size_t unlabelled;
    cli_loaded loaded, tuned; /* the model of the text, and that which learnt the labels */
    bool is_open, is_tuned;
    corpus *text; /* all but the documents for testing, for the model of the text */
    part train, test, held;
    class_names classes;
    double *weight; /* [classes] or NULL, see class_weight */
    bool *is_held;  /* [documents of train] whether it is held out to choose by */
    ngrams ngrams;
    pthread_t beside; /* fits the n-grams beside the model, while `fitting` */
    bool fitting, fitted;
    error why_not_fitted;
    double rate; /* bytes of text that training reads in a second; 0: not known */
    ways ways;
} work;

/* Seconds that are left of the command's minutes. */
static double left(const work *w) {
    return w->a->minutes * 60 - (clock_seconds() - w->began);
}

static void begin_stage(work *w, const char *what) {
    char time[32];
    log_end();
    log_line("%d of %d: %s; %s left", ++w->stage, w->stages, what,
             log_duration(time, fmax(0, left(w))));
}

static void skip_stage(work *w, const char *what, double needed) {
    char time[32], there[32];
    log_line("%d of %d: %s: not tried, as it takes about %s and %s are left", ++w->stage, w->stages,
             what, log_duration(time, needed), log_duration(there, fmax(0, left(w))));
}

/* Says how often a way errs on the test documents, once it is known. */
static void say_error(const work *w, int k) {
    const way *of = &w->ways.of[k];
    log_line("%s: %.2f %% of %zu test documents are wrong, after %.0f s", way_names[k],
             predictions_error(&of->tested), of->tested.rows, clock_seconds() - w->began);
}

/* Names what no error will speak of: documents without a label, and classes without a test. */
static void say_what_lacks(work *w) {
    bool tested[DATASET_MAX_CLASSES] = {false};
    if (w->unlabelled > 0) log_line("%zu documents have no label", w->unlabelled);
    for (size_t i = 0; i < w->test.texts->count; i++) tested[w->test.class[i]] = true;
    for (int k = 0; k < w->classes.count; k++) {
        if (tested[k]) continue;
        log_warning("class '%s' is not among the test documents, so no error is measured of it",
                    w->classes.name[k]);
    }
}

/* The labelled documents, of which there must be some; NULL if there are none. */
static corpus *labelled_of(const corpus *c, const char *path, size_t *dropped, error *err) {
    bool *labelled = mem_alloc(c->count, sizeof *labelled);
    for (size_t i = 0; i < c->count; i++) {
        labelled[i] = document_has_label(&c->documents[i]);
        *dropped += !labelled[i];
    }
    corpus *part = corpus_part(c, labelled, true);
    free(labelled);
    if (part->count > 0) return part;
    corpus_free(part);
    error_set(err,
              "%s: expected labelled documents, of which some can be for training and others for "
              "testing",
              path);
    return NULL;
}

/* Reads the documents and the text beside them and, without --test, holds a fifth of the documents
 * out for testing. */
static bool read_documents(work *w, error *err) {
    const arguments *a = w->a;
    corpus_options how = {.text_column = a->columns.text, .label_column = a->columns.label};
    if (w->is_open) how = cli_reading(&a->columns, &w->loaded.checkpoint.options);
    how.class_folders = true;
    char *files[2] = {(char *)(uintptr_t)a->train, (char *)(uintptr_t)a->text};
    char *test = (char *)(uintptr_t)a->test;
    how.labelled_files = 1;
    w->text = corpus_read(files, a->text ? 2 : 1, &how, err);
    if (!w->text || !find_classes(&w->classes, w->text, a->train, err)) return false;
    corpus *tests = test ? corpus_read(&test, 1, &how, err)
                         : corpus_split(w->text, 0, HELD_OUT_PERCENT / 100.0);
    if (!tests) return false;
    const size_t shared = corpus_drop(w->text, tests);
    if (shared > 0 && test) {
        log_line("%s: %zu documents that stand in %s too are left out", a->train, shared, test);
    }
    w->train.texts = labelled_of(w->text, a->train, &w->unlabelled, err);
    if (w->train.texts) {
        w->test.texts = labelled_of(tests, test ? test : a->train, &w->unlabelled, err);
    }
    corpus_free(tests);
    if (!w->train.texts || !w->test.texts ||
        !find_class(&w->train, &w->classes, a->train, a->train, err) ||
        !find_class(&w->test, &w->classes, test ? test : a->train, a->train, err)) {
        return false;
    }
    if (a->balanced) {
        w->weight = mem_alloc((size_t)w->classes.count, sizeof *w->weight);
        classes_balance(w->train.class, w->train.texts->count, w->classes.count, w->weight);
    }
    say_what_lacks(w);
    return true;
}

/* Holds a fifth of the training documents out, to choose by. */
static bool hold_out(work *w, error *err) {
    const corpus *c = w->train.texts;
    uint64_t *group = mem_alloc(c->count, sizeof *group);
    for (size_t i = 0; i < c->count; i++) group[i] = c->documents[i].hash;
    w->is_held = mem_alloc(c->count, sizeof *w->is_held);
    const int lacking =
        split_by_group(w->train.class, group, c->count, w->classes.count, 0, w->is_held);
    free(group);
    if (lacking >= 0) {
        return error_set(err,
                         "%s: expected at least two different documents of each class beside those "
                         "for testing; class '%s' has fewer",
                         w->a->train, w->classes.name[lacking]);
    }
    w->held.texts = corpus_part(c, w->is_held, true);
    return find_class(&w->held, &w->classes, w->a->train, w->a->train, err);
}

/* ------------------------------------------------------------------------------------ n-grams */

/* The n-grams' margins of the test documents. */
static double *apply_ngrams(const ngrams *g, const corpus *c) {
    double *margin = mem_alloc(c->count * (size_t)g->functions, sizeof *margin), *to = margin;
    ngram_reader *r = ngram_reader_create(g);
    for (size_t i = 0; i < c->count; i++, to += g->functions) {
        size_t length;
        const uint8_t *text = corpus_text(c, i, &length);
        ngram_reader_apply(r, text, length, to);
    }
    ngram_reader_free(r);
    return margin;
}

/* Takes what margins, with their scale, say of the documents held out and for testing. */
static void take_margins(work *w, int k, const double *valid, const double *test, double scale) {
    way *to = &w->ways.of[k];
    const bool multinomial = k != BY_NGRAMS;
    predictions_take(&to->valid, valid, w->held.texts->count, w->classes.count, multinomial, scale,
                     w->held.class);
    predictions_take(&to->tested, test, w->test.texts->count, w->classes.count, multinomial, scale,
                     w->test.class);
    to->tried = true;
}

static bool fit_ngrams(work *w, error *err) {
    double *valid, *test, began = clock_seconds();
    const double seconds = w->a->minutes > 0 ? left(w) : INFINITY;
    if (!ngrams_fit(&w->ngrams, w->train.texts, w->train.class, w->classes.count, w->weight,
                    w->is_held, seconds, &valid, err)) {
        return false;
    }
    test = apply_ngrams(&w->ngrams, w->test.texts);
    take_margins(w, BY_NGRAMS, valid, test, w->ngrams.scale);
    free(valid);
    free(test);
    w->ways.of[BY_NGRAMS].seconds = clock_seconds() - began;
    say_error(w, BY_NGRAMS);
    return true;
}

static void *fit_beside(void *argument) {
    work *w = argument;
    w->fitted = fit_ngrams(w, &w->why_not_fitted);
    return NULL;
}

/* Fits the n-grams, or begins to: where a GPU trains the model, the CPU has time for them. */
static bool begin_ngrams(work *w, error *err) {
    const char *device = w->a->model.device;
    begin_stage(w, "n-grams");
    if ((device && strcmp(device, "cpu") == 0) || !backend_cuda_expected()) {
        return fit_ngrams(w, err);
    }
    w->fitting = pthread_create(&w->beside, NULL, fit_beside, w) == 0;
    return w->fitting || fit_ngrams(w, err);
}

static bool finish_ngrams(work *w, error *err) {
    if (!w->fitting) return true;
    pthread_join(w->beside, NULL);
    w->fitting = false;
    if (!w->fitted) *err = w->why_not_fitted;
    return w->fitted;
}

/* --------------------------------------------------------------------------- training of models */

/* Shares of the time that is left when they begin. */
static const double text_share = 0.5, tuning_share = 0.6;

enum { TUNING_EPOCHS = 3, TUNING_VALIDATIONS = 6 };

/* Where a run begins: its folder, and the minutes that it was given when it first began, since a
 * run that goes on is to end where it was to. */
typedef struct place {
    char *folder;
    double minutes;
    train_start start;
} place;

static place begin_place(char *folder, double seconds) {
    /* what a run that was killed before its first checkpoint left is no run to go on with */
    place p = {folder, fmax(seconds, 0.3) / 60, TRAIN_OVERWRITE};
    char *state = mem_format("%s/last.state", folder),
         *config = mem_format("%s/config.yaml", folder);
    options before;
    error ignored;
    options_begin(&before);
    if (file_exists(state)) p.start = TRAIN_RESUME;
    if (p.start == TRAIN_RESUME && options_load(&before, config, NULL, 0, &ignored) &&
        before.train.minutes > 0) {
        p.minutes = before.train.minutes;
    }
    options_free(&before);
    free(config);
    free(state);
    return p;
}

static bool set_number(options *o, const char *key, double value, error *err) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    return config_set(&o->config, key, text, "classify", err);
}

/* Trains, or goes on; then frees options and place. */
static bool train_at(work *w, options *o, place *p, bool ready, error *err) {
    train_result trained = {0};
    bool done = ready && train_run(o, p->folder, p->start, &trained, err);
    log_end();
    if (done && trained.signal) {
        done = error_set(err, "stopped; the same command goes on");
    } else if (!done && ready && p->start == TRAIN_RESUME) {
        const error why = *err;
        error_set(err, "%s; to train anew, remove %s or name another --out", why.text, p->folder);
    }
    if (done && trained.bytes_per_second > 0) w->rate = trained.bytes_per_second;
    corpus_free(o->data.given_train);
    corpus_free(o->data.given_valid);
    options_free(o);
    free(p->folder);
    return done;
}

/* Trains a model on the text of all documents but those for testing, or goes on with that. */
static bool train_text(work *w, error *err) {
    const arguments *a = w->a;
    char *files[] = {(char *)(uintptr_t)a->train, (char *)(uintptr_t)a->text};
    if (w->is_open) return true;
    begin_stage(w, "a model of the text");
    place p = begin_place(mem_format("%s/run", a->out), text_share * left(w));
    w->checkpoint = mem_format("%s/last.safetensors", p.folder);
    options o;
    options_begin(&o);
    const bool ready = cli_apply(&a->model, &o, err) &&
                       set_number(&o, "train.minutes", p.minutes, err) &&
                       config_assign(&o.config, "data.valid_fraction=0", err) &&
                       defaults_choose(&o, files, a->text ? 2 : 1, err) && options_check(&o, err);
    if (ready) o.data.given_train = corpus_part(w->text, NULL, false);
    if (!train_at(w, &o, &p, ready, err)) return false;
    w->is_open = cli_open(&w->loaded, w->checkpoint, &a->model, err);
    return w->is_open;
}

/* Whether the run that is there has read this text. */
static bool is_of_text(const place *p, const corpus *c) {
    char *path = mem_format("%s/last.state", p->folder);
    safetensors file;
    run_state state;
    error ignored;
    const bool opened = checkpoint_open_state(&file, &state, path, &ignored);
    if (opened) safetensors_close(&file);
    free(path);
    return opened && state.train_text == corpus_hash(c);
}

static bool make_tuned(work *w, double seconds, error *err) {
    const checkpoint *c = &w->loaded.checkpoint;
    const double bytes = (double)(w->train.texts->size - w->held.texts->size);
    place p = begin_place(mem_format("%s/tuned-%s", w->a->out, checkpoint_checksum(c)), seconds);
    char *path = mem_format("%s/best.safetensors", p.folder);
    options o;
    options_begin(&o);
    bool ready = options_from_metadata(&o, &c->file, err) && cli_apply(&w->a->model, &o, err);
    const double updates = bytes / (double)(o.train.batch * o.train.bptt);
    const double every = fmax(1, floor(updates * TUNING_EPOCHS / TUNING_VALIDATIONS));
    ready = ready && config_assign_string(&o.config, "train.init", c->file.path, err) &&
            config_assign_string(&o.config, "data.train", w->a->train, err) &&
            set_number(&o, "train.minutes", p.minutes, err) &&
            set_number(&o, "train.epochs", TUNING_EPOCHS, err) &&
            set_number(&o, "train.valid_every", every, err) &&
            set_number(&o, "train.warmup", 50, err) && set_number(&o, "train.lr", 0.002, err) &&
            set_number(&o, "train.average", 0.99, err) &&
            set_number(&o, "train.weight_decay", 0.1, err) &&
            set_number(&o, "train.label_weight", 1, err) &&
            config_assign_string(&o.config, "train.class_weight",
                                 w->a->balanced ? "balanced" : "none", err) &&
            options_check(&o, err);
    if (ready) {
        o.data.given_train = corpus_part(w->train.texts, w->is_held, false);
        o.data.given_valid = corpus_part(w->held.texts, NULL, false);
        if (p.start == TRAIN_RESUME && !is_of_text(&p, o.data.given_train)) {
            p.start = TRAIN_OVERWRITE;
        }
    }
    const bool done =
        train_at(w, &o, &p, ready, err) && cli_open(&w->tuned, path, &w->a->model, err);
    w->is_tuned = done;
    free(path);
    return done;
}

/* What a class head says of documents. */
typedef struct asking {
    const saved_probe *probe;
    predictions *to;
} asking;

static void take_answer(void *argument, size_t document, const float *row) {
    const asking *k = argument;
    const size_t at = document * (size_t)k->probe->classes;
    k->to->said[document] = saved_apply(k->probe, row, k->to->probability + at);
}

static bool ask(work *w, const saved_probe *probe, const part *p, predictions *to, error *err) {
    asking k = {probe, to};
    const feature_options how = {
        .state = probe->origin.state, .pools = probe->origin.pools, .progress = true};
    predictions_begin(to, p->texts->count, w->classes.count);
    const bool done = features_each(w->tuned.m, p->texts, &how, take_answer, &k, err);
    if (done) predictions_count(to, p->class);
    return done;
}

/* Goes on training the model of the text with the labels as a second target, and asks it. */
static bool tune(work *w, error *err) {
    static const char what[] = "tuning the model on the labels";
    const double began = clock_seconds(), seconds = tuning_share * left(w);
    const double once = w->rate > 0 ? (double)w->train.texts->size / w->rate : 0;
    if (once > seconds || seconds <= 0) {
        skip_stage(w, what, once / tuning_share);
        return true;
    }
    begin_stage(w, what);
    if (!make_tuned(w, seconds, err)) return false;
    saved_probe probe;
    way *to = &w->ways.of[BY_TUNED];
    if (!saved_open(&probe, w->tuned.checkpoint.file.path, err)) return false;
    to->tried = cli_make(&w->tuned, 0, FEATURES_STEPS, cli_any_text, err) &&
                ask(w, &probe, &w->held, &to->valid, err) &&
                ask(w, &probe, &w->test, &to->tested, err);
    saved_close(&probe);
    to->seconds = clock_seconds() - began;
    log_end();
    if (to->tried) say_error(w, BY_TUNED);
    return to->tried;
}

/* ----------------------------------------------------------------------------------- features */

static char *features_path(const work *w, const char *name) {
    return mem_format("%s/features/%s", w->a->out, name);
}

static bool extract(work *w, const part *p, const char *prefix, error *err) {
    const feature_options how = {.pools = FEATURE_POOLS,
                                 .format = FORMAT_NPY,
                                 .progress = true,
                                 .model = checkpoint_checksum(&w->loaded.checkpoint)};
    feature_result made;
    return features_extract(w->loaded.m, p->texts, &how, prefix, &made, err);
}

/* The seconds that features and their probe take, about: reading is three times as fast as
 * training, and a CPU fits a function of a feature of a document in half a microsecond. */
static double features_seconds(const work *w) {
    const double fit = strcmp(w->loaded.be ? w->loaded.be->name : "cpu", "cuda") ? 5e-7 : 5e-8;
    const double functions = w->classes.count == 2 ? 1 : w->classes.count;
    const double units = 2 * (double)w->loaded.checkpoint.options.model.hidden;
    const double bytes = (double)(w->train.texts->size + w->test.texts->size);
    return (w->rate > 0 ? bytes / (3 * w->rate) : 0) +
           fit * functions * units * (double)w->train.texts->count;
}

/* Features and a probe on them. */
static bool fit_features(work *w, error *err) {
    static const char what[] = "a probe on the model's features";
    const double began = clock_seconds();
    if (!cli_make(&w->loaded, 0, FEATURES_STEPS, cli_any_text, err)) return false;
    if (features_seconds(w) > left(w)) {
        skip_stage(w, what, features_seconds(w));
        return true;
    }
    begin_stage(w, what);
    char *train = features_path(w, "train"), *test = features_path(w, "test");
    char *out = features_path(w, "probe"), *folder = features_path(w, "");
    const probe_options how = {.train = train,
                               .test = test,
                               .held = w->is_held,
                               .out = out,
                               .balanced = w->a->balanced,
                               .progress = true};
    probe_result probed = {0};
    bool done = file_make_folder(folder, err) && extract(w, &w->train, train, err) &&
                extract(w, &w->test, test, err);
    backend *be = done ? cli_probe_backend(&w->a->model, err) : NULL;
    done = be && probe_run(be, &how, &probed, err);
    if (done) take_margins(w, BY_FEATURES, probed.valid_margin, probed.test_margin, probed.scale);
    if (be) be->destroy(be);
    probe_result_free(&probed);
    free(folder);
    free(out);
    free(test);
    free(train);
    w->ways.of[BY_FEATURES].seconds = clock_seconds() - began;
    log_end();
    if (done) say_error(w, BY_FEATURES);
    return done;
}

/* ------------------------------------------------------------------------------------- results */

/* Copies the model and the probe to where predict finds them; a tuned model has its own. */
static bool keep_parts(work *w, error *err) {
    if (w->ways.partner == BY_NGRAMS) {
        w->model_name = mem_string("");
        w->probe_name = mem_string("");
        return true;
    }
    if (w->ways.partner == BY_TUNED) {
        w->model_name = classifier_keep(w->a->out, "model", &w->tuned.checkpoint.file, err);
        if (w->model_name) w->probe_name = mem_string(w->model_name);
        return w->model_name != NULL;
    }
    char *path = features_path(w, "probe.probe.safetensors");
    saved_probe probe;
    if (saved_open(&probe, path, err)) {
        w->probe_name = classifier_keep(w->a->out, "probe", &probe.file, err);
        saved_close(&probe);
    }
    free(path);
    if (!w->probe_name) return false;
    w->model_name = classifier_keep(w->a->out, "model", &w->loaded.checkpoint.file, err);
    return w->model_name != NULL;
}

static outcome outcome_of(const work *w) {
    return (outcome){&w->ways,       &w->classes,   w->train.texts, w->test.texts,
                     w->train.class, w->test.class, w->a->out,      w->a->balanced};
}

static bool save(const work *w, error *err) {
    classifier c = {.ngrams = w->ngrams,
                    .classes = w->classes.count,
                    .share = ways_saved_share(&w->ways),
                    .checkpoint = w->model_name,
                    .probe = w->probe_name,
                    .html_entities = w->loaded.checkpoint.options.data.reading.html_entities};
    for (int k = 0; k < c.classes; k++) c.name[k] = w->classes.name[k];
    if (!classifier_write(&c, w->a->out, err)) return false;
    classifier_clean(&c, w->a->out);
    return true;
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
    const cli_loaded *of = w->ways.partner == BY_TUNED ? &w->tuned : &w->loaded;
    const int chosen =
        show_choose_units(NULL, probe, of->checkpoint.options.model.hidden, units, SHOWN_UNITS);
    const bool coloured = probe->classes <= SHOW_MAX_CLASSES;
    const reading_options how = {.state = probe->origin.state,
                                 .units = chosen ? units : NULL,
                                 .count = chosen ? chosen : SHOWN_UNITS,
                                 .pools = probe->origin.pools,
                                 .models = coloured ? probe->models : 0,
                                 .weights = coloured ? probe->weights : NULL};
    return reading_run(of->m, some, &how, r, err);
}

static bool write_page(work *w, error *err) {
    contender list[1 + WAYS];
    mistake *mistakes;
    corpus some = {.count = 0};
    saved_probe probe = {0};
    reading read = {0};
    char *path = mem_format("%s/%s", w->a->out, w->probe_name);
    char *page = mem_format("%s/index.html", w->a->out), *folder = utf8_shell_path(w->a->out);
    char *title = mem_format("Classes of %s", w->a->train);
    char *command = mem_format("smallworld predict %s --text FILE", folder);
    size_t *confusion = ways_confusion(&w->ways, w->classes.count, w->test.class);
    const bool by_model = w->ways.partner != BY_NGRAMS;
    const outcome o = outcome_of(w);
    outcome_list(&o, list);
    const int count = outcome_mistakes(&o, &mistakes, MISTAKES);
    bool done = !by_model || (saved_open(&probe, path, err) &&
                              read_mistakes(w, mistakes, count, &some, &probe, &read, err));
    if (done) {
        const bool coloured = probe.classes <= SHOW_MAX_CLASSES;
        const show_part show = {&some, &read, coloured ? &probe : NULL, NULL, NULL};
        const classified c = {.title = title,
                              .contenders = list,
                              .contender_count = 1 + WAYS,
                              .p_value = w->ways.p_value,
                              .train = w->train.texts->count,
                              .test = w->test.texts->count,
                              .unlabelled = w->unlabelled,
                              .classes = w->classes.count,
                              .names = w->classes.name,
                              .confusion = confusion,
                              .texts = w->test.texts,
                              .mistakes = mistakes,
                              .mistake_count = count,
                              .command = command,
                              .show = some.count > 0 ? &show : NULL};
        done = classified_write_page(&c, page, err);
    }
    free(some.documents);
    reading_free(&read);
    if (by_model) saved_close(&probe);
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
        const outcome o = outcome_of(w);
        outcome_json(&o, writer.stream);
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
    const bool alone = w->a->minutes == 0;
    w->stages = alone ? 1 : w->a->given ? 3 : 4;
    if (!open_given(w, err) || !read_documents(w, err) || !take_folder(w, err) ||
        !hold_out(w, err) || !begin_ngrams(w, err) ||
        !(alone || (train_text(w, err) && tune(w, err) && fit_features(w, err))) ||
        !finish_ngrams(w, err)) {
        return false;
    }
    ways_choose(&w->ways, w->classes.count, w->weight, w->held.class, w->test.class);
    return keep_parts(w, err) && save(w, err) && write_results(w, err) && write_page(w, err);
}

static void free_part(part *p) {
    corpus_free(p->texts);
    free(p->class);
}

static void free_work(work *w) {
    if (w->fitting) return; /* the program ends, and nobody waits for n-grams */
    ways_end(&w->ways);
    ngrams_free(&w->ngrams);
    classes_free(&w->classes);
    free_part(&w->test);
    free_part(&w->held);
    free_part(&w->train);
    corpus_free(w->text);
    if (w->is_open) cli_unload(&w->loaded);
    if (w->is_tuned) cli_unload(&w->tuned);
    free(w->checkpoint);
    free(w->model_name);
    free(w->probe_name);
    free(w->is_held);
    free(w->weight);
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
        "class, and logistic regression on n-grams of words and bytes. Of the n-grams, a model "
        "tuned on the labels, a probe on a model's features, and n-grams joined with the better of "
        "the two, the one that errs least on held-out training documents is saved. DIR then is all "
        "that predict needs, and DIR/index.html shows errors and mistakes."
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
    w->began = clock_seconds();
    w->lock = -1;
    const bool done = run(w, &err);
    log_end();
    const outcome found = outcome_of(w);
    if (done && a.json) outcome_json(&found, stdout);
    if (done && !a.json) {
        outcome_text(&found, stdout);
        printf("%s/index.html\n", a.out);
    }
    free_work(w);
    return done ? STATUS_OK : cli_fail(&err, "classify");
}
