/* Bits per character of a sequence:
 *
 *   bpc = -(1/N) sum over all bytes but the first of log2 p(byte | all earlier bytes)
 *
 * The N predicted bytes are cut into stripes that run side by side as streams. Each stripe but the
 * first starts from a zero state and first reads the EVALUATE_WARM_UP bytes before it, which it
 * does not score, so every byte is scored exactly once. With one stripe the result is exact.
 *
 * The streams of one minibatch read the whole text, or, in evaluate_text, evaluate_minibatches one
 * after another, whose stripes have EVALUATE_STRIPE bytes and more.
 *
 * Dynamic evaluation (Krause, Kahembwe, Murray, Renals 2018) goes on learning from what it has
 * scored: after each segment of every stripe the weights take one step of backend.adapt. All
 * stripes share the weights, so with several of them a byte is predicted by a model that has also
 * learnt from the beginnings of later stripes. */
#ifndef SMALLWORLD_TRAIN_EVALUATE_H
#define SMALLWORLD_TRAIN_EVALUATE_H

#include "data/corpus.h"
#include "data/minibatches.h"
#include "model/model.h"

enum { EVALUATE_WARM_UP = 1024, EVALUATE_STRIPE = 1 << 15 };

typedef struct evaluation {
    double bpc;
    uint64_t bytes; /* N */
    double seconds;
} evaluation;

/* Of dynamic evaluation. The gradient of a weight is divided by its root mean square, over all
 * segments that were scored before, or, with `squares_known`, as found by an earlier call. */
typedef struct dynamic_rates {
    double rate;  /* what a weight changes by in a segment whose gradient is of the usual size */
    double decay; /* the share of its distance from the trained weight that it then loses */
    bool squares_known;
} dynamic_rates;

enum { EVALUATE_SEGMENT = 32 }; /* steps of the model that evaluate_dynamic takes */

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

/* Reads each document that has a class (corpus.classes) from a zero state, and asks a model in
 * training for the class after its last byte. `forward` is as for evaluate. The ranks of the
 * model's backend share the documents, and all get the result. Leaves the carried state
 * undefined. */
typedef struct class_evaluation {
    double loss, error; /* the mean -log p(class) in nats, and the share of wrong answers */
    uint64_t documents;
    double seconds;
} class_evaluation;

bool evaluate_classes(model *m, recording *forward, const corpus *c, class_evaluation *result,
                      error *err);

/* Records one segment of dynamic evaluation. */
recording *evaluate_record_dynamic(model *m);

/* Scores like `evaluate`, on one rank, and learns by `rates` from the trained weights on, which are
 * in the moving average of the model, one for training without dropout. */
bool evaluate_dynamic(model *m, recording *segment, const sequence *s, uint64_t limit,
                      const dynamic_rates *rates, bool progress, evaluation *result, error *err);

/* Finds the root mean squares on a text, and by trials on it the rates: from those given, the rate
 * by factors of 2 and the decay by factors of 4. Uses at most EVALUATE_TUNING bytes. `untuned` is
 * the result without learning, `tuned` with the rates found. */
enum { EVALUATE_TUNING = 1 << 17 };
bool evaluate_tune(model *m, recording *segment, const sequence *s, bool progress,
                   dynamic_rates *rates, evaluation *untuned, evaluation *tuned, error *err);

#endif
