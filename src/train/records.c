#include "train/internal.h"

#include "core/clock.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/number.h"
#include "core/stop.h"
#include "train/evaluate.h"
#include "train/labels.h"
#include "train/run_log.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------- metrics */

/* Reads the devices' reports; fails where an update was not finite. */
static bool read_report(trainer *tr, update_report *report, error *err) {
    tr->be->memory->download(tr->be, report, tr->m->report, sizeof *report);
    if (!tr->be->memory->finish(tr->be, err)) return false;
    double sums[] = {report->loss, report->label_loss, report->label_weight, report->failed};
    ranks_sum(tr->ranks, sums, 4);
    report->loss = sums[0];
    report->label_loss = sums[1];
    report->label_weight = sums[2];
    if (sums[3] == 0) return true;
    if (report->failed == 0) return error_set(err, "another rank's loss is not finite");
    char *path = run_folder_file(&tr->run, "last.safetensors");
    const model_config *model = &tr->m->config;
    error_set(err, "step %.0f: the loss or its gradient is not finite%s; %s %s", report->failed,
              model->cell == CELL_MLSTM && model->init_noise == 0
                  ? " (on runs of one byte an mlstm needs model.init_noise, such as 0.05)"
                  : "",
              file_exists(path) ? "the last good checkpoint is" : "no checkpoint yet in", path);
    free(path);
    return false;
}

static void show_progress(trainer *tr, double bpc, double lr) {
    const run_state *s = &tr->state;
    double now = clock_seconds(), rate = trainer_bytes_done(tr) / s->seconds;
    bool last = s->step == tr->end;
    if (!last && now - tr->records.shown < (log_is_terminal() ? 0.2 : 5)) return;
    tr->records.shown = now;
    char left[48] = "", valid[80] = "";
    double minutes = tr->o->train.minutes, seconds = INFINITY;
    if (tr->end != INT64_MAX) seconds = (double)(tr->end - s->step) * s->seconds / (double)s->step;
    if (minutes > 0 && s->total == tr->end)
        seconds = fmax(0, minutes * 60 - (now - tr->plan.began));
    log_duration(left, seconds);
    if (!isnan(s->valid_label_loss)) {
        snprintf(valid, sizeof valid, ", valid %.4f, labels %.4f, %.2f %% wrong", s->valid_bpc,
                 s->valid_label_loss, 100 * s->valid_label_error);
    } else if (!isnan(s->valid_bpc)) {
        snprintf(valid, sizeof valid, ", valid %.4f", s->valid_bpc);
    }
    if (tr->end != INT64_MAX) {
        log_progress("step %" PRId64 "/%" PRId64 "  bpc %.4f%s  lr %.2e  %.0f bytes/s  %s left",
                     s->step, tr->end, bpc, valid, lr, rate, left);
    } else {
        log_progress("step %" PRId64 "  bpc %.4f%s  lr %.2e  %.0f bytes/s  %s left", s->step, bpc,
                     valid, lr, rate, left);
    }
}

/* Writes a line of metrics.jsonl for the updates since the last line. */
static bool write_metrics(trainer *tr, const update_report *report, double bpc, double lr,
                          error *err) {
    run_state *s = &tr->state;
    const char *const *name = run_log_names;
    json_writer w = {tr->records.metrics, false};
    json_object_begin(&w, NULL);
    json_integer(&w, name[LOG_STEP], s->step);
    json_integer(&w, name[LOG_BYTES], (int64_t)trainer_bytes_done(tr));
    json_number(&w, name[LOG_EPOCH], (double)s->step / (double)tr->epoch_updates);
    json_number(&w, name[LOG_SECONDS], s->seconds);
    json_number(&w, name[LOG_BPC], bpc);
    json_number(&w, name[LOG_LR], lr);
    json_number(&w, name[LOG_GRAD_NORM], report->gradient_norm);
    json_number(&w, name[LOG_RATE], trainer_bytes_done(tr) / s->seconds);
    json_number(&w, name[LOG_VALID_BPC], s->validated ? s->valid_bpc : NAN);
    if (tr->o->classes.count) {
        json_number(&w, name[LOG_LABEL_LOSS], report->label_loss / report->label_weight);
        json_number(&w, name[LOG_VALID_LABEL_LOSS], s->validated ? s->valid_label_loss : NAN);
        json_number(&w, name[LOG_VALID_LABEL_ERROR], s->validated ? s->valid_label_error : NAN);
    }
    json_object_end(&w);
    fputc('\n', tr->records.metrics);
    const long length = fflush(tr->records.metrics) == 0 ? ftell(tr->records.metrics) : -1;
    if (length < 0) {
        char *path = run_folder_file(&tr->run, "metrics.jsonl");
        error_system(err, "write", path);
        free(path);
        tr->records.metrics_failed = true;
        return false;
    }
    s->metrics_bytes = length;
    return true;
}

bool trainer_log_metrics(trainer *tr, error *err) {
    run_state *s = &tr->state;
    update_report report;
    if (!trainer_clock_stop(tr, err) || !read_report(tr, &report, err)) return false;
    double bpc = report.loss / ((double)s->loss_updates * (double)trainer_update_bytes(tr) * M_LN2);
    double lr = schedule_lr(&tr->o->train, s->step - 1, tr->end);
    if (trainer_leads(tr) && !write_metrics(tr, &report, bpc, lr, err)) return false;
    tr->records.trained_bpc = bpc;
    s->loss_updates = 0;
    s->validated = false;
    tr->be->memory->zero(tr->be, tr->m->report, sizeof report);
    show_progress(tr, bpc, lr);
    trainer_clock_start(tr);
    return true;
}

/* ------------------------------------------------------------------------- validation, saving */

static bool save_model(trainer *tr, const float *weights, int64_t step, const char *name,
                       error *err) {
    if (!trainer_leads(tr)) return true;
    char *path = run_folder_file(&tr->run, name);
    bool saved = checkpoint_save_model(tr->m, weights, tr->o, step, path, err);
    free(path);
    return saved;
}

static bool save_last(trainer *tr, error *err) {
    return save_model(tr, NULL, tr->state.step, "last.safetensors", err);
}

bool trainer_save_best(trainer *tr, error *err) {
    run_records *r = &tr->records;
    if (r->best_due && !save_model(tr, r->best, tr->state.best_step, "best.safetensors", err))
        return false;
    r->best_due = false;
    return true;
}

/* Keeps the weights that have validated best until the next save; most are outdone before it. */
static void keep_best(trainer *tr) {
    run_records *r = &tr->records;
    r->best_due = true;
    free(r->best);
    const model *m = tr->m;
    r->best = trainer_leads(tr) ? model_download(m, m->average, 0, m->parameters.total) : NULL;
}

static bool replace_earlier(trainer *tr, error *err) {
    if (trainer_leads(tr)) return run_folder_replace(&tr->run, !isnan(tr->state.best_bpc), err);
    tr->run.place = tr->run.path;
    return true;
}

/* Saves the state before the models that can be made again from it, see trainer_repair_models. The
 * best model is of an earlier step, so it goes first, but for that of the first state: every model
 * belongs to a run that can be resumed. */
bool trainer_save(trainer *tr, error *err) {
    run_state *s = &tr->state;
    update_report report;
    if (!trainer_clock_stop(tr, err) || !read_report(tr, &report, err)) return false;
    s->loss = report.loss;
    s->label_loss = report.label_loss;
    s->label_weight = report.label_weight;
    s->gradient_norm = report.gradient_norm;
    s->elapsed = tr->segment_start - tr->plan.began;
    char *path = run_folder_file(&tr->run, "last.state");
    /* the checkpoint is worth saving even if this fails */
    if (trainer_leads(tr)) fsync(fileno(tr->records.metrics));
    bool saved = (!tr->records.has_state || trainer_save_best(tr, err)) &&
                 checkpoint_save_state(tr->m, s, path, err) && trainer_save_best(tr, err) &&
                 save_last(tr, err);
    if (saved && run_folder_keeps_earlier(&tr->run)) saved = replace_earlier(tr, err);
    tr->records.has_state = tr->records.has_state || saved;
    free(path);
    trainer_clock_start(tr);
    tr->records.saved = tr->segment_start;
    tr->plan.lately.saving = tr->records.saved - tr->plan.began - s->elapsed;
    return saved;
}

/* Takes what validation gave, and the weights if none were better. */
static void take_scores(trainer *tr, bool asks, const evaluation *e, const class_evaluation *of) {
    run_state *s = &tr->state;
    s->valid_bpc = e->bpc;
    s->valid_label_loss = of->loss;
    s->valid_label_error = of->error;
    s->validated = true;
    const bool less = asks ? of->loss < s->best_label_loss : e->bpc < s->best_bpc;
    const bool level = !(of->error > s->best_label_error); /* also where both are unknown */
    const bool fewer = of->error < s->best_label_error;
    if (!(isnan(s->best_bpc) || fewer || (level && less))) return;
    s->best_bpc = e->bpc;
    s->best_label_loss = of->loss;
    s->best_label_error = of->error;
    s->best_step = s->step;
    keep_best(tr);
}

bool trainer_validate(trainer *tr, error *err) {
    update_report report;
    evaluation e;
    class_evaluation classes = {NAN, NAN, 0, 0};
    const bool asks = labels_count(tr->valid) > 0;
    if (!trainer_clock_stop(tr, err) || !read_report(tr, &report, err)) return false;
    const double begun = tr->segment_start;
    model_save_state(tr->m);
    model_use_average(tr->m);
    if (!tr->evaluation) tr->evaluation = evaluate_record(tr->m);
    model_set_labels(tr->m, NULL, NULL);
    bool done = evaluate(tr->m, tr->evaluation, tr->valid_text, (uint64_t)tr->o->train.valid_bytes,
                         false, false, &e, err) &&
                (!asks || evaluate_classes(tr->m, tr->evaluation, tr->valid, &classes, err));
    model_use_weights(tr->m);
    model_restore_state(tr->m);
    if (done) take_scores(tr, asks, &e, &classes);
    trainer_clock_start(tr);
    tr->plan.lately.validation = tr->segment_start - begun;
    if (done || stop_signal()) return done;
    error reason = *err;
    return error_set(err, "step %" PRId64 ": validation: %s", tr->state.step, reason.text);
}

/* Whether the file is a complete model of this step. */
static bool is_model(const trainer *tr, const char *name, int64_t step) {
    char *path = run_folder_file(&tr->run, name);
    safetensors file;
    error ignored;
    int64_t found = -1;
    if (safetensors_open(&file, path, &ignored)) {
        const char *text = safetensors_metadata(&file, "step");
        if (text) number_integer(text, &found);
        safetensors_close(&file);
    }
    free(path);
    return found == step;
}

bool trainer_repair_models(trainer *tr, error *err) {
    const run_state *s = &tr->state;
    if (!tr->run.resumed || !trainer_leads(tr)) return true;
    bool last = is_model(tr, "last.safetensors", s->step) && !tr->run.replaced;
    bool best = isnan(s->best_bpc) || (is_model(tr, "best.safetensors", s->best_step) &&
                                       !(tr->run.replaced && s->best_step == s->step));
    if (!best && s->best_step == s->step) {
        tr->records.best_due = true;
    } else if (!best) {
        log_warning("%s/best.safetensors: not the model of step %" PRId64
                    ", which validated best; it cannot be made again",
                    tr->run.path, s->best_step);
    }
    if (tr->records.best_due)
        log_line("%s/best.safetensors: made again from last.state", tr->run.path);
    if (!last) log_line("%s/last.safetensors: made again from last.state", tr->run.path);
    return trainer_save_best(tr, err) && (last || save_last(tr, err));
}
