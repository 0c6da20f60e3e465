#include "train/defaults.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/number.h"
#include "data/files.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* For a CPU, models like the quickstart's; for a GPU, those of configs/imdb-*.yaml. Smaller texts
 * get smaller models, because a large model would learn them by heart. Minutes limit how long
 * people wait; epochs limit how often a short text is read. After equal minutes an mlstm reads
 * better than an lstm; its initial noise is for runs of one byte. Hubs win at 20 M parameters, and
 * below a million a dense mlstm with weight norm and coupled gates does. Adam trains them: Muon is
 * ahead of it after one pass over reviews, and behind on source code and where text is read often
 * (docs/results.md). */
/* clang-format off */
static const struct recipe {
    bool gpu;
    double least; /* the smallest text for it, in megabytes */
    const char *settings[18][2];
} recipes[] = {
    {true, 50, {{"model.cell", "mlstm"}, {"model.hidden", "7168"}, {"model.hubs", "576"},
                {"model.block", "32"}, {"model.graph", "dense"}, {"model.norm", "weight"},
                {"model.coupled_gates", "true"}, {"model.init_gain", "0.3"},
                {"model.init_noise", "0.05"}, {"train.batch", "128"}, {"train.bptt", "128"},
                {"train.lr", "0.008"}, {"train.weight_decay", "0.1"}, {"train.average", "0.99"},
                {"train.warmup", "200"}, {"train.epochs", "8"}, {"train.minutes", "30"}}},
    {true, 10, {{"model.hidden", "1792"}, {"model.block", "64"}, {"model.density", "0.6"},
                {"train.batch", "128"}, {"train.bptt", "128"}, {"train.lr", "0.008"},
                {"train.weight_decay", "0.1"}, {"train.warmup", "200"}, {"train.epochs", "16"},
                {"train.minutes", "15"}}},
    {true, 0, {{"model.hidden", "1024"}, {"model.block", "32"}, {"model.density", "0.6"},
               {"model.dropout", "0.2"}, {"train.batch", "64"}, {"train.bptt", "128"},
               {"train.lr", "0.004"}, {"train.weight_decay", "0.1"}, {"train.epochs", "30"},
               {"train.minutes", "10"}}},
    {false, 2, {{"model.cell", "mlstm"}, {"model.hidden", "256"}, {"model.block", "16"},
                {"model.graph", "dense"}, {"model.norm", "weight"}, {"model.coupled_gates", "true"},
                {"model.init_gain", "0.3"}, {"model.init_noise", "0.05"}, {"train.batch", "16"},
                {"train.bptt", "128"}, {"train.lr", "0.006"}, {"train.weight_decay", "0.1"},
                {"train.epochs", "8"}, {"train.minutes", "20"}}},
    {false, 0, {{"model.cell", "mlstm"}, {"model.hidden", "192"}, {"model.block", "16"},
                {"model.density", "0.5"}, {"model.dropout", "0.1"}, {"model.init_noise", "0.05"},
                {"train.batch", "16"}, {"train.bptt", "128"}, {"train.lr", "0.006"},
                {"train.weight_decay", "0.1"}, {"train.epochs", "20"}, {"train.minutes", "10"}}},
};
/* clang-format on */

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
    char batch[24], bptt[24], lr[24];
} sizes;

/* Sets the recipe's minibatches. Halves them for a short text until an epoch has 20 updates or they
 * are very small. Each GPU gets as many streams as one would, or it would have little to do; the
 * learning rate grows by the root of their number (docs/scaling.md). */
static sizes size_minibatches(const struct recipe *r, double megabytes, int ranks) {
    const char *rate = "";
    int64_t streams = 0, steps = 0;
    for (int i = 0; r->settings[i][0]; i++) {
        if (strcmp(r->settings[i][0], "train.batch") == 0) streams = atoll(r->settings[i][1]);
        if (strcmp(r->settings[i][0], "train.bptt") == 0) steps = atoll(r->settings[i][1]);
        if (strcmp(r->settings[i][0], "train.lr") == 0) rate = r->settings[i][1];
    }
    const int64_t least = ranks > 1 ? (int64_t)STREAM_GROUP * ranks : 2;
    const double one = (double)streams;
    if (r->gpu) streams *= ranks;
    while (streams >= 2 * least && 20.0 * (double)(streams * steps) > 1e6 * megabytes) streams /= 2;
    while (steps > 16 && 20.0 * (double)(streams * steps) > 1e6 * megabytes) steps /= 2;
    if (streams < least) streams = least;
    sizes s;
    snprintf(s.batch, sizeof s.batch, "%" PRId64, streams);
    snprintf(s.bptt, sizeof s.bptt, "%" PRId64, steps);
    snprintf(s.lr, sizeof s.lr, "%s", rate);
    double lr;
    if ((double)streams > one && number_real(rate, &lr)) {
        snprintf(s.lr, sizeof s.lr, "%.3g", lr * sqrt((double)streams / one));
    }
    return s;
}

/* Whether keys that are already set determine this one. */
static bool is_settled(const options *o, const char *key) {
    static const char *const against[][2] = {
        {"train.epochs", "train.steps"},      {"train.epochs", "train.minutes"},
        {"train.minutes", "train.steps"},     {"train.minutes", "train.epochs"},
        {"model.density", "model.degree"},    {"model.density", "model.graph_file"},
        {"model.hidden", "model.parameters"}, {"model.density", "model.hubs"},
        {"model.graph", "model.density"},     {"model.graph", "model.degree"},
        {"model.graph", "model.graph_file"},  {"model.graph", "model.core"},
    };
    if (config_is_set(&o->config, key)) return true;
    if (strcmp(key, "model.density") == 0 && o->model.graph == GRAPH_DENSE) return true;
    for (size_t i = 0; i < sizeof against / sizeof against[0]; i++) {
        if (strcmp(key, against[i][0]) == 0 && config_is_assigned(&o->config, against[i][1])) {
            return true;
        }
    }
    return false;
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
    char chosen[512] = "";
    const sizes sized = size_minibatches(r, megabytes, ranks_count(o->run.ranks));
    for (int i = 0; r->settings[i][0]; i++) {
        const char *key = r->settings[i][0], *value = r->settings[i][1];
        if (strcmp(key, "train.batch") == 0) value = sized.batch;
        if (strcmp(key, "train.bptt") == 0) value = sized.bptt;
        if (strcmp(key, "train.lr") == 0) value = sized.lr;
        if (is_settled(o, key)) continue;
        if (!config_set(&o->config, key, value, "chosen for --data", err)) return false;
        size_t used = strlen(chosen);
        snprintf(chosen + used, sizeof chosen - used, " %s=%s", key, value);
    }
    char size[64] = "a text of unknown size";
    if (all.known && megabytes < 0.1) {
        snprintf(size, sizeof size, "%.0f kB of text", ceil(1000 * megabytes));
    } else if (all.known) {
        snprintf(size, sizeof size, "%.1f MB of text", megabytes);
    }
    log_line("chosen for %s on %s:%s", size, gpu ? "a GPU" : "the CPU", chosen);
    return true;
}
