/* Resuming: a run that was stopped and resumed ends with the files of one that never was.
 * Starting over keeps the earlier run until the new one has a checkpoint. */
#include "runs.h"

#include "core/file.h"
#include "core/memory.h"
#include "data/minibatches.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Stops at each of `stops`, which ends with -1, resumes each time, and compares the result with a
 * run that was never stopped. */
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

/* Stops within an epoch, at its end, and between a validation and its line of metrics. */
static const int64_t some_stops[] = {3, 6, 25, 33, -1}, one_stop[] = {30, -1};

static void test_resume_fp32(void **state) {
    (void)state;
    options o;
    begin_options(&o, "");
    corpus_options how = {0};
    error err;
    corpus *c = corpus_read(o.data.train.items, 1, &how, &err);
    /* The stops below depend on this number. */
    assert_int_equal(reader_epoch_updates(c, 4, 16), 26);
    corpus_free(c);
    options_free(&o);
    check_resume("run.precision=fp32", some_stops);
    check_resume("run.precision=fp32 model.cell=mlstm model.dropout=0.3", some_stops);
    check_resume("run.precision=fp32 model.cell=deep model.dropout=0.3", one_stop);
    check_resume("run.precision=fp32 model.cell=mlstm model.hubs=16 model.graph=dense "
                 "model.degree=null",
                 one_stop);
    check_resume("run.precision=fp32 train.recompute=3 model.dropout=0.3", one_stop);
    check_resume("run.precision=fp32 model.layers=2 train.recompute=2 model.dropout=0.3", one_stop);
    check_resume("run.precision=fp32 model.graph=dense model.degree=null train.batch=3 "
                 "train.schedule=cosine",
                 one_stop);
}

static void test_resume_bf16(void **state) {
    (void)state;
    check_resume("run.precision=bf16 model.dropout=0.3", some_stops);
    check_resume("run.precision=bf16 model.cell=mlstm model.input_dropout=0.2", one_stop);
    check_resume("run.precision=bf16 model.cell=deep model.dropout=0.3", one_stop);
    check_resume("run.precision=bf16 model.cell=mlstm train.recompute=4", one_stop);
    check_resume("run.precision=bf16 model.cell=deep model.hubs=24 model.graph=random "
                 "model.density=0.6 model.degree=null model.layers=2",
                 one_stop);
    check_resume("run.precision=bf16 model.cell=deep model.layers=3", one_stop);
}

/* A limit stops the run, and the schedule does not depend on the limit. */
static void test_raised_limit(void **state) {
    (void)state;
    const char *whole = "train.schedule=constant train.steps=40 train.valid_every=10";
    run("whole", TRAIN_OVERWRITE, whole);
    run("raised", TRAIN_FRESH, "train.schedule=constant train.steps=20 train.valid_every=10");
    run("raised", TRAIN_RESUME, whole);
    assert_same_run("whole", "raised");
    /* The limit is in epochs of 26 updates. */
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

/* A run whose limit is lowered below its step ends like one that reached its limit. */
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

/* A signal before the first update, or between two updates, loses nothing. */
static void test_signal_between_updates(void **state) {
    (void)state;
    run("whole", TRAIN_OVERWRITE, "");
    signal_first = true;
    train_result r = run("between", TRAIN_FRESH, "");
    assert_int_equal(r.signal, SIGINT);
    assert_int_equal(r.steps, 0);
    safetensors file;
    open_run(&file, "between", "last.state"); /* written although nothing was done, for --resume */
    safetensors_close(&file);
    signal_step = 9;
    run("between", TRAIN_RESUME, "");
    signal_first = true;
    r = run("between", TRAIN_RESUME, "");
    assert_int_equal(r.steps, 10);
    run("between", TRAIN_RESUME, "");
    assert_same_run("whole", "between");
}

/* Models without a state are refused. */
static void test_lost_updates(void **state) {
    (void)state;
    run("whole", TRAIN_OVERWRITE, "");
    signal_step = 20;
    run("killed", TRAIN_FRESH, "");
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

    /* Without models and state, the run begins again. */
    assert_int_equal(remove(run_file("killed", "last.safetensors")), 0);
    assert_int_equal(remove(run_file("killed", "best.safetensors")), 0);
    assert_run_fails("killed", TRAIN_RESUME, "run.seed=5", "run.seed: cannot change on resuming");
    run("killed", TRAIN_RESUME, "");
    assert_same_run("whole", "killed");

    /* Without config.yaml it cannot be known whether it is the same run. */
    assert_int_equal(remove(run_file("killed", "config.yaml")), 0);
    assert_run_fails("killed", TRAIN_RESUME, "", "killed/config.yaml: missing");
}

static int64_t state_step(const char *name, const char *which) {
    safetensors file;
    open_run(&file, name, which);
    int64_t step = strtoll(safetensors_metadata(&file, "step"), NULL, 10);
    safetensors_close(&file);
    return step;
}

/* A run in the folder `next` of another one is a run like any other, also behind a link. */
static void test_run_in_next(void **state) {
    (void)state;
    run("outer", TRAIN_FRESH, "train.steps=10");
    run("outer/next", TRAIN_FRESH, "train.steps=20 run.seed=9");
    run("outer", TRAIN_RESUME, "train.steps=30");
    assert_int_equal(state_step("outer", "last.state"), 30);
    assert_int_equal(state_step("outer", "next/last.state"), 20);
    assert_run_fails("outer", TRAIN_OVERWRITE, "train.steps=5", "outer/next: --overwrite needs");
    assert_int_equal(state_step("outer", "last.state"), 30);
    assert_int_equal(state_step("outer", "next/last.state"), 20);

    run("linked", TRAIN_FRESH, "train.steps=10");
    char *target = mem_format("%s", path_of("outer"));
    assert_int_equal(symlink(target, run_file("linked", "next")), 0);
    write_text(run_file("outer", ".overwrite"), "");
    assert_run_fails("linked", TRAIN_OVERWRITE, "", "linked/next: --overwrite needs");
    assert_run_fails("outer", TRAIN_RESUME, "", "outer: belongs to an unfinished overwrite");
    run("linked", TRAIN_RESUME, "train.steps=15");
    assert_int_equal(state_step("linked", "last.state"), 15);
    assert_int_equal(state_step("outer", "last.state"), 30);
    free(target);
}

static void test_own_config(void **state) {
    (void)state;
    error err;
    assert_true(file_make_folder(path_of("own"), &err));
    write_text(run_file("own", "config.yaml"), "# mine\ndata: {train: a.txt}\n");
    for (int start = TRAIN_FRESH; start <= TRAIN_OVERWRITE; start++) {
        assert_run_fails("own", (train_start)start, "",
                         "own/config.yaml: this file was not written");
    }
    assert_file(run_file("own", "config.yaml"), "# mine\ndata: {train: a.txt}\n");
}

static void test_refused_changes(void **state) {
    (void)state;
    run("refused", TRAIN_FRESH, "train.steps=4");
    size_t state_size, size;
    char *before = read_run_file("refused", "last.state", &state_size);
    assert_run_fails("refused", TRAIN_FRESH, "train.steps=4", "already holds a run; --resume");
    assert_run_fails("refused", TRAIN_RESUME, "train.steps=4 train.lr=0.02",
                     "train.lr: cannot change on resuming");
    assert_run_fails("refused", TRAIN_RESUME, "run.seed=3", "run.seed: cannot change");
    assert_run_fails("refused", TRAIN_RESUME, "train.optimizer=muon",
                     "train.optimizer: cannot change on resuming");
    write_documents(train_file, 61, 1);
    assert_run_fails("refused", TRAIN_RESUME, "train.steps=8",
                     "data.train: cannot change on resuming");
    write_documents(train_file, 60, 1);
    char *files[] = {train_file, valid_file};
    for (int i = 0; i < 2; i++) { /* the text has the same length */
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
    if (test_device_is_cuda()) { /* there auto means bf16 */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_resume_fp32),
        TEST(test_resume_bf16),
        TEST(test_raised_limit),
        TEST(test_lowered_limit),
        TEST(test_signal_between_updates),
        TEST(test_lost_updates),
        TEST(test_run_in_next),
        TEST(test_own_config),
        TEST(test_refused_changes),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
