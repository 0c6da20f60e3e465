/* Training on a backend: it learns and repeats, it ends at its limits, it refuses bad settings, and
 * it starts from a checkpoint. */
#include "runs.h"

#include "core/clock.h"
#include "core/memory.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

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
    run("fastest", TRAIN_FRESH, "train.steps=60 model.dropout=0.2 run.threads=0");
    run("one", TRAIN_FRESH, "train.steps=60 model.dropout=0.2 run.threads=1");
    assert_true(same_file("fastest", "one", "last.safetensors"));
}

static void test_minutes(void **state) {
    (void)state;
    const char *settings = "train.steps=null train.minutes=0.003 train.valid_every=1000000";
    train_result r = run("minutes", TRAIN_FRESH, settings);
    if (r.seconds < 0.05 || r.seconds > 10) fail_msg("0.18 seconds became %g", r.seconds);
    assert_true(r.steps > 3);
    /* The time of validation counts, and the rate has reached its end when time has. */
    const double begin = clock_seconds();
    r = run("minutes", TRAIN_OVERWRITE,
            "train.steps=null train.minutes=0.03 train.valid_every=1 train.log_every=1 "
            "train.warmup=1");
    const double took = clock_seconds() - begin;
    if (r.seconds > 1.7 || took > 12) fail_msg("1.8 seconds: %g, %g in all", r.seconds, took);
    assert_true(metric("minutes", "lr", true) < 0.2 * metric("minutes", "lr", false));
    r = run("minutes", TRAIN_OVERWRITE, "train.steps=6 train.minutes=0.2");
    assert_int_equal(r.steps, 6);

    /* Limits in steps may change on resuming, before and after minutes have become a number of
     * steps. */
    run("minutes", TRAIN_OVERWRITE, "train.steps=6 train.minutes=5");
    r = run("minutes", TRAIN_RESUME, "train.steps=9 train.minutes=5");
    assert_int_equal(r.steps, 9);
    run("minutes", TRAIN_OVERWRITE, "train.steps=null train.minutes=0.01");
    r = run("minutes", TRAIN_RESUME, "train.steps=3 train.minutes=0.02");
    /* Minutes that a busy machine has not used up yet. */
    signal_first = true;
    r = run("minutes", TRAIN_RESUME, "train.steps=null train.minutes=1");
    assert_int_equal(r.signal, SIGINT);
    const int64_t done = r.steps;
    char *more = mem_format("train.steps=%" PRId64 " train.minutes=1", done + 5);
    r = run("minutes", TRAIN_RESUME, more);
    assert_int_equal(r.steps, done + 5);
    free(more);
}

static void test_not_finite(void **state) {
    (void)state;
    const char *settings = "train.valid_every=1000";
    signal_step = 4;
    run("diverged", TRAIN_FRESH, settings);
    size_t size, again;
    char *before = read_run_file("diverged", "last.safetensors", &size);
    spoil_step = 9; /* update 10 destroys the weights; the loss of update 11 shows it */
    assert_run_fails(
        "diverged", TRAIN_RESUME, settings,
        "step 11: the loss or its gradient is not finite; the last good checkpoint is ");
    char *after = read_run_file("diverged", "last.safetensors", &again);
    assert_int_equal(size, again);
    assert_memory_equal(before, after, size);
    free(before);
    free(after);

    assert_run_fails("nothing", TRAIN_FRESH, settings, "no checkpoint yet in ");
    /* Nor is a state saved after it, where one is due after each update. */
    assert_run_fails("saves", TRAIN_FRESH,
                     "train.valid_every=1000 train.log_every=1000 train.checkpoint_minutes=1e-9",
                     "step 11: the loss or its gradient is not finite; the last good");
    safetensors state_file;
    open_run(&state_file, "saves", "last.state");
    assert_string_equal(safetensors_metadata(&state_file, "step"), "10");
    safetensors_close(&state_file);
    spoil_step = 6; /* just before a validation */
    assert_run_fails("diverged", TRAIN_OVERWRITE, "", "step 7: validation: the loss is not finite");
    spoil_step = -1;

    run("whole", TRAIN_OVERWRITE, settings);
    run("diverged", TRAIN_OVERWRITE, settings);
    assert_same_run("whole", "diverged");
}

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
    /* Weights and patterns come from the file, not from the run's seed. */
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

    /* The run is stopped and resumed, also after the file that it started from is gone. */
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
        {"model.norm=none", "its model.norm differs"},
        {"model.coupled_gates=true", "its model.coupled_gates differs"},
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

    run("saved", TRAIN_OVERWRITE, "train.steps=1 model.graph=core_periphery");
    path = run_file("saved", "last.safetensors");
    static const char *const cores[][2] = {{"core", "0.7"},
                                           {"core_reads", "0.2"},
                                           {"periphery_reads", "0.5"},
                                           {"periphery", "watts_strogatz"}};
    for (size_t i = 0; i < sizeof cores / sizeof cores[0]; i++) {
        settings = mem_format("train.init=%s model.graph=core_periphery model.%s=%s", path,
                              cores[i][0], cores[i][1]);
        char *expected = mem_format("its model.%s differs", cores[i][0]);
        assert_run_fails("other", TRAIN_FRESH, settings, expected);
        free(expected);
        free(settings);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_learns),     TEST(test_repeats), TEST(test_minutes),
        TEST(test_not_finite), TEST(test_init),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
