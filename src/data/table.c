#include "data/table.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/utf8.h"

#include <cjson/cJSON.h>
#include <csv.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* What columns are usually called, the likeliest first. */
static const char *const text_names[] = {"text",    "reviewtext", "review", "sentence", "content",
                                         "comment", "document",   "body",   "message",  "tweet"};
static const char *const label_names[] = {"label",    "class",   "sentiment", "category", "target",
                                          "polarity", "overall", "rating",    "stars",    "score"};

enum { NAMES = sizeof text_names / sizeof text_names[0] };

/* How usual a name is among `names`: 0 is the most usual one, NAMES is none of them. */
static int rank_of(const char *const names[NAMES], const void *name, size_t length) {
    for (int k = 0; k < NAMES; k++) {
        if (strlen(names[k]) == length && strncasecmp(name, names[k], length) == 0) return k;
    }
    return NAMES;
}

/* The same, where a column may have been named. */
static int rank_column(const char *named, const char *const names[NAMES], const void *name,
                       size_t length) {
    if (!named || !*named) return rank_of(names, name, length);
    return strlen(named) == length && strncasecmp(name, named, length) == 0 ? 0 : NAMES;
}

bool table_is_header(const uint8_t *line, size_t length) {
    const uint8_t *tab = memchr(line, '\t', length);
    if (!tab) return false;
    const size_t label = (size_t)(tab - line);
    return rank_of(label_names, line, label) < NAMES &&
           rank_of(text_names, tab + 1, length - label - 1) < NAMES;
}

table_kind table_kind_of(const char *path) {
    const bool packed = file_ends_in(path, ".gz") || file_ends_in(path, ".xz");
    char *name = mem_format("%.*s", (int)strlen(path) - (packed ? 3 : 0), path);
    table_kind kind = NO_TABLE;
    if (file_ends_in(name, ".csv")) kind = CSV_TABLE;
    if (file_ends_in(name, ".jsonl") || file_ends_in(name, ".ndjson")) kind = JSON_TABLE;
    if (packed && file_ends_in(name, ".json")) kind = JSON_TABLE;
    if (file_ends_in(name, ".ft.txt") || file_ends_in(name, ".fasttext")) kind = FASTTEXT_TABLE;
    free(name);
    return kind;
}

/* ------------------------------------------------------------------------------------- rows */

typedef struct bytes {
    uint8_t *at;
    size_t size, capacity;
} bytes;

static void set_bytes(bytes *b, const void *from, size_t size) {
    b->at = mem_grow(b->at, &b->capacity, size + 1, 1);
    if (size > 0) memcpy(b->at, from, size);
    b->size = size;
}

typedef struct table {
    source *source;
    const corpus_options *options;
    table_take *take;
    void *data;
    error *err;
    bytes label, text, line; /* of this row; line: both, for `take` */
    uint64_t row;            /* from 1 */
    bool failed;

    /* A CSV's. */
    int column, columns; /* the next one of this row; and how many the header has */
    int label_column, text_column, label_rank, text_rank;
    bytes names;   /* of the columns, for a message */
    size_t unread; /* bytes since the last chunk in which a row ended */
} table;

static void refuse(table *t, const char *what) {
    if (t->failed) return;
    t->failed = true;
    error_set(t->err, "%s:%" PRIu64 ": %s", source_name(t->source), t->row, what);
}

/* pandas writes whole numbers as 5.0 where some are missing. */
static void trim_number(bytes *label) {
    const uint8_t *at = label->at, *end = at + label->size;
    while (at < end && ((*at >= '0' && *at <= '9') || *at == '-')) at++;
    const uint8_t *point = at;
    if (point == label->at || point == end || *point != '.') return;
    for (at++; at < end && *at == '0'; at++) continue;
    if (at == end) label->size = (size_t)(point - label->at);
}

/* Hands the row on. An empty label means that there is none. */
static void finish_row(table *t) {
    bytes *label = &t->label;
    if (t->failed) return;
    while (label->size > 0 && label->at[label->size - 1] == ' ') label->size--;
    trim_number(label);
    if (label->size == 0) set_bytes(label, "-1", 2);
    if (memchr(label->at, '\t', label->size)) {
        refuse(t, "expected a label without tabs");
        return;
    }
    const size_t length = label->size + 1 + t->text.size;
    t->line.at = mem_grow(t->line.at, &t->line.capacity, length + 1, 1);
    memcpy(t->line.at, label->at, label->size);
    t->line.at[label->size] = '\t';
    /* The text as a line holds it, so that equal texts are equal. */
    for (size_t i = 0; i < t->text.size; i++) {
        const uint8_t byte = t->text.at[i];
        t->line.at[label->size + 1 + i] = byte == '\n' || byte == '\r' ? ' ' : byte;
    }
    t->failed = !t->take(t->data, t->row, t->line.at, length, t->err);
}

/* -------------------------------------------------------------------------------------- CSV */

static void name_column(table *t, const void *name, size_t length) {
    const int label = rank_column(t->options->label_column, label_names, name, length);
    const int text = rank_column(t->options->text_column, text_names, name, length);
    const size_t before = t->names.size;
    if (label < t->label_rank) t->label_rank = label, t->label_column = t->column;
    if (text < t->text_rank) t->text_rank = text, t->text_column = t->column;
    if (before > 200) return; /* enough for a message */
    t->names.at = mem_grow(t->names.at, &t->names.capacity, before + length + 3, 1);
    t->names.size += (size_t)sprintf((char *)t->names.at + before, "%s%.*s", before ? ", " : "",
                                     (int)(length > 40 ? 40 : length), (const char *)name);
}

static void take_field(void *field, size_t length, void *data) {
    table *t = data;
    if (t->row == 1) {
        name_column(t, field, length);
    } else if (t->column == t->label_column) {
        set_bytes(&t->label, field, length);
    } else if (t->column == t->text_column) {
        set_bytes(&t->text, field, length);
    }
    t->column++;
}

/* What the header should have named, or NULL. */
static const char *missing_column(const table *t) {
    const corpus_options *o = t->options;
    const bool named = o->text_column && *o->text_column;
    if (t->text_rank == NAMES) {
        return named ? o->text_column : "text, review, sentence, content or the like";
    }
    return o->label_column && *o->label_column && t->label_rank == NAMES ? o->label_column : NULL;
}

static void end_of_row(int end, void *data) {
    table *t = data;
    char what[320];
    (void)end;
    if (t->row == 1) {
        const char *wanted = missing_column(t);
        t->columns = t->column;
        if (wanted) {
            snprintf(what, sizeof what,
                     "expected the names of columns, one of them %.60s, found %.200s", wanted,
                     t->names.size ? (const char *)t->names.at : "none");
            refuse(t, what);
        }
    } else if (t->column != t->columns) {
        snprintf(what, sizeof what, "expected %d columns as in the first row, found %d", t->columns,
                 t->column);
        refuse(t, what);
    } else {
        finish_row(t);
    }
    t->row++;
    t->unread = 0;
    t->column = 0;
    t->label.size = t->text.size = 0;
}

/* Whether the header has semicolons and no commas. */
static bool has_semicolons(const uint8_t *text, size_t size) {
    const uint8_t *end = memchr(text, '\n', size);
    if (end) size = (size_t)(end - text);
    return memchr(text, ';', size) && !memchr(text, ',', size);
}

static bool read_csv(table *t, error *err) {
    struct csv_parser parser;
    if (csv_init(&parser, CSV_STRICT | CSV_STRICT_FINI) != 0) {
        return error_set(err, "%s: cannot start to read it as CSV", source_name(t->source));
    }
    uint8_t *chunk = mem_alloc(SOURCE_CHUNK, 1);
    size_t count = 0;
    bool read, first = true, parsed = true;
    t->row = 1;
    t->label_column = t->text_column = -1;
    t->label_rank = t->text_rank = NAMES;
    while ((read = source_read(t->source, chunk, SOURCE_CHUNK, &count, err)) && count > 0) {
        const size_t skip = first ? utf8_mark_length(chunk, count) : 0;
        if (first && has_semicolons(chunk + skip, count - skip)) csv_set_delim(&parser, ';');
        first = false;
        parsed = csv_parse(&parser, chunk + skip, count - skip, take_field, end_of_row, t) ==
                 count - skip;
        t->unread += count;
        if (t->unread > SOURCE_LONGEST)
            refuse(t, "a row of more than 64 MiB; is a quote left open?");
        if (!parsed || t->failed) break;
    }
    if (read && parsed && !t->failed) {
        parsed = csv_fini(&parser, take_field, end_of_row, t) == 0;
    }
    if (read && !parsed) refuse(t, "expected a closing quote, then a comma or the row's end");
    csv_free(&parser);
    free(chunk);
    return read && !t->failed;
}

/* ------------------------------------------------------------------------------------- JSON */

/* The member of this name, or else of the likeliest one, or NULL. */
static const cJSON *find_member(const cJSON *object, const char *named,
                                const char *const names[NAMES]) {
    const cJSON *found = NULL, *member;
    int rank = NAMES;
    cJSON_ArrayForEach(member, object) {
        const int its = rank_column(named, names, member->string, strlen(member->string));
        if (its < rank) rank = its, found = member;
    }
    return found;
}

static void set_label(table *t, const cJSON *label) {
    char number[32];
    if (!label || cJSON_IsNull(label)) {
        set_bytes(&t->label, "", 0);
    } else if (cJSON_IsString(label)) {
        set_bytes(&t->label, label->valuestring, strlen(label->valuestring));
    } else if (cJSON_IsBool(label)) {
        const char *name = cJSON_IsTrue(label) ? "true" : "false";
        set_bytes(&t->label, name, strlen(name));
    } else if (cJSON_IsNumber(label)) {
        snprintf(number, sizeof number, "%.15g", label->valuedouble);
        set_bytes(&t->label, number, strlen(number));
    } else {
        refuse(t, "expected a name or a number as label");
    }
}

static void take_object(table *t, const cJSON *object) {
    if (!cJSON_IsObject(object)) {
        refuse(t, "expected a JSON object");
        return;
    }
    const corpus_options *o = t->options;
    const cJSON *text = find_member(object, o->text_column, text_names);
    const cJSON *label = find_member(object, o->label_column, label_names);
    char what[128];
    if (!cJSON_IsString(text)) {
        snprintf(what, sizeof what, "expected a string %.60s",
                 o->text_column && *o->text_column
                     ? o->text_column
                     : "text, review, reviewText, sentence, content or the like");
        refuse(t, what);
        return;
    }
    if (!label && o->label_column && *o->label_column) {
        snprintf(what, sizeof what, "expected a member %.60s", o->label_column);
        refuse(t, what);
        return;
    }
    set_label(t, label);
    set_bytes(&t->text, text->valuestring, strlen(text->valuestring));
    finish_row(t);
}

/* Whether a string of the line has a zero byte, at which cJSON would end it. */
static bool has_zero(const uint8_t *text, size_t length) {
    static const char zero[] = "\\u0000";
    const uint8_t *at = text, *end = text + length, *found;
    while ((found = memmem(at, (size_t)(end - at), zero, sizeof zero - 1))) {
        const uint8_t *first = found; /* of the backslashes, of which two are one character */
        while (first > text && first[-1] == '\\') first--;
        if ((found - first) % 2 == 0) return true;
        at = found + 1;
    }
    return false;
}

static void take_json(table *t, const uint8_t *text, size_t length) {
    const char *end = NULL, *last = (const char *)text + length;
    if (has_zero(text, length)) {
        refuse(t, "expected no \\u0000");
        return;
    }
    cJSON *object = cJSON_ParseWithLengthOpts((const char *)text, length, &end, false);
    while (object && end < last && strchr(" \t\r\n", *end)) end++;
    if (object && end < last) {
        refuse(t, "expected one JSON object");
    } else {
        take_object(t, object);
    }
    cJSON_Delete(object);
}

/* --------------------------------------------------------------------------------- fastText */

/* The text is the line without its label, and without a blank after that, or before the last. */
static void take_fasttext(table *t, const uint8_t *line, size_t length) {
    static const char mark[] = "__label__";
    const size_t skip = sizeof mark - 1;
    size_t begin = 0, end = 0, labels = 0;
    if (length > 0 && line[length - 1] == '\r') length--;
    for (size_t at = 0; at < length; at++) {
        if (at > 0 && line[at - 1] != ' ' && line[at - 1] != '\t') continue;
        if (length - at < skip || memcmp(line + at, mark, skip) != 0) continue;
        labels++;
        begin = at;
        for (end = at; end < length && line[end] != ' ' && line[end] != '\t';) end++;
    }
    if (labels != 1) {
        refuse(t, labels ? "expected one word __label__NAME, found several"
                         : "expected a word __label__NAME");
        return;
    }
    set_bytes(&t->label, line + begin + skip, end - begin - skip);
    if (end < length) {
        end++;
    } else if (begin > 0) {
        begin--;
    }
    set_bytes(&t->text, line, begin);
    t->text.at = mem_grow(t->text.at, &t->text.capacity, begin + length - end + 1, 1);
    memcpy(t->text.at + begin, line + end, length - end);
    t->text.size = begin + length - end;
    finish_row(t);
}

static bool read_lines(table *t, void (*take)(table *, const uint8_t *, size_t), error *err) {
    lines l = {.source = t->source, .number = 1};
    bool read = true;
    for (; !t->failed && (read = lines_next(&l, err)) && l.text; l.number++) {
        size_t skip = l.number == 1 ? utf8_mark_length(l.text, l.length) : 0;
        while (skip < l.length && l.text[skip] == ' ') skip++;
        if (skip == l.length) continue; /* an empty line */
        t->row = l.number;
        take(t, l.text + skip, l.length - skip);
    }
    free(l.buffer);
    return read && !t->failed;
}

bool table_read(source *s, table_kind kind, const corpus_options *options, table_take *take,
                void *data, error *err) {
    table t = {.source = s, .options = options, .take = take, .data = data, .err = err};
    const bool read = kind == CSV_TABLE
                          ? read_csv(&t, err)
                          : read_lines(&t, kind == JSON_TABLE ? take_json : take_fasttext, err);
    free(t.label.at);
    free(t.text.at);
    free(t.line.at);
    free(t.names.at);
    return read;
}
