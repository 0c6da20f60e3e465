/* Bytes to measure on, through the same files and readers as real ones. */
#ifndef SMALLWORLD_BENCH_TEXT_H
#define SMALLWORLD_BENCH_TEXT_H

#include "data/corpus.h"

typedef enum text_kind {
    TEXT_RANDOM, /* all 256 bytes alike */
    TEXT_ENGLISH /* letters as often as in English, in words and sentences */
} text_kind;

/* One raw text of `bytes` bytes. */
corpus *text_corpus(text_kind kind, uint64_t bytes, error *err);

/* `count` labelled documents of English letters, of about `mean` bytes each; their lengths are
 * spread like those of film reviews (log-normal, deviation of the logarithm 0.65), in no order. */
corpus *text_documents(int count, double mean, error *err);

#endif
