#include "bench/generation.h"

#include "bench/timing.h"
#include "core/clock.h"
#include "core/memory.h"
#include "train/generate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

enum {
    ROUNDS = 5,
    FEW_BYTES = 64, /* of the shorter text of a round */
    MOST_BYTES = 1 << 20
};

/* The seconds in which the model writes a text of `bytes`. */
static bool time_text(model *m, size_t bytes, double *seconds, error *err) {
    const generation how = {
        .prompt = (const uint8_t *)"\n", .given = 1, .bytes = bytes, .temperature = 1, .top_p = 1};
    uint8_t *text = mem_alloc(how.given + bytes, 1);
    const double start = clock_seconds();
    const bool done = generate(m, &how, text, err);
    *seconds = clock_seconds() - start;
    free(text);
    return done;
}

/* Times a long and a short text in each round, so that what a text costs once cancels out. */
static bool time_bytes(model *m, double seconds, double *byte, error *err) {
    double few, many, each[ROUNDS];
    for (int i = 0; i < 2; i++) { /* the first text loads code */
        if (!time_text(m, FEW_BYTES, &few, err)) return false;
    }
    const double wanted = seconds / ROUNDS / (few / FEW_BYTES);
    const size_t more = (size_t)fmin(fmax(wanted, FEW_BYTES), MOST_BYTES);
    for (int i = 0; i < ROUNDS; i++) {
        if (!time_text(m, FEW_BYTES, &few, err) || !time_text(m, FEW_BYTES + more, &many, err)) {
            return false;
        }
        each[i] = (many - few) / (double)more;
    }
    *byte = median(each, ROUNDS);
    return true;
}

static void describe(model *m, generation_results *r) {
    double weights = (double)layout_weights(m->head_layout);
    for (int s = 0; s < model_stages(&m->config); s++) {
        weights += (double)layout_weights(m->layouts[s]);
    }
    snprintf(r->device, sizeof r->device, "%s", m->be->device);
    r->hidden = m->config.hidden;
    r->parameters = (int64_t)parameter_scalars(&m->parameters);
    r->weights = weights * (double)m->be->operand_size;
    r->resident = r->weights <= (double)ceilings_cache_size(m->be);
}

bool generation_measure(options *o, double seconds, generation_results *results, error *err) {
    *results = (generation_results){0};
    backend *be = options_backend(&o->run, err);
    if (!be) return false;
    model *m = model_create(be, &o->model, NULL, 1, 1, 1, MODEL_INFERENCE, err);
    bool done = m != NULL;
    if (done) {
        model_initialise(m);
        describe(m, results);
        done = time_bytes(m, seconds, &results->byte, err);
    }
    model_free(m); /* the ceilings need its memory */
    done = done && ceilings_measure(be, &results->ceilings, err);
    results->resident = results->resident && results->ceilings.cache > 0;
    be->destroy(be);
    return done;
}

/* The seconds that reading the weights once takes, from memory or, if they fit, from the cache. */
static double floor_of(const generation_results *r) {
    return r->weights / (r->resident ? r->ceilings.cache : r->ceilings.memory);
}

void generation_text(const generation_results *r, FILE *out) {
    char text[160];
    const double floor = floor_of(r);
    fprintf(out, "%s\n%" PRId64 " units, %.4g M parameters, one stream\n", r->device, r->hidden,
            (double)r->parameters * 1e-6);
    fprintf(out, "measured: %s\n\n", ceilings_text(&r->ceilings, text));
    fprintf(out, "%.1f us a byte, %.0f bytes/s\n", r->byte * 1e6, 1 / r->byte);
    fprintf(out, "floor %.1f us (%.0f %%): %.1f MB of weights once from %s\n", floor * 1e6,
            100 * floor / r->byte, r->weights * 1e-6, r->resident ? "the L2" : "memory");
    if (r->byte < floor) fprintf(out, "faster than its floor: a ceiling was measured too low\n");
}

void generation_json(const generation_results *r, FILE *out) {
    json_writer w = {out, false};
    const double floor = floor_of(r);
    json_object_begin(&w, NULL);
    json_string(&w, "device", r->device);
    json_integer(&w, "hidden", r->hidden);
    json_integer(&w, "parameters", r->parameters);
    json_number(&w, "byte_us", r->byte * 1e6);
    json_number(&w, "weight_bytes", r->weights);
    json_number(&w, "floor_us", floor * 1e6);
    json_number(&w, "floor_share", floor / r->byte);
    ceilings_json(&r->ceilings, &w);
    json_object_end(&w);
    fputc('\n', out);
}
