/* smallworld COMMAND [options]: the table of commands. */
#include "cmd/cli.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"train", cmd_train, "train a model from a YAML config"},
    {"eval", cmd_eval, "score text in bits per character"},
    {"features", cmd_features, "export the features of labelled documents"},
    {"probe", cmd_probe, "fit a linear probe on features"},
    {"generate", cmd_generate, "write text"},
    {"graph", cmd_graph, "describe the graphs of a config or checkpoint"},
    {"bench", cmd_bench, "measure the products and the update on this machine"},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(FILE *out) {
    fputs("Usage: smallworld COMMAND [OPTION...]\n"
          "Trains wide LSTMs that are block-sparse along small-world graphs, on bytes.\n\n",
          out);
    for (int i = 0; i < COMMANDS; i++) {
        fprintf(out, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\n'smallworld COMMAND --help' describes a command, with an example.\n"
          "'smallworld --version' prints the version.\n",
          out);
}

static int run_unknown(const char *name) {
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) names[i] = commands[i].name;
    fprintf(stderr,
            "smallworld: unknown command '%s'; the nearest is '%s'\n"
            "Try 'smallworld --help' for more information.\n",
            name, nearest_name(name, names, COMMANDS));
    return STATUS_USAGE;
}

int main(int argc, char **argv) {
    argp_err_exit_status = STATUS_USAGE;
    if (argc < 2) {
        print_help(stderr);
        return STATUS_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout);
        return STATUS_OK;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("smallworld " SMALLWORLD_VERSION);
        return STATUS_OK;
    }
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        char *name = mem_format("smallworld %s", argv[1]);
        argv[1] = name; /* argp's messages start with it */
        int status = commands[i].run(argc - 1, argv + 1);
        free(name);
        if (fflush(stdout) != 0) {
            fprintf(stderr, "smallworld: cannot write standard output\n");
            return STATUS_FAILED;
        }
        return status;
    }
    return run_unknown(argv[1]);
}
