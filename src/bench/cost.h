/* The least that a piece of work must move and compute, and so the least time that it takes.
 *
 * A block-sparse product with `nnz` weights and N columns, elements of s bytes:
 *   memory      weights, inputs and outputs, each once
 *   operations  2 nnz N
 *   cache       what must go from the L2 into the multiprocessors: each holds at most SUMS sums in
 *               registers, so a group of g neighbouring rows of blocks takes n = SUMS / (g rows of
 *               a node) columns at a time; it gathers the union of its rows' input tiles once, and
 *               the weights once for every n columns. The g that needs fewest bytes counts, so that
 *               a pattern's reuse among neighbours is credited. wgrad likewise, over output blocks
 * Each term over its ceiling is a time; the largest one is the floor. */
#ifndef SMALLWORLD_BENCH_COST_H
#define SMALLWORLD_BENCH_COST_H

#include "bench.h"

typedef struct cost {
    double memory, operations, cache; /* bytes, floating-point operations, bytes */
} cost;

/* The measured ceilings of a device, in bytes or operations a second; 0 if not measured. */
typedef struct ceilings {
    double memory;      /* a large copy, bytes read plus bytes written */
    double rate[MATHS]; /* a large dense product */
    double cache;       /* repeated reads of an array that fits in the L2 */
    double node;        /* seconds of an empty kernel in a recording */
    double exchange;    /* seconds until every multiprocessor has read a word of every other */
} ceilings;

typedef enum limit { LIMIT_MEMORY, LIMIT_ARITHMETIC, LIMIT_CACHE, LIMITS } limit;

extern const char *const limit_names[]; /* "memory", "arithmetic", "L2" */

/* The cost of one product; for wgrad, `columns` is its depth. `operand` and `result` are the bytes
 * of an element of the inputs and of the output. */
cost cost_of_product(const layout *l, bench_product product, int columns, size_t operand,
                     size_t result);

cost cost_sum(cost a, cost b);

/* Computes the seconds of each term, by limit. A term is 0 if its ceiling was not measured. */
void cost_seconds(cost c, const ceilings *ceilings, bench_math math, double seconds[LIMITS]);

/* Returns the largest of these seconds. `by`, unless NULL, receives its limit. */
double cost_floor(cost c, const ceilings *ceilings, bench_math math, limit *by);

#endif
