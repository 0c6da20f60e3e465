#include "core/ranks.h"

#include "core/integer.h"
#include "core/memory.h"
#include "core/number.h"
#include "core/ranks_start.h"
#include "core/stop.h"

#include <stdlib.h>
#include <string.h>

bool ranks_start(ranks **r, int processes, error *err) {
    *r = NULL;
    if (processes > RANKS_MOST) {
        return error_set(err, "expected at most %d processes, got %d", RANKS_MOST, processes);
    }
    const int started = ranks_launched();
    if (started > 1 && processes > 1) {
        return error_set(err, "started as one of %d processes: expected no --gpus besides",
                         started);
    }
    if (started > 1) return ranks_join_mpi(r, started, err);
    return processes <= 1 || ranks_fork(r, processes, err);
}

double ranks_longest_silence(void) {
    const char *text = getenv("SMALLWORLD_SILENCE");
    double seconds;
    return text && number_real(text, &seconds) && seconds > 0 ? seconds : 60;
}

void ranks_end(ranks *r) {
    if (r) r->end(r);
}

void ranks_fail(ranks *r, const error *err) {
    if (r) r->fail(r, err);
}

void ranks_exchange(ranks *r, const void *mine, size_t bytes) {
    if (!r->exchange(r, mine, bytes)) quick_exit(1); /* removes temporary files */
}

void ranks_wait(ranks *r) {
    if (r) ranks_exchange(r, "", 1);
}

void ranks_broadcast(ranks *r, void *bytes, size_t count) {
    for (size_t done = 0; r && done < count; done += RANKS_EXCHANGE) {
        size_t part = count - done < RANKS_EXCHANGE ? count - done : RANKS_EXCHANGE;
        ranks_exchange(r, (char *)bytes + done, part);
        memcpy((char *)bytes + done, ranks_part(r, 0), part);
    }
}

void ranks_sum(ranks *r, double *values, size_t count) {
    enum { PART = RANKS_EXCHANGE / sizeof(double) };
    for (size_t done = 0; r && done < count; done += PART, values += PART) {
        const size_t part = count - done < PART ? count - done : PART;
        ranks_exchange(r, values, part * sizeof *values);
        for (size_t i = 0; i < part; i++) {
            values[i] = 0;
            for (int k = 0; k < r->count; k++) values[i] += ((const double *)ranks_part(r, k))[i];
        }
    }
}

int64_t ranks_place(ranks *r, int64_t mine, int64_t *before) {
    int64_t all = 0;
    *before = 0;
    if (!r) return mine;
    ranks_exchange(r, &mine, sizeof mine);
    for (int k = 0; k < r->count; k++) {
        if (k == r->rank) *before = all;
        all += *(const int64_t *)ranks_part(r, k);
    }
    return all;
}

/* All ranks exchange as often as the largest array asks for. */
float *ranks_gather(ranks *r, const float *mine, size_t count) {
    enum { PART = RANKS_EXCHANGE / sizeof(float) };
    int64_t before, all = ranks_place(r, (int64_t)count, &before);
    float *out = ranks_rank(r) == 0 ? mem_alloc((size_t)all, sizeof *out) : NULL;
    if (!r) {
        memcpy(out, mine, count * sizeof *out);
        return out;
    }
    size_t *counts = mem_alloc((size_t)r->count, sizeof *counts), most = 0;
    ranks_exchange(r, &count, sizeof count);
    for (int k = 0; k < r->count; k++) {
        counts[k] = *(const size_t *)ranks_part(r, k);
        if (counts[k] > most) most = counts[k];
    }
    float *part = mem_alloc(PART, sizeof *part);
    for (size_t done = 0; done < most; done += PART) {
        size_t left = count > done ? count - done : 0;
        memcpy(part, mine + (left ? done : 0), (left < PART ? left : PART) * sizeof *part);
        ranks_exchange(r, part, PART * sizeof *part);
        float *place = out;
        for (int k = 0; out && k < r->count; place += counts[k++]) {
            left = counts[k] > done ? counts[k] - done : 0;
            if (left == 0) continue;
            memcpy(place + done, ranks_part(r, k), (left < PART ? left : PART) * sizeof *part);
        }
    }
    free(part);
    free(counts);
    return out;
}

int ranks_stop(ranks *r) {
    if (!r) return stop_signal();
    int number = stop_signal();
    ranks_exchange(r, &number, sizeof number);
    for (int k = 0; k < r->count; k++) {
        const int theirs = *(const int *)ranks_part(r, k);
        if (theirs > number) number = theirs;
    }
    if (number) stop_remember(number);
    return number;
}

bool ranks_same(ranks *r, int64_t value, const char *what, error *err) {
    if (!r) return true;
    ranks_exchange(r, &value, sizeof value);
    const int64_t first = *(const int64_t *)ranks_part(r, 0);
    for (int k = 1; k < r->count; k++) {
        if (*(const int64_t *)ranks_part(r, k) == first) continue;
        return error_set(err, "rank %d: %s differs from rank 0's: expected the same on all hosts",
                         k, what);
    }
    return true;
}
