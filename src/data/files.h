/* Files of text: the bytes and lines of one, decompressed if it is gzip or xz; what bytes look like
 * that are probably no text; and the files that names stand for. */
#ifndef SMALLWORLD_DATA_FILES_H
#define SMALLWORLD_DATA_FILES_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ------------------------------------------------------------------------------ bytes and lines */

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

/* ---------------------------------------------------------------------------------------- kinds */

/* Names the kind of file that begins with these bytes, such as "a ZIP archive" or "UTF-16 text", or
 * returns NULL for text in UTF-8 or in an encoding of one byte a character. */
const char *file_kind(const uint8_t *head, size_t count);

/* Warns, once in a process, that a file is of such a kind. */
void file_kind_warn(const char *name, const char *kind);

/* ---------------------------------------------------------------------------------------- names */

/* A folder stands for the files in it and in its subfolders, in the order of their names' bytes,
 * hidden ones left out; a file whose name ends in .list names a file on each line, relative to the
 * list's own folder; any other name, and "-", stands for itself. */

typedef bool paths_visit(void *data, const char *path, error *err);

/* Visits each file in order, until a visit fails. Refuses folders and lists without files. */
bool paths_each(char *const *paths, int count, paths_visit *visit, void *data, error *err);

/* Whether one of them, which may be NULL, is "-": standard input, which one process alone can
 * read. */
bool paths_read_input(const char *const *paths, int count);

/* Whether a folder has folders in it that are not hidden. */
bool paths_has_folders(const char *path);

/* The endings of names of files whose lines are documents, for people; and whether a name has one
 * of them. Tables have other endings, see data/table.h. */
#define PATHS_LINES ".tsv, .tsv.gz or .tsv.xz"

bool paths_is_lines(const char *path);

#endif
