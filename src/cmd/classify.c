/* smallworld classify: from labelled documents to a classifier, beside an n-gram baseline. */
#include "classify/job.h"
#include "cmd/cli.h"
#include "core/log.h"
#include "data/paths.h"

typedef struct arguments {
    job_options job;
    cli_columns columns;
    int64_t gpus;
    bool json;
} arguments;

enum {
    KEY_TRAIN = 1,
    KEY_TEXT,
    KEY_TEST,
    KEY_MODEL,
    KEY_MINUTES,
    KEY_STEPS,
    KEY_CLASS_WEIGHT,
    KEY_DROP_RARE,
    KEY_OUT,
    KEY_OVERWRITE,
    KEY_JSON
};

static const struct argp_option option_table[] = {
    {"train", KEY_TRAIN, "FILE", 0,
     "Labelled documents: .csv or .jsonl with a column of texts and one of labels, .tsv with a "
     "line LABEL<TAB>TEXT each, fastText's lines as .ft.txt, or a folder with a folder of files "
     "for each class",
     0},
    {"text", KEY_TEXT, "FILE", 0,
     "More text of the same kind, whose labels, if any, are not read; the model learns from it", 0},
    {"test", KEY_TEST, "FILE", 0,
     "Labelled documents to measure errors on; default: a fifth of the others, chosen by a hash of "
     "the text",
     0},
    {"model", KEY_MODEL, "RUN|CHECKPOINT", 0,
     "Model whose features to use; default: one is trained on the documents' text first", 0},
    {"minutes", KEY_MINUTES, "N", 0,
     "Minutes that all may take, about; what cannot be done in them is not tried; 0: n-grams "
     "alone; default 10, on a CPU 0 unless there is --model",
     0},
    {"steps", KEY_STEPS, "N", 0,
     "Train the model of the text for N updates, and all else to its end, however long that takes, "
     "so that results repeat; default: as many as the minutes allow",
     0},
    {"class-weight", KEY_CLASS_WEIGHT, "NAME", 0,
     "balanced: documents weigh by their class so that all classes count alike, in fits and in "
     "choices; default none",
     0},
    {"drop-rare", KEY_DROP_RARE, "N", 0,
     "Leave out classes that fewer than N documents have; their documents count as unlabelled", 0},
    {"out", KEY_OUT, "DIR", 0, "Folder for the classifier, its page and its table", 0},
    {"overwrite", KEY_OVERWRITE, NULL, 0, "Replace the classifier that the folder holds", 0},
    CLI_JSON(KEY_JSON),
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_TRAIN: a->job.files.train = text; return 0;
    case KEY_TEXT: a->job.files.text = text; return 0;
    case KEY_TEST: a->job.files.test = text; return 0;
    case KEY_MODEL: a->job.given = text; return 0;
    case KEY_STEPS: a->job.steps = cli_integer(state, "--steps", text, 1, (int64_t)1e12); return 0;
    case KEY_MINUTES: a->job.minutes = cli_number(state, "--minutes", text, 0, 1e6); return 0;
    case KEY_CLASS_WEIGHT:
        a->job.balanced = cli_choice(state, "--class-weight", text, CLASS_WEIGHTS);
        return 0;
    case KEY_DROP_RARE:
        a->job.files.drop_rare = cli_integer(state, "--drop-rare", text, 2, (int64_t)1e9);
        return 0;
    case KEY_OUT: a->job.out = text; return 0;
    case KEY_OVERWRITE: a->job.overwrite = true; return 0;
    case KEY_JSON: a->json = true; return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->columns;
        state->child_inputs[1] = &a->job.device;
        state->child_inputs[2] = &a->gpus;
        return 0;
    case ARGP_KEY_ARG: cli_refuse(state, "unexpected argument '%s'", text); return 0;
    case ARGP_KEY_END:
        if (!a->job.files.train) cli_refuse(state, "expected --train FILE");
        if (!a->job.out || !*a->job.out) cli_refuse(state, "expected --out DIR");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
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
    static const struct argp_child children[] = {{&cli_columns_argp, 0, NULL, 0},
                                                 {&cli_model_argp, 0, "Device:", 0},
                                                 {&cli_ranks_argp, 0, NULL, 0},
                                                 {0}};
    static const struct argp argp = {
        option_table,
        parse,
        "--train FILE --out DIR",
        "Make a classifier of documents, and measure it beside what it should beat: the commonest "
        "class, and logistic regression on n-grams of words and bytes. Of the n-grams, a model "
        "tuned on the labels, a probe on a model's features, and n-grams joined with the better of "
        "the two, the one that errs least on held-out training documents is saved. DIR then is all "
        "that predict needs, and DIR/index.html shows errors and mistakes."
        "\vExample:\n  smallworld classify --train reviews.csv --out reviews\n  echo 'A dull "
        "film.' "
        "| smallworld predict reviews --text -",
        children,
        NULL,
        NULL};
    arguments a = {.job.minutes = -1};
    error err;
    cli_parse(&argp, argc, argv, &a);
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
