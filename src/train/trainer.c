#include "train/trainer.h"

#include "core/clock.h"
#include "core/integer.h"
#include "core/log.h"
#include "core/stop.h"
#include "train/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

/* The number of updates that fit into train.minutes is found anew after this share of the time that
 * was left, or after this many seconds, whichever is shorter. */
static const double plan_share = 1.0 / 16, plan_seconds = 15;

/* ---------------------------------------------------------------------------------------- clock */

bool trainer_leads(const trainer *tr) {
    return ranks_rank(tr->ranks) == 0;
}

static double clock_of_ranks(const trainer *tr) {
    double now = clock_seconds();
    ranks_broadcast(tr->ranks, &now, sizeof now);
    return now;
}

void trainer_clock_start(trainer *tr) {
    tr->segment_start = clock_of_ranks(tr);
}

bool trainer_clock_stop(trainer *tr, error *err) {
    bool done = tr->be->memory->finish(tr->be, err);
    const double now = clock_of_ranks(tr);
    tr->state.seconds += now - tr->segment_start;
    tr->segment_start = now;
    return done;
}

uint64_t trainer_update_bytes(const trainer *tr) {
    return (uint64_t)tr->o->train.batch * (uint64_t)tr->o->train.bptt;
}

double trainer_bytes_done(const trainer *tr) {
    return (double)tr->state.step * (double)trainer_update_bytes(tr);
}

/* ------------------------------------------------------------------------------------ loop */

static void issue_update(void *argument) {
    model_update(argument);
}

void train_step(model *m, recording *update, const minibatch *batch, const train_options *t,
                int64_t step, int64_t end) {
    const double done = (double)step, rate = schedule_lr(t, step, end);
    const update_arguments arguments = {
        .learning_rate = rate,
        .head_learning_rate = rate * t->lr_head,
        .muon_learning_rate = rate / t->lr * t->muon_lr,
        .muon_momentum = t->muon_momentum,
        .beta1 = t->beta1,
        .beta2 = t->beta2,
        .epsilon = t->epsilon,
        .weight_decay = t->weight_decay,
        .input_decay = t->input_decay,
        .clip = t->clip,
        .gradient_scale = 1 / ((double)t->batch * (double)t->bptt),
        .average = fmin(t->average, (1 + done) / (10 + done)),
        .update = (uint64_t)step,
    };
    if (batch->update == 0) model_zero_state(m);
    model_drop_input(m, arguments.update, batch->inputs);
    model_set_text(m, batch->inputs, batch->targets);
    model_set_labels(m, batch->classes, batch->weights);
    m->be->memory->upload(m->be, m->arguments, &arguments, sizeof arguments);
    m->be->memory->replay(m->be, update);
}

/* What validation and saving will take, by what they took; before that, as if a byte took a third
 * of what it takes in training, and a parameter's state 40 nanoseconds. */
static schedule_times expected_times(const trainer *tr) {
    schedule_times each = tr->plan.lately;
    if (!tr->valid_text) {
        each.validation = 0;
    } else if (each.validation == 0) {
        const double limit = (double)tr->o->train.valid_bytes, all = (double)tr->valid_text->size;
        const double bytes = limit > 0 ? fmin(limit, all) : all;
        each.validation = bytes / (double)trainer_update_bytes(tr) * each.update / 3;
    }
    if (each.saving == 0) each.saving = 40e-9 * (double)tr->m->parameters.total;
    return each;
}

/* Finds the number of updates that fit into train.minutes, again and again, the more often the less
 * time is left: other programs come and go. The first update, which is slow, is not timed. */
static bool plan_steps(trainer *tr, error *err) {
    run_state *s = &tr->state;
    const train_options *t = &tr->o->train;
    if (t->minutes == 0 || s->step >= tr->end) return true;
    if (clock_of_ranks(tr) - tr->plan.began < tr->plan.due) return true;
    if (!trainer_clock_stop(tr, err)) return false;
    const double elapsed = tr->segment_start - tr->plan.began, left = t->minutes * 60 - elapsed;
    const int64_t steps = s->step - tr->plan.step;
    const bool timed = tr->plan.step > 0 && steps > 0;
    if (timed) {
        const double update = (s->seconds - tr->plan.from) / (double)steps;
        tr->plan.lately.update =
            tr->plan.lately.update > 0 ? (tr->plan.lately.update + update) / 2 : update;
    }
    tr->plan.step = s->step;
    tr->plan.from = s->seconds;
    tr->plan.due = elapsed + fmin(plan_seconds, plan_share * fmax(left, 0));
    if (!timed && left > 0) return true;
    const schedule_times each = expected_times(tr);
    const bool first = s->total == INT64_MAX;
    s->total = s->step + (left > 0 ? schedule_fit(t, &each, left) : 0);
    s->minutes = t->minutes;
    tr->end = integer_min(s->total, schedule_limit(t, tr->epoch_updates));
    if (first && tr->end == s->total) {
        log_line("%g minutes are about %" PRId64 " steps at %.1f ms a step", t->minutes, s->total,
                 each.update * 1e3);
    }
    return true;
}

static void drop_recording(const trainer *tr, recording **r) {
    if (*r) tr->be->memory->recording_free(tr->be, *r);
    *r = NULL;
}

/* Does what is due after an update, in an order that stopping and resuming preserves. A signal may
 * end the validation; the state then records that all of this is still to be done. The first model
 * that validates best is saved at once. */
static bool after_update(trainer *tr, error *err) {
    run_state *s = &tr->state;
    const train_options *t = &tr->o->train;
    if (!plan_steps(tr, err)) return false;
    bool last = s->step >= tr->end, metrics_only = s->pending == PENDING_METRICS;
    if (!metrics_only) s->pending = PENDING_ALL;
    bool valid = !metrics_only && tr->valid_text && (last || s->step % t->valid_every == 0);
    if (valid && !trainer_validate(tr, err)) return stop_signal() != 0;
    if (tr->records.best_due && !tr->records.has_state && !trainer_save(tr, err)) return false;
    s->pending = PENDING_METRICS;
    bool log = s->loss_updates > 0 && (last || s->step % t->log_every == 0);
    if (log && !trainer_log_metrics(tr, err)) return false;
    s->pending = PENDING_NOTHING;
    s->finished = last;
    bool due = clock_of_ranks(tr) - tr->records.saved > t->checkpoint_minutes * 60;
    return !(last || due) || trainer_save(tr, err);
}

/* Ends the run between two updates. */
static bool stop_here(trainer *tr, error *err) {
    const run_state *s = &tr->state;
    if (s->step == 0 && run_folder_keeps_earlier(&tr->run)) return stop_check(err);
    if (!trainer_save(tr, err)) return false;
    log_line("stopped after step %" PRId64 "; --resume goes on", s->step);
    return true;
}

/* If metrics cannot be written, the run ends, but its progress is saved. */
static void save_and_fail(trainer *tr, error *err) {
    error reason = *err, ignored;
    if (!trainer_save(tr, &ignored)) return;
    error_set(err, "%s; the run is saved after step %" PRId64, reason.text, tr->state.step);
}

/* Returns false if a signal has asked to stop meanwhile; ranks then wait all the same, because they
 * stop together. */
static bool wait_for_text(const trainer *tr, reader *r) {
    const double pause = 0.2;
    while (!reader_wait(r, pause)) {
        if (stop_signal() && !tr->ranks) return false;
    }
    return true;
}

static bool run_updates(trainer *tr, error *err) {
    model *m = tr->m;
    run_state *s = &tr->state;
    reader *r = reader_start(tr->train, tr->streams, m->columns, m->steps,
                             (uint64_t)tr->o->model.seed, (uint64_t)s->step);
    bool done = true;
    tr->update = tr->be->memory->record(tr->be, issue_update, m);
    trainer_clock_start(tr);
    tr->plan.began = tr->segment_start - s->elapsed;
    tr->records.saved = tr->segment_start;
    /* A limit that was lowered may already be reached. */
    if (s->pending != PENDING_NOTHING || s->step >= tr->end) done = after_update(tr, err);
    while (done && s->step < tr->end && !ranks_stop(tr->ranks)) {
        if (!wait_for_text(tr, r)) break;
        train_step(m, tr->update, reader_next(r), &tr->o->train, s->step, tr->end);
        s->step++;
        s->loss_updates++;
        done = after_update(tr, err);
    }
    if (tr->records.metrics_failed) save_and_fail(tr, err);
    /* A signal may arrive between any two of the lines above. */
    if (done && !s->finished) done = stop_here(tr, err);
    error ignored;
    if (!done) trainer_save_best(tr, &ignored);
    reader_stop(r);
    return done;
}

/* Refuses to call a run done that ends above what a byte costs by chance: 8 bits, and some that an
 * untrained model has besides. Its files stay. */
static bool check_result(const trainer *tr, error *err) {
    static const double most = 9;
    const double valid = tr->state.valid_bpc, bpc = isnan(valid) ? tr->records.trained_bpc : valid;
    return stop_signal() || bpc <= most || tr->o->train.text_weight == 0 ||
           error_set(
               err,
               "%s: failed: ends at %.6g bits per character, where guessing needs 8: expected a "
               "smaller train.lr",
               tr->run.path, bpc);
}

/* How long the rows have become that Muon turns: the longer, the slower. */
static void log_rows(const model *m) {
    char text[CELL_MAX_STAGES * 32] = "", name[16];
    size_t used = 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        if (!m->squares[s]) continue;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %.3g", used ? ", " : "",
                                 model_stage_name(&m->config, s, name), model_row_length(m, s));
    }
    if (used > 0) log_line("mean length of rows: %s", text);
}

static void report_result(const trainer *tr, train_result *result) {
    const run_state *s = &tr->state;
    *result =
        (train_result){.steps = s->step,
                       .bytes = (uint64_t)s->step * trainer_update_bytes(tr),
                       .epochs = (double)s->step / (double)tr->epoch_updates,
                       .seconds = s->seconds,
                       .bytes_per_second = s->seconds > 0 ? trainer_bytes_done(tr) / s->seconds : 0,
                       .valid_bpc = s->valid_bpc,
                       .parameters = parameter_scalars(&tr->m->parameters),
                       .signal = stop_signal()};
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s/last.safetensors", tr->run.path);
}

static void tear_down(trainer *tr) {
    drop_recording(tr, &tr->update);
    drop_recording(tr, &tr->evaluation);
    model_free(tr->m);
    free(tr->records.best);
    if (tr->be) tr->be->memory->destroy(tr->be);
    if (tr->valid_text) sequence_free(tr->valid_text);
    if (tr->valid) corpus_free(tr->valid);
    if (tr->train) corpus_free(tr->train);
    if (tr->records.metrics) fclose(tr->records.metrics);
    if (tr->state_file.path) safetensors_close(&tr->state_file);
    run_folder_end(&tr->run);
}

bool train_run(options *o, const char *folder, train_start start, train_result *result,
               error *err) {
    trainer tr = {.o = o, .ranks = o->run.ranks};
    run_folder_begin(&tr.run, folder, start);
    stop_catch();
    bool done = trainer_set_up(&tr, err);
    if (done) {
        trainer_describe(&tr);
        done = trainer_repair_models(&tr, err);
    }
    if (done && tr.state.finished) {
        log_line("%s: already finished at step %" PRId64 "%s", folder, tr.state.step,
                 tr.end == tr.state.total ? ", where train.minutes ended" : "");
    } else if (done) {
        done = run_updates(&tr, err);
    }
    done = done && check_result(&tr, err);
    if (done && trainer_leads(&tr)) log_rows(tr.m);
    if (done) report_result(&tr, result);
    tear_down(&tr);
    return done;
}
