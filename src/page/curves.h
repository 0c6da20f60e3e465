/* The curves of runs, side by side, and the differences between their configs. */
#ifndef SMALLWORLD_PAGE_CURVES_H
#define SMALLWORLD_PAGE_CURVES_H

#include "train/options.h"
#include "train/run_log.h"

enum { CURVES_MOST_RUNS = 24 };

typedef struct run_curve {
    const char *folder;
    char *name; /* the folder's name, with enough parents to tell it from the others */
    run_log log;
    options *options; /* from its config.yaml; NULL without one */
} run_curve;

typedef struct curves {
    int count;
    run_curve runs[CURVES_MOST_RUNS];
} curves;

/* Reads the runs in these folders. Refuses a folder without metrics. */
bool curves_read(curves *c, char *const *folders, int count, error *err);
void curves_free(curves *c);

/* Writes elements of <main>. The page's scripts must include chart_js. */
void curves_write(FILE *out, const curves *c);

/* Reads the runs and writes a page of their curves, which reloads itself every `reload` seconds if
 * that is above 0; or, if the name ends in .svg, the charts alone. */
bool curves_plot(char *const *folders, int count, const char *path, int reload, error *err);

#endif
