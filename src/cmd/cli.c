#include "cmd/cli.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/number.h"
#include "data/classes.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- common */

void cli_warn_of_idle(const ranks *r, int64_t minibatches, int batch) {
    if (minibatches >= ranks_count(r)) return;
    log_warning("only %d of %d ranks have work, as there are no more minibatches of %d; a smaller "
                "--batch makes more",
                (int)minibatches, ranks_count(r), batch);
}

corpus_options cli_reading(const cli_columns *given, const options *o) {
    return (corpus_options){.html_entities = o->data.reading.html_entities,
                            .text_column = given->text,
                            .label_column = given->label};
}

void cli_take_pools(struct argp_state *state, const cli_row *row, void *field, char *text) {
    if (origin_parse_pools(text, field)) return;
    cli_refuse(state,
               "--%s: expected last, mean or max, or different ones joined by commas; got '%s'",
               row->name, text);
}

void cli_take_class_weight(struct argp_state *state, const cli_row *row, void *field, char *text) {
    (void)row;
    *(bool *)field = cli_choice(state, "--class-weight", text, CLASS_WEIGHTS);
}

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

enum { FIRST_KEY = 0x100 }; /* of a table's rows; below are the short options' */

typedef struct parsing {
    const cli_command *command;
    char *arguments;
} parsing;

static int64_t whole(double x) {
    return x >= 0x1p63 ? INT64_MAX : (int64_t)x;
}

static void take_row(struct argp_state *state, const cli_row *row, void *field, char *text) {
    char *option = mem_format("--%s", row->name);
    switch (row->type) {
    case CLI_FLAG: *(bool *)field = true; break;
    case CLI_PREFIX:
        if (file_ends_in(text, ".labels")) {
            cli_refuse(state,
                       "%s: expected another ending, as %s.npy holds another prefix's labels",
                       option, text);
        } else if (!*text || file_ends_in(text, "/")) {
            cli_refuse(state, "%s: expected the beginning of files' names, got '%s'", option, text);
        }
        *(const char **)field = text;
        break;
    case CLI_TEXT: *(const char **)field = text; break;
    case CLI_LIST: cli_append(field, text); break;
    case CLI_INTEGER:
        *(int64_t *)field = cli_integer(state, option, text, whole(row->least), whole(row->most));
        break;
    case CLI_COUNT:
        *(int *)field = (int)cli_integer(state, option, text, whole(row->least), whole(row->most));
        break;
    case CLI_NUMBER:
        *(double *)field = cli_number(state, option, text, row->least, row->most);
        break;
    case CLI_CHOICE: *(int *)field = cli_choice(state, option, text, row->choices); break;
    case CLI_CALL: row->take(state, row, field, text); break;
    default: break;
    }
    free(option);
}

static const cli_row *row_of(const cli_command *c, cli_type type) {
    for (size_t i = 0; i < c->count; i++) {
        if (c->rows[i].type == type) return &c->rows[i];
    }
    return NULL;
}

static void take_argument(struct argp_state *state, const parsing *p, char *text) {
    const cli_row *first = row_of(p->command, CLI_ARGUMENT), *more = row_of(p->command, CLI_MORE);
    const char **field = first ? (const char **)(p->arguments + first->offset) : NULL;
    if (p->command->argument) {
        p->command->argument(state, p->arguments, text);
    } else if (more && (!first || *field)) {
        cli_append((config_list *)(p->arguments + more->offset), text);
    } else if (first) {
        cli_take(state, first->value, field, text);
    } else {
        cli_refuse(state, "unexpected argument '%s'", text);
    }
}

static void check_required(struct argp_state *state, const parsing *p) {
    for (size_t i = 0; i < p->command->count; i++) {
        const cli_row *row = &p->command->rows[i];
        const void *field = p->arguments + row->offset;
        if (!row->required && !(row->type == CLI_ARGUMENT && row->help)) continue;
        const bool given = row->type == CLI_LIST     ? ((const config_list *)field)->count > 0
                           : row->type == CLI_NUMBER ? *(const double *)field != 0
                                                     : *(const char *const *)field != NULL;
        if (given) continue;
        if (row->type == CLI_ARGUMENT) cli_refuse(state, "expected %s", row->help);
        cli_refuse(state, "expected --%s %s", row->name, row->value);
    }
}

static error_t parse(int key, char *text, struct argp_state *state) {
    const parsing *p = state->input;
    const cli_command *c = p->command;
    if (key >= FIRST_KEY && (size_t)(key - FIRST_KEY) < c->count) {
        const cli_row *row = &c->rows[key - FIRST_KEY];
        take_row(state, row, p->arguments + row->offset, text);
        return 0;
    }
    switch (key) {
    case ARGP_KEY_ARG: take_argument(state, p, text); return 0;
    case ARGP_KEY_END:
        check_required(state, p);
        if (c->check) c->check(state, p->arguments);
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

void cli_parse(const cli_command *command, int argc, char **argv, void *input) {
    struct argp_option *options = mem_alloc(command->count + 1, sizeof *options), *o = options;
    for (int group = 0; group < CLI_GROUPS; group++) { /* a row of group 0 goes on with the last */
        for (size_t i = 0; i < command->count; i++) {
            const cli_row *r = &command->rows[i];
            if (r->group != group || r->type == CLI_ARGUMENT || r->type == CLI_MORE) continue;
            const int key = r->type == CLI_HEADER ? 0 : FIRST_KEY + (int)i;
            const int flags = r->help ? 0 : OPTION_HIDDEN;
            *o++ = (struct argp_option){r->name, key, r->value, flags, r->help, group};
        }
    }
    const struct argp argp = {options, parse, command->usage, command->help, NULL, NULL, NULL};
    check_names(argc, argv);
    error_t problem = argp_parse(&argp, argc, argv, 0, NULL, &(parsing){command, input});
    free(options);
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

void cli_take(struct argp_state *state, const char *what, const char **taken, const char *text) {
    if (*taken) cli_refuse(state, "expected one %s, got also '%s'", what, text);
    *taken = text;
}

void cli_append(config_list *list, char *item) {
    list->items = mem_resize(list->items, (size_t)list->count + 1, sizeof *list->items);
    list->items[list->count++] = item;
}
