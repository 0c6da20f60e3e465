/* The model's memory, planned before any of it is allocated: every array is requested in an arena,
 * then each arena is allocated as one block. A model that does not fit is refused with the sizes,
 * and nothing is allocated later. */
#ifndef SMALLWORLD_MODEL_PLAN_H
#define SMALLWORLD_MODEL_PLAN_H

#include "ops.h"

/* PLAN_TABLES: what layouts take, which allocate it themselves; it only counts. */
typedef enum plan_arena {
    PLAN_WEIGHTS,
    PLAN_OPTIMISER,
    PLAN_ACTIVATIONS,
    PLAN_TABLES,
    PLAN_ARENAS
} plan_arena;

typedef struct plan_request {
    plan_arena arena;
    size_t offset;
    void **pointer;
} plan_request;

typedef struct plan {
    plan_request *requests;
    size_t count, capacity;
    size_t bytes[PLAN_ARENAS];
    void *block[PLAN_ARENAS];
} plan;

/* Requests `bytes`, aligned for every kernel; plan_commit sets `*pointer`. */
void plan_add(plan *p, plan_arena arena, size_t bytes, void **pointer);

/* Counts bytes of layouts that were made. */
void plan_count_tables(plan *p, size_t bytes);

/* Allocates the arenas. If they do not fit, the error has each arena's size and the free memory. */
bool plan_commit(plan *p, backend *be, error *err);
void plan_release(plan *p, backend *be);

/* "weights 12.0 MiB, optimiser 48.0 MiB, activations 190.2 MiB, tables 1.5 MiB: 251.7 MiB". `text`
 * holds 128 bytes. */
const char *plan_text(const plan *p, char *text);
size_t plan_total(const plan *p);

#endif
