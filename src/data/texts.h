/* Texts for prediction and for pages: labelled documents, one document on each line, or one whole
 * file. */
#ifndef SMALLWORLD_DATA_TEXTS_H
#define SMALLWORLD_DATA_TEXTS_H

#include "data/corpus.h"

/* Reads a file, or standard input if `path` is "-". A file of documents is read as corpus_read
 * reads it. In any other file each line, also an empty one, is an unlabelled document (label -1),
 * framed like the others. With `whole`, the file is one raw text. Refuses what corpus_read
 * refuses. */
corpus *texts_read(const char *path, bool whole, const corpus_options *options, error *err);

/* The same in parts, of which `take` becomes the owner: of lines from a pipe, those that have come;
 * of anything else some thousand documents. Ends when `take` fails. */
typedef bool texts_take(void *data, corpus *part, error *err);
bool texts_each(const char *path, bool whole, const corpus_options *options, texts_take *take,
                void *data, error *err);

/* Keeps the first `limit` bytes of the documents. Returns the number of dropped bytes. */
uint64_t texts_cut(corpus *c, uint64_t limit);

#endif
