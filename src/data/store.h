/* Text that stays in its files, and an index of it.
 *
 * The index holds pieces: of raw text, whole files; of documents, runs of lines that can be read
 * without much of what is before them. A piece ends where it has `block` bytes and reading may
 * start: in a file that is not compressed, after any line; in a gzip, at members and at blocks of
 * deflate `spacing` bytes apart; in an xz, at its blocks. Memory: 32 bytes a piece, about 200 a
 * file, and up to 64 MiB for the places in gzips. */
#ifndef SMALLWORLD_DATA_STORE_H
#define SMALLWORLD_DATA_STORE_H

#include "core/ranks.h"
#include "data/document.h"
#include "data/source.h"

enum { WINDOW_LEAST = 2048 /* bytes of a window for each stream, half of them for a buffer */ };

typedef struct stored_file {
    char *path;
    source_stamp stamp;
    bool documents;       /* a document on each line; else raw text */
    bool packed;          /* gzip or xz */
    source_place *places; /* [place_count] where a packed file may be read from, in order */
    size_t place_count;
    document *pieces; /* [piece_count] in the file's order */
    size_t piece_count;
    uint64_t content;  /* bytes, unpacked */
    uint64_t texts;    /* documents in the pieces */
    uint64_t excluded; /* documents left out for `excluded` */
} stored_file;

typedef struct store {
    stored_file *files; /* [count] each once */
    size_t count;
    size_t *named; /* [name_count] the files in the order in which they were named */
    size_t name_count;
    corpus_options options;
    double fraction;    /* share of the documents that is left out, chosen by their hashes */
    uint64_t *excluded; /* [excluded_count] hashes of texts that are left out, in order */
    size_t excluded_count;
    uint64_t block;
    uint64_t spacing; /* bytes of content between two places of a gzip */
} store;

typedef enum store_use { STORE_KEPT, STORE_LEFT_OUT, STORE_EXCLUDED } store_use;

/* What becomes of a document of this hash. */
store_use store_use_of(const store *s, uint64_t hash);

/* Reads all files once to index them, each rank a part of its host's. The fields from `options` on
 * must be set. On failure the caller still frees the store. */
bool store_index(store *s, char *const *files, int count, ranks *r, error *err);
void store_free(store *s);

/* Opens a file at byte `content`, as source_open does. Refuses one that has changed since it was
 * indexed. */
source *store_open(const stored_file *f, uint64_t content, const atomic_bool *stop, error *err);

#endif
