#include "classify/job.h"

#include "classify/classifier.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/number.h"
#include "probe/probe.h"
#include "train/defaults.h"
#include "train/trainer.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------- stages */

/* Whether this process has what ranks do not share: the folder, the n-grams, the probe. */
static bool leads_job(const job *j) {
    return ranks_rank(j->how->device.ranks) == 0;
}

/* Rank 0's number, on all ranks, so that they decide alike. */
static double agreed(const job *j, double value) {
    ranks_broadcast(j->how->device.ranks, &value, sizeof value);
    return value;
}

/* Seconds that are left of the minutes. */
static double seconds_left(const job *j) {
    return j->how->steps > 0 ? INFINITY : j->minutes * 60 - (clock_seconds() - j->began);
}

/* Say which stage begins, or why it does not: the seconds that it needs. */
static void begin_stage(job *j, const char *what) {
    char time[32];
    log_end();
    if (j->minutes > 0 && isfinite(seconds_left(j))) {
        log_line("%d of %d: %s; %s left", ++j->stage, j->stages, what,
                 log_duration(time, fmax(0, seconds_left(j))));
    } else {
        log_line("%d of %d: %s", ++j->stage, j->stages, what);
    }
}

static void skip_stage(job *j, const char *what, double needed) {
    char time[32], there[32];
    log_line("%d of %d: %s: not tried, as it takes about %s and %s are left", ++j->stage, j->stages,
             what, log_duration(time, needed), log_duration(there, fmax(0, seconds_left(j))));
}

/* Says how often a way errs on the test documents. */
static void say_error(const job *j, int k) {
    const way *of = &j->ways.of[k];
    log_line("%s: %.2f %% of %zu test documents are wrong, after %.0f s", way_names[k],
             predictions_error(&of->tested), of->tested.rows, clock_seconds() - j->began);
}

/* Takes what margins, with their scale, say of the documents held out and for testing. */
static void take_margins(job *j, int k, const double *valid, const double *test, double scale) {
    way *to = &j->ways.of[k];
    const bool multinomial = k != BY_NGRAMS;
    predictions_take(&to->valid, valid, j->examples.held.texts->count, j->examples.classes.count,
                     multinomial, scale, j->examples.held.class);
    predictions_take(&to->tested, test, j->examples.test.texts->count, j->examples.classes.count,
                     multinomial, scale, j->examples.test.class);
    to->tried = true;
}

/* Whether models compute on the CPU, by choice or for want of a GPU. */
static bool has_cpu_alone(const job *j) {
    const char *device = j->how->device.device;
    return (device && strcmp(device, "cpu") == 0) || !backend_cuda_expected();
}

/* ------------------------------------------------------------------------------------ n-grams */

/* --threads is of the n-grams too. A bad number is refused where a backend is made. */
static void use_threads(const job *j) {
    int64_t threads = 0;
    const char *given = j->how->device.threads;
    if (given && number_integer(given, &threads) && threads > 0 && threads <= INT16_MAX) {
        omp_set_num_threads((int)threads);
    }
}

static bool fit_ngrams(job *j, error *err) {
    use_threads(j);
    double *valid, *test, began = clock_seconds();
    const double seconds = j->minutes > 0 ? seconds_left(j) : INFINITY;
    if (!ngrams_fit(&j->ngrams, j->examples.train.texts, j->examples.train.class,
                    j->examples.classes.count, j->examples.weight, j->examples.is_held,
                    j->examples.test.texts, seconds, &valid, &test, err)) {
        return false;
    }
    take_margins(j, BY_NGRAMS, valid, test, j->ngrams.scale);
    free(valid);
    free(test);
    j->ways.of[BY_NGRAMS].seconds = clock_seconds() - began;
    say_error(j, BY_NGRAMS);
    return true;
}

static void *fit_beside(void *argument) {
    job *j = argument;
    j->fitted = fit_ngrams(j, &j->why_not_fitted);
    return NULL;
}

/* Fits the n-grams, or begins to: where a GPU trains the model, the CPU has time for them. */
static bool begin_ngrams(job *j, error *err) {
    begin_stage(j, "n-grams");
    if (has_cpu_alone(j)) return fit_ngrams(j, err);
    j->fitting = pthread_create(&j->beside, NULL, fit_beside, j) == 0;
    return j->fitting || fit_ngrams(j, err);
}

static bool finish_ngrams(job *j, error *err) {
    if (!j->fitting) return true;
    pthread_join(j->beside, NULL);
    j->fitting = false;
    if (!j->fitted) *err = j->why_not_fitted;
    return j->fitted;
}

/* ------------------------------------------------------------------------- ways with a model
 *
 * By the time that is left. Each may be skipped, which is no failure. */

/* Of the time that is left, for a model of the text if more is not needed for what follows; and for
 * tuning where no rate of training is known. */
static const double text_share = 0.5, tuning_share = 0.6;

/* A trial of training on a CPU, whose rate makes the plan. */
static const double trial_seconds = 3;

enum {
    MOST_TUNING_EPOCHS = 3,
    TUNING_VALIDATIONS = 6,
    LEAST_HIDDEN = 128,
    USUAL_HIDDEN = 256 /* units of the models that are chosen on a CPU, about */
};

/* Where a run begins: its folder, and the minutes that it was given when it first began, since a
 * run that goes on is to end where it was to. */
typedef struct place {
    char *folder;
    double minutes;
    train_start start;
} place;

/* Whether the run of this state has read this text. */
static bool is_of_text(const char *path, const corpus *c) {
    safetensors file;
    run_state state;
    error ignored;
    if (!file_exists(path) || !checkpoint_open_state(&file, &state, path, &ignored)) return false;
    safetensors_close(&file);
    return state.train_text == corpus_hash(c);
}

/* A place for a run, or that of one to go on with. */
static place begin_place(const job *j, char *folder, double seconds, bool goes_on) {
    place p = {folder, fmax(seconds, 0.3) / 60, goes_on ? TRAIN_RESUME : TRAIN_OVERWRITE};
    char *config = mem_format("%s/config.yaml", folder);
    options before;
    error ignored;
    options_begin(&before);
    if (p.start == TRAIN_RESUME && options_load(&before, config, NULL, 0, &ignored) &&
        before.train.minutes > 0) {
        p.minutes = before.train.minutes;
    }
    options_free(&before);
    free(config);
    p.start = (train_start)agreed(j, p.start); /* others may look when it has begun */
    p.minutes = agreed(j, p.minutes);
    return p;
}

static bool set_number(options *o, const char *key, double value, error *err) {
    char text[32];
    snprintf(text, sizeof text, "%.17g", value);
    return config_set(&o->config, key, text, "classify", err);
}

/* Trains, or goes on; then frees options and place. */
static bool train_at(job *j, options *o, place *p, bool ready, error *err) {
    train_result trained = {0};
    bool done = ready && train_run(o, p->folder, p->start, &trained, err);
    if (done) ranks_wait(j->how->device.ranks); /* until rank 0 has written the model */
    log_end();
    if (done && trained.signal) {
        done = error_set(err, "stopped; the same command goes on");
    } else if (!done && ready && p->start == TRAIN_RESUME) {
        const error why = *err;
        error_set(err, "%s; to train anew, remove %s or name another --out", why.text, p->folder);
    }
    if (done && trained.bytes_per_second > 0) j->rate = trained.bytes_per_second; /* on all ranks */
    j->latest_steps = trained.steps;
    corpus_free(o->data.given_train);
    corpus_free(o->data.given_valid);
    options_free(o);
    free(p->folder);
    return done;
}

/* Seconds of features and of a probe on them, about, by a rate of training: reading is three times
 * as fast, and a CPU fits a function of a feature of a document in half a microsecond. */
static double features_seconds(const job *j, double rate, int64_t hidden, bool cuda) {
    const examples *e = &j->examples;
    const double functions = e->classes.count == 2 ? 1 : e->classes.count;
    const double features = functions * 2 * (double)hidden * (double)e->train.texts->count;
    const double bytes = (double)(e->train.texts->size + e->test.texts->size);
    return (rate > 0 ? bytes / (3 * rate) : 0) + (cuda ? 5e-8 : 5e-7) * features;
}

/* Seconds that tuning takes by one pass over the labels, and asking the tuned model. */
static double tuning_seconds(const job *j, double passes) {
    const examples *e = &j->examples;
    const double train = (double)(e->train.texts->size - e->held.texts->size);
    const double asked = (double)(e->held.texts->size + e->test.texts->size);
    return (passes * train + asked / 3) / j->rate;
}

/* Options of a model of the text, for some seconds or for some updates. */
static bool text_options(job *j, options *o, double seconds, int64_t steps, error *err) {
    const example_files *from = &j->how->files;
    char *files[] = {(char *)(uintptr_t)from->train, (char *)(uintptr_t)from->text};
    options_begin(o);
    const bool ready = overrides_apply(&j->how->device, o, err) &&
                       set_number(o, steps > 0 ? "train.steps" : "train.minutes",
                                  steps > 0 ? (double)steps : fmax(seconds, 0.3) / 60, err) &&
                       config_assign(&o->config, "data.valid_fraction=0", err) &&
                       defaults_choose(o, files, from->text ? 2 : 1, j->examples.text->size, err) &&
                       options_check(o, err);
    if (ready) o->data.given_train = corpus_part(j->examples.text, NULL, false);
    return ready;
}

/* Finds the rate of training by a trial, which leaves nothing. */
static bool try_rate(job *j, error *err) {
    static const char *const files[] = {"config.yaml", "metrics.jsonl", "last.safetensors",
                                        "last.state", "best.safetensors"};
    options o;
    place p = {mem_format("%s/trial", j->how->out), 0, TRAIN_OVERWRITE};
    char *folder = mem_string(p.folder);
    log_line("a trial of %g seconds, for the plan", trial_seconds);
    const bool ready = text_options(j, &o, trial_seconds, 0, err);
    const bool done = train_at(j, &o, &p, ready, err);
    for (size_t i = 0; i < sizeof files / sizeof *files && leads_job(j); i++) {
        char *path = mem_format("%s/%s", folder, files[i]);
        unlink(path);
        free(path);
    }
    if (leads_job(j)) rmdir(folder);
    free(folder);
    return done;
}

/* Plans the seconds of the model of the text: what is left when tuning and the probe have theirs,
 * at least its share; or what one pass of tuning, or the probe, leaves of it. 0: there is no time
 * for anything that could use a model. Returns the seconds that lack. */
static double make_plan(job *j) {
    const double left = agreed(j, seconds_left(j)), least_text = 0.1 * left;
    const double probe = 1 + features_seconds(j, j->rate, USUAL_HIDDEN, false);
    const double once = 1.2 * tuning_seconds(j, 1),
                 all = 1.2 * tuning_seconds(j, MOST_TUNING_EPOCHS);
    char text[32], tune[32], fit[32];
    double use = all + probe;
    if (use > (1 - text_share) * left) use = fmax((1 - text_share) * left, fmin(once, probe));
    j->text_seconds = left - use;
    if (j->text_seconds < least_text) {
        j->text_seconds = 0;
        return fmin(once, probe) + least_text - left;
    }
    j->probe_seconds = use - once >= probe || once > use ? probe : 0;
    log_line("plan: a model of the text %s, tuning %s, a probe %s",
             log_duration(text, j->text_seconds),
             log_duration(tune, fmax(0, use - j->probe_seconds)),
             j->probe_seconds > 0 ? log_duration(fit, j->probe_seconds) : "none");
    return 0;
}

/* Gives the model of the text its seconds, on a CPU by a trial unless it only goes on. `lacks`: the
 * seconds that anything that could use it would need besides, or at most 0. */
static bool plan_model(job *j, double *lacks, error *err) {
    j->text_seconds = text_share * seconds_left(j);
    *lacks = agreed(j, 0.01 - seconds_left(j));
    if (*lacks > 0 || !has_cpu_alone(j) || j->how->steps > 0 || j->goes_on) return true;
    /* What no processor could do in time needs no trial. */
    j->rate = 1e5 * omp_get_num_procs();
    const double least =
        fmin(tuning_seconds(j, 1), features_seconds(j, j->rate, LEAST_HIDDEN, false));
    *lacks = agreed(j, least + trial_seconds - seconds_left(j));
    if (*lacks > 0) return true;
    if (!try_rate(j, err)) return false;
    *lacks = make_plan(j);
    return true;
}

/* Finds whether an earlier job left a model of this text to go on with; one of other text is
 * replaced with --overwrite, or refused. */
static bool find_run(job *j, error *err) {
    char *state = mem_format("%s/run/last.state", j->how->out);
    const bool found = file_exists(state);
    j->goes_on = agreed(j, is_of_text(state, j->examples.text)) > 0;
    free(state);
    return !found || j->goes_on || j->how->overwrite ||
           error_set(err, "%s/run: a model of other text; --overwrite trains anew", j->how->out);
}

/* Trains a model on the text of all documents but those for testing, or goes on with that. Nothing
 * to do with a given model; not tried where no time would be left to use it. */
static bool train_text(job *j, error *err) {
    static const char what[] = "a model of the text";
    if (j->is_open) return true;
    double lacks;
    char *folder = mem_format("%s/run", j->how->out);
    const bool planned = plan_model(j, &lacks, err);
    if (planned && lacks > 0) skip_stage(j, what, fmax(0, seconds_left(j)) + lacks);
    if (!planned || lacks > 0) {
        free(folder);
        return planned;
    }
    begin_stage(j, what);
    place p = begin_place(j, folder, j->text_seconds, j->goes_on);
    j->checkpoint = mem_format("%s/last.safetensors", p.folder);
    options o;
    const bool ready = text_options(j, &o, 60 * p.minutes, j->how->steps, err);
    if (!train_at(j, &o, &p, ready, err)) return false;
    j->text_steps = j->latest_steps;
    j->is_open = loaded_open(&j->loaded, j->checkpoint, &j->how->device, err);
    return j->is_open;
}

/* Passes over the labels. In a third a model of 20 M parameters learns IMDB's 20,000 by heart and
 * errs more on others, while one of 0.4 M still gains (docs/results.md), and few documents make few
 * updates. */
static int tuning_epochs(const job *j) {
    const examples *e = &j->examples;
    const bool many = e->train.texts->count - e->held.texts->count >= 10000;
    return many && j->loaded.m->parameters.total >= 10e6 ? 2 : MOST_TUNING_EPOCHS;
}

static bool make_tuned(job *j, double seconds, error *err) {
    const checkpoint *c = &j->loaded.checkpoint;
    const double bytes = (double)(j->examples.train.texts->size - j->examples.held.texts->size);
    corpus *learned = corpus_part(j->examples.train.texts, j->examples.is_held, false);
    char *folder = mem_format("%s/tuned-%s", j->how->out, checkpoint_checksum(c));
    char *state = mem_format("%s/last.state", folder);
    place p = begin_place(j, folder, seconds, is_of_text(state, learned));
    free(state);
    char *path = mem_format("%s/best.safetensors", p.folder);
    options o;
    options_begin(&o);
    o.data.given_train = learned;
    o.data.given_valid = corpus_part(j->examples.held.texts, NULL, false);
    bool ready =
        options_from_metadata(&o, &c->file, err) && overrides_apply(&j->how->device, &o, err);
    const double updates = bytes / (double)(o.train.batch * o.train.bptt);
    const int epochs = tuning_epochs(j);
    const double every = fmax(1, floor(updates * epochs / TUNING_VALIDATIONS));
    ready = ready && config_assign_string(&o.config, "train.init", c->file.path, err) &&
            config_assign_string(&o.config, "data.train", j->how->files.train, err) &&
            (j->how->steps > 0 || set_number(&o, "train.minutes", p.minutes, err)) &&
            set_number(&o, "train.epochs", epochs, err) &&
            set_number(&o, "train.valid_every", every, err) &&
            config_assign(&o.config, "train.optimizer=adam", err) &&
            set_number(&o, "train.warmup", 50, err) && set_number(&o, "train.lr", 0.002, err) &&
            set_number(&o, "train.average", 0.99, err) &&
            set_number(&o, "train.weight_decay", 0.1, err) &&
            set_number(&o, "train.label_weight", 1, err) &&
            config_assign_string(&o.config, "train.class_weight",
                                 j->how->balanced ? "balanced" : "none", err) &&
            options_check(&o, err);
    const bool done =
        train_at(j, &o, &p, ready, err) && loaded_open(&j->tuned, path, &j->how->device, err);
    j->is_tuned = done;
    j->tuning_steps = j->latest_steps;
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

static bool ask(job *j, const saved_probe *probe, const labelled *p, predictions *to, error *err) {
    asking k = {probe, to};
    const feature_options how = {.state = probe->origin.state,
                                 .pools = probe->origin.pools,
                                 .progress = true,
                                 .ranks = j->how->device.ranks};
    predictions_begin(to, p->texts->count, j->examples.classes.count);
    const bool done = features_each(j->tuned.m, p->texts, &how, take_answer, &k, err);
    if (done) {
        predictions_gather(to, j->examples.classes.count, how.ranks);
        predictions_count(to, p->class);
    }
    return done;
}

/* With an open model: goes on training it with the labels as a second target, and asks it. */
static bool tune_on_labels(job *j, error *err) {
    static const char what[] = "tuning the model on the labels";
    const double began = clock_seconds(), left = agreed(j, seconds_left(j));
    const double asking = j->rate > 0 ? tuning_seconds(j, 0) : 0;
    const double once = j->rate > 0 ? tuning_seconds(j, 1) : 0;
    const bool planned = j->text_seconds > 0 && j->rate > 0;
    const double room =
        planned ? left - j->probe_seconds : tuning_share * left; /* asking included */
    const double seconds = planned ? room - asking : room;
    if (once > room || seconds <= 0) {
        skip_stage(j, what, once);
        return true;
    }
    begin_stage(j, what);
    if (!make_tuned(j, seconds, err)) return false;
    saved_probe probe;
    way *to = &j->ways.of[BY_TUNED];
    if (!saved_open(&probe, j->tuned.checkpoint.file.path, err)) return false;
    to->tried = loaded_make(&j->tuned, 0, FEATURES_STEPS, any_text, err) &&
                ask(j, &probe, &j->examples.held, &to->valid, err) &&
                ask(j, &probe, &j->examples.test, &to->tested, err);
    saved_close(&probe);
    to->seconds = clock_seconds() - began;
    log_end();
    if (to->tried) say_error(j, BY_TUNED);
    return to->tried;
}

/* ----------------------------------------------------------------------------------- features */

/* The path of one of the features' files in the job's folder. The caller frees it. */
static char *features_path(const job *j, const char *name) {
    return mem_format("%s/features/%s", j->how->out, name);
}

static bool extract(job *j, const labelled *p, const char *prefix, error *err) {
    const feature_options how = {.pools = FEATURE_POOLS,
                                 .progress = true,
                                 .model = checkpoint_checksum(&j->loaded.checkpoint),
                                 .ranks = j->how->device.ranks};
    feature_result made;
    return features_extract(j->loaded.m, p->texts, &how, prefix, &made, err);
}

/* With an open model: fits a probe on its features. */
static bool fit_features(job *j, error *err) {
    static const char what[] = "a probe on the model's features";
    const double began = clock_seconds();
    if (!loaded_make(&j->loaded, 0, FEATURES_STEPS, any_text, err)) return false;
    const bool cuda = backend_on_gpu(j->loaded.be);
    const double needed =
        features_seconds(j, j->rate, j->loaded.checkpoint.options.model.hidden, cuda);
    if (agreed(j, needed - seconds_left(j)) > 0) {
        skip_stage(j, what, needed);
        return true;
    }
    begin_stage(j, what);
    char *train = features_path(j, "train"), *test = features_path(j, "test");
    char *out = features_path(j, "probe"), *folder = features_path(j, "");
    const probe_options how = {.train = train,
                               .test = test,
                               .held = j->examples.is_held,
                               .out = out,
                               .balanced = j->how->balanced,
                               .progress = true};
    probe_result probed = {0};
    bool done = file_make_folder(folder, err) && extract(j, &j->examples.train, train, err) &&
                extract(j, &j->examples.test, test, err);
    const bool probes = done && leads_job(j);
    backend *be = probes ? overrides_backend(&j->how->device, err) : NULL;
    if (probes) done = be && probe_run(be, &how, &probed, err);
    if (probes && done) {
        take_margins(j, BY_FEATURES, probed.valid_margin, probed.test_margin, probed.scale);
    }
    if (be) be->memory->destroy(be);
    probe_result_free(&probed);
    free(folder);
    free(out);
    free(test);
    free(train);
    j->ways.of[BY_FEATURES].seconds = clock_seconds() - began;
    log_end();
    if (probes && done) say_error(j, BY_FEATURES);
    return done;
}

/* -------------------------------------------------------------- what is left in the folder */

enum {
    MISTAKES = 20,
    SHOWN = 4, /* mistakes that are coloured */
    SHOWN_BYTES = 8000,
    SHOWN_UNITS = 8
};

/* Copies the model and the probe to where predict finds them; a tuned model has its own. */
static bool keep_parts(job *j, error *err) {
    if (j->ways.partner == BY_NGRAMS) {
        j->model_name = mem_string("");
        j->probe_name = mem_string("");
        return true;
    }
    if (j->ways.partner == BY_TUNED) {
        j->model_name = classifier_keep(j->how->out, "model", &j->tuned.checkpoint.file, err);
        if (j->model_name) j->probe_name = mem_string(j->model_name);
        return j->model_name != NULL;
    }
    char *path = features_path(j, "probe.probe.safetensors");
    saved_probe probe;
    if (saved_open(&probe, path, err)) {
        j->probe_name = classifier_keep(j->how->out, "probe", &probe.file, err);
        saved_close(&probe);
    }
    free(path);
    if (!j->probe_name) return false;
    j->model_name = classifier_keep(j->how->out, "model", &j->loaded.checkpoint.file, err);
    return j->model_name != NULL;
}

static bool save(const job *j, error *err) {
    classifier c = {.ngrams = j->ngrams,
                    .classes = j->examples.classes.count,
                    .share = ways_saved_share(&j->ways),
                    .checkpoint = j->model_name,
                    .probe = j->probe_name,
                    .text_column = j->how->text_column ? j->how->text_column : "",
                    .label_column = j->how->label_column ? j->how->label_column : "",
                    .html_entities = j->loaded.checkpoint.options.data.reading.html_entities};
    for (int k = 0; k < c.classes; k++) c.name[k] = j->examples.classes.name[k];
    if (!classifier_write(&c, j->how->out, err)) return false;
    classifier_clean(&c, j->how->out, j->earlier,
                     j->how->given ? j->loaded.checkpoint.file.path : NULL);
    return true;
}

/* Opens what was written, as predict will. */
static bool check(const job *j, error *err) {
    classifier c;
    if (!classifier_open(&c, j->how->out, err)) return false;
    const bool whole = classifier_check(&c, j->how->out, err);
    classifier_close(&c);
    return whole;
}

/* Reads the first mistakes as the probe sees them. */
static bool read_mistakes(job *j, const mistake *list, int count, corpus *some, saved_probe *probe,
                          reading *r, error *err) {
    size_t units[SHOWN_UNITS];
    uint64_t bytes = 0;
    *some = *j->examples.test.texts;
    some->documents = mem_alloc(SHOWN, sizeof *some->documents);
    some->count = 0;
    for (int i = 0; i < count && some->count < SHOWN; i++) {
        const document *d = &j->examples.test.texts->documents[list[i].document];
        if (bytes + d->length > SHOWN_BYTES) continue;
        bytes += d->length;
        some->documents[some->count++] = *d;
    }
    some->size = bytes;
    if (some->count == 0) return true;
    const loaded_model *of = j->ways.partner == BY_TUNED ? &j->tuned : &j->loaded;
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

static bool write_page(job *j, error *err) {
    contender list[1 + WAYS];
    mistake *mistakes;
    corpus some = {.count = 0};
    saved_probe probe = {0};
    reading read = {0};
    char *path = mem_format("%s/%s", j->how->out, j->probe_name);
    char *page = mem_format("%s/index.html", j->how->out), *folder = file_shell_word(j->how->out);
    char *title = mem_format("Classes of %s", j->how->files.train);
    char *command = mem_format("smallworld predict %s --text FILE", folder);
    size_t *confusion = ways_confusion(&j->ways, j->examples.classes.count, j->examples.test.class);
    const bool by_model = j->ways.partner != BY_NGRAMS;
    const outcome o = job_outcome(j);
    outcome_list(&o, list);
    const int count = outcome_mistakes(&o, &mistakes, MISTAKES);
    bool done = !by_model || (saved_open(&probe, path, err) &&
                              read_mistakes(j, mistakes, count, &some, &probe, &read, err));
    if (done) {
        const bool coloured = probe.classes <= SHOW_MAX_CLASSES;
        const show_part show = {&some, &read, coloured ? &probe : NULL, NULL, NULL};
        const classified c = {.title = title,
                              .contenders = list,
                              .contender_count = 1 + WAYS,
                              .p_value = j->ways.p_value,
                              .train = j->examples.train.texts->count,
                              .test = j->examples.test.texts->count,
                              .unlabelled = j->examples.unlabelled,
                              .classes = j->examples.classes.count,
                              .names = j->examples.classes.name,
                              .confusion = confusion,
                              .texts = j->examples.test.texts,
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

static bool write_results(const job *j, error *err) {
    char *path = mem_format("%s/results.json", j->how->out);
    file_writer writer;
    bool done = file_begin(&writer, path, err);
    if (done) {
        const outcome o = job_outcome(j);
        outcome_json(&o, writer.stream);
        done = file_commit(&writer, err);
    }
    free(path);
    return done;
}

/* After ways_choose. The classifier is whole before its results and its page are written. */
static bool write_result(job *j, error *err) {
    return keep_parts(j, err) && save(j, err) && check(j, err) && write_results(j, err) &&
           write_page(j, err);
}

/* ---------------------------------------------------------------------------------------- all */

static bool open_given(job *j, error *err) {
    if (!j->how->given) return true;
    j->checkpoint = mem_string(j->how->given);
    j->is_open = loaded_open(&j->loaded, j->checkpoint, &j->how->device, err);
    return j->is_open;
}

/* Notes what an earlier classifier is made of. A damaged one is made of nothing. */
static void note_earlier(job *j) {
    classifier c;
    error ignored;
    if (!classifier_open(&c, j->how->out, &ignored)) return;
    j->earlier[0] = mem_string(c.checkpoint);
    j->earlier[1] = mem_string(c.probe);
    classifier_close(&c);
}

/* Makes and locks the folder, and marks it. Refuses a classifier that is to stay, a run's folder,
 * and one with files of others that this would replace. */
static bool take_folder(job *j, error *err) {
    static const char *const replaced[] = {"index.html", "results.json", "features", "last.state",
                                           "last.safetensors"};
    const char *folder = j->how->out;
    char *mark = mem_format("%s/.classify", folder);
    char *classifier = mem_format("%s/" CLASSIFIER_FILE, folder);
    bool taken = file_make_folder(folder, err);
    if (taken) j->lock = file_lock_folder(folder, err);
    taken = taken && j->lock >= 0;
    if (taken && file_exists(classifier) && !j->how->overwrite) {
        taken = error_set(err, "%s: already holds a classifier; --overwrite replaces it", folder);
    }
    const bool ours = file_exists(mark) || file_exists(classifier);
    for (size_t i = 0; i < sizeof replaced / sizeof *replaced && taken && !ours; i++) {
        char *path = mem_format("%s/%s", folder, replaced[i]);
        taken = !file_exists(path) ||
                error_set(err, "%s: not made by classify; expected another --out, or an empty one",
                          path);
        free(path);
    }
    if (taken) note_earlier(j);
    taken = taken && file_write_whole(folder, ".classify", "", 0, err);
    free(classifier);
    free(mark);
    return taken;
}

static bool read_examples(job *j, error *err) {
    corpus_options how = {.text_column = j->how->text_column, .label_column = j->how->label_column};
    if (j->is_open) {
        how.html_entities = j->loaded.checkpoint.options.data.reading.html_entities;
    }
    return examples_read(&j->examples, &j->how->files, how, j->how->balanced, err);
}

/* Tries the ways that have a model, if there is one or time for one. */
static bool try_model_ways(job *j, error *err) {
    if (!train_text(j, err)) return false;
    return !j->is_open || (tune_on_labels(j, err) && fit_features(j, err));
}

outcome job_outcome(const job *j) {
    return (outcome){&j->ways,       &j->examples,     j->how->out,   j->how->balanced,
                     j->ngrams.cost, j->ngrams.passes, j->text_steps, j->tuning_steps};
}

/* The minutes where none are given. On a CPU no model has beaten n-grams in as few. */
static double usual_minutes(const job *j) {
    if (!has_cpu_alone(j) || j->how->given || j->how->steps > 0) return 10;
    log_line("n-grams alone, since this is a CPU; --minutes N also tries a model of the text");
    return 0;
}

bool job_run(job *j, const job_options *how, error *err) {
    *j = (job){.how = how, .began = clock_seconds(), .lock = -1};
    j->minutes = how->minutes >= 0 ? how->minutes : usual_minutes(j);
    const bool alone = j->minutes == 0 && how->steps == 0;
    j->stages = alone ? 1 : how->given ? 3 : 4;
    const bool leads = leads_job(j);
    if (!open_given(j, err) || !read_examples(j, err) || (leads && !take_folder(j, err)) ||
        !examples_hold_out(&j->examples, how->files.train, err) ||
        !(alone || j->is_open || find_run(j, err)) || (leads && !begin_ngrams(j, err)) ||
        !(alone || try_model_ways(j, err))) {
        return false;
    }
    if (!leads) return true;
    if (!finish_ngrams(j, err)) return false;
    const examples *e = &j->examples;
    ways_choose(&j->ways, e->classes.count, e->weight, e->held.class, e->test.class);
    return write_result(j, err);
}

void job_free(job *j) {
    if (j->fitting) return; /* the program ends, and nobody waits for n-grams */
    ways_end(&j->ways);
    ngrams_free(&j->ngrams);
    examples_free(&j->examples);
    if (j->is_open) loaded_free(&j->loaded);
    if (j->is_tuned) loaded_free(&j->tuned);
    free(j->checkpoint);
    free(j->model_name);
    free(j->probe_name);
    free(j->earlier[0]);
    free(j->earlier[1]);
    if (j->lock >= 0) close(j->lock);
}
