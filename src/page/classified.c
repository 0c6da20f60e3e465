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
    static const char *const heads[] = {"classed by", "test error, %", "standard error",
                                        "validation error, %", "seconds"};
    html_table t = html_table_begin(out, "errors", "Errors", heads, 5);
    for (int i = 0; i < c->contender_count; i++) {
        const contender *k = &c->contenders[i];
        const bool tried = !isnan(k->error);
        html_cell(&t, "%s%s", k->name, !tried ? ", not tried" : k->chosen ? " (saved)" : "");
        html_number(&t, "%.2f", k->error);
        html_number(&t, "%.2f", tried ? k->deviation : NAN);
        html_number(&t, "%.2f", k->valid_error);
        html_number(&t, "%.0f", k->seconds);
    }
    html_table_end(&t);
}

/* A row for each class; of few classes also what its documents were said to be. */
static void write_classes(FILE *out, const classified *c) {
    enum { SCORES = 5 };
    const char *heads[SCORES + MATRIX_CLASSES] = {"class", "documents", "precision, %", "recall, %",
                                                  "F1, %"};
    const int classes = c->classes, said = classes <= MATRIX_CLASSES ? classes : 0;
    for (int k = 0; k < said; k++) heads[SCORES + k] = c->names[k];
    fprintf(out,
            "<h2>The classes</h2>\n<p>Precision: how many of those that were said to be of a class "
            "are of it. Recall: how many of a class were said to be of it. F1 is their harmonic "
            "mean.%s</p>\n",
            said ? " The last columns are what a class's documents were said to be." : "");
    html_table t = html_table_begin(out, "confusion", "Classes", heads, SCORES + said);
    for (int k = 0; k < classes; k++) {
        const size_t *row = c->confusion + (size_t)k * (size_t)classes;
        const class_score s = score_class(c->confusion, classes, k);
        html_cell(&t, "%s", c->names[k]);
        html_number(&t, "%.0f", (double)s.documents);
        html_number(&t, "%.1f", 100 * s.precision);
        html_number(&t, "%.1f", 100 * s.recall);
        html_number(&t, "%.1f", 100 * s.f1);
        for (int j = 0; j < said; j++) {
            html_number(&t, j == k ? "<b>%.0f</b>" : "%.0f", (double)row[j]);
        }
    }
    html_table_end(&t);
    fprintf(out, "<p>The mean F1 of the classes is <b>%.1f&nbsp;%%</b>.</p>\n",
            100 * score_macro_f1(c->confusion, classes));
}

/* Of many classes, the pairs that are mixed up most. */
static void write_mix_ups(FILE *out, const classified *c) {
    static const char *const heads[] = {"class", "said to be", "documents"};
    mix_up list[MIX_UPS];
    const int count = score_mix_ups(c->confusion, c->classes, list, MIX_UPS);
    if (count == 0 || c->classes <= 2) return;
    fputs("<h2>What is mixed up most</h2>\n", out);
    html_table t = html_table_begin(out, "mixed-up", "Mixed up", heads, 3);
    for (int i = 0; i < count; i++) {
        html_cell(&t, "%s", c->names[list[i].class]);
        html_cell(&t, "%s", c->names[list[i].said]);
        html_number(&t, "%.0f", (double)list[i].documents);
    }
    html_table_end(&t);
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
    static const char *const heads[] = {"class", "said to be", "sure by, %", "text"};
    fputs("<h2>The surest mistakes</h2>\n", out);
    html_table t = html_table_begin(out, "mistakes", "Mistakes", heads, 4);
    for (int i = 0; i < c->mistake_count; i++) {
        const mistake *m = &c->mistakes[i];
        size_t length;
        const char *text = (const char *)corpus_text(c->texts, m->document, &length);
        html_cell(&t, "%s", c->names[m->class]);
        html_cell(&t, "%s", c->names[m->said]);
        html_number(&t, "%.0f", 100 * m->probability);
        html_cell(&t, "%.*s%s", length > EXCERPT ? EXCERPT : (int)length, text,
                  length > EXCERPT ? " \xE2\x80\xA6" : "");
    }
    html_table_end(&t);
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
