/* smallworld bench: measure the products against their floors, and the update. */
#include "bench/products.h"
#include "bench/update.h"
#include "cmd/cli.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/stop.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- matmul */

typedef struct matmul_arguments {
    product_axes axes;
    const char *kernel;
    int64_t units;
    bool full, chosen, json;
} matmul_arguments;

/* How the values of an axis are given: by these words, or as whole numbers in this range. */
static const struct {
    const char *option, *words;
    int64_t least, most;
} axis_values[AXES] = {[AXIS_PRECISION] = {"--precision", BENCH_PRECISIONS, 0, 0},
                       [AXIS_PRODUCT] = {"--product", BENCH_PRODUCTS, 0, 0},
                       [AXIS_GATES] = {"--gates", NULL, 1, 4},
                       [AXIS_PATTERN] = {"--pattern", BENCH_PATTERNS, 0, 0},
                       [AXIS_BLOCK] = {"--block", NULL, 8, 128},
                       [AXIS_COLUMNS] = {"--columns", NULL, 1, 1 << 16},
                       [AXIS_DENSITY] = {"--density", NULL, 0, 0}};

static void check_block(struct argp_state *state, int block) {
    if (block & (block - 1)) {
        cli_refuse(state, "--block: expected 8, 16, 32, 64 or 128, got %d", block);
    }
}

static double parse_density(struct argp_state *state, const char *word) {
    return cli_number(state, "--density", word, 1.0 / PER_DENSITY, 0.99);
}

static int parse_value(struct argp_state *state, int axis, const char *word) {
    const char *option = axis_values[axis].option, *words = axis_values[axis].words;
    if (axis == AXIS_DENSITY) return (int)lround(parse_density(state, word) * PER_DENSITY);
    if (words) return cli_choice(state, option, word, words);
    const int value =
        (int)cli_integer(state, option, word, axis_values[axis].least, axis_values[axis].most);
    if (axis == AXIS_BLOCK) check_block(state, value);
    if (axis == AXIS_GATES && value != 1 && value != GATES) {
        cli_refuse(state, "--gates: expected 1 or 4, got %d", value);
    }
    return value;
}

static void refuse_more(struct argp_state *state, const char *option) {
    cli_refuse(state, "%s: expected at most %d values", option, AXIS_MOST);
}

/* `least` of the row: its axis. */
static void take_axis(struct argp_state *state, const cli_row *row, void *input, char *text) {
    matmul_arguments *a = input;
    const int axis = (int)row->least;
    int count = 0;
    for (char *word; (word = strsep(&text, ","));) {
        if (count == AXIS_MOST) refuse_more(state, axis_values[axis].option);
        a->axes.values[axis][count++] = parse_value(state, axis, word);
    }
    a->axes.count[axis] = count;
    a->chosen = true;
}

#define AXIS(name, axis, text)                                                                     \
    { CLI_CALL, name, "LIST", .offset = 0, text, .least = (axis), .take = take_axis }

static const cli_row matmul_rows[] = {
    {CLI_INTEGER, "units", "N", .offset = offsetof(matmul_arguments, units),
     "Number of rows and of columns of one gate's matrix; default 12288", 256, 1 << 20},
    AXIS("precision", AXIS_PRECISION, "Precisions, of " BENCH_PRECISIONS "; default bf16"),
    AXIS("product", AXIS_PRODUCT, "Products, of " BENCH_PRODUCTS "; default fprop"),
    AXIS("gates", AXIS_GATES, "Numbers of matrices that share one pattern, of 1 and 4; default 1"),
    AXIS("pattern", AXIS_PATTERN, "Patterns, of " BENCH_PATTERNS "; default random"),
    AXIS("block", AXIS_BLOCK, "Sides of a block, of 8, 16, 32, 64 and 128; default 32"),
    AXIS("density", AXIS_DENSITY,
         "Shares of the blocks that exist; default 0.5,0.2,0.1,0.05,0.03,0.01"),
    AXIS("columns", AXIS_COLUMNS,
         "Numbers of columns N: the minibatch's, or the depth that wgrad sums over; default 32"),
    {CLI_FLAG, "full", NULL, .offset = offsetof(matmul_arguments, full),
     "Measure slices of the whole grid instead, which takes some minutes"},
    {CLI_TEXT, "kernel", "NAME", .offset = offsetof(matmul_arguments, kernel),
     "Measure this kernel instead of the one that a model would use; a wrong name lists all"},
    {CLI_FLAG, "json", NULL, .offset = offsetof(matmul_arguments, json),
     "Print one JSON object instead of the table"},
};

static void check_matmul(struct argp_state *state, void *input) {
    const matmul_arguments *a = input;
    if (a->full && a->chosen)
        cli_refuse(state, "--full: chooses the grid itself, so no list may be given");
}

static const char matmul_help[] =
    "Measure the block-sparse products beside the dense product of the same shape and their "
    "floors, "
    "on this machine's GPU (GPU only): medians over replays of CUDA graphs, on random data, with "
    "operands rotated through more than twice the L2. scripts/peer.py adds cuSPARSE."
    "\vA list is separated by commas; all combinations of the lists are measured. --full measures "
    "every product at N = 8 to 8192 with bf16, one gate, random patterns and blocks of 32. It then "
    "varies one of these at a time, at some N: four gates, other patterns, other blocks and "
    "fp32.\n\n"
    "The floor is the larger of memory (weights, inputs and outputs once, over the measured copy "
    "bandwidth) and arithmetic (2 N operations a weight, over the measured rate of a dense "
    "product). wgrad's N is its depth.\n\n"
    "Examples:\n  smallworld bench matmul --columns 32,512\n"
    "  smallworld bench matmul --product fprop,wgrad --gates 4 \\\n"
    "      --columns 128,8192 --json";

static int bench_matmul(int argc, char **argv) {
    static const cli_command command = {"", matmul_help, CLI_ROWS(matmul_rows), check_matmul, NULL};
    matmul_arguments a = {.axes = product_default, .units = 12288};
    cli_parse(&command, argc, argv, &a);
    error err;
    product_results results;
    product_grid g = {.units = (int)a.units};
    product_options options = {!a.json || log_is_terminal(), a.kernel, {9, 2e-3, 1}};
    if (a.full) {
        options.how = (timing){5, 5e-4, 0.1};
        product_grid_add_full(&g);
    } else {
        product_grid_add(&g, &a.axes);
    }
    bool done =
        g.count > 0 || error_usage(&err, "no cell of this grid is possible: --block must "
                                         "divide --units, and each row needs at least two blocks");
    if (done) {
        done = products_measure(&g, &options, &results, &err);
        log_end();
        if (results.count > 0) (a.json ? products_json : products_text)(&results, stdout);
        if (done && results.count < g.count) {
            log_line("stopped after %zu of %zu cells", results.count, g.count);
        }
        free(results.rows);
    }
    free(g.cells);
    if (!done) return cli_fail(&err, "bench matmul");
    return stop_signal() ? 128 + stop_signal() : STATUS_OK;
}

/* -------------------------------------------------------------------------------------- conv */

typedef struct conv_arguments {
    conv_options options;
    int filter, size;
    bool json;
} conv_arguments;

static void take_densities(struct argp_state *state, const cli_row *row, void *input, char *text) {
    conv_options *o = input;
    (void)row;
    o->density_count = 0;
    for (char *word; (word = strsep(&text, ","));) {
        if (o->density_count == AXIS_MOST) refuse_more(state, "--density");
        o->densities[o->density_count++] = parse_density(state, word);
    }
}

static const cli_row conv_rows[] = {
    {CLI_COUNT, "features", "N", .offset = offsetof(conv_arguments, options.features),
     "Features of the input and of the output; default 1024", 8, 1 << 15},
    {CLI_COUNT, "block", "N", .offset = offsetof(conv_arguments, options.block),
     "Side of a block, 8, 16, 32, 64 or 128; default 32", 8, 128},
    {CLI_CALL, "density", "LIST", .offset = offsetof(conv_arguments, options),
     "Shares of the blocks that exist; default 0.5,0.25,0.1,0.05", .take = take_densities},
    {CLI_COUNT, "filter", "N", .offset = offsetof(conv_arguments, filter),
     "Side of the filter, odd; default 3", 1, 63},
    {CLI_COUNT, "size", "N", .offset = offsetof(conv_arguments, size),
     "Side of an image in pixels; default 32", 1, 255},
    {CLI_COUNT, "images", "N", .offset = offsetof(conv_arguments, options.images),
     "Number of images; default 64", 1, 1 << 14},
    {CLI_CHOICE, "precision", "NAME", .offset = offsetof(conv_arguments, options.precision),
     "One of " BENCH_PRECISIONS "; default bf16", .choices = BENCH_PRECISIONS},
    CLI_JSON(offsetof(conv_arguments, json)),
};

static void check_conv(struct argp_state *state, void *input) {
    const conv_arguments *a = input;
    const conv_options *o = &a->options;
    check_block(state, o->block);
    if (a->filter % 2 == 0)
        cli_refuse(state, "--filter: expected an odd number, got %d", a->filter);
    if (o->features % o->block) {
        cli_refuse(state, "--features: expected a multiple of --block, %d, got %d", o->block,
                   o->features);
    }
}

static const char conv_help[] =
    "Measure convolutions that are block-sparse in their features, with stride 1 and an output of "
    "the input's size, on this machine's GPU (GPU only): medians over replays of CUDA graphs, on "
    "random data."
    "\vThe time of a dense convolution is its operations over the measured rate of a large dense "
    "product; scripts/peer.py adds that of cuDNN. Patterns are random, with equally many "
    "blocks in each row.\n\n"
    "Example:\n  smallworld bench conv --features 256 --size 16";

static int bench_conv(int argc, char **argv) {
    static const cli_command command = {"", conv_help, CLI_ROWS(conv_rows), check_conv, NULL};
    conv_arguments a = {.options = {.features = 1024,
                                    .block = 32,
                                    .images = 64,
                                    .densities = {0.5, 0.25, 0.1, 0.05},
                                    .density_count = 4,
                                    .how = {9, 2e-3, 1}},
                        .filter = 3,
                        .size = 32};
    cli_parse(&command, argc, argv, &a);
    const int pad = a.filter / 2;
    a.options.shape = (conv_shape){.in = {a.size, a.size},
                                   .filter = {a.filter, a.filter},
                                   .stride = {1, 1},
                                   .dilation = {1, 1},
                                   .pad = {{pad, pad}, {pad, pad}}};
    error err;
    conv_results results;
    if (!conv_shape_finish(&a.options.shape, &err) || !conv_measure(&a.options, &results, &err)) {
        return cli_fail(&err, "bench conv");
    }
    if (a.json) {
        conv_json(&a.options, &results, stdout);
    } else {
        conv_text(&a.options, &results, stdout);
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------------------------------ train */

typedef struct train_arguments {
    overrides model;
    const char *config;
    config_list assignments, files;
    double seconds;
    bool json, explain;
} train_arguments;

static const cli_row train_rows[] = {
    {CLI_ARGUMENT, NULL, "CONFIG.yaml", .offset = offsetof(train_arguments, config),
     "a CONFIG.yaml"},
    CLI_SET(offsetof(train_arguments, assignments)),
    {CLI_LIST, "data", "FILE", .offset = offsetof(train_arguments, files),
     "Train on FILE instead of made-up text; may be repeated"},
    {CLI_NUMBER, "seconds", "S", .offset = offsetof(train_arguments, seconds),
     "Measure for about S seconds; default 30", 0.1, 3600},
    {CLI_FLAG, "explain", NULL, .offset = offsetof(train_arguments, explain),
     "On a GPU, also print which kernel computes what, and why"},
    CLI_JSON(offsetof(train_arguments, json)),
    CLI_MODEL(offsetof(train_arguments, model)),
};

static const char train_help[] =
    "Run real updates of a model on made-up text and print how fast they are, where the time goes, "
    "and what memory they need. Nothing is written; the config's data files are not needed."
    "\vParts are timed by the device's clock, within updates as training runs them. backward "
    "leaves out the gradient of the recurrent weights, which is timed by computing it once more. "
    "head counts both directions. recompute appears with train.recompute.\n\n"
    "tflops counts 6 operations a parameter and byte. forward is scoring as eval does.\n\n"
    "Example:\n  smallworld bench train configs/quickstart.yaml --set train.batch=64";

static int bench_train(int argc, char **argv) {
    static const cli_command command = {"CONFIG.yaml", train_help, CLI_ROWS(train_rows), NULL,
                                        NULL};
    train_arguments a = {.seconds = 30};
    cli_parse(&command, argc, argv, &a);
    error err;
    options o;
    update_results results;
    update_options how = {a.seconds, a.files.items, a.files.count, !a.json || log_is_terminal()};
    options_begin(&o);
    bool done = options_load(&o, a.config, a.assignments.items, a.assignments.count, &err) &&
                overrides_apply(&a.model, &o, &err) && options_check(&o, &err) &&
                update_measure(&o, &how, &results, &err);
    options_free(&o);
    free(a.assignments.items);
    free(a.files.items);
    if (!done) return cli_fail(&err, "bench train");
    log_end();
    if (a.explain && results.kernels) fprintf(a.json ? stderr : stdout, "%s\n", results.kernels);
    if (a.json) {
        update_json(&results, stdout);
    } else {
        update_text(&results, stdout);
    }
    free(results.kernels);
    return STATUS_OK;
}

/* ---------------------------------------------------------------------------------- dispatch */

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} benches[] = {
    {"matmul", bench_matmul, "block-sparse products beside dense ones and their floors; GPU only"},
    {"conv", bench_conv, "block-sparse convolutions beside a dense one; GPU only"},
    {"train", bench_train, "updates of a model: speed, parts, memory"},
};

enum { BENCHES = sizeof benches / sizeof benches[0] };

static void print_help(FILE *out) {
    fputs("Usage: smallworld bench NAME [OPTION...]\nMeasure this machine's speed.\n\n", out);
    for (int i = 0; i < BENCHES; i++) {
        fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].summary);
    }
    fputs("\n'smallworld bench NAME --help' describes a benchmark, with an example.\n", out);
}

int cmd_bench(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : NULL;
    if (name && (strcmp(name, "--help") == 0 || strcmp(name, "-?") == 0)) {
        print_help(stdout);
        return STATUS_OK;
    }
    for (int i = 0; name && i < BENCHES; i++) {
        if (strcmp(name, benches[i].name) != 0) continue;
        char *full = mem_format("%s %s", argv[0], name);
        argv[1] = full; /* argp's messages start with this name */
        int status = benches[i].run(argc - 1, argv + 1);
        free(full);
        return status;
    }
    if (!name) {
        print_help(stderr);
        return STATUS_USAGE;
    }
    const char *names[BENCHES];
    for (int i = 0; i < BENCHES; i++) names[i] = benches[i].name;
    const char *near = nearest_name(name, names, BENCHES);
    error err;
    error_usage(&err, "unknown benchmark '%s'%s%s%s", name, near ? "; the nearest is '" : "",
                near ? near : "", near ? "'" : "");
    return cli_fail(&err, "bench");
}
