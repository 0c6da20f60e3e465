#include "classify/svm.h"

#include "core/clock.h"
#include "core/memory.h"
#include "core/philox.h"
#include "data/classes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_LANES = 16,
    MOST_PASSES = 1000,
    AHEAD = SVM_ROOM /* features whose weights are asked of memory before they are read */
};

/* Compiled for several levels of instructions, of which the best is taken when the program starts;
 * GCC's sanitizers cannot look into that choice, and clang names its outcome otherwise. */
#if defined(__x86_64__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&                \
    !defined(__SANITIZE_THREAD__)
#define FOR_LEVELS __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define FOR_LEVELS
#endif

/* ------------------------------------------------------------------------------------ a pass */

/* A walk over the rows for one block of functions. */
typedef struct walk {
    const svm_rows *rows;
    int64_t features;
    const int32_t *order; /* [count] of rows */
    int count;
    float *w, *alpha;
    uint16_t *active;        /* [rows] a bit for each function that has not put the row aside */
    const float *square;     /* [rows] |x|^2, that of the intercept included */
    const float *slack;      /* [classes] 1 / (2 C weight) */
    int first;               /* class of the first function */
    unsigned working;        /* bits of the functions that still change */
    float bound[MOST_LANES]; /* a row whose gradient at 0 is above is put aside */
    float least[MOST_LANES], most[MOST_LANES]; /* the violations of this pass */
} walk;

/* The steps of a row: for each function that it counts for, to the optimum along its variable. Says
 * whether anything changes, and leaves in `delta` what is added to the weights for a value of 1. */
static inline bool step(walk *k, int row, const int lanes, const float *margin, float *delta) {
    float *alpha = k->alpha + (size_t)row * (size_t)lanes;
    const int class = k->rows->class[row];
    const float slack = k->slack[class], curvature = k->square[row] + slack;
    bool changes = false;
    for (int l = 0; l < lanes; l++) {
        delta[l] = 0;
        if (!(k->active[row] & k->working & 1u << l)) continue;
        const float y = class == k->first + l ? 1 : -1;
        const float gradient = y * margin[l] - 1 + slack * alpha[l];
        float violation = gradient;
        if (alpha[l] == 0 && gradient > k->bound[l]) {
            k->active[row] &= (uint16_t) ~(1u << l);
            continue;
        }
        if (alpha[l] == 0 && gradient > 0) violation = 0;
        k->least[l] = fminf(k->least[l], violation);
        k->most[l] = fmaxf(k->most[l], violation);
        if (fabsf(violation) < 1e-12f) continue;
        const float after = fmaxf(alpha[l] - gradient / curvature, 0);
        delta[l] = (after - alpha[l]) * y;
        changes = changes || delta[l] != 0;
        alpha[l] = after;
    }
    return changes;
}

static inline void walk_lanes(walk *k, const int lanes) {
    const svm_rows *r = k->rows;
    const size_t wide = (size_t)lanes;
    float *intercept = k->w + (size_t)k->features * wide;
    for (int i = 0; i < k->count; i++) {
        const int row = k->order[i];
        if (!(k->active[row] & k->working)) continue;
        const size_t begin = r->start[row], end = r->start[row + 1];
        float margin[MOST_LANES], delta[MOST_LANES];
        for (size_t l = 0; l < wide; l++) margin[l] = intercept[l];
        for (size_t j = begin; j < end; j++) {
            const float *w = k->w + (size_t)r->feature[j] * wide, x = r->value[j];
            __builtin_prefetch(k->w + (size_t)r->feature[j + AHEAD] * wide, 1);
            for (size_t l = 0; l < wide; l++) margin[l] += w[l] * x;
        }
        if (!step(k, row, lanes, margin, delta)) continue;
        for (size_t l = 0; l < wide; l++) intercept[l] += delta[l];
        for (size_t j = begin; j < end; j++) {
            float *w = k->w + (size_t)r->feature[j] * wide;
            const float x = r->value[j];
            for (size_t l = 0; l < wide; l++) w[l] += delta[l] * x;
        }
    }
}

FOR_LEVELS static void walk_1(walk *k) {
    walk_lanes(k, 1);
}

FOR_LEVELS static void walk_8(walk *k) {
    walk_lanes(k, 8);
}

FOR_LEVELS static void walk_16(walk *k) {
    walk_lanes(k, 16);
}

/* ------------------------------------------------------------------------------------- fitting */

svm svm_begin(const svm_rows *rows, int64_t features, int functions, const double *weight) {
    svm s = {.rows = rows, .features = features, .functions = functions, .weight = weight};
    s.lanes = functions == 1 ? 1 : functions <= 16 ? 8 : MOST_LANES;
    s.blocks = (functions + s.lanes - 1) / s.lanes;
    const size_t wide = (size_t)s.lanes * (size_t)s.blocks;
    s.w = mem_alloc((size_t)(features + 1) * wide, sizeof *s.w);
    s.alpha = mem_alloc((size_t)rows->count * wide, sizeof *s.alpha);
    return s;
}

void svm_end(svm *s) {
    free(s->w);
    free(s->alpha);
    *s = (svm){0};
}

/* Rows in an order of their own for each pass. */
static void shuffle(int32_t *order, int count, int pass) {
    philox_stream draw = philox_start(1, PHILOX_SVM, 0, (uint32_t)pass);
    for (int i = count - 1; i > 0; i--) {
        const int k = (int)philox_below(&draw, (uint64_t)i + 1);
        const int32_t kept = order[i];
        order[i] = order[k];
        order[k] = kept;
    }
}

/* Fits one block's functions. */
static int fit_block(const svm *s, int block, const float *square, const float *slack, bool all,
                     double tolerance, double deadline) {
    const svm_rows *r = s->rows;
    const int first = block * s->lanes;
    const int functions = s->functions - first < s->lanes ? s->functions - first : s->lanes;
    const unsigned every = (1u << functions) - 1;
    int32_t *order = mem_alloc((size_t)r->count + 1, sizeof *order);
    walk k = {.rows = r,
              .features = s->features,
              .order = order,
              .w = s->w + (size_t)block * (size_t)(s->features + 1) * (size_t)s->lanes,
              .alpha = s->alpha + (size_t)block * (size_t)r->count * (size_t)s->lanes,
              .active = mem_alloc((size_t)r->count + 1, sizeof *k.active),
              .square = square,
              .slack = slack,
              .first = s->functions == 1 ? 1 : first,
              .working = every};
    for (int i = 0; i < r->count; i++) {
        if (r->held[i] && !all) continue;
        order[k.count++] = i;
        k.active[i] = (uint16_t)every;
    }
    unsigned whole = every; /* functions that have put no row aside */
    int pass = 0;
    bool in_time = true;
    for (int l = 0; l < MOST_LANES; l++) k.bound[l] = INFINITY;
    for (; k.working && pass < MOST_PASSES; pass++) {
        in_time = pass == 0 || clock_seconds() < deadline;
        if (!in_time) break;
        shuffle(order, k.count, pass);
        for (int l = 0; l < MOST_LANES; l++) k.least[l] = INFINITY, k.most[l] = -INFINITY;
        if (s->lanes == 1) walk_1(&k);
        if (s->lanes == 8) walk_8(&k);
        if (s->lanes == MOST_LANES) walk_16(&k);
        for (int l = 0; l < functions; l++) {
            const unsigned bit = 1u << l;
            if (!(k.working & bit)) continue;
            const bool settled = !(k.most[l] - k.least[l] > tolerance);
            if (settled && whole & bit) {
                k.working &= ~bit;
            } else if (settled) { /* on the rows that are left: look at all again */
                for (int i = 0; i < k.count; i++) k.active[order[i]] |= (uint16_t)bit;
                whole |= bit;
                k.bound[l] = INFINITY;
            } else {
                whole &= ~bit;
                k.bound[l] = k.most[l] > 0 ? k.most[l] : INFINITY;
            }
        }
    }
    free(k.active);
    free(order);
    return in_time ? pass : -pass;
}

int svm_fit(svm *s, double cost, bool all, double tolerance, double deadline) {
    const svm_rows *r = s->rows;
    const int classes = s->functions == 1 ? 2 : s->functions;
    float *square = mem_alloc((size_t)r->count + 1, sizeof *square);
    float *slack = mem_alloc((size_t)classes, sizeof *slack);
    int most = 0;
    bool in_time = true;
    for (int k = 0; k < classes; k++) {
        slack[k] = (float)(0.5 / (cost * fmax(class_weight(s->weight, k), 1e-9)));
    }
    for (int i = 0; i < r->count; i++) {
        square[i] = 1;
        for (size_t j = r->start[i]; j < r->start[i + 1]; j++)
            square[i] += r->value[j] * r->value[j];
    }
#pragma omp parallel for schedule(dynamic) reduction(max : most) reduction(&& : in_time)
    for (int block = 0; block < s->blocks; block++) {
        const int passes = fit_block(s, block, square, slack, all, tolerance, deadline);
        most = abs(passes) > most ? abs(passes) : most;
        in_time = in_time && passes >= 0;
    }
    free(slack);
    free(square);
    return in_time ? most : -most;
}

/* ------------------------------------------------------------------------------------- results */

/* A function's weights, `lanes` apart. */
static const float *weights_of(const svm *s, int function) {
    const size_t block = (size_t)(function / s->lanes);
    return s->w + block * (size_t)(s->features + 1) * (size_t)s->lanes + function % s->lanes;
}

FOR_LEVELS void svm_margins(const svm *s, const int32_t *feature, const float *value, size_t count,
                            double *margin) {
    const size_t lanes = (size_t)s->lanes;
    for (int first = 0; first < s->functions; first += s->lanes) {
        const float *w = weights_of(s, first), *last = w + (size_t)s->features * lanes;
        double sum[MOST_LANES];
        for (size_t l = 0; l < lanes; l++) sum[l] = last[l];
        for (size_t j = 0; j < count; j++) {
            const float *at = w + (size_t)feature[j] * lanes;
            for (size_t l = 0; l < lanes; l++) sum[l] += (double)at[l] * value[j];
        }
        for (int f = first; f < s->functions && f < first + s->lanes; f++) {
            margin[f] = sum[f - first];
        }
    }
}

double svm_weights(const svm *s, int function, float *to) {
    const float *w = weights_of(s, function);
    for (int64_t j = 0; j < s->features; j++) to[j] = w[(size_t)j * (size_t)s->lanes];
    return w[(size_t)s->features * (size_t)s->lanes];
}
