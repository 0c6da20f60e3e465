#include "page/curves.h"

#include "core/file.h"
#include "core/memory.h"
#include "page/assets.h"
#include "page/chart.h"
#include "page/html.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHARTS = 5, MOST_POINTS = 400, LEAST_POINTS = 60, ALL_POINTS = 4000 };

/* ------------------------------------------------------------------------------------- runs */

/* Returns the last `parts` parts of a path. */
static char *tail_of(const char *path, int parts) {
    char *copy = realpath(path, NULL);
    if (!copy) copy = mem_string(path);
    char *start = copy + strlen(copy);
    while (start > copy) {
        if (*start == '/' && start[1] && --parts == 0) break;
        start--;
    }
    char *tail = mem_string(*start == '/' && start[1] ? start + 1 : start);
    free(copy);
    return tail;
}

static void name_runs(curves *c) {
    for (int parts = 1; parts <= 8; parts++) {
        bool equal = false;
        for (int i = 0; i < c->count; i++) {
            free(c->runs[i].name);
            c->runs[i].name = tail_of(c->runs[i].folder, parts);
        }
        for (int i = 0; i < c->count; i++) {
            for (int j = 0; j < i; j++) equal |= strcmp(c->runs[i].name, c->runs[j].name) == 0;
        }
        if (!equal) return;
    }
}

/* Reads the run's config.yaml, if there is one. */
static bool read_options(run_curve *run, error *err) {
    char *path = mem_format("%s/config.yaml", run->folder);
    bool read = true;
    if (file_exists(path)) {
        run->options = mem_alloc(1, sizeof *run->options);
        options_begin(run->options);
        read = options_load(run->options, path, NULL, 0, err);
    }
    free(path);
    return read;
}

bool curves_read(curves *c, char *const *folders, int count, error *err) {
    *c = (curves){0};
    for (int i = 0; i < count; i++) {
        run_curve *run = &c->runs[c->count];
        run->folder = folders[i];
        bool read = run_log_read(&run->log, folders[i], err);
        if (read) {
            c->count++;
            read = read_options(run, err) &&
                   (run->log.count > 0 ||
                    error_set(err, "%s/metrics.jsonl: no metrics yet", folders[i]));
        }
        if (!read) {
            curves_free(c);
            return false;
        }
    }
    name_runs(c);
    return true;
}

void curves_free(curves *c) {
    for (int i = 0; i < c->count; i++) {
        run_curve *run = &c->runs[i];
        run_log_free(&run->log);
        free(run->name);
        if (run->options) options_free(run->options);
        free(run->options);
    }
    *c = (curves){0};
}

/* ----------------------------------------------------------------------------------- charts */

/* The charts of all runs, which own the memory of their lines. */
typedef struct drawing {
    int count;
    chart charts[CHARTS];
    chart_line lines[CHARTS][2 * CURVES_MOST_RUNS];
    char *names[2 * CURVES_MOST_RUNS]; /* of training and of validation */
} drawing;

static void add_line(drawing *d, int number, const char *name, int run, bool dots, const double *x,
                     const double *y, size_t count, size_t most) {
    chart *c = &d->charts[number];
    chart_line *line = &d->lines[number][c->count++];
    *line = chart_reduce(x, y, count, most, c->log_y);
    line->name = name;
    line->run = run;
    line->dots = dots;
    c->lines = d->lines[number];
}

static drawing *draw(const curves *c) {
    drawing *d = mem_alloc(1, sizeof *d);
    static const chart charts[CHARTS] = {{.id = "bpc-bytes",
                                          .title = "Bits per character, by text",
                                          .x_label = "bytes read",
                                          .y_label = "bits per character",
                                          .log_y = true},
                                         {.id = "bpc-minutes",
                                          .title = "Bits per character, by time",
                                          .x_label = "minutes",
                                          .y_label = "bits per character",
                                          .log_y = true},
                                         {.id = "learning-rate",
                                          .title = "Learning rate",
                                          .x_label = "bytes read",
                                          .y_label = "learning rate"},
                                         {.id = "gradient-norm",
                                          .title = "Gradient norm",
                                          .x_label = "bytes read",
                                          .y_label = "gradient norm",
                                          .log_y = true},
                                         {.id = "labels",
                                          .title = "Labels of whole validation documents",
                                          .x_label = "bytes read",
                                          .y_label = "share that is wrong"}};
    memcpy(d->charts, charts, sizeof charts);
    size_t most = ALL_POINTS / (c->count > 0 ? (size_t)c->count : 1);
    if (most > MOST_POINTS) most = MOST_POINTS;
    if (most < LEAST_POINTS) most = LEAST_POINTS;
    for (int i = 0; i < c->count; i++) {
        const run_log *log = &c->runs[i].log;
        size_t count = log->count;
        double *minutes = mem_alloc(count, sizeof *minutes);
        for (size_t k = 0; k < count; k++) minutes[k] = log->value[LOG_SECONDS][k] / 60;
        d->names[2 * i] = mem_format("%s training", c->runs[i].name);
        d->names[2 * i + 1] = mem_format("%s validation", c->runs[i].name);
        const double *bytes = log->value[LOG_BYTES];
        for (int k = 0; k < 2; k++) { /* against bytes, then against minutes */
            const double *x = k ? minutes : bytes;
            add_line(d, k, d->names[2 * i], i, false, x, log->value[LOG_BPC], count, most);
            add_line(d, k, d->names[2 * i + 1], i, true, x, log->value[LOG_VALID_BPC], count, most);
        }
        const char *name = c->runs[i].name;
        add_line(d, 2, name, i, false, bytes, log->value[LOG_LR], count, most);
        add_line(d, 3, name, i, false, bytes, log->value[LOG_GRAD_NORM], count, most);
        if (!isnan(run_log_last(log, LOG_VALID_LABEL_ERROR))) {
            add_line(d, 4, name, i, true, bytes, log->value[LOG_VALID_LABEL_ERROR], count, most);
        }
        free(minutes);
    }
    d->count =
        d->charts[4].count > 0 ? CHARTS : CHARTS - 1; /* that of labels where there are any */
    return d;
}

static void drawing_free(drawing *d) {
    for (int k = 0; k < CHARTS; k++) {
        for (int i = 0; i < d->charts[k].count; i++) {
            free(d->lines[k][i].x);
            free(d->lines[k][i].y);
        }
    }
    for (int i = 0; i < 2 * CURVES_MOST_RUNS; i++) free(d->names[i]);
    free(d);
}

/* ----------------------------------------------------------------------------------- tables */

static void write_runs(FILE *out, const curves *c) {
    static const char *const heads[] = {"run",
                                        "updates",
                                        "bytes",
                                        "minutes",
                                        "bytes/s",
                                        "training, last",
                                        "validation, last",
                                        "validation, best"};
    fputs("<h2>Runs</h2>\n", out);
    html_table t = html_table_begin(out, "runs", "Runs", heads, 8);
    for (int i = 0; i < c->count; i++) {
        const run_log *log = &c->runs[i].log;
        html_cell(&t, "%s", c->runs[i].name);
        html_number(&t, NULL, run_log_last(log, LOG_STEP));
        html_number(&t, NULL, run_log_last(log, LOG_BYTES));
        html_number(&t, "%.1f", run_log_last(log, LOG_SECONDS) / 60);
        html_number(&t, NULL, run_log_last(log, LOG_RATE));
        html_number(&t, "%.4f", run_log_last(log, LOG_BPC));
        html_number(&t, "%.4f", run_log_last(log, LOG_VALID_BPC));
        html_number(&t, "%.4f", run_log_least(log, LOG_VALID_BPC));
    }
    html_table_end(&t);
}

/* Finds the values of a key in all runs: "" if a run has no config. Returns whether they differ. */
static bool key_values(const curves *c, const config_key *key, char *values[]) {
    const char *first = NULL;
    bool differ = false;
    for (int i = 0; i < c->count; i++) {
        const options *o = c->runs[i].options;
        values[i] = o ? config_text(&o->config, key) : mem_string("");
        if (!o) continue;
        differ = differ || (first && strcmp(first, values[i]) != 0);
        if (!first) first = values[i];
    }
    return differ;
}

static void write_differences(FILE *out, const curves *c) {
    char *values[CURVES_MOST_RUNS];
    const char *heads[1 + CURVES_MOST_RUNS] = {"key"};
    html_table t = {0};
    fputs("<h2>In what their configs differ</h2>\n", out);
    for (int i = 0; i < c->count; i++) heads[i + 1] = c->runs[i].name;
    for (int k = 0; k < option_count; k++) {
        if (key_values(c, &option_keys[k], values)) {
            if (!t.out) {
                t = html_table_begin(out, "differences", "Differences", heads, c->count + 1);
            }
            html_cell(&t, "%s", option_keys[k].path);
            for (int i = 0; i < c->count; i++) html_cell(&t, "%s", values[i]);
        }
        for (int i = 0; i < c->count; i++) free(values[i]);
    }
    if (t.out) {
        html_table_end(&t);
    } else {
        fputs("<p>In no key.</p>\n", out);
    }
    for (int i = 0; i < c->count; i++) {
        if (c->runs[i].options) continue;
        fputs("<p>", out);
        html_text(out, c->runs[i].name);
        fputs(" has no config.yaml.</p>\n", out);
    }
}

/* ------------------------------------------------------------------------------------- page */

void curves_write(FILE *out, const curves *c) {
    drawing *d = draw(c);
    fputs("<ul class=\"legend\" id=\"runs\" aria-label=\"Runs by colour\">\n", out);
    for (int i = 0; i < c->count; i++) {
        fprintf(out, "<li><span class=\"swatch%s\" style=\"color: var(--c%d)\"></span>",
                i / CHART_COLOURS % 2 ? " dashed" : "", i % CHART_COLOURS);
        html_text(out, c->runs[i].name);
        fputs("</li>\n", out);
    }
    fputs("</ul>\n<p class=\"quiet\">Thin lines: training, the mean since the last line of "
          "metrics. Thick lines with dots: validation. A run's name hides and shows it. Arrow keys "
          "move along a chart that has the focus.</p>\n<div class=\"charts\">\n",
          out);
    for (int k = 0; k < d->count; k++) {
        fputs("<figure>\n", out);
        chart_write(out, &d->charts[k], "");
        fputs("</figure>\n", out);
    }
    fputs("</div>\n", out);
    write_runs(out, c);
    if (c->count > 1) write_differences(out, c);
    chart_write_data(out, d->charts, d->count);
    drawing_free(d);
}

/* Writes two charts in each row and the runs' names below. */
static void write_svg(FILE *out, const curves *c) {
    drawing *d = draw(c);
    const int rows = (d->count + 1) / 2;
    const int top = rows * CHART_HEIGHT + 24, height = top + 22 * c->count;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n<style>\n%s</style>\n<rect width=\"%d\" height=\"%d\" "
            "fill=\"var(--paper)\"/>\n",
            2 * CHART_WIDTH, height, 2 * CHART_WIDTH, height, chart_css, 2 * CHART_WIDTH, height);
    for (int k = 0; k < d->count; k++) {
        char place[48];
        snprintf(place, sizeof place, " x=\"%d\" y=\"%d\"", k % 2 * CHART_WIDTH,
                 k / 2 * CHART_HEIGHT);
        chart_write(out, &d->charts[k], place);
    }
    for (int i = 0; i < c->count; i++) {
        int y = top + 22 * i;
        fprintf(out,
                "<line x1=\"58\" x2=\"88\" y1=\"%d\" y2=\"%d\" stroke=\"var(--c%d)\" "
                "stroke-width=\"3\"%s/><text x=\"96\" y=\"%d\">",
                y - 4, y - 4, i % CHART_COLOURS,
                i / CHART_COLOURS % 2 ? " stroke-dasharray=\"6 4\"" : "", y);
        html_text(out, c->runs[i].name);
        fputs("</text>\n", out);
    }
    fputs("</svg>\n", out);
    drawing_free(d);
}

static bool write_file(const curves *c, const char *path, int reload, error *err) {
    static const char *const scripts[] = {chart_js};
    file_writer writer;
    if (!file_begin(&writer, path, err)) return false;
    FILE *out = writer.stream;
    if (file_ends_in(path, ".svg")) {
        write_svg(out, c);
    } else {
        char *title = c->count == 1 ? mem_format("How %s went", c->runs[0].name)
                                    : mem_format("How %d runs went", c->count);
        html_begin(out, title, reload);
        if (reload > 0) {
            fprintf(out,
                    "<p>Training goes on; this page loads itself again every %d seconds.</p>\n",
                    reload);
        }
        curves_write(out, c);
        html_end(out, scripts, 1);
        free(title);
    }
    return file_commit(&writer, err);
}

bool curves_plot(char *const *folders, int count, const char *path, int reload, error *err) {
    curves *c = mem_alloc(1, sizeof *c);
    bool done = curves_read(c, folders, count, err);
    if (done) {
        done = write_file(c, path, reload, err);
        curves_free(c);
    }
    free(c);
    return done;
}
