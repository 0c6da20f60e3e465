/* Prints the products' benchmark as tables and as JSON. */
#ifndef SMALLWORLD_BENCH_REPORT_H
#define SMALLWORLD_BENCH_REPORT_H

#include "bench/matmul.h"

/* Prints a table for each precision, product, number of gates, pattern, block and N, with a line
 * for each density. */
void report_text(const matmul_results *results, FILE *out);

/* Prints {"device", "units", "ceilings", "rows": [...], "seconds"} and a line break.
 * Times are in microseconds, or null. */
void report_json(const matmul_results *results, FILE *out);

#endif
