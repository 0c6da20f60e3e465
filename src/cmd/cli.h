/* The commands' table, common options and endings. */
#ifndef SMALLWORLD_CMD_CLI_H
#define SMALLWORLD_CMD_CLI_H

#include "core/json.h"
#include "probe/origin.h"
#include "train/loaded.h"

#include <argp.h>

/* Each command parses its own arguments and returns the exit status. argv[0] is "smallworld
 * NAME". */
int cmd_train(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_features(int argc, char **argv);
int cmd_probe(int argc, char **argv);
int cmd_classify(int argc, char **argv);
int cmd_predict(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_prune(int argc, char **argv);
int cmd_export(int argc, char **argv);
int cmd_graph(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_show(int argc, char **argv);
int cmd_plot(int argc, char **argv);
int cmd_report(int argc, char **argv);

/* Rows that several commands have in their tables of options. */
#define CLI_JSON(key)                                                                              \
    { "json", key, NULL, 0, "Print one JSON object on stdout at the end", 0 }
#define CLI_SET(key)                                                                               \
    { "set", key, "KEY.PATH=VALUE", 0, "Override one key of the config; may be repeated", 0 }
#define CLI_DEVICE(key)                                                                            \
    {                                                                                              \
        "device", key, "NAME", 0,                                                                  \
            "Compute on the GPU (cuda), the CPU (cpu), or the GPU if there is one (auto)", 0       \
    }
#define CLI_THREADS(key)                                                                           \
    { "threads", key, "N", 0, "Number of CPU threads; 0 means one for each processor", 0 }

/* --device, --precision, --batch and --threads. Use `cli_model_argp`, or `cli_device_argp`, which
 * has no --batch, as an argp child with `overrides` as its input. */
extern const struct argp cli_model_argp, cli_device_argp;

/* --gpus: the processes that share the work. Use `cli_ranks_argp` as an argp child with an int64_t,
 * 0 if not given, as its input. */
extern const struct argp cli_ranks_argp;

/* Warns if the work makes fewer minibatches, of `batch` stripes or documents, than there are
 * ranks. */
void cli_warn_of_idle(const ranks *r, int64_t minibatches, int batch);

/* --text-column and --label-column: where tables have texts and labels. Use `cli_columns_argp` as
 * an argp child with a cli_columns as its input. */
typedef struct cli_columns {
    const char *text, *label; /* NULL: found by usual names */
} cli_columns;

extern const struct argp cli_columns_argp;

/* How documents are read: as the model's were, with the columns that were given. */
corpus_options cli_reading(const cli_columns *given, const options *o);

/* --text and --whole: the documents that a model reads. Use `cli_documents_argp` as an argp child
 * with a cli_documents as its input. --text is required. */
typedef struct cli_documents {
    const char *text; /* a file, or "-" for standard input */
    bool whole;       /* the text is one document */
    cli_columns columns;
} cli_documents;

extern const struct argp cli_documents_argp;

/* --state and --pool: what the features of a document are made of. Use `cli_features_argp` as an
 * argp child with a cli_features as its input. */
typedef struct cli_features {
    int state;       /* feature_state, or -1 if not given */
    pool_list pools; /* count 0 if not given */
} cli_features;

extern const struct argp cli_features_argp;

/* Chooses the state and the pools of a probe's features: those recorded in its origin `o`, else the
 * given ones, else the last state of the cell. Refuses given ones that differ from recorded ones.
 */
bool cli_choose_features(const cli_features *given, const origin *o, cli_features *chosen,
                         error *err);

/* argp_error, with control characters of the arguments replaced by '?'. */
void cli_refuse(struct argp_state *state, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Parses the arguments into `input`. Ends the program on bad usage, as argp does, and if memory is
 * lacking. */
void cli_parse(const struct argp *argp, int argc, char **argv, void *input);

/* Prints "smallworld: TEXT" on stderr. For a usage error, adds where to find the help of the
 * command, or of the program if NULL. Returns the status. */
int cli_fail(const error *err, const char *command);

/* Writes out what a command has computed so far. Fails where nobody takes it any more, as where a
 * disk is full; of a closed pipe there is nothing to say. `path` NULL: standard output. */
bool cli_flush(FILE *out, const char *path, error *err);

/* cli_fail for a process that may be one of several ranks: rank 0 says what is wrong, another one
 * what rank 0 does not have. */
int cli_fail_rank(ranks *r, const error *err, const char *command);

/* Reads a number in this range. Ends the program as argp does on bad usage if `text` is not one. */
int64_t cli_integer(struct argp_state *state, const char *option, const char *text, int64_t least,
                    int64_t most);
double cli_number(struct argp_state *state, const char *option, const char *text, double least,
                  double most);

/* Returns the index of `text` among space-separated `choices`. Ends the program if it is none of
 * them. */
int cli_choice(struct argp_state *state, const char *option, const char *text, const char *choices);

/* Returns the path of a probe, given its file or its prefix. The caller frees it. */
char *cli_probe_path(const char *given);

/* Ends the program as argp does on bad usage if `prefix` cannot begin a file's name. */
void cli_check_prefix(struct argp_state *state, const char *option, const char *prefix);

/* Appends to a list whose items belong to the arguments; the caller frees its `items` alone. */
void cli_append(config_list *list, char *item);

/* Takes the argument of which a command has one. Ends the program if there is a second one. */
void cli_take(struct argp_state *state, const char *what, const char **taken, const char *text);

/* Takes an argument of which the first is of one kind, and all others go to a list. */
void cli_take_first(const char **first, config_list *others, char *text);

#endif
