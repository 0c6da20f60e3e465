/* What the benchmarks ask of a GPU beyond the model's operations. The CUDA backend has a table of
 * these (backend.bench); the CPU backend has none. */
#ifndef SMALLWORLD_KERNELS_BENCH_H
#define SMALLWORLD_KERNELS_BENCH_H

#include "ops.h"

#include <stdio.h>

/*   fprop  y = W x      left W,  right x,  out y
 *   dgrad  dx = W' dy   left W,  right dy, out dx
 *   wgrad  dW = dy x'   left dy, right x,  out dW, real */
typedef enum bench_product { PRODUCT_FPROP, PRODUCT_DGRAD, PRODUCT_WGRAD, PRODUCTS } bench_product;

enum { EXCHANGE_BYTES = 4096 };

struct bench_tools {
    size_t (*cache_bytes)(backend *be); /* of the L2 */

    /* The name of the kernel that makes a product, of operands and without sums; NULL, with the
     * reason, where the kernel that was forced does not take it. */
    const char *(*kernel_name)(backend *be, const device_layout *l, bench_product product,
                               int steps, int columns, error *err);

    /* Forces the kernel of this name on layouts created from now on, NULL: none. False, with the
     * names there are, where there is none of this name for the backend's GPU and precision. */
    bool (*force_kernel)(backend *be, const char *name, error *err);

    /* From now on explains each choice of a kernel, once, in lines of text; NULL: no longer. */
    void (*explain)(backend *be, FILE *out);

    /* Uniform in [-1, 1): `count` operands. */
    void (*randomise)(backend *be, void *x, size_t count, uint64_t seed);

    /* All multiprocessors wait for each other `times` times over: each leaves a word and reads all
     * others' until they are there. `words`: EXCHANGE_BYTES, zeroed before the first time. */
    void (*exchange)(backend *be, void *words, int times);
};

#endif
