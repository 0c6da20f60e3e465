/* Bytes to measure on, through the same files and readers as real ones. */
#ifndef SMALLWORLD_BENCH_TEXT_H
#define SMALLWORLD_BENCH_TEXT_H

#include "data/corpus.h"

typedef enum text_kind {
    TEXT_RANDOM, /* all 256 bytes equally likely */
    TEXT_ENGLISH /* letters as often as in English, in words and sentences */
} text_kind;

/* Makes one raw text of `bytes` bytes. */
corpus *text_corpus(text_kind kind, uint64_t bytes, error *err);

/* Of `count` documents of about `mean` bytes, whose lengths are spread like those of film reviews
 * (log-normal, deviation of the logarithm 0.65), in order of length: `groups` groups of `batch`
 * neighbours, from evenly spread places, as one corpus of labelled documents of English letters. */
corpus *text_documents(int count, int batch, int groups, double mean, error *err);

#endif
