#include "train/defaults.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/files.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What a text gets on a device. Every model is an mlstm with weight norm and coupled gates, which
 * after equal minutes beats an lstm, layer norm and four gates; its initial noise is for runs of
 * one byte, and a small initial embedding is learned sooner. Smaller texts get smaller models,
 * because a large one would learn them by heart. Minutes limit how long people wait; epochs limit
 * how often a text is read. Small gains learn far connections late, which a short text cannot
 * afford. Hubs win at some millions of parameters, a dense mlstm below. Adam, the default, is ahead
 * of Muon where text is read often, and on source code (docs/results.md). */
static const struct recipe {
    bool gpu;
    double least; /* the smallest text for it, in megabytes */
    const char *hidden, *hubs, *block, *gain, *average, *warmup;
    int64_t batch;
    double lr, memory, epochs;  /* memory: passes over the text that weights remember */
    const char *head, *minutes; /* head: its learning rate over that of the others */
} recipes[] = {
    {true, 10, "7168", "576", "32", "0.3", "0.99", "200", 128, 0.008, 0.5, 8, "1", "30"},
    {true, 4, "1024", "0", "32", "0.3", "0.999", "100", 64, 0.006, 0.35, 16, "1", "10"},
    {true, 0, "512", "0", "32", "0.3", "0.999", "100", 64, 0.006, 0.35, 30, "1", "10"},
    {false, 2, "384", "0", "16", "0.3", "0.999", "100", 16, 0.006, 2, 8, "4", "20"},
    {false, 0, "192", "0", "16", "1", "0.999", "100", 16, 0.006, 0.5, 20, "1", "10"},
};

typedef struct text_size {
    double megabytes;
    bool known;
} text_size;

/* gzip and xz make text about three times smaller. A pipe, whose size is not known until it is
 * read, is taken for one megabyte. */
static bool add_size(void *data, const char *path, error *err) {
    text_size *sum = data;
    struct stat status;
    const bool input = strcmp(path, "-") == 0;
    if (!input && stat(path, &status) != 0) return error_system(err, "open", path);
    if (input || !S_ISREG(status.st_mode)) {
        sum->megabytes += 1;
        sum->known = false;
        return true;
    }
    const bool packed = file_ends_in(path, ".gz") || file_ends_in(path, ".xz");
    const double size = (double)status.st_size / 1e6;
    sum->megabytes += packed ? 3 * size : size;
    return true;
}

static bool set_files(options *o, char *const *files, int count, error *err) {
    char *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    fputs("data.train=", out);
    config_write_list(files, count, out);
    mem_stream_end(out);
    bool done = config_assign(&o->config, text, err);
    free(text);
    return done;
}

/* What depends on the text's size and on the number of ranks. */
typedef struct sizes {
    char batch[24], bptt[24], lr[24], decay[24], input_decay[24], epochs[24];
} sizes;

/* Halves the recipe's minibatches for a short text until an epoch has 20 updates or they are very
 * small. Each GPU gets as many streams as one would, or it would have little to do; the learning
 * rate grows by the root of their number (docs/scaling.md). The decay lets weights remember the
 * recipe's passes, at least ten updates, and is at least 0.1; that of the input's matrices lets
 * them remember a quarter of all passes (docs/results.md, "Short texts"). */
static sizes size_minibatches(const struct recipe *r, double megabytes, int ranks) {
    const int64_t least = ranks > 1 ? (int64_t)STREAM_GROUP * ranks : 2;
    const double bytes = 1e6 * megabytes;
    int64_t streams = r->batch * (r->gpu ? ranks : 1), steps = 128;
    while (streams >= 2 * least && 20.0 * (double)(streams * steps) > bytes) streams /= 2;
    while (steps > 16 && 20.0 * (double)(streams * steps) > bytes) steps /= 2;
    if (streams < least) streams = least;
    const double lr = r->lr * fmax(1, sqrt((double)streams / (double)r->batch));
    const double updates = bytes / (double)(streams * steps);
    sizes s;
    snprintf(s.batch, sizeof s.batch, "%" PRId64, streams);
    snprintf(s.bptt, sizeof s.bptt, "%" PRId64, steps);
    snprintf(s.lr, sizeof s.lr, "%.3g", lr);
    snprintf(s.epochs, sizeof s.epochs, "%g", r->epochs);
    snprintf(s.decay, sizeof s.decay, "%.2g", fmax(0.1, 1 / (lr * fmax(10, updates * r->memory))));
    snprintf(s.input_decay, sizeof s.input_decay, "%.2g",
             1 / (lr * fmax(10, updates * r->epochs / 4)));
    return s;
}

/* Whether keys that are already set determine this one. */
static bool is_settled(const options *o, const char *key) {
    static const char *const against[][2] = {
        {"train.epochs", "train.steps"},      {"train.epochs", "train.minutes"},
        {"train.minutes", "train.steps"},     {"train.minutes", "train.epochs"},
        {"model.hidden", "model.parameters"}, {"model.parameters", "model.hidden"},
        {"model.graph", "model.core"},        {"model.graph", "model.density"},
        {"model.graph", "model.degree"},      {"model.graph", "model.graph_file"},
    };
    if (config_is_set(&o->config, key)) return true;
    for (size_t i = 0; i < sizeof against / sizeof against[0]; i++) {
        if (strcmp(key, against[i][0]) == 0 && config_is_assigned(&o->config, against[i][1])) {
            return true;
        }
    }
    return false;
}

/* Whether the user wants none of the recipe's hubs. Then the model gets as many parameters as with
 * hubs, 20 million, and so fewer units. */
static bool is_without_hubs(const options *o, const struct recipe *r) {
    const config *c = &o->config;
    if (strcmp(r->hubs, "0") == 0) return false;
    return (config_is_assigned(c, "model.cell") && o->model.cell == CELL_LSTM) ||
           (config_is_assigned(c, "model.hubs") && o->model.hubs == 0);
}

bool defaults_choose(options *o, char *const *files, int count, uint64_t bytes, error *err) {
    text_size all = {0, true};
    if (!paths_each(files, count, add_size, &all, err) || !set_files(o, files, count, err))
        return false;
    if (bytes > 0) all = (text_size){(double)bytes / 1e6, true};
    const double megabytes = all.megabytes;
    backend *be = options_backend(&o->run, err);
    if (!be) return false;
    const bool gpu = backend_on_gpu(be);
    be->memory->destroy(be);
    const struct recipe *r = recipes;
    while (r->gpu != gpu || megabytes < r->least) r++;
    const sizes by = size_minibatches(r, megabytes, ranks_count(o->run.ranks));
    const bool narrow = is_without_hubs(o, r);
    const char *const settings[][2] = {
        {"model.cell", "mlstm"},
        {"model.graph", "dense"},
        {"model.norm", "weight"},
        {"model.coupled_gates", "true"},
        {narrow ? "model.parameters" : "model.hidden", narrow ? "20e6" : r->hidden},
        {"model.hubs", narrow ? "0" : r->hubs},
        {"model.init_input", "0.3"},
        {"model.init_noise", "0.05"},
        {"model.block", r->block},
        {"model.init_gain", r->gain},
        {"train.batch", by.batch},
        {"train.bptt", by.bptt},
        {"train.lr", by.lr},
        {"train.lr_head", r->head},
        {"train.warmup", r->warmup},
        {"train.weight_decay", by.decay},
        {"train.input_decay", by.input_decay},
        {"train.average", r->average},
        {"train.epochs", by.epochs},
        {"train.minutes", r->minutes},
    };
    char *chosen;
    size_t length;
    FILE *out = mem_stream(&chosen, &length);
    bool done = true;
    for (size_t i = 0; i < sizeof settings / sizeof *settings && done; i++) {
        const char *key = settings[i][0], *value = settings[i][1];
        if (is_settled(o, key)) continue;
        done = config_set(&o->config, key, value, "chosen for --data", err);
        fprintf(out, " %s=%s", key, value);
    }
    mem_stream_end(out);
    char size[64] = "a text of unknown size";
    if (all.known && megabytes < 0.1) {
        snprintf(size, sizeof size, "%.0f kB of text", ceil(1000 * megabytes));
    } else if (all.known) {
        snprintf(size, sizeof size, "%.1f MB of text", megabytes);
    }
    if (done) log_line("chosen for %s on %s:%s", size, gpu ? "a GPU" : "the CPU", chosen);
    free(chosen);
    return done;
}
