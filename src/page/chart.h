/* Line charts and histograms as SVG, coloured by chart.css, which follows light and dark. */
#ifndef SMALLWORLD_PAGE_CHART_H
#define SMALLWORLD_PAGE_CHART_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { CHART_WIDTH = 480, CHART_HEIGHT = 300, CHART_COLOURS = 6 };

typedef struct chart_line {
    const char *name; /* shown with values under the pointer and read by screen readers */
    int run;          /* index of its run, and so of a colour; beyond CHART_COLOURS it is dashed */
    bool dots;        /* draw a thick line with a dot at each point, else a thin line */
    size_t count;
    double *x, *y; /* [count], finite, x ascending; y is positive if the axis is logarithmic */
} chart_line;

typedef struct chart {
    const char *id, *title, *x_label, *y_label;
    bool log_y;
    const chart_line *lines;
    int count;
} chart;

/* Reduces the finite points of (x, y) (and, with `positive`, those above 0) to at most `most` means
 * over equal parts of x's range. The caller frees x and y. */
chart_line chart_reduce(const double *x, const double *y, size_t count, size_t most, bool positive);

/* Writes an <svg> element. `place` is added to its attributes: "", or " x=... y=..." inside another
 * <svg>. */
void chart_write(FILE *out, const chart *c, const char *place);

/* Writes the values of charts as data for chart_js, which redraws them: with runs hidden, a linear
 * axis, or smoothing. An element of id "runs" has a child for each run. */
void chart_write_data(FILE *out, const chart *charts, int count);

/* Bars over whole numbers. Bar i counts the values from least + i step to least + (i + 1) step - 1.
 * `place` is as above. */
typedef struct bar_chart {
    const char *title, *x_label, *y_label;
    const double *bars;
    int count, least, step;
} bar_chart;

void chart_write_bars(FILE *out, const bar_chart *c, const char *place);

#endif
