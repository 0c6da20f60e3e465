/* JSON: writing objects of results, and reading the headers of safetensors files. */
#ifndef SMALLWORLD_CORE_JSON_H
#define SMALLWORLD_CORE_JSON_H

#include "core/error.h"

#include <stdint.h>
#include <stdio.h>

/* ---------------------------------------------------------------------------------- writing
 * A writer puts commas where they belong. A NULL key writes an element of an array. */

typedef struct json_writer {
    FILE *out;
    bool comma; /* the next member needs one */
} json_writer;

void json_object_begin(json_writer *w, const char *key);
void json_object_end(json_writer *w);
void json_array_begin(json_writer *w, const char *key);
void json_array_end(json_writer *w);
void json_string(json_writer *w, const char *key, const char *value);
void json_text(json_writer *w, const char *key, const uint8_t *bytes,
               size_t count); /* U+FFFD for what is not UTF-8 */
void json_base64(json_writer *w, const char *key, const uint8_t *bytes, size_t count);
void json_integer(json_writer *w, const char *key, int64_t value);
void json_number(json_writer *w, const char *key, double value); /* not finite: null */

/* ---------------------------------------------------------------------------------- reading
 * A reader walks the text once; what the caller asks for must come next. The first mismatch sets
 * `failed`, after which everything returns false, so that a caller checks once at the end. */

typedef struct json_reader {
    const char *next, *end;
    bool failed;
} json_reader;

/* Steps into a container; then, before each member, `json_read_member` (object; copies the key) or
 * `json_read_element` (array) says whether there is one more, and steps out at the last. */
bool json_read_object(json_reader *r);
bool json_read_array(json_reader *r);
bool json_read_member(json_reader *r, char *key, size_t size);
bool json_read_element(json_reader *r);

bool json_read_string(json_reader *r, char *text, size_t size); /* fails if it does not fit */
bool json_read_integer(json_reader *r, int64_t *value);

#endif
