#include "train/generate.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct generator {
    model *m;
    sampling *state;
    uint8_t *text;
} generator;

static void issue_byte(void *argument) {
    generator *g = argument;
    model_generate(g->m, g->state, g->text);
}

bool generate(model *m, const generation *how, uint8_t *text, error *err) {
    backend *be = m->be;
    const size_t total = how->given + how->bytes;
    const sampling start = {how->temperature, how->top_p, how->top_k, how->seed, 0, how->given};
    generator g = {m, be->allocate(be, sizeof start), be->allocate(be, total)};
    bool done = g.state && g.text;
    if (done) {
        uint8_t *first = mem_alloc((size_t)m->columns, 1);
        first[0] = how->prompt[0];
        model_set_text(m, first, NULL);
        model_zero_state(m);
        be->upload(be, g.state, &start, sizeof start);
        be->upload(be, g.text, how->prompt, how->given);
        free(first);
        model_prepare_tables(m);
        recording *step = be->record(be, issue_byte, &g);
        for (size_t i = 0; i + 1 < total; i++) be->replay(be, step);
        be->download(be, text, g.text, total);
        done = be->finish(be, err);
        be->recording_free(be, step);
    } else {
        error_set(err, "%zu bytes of text do not fit on %s", total, be->device);
    }
    if (g.state) be->release(be, g.state);
    if (g.text) be->release(be, g.text);
    return done;
}
