/* Documents as people have them: a line of plain text each, a whole file, or labelled as
 * elsewhere. */
#ifndef SMALLWORLD_DATA_TEXTS_H
#define SMALLWORLD_DATA_TEXTS_H

#include "data/corpus.h"

/* `path` "-" is standard input. A .tsv or .tsv.gz file is read as corpus_read does. Of any other,
 * each line that is not empty becomes an unlabelled document (label -1), framed like the others;
 * with `whole`, the file is one raw text. Refuses what corpus_read does, and files without any
 * text. */
corpus *texts_read(const char *path, bool whole, const corpus_options *options, error *err);

/* Keeps the first `limit` bytes of the documents; returns how many are dropped. */
uint64_t texts_cut(corpus *c, uint64_t limit);

#endif
