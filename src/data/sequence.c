#include "data/sequence.h"

#include "core/memory.h"
#include "core/philox.h"

#include <stdlib.h>
#include <string.h>

static void set_starts(sequence *s) {
    for (size_t i = 0; i < s->count; i++) {
        s->start[i + 1] = s->start[i] + s->corpus->documents[s->order[i]].length;
    }
    s->size = s->start[s->count];
}

static sequence *begin(const corpus *c) {
    sequence *s = mem_alloc(1, sizeof *s);
    *s = (sequence){.corpus = c,
                    .order = mem_alloc(c->count, sizeof *s->order),
                    .start = mem_alloc(c->count + 1, sizeof *s->start),
                    .count = c->count};
    for (size_t i = 0; i < s->count; i++) s->order[i] = (uint32_t)i;
    return s;
}

sequence *sequence_in_order(const corpus *c) {
    sequence *s = begin(c);
    set_starts(s);
    return s;
}

/* Shuffles by Fisher and Yates, from the last place to the first. */
sequence *sequence_shuffled(const corpus *c, uint64_t seed, uint64_t epoch) {
    sequence *s = begin(c);
    philox_stream draws = philox_start(seed, PHILOX_SHUFFLE, 0, (uint32_t)epoch);
    for (size_t i = s->count; i > 1; i--) {
        uint64_t chosen = philox_below(&draws, i);
        uint32_t last = s->order[i - 1];
        s->order[i - 1] = s->order[chosen];
        s->order[chosen] = last;
    }
    set_starts(s);
    return s;
}

void sequence_free(sequence *s) {
    if (!s) return;
    free(s->order);
    free(s->start);
    free(s);
}

size_t sequence_find(const sequence *s, uint64_t position) {
    size_t low = 0, high = s->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->start[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

void sequence_copy(const sequence *s, uint64_t position, size_t count, uint8_t *out) {
    for (size_t i = sequence_find(s, position); count > 0; i++) {
        const document *d = &s->corpus->documents[s->order[i]];
        uint64_t skipped = position - s->start[i], left = d->length - skipped;
        size_t part = left < count ? (size_t)left : count;
        memcpy(out, s->corpus->bytes + d->offset + skipped, part);
        out += part;
        position += part;
        count -= part;
    }
}
