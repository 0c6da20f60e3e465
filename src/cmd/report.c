/* smallworld report: write a page and a model card about a run. */
#include "page/report.h"
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/corpus.h"
#include "data/files.h"
#include "data/minibatches.h"
#include "train/generate.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 4000, SAMPLE_BYTES = 300, TOP_UNITS = 8, STREAMS = 16 };

static const double sample_temperature = 0.7;

typedef struct arguments {
    overrides model;
    const char *folder, *out, *card, *text, *probe, *features;
    config_list files;
    int64_t sample; /* bytes of generated text; 0: none */
} arguments;

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "run's folder", .offset = offsetof(arguments, folder), "a run's folder"},
    {CLI_TEXT, "out", "PAGE.html", .offset = offsetof(arguments, out),
     "Page to write; default: RUN/report.html"},
    {CLI_TEXT, "card", "FILE.md", .offset = offsetof(arguments, card),
     "Model card to write; default: RUN/README.md"},
    {CLI_LIST, "data", "FILE", .offset = offsetof(arguments, files),
     "Text to score the model on; may be repeated"},
    {CLI_TEXT, "text", "FILE", .offset = offsetof(arguments, text),
     "Text whose beginning the page shows byte by byte; default: the first validation file that "
     "exists, else the first training file"},
    {CLI_TEXT, "probe", "PREFIX", .offset = offsetof(arguments, probe),
     "Saved probe; default: RUN/probe.probe.safetensors, if it exists"},
    {CLI_TEXT, "features", "PREFIX", .offset = offsetof(arguments, features),
     "Features of labelled documents, for histograms; default: RUN/test.npy, if it exists"},
    {CLI_INTEGER, "sample", "N", .offset = offsetof(arguments, sample),
     "Bytes of text that the model writes; default 300; 0: none", 0, 100000},
    CLI_MODEL(offsetof(arguments, model)),
};

/* Everything that the report shows. */
typedef struct contents {
    char *path; /* of the checkpoint */
    checkpoint checkpoint;
    curves curves;
    wiring wiring;
    saved_probe probe;
    dataset labelled;
    origin origin; /* of the labelled features */
    corpus *texts;
    const char *text; /* its file */
    bool has_checkpoint, has_probe, has_labelled;
    evaluation score;
    double xz_bpc; /* of the same text */
    reading reading;
    show_part show;
    uint8_t *sample;
} contents;

/* Warns that something the user did not ask for is left out because it does not fit. Returns true.
 */
static bool left_out(const error *err) {
    log_warning("left out: %s", err->text);
    return true;
}

static int pools_of(const saved_probe *p) {
    return p->origin.known ? p->origin.pools.count : 1;
}

static bool open_probe(const arguments *a, contents *m, error *err) {
    char *prefix = a->probe ? mem_string(a->probe) : mem_format("%s/probe", a->folder);
    char *path = cli_probe_path(prefix);
    bool done = true;
    if (a->probe || file_exists(path)) {
        done = saved_open(&m->probe, path, err);
        m->has_probe =
            done && saved_check(&m->probe, m->checkpoint.options.model.hidden * pools_of(&m->probe),
                                checkpoint_checksum(&m->checkpoint), path, err);
        if (done && !m->has_probe) saved_close(&m->probe);
        done = m->has_probe || (!a->probe && left_out(err));
    }
    free(path);
    free(prefix);
    return done;
}

static bool open_features(const arguments *a, contents *m, error *err) {
    const checkpoint *c = &m->checkpoint;
    const saved_probe *p = m->has_probe ? &m->probe : NULL;
    const show_model model = {c->options.model.hidden,
                              p && p->origin.known ? p->origin.state : FEATURE_CELL,
                              checkpoint_checksum(c), p};
    char *prefix = a->features ? mem_string(a->features) : mem_format("%s/test", a->folder);
    char *labels = mem_format("%s.labels.npy", prefix);
    bool done = true;
    if (a->features || file_exists(labels)) {
        m->has_labelled = show_open(&m->labelled, &m->origin, prefix, &model, err);
        done = m->has_labelled || (!a->features && left_out(err));
    }
    free(labels);
    free(prefix);
    return done;
}

/* Opens the text as training would: documents from .tsv files, other files as their bytes. */
static bool open_text(const arguments *a, contents *m, error *err) {
    const options *o = m->curves.runs[0].options;
    const corpus_options how = o ? o->data.reading : m->checkpoint.options.data.reading;
    m->text = a->text;
    for (int i = 0; !m->text && o && i < o->data.valid.count; i++) {
        if (file_exists(o->data.valid.items[i])) m->text = o->data.valid.items[i];
    }
    for (int i = 0; !m->text && o && i < o->data.train.count; i++) {
        const char *file = o->data.train.items[i];
        if (strcmp(file, "-") != 0 && file_exists(file)) m->text = file;
    }
    if (!m->text) return true;
    m->texts = texts_read(m->text, true, &how, err);
    if (m->texts) texts_cut(m->texts, TEXT_BYTES);
    return m->texts != NULL;
}

/* The error of always saying the commonest label of the labelled features, NaN without them. */
static double commonest_error(const contents *m) {
    const dataset *d = &m->labelled;
    int32_t label[DATASET_MAX_CLASSES];
    size_t of_label[DATASET_MAX_CLASSES] = {0}, all = 0, most = 0, dropped;
    error ignored;
    if (!m->has_labelled) return NAN;
    int16_t *class = mem_alloc(d->rows, sizeof *class);
    const int count = dataset_classes(d, label, &ignored);
    if (count > 0 && dataset_index(d, label, count, class, &dropped, &ignored)) {
        for (size_t i = 0; i < d->rows; i++) {
            if (class[i] < 0) continue;
            all++;
            if (++of_label[class[i]] > most) most = of_label[class[i]];
        }
    }
    free(class);
    return all ? 100 * (double)(all - most) / (double)all : NAN;
}

static bool open_contents(const arguments *a, contents *m, error *err) {
    char *folders[] = {(char *)(uintptr_t)a->folder};
    m->path = mem_format("%s/last.safetensors", a->folder);
    if (!curves_read(&m->curves, folders, 1, err)) return false;
    m->has_checkpoint = checkpoint_open(&m->checkpoint, m->path, err);
    if (!m->has_checkpoint || !open_probe(a, m, err) || !open_features(a, m, err) ||
        !open_text(a, m, err)) {
        return false;
    }
    m->wiring = (wiring){.config = &m->checkpoint.options.model, .graphs = m->checkpoint.graphs};
    wiring_measure(&m->wiring, &m->checkpoint);
    return true;
}

static void close_contents(contents *m) {
    free(m->sample);
    reading_free(&m->reading);
    wiring_free(&m->wiring);
    if (m->texts) corpus_free(m->texts);
    if (m->has_labelled) dataset_close(&m->labelled);
    origin_free(&m->origin);
    if (m->has_probe) saved_close(&m->probe);
    if (m->has_checkpoint) checkpoint_close(&m->checkpoint);
    curves_free(&m->curves);
    free(m->path);
}

static bool score_data(const arguments *a, contents *m, error *err) {
    const corpus_options how = m->checkpoint.options.data.reading;
    loaded_model loaded;
    corpus *c = corpus_read(a->files.items, a->files.count, &how, err);
    bool done = c && loaded_load(&loaded, m->path, &a->model, 0, 0, err);
    if (done) {
        sequence *s = sequence_in_order(c);
        recording *forward = evaluate_record(loaded.m);
        done = evaluate(loaded.m, forward, s, 0, false, true, &m->score, err);
        loaded.be->memory->recording_free(loaded.be, forward);
        sequence_free(s);
        loaded_free(&loaded);
        m->xz_bpc = 8 * source_xz_bytes(c->bytes, c->size) / (double)c->size;
    }
    if (c) corpus_free(c);
    return done;
}

static bool read_text(const arguments *a, contents *m, error *err) {
    size_t units[TOP_UNITS];
    const saved_probe *p = m->has_probe && m->probe.classes <= SHOW_MAX_CLASSES ? &m->probe : NULL;
    const int64_t hidden = m->checkpoint.options.model.hidden;
    reading_options how = {.count = TOP_UNITS, .pools = {1, {POOL_LAST}}, .progress = true};
    const int count = show_choose_units(m->has_labelled ? &m->labelled : NULL,
                                        m->has_probe ? &m->probe : NULL, hidden, units, TOP_UNITS);
    if (count > 0) {
        how.units = units;
        how.count = count;
    }
    if (m->has_probe && m->probe.origin.known) {
        how.state = m->probe.origin.state;
        how.pools = m->probe.origin.pools;
    }
    if (p) {
        how.models = p->models;
        how.weights = p->weights;
    }
    loaded_model loaded;
    int streams = m->texts->count < STREAMS ? (int)m->texts->count : STREAMS;
    if (!loaded_load(&loaded, m->path, &a->model, streams, READING_STEPS, err)) return false;
    bool done = reading_run(loaded.m, m->texts, &how, &m->reading, err);
    loaded_free(&loaded);
    m->show =
        (show_part){m->texts, &m->reading, p, m->has_labelled ? &m->labelled : NULL, &m->origin};
    return done;
}

/* Generates a text from a zero state, as smallworld generate does with these options. */
static bool write_sample(const arguments *a, contents *m, error *err) {
    static const uint8_t prompt[] = {'\n', ' '};
    const generation how = {.prompt = prompt,
                            .given = sizeof prompt,
                            .bytes = (size_t)a->sample,
                            .temperature = sample_temperature,
                            .top_p = 1,
                            .seed = 1};
    loaded_model loaded;
    if (!loaded_load(&loaded, m->path, &a->model, 1, 1, err)) return false;
    m->sample = mem_alloc(how.given + how.bytes, 1);
    bool done = generate(loaded.m, &how, m->sample, err);
    memmove(m->sample, m->sample + how.given, how.bytes);
    loaded_free(&loaded);
    return done;
}

static bool write_report(const arguments *a, contents *m, const char *page, const char *card,
                         error *err) {
    if (a->files.count > 0 && !score_data(a, m, err)) return false;
    if (m->texts && !read_text(a, m, err)) return false;
    if (a->sample > 0 && !write_sample(a, m, err)) return false;
    char *data = config_join(&a->files);
    char *folder = file_shell_word(a->folder);
    char *command = mem_format("smallworld generate %s --bytes %" PRId64 " --temperature %g",
                               folder, a->sample, sample_temperature);
    free(folder);
    const report r = {.folder = a->folder,
                      .checkpoint = &m->checkpoint,
                      .curves = &m->curves,
                      .wiring = &m->wiring,
                      .probe = m->has_probe ? &m->probe : NULL,
                      .score = a->files.count > 0 ? &m->score : NULL,
                      .data = data,
                      .xz_bpc = m->xz_bpc,
                      .commonest_error = commonest_error(m),
                      .show = m->texts ? &m->show : NULL,
                      .text = m->text,
                      .sample = m->sample,
                      .sample_bytes = (size_t)a->sample,
                      .sample_command = command};
    bool done = report_write_card(&r, card, err) && report_write_page(&r, page, err);
    free(command);
    free(data);
    return done;
}

int cmd_report(int argc, char **argv) {
    static const cli_command command = {
        "RUN",
        "Write a page and a model card about a run: its facts, its curves, its wiring, a text that "
        "the model wrote, its probe, and a text as the model reads it."
        "\vExample:\n  smallworld report runs/quickstart --data data/reviews_test.tsv.gz",
        CLI_ROWS(rows), NULL, NULL};
    arguments a = {.sample = SAMPLE_BYTES};
    cli_parse(&command, argc, argv, &a);
    error err;
    contents *m = mem_alloc(1, sizeof *m);
    char *page = a.out ? mem_string(a.out) : mem_format("%s/report.html", a.folder);
    char *card = a.card ? mem_string(a.card) : mem_format("%s/README.md", a.folder);
    bool done = report_check_files(page, card, &err) && open_contents(&a, m, &err) &&
                write_report(&a, m, page, card, &err);
    close_contents(m);
    log_end();
    if (done) printf("%s\n%s\n", card, page);
    free(card);
    free(page);
    free(m);
    free(a.files.items);
    return done ? STATUS_OK : cli_fail(&err, "report");
}
