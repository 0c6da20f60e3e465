/* A checkpoint is opened, made a model, and run, as eval does. */
#include "fuzz.h"
#include "models.h"

#include "train/checkpoint.h"
#include "train/evaluate.h"

#include <stdlib.h>
#include <string.h>

enum { CELLS = 3 };

static const char *path;
static backend *be;
static corpus *text;
static sequence *bytes;

static void release(void) {
    sequence_free(bytes);
    corpus_free(text);
    be->memory->destroy(be);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    static const char *const cells[CELLS] = {"lstm", "mlstm", "deep"};
    error err;
    path = scratch_path("input.safetensors");
    for (int i = 0; i < CELLS; i++) {
        options o;
        tiny_options(&o, cells[i]);
        if (!be) be = options_backend(&o.run, &err);
        model *m = tiny_model(be, &o);
        require(checkpoint_save_model(m, NULL, &o, 7, path, &err), err.text);
        add_seed(path);
        model_free(m);
        options_free(&o);
    }
    char *file = (char *)scratch_path("text.txt");
    scratch_write(file, "0123456789abcdef", 16);
    text = corpus_read(&file, 1, &(corpus_options){0}, &err);
    require(text != NULL, err.text);
    bytes = sequence_in_order(text);
    atexit(release);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    checkpoint c;
    error err;
    scratch_write(path, data, size);
    if (!checkpoint_open(&c, path, &err)) {
        require(strstr(err.text, path) != NULL, "an error that does not name the file");
        return 0;
    }
    model *m = checkpoint_model(&c, be, TINY_BATCH, TINY_STEPS, MODEL_INFERENCE, &err);
    if (m) {
        recording *forward = evaluate_record(m);
        evaluation e;
        if (evaluate(m, forward, bytes, 0, false, false, &e, &err)) {
            require(e.bpc >= 0 && e.bytes == 15, "a score that cannot be");
        }
        be->memory->recording_free(be, forward);
        model_free(m);
    }
    checkpoint_close(&c);
    return 0;
}
