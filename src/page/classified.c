#include "page/classified.h"

#include "core/file.h"
#include "core/memory.h"
#include "page/assets.h"
#include "page/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXCERPT = 280 /* bytes */ };

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

/* Rows are true classes; the columns after the error say what they were taken for. */
static void write_confusion(FILE *out, const classified *c) {
    const size_t classes = (size_t)c->classes;
    fputs("<h2>Which classes are confused</h2>\n<p>A row is a class, a column what its documents "
          "were said to be.</p>\n<div class=\"wide\" tabindex=\"0\" role=\"group\" "
          "aria-label=\"Confusion\"><table id=\"confusion\">\n<thead><tr><th "
          "scope=\"col\">class</th><th scope=\"col\">documents</th><th scope=\"col\">error, "
          "%</th>",
          out);
    for (size_t k = 0; k < classes; k++) write_header(out, "col", c->names[k]);
    fputs("</tr></thead>\n<tbody>\n", out);
    for (size_t k = 0; k < classes; k++) {
        const size_t *row = c->confusion + k * classes;
        size_t all = 0;
        for (size_t j = 0; j < classes; j++) all += row[j];
        fputs("<tr>", out);
        write_header(out, "row", c->names[k]);
        fprintf(out, "<td class=\"number\">%zu</td><td class=\"number\">", all);
        if (all) fprintf(out, "%.2f", 100 * (double)(all - row[k]) / (double)all);
        fputs("</td>", out);
        for (size_t j = 0; j < classes; j++) {
            fprintf(out,
                    j == k ? "<td class=\"number\"><b>%zu</b></td>"
                           : "<td class=\"number\">%zu</td>",
                    row[j]);
        }
        fputs("</tr>\n", out);
    }
    fputs("</tbody>\n</table></div>\n", out);
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
    if (!isnan(c->p_value)) {
        fprintf(out,
                "If it erred as often as n-grams do, documents would differ so much with a "
                "probability of %.2g (McNemar's test).",
                c->p_value);
    }
    if (c->unlabelled > 0) {
        fprintf(out, " %s more documents have no label.",
                html_count(train, (int64_t)c->unlabelled));
    }
    fputs("</p>\n", out);
    write_contenders(out, c);
    fputs("<p>More text is classed by</p>\n<pre>", out);
    html_text(out, c->command);
    fputs("</pre>\n", out);
    write_confusion(out, c);
    if (c->mistake_count > 0) write_mistakes(out, c);
    if (c->show) show_write(out, c->show);
    html_end(out, scripts, c->show ? 1 : 0);
    return file_commit(&writer, err);
}
