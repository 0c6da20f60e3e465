#include "train/evaluate.h"

#include "core/clock.h"
#include "core/integer.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Added to root mean squares, so that what never had a gradient stays as it is. */
static const double epsilon = 1e-6;

/* A stripe scores the bytes [score, end) and reads from `read` on: byte p is the target of the step
 * that reads byte p - 1. */
typedef struct stripe {
    uint64_t read, score, end;
} stripe;

static void forward(void *argument) {
    model_forward(argument);
}

recording *evaluate_record(model *m) {
    return m->be->memory->record(m->be, forward, m);
}

static void adapt(void *argument) {
    model_adapt(argument);
}

recording *evaluate_record_dynamic(model *m) {
    return m->be->memory->record(m->be, adapt, m);
}

int64_t evaluate_stripes(uint64_t size) {
    return size > EVALUATE_WARM_UP ? (int64_t)((size - 1) / EVALUATE_WARM_UP) : 1;
}

int64_t evaluate_minibatches(uint64_t size, int batch) {
    const uint64_t fit = (size - 1) / ((uint64_t)batch * EVALUATE_STRIPE);
    const uint64_t multiple = fit >= 8 ? 8 : fit >= 4 ? 4 : fit >= 2 ? 2 : 1;
    return fit > 1 ? (int64_t)(fit - fit % multiple) : 1;
}

/* Stripe `k` of `count` that bytes 1 to size - 1 are cut into, whose lengths differ by at most
 * one. */
static stripe stripe_at(uint64_t k, uint64_t count, uint64_t size) {
    const uint64_t predicted = size - 1;
    const uint64_t score = 1 + predicted / count * k + predicted % count * k / count;
    const uint64_t end = 1 + predicted / count * (k + 1) + predicted % count * (k + 1) / count;
    const uint64_t read = k > 0 && score > EVALUATE_WARM_UP ? score - EVALUATE_WARM_UP : 0;
    return (stripe){read, score, end};
}

/* The number of stripes that a minibatch of at most `most` stripes makes of the whole text. No
 * stripe is shorter than its warm-up, unless there is only one. */
static int stripes_of_one(uint64_t size, int most) {
    const int64_t fit = evaluate_stripes(size);
    return fit < most ? (int)fit : most;
}

/* ---------------------------------------------------------------------------------- minibatches */

typedef struct scorer {
    model *m;
    recording *forward;
    const sequence *text;
    stripe *stripes; /* [count] of the minibatch: this rank's, in the model's streams */
    int count;
    uint64_t longest; /* steps of the longest stripe of the minibatch, on any rank */

    uint8_t *window;  /* [steps + 1] the bytes of one stripe in a call */
    uint8_t *bytes;   /* [steps][columns] */
    int16_t *targets; /* likewise */
    int scored;       /* bytes of this call */

    const dynamic_rates *rates; /* NULL: the weights stay as they are */
    int64_t learnt;             /* segments */

    bool progress;
    double start, shown;  /* seconds */
    uint64_t done, total; /* steps of this rank */
    uint64_t size;        /* bytes of the text, for all ranks together */
} scorer;

static uint64_t longest_of(const stripe *stripes, int count) {
    uint64_t longest = 0;
    for (int k = 0; k < count; k++) {
        const uint64_t length = stripes[k].end - 1 - stripes[k].read;
        if (length > longest) longest = length;
    }
    return longest;
}

static void begin(scorer *r, model *m, recording *forward, const sequence *s) {
    const size_t positions = (size_t)m->steps * (size_t)m->columns;
    *r = (scorer){.m = m, .forward = forward, .text = s};
    r->window = mem_alloc((size_t)m->steps + 1, 1);
    r->bytes = mem_alloc(positions, 1);
    r->targets = mem_alloc(positions, sizeof *r->targets);
    r->start = r->shown = clock_seconds();
}

static void end(scorer *r) {
    free(r->targets);
    free(r->bytes);
    free(r->window);
}

/* The inputs and targets of one call, from step `from` of every stripe. */
static void fill(scorer *r, uint64_t from) {
    const size_t steps = (size_t)r->m->steps, columns = (size_t)r->m->columns;
    for (size_t i = 0; i < steps * columns; i++) r->targets[i] = -1;
    memset(r->bytes, 0, steps * columns);
    r->scored = 0;
    for (size_t k = 0; k < (size_t)r->count; k++) {
        const stripe *p = &r->stripes[k];
        const uint64_t first = p->read + from, left = first + 1 < p->end ? p->end - 1 - first : 0;
        const size_t here = left < steps ? (size_t)left : steps;
        if (here == 0) continue;
        sequence_copy(r->text, first, here + 1, r->window);
        for (size_t t = 0; t < here; t++) {
            r->bytes[t * columns + k] = r->window[t];
            if (first + t + 1 < p->score) continue;
            r->targets[t * columns + k] = r->window[t + 1];
            r->scored++;
        }
    }
}

/* Ranks have equal shares to within one minibatch, so rank 0's progress stands for all. */
static void show(scorer *r) {
    char left[32];
    const double now = clock_seconds(), pause = log_is_terminal() ? 0.5 : 20;
    if (!r->progress || now - r->shown <= pause) return;
    r->shown = now;
    const double share = (double)r->done / (double)r->total, seconds = now - r->start;
    log_progress("scored %.1f %%, %.0f bytes/s, %s left", 100 * share,
                 share * (double)r->size / seconds,
                 log_duration(left, seconds / share * (1 - share)));
}

/* What the segment that was filled teaches. One that is not scored changes nothing. */
static void upload_rates(scorer *r) {
    const dynamic_rates *rates = r->rates;
    update_arguments arguments = {.epsilon = epsilon, .average = 1};
    if (r->scored > 0) {
        r->learnt++;
        arguments.learning_rate = rates->rate;
        arguments.weight_decay = rates->decay;
        arguments.gradient_scale = 1.0 / r->scored;
        if (!rates->squares_known) arguments.average = 1 - 1.0 / (double)r->learnt;
    }
    r->m->be->memory->upload(r->m->be, r->m->arguments, &arguments, sizeof arguments);
}

/* Scores the stripes; *loss is the sum over this rank's, in nats. */
static bool score(scorer *r, double *loss, error *err) {
    model *m = r->m;
    backend *be = m->be;
    update_report *sum = r->rates ? m->report : m->evaluation;
    be->memory->zero(be, sum, sizeof *sum);
    model_zero_state(m);
    for (uint64_t from = 0; from < r->longest; from += (uint64_t)m->steps) {
        if (ranks_stop(be->ranks) && !stop_check(err)) return false;
        fill(r, from);
        model_set_text(m, r->bytes, r->targets);
        if (r->rates) upload_rates(r);
        be->memory->replay(be, r->forward);
        const uint64_t left = r->longest - from;
        r->done += left < (uint64_t)m->steps ? left : (uint64_t)m->steps;
        show(r);
    }
    update_report report;
    be->memory->download(be, &report, sum, sizeof report);
    *loss = report.loss;
    return true;
}

static bool set_result(const scorer *r, double loss, evaluation *result, error *err) {
    *result = (evaluation){.bpc = loss / ((double)(r->size - 1) * M_LN2),
                           .bytes = r->size - 1,
                           .seconds = clock_seconds() - r->start};
    return isfinite(loss) || error_set(err, "the loss is not finite");
}

static bool limit_size(const sequence *s, uint64_t limit, uint64_t *size, error *err) {
    *size = limit && limit < s->size ? limit : s->size;
    return *size >= 2 || error_set(err, "expected at least 2 bytes to score, got %llu",
                                   (unsigned long long)*size);
}

static bool evaluate_once(model *m, recording *pass, const sequence *s, uint64_t limit, bool exact,
                          const dynamic_rates *rates, bool progress, evaluation *result,
                          error *err) {
    backend *be = m->be;
    int64_t before;
    uint64_t size;
    if (!limit_size(s, limit, &size, err)) return false;
    const int batch = (int)ranks_place(be->ranks, m->batch, &before);
    const int count = exact ? 1 : stripes_of_one(size, batch);
    stripe *stripes = mem_alloc((size_t)count, sizeof *stripes);
    for (int k = 0; k < count; k++) {
        stripes[k] = stripe_at((uint64_t)k, (uint64_t)count, size);
    }
    scorer r;
    begin(&r, m, pass, s);
    r.rates = rates;
    r.progress = progress;
    r.size = size;
    r.count = (int)integer_max(0, integer_min(count - before, m->batch));
    r.stripes = stripes + (r.count ? before : 0);
    r.longest = r.total = longest_of(stripes, count);
    double loss = 0;
    bool done = score(&r, &loss, err);
    ranks_sum(be->ranks, &loss, 1);
    done = done && be->memory->finish(be, err) && set_result(&r, loss, result, err);
    end(&r);
    free(stripes);
    return done;
}

bool evaluate(model *m, recording *forward, const sequence *s, uint64_t limit, bool exact,
              bool progress, evaluation *result, error *err) {
    return evaluate_once(m, forward, s, limit, exact, NULL, progress, result, err);
}

/* --------------------------------------------------------------------------- dynamic evaluation */

bool evaluate_dynamic(model *m, recording *segment, const sequence *s, uint64_t limit,
                      const dynamic_rates *rates, bool progress, evaluation *result, error *err) {
    model_return_to_average(m);
    return evaluate_once(m, segment, s, limit, false, rates, progress, result, err);
}

/* A search for the rates that score a text best. */
typedef struct tuner {
    model *m;
    recording *segment;
    const sequence *text;
    bool progress;
    dynamic_rates *rates;
    evaluation best;
} tuner;

/* Scores with the present rates, by which learning may diverge. Fails on a signal alone. */
static bool try_rates(tuner *t, bool *better, error *err) {
    evaluation found;
    *better = false;
    if (evaluate_dynamic(t->m, t->segment, t->text, EVALUATE_TUNING, t->rates, t->progress, &found,
                         err)) {
        *better = found.bpc < t->best.bpc;
        if (*better) t->best = found;
        return true;
    }
    return stop_signal() == 0;
}

/* Multiplies *rate by `factor`, or divides it, for as long as that helps. */
static bool climb(tuner *t, double *rate, double factor, error *err) {
    bool better = false;
    for (int direction = 0; direction < 2 && !better; direction++) {
        for (bool on = true; on;) {
            const double before = *rate;
            *rate *= direction ? 1 / factor : factor;
            if (!try_rates(t, &on, err)) return false;
            if (!on) *rate = before;
            better = better || on;
        }
    }
    return true;
}

bool evaluate_tune(model *m, recording *segment, const sequence *s, bool progress,
                   dynamic_rates *rates, evaluation *untuned, evaluation *tuned, error *err) {
    const dynamic_rates none = {0};
    bool better;
    if (!evaluate_dynamic(m, segment, s, EVALUATE_TUNING, &none, progress, untuned, err)) {
        return false;
    }
    tuner t = {m, segment, s, progress, rates, *untuned};
    rates->squares_known = true;
    t.best.bpc = INFINITY;
    const bool done = try_rates(&t, &better, err) && climb(&t, &rates->rate, 2, err) &&
                      climb(&t, &rates->decay, 4, err);
    *tuned = t.best;
    return done;
}

/* The sum of all minibatches' losses in their order, whichever rank has them; on all ranks. */
static double sum_in_order(ranks *r, double *losses, int64_t count) {
    double sum = 0;
    ranks_sum(r, losses, (size_t)count); /* zero elsewhere */
    for (int64_t i = 0; i < count; i++) sum += losses[i];
    return sum;
}

bool evaluate_text(model *m, recording *forward, const sequence *s, uint64_t limit, ranks *among,
                   bool progress, evaluation *result, error *err) {
    backend *be = m->be;
    uint64_t size;
    if (!limit_size(s, limit, &size, err)) return false;
    const int64_t minibatches = evaluate_minibatches(size, m->batch);
    const int64_t rank = ranks_rank(among), ranks = ranks_count(among);
    const int count = minibatches > 1 ? m->batch : stripes_of_one(size, m->batch);
    const uint64_t all = (uint64_t)minibatches * (uint64_t)count;
    stripe *stripes = mem_alloc((size_t)count, sizeof *stripes);
    double *losses = mem_alloc((size_t)minibatches, sizeof *losses);
    scorer r;
    begin(&r, m, forward, s);
    r.stripes = stripes;
    r.count = count;
    r.progress = progress;
    r.size = size;
    const uint64_t mine = (uint64_t)(integer_max(0, minibatches - rank + ranks - 1) / ranks);
    r.total = (size / all + 1 + EVALUATE_WARM_UP) * mine;
    bool done = true;
    /* Minibatches are of equal length but for a byte. */
    for (int64_t i = rank; i < minibatches && done; i += ranks) {
        for (int k = 0; k < count; k++) {
            stripes[k] = stripe_at((uint64_t)i * (uint64_t)count + (uint64_t)k, all, size);
        }
        r.longest = longest_of(stripes, count);
        done = score(&r, &losses[i], err);
    }
    done = be->memory->finish(be, err) && done;
    if (done) done = set_result(&r, sum_in_order(among, losses, minibatches), result, err);
    end(&r);
    free(losses);
    free(stripes);
    return done;
}
