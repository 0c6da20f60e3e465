/* A corpus: the bytes and documents of some files, in order.
 *
 * A file whose name ends in .tsv or .tsv.gz holds documents, one a line: "LABEL<TAB>TEXT", the
 * label an integer or, in all files of a corpus, a name, the line ended by LF or CR LF, the last
 * one perhaps by nothing; UTF-8's byte order mark before the first is passed over. A document is
 * framed as "\n " + text + " ", with any CR left in the text made a space; bytes are otherwise kept
 * as they are. Any other file is raw text: one document, its bytes untouched, without a label. What
 * starts with gzip's magic bytes is decompressed, whatever its name. "-" is standard input:
 * documents if it begins with an integer label and a tab, else raw text.
 *
 * Reading goes once through the files into an unlinked spool file in $TMPDIR (or /var/tmp), which
 * is mapped: memory stays bounded by the index, 32 bytes a document, whatever the size. */
#ifndef SMALLWORLD_DATA_CORPUS_H
#define SMALLWORLD_DATA_CORPUS_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct document {
    uint64_t offset, length; /* of the framed bytes in the spool */
    uint64_t hash;           /* of the text alone, before framing */
    int32_t label;
    int32_t raw; /* 1: a raw text file, no label */
} document;

typedef struct spool spool; /* the mapped bytes, shared by the parts of a split */

typedef struct corpus {
    spool *spool;
    const uint8_t *bytes; /* the spool's */
    document *documents;
    size_t count;
    uint64_t size; /* bytes of all documents */
    char **names;  /* [name_count] where labels are names, in alphabetical order: a label is the
                      number of its name here, or -1, which stands for no label; else NULL */
    int name_count;
} corpus;

enum { CORPUS_MAX_NAMES = 256, CORPUS_NAME_BYTES = 31 };

typedef struct corpus_options {
    bool html_entities; /* decode &amp; &lt; &gt; &quot; &apos; &nbsp; &#N; &#xN; in documents'
                          text */
} corpus_options;

/* Refuses, by file and line: what cannot be read, is empty, is a gzip cut short or corrupt, or a
 * TSV line without a tab or with a label that is no 32-bit integer. */
corpus *corpus_read(char *const *files, int count, const corpus_options *options, error *err);
void corpus_free(corpus *c);

/* What a document's text becomes between "\n " and " ", in place: entities decoded if asked for,
 * line breaks made spaces. Returns the new length, at most the old one. */
size_t corpus_clean(uint8_t *text, size_t length, const corpus_options *options);

/* Drops the documents whose text occurs in `files` (read like a corpus); returns how many, or
 * -1. */
int64_t corpus_exclude(corpus *c, char *const *files, int count, const corpus_options *options,
                       error *err);

/* Moves about `fraction` of the corpus to a new one, which is returned: the documents whose text
 * hashes below it, so that repeats of a text fall on one side; and, of each raw text, its last
 * bytes. */
corpus *corpus_split(corpus *c, double fraction);

/* A hash of all the text in its order, for noticing that it has changed; at least 0. */
int64_t corpus_hash(const corpus *c);

#endif
