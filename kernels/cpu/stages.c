/* What a cell does between products: layer norm, the input table, activations and gates, forward
 * and backward. The equations stand in ops.h.
 *
 * Layer norm, for one gate and column, over the features u = 1 ... H:
 *   v_u = (raw_u - mean) / deviation,  y_u = gain_u v_u + bias_u
 *   draw_u = (gain_u dy_u - mean_u(gain dy) - v_u mean_u(gain dy v)) / deviation
 * so backward needs two sums over the features, which `dsums` holds, before it can finish.
 *
 * Every operation is one loop over units, in CHUNKS parallel parts, and within a unit over groups of
 * columns. Floor: each of raw, dpre, c, h and dx once through memory. */
#include "cpu.h"

#include "core/memory.h"
#include "core/philox.h"

#include <stdlib.h>

#define EPSILON ((real)1e-6)

enum { CHUNKS = 64 };

/* The mean and 1 / deviation of a group of columns, for each gate of a stage at one step. */
typedef struct statistics {
    real mean[GATES][COLUMN_GROUP], scale[GATES][COLUMN_GROUP];
} statistics;

/* One step of a stage, as pointers. */
typedef struct view {
    const stage *g;
    size_t hidden, columns, block, gates;
    real *raw, *sums, *out, *dpre, *dentry, *dsums;
    const uint8_t *bytes;
    const statistics *st; /* [columns / COLUMN_GROUP] */
} view;

/* The units of one of the CHUNKS parts: first <= unit < last. */
typedef struct part {
    size_t first, last;
} part;

static inline part part_of(const view *v, int chunk) {
    return (part){v->hidden * (size_t)chunk / CHUNKS, v->hidden * ((size_t)chunk + 1) / CHUNKS};
}

static void load_statistics(backend *be, view *v) {
    cpu_backend *cpu = cpu_of(be);
    size_t groups = v->columns / COLUMN_GROUP;
    cpu->statistics =
        mem_grow(cpu->statistics, &cpu->statistics_count, groups, sizeof *cpu->statistics);
    v->st = cpu->statistics;
    for (size_t i = 0; i < v->gates * groups; i++) {
        size_t g = i / groups, group = i % groups;
        const real *sum = v->sums + g * 2 * v->columns + group * COLUMN_GROUP;
        const real *square = sum + v->columns;
        for (int n = 0; n < COLUMN_GROUP; n++) {
            real mean = sum[n] / (real)v->hidden;
            real variance = square[n] / (real)v->hidden - mean * mean;
            if (variance < 0) variance = 0; /* by rounding; NaN stays NaN */
            cpu->statistics[group].mean[g][n] = mean;
            cpu->statistics[group].scale[g][n] = 1 / (real)sqrt(variance + EPSILON);
        }
    }
}

/* Where a step's part of an array starts; arrays a stage does not have are NULL. */
static inline real *offset(void *array, size_t count) {
    return array ? (real *)array + count : NULL;
}

static view view_step(backend *be, const cell *c, int s, int t) {
    const stage *g = &c->stage[s];
    size_t columns = (size_t)c->columns, gates = (size_t)g->gates;
    size_t plane = (size_t)c->hidden * columns, kept = c->keep ? (size_t)t : 0;
    view v = {.g = g,
              .hidden = (size_t)c->hidden,
              .columns = columns,
              .block = (size_t)g->block,
              .gates = gates,
              .raw = offset(g->raw, kept * gates * plane),
              .sums = offset(g->sums, (size_t)t * 2 * gates * columns),
              .out = offset(g->out, kept * plane),
              .dpre = offset(g->dpre, kept * gates * plane),
              .dentry = offset(g->dentry, kept * gates * plane),
              .dsums = offset(g->dsums, (size_t)t * 2 * gates * columns),
              .bytes = c->bytes ? c->bytes + (size_t)t * columns : NULL};
    if (g->layer_norm) load_statistics(be, &v);
    return v;
}

/* The row of `raw` that holds a unit's gate. */
static inline size_t row_of(const view *v, size_t gate, size_t unit) {
    return (unit / v->block * v->gates + gate) * v->block + unit % v->block;
}

/* The normalised raw of a unit's gate, before gain and bias; without layer norm, raw itself. */
static inline void normalise(const view *v, size_t gate, size_t unit, size_t n0,
                             real out[COLUMN_GROUP]) {
    const real *raw = v->raw + row_of(v, gate, unit) * v->columns + n0;
    if (v->g->layer_norm) {
        const statistics *st = &v->st[n0 / COLUMN_GROUP];
        for (int n = 0; n < COLUMN_GROUP; n++) {
            out[n] = (raw[n] - st->mean[gate][n]) * st->scale[gate][n];
        }
    } else {
        memcpy(out, raw, COLUMN_GROUP * sizeof *out);
    }
}

static inline real gain_of(const view *v, size_t gate, size_t unit) {
    return v->g->gain ? ((const real *)v->g->gain)[gate * v->hidden + unit] : 1;
}

static inline real bias_of(const view *v, size_t gate, size_t unit) {
    return v->g->bias ? ((const real *)v->g->bias)[gate * v->hidden + unit] : 0;
}

/* The table's entries for a unit's gate, [VOCABULARY], or NULL for units it passes by. */
static inline const real *table_row(const view *v, size_t gate, size_t unit) {
    size_t stride = (size_t)v->g->table_stride;
    if (v->g->table_use == TABLE_NONE || unit % stride) return NULL;
    return (const real *)v->g->table + (gate * (v->hidden / stride) + unit / stride) * VOCABULARY;
}

/* ---------------------------------------------------------------------------------- backward */

/* What backward sums up: over the columns of one unit, and over the units of one part. */
typedef struct sums {
    real bias, gain; /* of a unit's gate: dpre, and dpre times the normalised raw */
    real *features;  /* [gates][2][columns] of a part */
} sums;

static real *feature_partials(backend *be, const view *v) {
    cpu_backend *cpu = cpu_of(be);
    size_t count = CHUNKS * v->gates * 2 * v->columns;
    cpu->partial = mem_grow(cpu->partial, &cpu->partial_count, count, sizeof *cpu->partial);
    memset(cpu->partial, 0, count * sizeof(real));
    return (real *)cpu->partial;
}

/* total += x, of a group of columns. */
static inline void add_to(real *total, const real x[COLUMN_GROUP]) {
    real sum[COLUMN_GROUP];
    memcpy(sum, total, sizeof sum);
    for (int n = 0; n < COLUMN_GROUP; n++) sum[n] += x[n];
    memcpy(total, sum, sizeof sum);
}

/* Stores the gradient `d` at norm's result, as an operand, and adds what it adds to the sums. */
static inline void keep_dpre(backend *be, const view *v, size_t gate, size_t unit, size_t n0,
                             real d[COLUMN_GROUP], const real value[COLUMN_GROUP], sums *add) {
    real product[COLUMN_GROUP], gain = gain_of(v, gate, unit);
    round_operands(be, d, COLUMN_GROUP);
    memcpy(v->dpre + row_of(v, gate, unit) * v->columns + n0, d, COLUMN_GROUP * sizeof *d);
    for (int n = 0; n < COLUMN_GROUP; n++) product[n] = d[n] * value[n];
    add->bias += add_up(d, COLUMN_GROUP);
    add->gain += add_up(product, COLUMN_GROUP);
    if (!v->g->layer_norm) return;
    real *totals = add->features + gate * 2 * v->columns + n0, scaled[COLUMN_GROUP];
    for (int n = 0; n < COLUMN_GROUP; n++) scaled[n] = gain * d[n];
    add_to(totals, scaled);
    for (int n = 0; n < COLUMN_GROUP; n++) scaled[n] = gain * product[n];
    add_to(totals + v->columns, scaled);
}

/* The gradients of a unit's bias and gain; the last step starts them, the ones before it add. */
static void keep_unit(const view *v, size_t gate, size_t unit, const sums *add, bool start) {
    size_t at = gate * v->hidden + unit;
    real *dbias = v->g->dbias, *dgain = v->g->dgain;
    if (dbias) dbias[at] = (start ? 0 : dbias[at]) + add->bias;
    if (dgain) dgain[at] = (start ? 0 : dgain[at]) + add->gain;
}

static void keep_features(const view *v, const real *partials) {
    if (!v->g->layer_norm) return;
    size_t count = v->gates * 2 * v->columns;
    for (size_t i = 0; i < count; i++) {
        double total = 0;
        for (size_t chunk = 0; chunk < CHUNKS; chunk++) total += partials[chunk * count + i];
        v->dsums[i] = (real)total;
    }
}

void CPU(norm_backward)(backend *be, const cell *c, int s, int t) {
    view v = view_step(be, c, s, t);
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        for (size_t i = p.first * v.gates; i < p.last * v.gates; i++) {
            size_t unit = i / v.gates, gate = i % v.gates;
            real gain = gain_of(&v, gate, unit), share = 1 / (real)v.hidden;
            for (size_t n0 = 0; n0 < v.columns; n0 += COLUMN_GROUP) {
                const real *scale = v.st[n0 / COLUMN_GROUP].scale[gate];
                const real *total = v.dsums + gate * 2 * v.columns + n0;
                const real *product = total + v.columns;
                size_t at = row_of(&v, gate, unit) * v.columns + n0;
                real *draw = v.raw + at, *d = v.dpre + at, value[COLUMN_GROUP];
                normalise(&v, gate, unit, n0, value);
                for (int n = 0; n < COLUMN_GROUP; n++) {
                    draw[n] = (gain * d[n] - (total[n] + value[n] * product[n]) * share) * scale[n];
                }
                round_operands(be, draw, COLUMN_GROUP);
            }
        }
    }
}

/* --------------------------------------------------------------------------- internal stages */

void CPU(activate)(backend *be, const cell *c, int s, int t) {
    view v = view_step(be, c, s, t);
    const stage *g = v.g;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        for (size_t unit = p.first; unit < p.last; unit++) {
            const real *table = table_row(&v, 0, unit);
            real gain = gain_of(&v, 0, unit), bias = bias_of(&v, 0, unit);
            for (size_t n0 = 0; n0 < v.columns; n0 += COLUMN_GROUP) {
                const uint8_t *bytes = v.bytes + n0;
                real y[COLUMN_GROUP];
                normalise(&v, 0, unit, n0, y);
                for (int n = 0; n < COLUMN_GROUP; n++) y[n] = gain * y[n] + bias;
                if (table && g->table_use == TABLE_ADD) {
                    for (int n = 0; n < COLUMN_GROUP; n++) y[n] += table[bytes[n]];
                } else if (table) {
                    for (int n = 0; n < COLUMN_GROUP; n++) y[n] *= table[bytes[n]];
                }
                if (g->relu) {
                    for (int n = 0; n < COLUMN_GROUP; n++) y[n] = y[n] < 0 ? 0 : y[n];
                }
                round_operands(be, y, COLUMN_GROUP);
                memcpy(v.out + unit * v.columns + n0, y, sizeof y);
            }
        }
    }
}

void CPU(activate_backward)(backend *be, const cell *c, int s, int t) {
    view v = view_step(be, c, s, t);
    const stage *g = v.g;
    const real *dx = c->dx;
    real *partials = feature_partials(be, &v);
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        for (size_t unit = p.first; unit < p.last; unit++) {
            const real *table = table_row(&v, 0, unit);
            real gain = gain_of(&v, 0, unit), bias = bias_of(&v, 0, unit);
            sums add = {0, 0, partials + (size_t)chunk * 2 * v.columns};
            for (size_t n0 = 0; n0 < v.columns; n0 += COLUMN_GROUP) {
                size_t at = unit * v.columns + n0;
                real value[COLUMN_GROUP], d[COLUMN_GROUP];
                normalise(&v, 0, unit, n0, value);
                memcpy(d, dx + at, sizeof d);
                if (g->relu) {
                    const real *y = v.out + at;
                    for (int n = 0; n < COLUMN_GROUP; n++) d[n] = y[n] > 0 ? d[n] : 0;
                }
                if (g->table_use == TABLE_MULTIPLY) {
                    real *entry = v.dentry + row_of(&v, 0, unit) * v.columns + n0;
                    for (int n = 0; n < COLUMN_GROUP; n++) {
                        entry[n] = table ? d[n] * (gain * value[n] + bias) : 0;
                        if (table) d[n] *= table[v.bytes[n0 + (size_t)n]];
                    }
                    round_operands(be, entry, COLUMN_GROUP);
                }
                keep_dpre(be, &v, 0, unit, n0, d, value, &add);
            }
            keep_unit(&v, 0, unit, &add, t == c->steps - 1);
        }
    }
    keep_features(&v, partials);
}

/* ------------------------------------------------------------------------------------- gates */

/* What dropout multiplies the update by: 0 with probability `dropout`, else 1 / (1 - dropout). */
static void dropout_scale(const cell *c, size_t unit, size_t n0, int t, real scale[COLUMN_GROUP]) {
    real kept = (real)(1 / (1 - c->dropout));
    uint32_t threshold = (uint32_t)(c->dropout * 0x1p32);
    for (size_t n = 0; n < COLUMN_GROUP; n += 4) {
        philox_block block =
            philox(c->seed, (uint32_t)unit, (uint32_t)((n0 + n) / 4),
                   (uint32_t)c->arguments->update, PHILOX_PURPOSE(PHILOX_DROPOUT, c->first + t));
        for (size_t i = 0; i < 4; i++) scale[n + i] = block.word[i] < threshold ? 0 : kept;
    }
}

/* The gates of one unit and a group of columns, through their nonlinearities. */
typedef struct gate_values {
    real value[GATES][COLUMN_GROUP]; /* normalised, before gain */
    real i[COLUMN_GROUP], f[COLUMN_GROUP], o[COLUMN_GROUP], u[COLUMN_GROUP];
    real dropout[COLUMN_GROUP];
} gate_values;

static inline void compute_gates(const cell *c, const view *v, size_t unit, size_t n0, int t,
                                 gate_values *q) {
    real z[GATES][COLUMN_GROUP];
    for (size_t gate = 0; gate < GATES; gate++) {
        const real *table = table_row(v, gate, unit);
        real gain = gain_of(v, gate, unit), bias = bias_of(v, gate, unit);
        normalise(v, gate, unit, n0, q->value[gate]);
        for (int n = 0; n < COLUMN_GROUP; n++) z[gate][n] = gain * q->value[gate][n] + bias;
        if (!table) continue;
        for (int n = 0; n < COLUMN_GROUP; n++) z[gate][n] += table[v->bytes[n0 + (size_t)n]];
    }
    if (c->dropout > 0) {
        dropout_scale(c, unit, n0, t, q->dropout);
        for (int n = 0; n < COLUMN_GROUP; n++) z[GATE_U][n] *= q->dropout[n];
    }
    for (int n = 0; n < COLUMN_GROUP; n++) {
        q->i[n] = sigmoid_(z[GATE_I][n]);
        q->f[n] = sigmoid_(z[GATE_F][n]);
        q->o[n] = sigmoid_(z[GATE_O][n]);
        q->u[n] = tanh_(z[GATE_U][n]);
    }
}

void CPU(gates)(backend *be, const cell *c, int t) {
    view v = view_step(be, c, c->stages - 1, t);
    size_t plane = v.hidden * v.columns;
    const real *before = (const real *)c->c + (size_t)t * plane;
    real *after = (real *)c->c + ((size_t)t + 1) * plane;
    real *h = (real *)c->h + ((size_t)t + 1) * plane;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        for (size_t unit = p.first; unit < p.last; unit++) {
            for (size_t n0 = 0; n0 < v.columns; n0 += COLUMN_GROUP) {
                size_t at = unit * v.columns + n0;
                gate_values q;
                real state[COLUMN_GROUP], out[COLUMN_GROUP];
                memcpy(state, before + at, sizeof state);
                compute_gates(c, &v, unit, n0, t, &q);
                for (int n = 0; n < COLUMN_GROUP; n++) {
                    state[n] = q.f[n] * state[n] + q.i[n] * q.u[n];
                    out[n] = q.o[n] * tanh_(state[n]);
                }
                round_operands(be, out, COLUMN_GROUP);
                memcpy(after + at, state, sizeof state);
                memcpy(h + at, out, sizeof out);
            }
        }
    }
}

void CPU(gates_backward)(backend *be, const cell *c, int t) {
    view v = view_step(be, c, c->stages - 1, t);
    size_t plane = v.hidden * v.columns;
    const real *before = (const real *)c->c + (size_t)t * plane, *after = before + plane;
    const real *dh = (const real *)c->dh + (size_t)t * plane, *dx = c->dx;
    real *partials = feature_partials(be, &v);
    real *dc = c->dc;
    bool last = t == c->steps - 1, asked = !last || c->more_after;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        for (size_t unit = p.first; unit < p.last; unit++) {
            sums add[GATES];
            for (int gate = 0; gate < GATES; gate++) {
                add[gate] = (sums){0, 0, partials + (size_t)chunk * GATES * 2 * v.columns};
            }
            for (size_t n0 = 0; n0 < v.columns; n0 += COLUMN_GROUP) {
                size_t at = unit * v.columns + n0;
                gate_values q;
                real d[GATES][COLUMN_GROUP], gradient[COLUMN_GROUP], later[COLUMN_GROUP] = {0};
                real old[COLUMN_GROUP], new[COLUMN_GROUP], state[COLUMN_GROUP];
                memcpy(gradient, dh + at, sizeof gradient);
                memcpy(old, before + at, sizeof old);
                memcpy(new, after + at, sizeof new);
                memcpy(state, dc + at, sizeof state);
                if (asked) memcpy(later, dx + at, sizeof later);
                compute_gates(c, &v, unit, n0, t, &q);
                for (int n = 0; n < COLUMN_GROUP; n++) {
                    real squashed = tanh_(new[n]);
                    gradient[n] += later[n];
                    state[n] += gradient[n] * q.o[n] * (1 - squashed * squashed);
                    d[GATE_I][n] = state[n] * q.u[n] * q.i[n] * (1 - q.i[n]);
                    d[GATE_F][n] = state[n] * old[n] * q.f[n] * (1 - q.f[n]);
                    d[GATE_O][n] = gradient[n] * squashed * q.o[n] * (1 - q.o[n]);
                    d[GATE_U][n] = state[n] * q.i[n] * (1 - q.u[n] * q.u[n]);
                    state[n] *= q.f[n];
                }
                memcpy(dc + at, state, sizeof state);
                if (c->dropout > 0) {
                    for (int n = 0; n < COLUMN_GROUP; n++) d[GATE_U][n] *= q.dropout[n];
                }
                for (size_t gate = 0; gate < GATES; gate++) {
                    keep_dpre(be, &v, gate, unit, n0, d[gate], q.value[gate], &add[gate]);
                }
            }
            for (size_t gate = 0; gate < GATES; gate++) {
                keep_unit(&v, gate, unit, &add[gate], last);
            }
        }
    }
    keep_features(&v, partials);
    if (c->stage[c->stages - 1].layer_norm) CPU(norm_backward)(be, c, c->stages - 1, t);
}

/* ------------------------------------------------------------------------------------- table */

enum { TABLE_ROWS = 4 }; /* added to side by side: a repeated byte waits for its last sum */

static inline void add_by_byte(const cell *c, size_t step, const real *const *in, real *const *out,
                               int rows) {
    size_t columns = (size_t)c->columns;
    for (size_t t = 0; t < (size_t)c->steps; t++) {
        const uint8_t *bytes = c->bytes + t * columns;
        for (size_t n = 0; n < columns; n++) {
            for (int r = 0; r < rows; r++) out[r][bytes[n]] += in[r][t * step + n];
        }
    }
}

void CPU(table_backward)(backend *be, const cell *c, int s) {
    const stage *g = &c->stage[s];
    size_t columns = (size_t)c->columns, hidden = (size_t)c->hidden;
    size_t stride = (size_t)g->table_stride, entries = hidden / stride;
    size_t step = (size_t)g->gates * hidden * columns, rows = (size_t)g->gates * entries;
    view v = {.block = (size_t)g->block, .gates = (size_t)g->gates};
    const real *gradient = g->table_use == TABLE_MULTIPLY ? g->dentry : g->dpre;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t first = 0; first < rows; first += TABLE_ROWS) {
        size_t count = rows - first < TABLE_ROWS ? rows - first : TABLE_ROWS;
        const real *in[TABLE_ROWS];
        real *out[TABLE_ROWS], *table = (real *)g->dtable + first * VOCABULARY;
        for (size_t r = 0; r < count; r++) {
            size_t row = first + r;
            out[r] = table + r * VOCABULARY;
            in[r] = gradient + row_of(&v, row / entries, row % entries * stride) * columns;
        }
        memset(table, 0, count * VOCABULARY * sizeof *table);
        if (count == TABLE_ROWS) {
            add_by_byte(c, step, in, out, TABLE_ROWS);
        } else {
            add_by_byte(c, step, in, out, (int)count);
        }
        round_operands(be, table, count * VOCABULARY);
    }
}
