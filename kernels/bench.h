/* What the benchmark asks of a GPU beyond the model's operations: random data, the means to measure
 * what the hardware can do, and the libraries' own products to be held against. The CUDA backend
 * has a table of these (backend.bench); the CPU backend has none. */
#ifndef SMALLWORLD_KERNELS_BENCH_H
#define SMALLWORLD_KERNELS_BENCH_H

#include "ops.h"

#include <stdio.h>

/* How a product is computed: its operands' type and the units that multiply them. */
typedef enum bench_math { MATH_BF16, MATH_FP32, MATHS } bench_math;

/*   fprop  y = W x      left W,  right x,  out y
 *   dgrad  dx = W' dy   left W,  right dy, out dx
 *   wgrad  dW = dy x'   left dy, right x,  out dW, real */
typedef enum bench_product { PRODUCT_FPROP, PRODUCT_DGRAD, PRODUCT_WGRAD, PRODUCTS } bench_product;

enum { EXCHANGE_BYTES = 4096 };

/* A library: cuBLAS with a dense W, or cuSPARSE in blocked-ELL format, which is loaded when first
 * asked for; its dgrad gets W transposed ready-made, and it has no wgrad. */
typedef enum bench_library { LIBRARY_CUBLAS, LIBRARY_CUSPARSE, LIBRARIES } bench_library;

typedef struct bench_problem {
    bench_product product;
    bench_math math;
    const layout *layout; /* on the host */
    int columns;
    bool by_column; /* activations [columns][features], else [features][columns] as ours */
} bench_problem;

/* A library's product, ready to run. */
typedef struct rival rival;

struct bench_tools {
    size_t (*cache_bytes)(backend *be); /* of the L2 */
    int (*processors)(backend *be);     /* multiprocessors */

    /* The name of the kernel that makes a product, of operands and without sums; NULL, with the
     * reason, where the kernel that was forced does not take it. */
    const char *(*kernel_name)(backend *be, const device_layout *l, bench_product product,
                               int steps, int columns, error *err);

    /* Forces the kernel of this name on layouts created from now on, NULL: none. False, with the
     * names there are, where there is none of this name for the backend's GPU and precision. */
    bool (*force_kernel)(backend *be, const char *name, error *err);

    /* From now on explains each choice of a kernel, once, in lines of text; NULL: no longer. */
    void (*explain)(backend *be, FILE *out);

    /* Uniform in [-1, 1): `count` elements of the type that `math` reads. */
    void (*randomise)(backend *be, void *x, bench_math math, size_t count, uint64_t seed);

    /* Reads all of `x` `times` times over, past the caches of the multiprocessors. */
    void (*read)(backend *be, const void *x, size_t bytes, int times);

    /* A kernel that does nothing, 256 threads on every multiprocessor. */
    void (*nothing)(backend *be);

    /* All multiprocessors wait for each other `times` times over: each leaves a word and reads all
     * others' until they are there. `words`: EXCHANGE_BYTES, zeroed before the first time. */
    void (*exchange)(backend *be, void *words, int times);

    /* NULL, with the reason, where the library is missing or does not have the product. Of a
     * rival's W, `rival_weights` elements are read, padding included. The first run must not be
     * recorded; it fails where the library refuses. */
    rival *(*rival_create)(backend *be, bench_library library, const bench_problem *problem,
                           error *err);
    size_t (*rival_weights)(const rival *r);
    bool (*rival_run)(rival *r, const void *left, const void *right, void *out, error *err);
    void (*rival_free)(rival *r);
};

#endif
