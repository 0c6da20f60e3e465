#include "cmd/cli.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/number.h"
#include "data/paths.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>

/* --------------------------------------------------------------------------- common options */

enum {
    KEY_DEVICE = 0x100,
    KEY_PRECISION,
    KEY_BATCH,
    KEY_THREADS,
    KEY_TEXT,
    KEY_WHOLE,
    KEY_TEXT_COLUMN,
    KEY_LABEL_COLUMN,
    KEY_STATE,
    KEY_POOL,
    KEY_GPUS
};

static const struct argp_option device_options[] = {
    CLI_DEVICE(KEY_DEVICE),
    {"precision", KEY_PRECISION, "NAME", 0,
     "Number format of the products' operands: auto, fp32 or bf16", 0},
    CLI_THREADS(KEY_THREADS),
    {0},
};

static const struct argp_option model_options[] = {
    {"batch", KEY_BATCH, "N", 0, "Number of streams or documents that are read side by side", 0},
    {0},
};

static error_t parse_model(int key, char *text, struct argp_state *state) {
    overrides *given = state->input;
    switch (key) {
    case KEY_DEVICE: given->device = text; return 0;
    case KEY_PRECISION: given->precision = text; return 0;
    case KEY_BATCH: given->batch = text; return 0;
    case KEY_THREADS: given->threads = text; return 0;
    case ARGP_KEY_INIT: /* the child's, if there is one, is of the same parser */
        if (state->child_inputs) state->child_inputs[0] = given;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_device_argp = {.options = device_options, .parser = parse_model};

static const struct argp_child device_child[] = {{&cli_device_argp, 0, NULL, 0}, {0}};
const struct argp cli_model_argp = {
    .options = model_options, .parser = parse_model, .children = device_child};

static const struct argp_option rank_options[] = {
    {"gpus", KEY_GPUS, "N", 0,
     "Compute with N processes on this host, one a GPU, or on the CPU with --device cpu; mpirun "
     "and srun start processes on any hosts",
     0},
    {0},
};

static error_t parse_ranks(int key, char *text, struct argp_state *state) {
    if (key != KEY_GPUS) return ARGP_ERR_UNKNOWN;
    *(int64_t *)state->input = cli_integer(state, "--gpus", text, 1, RANKS_MOST);
    return 0;
}

const struct argp cli_ranks_argp = {.options = rank_options, .parser = parse_ranks};

void cli_warn_of_idle(const ranks *r, int64_t minibatches, int batch) {
    if (minibatches >= ranks_count(r)) return;
    log_warning("only %d of %d ranks have work, as there are no more minibatches of %d; a smaller "
                "--batch makes more",
                (int)minibatches, ranks_count(r), batch);
}

static const struct argp_option column_options[] = {
    {"text-column", KEY_TEXT_COLUMN, "NAME", 0,
     "Column of a table that holds the texts; default: text, review, sentence or the like", 0},
    {"label-column", KEY_LABEL_COLUMN, "NAME", 0,
     "Column that holds the labels; default: label, class, sentiment or the like", 0},
    {0},
};

static error_t parse_columns(int key, char *text, struct argp_state *state) {
    cli_columns *given = state->input;
    switch (key) {
    case KEY_TEXT_COLUMN: given->text = text; return 0;
    case KEY_LABEL_COLUMN: given->label = text; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_columns_argp = {.options = column_options, .parser = parse_columns};

corpus_options cli_reading(const cli_columns *given, const options *o) {
    return (corpus_options){.html_entities = o->data.reading.html_entities,
                            .text_column = given->text,
                            .label_column = given->label};
}

static const struct argp_option document_options[] = {
    {"text", KEY_TEXT, "FILE|-", 0,
     "Text to read: a " PATHS_LINES
     " file has a document LABEL<TAB>TEXT on each line, a .csv or .jsonl file one in each row; in "
     "any other file, and on standard input (-), each line is a document",
     0},
    {"whole", KEY_WHOLE, NULL, 0,
     "Take the whole text as one document and keep its bytes as they are", 0},
    {0},
};

static error_t parse_documents(int key, char *text, struct argp_state *state) {
    cli_documents *given = state->input;
    switch (key) {
    case KEY_TEXT: given->text = text; return 0;
    case KEY_WHOLE: given->whole = true; return 0;
    case ARGP_KEY_INIT: state->child_inputs[0] = &given->columns; return 0;
    case ARGP_KEY_END:
        if (!given->text) cli_refuse(state, "expected --text FILE or --text -");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child document_children[] = {{&cli_columns_argp, 0, NULL, 0}, {0}};
const struct argp cli_documents_argp = {
    .options = document_options, .parser = parse_documents, .children = document_children};

static const struct argp_option feature_option_table[] = {
    {"state", KEY_STATE, "NAME", 0,
     "State that features are made of: cell or hidden; default: the probe's, or else cell", 0},
    {"pool", KEY_POOL, "NAME,...", 0,
     "How the states after a document's bytes become features: last, mean or max, or several "
     "joined by commas, whose features follow one another; default: the probe's, last if "
     "it has none on record, and without a probe mean,last",
     0},
    {0},
};

static error_t parse_features(int key, char *text, struct argp_state *state) {
    cli_features *given = state->input;
    switch (key) {
    case KEY_STATE: given->state = cli_choice(state, "--state", text, FEATURE_STATES); return 0;
    case KEY_POOL:
        if (!origin_parse_pools(text, &given->pools)) {
            cli_refuse(state,
                       "--pool: expected last, mean or max, or different ones joined by commas; "
                       "got '%s'",
                       text);
        }
        return 0;
    case ARGP_KEY_INIT: *given = (cli_features){.state = -1}; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

const struct argp cli_features_argp = {.options = feature_option_table, .parser = parse_features};

bool cli_choose_features(const cli_features *given, const origin *o, cli_features *chosen,
                         error *err) {
    char recorded[ORIGIN_POOLS_TEXT], other[ORIGIN_POOLS_TEXT];
    *chosen = *given;
    if (chosen->state < 0) chosen->state = o->known ? (int)o->state : FEATURE_CELL;
    if (chosen->pools.count == 0) {
        chosen->pools = o->known ? o->pools : (pool_list){1, {POOL_LAST}};
    }
    if (!o->known) return true;
    if (chosen->state != (int)o->state) {
        return error_usage(err, "--state: the probe was fitted on the %s state",
                           origin_state_name(o->state));
    }
    origin_pools_text(&o->pools, recorded);
    return strcmp(recorded, origin_pools_text(&chosen->pools, other)) == 0 ||
           error_usage(err, "--pool: the probe was fitted on --pool %s", recorded);
}

/* ---------------------------------------------------------------------------------- parsing */

/* Refuses options with control characters in their names, which getopt would print as they are. */
static void check_names(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], "--", 2) != 0) continue;
        for (const char *c = argv[i]; *c && *c != '='; c++) {
            if ((unsigned char)*c >= ' ' && *c != 0x7F) continue;
            error err;
            error_usage(&err, "unrecognized option '%s'", argv[i]);
            exit(cli_fail(&err, strchr(argv[0], ' ') ? strchr(argv[0], ' ') + 1 : NULL));
        }
    }
}

void cli_refuse(struct argp_state *state, const char *format, ...) {
    error err; /* which holds no control characters */
    va_list arguments;
    va_start(arguments, format);
    error_set_list(&err, format, arguments);
    va_end(arguments);
    argp_error(state, "%s", err.text);
}

void cli_parse(const struct argp *argp, int argc, char **argv, void *input) {
    check_names(argc, argv);
    error_t problem = argp_parse(argp, argc, argv, 0, NULL, input);
    if (problem == 0) return;
    fprintf(stderr, "smallworld: cannot read the arguments: %s\n", strerror(problem));
    exit(STATUS_FAILED);
}

bool cli_flush(FILE *out, const char *path, error *err) {
    errno = 0;
    if (fflush(out) == 0 && !ferror(out)) return true;
    const int why = errno ? errno : EIO;
    errno = why;
    error_system(err, "write", path ? path : "standard output");
    if (out == stdout && why != EPIPE) {
        __fpurge(out); /* or the program's end would say so once more */
        clearerr(out);
    } else if (out == stdout) {
        err->text[0] = '\0'; /* it ends by SIGPIPE there */
    }
    return false;
}

int cli_fail(const error *err, const char *command) {
    log_end();
    if (err->text[0]) fprintf(stderr, "smallworld: %s\n", err->text);
    if (err->status == STATUS_USAGE) {
        fprintf(stderr, "Try 'smallworld %s%s--help' for more information.\n",
                command ? command : "", command ? " " : "");
    }
    return err->status;
}

int cli_fail_rank(ranks *r, const error *err, const char *command) {
    const int status = ranks_rank(r) == 0 ? cli_fail(err, command) : err->status;
    ranks_fail(r, err);
    return status;
}

int64_t cli_integer(struct argp_state *state, const char *option, const char *text, int64_t least,
                    int64_t most) {
    char *stop;
    errno = 0;
    long long value = strtoll(text, &stop, 10);
    if (*text == '\0' || *stop || errno || value < least || value > most) {
        cli_refuse(state, "%s: expected an integer from %lld to %lld, got '%s'", option,
                   (long long)least, (long long)most, text);
    }
    return value;
}

double cli_number(struct argp_state *state, const char *option, const char *text, double least,
                  double most) {
    char *stop;
    double value = number_scan(text, &stop);
    if (*text == '\0' || *stop || !isfinite(value) || value < least || value > most) {
        cli_refuse(state, "%s: expected a number from %g to %g, got '%s'", option, least, most,
                   text);
    }
    return value;
}

int cli_choice(struct argp_state *state, const char *option, const char *text,
               const char *choices) {
    int index = 0;
    size_t length = strlen(text);
    for (const char *c = choices; length; c += strcspn(c, " ") + 1, index++) {
        if (strcspn(c, " ") == length && strncmp(c, text, length) == 0) return index;
        if (c[strcspn(c, " ")] == '\0') break;
    }
    cli_refuse(state, "%s: expected one of: %s; got '%s'", option, choices, text);
    return -1;
}

char *cli_probe_path(const char *given) {
    return file_ends_in(given, ".safetensors") ? mem_string(given)
                                               : mem_format("%s.probe.safetensors", given);
}

void cli_check_prefix(struct argp_state *state, const char *option, const char *prefix) {
    if (file_ends_in(prefix, ".labels")) {
        cli_refuse(state, "%s: expected another ending, as %s.npy holds another prefix's labels",
                   option, prefix);
    }
    if (*prefix && !file_ends_in(prefix, "/")) return;
    cli_refuse(state, "%s: expected the beginning of files' names, got '%s'", option, prefix);
}

void cli_take(struct argp_state *state, const char *what, const char **taken, const char *text) {
    if (*taken) cli_refuse(state, "expected one %s, got also '%s'", what, text);
    *taken = text;
}

void cli_append(config_list *list, char *item) {
    list->items = mem_resize(list->items, (size_t)list->count + 1, sizeof *list->items);
    list->items[list->count++] = item;
}

void cli_take_first(const char **first, config_list *others, char *text) {
    if (*first) {
        cli_append(others, text);
    } else {
        *first = text;
    }
}
