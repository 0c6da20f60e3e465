/* The least time of a training update, part by part and with its derivation.
 *
 * H units, B streams, T steps, G gates or 1, E input tables, P parameters; elements of s bytes
 * (operands) and r bytes (reals). Each line has memory traffic, operations and bytes from the L2,
 * each divided by its measured ceiling. The largest of the three counts (bench/cost.h), times the
 * number of times that the operation runs. What one operation of a step leaves for the next stays
 * in the L2; what backward needs goes to memory and back once. If the model and its activations fit
 * in the L2, nothing goes to memory.
 *
 *   recurrent fprop   T a stage  weights, unless those of all stages fit in the L2; writes W h, G s
 *                                bytes a unit and stream
 *   gates             T          writes h and c; L2: W h, table, c, h
 *   stage             T a stage  writes its output; L2: W x, table, output
 *   ..., not kept                the same where recomputation keeps nothing: no writes
 *   ..., again                   the same as recomputation runs it again
 *   gates backward    T          reads dh, W h, c, writes the gradient at the norm's result and,
 * with layer norm, at W h; L2: those, dx, table, dc, and once more what waits for the norm's sums
 *   stage backward    T a stage  likewise
 *   below             1, T, 1, 1 layers above the first: fprop, dgrad and wgrad of T B columns, and
 *                                the sum with W h, which reads the product once more
 *   recurrent dgrad   T a stage  weights, as above
 *   wgrad             a stage    depth T B: its inputs, and dW in reals
 *   table gradient    a stage    reads the gradient at the table's entries
 *   input tables      1          the projections, forward and backward
 *   segments' sum     segments-1 recomputation adds a gradient to a gradient: 3 r a parameter
 *   head              1          fprop, softmax, dgrad and wgrad over T B columns
 *   optimiser         1          10 r + s bytes a parameter: reads weight, moments, average, and
 *                                the gradient twice (its norm first); writes all but the gradient
 *
 * These lines ignore the order of work. Within a step, no unit of a product can be computed before
 * all units of its input exist, and no unit can be normalised before all are summed. Each stage
 * therefore waits for the whole device twice, or once without layer norm, forward as well as
 * backward. The chain's floor adds the measured time of an exchange for each wait: all
 * multiprocessors write a word and read each other's, again and again in one kernel. That is the
 * cheapest way for each of them to know that all others are done. An empty graph node takes less
 * time, but passes no data; kernels that wait for each other take more. */
#ifndef SMALLWORLD_BENCH_UPDATE_FLOOR_H
#define SMALLWORLD_BENCH_UPDATE_FLOOR_H

#include "bench/ceilings.h"
#include "model/model.h"

/* The parts of an update that are measured and printed. */
typedef enum time_part {
    TIME_FORWARD,
    TIME_RECOMPUTE,
    TIME_BACKWARD,
    TIME_WEIGHT_GRADIENT,
    TIME_HEAD,
    TIME_OPTIMISER,
    TIME_PARTS
} time_part;

extern const char *const time_part_names[]; /* "forward", "recompute", "backward" ... */

typedef struct floor_line {
    time_part part;
    char what[40];
    double times;
    cost cost; /* cost of one execution */
} floor_line;

enum { FLOOR_MOST_LINES = 10 * CELL_MAX_STAGES + 16 };

typedef struct update_floor {
    floor_line lines[FLOOR_MOST_LINES];
    int count;
    int waits;                 /* waits of a step in one direction */
    double waited[TIME_PARTS]; /* seconds waited in an update */
} update_floor;

/* Describes a model's update. `cache_size` is the size of the L2 in bytes. */
void update_floor_describe(const model *m, size_t cache_size, update_floor *f);

/* Returns the floor in seconds. `parts`, unless NULL, receives that of each part. */
double update_floor_seconds(const update_floor *f, const ceilings *c, bench_math math,
                            double parts[TIME_PARTS]);

/* Returns the floor of one part, including the waits of the chain. */
double update_floor_chain(const update_floor *f, const ceilings *c, bench_math math,
                          time_part part);

/* Prints each line: its number of executions, bytes, operations, microseconds and limit. */
void update_floor_print(const update_floor *f, const ceilings *c, bench_math math, FILE *out);

#endif
