/* Generates text. Each byte is drawn from the model's distribution after all earlier bytes. The
 * input tables are made once. The loop runs on the device, which draws each byte and feeds it back,
 * so the host waits only for the whole text. */
#ifndef SMALLWORLD_TRAIN_GENERATE_H
#define SMALLWORLD_TRAIN_GENERATE_H

#include "model/model.h"

typedef struct generation {
    const uint8_t *prompt; /* [given], at least one byte; read from a zero state */
    size_t given;
    size_t bytes;       /* number of bytes to draw */
    double temperature; /* divides the logits; 0 always takes the likeliest byte */
    int top_k;          /* draw among this many likeliest bytes; 0: among all */
    double top_p;  /* draw among the fewest likeliest bytes of this probability; 1: among all */
    uint64_t seed; /* of the draws */
    bool (*stop)(error *err); /* asked between pieces whether to fail; NULL: never */
} generation;

/* Writes the prompt and the bytes that follow it to `text`, which has room for both. The model has
 * one stream and one step. Afterwards its state is the one before the last byte. */
/* Refuses a model whose logits are not finite. */
bool generate(model *m, const generation *how, uint8_t *text, error *err);

#endif
