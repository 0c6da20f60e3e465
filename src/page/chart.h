/* Line charts and histograms as SVG, coloured by chart.css, which follows light and dark. */
#ifndef SMALLWORLD_PAGE_CHART_H
#define SMALLWORLD_PAGE_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CHART_WIDTH = 480, CHART_HEIGHT = 300, CHART_COLOURS = 6 };

typedef struct chart_line {
    const char *name; /* for the values under the pointer, and screen readers */
    int colour;       /* of the CHART_COLOURS; the rounds after the first are dashed */
    bool dots;        /* thick, a dot a point; else thin */
    size_t count;
    double *x, *y; /* [count], finite, x ascending; y above 0 where the axis is logarithmic */
} chart_line;

typedef struct chart {
    const char *id, *title, *x_label, *y_label;
    bool log_y;
    const chart_line *lines;
    int count;
} chart;

/* The points of (x, y) that are finite (and, `positive`, above 0), as at most `most` means over
 * equal parts of x's range. The caller frees x and y. */
chart_line chart_reduce(const double *x, const double *y, size_t count, size_t most, bool positive);

/* <svg>; `place` is added to its attributes, "" or " x=... y=..." inside another one. */
void chart_write(FILE *out, const chart *c, const char *place);

/* The values of charts, for chart_js, which shows those under the pointer. */
void chart_write_data(FILE *out, const chart *charts, int count);

/* Bars over whole numbers: bar i counts least + i step ... least + (i + 1) step - 1. `place` as
 * above. */
typedef struct bar_chart {
    const char *title, *x_label, *y_label;
    const double *bars;
    int count, least, step;
} bar_chart;

void chart_write_bars(FILE *out, const bar_chart *c, const char *place);

#endif
