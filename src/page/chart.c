#include "page/chart.h"

#include "core/json.h"
#include "core/memory.h"
#include "core/number.h"
#include "page/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The places of the axes. */
enum { LEFT = 66, RIGHT = CHART_WIDTH - 12, TOP = 28, BOTTOM = CHART_HEIGHT - 42, MAX_TICKS = 24 };

/* ------------------------------------------------------------------------------------ lines */

chart_line chart_reduce(const double *x, const double *y, size_t count, size_t most,
                        bool positive) {
    chart_line line = {0};
    double first = INFINITY, last = -INFINITY;
    size_t usable = 0;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i]) || (positive && !(y[i] > 0))) continue;
        first = fmin(first, x[i]);
        last = fmax(last, x[i]);
        usable++;
    }
    size_t buckets = usable < most ? usable : most;
    line.x = mem_alloc(buckets + 1, sizeof *line.x);
    line.y = mem_alloc(buckets + 1, sizeof *line.y);
    double sum_x = 0, sum_y = 0, n = 0;
    size_t bucket = 0;
    for (size_t i = 0; i <= count; i++) {
        bool usable_here =
            i < count && isfinite(x[i]) && isfinite(y[i]) && !(positive && !(y[i] > 0));
        if (i < count && !usable_here) continue;
        size_t here = bucket;
        if (i < count) {
            double share = last > first ? (x[i] - first) / (last - first) : 0;
            here = (size_t)(share * (double)buckets);
            if (here >= buckets) here = buckets - 1;
        }
        bool all = usable <= most; /* no points need to be merged */
        if (n > 0 && (i == count || all || here != bucket) && line.count < buckets) {
            line.x[line.count] = sum_x / n;
            line.y[line.count++] = sum_y / n;
            sum_x = sum_y = n = 0;
        }
        if (i == count) break;
        bucket = here;
        sum_x += x[i];
        sum_y += y[i];
        n++;
    }
    return line;
}

/* ------------------------------------------------------------------------------------- axes */

typedef struct axis {
    double least, most;
    bool log;
    double tick[MAX_TICKS];
    int ticks;
} axis;

static double place(const axis *a, double value, double from, double to) {
    double share = a->log ? log(value / a->least) / log(a->most / a->least)
                          : (value - a->least) / (a->most - a->least);
    return from + share * (to - from);
}

/* Puts about `wanted` ticks at multiples of 1, 2 or 5 times a power of ten. */
static void linear_ticks(axis *a, int wanted) {
    double raw = (a->most - a->least) / wanted, unit = pow(10, floor(log10(raw)));
    double step = unit * (raw / unit <= 1 ? 1 : raw / unit <= 2 ? 2 : raw / unit <= 5 ? 5 : 10);
    a->ticks = 0;
    for (double k = ceil(a->least / step - 1e-9); k * step <= a->most * (1 + 1e-12); k++) {
        if (a->ticks == MAX_TICKS) break;
        a->tick[a->ticks++] = k * step;
    }
}

static void log_ticks(axis *a) {
    static const double sets[][9] = {{1}, {1, 3}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 7}};
    for (int s = 0; s < 4; s++) {
        a->ticks = 0;
        for (int e = (int)floor(log10(a->least)); e <= (int)ceil(log10(a->most)); e++) {
            for (int k = 0; k < 9 && sets[s][k] > 0; k++) {
                double value = sets[s][k] * pow(10, e);
                if (value < a->least || value > a->most || a->ticks == MAX_TICKS) continue;
                a->tick[a->ticks++] = value;
            }
        }
        if (a->ticks >= 4) return;
    }
    linear_ticks(a, 5);
}

static axis fit_axis(const chart *c, bool vertical) {
    axis a = {.least = INFINITY, .most = -INFINITY, .log = vertical && c->log_y};
    for (int k = 0; k < c->count; k++) {
        const double *values = vertical ? c->lines[k].y : c->lines[k].x;
        for (size_t i = 0; i < c->lines[k].count; i++) {
            a.least = fmin(a.least, values[i]);
            a.most = fmax(a.most, values[i]);
        }
    }
    if (!(a.least <= a.most)) a.least = a.log ? 1 : 0, a.most = a.log ? 10 : 1;
    if (!a.log && a.least > 0 && (!vertical || a.least < 0.5 * a.most)) a.least = 0;
    if (a.most <= a.least) a.most = a.least + (a.log ? a.least : fabs(a.least) + 1);
    double margin = vertical ? 0.04 : 0;
    if (a.log) {
        double factor = pow(a.most / a.least, margin);
        a.least /= factor;
        a.most *= factor;
        log_ticks(&a);
    } else {
        a.most += margin * (a.most - a.least);
        linear_ticks(&a, 5);
    }
    return a;
}

/* Writes a number for people: 0.25, 1.5 k for 1,500, 2 M. `text` has room for 32 bytes. */
static const char *tick_text(char *text, double value) {
    static const struct {
        double size;
        const char *name;
    } units[] = {{1e12, "\xC2\xA0T"}, {1e9, "\xC2\xA0G"}, {1e6, "\xC2\xA0M"}, {1e3, "\xC2\xA0k"}};
    for (int i = 0; i < 4; i++) {
        if (fabs(value) < units[i].size * 0.99999) continue;
        snprintf(text, 32, "%.4g%s", value / units[i].size, units[i].name);
        return text;
    }
    snprintf(text, 32, "%.4g", fabs(value) < 1e-12 ? 0 : value);
    return text;
}

static void write_axes(FILE *out, const axis *x, const axis *y, const char *x_label,
                       const char *y_label, bool grid) {
    char text[32];
    fputs("<g class=\"y-axis\">\n", out);
    for (int i = 0; i < y->ticks; i++) {
        double at = place(y, y->tick[i], BOTTOM, TOP);
        fprintf(out,
                "<line class=\"grid\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\"/><text x=\"%d\" "
                "y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                LEFT, at, RIGHT, at, LEFT - 6, at + 4, tick_text(text, y->tick[i]));
    }
    fputs("</g>\n", out);
    for (int i = 0; i < x->ticks; i++) {
        double at = place(x, x->tick[i], LEFT, RIGHT);
        if (grid) {
            fprintf(out, "<line class=\"grid\" x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\"/>", at,
                    BOTTOM, at, TOP);
        }
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">%s</text>\n", at, BOTTOM + 17,
                at > RIGHT - 12 ? "end" : "middle", tick_text(text, x->tick[i]));
    }
    fprintf(
        out,
        "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n<text x=\"%d\" y=\"%d\" "
        "text-anchor=\"middle\">%s</text>\n<text class=\"y-label\" transform=\"translate(13 %d) "
        "rotate(-90)\" text-anchor=\"middle\">%s%s</text>\n",
        LEFT, TOP, BOTTOM, RIGHT, (LEFT + RIGHT) / 2, CHART_HEIGHT - 8, x_label, (TOP + BOTTOM) / 2,
        y_label, y->log ? " (logarithmic)" : "");
}

/* ----------------------------------------------------------------------------------- charts */

static void begin_svg(FILE *out, const char *id, const char *place_) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\"%s%s%s%s width=\"%d\" "
            "height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" tabindex=\"0\" aria-label=\"",
            id ? " id=\"" : "", id ? id : "", id ? "\"" : "", place_, CHART_WIDTH, CHART_HEIGHT,
            CHART_WIDTH, CHART_HEIGHT);
}

static void write_title(FILE *out, const char *title) {
    fprintf(out, "<text class=\"title\" x=\"%d\" y=\"16\">%s</text>\n", LEFT, title);
}

static void write_line(FILE *out, const chart_line *line, const axis *x, const axis *y) {
    int colour = line->run % CHART_COLOURS;
    const char *dash = line->run / CHART_COLOURS % 2 ? " stroke-dasharray=\"6 4\"" : "";
    if (line->count == 0) return;
    fprintf(out, "<polyline class=\"line\" stroke=\"var(--c%d)\" stroke-width=\"%s\"%s points=\"",
            colour, line->dots ? "2.5" : "1.25", dash);
    for (size_t i = 0; i < line->count; i++) {
        fprintf(out, "%s%.1f,%.1f", i ? " " : "", place(x, line->x[i], LEFT, RIGHT),
                place(y, line->y[i], BOTTOM, TOP));
    }
    fputs("\"/>\n", out);
    for (size_t i = 0; line->dots && line->count <= 64 && i < line->count; i++) {
        fprintf(out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"var(--c%d)\"/>\n",
                place(x, line->x[i], LEFT, RIGHT), place(y, line->y[i], BOTTOM, TOP), colour);
    }
}

void chart_write(FILE *out, const chart *c, const char *place_) {
    axis x = fit_axis(c, false), y = fit_axis(c, true);
    begin_svg(out, c->id, place_);
    fprintf(out, "%s.", c->title);
    for (int k = 0; k < c->count; k++) {
        const chart_line *line = &c->lines[k];
        if (line->count == 0) continue;
        fputc(' ', out);
        html_text(out, line->name);
        fprintf(out, ": from %.4g to %.4g.", line->y[0], line->y[line->count - 1]);
    }
    fputs("\">\n", out);
    write_title(out, c->title);
    write_axes(out, &x, &y, c->x_label, c->y_label, true);
    fputs("<g class=\"lines\">\n", out);
    for (int k = 0; k < c->count; k++) write_line(out, &c->lines[k], &x, &y);
    fputs("</g>\n</svg>\n", out);
}

static void write_numbers(json_writer *w, const char *key, const double *values, size_t count) {
    json_array_begin(w, key);
    for (size_t i = 0; i < count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%.5g", values[i]);
        json_number(w, NULL, number_scan(text, NULL));
    }
    json_array_end(w);
}

void chart_write_data(FILE *out, const chart *charts, int count) {
    char *text;
    size_t size;
    FILE *stream = mem_stream(&text, &size);
    json_writer w = {stream, false};
    json_array_begin(&w, NULL);
    for (int k = 0; k < count; k++) {
        const chart *c = &charts[k];
        axis x = fit_axis(c, false);
        json_object_begin(&w, NULL);
        json_string(&w, "id", c->id);
        json_string(&w, "x", c->x_label);
        json_string(&w, "y", c->y_label);
        json_integer(&w, "log", c->log_y);
        json_number(&w, "least", x.least);
        json_number(&w, "most", x.most);
        json_integer(&w, "left", LEFT);
        json_integer(&w, "right", RIGHT);
        json_integer(&w, "top", TOP);
        json_integer(&w, "bottom", BOTTOM);
        json_array_begin(&w, "lines");
        for (int i = 0; i < c->count; i++) {
            const chart_line *line = &c->lines[i];
            if (line->count == 0) continue;
            json_object_begin(&w, NULL);
            json_string(&w, "name", line->name);
            json_integer(&w, "run", line->run);
            json_integer(&w, "dots", line->dots);
            write_numbers(&w, "x", line->x, line->count);
            write_numbers(&w, "y", line->y, line->count);
            json_object_end(&w);
        }
        json_array_end(&w);
        json_object_end(&w);
    }
    json_array_end(&w);
    mem_stream_end(stream);
    html_json(out, "charts", text, size);
    free(text);
}

void chart_write_bars(FILE *out, const bar_chart *c, const char *place_) {
    axis x = {.least = c->least - 0.5 * c->step, .most = c->least + (c->count - 0.5) * c->step};
    axis y = {.most = 1};
    double most = 0, total = 0;
    for (int i = 0; i < c->count; i++) {
        most = fmax(most, c->bars[i]);
        total += c->bars[i];
    }
    if (most > 0) y.most = most * 1.04;
    linear_ticks(&y, 4);
    int every = (c->count + 9) / 10;
    for (int i = 0; i < c->count && x.ticks < MAX_TICKS; i += every) {
        x.tick[x.ticks++] = c->least + i * c->step;
    }
    begin_svg(out, NULL, place_);
    fprintf(out, "%s, from %d to %d.\">\n", c->title, c->least, c->least + c->count * c->step - 1);
    write_title(out, c->title);
    write_axes(out, &x, &y, c->x_label, c->y_label, false);
    double width = (double)(RIGHT - LEFT) / c->count, gap = width > 6 ? 1 : 0;
    for (int i = 0; i < c->count; i++) {
        if (!(c->bars[i] > 0)) continue;
        int from = c->least + i * c->step;
        double top = place(&y, c->bars[i], BOTTOM, TOP);
        fprintf(out,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
                "fill=\"var(--c0)\"><title>",
                LEFT + i * width + gap / 2, top, fmax(0.5, width - gap), BOTTOM - top);
        if (c->step > 1) {
            fprintf(out, "%d to %d", from, from + c->step - 1);
        } else {
            fprintf(out, "%d", from);
        }
        fprintf(out, ": %.4g (%.2f %%)</title></rect>\n", c->bars[i], 100 * c->bars[i] / total);
    }
    fputs("</svg>\n", out);
}
