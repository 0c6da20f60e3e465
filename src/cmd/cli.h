/* The commands' table, common options and endings. */
#ifndef SMALLWORLD_CMD_CLI_H
#define SMALLWORLD_CMD_CLI_H

#include "core/json.h"
#include "data/files.h"
#include "probe/origin.h"
#include "train/loaded.h"

#include <argp.h>
#include <stddef.h>

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

/* What a row of a command's table takes, and the type that it is kept in. */
typedef enum cli_type {
    CLI_FLAG,     /* bool: true */
    CLI_TEXT,     /* const char * */
    CLI_PREFIX,   /* const char *, the beginning of files' names */
    CLI_LIST,     /* config_list, appended */
    CLI_INTEGER,  /* int64_t, from `least` to `most` */
    CLI_COUNT,    /* int, likewise */
    CLI_NUMBER,   /* double, likewise */
    CLI_CHOICE,   /* int, the index among the words of `choices` */
    CLI_CALL,     /* what `take` makes of it */
    CLI_ARGUMENT, /* const char *, the first argument */
    CLI_MORE,     /* config_list, the arguments after it, or all */
    CLI_HEADER    /* nothing: `help` stands above the options of its group */
} cli_type;

enum { CLI_GROUPS = 3 };

typedef struct cli_row {
    cli_type type;
    const char *name, *value; /* --NAME VALUE; an argument's value is what messages call it */
    size_t offset;            /* of the field, in the command's arguments */
    const char *help;         /* of an argument: what is missing without it, or NULL */
    double least, most;
    const char *choices;
    void (*take)(struct argp_state *state, const struct cli_row *row, void *field, char *text);
    int group;     /* of --help, in this order, below CLI_GROUPS */
    bool required; /* an option without which the command does nothing */
} cli_row;

typedef struct cli_command {
    const char *usage, *help;
    const cli_row *rows;
    size_t count;
    void (*check)(struct argp_state *state, void *arguments); /* of all together, or NULL */
    /* Takes an argument in place of rows, or NULL. */
    void (*argument)(struct argp_state *state, void *arguments, char *text);
} cli_command;

#define CLI_ROWS(rows) (rows), sizeof(rows) / sizeof *(rows)

// clang-format off
/* Rows that several commands have. `at`: the offset of their field, or of their struct. */
#define CLI_JSON(at) {CLI_FLAG, "json", NULL, .offset = (at), \
     "Print one JSON object on stdout at the end"}
#define CLI_SET(at) {CLI_LIST, "set", "KEY.PATH=VALUE", .offset = (at), \
     "Override one key of the config; may be repeated"}
#define CLI_GPUS(at) {CLI_INTEGER, "gpus", "N", .offset = (at), \
     "Compute with N processes on this host, one a GPU, or on the CPU with --device cpu; mpirun " \
     "and srun start processes on any hosts", 1, RANKS_MOST}

/* Of `overrides`: a device and threads; these and a precision; and these and a batch. */
#define CLI_DEVICE(at, of_group) \
    {CLI_TEXT, "device", "NAME", .offset = (at) + offsetof(overrides, device), \
     "Compute on the GPU (cuda), the CPU (cpu), or the GPU if there is one (auto)", \
     .group = (of_group)}, \
    {CLI_TEXT, "threads", "N", .offset = (at) + offsetof(overrides, threads), \
     "Number of CPU threads; 0 means one for each processor", .group = (of_group)}
#define CLI_ONE_MODEL(at) \
    {CLI_HEADER, .help = "Device:", .group = 2}, \
    CLI_DEVICE(at, 2), \
    {CLI_TEXT, "precision", "NAME", .offset = (at) + offsetof(overrides, precision), \
     "Number format of the products' operands: auto, fp32 or bf16", .group = 2}
#define CLI_MODEL(at) \
    CLI_ONE_MODEL(at), \
    {CLI_TEXT, "batch", "N", .offset = (at) + offsetof(overrides, batch), \
     "Number of streams or documents that are read side by side", .group = 2}

#define CLI_COLUMNS(at) \
    {CLI_TEXT, "text-column", "NAME", .offset = (at) + offsetof(cli_columns, text), \
     "Column of a table that holds the texts; default: text, review, sentence or the like"}, \
    {CLI_TEXT, "label-column", "NAME", .offset = (at) + offsetof(cli_columns, label), \
     "Column that holds the labels; default: label, class, sentiment or the like"}
#define CLI_DOCUMENTS(at) \
    {CLI_TEXT, "text", "FILE|-", .offset = (at) + offsetof(cli_documents, text), \
     "Text to read: a " PATHS_LINES " file has a document LABEL<TAB>TEXT on each line, a .csv or " \
     ".jsonl file one in each row; in any other file, and on standard input (-), each line is a " \
     "document", .required = true}, \
    {CLI_FLAG, "whole", NULL, .offset = (at) + offsetof(cli_documents, whole), \
     "Take the whole text as one document and keep its bytes as they are"}, \
    CLI_COLUMNS((at) + offsetof(cli_documents, columns))
#define CLI_FEATURES(at) \
    {CLI_CHOICE, "state", "NAME", .offset = (at) + offsetof(cli_features, state), \
     "State that features are made of: cell or hidden; default: the probe's, or else cell", \
     .choices = FEATURE_STATES}, \
    {CLI_CALL, "pool", "NAME,...", .offset = (at) + offsetof(cli_features, pools), \
     "How the states after a document's bytes become features: last, mean or max, or several " \
     "joined by commas, whose features follow one another; default: the probe's, last if it has " \
     "none on record, and without a probe mean,last", .take = cli_take_pools}
// clang-format on

/* Warns if the work makes fewer minibatches, of `batch` stripes or documents, than there are
 * ranks. */
void cli_warn_of_idle(const ranks *r, int64_t minibatches, int batch);

/* Where tables have texts and labels. */
typedef struct cli_columns {
    const char *text, *label; /* NULL: found by usual names */
} cli_columns;

/* How documents are read: as the model's were, with the columns that were given. */
corpus_options cli_reading(const cli_columns *given, const options *o);

/* The documents that a model reads. */
typedef struct cli_documents {
    const char *text; /* a file, or "-" for standard input */
    bool whole;       /* the text is one document */
    cli_columns columns;
} cli_documents;

/* What the features of a document are made of. */
typedef struct cli_features {
    int state;       /* feature_state, or -1 if not given */
    pool_list pools; /* count 0 if not given */
} cli_features;

void cli_take_pools(struct argp_state *state, const cli_row *row, void *field, char *text);

/* The words balanced or none: bool. */
void cli_take_class_weight(struct argp_state *state, const cli_row *row, void *field, char *text);

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
void cli_parse(const cli_command *command, int argc, char **argv, void *input);

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

/* Appends to a list whose items belong to the arguments; the caller frees its `items` alone. */
void cli_append(config_list *list, char *item);

/* Takes the argument of which a command has one. Ends the program if there is a second one. */
void cli_take(struct argp_state *state, const char *what, const char **taken, const char *text);

#endif
