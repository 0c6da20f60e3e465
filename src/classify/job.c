#include "classify/job.h"

#include "classify/classifier.h"
#include "classify/model_ways.h"
#include "classify/result.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/number.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------- stages */

bool job_leads(const job *j) {
    return ranks_rank(j->how->device.ranks) == 0;
}

double job_agreed(const job *j, double value) {
    ranks_broadcast(j->how->device.ranks, &value, sizeof value);
    return value;
}

double job_left(const job *j) {
    return j->how->steps > 0 ? INFINITY : j->minutes * 60 - (clock_seconds() - j->began);
}

void job_begin_stage(job *j, const char *what) {
    char time[32];
    log_end();
    if (j->minutes > 0 && isfinite(job_left(j))) {
        log_line("%d of %d: %s; %s left", ++j->stage, j->stages, what,
                 log_duration(time, fmax(0, job_left(j))));
    } else {
        log_line("%d of %d: %s", ++j->stage, j->stages, what);
    }
}

void job_skip_stage(job *j, const char *what, double needed) {
    char time[32], there[32];
    log_line("%d of %d: %s: not tried, as it takes about %s and %s are left", ++j->stage, j->stages,
             what, log_duration(time, needed), log_duration(there, fmax(0, job_left(j))));
}

void job_say_error(const job *j, int k) {
    const way *of = &j->ways.of[k];
    log_line("%s: %.2f %% of %zu test documents are wrong, after %.0f s", way_names[k],
             predictions_error(&of->tested), of->tested.rows, clock_seconds() - j->began);
}

void job_take_margins(job *j, int k, const double *valid, const double *test, double scale) {
    way *to = &j->ways.of[k];
    const bool multinomial = k != BY_NGRAMS;
    predictions_take(&to->valid, valid, j->examples.held.texts->count, j->examples.classes.count,
                     multinomial, scale, j->examples.held.class);
    predictions_take(&to->tested, test, j->examples.test.texts->count, j->examples.classes.count,
                     multinomial, scale, j->examples.test.class);
    to->tried = true;
}

bool job_has_cpu_alone(const job *j) {
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
    const double seconds = j->minutes > 0 ? job_left(j) : INFINITY;
    if (!ngrams_fit(&j->ngrams, j->examples.train.texts, j->examples.train.class,
                    j->examples.classes.count, j->examples.weight, j->examples.is_held,
                    j->examples.test.texts, seconds, &valid, &test, err)) {
        return false;
    }
    job_take_margins(j, BY_NGRAMS, valid, test, j->ngrams.scale);
    free(valid);
    free(test);
    j->ways.of[BY_NGRAMS].seconds = clock_seconds() - began;
    job_say_error(j, BY_NGRAMS);
    return true;
}

static void *fit_beside(void *argument) {
    job *j = argument;
    j->fitted = fit_ngrams(j, &j->why_not_fitted);
    return NULL;
}

/* Fits the n-grams, or begins to: where a GPU trains the model, the CPU has time for them. */
static bool begin_ngrams(job *j, error *err) {
    job_begin_stage(j, "n-grams");
    if (job_has_cpu_alone(j)) return fit_ngrams(j, err);
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
    if (!job_train_text(j, err)) return false;
    return !j->is_open || (job_tune(j, err) && job_fit_features(j, err));
}

outcome job_outcome(const job *j) {
    return (outcome){&j->ways,       &j->examples,     j->how->out,   j->how->balanced,
                     j->ngrams.cost, j->ngrams.passes, j->text_steps, j->tuning_steps};
}

/* The minutes where none are given. On a CPU no model has beaten n-grams in as few. */
static double usual_minutes(const job *j) {
    if (!job_has_cpu_alone(j) || j->how->given || j->how->steps > 0) return 10;
    log_line("n-grams alone, since this is a CPU; --minutes N also tries a model of the text");
    return 0;
}

bool job_run(job *j, const job_options *how, error *err) {
    *j = (job){.how = how, .began = clock_seconds(), .lock = -1};
    j->minutes = how->minutes >= 0 ? how->minutes : usual_minutes(j);
    const bool alone = j->minutes == 0 && how->steps == 0;
    j->stages = alone ? 1 : how->given ? 3 : 4;
    const bool leads = job_leads(j);
    if (!open_given(j, err) || !read_examples(j, err) || (leads && !take_folder(j, err)) ||
        !examples_hold_out(&j->examples, how->files.train, err) ||
        !(alone || j->is_open || job_find_run(j, err)) || (leads && !begin_ngrams(j, err)) ||
        !(alone || try_model_ways(j, err))) {
        return false;
    }
    if (!leads) return true;
    if (!finish_ngrams(j, err)) return false;
    const examples *e = &j->examples;
    ways_choose(&j->ways, e->classes.count, e->weight, e->held.class, e->test.class);
    return result_write(j, err);
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
