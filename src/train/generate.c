#include "train/generate.h"

#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of a recording: many, so that the host stays ahead of the device; then single ones. */
static const int sizes[] = {64, 1};

enum { SIZES = sizeof sizes / sizeof sizes[0] };

typedef struct generator {
    model *m;
    sampling *state;
    uint8_t *text;
    int bytes;
} generator;

static void issue_bytes(void *argument) {
    const generator *g = argument;
    model_generate(g->m, g->state, g->text, g->bytes);
}

/* Weights that are finite may still give states that are not, and these last. */
static bool check_logits(model *m, error *err) {
    const size_t count = (size_t)VOCABULARY * (size_t)m->columns;
    float *logits = mem_alloc(count, sizeof *logits);
    m->be->memory->download(m->be, logits, m->logits, count * sizeof *logits);
    bool finite = true;
    for (size_t v = 0; v < VOCABULARY; v++) {
        finite = finite && isfinite(logits[v * (size_t)m->columns]);
    }
    free(logits);
    return finite ||
           error_set(err, "the model's outputs are not finite: its weights are too large");
}

bool generate(model *m, const generation *how, uint8_t *text, error *err) {
    backend *be = m->be;
    const size_t total = how->given + how->bytes;
    const int top_k = how->top_k < VOCABULARY ? how->top_k : VOCABULARY;
    const sampling start = {how->temperature, how->top_p, top_k, how->seed, 0, how->given};
    sampling *state = be->memory->allocate(be, sizeof start);
    uint8_t *device_text = be->memory->allocate(be, total);
    bool done = state && device_text;
    if (done) {
        recording *recorded[SIZES] = {NULL};
        generator g[SIZES];
        size_t left = total - 1;
        uint8_t *first = mem_alloc((size_t)m->columns, 1);
        first[0] = how->prompt[0];
        model_set_text(m, first, NULL);
        model_zero_state(m);
        be->memory->upload(be, state, &start, sizeof start);
        be->memory->upload(be, device_text, how->prompt, how->given);
        free(first);
        model_prepare_tables(m);
        for (int i = 0; i < SIZES; i++) {
            const size_t each = (size_t)sizes[i];
            if (left < each) continue;
            g[i] = (generator){m, state, device_text, sizes[i]};
            recorded[i] = be->memory->record(be, issue_bytes, &g[i]);
            for (; left >= each && done; left -= each) {
                be->memory->replay(be, recorded[i]);
                done = !how->stop || !how->stop(err);
            }
        }
        if (done) be->memory->download(be, text, device_text, total);
        done = done && (total == 1 || check_logits(m, err));
        error ignored;
        done = be->memory->finish(be, done ? err : &ignored) && done;
        for (int i = 0; i < SIZES; i++) {
            if (recorded[i]) be->memory->recording_free(be, recorded[i]);
        }
    } else {
        error_set(err, "%zu bytes of text do not fit on %s", total, be->device);
    }
    if (state) be->memory->release(be, state);
    if (device_text) be->memory->release(be, device_text);
    return done;
}
