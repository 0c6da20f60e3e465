/* Text from a model, byte by byte: each byte is drawn from the model's distribution after all bytes
 * before it. The input tables are made once; the loop runs on the device, which draws the bytes and
 * feeds them back, so that nothing is waited for before the text is done. */
#ifndef SMALLWORLD_TRAIN_GENERATE_H
#define SMALLWORLD_TRAIN_GENERATE_H

#include "model/model.h"

typedef struct generation {
    const uint8_t *prompt; /* [given], at least one byte; read from a zero state */
    size_t given;
    size_t bytes;       /* to draw */
    double temperature; /* divides the logits; 0: the likeliest byte */
    int top_k;          /* draw among so many likeliest bytes; 0: all */
    double top_p;       /* draw among the likeliest bytes that reach this probability; 1: all */
    uint64_t seed;      /* of the draws */
} generation;

/* Writes the prompt and what follows into `text`, which holds both. The model has one stream and
 * one step. Leaves its state after the last byte but one. */
bool generate(model *m, const generation *how, uint8_t *text, error *err);

#endif
