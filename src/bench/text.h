/* Makes texts for benchmarks. They go through the same files and readers as real ones. */
#ifndef SMALLWORLD_BENCH_TEXT_H
#define SMALLWORLD_BENCH_TEXT_H

#include "data/corpus.h"

typedef enum text_kind {
    TEXT_RANDOM, /* bytes from 32 to 255, which look like text, equally likely */
    TEXT_ENGLISH /* letters as frequent as in English, in words and sentences */
} text_kind;

/* Makes one raw text of `bytes` bytes. */
corpus *text_corpus(text_kind kind, uint64_t bytes, error *err);

/* Makes a corpus of labelled documents of English letters. `count` documents of about `mean` bytes
 * have lengths like film reviews (log-normal, deviation of the logarithm 0.65). Sorted by length,
 * the corpus holds `groups` evenly spaced groups of `batch` neighbours. */
corpus *text_documents(int count, int batch, int groups, double mean, error *err);

#endif
