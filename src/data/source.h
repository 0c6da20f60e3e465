/* A file's bytes, decompressed if it is gzip or xz, and its lines. */
#ifndef SMALLWORLD_DATA_SOURCE_H
#define SMALLWORLD_DATA_SOURCE_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

enum {
    SOURCE_CHUNK = 1 << 17,   /* bytes read at a time */
    SOURCE_LONGEST = 64 << 20 /* bytes of a line, or of a table's row, at most */
};

typedef struct source source;

/* Opens a file, or standard input for "-". Refuses empty files. Closing NULL does nothing. `path`
 * must outlive the source. Reading fails on a signal (core/stop.h). */
source *source_open(const char *path, error *err);
void source_close(source *s);

/* As messages show it. */
const char *source_name(const source *s);

/* Whether reading may have to wait, as of a pipe: a line is then given as soon as it is there. */
bool source_waits(const source *s);

/* Reads up to `room` bytes of content. `*count` is 0 only at the end. Fails on damage, on content
 * far larger than any text's, and where it is to stop. */
bool source_read(source *s, uint8_t *out, size_t room, size_t *count, error *err);

/* Whether the file is not compressed and begins with LABEL<TAB>. */
bool source_begins_with_label(const source *s);

/* Lines, in a buffer that grows to the longest one. Zero it but for `source` and `number`, which is
 * 1 at first; the caller frees the buffer. */
typedef struct lines {
    source *source;
    uint8_t *buffer;
    size_t capacity, begin, end; /* bytes not yet returned: [begin, end) */
    uint8_t *text;               /* the current line without its end; NULL after the last line */
    size_t length;
    uint64_t number; /* the current line's number, from 1; the caller advances it */
    uint8_t mark;    /* what ends a line: LF, or CR in documents of old programs; 0 at first */
} lines;

/* Fails on a line of more than 64 MiB and as source_read does. */
bool lines_next(lines *l, error *err);

/* Refuses a file whose first `count` bytes, just read, are UTF-16, as spreadsheets write it. */
bool source_check_utf8(const source *s, const uint8_t *read, size_t count, error *err);

/* Whether another whole line is in the buffer. */
bool lines_waiting(const lines *l);

/* The bytes that xz -6 makes of a text, in its one call; NaN without liblzma, or of more than
 * 64 MiB. */
double source_xz_bytes(const uint8_t *text, uint64_t size);

#endif
