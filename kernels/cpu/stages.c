/* What a cell does between products: layer norm, the input table, activations and gates, forward
 * and backward. The equations stand in ops.h.
 *
 * Layer norm, for one gate and column, over the features u = 1 ... H:
 *   v_u = (raw_u - mean) / deviation,  y_u = gain_u v_u + bias_u
 *   draw_u = (gain_u dy_u - mean_u(gain dy) - v_u mean_u(gain dy v)) / deviation
 * so backward first needs two sums over the features, which `dsums` holds.
 *
 * Every operation is one loop over units, in CHUNKS parallel parts, and within a unit over groups
 * of columns. Floor: each of raw, dpre, c, h and dx once through memory; for gates, also five
 * exponentials and divisions an element in each direction. */
#include "cpu.h"

#include "core/memory.h"
#include "core/philox.h"

#include <assert.h>
#include <stdlib.h>

#define EPSILON ((real)1e-6)

enum {
    CHUNKS = 64,
    SUM_ROWS = 16, /* rows that are summed in real before they are added to a double */
    RUN =
        4 /* units that are computed one after the other, of which those of gates are a multiple */
};

/* The mean and 1 / deviation of a group of columns, for each gate of a stage at one step. */
typedef struct statistics {
    real mean[GATES][COLUMN_GROUP], scale[GATES][COLUMN_GROUP];
} statistics;

/* Pointers to one step of a stage. Each thread has its own copy, so that the compiler knows that no
 * store changes it. */
typedef struct view {
    const stage *g;
    size_t units, columns, block, gates;
    size_t absent; /* gates before the first one, so that gate k of i f o u has rows k - absent */
    real *raw, *sums, *out, *dpre, *dentry, *dsums;
    const uint8_t *bytes;
    statistics *st; /* [columns / COLUMN_GROUP] */
} view;

/* The units of one of the CHUNKS parts, in whole runs but for the last: first <= unit < last. */
typedef struct part {
    size_t first, last;
} part;

static inline part part_of(const view *v, int chunk) {
    const size_t runs = (v->units + RUN - 1) / RUN, i = (size_t)chunk;
    const size_t last = runs * (i + 1) / CHUNKS * RUN;
    return (part){runs * i / CHUNKS * RUN, last < v->units ? last : v->units};
}

/* The row of `raw` that holds a unit's gate. */
static inline size_t row_of(const view *v, size_t gate, size_t unit) {
    return (unit / v->block * v->gates + gate) * v->block + unit % v->block;
}

/* Forward: per gate and column, the sums of raw and of its square. */
static void sum_columns(backend *be, const view *v) {
    const size_t columns = v->columns, groups = columns / COLUMN_GROUP;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t task = 0; task < v->gates * groups; task++) {
        const size_t g = task / groups, n0 = task % groups * COLUMN_GROUP;
        double total[2][COLUMN_GROUP] = {0};
        for (size_t unit = 0, run; unit < v->units; unit += run) {
            const size_t in_node = v->block - unit % v->block;
            real *row = v->raw + row_of(v, g, unit) * columns + n0;
            octet part[2][COLUMN_GROUP / TILE] = {0};
            run = in_node < SUM_ROWS ? in_node : SUM_ROWS;
            for (size_t r = 0; r < run; r++, row += columns) {
                const octet_at *in = octets(row);
                for (int i = 0; i < COLUMN_GROUP / TILE; i++) {
                    part[0][i] += in[i];
                    part[1][i] += in[i] * in[i];
                }
            }
            real sum[2][COLUMN_GROUP];
            memcpy(sum, part, sizeof sum);
            for (int n = 0; n < COLUMN_GROUP; n++) {
                total[0][n] += sum[0][n];
                total[1][n] += sum[1][n];
            }
        }
        for (size_t n = 0; n < COLUMN_GROUP; n++) {
            v->sums[(g * 2 + 0) * columns + n0 + n] = (real)total[0][n];
            v->sums[(g * 2 + 1) * columns + n0 + n] = (real)total[1][n];
        }
    }
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
            real mean = sum[n] / (real)v->units;
            real variance = square[n] / (real)v->units - mean * mean;
            if (variance < 0) variance = 0; /* by rounding; NaN stays NaN */
            cpu->statistics[group].mean[g][n] = mean;
            cpu->statistics[group].scale[g][n] = 1 / sqrt_(variance + EPSILON);
        }
    }
}

/* Where a step's part of an array starts; arrays a stage does not have are NULL. */
static inline real *offset(void *array, size_t count) {
    return array ? (real *)array + count : NULL;
}

/* `forward`: the sums are made first, of raw. */
static view view_step(backend *be, const cell *c, int s, int t, bool forward) {
    const stage *g = &c->stage[s];
    size_t columns = (size_t)c->columns, gates = (size_t)g->gates;
    size_t plane = (size_t)g->units * columns, kept = c->keep ? (size_t)t : 0;
    view v = {.g = g,
              .units = (size_t)g->units,
              .columns = columns,
              .block = (size_t)g->block,
              .gates = gates,
              .absent = makes_gates(g) ? (size_t)first_gate(g) : 0,
              .raw = offset(g->raw, kept * gates * plane),
              .sums = offset(g->sums, (size_t)t * 2 * gates * columns),
              .out = offset(g->out, kept * plane),
              .dpre = offset(g->dpre, keeps_dpre(g) ? kept * gates * plane : 0),
              .dentry = offset(g->dentry, kept * gates * plane),
              .dsums = offset(g->dsums, (size_t)t * 2 * gates * columns),
              .bytes = c->bytes ? c->bytes + (size_t)t * columns : NULL};
    if (g->layer_norm && forward) sum_columns(be, &v);
    if (g->layer_norm) load_statistics(be, &v);
    return v;
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
    return v->g->gain ? ((const real *)v->g->gain)[gate * v->units + unit] : 1;
}

static inline real bias_of(const view *v, size_t gate, size_t unit) {
    return v->g->bias ? ((const real *)v->g->bias)[gate * v->units + unit] : 0;
}

/* The table's entries for a unit's gate, [VOCABULARY], or NULL for units that it skips. */
static inline const real *table_row(const view *v, size_t gate, size_t unit) {
    size_t stride = (size_t)v->g->table_stride;
    if (v->g->table_use == TABLE_NONE || unit % stride) return NULL;
    return (const real *)v->g->table + (gate * (v->units / stride) + unit / stride) * VOCABULARY;
}

/* ---------------------------------------------------------------------------------- backward */

static real *feature_partials(backend *be, const view *v) {
    cpu_backend *cpu = cpu_of(be);
    size_t count = CHUNKS * v->gates * 2 * v->columns;
    cpu->partial = mem_grow(cpu->partial, &cpu->partial_count, count, sizeof *cpu->partial);
    memset(cpu->partial, 0, count * sizeof(real));
    return (real *)cpu->partial;
}

/* A unit's contributions to the gradients of its gate's bias and gain: dpre, and dpre times the
 * normalised raw, with columns TILE apart added up. */
typedef struct shares {
    octet bias, gain;
} shares;

/* Stores the gradient `d` at norm's result as an operand, and adds its contributions to `add` and
 * to the chunk's sums over its units, [gates][2][columns]. */
static inline void keep_dpre(backend *be, const view *v, size_t gate, size_t unit, size_t n0,
                             real d[COLUMN_GROUP], real value[COLUMN_GROUP], shares *add,
                             real *features) {
    real gain = gain_of(v, gate, unit), *sums = features + gate * 2 * v->columns + n0;
    octet_at *total = octets(sums), *product = octets(sums + v->columns);
    round_operands(be, d, COLUMN_GROUP);
    memcpy(v->dpre + row_of(v, gate, unit) * v->columns + n0, d, COLUMN_GROUP * sizeof *d);
    for (int n = 0; n < COLUMN_GROUP / TILE; n++) {
        octet here = octets(d)[n], scaled = here * octets(value)[n];
        add->bias += here;
        add->gain += scaled;
        if (!v->g->layer_norm) continue;
        total[n] += gain * here;
        product[n] += gain * scaled;
    }
}

/* Updates the gradients of a unit's bias and gain: the last step sets them, earlier steps add. */
static inline void keep_unit(const view *v, size_t gate, size_t unit, real bias, real gain,
                             bool start) {
    size_t at = gate * v->units + unit;
    real *dbias = v->g->dbias, *dgain = v->g->dgain;
    if (dbias) dbias[at] = (start ? 0 : dbias[at]) + bias;
    if (dgain) dgain[at] = (start ? 0 : dgain[at]) + gain;
}

static void keep_features(const view *v, const real *partials) {
    if (!v->g->layer_norm) return;
    size_t count = v->gates * 2 * v->columns;
    for (size_t i = 0; i < count; i += COLUMN_GROUP) {
        double total[COLUMN_GROUP] = {0};
        for (size_t chunk = 0; chunk < CHUNKS; chunk++) {
            const real *partial = partials + chunk * count + i;
            for (int n = 0; n < COLUMN_GROUP; n++) total[n] += partial[n];
        }
        for (int n = 0; n < COLUMN_GROUP; n++) v->dsums[i + (size_t)n] = (real)total[n];
    }
}

static inline void norm_backward_row(backend *be, const view *v, size_t gate, size_t unit) {
    real gain = gain_of(v, gate, unit), share = 1 / (real)v->units;
    for (size_t n0 = 0; n0 < v->columns; n0 += COLUMN_GROUP) {
        size_t at = row_of(v, gate, unit) * v->columns + n0, sum = gate * 2 * v->columns + n0;
        statistics *st = &v->st[n0 / COLUMN_GROUP];
        const octet_at *mean = octets(st->mean[gate]), *scale = octets(st->scale[gate]);
        const octet_at *d = octets(v->dpre + at), *total = octets(v->dsums + sum);
        const octet_at *product = octets(v->dsums + v->columns + sum);
        octet_at *raw = octets(v->raw + at);
        for (int n = 0; n < COLUMN_GROUP / TILE; n++) {
            octet value = (raw[n] - mean[n]) * scale[n];
            raw[n] = (gain * d[n] - (total[n] + value * product[n]) * share) * scale[n];
        }
        round_operands(be, v->raw + at, COLUMN_GROUP);
    }
}

/* The gradient at W x, in place of raw, from dpre and dsums. */
static void norm_backward(backend *be, view v) {
    if (!v.g->layer_norm) return;
#pragma omp parallel for num_threads(cpu_of(be)->threads) firstprivate(v)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        for (size_t gate = 0; gate < v.gates; gate++) { /* whose rows lie together */
            for (size_t unit = p.first; unit < p.last; unit++) {
                norm_backward_row(be, &v, gate, unit);
            }
        }
    }
}

/* --------------------------------------------------------------------------- internal stages */

/* Forward, of a table that multiplies before norm: raw <- raw table[byte], dentry <- raw. Backward:
 * from the gradient d at that product, dentry <- d dentry, raw <- d table[byte]. */
static void multiply_first(backend *be, const cell *c, int s, int t, bool backward) {
    const stage *g = &c->stage[s];
    const size_t columns = (size_t)c->columns, plane = (size_t)g->units * columns;
    const size_t kept = c->keep ? (size_t)t * plane : 0, stride = (size_t)g->table_stride;
    real *raw = (real *)g->raw + kept, *entry = c->keep ? offset(g->dentry, kept) : NULL;
    const uint8_t *bytes = c->bytes + (size_t)t * columns;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t unit = 0; unit < (size_t)g->units; unit++) {
        const real *table =
            unit % stride ? NULL : (const real *)g->table + unit / stride * VOCABULARY;
        real *row = raw + unit * columns, *kept_row = entry ? entry + unit * columns : NULL;
        for (size_t n = 0; n < columns; n++) {
            const real d = row[n];
            if (kept_row) kept_row[n] = backward ? (table ? d * kept_row[n] : 0) : d;
            if (table) row[n] = d * table[bytes[n]];
        }
        round_operands(be, row, columns);
        if (backward) round_operands(be, kept_row, columns);
    }
}

void CPU(activate)(backend *be, const cell *c, int s, int t) {
    FLUSH_DENORMALS(be);
    if (c->stage[s].norm_last) multiply_first(be, c, s, t, false);
    view v = view_step(be, c, s, t, true);
    const stage *g = v.g;
    const table_use use = use_after_norm(g);
#pragma omp parallel for num_threads(cpu_of(be)->threads) firstprivate(v)
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
                if (table && use == TABLE_ADD) {
                    for (int n = 0; n < COLUMN_GROUP; n++) y[n] += table[bytes[n]];
                } else if (table && use == TABLE_MULTIPLY) {
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
    FLUSH_DENORMALS(be);
    view v = view_step(be, c, s, t, false);
    const stage *g = v.g;
    const real *dx = c->dx;
    real *partials = feature_partials(be, &v);
#pragma omp parallel for num_threads(cpu_of(be)->threads) firstprivate(v)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        for (size_t unit = p.first; unit < p.last; unit++) {
            const real *table = table_row(&v, 0, unit);
            real gain = gain_of(&v, 0, unit), bias = bias_of(&v, 0, unit);
            shares add = {0};
            for (size_t n0 = 0; n0 < v.columns; n0 += COLUMN_GROUP) {
                size_t at = unit * v.columns + n0;
                real value[COLUMN_GROUP], d[COLUMN_GROUP];
                normalise(&v, 0, unit, n0, value);
                memcpy(d, dx + at, sizeof d);
                if (g->relu) {
                    const real *y = v.out + at;
                    for (int n = 0; n < COLUMN_GROUP; n++) d[n] = y[n] > 0 ? d[n] : 0;
                }
                if (use_after_norm(g) == TABLE_MULTIPLY) {
                    real *entry = v.dentry + row_of(&v, 0, unit) * v.columns + n0;
                    for (int n = 0; n < COLUMN_GROUP; n++) {
                        entry[n] = table ? d[n] * (gain * value[n] + bias) : 0;
                        if (table) d[n] *= table[v.bytes[n0 + (size_t)n]];
                    }
                    round_operands(be, entry, COLUMN_GROUP);
                }
                keep_dpre(be, &v, 0, unit, n0, d, value, &add,
                          partials + (size_t)chunk * 2 * v.columns);
            }
            keep_unit(&v, 0, unit, add_up((const real *)&add.bias, TILE),
                      add_up((const real *)&add.gain, TILE), t == c->steps - 1);
        }
    }
    keep_features(&v, partials);
    norm_backward(be, v);
    if (g->norm_last) multiply_first(be, c, s, t, true);
}

/* ------------------------------------------------------------------------------------- gates
 * All four gates of a unit are needed at once, and its neighbours' right after, so a copy of the
 * table has the entries of RUN units for one byte side by side: a cache line serves them all. */

enum { AHEAD = 8 /* how many units ahead activations are prefetched from memory */ };

/* Where the gates' entries for `byte` begin that belong to entry `first`, a multiple of RUN, and to
 * the RUN - 1 behind it, or fewer at the end. */
static inline size_t entries_at(size_t first, size_t count, size_t byte) {
    size_t here = count - first < RUN ? count - first : RUN;
    return (first * VOCABULARY + byte * here) * GATES;
}

/* The gates' entries of a unit for one byte. */
static inline real *entry_of(real *entries, size_t unit, size_t stride, size_t count, size_t byte) {
    size_t i = unit / stride, first = i / RUN * RUN;
    return entries + entries_at(first, count, byte) + (i - first) * GATES;
}

static inline size_t gate_entries(const cell *c) {
    return (size_t)(c->hidden / c->stage[c->stages - 1].table_stride);
}

/* table [gates][entries][VOCABULARY] -> entries [entries / RUN][VOCABULARY][RUN][gates] */
void CPU(prepare_entries)(backend *be, const cell *c) {
    const stage *g = &c->stage[c->stages - 1];
    if (g->table_use == TABLE_NONE) return;
    FLUSH_DENORMALS(be);
    const size_t count = gate_entries(c), absent = (size_t)first_gate(g);
    const real *table = g->table;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t i = 0; i < count; i++) {
        for (size_t byte = 0; byte < VOCABULARY; byte++) {
            real *entry = entry_of(c->entries, i, 1, count, byte);
            entry[GATE_I] = 0;
            for (size_t gate = absent; gate < GATES; gate++) {
                entry[gate] = table[((gate - absent) * count + i) * VOCABULARY + byte];
            }
        }
    }
}

void CPU(cell_forward)(backend *be, const cell *c) {
    FLUSH_DENORMALS(be);
    cell_forward_steps(be, c, be->cell);
}

void CPU(cell_backward)(backend *be, const cell *c) {
    FLUSH_DENORMALS(be);
    cell_backward_steps(be, c, be->cell);
}

/* The table's entries of the units `first` to `first` + RUN - 1 for a group of columns; zeros for
 * units that the table skips. */
static inline void fetch_entries(const cell *c, const view *v, size_t first, size_t n0,
                                 real out[RUN][GATES][COLUMN_GROUP]) {
    size_t stride = (size_t)v->g->table_stride, count = gate_entries(c);
    const uint8_t *bytes = v->bytes + n0;
    if (v->g->table_use == TABLE_NONE || stride > 1) {
        memset(out, 0, sizeof(real) * RUN * GATES * COLUMN_GROUP);
    }
    if (v->g->table_use == TABLE_NONE) return;
    if (stride > 1) {
        for (size_t unit = (first + stride - 1) / stride * stride; unit < first + RUN;
             unit += stride) {
            for (size_t n = 0; n < COLUMN_GROUP; n++) {
                const real *entry = entry_of(c->entries, unit, stride, count, bytes[n]);
                for (size_t gate = 0; gate < GATES; gate++)
                    out[unit - first][gate][n] = entry[gate];
            }
        }
        return;
    }
    for (size_t n = 0; n < COLUMN_GROUP; n += TILE) {
        for (size_t k = 0; k < RUN; k += TILE / GATES) { /* two units x four gates, a tile's rows */
            octet x[TILE];
            for (size_t i = 0; i < TILE; i++) {
                memcpy(&x[i], entry_of(c->entries, first + k, 1, count, bytes[n + i]), sizeof x[i]);
            }
            tile_transpose(x);
            tile_store(x, out[k][0] + n, COLUMN_GROUP);
        }
    }
}

/* What dropout multiplies the updates of a unit and a group of columns by. */
static void dropout_scale(const cell *c, size_t unit, size_t n0, int t, real scale[COLUMN_GROUP]) {
    const dropout *d = &c->dropout;
    for (size_t n = 0; n < COLUMN_GROUP; n += 4) {
        philox_block block = philox(
            d->seed, (uint32_t)unit, (uint32_t)((d->first_stream + n0 + n) / 4),
            (uint32_t)c->arguments->update, PHILOX_PURPOSE(PHILOX_DROPOUT, c->first_step + t));
        for (size_t i = 0; i < 4; i++)
            scale[n + i] = block.word[i] < d->threshold ? 0 : (real)d->scale;
    }
}

static inline real sigmoid_(real x) {
    return 1 / (1 + exp_(-x));
}

/* (e - 1) / (e + 1) of e = e^2x, whose e - 1 does not cancel near 0. */
static inline real tanh_(real x) {
#ifdef SMALLWORLD_REFERENCE
    return tanh(x);
#else
    float scale, part = exp_parts(2 * x, &scale);
    float less = part * scale + (scale - 1);
    return less / (less + 2);
#endif
}

/* The gates of one unit and a group of columns, through their nonlinearities. */
typedef struct gate_values {
    real value[GATES][COLUMN_GROUP]; /* normalised, before gain */
    real i[COLUMN_GROUP], f[COLUMN_GROUP], o[COLUMN_GROUP], u[COLUMN_GROUP];
    real dropout[COLUMN_GROUP];
} gate_values;

static inline void compute_gates(const cell *c, const view *v, size_t unit, size_t n0, int t,
                                 const real entry[GATES][COLUMN_GROUP], gate_values *q) {
    real z[GATES][COLUMN_GROUP] = {{0}};
    for (size_t gate = v->absent; gate < GATES; gate++) {
        const size_t row = gate - v->absent;
        real gain = gain_of(v, row, unit), bias = bias_of(v, row, unit);
        normalise(v, row, unit, n0, q->value[gate]);
        for (int n = 0; n < COLUMN_GROUP; n++) {
            z[gate][n] = gain * q->value[gate][n] + bias + entry[gate][n];
        }
    }
    if (c->dropout.threshold > 0) {
        dropout_scale(c, unit, n0, t, q->dropout);
        for (int n = 0; n < COLUMN_GROUP; n++) z[GATE_U][n] *= q->dropout[n];
    }
    for (int n = 0; n < COLUMN_GROUP; n++) {
        q->f[n] = sigmoid_(z[GATE_F][n]);
        q->o[n] = sigmoid_(z[GATE_O][n]);
        q->u[n] = tanh_(z[GATE_U][n]);
    }
    if (v->absent) {
        for (int n = 0; n < COLUMN_GROUP; n++) q->i[n] = 1 - q->f[n];
    } else {
        for (int n = 0; n < COLUMN_GROUP; n++) q->i[n] = sigmoid_(z[GATE_I][n]);
    }
}

/* A step's arrays [hidden][columns]. */
typedef struct forward_step {
    const real *before;
    real *after, *h;
} forward_step;

static inline void forward_unit(backend *be, const cell *c, const view *v, const forward_step *f,
                                size_t unit, size_t n0, int t,
                                const real entry[GATES][COLUMN_GROUP]) {
    size_t at = unit * v->columns + n0;
    gate_values q;
    real state[COLUMN_GROUP], out[COLUMN_GROUP];
    memcpy(state, f->before + at, sizeof state);
    compute_gates(c, v, unit, n0, t, entry, &q);
    for (int n = 0; n < COLUMN_GROUP; n++) {
        state[n] = q.f[n] * state[n] + q.i[n] * q.u[n];
        out[n] = q.o[n] * tanh_(state[n]);
    }
    round_operands(be, out, COLUMN_GROUP);
    memcpy(f->after + at, state, sizeof state);
    memcpy(f->h + at, out, sizeof out);
}

void CPU(gates)(backend *be, const cell *c, int t) {
    FLUSH_DENORMALS(be);
    view v = view_step(be, c, c->stages - 1, t, true);
    assert(v.units % RUN == 0);
    size_t plane = v.units * v.columns;
    real *before = (real *)c->c + (size_t)t * plane;
    forward_step f = {before, before + plane, (real *)c->h + ((size_t)t + 1) * plane};
#pragma omp parallel for num_threads(cpu_of(be)->threads) firstprivate(v, f)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        for (size_t first = p.first; first < p.last; first += RUN) {
            const size_t past = first + RUN;
            for (size_t n0 = 0; n0 < v.columns; n0 += COLUMN_GROUP) {
                real entry[RUN][GATES][COLUMN_GROUP];
                fetch_entries(c, &v, first, n0, entry);
                for (size_t unit = first; unit < past; unit++) {
                    forward_unit(be, c, &v, &f, unit, n0, t, entry[unit - first]);
                }
            }
        }
    }
}

typedef struct backward_step {
    const real *before, *after, *dh;
    const real *dx; /* NULL: no gradient from later steps */
    real *dc;
    bool start;
} backward_step;

static inline void backward_unit(backend *be, const cell *c, const view *v, const backward_step *b,
                                 size_t unit, size_t n0, int t,
                                 const real entry[GATES][COLUMN_GROUP], shares add[GATES],
                                 real *features) {
    size_t at = unit * v->columns + n0;
    gate_values q;
    real d[GATES][COLUMN_GROUP], gradient[COLUMN_GROUP], later[COLUMN_GROUP] = {0};
    real old[COLUMN_GROUP], new[COLUMN_GROUP], state[COLUMN_GROUP];
    /* This is not a function: GCC 12 drops calls of a function that only prefetches. */
    size_t ahead = unit + AHEAD < v->units ? unit + AHEAD : unit;
    for (size_t gate = 0; gate < v->gates; gate++) {
        size_t row = row_of(v, gate, ahead) * v->columns + n0;
        __builtin_prefetch(v->raw + row);
        __builtin_prefetch(v->dpre + row, 1);
    }
    __builtin_prefetch(b->dh + ahead * v->columns + n0);
    __builtin_prefetch(b->before + ahead * v->columns + n0);
    memcpy(gradient, b->dh + at, sizeof gradient);
    memcpy(old, b->before + at, sizeof old);
    memcpy(new, b->after + at, sizeof new);
    memcpy(state, b->dc + at, sizeof state);
    if (b->dx) memcpy(later, b->dx + at, sizeof later);
    compute_gates(c, v, unit, n0, t, entry, &q);
    for (int n = 0; n < COLUMN_GROUP; n++) {
        real squashed = tanh_(new[n]);
        gradient[n] += later[n];
        state[n] += gradient[n] * q.o[n] * (1 - squashed * squashed);
        d[GATE_I][n] = v->absent ? 0 : state[n] * q.u[n] * q.i[n] * (1 - q.i[n]);
        d[GATE_F][n] = state[n] * (old[n] - (v->absent ? q.u[n] : 0)) * q.f[n] * (1 - q.f[n]);
        d[GATE_O][n] = gradient[n] * squashed * q.o[n] * (1 - q.o[n]);
        d[GATE_U][n] = state[n] * q.i[n] * (1 - q.u[n] * q.u[n]);
        state[n] *= q.f[n];
    }
    memcpy(b->dc + at, state, sizeof state);
    if (c->dropout.threshold > 0) {
        for (int n = 0; n < COLUMN_GROUP; n++) d[GATE_U][n] *= q.dropout[n];
    }
    for (size_t gate = v->absent; gate < GATES; gate++) {
        keep_dpre(be, v, gate - v->absent, unit, n0, d[gate], q.value[gate], &add[gate], features);
    }
}

/* The gradients of the biases and gains of a unit's gates. */
static inline void keep_gates(const view *v, size_t unit, const shares add[GATES], bool start) {
    static_assert(sizeof(shares[GATES]) == sizeof(octet[TILE]), "a tile of shares");
    octet x[TILE];
    memcpy(x, add, sizeof x);
    tile_transpose(x);
    x[0] = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    for (size_t gate = v->absent; gate < GATES; gate++) {
        keep_unit(v, gate - v->absent, unit, x[0][2 * gate], x[0][2 * gate + 1], start);
    }
}

void CPU(gates_backward)(backend *be, const cell *c, int t) {
    FLUSH_DENORMALS(be);
    view v = view_step(be, c, c->stages - 1, t, false);
    size_t plane = v.units * v.columns;
    const real *before = (const real *)c->c + (size_t)t * plane;
    bool last = t == c->steps - 1;
    backward_step b = {.before = before,
                       .after = before + plane,
                       .dh = (const real *)c->dh + (size_t)t * plane,
                       .dx = !last || c->has_later_steps ? c->dx : NULL,
                       .dc = c->dc,
                       .start = last};
    real *partials = feature_partials(be, &v);
#pragma omp parallel for num_threads(cpu_of(be)->threads) firstprivate(v, b)
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        part p = part_of(&v, chunk);
        real *features = partials + (size_t)chunk * v.gates * 2 * v.columns;
        for (size_t first = p.first; first < p.last; first += RUN) {
            const size_t past = first + RUN;
            shares add[RUN][GATES] = {0};
            for (size_t n0 = 0; n0 < v.columns; n0 += COLUMN_GROUP) {
                real entry[RUN][GATES][COLUMN_GROUP];
                fetch_entries(c, &v, first, n0, entry);
                for (size_t unit = first; unit < past; unit++) {
                    backward_unit(be, c, &v, &b, unit, n0, t, entry[unit - first],
                                  add[unit - first], features);
                }
            }
            for (size_t unit = first; unit < past; unit++) {
                keep_gates(&v, unit, add[unit - first], b.start);
            }
        }
    }
    keep_features(&v, partials);
    norm_backward(be, v);
}

/* ------------------------------------------------------------------------------------- table */

enum { STEPS_AHEAD = 4 }; /* how many steps ahead to prefetch, since steps are pages apart */

/* Adds all steps' columns of TILE rows to the sums of their bytes. The rows' sums lie side by side,
 * so one load, addition and store serves all of them. */
static inline void add_by_byte(const cell *c, size_t step, const real *const in[TILE],
                               octet sums[VOCABULARY]) {
    size_t columns = (size_t)c->columns, steps = (size_t)c->steps;
    for (size_t t = steps; t-- > 0;) {
        size_t ahead = (t < STEPS_AHEAD ? t : t - STEPS_AHEAD) * step;
        const uint8_t *bytes = c->bytes + t * columns;
        for (size_t n = 0; n < columns; n += TILE) {
            octet x[TILE];
            for (int r = 0; r < TILE; r++) {
                __builtin_prefetch(in[r] + ahead + n);
                memcpy(&x[r], in[r] + t * step + n, sizeof x[r]);
            }
            tile_transpose(x);
            for (size_t i = 0; i < TILE; i++) sums[bytes[n + i]] += x[i];
        }
    }
}

void CPU(table_backward)(backend *be, const cell *c, int s) {
    FLUSH_DENORMALS(be);
    const stage *g = &c->stage[s];
    size_t columns = (size_t)c->columns, units = (size_t)g->units;
    size_t stride = (size_t)g->table_stride, entries = units / stride;
    size_t step = (size_t)g->gates * units * columns, rows = (size_t)g->gates * entries;
    view v = {.block = (size_t)g->block, .gates = (size_t)g->gates};
    const real *gradient = g->table_use == TABLE_MULTIPLY ? g->dentry : g->dpre;
#pragma omp parallel for num_threads(cpu_of(be)->threads)
    for (size_t first = 0; first < rows; first += TILE) {
        const real *in[TILE];
        octet sums[VOCABULARY] = {0};
        for (size_t r = 0; r < TILE; r++) {
            size_t row = first + r < rows ? first + r : first; /* twice: not stored */
            in[r] = gradient + row_of(&v, row / entries, row % entries * stride) * columns;
        }
        add_by_byte(c, step, in, sums);
        for (size_t byte = 0; byte < VOCABULARY; byte += TILE) {
            real *table = (real *)g->dtable + first * VOCABULARY + byte;
            tile_transpose(sums + byte);
            for (size_t r = 0; r < TILE && first + r < rows; r++) {
                round_operands(be, (real *)&sums[byte + r], TILE);
                memcpy(table + r * VOCABULARY, &sums[byte + r], sizeof sums[byte + r]);
            }
        }
    }
}
