/* The parameter table: every trained tensor's name, shape, initial values and place in one arena.
 * Gradients, moments and the moving average are arenas of the same shape, but that second moments
 * end before what Muon trains, which stands last. */
#ifndef SMALLWORLD_MODEL_PARAMETERS_H
#define SMALLWORLD_MODEL_PARAMETERS_H

#include "core/safetensors.h"
#include "graph/layout.h"

typedef enum initialiser {
    INIT_CONSTANT, /* `scale` */
    INIT_NORMAL,   /* mean 0, deviation `scale` */
    INIT_IDENTITY, /* ones on the diagonals of self-blocks, normal noise of `scale` in other
                      blocks; of a rectangle see fill_groups */
    INIT_GATE_BIAS /* `scale` for the forget gate, 0 for the others */
} initialiser;

typedef struct parameter {
    char name[48];
    int dimensions;
    int64_t shape[TENSOR_MAX_DIMENSIONS];
    size_t offset, count; /* elements; the place in the arena */
    initialiser initialiser;
    double scale;
    const layout *layout; /* of block-sparse weights, for INIT_IDENTITY */
    int block;            /* likewise: units of a self-block, also in a dense matrix */
} parameter;

enum { MAX_PARAMETERS = 80 };

typedef struct parameter_table {
    parameter items[MAX_PARAMETERS];
    int count;
    size_t total; /* elements of an arena, gaps for alignment included */
} parameter_table;

/* Appends a parameter; `shape` ends with 0. Returns it, so that the caller can set more fields. */
parameter *parameter_add(parameter_table *table, const char *name, const int64_t *shape,
                         initialiser initialiser, double scale);

/* Makes the last parameter's place in the arena so many elements large. What is more than it has is
 * a gap. */
void parameter_reserve(parameter_table *table, size_t count);

/* The elements of an arena that a parameter of `count` takes. */
size_t parameter_room(size_t count);

const parameter *parameter_find(const parameter_table *table, const char *name);

/* The number of trained scalars. */
size_t parameter_scalars(const parameter_table *table);

/* Fills an arena of `total` floats; gaps get zeros. The same seed gives the same values. */
void parameter_initialise(const parameter_table *table, uint64_t seed, float *arena);

#endif
