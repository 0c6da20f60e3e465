#include "page/report.h"

#include "core/file.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/overwrite.h"
#include "core/utf8.h"
#include "page/assets.h"
#include "page/html.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* Stand among the first bytes of the card and of the page. */
static const char card_mark[] = "<!-- Written by smallworld report, which overwrites it. -->";
static const char page_mark[] = "<meta name=\"generator\" content=\"smallworld ";

enum { MOST_FACTS = 40 };

/* ------------------------------------------------------------------------------------ facts */

typedef struct fact {
    const char *name;
    char *value;
} fact;

typedef struct facts {
    fact items[MOST_FACTS];
    int count;
} facts;

__attribute__((format(printf, 3, 4))) static void add(facts *f, const char *name,
                                                      const char *format, ...) {
    va_list arguments;
    fact *item = &f->items[f->count++];
    va_start(arguments, format);
    item->name = name;
    item->value = mem_format_list(format, arguments);
    va_end(arguments);
}

static void free_facts(facts *f) {
    for (int i = 0; i < f->count; i++) free(f->items[i].value);
}

static int64_t parameters_of(const checkpoint *c) {
    int64_t count = 0;
    for (int i = 0; i < c->file.tensor_count; i++) {
        const tensor *t = &c->file.tensors[i];
        if (t->type == TENSOR_F32) count += (int64_t)(tensor_bytes(t) / sizeof(float));
    }
    return count;
}

static char *value_of(const options *o, const char *path) {
    for (int i = 0; i < option_count; i++) {
        if (strcmp(option_keys[i].path, path) == 0) return config_text(&o->config, &option_keys[i]);
    }
    return mem_string("");
}

static void add_data(facts *f, const options *o) {
    char *train = config_join(&o->data.train), *valid = config_join(&o->data.valid);
    char *excluded = config_join(&o->data.exclude);
    add(f, "trained on", "%s", train);
    if (*valid) {
        add(f, "validated on", "%s", valid);
    } else {
        add(f, "validated on", "%g %% of that, held out", 100 * o->data.valid_fraction);
    }
    if (*excluded) add(f, "without the texts of", "%s", excluded);
    free(excluded);
    free(valid);
    free(train);
}

static void add_model(facts *f, const report *r) {
    const options *o = &r->checkpoint->options;
    char count[32], units[32];
    char *cell = value_of(o, "model.cell"), *kind = value_of(o, "model.graph");
    char layers[32] = "";
    static const char *const norms[] = {", weight norm", ", layer norm", ""};
    if (o->model.layers > 1)
        snprintf(layers, sizeof layers, "%" PRId64 " layers of ", o->model.layers);
    add(f, "cell", "%s, %s%s units in blocks of %" PRId64 "%s%s", cell, layers,
        html_count(units, o->model.hidden), o->model.block, norms[o->model.norm],
        o->model.coupled_gates ? ", coupled gates" : "");
    if (o->model.hubs) add(f, "hubs", "%s", html_count(units, o->model.hubs));
    add(f, "parameters", "%s", html_count(count, parameters_of(r->checkpoint)));
    const int told = o->model.hubs ? 0 : model_stages(&o->model); /* hubs: beside the pictures */
    for (int s = 0; s < told; s++) {
        graph_metrics m;
        graph_measure(r->wiring->graphs[s], &m);
        add(f, s ? "" : "wiring",
            "%s, %d nodes, %s blocks (%.2f %%), clustering %.3f, shortest paths %.2f on average, "
            "%d at most",
            kind, m.nodes, html_count(count, m.blocks), 100 * m.density, m.clustering, m.path_mean,
            m.path_max);
        /* Of many stages, only the first four and the last one are listed. */
        if (s == 3 && model_stages(&o->model) > 5) s = model_stages(&o->model) - 2;
    }
    free(kind);
    free(cell);
}

static void add_training(facts *f, const report *r, const options *o) {
    const run_log *log = &r->curves->runs[0].log;
    char steps[32], bytes[32], rate[32];
    double minutes = run_log_last(log, LOG_SECONDS) / 60;
    add(f, "training", "%s updates, %s bytes, %.2f epochs in %.1f minutes (%s bytes/s)",
        html_count(steps, (int64_t)run_log_last(log, LOG_STEP)),
        html_count(bytes, (int64_t)run_log_last(log, LOG_BYTES)), run_log_last(log, LOG_EPOCH),
        minutes, html_count(rate, (int64_t)run_log_last(log, LOG_RATE)));
    if (o) {
        const train_options *t = &o->train;
        char *schedule = value_of(o, "train.schedule"), muon[96] = "";
        if (t->optimizer == OPTIMIZER_MUON) {
            snprintf(muon, sizeof muon, "Muon, learning rate %g, for dense recurrent weights; ",
                     t->muon_lr);
        }
        add(f, "optimizer",
            "%sAdam, learning rate %g; %s after %" PRId64 " updates of warm-up; batch %" PRId64
            " x %" PRId64 " bytes",
            muon, t->lr, schedule, t->warmup, t->batch, t->bptt);
        free(schedule);
    }
    add(f, "seed", "%" PRId64, r->checkpoint->options.model.seed);
}

static void add_results(facts *f, const report *r) {
    const run_log *log = &r->curves->runs[0].log;
    char count[32];
    add(f, "bits per character, training", "%.4f", run_log_last(log, LOG_BPC));
    if (!isnan(run_log_last(log, LOG_VALID_BPC))) {
        add(f, "bits per character, validation", "%.4f last, %.4f best",
            run_log_last(log, LOG_VALID_BPC), run_log_least(log, LOG_VALID_BPC));
    }
    if (!isnan(run_log_last(log, LOG_VALID_LABEL_ERROR))) {
        add(f, "labels of validation documents", "%.2f %% wrong, %.4f nats",
            100 * run_log_last(log, LOG_VALID_LABEL_ERROR),
            run_log_last(log, LOG_VALID_LABEL_LOSS));
    }
    if (r->score) {
        add(f, "bits per character, test", "%.4f over %s bytes of %s", r->score->bpc,
            html_count(count, (int64_t)r->score->bytes), r->data);
    }
    if (r->probe) {
        const saved_probe *p = r->probe;
        size_t used = 0;
        for (size_t u = 0; u < p->units; u++) {
            bool any = false;
            for (int k = 0; k < p->models; k++)
                any |= p->weights[(size_t)k * (p->units + 1) + u] != 0;
            used += any;
        }
        add(f, "probe",
            "error %.2f %% of %s test documents; logistic regression, C = %g, on %zu of %zu "
            "features",
            p->error, html_count(count, p->documents), p->cost, used, p->units);
    }
}

static facts collect(const report *r) {
    facts f = {.count = 0};
    const options *o = r->curves->runs[0].options;
    add_model(&f, r);
    if (o) add_data(&f, o);
    add_training(&f, r, o);
    add_results(&f, r);
    const char *sum = checkpoint_checksum(r->checkpoint);
    add(&f, "checkpoint", "%s/last.safetensors, checksum %s", r->folder, sum ? sum : "unknown");
    add(&f, "made by", "smallworld " SMALLWORLD_VERSION);
    return f;
}

/* Returns the command that makes the same run again from its folder. */
static char *command_of(const report *r) {
    char *config = mem_format("%s/config.yaml", r->folder), *word = file_shell_word(config);
    char *command = mem_format("smallworld train %s --out runs/again", word);
    free(config);
    free(word);
    return command;
}

bool report_check_files(const char *page, const char *card, error *err) {
    static const char ours[] = "smallworld report";
    return overwrite_check_mark(card, card_mark, ours, "--card names another file", err) &&
           overwrite_check_mark(page, page_mark, ours, "--out names another file", err);
}

/* ------------------------------------------------------------------------------------- page */

/* Returns the sample as UTF-8 without control characters except line feeds. The caller frees it. */
static char *sample_text(const report *r) {
    char *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    for (size_t i = 0; i < r->sample_bytes;) {
        const uint8_t *at = r->sample + i;
        const size_t length = utf8_length(at, r->sample_bytes - i);
        const bool shown = length > 0 && (*at == '\n' || !utf8_is_control(utf8_code(at, length)));
        if (shown) fwrite(at, 1, length, out);
        if (!shown) fputs("\xEF\xBF\xBD", out);
        i += length > 0 ? length : 1;
    }
    mem_stream_end(out);
    return text;
}

static void write_sample(FILE *out, const report *r) {
    char *text = sample_text(r);
    fputs(
        "<h2>A sample</h2>\n<p>The model wrote this text. The command writes it again:</p>\n<pre>",
        out);
    html_text(out, r->sample_command);
    fputs("</pre>\n<pre class=\"sample\" id=\"sample\">\n", out);
    html_text(out, text);
    fputs("</pre>\n", out);
    free(text);
}

static void write_facts(FILE *out, const facts *f) {
    html_table t = html_table_begin(out, "facts", "Facts", NULL, 2);
    for (int i = 0; i < f->count; i++) {
        html_cell(&t, "%s", f->items[i].name);
        html_cell(&t, "%s", f->items[i].value);
    }
    html_table_end(&t);
}

static void write_probe(FILE *out, const saved_probe *p, int64_t hidden) {
    size_t units[10];
    int count = saved_top_units(p, hidden, units, 10);
    fputs("<p>The probe tells ", out);
    for (int k = 0; k < p->classes; k++) {
        if (k > 0) fputs(k + 1 < p->classes ? ", " : " from ", out);
        fputs("label ", out);
        html_text(out, p->name[k]);
    }
    fputs(". Units that weigh most in it:", out);
    for (int k = 0; k < count; k++) fprintf(out, "%s %zu", k ? "," : "", units[k]);
    fputs(".</p>\n", out);
}

/* Says what came of the run, beside what one would expect it to beat. */
static void write_lead(FILE *out, const report *r) {
    const double bpc = run_log_last(&r->curves->runs[0].log, LOG_VALID_BPC);
    char count[32];
    if (!isnan(bpc)) {
        fprintf(out,
                "<p>The model needs <strong>%.4f bits</strong> for a byte of validation text; one "
                "that knows nothing needs 8.</p>\n",
                bpc);
    }
    if (r->score) {
        fprintf(out, "<p><strong>%.4f bits</strong> for a byte of ", r->score->bpc);
        html_text(out, r->data);
        if (!isnan(r->xz_bpc)) fprintf(out, "; xz -6, of that text alone, %.4f", r->xz_bpc);
        fputs(".</p>\n", out);
    }
    if (r->probe) {
        fprintf(out,
                "<p>A probe on its features errs on <strong>%.2f&nbsp;%%</strong> of %s test "
                "documents",
                r->probe->error, html_count(count, r->probe->documents));
        if (!isnan(r->commonest_error)) {
            fprintf(out, ", always saying the commonest class on %.2f&nbsp;%%", r->commonest_error);
        }
        fputs(".</p>\n", out);
    }
}

bool report_write_page(const report *r, const char *path, error *err) {
    static const char *const scripts[] = {chart_js, show_js, wiring_js};
    file_writer writer;
    if (!file_begin(&writer, path, err)) return false;
    FILE *out = writer.stream;
    char *title = mem_format("Report on %s", r->curves->runs[0].name);
    char *command = command_of(r);
    facts f = collect(r);
    html_begin(out, title, 0);
    write_lead(out, r);
    fputs("<h2>How training went</h2>\n", out);
    curves_write(out, r->curves);
    if (r->sample) write_sample(out, r);
    if (r->probe) {
        fputs("<h2>Probe</h2>\n", out);
        write_probe(out, r->probe, r->checkpoint->options.model.hidden);
    }
    if (r->show) {
        show_write(out, r->show);
        fputs("<p class=\"quiet\">The text is the beginning of ", out);
        html_text(out, r->text);
        fputs(".</p>\n", out);
    }
    fputs("<h2>Facts</h2>\n", out);
    write_facts(out, &f);
    fputs("<p>The same run again:</p>\n<pre>", out);
    html_text(out, command);
    fputs("</pre>\n<h2>Wiring</h2>\n", out);
    wiring_write(out, r->wiring);
    html_end(out, scripts, 3);
    free_facts(&f);
    free(command);
    free(title);
    return file_commit(&writer, err);
}

/* ------------------------------------------------------------------------------------- card */

/* Writes text as a cell of a Markdown table, with all markup escaped. */
static void put_markdown(FILE *out, const char *text) {
    for (size_t left = strlen(text); left > 0;) {
        size_t length = utf8_length((const uint8_t *)text, left);
        uint8_t byte = (uint8_t)*text;
        if (length == 0) {
            fputs("\xEF\xBF\xBD", out);
            length = 1;
        } else if (byte < 0x20 || byte == 0x7F) {
            fputc(' ', out);
        } else if (byte == '<' || byte == '&') {
            fputs(byte == '<' ? "&lt;" : "&amp;", out);
        } else {
            if (strchr("\\`*_[]|~#", byte)) fputc('\\', out);
            fwrite(text, 1, length, out);
        }
        text += length;
        left -= length;
    }
}

/* Writes lines of code, each indented by four spaces, so that no text can end the block. A carriage
 * return, which ends a line in Markdown too, becomes a line feed; one before a line feed is left
 * out. */
static void put_code(FILE *out, const char *text, size_t length) {
    bool begins = true;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r' && i + 1 < length && text[i + 1] == '\n') continue;
        if (begins) fputs("    ", out);
        begins = text[i] == '\n' || text[i] == '\r';
        fputc(begins ? '\n' : text[i], out);
    }
    if (!begins) fputc('\n', out);
}

/* Writes the run's config.yaml, if there is one. */
static bool put_config(FILE *out, const char *path, error *err) {
    file_map map;
    if (!file_exists(path)) return true;
    if (!file_map_open(&map, path, err)) return false;
    fputs("\nIts config:\n\n", out);
    put_code(out, (const char *)map.bytes, map.size);
    file_map_close(&map);
    return true;
}

/* A result as the hub of Hugging Face lists it. Strings are JSON's, which YAML reads too. */
static void put_result(FILE *out, const char *task, const char *data, const char *metric,
                       const char *name, double value) {
    json_writer w = {out, false};
    fprintf(out, "  - task:\n      type: %s\n    dataset:\n      type: text\n      name: ", task);
    json_text(&w, NULL, (const uint8_t *)data, strlen(data));
    fprintf(out, "\n    metrics:\n    - type: %s\n      name: %s\n      value: %.6g\n", metric,
            name, value);
}

/* The card's front matter. Its second line is the mark, a comment. */
static void put_front_matter(FILE *out, const report *r) {
    const run_log *log = &r->curves->runs[0].log;
    const double bpc = run_log_last(log, LOG_VALID_BPC);
    char *cell = value_of(&r->checkpoint->options, "model.cell");
    json_writer w = {out, false};
    fprintf(out,
            "---\n# %s\nlibrary_name: smallworld\npipeline_tag: text-generation\ntags:\n- "
            "smallworld\n- bytes\n- %s\n%s",
            card_mark, cell, r->checkpoint->options.model.hubs ? "- hubs\n" : "");
    free(cell);
    if (!isnan(bpc) || r->score || r->probe) {
        fputs("model-index:\n- name: ", out);
        const char *name = r->curves->runs[0].name;
        json_text(&w, NULL, (const uint8_t *)name, strlen(name));
        fputs("\n  results:\n", out);
    }
    if (!isnan(bpc)) {
        put_result(out, "text-generation", "validation", "bits_per_byte",
                   "bits per byte, validation", bpc);
    }
    if (r->score) {
        put_result(out, "text-generation", r->data, "bits_per_byte", "bits per byte, test",
                   r->score->bpc);
    }
    if (r->probe) {
        put_result(out, "text-classification", "labelled documents", "error",
                   "error of a linear probe, %", r->probe->error);
    }
    fputs("---\n", out);
}

bool report_write_card(const report *r, const char *path, error *err) {
    file_writer writer;
    if (!file_begin(&writer, path, err)) return false;
    FILE *out = writer.stream;
    char *command = command_of(r), *config = mem_format("%s/config.yaml", r->folder);
    facts f = collect(r);
    put_front_matter(out, r);
    fputs("\n# ", out);
    put_markdown(out, r->curves->runs[0].name);
    fprintf(out, "\n\nA model of bytes of text, an LSTM %s.\n\n| | |\n| --- | --- |\n",
            r->checkpoint->options.model.hubs
                ? "whose cells speak with each other through a few hubs"
                : "whose recurrent weights are block-sparse along a graph");
    for (int i = 0; i < f.count; i++) {
        fprintf(out, "| %s | ", f.items[i].name);
        put_markdown(out, f.items[i].value);
        fputs(" |\n", out);
    }
    if (r->sample) {
        char *text = sample_text(r);
        fputs("\nA text that the model wrote:\n\n", out);
        put_code(out, text, strlen(text));
        fputs("\nThe command writes it again:\n\n", out);
        put_code(out, r->sample_command, strlen(r->sample_command));
        free(text);
    }
    fputs("\nThe same run again:\n\n", out);
    put_code(out, command, strlen(command));
    bool done = put_config(out, config, err);
    free_facts(&f);
    free(config);
    free(command);
    if (done) return file_commit(&writer, err);
    file_abort(&writer);
    return false;
}
