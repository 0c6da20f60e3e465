/* smallworld COMMAND [options]: the table of commands. */
#include "cmd/cli.h"
#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/overwrite.h"
#include "core/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} commands[] = {
    {"train", cmd_train, "train a model from a YAML config"},
    {"eval", cmd_eval, "score text in bits per character"},
    {"features", cmd_features, "export the features of labelled documents"},
    {"probe", cmd_probe, "fit a linear probe on features"},
    {"classify", cmd_classify, "make a classifier of labelled documents, beside a baseline"},
    {"predict", cmd_predict, "classify documents by a saved probe or classifier"},
    {"generate", cmd_generate, "write text"},
    {"prune", cmd_prune, "drop a checkpoint's weakest blocks"},
    {"export", cmd_export, "write a model for PyTorch alone"},
    {"graph", cmd_graph, "describe the graphs of a config or checkpoint"},
    {"plot", cmd_plot, "draw the curves of runs"},
    {"report", cmd_report, "write a page and a model card of a run"},
    {"show", cmd_show, "make a page on which a model reads text"},
    {"bench", cmd_bench, "measure the products and the update on this machine"},
};

enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void print_help(void) {
    puts("Usage: smallworld COMMAND [OPTION...]\n"
         "Trains wide LSTMs that are block-sparse along small-world graphs, on bytes.\n");
    for (int i = 0; i < COMMANDS; i++) {
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    puts("\n'smallworld COMMAND --help' describes a command, with an example.\n"
         "'smallworld help COMMAND' does too; 'smallworld --version' prints the version, and what "
         "it computes with.");
}

static int run_unknown(const char *name) {
    const char *names[COMMANDS];
    error err;
    for (int i = 0; i < COMMANDS; i++) names[i] = commands[i].name;
    const char *near = nearest_name(name, names, COMMANDS);
    error_usage(&err, "unknown command '%s'%s%s%s", name, near ? "; the nearest is '" : "",
                near ? near : "", near ? "'" : "");
    return cli_fail(&err, NULL);
}

static void print_version(FILE *out, struct argp_state *state) {
    error why;
    (void)state;
    fprintf(out, "smallworld %s\n", SMALLWORLD_VERSION);
    backend *cpu = backend_cpu(FP32, 0);
    fprintf(out, "CPU: %s\n", cpu->device);
    cpu->memory->destroy(cpu);
    backend *gpu = backend_cuda(FP32, 0, &why);
    const char *reason = strstr(why.text, "device cuda: ");
    fprintf(out, "CUDA: %s\n",
            gpu      ? gpu->device
            : reason ? reason + strlen("device cuda: ")
                     : why.text);
    if (gpu) gpu->memory->destroy(gpu);
    char nccl[NCCL_TEXT];
    fprintf(out, "NCCL: %s\n", backend_nccl_version(nccl));
    fprintf(out, "MPI: %s\n", ranks_mpi_version());
}

static int run_command(const char *command, int argc, char **argv) {
    for (int i = 0; i < COMMANDS; i++) {
        if (strcmp(command, commands[i].name) != 0) continue;
        char *name = mem_format("smallworld %s", command); /* argp's messages start with it */
        argv[0] = name;
        int status = commands[i].run(argc, argv);
        free(name);
        return status;
    }
    return run_unknown(command);
}

/* Replaces -h by --help, which argp knows, if it cannot be the value of an option. */
static void accept_short_help(int argc, char **argv) {
    static char help[] = "--help";
    if (argc > 2 && strcmp(argv[2], "-h") == 0) argv[2] = help;
    if (argc > 3 && strcmp(argv[argc - 1], "-h") == 0 && strncmp(argv[argc - 2], "--", 2) != 0) {
        argv[argc - 1] = help;
    }
}

static int run(int argc, char **argv) {
    if (argc < 2) {
        error err;
        error_usage(&err, "expected a command");
        return cli_fail(&err, NULL);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 ||
        (strcmp(argv[1], "help") == 0 && argc == 2)) {
        print_help();
        return STATUS_OK;
    }
    if (strcmp(argv[1], "help") == 0) {
        char help[] = "--help", *arguments[] = {NULL, help, NULL};
        return run_command(argv[2], 2, arguments);
    }
    if (strcmp(argv[1], "--version") == 0) {
        print_version(stdout, NULL);
        return STATUS_OK;
    }
    accept_short_help(argc, argv);
    return run_command(argv[1], argc - 1, argv + 1);
}

/* argp calls this for --version of a command. */
void (*argp_program_version_hook)(FILE *, struct argp_state *) = print_version;

/* Opens standard input, output and error if they are closed, so that files opened later do not take
 * their places. Writing to a closed standard output must fail, because the output would be lost. */
static void open_standard(void) {
    static const int modes[] = {O_RDONLY, O_RDONLY, O_WRONLY};
    for (int file = STDIN_FILENO; file <= STDERR_FILENO; file++) {
        if (fcntl(file, F_GETFD) < 0) open("/dev/null", modes[file]); /* the lowest that is free */
    }
}

static void on_signal(int number) {
    file_remove_temporaries();
    signal(number, SIG_DFL);
    raise(number);
}

/* Whether `file` is a pipe that nobody reads any more. */
static bool is_unread(int file) {
    struct pollfd pipe = {.fd = file};
    return poll(&pipe, 1, 0) == 1 && (pipe.revents & POLLERR);
}

/* Closes standard output. The program also ends here after argp has printed help. If its reader has
 * left, as `head` does, it ends by SIGPIPE without a word, like other filters. */
static void close_output(void) {
    errno = 0;
    const bool failed = fflush(stdout) != 0 || ferror(stdout), unread = is_unread(STDOUT_FILENO);
    const int why = errno;
    if (fclose(stdout) == 0 && !failed) return;
    log_end();
    if (unread) on_signal(SIGPIPE);
    fprintf(stderr, "smallworld: cannot write standard output%s%s\n", why ? ": " : "",
            why ? strerror(why) : "");
    file_remove_temporaries();
    _exit(STATUS_FAILED);
}

/* Makes writing to a closed pipe, or past a limit on file sizes, an ordinary error. Training
 * handles the signals that stop it. */
static void set_signals(void) {
    stop_handle(on_signal, 0);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    file_guard_maps();
    overwrite_watch();
}

int main(int argc, char **argv) {
    open_standard();
    set_signals();
    atexit(file_remove_temporaries); /* libraries may end the program */
    atexit(close_output);
    at_quick_exit(file_remove_temporaries);
    argp_err_exit_status = STATUS_USAGE;
    return run(argc, argv);
}
