#include "train/evaluate.h"

#include "core/clock.h"
#include "core/integer.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A stripe scores the bytes [score, end) and reads from `read` on: byte p is the target of the step
 * that reads byte p - 1. */
typedef struct stripe {
    uint64_t read, score, end;
} stripe;

static void forward(void *argument) {
    model_forward(argument);
}

recording *evaluate_record(model *m) {
    return m->be->record(m->be, forward, m);
}

int64_t evaluate_stripes(uint64_t size) {
    return size > EVALUATE_WARM_UP ? (int64_t)((size - 1) / EVALUATE_WARM_UP) : 1;
}

/* Cuts bytes 1 to size - 1 into at most `most` stripes whose lengths differ by at most one. No
 * stripe is shorter than its warm-up, unless there is only one. Returns the number of stripes. */
static int cut(stripe *stripes, int most, uint64_t size) {
    uint64_t predicted = size - 1;
    int64_t fit = evaluate_stripes(size);
    int count = fit < most ? (int)fit : most;
    for (int i = 0; i < count; i++) {
        uint64_t n = (uint64_t)count, k = (uint64_t)i;
        uint64_t score = 1 + predicted / n * k + predicted % n * k / n;
        uint64_t end = 1 + predicted / n * (k + 1) + predicted % n * (k + 1) / n;
        uint64_t read = i > 0 && score > EVALUATE_WARM_UP ? score - EVALUATE_WARM_UP : 0;
        stripes[i] = (stripe){read, score, end};
    }
    return count;
}

/* The inputs and targets of one call, from step `from` of every stripe. */
static void fill(const model *m, const sequence *s, const stripe *stripes, int count, uint64_t from,
                 uint8_t *text, uint8_t *bytes, int16_t *targets) {
    size_t columns = (size_t)m->columns;
    for (size_t i = 0; i < (size_t)m->steps * columns; i++) targets[i] = -1;
    memset(bytes, 0, (size_t)m->steps * columns);
    for (int k = 0; k < count; k++) {
        const stripe *p = &stripes[k];
        uint64_t first = p->read + from, left = first + 1 < p->end ? p->end - 1 - first : 0;
        size_t steps = left < (uint64_t)m->steps ? (size_t)left : (size_t)m->steps;
        if (steps == 0) continue;
        sequence_copy(s, first, steps + 1, text);
        for (size_t t = 0; t < steps; t++) {
            bytes[t * columns + (size_t)k] = text[t];
            if (first + t + 1 >= p->score) targets[t * columns + (size_t)k] = text[t + 1];
        }
    }
}

static void show(uint64_t done, uint64_t longest, int stripes, double seconds) {
    char left[32];
    double share = (double)done / (double)longest;
    log_progress("scored %.1f %%, %.0f bytes/s, %s left", 100 * share,
                 (double)done * stripes / seconds,
                 log_duration(left, seconds / share * (1 - share)));
}

bool evaluate(model *m, recording *forward, const sequence *s, uint64_t limit, bool exact,
              bool progress, evaluation *result, error *err) {
    backend *be = m->be;
    uint64_t size = limit && limit < s->size ? limit : s->size, longest = 0;
    if (size < 2)
        return error_set(err, "expected at least 2 bytes to score, got %llu",
                         (unsigned long long)size);
    int64_t before;
    const int batch = (int)ranks_place(be->ranks, m->batch, &before);
    stripe *stripes = mem_alloc((size_t)batch, sizeof *stripes);
    const int count = cut(stripes, exact ? 1 : batch, size);
    const int mine = (int)integer_max(0, integer_min(count - before, m->batch));
    for (int k = 0; k < count; k++) {
        uint64_t length = stripes[k].end - 1 - stripes[k].read;
        if (length > longest) longest = length;
    }
    size_t positions = (size_t)m->steps * (size_t)m->columns;
    uint8_t *text = mem_alloc((size_t)m->steps + 1, 1), *bytes = mem_alloc(positions, 1);
    int16_t *targets = mem_alloc(positions, sizeof *targets);

    double start = clock_seconds(), shown = start;
    be->zero(be, m->evaluation, sizeof *m->evaluation);
    model_zero_state(m);
    bool going = true;
    for (uint64_t from = 0; from < longest; from += (uint64_t)m->steps) {
        going = ranks_stop(be->ranks) == 0 || stop_check(err);
        if (!going) break;
        fill(m, s, stripes + before, mine, from, text, bytes, targets);
        model_set_text(m, bytes, targets);
        be->replay(be, forward);
        double now = clock_seconds(), pause = log_is_terminal() ? 0.5 : 20;
        if (progress && from && now - shown > pause) {
            show(from, longest, count, now - start);
            shown = now;
        }
    }
    update_report report;
    be->download(be, &report, m->evaluation, sizeof report);
    ranks_sum(be->ranks, &report.loss, 1);
    *result = (evaluation){.bpc = report.loss / ((double)(size - 1) * M_LN2),
                           .bytes = size - 1,
                           .seconds = clock_seconds() - start};
    free(targets);
    free(bytes);
    free(text);
    free(stripes);
    if (!going || !be->finish(be, err)) return false;
    if (!isfinite(result->bpc)) return error_set(err, "the loss is not finite");
    return true;
}
