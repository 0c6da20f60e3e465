/* The CPU backend's own header. Every file of this folder is compiled several times: for float,
 * once for each level of the processor's instructions (kernels/cpu_levels.h); and for double, the
 * tests' reference. CPU(name) keeps them apart.
 *
 * Parallel loops run over nodes, units or columns, and each result is summed in an order that
 * depends on neither the number of threads nor the number of columns. */
#ifndef SMALLWORLD_KERNELS_CPU_H
#define SMALLWORLD_KERNELS_CPU_H

#include "cpu_levels.h"

#include <math.h>
#include <string.h>

#ifdef SMALLWORLD_REFERENCE
typedef double real;
typedef int64_t lane; /* a whole number as wide as a real */
#else
typedef float real;
typedef int32_t lane;
#endif

#define CPU(name) CPU_OF(SMALLWORLD_LEVEL, name)

enum { COLUMN_GROUP = 16 }; /* columns handled together; `columns` is a multiple of it */

struct device_layout {
    layout host;
};

/* How many threads replay a recording. Results do not depend on it. */
typedef struct thread_choice {
    int threads, trial; /* the number in use; another one on trial, or 0 */
    int tries;          /* replays of this trial so far */
    double trial_seconds;
    int replays;             /* since this number was chosen */
    int left, pause;         /* replays before the next trial; the last such pause */
    double seconds, settled; /* a replay's usual time: lately, and at the last trial */
    bool fewer;              /* which way the next trial goes */
} thread_choice;

struct recording {
    void (*issue)(void *argument);
    void *argument;
    thread_choice choice;
};

typedef struct cpu_backend {
    backend table;             /* first: a cpu_backend is a backend */
    int threads, most_threads; /* of an operation now, and at most */
    bool adapts;               /* whether replays choose their number of threads ... */
    int first_threads;         /* ... the first one with this many, each as many as the last */
    double deadline;           /* of a replay, after which it goes on with fewer; 0: none */
    int threads_after;         /* that many */
    double *partial;           /* scratch of reductions */
    size_t partial_count;
    struct statistics *statistics; /* scratch of layer norm */
    size_t statistics_count;
    double *marks; /* seconds */
    size_t mark_count;
    int flushing;        /* operations under way, one within the other, see flush_begin */
    uint64_t saved_mode; /* how the calling thread treats denormals between operations */
} cpu_backend;

static inline cpu_backend *cpu_of(backend *be) {
    return (cpu_backend *)be;
}

/* -------------------------------------------------------------------------------- denormals
 * Arithmetic on denormal numbers is many times slower on some processors, and states and gradients
 * that fade towards zero are full of them. Every thread that works on an operation therefore reads
 * them as zero and writes zero instead of them, from the operation's start to its end; then each
 * thread goes back to its caller's mode, so that the rest of the program, and a program that links
 * it as a library, computes as before. The reference in double does not flush.
 *
 * An operation says FLUSH_DENORMALS(be) first; its scope ends the mode. */

void CPU(flush_begin)(cpu_backend *cpu);
void CPU(flush_end)(cpu_backend **cpu);

#define FLUSH_DENORMALS(be)                                                                        \
    cpu_backend *flushed __attribute__((cleanup(CPU(flush_end)))) = cpu_of(be);                    \
    CPU(flush_begin)(flushed)

/* In BF16, rounds x to bf16, to nearest even, in place. Every operation calls it on the operands
 * that it stores. */
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
 * For float, without branches, so that loops over columns vectorise: x = n log 2 + r, and e^x = 2^n
 * e^r, with a polynomial of degree 6 in r, a Chebyshev fit (relative error 1.2e-7). */

#ifndef SMALLWORLD_REFERENCE
/* e^r - 1, and 2^n in `scale`. A NaN stays one. */
static inline float exp_parts(float x, float *scale) {
    const float rounder = 0x1.8p23f; /* adding a number rounds it to a whole one in the low bits */
    float clamped = x < -87.0f ? -87.0f : x;
    clamped = clamped > 88.0f ? 88.0f : clamped;
    float rounded = clamped * 1.44269504f + rounder, n = rounded - rounder;
    float r = clamped - n * 0.693145752f - n * 1.42860677e-6f;
    float p = 0.00139345438f;
    p = p * r + 0.00836377684f;
    p = p * r + 0.0416664556f;
    p = p * r + 0.166665733f;
    p = p * r + 0.5f;
    uint32_t bits;
    memcpy(&bits, &rounded, sizeof bits);
    bits = (bits + 127) << 23;
    memcpy(scale, &bits, sizeof *scale);
    return p * r * r + r;
}
#endif

static inline real sqrt_(real x) {
#ifdef SMALLWORLD_REFERENCE
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}

static inline real exp_(real x) {
#ifdef SMALLWORLD_REFERENCE
    return exp(x);
#else
    float scale, part = exp_parts(x, &scale);
    return part * scale + scale;
#endif
}

/* ------------------------------------------------------------------------------------- tiles
 * They are passed by address: how a long vector is passed by value depends on the processor. */

enum { TILE = 8 };

typedef real octet __attribute__((vector_size(TILE * sizeof(real))));
typedef octet octet_at __attribute__((aligned(sizeof(real)))); /* anywhere in memory */
typedef real quad __attribute__((vector_size(4 * sizeof(real))));

/* Picks lanes of two vectors, numbered as if side by side. */
#if defined __clang__ || __GNUC__ >= 12
#define SHUFFLE __builtin_shufflevector
#else
#define SHUFFLE(a, b, ...)                                                                         \
    __builtin_shuffle(a, b, (lane __attribute__((vector_size(sizeof(a))))){__VA_ARGS__})
#endif

static inline octet_at *octets(real *x) {
    return (octet_at *)x;
}

static inline void tile_load(octet x[TILE], const real *from, size_t stride) {
    for (int r = 0; r < TILE; r++, from += stride) memcpy(&x[r], from, sizeof x[r]);
}

static inline void tile_store(const octet x[TILE], real *to, size_t stride) {
    for (int r = 0; r < TILE; r++, to += stride) memcpy(to, &x[r], sizeof x[r]);
}

/* x[r][n] becomes x[n][r]. Each pass is an instruction a vector where vectors are long enough. */
static inline void tile_transpose(octet x[TILE]) {
    octet y[TILE], z[TILE];
    for (int r = 0; r < TILE; r += 2) { /* lanes of two neighbours side by side ... */
        y[r] = SHUFFLE(x[r], x[r + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        y[r + 1] = SHUFFLE(x[r], x[r + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
    for (int r = 0; r < TILE; r += 4) { /* ... of four ... */
        for (int i = 0; i < 2; i++) {
            z[r + 2 * i] = SHUFFLE(y[r + i], y[r + i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            z[r + 2 * i + 1] = SHUFFLE(y[r + i], y[r + i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    }
    for (int r = 0; r < TILE / 2; r++) { /* ... of eight */
        x[r] = SHUFFLE(z[r], z[r + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        x[r + 4] = SHUFFLE(z[r], z[r + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* The sum of `count` values, a multiple of 4, as four sums side by side; compilers make one chain
 * of scalar additions of a plain loop. */
static inline real add_up(const real *x, int count) {
    quad sum = {0}, next;
    for (int n = 0; n < count; n += 4) {
        memcpy(&next, x + n, sizeof next);
        sum += next;
    }
    return (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

/* ------------------------------------------------------------------------------- the operations */

backend *CPU(backend)(precision precision, int threads);

void CPU(fprop)(backend *be, const device_layout *l, const void *w, const void *x, int steps,
                int columns, void *y, element type);
void CPU(dgrad)(backend *be, const device_layout *l, const void *w, const void *dy, int steps,
                int columns, void *dx, element type);
void CPU(wgrad)(backend *be, const device_layout *l, const void *dy, const void *x, int steps,
                int columns, void *dw, void *workspace);
void CPU(norm_rows)(backend *be, const normed_rows *w, void *const operand[2]);
void CPU(norm_rows_backward)(backend *be, const normed_rows *w, void *const gradient[2],
                             void *dgain);
void CPU(add_rows)(backend *be, const device_layout *l, const void *x, int columns, void *y);
size_t CPU(wgrad_workspace)(backend *be, const layout *l, int steps, int columns);
void CPU(conv_fprop)(backend *be, const device_layout *l, const tap_table *taps, const void *w,
                     const void *x, int columns, void *y);
void CPU(conv_dgrad)(backend *be, const device_layout *l, const tap_table *taps, const void *w,
                     const void *dy, int columns, void *dx);
void CPU(conv_wgrad)(backend *be, const device_layout *l, const tap_table *taps, const void *dy,
                     const void *x, int columns, void *dw);

void CPU(cell_forward)(backend *be, const cell *c);
void CPU(cell_backward)(backend *be, const cell *c);
void CPU(prepare_entries)(backend *be, const cell *c);
void CPU(activate)(backend *be, const cell *c, int s, int t);
void CPU(activate_backward)(backend *be, const cell *c, int s, int t);
void CPU(gates)(backend *be, const cell *c, int t);
void CPU(gates_backward)(backend *be, const cell *c, int t);
void CPU(table_backward)(backend *be, const cell *c, int s);

void CPU(softmax_cross_entropy)(backend *be, const softmax_loss *s);
void CPU(sample)(backend *be, const void *logits, const void *bias, int streams, int columns,
                 sampling *state, uint8_t *text, uint8_t *bytes);
void CPU(row_sums)(backend *be, const void *x, int steps, int rows, int columns, void *out);
void CPU(add)(backend *be, size_t count, void *total, const void *x);
void CPU(sum)(backend *be, const void *x, size_t count, double *out);
/* The sum of x, or of its square, chunk by chunk in a fixed order. */
double CPU(reduce)(cpu_backend *be, const real *x, size_t count, bool square);
void CPU(pool)(backend *be, const void *x, element type, int steps, int rows, int columns,
               const int32_t *first, const int32_t *last, pooling how, void *out);
void CPU(adam)(backend *be, size_t count, void *weights, const void *gradient, void *moment1,
               void *moment2, void *average, void *operands, const uint8_t *groups,
               const update_arguments *arguments, update_report *report);
void CPU(muon_direction)(backend *be, const muon_matrix *w, const update_arguments *arguments,
                         const update_report *report, void *direction);
void CPU(muon_polynomial)(backend *be, int side, const void *a, const void *a_squared, void *p);
void CPU(muon_apply)(backend *be, const muon_matrix *w, const void *direction,
                     const update_arguments *arguments, const update_report *report);
void CPU(adapt)(backend *be, size_t count, void *weights, const void *gradient, const void *trained,
                void *squares, void *operands, const update_arguments *arguments);
void CPU(sum_ranks)(backend *be, size_t count, void *values);
void CPU(round)(backend *be, size_t count, const void *weights, void *operands);

#endif
