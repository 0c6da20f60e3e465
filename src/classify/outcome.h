/* What classify finds, as a table, as JSON and for its page. */
#ifndef SMALLWORLD_CLASSIFY_OUTCOME_H
#define SMALLWORLD_CLASSIFY_OUTCOME_H

#include "classify/examples.h"
#include "classify/predictions.h"
#include "page/classified.h"

#include <stdio.h>

typedef struct outcome {
    const ways *ways; /* after ways_choose */
    const examples *examples;
    const char *folder;               /* of the classifier */
    bool balanced;                    /* --class-weight: validation errors too weigh by class */
    double cost;                      /* C of the n-grams */
    int passes;                       /* of their last fit */
    int64_t text_steps, tuning_steps; /* updates of the model, 0: none */
} outcome;

/* The commonest class, then each way. */
void outcome_list(const outcome *o, contender list[1 + WAYS]);

void outcome_text(const outcome *o, FILE *out);
void outcome_json(const outcome *o, FILE *out);

/* The documents that the chosen way gets wrong, surest first. Returns their number, at most `most`;
 * the caller frees the list. */
int outcome_mistakes(const outcome *o, mistake **list, int most);

#endif
