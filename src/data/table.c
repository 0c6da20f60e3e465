#include "data/table.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/utf8.h"

#include <cjson/cJSON.h>
#include <csv.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { NAMES = 13 };

typedef bool next_row(lines *l, error *err); /* as lines_next */

/* What columns are usually called, the likeliest first. */
static const char *const text_names[NAMES] = {
    "text", "reviewtext", "review", "sentence", "content",     "comment", "document",
    "body", "message",    "tweet",  "texts",    "review_text", "phrase"};
static const char *const label_names[NAMES] = {
    "label",  "class", "sentiment", "category", "target",  "polarity", "overall",
    "rating", "stars", "score",     "labels",   "emotion", "y"};

/* How usual a name is among `names`: 0 is the most usual one, NAMES is none of them. */
static int rank_of(const char *const names[NAMES], const void *name, size_t length) {
    for (int k = 0; k < NAMES; k++) {
        if (strlen(names[k]) == length && strncasecmp(name, names[k], length) == 0) return k;
    }
    return NAMES;
}

static bool is_named(const char *column) {
    return column && *column;
}

static bool is_name_of(const char *column, const void *name, size_t length) {
    return is_named(column) && strlen(column) == length && strncasecmp(name, column, length) == 0;
}

/* The same of a column of texts, or of labels, which may have been named. */
static int rank_column(const corpus_options *o, bool label, const void *name, size_t length) {
    const char *named = label ? o->label_column : o->text_column;
    if (is_named(named)) return is_name_of(named, name, length) ? 0 : NAMES;
    if (is_name_of(label ? o->usual_label : o->usual_text, name, length)) return -1;
    return rank_of(label ? label_names : text_names, name, length);
}

/* Whether a field may be a column's name, and no label nor text: without blanks, and no number. */
static bool may_be_name(const uint8_t *field, size_t length) {
    bool has_letter = false;
    for (size_t i = 0; i < length; i++) {
        if (field[i] <= ' ') return false;
        has_letter |= field[i] > '9';
    }
    return has_letter && length <= 40;
}

/* Whether a first line names columns, and is no document: if it has the column that is named to us;
 * or nothing but names, one of them usual, unless others are named to us. */
static bool is_header_of(const uint8_t *line, size_t length, char separator,
                         const corpus_options *options) {
    const char *text = options->text_column, *label = options->label_column;
    const bool named = is_named(text) || is_named(label);
    bool names = true, known = named, found = false;
    const uint8_t *end = line + length;
    if (!memchr(line, separator, length)) return false;
    for (const uint8_t *field = line, *tab; field <= end; field = tab + 1) {
        tab = memchr(field, separator, (size_t)(end - field));
        if (!tab) tab = end;
        size_t size = (size_t)(tab - field);
        if (size >= 2 && field[0] == '"' && tab[-1] == '"') field++, size -= 2;
        const bool has_text = rank_column(options, false, field, size) < NAMES;
        const bool has_label = rank_column(options, true, field, size) < NAMES;
        names = names && may_be_name(field, size);
        known = known || has_text || has_label;
        found = found || (is_named(text) && has_text) || (is_named(label) && has_label);
    }
    return found || (names && known);
}

static bool is_header(const uint8_t *line, size_t length, const corpus_options *options) {
    return is_header_of(line, length, '\t', options);
}

/* The first of the bytes that are not blank. */
static const uint8_t *skip_blanks(const uint8_t *at, const uint8_t *end) {
    while (at < end && strchr(" \t\r\n", *at)) at++;
    return at;
}

/* The end of the JSON value, or of the name of a member, that begins at `at`. */
static const uint8_t *value_end(const uint8_t *at, const uint8_t *end) {
    int depth = 0;
    for (bool quoted = false; at < end; at++) {
        if (quoted && *at == '\\') {
            at++;
        } else if (*at == '"') {
            quoted = !quoted;
        } else if (!quoted && (*at == '{' || *at == '[')) {
            depth++;
        } else if (!quoted && depth == 0 && strchr(",:}] \t\r\n", *at)) {
            break;
        } else if (!quoted && (*at == '}' || *at == ']')) {
            depth--;
        }
    }
    return at;
}

/* The next element of an array, which is the whole file, as if it were a line; `number` counts
 * elements. */
static bool element_next(lines *l, error *err) {
    const char *wrong = NULL;
    for (size_t count = 1; !wrong;) {
        const size_t left = l->end - l->begin;
        l->buffer = mem_grow(l->buffer, &l->capacity, 2 * l->end + SOURCE_CHUNK, 1);
        const uint8_t *end = l->buffer + l->end, *at = skip_blanks(l->buffer + l->begin, end);
        const uint8_t *start = skip_blanks(at < end ? at + 1 : end, end);
        const uint8_t *last = value_end(start, end);
        const bool closes = l->number > 1 && at < end && *at == ']';
        if (at < end && !closes && *at != (l->number == 1 ? '[' : ',')) {
            wrong = "expected a comma or ] after an object";
        } else if (closes && start < end) {
            wrong = "expected nothing after the array's ]";
        } else if (closes && count == 0) {
            l->text = NULL;
            return true;
        } else if (!closes && last < end) {
            l->text = l->buffer + (start - l->buffer);
            l->length = (size_t)(last - start);
            l->begin = (size_t)(last - l->buffer);
            return true;
        } else if (count == 0) {
            wrong = "expected ] at the end; is the file cut short?";
        } else if (left > SOURCE_LONGEST) {
            wrong = "an object of more than 64 MiB";
        } else {
            const bool first = l->end == 0;
            memmove(l->buffer, l->buffer + l->begin, left);
            l->begin = 0;
            l->end = left;
            do { /* a long object is not looked at again before it has doubled */
                if (!source_read(l->source, l->buffer + l->end, SOURCE_CHUNK, &count, err) ||
                    !source_check_utf8(l->source, l->buffer, count, err)) {
                    return false;
                }
                l->end += count;
            } while (count > 0 && l->end < 2 * left);
            if (first) l->begin = utf8_mark_length(l->buffer, count);
        }
    }
    return error_set(err, "%s:%" PRIu64 ": %s", source_name(l->source), l->number, wrong);
}

static const cJSON *find_member(const cJSON *object, const corpus_options *o, bool label);

/* Whether a .json's first line or element is an object with a text, which may be null, or with
 * members that may have the one that is named to us. */
static bool is_object(const uint8_t *line, size_t length, const corpus_options *options) {
    cJSON *object = cJSON_ParseWithLength((const char *)line, length);
    bool found = cJSON_IsObject(object);
    if (found && !is_named(options->text_column)) {
        const cJSON *text = find_member(object, options, false);
        found = cJSON_IsString(text) || cJSON_IsNull(text);
    }
    cJSON_Delete(object);
    return found;
}

/* Whether `decide` takes the first line, or element, of a file, which must be a regular one, as a
 * pipe can be read but once. */
static bool is_first(const char *path, const corpus_options *options, next_row *next,
                     bool (*decide)(const uint8_t *, size_t, const corpus_options *)) {
    struct stat status;
    error ignored;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    source *s = source_open(path, &ignored);
    lines l = {.source = s, .number = 1};
    bool decided = false;
    if (s && next(&l, &ignored) && l.text) {
        const size_t mark = utf8_mark_length(l.text, l.length);
        decided = decide(l.text + mark, l.length - mark, options);
    }
    free(l.buffer);
    source_close(s);
    return decided;
}

table_kind table_kind_of(const char *path, const corpus_options *options) {
    const bool packed = file_ends_in(path, ".gz") || file_ends_in(path, ".xz");
    char *name = mem_format("%.*s", (int)strlen(path) - (packed ? 3 : 0), path);
    table_kind kind = NO_TABLE;
    if (file_ends_in(name, ".csv")) kind = CSV_TABLE;
    if (file_ends_in(name, ".tsv") && is_first(path, options, lines_next, is_header))
        kind = CSV_TABLE;
    if (file_ends_in(name, ".jsonl") || file_ends_in(name, ".ndjson")) kind = JSON_TABLE;
    if (file_ends_in(name, ".json")) {
        if (is_first(path, options, element_next, is_object)) {
            kind = JSON_ARRAY;
        } else if (is_first(path, options, lines_next, is_object)) {
            kind = JSON_TABLE;
        }
    }
    if (file_ends_in(name, ".ft.txt") || file_ends_in(name, ".fasttext")) kind = FASTTEXT_TABLE;
    free(name);
    return kind;
}

bool table_check_named(const char *name, const corpus_options *options, error *err) {
    const bool by_text = is_named(options->text_column);
    if (!by_text && !is_named(options->label_column)) return true;
    return error_set(err,
                     "%s: expected a table with a column %.60s: a .csv, .jsonl or the like, or a "
                     ".tsv whose first row names it",
                     name, by_text ? options->text_column : options->label_column);
}

/* Where a line ends: at its LF, CR or CR LF, or at the end of the text. */
static size_t line_end(const uint8_t *text, size_t at, size_t size) {
    while (at < size && text[at] != '\n' && text[at] != '\r') at++;
    return at;
}

const char *table_guess(const uint8_t *text, size_t size) {
    const corpus_options usual = {0};
    const size_t mark = utf8_mark_length(text, size);
    const size_t end = line_end(text, mark, size);
    if (is_object(text + mark, end - mark, &usual)) return "JSON Lines, which end in .jsonl";
    for (const char *s = ",;\t"; *s; s++) {
        if (is_header_of(text + mark, end - mark, *s, &usual)) {
            return "a table with names of columns, which ends in .csv";
        }
    }
    return NULL;
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
    bytes label, text, whole;               /* of this row; whole: both, for `take` */
    uint64_t row;                           /* from 1 */
    uint64_t taken, skipped, first_skipped; /* rows; skipped: without a text */
    bool failed;

    /* A CSV's. */
    char separator;
    int column, columns; /* the next one of this row; and how many the header has */
    int label_column, text_column, label_rank, text_rank;
    bytes names;   /* of the columns, for a message */
    size_t unread; /* bytes since the last chunk in which a row ended */

    /* Of one with tabs. */
    struct csv_parser *parser;
    bytes rows; /* what is not yet parsed, from `begin` on */
    size_t begin;
    uint64_t line; /* the one that `begin` begins, from 1 */
    bool warned;
} table;

static void refuse(table *t, const char *what) {
    if (t->failed) return;
    t->failed = true;
    error_set(t->err, "%s:%" PRIu64 ": %s", source_name(t->source), t->row, what);
}

/* Hands the row on. */
static void finish_row(table *t) {
    bytes *label = &t->label;
    if (t->failed) return;
    if (label->size > 0 && memchr(label->at, '\t', label->size)) {
        refuse(t, "expected a label without tabs");
        return;
    }
    const size_t length = label->size + 1 + t->text.size;
    t->whole.at = mem_grow(t->whole.at, &t->whole.capacity, length + 1, 1);
    if (label->size > 0) memcpy(t->whole.at, label->at, label->size);
    t->whole.at[label->size] = '\t';
    /* The text as a line holds it, so that equal texts are equal. */
    for (size_t i = 0; i < t->text.size; i++) {
        const uint8_t byte = t->text.at[i];
        t->whole.at[label->size + 1 + i] = byte == '\n' || byte == '\r' ? ' ' : byte;
    }
    t->failed = !t->take(t->data, t->row, t->whole.at, length, t->err);
    t->taken++;
}

/* -------------------------------------------------------------------------------------- CSV */

static void name_column(table *t, const void *name, size_t length) {
    const int label = rank_column(t->options, true, name, length);
    const int text = rank_column(t->options, false, name, length);
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
    if (t->text_rank == NAMES) {
        return is_named(o->text_column) ? o->text_column
                                        : "text, review, sentence, content or the like";
    }
    return is_named(o->label_column) && t->label_rank == NAMES ? o->label_column : NULL;
}

/* Ends the header. */
static void end_of_names(table *t) {
    const char *wanted = missing_column(t), *names = t->names.size ? (char *)t->names.at : "none";
    char what[320];
    t->columns = t->column;
    if (wanted) {
        snprintf(
            what, sizeof what,
            "expected the names of columns, one of them %.60s, found %.150s; --text-column and "
            "--label-column name others",
            wanted, names);
        refuse(t, what);
    } else if (t->label_rank == NAMES && t->columns > 1) {
        log_line("%s: of its columns, %.200s, none is called label, class, sentiment or the like: "
                 "its texts have no labels, unless --label-column names theirs",
                 source_name(t->source), names);
    }
}

static void end_of_row(int end, void *data) {
    table *t = data;
    char what[320];
    (void)end;
    if (t->row == 1) {
        end_of_names(t);
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

/* Chooses the separator by the first line: Excel's "sep=;", or the commonest of the three. Returns
 * the bytes to leave out. */
static size_t find_separator(table *t, const uint8_t *text, size_t size) {
    static const char separators[] = ",;\t";
    const size_t mark = utf8_mark_length(text, size);
    size_t count[3] = {0}, end = mark, most = 0;
    for (; end < size && text[end] != '\n' && text[end] != '\r'; end++) {
        for (int k = 0; k < 3; k++) count[k] += text[end] == (uint8_t)separators[k];
    }
    if (end - mark == 5 && strncasecmp((const char *)text + mark, "sep=", 4) == 0) {
        t->separator = (char)text[end - 1];
        return end;
    }
    for (size_t k = 1; k < 3; k++) {
        if (count[k] > count[most]) most = k;
    }
    t->separator = separators[most];
    return mark;
}

static size_t next_line(const uint8_t *text, size_t end, size_t size) {
    if (end + 1 < size && text[end] == '\r' && text[end + 1] == '\n') return end + 2;
    return end < size ? end + 1 : size;
}

/* Whether a quoted field is open where a line ends, as it is where it begins. Kaggle's tables have
 * \" for a quote inside of quotes, also before the closing one. */
static bool ends_open(const uint8_t *line, size_t length, bool open) {
    for (size_t at = 0; at < length;) {
        if (!open) {
            while (at < length && line[at] == ' ') at++;
            open = at < length && line[at] == '"';
            if (open) {
                at++;
                continue;
            }
            const uint8_t *tab = memchr(line + at, '\t', length - at);
            if (!tab) return false;
            at = (size_t)(tab - line) + 1;
            continue;
        }
        const uint8_t *quote = memchr(line + at, '"', length - at);
        if (!quote) return true;
        at = (size_t)(quote - line) + 1;
        const bool doubled = at < length && line[at] == '"';
        const bool escaped = doubled && at >= 2 && line[at - 2] == '\\' &&
                             (at + 1 == length || line[at + 1] == '\t');
        at += doubled;
        if (doubled && !escaped) continue;
        open = at < length && line[at] != '\t';
        if (!open) at++;
    }
    return open;
}

static int columns_of(const uint8_t *line, size_t length) {
    int count = 1;
    for (size_t i = 0; i < length; i++) count += line[i] == '\t';
    return count;
}

/* Where the row that begins at `begin` ends, or 0 if that cannot be told before there is more. A
 * quoted field spans lines only if none of these is a row by itself; else its quote is text. */
static size_t row_end(const table *t, bool last, bool *quote_is_text) {
    const uint8_t *text = t->rows.at;
    const size_t size = t->rows.size, first = line_end(text, t->begin, size);
    const bool whole = columns_of(text + t->begin, first - t->begin) == t->columns;
    bool open = ends_open(text + t->begin, first - t->begin, false);
    size_t end = first;
    *quote_is_text = false;
    while (open) {
        const size_t begin = next_line(text, end, size);
        if (begin >= size) break;
        end = line_end(text, begin, size);
        if (end >= size && !last) return 0;
        open = ends_open(text + begin, end - begin, true);
        const bool is_row = columns_of(text + begin, end - begin) == t->columns;
        *quote_is_text = t->row > 1 && is_row && (open || whole);
        if (*quote_is_text) break;
    }
    if (end + 1 >= size && !last) return 0; /* LF may follow a CR */
    if (open && whole) *quote_is_text = true;
    return *quote_is_text ? first : end;
}

static void put(bytes *to, uint8_t byte) {
    to->at = mem_grow(to->at, &to->capacity, to->size + 1, 1);
    to->at[to->size++] = byte;
}

/* Writes a line whose quotes are text, but for those around a whole field, as CSV quotes them. */
static void quote_fields(bytes *to, const uint8_t *line, size_t length) {
    const uint8_t *end = line + length;
    for (const uint8_t *field = line, *tab; field <= end; field = tab + 1) {
        tab = memchr(field, '\t', (size_t)(end - field));
        if (!tab) tab = end;
        const size_t size = (size_t)(tab - field);
        const bool quoted = size >= 2 && field[0] == '"' && !ends_open(field, size, false);
        if (field > line) put(to, '\t');
        if (!quoted) put(to, '"');
        for (const uint8_t *at = field; at < tab; at++) {
            if (*at == '"' && !quoted) put(to, '"');
            put(to, *at);
        }
        if (!quoted) put(to, '"');
    }
}

/* Writes a row as libcsv reads it: with the quote doubled that \" is before a closing one. */
static void mend_quotes(bytes *to, const uint8_t *row, size_t length) {
    for (size_t i = 0; i < length; i++) {
        const bool ends = row[i] == '\t' || row[i] == '\n' || row[i] == '\r';
        if (ends && i >= 3 && memcmp(row + i - 3, "\\\"\"", 3) == 0) put(to, '"');
        put(to, row[i]);
    }
    if (length >= 3 && memcmp(row + length - 3, "\\\"\"", 3) == 0) put(to, '"');
}

/* Parses the rows that are whole, or, at the end of the file, all. */
static bool parse_tab_rows(table *t, bool last) {
    bool parsed = true, is_text;
    bytes row = {0};
    while (parsed && !t->failed && t->begin < t->rows.size) {
        const size_t end = row_end(t, last, &is_text);
        if (end == 0) break;
        const uint8_t *from = t->rows.at + t->begin;
        row.size = 0;
        if (is_text) {
            quote_fields(&row, from, end - t->begin);
            if (!t->warned) {
                log_warning("%s:%" PRIu64
                            ": a quote that does not end on its line is taken as text",
                            source_name(t->source), t->line);
            }
            t->warned = true;
        } else {
            mend_quotes(&row, from, end - t->begin);
        }
        const size_t next = next_line(t->rows.at, end, t->rows.size);
        for (size_t at = t->begin; at < next; t->line++) {
            at = next_line(t->rows.at, line_end(t->rows.at, at, next), next);
        }
        if (next > end) put(&row, '\n');
        parsed = row.size == 0 ||
                 csv_parse(t->parser, row.at, row.size, take_field, end_of_row, t) == row.size;
        t->begin = next;
    }
    free(row.at);
    memmove(t->rows.at, t->rows.at + t->begin, t->rows.size - t->begin);
    t->rows.size -= t->begin;
    t->begin = 0;
    return parsed;
}

/* Adds what was read to the rows with tabs. */
static bool parse_tabs(table *t, const uint8_t *in, size_t size) {
    t->rows.at = mem_grow(t->rows.at, &t->rows.capacity, t->rows.size + size + 1, 1);
    memcpy(t->rows.at + t->rows.size, in, size);
    t->rows.size += size;
    return parse_tab_rows(t, false);
}

static bool read_csv(table *t, error *err) {
    struct csv_parser parser;
    if (csv_init(&parser, 0) != 0) {
        return error_set(err, "%s: cannot start to read it as CSV", source_name(t->source));
    }
    uint8_t *chunk = mem_alloc(SOURCE_CHUNK, 1);
    size_t count = 0;
    bool read, parsed = true;
    t->parser = &parser;
    t->row = t->line = 1;
    t->label_column = t->text_column = -1;
    t->label_rank = t->text_rank = NAMES;
    while ((read = source_read(t->source, chunk, SOURCE_CHUNK, &count, err)) && count > 0) {
        if (!(read = source_check_utf8(t->source, chunk, count, err))) break;
        const size_t skip = t->separator ? 0 : find_separator(t, chunk, count);
        csv_set_delim(&parser, (unsigned char)t->separator);
        t->unread += count;
        parsed = t->separator == '\t' ? parse_tabs(t, chunk + skip, count - skip)
                                      : csv_parse(&parser, chunk + skip, count - skip, take_field,
                                                  end_of_row, t) == count - skip;
        if (t->unread > SOURCE_LONGEST)
            refuse(t, "a row of more than 64 MiB; is a quote left open?");
        if (!parsed || t->failed) break;
    }
    if (read && parsed && !t->failed && t->separator == '\t') parsed = parse_tab_rows(t, true);
    if (read && parsed && !t->failed) {
        csv_set_opts(&parser, CSV_STRICT | CSV_STRICT_FINI); /* an open quote is found at the end */
        parsed = csv_fini(&parser, take_field, end_of_row, t) == 0;
    }
    if (read && !parsed) refuse(t, "expected a closing quote");
    csv_free(&parser);
    t->parser = NULL;
    free(chunk);
    return read && !t->failed;
}

/* ------------------------------------------------------------------------------------- JSON */

/* An object's member of this name, or else of the likeliest one, or NULL. */
static const cJSON *find_member(const cJSON *object, const corpus_options *o, bool label) {
    const cJSON *found = NULL, *member;
    int rank = NAMES;
    cJSON_ArrayForEach(member, object) {
        const int its = rank_column(o, label, member->string, strlen(member->string));
        if (its < rank) rank = its, found = member;
    }
    return found;
}

/* The text of the value of an object's member, counted from 0, of valid JSON; cJSON keeps of a
 * number what a double holds. */
static void set_number(table *t, const uint8_t *at, size_t length, int member) {
    const uint8_t *end = at + length, *last;
    at = skip_blanks(at, end) + 1;
    for (;; at = skip_blanks(last, end) + 1, member--) {
        at = skip_blanks(value_end(skip_blanks(at, end), end), end) + 1;
        at = skip_blanks(at, end);
        last = value_end(at, end);
        if (member == 0 || last >= end) break;
    }
    set_bytes(&t->label, at, (size_t)(last - at));
}

static void set_label(table *t, const cJSON *object, const cJSON *label, const uint8_t *text,
                      size_t length) {
    if (!label || cJSON_IsNull(label)) {
        set_bytes(&t->label, "", 0);
    } else if (cJSON_IsString(label)) {
        set_bytes(&t->label, label->valuestring, strlen(label->valuestring));
    } else if (cJSON_IsBool(label)) {
        const char *name = cJSON_IsTrue(label) ? "true" : "false";
        set_bytes(&t->label, name, strlen(name));
    } else if (cJSON_IsNumber(label)) {
        int member = 0;
        for (const cJSON *m = object->child; m != label; m = m->next) member++;
        set_number(t, text, length, member);
    } else {
        refuse(t, "expected a name or a number as label");
    }
}

static void refuse_text(table *t) {
    const char *named = t->options->text_column;
    char what[128];
    snprintf(what, sizeof what, "expected a string %.60s",
             is_named(named) ? named : "text, review, reviewText, sentence, content or the like");
    refuse(t, what);
}

static void take_object(table *t, const cJSON *object, const uint8_t *line, size_t length) {
    if (!cJSON_IsObject(object)) {
        refuse(t, "expected a JSON object");
        return;
    }
    const corpus_options *o = t->options;
    const cJSON *text = find_member(object, o, false);
    const cJSON *label = find_member(object, o, true);
    char what[128];
    if (!text || cJSON_IsNull(text)) {
        if (t->skipped++ == 0) t->first_skipped = t->row;
        return;
    }
    if (!cJSON_IsString(text)) {
        refuse_text(t);
        return;
    }
    if (!label && is_named(o->label_column)) {
        snprintf(what, sizeof what, "expected a member %.60s", o->label_column);
        refuse(t, what);
        return;
    }
    set_label(t, object, label, line, length);
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

/* The value of \uXXXX if that comes next, else 0. */
static unsigned escape_at(const uint8_t *at, const uint8_t *end) {
    char digits[5] = "";
    if (end - at < 6 || at[0] != '\\' || at[1] != 'u') return 0;
    memcpy(digits, at + 2, 4);
    return (unsigned)strtoul(digits, NULL, 16);
}

/* Makes halves of surrogate pairs, which stand for nothing and which cJSON refuses, U+FFFD. */
static void mend_surrogates(uint8_t *text, size_t length) {
    uint8_t *end = text + length;
    for (uint8_t *at = text; (at = memchr(at, '\\', (size_t)(end - at)));) {
        const unsigned code = escape_at(at, end),
                       next = escape_at(at + 6 < end ? at + 6 : end, end);
        const bool high = code >> 10 == 0xD800 >> 10, low = code >> 10 == 0xDC00 >> 10;
        const bool pair = high && next >> 10 == 0xDC00 >> 10;
        for (int i = 0; i < 4 && ((high && !pair) || low); i++) at[2 + i] = (uint8_t) "FFFD"[i];
        at += pair ? 12 : code ? 6 : 2;
        if (at >= end) break;
    }
}

static void take_json(table *t, uint8_t *text, size_t length) {
    const char *end = NULL, *last = (const char *)text + length;
    if (has_zero(text, length) || memchr(text, '\0', length)) {
        refuse(t, "expected no zero byte, nor \\u0000");
        return;
    }
    mend_surrogates(text, length);
    cJSON *object = cJSON_ParseWithLengthOpts((const char *)text, length, &end, false);
    while (object && end < last && strchr(" \t\r\n", *end)) end++;
    if (object && end < last) {
        refuse(t, "expected one JSON object");
    } else {
        take_object(t, object, text, length);
    }
    cJSON_Delete(object);
}

/* --------------------------------------------------------------------------------- fastText */

/* The text is the line without its label, and without a blank after that, or before the last. */
static void take_fasttext(table *t, uint8_t *line, size_t length) {
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

static bool read_rows(table *t, next_row *next, void (*take)(table *, uint8_t *, size_t),
                      error *err) {
    lines l = {.source = t->source, .number = 1};
    bool read = true;
    for (; !t->failed && (read = next(&l, err)) && l.text; l.number++) {
        size_t skip = l.number == 1 ? utf8_mark_length(l.text, l.length) : 0;
        while (skip < l.length && l.text[skip] == ' ') skip++;
        if (skip == l.length) continue; /* an empty line */
        t->row = l.number;
        take(t, l.text + skip, l.length - skip);
    }
    free(l.buffer);
    if (read && !t->failed && t->skipped > 0) {
        if (t->taken == 0) {
            t->row = t->first_skipped;
            refuse_text(t);
            return false;
        }
        log_line("%s: left out %" PRIu64 " rows without a text", source_name(t->source),
                 t->skipped);
    }
    return read && !t->failed;
}

bool table_read(source *s, table_kind kind, const corpus_options *options, table_take *take,
                void *data, error *err) {
    table t = {.source = s, .options = options, .take = take, .data = data, .err = err};
    bool read;
    switch (kind) {
    case CSV_TABLE: read = read_csv(&t, err); break;
    case JSON_ARRAY: read = read_rows(&t, element_next, take_json, err); break;
    case JSON_TABLE: read = read_rows(&t, lines_next, take_json, err); break;
    default: read = read_rows(&t, lines_next, take_fasttext, err);
    }
    free(t.label.at);
    free(t.text.at);
    free(t.whole.at);
    free(t.rows.at);
    free(t.names.at);
    return read;
}
