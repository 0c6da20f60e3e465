/* A document on a line "LABEL<TAB>TEXT": its label, its text and the text's hash. */
#ifndef SMALLWORLD_DATA_DOCUMENT_H
#define SMALLWORLD_DATA_DOCUMENT_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

enum { CORPUS_NAME_BYTES = 255 };

typedef struct corpus_options {
    bool html_entities; /* decode &amp; &lt; &gt; &quot; &apos; &nbsp; &#N; &#xN; in documents'
                          text */
    bool class_folders; /* a folder's raw files are documents, whose label is the name of the folder
                           that each lies in; in one named unsup or unlabeled they have none */
    int labelled_files; /* the number of files whose labels count; of those after them text alone
                           is read, and raw files are raw. 0: all */
    const char *cache;  /* folder of the spool; NULL or "": see file_scratch_folder */
    const char *text_column, *label_column; /* of tables; NULL or "": found by usual names */
    const char *usual_text, *usual_label;   /* names that come before these, or NULL */
} corpus_options;

/* The labels of a corpus, each a text. Zeroed at first; labels_free frees them. */
typedef struct labels {
    char **names; /* [count] in the order of first occurrence; NULL where labels are integers */
    int32_t count;
    size_t room;
    int32_t *slot; /* [slot_count] 1 + the number of the name that hashes there, or 0 */
    size_t slot_count;
} labels;

enum { LABEL_NONE = -1 }; /* of a document without a label */

/* Ends reading: what becomes of each number that was given [count], which the caller frees. Labels
 * that are all integers as people write them, and not -1, become these, without names; else their
 * names are sorted. 5.0 and 5 are one label where all are whole numbers written in these two
 * ways. */
int32_t *labels_settle(labels *l);
void labels_free(labels *l);

/* The digits of a label that is a whole number, as 5 or 5.0 are; 0: it is none, as 05, +5 and
 * 5. are. */
size_t label_whole(const char *text);

/* A line that was read as a document. */
typedef struct parsed_line {
    int32_t label; /* the index of a name */
    uint8_t *text; /* within the line; not yet cleaned */
    size_t length;
    uint64_t hash;
} parsed_line;

/* Reads line number `number` of a file. The label of a table's row is none if it is empty, that of
 * other lines if it is -1; without `l`, it is not looked at. The error names file and line. */
bool document_parse(labels *l, const char *path, uint64_t number, uint8_t *line, size_t length,
                    bool is_row, parsed_line *parsed, error *err);

/* Cleans a document's text in place, for its place between "\n " and " ": decodes entities if asked
 * to, and makes line breaks spaces. Returns the new length, which is at most the old one. */
size_t corpus_clean(uint8_t *text, size_t length, const corpus_options *options);

typedef struct document {
    uint64_t offset, length; /* place of the framed bytes in the spool */
    uint64_t hash;           /* hash of the text before framing */
    int32_t label;
    int32_t raw; /* 1 for a raw text file, which has no label */
} document;

static inline bool document_has_label(const document *d) {
    return !d->raw && d->label != LABEL_NONE;
}

enum { DOCUMENT_FRAME = 3 }; /* bytes that framing adds to a text: "\n " and " " */

/* 64-bit FNV-1a (Fowler, Noll, Vo), a byte at a time so that the order of bytes in a word does not
 * matter, then the finalizer of splitmix64 (Steele, Lea, Flood 2014), which spreads it evenly over
 * all bits. It decides splits: to change it is to change every split there is. */
static const uint64_t hash_start = 0xcbf29ce484222325;

static inline uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
}

static inline uint64_t hash_words(uint64_t hash, const uint64_t *words, int count) {
    for (int w = 0; w < count; w++) {
        for (int byte = 0; byte < 8; byte++) {
            const uint8_t one = (uint8_t)(words[w] >> 8 * byte);
            hash = hash_bytes(hash, &one, 1);
        }
    }
    return hash;
}

static inline uint64_t hash_end(uint64_t hash) {
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    return hash ^ hash >> 31;
}

static inline uint64_t document_hash(const uint8_t *text, size_t length) {
    return hash_end(hash_bytes(hash_start, text, length));
}

/* Whether a text of this hash belongs to the share `fraction` that is split off. */
static inline bool hash_below(uint64_t hash, double fraction) {
    return (double)(hash >> 11) * 0x1p-53 < fraction;
}

#endif
