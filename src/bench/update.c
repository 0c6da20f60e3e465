#include "bench/update.h"

#include "bench/timing.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/philox.h"
#include "data/minibatches.h"
#include "train/evaluate.h"
#include "train/trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Shares of the measuring time. */
static const double text_share = 0.6, gradient_share = 0.1, forward_share = 0.3;

static const double round_seconds = 0.25; /* of the updates between two waits for the device */

enum {
    TEXT_BYTES = 8 << 20, /* size of the made-up text; at least four minibatches */
    MOST_ROUNDS = 99,
    MOST_GRADIENTS = 9 /* runs of the weights' gradient */
};

typedef struct runner {
    const options *o;
    const update_options *how;
    update_results *r;
    backend *be;
    model *m;
    corpus *text;
    reader *reader;
    int64_t step;
    recording *update, *forward, *weight_gradient;
    update_timing timing;
    double samples[UPDATE_PARTS][MOST_ROUNDS]; /* seconds of each part, once a round */
    int sample_count;
} runner;

static void say(const runner *b, const char *what) {
    if (b->how->progress) log_progress("measuring %s", what);
}

/* ---------------------------------------------------------------------------------- updates */

static void run_update(runner *b) {
    train_step(b->m, b->update, reader_next(b->reader), &b->o->train, b->step++, INT64_MAX);
}

static void run_forward(runner *b) {
    const minibatch *batch = reader_next(b->reader);
    if (batch->update == 0) model_zero_state(b->m);
    model_set_text(b->m, batch->inputs, batch->targets);
    b->be->memory->replay(b->be, b->forward);
}

static bool time_calls(runner *b, void (*run)(runner *b), int count, double *each, error *err) {
    double start = clock_seconds();
    for (int i = 0; i < count; i++) run(b);
    bool done = b->be->memory->finish(b->be, err);
    *each = (clock_seconds() - start) / count;
    return done;
}

/* Runs rounds for `seconds` in all, calls `after` (unless NULL) after each one, and returns their
 * median. As in training, the device is waited for only at the end of a round. */
static bool time_rounds(runner *b, void (*run)(runner *b), double seconds, void (*after)(runner *b),
                        double *each, error *err) {
    double rounds[MOST_ROUNDS];
    int calls = 1, count = 1;
    if (!time_calls(b, run, 1, each, err)) return false;
    if (*each <= seconds) { /* there is time for more rounds */
        if (!time_calls(b, run, 1, each, err)) return false;
        double length = fmin(round_seconds, seconds / 4);
        calls = (int)fmin(fmax(2, ceil(length / *each)),
                          1e6); /* the first update may wait to be queued */
        count = (int)fmin(fmax(1, floor(seconds / (*each * calls))), MOST_ROUNDS);
        for (int i = 0; i < count; i++) {
            if (!time_calls(b, run, calls, &rounds[i], err)) return false;
            if (after) after(b);
        }
        *each = median(rounds, count);
    } else if (after) {
        after(b);
    }
    return true;
}

static void start_reader(runner *b, const corpus *c) {
    if (b->reader) reader_stop(b->reader);
    b->reader = reader_start(c, all_streams(b->m->batch), b->m->columns, b->m->steps, 1, 0);
}

/* ------------------------------------------------------------------------------------ parts
 * Marks stand between the parts of the very updates that are timed, at the clocks and with the
 * caches of training. */

static void issue_update(void *argument) {
    runner *b = argument;
    model_update(b->m);
}

/* Reads the marks of a round's last update. */
static void take_sample(runner *b) {
    int at = b->sample_count++;
    for (int part = 0; part < UPDATE_PARTS; part++) b->samples[part][at] = 0;
    for (int i = 0; i < b->timing.count; i++) {
        b->samples[b->timing.part[i]][at] += b->be->memory->elapsed(b->be, i, i + 1);
    }
}

/* Computes the recurrent weights' gradient again from the results of backward, for the first
 * segment. */
static void issue_weight_gradient(void *argument) {
    const runner *b = argument;
    backend *be = b->be;
    model *m = b->m;
    be->memory->mark(be, b->timing.count + 1);
    for (int s = 0; s < model_stages(&m->config); s++) {
        const parameter *p = &m->parameters.items[m->stage_parameters[s].weight];
        const model_wgrad in = model_wgrad_of(m, s);
        be->products->wgrad(be, m->devices[s], in.dy, in.x, m->segment_steps, m->columns,
                            (char *)m->into + p->offset * be->real_size,
                            m->layer[0].cell.workspace);
    }
    be->memory->mark(be, b->timing.count + 2);
}

static bool time_weight_gradient(runner *b, double *seconds, error *err) {
    double all[MOST_GRADIENTS], budget = gradient_share * b->how->seconds / b->r->update;
    int runs = (int)fmin(fmax(1, budget), MOST_GRADIENTS);
    say(b, "the weights' gradient");
    for (int i = 0; i < runs; i++) {
        run_update(b); /* in training the update comes first */
        b->be->memory->replay(b->be, b->weight_gradient);
        all[i] = b->be->memory->elapsed(b->be, b->timing.count + 1, b->timing.count + 2);
    }
    *seconds = median(all, runs) * b->m->steps / b->m->segment_steps;
    return b->be->memory->finish(b->be, err);
}

static bool time_updates(runner *b, error *err) {
    update_results *r = b->r;
    double gradient, *parts = r->parts;
    say(b, "updates");
    if (!time_rounds(b, run_update, text_share * b->how->seconds, take_sample, &r->update, err) ||
        !time_weight_gradient(b, &gradient, err)) {
        return false;
    }
    double typical[UPDATE_PARTS];
    for (int part = 0; part < UPDATE_PARTS; part++) {
        typical[part] = median(b->samples[part], b->sample_count);
    }
    parts[TIME_FORWARD] = typical[UPDATE_FORWARD];
    parts[TIME_RECOMPUTE] = typical[UPDATE_RECOMPUTE];
    parts[TIME_WEIGHT_GRADIENT] = gradient;
    parts[TIME_BACKWARD] = typical[UPDATE_BACKWARD] - gradient;
    parts[TIME_HEAD] = typical[UPDATE_HEAD];
    parts[TIME_OPTIMISER] = typical[UPDATE_OPTIMISER];
    return true;
}

/* ----------------------------------------------------------------------------------- set-up */

/* Text whose bytes are as frequent as in English, as a file that is read back and removed. */
static corpus *make_text(uint64_t bytes, error *err) {
    static const char letters[] =
        "eeeeeeeeeeeettttttttttaaaaaaaaaooooooooiiiiiiinnnnnnnsssssssrrrrrr"
        "hhhhhhllllldddduuucccmmmfffwwggyyppbbvk                    .\n";
    philox_stream random = philox_start(1, PHILOX_BENCH, 1, 0);
    char *path = mem_format("%s/smallworld-bench-XXXXXX.txt", file_scratch_folder());
    const int file = mkstemps(path, 4);
    FILE *out = file >= 0 ? fdopen(file, "wb") : NULL;
    corpus *c = NULL;
    for (uint64_t i = 0; out && i < bytes; i++) {
        fputc(letters[(uint32_t)philox_next(&random) % (sizeof letters - 1)], out);
    }
    const bool failed = !out || ferror(out);
    if ((out && fclose(out) != 0) || failed) {
        error_system(err, "write", path);
    } else {
        c = corpus_read(&path, 1, &(corpus_options){0}, err);
    }
    if (file >= 0 && !out) close(file);
    if (file >= 0) unlink(path);
    free(path);
    return c;
}

static bool read_text(runner *b, error *err) {
    const options *o = b->o;
    uint64_t positions = (uint64_t)o->train.batch * (uint64_t)o->train.bptt;
    if (b->how->count) {
        const corpus_options how = o->data.reading;
        b->text = corpus_read(b->how->files, b->how->count, &how, err);
    } else {
        b->text = make_text(positions > TEXT_BYTES / 4 ? 4 * positions + 1 : TEXT_BYTES, err);
    }
    if (!b->text || reader_epoch_updates(b->text, (int)o->train.batch, (int)o->train.bptt)) {
        return b->text != NULL;
    }
    return error_set(err, "--data: %" PRIu64 " bytes are less than one minibatch of %" PRIu64,
                     b->text->size, positions);
}

static void describe(const runner *b) {
    char cell[16], graph[32], norm[16];
    update_results *r = b->r;
    const model *m = b->m;
    r->hidden = m->config.hidden;
    r->parameters = (int64_t)parameter_scalars(&m->parameters);
    r->batch = m->batch;
    r->bptt = m->steps;
    r->segments = m->segments;
    memcpy(r->memory, m->plan.bytes, sizeof r->memory);
    snprintf(r->device, sizeof r->device, "%s", b->be->device);
    r->precision = precision_name(b->be->precision);
    snprintf(r->description, sizeof r->description,
             "%s, norm %s%s, %" PRId64 " units, block %" PRId64
             ", %s, %.4g M parameters, B = %d, T = %d",
             config_choice(CELL_KINDS, (int)m->config.cell, cell, sizeof cell),
             config_choice(NORM_KINDS, m->config.norm, norm, sizeof norm),
             m->config.coupled_gates ? ", coupled gates" : "", r->hidden, m->config.block,
             config_choice(GRAPH_KINDS, (int)m->config.graph, graph, sizeof graph),
             (double)r->parameters * 1e-6, m->batch, m->steps);
}

/* Records an update, and has the choice of its kernels explained. */
static void record_explained(runner *b) {
    size_t length = 0;
    FILE *out = b->be->bench ? mem_stream(&b->r->kernels, &length) : NULL;
    if (out) b->be->bench->explain(b->be, out);
    b->update = b->be->memory->record(b->be, issue_update, b);
    if (!out) return;
    b->be->bench->explain(b->be, NULL);
    mem_stream_end(out);
}

/* Does everything up to the first update, in the order of training. */
static bool start(runner *b, error *err) {
    const options *o = b->o;
    if (!read_text(b, err)) return false;
    b->be = options_backend(&o->run, err);
    if (!b->be) return false;
    b->m = model_create(b->be, &o->model, NULL, (int)o->train.batch, (int)o->train.bptt,
                        (int)o->train.recompute, options_use(o), err);
    if (!b->m) return false;
    model_initialise(b->m);
    start_reader(b, b->text);
    b->timing.part = mem_alloc(UPDATE_MOST_PARTS(b->m->segments), sizeof *b->timing.part);
    b->m->timing = &b->timing;
    record_explained(b);
    run_update(b);
    if (!b->be->memory->finish(b->be, err)) return false;
    describe(b);
    return true;
}

/* Checks that all losses and gradients were finite. */
static bool check_report(const runner *b, error *err) {
    update_report report;
    b->be->memory->download(b->be, &report, b->m->report, sizeof report);
    if (!b->be->memory->finish(b->be, err)) return false;
    if (report.failed == 0) return true;
    return error_set(err, "update %.0f: the loss or its gradient is not finite", report.failed);
}

static void free_model(runner *b) {
    recording **all[] = {&b->update, &b->forward, &b->weight_gradient};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        if (*all[i]) b->be->memory->recording_free(b->be, *all[i]);
        *all[i] = NULL;
    }
    if (b->reader) reader_stop(b->reader);
    model_free(b->m);
    b->reader = NULL;
    b->m = NULL;
}

static bool measure_training(runner *b, error *err) {
    if (!start(b, err)) return false;
    b->weight_gradient = b->be->memory->record(b->be, issue_weight_gradient, b);
    return time_updates(b, err) && check_report(b, err);
}

/* Measures scoring, with a model made as eval makes it. */
static bool measure_scoring(runner *b, error *err) {
    const options *o = b->o;
    int steps = b->m->segment_steps;
    double seconds;
    say(b, "scoring");
    free_model(b);
    b->m =
        model_create(b->be, &o->model, NULL, (int)o->train.batch, steps, 1, MODEL_INFERENCE, err);
    if (!b->m) return false;
    model_initialise(b->m);
    start_reader(b, b->text);
    b->forward = evaluate_record(b->m);
    if (!time_rounds(b, run_forward, forward_share * b->how->seconds, NULL, &seconds, err)) {
        return false;
    }
    b->r->forward = seconds * (double)o->train.bptt / steps;
    return true;
}

bool update_measure(options *o, const update_options *how, update_results *results, error *err) {
    runner b = {.o = o, .how = how, .r = results};
    *results = (update_results){0};
    bool done = measure_training(&b, err) && measure_scoring(&b, err);
    free_model(&b);
    if (b.be) b.be->memory->destroy(b.be);
    if (b.text) corpus_free(b.text);
    free(b.timing.part);
    return done;
}

/* ------------------------------------------------------------------------------------- reports */

static const char *const part_names[TIME_PARTS] = {"forward",         "recompute", "backward",
                                                   "weight_gradient", "head",      "optimiser"};
static const char *const arena_keys[PLAN_ARENAS] = {"weights", "optimiser", "activations",
                                                    "tables"};

static double bytes_of_update(const update_results *r) {
    return (double)r->batch * (double)r->bptt;
}

static double bytes_per_second(const update_results *r) {
    return bytes_of_update(r) / r->update;
}

/* At 6 operations for each parameter and byte. */
static double tflops(const update_results *r) {
    return 6 * (double)r->parameters * bytes_per_second(r) * 1e-12;
}

/* The microseconds of a step in one direction. */
static double step_time(const update_results *r, time_part part) {
    return r->parts[part] / (double)r->bptt * 1e6;
}

static double peak_memory(const update_results *r) {
    double total = 0;
    for (int a = 0; a < PLAN_ARENAS; a++) total += (double)r->memory[a];
    return total;
}

void update_text(const update_results *r, FILE *out) {
    char text[16];
    fprintf(out, "%s, %s\n%s\nmemory:", r->device, r->precision, r->description);
    for (int a = 0; a < PLAN_ARENAS; a++) {
        fprintf(out, " %s %s,", arena_keys[a], log_bytes(text, (double)r->memory[a]));
    }
    fprintf(out, " at most %s\n\n%-18s %10s %8s\n", log_bytes(text, peak_memory(r)), "", "ms",
            "share");
    for (int part = 0; part < TIME_PARTS; part++) {
        if (part == TIME_RECOMPUTE && r->segments == 1) continue;
        fprintf(out, "%-18s %10.3f %6.1f %%\n",
                part == TIME_WEIGHT_GRADIENT ? "weight gradient" : part_names[part],
                r->parts[part] * 1e3, 100 * r->parts[part] / r->update);
    }
    fprintf(out, "%-18s %10.3f\n\n", "update", r->update * 1e3);
    fprintf(out, "training        %12.0f bytes/s\n", bytes_per_second(r));
    fprintf(out, "scoring         %12.0f bytes/s\n", bytes_of_update(r) / r->forward);
    fprintf(out, "%.3g TFLOP/s at 6 operations a parameter and byte\n", tflops(r));
    fprintf(out, "a step: forward %.1f us, backward %.1f us\n", step_time(r, TIME_FORWARD),
            step_time(r, TIME_BACKWARD));
}

void update_json(const update_results *r, FILE *out) {
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_string(&w, "device", r->device);
    json_string(&w, "precision", r->precision);
    json_string(&w, "model", r->description);
    json_integer(&w, "hidden", r->hidden);
    json_integer(&w, "parameters", r->parameters);
    json_integer(&w, "batch", r->batch);
    json_integer(&w, "bptt", r->bptt);
    json_integer(&w, "segments", r->segments);
    json_number(&w, "bytes_per_second", bytes_per_second(r));
    json_number(&w, "ms_per_update", r->update * 1e3);
    json_object_begin(&w, "parts_ms");
    for (int part = 0; part < TIME_PARTS; part++) {
        json_number(&w, part_names[part], r->parts[part] * 1e3);
    }
    json_object_end(&w);
    json_number(&w, "forward_bytes_per_second", bytes_of_update(r) / r->forward);
    json_number(&w, "tflops", tflops(r));
    json_object_begin(&w, "step");
    json_number(&w, "forward_us", step_time(r, TIME_FORWARD));
    json_number(&w, "backward_us", step_time(r, TIME_BACKWARD));
    json_object_end(&w);
    json_number(&w, "peak_memory", peak_memory(r));
    json_object_begin(&w, "memory");
    for (int a = 0; a < PLAN_ARENAS; a++) {
        json_integer(&w, arena_keys[a], (int64_t)r->memory[a]);
    }
    json_object_end(&w);
    json_object_end(&w);
    fputc('\n', out);
}
