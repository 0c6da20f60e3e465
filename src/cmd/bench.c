/* smallworld bench: measure the products and the update against their floors. */
#include "bench/conv.h"
#include "bench/report.h"
#include "bench/update.h"
#include "cmd/cli.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/stop.h"

#include <stdlib.h>
#include <string.h>

/* ----------------------------------------------------------------------------------- matmul */

typedef struct matmul_arguments {
    grid_axes axes;
    const char *kernel;
    int64_t units;
    bool full, chosen, no_cusparse, json;
} matmul_arguments;

enum {
    KEY_UNITS = 1,
    KEY_PRECISION,
    KEY_PRODUCT,
    KEY_GATES,
    KEY_PATTERN,
    KEY_BLOCK,
    KEY_DENSITY,
    KEY_COLUMNS,
    KEY_FULL,
    KEY_NO_CUSPARSE,
    KEY_JSON,
    KEY_KERNEL,
    KEY_FEATURES,
    KEY_FILTER,
    KEY_SIZE,
    KEY_IMAGES
};

static const struct argp_option matmul_options_table[] = {
    {"units", KEY_UNITS, "N", 0,
     "Number of rows and of columns of one gate's matrix; default 12288", 0},
    {"precision", KEY_PRECISION, "LIST", 0, "Precisions, of " BENCH_PRECISIONS "; default bf16", 0},
    {"product", KEY_PRODUCT, "LIST", 0, "Products, of " BENCH_PRODUCTS "; default fprop", 0},
    {"gates", KEY_GATES, "LIST", 0,
     "Numbers of matrices that share one pattern, of 1 and 4; default 1", 0},
    {"pattern", KEY_PATTERN, "LIST", 0, "Patterns, of " BENCH_PATTERNS "; default random", 0},
    {"block", KEY_BLOCK, "LIST", 0, "Sides of a block, of 8, 16, 32, 64 and 128; default 32", 0},
    {"density", KEY_DENSITY, "LIST", 0,
     "Shares of the blocks that exist; default 0.5,0.2,0.1,0.05,0.03,0.01", 0},
    {"columns", KEY_COLUMNS, "LIST", 0,
     "Numbers of columns N: the minibatch's, or the depth that wgrad sums over; default 32", 0},
    {"full", KEY_FULL, NULL, 0,
     "Measure slices of the whole grid instead, which takes some minutes", 0},
    {"kernel", KEY_KERNEL, "NAME", 0,
     "Measure this kernel instead of the one that a model would use; a wrong name lists all", 0},
    {"no-cusparse", KEY_NO_CUSPARSE, NULL, 0, "Compare with cuBLAS alone", 0},
    {"json", KEY_JSON, NULL, 0, "Print one JSON object instead of the table", 0},
    {0},
};

/* Returns the next word of a comma-separated list, or NULL after the last one. Changes `list`. */
static char *next_word(char **list) {
    return strsep(list, ",");
}

static void parse_choices(struct argp_state *state, const char *option, char *list,
                          const char *choices, int *values, int *count) {
    *count = 0;
    for (char *word; (word = next_word(&list));) {
        if (*count == AXIS_MOST)
            cli_refuse(state, "%s: expected at most %d values", option, AXIS_MOST);
        values[(*count)++] = cli_choice(state, option, word, choices);
    }
}

static void parse_integers(struct argp_state *state, const char *option, char *list, int64_t least,
                           int64_t most, int *values, int *count) {
    *count = 0;
    for (char *word; (word = next_word(&list));) {
        if (*count == AXIS_MOST)
            cli_refuse(state, "%s: expected at most %d values", option, AXIS_MOST);
        values[(*count)++] = (int)cli_integer(state, option, word, least, most);
    }
}

static void parse_densities(struct argp_state *state, char *list, double *densities, int *count) {
    *count = 0;
    for (char *word; (word = next_word(&list));) {
        if (*count == AXIS_MOST) {
            cli_refuse(state, "--density: expected at most %d values", AXIS_MOST);
        }
        densities[(*count)++] = cli_number(state, "--density", word, 1e-4, 0.99);
    }
}

static void check_block(struct argp_state *state, int block) {
    if (block & (block - 1)) {
        cli_refuse(state, "--block: expected 8, 16, 32, 64 or 128, got %d", block);
    }
}

static void check_shapes(struct argp_state *state, const grid_axes *axes) {
    for (int i = 0; i < axes->gates_count; i++) {
        if (axes->gates[i] != 1 && axes->gates[i] != GATES) {
            cli_refuse(state, "--gates: expected 1 or 4, got %d", axes->gates[i]);
        }
    }
    for (int i = 0; i < axes->block_count; i++) check_block(state, axes->blocks[i]);
}

static error_t parse_matmul(int key, char *text, struct argp_state *state) {
    matmul_arguments *a = state->input;
    grid_axes *x = &a->axes;
    a->chosen = a->chosen || (key >= KEY_PRECISION && key <= KEY_COLUMNS);
    switch (key) {
    case KEY_UNITS: a->units = cli_integer(state, "--units", text, 256, 1 << 20); return 0;
    case KEY_PRECISION:
        parse_choices(state, "--precision", text, BENCH_PRECISIONS, x->precisions,
                      &x->precision_count);
        return 0;
    case KEY_PRODUCT:
        parse_choices(state, "--product", text, BENCH_PRODUCTS, x->products, &x->product_count);
        return 0;
    case KEY_GATES:
        parse_integers(state, "--gates", text, 1, 4, x->gates, &x->gates_count);
        return 0;
    case KEY_PATTERN:
        parse_choices(state, "--pattern", text, BENCH_PATTERNS, x->patterns, &x->pattern_count);
        return 0;
    case KEY_BLOCK:
        parse_integers(state, "--block", text, 8, 128, x->blocks, &x->block_count);
        return 0;
    case KEY_DENSITY: parse_densities(state, text, x->densities, &x->density_count); return 0;
    case KEY_COLUMNS:
        parse_integers(state, "--columns", text, 1, 1 << 16, x->columns, &x->columns_count);
        return 0;
    case KEY_FULL: a->full = true; return 0;
    case KEY_NO_CUSPARSE: a->no_cusparse = true; return 0;
    case KEY_JSON: a->json = true; return 0;
    case KEY_KERNEL: a->kernel = text; return 0;
    case ARGP_KEY_ARG: cli_refuse(state, "expected no arguments, got '%s'", text); return 0;
    case ARGP_KEY_END:
        check_shapes(state, x);
        if (a->full && a->chosen)
            cli_refuse(state, "--full: chooses the grid itself, so no list may be given");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char matmul_help[] =
    "Measure the block-sparse products against cuBLAS (dense, same precision), cuSPARSE "
    "(blocked-ELL, in the faster order of the activations) and their floors, on this machine's "
    "GPU: medians over replays of CUDA graphs, on random data, with operands rotated through more "
    "than twice the L2."
    "\vA list is separated by commas; all combinations of the lists are measured. --full measures "
    "every product at N = 8 to 8192 with bf16, one gate, random patterns and blocks of 32. It then "
    "varies one of these at a time, at some N: four gates, other patterns, other blocks and "
    "fp32.\n\n"
    "The floor is the larger of memory (weights, inputs and outputs once, over the measured copy "
    "bandwidth) and arithmetic (2 N operations a weight, over the measured rate of a dense "
    "product), and one empty graph node. L2 is the least that must be gathered from there into the "
    "multiprocessors, given what neighbouring rows of the pattern share, over its measured "
    "bandwidth. wgrad's N is its depth.\n\n"
    "Examples:\n  smallworld bench matmul --columns 32,512\n"
    "  smallworld bench matmul --product fprop,wgrad --gates 4 \\\n"
    "      --columns 128,8192 --json";

static void report(const matmul_arguments *a, const matmul_results *results) {
    log_end();
    if (a->json) {
        report_json(results, stdout);
    } else {
        report_text(results, stdout);
    }
}

static int bench_matmul(int argc, char **argv) {
    static const struct argp argp = {
        matmul_options_table, parse_matmul, "", matmul_help, NULL, NULL, NULL};
    matmul_arguments a = {.axes = grid_default, .units = 12288};
    cli_parse(&argp, argc, argv, &a);
    error err;
    matmul_results results;
    grid g = {.units = (int)a.units};
    matmul_options options = {!a.no_cusparse, !a.json || log_is_terminal(), a.kernel, {9, 2e-3, 1}};
    if (a.full) {
        options.how = (timing){5, 5e-4, 0.1};
        grid_add_full(&g);
    } else {
        grid_add(&g, &a.axes);
    }
    bool done =
        g.count > 0 || error_usage(&err, "no cell of this grid is possible: --block must "
                                         "divide --units, and each row needs at least two blocks");
    if (done) {
        done = matmul_run(&g, &options, &results, &err);
        if (results.count > 0) report(&a, &results); /* also those from before a failure */
        if (done && results.count < g.count) {
            log_line("stopped after %zu of %zu cells", results.count, g.count);
        }
        matmul_free(&results);
    }
    grid_free(&g);
    if (!done) return cli_fail(&err, "bench matmul");
    return stop_signal() ? 128 + stop_signal() : STATUS_OK;
}

/* -------------------------------------------------------------------------------------- conv */

typedef struct conv_arguments {
    conv_options options;
    int filter, size;
    bool json;
} conv_arguments;

static const struct argp_option conv_options_table[] = {
    {"features", KEY_FEATURES, "N", 0, "Features of the input and of the output; default 1024", 0},
    {"block", KEY_BLOCK, "N", 0, "Side of a block, 8, 16, 32, 64 or 128; default 32", 0},
    {"density", KEY_DENSITY, "LIST", 0,
     "Shares of the blocks that exist; default 0.5,0.25,0.1,0.05", 0},
    {"filter", KEY_FILTER, "N", 0, "Side of the filter, odd; default 3", 0},
    {"size", KEY_SIZE, "N", 0, "Side of an image in pixels; default 32", 0},
    {"images", KEY_IMAGES, "N", 0, "Number of images; default 64", 0},
    {"precision", KEY_PRECISION, "NAME", 0, "One of " BENCH_PRECISIONS "; default bf16", 0},
    CLI_JSON(KEY_JSON),
    {0},
};

static error_t parse_conv(int key, char *text, struct argp_state *state) {
    conv_arguments *a = state->input;
    conv_options *o = &a->options;
    switch (key) {
    case KEY_FEATURES:
        o->features = (int)cli_integer(state, "--features", text, 8, 1 << 15);
        return 0;
    case KEY_BLOCK:
        o->block = (int)cli_integer(state, "--block", text, 8, 128);
        check_block(state, o->block);
        return 0;
    case KEY_DENSITY: parse_densities(state, text, o->densities, &o->density_count); return 0;
    case KEY_FILTER: a->filter = (int)cli_integer(state, "--filter", text, 1, 63); return 0;
    case KEY_SIZE: a->size = (int)cli_integer(state, "--size", text, 1, 255); return 0;
    case KEY_IMAGES: o->images = (int)cli_integer(state, "--images", text, 1, 1 << 14); return 0;
    case KEY_PRECISION:
        o->precision = cli_choice(state, "--precision", text, BENCH_PRECISIONS);
        return 0;
    case KEY_JSON: a->json = true; return 0;
    case ARGP_KEY_ARG: cli_refuse(state, "expected no arguments, got '%s'", text); return 0;
    case ARGP_KEY_END:
        if (a->filter % 2 == 0)
            cli_refuse(state, "--filter: expected an odd number, got %d", a->filter);
        if (o->features % o->block) {
            cli_refuse(state, "--features: expected a multiple of --block, %d, got %d", o->block,
                       o->features);
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char conv_help[] =
    "Measure convolutions that are block-sparse in their features, with stride 1 and an output of "
    "the input's size, on this machine's GPU: medians over replays of CUDA graphs, on random data."
    "\vThe time of a dense convolution is its operations over the measured rate of a large dense "
    "product; scripts/peer_conv.py adds that of cuDNN. Patterns are random, with equally many "
    "blocks in each row.\n\n"
    "Example:\n  smallworld bench conv --features 256 --size 16";

static int bench_conv(int argc, char **argv) {
    static const struct argp argp = {
        conv_options_table, parse_conv, "", conv_help, NULL, NULL, NULL};
    conv_arguments a = {.options = {.features = 1024,
                                    .block = 32,
                                    .images = 64,
                                    .densities = {0.5, 0.25, 0.1, 0.05},
                                    .density_count = 4,
                                    .how = {9, 2e-3, 1}},
                        .filter = 3,
                        .size = 32};
    cli_parse(&argp, argc, argv, &a);
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

enum { KEY_SET = 1, KEY_DATA, KEY_SECONDS, KEY_EXPLAIN, KEY_TRAIN_JSON };

static const struct argp_option train_options_table[] = {
    CLI_SET(KEY_SET),
    {"data", KEY_DATA, "FILE", 0, "Train on FILE instead of made-up text; may be repeated", 0},
    {"seconds", KEY_SECONDS, "S", 0, "Measure for about S seconds; default 30", 0},
    {"explain", KEY_EXPLAIN, NULL, 0,
     "Print how the floor is derived, and each operation's kernel and why", 0},
    CLI_JSON(KEY_TRAIN_JSON),
    {0},
};

static error_t parse_train(int key, char *text, struct argp_state *state) {
    train_arguments *a = state->input;
    switch (key) {
    case KEY_SET: cli_append(&a->assignments, text); return 0;
    case KEY_DATA: cli_append(&a->files, text); return 0;
    case KEY_SECONDS: a->seconds = cli_number(state, "--seconds", text, 0.1, 3600); return 0;
    case KEY_EXPLAIN: a->explain = true; return 0;
    case KEY_TRAIN_JSON: a->json = true; return 0;
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; return 0;
    case ARGP_KEY_ARG: cli_take(state, "CONFIG.yaml", &a->config, text); return 0;
    case ARGP_KEY_END:
        if (!a->config) cli_refuse(state, "expected a CONFIG.yaml");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const char train_help[] =
    "Run real updates of a model on made-up text and print how fast they are, where the time goes, "
    "and how near that is to the least the hardware allows. Nothing is written; the config's data "
    "files are not needed."
    "\vParts are timed by the device's clock, within updates as training runs them. backward "
    "leaves out the gradient of the recurrent weights, which is timed by computing it once more. "
    "head counts both directions. recompute appears with train.recompute.\n\n"
    "The floor adds up, over steps and products, the largest of memory bytes, operations and bytes "
    "gathered from the L2, each over what is measured here; for gates and layer norm the bytes a "
    "unit and stream; the head; and the optimiser's bytes. --explain prints every line of it, and "
    "on a GPU which kernel computes what and what the kernels before it in the table need. A "
    "step's floor also counts an exchange between multiprocessors, as measured, each time that the "
    "chain of stages has to wait for the whole device: for a product's inputs, and for layer "
    "norm's sums.\n\n"
    "On the CPU the recurrent products are measured by themselves, too.\n\n"
    "tflops counts 6 operations a parameter and byte. forward is scoring as eval does.\n\n"
    "Example:\n  smallworld bench train configs/quickstart.yaml --set train.batch=64 \\\n"
    "      --explain";

static int bench_train(int argc, char **argv) {
    static const struct argp_child children[] = {{&cli_model_argp, 0, "Device:", 0}, {0}};
    static const struct argp argp = {
        train_options_table, parse_train, "CONFIG.yaml", train_help, children, NULL, NULL};
    train_arguments a = {.seconds = 30};
    cli_parse(&argp, argc, argv, &a);
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
    if (a.explain) update_explain(&results, a.json ? stderr : stdout);
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
    {"matmul", bench_matmul, "the block-sparse products against cuBLAS, cuSPARSE and their floors"},
    {"conv", bench_conv, "block-sparse convolutions beside a dense one"},
    {"train", bench_train, "updates of a model: speed, parts, share of the floor, memory"},
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
