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

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "CHECKPOINT", .offset = offsetof(arguments, checkpoint), "a CHECKPOINT"},
    {CLI_TEXT, "to", "FRAMEWORK", .offset = offsetof(arguments, to), "torch (default)"},
    {CLI_TEXT, "out", "DIR", .offset = offsetof(arguments, out), "Folder to write",
     .required = true},
};

static void check(struct argp_state *state, void *input) {
    const arguments *a = input;
    if (a->to && strcmp(a->to, "torch") != 0) {
        cli_refuse(state, "--to: expected torch, got '%s'", a->to);
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
    static const cli_command command = {
        "CHECKPOINT --out DIR",
        "Write a model as a module of PyTorch that runs without smallworld: model.safetensors, the "
        "checkpoint itself, and smallworld_lstm.py, which reads it."
        "\vExample:\n  smallworld export runs/quickstart --to torch --out exported\n"
        "  cd exported && python3 -c 'import smallworld_lstm\n"
        "  print(smallworld_lstm.SmallWorldLSTM.load(\".\"))'",
        CLI_ROWS(rows), check, NULL};
    arguments a = {0};
    cli_parse(&command, argc, argv, &a);
    error err;
    if (!export(&a, &err)) return cli_fail(&err, "export");
    log_end();
    printf("%s/model.safetensors, %s/smallworld_lstm.py\n", a.out, a.out);
    return STATUS_OK;
}
