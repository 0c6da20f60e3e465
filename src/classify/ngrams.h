/* The honest baseline of text classification: linear support vector machines of hashed n-grams, see
 * svm.h.
 *
 * Features are the words of a document, its pairs of words, and its pieces of two to five bytes.
 * Words are runs of letters, digits, apostrophes and bytes above 127, in lower case. A feature that
 * occurs k times has the value (1 + log k) log(1 + documents / documents that have it), of two
 * classes times the |log ratio| of how often the one and the other have it (naive Bayes's weights,
 * as values: Wang and Manning, ACL 2012). The values of words, and those of pieces, have
 * length 1/sqrt(2) each. Features of a single document, and what follows a document's first 16 KiB,
 * are left out. */
#ifndef SMALLWORLD_CLASSIFY_NGRAMS_H
#define SMALLWORLD_CLASSIFY_NGRAMS_H

#include "data/corpus.h"

enum { NGRAM_BUCKETS = 1 << 20, NGRAM_BYTES = 1 << 14 };

/* A fitted model. Two classes have one function, whose sign decides; more have one each, for that
 * class against the rest. */
typedef struct ngrams {
    int functions;
    int64_t count;         /* features */
    const int32_t *bucket; /* [count] their hashes, ascending */
    const float *idf;      /* [count] idf, of two classes times that ratio */
    const float *weights;  /* [count][functions] */
    const double *intercepts;
    double cost;  /* C */
    int passes;   /* over the rows, of the last fit */
    double scale; /* of margins: see saved_probe.scale */
} ngrams;

/* Fits the labelled rows of a corpus: class [rows], -1 for those left out. C is chosen by the
 * errors on the rows of `held`, then fitted on all, in about `seconds`: fewer C are tried to keep
 * them, a fit ends before its optimum, and without time to fit again the first fit stays.
 * `valid_margin` [held rows][functions], which the caller frees, are the margins of the first fit,
 * and `test_margin` [test documents][functions] those of the last one of `test`, which may be NULL.
 * Refuses documents that have nothing in common. The caller frees the arrays by ngrams_free. weight
 * [classes] is that of a row by its class, in fits and in errors; NULL: 1. */
bool ngrams_fit(ngrams *g, const corpus *c, const int16_t *class, int classes, const double *weight,
                const bool *held, const corpus *test, double seconds, double **valid_margin,
                double **test_margin, error *err);
void ngrams_free(ngrams *g);

/* Computes the margins [functions] of documents. One call after the other; made for one model. */
typedef struct ngram_reader ngram_reader;

ngram_reader *ngram_reader_create(const ngrams *g);
void ngram_reader_free(ngram_reader *r);
void ngram_reader_apply(ngram_reader *r, const uint8_t *text, size_t length, double *margin);

#endif
