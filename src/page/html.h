/* Writes HTML with untrusted content: escaped text, JSON for scripts, and the frame
 * of a self-contained page. Everything goes to stdio streams; the caller checks their errors at the
 * end. */
#ifndef SMALLWORLD_PAGE_HTML_H
#define SMALLWORLD_PAGE_HTML_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Writes text for an element or a quoted attribute. Bytes that are not UTF-8, and control
 * characters, become U+FFFD. */
void html_text(FILE *out, const char *text);

/* Writes a whole number with commas, such as 1,234,567, to `text`, which has room for 32 bytes, and
 * returns it. */
const char *html_count(char *text, int64_t value);

/* Writes <script type="application/json" id=ID>. `json` comes from a json_writer. Inside its
 * strings '<' is escaped, and bytes that are not UTF-8 become U+FFFD. */
void html_json(FILE *out, const char *id, const char *json, size_t length);

/* Write the frame of a page. The policy in its head forbids every connection. Between the two calls
 * the caller writes elements of <main>. If `reload` is above 0, the page reloads itself after that
 * many seconds. */
void html_begin(FILE *out, const char *title, int reload);
void html_end(FILE *out, const char *const *scripts, int count);

/* A table on a screen that may be too narrow for it; `label` is for readers of screens. It has a
 * head unless `heads` [columns] is NULL. html_cell and html_number write the next cell, row by row;
 * the first of a row heads it. A number is written by `format`, which may have tags, or with commas
 * where that is NULL; a NaN leaves the cell empty. */
typedef struct html_table {
    FILE *out;
    int columns, next;
} html_table;

html_table html_table_begin(FILE *out, const char *id, const char *label, const char *const *heads,
                            int columns);
void html_cell(html_table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
void html_number(html_table *t, const char *format, double value);
void html_table_end(html_table *t);

#endif
