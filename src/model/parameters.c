#include "model/parameters.h"

#include "core/philox.h"
#include "ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

parameter *parameter_add(parameter_table *table, const char *name, const int64_t *shape,
                         initialiser initialiser, double scale) {
    if (table->count == MAX_PARAMETERS) abort(); /* the cell with most stages needs fewer */
    parameter *p = &table->items[table->count++];
    *p = (parameter){.count = 1, .initialiser = initialiser, .scale = scale};
    snprintf(p->name, sizeof p->name, "%s", name);
    for (; shape[p->dimensions]; p->dimensions++) {
        p->shape[p->dimensions] = shape[p->dimensions];
        p->count *= (size_t)shape[p->dimensions];
    }
    p->offset = table->total;
    parameter_reserve(table, p->count);
    return p;
}

void parameter_reserve(parameter_table *table, size_t count) {
    const parameter *last = &table->items[table->count - 1];
    table->total = last->offset + parameter_room(count);
}

size_t parameter_room(size_t count) {
    return (count + DECAY_GROUP - 1) / DECAY_GROUP * DECAY_GROUP;
}

const parameter *parameter_find(const parameter_table *table, const char *name) {
    for (int i = 0; i < table->count; i++) {
        if (strcmp(table->items[i].name, name) == 0) return &table->items[i];
    }
    return NULL;
}

size_t parameter_scalars(const parameter_table *table) {
    size_t scalars = 0;
    for (int i = 0; i < table->count; i++) scalars += table->items[i].count;
    return scalars;
}

/* ------------------------------------------------------------------------------ initial values */

/* The `element`-th standard normal of parameter `number`, by Box and Muller (1958). */
static float normal(uint64_t seed, int number, size_t element) {
    philox_block block = philox(seed, (uint32_t)(element / 2), (uint32_t)((uint64_t)element >> 33),
                                0, PHILOX_PURPOSE(PHILOX_INIT, number));
    double u = ((double)block.word[0] + 1) * 0x1p-32, angle = block.word[1] * 0x1p-32 * 2 * M_PI;
    double radius = sqrt(-2 * log(u));
    return (float)(radius * (element % 2 ? sin(angle) : cos(angle)));
}

static void fill_normal(const parameter *p, uint64_t seed, int number, float *values) {
#pragma omp parallel for
    for (size_t i = 0; i < p->count; i++) {
        values[i] = (float)p->scale * normal(seed, number, i);
    }
}

static void fill_identity(const parameter *p, uint64_t seed, int number, float *values) {
    const layout *l = p->layout;
    size_t out = (size_t)l->out_block, in = (size_t)l->in_block, gates = (size_t)l->gates;
    if (p->scale != 0) fill_normal(p, seed, number, values);
#pragma omp parallel for
    for (int i = 0; i < l->out_nodes; i++) {
        for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
            if (l->row_column[k] != i) continue;
            for (size_t row = 0; row < gates * out; row++) {
                size_t unit = row % out, self = unit / (size_t)p->block * (size_t)p->block;
                float *weights = values + ((size_t)k * gates * out + row) * in;
                memset(weights + self, 0, (size_t)p->block * sizeof *weights);
                weights[unit] = 1;
            }
        }
    }
}

static bool is_square(const layout *l) {
    return l->out_nodes * l->out_block == l->in_nodes * l->in_block;
}

/* A rectangle between many units and few: the many are dealt to the few in turn. Each of the few
 * begins as the sum of its own, scaled so that its variance is theirs, and each of the many as the
 * one that it belongs to; there is normal noise of `scale` elsewhere. */
static void fill_groups(const parameter *p, uint64_t seed, int number, float *values) {
    const layout *l = p->layout;
    const size_t out = (size_t)l->out_block, in = (size_t)l->in_block, gates = (size_t)l->gates;
    const size_t rows = (size_t)l->out_nodes * out, columns = (size_t)l->in_nodes * in;
    const size_t few = rows < columns ? rows : columns;
    const float one = rows < columns ? (float)sqrt((double)rows / (double)columns) : 1;
    if (p->scale != 0) fill_normal(p, seed, number, values);
#pragma omp parallel for
    for (int i = 0; i < l->out_nodes; i++) {
        for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
            const size_t first = (size_t)l->row_column[k] * in;
            for (size_t row = 0; row < gates * out; row++) {
                const size_t group = ((size_t)i * out + row % out) % few;
                float *weights = values + ((size_t)k * gates * out + row) * in;
                for (size_t v = 0; v < in; v++) {
                    if ((first + v) % few == group) weights[v] = one;
                }
            }
        }
    }
}

void parameter_initialise(const parameter_table *table, uint64_t seed, float *arena) {
    memset(arena, 0, table->total * sizeof *arena);
    for (int number = 0; number < table->count; number++) {
        const parameter *p = &table->items[number];
        float *values = arena + p->offset;
        size_t gate = p->dimensions > 1 ? p->count / (size_t)p->shape[0] : 0;
        size_t forget = p->dimensions > 1 && p->shape[0] == GATES ? GATE_F : 0;
        switch (p->initialiser) {
        case INIT_CONSTANT:
            for (size_t i = 0; i < p->count; i++) values[i] = (float)p->scale;
            break;
        case INIT_NORMAL: fill_normal(p, seed, number, values); break;
        case INIT_IDENTITY:
            (is_square(p->layout) ? fill_identity : fill_groups)(p, seed, number, values);
            break;
        case INIT_GATE_BIAS: /* [i f o u][hidden], or [f o u][hidden] */
            for (size_t i = 0; i < gate; i++) values[forget * gate + i] = (float)p->scale;
            break;
        }
    }
}
