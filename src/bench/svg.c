/* Draws the chart of report.h. */
#include "bench/report.h"
#include "core/file.h"

#include <math.h>
#include <string.h>

enum {
    WIDTH = 860,
    HEIGHT = 520,
    LEFT = 80,
    RIGHT = 700, /* the plot's edges; the legend is to the right of it */
    TOP = 70,
    BOTTOM = 450,
    CURVES = 8
};

/* Colours that people with colour blindness can tell apart (Okabe, Ito 2008). */
static const char *const colours[CURVES] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                            "#e69f00", "#56b4e9", "#000000", "#8c6d31"};

/* The lines of the chart. */
typedef enum measure { OURS, CUSPARSE, FLOOR, MEASURES } measure;

static const char *const measure_names[] = {"smallworld", "cuSPARSE", "the floor"};
static const char *const dashes[] = {"", " stroke-dasharray=\"7 5\"", " stroke-dasharray=\"2 4\""};

/* Returns the speed-up over cuBLAS, or NAN. */
static double speedup(const matmul_row *row, measure what) {
    double cublas = row->library[LIBRARY_CUBLAS];
    switch (what) {
    case OURS: return cublas / row->ours;
    case CUSPARSE: return cublas / row->library[LIBRARY_CUSPARSE];
    default: return cublas / row->floor;
    }
}

typedef struct chart {
    const matmul_results *results;
    const grid_cell *kind; /* the kind of product */
    FILE *out;
    double x0, x1, y0, y1; /* logarithms at the edges */
} chart;

static bool belongs(const grid_cell *kind, const grid_cell *c) {
    return kind->precision == c->precision && kind->product == c->product &&
           kind->gates == c->gates && kind->pattern == c->pattern && kind->block == c->block;
}

static const grid_cell *commonest(const matmul_results *results) {
    const grid_cell *best = NULL;
    size_t most = 0;
    for (size_t i = 0; i < results->count; i++) {
        size_t alike = 0;
        for (size_t k = 0; k < results->count; k++) {
            alike += belongs(&results->rows[i].cell, &results->rows[k].cell);
        }
        if (alike > most) {
            most = alike;
            best = &results->rows[i].cell;
        }
    }
    return best;
}

static double x_at(const chart *c, double density) {
    return LEFT + (RIGHT - LEFT) * (-log10(density) - c->x0) / (c->x1 - c->x0);
}

static double y_at(const chart *c, double factor) {
    return BOTTOM - (BOTTOM - TOP) * (log10(factor) - c->y0) / (c->y1 - c->y0);
}

static void fit_axes(chart *c) {
    c->x0 = c->y0 = INFINITY;
    c->x1 = c->y1 = -INFINITY;
    for (size_t i = 0; i < c->results->count; i++) {
        const matmul_row *row = &c->results->rows[i];
        if (!belongs(c->kind, &row->cell)) continue;
        c->x0 = fmin(c->x0, -log10(row->density));
        c->x1 = fmax(c->x1, -log10(row->density));
        for (int what = 0; what < MEASURES; what++) {
            double y = log10(speedup(row, (measure)what));
            if (!isfinite(y)) continue;
            c->y0 = fmin(c->y0, y);
            c->y1 = fmax(c->y1, y);
        }
    }
    c->x0 -= 0.05;
    c->x1 += 0.05;
    c->y0 = fmin(c->y0, 0) - 0.05; /* keep a speed-up of 1 in sight */
    c->y1 = fmax(c->y1, 0) + 0.05;
}

/* ---------------------------------------------------------------------------------- writing */

static void escaped(FILE *out, const char *text) {
    for (; *text; text++) {
        switch (*text) {
        case '&': fputs("&amp;", out); break;
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        default: fputc(*text, out);
        }
    }
}

static void line(const chart *c, double x0, double y0, double x1, double y1, const char *stroke) {
    fprintf(c->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x0,
            y0, x1, y1, stroke);
}

static void heading(const chart *c) {
    const grid_cell *k = c->kind;
    fprintf(c->out,
            "<text x=\"%d\" y=\"28\" font-size=\"17\" font-weight=\"bold\">Block-sparse %s "
            "against cuBLAS on ",
            LEFT, bench_product_names[k->product]);
    escaped(c->out, c->results->device);
    fprintf(c->out,
            "</text>\n<text x=\"%d\" y=\"50\" fill=\"#555\">%d units, block %d, %s, %s pattern, "
            "%d gate%s, %s</text>\n",
            LEFT, c->results->units, k->block, bench_precisions[k->precision].name,
            bench_patterns[k->pattern].name, k->gates, k->gates == 1 ? "" : "s",
            c->results->hot ? "hot" : "cold");
}

static void axes(const chart *c) {
    static const double densities[] = {0.5, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001};
    static const double factors[] = {0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000};
    for (size_t i = 0; i < sizeof densities / sizeof densities[0]; i++) {
        double x = x_at(c, densities[i]);
        if (x < LEFT || x > RIGHT) continue;
        line(c, x, TOP, x, BOTTOM, "#eee");
        fprintf(c->out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g %%</text>\n", x,
                BOTTOM + 20, 100 - 100 * densities[i]);
    }
    for (size_t i = 0; i < sizeof factors / sizeof factors[0]; i++) {
        double y = y_at(c, factors[i]);
        if (y < TOP || y > BOTTOM) continue;
        line(c, LEFT, y, RIGHT, y, factors[i] == 1 ? "#999" : "#eee");
        fprintf(c->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n", LEFT - 8,
                y + 4, factors[i]);
    }
    fprintf(c->out,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"none\" "
            "stroke=\"#555\"/>\n",
            LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP);
    fprintf(c->out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">sparsity (share of blocks that "
            "are zero)</text>\n",
            (LEFT + RIGHT) / 2, BOTTOM + 46);
    fprintf(c->out,
            "<text transform=\"translate(%d %d) rotate(-90)\" text-anchor=\"middle\">"
            "speed-up over dense cuBLAS</text>\n",
            LEFT - 48, (TOP + BOTTOM) / 2);
}

/* Draws the line of one measure for one N. Rows of an N are neighbours. */
static void curve(const chart *c, int columns, measure what, const char *colour) {
    bool drawn = false;
    for (int marks = 0; marks < (what == OURS ? 2 : 1); marks++) {
        for (size_t i = 0; i < c->results->count; i++) {
            const matmul_row *row = &c->results->rows[i];
            double factor = speedup(row, what);
            if (!belongs(c->kind, &row->cell) || row->cell.columns != columns) continue;
            if (!isfinite(factor) || factor <= 0) continue;
            double x = x_at(c, row->density), y = y_at(c, factor);
            if (marks) {
                fprintf(c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n", x, y,
                        colour);
            } else {
                if (!drawn) {
                    fprintf(c->out,
                            "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"%s\"%s "
                            "points=\"",
                            colour, what == OURS ? "2.2" : "1.3", dashes[what]);
                }
                fprintf(c->out, "%s%.1f,%.1f", drawn ? " " : "", x, y);
                drawn = true;
            }
        }
        if (!marks && drawn) fputs("\"/>\n", c->out);
    }
}

static void curves(const chart *c) {
    int number = 0, last = 0;
    for (size_t i = 0; i < c->results->count; i++) {
        const grid_cell *cell = &c->results->rows[i].cell;
        if (!belongs(c->kind, cell) || cell->columns == last) continue;
        last = cell->columns;
        const char *colour = colours[number % CURVES];
        for (int what = MEASURES - 1; what >= 0; what--) curve(c, last, (measure)what, colour);
        double y = TOP + 12 + 24 * number++;
        fprintf(c->out,
                "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\" "
                "stroke-width=\"2.2\"/>\n<text x=\"%d\" y=\"%.1f\">N = %d</text>\n",
                RIGHT + 20, y, RIGHT + 50, y, colour, RIGHT + 58, y + 4, last);
    }
    for (int what = 0; what < MEASURES; what++) {
        double y = TOP + 36 + 24 * (number + what);
        fprintf(c->out,
                "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#555\" "
                "stroke-width=\"%s\"%s/>\n<text x=\"%d\" y=\"%.1f\">%s</text>\n",
                RIGHT + 20, y, RIGHT + 50, y, what == OURS ? "2.2" : "1.3", dashes[what],
                RIGHT + 58, y + 4, measure_names[what]);
    }
}

bool report_svg(const matmul_results *results, const char *path, error *err) {
    file_writer writer;
    chart c = {.results = results, .kind = commonest(results)};
    if (!c.kind) return error_set(err, "%s: nothing was measured to draw", path);
    if (!file_begin(&writer, path, err)) return false;
    c.out = writer.stream;
    fit_axes(&c);
    fprintf(c.out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
            "height=\"%d\" font-family=\"sans-serif\" font-size=\"13\" fill=\"#222\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    heading(&c);
    axes(&c);
    curves(&c);
    fputs("</svg>\n", c.out);
    return file_commit(&writer, err);
}
