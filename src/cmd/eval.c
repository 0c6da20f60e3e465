/* smallworld eval: bits per character of text. */
#include "cmd/cli.h"
#include "core/log.h"
#include "data/paths.h"
#include "data/sequence.h"
#include "train/evaluate.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    cli_model model;
    const char *checkpoint;
    config_list files;
    int64_t limit, gpus;
    bool exact, json;
} arguments;

enum { KEY_DATA = 1, KEY_EXACT, KEY_LIMIT, KEY_JSON };

static const struct argp_option option_table[] = {
    {"data", KEY_DATA, "FILE...", 0,
     "Text files; a name that ends in " PATHS_DOCUMENTS " holds documents", 0},
    {"exact", KEY_EXACT, NULL, 0,
     "Score in a single stripe, which approximates nothing and is slow", 0},
    {"limit", KEY_LIMIT, "BYTES", 0, "Score only the first BYTES bytes", 0},
    CLI_JSON(KEY_JSON),
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_DATA: cli_append(&a->files, text); return 0;
    case KEY_EXACT: a->exact = true; return 0;
    case KEY_LIMIT: a->limit = cli_integer(state, "--limit", text, 2, INT64_MAX); return 0;
    case KEY_JSON: a->json = true; return 0;
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &a->model;
        state->child_inputs[1] = &a->gpus;
        return 0;
    case ARGP_KEY_ARG:
        if (a->checkpoint) {
            cli_append(&a->files, text);
        } else {
            a->checkpoint = text;
        }
        return 0;
    case ARGP_KEY_END:
        if (!a->checkpoint) cli_refuse(state, "expected a CHECKPOINT");
        if (a->files.count == 0) cli_refuse(state, "expected --data FILE...");
        if (a->exact && a->model.batch)
            cli_refuse(state, "--batch: not together with --exact, which has one stripe");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

static void warn_of_idle(const ranks *r, int64_t minibatches, int batch) {
    if (minibatches >= ranks_count(r)) return;
    log_warning("only %lld of %d ranks have work: the text makes as many minibatches of %d "
                "stripes; a smaller --batch makes more",
                (long long)minibatches, ranks_count(r), batch);
}

static bool score_text(const arguments *a, cli_loaded *loaded, ranks *r, const corpus *text,
                       evaluation *e, error *err) {
    uint64_t size = a->limit && (uint64_t)a->limit < text->size ? (uint64_t)a->limit : text->size;
    if (size < 2) {
        return error_set(err, "%s: nothing to score: expected at least 2 bytes, found 1",
                         a->files.items[0]);
    }
    const cli_text most = {evaluate_stripes(size), (int64_t)size};
    if (!cli_make(loaded, a->exact ? 1 : 0, 0, most, err)) return false;
    model *m = loaded->m;
    warn_of_idle(r, evaluate_minibatches(size, m->batch), m->batch);
    sequence *s = sequence_in_order(text);
    recording *forward = evaluate_record(m);
    bool done = a->exact ? evaluate(m, forward, s, size, true, !a->json, e, err)
                         : evaluate_text(m, forward, s, size, r, !a->json, e, err);
    if (!done) {
        error reason = *err;
        error_set(err, "%s: %s", a->checkpoint, reason.text);
    }
    loaded->be->recording_free(loaded->be, forward);
    sequence_free(s);
    return done;
}

/* Refuses what ranks cannot share. */
static bool check_ranks(const arguments *a, const ranks *r, error *err) {
    if (ranks_count(r) == 1) return true;
    if (a->exact) return error_usage(err, "--exact: has one stripe, which ranks cannot share");
    for (int i = 0; i < a->files.count; i++) {
        if (strcmp(a->files.items[i], "-") != 0) continue;
        return error_usage(err, "--data: ranks cannot share standard input: expected files");
    }
    return true;
}

static bool same_checkpoint(const cli_loaded *loaded, ranks *r, error *err) {
    uint64_t number = 0;
    const char *sum = checkpoint_checksum(&loaded->checkpoint);
    for (; sum && *sum; sum++) number = number * 0x100000001b3 + (unsigned char)*sum;
    return ranks_same(r, (int64_t)number, "the checkpoint", err) &&
           ranks_same(r, loaded->checkpoint.options.train.batch, "--batch", err);
}

static bool score(const arguments *a, ranks *r, evaluation *e, error *err) {
    cli_loaded loaded;
    if (!check_ranks(a, r, err) || !cli_open(&loaded, a->checkpoint, &a->model, err)) return false;
    loaded.checkpoint.options.run.ranks = r;
    corpus_options how = {.html_entities = loaded.checkpoint.options.data.html_entities};
    corpus *text = corpus_read(a->files.items, a->files.count, &how, err);
    bool done = text && ranks_same(r, corpus_hash(text), "the text", err) &&
                same_checkpoint(&loaded, r, err) && score_text(a, &loaded, r, text, e, err);
    corpus_free(text);
    cli_unload(&loaded);
    return done;
}

int cmd_eval(int argc, char **argv) {
    static const struct argp_child children[] = {
        {&cli_model_argp, 0, "Device:", 0}, {&cli_ranks_argp, 0, NULL, 0}, {0}};
    static const struct argp argp = {
        option_table,
        parse,
        "CHECKPOINT --data FILE...",
        "Score text in bits per character. The files in order form one sequence; every byte but "
        "the first is predicted once. The sequence is cut into --batch stripes, each warmed up on "
        "the 1,024 bytes before it; of a long text, into as many times that as make stripes of 32 "
        "KiB and more, which --gpus shares out."
        "\vExample:\n  smallworld eval runs/quickstart/last.safetensors \\\n"
        "      --data data/reviews_test.tsv.gz --json",
        children,
        NULL,
        NULL};
    arguments a = {0};
    cli_parse(&argp, argc, argv, &a);
    error err;
    evaluation e = {0};
    ranks *r;
    if (!ranks_start(&r, (int)a.gpus, &err)) return cli_fail(&err, "eval");
    bool done = score(&a, r, &e, &err);
    free(a.files.items);
    if (!done) return cli_fail_rank(r, &err, "eval");
    ranks_end(r);
    log_end();
    if (a.json) {
        json_writer w = {stdout, false};
        json_object_begin(&w, NULL);
        json_number(&w, "bpc", e.bpc);
        json_integer(&w, "bytes", (int64_t)e.bytes);
        json_number(&w, "seconds", e.seconds);
        json_number(&w, "bytes_per_second", (double)e.bytes / e.seconds);
        json_object_end(&w);
        putchar('\n');
    } else {
        printf("%.4f bits per character over %llu bytes (%.0f bytes/s)\n", e.bpc,
               (unsigned long long)e.bytes, (double)e.bytes / e.seconds);
    }
    return STATUS_OK;
}
