/* smallworld plot: draw the curves of runs. */
#include "cmd/cli.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/overwrite.h"
#include "core/stop.h"
#include "page/curves.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct arguments {
    config_list runs;
    const char *out, *csv;
    bool follow;
} arguments;

/* The page is written this often, and no sooner than this many times the duration of the last
 * write. */
enum { FOLLOW_SECONDS = 10, FOLLOW_FACTOR = 20 };

static const cli_row rows[] = {
    {CLI_MORE, NULL, NULL, .offset = offsetof(arguments, runs)},
    {CLI_TEXT, "out", "FILE", .offset = offsetof(arguments, out),
     "Write a page to FILE.html, or the charts alone to FILE.svg"},
    {CLI_TEXT, "csv", "FILE", .offset = offsetof(arguments, csv),
     "Write every line of metrics.jsonl to FILE as CSV"},
    {CLI_FLAG, "follow", NULL, .offset = offsetof(arguments, follow),
     "Write the page again while a run goes on; the page reloads itself"},
};

static void check(struct argp_state *state, void *input) {
    const arguments *a = input;
    if (a->runs.count == 0) cli_refuse(state, "expected a run's folder");
    if (a->runs.count > CURVES_MOST_RUNS) {
        cli_refuse(state, "expected at most %d runs, got %d", CURVES_MOST_RUNS, a->runs.count);
    }
    if (!a->out && !a->csv) cli_refuse(state, "expected --out FILE or --csv FILE");
    if (a->out && !file_ends_in(a->out, ".html") && !file_ends_in(a->out, ".svg")) {
        cli_refuse(state, "--out: expected a name that ends in .html or .svg, got '%s'", a->out);
    }
    if (a->follow && !a->out) cli_refuse(state, "--follow: expected --out FILE too");
}

static bool write_csv(const arguments *a, error *err) {
    file_writer writer;
    if (!file_begin(&writer, a->csv, err)) return false;
    fputs("run", writer.stream);
    for (int k = 0; k < LOG_COLUMNS; k++) fprintf(writer.stream, ",%s", run_log_names[k]);
    fputc('\n', writer.stream);
    for (int i = 0; i < a->runs.count; i++) {
        if (run_log_csv(a->runs.items[i], a->runs.items[i], writer.stream, err)) continue;
        file_abort(&writer);
        return false;
    }
    return file_commit(&writer, err);
}

static bool any_goes_on(const arguments *a) {
    for (int i = 0; i < a->runs.count; i++) {
        if (file_folder_is_locked(a->runs.items[i])) return true;
    }
    return false;
}

/* Whether a run goes on that has no line of metrics yet. */
static bool any_begins(const arguments *a) {
    bool begins = false;
    for (int i = 0; i < a->runs.count && !begins; i++) {
        char *path = mem_format("%s/metrics.jsonl", a->runs.items[i]);
        struct stat status;
        begins = file_folder_is_locked(a->runs.items[i]) &&
                 (stat(path, &status) != 0 || status.st_size == 0);
        free(path);
    }
    return begins;
}

/* Waits until the page is due again, the runs have ended, or a signal arrives. */
static void wait_for(const arguments *a, double seconds) {
    double end = clock_seconds() + fmax(FOLLOW_SECONDS, FOLLOW_FACTOR * seconds);
    while (clock_seconds() < end && !stop_signal() && any_goes_on(a)) usleep(200000);
}

static bool follow(const arguments *a, error *err) {
    stop_catch();
    while (any_begins(a) && !stop_signal()) usleep(200000);
    for (;;) {
        /* This is asked before reading, so that the last page has everything. */
        bool going = any_goes_on(a) && !stop_signal();
        double start = clock_seconds();
        if (!curves_plot(a->runs.items, a->runs.count, a->out, going ? FOLLOW_SECONDS : 0, err)) {
            return false;
        }
        if (!going) return true;
        overwrite_release(a->out);
        wait_for(a, clock_seconds() - start);
    }
}

int cmd_plot(int argc, char **argv) {
    static const cli_command command = {
        "RUN... --out FILE",
        "Plot the curves of one or more runs: bits per character against bytes and against "
        "minutes, for training and validation; learning rate; gradient norm. A table lists the "
        "keys in which their configs differ.\vExample:\n  smallworld plot runs/a runs/b --out "
        "compared.html",
        CLI_ROWS(rows), check, NULL};
    arguments a = {0};
    cli_parse(&command, argc, argv, &a);
    error err;
    bool done = !a.csv || write_csv(&a, &err);
    if (done && a.follow) {
        done = follow(&a, &err);
    } else if (done && a.out) {
        done = curves_plot(a.runs.items, a.runs.count, a.out, 0, &err);
    }
    free(a.runs.items);
    if (!done) return cli_fail(&err, "plot");
    if (a.csv) printf("%s\n", a.csv);
    if (a.out) printf("%s\n", a.out);
    return STATUS_OK;
}
