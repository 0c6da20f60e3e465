/* What a run came to, told twice: on a page, and as a model card in Markdown. */
#ifndef SMALLWORLD_PAGE_REPORT_H
#define SMALLWORLD_PAGE_REPORT_H

#include "page/curves.h"
#include "page/show.h"
#include "page/wiring.h"
#include "train/evaluate.h"

typedef struct report {
    const char *folder;
    const checkpoint *checkpoint; /* its last.safetensors */
    const curves *curves;         /* of this one run */
    const wiring *wiring;
    const saved_probe *probe; /* or NULL */
    const evaluation *score;  /* of `data`, or NULL */
    const char *data;         /* the files' names */
    const show_part *show;    /* or NULL: no text */
    const char *text;         /* the name of its file */
    const uint8_t *sample; /* [sample_bytes] that the model generated after its prompt, or NULL */
    size_t sample_bytes;
    const char *sample_command; /* what generates the sample again */
} report;

bool report_write_page(const report *r, const char *path, error *err);

/* Refuses to overwrite a file that was not written by this function. */
bool report_write_card(const report *r, const char *path, error *err);

#endif
