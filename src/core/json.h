/* Writes JSON: objects of results, and the headers of safetensors files. */
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

#endif
