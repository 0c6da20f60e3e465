#include "classify/model_ways.h"

#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "probe/probe.h"
#include "train/defaults.h"
#include "train/trainer.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of the time that is left, for a model of the text if more is not needed for what follows; and for
 * tuning where no rate of training is known. */
static const double text_share = 0.5, tuning_share = 0.6;

/* A trial of training on a CPU, whose rate makes the plan. */
static const double trial_seconds = 3;

enum {
    TUNING_EPOCHS = 3,
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
    p.start = (train_start)job_agreed(j, p.start); /* others may look when it has begun */
    p.minutes = job_agreed(j, p.minutes);
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
    for (size_t i = 0; i < sizeof files / sizeof *files && job_leads(j); i++) {
        char *path = mem_format("%s/%s", folder, files[i]);
        unlink(path);
        free(path);
    }
    if (job_leads(j)) rmdir(folder);
    free(folder);
    return done;
}

/* Plans the seconds of the model of the text: what is left when tuning and the probe have theirs,
 * at least its share; or what one pass of tuning, or the probe, leaves of it. 0: there is no time
 * for anything that could use a model. Returns the seconds that lack. */
static double make_plan(job *j) {
    const double left = job_agreed(j, job_left(j)), least_text = 0.1 * left;
    const double probe = 1 + features_seconds(j, j->rate, USUAL_HIDDEN, false);
    const double once = 1.2 * tuning_seconds(j, 1), all = 1.2 * tuning_seconds(j, TUNING_EPOCHS);
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
    j->text_seconds = text_share * job_left(j);
    *lacks = job_agreed(j, 0.01 - job_left(j));
    if (*lacks > 0 || !job_has_cpu_alone(j) || j->how->steps > 0 || j->goes_on) return true;
    /* What no processor could do in time needs no trial. */
    j->rate = 1e5 * omp_get_num_procs();
    const double least =
        fmin(tuning_seconds(j, 1), features_seconds(j, j->rate, LEAST_HIDDEN, false));
    *lacks = job_agreed(j, least + trial_seconds - job_left(j));
    if (*lacks > 0) return true;
    if (!try_rate(j, err)) return false;
    *lacks = make_plan(j);
    return true;
}

bool job_find_run(job *j, error *err) {
    char *state = mem_format("%s/run/last.state", j->how->out);
    const bool found = file_exists(state);
    j->goes_on = job_agreed(j, is_of_text(state, j->examples.text)) > 0;
    free(state);
    return !found || j->goes_on || j->how->overwrite ||
           error_set(err, "%s/run: a model of other text; --overwrite trains anew", j->how->out);
}

bool job_train_text(job *j, error *err) {
    static const char what[] = "a model of the text";
    if (j->is_open) return true;
    double lacks;
    char *folder = mem_format("%s/run", j->how->out);
    const bool planned = plan_model(j, &lacks, err);
    if (planned && lacks > 0) job_skip_stage(j, what, fmax(0, job_left(j)) + lacks);
    if (!planned || lacks > 0) {
        free(folder);
        return planned;
    }
    job_begin_stage(j, what);
    place p = begin_place(j, folder, j->text_seconds, j->goes_on);
    j->checkpoint = mem_format("%s/last.safetensors", p.folder);
    options o;
    const bool ready = text_options(j, &o, 60 * p.minutes, j->how->steps, err);
    if (!train_at(j, &o, &p, ready, err)) return false;
    j->text_steps = j->latest_steps;
    j->is_open = loaded_open(&j->loaded, j->checkpoint, &j->how->device, err);
    return j->is_open;
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
    const double every = fmax(1, floor(updates * TUNING_EPOCHS / TUNING_VALIDATIONS));
    ready = ready && config_assign_string(&o.config, "train.init", c->file.path, err) &&
            config_assign_string(&o.config, "data.train", j->how->files.train, err) &&
            (j->how->steps > 0 || set_number(&o, "train.minutes", p.minutes, err)) &&
            set_number(&o, "train.epochs", TUNING_EPOCHS, err) &&
            set_number(&o, "train.valid_every", every, err) &&
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

static bool ask(job *j, const saved_probe *probe, const part *p, predictions *to, error *err) {
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

bool job_tune(job *j, error *err) {
    static const char what[] = "tuning the model on the labels";
    const double began = clock_seconds(), left = job_agreed(j, job_left(j));
    const double asking = j->rate > 0 ? tuning_seconds(j, 0) : 0;
    const double once = j->rate > 0 ? tuning_seconds(j, 1) : 0;
    const bool planned = j->text_seconds > 0 && j->rate > 0;
    const double room =
        planned ? left - j->probe_seconds : tuning_share * left; /* asking included */
    const double seconds = planned ? room - asking : room;
    if (once > room || seconds <= 0) {
        job_skip_stage(j, what, once);
        return true;
    }
    job_begin_stage(j, what);
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
    if (to->tried) job_say_error(j, BY_TUNED);
    return to->tried;
}

/* ----------------------------------------------------------------------------------- features */

char *job_features_path(const job *j, const char *name) {
    return mem_format("%s/features/%s", j->how->out, name);
}

static bool extract(job *j, const part *p, const char *prefix, error *err) {
    const feature_options how = {.pools = FEATURE_POOLS,
                                 .progress = true,
                                 .model = checkpoint_checksum(&j->loaded.checkpoint),
                                 .ranks = j->how->device.ranks};
    feature_result made;
    return features_extract(j->loaded.m, p->texts, &how, prefix, &made, err);
}

bool job_fit_features(job *j, error *err) {
    static const char what[] = "a probe on the model's features";
    const double began = clock_seconds();
    if (!loaded_make(&j->loaded, 0, FEATURES_STEPS, any_text, err)) return false;
    const bool cuda = backend_on_gpu(j->loaded.be);
    const double needed =
        features_seconds(j, j->rate, j->loaded.checkpoint.options.model.hidden, cuda);
    if (job_agreed(j, needed - job_left(j)) > 0) {
        job_skip_stage(j, what, needed);
        return true;
    }
    job_begin_stage(j, what);
    char *train = job_features_path(j, "train"), *test = job_features_path(j, "test");
    char *out = job_features_path(j, "probe"), *folder = job_features_path(j, "");
    const probe_options how = {.train = train,
                               .test = test,
                               .held = j->examples.is_held,
                               .out = out,
                               .balanced = j->how->balanced,
                               .progress = true};
    probe_result probed = {0};
    bool done = file_make_folder(folder, err) && extract(j, &j->examples.train, train, err) &&
                extract(j, &j->examples.test, test, err);
    const bool probes = done && job_leads(j);
    backend *be = probes ? overrides_backend(&j->how->device, err) : NULL;
    if (probes) done = be && probe_run(be, &how, &probed, err);
    if (probes && done) {
        job_take_margins(j, BY_FEATURES, probed.valid_margin, probed.test_margin, probed.scale);
    }
    if (be) be->destroy(be);
    probe_result_free(&probed);
    free(folder);
    free(out);
    free(test);
    free(train);
    j->ways.of[BY_FEATURES].seconds = clock_seconds() - began;
    log_end();
    if (probes && done) job_say_error(j, BY_FEATURES);
    return done;
}
