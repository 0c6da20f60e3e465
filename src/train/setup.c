#include "train/internal.h"

#include "core/file.h"
#include "core/integer.h"
#include "core/log.h"
#include "core/stop.h"
#include "data/files.h"
#include "graph/metrics.h"
#include "train/labels.h"
#include "train/schedule.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- data */

/* Shares the streams out over the ranks, in groups that share draws of dropout. */
static bool share_streams(trainer *tr, error *err) {
    const int rank = ranks_rank(tr->ranks), count = ranks_count(tr->ranks);
    const int batch = (int)tr->o->train.batch, groups = batch / STREAM_GROUP;
    if (count > 1 && groups < count) {
        return config_refuse(&tr->o->config, err, "train.batch",
                             "expected at least %d, %d for each of %d ranks, got %d",
                             STREAM_GROUP * count, STREAM_GROUP, count, batch);
    }
    const int first = STREAM_GROUP * (groups * rank / count);
    const int end = rank == count - 1 ? batch : STREAM_GROUP * (groups * (rank + 1) / count);
    tr->streams = (stream_share){batch, first, end - first};
    return true;
}

static bool reads_input(const config_list *files) {
    return paths_read_input((const char *const *)files->items, files->count);
}

static bool read_data(trainer *tr, error *err) {
    data_options *d = &tr->o->data;
    if (tr->ranks && (reads_input(&d->train) || reads_input(&d->valid))) {
        return error_set(err, "data: ranks cannot share standard input: expected files");
    }
    const corpus_options how = d->reading;
    int batch = (int)tr->o->train.batch, bptt = (int)tr->o->train.bptt;
    const bool labels = tr->o->train.label_weight > 0, given = d->given_train != NULL;
    tr->train = given ? d->given_train : corpus_read(d->train.items, d->train.count, &how, err);
    tr->valid = d->given_valid;
    d->given_train = d->given_valid = NULL;
    if (!tr->train) return false;
    if (d->valid.count && !given) {
        tr->valid = corpus_read(d->valid.items, d->valid.count, &how, err);
        if (!tr->valid) return false;
    }
    if (d->exclude.count && !given) {
        for (int i = 0; i < 2; i++) {
            corpus *c = i ? tr->valid : tr->train;
            int64_t dropped =
                c ? corpus_exclude(c, d->exclude.items, d->exclude.count, &how, err) : 0;
            if (dropped < 0) return false;
            tr->excluded += dropped;
        }
    }
    if (tr->valid) {
        const size_t shared = corpus_shared(tr->valid, tr->train);
        if (shared > 0 && ranks_rank(tr->ranks) == 0) {
            log_warning("data.valid: %zu of its %zu documents stand in data.train too, so that "
                        "validation is on text that is trained on",
                        shared, tr->valid->count);
        }
    }
    if (!tr->valid && d->valid_fraction > 0 && !given) {
        const double most = fmax(d->valid_fraction, LABELS_HELD_OUT);
        tr->valid = corpus_split(tr->train, d->valid_fraction, labels ? most : d->valid_fraction);
    }
    if (labels && !labels_find(tr->o, tr->train, tr->valid, d->valid.count == 0, err)) return false;
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

static model *training_model(const trainer *tr, graph *const *graphs, error *err) {
    const train_options *t = &tr->o->train;
    model *m = model_create(tr->be, &tr->o->model, graphs, tr->streams.count, (int)t->bptt,
                            (int)t->recompute, options_use(tr->o), err);
    if (!m) return NULL;
    if (t->optimizer == OPTIMIZER_MUON && !model_uses_muon(m)) {
        model_free(m);
        config_refuse(
            &tr->o->config, err, "train.optimizer",
            "expected adam: muon trains dense weights, and this model's are block-sparse");
        return NULL;
    }
    model_set_first_stream(m, tr->streams.first);
    m->text_weight = t->text_weight;
    m->label_weight = t->label_weight;
    return m;
}

/* Whether all ranks, which may be on several hosts, begin with the same patterns and
 * weights. */
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
    /* Other differences show in the shapes of tensors. */
    const char *other = options_other_structure(o, &c.options);
    if (other) {
        error_set(err, "%s: its %s differs from the config's", source, other);
    } else {
        tr->m = training_model(tr, c.graphs, err);
        memset(c.graphs, 0, sizeof c.graphs); /* they belong to the model now */
    }
    bool created = tr->m && checkpoint_load_weights(&c, tr->m, &o->classes, err);
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
    return created && tr->be->memory->finish(tr->be, err) && same_model(tr, err);
}

static int64_t labels_of(const trainer *tr, const corpus *c) {
    return c && c->classes ? labels_hash(tr->o, c) : 0;
}

/* Opens the state to resume from. It must be of the same text and labels. */
static bool open_state(trainer *tr, error *err) {
    const run_state now = {.train_bytes = (int64_t)tr->train->size,
                           .train_text = corpus_hash(tr->train),
                           .train_labels = labels_of(tr, tr->train),
                           .valid_text = tr->valid ? corpus_hash(tr->valid) : 0,
                           .valid_labels = labels_of(tr, tr->valid),
                           .total = INT64_MAX,
                           .gradient_norm = NAN,
                           .valid_bpc = NAN,
                           .best_bpc = NAN,
                           .valid_label_loss = NAN,
                           .valid_label_error = NAN,
                           .best_label_loss = NAN,
                           .best_label_error = NAN};
    run_state *s = &tr->state;
    *s = now;
    if (!ranks_same(tr->ranks, now.train_text, "the text of data.train", err) ||
        !ranks_same(tr->ranks, now.train_labels, "the labels of data.train", err) ||
        !ranks_same(tr->ranks, now.valid_text, "the text of data.valid", err) ||
        !ranks_same(tr->ranks, now.valid_labels, "the labels of data.valid", err)) {
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
    } else if (same && s->train_labels != now.train_labels) {
        same = error_key(err, "data.train",
                         "cannot change on resuming: %s was trained with other labels", path);
    } else if (same && s->valid_text != now.valid_text) {
        same = error_key(err, "data.valid",
                         "cannot change on resuming: %s was validated on another text", path);
    } else if (same && s->valid_labels != now.valid_labels && s->valid_labels > 0) {
        same = error_key(err, "data.valid",
                         "cannot change on resuming: %s was validated with other labels", path);
    }
    s->valid_labels = now.valid_labels; /* older states lack it */
    tr->records.has_state = same;
    free(path);
    return same;
}

/* Loads the loss so far, to which the device adds. */
static void load_report(trainer *tr) {
    const run_state *s = &tr->state;
    update_report report = {.gradient_norm = s->gradient_norm};
    if (trainer_leads(tr)) {
        report.loss = s->loss;
        report.label_loss = s->label_loss;
        report.label_weight = s->label_weight;
    }
    if (tr->run.resumed) tr->be->memory->upload(tr->be, tr->m->report, &report, sizeof report);
}

/* Says that the learning rate jumps where the run is to end at another step than before. */
static void say_new_rate(const trainer *tr, int64_t total_before) {
    const int64_t step = tr->state.step;
    train_options was = tr->o->train;
    was.steps = tr->run.steps_before;
    was.epochs = tr->run.epochs_before;
    const int64_t end = integer_min(total_before, schedule_limit(&was, tr->epoch_updates));
    const double before = schedule_lr(&was, step - 1, end);
    const double now = schedule_lr(&tr->o->train, step, tr->end);
    if (end == tr->end || step >= tr->end || !trainer_leads(tr)) return;
    if (fabs(now - before) < 0.1 * before) return;
    log_warning(
        "the learning rate goes on at %.2g, where it was %.2g, since the run ends after %" PRId64
        " updates in place of %" PRId64,
        now, before, tr->end, end);
}

/* Finds where the run and the learning rate's schedule end. The number of steps that fit into
 * train.minutes, as found last, is kept when other limits change on resuming. */
static void set_end(trainer *tr) {
    const train_options *t = &tr->o->train;
    run_state *s = &tr->state;
    const int64_t total_before = s->total;
    if (s->minutes != t->minutes) {
        const bool timed = t->minutes > 0 && s->step > 0 && s->seconds > 0;
        const schedule_times each = {.update = s->seconds / (double)s->step};
        const double left = t->minutes * 60 - s->elapsed;
        s->total = timed ? s->step + schedule_fit(t, &each, left) : INT64_MAX;
        s->minutes = timed ? t->minutes : 0;
    }
    tr->end = integer_min(s->total, schedule_limit(t, tr->epoch_updates));
    if (s->step < tr->end) s->finished = false;
    if (tr->run.resumed && s->step > 0) say_new_rate(tr, total_before);
}

/* Which weights Muon trains, where it trains any. */
static void describe_optimizer(const model *m) {
    char names[CELL_MAX_STAGES * 18] = "", name[16];
    size_t weights = 0, used = 0;
    for (int s = 0; s < model_stages(&m->config); s++) {
        if (!m->squares[s]) continue;
        weights += m->parameters.items[m->stage_parameters[s].weight].count;
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "",
                                 model_stage_name(&m->config, s, name));
    }
    if (weights > 0)
        log_line("optimizer: muon for %s, %zu weights; adam for the rest", names, weights);
}

void trainer_describe(const trainer *tr) {
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
    log_line("device: %s, %s%s%s", tr->be->device, precision_name(tr->be->precision),
             tr->be->kernels ? ", kernels for " : "", tr->be->kernels ? tr->be->kernels : "");
    char cell[16], layers[32] = "";
    if (m->layers > 1) snprintf(layers, sizeof layers, "%d layers of ", m->layers);
    if (tr->ranks) {
        log_line("ranks: %d, each with about %d of %d streams", tr->ranks->count, tr->streams.count,
                 tr->streams.all);
    }
    log_line("model: %s, %s%" PRId64 " units, %zu parameters",
             config_choice(CELL_KINDS, (int)m->config.cell, cell, sizeof cell), layers,
             m->config.hidden, parameter_scalars(&m->parameters));
    describe_optimizer(m);
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
    const bool raw = tr->valid && tr->valid->count > 0 && tr->valid->documents[0].raw;
    const char *held = raw && o->data.valid.count == 0 ? ", the end of each text" : "";
    log_line("data: %" PRIu64 " documents, %" PRIu64 " bytes to train on, %" PRIu64
             " to validate on%s",
             tr->train->count, tr->train->size, tr->valid_text ? tr->valid_text->size : 0,
             tr->valid_text ? held : " (no best.safetensors)");
    if (tr->o->classes.count) {
        log_line("labels: %d classes in %zu documents to train on, %zu to validate on",
                 tr->o->classes.count, labels_count(tr->train), labels_count(tr->valid));
    }
    if (tr->excluded) log_line("data: %" PRId64 " documents excluded", tr->excluded);
    log_line("epoch: %" PRIu64 " updates of %" PRId64 " x %" PRId64 " bytes, %" PRIu64
             " bytes dropped",
             tr->epoch_updates, o->train.batch, o->train.bptt,
             reader_epoch_dropped(tr->train, (int)o->train.batch, (int)o->train.bptt));
    if (tr->run.resumed) log_line("resuming after step %" PRId64, tr->state.step);
}

/* Rank 0 alone locks the folder and writes to it; the others only read its state. */
static bool check_folder(trainer *tr, error *err) {
    run_folder *run = &tr->run;
    if (trainer_leads(tr) && !run_folder_check(run, tr->o, err)) return false;
    int what[] = {run->resumed, run_folder_keeps_earlier(run), run->replaced};
    ranks_broadcast(tr->ranks, what, sizeof what);
    run->resumed = what[0];
    run->place = what[1] ? run->next : run->path;
    run->replaced = what[2];
    return trainer_leads(tr) || !run->resumed || run_folder_keep(run, tr->o, err);
}

/* Refuses a disk that cannot hold what saving needs at most: a state, the one before it, two models
 * and a third that replaces one of them; of a resumed run a state and a model beside what is
 * there. */
static bool check_disk(const trainer *tr, error *err) {
    const model *m = tr->m;
    const double weights = sizeof(float) * (double)m->parameters.total;
    const double streams =
        2 * sizeof(float) * (double)(m->config.hidden * m->config.layers * tr->streams.all);
    const double moments2 = sizeof(float) * (double)m->second_moments;
    const double state = 3 * weights + moments2 + streams, model = weights;
    const double bytes = tr->run.resumed ? state + model : 2 * state + 3 * model;
    return file_check_space(tr->run.place, bytes, "what the run saves",
                            "expected a folder on another disk", err);
}

static bool go_on(const trainer *tr, error *err) {
    return !ranks_stop(tr->ranks) || stop_check(err);
}

bool trainer_set_up(trainer *tr, error *err) {
    if (!share_streams(tr, err) || !check_folder(tr, err)) return false;
    if (!read_data(tr, err) || !open_state(tr, err)) return false;
    if (!go_on(tr, err)) return false;
    tr->be = options_backend(&tr->o->run, err);
    if (!tr->be || (tr->ranks && !tr->be->update->join(tr->be, tr->ranks, err))) return false;
    if (!create_model(tr, err) || !go_on(tr, err)) return false;
    load_report(tr);
    set_end(tr);
    if (tr->state.finished || !trainer_leads(tr)) return true;
    if (!run_folder_prepare(&tr->run, tr->o, err) || !check_disk(tr, err)) return false;
    tr->records.metrics = run_folder_metrics(&tr->run, tr->state.metrics_bytes, err);
    return tr->records.metrics != NULL;
}
