/* A corpus: the bytes and documents of some files, in order.
 *
 * A file whose name ends in .tsv, .tsv.gz or .tsv.xz holds one document on each line:
 * "LABEL<TAB>TEXT". Labels are integers or, if one of them is none, names: any short text. Lines
 * end with LF or CR LF; the last one may lack its end. A UTF-8 byte order mark at the start is
 * skipped. A document is framed as "\n " + text + " ". A CR inside the text becomes a space; all
 * other bytes are kept.
 *
 * Any other file is raw text: one document without a label, whose bytes are kept as they are. A
 * file that starts with gzip's or xz's magic bytes is decompressed, whatever its name. "-" is
 * standard input: documents if it begins with an integer label and a tab, else raw text.
 *
 * A folder stands for the files in it and in its subfolders, in the order of their names' bytes.
 * Hidden files are left out. A file whose name ends in .list names a file on each line, relative to
 * the list's own folder.
 *
 * The files are read once into an unlinked spool file in $TMPDIR (or /var/tmp), which is mapped.
 * Only the index, 32 bytes a document, takes memory, whatever the size of the files. */
#ifndef SMALLWORLD_DATA_CORPUS_H
#define SMALLWORLD_DATA_CORPUS_H

#include "core/error.h"
#include "data/document.h"

#include <stddef.h>
#include <stdint.h>

/* -------------------------------------------------------------------------------------- corpora */

typedef struct spool spool; /* the mapped bytes, shared by the parts of a split */

typedef struct corpus {
    spool *spool;
    const uint8_t *bytes; /* all bytes of the spool */
    document *documents;
    size_t count;
    uint64_t size; /* bytes of all documents */
    char **names;  /* [name_count] in alphabetical order if labels, their indices, are names */
    int name_count;
    int16_t *classes; /* [count] what a model is to say of each document, -1: nothing; or NULL */
    double *class_weights; /* [classes] or NULL, see class_weight */
} corpus;

/* Reads files. Refuses a file that cannot be read, is empty, or is a damaged gzip, and a TSV line
 * without a tab or with an invalid label. The error names file and line. */
corpus *corpus_read(char *const *files, int count, const corpus_options *options, error *err);
void corpus_free(corpus *c);

/* A document's text without its frame. */
const uint8_t *corpus_text(const corpus *c, size_t document, size_t *length);

/* A document's label as people know it, or NULL if it has none. `text` has room for 16 bytes. */
const char *corpus_label(const corpus *c, size_t document, char *text);

/* The number of documents whose text occurs in another corpus; corpus_drop drops them. */
size_t corpus_shared(const corpus *c, const corpus *other);
size_t corpus_drop(corpus *c, const corpus *other);

/* Drops the documents whose text occurs in `files`, which are read like a corpus. Returns the
 * number of dropped documents, or -1 on failure. */
int64_t corpus_exclude(corpus *c, char *const *files, int count, const corpus_options *options,
                       error *err);

/* Moves about `fraction` of the corpus to a new one, `of_labelled` of the documents with a label,
 * and returns that. A document moves if the hash of its text is below the fraction, so repeats of a
 * text stay together. The last bytes of each raw text move. */
corpus *corpus_split(corpus *c, double fraction, double of_labelled);

/* The documents i with chosen[i] == value, or all where `chosen` is NULL, as a corpus of its own of
 * the same text. */
corpus *corpus_part(const corpus *c, const bool *chosen, bool value);

/* The numbers of all documents, longest first; the caller frees them. */
uint32_t *corpus_longest_first(const corpus *c);

/* A hash of all text in its order, at least 0. It shows whether the text has changed. */
int64_t corpus_hash(const corpus *c);

/* ----------------------------------------------------------- texts for prediction and for pages */

/* Reads labelled documents, one on each line, or one whole file; from standard input if `path` is
 * "-". A file of documents is read as corpus_read reads it. In any other file each line, also an
 * empty one, is an unlabelled document (label -1), framed like the others. With `whole`, the file
 * is one raw text. Refuses what corpus_read refuses. */
corpus *texts_read(const char *path, bool whole, const corpus_options *options, error *err);

/* The same in parts, of which `take` becomes the owner: of lines from a pipe, those that have come;
 * of anything else some thousand documents. Ends when `take` fails. */
typedef bool texts_take(void *data, corpus *part, error *err);
bool texts_each(const char *path, bool whole, const corpus_options *options, texts_take *take,
                void *data, error *err);

/* Keeps the first `limit` bytes of the documents. Returns the number of dropped bytes. */
uint64_t texts_cut(corpus *c, uint64_t limit);

#endif
