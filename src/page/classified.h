/* The page of a classifier: what it errs on, beside what one would expect it to beat. */
#ifndef SMALLWORLD_PAGE_CLASSIFIED_H
#define SMALLWORLD_PAGE_CLASSIFIED_H

#include "page/show.h"

/* A way to classify the test documents. Its error is NaN if it was not tried. */
typedef struct contender {
    const char *name;
    double error, deviation; /* per cent of the test documents, and its standard error */
    double valid_error;      /* NaN: not known */
    double seconds;          /* that it took; NaN: none of its own */
    bool chosen;
} contender;

/* A document that was classed wrongly. */
typedef struct mistake {
    size_t document; /* of the test documents */
    int class, said;
    double probability; /* of what was said */
} mistake;

typedef struct classified {
    const char *title;
    const contender *contenders;
    int contender_count;
    double p_value;     /* that the chosen one and the n-grams err alike; NaN: it is these */
    size_t train, test; /* labelled documents */
    size_t unlabelled;  /* documents without a label, of both */
    int classes;
    char *const *names;      /* [classes] */
    const size_t *confusion; /* [classes][classes] of the chosen one: true class, said class */
    const corpus *texts;     /* the test documents */
    const mistake *mistakes;
    int mistake_count;
    const char *command;   /* that classes more text */
    const show_part *show; /* some of the mistakes, coloured; or NULL */
} classified;

bool classified_write_page(const classified *c, const char *path, error *err);

#endif
