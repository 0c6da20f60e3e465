#include "train/run_log.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/number.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const run_log_names[LOG_COLUMNS] = {"step",
                                                "bytes",
                                                "epoch",
                                                "seconds",
                                                "bpc",
                                                "lr",
                                                "grad_norm",
                                                "bytes_per_second",
                                                "valid_bpc",
                                                "label_loss",
                                                "valid_label_loss",
                                                "valid_label_error",
                                                "density"};

/* ---------------------------------------------------------------------------------- scanning
 * A line is walked once, and only as far as flat objects of numbers go: a million lines are read in
 * under a second. */

typedef struct token {
    const char *text;
    size_t length;
} token;

static const char *skip_space(const char *at, const char *end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r')) at++;
    return at;
}

/* Scans a string and returns it without quotes and with its escapes as they are, or NULL. */
static const char *scan_string(const char *at, const char *end, token *found) {
    if (at == end || *at != '"') return NULL;
    const char *start = ++at;
    while (at < end && *at != '"') at += *at == '\\' && at + 1 < end ? 2 : 1;
    *found = (token){start, (size_t)(at - start)};
    return at < end ? at + 1 : NULL;
}

/* Scans a string, a number or a word. */
static const char *scan_value(const char *at, const char *end, token *found) {
    if (at < end && *at == '"') return scan_string(at, end, found);
    const char *start = at;
    while (at < end && *at != ',' && *at != '}' && *at != ' ') at++;
    *found = (token){start, (size_t)(at - start)};
    return at > start ? at : NULL;
}

static int column_of(token key, int expected) {
    for (int k = 0; k < LOG_COLUMNS; k++) {
        int column = (expected + k) % LOG_COLUMNS;
        if (strlen(run_log_names[column]) == key.length &&
            memcmp(run_log_names[column], key.text, key.length) == 0) {
            return column;
        }
    }
    return -1;
}

/* Splits a line into its values by column. Missing ones stay empty. */
static bool scan_line(const char *at, const char *end, token values[LOG_COLUMNS]) {
    memset(values, 0, LOG_COLUMNS * sizeof *values);
    at = skip_space(at, end);
    if (at == end || *at++ != '{') return false;
    for (int expected = 0;; expected++) {
        token key, value;
        at = scan_string(skip_space(at, end), end, &key);
        if (!at) return false;
        at = skip_space(at, end);
        if (at == end || *at++ != ':') return false;
        at = scan_value(skip_space(at, end), end, &value);
        if (!at) return false;
        int column = column_of(key, expected);
        if (column >= 0) values[column] = value;
        at = skip_space(at, end);
        if (at == end) return false;
        if (*at == '}') return skip_space(at + 1, end) == end;
        if (*at++ != ',') return false;
    }
}

/* Returns NaN if the text is not a number. */
static double parse_number(token t) {
    char text[64];
    double number;
    if (t.length == 0 || t.length >= sizeof text) return NAN;
    memcpy(text, t.text, t.length);
    text[t.length] = '\0';
    return number_real(text, &number) ? number : NAN;
}

/* ------------------------------------------------------------------------------------- files */

/* Calls `take` for each whole line of FOLDER/metrics.jsonl. */
static bool each_line(const char *folder, void (*take)(void *argument, token values[LOG_COLUMNS]),
                      void *argument, error *err) {
    char *path = mem_format("%s/metrics.jsonl", folder);
    file_map map;
    bool done = file_map_open(&map, path, err);
    if (done) {
        const char *at = (const char *)map.bytes, *end = at + map.size, *stop;
        for (size_t number = 1; done && (stop = memchr(at, '\n', (size_t)(end - at))); number++) {
            token values[LOG_COLUMNS];
            done = scan_line(at, stop, values) ||
                   error_set(err, "%s:%zu: expected one JSON object of metrics", path, number);
            if (done) take(argument, values);
            at = stop + 1;
        }
        file_map_close(&map);
    }
    free(path);
    return done;
}

typedef struct collector {
    run_log *log;
    size_t capacity[LOG_COLUMNS];
} collector;

static void collect(void *argument, token values[LOG_COLUMNS]) {
    collector *c = argument;
    run_log *log = c->log;
    for (int k = 0; k < LOG_COLUMNS; k++) {
        log->value[k] =
            mem_grow(log->value[k], &c->capacity[k], log->count + 1, sizeof *log->value[k]);
        log->value[k][log->count] = parse_number(values[k]);
    }
    log->count++;
}

bool run_log_read(run_log *log, const char *folder, error *err) {
    collector c = {.log = log};
    *log = (run_log){0};
    if (each_line(folder, collect, &c, err)) return true;
    run_log_free(log);
    return false;
}

void run_log_free(run_log *log) {
    for (int k = 0; k < LOG_COLUMNS; k++) free(log->value[k]);
    *log = (run_log){0};
}

double run_log_last(const run_log *log, log_column column) {
    for (size_t i = log->count; i-- > 0;) {
        if (!isnan(log->value[column][i])) return log->value[column][i];
    }
    return NAN;
}

double run_log_least(const run_log *log, log_column column) {
    double least = NAN;
    for (size_t i = 0; i < log->count; i++) least = fmin(least, log->value[column][i]);
    return least;
}

typedef struct csv {
    const char *name;
    FILE *out;
} csv;

static void write_csv(void *argument, token values[LOG_COLUMNS]) {
    const csv *c = argument;
    fputc('"', c->out);
    for (const char *at = c->name; *at; at++) {
        if (*at == '"') fputc('"', c->out);
        fputc(*at, c->out);
    }
    fputc('"', c->out);
    for (int k = 0; k < LOG_COLUMNS; k++) {
        fputc(',', c->out);
        if (!isnan(parse_number(values[k]))) fwrite(values[k].text, 1, values[k].length, c->out);
    }
    fputc('\n', c->out);
}

bool run_log_csv(const char *folder, const char *name, FILE *out, error *err) {
    csv c = {name, out};
    return each_line(folder, write_csv, &c, err);
}
