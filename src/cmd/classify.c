/* smallworld classify: from labelled documents to a classifier, beside an n-gram baseline. */
#include "classify/job.h"
#include "cmd/cli.h"
#include "core/log.h"
#include "data/files.h"

typedef struct arguments {
    job_options job;
    cli_columns columns;
    int64_t gpus;
    bool json;
} arguments;

static const cli_row rows[] = {
    {CLI_TEXT, "train", "FILE", .offset = offsetof(arguments, job.files.train),
     "Labelled documents: .csv or .jsonl with a column of texts and one of labels, .tsv with a "
     "line LABEL<TAB>TEXT each, fastText's lines as .ft.txt, or a folder with a folder of files "
     "for each class",
     .required = true},
    {CLI_TEXT, "text", "FILE", .offset = offsetof(arguments, job.files.text),
     "More text of the same kind, whose labels, if any, are not read; the model learns from it"},
    {CLI_TEXT, "test", "FILE", .offset = offsetof(arguments, job.files.test),
     "Labelled documents to measure errors on; default: a fifth of the others, chosen by a hash of "
     "the text"},
    {CLI_TEXT, "model", "RUN|CHECKPOINT", .offset = offsetof(arguments, job.given),
     "Model whose features to use; default: one is trained on the documents' text first"},
    {CLI_NUMBER, "minutes", "N", .offset = offsetof(arguments, job.minutes),
     "Minutes that all may take, about; what cannot be done in them is not tried; 0: n-grams "
     "alone; default 10, on a CPU 0 unless there is --model",
     0, 1e6},
    {CLI_INTEGER, "steps", "N", .offset = offsetof(arguments, job.steps),
     "Train the model of the text for N updates, and all else to its end, however long that takes, "
     "so that results repeat; default: as many as the minutes allow",
     1, 1e12},
    {CLI_CALL, "class-weight", "NAME", .offset = offsetof(arguments, job.balanced),
     "balanced: documents weigh by their class so that all classes count alike, in fits and in "
     "choices; default none",
     .take = cli_take_class_weight},
    {CLI_INTEGER, "drop-rare", "N", .offset = offsetof(arguments, job.files.drop_rare),
     "Leave out classes that fewer than N documents have; their documents count as unlabelled", 2,
     1e9},
    {CLI_TEXT, "out", "DIR", .offset = offsetof(arguments, job.out),
     "Folder for the classifier, its page and its table", .required = true},
    {CLI_FLAG, "overwrite", NULL, .offset = offsetof(arguments, job.overwrite),
     "Replace the classifier that the folder holds"},
    CLI_JSON(offsetof(arguments, json)),
    CLI_COLUMNS(offsetof(arguments, columns)),
    CLI_MODEL(offsetof(arguments, job.device)),
    CLI_GPUS(offsetof(arguments, gpus)),
};

static void check(struct argp_state *state, void *input) {
    const arguments *a = input;
    if (!*a->job.out) cli_refuse(state, "expected --out DIR");
}

static bool check_ranks(const job_options *how, error *err) {
    const char *const files[] = {how->files.train, how->files.text, how->files.test};
    return ranks_count(how->device.ranks) == 1 || !paths_read_input(files, 3) ||
           error_usage(err, "ranks cannot share standard input: expected files");
}

static void print(const job *j, const arguments *a) {
    const outcome found = job_outcome(j);
    if (a->json) {
        outcome_json(&found, stdout);
        return;
    }
    outcome_text(&found, stdout);
    printf("%s/index.html\n", a->job.out);
}

int cmd_classify(int argc, char **argv) {
    static const cli_command command = {
        "--train FILE --out DIR",
        "Make a classifier of documents, and measure it beside what it should beat: the commonest "
        "class. Of n-grams of words and bytes, a model tuned on the labels, a probe on a model's "
        "features, and n-grams joined with the better of the two, the one that errs least on "
        "held-out training documents is saved. DIR then is all that predict needs, and "
        "DIR/index.html shows errors and mistakes."
        "\vExample:\n  smallworld classify --train reviews.csv --out reviews\n  echo 'A dull "
        "film.' "
        "| smallworld predict reviews --text -",
        CLI_ROWS(rows), check, NULL};
    arguments a = {.job.minutes = -1};
    error err;
    cli_parse(&command, argc, argv, &a);
    a.job.text_column = a.columns.text;
    a.job.label_column = a.columns.label;
    static job j; /* which a thread may still read when the program ends */
    ranks **r = &a.job.device.ranks;
    if (!ranks_start(r, (int)a.gpus, &err)) return cli_fail(&err, "classify");
    const bool done = check_ranks(&a.job, &err) && job_run(&j, &a.job, &err);
    log_end();
    if (!done) return cli_fail_rank(*r, &err, "classify");
    if (ranks_rank(*r) == 0) print(&j, &a);
    ranks_end(*r);
    job_free(&j);
    return STATUS_OK;
}
