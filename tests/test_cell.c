/* The steps of a cell and the gradients of its input tables, on a backend and on a more trusted one
 * (pair.h). Shapes and patterns are random; all outputs are poisoned first. */
#include "pair.h"

#include "core/memory.h"
#include "graph/graph.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The bytes of the text: any, a single one, a few that are far apart, or ASCII letters with another
 * byte now and then. */
typedef enum text { ANY_BYTES, ONE_BYTE, FEW_BYTES, ALMOST_ASCII, TEXTS } text;

static uint8_t draw_byte(text text) {
    switch (text) {
    case ONE_BYTE: return 200;
    case FEW_BYTES: return (uint8_t)(85 * random_below(4));
    case ALMOST_ASCII:
        return (uint8_t)(random_below(100) ? 64 + random_below(64) : random_below(256));
    default: return (uint8_t)random_below(256);
    }
}

/* --------------------------------------------------------------------------------- cell's parts
 * One step of a stage by itself, for every combination that a cell can have. */

typedef struct part {
    int gates, stride;
    bool layer_norm, relu;
    table_use use;
    double dropout;
    int block;    /* side of the pattern's blocks */
    double share; /* share of the blocks that exist */
    bool huge;    /* sums of squares so large that only coarse sums hold them */
    double steep; /* the scale of the gradients */
    text text;
} part;

enum { PART_RESULTS = 10 };

static void run_part(backend *be, const part *how, int hidden, int columns, double *const *in,
                     const uint8_t *bytes, double *out[PART_RESULTS], size_t sizes[PART_RESULTS]) {
    size_t plane = (size_t)hidden * (size_t)columns, gates = (size_t)how->gates;
    size_t entries = (size_t)(hidden / how->stride) * VOCABULARY;
    graph *g = nasty_graph(hidden / how->block, how->share, true);
    layout *l = hidden % how->block ? layout_dense(hidden, hidden, how->gates, 1)
                                    : layout_from_graph(g, how->block, how->gates);
    const int block = l->out_block;
    device_layout *d = be->memory->layout_create(be, l);
    update_arguments arguments = {.update = 5};
    cell c = {.hidden = hidden,
              .columns = columns,
              .steps = 1,
              .keep = true,
              .stages = 1,
              .dropout = dropout_with(how->dropout, 99)};
    c.dropout.first_stream = 12; /* of a rank after the first */
    stage *s = &c.stage[0];
    *s = (stage){.layout = d,
                 .units = hidden,
                 .block = block,
                 .gates = how->gates,
                 .layer_norm = how->layer_norm,
                 .relu = how->relu,
                 .table_use = how->use,
                 .table_stride = how->stride};
    void *device_bytes = be->memory->allocate(be, (size_t)columns);
    be->memory->upload(be, device_bytes, bytes, (size_t)columns);
    c.bytes = device_bytes;
    void *device_arguments = be->memory->allocate(be, sizeof arguments);
    be->memory->upload(be, device_arguments, &arguments, sizeof arguments);
    c.arguments = device_arguments;
    size_t weights = layout_weights(l),
           sums = be->cell->sums_bytes(be, how->gates > 1 ? GATES : 1, columns);
    const double most = how->huge ? 1000 : 0.3;
    double *w = random_values(weights, -most, most); /* both sides have the same */
    s->weight = put(be, w, weights, OPERAND);
    free(w);
    s->gain = how->layer_norm ? put(be, in[0], gates * (size_t)hidden, REAL) : NULL;
    s->bias = put(be, in[1], gates * (size_t)hidden, REAL);
    s->table = put(be, in[2], gates * entries, OPERAND);
    c.entries = put_poison(be, GATES * entries, OPERAND);
    s->raw = put_poison(be, gates * plane, OPERAND);
    s->out = put_poison(be, plane, OPERAND);
    s->dpre = put_poison(be, gates * plane, OPERAND);
    s->dentry = put_poison(be, gates * plane, OPERAND);
    s->dgain = put_poison(be, gates * (size_t)hidden, REAL);
    s->dbias = put_poison(be, gates * (size_t)hidden, REAL);
    s->dtable = put_poison(be, gates * entries, OPERAND);
    s->sums = put_poison(be, sums / be->real_size + 1, REAL);
    s->dsums = put_poison(be, sums / be->real_size + 1, REAL);
    void *x = put(be, in[3], plane, OPERAND);
    double *state = mem_alloc(2 * plane, sizeof *state);
    memcpy(state, in[4], plane * sizeof *state);
    for (size_t i = 0; i < plane; i++) state[plane + i] = NAN;
    c.c = put(be, state, 2 * plane, REAL);
    c.h = put_poison(be, 2 * plane, OPERAND);
    c.dh = put(be, in[5], plane, OPERAND);
    c.dx = put(be, in[6], plane, OPERAND);
    c.dc = put(be, in[7], plane, REAL);

    be->products->fprop(be, d, s->weight, x, 1, columns, s->raw, OPERAND);
    if (how->gates > 1) {
        be->cell->prepare_entries(be, &c);
        be->cell->gates(be, &c, 0);
    } else {
        be->cell->activate(be, &c, 0, 0);
    }
    size_t count[PART_RESULTS] = {gates * plane,
                                  plane,
                                  2 * plane,
                                  2 * plane,
                                  gates * plane,
                                  gates * (size_t)hidden,
                                  gates * (size_t)hidden,
                                  plane,
                                  gates * plane,
                                  gates * entries};
    out[0] = get(be, s->raw, count[0], OPERAND);
    if (how->gates > 1) {
        be->cell->gates_backward(be, &c, 0);
    } else {
        be->cell->activate_backward(be, &c, 0, 0);
    }
    if (how->use != TABLE_NONE) be->cell->table_backward(be, &c, 0);
    out[1] = get(be, s->out, count[1], OPERAND);
    out[2] = get(be, c.h, count[2], OPERAND);
    out[3] = get(be, c.c, count[3], REAL);
    out[4] = get(be, s->dpre, count[4], OPERAND);
    out[5] = get(be, s->dgain, count[5], REAL);
    out[6] = get(be, s->dbias, count[6], REAL);
    out[7] = get(be, c.dc, count[7], REAL);
    out[8] = get(be, s->raw, count[8], OPERAND);
    out[9] = get(be, s->dtable, count[9], OPERAND);
    /* What a stage of this kind does not write stays poisoned, on every backend. */
    if (how->gates > 1) count[1] = 0;
    if (how->gates == 1) count[2] = count[3] = 0;
    if (how->use == TABLE_NONE) count[9] = 0;
    memcpy(sizes, count, sizeof count);
    void *arrays[] = {(void *)(uintptr_t)s->weight,
                      (void *)(uintptr_t)s->gain,
                      (void *)(uintptr_t)s->bias,
                      (void *)(uintptr_t)s->table,
                      c.entries,
                      s->raw,
                      s->out,
                      s->dpre,
                      s->dentry,
                      s->dgain,
                      s->dbias,
                      s->dtable,
                      s->sums,
                      s->dsums,
                      x,
                      c.c,
                      c.h,
                      c.dh,
                      c.dx,
                      c.dc,
                      device_bytes,
                      device_arguments};
    release_all(be, arrays, sizeof arrays / sizeof arrays[0]);
    free(state);
    be->memory->layout_free(be, d);
    layout_free(l);
    graph_free(g);
}

static void check_part(pair *p, const part *how, int hidden, int columns) {
    if (!takes_case()) return;
    const double steep = how->steep;
    size_t plane = (size_t)hidden * (size_t)columns, gates = (size_t)how->gates;
    size_t entries = (size_t)(hidden / how->stride) * VOCABULARY;
    double *in[8] = {random_values(gates * (size_t)hidden, 0.5, 1.5),
                     random_values(gates * (size_t)hidden, -1, 1),
                     random_values(gates * entries, -1, 1),
                     random_values(plane, -1, 1),
                     random_values(plane, -2, 2),
                     random_values(plane, -steep, steep),
                     random_values(plane, -steep, steep),
                     random_values(plane, -steep, steep)};
    uint8_t *bytes = mem_alloc((size_t)columns, 1);
    for (int n = 0; n < columns; n++) bytes[n] = draw_byte(how->text);
    double *result[2][PART_RESULTS];
    size_t sizes[PART_RESULTS];
    for (int side = 0; side < 2; side++) {
        random_restart(17); /* the same pattern and weights for both */
        run_part(side ? p->trusted : p->be, how, hidden, columns, in, bytes, result[side], sizes);
    }
    static const char *const what[PART_RESULTS] = {"raw",   "out",   "h",  "c",    "dpre",
                                                   "dgain", "dbias", "dc", "draw", "dtable"};
    for (int i = 0; i < PART_RESULTS; i++) {
        char text[160];
        snprintf(text, sizeof text, "%s of %s%s%s, table %d by %d, dropout %g, %d x %d", what[i],
                 how->gates > 1 ? "gates" : "a step", how->layer_norm ? " with norm" : "",
                 how->relu ? " and relu" : "", how->use, how->stride, how->dropout, hidden,
                 columns);
        size_t skip = i == 2 ? plane : 0; /* h[0] is poison */
        const stage kind = {
            .gates = how->gates, .layer_norm = how->layer_norm, .table_use = how->use};
        const bool made = i != 4 || keeps_dpre(&kind);
        if (sizes[i] > skip && made) {
            pair loose = *p;
            if (hidden < 64) loose.tolerance *= 16; /* a few sums, of which one may be near 0 */
            if (i >= 4 && how->relu) {
                /* Rounding moves some sums past relu's edge. Their share is about the rounding
                 * error, and each of their gradients is wholly wrong, so the norm grows with the
                 * root of that share. */
                loose.tolerance = 2 * sqrt(p->tolerance);
            } else if (i >= 4 && p->be->precision != FP32) {
                loose.tolerance *= 4; /* gradients are computed from rounded values */
            }
            assert_close(&loose, text, result[0][i] + skip, result[1][i] + skip, sizes[i] - skip);
        }
        free(result[0][i]);
        free(result[1][i]);
    }
    for (int i = 0; i < 8; i++) free(in[i]);
    free(bytes);
}

static void check_parts(precision precision) {
    pair p = open_pair(precision);
    random_restart(5);
    int unit = p.be->column_multiple;
    const int sizes[][2] = {{64, unit}, {200, 2 * unit}, {1104, unit}, {64, 5 * unit}};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int norm = 0; norm < 2; norm++) {
            part gates = {GATES, 1, norm, false, TABLE_ADD, 0, 8, 0.6, false, 1, ANY_BYTES};
            part plain = {GATES, 1, norm, false, TABLE_NONE, 0, 8, 0.6, false, 1, ANY_BYTES};
            part dropped = {GATES, 2, norm, false, TABLE_ADD, 0.3, 8, 0.6, false, 1, ANY_BYTES};
            part coupled = {COUPLED_GATES, 1,     norm, false,    TABLE_ADD, 0, 8,
                            0.6,           false, 1,    ANY_BYTES};
            part few = {COUPLED_GATES, 2, norm, false, TABLE_ADD, 0.3, 8, 0.6, false, 1, ANY_BYTES};
            part bare = {COUPLED_GATES, 1, norm, false, TABLE_NONE, 0, 8, 0.6, false, 1, ANY_BYTES};
            part multiply = {1, 1, norm, false, TABLE_MULTIPLY, 0, 8, 0.6, false, 1, ANY_BYTES};
            part add = {1, 2, norm, true, TABLE_ADD, 0, 8, 0.6, false, 1, ANY_BYTES};
            part strided = {1, 4, norm, false, TABLE_MULTIPLY, 0, 8, 0.6, false, 1, ANY_BYTES};
            part relu = {1, 1, norm, true, TABLE_NONE, 0, 8, 0.6, false, 1, ANY_BYTES};
            const part *all[] = {&gates, &plain,    &dropped, &coupled, &few,
                                 &bare,  &multiply, &add,     &strided, &relu};
            for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) {
                check_part(&p, all[k], sizes[i][0], sizes[i][1]);
            }
        }
    }
    /* a stage whose units nothing divides, as of a table that feeds each eighth unit */
    static const int odd[] = {1, 2, 3, 5, 6, 7, 10, 13, 27, 41};
    for (size_t i = 0; i < 4 * sizeof odd / sizeof *odd; i++) {
        const int units = odd[i / 4], columns = (1 + (int)i % 3) * unit;
        const bool norm = i & 1 && units > 3; /* of few units it makes rounding errors large */
        part multiply = {1, 1, norm, false, TABLE_MULTIPLY, 0, 64, 1, false, 1, ANY_BYTES};
        part add = {1, 1, norm, i & 2, TABLE_ADD, 0, 64, 1, false, 1, ANY_BYTES};
        part strided = {1, units, norm, i & 2, TABLE_ADD, 0, 64, 1, false, 1, ANY_BYTES};
        check_part(&p, &multiply, units, columns);
        check_part(&p, &add, units, columns);
        check_part(&p, &strided, units, columns);
    }
    for (int text = 0; text < TEXTS; text++) {
        part gates = {GATES, 1, text % 2, false, TABLE_ADD, 0, 8, 0.6, false, 1, text};
        check_part(&p, &gates, 200, (1 + text) * unit);
    }
    /* more than shared memory holds of a step */
    part wide = {GATES, 1, true, false, TABLE_ADD, 0, 8, 0.6, false, 1, ANY_BYTES};
    check_part(&p, &wide, 64, 16 * unit);
    check_part(&p, &wide, 64, 17 * unit);
    /* several spans of columns, with several units a thread block of a GPU */
    part bare = {GATES, 2, false, false, TABLE_ADD, 0, 8, 0.6, false, 1, ANY_BYTES};
    check_part(&p, &wide, 1104, 6 * unit);
    check_part(&p, &bare, 1104, 6 * unit);
    check_part(&p, &bare, 64, 17 * unit);
    for (int norm = 0; norm < 2; norm++) {
        part coupled = {COUPLED_GATES, 2, norm, false, TABLE_ADD, 0, 8, 0.6, false, 1, ANY_BYTES};
        check_part(&p, &coupled, 1104, 6 * unit);
        check_part(&p, &coupled, 64, 17 * unit);
    }
    /* very many spans */
    check_part(&p, &wide, 64, 60 * unit);
    check_part(&p, &wide, 64, 61 * unit);
    /* gradients whose sums are coarse, some of them or all */
    part steep = {GATES, 1, true, false, TABLE_ADD, 0, 8, 0.6, false, 30, ANY_BYTES};
    check_part(&p, &steep, 1104, 3 * unit);
    steep.steep = 1e6;
    check_part(&p, &steep, 1104, 2 * unit);
    close_pair(&p);
}

static void test_parts_fp32(void **state) {
    (void)state;
    check_parts(FP32);
}

static void test_parts_bf16(void **state) {
    (void)state;
    check_parts(BF16);
}

/* So many units that each thread block of a GPU has several in turn, and more than its shared
 * memory holds until the sums of layer norm are complete; several spans of columns. */
static void test_many_units(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    const struct {
        precision precision;
        int gates, hidden, columns, block;
    } cases[] = {{BF16, GATES, 3360, 6, 32},  {BF16, GATES, 3360, 3, 32},
                 {BF16, GATES, 14592, 2, 64}, {FP32, GATES, 9728, 4, 64},
                 {BF16, GATES, 29184, 2, 64}, {BF16, 1, 60032, 2, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pair p = open_pair(cases[i].precision);
        random_restart(13);
        const bool one = cases[i].gates == 1;
        part how = {cases[i].gates,
                    8,
                    true,
                    false,
                    one ? TABLE_MULTIPLY : TABLE_ADD,
                    0.1,
                    cases[i].block,
                    0.002,
                    false,
                    1,
                    ANY_BYTES};
        check_part(&p, &how, cases[i].hidden, cases[i].columns * p.be->column_multiple);
        close_pair(&p);
    }
}

/* Sums of squares that need coarse sums, of four gates and of one. */
static void test_coarse_sums(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    pair p = open_pair(BF16);
    random_restart(12);
    for (int columns = 4; columns <= 8; columns *= 2) {
        part how = {GATES, 1, true, false, TABLE_NONE, 0, 32, 0.15, true, 1, ANY_BYTES};
        check_part(&p, &how, 71 * 32, columns * p.be->product_multiple);
    }
    for (int i = 0; i < 4; i++) { /* blocks of 8 and 16, one gate and four */
        part how = {i % 2 ? GATES : 1, 1,   true, false, TABLE_NONE, 0,
                    i < 2 ? 8 : 16,    0.1, true, 1,     ANY_BYTES};
        check_part(&p, &how, 40 * how.block, (4 + 6 * i) * p.be->product_multiple);
    }
    close_pair(&p);
}

/* ----------------------------------------------------------------------------- table's gradient */

typedef struct table_shape {
    int hidden, block, gates, stride;
    int columns, steps; /* columns: in multiples of those that a backend takes */
    text text;
} table_shape;

/* Layer norm of small numbers, whose variance is as small as what is added to it, 1e-6: x / sqrt(2)
 * of their deviation. On a GPU sums of such squares in fixed point are exact to some per cent. */
static void test_small_norm(void **state) {
    (void)state;
    enum { UNITS = 8 };
    backend *be = test_backend(FP32);
    const int columns = be->column_multiple;
    const size_t count = UNITS * (size_t)columns;
    layout *l = layout_dense(1, 1, UNITS, 1);
    device_layout *d = be->memory->layout_create(be, l);
    double *raw = mem_alloc(count, sizeof *raw), *ones = mem_alloc(UNITS, sizeof *ones);
    for (size_t i = 0; i < count; i++) raw[i] = i / (size_t)columns % 2 ? 1e-3 : -1e-3;
    for (int i = 0; i < UNITS; i++) ones[i] = 1;
    cell c = {.hidden = UNITS, .columns = columns, .steps = 1, .keep = true, .stages = 1};
    stage *s = &c.stage[0];
    *s = (stage){.layout = d, .units = UNITS, .block = UNITS, .gates = 1, .layer_norm = true};
    s->gain = put(be, ones, UNITS, REAL);
    s->raw = put(be, raw, count, OPERAND);
    s->out = put_poison(be, count, OPERAND);
    s->sums = put_poison(be, be->cell->sums_bytes(be, 1, columns) / be->real_size + 1, REAL);
    c.bytes = s->out; /* any: no table reads them */
    be->cell->activate(be, &c, 0, 0);
    double *out = get(be, s->out, count, OPERAND);
    for (size_t i = 0; i < count; i++) {
        const double expected = raw[i] * 1e3 / sqrt(2);
        if (!(fabs(out[i] - expected) < 0.02)) fail_msg("%g, expected %g", out[i], expected);
    }
    void *const held[] = {(void *)(uintptr_t)s->gain, s->raw, s->out, s->sums};
    for (int i = 0; i < 4; i++) be->memory->release(be, held[i]);
    be->memory->layout_free(be, d);
    layout_free(l);
    free(out);
    free(raw);
    free(ones);
    be->memory->destroy(be);
}

/* `gradient` [steps][gates][hidden][columns] -> [gates][hidden / stride][VOCABULARY]. */
static double *run_table(backend *be, const table_shape *how, int columns, const double *gradient,
                         const uint8_t *bytes) {
    size_t positions = (size_t)(how->steps * columns);
    size_t entries = (size_t)(how->gates * how->hidden / how->stride) * VOCABULARY;
    size_t count = (size_t)(how->gates * how->hidden) * positions;
    cell c = {.hidden = how->hidden, .columns = columns, .steps = how->steps, .stages = 1};
    stage *s = &c.stage[0];
    *s = (stage){.units = how->hidden,
                 .block = how->block,
                 .gates = how->gates,
                 .table_use = how->gates == 1 ? TABLE_MULTIPLY : TABLE_ADD,
                 .table_stride = how->stride};
    void *device_bytes = be->memory->allocate(be, positions),
         *in = put(be, gradient, count, OPERAND);
    be->memory->upload(be, device_bytes, bytes, positions);
    c.bytes = device_bytes;
    s->dtable = put_poison(be, entries, OPERAND);
    *(how->gates == 1 ? &s->dentry : &s->dpre) = in;
    be->cell->table_backward(be, &c, 0);
    double *result = get(be, s->dtable, entries, OPERAND);
    be->memory->release(be, device_bytes);
    be->memory->release(be, in);
    be->memory->release(be, s->dtable);
    return result;
}

/* Adds `gradient` up by byte, as run_table does. */
static double *sum_table(const table_shape *how, int columns, const double *gradient,
                         const uint8_t *bytes) {
    const size_t hidden = (size_t)how->hidden, block = (size_t)how->block;
    const size_t fed = hidden / (size_t)how->stride, gates = (size_t)how->gates;
    double *sums = mem_alloc(gates * fed * VOCABULARY, sizeof *sums);
    for (size_t i = 0; i < (size_t)(how->steps * columns) * gates * hidden; i++) {
        const size_t n = i % (size_t)columns, row = i / (size_t)columns % (gates * hidden);
        const size_t t = i / (size_t)columns / (gates * hidden);
        const size_t node = row / (gates * block), gate = row / block % gates;
        const size_t unit = node * block + row % block, byte = bytes[t * (size_t)columns + n];
        if (unit % (size_t)how->stride) continue;
        sums[(gate * fed + unit / (size_t)how->stride) * VOCABULARY + byte] += gradient[i];
    }
    return sums;
}

/* The gradients are whole numbers, whose sums do not depend on the order, so a backend must agree
 * with plain sums to the bit, where these are operands. */
static void check_table(backend *be, const table_shape *how) {
    int columns = how->columns * be->column_multiple;
    size_t positions = (size_t)(how->steps * columns);
    size_t count = (size_t)(how->gates * how->hidden) * positions;
    size_t entries = (size_t)(how->gates * how->hidden / how->stride) * VOCABULARY;
    double *gradient = random_values(count, -8, 8);
    uint8_t *bytes = mem_alloc(positions, 1);
    for (size_t i = 0; i < count; i++) gradient[i] = round(gradient[i]);
    for (size_t i = 0; i < positions; i++) bytes[i] = draw_byte(how->text);
    double *found = run_table(be, how, columns, gradient, bytes);
    double *sums = sum_table(how, columns, gradient, bytes);
    void *rounded = put(be, sums, entries, OPERAND);
    double *expected = get(be, rounded, entries, OPERAND);
    for (size_t i = 0; i < entries; i++) {
        if (found[i] == expected[i]) continue;
        fail_msg("dtable of %d units in blocks of %d, %d gates, stride %d, %d columns, %d steps, "
                 "text %d: element %zu is %g, %g expected",
                 how->hidden, how->block, how->gates, how->stride, columns, how->steps, how->text,
                 i, found[i], expected[i]);
    }
    be->memory->release(be, rounded);
    free(found);
    free(sums);
    free(expected);
    free(gradient);
    free(bytes);
}

/* Numbers of rows: less than a GPU's tile, a multiple of it, and others. Blocks: multiples of the
 * stride, and others. Texts: shorter and longer than what is loaded at a time. */
static void check_tables(precision precision) {
    backend *be = test_backend(precision);
    random_restart(14);
    static const table_shape shapes[] = {
        {16, 8, 1, 1, 1, 1, ANY_BYTES},
        {16, 8, 4, 1, 1, 1, ONE_BYTE},
        {72, 8, 4, 1, 1, 3, FEW_BYTES},
        {96, 32, 4, 1, 2, 9, ALMOST_ASCII},
        {96, 32, 1, 1, 1, 14, ANY_BYTES},
        {64, 64, 4, 1, 3, 13, ONE_BYTE},
        {64, 32, 4, 2, 2, 7, ALMOST_ASCII},
        {64, 64, 1, 4, 1, 13, ANY_BYTES},
        {40, 8, 1, 8, 1, 5, FEW_BYTES},
        {48, 8, 4, 3, 1, 5, ANY_BYTES},
        {33, 33, 4, 1, 2, 5, ALMOST_ASCII},
        {16, 16, 4, 1, 1, 100, ALMOST_ASCII},
        {48, 8, 1, 3, 1, 5, ANY_BYTES},
        {160, 32, 1, 1, 2, 9, ALMOST_ASCII},
        {72, 8, COUPLED_GATES, 3, 2, 7, ANY_BYTES},
        {1104, 8, COUPLED_GATES, 2, 6, 3, ALMOST_ASCII},
        {3360, 32, GATES, 1, 6, 2, ANY_BYTES},
        {9728, 64, GATES, 1, 2, 2, FEW_BYTES},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_table(be, &shapes[i]);
    }
    be->memory->destroy(be);
}

static void test_table_fp32(void **state) {
    (void)state;
    check_tables(FP32);
}

static void test_table_bf16(void **state) {
    (void)state;
    check_tables(BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts_fp32), cmocka_unit_test(test_parts_bf16),
        cmocka_unit_test(test_many_units), cmocka_unit_test(test_coarse_sums),
        cmocka_unit_test(test_table_fp32), cmocka_unit_test(test_table_bf16),
        cmocka_unit_test(test_small_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
