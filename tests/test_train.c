/* Training on a backend: that it learns and repeats; that a run which was stopped and resumed ends
 * with the files of one that never was; what makes it stop; and what is made of its checkpoints. */
#include "support.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/npy.h"
#include "data/reader.h"
#include "probe/features.h"
#include "train/checkpoint.h"
#include "train/evaluate.h"
#include "train/schedule.h"
#include "train/structure.h"
#include "train/trainer.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---------------------------------------------------------------------------- interventions
 * The linker puts these in front of the trainer's own calls (--wrap), so that a test can send a
 * signal or spoil the learning rate at a step of its choice. */

static int64_t signal_step = -1; /* the signal comes while this update (from 0) is made ready */
static bool signal_first;        /* or before any */
static int64_t spoil_step = -1;  /* the update whose learning rate is NaN */

double __real_schedule_lr(const train_options *t, int64_t step, int64_t total);
double __wrap_schedule_lr(const train_options *t, int64_t step, int64_t total);
reader *__real_reader_start(const corpus *c, int batch, int columns, int steps, uint64_t seed,
                            uint64_t first);
reader *__wrap_reader_start(const corpus *c, int batch, int columns, int steps, uint64_t seed,
                            uint64_t first);

double __wrap_schedule_lr(const train_options *t, int64_t step, int64_t total) {
    if (step == signal_step) {
        signal_step = -1;
        raise(SIGTERM);
    }
    return step == spoil_step ? NAN : __real_schedule_lr(t, step, total);
}

reader *__wrap_reader_start(const corpus *c, int batch, int columns, int steps, uint64_t seed,
                            uint64_t first) {
    if (signal_first) raise(SIGINT);
    signal_first = false;
    return __real_reader_start(c, batch, columns, steps, seed, first);
}

/* ------------------------------------------------------------------------------------- runs */

static char *train_file, *valid_file;

/* Sentences from a few words, so that there is something to learn; 26 updates an epoch. */
static void write_documents(const char *path, int count, uint64_t seed) {
    static const char *const words[] = {"the", "cat", "dog", "sat", "ran", "on", "a", "mat"};
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    random_restart(seed);
    for (int i = 0; i < count; i++) {
        fprintf(out, "%d\t", i % 2);
        for (uint64_t n = 3 + random_below(9); n > 0; n--) {
            fprintf(out, "%s%s", words[random_below(8)], n > 1 ? " " : ".\n");
        }
    }
    assert_int_equal(fclose(out), 0);
}

static int write_files(void **state) {
    (void)state;
    backend *be = test_backend(FP32); /* exits where there is no such device */
    be->destroy(be);
    train_file = path_of("train.tsv");
    valid_file = path_of("valid.tsv");
    write_documents(train_file, 60, 1);
    write_documents(valid_file, 9, 2);
    return 0;
}

static int reset_interventions(void **state) {
    (void)state;
    signal_step = spoil_step = -1;
    signal_first = false;
    return 0;
}

static void set(options *o, const char *assignment) {
    error err;
    if (!config_assign(&o->config, assignment, &err)) fail_msg("%s", err.text);
}

/* A small config, then `settings`, separated by spaces. */
static void begin_options(options *o, const char *settings) {
    static const char base[] =
        "run.threads=1 model.hidden=64 model.block=8 model.embedding=8 model.degree=4 "
        "train.batch=4 "
        "train.bptt=16 train.warmup=5 train.lr=0.01 train.log_every=4 train.valid_every=7 "
        "train.average=0.9 train.steps=40";
    char *all = mem_format("data.train=%s data.valid=%s run.device=%s %s %s", train_file,
                           valid_file, test_device_is_cuda() ? "cuda" : "cpu", base, settings);
    options_begin(o);
    for (char *word = strtok(all, " "); word; word = strtok(NULL, " ")) set(o, word);
    free(all);
    error err;
    if (!options_check(o, &err)) fail_msg("%s", err.text);
}

static bool try_run(const char *name, train_start start, const char *settings, train_result *result,
                    error *err) {
    options o;
    begin_options(&o, settings);
    bool done = train(&o, path_of(name), start, result, err);
    options_free(&o);
    return done;
}

static train_result run(const char *name, train_start start, const char *settings) {
    train_result result = {0};
    error err;
    if (!try_run(name, start, settings, &result, &err)) fail_msg("%s: %s", name, err.text);
    return result;
}

static void assert_run_fails(const char *name, train_start start, const char *settings,
                             const char *expected) {
    train_result result;
    error err;
    if (try_run(name, start, settings, &result, &err)) fail_msg("not refused: %s", expected);
    if (!strstr(err.text, expected)) fail_msg("expected '%s' in: %s", expected, err.text);
}

/* ------------------------------------------------------------------------------------ files */

static char *run_file(const char *name, const char *file) {
    char *below = mem_format("%s/%s", name, file), *path = path_of(below);
    free(below);
    return path;
}

static char *read_run_file(const char *name, const char *file, size_t *size) {
    return read_text(run_file(name, file), size);
}

static bool same_file(const char *one, const char *other, const char *file) {
    size_t size[2];
    char *a = read_run_file(one, file, &size[0]), *b = read_run_file(other, file, &size[1]);
    bool same = size[0] == size[1] && memcmp(a, b, size[0]) == 0;
    free(a);
    free(b);
    return same;
}

/* Takes ", "KEY": VALUE" out of every line. */
static void drop_field(char *text, const char *key) {
    for (char *at; (at = strstr(text, key));) {
        size_t length = strlen(key) + strcspn(at + strlen(key), ",}");
        memmove(at, at + length, strlen(at + length) + 1);
    }
}

static bool same_metrics(const char *one, const char *other) {
    size_t size;
    char *text[2] = {read_run_file(one, "metrics.jsonl", &size),
                     read_run_file(other, "metrics.jsonl", &size)};
    for (int i = 0; i < 2; i++) {
        drop_field(text[i], ", \"seconds\":");
        drop_field(text[i], ", \"bytes_per_second\":");
    }
    bool same = strcmp(text[0], text[1]) == 0;
    if (!same) print_message("%s---\n%s", text[0], text[1]);
    free(text[0]);
    free(text[1]);
    return same;
}

static void open_run(safetensors *file, const char *name, const char *which) {
    error err;
    if (!safetensors_open(file, run_file(name, which), &err)) fail_msg("%s", err.text);
}

static bool same_tensor(const tensor *a, const tensor *b) {
    return a && b && tensor_bytes(a) == tensor_bytes(b) &&
           memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

/* States are the same but for the time spent, and for what sums or counts bytes that hold it. */
static bool same_state(const char *one, const char *other) {
    static const char *const timed[] = {"checksum", "seconds", "metrics_bytes"};
    safetensors a, b;
    open_run(&a, one, "last.state");
    open_run(&b, other, "last.state");
    bool same = a.tensor_count == b.tensor_count && a.entry_count == b.entry_count;
    for (int i = 0; i < a.tensor_count && same; i++) {
        same = same_tensor(&a.tensors[i], safetensors_find(&b, a.tensors[i].name));
    }
    for (int i = 0; i < a.entry_count && same; i++) {
        bool skip = false;
        for (int t = 0; t < 3; t++) skip = skip || strcmp(a.entries[i].key, timed[t]) == 0;
        same = skip || strcmp(a.entries[i].value, b.entries[i].value) == 0;
        if (!same) print_message("%s differs\n", a.entries[i].key);
    }
    safetensors_close(&a);
    safetensors_close(&b);
    return same;
}

static void assert_same_run(const char *one, const char *other) {
    assert_true(same_file(one, other, "last.safetensors"));
    assert_true(same_file(one, other, "best.safetensors"));
    assert_true(same_file(one, other, "config.yaml"));
    assert_true(same_metrics(one, other));
    assert_true(same_state(one, other));
}

/* A number of the last line of metrics.jsonl, or of the first. */
static double metric(const char *name, const char *key, bool last) {
    size_t size;
    char *text = read_run_file(name, "metrics.jsonl", &size), *field = mem_format("\"%s\": ", key);
    if (size == 0 || text[size - 1] != '\n') fail_msg("the last line has no end");
    text[size - 1] = '\0';
    char *line = last && strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
    char *at = strstr(line, field);
    if (!at) fail_msg("no %s in %s", key, line);
    double value =
        strncmp(at + strlen(field), "null", 4) == 0 ? NAN : strtod(at + strlen(field), NULL);
    free(text);
    free(field);
    return value;
}

/* ------------------------------------------------------------------------------ whole runs */

static void test_learns(void **state) {
    (void)state;
    train_result r = run("learns", TRAIN_FRESH, "train.steps=60");
    assert_int_equal(r.steps, 60);
    assert_int_equal(r.bytes, 60 * 64);
    assert_int_equal(r.signal, 0);
    assert_true(r.seconds > 0 && r.epochs > 2);
    assert_true(fabs(r.bytes_per_second * r.seconds / (double)r.bytes - 1) < 1e-9);
    double first = metric("learns", "bpc", false), last = metric("learns", "bpc", true);
    if (!(last < 0.6 * first && last < 3.5)) fail_msg("bpc from %g to %g", first, last);
    assert_true(r.valid_bpc < 3.8);
    assert_true(metric("learns", "valid_bpc", true) == r.valid_bpc);
    assert_true(isnan(metric("learns", "valid_bpc", false)));
    assert_true(metric("learns", "step", true) == 60);
    assert_true(metric("learns", "bytes", true) == 60 * 64);
    assert_true(fabs(metric("learns", "epoch", true) - r.epochs) < 1e-9);
    assert_true(metric("learns", "grad_norm", true) > 0);
    assert_true(metric("learns", "bytes_per_second", true) > 0);
    assert_true(strstr(r.checkpoint, "/learns/last.safetensors") != NULL);
}

static void test_repeats(void **state) {
    (void)state;
    const char *settings = "train.steps=20 model.dropout=0.2";
    run("first", TRAIN_FRESH, settings);
    run("second", TRAIN_FRESH, settings);
    assert_same_run("first", "second");
    run("second", TRAIN_OVERWRITE, settings);
    assert_same_run("first", "second");
    run("third", TRAIN_FRESH, "train.steps=20 model.dropout=0.2 run.seed=2");
    assert_false(same_file("first", "third", "last.safetensors"));
    run("input", TRAIN_FRESH, "train.steps=20 model.dropout=0.2 model.input_dropout=0.2");
    assert_false(same_file("first", "input", "last.safetensors"));
    if (test_device_is_cuda()) return;
    run("threads", TRAIN_FRESH, "train.steps=20 model.dropout=0.2 run.threads=3");
    assert_true(same_file("first", "threads", "last.safetensors"));
}

/* Stops at each of `stops`, ended by -1, resumes each time, and compares with a run that did not.
 */
static void check_resume(const char *settings, const int64_t *stops) {
    run("whole", TRAIN_OVERWRITE, settings);
    train_start start = TRAIN_OVERWRITE;
    for (; *stops >= 0; stops++) {
        signal_step = *stops;
        train_result r = run("stopped", start, settings);
        assert_int_equal(r.signal, SIGTERM);
        assert_int_equal(r.steps, *stops + 1);
        start = TRAIN_RESUME;
    }
    train_result r = run("stopped", TRAIN_RESUME, settings);
    assert_int_equal(r.signal, 0);
    assert_int_equal(r.steps, 40);
    assert_same_run("whole", "stopped");
}

/* Within and at the end of an epoch; between a validation and the line of metrics that tells it. */
static const int64_t some_stops[] = {3, 6, 25, 33, -1}, one_stop[] = {30, -1};

static void test_resume_fp32(void **state) {
    (void)state;
    options o;
    begin_options(&o, "");
    corpus_options how = {0};
    error err;
    corpus *c = corpus_read(o.data.train.items, 1, &how, &err);
    assert_int_equal(reader_epoch_updates(c, 4, 16), 26); /* what the stops mean */
    corpus_free(c);
    options_free(&o);
    check_resume("run.precision=fp32", some_stops);
    check_resume("run.precision=fp32 model.cell=mlstm model.dropout=0.3", some_stops);
    check_resume("run.precision=fp32 model.cell=deep model.dropout=0.3", one_stop);
    check_resume("run.precision=fp32 train.recompute=3 model.dropout=0.3", one_stop);
    check_resume("run.precision=fp32 model.layers=2 train.recompute=2 model.dropout=0.3", one_stop);
    check_resume("run.precision=fp32 model.graph=dense model.degree=null train.batch=3 "
                 "train.schedule=cosine",
                 one_stop);
    check_resume("run.precision=tf32", one_stop);
}

static void test_resume_bf16(void **state) {
    (void)state;
    check_resume("run.precision=bf16 model.dropout=0.3", some_stops);
    check_resume("run.precision=bf16 model.cell=mlstm model.input_dropout=0.2", one_stop);
    check_resume("run.precision=bf16 model.cell=deep model.dropout=0.3", one_stop);
    check_resume("run.precision=bf16 model.cell=mlstm train.recompute=4", one_stop);
    check_resume("run.precision=bf16 model.cell=deep model.layers=3 train.rewire_every=7",
                 one_stop);
}

/* A rewiring run that stops just after patterns changed, between changes, and where a validation
 * follows, and that ends with a pattern other than its first. */
static void test_resume_rewired(void **state) {
    (void)state;
    static const char *const settings[] = {
        "run.precision=fp32 train.rewire_every=3 train.rewire_share=0.5",
        "run.precision=bf16 train.rewire_every=5 model.cell=mlstm model.dropout=0.3",
        "run.precision=fp32 train.rewire_every=4 model.cell=deep train.recompute=3 "
        "model.graph=core_periphery model.degree=null model.density=0.5 model.core=0.4",
        "run.precision=fp32 train.rewire_every=7 train.rewire_grow=gradient model.cell=deep",
        "run.precision=bf16 train.rewire_every=4 train.rewire_grow=gradient train.recompute=3",
    };
    static const int64_t stops[] = {2, 3, 6, 7, 13, 19, 30, -1};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        check_resume(settings[i], stops);
        char *fixed = mem_format("%s train.rewire_every=0", settings[i]);
        run("fixed", TRAIN_OVERWRITE, fixed);
        free(fixed);
        safetensors a, b;
        open_run(&a, "whole", "last.safetensors");
        open_run(&b, "fixed", "last.safetensors");
        const tensor *now = safetensors_find(&a, "pattern.gates");
        const tensor *before = safetensors_find(&b, "pattern.gates");
        assert_int_equal(now->shape[0], before->shape[0]);
        assert_false(same_tensor(now, before));
        safetensors_close(&a);
        safetensors_close(&b);
    }
    run("rewired", TRAIN_FRESH, "train.rewire_every=2 train.rewire_share=0.5 train.steps=8");
    /* 8 nodes of degree 4: 32 blocks besides self-blocks. Of 8 steps the first 6 rewire, at 2 and
     * 4; nothing after the first line of metrics, at 4. */
    const int first = (int)(32 * 0.5 * 0.75), second = (int)(32 * 0.5 * 0.25);
    assert_int_equal(metric("rewired", "blocks_replaced", false), first + second);
    assert_int_equal(metric("rewired", "blocks_replaced", true), 0);
}

static int64_t pattern_length(const char *name) {
    safetensors file;
    open_run(&file, name, "last.safetensors");
    const tensor *t = safetensors_find(&file, "pattern.gates");
    assert_non_null(t);
    int64_t blocks = t->shape[0];
    safetensors_close(&file);
    return blocks;
}

/* From one dense matrix to blocks, and from blocks to fewer, also with rewiring; stopped before the
 * first change, after it, in between and after the last. */
static void test_resume_pruned(void **state) {
    (void)state;
    static const char *const settings[] = {
        "run.precision=fp32 model.graph=dense model.degree=null train.prune_density=0.3 "
        "train.prune_every=2",
        "run.precision=bf16 model.graph=dense model.degree=null train.prune_density=0.3 "
        "train.prune_every=3 train.rewire_every=6 model.cell=mlstm model.dropout=0.3",
        "run.precision=fp32 model.cell=deep train.prune_density=0.3 train.prune_every=1000",
    };
    static const int64_t stops[] = {2, 5, 7, 8, 22, 30, -1};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        check_resume(settings[i], stops);
        assert_int_equal(pattern_length("whole"), 19); /* 0.3 x 64 = 19.2 */
        assert_true(metric("whole", "density", true) == 19.0 / 64);
    }
    assert_true(metric("whole", "density", false) == 40.0 / 64);
    assert_run_fails("refused", TRAIN_OVERWRITE, "train.prune_density=0.7",
                     "train.prune_density: expected below 0.625");
    assert_run_fails("refused", TRAIN_OVERWRITE,
                     "model.graph=dense model.degree=null train.rewire_every=5",
                     "train.rewire_every: has no meaning for complete patterns");
}

/* Stopped by a limit instead, with a schedule that does not depend on it. */
static void test_raised_limit(void **state) {
    (void)state;
    const char *whole = "train.schedule=constant train.steps=40 train.valid_every=10";
    run("whole", TRAIN_OVERWRITE, whole);
    run("raised", TRAIN_FRESH, "train.schedule=constant train.steps=20 train.valid_every=10");
    run("raised", TRAIN_RESUME, whole);
    assert_same_run("whole", "raised");
    /* In epochs: 26 updates each. */
    run("whole", TRAIN_OVERWRITE,
        "train.schedule=constant train.steps=null train.epochs=1.5 train.valid_every=13 "
        "train.log_every=13");
    run("raised", TRAIN_OVERWRITE,
        "train.schedule=constant train.steps=null train.epochs=0.5 train.valid_every=13 "
        "train.log_every=13");
    train_result r = run("raised", TRAIN_RESUME,
                         "train.schedule=constant train.steps=null train.epochs=1.5 "
                         "train.valid_every=13 train.log_every=13");
    assert_int_equal(r.steps, 39);
    assert_true(r.epochs == 1.5);
    assert_same_run("whole", "raised");
}

/* A run that is over where it stands ends as one that reached its limit does. */
static void test_lowered_limit(void **state) {
    (void)state;
    signal_step = 29;
    run("lowered", TRAIN_FRESH, "");
    train_result r = run("lowered", TRAIN_RESUME, "train.steps=20");
    assert_int_equal(r.steps, 30);
    assert_true(metric("lowered", "step", true) == 30);
    assert_true(metric("lowered", "valid_bpc", true) == r.valid_bpc);
    train_result again = run("lowered", TRAIN_RESUME, "train.steps=20");
    assert_memory_equal(&r, &again, sizeof r);
}

static void test_finished(void **state) {
    (void)state;
    train_result r = run("finished", TRAIN_FRESH, "train.steps=10");
    size_t size[2];
    char *before = read_run_file("finished", "last.state", &size[0]);
    train_result again = run("finished", TRAIN_RESUME, "train.steps=10");
    char *after = read_run_file("finished", "last.state", &size[1]);
    assert_int_equal(again.steps, r.steps);
    assert_int_equal(again.bytes, r.bytes);
    assert_true(again.epochs == r.epochs && again.seconds == r.seconds);
    assert_true(again.bytes_per_second == r.bytes_per_second && again.valid_bpc == r.valid_bpc);
    assert_int_equal(again.parameters, r.parameters);
    assert_string_equal(again.checkpoint, r.checkpoint);
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(before, after, size[0]);
    free(before);
    free(after);
}

/* A signal that comes before the first update, or between two, still leaves all that was done. */
static void test_signal_between_updates(void **state) {
    (void)state;
    run("whole", TRAIN_OVERWRITE, "");
    signal_first = true;
    train_result r = run("between", TRAIN_FRESH, "");
    assert_int_equal(r.signal, SIGINT);
    assert_int_equal(r.steps, 0);
    safetensors file;
    open_run(&file, "between", "last.state"); /* also of nothing done, for --resume */
    safetensors_close(&file);
    signal_step = 9;
    run("between", TRAIN_RESUME, "");
    signal_first = true;
    r = run("between", TRAIN_RESUME, "");
    assert_int_equal(r.steps, 10);
    run("between", TRAIN_RESUME, "");
    assert_same_run("whole", "between");
}

/* Lines of metrics past the state's, as a kill leaves them, are cut off. */
static void test_lost_updates(void **state) {
    (void)state;
    run("whole", TRAIN_OVERWRITE, "");
    signal_step = 20;
    run("killed", TRAIN_FRESH, "");
    FILE *out = fopen(run_file("killed", "metrics.jsonl"), "ab");
    fputs("{\"step\": 24, \"bytes\"", out);
    fclose(out);
    run("killed", TRAIN_RESUME, "");
    assert_same_run("whole", "killed");

    /* Without a state, but with models: refused. */
    signal_step = 20;
    run("killed", TRAIN_OVERWRITE, "");
    assert_int_equal(remove(run_file("killed", "last.state")), 0);
    size_t size, again;
    char *before = read_run_file("killed", "last.safetensors", &size);
    assert_run_fails("killed", TRAIN_RESUME, "",
                     "killed/last.state: missing, though there is last.safetensors");
    assert_int_equal(remove(run_file("killed", "last.safetensors")), 0);
    assert_run_fails("killed", TRAIN_RESUME, "",
                     "killed/last.state: missing, though there is best.safetensors");
    write_bytes(run_file("killed", "last.safetensors"), before, size);
    assert_run_fails("killed", TRAIN_RESUME, "", "nothing to go on from");
    char *after = read_run_file("killed", "last.safetensors", &again);
    assert_int_equal(size, again);
    assert_memory_equal(before, after, size);
    free(before);
    free(after);

    /* Without either, from the beginning. */
    assert_int_equal(remove(run_file("killed", "last.safetensors")), 0);
    assert_int_equal(remove(run_file("killed", "best.safetensors")), 0);
    assert_run_fails("killed", TRAIN_RESUME, "run.seed=5", "run.seed: cannot change on resuming");
    run("killed", TRAIN_RESUME, "");
    assert_same_run("whole", "killed");

    /* But not without what says whether it is the same run. */
    assert_int_equal(remove(run_file("killed", "config.yaml")), 0);
    assert_run_fails("killed", TRAIN_RESUME, "", "killed/config.yaml: missing");
}

/* All that the state can make is made of it: a model that is damaged, of another step, or
 * missing. */
static void test_repaired_models(void **state) {
    (void)state;
    static const char *const names[] = {"last.safetensors", "best.safetensors"};
    const char *settings = "train.valid_every=40";
    run("whole", TRAIN_OVERWRITE, settings);
    run("repaired", TRAIN_FRESH, settings);
    for (int i = 0; i < 2; i++) {
        char *path = run_file("repaired", names[i]);
        for (int how = 0; how < 3; how++) {
            size_t size;
            char *bytes = read_text(path, &size);
            bytes[size - 1] ^= 1;
            if (how == 0) write_bytes(path, bytes, size);
            if (how == 1) write_bytes(path, bytes, size / 2);
            if (how == 2) assert_int_equal(remove(path), 0);
            free(bytes);
            run("repaired", TRAIN_RESUME, settings);
            assert_same_run("whole", "repaired");
        }
    }
    signal_step = 20;
    run("repaired", TRAIN_OVERWRITE, "");
    write_text(run_file("repaired", "last.safetensors"), "damaged");
    run("repaired", TRAIN_RESUME, "");
    run("whole", TRAIN_OVERWRITE, "");
    assert_same_run("whole", "repaired");
}

static int64_t state_step(const char *name, const char *which) {
    safetensors file;
    open_run(&file, name, which);
    int64_t step = strtoll(safetensors_metadata(&file, "step"), NULL, 10);
    safetensors_close(&file);
    return step;
}

/* A run that starts over replaces the earlier one with its first checkpoint, not before. */
static void test_overwrite(void **state) {
    (void)state;
    run("over", TRAIN_FRESH, "train.steps=30 run.seed=9");
    char *settings = mem_format("train.init=%s", run_file("over", "last.safetensors"));
    size_t size[2];
    char *before = read_run_file("over", "last.safetensors", &size[0]);

    /* Stopped before its first update, and by an update that fails. */
    signal_first = true;
    assert_run_fails("over", TRAIN_OVERWRITE, settings, "stopped by a signal");
    assert_int_equal(state_step("over", "last.state"), 30);
    spoil_step = 2;
    assert_run_fails("over", TRAIN_OVERWRITE, settings, "not finite");
    spoil_step = -1;
    char *after = read_run_file("over", "last.safetensors", &size[1]);
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(before, after, size[0]);
    free(after);

    run("apart", TRAIN_FRESH, settings);
    run("over", TRAIN_OVERWRITE, settings);
    free(settings);
    char *copy = path_of("first.safetensors");
    write_bytes(copy, before, size[0]);
    settings = mem_format("train.init=%s", copy);
    run("twin", TRAIN_FRESH, settings);
    assert_true(same_file("over", "twin", "last.safetensors"));
    assert_true(same_file("over", "apart", "last.safetensors"));
    assert_false(file_exists(run_file("over", "next")));
    free(settings);
    free(before);

    /* Killed while its files replaced the earlier run's: whichever are left to be moved. */
    static const char *const files[] = {"config.yaml", "metrics.jsonl", "best.safetensors",
                                        "last.safetensors", "last.state"};
    run("new", TRAIN_FRESH, "train.steps=20");
    for (int done = 0; done < 5; done++) {
        run("over", TRAIN_OVERWRITE, "train.steps=30 run.seed=9");
        assert_int_equal(mkdir(run_file("over", "next"), 0700), 0);
        for (int i = 0; i < 5; i++) {
            char *name = mem_format("%s%s", i < done ? "" : "next/", files[i]);
            char *bytes = read_run_file("new", files[i], &size[0]);
            write_bytes(run_file("over", name), bytes, size[0]);
            free(bytes);
            free(name);
        }
        assert_run_fails("over", TRAIN_FRESH, "", "already holds a run");
        run("over", TRAIN_RESUME, "train.steps=20");
        assert_same_run("new", "over");
        assert_false(file_exists(run_file("over", "next")));
    }

    /* A best model of the earlier run does not stay where the new one has none. */
    run("over", TRAIN_OVERWRITE, "data.valid=null data.valid_fraction=0");
    assert_false(file_exists(run_file("over", "best.safetensors")));
}

static void test_own_config(void **state) {
    (void)state;
    error err;
    assert_true(file_make_folder(path_of("own"), &err));
    write_text(run_file("own", "config.yaml"), "# mine\ndata: {train: a.txt}\n");
    for (int start = TRAIN_FRESH; start <= TRAIN_OVERWRITE; start++) {
        assert_run_fails("own", (train_start)start, "", "own/config.yaml: no run wrote it");
    }
    assert_file(run_file("own", "config.yaml"), "# mine\ndata: {train: a.txt}\n");
}

/* Metrics that were lost, all or the end of them, stay so, and what is left is lines. */
static void test_lost_metrics(void **state) {
    (void)state;
    const char *path = run_file("short", "metrics.jsonl");
    static const char *const settings[] = {"train.steps=20", "train.steps=30", "train.steps=40"};
    size_t size;
    run("short", TRAIN_FRESH, settings[0]);
    for (int i = 1; i < 3; i++) {
        char *before = read_text(path, &size);
        write_bytes(path, before, i == 1 ? 0 : size - 10);
        free(before);
        run("short", TRAIN_RESUME, settings[i]);
        char *text = read_text(path, &size), *rest = text;
        assert_int_equal(strlen(text), size);
        for (char *line; (line = strsep(&rest, "\n")) && *line;) {
            assert_int_equal(strncmp(line, "{\"step\": ", 9), 0);
            assert_int_equal(line[strlen(line) - 1], '}');
        }
        free(text);
    }
}

static void test_minutes(void **state) {
    (void)state;
    const char *settings = "train.steps=null train.minutes=0.003 train.valid_every=1000000";
    train_result r = run("minutes", TRAIN_FRESH, settings);
    if (r.seconds < 0.05 || r.seconds > 2) fail_msg("0.18 seconds became %g", r.seconds);
    assert_true(r.steps > 3);
    r = run("minutes", TRAIN_OVERWRITE, "train.steps=6 train.minutes=0.003");
    assert_int_equal(r.steps, 6);

    /* Limits in steps come and go on resuming, before and after minutes were found to be steps. */
    run("minutes", TRAIN_OVERWRITE, "train.steps=6 train.minutes=5");
    r = run("minutes", TRAIN_RESUME, "train.steps=9 train.minutes=5");
    assert_int_equal(r.steps, 9);
    run("minutes", TRAIN_OVERWRITE, "train.steps=null train.minutes=0.01");
    r = run("minutes", TRAIN_RESUME, "train.steps=3 train.minutes=0.02");
    signal_first = true;
    r = run("minutes", TRAIN_RESUME, "train.steps=null train.minutes=0.02");
    assert_int_equal(r.signal, SIGINT);
    const int64_t done = r.steps;
    r = run("minutes", TRAIN_RESUME, "train.steps=null train.minutes=0.02");
    assert_true(r.steps > done);
}

/* ------------------------------------------------------------------------------- refusals */

static void test_refused_changes(void **state) {
    (void)state;
    run("refused", TRAIN_FRESH, "train.steps=4");
    size_t state_size, size;
    char *before = read_run_file("refused", "last.state", &state_size);
    assert_run_fails("refused", TRAIN_FRESH, "train.steps=4", "already holds a run; --resume");
    assert_run_fails("refused", TRAIN_RESUME, "train.steps=4 train.lr=0.02",
                     "train.lr: cannot change on resuming");
    assert_run_fails("refused", TRAIN_RESUME, "run.seed=3", "run.seed: cannot change");
    write_documents(train_file, 61, 1);
    assert_run_fails("refused", TRAIN_RESUME, "train.steps=8",
                     "data.train: cannot change on resuming");
    write_documents(train_file, 60, 1);
    char *files[] = {train_file, valid_file};
    for (int i = 0; i < 2; i++) { /* as long as before */
        char *text = read_text(files[i], &size), *changed = memmem(text, size, "cat", 3);
        memcpy(changed, "dog", 3);
        write_bytes(files[i], text, size);
        assert_run_fails("refused", TRAIN_RESUME, "train.steps=8",
                         i ? "data.valid: cannot change on resuming"
                           : "data.train: cannot change on resuming");
        memcpy(changed, "cat", 3);
        write_bytes(files[i], text, size);
        free(text);
    }
    assert_run_fails("refused", TRAIN_RESUME, "train.batch=5", "train.batch: cannot change");
    assert_run_fails("refused", TRAIN_RESUME, "model.hidden=128", "model.hidden: cannot change");
    assert_run_fails("refused", TRAIN_RESUME, "train.recompute=2",
                     "train.recompute: cannot change");
    if (test_device_is_cuda()) { /* where auto is bf16 */
        assert_run_fails(
            "refused", TRAIN_RESUME, "run.precision=fp32",
            "last.state was trained in bf16, now it is fp32; --precision bf16 goes on");
    } else {
        assert_run_fails(
            "refused", TRAIN_RESUME, "run.precision=bf16",
            "last.state was trained in fp32, now it is bf16; --precision fp32 goes on");
        assert_int_equal(run("refused", TRAIN_RESUME, "train.steps=4 run.precision=fp32").steps, 4);
    }
    assert_run_fails("refused", TRAIN_RESUME, "data.exclude=x", "data.exclude: cannot change");
    assert_run_fails("refused", TRAIN_OVERWRITE, "data.train=absent.txt", "cannot open absent.txt");
    assert_run_fails("refused", TRAIN_OVERWRITE, "train.batch=4000", "less than one minibatch");
    assert_run_fails("refused", TRAIN_OVERWRITE,
                     "train.batch=65536 train.bptt=65536 model.hidden=1048576 model.block=128",
                     "less than one minibatch");
    assert_run_fails("refused", TRAIN_OVERWRITE, "train.init=absent.safetensors",
                     "cannot open absent");
    size_t again;
    char *after = read_run_file("refused", "last.state", &again);
    assert_int_equal(state_size, again);
    assert_memory_equal(before, after, state_size);
    free(before);
    free(after);
    train_result r = run("refused", TRAIN_RESUME,
                         "train.steps=6 train.log_every=1 run.threads=2 train.checkpoint_minutes=1 "
                         "train.minutes=60");
    assert_int_equal(r.steps, 6);
}

static void test_not_finite(void **state) {
    (void)state;
    const char *settings = "train.valid_every=1000";
    signal_step = 4;
    run("diverged", TRAIN_FRESH, settings);
    size_t size, again;
    char *before = read_run_file("diverged", "last.safetensors", &size);
    spoil_step = 9; /* update 10 ruins the weights: the loss of update 11 shows it */
    assert_run_fails(
        "diverged", TRAIN_RESUME, settings,
        "step 11: the loss or its gradient is not finite; the last good checkpoint is ");
    char *after = read_run_file("diverged", "last.safetensors", &again);
    assert_int_equal(size, again);
    assert_memory_equal(before, after, size);
    free(before);
    free(after);

    assert_run_fails("nothing", TRAIN_FRESH, settings, "no checkpoint yet in ");
    spoil_step = 6; /* just before validation */
    assert_run_fails("diverged", TRAIN_OVERWRITE, "", "step 7: validation: the loss is not finite");
    spoil_step = -1;

    run("whole", TRAIN_OVERWRITE, settings);
    run("diverged", TRAIN_OVERWRITE, settings);
    assert_same_run("whole", "diverged");
}

/* ------------------------------------------------------------------------------- train.init */

static void assert_close_tensor(const tensor *a, const tensor *b, double tolerance) {
    assert_int_equal(tensor_bytes(a), tensor_bytes(b));
    const float *x = a->data, *y = b->data;
    for (size_t i = 0; i < tensor_bytes(a) / sizeof *x; i++) {
        double difference = fabs((double)x[i] - y[i]);
        if (!(difference <= tolerance * fmax(1, fabs(y[i])))) {
            fail_msg("%s[%zu]: %g, expected %g", a->name, i, (double)x[i], (double)y[i]);
        }
    }
}

static void test_init(void **state) {
    (void)state;
    run("saved", TRAIN_FRESH, "train.steps=30 run.seed=9");
    char *path = run_file("saved", "last.safetensors");
    char *settings = mem_format("train.init=%s train.steps=1 train.lr=1e-30", path);
    run("started", TRAIN_FRESH, settings);
    /* Weights and patterns are the saved ones, not those of this run's seed. */
    safetensors a, b;
    open_run(&a, "saved", "last.safetensors");
    open_run(&b, "started", "last.safetensors");
    for (int i = 0; i < a.tensor_count; i++) {
        const tensor *t = safetensors_find(&b, a.tensors[i].name);
        assert_non_null(t);
        if (t->type == TENSOR_F32) {
            assert_close_tensor(t, &a.tensors[i], 1e-6);
        } else {
            assert_true(same_tensor(t, &a.tensors[i]));
        }
    }
    safetensors_close(&a);
    safetensors_close(&b);
    free(settings);

    /* Stopped and resumed, also without the file it started from. */
    settings = mem_format("train.init=%s", path);
    run("whole", TRAIN_OVERWRITE, settings);
    signal_step = 11;
    run("started", TRAIN_OVERWRITE, settings);
    char *moved = mem_format("%s.moved", path);
    assert_int_equal(rename(path, moved), 0);
    run("started", TRAIN_RESUME, settings);
    assert_int_equal(rename(moved, path), 0);
    assert_same_run("whole", "started");
    free(moved);
    free(settings);

    static const char *const others[][2] = {
        {"model.hidden=128", "its model.hidden differs"},
        {"model.block=16", "its model.block differs"},
        {"model.cell=mlstm", "its model.cell differs"},
        {"model.layer_norm=false", "its model.layer_norm differs"},
        {"model.graph=random", "its model.graph differs"},
        {"model.degree=6", "its model.degree differs"},
        {"model.embedding=16",
         "tensor input.embedding: expected float32 [16, 256], found [8, 256]"},
        {"model.output_stride=2", "tensor head.weight: expected float32 [256, 32]"},
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        settings = mem_format("train.init=%s %s", path, others[i][0]);
        assert_run_fails("other", TRAIN_FRESH, settings, others[i][1]);
        free(settings);
    }

    run("saved", TRAIN_OVERWRITE, "train.steps=1 model.cell=deep");
    path = run_file("saved", "last.safetensors");
    settings = mem_format("train.init=%s model.cell=deep model.internal_steps=4", path);
    assert_run_fails("other", TRAIN_FRESH, settings, "its model.internal_steps differs");
    free(settings);
}

/* ------------------------------------------------------------------------------- evaluation */

typedef struct loaded {
    checkpoint c;
    backend *be;
    model *m;
} loaded;

static void load(loaded *l, const char *name, int batch, int steps) {
    error err;
    l->be = test_device_is_cuda() ? test_backend(FP32) : backend_cpu(FP32, 1);
    if (!checkpoint_open(&l->c, run_file(name, "last.safetensors"), &err)) fail_msg("%s", err.text);
    l->m = checkpoint_model(&l->c, l->be, batch, steps, &err);
    if (!l->m) fail_msg("%s", err.text);
}

static void unload(loaded *l) {
    model_free(l->m);
    l->be->destroy(l->be);
    checkpoint_close(&l->c);
}

static corpus *read_corpus(char *path) {
    corpus_options how = {0};
    error err;
    corpus *c = corpus_read(&path, 1, &how, &err);
    if (!c) fail_msg("%s", err.text);
    return c;
}

static evaluation score(const char *name, char *path, int batch, int steps, uint64_t limit,
                        bool exact) {
    loaded l;
    load(&l, name, batch, steps);
    corpus *c = read_corpus(path);
    sequence *s = sequence_in_order(c);
    recording *r = evaluate_record(l.m);
    evaluation e;
    error err;
    if (!evaluate(l.m, r, s, limit, exact, false, &e, &err)) fail_msg("%s", err.text);
    l.be->recording_free(l.be, r);
    sequence_free(s);
    corpus_free(c);
    unload(&l);
    return e;
}

static void test_evaluation(void **state) {
    (void)state;
    train_result r = run("scored", TRAIN_FRESH, "run.precision=fp32 train.valid_bytes=0");
    evaluation e = score("scored", valid_file, 4, 16, 0, false);
    if (!(fabs(e.bpc - r.valid_bpc) < 1e-6)) fail_msg("%.9g, in training %.9g", e.bpc, r.valid_bpc);

    /* Long enough for 8 stripes of 1,024 bytes and more. */
    char *path = path_of("long.tsv");
    write_documents(path, 400, 3);
    corpus *c = read_corpus(path);
    uint64_t size = c->size;
    assert_true(size > 9 * 1024);
    corpus_free(c);
    evaluation exact = score("scored", path, 1, 50, 0, true);
    assert_int_equal(exact.bytes, size - 1);
    assert_true(exact.bpc > 1 && exact.bpc < 4);
    static const int batches[] = {1, 5, 12};
    for (int i = 0; i < 3; i++) {
        evaluation striped = score("scored", path, batches[i], 37, 0, false);
        assert_int_equal(striped.bytes, size - 1);
        double most = batches[i] == 1 ? 1e-6 : 2e-3;
        if (!(fabs(striped.bpc - exact.bpc) < most)) {
            fail_msg("%d stripes: %.9g, exact %.9g", batches[i], striped.bpc, exact.bpc);
        }
    }
    evaluation one = score("scored", path, 6, 16, 0, true); /* exact whatever the batch */
    assert_true(fabs(one.bpc - exact.bpc) < 1e-6);

    /* A limit is a prefix; 2 bytes are the least, and predict 1. */
    char *prefix = path_of("prefix.txt"), *whole = path_of("whole.txt");
    c = read_corpus(path);
    write_bytes(whole, c->bytes, (size_t)size);
    write_bytes(prefix, c->bytes, 777);
    corpus_free(c);
    evaluation limited = score("scored", path, 4, 16, 777, false);
    assert_int_equal(limited.bytes, 776);
    assert_true(fabs(limited.bpc - score("scored", prefix, 4, 16, 0, false).bpc) < 1e-6);
    assert_int_equal(score("scored", path, 4, 16, 2, false).bytes, 1);
    assert_int_equal(score("scored", path, 4, 16, size + 5, true).bytes, size - 1);
    /* A TSV is its framed documents, joined. */
    assert_true(fabs(score("scored", whole, 1, 50, 0, true).bpc - exact.bpc) < 1e-9);
}

/* After one update the average is a tenth of the first weights and the rest of the new ones. */
static void test_moving_average(void **state) {
    (void)state;
    run("start", TRAIN_FRESH, "train.steps=1 train.lr=1e-30");
    run("moved", TRAIN_FRESH, "train.steps=1 train.average=0.999");
    run("bare", TRAIN_FRESH, "train.steps=9 train.average=0");
    safetensors start, moved, bare, model_file;
    open_run(&start, "start", "last.state");
    open_run(&moved, "moved", "last.state");
    open_run(&bare, "bare", "last.state");
    const tensor *t = safetensors_find(&start, "weights");
    const float *first = t->data, *then = safetensors_find(&moved, "weights")->data;
    const float *average = safetensors_find(&moved, "average")->data;
    double difference = 0;
    for (int64_t i = 0; i < t->shape[0]; i++) {
        double expected = 0.1 * first[i] + 0.9 * then[i];
        assert_true(fabs(average[i] - expected) < 1e-6);
        difference += fabs(average[i] - then[i]);
    }
    assert_true(difference > 1e-3);
    const tensor *weights = safetensors_find(&bare, "weights");
    assert_true(same_tensor(weights, safetensors_find(&bare, "average")));

    /* It is the average that is saved; the embedding comes first in the arena. */
    open_run(&model_file, "moved", "last.safetensors");
    const tensor *embedding = safetensors_find(&model_file, "input.embedding");
    assert_memory_equal(embedding->data, average, tensor_bytes(embedding));
    safetensors_close(&model_file);
    safetensors_close(&start);
    safetensors_close(&moved);
    safetensors_close(&bare);
}

/* --------------------------------------------------------------------------------- features */

static char *extract(const char *name, char *path, const char *prefix, int batch, int steps,
                     feature_options how) {
    loaded l;
    load(&l, name, batch, steps);
    corpus *c = read_corpus(path);
    feature_result r;
    error err;
    char *out = path_of(prefix);
    if (!features_extract(l.m, c, &how, out, &r, &err)) fail_msg("%s", err.text);
    assert_int_equal(r.documents, c->count);
    assert_int_equal(r.bytes, c->size);
    assert_int_equal(r.units, 64);
    corpus_free(c);
    unload(&l);
    return out;
}

static npy open_npy(const char *prefix, const char *ending) {
    npy array;
    error err;
    char *path = mem_format("%s%s", prefix, ending);
    if (!npy_open(&array, path, &err)) fail_msg("%s", err.text);
    free(path);
    return array;
}

/* Documents of many lengths, the empty one among them; `backwards` turns their order round. */
static void write_mixed(const char *path, bool backwards) {
    enum { COUNT = 23 };
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    for (int k = 0; k < COUNT; k++) {
        int i = backwards ? COUNT - 1 - k : k, length = i * 37 % COUNT * (i % 5) * 3;
        fprintf(out, "%d\t", i - 3);
        random_restart((uint64_t)i);
        for (int n = 0; n < length; n++) fputc((int)random_below(90) + 32, out);
        fputc('\n', out);
    }
    assert_int_equal(fclose(out), 0);
}

static void compare_features(const char *name, const char *base, const char *other, bool backwards,
                             double tolerance) {
    npy a = open_npy(base, ".npy"), b = open_npy(other, ".npy");
    npy labels = open_npy(other, ".labels.npy");
    assert_int_equal(a.rows, b.rows);
    assert_int_equal(a.columns, b.columns);
    assert_int_equal(labels.rows, a.rows);
    for (int64_t i = 0; i < a.rows; i++) {
        int64_t at = backwards ? a.rows - 1 - i : i;
        assert_int_equal(((const int32_t *)labels.data)[at], i - 3);
        const float *x = (const float *)a.data + i * a.columns;
        const float *y = (const float *)b.data + at * a.columns;
        for (int64_t u = 0; u < a.columns; u++) {
            if (!(fabs((double)x[u] - y[u]) <= tolerance)) {
                fail_msg("%s: document %d, unit %d: %.9g and %.9g", name, (int)i, (int)u,
                         (double)x[u], (double)y[u]);
            }
        }
    }
    npy_close(&a);
    npy_close(&b);
    npy_close(&labels);
}

/* The features of a document are what one stream, fed byte by byte from a zero state, ends with. */
static void check_against_model(const char *name, char *path, const char *prefix) {
    loaded l;
    load(&l, name, 1, 1);
    corpus *c = read_corpus(path);
    npy features = open_npy(prefix, ".npy");
    size_t columns = (size_t)l.m->columns;
    for (size_t i = 0; i < c->count; i += 4) {
        const document *d = &c->documents[i];
        model_zero_state(l.m);
        for (uint64_t p = 0; p < d->length; p++) {
            l.be->upload(l.be, l.m->bytes, c->bytes + d->offset + p, 1);
            model_run(l.m);
        }
        double *cells = get(l.be, model_state(l.m, MODEL_C, 0), 64 * columns, REAL);
        const float *row = (const float *)features.data + i * 64;
        for (size_t u = 0; u < 64; u++) assert_true(fabs(cells[u * columns] - row[u]) < 1e-5);
        free(cells);
    }
    npy_close(&features);
    corpus_free(c);
    unload(&l);
}

static void test_features(void **state) {
    (void)state;
    static const struct {
        const char *settings;
        bool dense;
    } models[] = {
        {"train.steps=9", false},
        {"train.steps=9 model.cell=mlstm", false},
        {"train.steps=9 model.cell=deep model.layer_norm=false model.init_noise=0.1", false},
        {"train.steps=9 model.graph=dense model.degree=null", true},
    };
    char *forwards = path_of("mixed.tsv"), *backwards = path_of("backwards.tsv");
    write_mixed(forwards, false);
    write_mixed(backwards, true);
    const feature_options how = {FEATURE_CELL, {1, {POOL_LAST}}, FORMAT_NPY, false, NULL};
    for (int i = 0; i < 4; i++) {
        /* A BLAS may sum in another order where the number of columns differs: cuBLAS's choice came
         * to 1.3e-5 at a document's end. Our products do not. */
        double tolerance = !models[i].dense ? 0 : test_device_is_cuda() ? 1e-4 : 1e-5;
        const char *name = models[i].settings;
        run("featured", TRAIN_OVERWRITE, models[i].settings);
        char *base = extract("featured", forwards, "base", 1, 16, how);
        check_against_model("featured", forwards, base);
        char *other = extract("featured", forwards, "other", 5, 7, how);
        compare_features(name, base, other, false, tolerance);
        other = extract("featured", backwards, "other", 70, 64, how);
        compare_features(name, base, other, true, tolerance);
    }
    /* The other kinds, by batch and order alone. */
    for (int s = 0; s < 2; s++) {
        for (int p = 0; p < 3; p++) {
            const feature_options kind = {
                (feature_state)s, {1, {(pooling)p}}, FORMAT_NPY, false, NULL};
            char *base = extract("featured", forwards, "base", 2, 16, kind);
            char *other = extract("featured", backwards, "other", 9, 16, kind);
            compare_features("kinds", base, other, true, 1e-5);
        }
    }
}

static void test_svmlight(void **state) {
    (void)state;
    char *path = path_of("mixed.tsv");
    write_mixed(path, false);
    run("svmlight", TRAIN_FRESH, "train.steps=2");
    const feature_options how = {FEATURE_CELL, {1, {POOL_LAST}}, FORMAT_NPY, false, NULL};
    const feature_options text = {FEATURE_CELL, {1, {POOL_LAST}}, FORMAT_SVMLIGHT, false, NULL};
    char *base = extract("svmlight", path, "rows", 4, 16, how);
    char *prefix = extract("svmlight", path, "lines", 4, 16, text);
    npy array = open_npy(base, ".npy");
    const float *value = array.data;
    char *file = mem_format("%s.svmlight", prefix);
    size_t size;
    char *lines = read_text(file, &size), *next = lines;
    for (int i = 0; i < array.rows; i++) {
        assert_int_equal(strtol(next, &next, 10), i - 3);
        for (int u = 0; u < 64; u++, value++) {
            if (*value == 0) continue;
            assert_int_equal(strtol(next, &next, 10), u + 1);
            assert_int_equal(*next++, ':');
            assert_true(strtof(next, &next) == *value);
        }
        assert_int_equal(*next++, '\n');
    }
    assert_int_equal(next - lines, size);
    npy_close(&array);
    free(lines);
    free(file);
}

/* ------------------------------------------------------------------------------ checkpoints */

/* Writes a copy of a file with one entry of its metadata set to `value`, or left out. */
static void rewrite(const char *from, const char *to, const char *key, const char *value) {
    safetensors file;
    error err;
    if (!safetensors_open(&file, from, &err)) fail_msg("%s", err.text);
    metadata *entries = mem_alloc((size_t)file.entry_count, sizeof *entries);
    int count = 0;
    for (int i = 0; i < file.entry_count; i++) {
        if (strcmp(file.entries[i].key, "checksum") == 0) continue;
        bool changed = strcmp(file.entries[i].key, key) == 0;
        if (changed && !value) continue;
        entries[count] = file.entries[i];
        if (changed) snprintf(entries[count].value, sizeof entries[count].value, "%s", value);
        count++;
    }
    assert_true(safetensors_write(to, file.tensors, file.tensor_count, entries, count, &err));
    free(entries);
    safetensors_close(&file);
}

static void assert_not_opened(const char *path, const char *expected) {
    checkpoint c;
    error err;
    if (checkpoint_open(&c, path, &err)) fail_msg("not refused: %s", expected);
    if (!strstr(err.text, expected) || !strstr(err.text, path)) {
        fail_msg("expected '%s' in: %s", expected, err.text);
    }
}

static void test_checkpoint_refusals(void **state) {
    (void)state;
    static const struct {
        const char *key, *value, *expected;
    } cases[] = {
        {"format", "other", "not written by smallworld"},
        {"format", NULL, "not written by smallworld"},
        {"version", "2", "format version 2, but this program reads version 1"},
        {"version", NULL, "not written by smallworld"},
        {"kind", "state", "a state file; expected a model file"},
        {"model.hidden", "65", "model.hidden: expected a multiple of model.block 8, got 65"},
        {"model.hidden", "128", "pattern.gates: 8 self-blocks: expected one for each of 16 nodes"},
        {"model.hidden", "-64", "model.hidden: expected an integer at least 8"},
        {"model.hidden", NULL, "its metadata has no model.hidden"},
        {"model.cell", "gru", "model.cell: expected one of: lstm mlstm deep, got 'gru'"},
        {"model.cell", "mlstm", "pattern.step0: expected a tensor of int32 [blocks][2]"},
    };
    run("refusing", TRAIN_FRESH, "train.steps=1");
    char *path = run_file("refusing", "last.safetensors"), *copy = path_of("a.safetensors");
    rewrite(path, copy, "none", NULL);
    checkpoint c;
    error err;
    assert_true(checkpoint_open(&c, copy, &err));
    checkpoint_close(&c);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rewrite(path, copy, cases[i].key, cases[i].value);
        assert_not_opened(copy, cases[i].expected);
    }
    /* Another shape of the same pattern shows when weights are loaded. */
    rewrite(path, copy, "model.embedding", "16");
    assert_true(checkpoint_open(&c, copy, &err));
    backend *be = test_backend(FP32);
    assert_null(checkpoint_model(&c, be, 1, 1, &err));
    assert_contains(err.text, "tensor input.embedding: expected float32 [16, 256]");
    be->destroy(be);
    checkpoint_close(&c);

    /* Without its checksum's name, which the checksum does not guard. */
    size_t size;
    char *bytes = read_text(path, &size), *name = memmem(bytes, size, "checksum", 8);
    for (int i = 0; i < 8; i++) {
        name[i] ^= 1;
        write_bytes(copy, bytes, size);
        assert_not_opened(copy, "corrupt");
        name[i] ^= 1;
    }
    free(bytes);
    write_text(copy, "");
    assert_not_opened(copy, "only 0 bytes");
    path = run_file("refusing", "last.state");
    assert_not_opened(path, "a state file; expected a model file");
    rename(path, copy);
    rewrite(copy, path, "loss_updates", NULL);
    assert_run_fails("refusing", TRAIN_RESUME, "train.steps=1", "its metadata has no loss_updates");
}

/* Writes a copy of a state whose tensor `name` has another shape; where it ends in 0, no data. */
static void reshape(const char *from, const char *to, const char *name, int dimensions,
                    const int64_t *shape) {
    safetensors file;
    error err;
    if (!safetensors_open(&file, from, &err)) fail_msg("%s", err.text);
    for (int i = 0; i < file.tensor_count; i++) {
        tensor *t = &file.tensors[i];
        if (name && strcmp(t->name, name) != 0) continue;
        for (int d = 0; d < dimensions; d++) t->shape[d] = shape[d];
        if (!name) t->shape[t->dimensions++] = 0; /* all of them */
        if (name) t->dimensions = dimensions;
    }
    int count = 0;
    for (int i = 0; i < file.entry_count; i++) {
        if (strcmp(file.entries[i].key, "checksum") != 0) file.entries[count++] = file.entries[i];
    }
    assert_true(safetensors_write(to, file.tensors, file.tensor_count, file.entries, count, &err));
    safetensors_close(&file);
}

/* Nothing of a state is believed: shapes, dimensions, numbers. */
static void test_hostile_states(void **state) {
    (void)state;
    const char *settings = "train.steps=3";
    run("hostile", TRAIN_FRESH, settings);
    const char *path = run_file("hostile", "last.state"), *copy = path_of("whole.state");
    settings = "train.steps=6";
    rename(path, copy);

    reshape(copy, path, NULL, 0, NULL); /* a dimension of 0 more: the shape fits, the data do not */
    assert_run_fails("hostile", TRAIN_RESUME, settings, "last.state: ");
    static const char *const names[] = {"weights", "moment1", "moment2", "average", "h", "c"};
    for (int i = 0; i < 6; i++) {
        static const int64_t none[] = {0}, one[] = {1, 1, 1};
        reshape(copy, path, names[i], 1, none);
        char *expected = mem_format("tensor %s does not fit this model", names[i]);
        assert_run_fails("hostile", TRAIN_RESUME, settings, expected);
        reshape(copy, path, names[i], 3, one);
        assert_run_fails("hostile", TRAIN_RESUME, settings, expected);
        const int64_t deep[] = {i < 4 ? 0 : 64, i < 4 ? 0 : 4, 0};
        reshape(copy, path, names[i], 3, deep);
        assert_run_fails("hostile", TRAIN_RESUME, settings, expected);
        free(expected);
    }
    static const char *const numbers[][3] = {
        {"step", "-9223372036854775808", "an integer from 0"},
        {"step", "x", "an integer from 0"},
        {"step", "", "an integer from 0"},
        {"step", "3 ", "an integer from 0"},
        {"step", "9223372036854775807", "an integer from 0"},
        {"step", "1e3", "an integer from 0"},
        {"total", "-1", "an integer from 0"},
        {"loss_updates", "-1", "an integer from 0"},
        {"metrics_bytes", "-1", "an integer from 0"},
        {"finished", "2", "an integer from 0 to 1"},
        {"pending", "3", "an integer from 0 to 2"},
        {"seconds", "nan", "a number from 0"},
        {"seconds", "-1", "a number from 0"},
        {"loss", "inf", "a number from 0"},
        {"valid_bpc", "0x1p3", "a number from 0"},
        {"best_bpc", "-nan", "a number from 0"},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        rewrite(copy, path, numbers[i][0], numbers[i][1]);
        char *expected =
            mem_format("last.state: metadata %s: expected %s", numbers[i][0], numbers[i][2]);
        assert_run_fails("hostile", TRAIN_RESUME, settings, expected);
        free(expected);
    }
    rename(copy, path);
    train_result r = run("hostile", TRAIN_RESUME, settings);
    assert_int_equal(r.steps, 6);
}

/* --------------------------------------------------------------------------------- schedule */

static void assert_lr(const train_options *t, int64_t step, int64_t total, double expected) {
    double lr = __real_schedule_lr(t, step, total);
    if (!(fabs(lr - expected) < 1e-12)) fail_msg("step %d: %.15g", (int)step, lr);
}

static void test_schedule(void **state) {
    (void)state;
    train_options t = {.lr = 0.5, .lr_final = 0.1, .warmup = 10, .schedule = SCHEDULE_LINEAR};
    assert_lr(&t, 0, 110, 0.05);
    assert_lr(&t, 9, 110, 0.5);
    assert_lr(&t, 10, 110, 0.5);
    assert_lr(&t, 60, 110, 0.275);
    assert_lr(&t, 110, 110, 0.05);
    assert_lr(&t, 300, 110, 0.05);
    assert_lr(&t, 60, INT64_MAX, 0.5);
    assert_lr(&t, 5, 8, 0.3);
    t.schedule = SCHEDULE_COSINE;
    assert_lr(&t, 60, 110, 0.275);
    assert_lr(&t, 35, 110, 0.5 * (0.1 + 0.9 * (1 + sqrt(0.5)) / 2));
    t.schedule = SCHEDULE_CONSTANT;
    assert_lr(&t, 60, 110, 0.5);
    t.warmup = 0;
    assert_lr(&t, 0, 110, 0.5);

    t = (train_options){0};
    assert_true(schedule_limit(&t, 10) == INT64_MAX);
    t.epochs = 1.5;
    assert_int_equal(schedule_limit(&t, 10), 15);
    t.steps = 12;
    assert_int_equal(schedule_limit(&t, 10), 12);
    t.steps = 20;
    assert_int_equal(schedule_limit(&t, 10), 15);
    t.epochs = 1e-6;
    assert_int_equal(schedule_limit(&t, 10), 1);
    t.minutes = 2;
    assert_int_equal(schedule_plan(&t, 30, 60), 60);
    assert_int_equal(schedule_plan(&t, 30, 240), 30);
}

static void test_structure_schedules(void **state) {
    (void)state;
    const train_options t = {.rewire_every = 10,
                             .rewire_share = 0.4,
                             .rewire_until = 0.5,
                             .prune_density = 0.2,
                             .prune_every = 10,
                             .prune_from = 0.1,
                             .prune_until = 0.6};
    structure_place at = {0, 100, 1};
    static const struct {
        int64_t step;
        double share, density;
    } expected[] = {{0, 0.4, 1},
                    {5, 0.2 * (1 + 0.95105651629515357), 1},
                    {10, 0.2 * (1 + 0.80901699437494742), 1},
                    {25, 0.2, 0.2 + 0.8 * 0.343},
                    {35, 0.2 * (1 - 0.58778525229247313), 0.3},
                    {50, 0, 0.2 + 0.8 * 0.008},
                    {60, 0, 0.2},
                    {99, 0, 0.2}};
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        at.step = expected[i].step;
        assert_true(fabs(structure_rewire_share(&t, &at) - expected[i].share) < 1e-12);
        assert_true(fabs(structure_target_density(&t, &at) - expected[i].density) < 1e-12);
    }
    at = (structure_place){90, INT64_MAX, 1}; /* the end is not known */
    assert_true(structure_rewire_share(&t, &at) == 0.4);
    assert_true(structure_target_density(&t, &at) == 1);
    at = (structure_place){99, 100, 0.5};
    assert_true(structure_target_density(&t, &at) == 0.2);
}

#define TEST(function) cmocka_unit_test_setup(function, reset_interventions)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_learns),
        TEST(test_repeats),
        TEST(test_resume_fp32),
        TEST(test_resume_bf16),
        TEST(test_resume_rewired),
        TEST(test_resume_pruned),
        TEST(test_raised_limit),
        TEST(test_lowered_limit),
        TEST(test_finished),
        TEST(test_signal_between_updates),
        TEST(test_lost_updates),
        TEST(test_repaired_models),
        TEST(test_overwrite),
        TEST(test_own_config),
        TEST(test_lost_metrics),
        TEST(test_minutes),
        TEST(test_refused_changes),
        TEST(test_not_finite),
        TEST(test_init),
        TEST(test_evaluation),
        TEST(test_moving_average),
        TEST(test_features),
        TEST(test_svmlight),
        TEST(test_checkpoint_refusals),
        TEST(test_hostile_states),
        TEST(test_schedule),
        TEST(test_structure_schedules),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
