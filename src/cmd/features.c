/* smallworld features: export documents as a matrix that NumPy and scikit-learn can read. */
#include "probe/features.h"
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/files.h"
#include "data/table.h"
#include "probe/origin.h"

#include <stdlib.h>

typedef struct arguments {
    overrides model;
    cli_columns columns;
    const char *checkpoint, *prefix;
    config_list files;
    cli_features features;
    feature_options how;
    int64_t gpus;
    bool json;
} arguments;

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "CHECKPOINT", .offset = offsetof(arguments, checkpoint), "a CHECKPOINT"},
    {CLI_MORE, NULL, NULL, .offset = offsetof(arguments, files)},
    {CLI_LIST, "data", "FILE...", .offset = offsetof(arguments, files),
     "Files of documents: .tsv with a line LABEL<TAB>TEXT for each, tables, .csv or .jsonl, or a "
     "folder with a folder of files for each class",
     .required = true},
    {CLI_PREFIX, "out", "PREFIX", .offset = offsetof(arguments, prefix),
     "Write PREFIX.npy, PREFIX.labels.npy and PREFIX.json", .required = true},
    CLI_JSON(offsetof(arguments, json)),
    CLI_FEATURES(offsetof(arguments, features)),
    CLI_MODEL(offsetof(arguments, model)),
    CLI_COLUMNS(offsetof(arguments, columns)),
    CLI_GPUS(offsetof(arguments, gpus)),
};

/* Reads the corpus. Every file must hold documents. */
static corpus *read_documents(const arguments *a, const options *o, error *err) {
    corpus_options how = cli_reading(&a->columns, o);
    how.class_folders = true;
    for (int i = 0; i < a->files.count; i++) {
        const char *file = a->files.items[i];
        if (paths_is_lines(file) || table_kind_of(file, &how) || file_is_folder(file) ||
            file_ends_in(file, ".list") || !file_exists(file)) {
            continue;
        }
        error_set(
            err,
            "%s: expected documents: a .tsv file with a line LABEL<TAB>TEXT each, a table, .csv "
            "or .jsonl (also .gz, .xz), a .list of such files, or a folder with a folder for each "
            "class",
            file);
        return NULL;
    }
    return corpus_read(a->files.items, a->files.count, &how, err);
}

/* The other way round, `show` leaves features alone. */
static bool check_place(const arguments *a, error *err) {
    char *units = mem_format("%s.units.npy", a->prefix);
    const bool taken = file_exists(units);
    free(units);
    if (!taken) return true;
    return error_set(err,
                     "%s.npy: %s.units.npy describes states that `show` wrote to it; expected "
                     "another --out PREFIX",
                     a->prefix, a->prefix);
}

static bool extract(arguments *a, feature_result *r, error *err) {
    loaded_model loaded;
    if (!check_place(a, err)) return false;
    if (!loaded_open(&loaded, a->checkpoint, &a->model, err)) return false;
    corpus *c = read_documents(a, &loaded.checkpoint.options, err);
    a->how.model = checkpoint_checksum(&loaded.checkpoint);
    bool done = false;
    if (c) {
        const text_limits most = {(int64_t)c->count, (int64_t)c->size};
        done = loaded_make(&loaded, 0, FEATURES_STEPS, most, err);
    }
    if (done) {
        const int batch = loaded.m->batch;
        cli_warn_of_idle(a->how.ranks, (int64_t)features_groups(c, batch), batch);
        done = features_extract(loaded.m, c, &a->how, a->prefix, r, err);
    }
    corpus_free(c);
    loaded_free(&loaded);
    return done;
}

int cmd_features(int argc, char **argv) {
    static const cli_command command = {
        "CHECKPOINT --data FILE... --out PREFIX",
        "Export the features of labelled documents: the cell's state after each, from a zero "
        "state. Rows are in input order and depend neither on it nor on --batch."
        "\vExample:\n  smallworld features runs/quickstart/last.safetensors \\\n"
        "      --data data/reviews_test.tsv.gz --out runs/quickstart/test",
        CLI_ROWS(rows), NULL, NULL};
    arguments a = {.features = {.state = -1},
                   .how = {.state = FEATURE_CELL, .pools = FEATURE_POOLS, .progress = true}};
    cli_parse(&command, argc, argv, &a);
    if (a.features.state >= 0) a.how.state = (feature_state)a.features.state;
    if (a.features.pools.count > 0) a.how.pools = a.features.pools;
    error err;
    feature_result r;
    if (!ranks_start(&a.how.ranks, (int)a.gpus, &err)) return cli_fail(&err, "features");
    a.model.ranks = a.how.ranks;
    bool done = extract(&a, &r, &err);
    free(a.files.items);
    if (!done) return cli_fail_rank(a.how.ranks, &err, "features");
    ranks_end(a.how.ranks);
    log_end();
    if (a.json) {
        json_writer w = {stdout, false};
        json_object_begin(&w, NULL);
        json_integer(&w, "documents", (int64_t)r.documents);
        json_integer(&w, "units", (int64_t)r.units);
        json_integer(&w, "bytes", (int64_t)r.bytes);
        json_number(&w, "seconds", r.seconds);
        json_number(&w, "bytes_per_second", (double)r.bytes / r.seconds);
        json_object_end(&w);
        putchar('\n');
    } else {
        printf("%llu documents x %llu units (%.0f bytes/s)\n", (unsigned long long)r.documents,
               (unsigned long long)r.units, (double)r.bytes / r.seconds);
    }
    return STATUS_OK;
}
