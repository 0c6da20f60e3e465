/* smallworld probe: fit a linear classifier to features and measure its error. */
#include "probe/probe.h"
#include "cmd/cli.h"
#include "core/log.h"
#include "core/memory.h"

#include <math.h>

typedef struct arguments {
    overrides model;
    probe_options how;
    bool json;
} arguments;

static const cli_row rows[] = {
    {CLI_TEXT, "train", "PREFIX", .offset = offsetof(arguments, how.train),
     "Features to fit, PREFIX.npy and PREFIX.labels.npy", .required = true},
    {CLI_TEXT, "test", "PREFIX", .offset = offsetof(arguments, how.test),
     "Features to score once, after everything is chosen", .required = true},
    {CLI_TEXT, "valid", "PREFIX", .offset = offsetof(arguments, how.valid),
     "Features on which C is chosen; default: a stratified fifth of the training features, after "
     "which the probe is fitted again on all of them"},
    {CLI_CALL, "class-weight", "NAME", .offset = offsetof(arguments, how.balanced),
     "balanced: documents weigh by their class so that all classes count alike, in the fits and in "
     "the choice of C; default none",
     .take = cli_take_class_weight},
    {CLI_INTEGER, "seed", "N", .offset = offsetof(arguments, how.seed),
     "Seed of the split of the training features; default 0", 0, INT64_MAX},
    {CLI_PREFIX, "out", "PREFIX", .offset = offsetof(arguments, how.out),
     "Write PREFIX.probe.safetensors (for predict and show), PREFIX.weights.npy (the weights "
     "of the features as they are, then the intercept) and PREFIX.predictions.npy (a label for"
     " every row of the test features, unlabelled ones too)"},
    CLI_JSON(offsetof(arguments, json)),
    CLI_DEVICE(offsetof(arguments, model), 0),
};

static void print_json(const probe_result *r) {
    json_writer w = {stdout, false};
    char pools[ORIGIN_POOLS_TEXT];
    const size_t classes = (size_t)r->classes;
    json_object_begin(&w, NULL);
    json_number(&w, "error", r->error);
    json_number(&w, "valid_error", r->valid_error);
    json_number(&w, "majority_error", r->majority_error);
    if (r->pools.count) json_string(&w, "pool", origin_pools_text(&r->pools, pools));
    json_number(&w, "C", r->cost);
    json_number(&w, "scale", r->scale);
    json_integer(&w, "classes", r->classes);
    json_array_begin(&w, "class_names");
    for (size_t k = 0; k < classes; k++) json_string(&w, NULL, r->names[k]);
    json_array_end(&w);
    json_array_begin(&w, "confusion");
    for (size_t k = 0; k < classes; k++) {
        json_array_begin(&w, NULL);
        for (size_t j = 0; j < classes; j++) {
            json_integer(&w, NULL, (int64_t)r->confusion[k * classes + j]);
        }
        json_array_end(&w);
    }
    json_array_end(&w);
    json_integer(&w, "nonzero", (int64_t)r->nonzero);
    json_array_begin(&w, "top_units");
    for (int k = 0; k < r->top_count; k++) json_integer(&w, NULL, (int64_t)r->top_units[k]);
    json_array_end(&w);
    json_integer(&w, "units", (int64_t)r->units);
    json_integer(&w, "train_documents", (int64_t)r->train_rows);
    json_integer(&w, "valid_documents", (int64_t)r->valid_rows);
    json_integer(&w, "test_documents", (int64_t)r->test_rows);
    json_integer(&w, "dropped", (int64_t)r->dropped);
    json_number(&w, "objective", r->objective);
    json_number(&w, "gap", r->gap);
    json_integer(&w, "evaluations", r->evaluations);
    json_number(&w, "seconds", r->seconds);
    json_object_end(&w);
    putchar('\n');
}

/* Prints each class's error, and for a few classes what its documents were taken for. */
static void print_confusion(const probe_result *r) {
    enum { COLUMNS = 8, NAME = 16 };
    const size_t classes = (size_t)r->classes;
    const bool table = classes <= COLUMNS;
    printf("\n%-*s%8s%9s%s", NAME, "class", "error %", "of", table ? "   said to be" : "");
    for (size_t k = 0; table && k < classes; k++) printf("%9.8s", r->names[k]);
    printf("\n");
    for (size_t k = 0; k < classes; k++) {
        const size_t *row = r->confusion + k * classes;
        size_t all = 0;
        for (size_t j = 0; j < classes; j++) all += row[j];
        if (all == 0) continue;
        printf("%-*.*s%8.2f%9zu%s", NAME, NAME - 1, r->names[k],
               100 * (double)(all - row[k]) / (double)all, all, table ? "             " : "");
        for (size_t j = 0; table && j < classes; j++) printf("%9zu", row[j]);
        printf("\n");
    }
    printf("\n");
}

static void print_text(const probe_result *r) {
    char pools[ORIGIN_POOLS_TEXT];
    printf("error %.2f %% of %zu documents (validation %.2f %% of %zu; always the commonest class "
           "%.2f %%)\n",
           r->error, r->test_rows, r->valid_error, r->valid_rows, r->majority_error);
    print_confusion(r);
    if (r->choices > 1) {
        printf("pooling %s, chosen by validation among", origin_pools_text(&r->pools, pools));
        for (int k = 0; k < r->choices; k++) {
            printf("%s %s %.2f %%", k ? "," : "", origin_pools_text(&r->tried[k], pools),
                   r->choice_error[k]);
        }
        printf("\n");
    }
    printf("C = 2^%g, %zu of %zu weights, %zu documents in train, %zu unlabelled dropped\n",
           log2(r->cost), r->nonzero, r->units, r->train_rows, r->dropped);
    printf("features of largest weight x deviation:");
    for (int k = 0; k < r->top_count; k++) printf(" %zu", r->top_units[k]);
    printf("\n");
}

int cmd_probe(int argc, char **argv) {
    static const cli_command command = {
        "--train PREFIX --test PREFIX",
        "Fit logistic regression to the classes of documents, multinomial where there are more "
        "than two, and print its error in per cent. The objective is that of scikit-learn's "
        "solver='liblinear', or its multinomial form; C is chosen from 2^-8 ... 2^4, the smallest "
        "on ties. Features of several poolings are tried one pooling at a time and together. Rows "
        "labelled -1 are dropped and counted."
        "\vExample:\n  smallworld probe --train runs/quickstart/train \\\n"
        "      --test runs/quickstart/test",
        CLI_ROWS(rows), NULL, NULL};
    arguments a = {.how = {.progress = true}};
    cli_parse(&command, argc, argv, &a);
    error err;
    probe_result r;
    backend *be = overrides_backend(&a.model, &err);
    bool done = be && probe_run(be, &a.how, &r, &err);
    if (be) be->memory->destroy(be);
    if (!done) return cli_fail(&err, "probe");
    log_end();
    if (a.json) {
        print_json(&r);
    } else {
        print_text(&r);
    }
    probe_result_free(&r);
    return STATUS_OK;
}
