#include "bench/ceilings.h"

#include "bench/dense.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

const char *const math_names[] = {"bf16", "fp32"};

enum {
    GPU_COPY = 2047 << 20, /* bytes, far more than any cache */
    CPU_COPY = 96 << 20,
    GPU_SIDE = 8192, /* side of a square product that fills the device */
    CPU_SIDE = 768,
    CPU_ROWS = 4096, /* divided among threads, each of which packs the other operand */
    CPU_SMALL = 256, /* side of a product whose operands stay in the cache */
    READS = 64,      /* reads of an array that fits in the L2, in one kernel */
    NODES = 1000,    /* empty kernels in a recording */
    EXCHANGES = 1000 /* exchanges in one kernel */
};

static const timing gpu_timing = {9, 0.02, 10}, cpu_timing = {5, 0.02, 10};

static const timing *how(const backend *be) {
    return be->bench ? &gpu_timing : &cpu_timing;
}

bench_math math_of(const backend *be) {
    return be->precision == BF16 ? MATH_BF16 : MATH_FP32;
}

size_t ceilings_cache_size(backend *be) {
    if (be->bench) return be->bench->cache_bytes(be);
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    return bytes > 0 ? (size_t)bytes : 0;
}

/* Allocates up to two arrays, or none if either fails. */
static bool take(backend *be, void **arrays, size_t bytes, int count, error *err) {
    for (int i = 0; i < count; i++) {
        arrays[i] = be->allocate(be, bytes);
        if (arrays[i]) continue;
        while (i-- > 0) be->release(be, arrays[i]);
        return error_set(err, "not enough memory on %s to measure its ceilings", be->device);
    }
    return true;
}

static void give_back(backend *be, void **arrays, int count) {
    for (int i = 0; i < count; i++) be->release(be, arrays[i]);
}

/* --------------------------------------------------------------------------------- bandwidths */

typedef struct bytes_job {
    backend *be;
    void *arrays[2];
    size_t bytes;
} bytes_job;

static void issue_copy(void *argument, int set) {
    const bytes_job *job = argument;
    (void)set;
    job->be->copy(job->be, job->arrays[1], job->arrays[0], job->bytes);
}

static void issue_read(void *argument, int set) {
    const bytes_job *job = argument;
    (void)set;
    job->be->bench->read(job->be, job->arrays[0], job->bytes, READS);
}

static void issue_exchange(void *argument, int set) {
    const bytes_job *job = argument;
    (void)set;
    job->be->bench->exchange(job->be, job->arrays[0], EXCHANGES);
}

static void issue_nothing(void *argument, int set) {
    const bytes_job *job = argument;
    (void)set;
    job->be->bench->nothing(job->be);
}

static bool measure_copy(backend *be, ceilings *c, error *err) {
    bytes_job job = {.be = be, .bytes = be->bench ? GPU_COPY : CPU_COPY};
    while (job.bytes > be->memory / 4) job.bytes /= 2;
    if (!take(be, job.arrays, job.bytes, 2, err)) return false;
    for (int i = 0; i < 2; i++)
        dense_randomise(be, job.arrays[i], MATH_FP32, job.bytes / sizeof(float));
    double seconds = 0;
    bool done = time_operation(be, how(be), issue_copy, &job, 1, &seconds, err);
    c->memory = 2 * (double)job.bytes / seconds;
    give_back(be, job.arrays, 2);
    return done;
}

/* Measures arrays of a quarter, half and three quarters of the L2 and takes the fastest. The
 * hardware does not say how much of the L2 one array can use. */
static bool measure_cache(backend *be, ceilings *c, error *err) {
    size_t cache = be->bench->cache_bytes(be);
    bytes_job job = {.be = be};
    if (!take(be, job.arrays, cache, 1, err)) return false;
    dense_randomise(be, job.arrays[0], MATH_FP32, cache / sizeof(float));
    bool done = true;
    for (int quarters = 1; quarters <= 3 && done; quarters++) {
        double seconds = 0;
        job.bytes = cache / 4 * (size_t)quarters / 1024 * 1024;
        done = time_operation(be, how(be), issue_read, &job, 1, &seconds, err);
        if (done) c->cache = fmax(c->cache, READS * (double)job.bytes / seconds);
    }
    give_back(be, job.arrays, 1);
    return done;
}

static bool measure_node(backend *be, ceilings *c, error *err) {
    bytes_job job = {.be = be};
    return time_operation(be, how(be), issue_nothing, &job, NODES, &c->node, err);
}

static bool measure_exchange(backend *be, ceilings *c, error *err) {
    bytes_job job = {.be = be};
    if (!take(be, job.arrays, EXCHANGE_BYTES, 1, err)) return false;
    be->zero(be, job.arrays[0], EXCHANGE_BYTES);
    bool done = time_operation(be, how(be), issue_exchange, &job, 1, &c->exchange, err);
    c->exchange /= EXCHANGES;
    give_back(be, job.arrays, 1);
    return done;
}

/* Raises the rate to that of W [rows][side] times [side][side], or of its gradient. */
static bool try_rate(backend *be, bench_math math, bench_product product, int rows, int side,
                     ceilings *c, error *err) {
    layout *l = layout_dense(rows, side, 1, 1);
    double seconds = 0;
    bool done = dense_time(be, l, product, math, side, how(be), &seconds, err);
    if (done) c->rate[math] = fmax(c->rate[math], 2.0 * rows * side * side / seconds);
    layout_free(l);
    return done;
}

/* On the CPU a small product, which stays in the cache, can be faster than a large one. */
static bool measure_rate(backend *be, bench_math math, ceilings *c, error *err) {
    if (be->bench) return try_rate(be, math, PRODUCT_FPROP, GPU_SIDE, GPU_SIDE, c, err);
    return try_rate(be, math, PRODUCT_FPROP, CPU_ROWS, CPU_SIDE, c, err) &&
           try_rate(be, math, PRODUCT_WGRAD, 4 * CPU_SMALL, CPU_SMALL, c, err);
}

bool ceilings_measure(backend *be, ceilings *c, error *err) {
    *c = (ceilings){0};
    if (!measure_copy(be, c, err)) return false;
    if (!be->bench) return measure_rate(be, math_of(be), c, err);
    for (int math = 0; math < MATHS; math++) {
        if (!measure_rate(be, (bench_math)math, c, err)) return false;
    }
    return measure_cache(be, c, err) && measure_node(be, c, err) && measure_exchange(be, c, err);
}

/* ------------------------------------------------------------------------------------ reports */

const char *ceilings_text(const ceilings *c, char *text) {
    size_t size = 160, used = (size_t)snprintf(text, size, "copy %.3g TB/s", c->memory * 1e-12);
    if (c->cache > 0) {
        used += (size_t)snprintf(text + used, size - used, ", L2 %.3g TB/s", c->cache * 1e-12);
    }
    for (int math = 0; math < MATHS; math++) {
        if (c->rate[math] == 0) continue;
        used += (size_t)snprintf(text + used, size - used, ", %s %.3g TFLOP/s", math_names[math],
                                 c->rate[math] * 1e-12);
    }
    if (c->node > 0) {
        used += (size_t)snprintf(text + used, size - used, ", an empty graph node %.2f us",
                                 c->node * 1e6);
    }
    if (c->exchange > 0) {
        snprintf(text + used, size - used, ", an exchange %.2f us", c->exchange * 1e6);
    }
    return text;
}

void ceilings_json(const ceilings *c, json_writer *w) {
    json_object_begin(w, "ceilings");
    json_number(w, "copy_bytes_per_second", c->memory);
    json_number(w, "l2_bytes_per_second", c->cache > 0 ? c->cache : NAN);
    for (int math = 0; math < MATHS; math++) {
        char key[48];
        snprintf(key, sizeof key, "%s_operations_per_second", math_names[math]);
        json_number(w, key, c->rate[math] > 0 ? c->rate[math] : NAN);
    }
    json_number(w, "graph_node_us", c->node > 0 ? c->node * 1e6 : NAN);
    json_number(w, "exchange_us", c->exchange > 0 ? c->exchange * 1e6 : NAN);
    json_object_end(w);
}
