/* The wiring of a model: a ring of nodes with chords between them, histograms of degrees and of
 * path lengths, and the matrix. Between cells and hubs, the matrix and degrees alone, and the path
 * lengths of cells through their hubs. */
#ifndef SMALLWORLD_PAGE_WIRING_H
#define SMALLWORLD_PAGE_WIRING_H

#include "graph/metrics.h"
#include "train/checkpoint.h"

typedef struct wiring {
    const model_config *config;
    graph *const *graphs; /* [stages] */
    /* [blocks] Frobenius norms; NULL if the weights are not trained */
    float *norms[CELL_MAX_STAGES];
} wiring;

/* Computes the norms of a checkpoint's blocks over all gates. */
void wiring_measure(wiring *w, const checkpoint *c);
void wiring_free(wiring *w);

/* Writes elements of <main>. The page's scripts must include wiring_js. */
void wiring_write(FILE *out, const wiring *w);

bool wiring_write_page(const wiring *w, const char *source, const char *path, error *err);

/* Writes one stage as a picture. */
bool wiring_write_svg(const wiring *w, int stage, const char *path, error *err);

#endif
