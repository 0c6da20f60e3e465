/* Bits per character of a sequence:
 *
 *   bpc = -(1/N) sum over all bytes but the first of log2 p(byte | all earlier bytes)
 *
 * The N predicted bytes are cut into stripes that run side by side as streams. Each stripe but the
 * first starts from a zero state and first reads the EVALUATE_WARM_UP bytes before it, which it
 * does not score, so every byte is scored exactly once. With one stripe the result is exact.
 *
 * The streams of one minibatch read the whole text, or, in evaluate_text, evaluate_minibatches one
 * after another, whose stripes have EVALUATE_STRIPE bytes and more. */
#ifndef SMALLWORLD_TRAIN_EVALUATE_H
#define SMALLWORLD_TRAIN_EVALUATE_H

#include "data/sequence.h"
#include "model/model.h"

enum { EVALUATE_WARM_UP = 1024, EVALUATE_STRIPE = 1 << 15 };

typedef struct evaluation {
    double bpc;
    uint64_t bytes; /* N */
    double seconds;
} evaluation;

/* The largest number of stripes for a text of `size` bytes. */
int64_t evaluate_stripes(uint64_t size);

/* The number of minibatches of `batch` stripes that evaluate_text cuts a text into: 1, 2, 4 or a
 * multiple of 8, so that 2, 4 and 8 ranks have equal shares of a long text. */
int64_t evaluate_minibatches(uint64_t size, int batch);

/* Records one forward pass with the weights that the model currently uses. */
recording *evaluate_record(model *m);

/* Scores the first `limit` bytes (0: all) in at most m->batch stripes, or in one if `exact`.
 * `progress` shows the progress on stderr. Leaves the carried state undefined. Fails on fewer than
 * two bytes, on a loss that is not finite, and on a signal (core/stop.h). */
bool evaluate(model *m, recording *forward, const sequence *s, uint64_t limit, bool exact,
              bool progress, evaluation *result, error *err);

/* Scores the first `limit` bytes (0: all) of a text of any length in minibatches of m->batch
 * stripes. The ranks `among`, or NULL, deal the minibatches out; each has the whole text and a
 * model of the same number of streams. All ranks get the result, which has the same bits for any
 * number of them: it depends on the text and on m->batch alone. Otherwise like `evaluate`. */
bool evaluate_text(model *m, recording *forward, const sequence *s, uint64_t limit, ranks *among,
                   bool progress, evaluation *result, error *err);

#endif
