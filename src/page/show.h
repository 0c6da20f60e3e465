/* The part of a page that colours text by a model's state, a probe's score or the surprise at each
 * byte. */
#ifndef SMALLWORLD_PAGE_SHOW_H
#define SMALLWORLD_PAGE_SHOW_H

#include "page/reading.h"
#include "probe/dataset.h"
#include "probe/saved.h"

enum { SHOW_MAX_CLASSES = 6 };

typedef struct show_part {
    const corpus *texts;
    const reading *reading;
    const saved_probe *probe; /* or NULL */
    const dataset *labelled;  /* documents for histograms, or NULL */
    const origin *origin;     /* origin of `labelled` */
} show_part;

/* The model on a page and the kind of state that the page shows. */
typedef struct show_model {
    int64_t hidden;
    feature_state state;
    const char *checksum;     /* its checkpoint's */
    const saved_probe *probe; /* or NULL */
} show_model;

/* Returns the most bytes of text for which a page with `units` units and `functions` functions of a
 * probe stays well under 2 MB. */
int64_t show_most_bytes(int units, int functions);

/* Opens the features at PREFIX for histograms. Refuses features of another checkpoint, of another
 * state, of other pools than the probe's, and of more than SHOW_MAX_CLASSES labels. The caller
 * closes the dataset and frees the origin. */
bool show_open(dataset *labelled, origin *o, const char *prefix, const show_model *model,
               error *err);

/* Chooses at most `count` units to show: those that best separate labelled documents of two
 * classes; else those that weigh most in the probe; else none. Both may be NULL. Returns their
 * number. */
int show_choose_units(const dataset *labelled, const saved_probe *probe, int64_t hidden,
                      size_t *units, int count);

/* Draws the texts as an SVG picture, coloured by the page's first choice: the unit that best
 * separates two labels, the probe, or the first unit. */
void show_svg(FILE *out, const show_part *part);

/* Writes elements of <main> and their data. The page's scripts must include show_js. */
void show_write(FILE *out, const show_part *part);

#endif
