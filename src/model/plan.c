#include "model/plan.h"

#include "core/log.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>

enum { ALIGNMENT = 1024 }; /* the strictest user: a swizzled tile in shared memory's order */

static const char *const arena_names[PLAN_ARENAS] = {"weights", "optimiser", "activations",
                                                     "tables"};

void plan_add(plan *p, plan_arena arena, size_t bytes, void **pointer) {
    p->requests = mem_grow(p->requests, &p->capacity, p->count + 1, sizeof *p->requests);
    p->requests[p->count++] = (plan_request){arena, p->bytes[arena], pointer};
    p->bytes[arena] += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void plan_count_tables(plan *p, size_t bytes) {
    p->bytes[PLAN_TABLES] += bytes;
}

size_t plan_total(const plan *p) {
    size_t total = 0;
    for (int a = 0; a < PLAN_ARENAS; a++) total += p->bytes[a];
    return total;
}

const char *plan_text(const plan *p, char *text) {
    char sizes[PLAN_ARENAS + 1][16];
    for (int a = 0; a < PLAN_ARENAS; a++) log_bytes(sizes[a], (double)p->bytes[a]);
    log_bytes(sizes[PLAN_ARENAS], (double)plan_total(p));
    int used = 0;
    for (int a = 0; a < PLAN_ARENAS; a++) {
        used += snprintf(text + used, 128 - (size_t)used, "%s%s %s", a ? ", " : "", arena_names[a],
                         sizes[a]);
    }
    snprintf(text + used, 128 - (size_t)used, ": %s", sizes[PLAN_ARENAS]);
    return text;
}

bool plan_commit(plan *p, backend *be, error *err) {
    bool fits = plan_total(p) <= be->available;
    for (int a = 0; a < PLAN_ARENAS && fits; a++) {
        if (p->bytes[a] == 0 || a == PLAN_TABLES) continue;
        p->block[a] = be->memory->allocate(be, p->bytes[a]);
        fits = p->block[a] != NULL;
    }
    if (!fits) {
        char text[128], available[16];
        log_bytes(available, (double)be->available);
        plan_release(p, be);
        return error_set(err, "the model does not fit on %s: %s, %s free", be->device,
                         plan_text(p, text), available);
    }
    for (size_t i = 0; i < p->count; i++) {
        const plan_request *r = &p->requests[i];
        *r->pointer = (char *)p->block[r->arena] + r->offset;
    }
    return true;
}

void plan_release(plan *p, backend *be) {
    for (int a = 0; a < PLAN_ARENAS; a++) {
        if (p->block[a]) be->memory->release(be, p->block[a]);
        p->block[a] = NULL;
    }
    free(p->requests);
    p->requests = NULL;
    p->count = p->capacity = 0;
}
