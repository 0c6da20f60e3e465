/* Small models for tests, what they start from, and what an update leaves in them. */
#ifndef SMALLWORLD_TESTS_MODELS_H
#define SMALLWORLD_TESTS_MODELS_H

#include "support.h"

#include "model/model.h"

/* An lstm of 128 units in blocks of 16, with layer norm and a Watts-Strogatz graph. */
model_config small_config(void);

/* Makes a model for training, with graphs of its own. Fails the test if it is refused. */
model *create_model(backend *be, const model_config *config, int batch, int steps, int segments);

/* What a model starts from: all parameters, the state [hidden][batch], and the text [steps][batch].
 * Sizes count the batch's streams, not padded columns, so models of any backend can start from it.
 */
typedef struct inputs {
    double *weights, *h, *c;
    uint8_t *bytes;
    int16_t *targets;
} inputs;

inputs draw_inputs(const model *m);
void free_inputs(inputs *in);

/* Fills the memory of activations and gradients with NaNs, then loads the inputs. */
void load_inputs(model *m, const inputs *in);

/* The gradient, the last layer's state after the call [hidden][batch], and the sum of the losses.
 * The caller frees it. */
typedef struct outcome {
    double *gradient, *h, *c, loss;
} outcome;

outcome collect_outcome(model *m);
void free_outcome(outcome *o);

#endif
