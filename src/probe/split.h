/* Which rows are held out to choose by. */
#ifndef SMALLWORLD_PROBE_SPLIT_H
#define SMALLWORLD_PROBE_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Splits the rows of each class (0 to classes - 1; -1 is none): random ones, a fifth, rounded, but
 * at least one and never all, are held out: held [rows] is true. Rows of equal `group` [rows], as
 * those of equal texts, stay together, with the class of the first of them, so a class may give a
 * few rows more. A text that would make up more than a tenth of what its class holds out is not
 * held out, unless there are too few others: an error there would count as many. Returns the first
 * class that has fewer than two groups, or -1. */
int split_by_group(const int16_t *class, const uint64_t *group, size_t rows, int classes,
                   uint64_t seed, bool *held);

#endif
