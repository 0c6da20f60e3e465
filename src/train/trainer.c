#include "train/trainer.h"

#include "core/clock.h"
#include "core/file.h"
#include "core/integer.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/number.h"
#include "core/stop.h"
#include "data/reader.h"
#include "data/sequence.h"
#include "data/store.h"
#include "graph/metrics.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/run_folder.h"
#include "train/schedule.h"
#include "train/structure.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* train.minutes becomes a number of steps after this share of the minutes or after this many
 * seconds, whichever is shorter. */
static const double plan_share = 0.05, plan_seconds = 15;
enum {
    PLAN_SKIP = 3,
    PLAN_STEPS = 10
}; /* first updates, which are not timed; updates that are timed */

typedef struct trainer {
    options *o;
    ranks *ranks;         /* NULL: the run is this process's alone */
    stream_share streams; /* of the minibatch, this rank's */
    run_folder run;
    backend *be;
    corpus *train, *valid;
    int64_t excluded;
    uint64_t epoch_updates;
    model *m;
    recording *update, *evaluation;
    sequence *valid_text;
    FILE *metrics;
    run_state state;
    safetensors state_file; /* the state to resume from, while it is loaded */
    int64_t end;            /* the run's last step; INT64_MAX until it is known */
    bool has_state;         /* this run has written a state */
    bool best_due;          /* best.safetensors must be written */
    bool metrics_failed;    /* metrics.jsonl could not be written */
    double segment_start;   /* when the clock was last started */
    double plan_from;       /* when timing began, in seconds of the clock; 0: not yet */
    int64_t plan_step;
    double changing; /* seconds that changes of structure have taken in this process */
    double saved, shown, shown_seconds; /* times of the last save and of the last progress line */
} trainer;

/* ------------------------------------------------------------------------------------ clock
 * Only updates and their input count: the clock stops for validation and saving. All ranks go by
 * rank 0's clock, so that what depends on time comes at the same update. */

static bool leads(const trainer *tr) {
    return ranks_rank(tr->ranks) == 0;
}

static double clock_of_ranks(const trainer *tr) {
    double now = clock_seconds();
    ranks_broadcast(tr->ranks, &now, sizeof now);
    return now;
}

static double seconds_now(const trainer *tr) {
    return tr->state.seconds + clock_of_ranks(tr) - tr->segment_start;
}

static void clock_start(trainer *tr) {
    tr->segment_start = clock_of_ranks(tr);
}

static bool clock_stop(trainer *tr, error *err) {
    bool done = tr->be->finish(tr->be, err);
    const double now = clock_of_ranks(tr);
    tr->state.seconds += now - tr->segment_start;
    tr->segment_start = now;
    return done;
}

/* ------------------------------------------------------------------------------------- data */

/* In groups of 4, which share draws of dropout. */
static bool share_streams(trainer *tr, error *err) {
    enum { GROUP = 4 };
    const int rank = ranks_rank(tr->ranks), count = ranks_count(tr->ranks);
    const int batch = (int)tr->o->train.batch, groups = batch / GROUP;
    if (count > 1 && groups < count) {
        return config_refuse(&tr->o->config, err, "train.batch",
                             "expected at least %d, %d for each of %d ranks, got %d", GROUP * count,
                             GROUP, count, batch);
    }
    const int first = GROUP * (groups * rank / count);
    const int end = rank == count - 1 ? batch : GROUP * (groups * (rank + 1) / count);
    tr->streams = (stream_share){batch, first, end - first};
    return true;
}

static bool reads_input(const config_list *files) {
    for (int i = 0; i < files->count; i++) {
        if (strcmp(files->items[i], "-") == 0) return true;
    }
    return false;
}

/* Leaves the training text in its files, see data.window. */
static corpus *read_in_place(trainer *tr, const corpus_options *how, error *err) {
    data_options *d = &tr->o->data;
    if (reads_input(&d->train)) {
        error_set(err, "data.train: standard input can be read only once: with data.window, "
                       "expected files");
        return NULL;
    }
    const double most = 1 << 30, share = d->window / (2 * (double)tr->o->train.batch);
    const in_place_options place = {.exclude = d->exclude.items,
                                    .exclude_count = d->exclude.count,
                                    .fraction = d->valid_fraction,
                                    .block = (uint64_t)fmin(share, most),
                                    .ranks = tr->ranks};
    corpus *c = corpus_read_in_place(d->train.items, d->train.count, how, &place, err);
    if (c) tr->excluded = (int64_t)corpus_excluded(c);
    return c;
}

static bool read_data(trainer *tr, error *err) {
    data_options *d = &tr->o->data;
    if (tr->ranks && (reads_input(&d->train) || reads_input(&d->valid))) {
        return error_set(err, "data: ranks cannot share standard input: expected files");
    }
    const corpus_options how = {.html_entities = d->html_entities};
    int batch = (int)tr->o->train.batch, bptt = (int)tr->o->train.bptt;
    const bool in_place = d->window > 0;
    tr->train = in_place ? read_in_place(tr, &how, err)
                         : corpus_read(d->train.items, d->train.count, &how, err);
    if (!tr->train) return false;
    if (d->valid.count) {
        tr->valid = corpus_read(d->valid.items, d->valid.count, &how, err);
        if (!tr->valid) return false;
    }
    if (d->exclude.count) {
        for (int i = in_place; i < 2; i++) {
            corpus *c = i ? tr->valid : tr->train;
            int64_t dropped =
                c ? corpus_exclude(c, d->exclude.items, d->exclude.count, &how, err) : 0;
            if (dropped < 0) return false;
            tr->excluded += dropped;
        }
    }
    if (!tr->valid && d->valid_fraction > 0) {
        tr->valid = in_place
                        ? corpus_read_left_out(tr->train, (uint64_t)tr->o->train.valid_bytes, err)
                        : corpus_split(tr->train, d->valid_fraction);
        if (!tr->valid) return false;
    }
    tr->epoch_updates = reader_epoch_updates(tr->train, batch, bptt);
    if (tr->epoch_updates == 0) {
        return error_set(err,
                         "data.train: %" PRIu64 " bytes are less than one minibatch: expected more "
                         "than train.batch x train.bptt = %" PRIu64,
                         tr->train->size, (uint64_t)batch * (uint64_t)bptt);
    }
    if (tr->valid && tr->valid->size >= 2) tr->valid_text = sequence_in_order(tr->valid);
    return true;
}

/* ----------------------------------------------------------------------------------- set-up */

/* Returns the first key of the cell or the patterns in which the checkpoint's config differs from
 * ours, or NULL. Other differences show in the shapes of tensors. */
static const char *other_cell(const model_config *ours, const model_config *theirs) {
    if (theirs->cell != ours->cell) return "model.cell";
    if (theirs->layers != ours->layers) return "model.layers";
    if (model_stages(theirs) != model_stages(ours)) return "model.internal_steps";
    if (theirs->hidden != ours->hidden) return "model.hidden";
    if (theirs->block != ours->block) return "model.block";
    if (theirs->graph != ours->graph) return "model.graph";
    if (theirs->degree != ours->degree) return "model.degree";
    if (theirs->density != ours->density) return "model.density";
    if (theirs->rewire != ours->rewire) return "model.rewire";
    return theirs->layer_norm != ours->layer_norm ? "model.layer_norm" : NULL;
}

static model *training_model(const trainer *tr, graph *const *graphs, error *err) {
    const train_options *t = &tr->o->train;
    model *m = model_create(tr->be, &tr->o->model, graphs, tr->streams.count, (int)t->bptt,
                            (int)t->recompute, MODEL_TRAINING, err);
    if (m) model_set_first_stream(m, tr->streams.first);
    return m;
}

/* What hosts made of their files and of the seed. */
static bool same_model(const trainer *tr, error *err) {
    const model *m = tr->m;
    if (!tr->ranks) return true;
    uint64_t hash = 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        const graph *g = m->graphs[s];
        for (int k = 0; k < graph_blocks(g); k++) {
            hash = (hash ^ (uint64_t)g->column[k]) * 0x9E3779B97F4A7C15u;
            hash ^= hash >> 29;
        }
    }
    float *weights = model_download(m, m->weights, 0, m->parameters.total);
    for (size_t i = 0; i < m->parameters.total; i++) {
        uint32_t bits;
        memcpy(&bits, &weights[i], sizeof bits);
        hash = (hash ^ bits) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 29;
    }
    free(weights);
    return ranks_same(tr->ranks, (int64_t)hash, "the model that it starts from", err);
}

/* Makes the model with the patterns and weights of the checkpoint train.init. */
static bool create_from(trainer *tr, const char *source, error *err) {
    const options *o = tr->o;
    checkpoint c;
    if (!checkpoint_open(&c, source, err)) return false;
    const char *other = other_cell(&o->model, &c.options.model);
    if (other) {
        error_set(err, "%s: its %s differs from the config's", source, other);
    } else {
        tr->m = training_model(tr, c.graphs, err);
        memset(c.graphs, 0, sizeof c.graphs); /* they belong to the model now */
    }
    bool created = tr->m && checkpoint_load_weights(&c, tr->m, err);
    checkpoint_close(&c);
    return created;
}

/* Makes the model from the patterns in the state, because train.init or a graph's file may be gone.
 */
static bool create_resumed(trainer *tr, error *err) {
    graph *graphs[CELL_MAX_STAGES];
    if (!checkpoint_state_graphs(&tr->state_file, &tr->o->model, graphs, err)) return false;
    tr->m = training_model(tr, graphs, err);
    return tr->m && checkpoint_load_state(&tr->state_file, tr->m, err);
}

static bool create_model(trainer *tr, error *err) {
    const options *o = tr->o;
    bool created;
    if (tr->run.resumed) {
        created = create_resumed(tr, err);
    } else if (*o->train.init) {
        created = create_from(tr, o->train.init, err);
    } else {
        graph *graphs[CELL_MAX_STAGES];
        if (!options_graphs(o, graphs, err)) return false;
        tr->m = training_model(tr, graphs, err);
        created = tr->m != NULL;
        if (created) model_initialise(tr->m);
    }
    return created && tr->be->finish(tr->be, err) && same_model(tr, err);
}

/* Opens the state to resume from. It must be of the same text. */
static bool open_state(trainer *tr, error *err) {
    const run_state now = {.train_bytes = (int64_t)tr->train->size,
                           .train_text = corpus_hash(tr->train),
                           .valid_text = tr->valid ? corpus_hash(tr->valid) : 0,
                           .total = INT64_MAX,
                           .gradient_norm = NAN,
                           .valid_bpc = NAN,
                           .best_bpc = NAN};
    run_state *s = &tr->state;
    *s = now;
    if (!ranks_same(tr->ranks, now.train_text, "the text of data.train", err) ||
        !ranks_same(tr->ranks, now.valid_text, "the text of data.valid", err)) {
        return false;
    }
    if (!tr->run.resumed) return true;
    char *path = run_folder_file(&tr->run, "last.state");
    bool same = checkpoint_open_state(&tr->state_file, s, path, err);
    if (same && s->train_bytes != now.train_bytes) {
        same = error_key(err, "data.train",
                         "cannot change on resuming: %s was trained on %" PRId64
                         " bytes, now there are %" PRId64,
                         path, s->train_bytes, now.train_bytes);
    } else if (same && s->train_text != now.train_text) {
        same = error_key(err, "data.train",
                         "cannot change on resuming: %s was trained on another text", path);
    } else if (same && s->valid_text != now.valid_text) {
        same = error_key(err, "data.valid",
                         "cannot change on resuming: %s was validated on another text", path);
    }
    tr->has_state = same;
    free(path);
    return same;
}

/* Loads the loss so far, to which the device adds. */
static void load_report(trainer *tr) {
    update_report report = {.loss = leads(tr) ? tr->state.loss : 0,
                            .gradient_norm = tr->state.gradient_norm};
    if (tr->run.resumed) tr->be->upload(tr->be, tr->m->report, &report, sizeof report);
}

/* Finds where the run and the learning rate's schedule end. The number of steps that fit into
 * train.minutes is found once and kept when other limits change on resuming. */
static void set_end(trainer *tr) {
    const train_options *t = &tr->o->train;
    run_state *s = &tr->state;
    if (s->minutes != t->minutes) {
        const bool timed = t->minutes > 0 && s->step > 0 && s->seconds > 0;
        s->total = timed ? schedule_plan(t, s->step, s->seconds) : INT64_MAX;
        s->minutes = timed ? t->minutes : 0;
    }
    tr->end = integer_min(s->total, schedule_limit(t, tr->epoch_updates));
    if (s->step < tr->end) s->finished = false;
}

static void describe_window(const trainer *tr) {
    const corpus *c = tr->train;
    uint64_t longest = 0;
    char piece[16], block[16];
    for (size_t i = 0; i < c->count; i++) {
        if (c->documents[i].length > longest) longest = c->documents[i].length;
    }
    log_line("window: %zu files in %zu pieces, the longest of %s, shuffled by %s", c->store->count,
             c->count, log_bytes(piece, (double)longest),
             log_bytes(block, (double)c->store->block));
}

static void describe(const trainer *tr) {
    const model *m = tr->m;
    const options *o = tr->o;
    char text[128];
    for (int s = 0; s < model_stages(&m->config); s++) {
        int parts = graph_components(m->graphs[s]);
        char name[16];
        if (parts > 1) {
            log_warning("the graph of %s has %d components, between which no signal passes",
                        model_stage_name(&m->config, s, name), parts);
        }
    }
    log_line("device: %s, %s", tr->be->device, precision_name(tr->be->precision));
    char layers[32] = "";
    if (m->layers > 1) snprintf(layers, sizeof layers, "%d layers of ", m->layers);
    if (tr->ranks) {
        log_line("ranks: %d, each with about %d of %d streams", tr->ranks->count, tr->streams.count,
                 tr->streams.all);
    }
    log_line("model: %s, %s%" PRId64 " units, %zu parameters",
             (const char *[]){"lstm", "mlstm", "deep"}[m->config.cell], layers, m->config.hidden,
             parameter_scalars(&m->parameters));
    log_line("memory: %s", plan_text(&m->plan, text));
    if (tr->run.start == TRAIN_RESUME && !tr->run.resumed) {
        log_line("resume: there is no %s/last.state, so the run starts from its beginning",
                 tr->run.path);
    }
    if (run_folder_keeps_earlier(&tr->run)) {
        log_line("overwrite: the run that is there stays until this one's first checkpoint; until "
                 "then this one is in %s",
                 tr->run.place);
    }
    if (m->segments > 1) {
        log_line("recompute: %d segments of %d steps; the activations of one are kept at a time",
                 m->segments, m->segment_steps);
    }
    log_line(
        "data: %" PRIu64 " documents, %" PRIu64 " bytes to train on, %" PRIu64 " to validate on%s",
        corpus_documents(tr->train), tr->train->size, tr->valid_text ? tr->valid_text->size : 0,
        tr->valid_text ? "" : " (no best.safetensors)");
    if (tr->train->store) describe_window(tr);
    if (tr->excluded) log_line("data: %" PRId64 " documents excluded", tr->excluded);
    log_line("epoch: %" PRIu64 " updates of %" PRId64 " x %" PRId64 " bytes, %" PRIu64
             " bytes dropped",
             tr->epoch_updates, o->train.batch, o->train.bptt,
             reader_epoch_dropped(tr->train, (int)o->train.batch, (int)o->train.bptt));
    if (tr->run.resumed) log_line("resuming after step %" PRId64, tr->state.step);
}

/* -------------------------------------------------------------------------------- metrics */

static uint64_t update_bytes(const trainer *tr) {
    return (uint64_t)tr->o->train.batch * (uint64_t)tr->o->train.bptt;
}

static double bytes_done(const trainer *tr) {
    return (double)tr->state.step * (double)update_bytes(tr);
}

/* Reads the devices' reports; fails where an update was not finite. */
static bool read_report(trainer *tr, update_report *report, error *err) {
    tr->be->download(tr->be, report, tr->m->report, sizeof *report);
    if (!tr->be->finish(tr->be, err)) return false;
    double sums[] = {report->loss, report->failed};
    ranks_sum(tr->ranks, sums, 2);
    report->loss = sums[0];
    if (sums[1] == 0) return true;
    if (report->failed == 0) return error_set(err, "another rank's loss is not finite");
    char *path = run_folder_file(&tr->run, "last.safetensors");
    error_set(err, "step %.0f: the loss or its gradient is not finite; %s %s", report->failed,
              file_exists(path) ? "the last good checkpoint is" : "no checkpoint yet in", path);
    free(path);
    return false;
}

static void show_progress(trainer *tr, double bpc, double lr) {
    const run_state *s = &tr->state;
    double now = clock_seconds(), rate = bytes_done(tr) / s->seconds;
    bool last = s->step == tr->end;
    if (!last && now - tr->shown < (log_is_terminal() ? 0.2 : 5)) return;
    tr->shown = now;
    char left[48] = "", valid[32] = "";
    double minutes = tr->o->train.minutes, seconds = INFINITY;
    if (tr->end != INT64_MAX) seconds = (double)(tr->end - s->step) * s->seconds / (double)s->step;
    if (minutes > 0 && s->total == INT64_MAX) seconds = fmin(seconds, minutes * 60 - s->seconds);
    log_duration(left, seconds);
    if (!isnan(s->valid_bpc)) snprintf(valid, sizeof valid, ", valid %.4f", s->valid_bpc);
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
    json_writer w = {tr->metrics, false};
    json_object_begin(&w, NULL);
    json_integer(&w, "step", s->step);
    json_integer(&w, "bytes", (int64_t)bytes_done(tr));
    json_number(&w, "epoch", (double)s->step / (double)tr->epoch_updates);
    json_number(&w, "seconds", s->seconds);
    json_number(&w, "bpc", bpc);
    json_number(&w, "lr", lr);
    json_number(&w, "grad_norm", report->gradient_norm);
    json_number(&w, "bytes_per_second", bytes_done(tr) / s->seconds);
    json_number(&w, "valid_bpc", s->validated ? s->valid_bpc : NAN);
    if (tr->o->train.rewire_every > 0) json_integer(&w, "blocks_replaced", s->replaced);
    if (tr->o->train.prune_density > 0) json_number(&w, "density", structure_density(tr->m));
    json_object_end(&w);
    fputc('\n', tr->metrics);
    const long length = fflush(tr->metrics) == 0 ? ftell(tr->metrics) : -1;
    if (length < 0) {
        char *path = run_folder_file(&tr->run, "metrics.jsonl");
        error_system(err, "write", path);
        free(path);
        tr->metrics_failed = true;
        return false;
    }
    s->metrics_bytes = length;
    return true;
}

static bool log_metrics(trainer *tr, error *err) {
    run_state *s = &tr->state;
    update_report report;
    if (!clock_stop(tr, err) || !read_report(tr, &report, err)) return false;
    double bpc = report.loss / ((double)s->loss_updates * (double)update_bytes(tr) * M_LN2);
    double lr = schedule_lr(&tr->o->train, s->step - 1, tr->end);
    if (leads(tr) && !write_metrics(tr, &report, bpc, lr, err)) return false;
    s->loss_updates = 0;
    s->replaced = 0;
    s->validated = false;
    tr->be->zero(tr->be, tr->m->report, sizeof report);
    show_progress(tr, bpc, lr);
    clock_start(tr);
    return true;
}

/* ------------------------------------------------------------------------- validation, saving */

static bool save_model(trainer *tr, const char *name, error *err) {
    if (!leads(tr)) return true;
    char *path = run_folder_file(&tr->run, name);
    bool saved = checkpoint_save_model(tr->m, tr->o, tr->state.step, path, err);
    free(path);
    return saved;
}

static bool save_best(trainer *tr, error *err) {
    if (tr->best_due && !save_model(tr, "best.safetensors", err)) return false;
    tr->best_due = false;
    return true;
}

static bool replace_earlier(trainer *tr, error *err) {
    if (leads(tr)) return run_folder_replace(&tr->run, !isnan(tr->state.best_bpc), err);
    tr->run.place = tr->run.path;
    return true;
}

/* Saves the state first: the models can be made again from it, see repair_models. */
static bool save(trainer *tr, error *err) {
    run_state *s = &tr->state;
    update_report report;
    if (!clock_stop(tr, err) || !read_report(tr, &report, err)) return false;
    s->loss = report.loss;
    s->gradient_norm = report.gradient_norm;
    char *path = run_folder_file(&tr->run, "last.state");
    /* the checkpoint is worth saving even if this fails */
    if (leads(tr)) fsync(fileno(tr->metrics));
    bool saved = checkpoint_save_state(tr->m, s, path, err) && save_best(tr, err) &&
                 save_model(tr, "last.safetensors", err);
    if (saved && run_folder_keeps_earlier(&tr->run)) saved = replace_earlier(tr, err);
    tr->has_state = tr->has_state || saved;
    free(path);
    clock_start(tr);
    tr->saved = tr->segment_start;
    return saved;
}

static bool validate(trainer *tr, error *err) {
    run_state *s = &tr->state;
    update_report report;
    evaluation e;
    if (!clock_stop(tr, err) || !read_report(tr, &report, err)) return false;
    model_save_state(tr->m);
    model_use_average(tr->m);
    if (!tr->evaluation) tr->evaluation = evaluate_record(tr->m);
    bool done = evaluate(tr->m, tr->evaluation, tr->valid_text, (uint64_t)tr->o->train.valid_bytes,
                         false, false, &e, err);
    model_use_weights(tr->m);
    model_restore_state(tr->m);
    clock_start(tr);
    if (!done && stop_signal()) return false;
    if (!done) {
        error reason = *err;
        return error_set(err, "step %" PRId64 ": validation: %s", s->step, reason.text);
    }
    s->valid_bpc = e.bpc;
    s->validated = true;
    if (isnan(s->best_bpc) || e.bpc < s->best_bpc) {
        s->best_bpc = e.bpc;
        s->best_step = s->step;
        tr->best_due = true;
    }
    return true;
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

/* Writes models that are missing or damaged again, if the state holds their weights. A run may have
 * been killed after it saved its state and before it saved the models. */
static bool repair_models(trainer *tr, error *err) {
    const run_state *s = &tr->state;
    if (!tr->run.resumed || !leads(tr)) return true;
    bool last = is_model(tr, "last.safetensors", s->step) && !tr->run.replaced;
    bool best = isnan(s->best_bpc) || (is_model(tr, "best.safetensors", s->best_step) &&
                                       !(tr->run.replaced && s->best_step == s->step));
    const train_options *t = &tr->o->train;
    bool changes = t->rewire_every > 0 || t->prune_density > 0;
    /* Whether the weights have changed since validation. */
    bool changed = changes && s->pending != PENDING_ALL;
    if (!best && s->best_step == s->step && !changed) {
        tr->best_due = true;
    } else if (!best) {
        log_warning("%s/best.safetensors: not the model of step %" PRId64
                    ", which validated best; it cannot be made again",
                    tr->run.path, s->best_step);
    }
    if (tr->best_due) log_line("%s/best.safetensors: made again from last.state", tr->run.path);
    if (!last) log_line("%s/last.safetensors: made again from last.state", tr->run.path);
    return save_best(tr, err) && (last || save_model(tr, "last.safetensors", err));
}

/* ------------------------------------------------------------------------------------ loop */

static void issue_update(void *argument) {
    model_update(argument);
}

static void upload_update(trainer *tr, const minibatch *batch) {
    backend *be = tr->be;
    model *m = tr->m;
    const train_options *t = &tr->o->train;
    double step = (double)tr->state.step;
    update_arguments arguments = {
        .learning_rate = schedule_lr(t, tr->state.step, tr->end),
        .beta1 = t->beta1,
        .beta2 = t->beta2,
        .epsilon = t->epsilon,
        .weight_decay = t->weight_decay,
        .clip = t->clip,
        .gradient_scale = 1 / (double)update_bytes(tr),
        .average = fmin(t->average, (1 + step) / (10 + step)),
        .update = (uint64_t)tr->state.step,
    };
    if (batch->update == 0) model_zero_state(m);
    model_drop_input(m, arguments.update, batch->inputs);
    model_set_text(m, batch->inputs, batch->targets);
    be->upload(be, m->arguments, &arguments, sizeof arguments);
}

/* Finds the number of steps that fit into train.minutes once enough updates have been timed, unless
 * another limit comes first. */
static bool plan_steps(trainer *tr, error *err) {
    run_state *s = &tr->state;
    const train_options *t = &tr->o->train;
    if (s->total != INT64_MAX || t->minutes == 0 || s->step >= tr->end) return true;
    if (tr->plan_step == 0) {
        if (s->step < PLAN_SKIP) return true;
        if (!clock_stop(tr, err)) return false;
        tr->plan_step = s->step;
        tr->plan_from = s->seconds;
        return true;
    }
    double elapsed = seconds_now(tr) - tr->plan_from;
    bool enough = s->step >= tr->plan_step + PLAN_STEPS &&
                  elapsed >= fmin(plan_seconds, plan_share * t->minutes * 60);
    if (!enough && seconds_now(tr) < t->minutes * 60) return true;
    if (!clock_stop(tr, err)) return false;
    double typical = (s->seconds - tr->plan_from) / (double)(s->step - tr->plan_step);
    s->total = s->step + (int64_t)(fmax(0, t->minutes * 60 - s->seconds) / typical);
    s->minutes = t->minutes;
    if (s->total > tr->end) return true; /* another limit will come first */
    tr->end = s->total;
    log_line("%g minutes are %" PRId64 " steps at %.1f ms a step", t->minutes, s->total,
             typical * 1e3);
    return true;
}

static void drop_recording(const trainer *tr, recording **r) {
    if (*r) tr->be->recording_free(tr->be, *r);
    *r = NULL;
}

/* Changes the patterns. Recordings refer to patterns, so they are made again. The change must
 * directly follow an update, while the activations of its gradient still exist; it is therefore
 * never pending. */
static bool change_structure(trainer *tr, const structure_place *at, error *err) {
    if (!tr->be->finish(tr->be, err)) return false;
    double start = clock_seconds();
    drop_recording(tr, &tr->update);
    drop_recording(tr, &tr->evaluation);
    tr->state.replaced += structure_update(tr->m, &tr->o->train, at);
    tr->update = tr->be->record(tr->be, issue_update, tr->m);
    bool done = tr->be->finish(tr->be, err);
    tr->changing += clock_seconds() - start;
    return done;
}

/* Does what is due after an update, in an order that stopping and resuming preserves. A signal may
 * end the validation; the state then records that all of this is still to be done. best.safetensors
 * is written at once, but the first time only after a state, so that every model belongs to a run
 * that can be resumed. */
static bool after_update(trainer *tr, error *err) {
    run_state *s = &tr->state;
    const train_options *t = &tr->o->train;
    if (!plan_steps(tr, err)) return false;
    const structure_place at = {s->step, tr->end, s->start_density};
    bool change = s->pending == PENDING_NOTHING && structure_is_due(tr->m, t, &at);
    if (change && !change_structure(tr, &at, err)) return false;
    bool last = s->step >= tr->end, metrics_only = s->pending == PENDING_METRICS;
    if (!metrics_only) s->pending = PENDING_ALL;
    bool valid = !metrics_only && tr->valid_text && (last || s->step % t->valid_every == 0);
    if (valid && !validate(tr, err)) return stop_signal() != 0;
    if (tr->best_due && !(tr->has_state ? save_best(tr, err) : save(tr, err))) return false;
    s->pending = PENDING_METRICS;
    bool log = s->loss_updates > 0 && (last || s->step % t->log_every == 0);
    if (log && !log_metrics(tr, err)) return false;
    s->pending = PENDING_NOTHING;
    s->finished = last;
    bool due = clock_of_ranks(tr) - tr->saved > t->checkpoint_minutes * 60;
    return !(last || due) || save(tr, err);
}

/* Ends the run between two updates. */
static bool stop_here(trainer *tr, error *err) {
    const run_state *s = &tr->state;
    if (s->step == 0 && run_folder_keeps_earlier(&tr->run)) return stop_check(err);
    if (!save(tr, err)) return false;
    log_line("stopped after step %" PRId64 "; --resume goes on", s->step);
    return true;
}

/* If metrics cannot be written or text cannot be read, the run ends, but its progress is saved. */
static void save_and_fail(trainer *tr, error *err) {
    error reason = *err, ignored;
    if (!save(tr, &ignored)) return;
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
    tr->update = tr->be->record(tr->be, issue_update, m);
    clock_start(tr);
    tr->saved = tr->segment_start;
    /* A limit that was lowered may already be reached. */
    if (s->pending != PENDING_NOTHING || s->step >= tr->end) done = after_update(tr, err);
    while (done && s->step < tr->end && !ranks_stop(tr->ranks)) {
        if (!wait_for_text(tr, r)) break;
        const minibatch *next = reader_next(r, err);
        done = next != NULL;
        if (!done && !tr->ranks) save_and_fail(tr, err);
        if (!done) break;
        upload_update(tr, next);
        tr->be->replay(tr->be, tr->update);
        s->step++;
        s->loss_updates++;
        done = after_update(tr, err);
    }
    if (tr->metrics_failed) save_and_fail(tr, err);
    /* A signal may arrive between any two of the lines above. */
    if (done && !s->finished) done = stop_here(tr, err);
    reader_stop(r);
    if (tr->changing > 0) log_line("changes of structure took %.3g seconds", tr->changing);
    return done;
}

static void report_result(const trainer *tr, train_result *result) {
    const run_state *s = &tr->state;
    *result = (train_result){.steps = s->step,
                             .bytes = (uint64_t)s->step * update_bytes(tr),
                             .epochs = (double)s->step / (double)tr->epoch_updates,
                             .seconds = s->seconds,
                             .bytes_per_second = s->seconds > 0 ? bytes_done(tr) / s->seconds : 0,
                             .valid_bpc = s->valid_bpc,
                             .parameters = parameter_scalars(&tr->m->parameters),
                             .signal = stop_signal()};
    snprintf(result->checkpoint, sizeof result->checkpoint, "%s/last.safetensors", tr->run.path);
}

/* Rank 0 alone locks the folder and writes to it; the others only read its state. */
static bool check_folder(trainer *tr, error *err) {
    run_folder *run = &tr->run;
    if (leads(tr) && !run_folder_check(run, tr->o, err)) return false;
    int what[] = {run->resumed, run_folder_keeps_earlier(run), run->replaced};
    ranks_broadcast(tr->ranks, what, sizeof what);
    run->resumed = what[0];
    run->place = what[1] ? run->next : run->path;
    run->replaced = what[2];
    return true;
}

static bool go_on(const trainer *tr, error *err) {
    return !ranks_stop(tr->ranks) || stop_check(err);
}

/* Refuses everything that can be refused before it prints or writes anything. */
static bool set_up(trainer *tr, error *err) {
    if (!share_streams(tr, err) || !check_folder(tr, err)) return false;
    if (!read_data(tr, err) || !open_state(tr, err)) return false;
    if (!go_on(tr, err)) return false;
    tr->be = options_backend(&tr->o->run, err);
    if (!tr->be || (tr->ranks && !tr->be->join(tr->be, tr->ranks, err))) return false;
    if (!create_model(tr, err) || !go_on(tr, err)) return false;
    load_report(tr);
    if (!tr->run.resumed) tr->state.start_density = structure_density(tr->m);
    if (!structure_check(tr->o, tr->state.start_density, err)) return false;
    set_end(tr);
    if (tr->state.finished || !leads(tr)) return true;
    if (!run_folder_prepare(&tr->run, tr->o, err)) return false;
    tr->metrics = run_folder_metrics(&tr->run, tr->state.metrics_bytes, err);
    return tr->metrics != NULL;
}

static void tear_down(trainer *tr) {
    drop_recording(tr, &tr->update);
    drop_recording(tr, &tr->evaluation);
    model_free(tr->m);
    if (tr->be) tr->be->destroy(tr->be);
    if (tr->valid_text) sequence_free(tr->valid_text);
    if (tr->valid) corpus_free(tr->valid);
    if (tr->train) corpus_free(tr->train);
    if (tr->metrics) fclose(tr->metrics);
    if (tr->state_file.path) safetensors_close(&tr->state_file);
    run_folder_end(&tr->run);
}

bool train(options *o, const char *folder, train_start start, train_result *result, error *err) {
    trainer tr = {.o = o, .ranks = o->run.ranks};
    run_folder_begin(&tr.run, folder, start);
    stop_catch();
    bool done = set_up(&tr, err);
    if (done) {
        describe(&tr);
        done = repair_models(&tr, err);
    }
    if (done && tr.state.finished) {
        log_line("%s: already finished at step %" PRId64, folder, tr.state.step);
    } else if (done) {
        done = run_updates(&tr, err);
    }
    if (done) report_result(&tr, result);
    tear_down(&tr);
    return done;
}
