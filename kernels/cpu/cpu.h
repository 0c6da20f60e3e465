/* The CPU backend's own header. Every file of this folder is compiled twice: for float, the
 * backend `cpu`; and for double, the tests' reference. CPU(name) keeps the two apart.
 *
 * Parallel loops run over nodes, units or columns, and each result is summed in an order that
 * depends on neither the number of threads nor the number of columns. */
#ifndef SMALLWORLD_KERNELS_CPU_H
#define SMALLWORLD_KERNELS_CPU_H

#include "ops.h"
#include "tanh.h"

#include <math.h>
#include <string.h>

#ifdef SMALLWORLD_REFERENCE
typedef double real;
#define CPU(name) reference_##name
#else
typedef float real;
#define CPU(name) cpu_##name
#endif

enum { COLUMN_GROUP = 16 }; /* columns handled together; `columns` is a multiple of it */

struct device_layout {
    layout host;
};

struct recording {
    void (*issue)(void *argument);
    void *argument;
};

typedef struct cpu_backend {
    backend table; /* first: a cpu_backend is a backend */
    int threads;
    double *partial; /* scratch of reductions */
    size_t partial_count;
    struct statistics *statistics; /* scratch of layer norm */
    size_t statistics_count;
    double *marks; /* seconds */
    size_t mark_count;
} cpu_backend;

static inline cpu_backend *cpu_of(backend *be) {
    return (cpu_backend *)be;
}

/* Rounds to bf16, to nearest even, in place; nothing in other precisions. Call it on every operand
 * that was stored. */
static inline void round_operands(const backend *be, real *x, size_t count) {
#ifndef SMALLWORLD_REFERENCE
    if (be->precision != BF16) return;
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000u;
        uint32_t kept = (bits & 0x7FFFFFFF) > 0x7F800000 ? bits | 0x00400000 : rounded;
        memcpy(&x[i], &kept, sizeof kept);
    }
#else
    (void)be, (void)x, (void)count;
#endif
}

/* ---------------------------------------------------------------------------- exp and friends
 * For float, without branches, so that loops over columns vectorise. exp: x = n log 2 + r, a
 * polynomial of degree 6 in r (relative error 1.2e-7). tanh: an odd polynomial near 0 (9e-8), else
 * through exp. The coefficients are Chebyshev fits. */

static inline real exp_(real x) {
#ifdef SMALLWORLD_REFERENCE
    return exp(x);
#else
    float clamped = x > -87.0f ? x : -87.0f; /* so is a NaN, until the end */
    clamped = clamped < 88.0f ? clamped : 88.0f;
    float n = __builtin_rintf(clamped * 1.44269504f);
    float r = clamped - n * 0.693145752f - n * 1.42860677e-6f;
    float p = 0.00139345438f;
    p = p * r + 0.00836377684f;
    p = p * r + 0.0416664556f;
    p = p * r + 0.166665733f;
    p = p * r + 0.5f;
    p = p * r * r + r + 1.0f;
    int32_t exponent = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &exponent, sizeof scale);
    return x != x ? x : p * scale;
#endif
}

static inline real sigmoid_(real x) {
    return 1 / (1 + exp_(-x));
}

static inline real tanh_(real x) {
#ifdef SMALLWORLD_REFERENCE
    return tanh(x);
#else
    float z = x * x;
    float p = tanh_polynomial(z);
    float near = x + x * z * p;
    float far = 1 - 2 / (1 + exp_(2 * x));
    return z < TANH_NEAR ? near : far;
#endif
}

/* The sum of `count` values, a multiple of 4, four chains side by side: what compilers make of a
 * plain loop is one chain of scalars. */
static inline real add_up(const real *x, int count) {
    typedef real quad __attribute__((vector_size(4 * sizeof(real))));
    quad sum = {0}, next;
    for (int n = 0; n < count; n += 4) {
        memcpy(&next, x + n, sizeof next);
        sum += next;
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* ------------------------------------------------------------------------------- the operations */

void CPU(fprop)(backend *be, const device_layout *l, const void *w, const void *x, int steps,
                int columns, void *y, element type, void *sums);
void CPU(dgrad)(backend *be, const device_layout *l, const void *w, const void *dy, int steps,
                int columns, void *dx, element type);
void CPU(wgrad)(backend *be, const device_layout *l, const void *dy, const void *x, int steps,
                int columns, void *dw, void *workspace);
size_t CPU(wgrad_workspace)(backend *be, const layout *l, int steps, int columns);

void CPU(activate)(backend *be, const cell *c, int s, int t);
void CPU(activate_backward)(backend *be, const cell *c, int s, int t);
void CPU(gates)(backend *be, const cell *c, int t);
void CPU(gates_backward)(backend *be, const cell *c, int t);
void CPU(norm_backward)(backend *be, const cell *c, int s, int t);
void CPU(table_backward)(backend *be, const cell *c, int s);

void CPU(softmax_cross_entropy)(backend *be, const void *logits, const void *bias,
                                const int16_t *targets, int steps, int columns, void *losses,
                                void *dlogits);
void CPU(row_sums)(backend *be, const void *x, int steps, int rows, int columns, void *out);
void CPU(add)(backend *be, size_t count, void *total, const void *x);
void CPU(sum)(backend *be, const void *x, size_t count, double *out);
void CPU(pool)(backend *be, const void *x, element type, int steps, int rows, int columns,
               const int32_t *first, const int32_t *last, pooling how, void *out);
void CPU(adam)(backend *be, size_t count, void *weights, const void *gradient, void *moment1,
               void *moment2, void *average, void *operands, const update_arguments *arguments,
               update_report *report);
void CPU(round)(backend *be, size_t count, const void *weights, void *operands);

#endif
