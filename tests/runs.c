#include "runs.h"

#include "core/memory.h"
#include "data/minibatches.h"
#include "train/schedule.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------- interventions
 * The linker puts these functions in front of the trainer's own calls (--wrap), so that a test can
 * send a signal or spoil the learning rate at a step of its choice. */

int64_t signal_step = -1, spoil_step = -1;
bool signal_first;

double __real_schedule_lr(const train_options *t, int64_t step, int64_t total);
double __wrap_schedule_lr(const train_options *t, int64_t step, int64_t total);
reader *__real_reader_start(const corpus *c, stream_share streams, int columns, int steps,
                            uint64_t seed, uint64_t first);
reader *__wrap_reader_start(const corpus *c, stream_share streams, int columns, int steps,
                            uint64_t seed, uint64_t first);

double __wrap_schedule_lr(const train_options *t, int64_t step, int64_t total) {
    if (step == signal_step) {
        signal_step = -1;
        raise(SIGTERM);
    }
    return step == spoil_step ? NAN : __real_schedule_lr(t, step, total);
}

reader *__wrap_reader_start(const corpus *c, stream_share streams, int columns, int steps,
                            uint64_t seed, uint64_t first) {
    if (signal_first) raise(SIGINT);
    signal_first = false;
    return __real_reader_start(c, streams, columns, steps, seed, first);
}

/* ------------------------------------------------------------------------------------- runs */

char *train_file, *valid_file;

void write_documents(const char *path, int count, uint64_t seed) {
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

int write_files(void **state) {
    (void)state;
    backend *be = test_backend(FP32); /* exits where there is no such device */
    be->memory->destroy(be);
    train_file = path_of("train.tsv");
    valid_file = path_of("valid.tsv");
    write_documents(train_file, 60, 1);
    write_documents(valid_file, 9, 2);
    return 0;
}

int reset_interventions(void **state) {
    (void)state;
    signal_step = spoil_step = -1;
    signal_first = false;
    return 0;
}

static void set(options *o, const char *assignment) {
    error err;
    if (!config_assign(&o->config, assignment, &err)) fail_msg("%s", err.text);
}

void begin_options(options *o, const char *settings) {
    static const char base[] =
        "run.threads=1 model.hidden=64 model.block=8 model.embedding=8 model.degree=4 "
        "train.batch=4 train.bptt=16 train.warmup=5 train.lr=0.01 train.log_every=4 "
        "train.valid_every=7 train.average=0.9 train.steps=40";
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
    bool done = train_run(&o, path_of(name), start, result, err);
    options_free(&o);
    return done;
}

train_result run(const char *name, train_start start, const char *settings) {
    train_result result = {0};
    error err;
    if (!try_run(name, start, settings, &result, &err)) fail_msg("%s: %s", name, err.text);
    return result;
}

void assert_run_fails(const char *name, train_start start, const char *settings,
                      const char *expected) {
    train_result result;
    error err;
    if (try_run(name, start, settings, &result, &err)) fail_msg("not refused: %s", expected);
    if (!strstr(err.text, expected)) fail_msg("expected '%s' in: %s", expected, err.text);
}

/* ------------------------------------------------------------------------------------ files */

char *run_file(const char *name, const char *file) {
    char *below = mem_format("%s/%s", name, file), *path = path_of(below);
    free(below);
    return path;
}

char *read_run_file(const char *name, const char *file, size_t *size) {
    return read_text(run_file(name, file), size);
}

bool same_file(const char *one, const char *other, const char *file) {
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

/* Whether metrics are the same but for the times in them. */
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

void open_run(safetensors *file, const char *name, const char *which) {
    error err;
    if (!safetensors_open(file, run_file(name, which), &err)) fail_msg("%s", err.text);
}

bool same_tensor(const tensor *a, const tensor *b) {
    return a && b && tensor_bytes(a) == tensor_bytes(b) &&
           memcmp(a->data, b->data, tensor_bytes(a)) == 0;
}

/* States are the same but for the time spent, and for what sums or counts bytes that hold it. */
static bool same_state(const char *one, const char *other) {
    static const char *const timed[] = {"checksum", "seconds", "elapsed", "metrics_bytes"};
    safetensors a, b;
    open_run(&a, one, "last.state");
    open_run(&b, other, "last.state");
    bool same = a.tensor_count == b.tensor_count && a.entry_count == b.entry_count;
    for (int i = 0; i < a.tensor_count && same; i++) {
        same = same_tensor(&a.tensors[i], safetensors_find(&b, a.tensors[i].name));
    }
    for (int i = 0; i < a.entry_count && same; i++) {
        bool skip = false;
        for (int t = 0; t < 4; t++) skip = skip || strcmp(a.entries[i].key, timed[t]) == 0;
        same = skip || strcmp(a.entries[i].value, b.entries[i].value) == 0;
        if (!same) print_message("%s differs\n", a.entries[i].key);
    }
    safetensors_close(&a);
    safetensors_close(&b);
    return same;
}

void assert_same_run(const char *one, const char *other) {
    assert_true(same_file(one, other, "last.safetensors"));
    assert_true(same_file(one, other, "best.safetensors"));
    assert_true(same_file(one, other, "config.yaml"));
    assert_true(same_metrics(one, other));
    assert_true(same_state(one, other));
}

bool find_number(const char *line, const char *key, double *value) {
    char *field = mem_format("\"%s\": ", key), *at = strstr(line, field);
    *value = NAN;
    if (at) sscanf(at + strlen(field), "%lf", value);
    free(field);
    return at != NULL;
}

double metric(const char *name, const char *key, bool last) {
    size_t size;
    char *text = read_run_file(name, "metrics.jsonl", &size);
    if (size == 0 || text[size - 1] != '\n') fail_msg("the last line has no end");
    text[size - 1] = '\0';
    char *line = last && strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
    double value;
    if (!find_number(line, key, &value)) fail_msg("no %s in %s", key, line);
    free(text);
    return value;
}

/* ----------------------------------------------------------------------------------- models */

void load(loaded *l, const char *name, int batch, int steps) {
    load_for(l, name, batch, steps, MODEL_INFERENCE);
}

void load_for(loaded *l, const char *name, int batch, int steps, model_use use) {
    error err;
    l->be = test_device_is_cuda() ? test_backend(FP32) : backend_cpu(FP32, 1);
    if (!checkpoint_open(&l->c, run_file(name, "last.safetensors"), &err)) fail_msg("%s", err.text);
    l->m = checkpoint_model(&l->c, l->be, batch, steps, use, &err);
    if (!l->m) fail_msg("%s", err.text);
}

void unload(loaded *l) {
    model_free(l->m);
    l->be->memory->destroy(l->be);
    checkpoint_close(&l->c);
}

corpus *read_corpus(char *path) {
    corpus_options how = {0};
    error err;
    corpus *c = corpus_read(&path, 1, &how, &err);
    if (!c) fail_msg("%s", err.text);
    return c;
}
