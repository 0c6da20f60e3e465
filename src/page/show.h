/* The part of a page that colours text by what a model holds at each byte. */
#ifndef SMALLWORLD_PAGE_SHOW_H
#define SMALLWORLD_PAGE_SHOW_H

#include "probe/dataset.h"
#include "probe/reading.h"
#include "probe/saved.h"

enum { SHOW_MAX_CLASSES = 6 };

typedef struct show_part {
    const corpus *texts;
    const reading *reading;
    const saved_probe *probe; /* or NULL */
    const dataset *labelled;  /* for histograms, or NULL */
    char *const *names;       /* of its labels, see origin.h; NULL: integers */
} show_part;

/* The most bytes of text for which `units` units' page stays well under 2 MB. */
int64_t show_most_bytes(int units, bool probe);

/* Refuses labels of more than SHOW_MAX_CLASSES classes. */
bool show_check(const dataset *labelled, error *err);

/* Elements of <main>, and their data; the page's scripts must include show_js. */
void show_write(FILE *out, const show_part *part);

#endif
