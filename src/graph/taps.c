#include "graph/taps.h"

#include "core/memory.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>

enum { MOST_POSITIONS = 1 << 24, MOST_SIZE = 1 << 20 };

static bool in_range(const char *name, int axis, int value, int least, error *err) {
    return (value >= least && value <= MOST_SIZE) ||
           error_set(err, "%s[%d]: expected %d to %d, got %d", name, axis, least, (int)MOST_SIZE,
                     value);
}

bool conv_shape_finish(conv_shape *s, error *err) {
    for (int i = 0; i < 2; i++) {
        if (!in_range("in", i, s->in[i], 1, err) || !in_range("filter", i, s->filter[i], 1, err) ||
            !in_range("stride", i, s->stride[i], 1, err) ||
            !in_range("dilation", i, s->dilation[i], 1, err) ||
            !in_range("pad", i, s->pad[i][0], 0, err) ||
            !in_range("pad", i, s->pad[i][1], 0, err)) {
            return false;
        }
        const int64_t reach = (int64_t)s->dilation[i] * (s->filter[i] - 1) + 1;
        const int64_t room = (int64_t)s->in[i] + s->pad[i][0] + s->pad[i][1];
        if (reach > room) {
            return error_set(err,
                             "filter[%d]: expected a reach of at most the padded input, %" PRId64
                             ", got %" PRId64,
                             i, room, reach);
        }
        s->out[i] = (int)((room - reach) / s->stride[i]) + 1;
    }
    const int64_t in = (int64_t)s->in[0] * s->in[1], out = (int64_t)s->out[0] * s->out[1];
    const int64_t most = in > out ? in : out, taps = (int64_t)s->filter[0] * s->filter[1];
    if (most > MOST_POSITIONS) {
        return error_set(err, "in: expected at most %d positions, got %" PRId64,
                         (int)MOST_POSITIONS, most);
    }
    return taps <= INT_MAX / most ||
           error_set(err, "filter: expected at most %d taps of %" PRId64 " positions, got %" PRId64,
                     (int)(INT_MAX / most), most, taps);
}

/* Where a tap reads along one axis; -1: outside. */
static int read_at(const conv_shape *s, int axis, int out, int tap) {
    const int64_t at = (int64_t)out * s->stride[axis] + (int64_t)tap * s->dilation[axis];
    return at < s->pad[axis][0] || at - s->pad[axis][0] >= s->in[axis]
               ? -1
               : (int)(at - s->pad[axis][0]);
}

tap_table *taps_of(const conv_shape *s) {
    tap_table *t = mem_alloc(1, sizeof *t);
    t->taps = conv_positions(s->filter);
    t->out_positions = conv_positions(s->out);
    t->in_positions = conv_positions(s->in);
    t->source = mem_alloc((size_t)t->out_positions * (size_t)t->taps, sizeof *t->source);
    t->target = mem_alloc((size_t)t->in_positions * (size_t)t->taps, sizeof *t->target);
    for (size_t i = 0; i < (size_t)t->in_positions * (size_t)t->taps; i++) t->target[i] = -1;
    for (int p = 0; p < t->out_positions; p++) {
        for (int k = 0; k < t->taps; k++) {
            const int row = read_at(s, 0, p / s->out[1], k / s->filter[1]);
            const int column = read_at(s, 1, p % s->out[1], k % s->filter[1]);
            const bool outside = row < 0 || column < 0;
            const int q = outside ? -1 : row * s->in[1] + column;
            t->source[(size_t)p * (size_t)t->taps + (size_t)k] = q;
            if (q >= 0) t->target[(size_t)q * (size_t)t->taps + (size_t)k] = p;
        }
    }
    return t;
}

void taps_free(tap_table *t) {
    if (!t) return;
    free(t->source);
    free(t->target);
    free(t);
}
