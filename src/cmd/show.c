/* smallworld show: write a page on which a model reads text. */
#include "page/show.h"
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/corpus.h"
#include "page/assets.h"
#include "page/html.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_UNITS = 64, MAX_BATCH = 16, TOP_UNITS = 8 };

typedef struct arguments {
    overrides model;
    cli_documents documents;
    cli_features features;
    const char *checkpoint, *out, *npy, *probe, *labelled;
    size_t units[MAX_UNITS];
    int unit_count;
    int64_t top, limit; /* limit 0: as much as fits on a page */
    bool json;
} arguments;

static void take_unit(struct argp_state *state, const cli_row *row, void *input, char *text) {
    arguments *a = input;
    (void)row;
    if (a->unit_count == MAX_UNITS) cli_refuse(state, "--unit: at most %d units", MAX_UNITS);
    a->units[a->unit_count++] = (size_t)cli_integer(state, "--unit", text, 0, INT32_MAX);
}

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "CHECKPOINT", .offset = offsetof(arguments, checkpoint), "a CHECKPOINT"},
    {CLI_TEXT, "out", "PAGE.html", .offset = offsetof(arguments, out),
     "Write a page that needs no network to this file; an .svg gets the coloured text alone"},
    {CLI_TEXT, "npy", "PREFIX", .offset = offsetof(arguments, npy),
     "Write the states after each byte to PREFIX.npy (float32, bytes x units), the units to "
     "PREFIX.units.npy, the bytes to PREFIX.bytes.npy, and the places where documents begin to "
     "PREFIX.starts.npy"},
    {CLI_CALL, "unit", "N", .offset = 0, "Unit to show, counted from 0; may be repeated",
     .take = take_unit},
    {CLI_INTEGER, "top", "N", .offset = offsetof(arguments, top),
     "Number of units to show without --unit: those that best separate the labels of --features; "
     "without it those that weigh most in the probe, or else those whose states vary most over "
     "the text; default 8",
     1, MAX_UNITS},
    {CLI_TEXT, "probe", "FILE", .offset = offsetof(arguments, probe),
     "Saved probe, whose score of each class is shown too: FILE.probe.safetensors, or FILE"},
    {CLI_TEXT, "features", "PREFIX", .offset = offsetof(arguments, labelled),
     "Features of labelled documents, to find the units that separate them best and to draw "
     "histograms by label"},
    {CLI_INTEGER, "limit", "BYTES", .offset = offsetof(arguments, limit),
     "Read only the first BYTES bytes; default: as many as fit on a page of 2 MB", 1, INT64_MAX},
    CLI_JSON(offsetof(arguments, json)),
    CLI_DOCUMENTS(offsetof(arguments, documents)),
    CLI_FEATURES(offsetof(arguments, features)),
    CLI_MODEL(offsetof(arguments, model)),
};

/* Whether a file's name asks for a format that is not written. */
static bool names_another_picture(const char *path) {
    static const char *const endings[] = {".pdf", ".png", ".jpg", ".jpeg", ".gif", ".webp"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (file_ends_in(path, endings[i])) return true;
    }
    return false;
}

static void check(struct argp_state *state, void *input) {
    const arguments *a = input;
    if (!a->out && !a->npy) cli_refuse(state, "expected --out PAGE.html or --npy PREFIX");
    if (a->out && names_another_picture(a->out)) {
        cli_refuse(state, "--out: expected a name that ends in .html or .svg, got '%s'", a->out);
    }
}

/* Everything that is read before the model runs. */
typedef struct inputs {
    corpus *texts;
    uint64_t cut; /* bytes of text that were left out */
    saved_probe probe;
    dataset labelled;
    origin origin; /* of the labelled features */
    bool has_probe, has_labelled;
    size_t units[MAX_UNITS];
    reading_options how;
} inputs;

static bool read_probe(const arguments *a, inputs *m, const checkpoint *c, error *err) {
    static const origin unknown = {0};
    const char *checksum = checkpoint_checksum(c);
    cli_features chosen;
    /* Features are of the cell unless --state said otherwise, the class head reads h. */
    const bool by_head = c->options.classes.count && !a->labelled;
    char *path = a->probe ? cli_probe_path(a->probe) : by_head ? mem_string(c->file.path) : NULL;
    m->has_probe = path && saved_open(&m->probe, path, err);
    bool read = (m->has_probe || !path) &&
                cli_choose_features(&a->features, path ? &m->probe.origin : &unknown, &chosen, err);
    if (read && path && m->probe.classes > SHOW_MAX_CLASSES) {
        read = error_set(err, "%s: a probe of %d classes; a page shows at most %d", path,
                         m->probe.classes, SHOW_MAX_CLASSES);
    } else if (read && path) {
        read = saved_check(&m->probe, c->options.model.hidden * chosen.pools.count, checksum, path,
                           err);
    } else if (read && a->features.pools.count > 0) {
        read = error_usage(err, "--pool: has no meaning without --probe");
    }
    if (read) {
        m->how.state = (feature_state)chosen.state;
        m->how.pools = chosen.pools;
    }
    if (read && path) {
        m->how.models = m->probe.models;
        m->how.weights = m->probe.weights;
    }
    free(path);
    return read;
}

static bool choose_units(const arguments *a, inputs *m, int64_t hidden, error *err) {
    m->how.count = (int)a->top;
    if (a->unit_count > 0) {
        memcpy(m->units, a->units, sizeof m->units);
        m->how.count = a->unit_count;
        m->how.units = m->units;
        for (int k = 0; k < a->unit_count; k++) {
            if ((int64_t)a->units[k] < hidden) continue;
            return error_usage(err, "--unit %zu: expected a unit from 0 to %lld", a->units[k],
                               (long long)hidden - 1);
        }
    } else {
        const int found =
            show_choose_units(m->has_labelled ? &m->labelled : NULL,
                              m->has_probe ? &m->probe : NULL, hidden, m->units, (int)a->top);
        if (found > 0) {
            m->how.count = found;
            m->how.units = m->units;
        }
    }
    return true;
}

static bool read_inputs(const arguments *a, inputs *m, const checkpoint *c, error *err) {
    const options *o = &c->options;
    const corpus_options how = cli_reading(&a->documents.columns, o);
    *m = (inputs){.how = {.progress = !a->json || log_is_terminal()}};
    if (!read_probe(a, m, c, err)) return false;
    if (a->labelled) {
        const show_model model = {o->model.hidden, m->how.state, checkpoint_checksum(c),
                                  m->has_probe ? &m->probe : NULL};
        m->has_labelled = show_open(&m->labelled, &m->origin, a->labelled, &model, err);
        if (!m->has_labelled) return false;
    }
    if (!choose_units(a, m, o->model.hidden, err)) return false;
    int64_t most = show_most_bytes(m->how.count, m->how.models), limit = a->limit;
    if (a->out && limit > most) {
        return error_usage(err, "--limit: a page of %d units holds at most %lld bytes of text",
                           m->how.count, (long long)most);
    }
    m->texts = texts_read(a->documents.text, a->documents.whole, &how, err);
    if (!m->texts) return false;
    if (limit == 0 && a->out) limit = most;
    if (limit > 0) m->cut = texts_cut(m->texts, (uint64_t)limit);
    return true;
}

static void free_inputs(inputs *m) {
    if (m->texts) corpus_free(m->texts);
    if (m->has_labelled) dataset_close(&m->labelled);
    origin_free(&m->origin);
    if (m->has_probe) saved_close(&m->probe);
}

static bool write_array(const char *prefix, const char *part, const char *type, int64_t rows,
                        int64_t columns, const void *data, size_t size, error *err) {
    char *path = mem_format("%s%s.npy", prefix, part);
    file_writer writer;
    int64_t start;
    bool written = npy_begin(&writer, path, type, rows, columns, &start, err);
    if (written) {
        written = file_write(&writer, data, size, err);
        if (written) {
            written = file_commit(&writer, err);
        } else {
            file_abort(&writer);
        }
    }
    free(path);
    return written;
}

static bool write_npy(const char *prefix, const inputs *m, const reading *r, error *err) {
    char *features = mem_format("%s.json", prefix);
    const bool taken = file_exists(features);
    free(features);
    if (taken) {
        return error_set(err,
                         "%s.npy: %s.json describes features of documents in it; expected "
                         "another --npy PREFIX",
                         prefix, prefix);
    }
    const corpus *c = m->texts;
    size_t count = (size_t)r->count, at = 0;
    int64_t *units = mem_alloc(count, sizeof *units), *starts = mem_alloc(c->count, sizeof *starts);
    uint8_t *bytes = mem_alloc(r->bytes, 1);
    for (size_t k = 0; k < count; k++) units[k] = (int64_t)r->units[k];
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        starts[i] = (int64_t)at;
        memcpy(bytes + at, c->bytes + d->offset, d->length);
        at += d->length;
    }
    bool written =
        write_array(prefix, "", "<f4", (int64_t)r->bytes, r->count, r->states,
                    r->bytes * count * sizeof *r->states, err) &&
        write_array(prefix, ".units", "<i8", r->count, 0, units, count * sizeof *units, err) &&
        write_array(prefix, ".bytes", "|u1", (int64_t)r->bytes, 0, bytes, r->bytes, err) &&
        write_array(prefix, ".starts", "<i8", (int64_t)c->count, 0, starts,
                    c->count * sizeof *starts, err);
    free(bytes);
    free(starts);
    free(units);
    return written;
}

static bool write_page(const arguments *a, const inputs *m, const reading *r, error *err) {
    static const char *const scripts[] = {show_js};
    const show_part part = {m->texts, r, m->has_probe ? &m->probe : NULL,
                            m->has_labelled ? &m->labelled : NULL, &m->origin};
    char bytes[32], documents[32], *title = mem_format("What %s reads", a->checkpoint);
    file_writer writer;
    bool begun = file_begin(&writer, a->out, err);
    if (begun && file_ends_in(a->out, ".svg")) {
        show_svg(writer.stream, &part);
    } else if (begun) {
        FILE *out = writer.stream;
        html_begin(out, title, 0);
        fprintf(out, "<p>%s bytes in %s documents, each read from a zero state.",
                html_count(bytes, (int64_t)r->bytes),
                html_count(documents, (int64_t)m->texts->count));
        if (m->cut)
            fprintf(out, " %s bytes more were left out.", html_count(bytes, (int64_t)m->cut));
        fputs("</p>\n", out);
        show_write(out, &part);
        html_end(out, scripts, 1);
    }
    free(title);
    return begun && file_commit(&writer, err);
}

static bool show(const arguments *a, reading *r, inputs *m, error *err) {
    checkpoint peek;
    loaded_model loaded;
    if (!checkpoint_open(&peek, a->checkpoint, err)) return false;
    bool done = read_inputs(a, m, &peek, err);
    checkpoint_close(&peek);
    if (!done) return false;
    int batch = m->texts->count < MAX_BATCH ? (int)m->texts->count : MAX_BATCH;
    if (!loaded_load(&loaded, a->checkpoint, &a->model, a->model.batch ? 0 : batch, READING_STEPS,
                     err)) {
        return false;
    }
    done = reading_run(loaded.m, m->texts, &m->how, r, err);
    loaded_free(&loaded);
    return done && (!a->npy || write_npy(a->npy, m, r, err)) &&
           (!a->out || write_page(a, m, r, err));
}

static void report(const arguments *a, const inputs *m, const reading *r) {
    double bits = 0;
    size_t predicted = 0;
    for (size_t p = 0; p < r->bytes; p++) {
        if (!(r->surprise[p] >= 0)) continue; /* a document's first byte */
        bits += r->surprise[p];
        predicted++;
    }
    log_end();
    if (a->json) {
        json_writer w = {stdout, false};
        json_object_begin(&w, NULL);
        json_integer(&w, "documents", (int64_t)m->texts->count);
        json_integer(&w, "bytes", (int64_t)r->bytes);
        json_integer(&w, "left_out", (int64_t)m->cut);
        json_number(&w, "bpc", bits / (double)predicted);
        json_array_begin(&w, "units");
        for (int k = 0; k < r->count; k++) json_integer(&w, NULL, (int64_t)r->units[k]);
        json_array_end(&w);
        json_object_end(&w);
        putchar('\n');
        return;
    }
    if (m->cut) {
        log_warning("%llu bytes of text were left out; --limit says how many are read",
                    (unsigned long long)m->cut);
    }
    printf("%zu documents, %zu bytes", m->texts->count, r->bytes);
    if (predicted > 0) printf(", %.4f bits a byte", bits / (double)predicted);
    putchar('\n');
    if (a->out) printf("%s\n", a->out);
}

int cmd_show(int argc, char **argv) {
    static const cli_command command = {
        "CHECKPOINT --text FILE|- --out PAGE.html",
        "Write a page on which a model reads text. The text is coloured by the state of a unit, by "
        "the score of a probe, or by surprise in bits. Pointing at a byte shows its value and the "
        "likeliest next bytes.\vExample:\n  smallworld show runs/quickstart/last.safetensors --out "
        "page.html \\\n      --text data/reviews_test.tsv.gz --limit 5000\n  echo 'A dull film.' | "
        "smallworld show MODEL --text - --out page.html",
        CLI_ROWS(rows), check, NULL};
    arguments a = {.top = TOP_UNITS, .features = {.state = -1}};
    cli_parse(&command, argc, argv, &a);
    error err;
    inputs m = {0};
    reading r = {0};
    bool done = show(&a, &r, &m, &err);
    if (done) report(&a, &m, &r);
    reading_free(&r);
    free_inputs(&m);
    return done ? STATUS_OK : cli_fail(&err, "show");
}
