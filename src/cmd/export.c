/* smallworld export: a model for programs without smallworld. */
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/overwrite.h"
#include "page/assets.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    const char *checkpoint, *to, *out;
} arguments;

enum { KEY_TO = 1, KEY_OUT };

static const struct argp_option option_table[] = {
    {"to", KEY_TO, "FRAMEWORK", 0, "torch (default)", 0},
    {"out", KEY_OUT, "DIR", 0, "Folder to write", 0},
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_TO: a->to = text; return 0;
    case KEY_OUT: a->out = text; return 0;
    case ARGP_KEY_ARG: cli_take(state, "CHECKPOINT", &a->checkpoint, text); return 0;
    case ARGP_KEY_END:
        if (!a->checkpoint) cli_refuse(state, "expected a CHECKPOINT");
        if (!a->out) cli_refuse(state, "expected --out DIR");
        if (a->to && strcmp(a->to, "torch") != 0) {
            cli_refuse(state, "--to: expected torch, got '%s'", a->to);
        }
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* Refuses to replace files that are no export's. */
static bool check_files(const char *folder, error *err) {
    static const char *const files[][2] = {
        {"model.safetensors", "\"format\": \"smallworld\""},
        {"smallworld_lstm.py", "A model that smallworld trained, as a module of PyTorch"}};
    bool free_of_others = true;
    for (int i = 0; i < 2 && free_of_others; i++) {
        char *path = mem_format("%s/%s", folder, files[i][0]);
        free_of_others = overwrite_check_mark(path, files[i][1], "smallworld export",
                                              "--out names another folder", err);
        free(path);
    }
    return free_of_others;
}

/* The checkpoint is written as it is: its tensors' names are those of the module's parameters. */
static bool export(const arguments *a, error *err) {
    checkpoint c;
    if (!checkpoint_open(&c, a->checkpoint, err)) return false;
    const bool done =
        checkpoint_check_weights(&c, err) && file_make_folder(a->out, err) &&
        check_files(a->out, err) &&
        file_write_whole(a->out, "model.safetensors", c.file.map.bytes, c.file.map.size, err) &&
        file_write_whole(a->out, "smallworld_lstm.py", lstm_py, strlen(lstm_py), err);
    checkpoint_close(&c);
    return done;
}

int cmd_export(int argc, char **argv) {
    static const struct argp argp = {
        option_table,
        parse,
        "CHECKPOINT --out DIR",
        "Write a model as a module of PyTorch that runs without smallworld: model.safetensors, the "
        "checkpoint itself, and smallworld_lstm.py, which reads it."
        "\vExample:\n  smallworld export runs/quickstart --to torch --out exported\n"
        "  cd exported && python3 -c 'import smallworld_lstm\n"
        "  print(smallworld_lstm.SmallWorldLSTM.load(\".\"))'",
        NULL,
        NULL,
        NULL};
    arguments a = {0};
    cli_parse(&argp, argc, argv, &a);
    error err;
    if (!export(&a, &err)) return cli_fail(&err, "export");
    log_end();
    printf("%s/model.safetensors, %s/smallworld_lstm.py\n", a.out, a.out);
    return STATUS_OK;
}
