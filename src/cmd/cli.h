/* What the commands share: their table, their common options, and how they end. */
#ifndef SMALLWORLD_CMD_CLI_H
#define SMALLWORLD_CMD_CLI_H

#include "core/json.h"
#include "probe/origin.h"
#include "train/checkpoint.h"

#include <argp.h>

/* Each command parses its own arguments and returns the exit status. argv[0] is "smallworld
 * NAME". */
int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_features(int argc, char **argv);
int cmd_probe(int argc, char **argv);
int cmd_predict(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_prune(int argc, char **argv);
int cmd_graph(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_show(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_report(int argc, char **argv);

/* --device, --precision, --batch, --threads, which override a config or what a checkpoint says.
 * Use `cli_model_argp` as an argp child with a cli_model as its input. */
typedef struct cli_model {
    const char *device, *precision, *batch, *threads; /* as given, or NULL */
} cli_model;

extern const struct argp cli_model_argp;

/* Sets the options that were given. */
bool cli_apply(const cli_model *given, options *o, error *err);

/* --text and --whole: the documents that a model reads. Use `cli_documents_argp` as an argp child
 * with a cli_documents as its input. --text is required. */
typedef struct cli_documents {
    const char *text; /* a file, or "-" for standard input */
    bool whole;       /* the text is one document */
} cli_documents;

extern const struct argp cli_documents_argp;

/* --state and --pool: what the features of a document are made of. Use `cli_features_argp` as an
 * argp child with a cli_features as its input. */
typedef struct cli_features {
    int state;       /* feature_state, or -1 if not given */
    pool_list pools; /* count 0 if not given */
} cli_features;

extern const struct argp cli_features_argp;

/* The state and the pools of a probe's features: those that `o`, its origin, records, else those
 * that are given, else the last state of the cell. Refuses given ones that differ from recorded
 * ones. */
bool cli_choose_features(const cli_features *given, const origin *o, cli_features *chosen,
                         error *err);

/* A checkpoint with the options applied, its backend and its model; the caller frees with
 * cli_unload. */
typedef struct cli_loaded {
    checkpoint checkpoint;
    bool batch_given; /* by --batch */
    backend *be;
    model *m;
} cli_loaded;

/* What a model is made to read: so many streams at most, and bytes over all of them. */
typedef struct cli_text {
    int64_t streams, bytes;
} cli_text;

/* Opens the checkpoint; then makes the backend and the model. `batch` and `steps` 0: as in
 * training, but no more than the text needs, and no more than takes 4 GiB for activations and 16
 * times the file's size: a checkpoint may be a stranger's. Where cli_make fails the caller
 * unloads. */
bool cli_open(cli_loaded *loaded, const char *path, const cli_model *given, error *err);
bool cli_make(cli_loaded *loaded, int batch, int steps, cli_text text, error *err);

/* Both, for any text. */
bool cli_load(cli_loaded *loaded, const char *path, const cli_model *given, int batch, int steps,
              error *err);
void cli_unload(cli_loaded *loaded);

/* Parses the arguments into `input`. Ends the program on bad usage, as argp does, and where there
 * is no memory. */
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);

/* Prints "smallworld: TEXT" on stderr, and for a usage error where help is: a command's, or with
 * NULL the program's. Returns the status. */
int cli_fail(const error *err, const char *command);

/* Ends the program as argp does on bad usage, if `text` is no whole number of that range. */
int64_t cli_integer(struct argp_state *state, const char *option, const char *text, int64_t least,
                    int64_t most);
double cli_number(struct argp_state *state, const char *option, const char *text, double least,
                  double most);

/* The index of `text` among space-separated `choices`; ends the program if there is none. */
int cli_choice(struct argp_state *state, const char *option, const char *text, const char *choices);

/* Where a probe is, given its file or its prefix, in a string the caller frees. */
char *cli_probe_path(const char *given);

/* Ends the program as argp does on bad usage, if files cannot be named PREFIX.ENDING. */
void cli_check_prefix(struct argp_state *state, const char *option, const char *prefix);

/* Appends a string to a NULL-terminated-by-count list. */
typedef struct cli_list {
    char **items;
    int count;
} cli_list;

void cli_append(cli_list *list, char *item);

#endif
