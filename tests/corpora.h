/* Corpora for tests: text files in the temporary folder, and the corpora read from them. */
#ifndef SMALLWORLD_TESTS_CORPORA_H
#define SMALLWORLD_TESTS_CORPORA_H

#include "data/corpus.h"
#include "data/minibatches.h"

#include "core/philox.h"

/* A growing array of bytes, which the caller frees. */
typedef struct buffer {
    uint8_t *bytes;
    size_t size, capacity;
} buffer;

void buffer_add(buffer *b, const void *bytes, size_t size);
void buffer_add_text(buffer *b, const char *text);

/* A gzip of these bytes. */
void buffer_add_gzip(buffer *b, const void *bytes, size_t size);

extern const corpus_options plain_text;

/* Reads files. Fails the test if a file is refused. */
corpus *read_files(const corpus_options *options, int count, const char *const *names);
corpus *read_one(const char *name);

/* Writes `count` documents of random text, up to `longest` bytes; label i for document i. Adds
 * their framed bytes to `framed`, if given. */
void write_random(const char *name, size_t count, size_t longest, buffer *framed);

/* Returns 301 documents of 0 to 40 bytes and two raw texts, one longer than all of them. */
corpus *mixed_corpus(void);

/* Returns a sequence's documents, joined in its order. */
buffer concatenation(const sequence *s);

#endif
