#include "page/classified.h"

#include "classify/predictions.h"
#include "core/file.h"
#include "core/memory.h"
#include "page/assets.h"
#include "page/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXCERPT = 280 /* bytes */, MATRIX_CLASSES = 12 };

static const contender *chosen_of(const classified *c) {
    const contender *k = c->contenders;
    while (!k->chosen) k++;
    return k;
}

static void write_contenders(FILE *out, const classified *c) {
    fputs("<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Errors\"><table "
          "id=\"errors\">\n<thead><tr><th scope=\"col\">classed by</th><th scope=\"col\">test "
          "error, %</th><th scope=\"col\">standard error</th><th scope=\"col\">validation "
          "error, %</th><th scope=\"col\">seconds</th></tr></thead>\n<tbody>\n",
          out);
    for (int i = 0; i < c->contender_count; i++) {
        const contender *k = &c->contenders[i];
        if (isnan(k->error)) {
            fprintf(out, "<tr><th scope=\"row\">%s</th><td colspan=\"4\">not tried</td></tr>\n",
                    k->name);
            continue;
        }
        fprintf(out, "<tr><th scope=\"row\">%s%s</th><td class=\"number\">%.2f</td>", k->name,
                k->chosen ? " (saved)" : "", k->error);
        fprintf(out, "<td class=\"number\">%.2f</td><td class=\"number\">", k->deviation);
        if (!isnan(k->valid_error)) fprintf(out, "%.2f", k->valid_error);
        fputs("</td><td class=\"number\">", out);
        if (!isnan(k->seconds)) fprintf(out, "%.0f", k->seconds);
        fputs("</td></tr>\n", out);
    }
    fputs("</tbody>\n</table></div>\n", out);
}

static void write_header(FILE *out, const char *kind, const char *text) {
    fprintf(out, "<th scope=\"%s\">", kind);
    html_text(out, text);
    fputs("</th>", out);
}

static void write_share(FILE *out, double share) {
    fputs("<td class=\"number\">", out);
    if (!isnan(share)) fprintf(out, "%.1f", 100 * share);
    fputs("</td>", out);
}

/* A row for each class; of few classes also what its documents were said to be. */
static void write_classes(FILE *out, const classified *c) {
    const int classes = c->classes;
    const bool matrix = classes <= MATRIX_CLASSES;
    fputs(
        "<h2>The classes</h2>\n<p>Precision: how many of those that were said to be of a class are "
        "of it. Recall: how many of a class were said to be of it. F1 is their harmonic mean.",
        out);
    fputs(matrix ? " The last columns are what a class's documents were said to be.</p>\n"
                 : "</p>\n",
          out);
    fputs(
        "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"Classes\"><table "
        "id=\"confusion\">\n<thead><tr><th scope=\"col\">class</th><th "
        "scope=\"col\">documents</th><th scope=\"col\">precision, %</th><th scope=\"col\">recall, "
        "%</th><th scope=\"col\">F1, %</th>",
        out);
    for (int k = 0; matrix && k < classes; k++) write_header(out, "col", c->names[k]);
    fputs("</tr></thead>\n<tbody>\n", out);
    for (int k = 0; k < classes; k++) {
        const size_t *row = c->confusion + (size_t)k * (size_t)classes;
        const class_score s = score_class(c->confusion, classes, k);
        fputs("<tr>", out);
        write_header(out, "row", c->names[k]);
        fprintf(out, "<td class=\"number\">%zu</td>", s.documents);
        write_share(out, s.precision);
        write_share(out, s.recall);
        write_share(out, s.f1);
        for (int j = 0; matrix && j < classes; j++) {
            fprintf(out,
                    j == k ? "<td class=\"number\"><b>%zu</b></td>"
                           : "<td class=\"number\">%zu</td>",
                    row[j]);
        }
        fputs("</tr>\n", out);
    }
    fprintf(out,
            "</tbody>\n</table></div>\n<p>The mean F1 of the classes is <b>%.1f&nbsp;%%</b>.</p>\n",
            100 * score_macro_f1(c->confusion, classes));
}

/* Of many classes, the pairs that are mixed up most. */
static void write_mix_ups(FILE *out, const classified *c) {
    mix_up list[MIX_UPS];
    const int count = score_mix_ups(c->confusion, c->classes, list, MIX_UPS);
    if (count == 0 || c->classes <= 2) return;
    fputs("<h2>What is mixed up most</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" "
          "aria-label=\"Mixed up\"><table id=\"mixed-up\">\n<thead><tr><th "
          "scope=\"col\">class</th><th scope=\"col\">said to be</th><th "
          "scope=\"col\">documents</th></tr></thead>\n<tbody>\n",
          out);
    for (int i = 0; i < count; i++) {
        fputs("<tr><td>", out);
        html_text(out, c->names[list[i].class]);
        fputs("</td><td>", out);
        html_text(out, c->names[list[i].said]);
        fprintf(out, "</td><td class=\"number\">%zu</td></tr>\n", list[i].documents);
    }
    fputs("</tbody>\n</table></div>\n", out);
}

/* In one sentence, whether the chosen way is better than n-grams. */
static void write_verdict(FILE *out, const classified *c) {
    const double sure = 0.05;
    bool tried = false; /* some way beside the commonest class and n-grams */
    for (int i = 2; i < c->contender_count; i++) tried |= !isnan(c->contenders[i].error);
    if (!tried) {
        fputs("No way with a model was tried, so n-grams are saved.", out);
    } else if (isnan(c->p_value)) {
        fputs("No way with a model erred less on the documents that were held out to choose by, so "
              "n-grams are saved.",
              out);
    } else if (c->p_value < sure) {
        fprintf(out,
                "That is a measurable difference from n-grams: by chance alone one as large has a "
                "probability of %.2g (McNemar's test).",
                c->p_value);
    } else {
        fprintf(
            out,
            "There is no measurable difference from n-grams: one as large comes by chance with a "
            "probability of %.2g (McNemar's test).",
            c->p_value);
    }
}

static void write_mistakes(FILE *out, const classified *c) {
    fputs("<h2>The surest mistakes</h2>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" "
          "aria-label=\"Mistakes\"><table id=\"mistakes\">\n<thead><tr><th "
          "scope=\"col\">class</th><th scope=\"col\">said to be</th><th scope=\"col\">sure "
          "by, %</th><th scope=\"col\">text</th></tr></thead>\n<tbody>\n",
          out);
    for (int i = 0; i < c->mistake_count; i++) {
        const mistake *m = &c->mistakes[i];
        size_t length;
        const uint8_t *whole = corpus_text(c->texts, m->document, &length);
        char *text = mem_format("%.*s%s", length > EXCERPT ? EXCERPT : (int)length,
                                (const char *)whole, length > EXCERPT ? " \xE2\x80\xA6" : "");
        fputs("<tr><td>", out);
        html_text(out, c->names[m->class]);
        fputs("</td><td>", out);
        html_text(out, c->names[m->said]);
        fprintf(out, "</td><td class=\"number\">%.0f</td><td>", 100 * m->probability);
        html_text(out, text);
        fputs("</td></tr>\n", out);
        free(text);
    }
    fputs("</tbody>\n</table></div>\n", out);
}

bool classified_write_page(const classified *c, const char *path, error *err) {
    static const char *const scripts[] = {show_js};
    const contender *chosen = chosen_of(c);
    file_writer writer;
    char train[32], test[32];
    if (!file_begin(&writer, path, err)) return false;
    FILE *out = writer.stream;
    html_begin(out, c->title, 0);
    fprintf(out,
            "<p><strong>%.2f&nbsp;%%</strong> of %s test documents are classed wrongly by %s, "
            "fitted to %s documents. ",
            chosen->error, html_count(test, (int64_t)c->test), chosen->name,
            html_count(train, (int64_t)c->train));
    write_verdict(out, c);
    if (c->unlabelled > 0) {
        fprintf(out, " %s more documents have no label.",
                html_count(train, (int64_t)c->unlabelled));
    }
    fputs("</p>\n", out);
    write_contenders(out, c);
    fputs("<p>More text is classed by</p>\n<pre>", out);
    html_text(out, c->command);
    fputs("</pre>\n", out);
    write_classes(out, c);
    write_mix_ups(out, c);
    if (c->mistake_count > 0) write_mistakes(out, c);
    if (c->show) show_write(out, c->show);
    html_end(out, scripts, c->show ? 1 : 0);
    return file_commit(&writer, err);
}
