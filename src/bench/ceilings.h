/* Measures the ceilings of a device, by which floors are divided. */
#ifndef SMALLWORLD_BENCH_CEILINGS_H
#define SMALLWORLD_BENCH_CEILINGS_H

#include "bench/cost.h"
#include "core/json.h"

extern const char *const math_names[]; /* "bf16", "fp32" */

/* The arithmetic in which a backend computes products. */
bench_math math_of(const backend *be);

/* Returns the size in bytes of the last cache before memory, on a GPU its L2; 0 if unknown. */
size_t ceilings_cache_size(backend *be);

/* Measures the backend's ceilings on random data: all of them on a GPU; on the CPU only a copy and
 * the dense product. Takes about a second and frees its memory. */
bool ceilings_measure(backend *be, ceilings *c, error *err);

/* Writes "copy 4.20 TB/s, L2 7.60 TB/s, bf16 779 TFLOP/s ..." to `text`, which has room for 160
 * bytes, and returns it. */
const char *ceilings_text(const ceilings *c, char *text);
void ceilings_json(const ceilings *c, json_writer *w); /* writes the member "ceilings" */

#endif
