#include "bench/products.h"

#include "core/clock.h"
#include "core/config.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/philox.h"
#include "core/stop.h"
#include "graph/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const precision precisions[] = {BF16, FP32};
static const graph_kind patterns[] = {GRAPH_RANDOM, GRAPH_WATTS_STROGATZ, GRAPH_BARABASI_ALBERT};
static const char *const product_names[] = {"fprop", "dgrad", "wgrad"};

/* ------------------------------------------------------------------------------------- grid */

/* clang-format off */
#define LIST(axis, ...) .values[axis] = {__VA_ARGS__}, \
    .count[axis] = sizeof((int[]){__VA_ARGS__}) / sizeof(int)
#define PRECISION_(...) LIST(AXIS_PRECISION, __VA_ARGS__)
#define PRODUCT_(...)   LIST(AXIS_PRODUCT, __VA_ARGS__)
#define GATES_(...)     LIST(AXIS_GATES, __VA_ARGS__)
#define PATTERN_(...)   LIST(AXIS_PATTERN, __VA_ARGS__)
#define BLOCK_(...)     LIST(AXIS_BLOCK, __VA_ARGS__)
#define COLUMNS_(...)   LIST(AXIS_COLUMNS, __VA_ARGS__)
#define DENSITY_        LIST(AXIS_DENSITY, 5000, 2000, 1000, 500, 300, 100)

enum { B16, F32 };
enum { RANDOM, RING, SCALE_FREE };
enum { Y = PRODUCT_FPROP, DX = PRODUCT_DGRAD, DW = PRODUCT_WGRAD };

const product_axes product_default = {PRECISION_(B16), PRODUCT_(Y), GATES_(1), PATTERN_(RANDOM),
                                      BLOCK_(32), COLUMNS_(32), DENSITY_};

static const product_axes slices[] = {
    /* every N */
    {PRECISION_(B16), PRODUCT_(Y, DX, DW), GATES_(1), PATTERN_(RANDOM), BLOCK_(32),
     COLUMNS_(8, 32, 48, 64, 96, 128, 200, 256, 512, 8192), DENSITY_},
    /* four gates on one pattern, as in the cell */
    {PRECISION_(B16), PRODUCT_(Y, DX, DW), GATES_(4), PATTERN_(RANDOM, RING), BLOCK_(32),
     COLUMNS_(32, 128, 512, 8192), DENSITY_},
    /* the other patterns */
    {PRECISION_(B16), PRODUCT_(Y, DX, DW), GATES_(1), PATTERN_(RING, SCALE_FREE), BLOCK_(32),
     COLUMNS_(32, 512, 8192), DENSITY_},
    /* the other blocks */
    {PRECISION_(B16), PRODUCT_(Y, DX, DW), GATES_(1), PATTERN_(RANDOM), BLOCK_(8, 16, 64, 128),
     COLUMNS_(32, 512, 8192), DENSITY_},
    /* the other precision */
    {PRECISION_(F32), PRODUCT_(Y, DX, DW), GATES_(1), PATTERN_(RANDOM), BLOCK_(32),
     COLUMNS_(32, 64, 128, 512), DENSITY_},
};
/* clang-format on */

static double density_of(const product_cell *cell) {
    return (double)cell->at[AXIS_DENSITY] / PER_DENSITY;
}

/* Blocks must divide the units, and the density leave room for more than the self-blocks. */
static void add_cell(product_grid *g, const product_cell *cell) {
    const int block = cell->at[AXIS_BLOCK], nodes = g->units / block;
    if (g->units % block || density_of(cell) * nodes < 1.5) return;
    for (size_t i = 0; i < g->count; i++) {
        if (memcmp(&g->cells[i], cell, sizeof *cell) == 0) return;
    }
    g->cells = mem_grow(g->cells, &g->capacity, g->count + 1, sizeof *g->cells);
    g->cells[g->count++] = *cell;
}

void product_grid_add(product_grid *g, const product_axes *a) {
    int total = 1;
    for (int axis = 0; axis < AXES; axis++) total *= a->count[axis];
    for (int n = 0; n < total; n++) {
        product_cell cell;
        for (int axis = AXES - 1, rest = n; axis >= 0; axis--) {
            cell.at[axis] = a->values[axis][rest % a->count[axis]];
            rest /= a->count[axis];
        }
        add_cell(g, &cell);
    }
}

void product_grid_add_full(product_grid *g) {
    for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) product_grid_add(g, &slices[i]);
}

static int compare(const product_cell *a, const product_cell *b, const enum product_axis *order) {
    for (int i = 0; i < AXES; i++) {
        const int apart = a->at[order[i]] - b->at[order[i]];
        if (apart) return order[i] == AXIS_DENSITY ? -apart : apart;
    }
    return 0;
}

/* Cells that share a backend, and then a pattern, are measured one after another. */
static int measuring_order(const void *a, const void *b) {
    static const enum product_axis order[] = {AXIS_PRECISION, AXIS_PATTERN, AXIS_BLOCK,
                                              AXIS_DENSITY,   AXIS_GATES,   AXIS_PRODUCT,
                                              AXIS_COLUMNS};
    return compare(a, b, order);
}

static int reading_order(const void *a, const void *b) {
    static const enum product_axis order[] = {AXIS_PRECISION, AXIS_PRODUCT, AXIS_GATES,
                                              AXIS_PATTERN,   AXIS_BLOCK,   AXIS_COLUMNS,
                                              AXIS_DENSITY};
    return compare(&((const product_row *)a)->cell, &((const product_row *)b)->cell, order);
}

/* ----------------------------------------------------------------------------- one product */

enum {
    WGRAD_COLUMNS = 128, /* of a step of wgrad */
    ALIGNMENT = 1024,    /* of operands */
    MOST_SETS = 1024
};

static const double cold_bytes = 2.1; /* as a multiple of the L2 */
static const double most_bytes = 2e9; /* of the rotating weights alone */

/* A product whose operands rotate: set i lies i times their bytes after the first one. */
typedef struct product_job {
    backend *be;
    const device_layout *layout;
    bench_product product;
    int steps, columns;
    char *left, *right, *out;
    size_t left_bytes, right_bytes, out_bytes;
    void *workspace;
} product_job;

static void issue_product(void *argument, int set) {
    const product_job *j = argument;
    backend *be = j->be;
    void *left = j->left + (size_t)set * j->left_bytes;
    void *right = j->right + (size_t)set * j->right_bytes;
    void *out = j->out + (size_t)set * j->out_bytes;
    switch (j->product) {
    case PRODUCT_FPROP:
        be->products->fprop(be, j->layout, left, right, 1, j->columns, out, OPERAND);
        return;
    case PRODUCT_DGRAD:
        be->products->dgrad(be, j->layout, left, right, 1, j->columns, out, OPERAND);
        return;
    default:
        be->products->wgrad(be, j->layout, left, right, j->steps, j->columns, out, j->workspace);
    }
}

static int padded_to(int count, int multiple) {
    return (count + multiple - 1) / multiple * multiple;
}

/* The steps, and their columns with padding, in which a product of `columns` columns runs. */
static void divide_columns(product_job *j, int columns) {
    const bool wgrad = j->product == PRODUCT_WGRAD;
    const bool deep = wgrad && columns > WGRAD_COLUMNS && columns % WGRAD_COLUMNS == 0;
    const int multiple = wgrad ? wgrad_multiple(j->be) : j->be->product_multiple;
    j->steps = deep ? columns / WGRAD_COLUMNS : 1;
    j->columns = padded_to(deep ? WGRAD_COLUMNS : columns, multiple);
}

static size_t aligned(size_t bytes) {
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void *take(backend *be, size_t bytes, error *err) {
    void *block = be->memory->allocate(be, bytes);
    char text[16];
    if (!block) {
        error_set(err, "not enough memory on %s for operands of %s", be->device,
                  log_bytes(text, (double)bytes));
    }
    return block;
}

/* Times a product with as many sets of operands as more than fill the L2. */
static bool time_product(product_job *j, const layout *l, const timing *how, double *seconds,
                         error *err) {
    backend *be = j->be;
    const bool wgrad = j->product == PRODUCT_WGRAD, dgrad = j->product == PRODUCT_DGRAD;
    const size_t in = be->operand_size, columns = (size_t)j->columns * (size_t)j->steps;
    const size_t w = layout_weights(l), x = layout_inputs(l) * columns,
                 y = layout_rows(l) * columns;
    j->left_bytes = aligned((wgrad ? y : w) * in);
    j->right_bytes = aligned((dgrad ? y : x) * in);
    j->out_bytes = aligned(wgrad ? w * be->real_size : (dgrad ? x : y) * in);
    const double all = (double)(j->left_bytes + j->right_bytes + j->out_bytes);
    const double wanted = cold_bytes * (double)be->bench->cache_bytes(be);
    const double of_one = (double)(wgrad ? j->left_bytes + j->right_bytes : j->left_bytes);
    const double most = fmax(ceil(wanted / all), floor(most_bytes / all));
    const int sets = (int)fmin(fmin(ceil(wanted / of_one), most), MOST_SETS);
    const size_t inputs = (size_t)sets * (j->left_bytes + j->right_bytes);
    const size_t workspace = wgrad ? be->products->wgrad_workspace(be, l, j->steps, j->columns) : 0;
    j->left = take(be, inputs, err);
    j->out = j->left ? take(be, (size_t)sets * j->out_bytes, err) : NULL;
    j->workspace = j->out && workspace ? take(be, workspace, err) : NULL;
    bool done = j->out && (j->workspace || !workspace);
    if (done) {
        j->right = j->left + (size_t)sets * j->left_bytes;
        be->bench->randomise(be, j->left, inputs / in, 2);
        done = time_operation(be, how, issue_product, j, sets, seconds, err);
    }
    void *const held[] = {j->left, j->out, j->workspace};
    for (int i = 0; i < 3; i++) {
        if (held[i]) be->memory->release(be, held[i]);
    }
    return done;
}

/* -------------------------------------------------------------------------- rates of the device */

typedef struct copy_job {
    backend *be;
    void *from, *to;
    size_t bytes;
} copy_job;

static void issue_copy(void *argument, int set) {
    const copy_job *j = argument;
    (void)set;
    j->be->memory->copy(j->be, j->to, j->from, j->bytes);
}

static bool measure_rates(backend *be, int precision, device_rates *rates, error *err) {
    enum { BYTES = 1 << 30, SIDE = 8192 };
    static const timing how = {9, 0.02, 10};
    double seconds = 0;
    copy_job copy = {.be = be, .bytes = BYTES};
    copy.from = take(be, BYTES, err);
    copy.to = copy.from ? take(be, BYTES, err) : NULL;
    bool done = copy.to;
    if (done) be->bench->randomise(be, copy.from, BYTES / be->operand_size, 1);
    done = done && time_operation(be, &how, issue_copy, &copy, 1, &seconds, err);
    rates->copy = 2.0 * BYTES / seconds;
    if (copy.to) be->memory->release(be, copy.to);
    if (copy.from) be->memory->release(be, copy.from);
    layout *l = layout_dense(SIDE, SIDE, 1, 1);
    product_job product = {
        .be = be, .layout = be->memory->layout_create(be, l), .steps = 1, .columns = SIDE};
    done = done && time_product(&product, l, &how, &seconds, err);
    rates->product[precision] = 2.0 * SIDE * SIDE * SIDE / seconds;
    be->memory->layout_free(be, (device_layout *)product.layout);
    layout_free(l);
    return done;
}

/* ---------------------------------------------------------------------------------- the cells */

typedef struct measuring {
    const product_options *options;
    product_results *results;
    product_grid *g;
    backend *be;
    product_cell latest; /* whose backend and pattern are at hand */
    layout *layout;
    device_layout *device;
    double shown; /* when the last line of progress was */
} measuring;

static void drop_pattern(measuring *b) {
    if (b->device) b->be->memory->layout_free(b->be, b->device);
    layout_free(b->layout);
    b->device = NULL;
    b->layout = NULL;
}

static void drop_backend(measuring *b) {
    if (!b->be) return;
    drop_pattern(b);
    b->be->memory->destroy(b->be);
    b->be = NULL;
}

static bool use_backend(measuring *b, int precision, error *err) {
    if (b->be && b->latest.at[AXIS_PRECISION] == precision) return true;
    drop_backend(b);
    b->be = backend_cuda(precisions[precision], 0, err);
    if (!b->be) return false;
    snprintf(b->results->device, sizeof b->results->device, "%s", b->be->device);
    const char *kernel = b->options->kernel;
    return (!kernel || b->be->bench->force_kernel(b->be, kernel, err)) &&
           measure_rates(b->be, precision, &b->results->rates, err);
}

static bool use_pattern(measuring *b, const product_cell *cell, error *err) {
    static const enum product_axis kept[] = {AXIS_PATTERN, AXIS_BLOCK, AXIS_DENSITY, AXIS_GATES};
    bool same = b->layout;
    for (int i = 0; i < 4; i++) same = same && cell->at[kept[i]] == b->latest.at[kept[i]];
    if (same) return true;
    drop_pattern(b);
    const int block = cell->at[AXIS_BLOCK];
    const graph_options options = {.kind = patterns[cell->at[AXIS_PATTERN]],
                                   .density = density_of(cell),
                                   .rewire = 0.1,
                                   .file = "",
                                   .seed = 1};
    graph *g = graph_create(&options, b->g->units / block, err);
    if (!g) return false;
    b->layout = layout_from_graph(g, block, cell->at[AXIS_GATES]);
    graph_free(g);
    b->device = b->be->memory->layout_create(b->be, b->layout);
    return true;
}

/* The time of the dense product, from a row of another pattern where there is one. */
static bool find_dense(measuring *b, product_row *row, error *err) {
    static const enum product_axis kept[] = {AXIS_PRECISION, AXIS_PRODUCT, AXIS_GATES,
                                             AXIS_COLUMNS};
    for (const product_row *other = b->results->rows; other < row; other++) {
        bool same = true;
        for (int i = 0; i < 4; i++) same = same && other->cell.at[kept[i]] == row->cell.at[kept[i]];
        row->dense = other->dense;
        if (same) return true;
    }
    layout *l = layout_dense(b->g->units, b->g->units, row->cell.at[AXIS_GATES], 1);
    device_layout *device = b->be->memory->layout_create(b->be, l);
    product_job j = {
        .be = b->be, .layout = device, .product = (bench_product)row->cell.at[AXIS_PRODUCT]};
    divide_columns(&j, row->cell.at[AXIS_COLUMNS]);
    const bool done = time_product(&j, l, &b->options->how, &row->dense, err);
    b->be->memory->layout_free(b->be, device);
    layout_free(l);
    return done;
}

static void show(measuring *b, const product_row *row, double started) {
    const int *at = row->cell.at;
    const double now = clock_seconds();
    const size_t made = b->results->count + 1;
    char left[32], product[16], pattern[32];
    if (!b->options->progress || now - b->shown < (log_is_terminal() ? 0 : 10)) return;
    b->shown = now;
    log_duration(left, (now - started) / (double)made * (double)(b->g->count - made));
    log_progress(
        "%zu of %zu: %s, %d gates, %s, block %d, density %g, N = %d: %.1f us, ETA %s", made,
        b->g->count, config_choice(BENCH_PRODUCTS, at[AXIS_PRODUCT], product, sizeof product),
        at[AXIS_GATES], config_choice(BENCH_PATTERNS, at[AXIS_PATTERN], pattern, sizeof pattern),
        at[AXIS_BLOCK], density_of(&row->cell), at[AXIS_COLUMNS], row->ours * 1e6, left);
}

/* Times one cell, and computes its floor. */
static bool measure_cell(measuring *b, const product_cell *cell, error *err) {
    product_row *row = &b->results->rows[b->results->count];
    const bench_product product = (bench_product)cell->at[AXIS_PRODUCT];
    const int precision = cell->at[AXIS_PRECISION];
    *row = (product_row){.cell = *cell};
    if (!use_backend(b, precision, err) || !use_pattern(b, cell, err)) return false;
    b->latest = *cell;
    backend *be = b->be;
    const layout *l = b->layout;
    product_job j = {.be = be, .layout = b->device, .product = product};
    divide_columns(&j, cell->at[AXIS_COLUMNS]);
    row->padded = j.columns * j.steps;
    row->kernel = be->bench->kernel_name(be, b->device, product, j.steps, j.columns, err);
    if (!row->kernel || !time_product(&j, l, &b->options->how, &row->ours, err) ||
        !find_dense(b, row, err)) {
        return false;
    }
    const double n = cell->at[AXIS_COLUMNS], weights = (double)layout_weights(l);
    const double in = (double)be->operand_size;
    const double w = product == PRODUCT_WGRAD ? (double)be->real_size : in;
    row->blocks = l->blocks;
    row->density = (double)l->blocks / ((double)l->out_nodes * (double)l->in_nodes);
    row->operations = 2 * weights * n;
    row->weight_bytes = weights * in;
    row->table_bytes = (double)be->memory->layout_bytes(b->device);
    row->memory = (w * weights + in * n * (double)(layout_rows(l) + layout_inputs(l))) /
                  b->results->rates.copy;
    row->arithmetic = row->operations / b->results->rates.product[precision];
    return true;
}

bool products_measure(product_grid *g, const product_options *options, product_results *results,
                      error *err) {
    const double start = clock_seconds();
    stop_catch();
    *results = (product_results){.units = g->units};
    results->rows = mem_alloc(g->count, sizeof *results->rows);
    measuring b = {.options = options, .results = results, .g = g};
    qsort(g->cells, g->count, sizeof *g->cells, measuring_order);
    bool done = true;
    for (size_t i = 0; i < g->count && done && !stop_signal(); i++) {
        done = measure_cell(&b, &g->cells[i], err);
        if (!done) break;
        show(&b, &results->rows[results->count], start);
        results->count++;
    }
    drop_backend(&b);
    qsort(results->rows, results->count, sizeof *results->rows, reading_order);
    results->seconds = clock_seconds() - start;
    return done;
}

/* -------------------------------------------------------------------------------------- reports */

static void rates_text(const device_rates *r, FILE *out) {
    fprintf(out, "measured: copy %.3g TB/s", r->copy * 1e-12);
    for (int i = 0; i < 2; i++) {
        char name[16];
        if (r->product[i] == 0) continue;
        fprintf(out, ", %s %.3g TFLOP/s", config_choice(BENCH_PRECISIONS, i, name, sizeof name),
                r->product[i] * 1e-12);
    }
    fputc('\n', out);
}

static void rates_json(const device_rates *r, json_writer *w) {
    json_number(w, "copy_bytes_per_second", r->copy);
    json_number(w, "bf16_operations_per_second", r->product[0] > 0 ? r->product[0] : NAN);
    json_number(w, "fp32_operations_per_second", r->product[1] > 0 ? r->product[1] : NAN);
}

static bool same_table(const product_row *a, const product_row *b) {
    return memcmp(a->cell.at, b->cell.at, AXIS_DENSITY * sizeof a->cell.at[0]) == 0;
}

static double floor_of(const product_row *row) {
    return fmax(row->memory, row->arithmetic);
}

static const char *held_by(const product_row *row) {
    return row->memory < row->arithmetic ? "arithmetic" : "memory";
}

void products_text(const product_results *r, FILE *out) {
    char precision[16], product[16], pattern[32];
    fprintf(out, "%s; %d units; operands rotated through more than twice the L2\n", r->device,
            r->units);
    rates_text(&r->rates, out);
    fputs("floor: the larger of memory and arithmetic; dense: the same product with a dense W\n",
          out);
    for (size_t i = 0; i < r->count; i++) {
        const product_row *row = &r->rows[i];
        const int *at = row->cell.at;
        if (i == 0 || !same_table(row, row - 1)) {
            fprintf(
                out, "\n%s %s, %d gate%s, %s, block %d, N = %d",
                config_choice(BENCH_PRECISIONS, at[AXIS_PRECISION], precision, sizeof precision),
                config_choice(BENCH_PRODUCTS, at[AXIS_PRODUCT], product, sizeof product),
                at[AXIS_GATES], at[AXIS_GATES] == 1 ? "" : "s",
                config_choice(BENCH_PATTERNS, at[AXIS_PATTERN], pattern, sizeof pattern),
                at[AXIS_BLOCK], at[AXIS_COLUMNS]);
            if (row->padded != at[AXIS_COLUMNS]) fprintf(out, " (ours padded to %d)", row->padded);
            fprintf(out, "; microseconds\n%8s %8s %9s %9s %7s | %8s %8s %6s  %-10s %s\n", "density",
                    "blocks", "ours", "dense", "x", "memory", "arith.", "share", "held by",
                    "kernel");
        }
        fprintf(out, "%8.4f %8d %9.1f %9.1f %7.2f | %8.1f %8.1f %4.0f %%  %-10s %s\n", row->density,
                row->blocks, row->ours * 1e6, row->dense * 1e6, row->dense / row->ours,
                row->memory * 1e6, row->arithmetic * 1e6, 100 * floor_of(row) / row->ours,
                held_by(row), row->kernel);
    }
    fprintf(out, "\n%zu cells in %.0f s\n", r->count, r->seconds);
}

void products_json(const product_results *r, FILE *out) {
    static const char *const words[] = {[AXIS_PRECISION] = BENCH_PRECISIONS,
                                        [AXIS_PRODUCT] = BENCH_PRODUCTS,
                                        [AXIS_PATTERN] = BENCH_PATTERNS,
                                        [AXIS_DENSITY] = NULL};
    static const char *const names[] = {"precision", "product", "gates",
                                        "pattern",   "block",   "columns"};
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_string(&w, "device", r->device);
    json_integer(&w, "units", r->units);
    rates_json(&r->rates, &w);
    json_array_begin(&w, "rows");
    for (size_t i = 0; i < r->count; i++) {
        const product_row *row = &r->rows[i];
        char word[32];
        json_object_begin(&w, NULL);
        for (int axis = 0; axis < AXIS_DENSITY; axis++) {
            const int value = row->cell.at[axis];
            if (!words[axis]) json_integer(&w, names[axis], value);
            if (words[axis])
                json_string(&w, names[axis], config_choice(words[axis], value, word, sizeof word));
        }
        json_number(&w, "asked_density", density_of(&row->cell));
        json_number(&w, "density", row->density);
        json_integer(&w, "blocks", row->blocks);
        json_integer(&w, "padded_columns", row->padded);
        json_number(&w, "ours_us", row->ours * 1e6);
        json_number(&w, "dense_us", row->dense * 1e6);
        json_number(&w, "speedup", row->dense / row->ours);
        json_number(&w, "memory_us", row->memory * 1e6);
        json_number(&w, "arithmetic_us", row->arithmetic * 1e6);
        json_number(&w, "floor_us", floor_of(row) * 1e6);
        json_number(&w, "share", floor_of(row) / row->ours);
        json_number(&w, "tflops", row->operations / row->ours * 1e-12);
        json_number(&w, "weight_bytes", row->weight_bytes);
        json_number(&w, "table_bytes", row->table_bytes);
        json_string(&w, "held_by", held_by(row));
        json_string(&w, "kernel", row->kernel);
        json_object_end(&w);
    }
    json_array_end(&w);
    json_number(&w, "seconds", r->seconds);
    json_object_end(&w);
    fputc('\n', out);
}

/* --------------------------------------------------------------------------------- convolutions */

/* Draws `most` of the numbers below `count`, ascending, to `chosen`. */
static void draw_nodes(philox_stream *random, int count, int most, int32_t *chosen) {
    for (int j = 0, left = most; left > 0; j++) {
        if ((int)philox_below(random, (uint64_t)(count - j)) >= left) continue;
        chosen[most - left--] = j;
    }
}

static layout *draw_layout(const conv_options *o, double density) {
    const int nodes = o->features / o->block;
    const double wanted = round(density * nodes * nodes);
    const int count = wanted < 1 ? 1 : (int)wanted;
    int32_t(*pairs)[2] = mem_alloc((size_t)count, sizeof *pairs);
    int32_t *chosen = mem_alloc((size_t)nodes, sizeof *chosen);
    philox_stream random = philox_start(1, PHILOX_GRAPH, 0, 0);
    for (int i = 0, made = 0; i < nodes; i++) {
        const int row = (int)((int64_t)count * (i + 1) / nodes) - made;
        draw_nodes(&random, nodes, row, chosen);
        for (int k = 0; k < row; k++, made++) {
            pairs[made][0] = i;
            pairs[made][1] = chosen[k];
        }
    }
    layout *l = layout_pairs(nodes, nodes, (const int32_t(*)[2])pairs, count, o->block,
                             conv_positions(o->shape.filter));
    free(chosen);
    free(pairs);
    return l;
}

typedef struct conv_job {
    backend *be;
    const device_layout *layout;
    const tap_table *taps;
    bench_product product;
    int images;
    void *w, *x, *y, *dw; /* x serves as dx too, and y as dy */
} conv_job;

static void issue_conv(void *argument, int set) {
    (void)set;
    const conv_job *j = argument;
    backend *be = j->be;
    switch (j->product) {
    case PRODUCT_FPROP:
        be->products->conv_fprop(be, j->layout, j->taps, j->w, j->x, j->images, j->y);
        return;
    case PRODUCT_DGRAD:
        be->products->conv_dgrad(be, j->layout, j->taps, j->w, j->y, j->images, j->x);
        return;
    default: be->products->conv_wgrad(be, j->layout, j->taps, j->y, j->x, j->images, j->dw);
    }
}

/* Each product begins with fresh operands, since a result takes an operand's place. */
static bool time_conv(conv_job *j, const conv_options *o, const layout *l, double seconds[PRODUCTS],
                      error *err) {
    backend *be = j->be;
    const size_t columns = (size_t)o->images, weights = layout_weights(l);
    const size_t inputs = layout_inputs(l) * columns * (size_t)j->taps->in_positions;
    const size_t outputs = layout_rows(l) * columns * (size_t)j->taps->out_positions;
    bool done = (j->w = take(be, weights * be->operand_size, err)) &&
                (j->x = take(be, inputs * be->operand_size, err)) &&
                (j->y = take(be, outputs * be->operand_size, err)) &&
                (j->dw = take(be, weights * be->real_size, err));
    for (int product = 0; product < PRODUCTS && done; product++) {
        be->bench->randomise(be, j->w, weights, 1);
        be->bench->randomise(be, j->x, inputs, 2);
        be->bench->randomise(be, j->y, outputs, 3);
        j->product = (bench_product)product;
        done = time_operation(be, &o->how, issue_conv, j, 1, &seconds[product], err);
    }
    void *const arrays[] = {j->w, j->x, j->y, j->dw};
    for (int i = 0; i < 4; i++) {
        if (arrays[i]) be->memory->release(be, arrays[i]);
    }
    return done;
}

bool conv_measure(const conv_options *o, conv_results *results, error *err) {
    *results = (conv_results){.count = 0};
    backend *be = backend_cuda(precisions[o->precision], 0, err);
    if (!be) return false;
    const int multiple = be->product_multiple;
    tap_table *host = taps_of(&o->shape), *taps = be->memory->taps_create(be, host);
    bool done =
        o->images % multiple == 0 ||
        error_usage(err, "--images: expected a multiple of %d, got %d", multiple, o->images);
    done = done && measure_rates(be, o->precision, &results->rates, err);
    snprintf(results->device, sizeof results->device, "%s", be->device);
    results->dense = 2.0 * o->features * o->features * conv_positions(o->shape.filter) *
                     conv_positions(o->shape.out) * o->images /
                     results->rates.product[o->precision];
    for (int i = 0; i < o->density_count && done; i++) {
        layout *l = draw_layout(o, o->densities[i]);
        device_layout *device = be->memory->layout_create(be, l);
        conv_job j = {.be = be, .layout = device, .taps = taps, .images = o->images};
        results->rows[i].density = (double)l->blocks / ((double)l->out_nodes * (double)l->in_nodes);
        done = time_conv(&j, o, l, results->rows[i].seconds, err);
        results->count += done;
        be->memory->layout_free(be, device);
        layout_free(l);
    }
    be->memory->taps_free(be, taps);
    taps_free(host);
    be->memory->destroy(be);
    return done;
}

void conv_text(const conv_options *o, const conv_results *results, FILE *out) {
    char name[16];
    fprintf(out, "%s, %s; %d features in blocks of %d, %d x %d filter, %d x %d pixels, %d images\n",
            results->device, config_choice(BENCH_PRECISIONS, o->precision, name, sizeof name),
            o->features, o->block, o->shape.filter[0], o->shape.filter[1], o->shape.in[0],
            o->shape.in[1], o->images);
    rates_text(&results->rates, out);
    fprintf(out, "dense, at the measured rate: %.0f us\n\n%8s", results->dense * 1e6, "density");
    for (int k = 0; k < PRODUCTS; k++) fprintf(out, " %9s %8s", product_names[k], "of dense");
    fputc('\n', out);
    for (int i = 0; i < results->count; i++) {
        const double *seconds = results->rows[i].seconds;
        fprintf(out, "%8.4f", results->rows[i].density);
        for (int k = 0; k < PRODUCTS; k++) {
            fprintf(out, " %6.0f us %8.3f", seconds[k] * 1e6, seconds[k] / results->dense);
        }
        fputc('\n', out);
    }
}

void conv_json(const conv_options *o, const conv_results *results, FILE *out) {
    char name[16];
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_string(&w, "device", results->device);
    json_string(&w, "precision", config_choice(BENCH_PRECISIONS, o->precision, name, sizeof name));
    json_integer(&w, "features", o->features);
    json_integer(&w, "block", o->block);
    json_integer(&w, "filter", o->shape.filter[0]);
    json_integer(&w, "size", o->shape.in[0]);
    json_integer(&w, "images", o->images);
    rates_json(&results->rates, &w);
    json_number(&w, "dense_us", results->dense * 1e6);
    json_array_begin(&w, "rows");
    for (int i = 0; i < results->count; i++) {
        json_object_begin(&w, NULL);
        json_number(&w, "density", results->rows[i].density);
        for (int k = 0; k < PRODUCTS; k++) {
            snprintf(name, sizeof name, "%s_us", product_names[k]);
            json_number(&w, name, results->rows[i].seconds[k] * 1e6);
        }
        json_object_end(&w);
    }
    json_array_end(&w);
    json_object_end(&w);
    fputc('\n', out);
}
