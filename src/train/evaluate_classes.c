#include "train/evaluate.h"

#include "core/clock.h"
#include "core/integer.h"
#include "core/memory.h"
#include "core/stop.h"
#include "data/classes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Documents side by side, and the arrays of a call, [steps][columns]. */
typedef struct reader_group {
    model *m;
    const corpus *c;
    const uint32_t *documents; /* [count] longest first */
    size_t count;
    uint8_t *bytes;
    int16_t *targets, *classes;
    float *weights;
} reader_group;

/* The documents with a class, longest first. */
static uint32_t *documents_with_class(const corpus *c, size_t *count) {
    uint32_t *order = corpus_longest_first(c);
    *count = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (c->classes[order[i]] >= 0) order[(*count)++] = order[i];
    }
    return order;
}

/* The inputs of a call from byte `from` of each document on. The last byte alone is asked. */
static void fill(const reader_group *g, uint64_t from) {
    const size_t steps = (size_t)g->m->steps, columns = (size_t)g->m->columns;
    memset(g->bytes, 0, steps * columns);
    memset(g->weights, 0, steps * columns * sizeof *g->weights);
    memset(g->classes, -1, steps * columns * sizeof *g->classes);
    for (size_t k = 0; k < g->count; k++) {
        const document *d = &g->c->documents[g->documents[k]];
        const uint8_t *text = g->c->bytes + d->offset + from;
        if (d->length <= from) continue;
        const size_t left = (size_t)(d->length - from), here = left < steps ? left : steps;
        for (size_t t = 0; t < here; t++) g->bytes[t * columns + k] = text[t];
        if (here < left) continue;
        const int16_t class = g->c->classes[g->documents[k]];
        g->weights[(here - 1) * columns + k] = (float)class_weight(g->c->class_weights, class);
        g->classes[(here - 1) * columns + k] = class;
    }
}

static void run_group(const reader_group *g, recording *forward) {
    model *m = g->m;
    const uint64_t longest = g->count > 0 ? g->c->documents[g->documents[0]].length : 0;
    model_zero_state(m);
    for (uint64_t from = 0; from < longest; from += (uint64_t)m->steps) {
        fill(g, from);
        model_set_text(m, g->bytes, g->targets);
        model_set_labels(m, g->classes, g->weights);
        m->be->memory->replay(m->be, forward);
    }
}

bool evaluate_classes(model *m, recording *forward, const corpus *c, class_evaluation *result,
                      error *err) {
    backend *be = m->be;
    const size_t positions = (size_t)m->steps * (size_t)m->columns;
    const double start = clock_seconds();
    int64_t before;
    const size_t batch = (size_t)ranks_place(be->ranks, m->batch, &before);
    size_t count;
    uint32_t *order = documents_with_class(c, &count);
    reader_group g = {.m = m,
                      .c = c,
                      .bytes = mem_alloc(positions, 1),
                      .targets = mem_alloc(positions, sizeof *g.targets),
                      .classes = mem_alloc(positions, sizeof *g.classes),
                      .weights = mem_alloc(positions, sizeof *g.weights)};
    bool going = true;
    memset(g.targets, -1, positions * sizeof *g.targets);
    be->memory->zero(be, m->evaluation, sizeof *m->evaluation);
    for (size_t i = 0; i < count && going; i += batch) {
        const int64_t left = (int64_t)(count - i) - before;
        g.documents = order + i + (left > 0 ? before : 0);
        g.count = (size_t)integer_max(0, integer_min(left, m->batch));
        run_group(&g, forward);
        going = !ranks_stop(be->ranks) || stop_check(err);
    }
    update_report report;
    be->memory->download(be, &report, m->evaluation, sizeof report);
    double sums[] = {report.label_loss, report.label_weight, report.label_wrong};
    ranks_sum(be->ranks, sums, 3);
    *result = (class_evaluation){.loss = sums[0] / sums[1],
                                 .error = sums[2] / sums[1],
                                 .documents = count,
                                 .seconds = clock_seconds() - start};
    free(g.bytes);
    free(g.targets);
    free(g.classes);
    free(g.weights);
    free(order);
    return going && be->memory->finish(be, err) &&
           (isfinite(result->loss) || error_set(err, "the loss of the labels is not finite"));
}
