/* HTML that holds what strangers wrote: escaped text, JSON and binary data for scripts, and the
 * frame of a self-contained page. Writing goes to stdio streams, whose errors the caller finds at
 * the end. */
#ifndef SMALLWORLD_PAGE_HTML_H
#define SMALLWORLD_PAGE_HTML_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Text for an element or a quoted attribute. Bytes that are not UTF-8, and control characters,
 * become U+FFFD. */
void html_text(FILE *out, const char *text);

/* A whole number with commas: 1,234,567. `text` holds 32 bytes; returned. */
const char *html_count(char *text, int64_t value);

/* <script type="application/json" id=ID>. `json` was written by a json_writer: inside its strings
 * '<' becomes an escape, and bytes that are not UTF-8 become U+FFFD. */
void html_json(FILE *out, const char *id, const char *json, size_t length);

void html_base64(FILE *out, const void *bytes, size_t count);

/* The frame of a page. The policy in its head forbids every connection. Between them the caller
 * writes elements that belong into <main>. `reload` > 0: the page loads itself again after so many
 * seconds. */
void html_begin(FILE *out, const char *title, int reload);
void html_end(FILE *out, const char *const *scripts, int count);

#endif
