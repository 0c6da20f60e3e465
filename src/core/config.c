#include "core/config.h"

#include "core/base64.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/number.h"
#include "core/overwrite.h"
#include "core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum { MAX_DEPTH = 8, MAX_FILE = 1 << 20, MAX_DIRECTIVES = 8 };

/* ------------------------------------------------------------------------------------ names */

static int edit_distance(const char *a, const char *b) {
    size_t length = strlen(b);
    int *row = mem_alloc(length + 1, sizeof *row);
    for (size_t j = 0; j <= length; j++) row[j] = (int)j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    int distance = row[length];
    free(row);
    return distance;
}

static bool is_near(const char *wrong, const char *name, int distance) {
    size_t shorter = strlen(wrong) < strlen(name) ? strlen(wrong) : strlen(name);
    bool begins = shorter >= 3 && strncmp(wrong, name, shorter) == 0;
    return begins || distance <= 1 || (size_t)distance * 2 <= shorter;
}

const char *nearest_name(const char *wrong, const char *const *names, int count) {
    const char *nearest = names[0];
    int least = edit_distance(wrong, nearest);
    for (int i = 1; i < count; i++) {
        int distance = edit_distance(wrong, names[i]);
        if (distance < least) {
            least = distance;
            nearest = names[i];
        }
    }
    return is_near(wrong, nearest, least) ? nearest : NULL;
}

static int key_index(const config *c, const char *path) {
    for (int i = 0; i < c->count; i++) {
        if (strcmp(c->keys[i].path, path) == 0) return i;
    }
    return -1;
}

static bool unknown_key(const config *c, const char *path, const char *source, error *err) {
    const size_t length = strlen(path);
    for (int i = 0; i < c->count; i++) { /* a section */
        const char *name = c->keys[i].path;
        if (strncmp(name, path, length) != 0 || name[length] != '.') continue;
        return error_set(err,
                         "%s: %s: expected keys of this section, such as %s, each with its value",
                         source, path, name + length + 1);
    }
    const char **names = mem_alloc((size_t)c->count, sizeof *names);
    for (int i = 0; i < c->count; i++) names[i] = c->keys[i].path;
    const char *near = nearest_name(path, names, c->count);
    for (int i = 0; i < c->count; i++) { /* a key without its section: lr */
        const char *last = strrchr(names[i], '.');
        if (last && strcmp(last + 1, path) == 0) near = names[i];
    }
    error_set(err, "%s: %s: unknown key%s%s", source, path,
              near ? "; the nearest is " : "; 'smallworld train --help-config' lists them",
              near ? near : "");
    free(names);
    return false;
}

const char *config_choice(const char *choices, int index, char *name, size_t size) {
    for (; index > 0 && choices; index--) {
        choices = strchr(choices, ' ');
        if (choices) choices++;
    }
    if (!choices) return NULL;
    snprintf(name, size, "%.*s", (int)strcspn(choices, " "), choices);
    return name;
}

/* ----------------------------------------------------------------------------------- values */

/* A scalar or a sequence of scalars as the YAML has it. */
typedef struct value {
    char **items;
    int count;
    bool sequence, quoted;
} value;

static void value_free(value *v) {
    for (int i = 0; i < v->count; i++) free(v->items[i]);
    free(v->items);
    *v = (value){0};
}

static void value_append(value *v, const char *text) {
    v->items = mem_resize(v->items, (size_t)v->count + 1, sizeof *v->items);
    v->items[v->count++] = mem_string(text);
}

static void list_free(config_list *list) {
    for (int i = 0; i < list->count; i++) free(list->items[i]);
    free(list->items);
    *list = (config_list){0};
}

/* Describes the range of a numeric key, such as "above 0, at most 1". */
static const char *range_text(const config_key *key, char *text, size_t size) {
    char low[64] = "", high[64] = "";
    if (key->minimum > -HUGE_VAL) {
        snprintf(low, sizeof low, "%s %.10g",
                 key->flags & CONFIG_ABOVE_MINIMUM ? "above" : "at least", key->minimum);
    }
    if (key->maximum < HUGE_VAL) {
        snprintf(high, sizeof high, "%s %.10g",
                 key->flags & CONFIG_BELOW_MAXIMUM ? "below" : "at most", key->maximum);
    }
    snprintf(text, size, "%s%s%s", low, *low && *high ? ", " : "", high);
    return text;
}

static bool in_range(const config_key *key, double number) {
    if (number < key->minimum || number > key->maximum) return false;
    if ((key->flags & CONFIG_ABOVE_MINIMUM) && number == key->minimum) return false;
    return !((key->flags & CONFIG_BELOW_MAXIMUM) && number == key->maximum);
}

/* Parses the scalar of `v` into `slot`. Returns NULL, or what was expected. */
static const char *parse_scalar(const config_key *key, const value *v, void *slot, char *expected,
                                size_t size) {
    const char *text = v->count > 0 ? v->items[0] : ""; /* a list may be empty */
    char *stop, range[160], name[64];
    bool plain = !v->sequence && !v->quoted && *text;
    errno = 0;
    switch (key->type) {
    case CONFIG_INTEGER: {
        long long number = strtoll(text, &stop, 10);
        range_text(key, range, sizeof range);
        snprintf(expected, size, "an integer %s%s", range,
                 errno && key->maximum == HUGE_VAL ? ", at most 2^63 - 1" : "");
        if (!plain || *stop || errno || !in_range(key, (double)number)) return expected;
        *(int64_t *)slot = number;
        return NULL;
    }
    case CONFIG_NUMBER: {
        double number = number_scan(text, &stop);
        snprintf(expected, size, "a finite number %s", range_text(key, range, sizeof range));
        if (!plain || *stop || !isfinite(number) || !in_range(key, number)) return expected;
        *(double *)slot = number;
        return NULL;
    }
    case CONFIG_BOOLEAN:
        if (!plain || (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)) {
            return "true or false";
        }
        *(bool *)slot = *text == 't';
        return NULL;
    case CONFIG_CHOICE:
        for (int i = 0; !v->sequence && config_choice(key->choices, i, name, sizeof name); i++) {
            if (strcmp(name, text) == 0) {
                *(int *)slot = i;
                return NULL;
            }
        }
        snprintf(expected, size, "one of: %s", key->choices);
        return expected;
    case CONFIG_STRING:
        if (v->sequence) return "a string";
        free(*(char **)slot);
        *(char **)slot = mem_string(text);
        return NULL;
    case CONFIG_LIST: break; /* taken whole by set_value */
    }
    return "a scalar";
}

static void set_null(const config_key *key, void *slot) {
    if (key->type == CONFIG_LIST) list_free(slot);
    if (key->type == CONFIG_STRING) **(char **)slot = '\0';
    if (key->type == CONFIG_INTEGER) *(int64_t *)slot = 0;
    if (key->type == CONFIG_NUMBER) *(double *)slot = 0;
}

static bool set_value(config *c, const char *path, value *v, const char *source, error *err) {
    int index = key_index(c, path);
    if (index < 0) return unknown_key(c, path, source, err);
    const config_key *key = &c->keys[index];
    void *slot = (char *)c->target + key->offset;
    bool is_null = !v->sequence && !v->quoted &&
                   (strcmp(v->items[0], "null") == 0 || strcmp(v->items[0], "~") == 0 ||
                    v->items[0][0] == '\0');
    if (is_null && !key->fallback) {
        set_null(key, slot);
    } else if (key->type == CONFIG_LIST && !is_null) {
        list_free(slot);
        *(config_list *)slot = (config_list){v->items, v->count};
        *v = (value){0};
    } else {
        char expected[256];
        const char *problem = parse_scalar(key, v, slot, expected, sizeof expected);
        if (problem) {
            return error_set(err, "%s: %s: expected %s, got %s%s%s%s", source, path, problem,
                             v->sequence ? "a list" : "'", v->sequence ? "" : v->items[0],
                             v->sequence ? "" : "'",
                             v->quoted ? " in quotes, which make it text" : "");
        }
    }
    free(c->source[index]);
    c->source[index] = mem_string(source);
    return true;
}

bool config_set(config *c, const char *path, const char *text, const char *source, error *err) {
    value v = {0};
    value_append(&v, text);
    bool done = set_value(c, path, &v, source, err);
    value_free(&v);
    return done;
}

/* ------------------------------------------------------------------------------------- YAML */

#define YAML_BINARY_TAG "tag:yaml.org,2002:binary"

typedef struct loader {
    config *c;
    const char *file; /* for messages */
    yaml_parser_t parser;
    bool lines;      /* whether a line number helps */
    const char *key; /* of an assignment, or NULL */
    error *err;
} loader;

static const char *where(const loader *l, size_t line, char *text, size_t size) {
    if (l->lines) {
        snprintf(text, size, "%s:%zu", l->file, line + 1);
    } else {
        snprintf(text, size, "%s", l->file);
    }
    return text;
}

static bool refuse(const loader *l, size_t line, const char *path, const char *message) {
    char text[ERROR_TEXT / 2];
    return error_set(l->err, "%s: %s%s%s", where(l, line, text, sizeof text), path,
                     *path ? ": " : "", message);
}

static bool next_event(loader *l, yaml_event_t *event) {
    if (yaml_parser_parse(&l->parser, event)) {
        const bool scalar = event->type == YAML_SCALAR_EVENT;
        if (!scalar || strlen((char *)event->data.scalar.value) == event->data.scalar.length) {
            return true;
        }
        const size_t line = event->start_mark.line;
        yaml_event_delete(event);
        return refuse(l, line, l->key ? l->key : "", "a key or value with a NUL byte");
    }
    if (l->parser.error == YAML_MEMORY_ERROR) mem_give_up(1, BUFSIZ);
    const char *problem = l->parser.problem ? l->parser.problem : "cannot read";
    if (strstr(problem, "cannot start any token")) {
        problem =
            "found a character that cannot begin a word; lines are indented by spaces, not by tabs";
    }
    if (l->key) return error_set(l->err, "%s: %s: not valid YAML: %s", l->file, l->key, problem);
    return refuse(l, l->parser.problem_mark.line, "not valid YAML", problem);
}

/* Appends a scalar, whose bytes may be given in base64. */
static bool append_scalar(loader *l, const char *path, value *v, yaml_event_t *event) {
    char *text = (char *)event->data.scalar.value;
    const char *tag = (const char *)event->data.scalar.tag;
    if (tag && strcmp(tag, YAML_BINARY_TAG) == 0 && !base64_read(text)) {
        return refuse(l, event->start_mark.line, path, "expected base64 of bytes other than NUL");
    }
    value_append(v, text);
    return true;
}

/* Reads scalars up to the end of a sequence. */
static bool read_sequence(loader *l, const char *path, value *v) {
    v->sequence = true;
    for (;;) {
        yaml_event_t event;
        if (!next_event(l, &event)) return false;
        size_t line = event.start_mark.line;
        bool end = event.type == YAML_SEQUENCE_END_EVENT, scalar = event.type == YAML_SCALAR_EVENT;
        const bool read = !scalar || append_scalar(l, path, v, &event);
        yaml_event_delete(&event);
        if (end) return true;
        if (!read) return false;
        if (!scalar) return refuse(l, line, path, "expected a list of plain values");
    }
}

static bool already_set(const loader *l, const char *path, const char *source) {
    int index = key_index(l->c, path);
    const char *earlier = index < 0 ? NULL : l->c->source[index];
    size_t length = strlen(l->file);
    if (!l->lines || !earlier || strncmp(earlier, l->file, length) != 0) return false;
    error_set(l->err, "%s: %s: given twice, first at %s", source, path, earlier);
    return true;
}

static bool read_mapping(loader *l, const char *path, int depth);

/* Reads the value of `path`, whose first event has been read. */
static bool read_value(loader *l, const char *path, yaml_event_t *event, int depth) {
    char source[ERROR_TEXT / 2];
    where(l, event->start_mark.line, source, sizeof source);
    if (event->type == YAML_MAPPING_START_EVENT) return read_mapping(l, path, depth + 1);
    value v = {0};
    bool done;
    if (event->type == YAML_SCALAR_EVENT) {
        done = append_scalar(l, path, &v, event);
        v.quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        done = read_sequence(l, path, &v);
    } else {
        done = refuse(l, event->start_mark.line, path, "YAML aliases are not supported");
    }
    if (done) done = !already_set(l, path, source) && set_value(l->c, path, &v, source, l->err);
    value_free(&v);
    return done;
}

static bool read_mapping(loader *l, const char *path, int depth) {
    for (;;) {
        yaml_event_t event;
        char member[256];
        if (!next_event(l, &event)) return false;
        size_t line = event.start_mark.line;
        bool end = event.type == YAML_MAPPING_END_EVENT, scalar = event.type == YAML_SCALAR_EVENT;
        if (scalar) {
            snprintf(member, sizeof member, "%s%s%s", path, *path ? "." : "",
                     (const char *)event.data.scalar.value);
        }
        yaml_event_delete(&event);
        if (end) return true;
        if (!scalar || depth > MAX_DEPTH) return refuse(l, line, path, "expected a key");
        if (!next_event(l, &event)) return false;
        bool done = read_value(l, member, &event, depth);
        yaml_event_delete(&event);
        if (!done) return false;
    }
}

/* Reads one document: a mapping of keys or, with `path`, the value of that key. */
static bool read_document(loader *l, const char *path) {
    yaml_event_t event;
    yaml_event_type_t type;
    do {
        if (!next_event(l, &event)) return false;
        type = event.type;
        if (type == YAML_STREAM_START_EVENT || type == YAML_DOCUMENT_START_EVENT) {
            yaml_event_delete(&event);
        }
    } while (type == YAML_STREAM_START_EVENT || type == YAML_DOCUMENT_START_EVENT);

    size_t line = event.start_mark.line;
    bool done;
    if (type == YAML_STREAM_END_EVENT && *path) {
        done = refuse(l, line, path, "expected a value, found none");
    } else if (type == YAML_STREAM_END_EVENT) {
        done = error_set(l->err, "%s: empty: expected keys such as data.train", l->file);
    } else if (*path == '\0' && type != YAML_MAPPING_START_EVENT) {
        done = refuse(
            l, line, "",
            "expected keys such as data: {train: FILE}; text to train on is given with --data");
    } else {
        done = read_value(l, path, &event, 0);
    }
    yaml_event_delete(&event);

    while (done) {
        if (!next_event(l, &event)) return false;
        type = event.type;
        line = event.start_mark.line;
        yaml_event_delete(&event);
        if (type == YAML_STREAM_END_EVENT) break;
        if (type == YAML_DOCUMENT_START_EVENT) {
            done = refuse(l, line, "", "expected one YAML document, found a second");
        }
    }
    return done;
}

/* Reads a config file, which may be a pipe. Returns NULL with a message if it cannot be read or is
 * not a config. */
static char *read_file(const char *file, size_t *size, error *err) {
    /* Opening a pipe does not wait for a writer; without one it is empty. Reading waits. */
    const int descriptor = open(file, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    FILE *in = descriptor < 0 ? NULL : fdopen(descriptor, "rb");
    if (!in) {
        error_system(err, "open", file);
        return NULL;
    }
    fcntl(descriptor, F_SETFL, 0);
    overwrite_note_input(fileno(in));
    char *text = mem_alloc(MAX_FILE + 2, 1);
    *size = fread(text, 1, MAX_FILE + 1, in);
    bool read = !ferror(in) || error_system(err, "read", file);
    fclose(in);
    if (read && *size > MAX_FILE) {
        read = error_set(err, "%s: more than %d bytes, which no config has", file, MAX_FILE);
    }
    int directives = 0; /* the parser compares each directive with all earlier ones */
    for (const char *line = text; line && read; line = strchr(line, '\n')) {
        line += *line == '\n';
        directives += *line == '%';
    }
    if (directives > MAX_DIRECTIVES) {
        read = error_set(err, "%s: more than %d YAML directives", file, MAX_DIRECTIVES);
    }
    if (read) return text;
    free(text);
    return NULL;
}

/* Reads a text of YAML; see read_document. */
static bool read_text(loader *l, const char *text, size_t size, const char *path) {
    if (!yaml_parser_initialize(&l->parser)) mem_give_up(1, sizeof l->parser);
    yaml_parser_set_input_string(&l->parser, (const unsigned char *)text, size);
    const bool done = read_document(l, path);
    yaml_parser_delete(&l->parser);
    return done;
}

bool config_load(config *c, const char *file, error *err) {
    size_t size;
    char *text = read_file(file, &size, err);
    if (!text) return false;
    loader l = {.c = c, .file = file, .lines = true, .err = err};
    const bool done = read_text(&l, text, size, "");
    free(text);
    return done;
}

bool config_assign(config *c, const char *assignment, error *err) {
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment) {
        return error_usage(err, "--set %s: expected key.path=value", assignment);
    }
    char *path = mem_format("%.*s", (int)(equals - assignment), assignment);
    const char *text = equals[1] ? equals + 1 : "\"\"";
    loader l = {.c = c, .file = "--set", .key = path, .err = err};
    const bool done = read_text(&l, text, strlen(text), path);
    if (!done) err->status = STATUS_USAGE;
    free(path);
    return done;
}

/* --------------------------------------------------------------------------------- lifetime */

void config_begin(config *c, const config_key *keys, int count, void *target) {
    *c = (config){.keys = keys,
                  .count = count,
                  .target = target,
                  .source = mem_alloc((size_t)count, sizeof *c->source)};
    for (int i = 0; i < count; i++) {
        const config_key *key = &keys[i];
        if (key->type == CONFIG_STRING) {
            *(char **)((char *)target + key->offset) = mem_string("");
        }
        error err;
        if (key->fallback && !config_set(c, key->path, key->fallback, "default", &err)) {
            fprintf(stderr, "smallworld: %s\n", err.text); /* a mistake in our own table */
            abort();
        }
        free(c->source[i]);
        c->source[i] = NULL;
    }
}

void config_end(config *c) {
    for (int i = 0; i < c->count; i++) {
        void *slot = (char *)c->target + c->keys[i].offset;
        if (c->keys[i].type == CONFIG_STRING) free(*(char **)slot);
        if (c->keys[i].type == CONFIG_LIST) list_free(slot);
        free(c->source[i]);
    }
    free(c->source);
    *c = (config){0};
}

/* Whether a source is an option, such as "--set", rather than a place in a file. */
static bool is_option(const char *source) {
    return strncmp(source, "--", 2) == 0;
}

bool config_is_assigned(const config *c, const char *path) {
    int index = key_index(c, path);
    return index >= 0 && c->source[index] && is_option(c->source[index]);
}

void config_unset(config *c, const char *path) {
    const config_key *key = &c->keys[key_index(c, path)];
    error err;
    config_set(c, path, key->fallback ? key->fallback : "null", "default", &err);
    free(c->source[key - c->keys]);
    c->source[key - c->keys] = NULL;
}

bool config_is_set(const config *c, const char *path) {
    int index = key_index(c, path);
    return index >= 0 && c->source[index];
}

bool config_refuse(const config *c, error *err, const char *path, const char *format, ...) {
    char message[ERROR_TEXT];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    int index = key_index(c, path);
    const char *source = index >= 0 && c->source[index] ? c->source[index] : "default";
    return is_option(source) ? error_usage(err, "%s: %s: %s", source, path, message)
                             : error_set(err, "%s: %s: %s", source, path, message);
}

/* ---------------------------------------------------------------------------------- writing */

/* A name of a file that is no UTF-8, as YAML writes binary data. */
static void write_binary(FILE *out, const char *text) {
    fputs("!!binary \"", out);
    base64_write(out, (const uint8_t *)text, strlen(text));
    fputc('"', out);
}

/* As quoted text in YAML. */
static void write_string(const char *text, FILE *out) {
    if (!utf8_valid((const uint8_t *)text, strlen(text))) {
        write_binary(out, text);
        return;
    }
    fputc('"', out);
    for (size_t left = strlen(text), length; left > 0; text += length, left -= length) {
        const uint8_t *c = (const uint8_t *)text;
        length = utf8_length(c, left);
        const uint32_t code = utf8_code(c, length);
        if (utf8_is_control(code)) { /* YAML refuses or folds them */
            fprintf(out, "\\u%04" PRIx32, code);
            continue;
        }
        if (*c == '"' || *c == '\\') fputc('\\', out);
        fwrite(c, 1, length, out);
    }
    fputc('"', out);
}

void config_write_list(char *const *items, int count, FILE *out) {
    fputc('[', out);
    for (int i = 0; i < count; i++) {
        if (i) fputs(", ", out);
        write_string(items[i], out);
    }
    fputc(']', out);
}

char *config_join(const config_list *list) {
    const char *between = "";
    char *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    for (int i = 0; i < list->count; i++, between = ", ") {
        fprintf(out, "%s%s", between, list->items[i]);
    }
    mem_stream_end(out);
    return text;
}

char *config_text(const config *c, const config_key *key) {
    const void *slot = (const char *)c->target + key->offset;
    char number[64], *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    bool null = !key->fallback;
    switch (key->type) {
    case CONFIG_INTEGER:
        null = null && *(const int64_t *)slot == 0;
        fprintf(out, null ? "null" : "%" PRId64, *(const int64_t *)slot);
        break;
    case CONFIG_NUMBER:
        null = null && *(const double *)slot == 0;
        number_format(number, *(const double *)slot);
        fputs(null ? "null" : number, out);
        break;
    case CONFIG_BOOLEAN: fputs(*(const bool *)slot ? "true" : "false", out); break;
    case CONFIG_CHOICE:
        config_choice(key->choices, *(const int *)slot, number, sizeof number);
        fputs(number, out);
        break;
    case CONFIG_STRING:
        null = null && **(char *const *)slot == '\0';
        if (null) {
            fputs("null", out);
        } else {
            write_string(*(char *const *)slot, out);
        }
        break;
    case CONFIG_LIST: {
        const config_list *list = slot;
        config_write_list(list->items, list->count, out);
        break;
    }
    }
    mem_stream_end(out);
    return text;
}

/* Returns the name of key i's section if a new section starts there, else NULL. */
static const char *section_start(const config_key *keys, int i, char *section, size_t size) {
    size_t length = strcspn(keys[i].path, ".");
    if (i > 0 && strncmp(keys[i].path, keys[i - 1].path, length + 1) == 0) return NULL;
    snprintf(section, size, "%.*s", (int)length, keys[i].path);
    return section;
}

void config_write(const config *c, FILE *out) {
    char section[64];
    for (int i = 0; i < c->count; i++) {
        if (section_start(c->keys, i, section, sizeof section)) fprintf(out, "%s:\n", section);
        char *text = config_text(c, &c->keys[i]);
        fprintf(out, "  %s: %s\n", strchr(c->keys[i].path, '.') + 1, text);
        free(text);
    }
}

/* Prints words from column `at` on, in lines of at most WIDTH columns. Further lines are indented.
 */
static void print_wrapped(FILE *out, int at, const char *text) {
    enum { WIDTH = 98, INDENT = 6 };
    while (*text) {
        const size_t length = strcspn(text, " ");
        int columns = 0; /* UTF-8 characters; their further bytes are 10xxxxxx */
        for (size_t i = 0; i < length; i++) columns += (text[i] & 0xC0) != 0x80;
        if (at + 1 + columns > WIDTH) {
            fprintf(out, "\n%*s", INDENT, "");
            at = INDENT;
        } else if (at > INDENT) {
            fputc(' ', out);
            at++;
        }
        fwrite(text, 1, length, out);
        at += columns;
        text += length;
        if (*text) text++;
    }
    fputc('\n', out);
}

void config_help(const config_key *keys, int count, FILE *out) {
    static const char *const types[] = {
        [CONFIG_INTEGER] = "integer",       [CONFIG_NUMBER] = "number",
        [CONFIG_BOOLEAN] = "true or false", [CONFIG_STRING] = "string",
        [CONFIG_CHOICE] = "choice",         [CONFIG_LIST] = "string or list of strings"};
    char section[64], range[160];
    for (int i = 0; i < count; i++) {
        const config_key *key = &keys[i];
        if (section_start(keys, i, section, sizeof section)) fprintf(out, "%s:\n", section);
        bool numeric = key->type == CONFIG_INTEGER || key->type == CONFIG_NUMBER;
        const char *values = key->choices ? key->choices : "";
        if (numeric) values = range_text(key, range, sizeof range);
        int used = fprintf(out, "  %s (%s, %s):", strchr(key->path, '.') + 1, types[key->type],
                           key->fallback ? key->fallback : "unset");
        char *text = mem_format(*values ? "%s [%s]" : "%s%s", key->help, values);
        print_wrapped(out, used, text);
        free(text);
    }
}

bool config_assign_string(config *c, const char *path, const char *value, error *err) {
    char *text;
    size_t size;
    if (!value) return true;
    FILE *out = mem_stream(&text, &size);
    fprintf(out, "%s=", path);
    write_string(value, out);
    mem_stream_end(out);
    const bool set = config_assign(c, text, err);
    free(text);
    return set;
}
