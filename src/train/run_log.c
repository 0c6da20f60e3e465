#include "train/run_log.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/number.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NAME(column, name) name,
const char *const run_log_names[LOG_COLUMNS] = {LOG_NAMES(NAME)};

/* A line's values by column: NaN where it has no such number. Whether it is one JSON object. */
static bool read_line(const char *at, const char *end, double values[LOG_COLUMNS]) {
    const char *stop = end;
    cJSON *line = cJSON_ParseWithLengthOpts(at, (size_t)(end - at), &stop, false);
    while (stop < end && strchr(" \t\r", *stop)) stop++;
    for (int k = 0; k < LOG_COLUMNS; k++) {
        const cJSON *value = cJSON_GetObjectItemCaseSensitive(line, run_log_names[k]);
        values[k] = cJSON_IsNumber(value) ? value->valuedouble : NAN;
    }
    const bool is_object = cJSON_IsObject(line) && stop == end;
    cJSON_Delete(line);
    return is_object;
}

/* ------------------------------------------------------------------------------------- files */

/* Calls `take` for each whole line of FOLDER/metrics.jsonl. */
static bool each_line(const char *folder, void (*take)(void *argument, double values[LOG_COLUMNS]),
                      void *argument, error *err) {
    char *path = mem_format("%s/metrics.jsonl", folder);
    file_map map;
    bool done = file_map_open(&map, path, err);
    if (done) {
        const char *at = (const char *)map.bytes, *end = at + map.size, *stop;
        for (size_t number = 1; done && (stop = memchr(at, '\n', (size_t)(end - at))); number++) {
            double values[LOG_COLUMNS];
            done = read_line(at, stop, values) ||
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

static void collect(void *argument, double values[LOG_COLUMNS]) {
    collector *c = argument;
    run_log *log = c->log;
    for (int k = 0; k < LOG_COLUMNS; k++) {
        log->value[k] =
            mem_grow(log->value[k], &c->capacity[k], log->count + 1, sizeof *log->value[k]);
        log->value[k][log->count] = values[k];
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

static void write_csv(void *argument, double values[LOG_COLUMNS]) {
    const csv *c = argument;
    fputc('"', c->out);
    for (const char *at = c->name; *at; at++) {
        if (*at == '"') fputc('"', c->out);
        fputc(*at, c->out);
    }
    fputc('"', c->out);
    for (int k = 0; k < LOG_COLUMNS; k++) {
        char text[32];
        fputc(',', c->out);
        if (isnan(values[k])) continue;
        number_format(text, values[k]);
        fputs(text, c->out);
    }
    fputc('\n', c->out);
}

bool run_log_csv(const char *folder, const char *name, FILE *out, error *err) {
    csv c = {name, out};
    return each_line(folder, write_csv, &c, err);
}
