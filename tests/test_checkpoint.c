/* Checkpoints and states from strangers: every field is checked. */
#include "runs.h"

#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    /* A wrong shape is found only when the weights are loaded. */
    rewrite(path, copy, "model.embedding", "16");
    assert_true(checkpoint_open(&c, copy, &err));
    backend *be = test_backend(FP32);
    assert_null(checkpoint_model(&c, be, 1, 1, MODEL_INFERENCE, &err));
    assert_contains(err.text, "tensor input.embedding: expected float32 [16, 256]");
    be->memory->destroy(be);
    checkpoint_close(&c);

    /* The checksum does not cover the name of its own entry, so a file may lack that name. */
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

/* Writes a copy of a state whose tensor `name` has another shape. A shape that ends in 0 has no
 * data. */
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

/* Shapes, numbers of dimensions, and numbers of a state are all checked. */
static void test_hostile_states(void **state) {
    (void)state;
    const char *settings = "train.steps=3";
    run("hostile", TRAIN_FRESH, settings);
    const char *path = run_file("hostile", "last.state"), *copy = path_of("whole.state");
    settings = "train.steps=6";
    rename(path, copy);

    reshape(copy, path, NULL, 0,
            NULL); /* one more dimension of size 0: the shape agrees, but there are no data */
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
        {"step", "9223372036854775807", "an integer from 0"},
        {"total", "-1", "an integer from 0"},
        {"loss_updates", "-1", "an integer from 0"},
        {"metrics_bytes", "-1", "an integer from 0"},
        {"finished", "2", "an integer from 0 to 1"},
        {"pending", "3", "an integer from 0 to 2"},
        {"seconds", "nan", "a number from 0"},
        {"seconds", "-1", "a number from 0"},
        {"elapsed", "-1", "a number from 0"},
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
    rewrite(copy, path, "elapsed", NULL); /* as older programs wrote them */
    train_result r = run("hostile", TRAIN_RESUME, settings);
    assert_int_equal(r.steps, 6);
    rename(copy, path);
    r = run("hostile", TRAIN_RESUME, settings);
    assert_int_equal(r.steps, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_checkpoint_refusals),
        TEST(test_hostile_states),
    };
    return cmocka_run_group_tests(tests, write_files, NULL);
}
