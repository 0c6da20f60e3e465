/* The ceilings of a device, measured: what floors are divided by. */
#ifndef SMALLWORLD_BENCH_CEILINGS_H
#define SMALLWORLD_BENCH_CEILINGS_H

#include "bench/cost.h"
#include "core/json.h"

extern const char *const math_names[]; /* "bf16", "tf32", "fp32" */

/* The arithmetic in which a backend computes products. */
bench_math math_of(const backend *be);

/* Bytes of the last cache before memory, a GPU's L2; 0 if it is not known. */
size_t ceilings_cache_size(backend *be);

/* Measures the backend's ceilings on random data: all of them on a GPU; on the CPU, a copy and the
 * dense product in its arithmetic. Takes about a second, and frees its memory. */
bool ceilings_measure(backend *be, ceilings *c, error *err);

/* "copy 4.20 TB/s, L2 7.60 TB/s, bf16 779 TFLOP/s ...". `text` holds 160 bytes; returned. */
const char *ceilings_text(const ceilings *c, char *text);
void ceilings_json(const ceilings *c, json_writer *w); /* a member "ceilings" */

#endif
