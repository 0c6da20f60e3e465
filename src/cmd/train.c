/* smallworld train: train a model. */
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "train/defaults.h"
#include "train/trainer.h"

#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    overrides model;
    const char *config, *folder, *init;
    config_list assignments, data; /* data: files to train on without a config */
    int64_t gpus;
    bool resume, overwrite, json, help_config;
} arguments;

/* What people expect as options: keys of the config. */
static void refuse_key(struct argp_state *state, const cli_row *row, void *field, char *text) {
    (void)field;
    cli_refuse(state, "expected --set %s=%s", row->choices, text);
}

#define KEY(name, key)                                                                             \
    { CLI_CALL, name, "VALUE", .choices = (key), .take = refuse_key }

static const cli_row rows[] = {
    CLI_SET(offsetof(arguments, assignments)),
    {CLI_LIST, "data", "FILE", .offset = offsetof(arguments, data),
     "Train on these files or folders, or on standard input (-), with a model and settings that "
     "suit their size and the device"},
    {CLI_TEXT, "init", "CHECKPOINT", .offset = offsetof(arguments, init),
     "Start from the weights of this model or run; with --data also its model.* settings"},
    {CLI_TEXT, "out", "DIR", .offset = offsetof(arguments, folder),
     "Folder of the run; default: runs/<name of the config or text>"},
    {CLI_FLAG, "resume", NULL, .offset = offsetof(arguments, resume),
     "Continue from the state in the run's folder; RUN in place of a config takes all settings "
     "from the run"},
    {CLI_FLAG, "overwrite", NULL, .offset = offsetof(arguments, overwrite),
     "Start over in a folder that holds a run"},
    CLI_JSON(offsetof(arguments, json)),
    {CLI_FLAG, "help-config", NULL, .offset = offsetof(arguments, help_config),
     "List every key of a config and exit"},
    CLI_MODEL(offsetof(arguments, model)),
    CLI_GPUS(offsetof(arguments, gpus)),
    KEY("lr", "train.lr"),
    KEY("steps", "train.steps"),
    KEY("epochs", "train.epochs"),
    KEY("seed", "run.seed"),
};

static bool is_config(const char *name) {
    return file_ends_in(name, ".yaml") || file_ends_in(name, ".yml");
}

static bool is_text(const char *name) {
    static const char *const endings[] = {".txt", ".tsv", ".csv", ".gz", ".xz", ".list"};
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (file_ends_in(name, endings[i])) return true;
    }
    return false;
}

/* All options come first. */
static void take_argument(struct argp_state *state, void *input, char *text) {
    arguments *a = input;
    if (a->data.count && !is_config(text)) {
        cli_append(&a->data, text);
    } else {
        cli_take(state, "CONFIG.yaml", &a->config, text);
    }
}

static void check(struct argp_state *state, void *input) {
    const arguments *a = input;
    if (a->help_config) return;
    if (a->folder && !*a->folder) cli_refuse(state, "--out: expected a folder, got ''");
    if (!a->config && a->data.count == 0) {
        cli_refuse(state, "expected a CONFIG.yaml, or --data FILE");
    }
    if (a->config && a->data.count) {
        cli_refuse(state, "a config or --data, not both; --set data.train=FILE overrides");
    }
    if (a->config && !a->resume && is_text(a->config)) {
        cli_refuse(state, "%s: expected a CONFIG.yaml; --data %s trains on a text", a->config,
                   a->config);
    }
    if (a->init && a->resume) cli_refuse(state, "--resume: not together with --init");
    if (!a->config && a->resume) cli_refuse(state, "expected the run folder to resume");
    if (a->resume && a->overwrite) cli_refuse(state, "--resume: not together with --overwrite");
}

/* Returns runs/<name>, where the name is that of the config or text without folder and ending. */
static char *default_folder(const char *config) {
    if (strcmp(config, "-") == 0) return mem_string("runs/standard-input");
    char *copy = mem_string(config), *name = basename(copy), *dot = strrchr(name, '.');
    if (dot && dot != name) *dot = '\0';
    char *folder = mem_format("runs/%s", name);
    free(copy);
    return folder;
}

static void print_json(const train_result *r) {
    json_writer w = {stdout, false};
    json_object_begin(&w, NULL);
    json_integer(&w, "steps", r->steps);
    json_integer(&w, "bytes", (int64_t)r->bytes);
    json_number(&w, "epochs", r->epochs);
    json_number(&w, "seconds", r->seconds);
    json_number(&w, "bytes_per_second", r->bytes_per_second);
    json_number(&w, "valid_bpc", r->valid_bpc);
    json_integer(&w, "parameters", (int64_t)r->parameters);
    json_string(&w, "checkpoint", r->checkpoint);
    json_object_end(&w);
    putchar('\n');
}

/* Says what came of the run and what to type next. */
static void summarise(const train_result *r, const char *folder) {
    char took[32], size[16], bpc[64] = "";
    char *name = file_shell_word(folder);
    if (r->signal) {
        log_line("next: smallworld train --resume %s", name);
        free(name);
        return;
    }
    if (!isnan(r->valid_bpc)) {
        snprintf(bpc, sizeof bpc, "%.4f bits per character on validation text, ", r->valid_bpc);
    }
    log_line("done: %s%" PRId64 " updates over %s (%.3g epochs) in %s, %.0f bytes/s, %" PRIu64
             " parameters",
             bpc, r->steps, log_bytes(size, (double)r->bytes), r->epochs,
             log_duration(took, r->seconds), r->bytes_per_second, r->parameters);
    log_line("next: smallworld generate %s, or smallworld report %s", name, name);
    free(name);
}

/* Takes over the model's keys from --init. */
static bool take_model(options *o, const char *init, error *err) {
    checkpoint c;
    if (!init) return true;
    if (!checkpoint_open(&c, init, err)) return false;
    const bool taken = options_from_metadata(o, &c.file, err);
    checkpoint_close(&c);
    return taken;
}

/* Loads the config with its assignments, or makes one for --data. */
static bool load(options *o, const arguments *a, error *err) {
    if (a->config) {
        return options_load(o, a->config, a->assignments.items, a->assignments.count, err) &&
               config_assign_string(&o->config, "train.init", a->init, err);
    }
    if (!take_model(o, a->init, err) ||
        !config_assign_string(&o->config, "train.init", a->init, err))
        return false;
    for (int i = 0; i < a->assignments.count; i++) {
        if (!config_assign(&o->config, a->assignments.items[i], err)) return false;
    }
    return overrides_apply(&a->model, o, err) &&
           defaults_choose(o, a->data.items, a->data.count, 0, err) && options_check(o, err);
}

static int run(arguments *a, const char *folder) {
    error err;
    options o;
    ranks **r = &a->model.ranks;
    train_result result;
    if (!ranks_start(r, (int)a->gpus, &err)) return cli_fail(&err, "train");
    train_start start = a->resume ? TRAIN_RESUME : a->overwrite ? TRAIN_OVERWRITE : TRAIN_FRESH;
    options_begin(&o);
    bool done =
        load(&o, a, &err) && overrides_apply(&a->model, &o, &err) && options_check(&o, &err);
    if (done && o.data.train.count == 0) {
        done = error_set(&err, "%s: data.train: expected the files to train on", a->config);
    }
    done = done && train_run(&o, folder, start, &result, &err);
    options_free(&o);
    if (!done) return cli_fail_rank(*r, &err, "train");
    log_end(); /* the last line of progress stays */
    if (ranks_rank(*r) == 0) summarise(&result, folder);
    ranks_end(*r);
    if (a->json) {
        print_json(&result);
    } else {
        printf("%s\n", result.checkpoint);
    }
    return result.signal ? 128 + result.signal : STATUS_OK;
}

int cmd_train(int argc, char **argv) {
    static const cli_command command = {
        "CONFIG.yaml\n--data FILE\n--resume RUN",
        "Train a model and write config.yaml, metrics.jsonl, last.safetensors, best.safetensors "
        "(the model that validated best) and last.state to the run's folder. Progress is shown on "
        "standard error.\vExample:\n  smallworld train configs/quickstart.yaml --set "
        "train.lr=0.001 \\\n      --out runs/a\n  smallworld train --data book.txt\n  smallworld "
        "train --resume runs/a --set train.steps=4000",
        CLI_ROWS(rows), check, take_argument};
    arguments a = {0};
    cli_parse(&command, argc, argv, &a);
    if (a.help_config) {
        config_help(option_keys, option_count, stdout);
        return STATUS_OK;
    }
    char *config = NULL, *folder;
    if (a.resume && file_is_folder(a.config)) {
        config = mem_format("%s/config.yaml", a.config);
        folder = mem_string(a.folder ? a.folder : a.config);
        a.config = config;
    } else {
        folder =
            a.folder ? mem_string(a.folder) : default_folder(a.config ? a.config : a.data.items[0]);
    }
    int status = run(&a, folder);
    free(config);
    free(folder);
    free(a.data.items);
    free(a.assignments.items);
    return status;
}
