#include "bench/matmul.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/stop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WGRAD_COLUMNS = 128, /* of a step of wgrad */
    ALIGNMENT = 1024,    /* of operands */
    MOST_SETS = 1024,
    REASONS = 8
};

static const double cold_bytes = 2.1; /* as a multiple of the L2 */
static const double most_bytes = 2e9; /* limit of the rotating weights alone */

typedef struct bench {
    const matmul_options *options;
    matmul_results *results;
    grid *g;
    int precision; /* the precision of `be` */
    backend *be;
    size_t cache;

    /* Random inputs. Outputs are separate, so that values stay in range. */
    void *inputs, *outputs, *workspace;
    size_t input_bytes, output_bytes, workspace_bytes;

    /* The last pattern that was made. */
    grid_cell latest;
    layout *layout;
    device_layout *device;
    double table_bytes;

    char reasons[REASONS][160]; /* why a library was left out; each reason is printed once */
    int reason_count;
    double started, shown; /* the start; the time of the last progress line */
} bench;

/* --------------------------------------------------------------------------------- operands */

/* Rotating operands: set i lies `i` strides after the first one. */
typedef struct operands {
    char *left, *right, *out;
    size_t left_bytes, right_bytes, out_bytes;
    int sets;
} operands;

static size_t aligned(double bytes) {
    return ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static int count_sets(const bench *b, const operands *o, size_t weights) {
    double all = (double)(o->left_bytes + o->right_bytes + o->out_bytes);
    double wanted = cold_bytes * (double)b->cache;
    double least = ceil(wanted / all), most = fmax(least, floor(most_bytes / all));
    return (int)fmin(fmin(ceil(wanted / (double)weights), most), MOST_SETS);
}

static bool grow(bench *b, void **block, size_t *held, size_t bytes, bool random, error *err) {
    backend *be = b->be;
    if (bytes <= *held) return true;
    if (*block) be->release(be, *block);
    *held = 0;
    *block = be->allocate(be, bytes);
    if (!*block) {
        char text[16];
        return error_set(err, "not enough memory on %s for operands of %s", be->device,
                         log_bytes(text, (double)bytes));
    }
    *held = bytes;
    bench_math math = bench_precisions[b->precision].math;
    if (random) be->bench->randomise(be, *block, math, bytes / be->operand_size, 2);
    return true;
}

/* Finds room for a problem whose W has `weights` elements, with `columns` columns. */
static bool place(bench *b, bench_product product, double weights, double rows, double inputs,
                  double columns, operands *o, error *err) {
    double in = (double)b->be->operand_size, real = (double)b->be->real_size;
    double w = weights * in, x = inputs * columns * in, y = rows * columns * in;
    bool wgrad = product == PRODUCT_WGRAD;
    o->left_bytes = aligned(wgrad ? y : w);
    o->right_bytes = aligned(product == PRODUCT_DGRAD ? y : x);
    o->out_bytes = aligned(wgrad ? weights * real : product == PRODUCT_DGRAD ? x : y);
    o->sets = count_sets(b, o, wgrad ? o->left_bytes + o->right_bytes : o->left_bytes);
    size_t sets = (size_t)o->sets;
    if (!grow(b, &b->inputs, &b->input_bytes, sets * (o->left_bytes + o->right_bytes), true, err) ||
        !grow(b, &b->outputs, &b->output_bytes, sets * o->out_bytes, false, err)) {
        return false;
    }
    o->left = b->inputs;
    o->right = o->left + sets * o->left_bytes;
    o->out = b->outputs;
    return true;
}

/* ------------------------------------------------------------------------------------- ours */

typedef struct job {
    bench *b;
    const grid_cell *cell;
    operands at;
    int columns, steps;
    rival *rival;
    error err;
    bool failed;
} job;

static void issue_ours(void *argument, int set) {
    const job *j = argument;
    backend *be = j->b->be;
    const device_layout *l = j->b->device;
    const operands *o = &j->at;
    void *left = o->left + (size_t)set * o->left_bytes;
    void *right = o->right + (size_t)set * o->right_bytes;
    void *out = o->out + (size_t)set * o->out_bytes;
    switch (j->cell->product) {
    case PRODUCT_FPROP: be->fprop(be, l, left, right, 1, j->columns, out, OPERAND); return;
    case PRODUCT_DGRAD: be->dgrad(be, l, left, right, 1, j->columns, out, OPERAND); return;
    default: be->wgrad(be, l, left, right, j->steps, j->columns, out, j->b->workspace); return;
    }
}

static int pad(const backend *be, bench_product product, int columns) {
    int multiple = product == PRODUCT_WGRAD ? wgrad_multiple(be) : be->product_multiple;
    return (columns + multiple - 1) / multiple * multiple;
}

static bool measure_ours(bench *b, matmul_row *row, error *err) {
    const layout *l = b->layout;
    job j = {.b = b, .cell = &row->cell, .steps = 1};
    int n = row->cell.columns;
    bool deep = row->cell.product == PRODUCT_WGRAD && n > WGRAD_COLUMNS && n % WGRAD_COLUMNS == 0;
    j.columns = pad(b->be, row->cell.product, deep ? WGRAD_COLUMNS : n);
    j.steps = deep ? n / WGRAD_COLUMNS : 1;
    row->padded = j.columns * j.steps;
    row->kernel =
        b->be->bench->kernel_name(b->be, b->device, row->cell.product, j.steps, j.columns, err);
    if (!row->kernel) return false;
    size_t workspace = b->be->wgrad_workspace(b->be, l, j.steps, j.columns);
    return grow(b, &b->workspace, &b->workspace_bytes, workspace, false, err) &&
           place(b, row->cell.product, (double)layout_weights(l), (double)layout_rows(l),
                 (double)layout_inputs(l), row->padded, &j.at, err) &&
           time_operation(b->be, &b->options->how, issue_ours, &j, j.at.sets, &row->ours, err);
}

/* -------------------------------------------------------------------------------- libraries */

static void issue_rival(void *argument, int set) {
    job *j = argument;
    const operands *o = &j->at;
    if (j->failed) return;
    j->failed = !j->b->be->bench->rival_run(j->rival, o->left + (size_t)set * o->left_bytes,
                                            o->right + (size_t)set * o->right_bytes,
                                            o->out + (size_t)set * o->out_bytes, &j->err);
}

static void give_reason(bench *b, const char *text) {
    for (int i = 0; i < b->reason_count; i++) {
        if (strncmp(b->reasons[i], text, sizeof b->reasons[i] - 1) == 0) return;
    }
    if (b->reason_count == REASONS) return;
    snprintf(b->reasons[b->reason_count++], sizeof b->reasons[0], "%.159s", text);
    log_line("note: %s", text);
}

/* Measures one library with one order of the activations. It is not a failure if the library
 * refuses or lacks memory. */
static bool measure_rival(bench *b, matmul_row *row, bench_library library, bool by_column,
                          const layout *l, error *err) {
    const bench_tools *tools = b->be->bench;
    const grid_cell *cell = &row->cell;
    bench_problem problem = {cell->product, bench_precisions[cell->precision].math, l,
                             cell->columns, by_column};
    job j = {.b = b, .cell = cell};
    j.rival = tools->rival_create(b->be, library, &problem, &j.err);
    if (!j.rival) {
        give_reason(b, j.err.text);
        return true;
    }
    double seconds = 0;
    j.failed =
        !place(b, cell->product, (double)tools->rival_weights(j.rival), (double)layout_rows(l),
               (double)layout_inputs(l), cell->columns, &j.at, &j.err);
    bool done = j.failed ||
                time_operation(b->be, &b->options->how, issue_rival, &j, j.at.sets, &seconds, err);
    tools->rival_free(j.rival);
    if (done && j.failed) give_reason(b, j.err.text);
    if (done && !j.failed) row->library[library] = fmin(row->library[library], seconds);
    return done;
}

/* Copies cuBLAS's time from a row of another density, as it does not depend on density. */
static bool find_cublas(const bench *b, matmul_row *row) {
    for (const matmul_row *other = b->results->rows; other < row; other++) {
        const grid_cell *x = &other->cell, *y = &row->cell;
        if (x->precision == y->precision && x->product == y->product && x->gates == y->gates &&
            x->columns == y->columns) {
            row->library[LIBRARY_CUBLAS] = other->library[LIBRARY_CUBLAS];
            return true;
        }
    }
    return false;
}

static bool measure_libraries(bench *b, matmul_row *row, error *err) {
    bool done = true;
    for (int i = 0; i < LIBRARIES; i++) row->library[i] = NAN;
    if (!find_cublas(b, row)) {
        layout *dense = layout_dense(b->g->units, b->g->units, row->cell.gates, 1);
        for (int by_column = 0; by_column < 2 && done; by_column++) {
            done = measure_rival(b, row, LIBRARY_CUBLAS, by_column, dense, err);
        }
        layout_free(dense);
    }
    if (!b->options->libraries || row->cell.product == PRODUCT_WGRAD) return done;
    for (int by_column = 0; by_column < 2 && done; by_column++) {
        done = measure_rival(b, row, LIBRARY_CUSPARSE, by_column, b->layout, err);
    }
    return done;
}

/* ------------------------------------------------------------------------------------ cells */

static void drop_pattern(bench *b) {
    if (b->device) b->be->layout_free(b->be, b->device);
    layout_free(b->layout);
    b->device = NULL;
    b->layout = NULL;
}

/* Makes the cell's layout, unless the last cell had the same one. */
static bool make_pattern(bench *b, const grid_cell *cell, error *err) {
    const grid_cell *last = &b->latest;
    if (b->layout && last->pattern == cell->pattern && last->block == cell->block &&
        last->density == cell->density && last->gates == cell->gates) {
        return true;
    }
    drop_pattern(b);
    graph_options options = {.kind = bench_patterns[cell->pattern].kind,
                             .density = cell->density,
                             .rewire = 0.1,
                             .file = "",
                             .seed = 1};
    graph *g = graph_create(&options, b->g->units / cell->block, err);
    if (!g) return false;
    b->layout = layout_from_graph(g, cell->block, cell->gates);
    graph_free(g);
    b->device = b->be->layout_create(b->be, b->layout);
    b->table_bytes = (double)b->be->layout_bytes(b->device);
    b->latest = *cell;
    return true;
}

static void find_floor(bench *b, matmul_row *row) {
    const layout *l = b->layout;
    const backend *be = b->be;
    bool wgrad = row->cell.product == PRODUCT_WGRAD;
    ceilings c = b->results->ceilings;
    bench_math math = bench_precisions[row->cell.precision].math;
    cost work = cost_of_product(l, row->cell.product, row->cell.columns, be->operand_size,
                                wgrad ? be->real_size : be->operand_size);
    cost_seconds(work, &c, math, row->parts);
    cost_floor(work, &c, math, &row->by);
    row->floor = fmax(row->parts[LIMIT_MEMORY], row->parts[LIMIT_ARITHMETIC]) + c.node;
    row->operations = work.operations;
    row->blocks = l->blocks;
    row->density = (double)l->blocks / ((double)l->out_nodes * (double)l->in_nodes);
    row->weight_bytes = (double)layout_weights(l) * (double)be->operand_size;
    row->table_bytes = b->table_bytes;
}

static void show(bench *b, const matmul_row *row) {
    const grid_cell *c = &row->cell;
    double now = clock_seconds();
    if (!b->options->progress || now - b->shown < (log_is_terminal() ? 0 : 10)) return;
    b->shown = now;
    size_t made = (size_t)(row - b->results->rows) + 1;
    char left[32];
    log_duration(left, (now - b->started) / (double)made * (double)(b->g->count - made));
    log_progress("%zu of %zu: %s %s, %d gate%s, %s, block %d, density %g, N = %d: %.1f us, ETA %s",
                 made, b->g->count, bench_precisions[c->precision].name,
                 bench_product_names[c->product], c->gates, c->gates == 1 ? "" : "s",
                 bench_patterns[c->pattern].name, c->block, c->density, c->columns, row->ours * 1e6,
                 left);
}

static bool measure_cell(bench *b, const grid_cell *cell, error *err) {
    matmul_row *row = &b->results->rows[b->results->count];
    *row = (matmul_row){.cell = *cell};
    if (!make_pattern(b, cell, err) || !measure_ours(b, row, err) ||
        !measure_libraries(b, row, err)) {
        return false;
    }
    find_floor(b, row);
    show(b, row);
    b->results->count++;
    return true;
}

/* ------------------------------------------------------------------------------------- runs */

static void close_backend(bench *b) {
    backend *be = b->be;
    if (!be) return;
    drop_pattern(b);
    if (b->inputs) be->release(be, b->inputs);
    if (b->outputs) be->release(be, b->outputs);
    if (b->workspace) be->release(be, b->workspace);
    b->inputs = b->outputs = b->workspace = NULL;
    b->input_bytes = b->output_bytes = b->workspace_bytes = 0;
    be->destroy(be);
    b->be = NULL;
}

/* Opens the backend of a precision. The first one measures the ceilings. */
static bool open_backend(bench *b, int precision, error *err) {
    bool first = b->results->count == 0;
    close_backend(b);
    b->precision = precision;
    b->be = backend_cuda(bench_precisions[precision].precision, 0, err);
    if (!b->be) return false;
    b->cache = b->be->bench->cache_bytes(b->be);
    if (b->options->kernel && !b->be->bench->force_kernel(b->be, b->options->kernel, err)) {
        return false;
    }
    if (!first) return true;
    snprintf(b->results->device, sizeof b->results->device, "%s", b->be->device);
    return ceilings_measure(b->be, &b->results->ceilings, err);
}

static int reading_order(const void *a, const void *b) {
    const grid_cell *x = &((const matmul_row *)a)->cell, *y = &((const matmul_row *)b)->cell;
    if (x->precision != y->precision) return x->precision - y->precision;
    if (x->product != y->product) return (int)x->product - (int)y->product;
    if (x->gates != y->gates) return x->gates - y->gates;
    if (x->pattern != y->pattern) return x->pattern - y->pattern;
    if (x->block != y->block) return x->block - y->block;
    if (x->columns != y->columns) return x->columns - y->columns;
    return (x->density < y->density) - (x->density > y->density);
}

bool matmul_run(grid *g, const matmul_options *options, matmul_results *results, error *err) {
    double start = clock_seconds();
    stop_catch();
    *results = (matmul_results){.units = g->units};
    results->rows = mem_alloc(g->count, sizeof *results->rows);
    bench b = {.options = options, .results = results, .g = g, .started = start};
    grid_sort(g);
    bool done = true;
    for (size_t i = 0; i < g->count && done && !stop_signal(); i++) {
        const grid_cell *cell = &g->cells[i];
        if (!b.be || b.precision != cell->precision) done = open_backend(&b, cell->precision, err);
        done = done && measure_cell(&b, cell, err);
    }
    close_backend(&b);
    qsort(results->rows, results->count, sizeof *results->rows, reading_order);
    results->seconds = clock_seconds() - start;
    return done;
}

void matmul_free(matmul_results *results) {
    free(results->rows);
    results->rows = NULL;
}

const char *matmul_limit(const matmul_results *results, const matmul_row *row) {
    return row->parts[row->by] < results->ceilings.node ? "launch" : limit_names[row->by];
}
