/* The products' benchmark as tables, as JSON and CSV, and as the chart of Gray et al. (2017). */
#ifndef SMALLWORLD_BENCH_REPORT_H
#define SMALLWORLD_BENCH_REPORT_H

#include "bench/matmul.h"

/* Prints a table for each precision, product, number of gates, pattern, block and N, with a line
 * for each density. */
void report_text(const matmul_results *results, FILE *out);

/* {"device", "units", "operands", "ceilings", "rows": [...], "seconds"} and a line break. Times in
 * microseconds; null where there is none. */
void report_json(const matmul_results *results, FILE *out);

/* A header and a line a row, with the fields of the JSON's rows; empty where there is none. */
bool report_csv(const matmul_results *results, const char *path, error *err);

/* Speed-up over cuBLAS against sparsity on logarithmic axes, a curve an N, of the kind of product
 * that has most rows; dashed the faster format of cuSPARSE, dotted the floor. */
bool report_svg(const matmul_results *results, const char *path, error *err);

#endif
