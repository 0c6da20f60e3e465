/* How runs went: their curves, one beside the other, and in what their configs differ. */
#ifndef SMALLWORLD_PAGE_CURVES_H
#define SMALLWORLD_PAGE_CURVES_H

#include "train/options.h"
#include "train/run_log.h"

enum { CURVES_MOST_RUNS = 24 };

typedef struct run_curve {
    const char *folder;
    char *name; /* of the folder, with as many parents as tell it from the others */
    run_log log;
    options *options; /* its config.yaml; NULL where that cannot be read */
} run_curve;

typedef struct curves {
    int count;
    run_curve runs[CURVES_MOST_RUNS];
} curves;

/* Refuses a folder without metrics. */
bool curves_read(curves *c, char *const *folders, int count, error *err);
void curves_free(curves *c);

/* Elements of <main>; the page's scripts must include chart_js. */
void curves_write(FILE *out, const curves *c);

/* A page of them, which loads itself again every `reload` seconds, if that is above 0; or, where
 * the name ends in .svg, the charts alone. */
bool curves_write_file(const curves *c, const char *path, int reload, error *err);

/* Reads and writes at once. */
bool curves_plot(char *const *folders, int count, const char *path, int reload, error *err);

#endif
