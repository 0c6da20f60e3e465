/* Tables of labelled texts as people have them.
 *
 *   .csv             comma- or semicolon-separated values, quoted as in RFC 4180, whose first row
 *                    names the columns. Texts may have several lines
 *   .jsonl, .ndjson  an object on each line; .json.gz and .json.xz too, not .json, of which folders
 *                    of source code are full
 *   .ft.txt, .fasttext  fastText's lines, one word of which is __label__NAME
 *
 * each also as .gz or .xz. Unless they are named, the columns of texts and of labels are found by
 * usual names, see table.c; without one of labels, texts have none. A label is a name, a number
 * (5.0 is 5) or a truth value. */
#ifndef SMALLWORLD_DATA_TABLE_H
#define SMALLWORLD_DATA_TABLE_H

#include "data/document.h"
#include "data/source.h"

typedef enum table_kind { NO_TABLE, CSV_TABLE, JSON_TABLE, FASTTEXT_TABLE } table_kind;

table_kind table_kind_of(const char *path);

/* Whether the columns of a table's first row, LABEL<TAB>TEXT, are named and not a document. */
bool table_is_header(const uint8_t *line, size_t length);

/* Takes a row as a document's line, LABEL<TAB>TEXT, which it may change. Rows count from 1, a
 * CSV's names of columns included. */
typedef bool table_take(void *data, uint64_t row, uint8_t *line, size_t length, error *err);

/* Reads all rows, until `take` fails. Errors name the file, the row and what was expected. */
bool table_read(source *s, table_kind kind, const corpus_options *options, table_take *take,
                void *data, error *err);

#endif
