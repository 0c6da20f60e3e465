/* A report on a run, as a page and as a model card in Markdown. */
#ifndef SMALLWORLD_PAGE_REPORT_H
#define SMALLWORLD_PAGE_REPORT_H

#include "page/curves.h"
#include "page/show.h"
#include "page/wiring.h"
#include "train/evaluate.h"

typedef struct report {
    const char *folder;
    const checkpoint *checkpoint; /* its last.safetensors */
    const curves *curves;         /* curves of this run alone */
    const wiring *wiring;
    const saved_probe *probe; /* or NULL */
    const evaluation *score;  /* score on `data`, or NULL */
    const char *data;         /* the files' names */
    double xz_bpc;            /* of the same text by xz -6, or NaN */
    double commonest_error;   /* per cent, of always saying the labelled features' commonest class;
                                 NaN without them */
    const show_part *show;    /* or NULL: no text */
    const char *text;         /* the name of its file */
    const uint8_t *sample;    /* [sample_bytes] generated text, or NULL */
    size_t sample_bytes;
    const char *sample_command; /* command that generates the sample */
} report;

/* Refuses a page or a card that is there and was not written by the functions below. */
bool report_check_files(const char *page, const char *card, error *err);

bool report_write_page(const report *r, const char *path, error *err);
bool report_write_card(const report *r, const char *path, error *err);

#endif
