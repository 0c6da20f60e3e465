/* Tables of labelled texts as people have them.
 *
 *   .csv, .tsv       values separated by commas, semicolons or tabs, quoted as in RFC 4180, whose
 *                    first row names the columns; Excel's line "sep=;" may come before it. Texts
 *                    may have several lines; between tabs only if none of these is a row by itself,
 *                    since many tables do not quote. A .tsv whose first row names no column is no
 *                    table: each of its lines is a document, see corpus.h
 *   .jsonl, .ndjson  an object on each line; .json too if its first line is an object with a text
 *   .json            an array of objects, whose first one has a text
 *   .ft.txt, .fasttext  fastText's lines, one word of which is __label__NAME
 *
 * each also as .gz or .xz. Unless they are named, the columns of texts and of labels are found by
 * usual names, see table.c; without one of labels, texts have none. A label is a name, a number as
 * it is written, or a truth value; an empty one is none. Objects whose text is missing or null are
 * left out and counted. */
#ifndef SMALLWORLD_DATA_TABLE_H
#define SMALLWORLD_DATA_TABLE_H

#include "data/document.h"
#include "data/files.h"

typedef enum table_kind { NO_TABLE, CSV_TABLE, JSON_TABLE, JSON_ARRAY, FASTTEXT_TABLE } table_kind;

/* The kind of a file, by its name and, where that does not decide, by its first line. */
table_kind table_kind_of(const char *path, const corpus_options *options);

/* Refuses a file that is no table where a column was named; else true. */
bool table_check_named(const char *name, const corpus_options *options, error *err);

/* What table a text's beginning looks like, for people, and by what name it would be read as one;
 * or NULL. */
const char *table_guess(const uint8_t *text, size_t size);

/* Takes a row as a document's line, LABEL<TAB>TEXT, which it may change. Rows count from 1, a
 * CSV's names of columns included. */
typedef bool table_take(void *data, uint64_t row, uint8_t *line, size_t length, error *err);

/* Reads all rows, until `take` fails. Errors name the file, the row and what was expected. */
bool table_read(source *s, table_kind kind, const corpus_options *options, table_take *take,
                void *data, error *err);

#endif
