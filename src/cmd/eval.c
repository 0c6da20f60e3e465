/* smallworld eval: bits per character of text. */
#include "cmd/cli.h"
#include "core/integer.h"
#include "core/log.h"
#include "data/files.h"
#include "data/minibatches.h"
#include "train/evaluate.h"

#include <math.h>
#include <stdlib.h>

typedef struct arguments {
    overrides model;
    cli_columns columns;
    const char *checkpoint;
    config_list files;
    int64_t limit, gpus;
    bool exact, json;
    bool dynamic;
    char *tune;         /* a file, or NULL */
    double rate, decay; /* NAN if not given */
} arguments;

/* Of dynamic evaluation without --dynamic-tune, and where its search begins. */
static const double usual_rate = 3e-4, usual_decay = 1e-3;

/* Dynamic evaluation cuts a text into no more stripes than of this size. */
static const uint64_t dynamic_stripe = 1 << 20;

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "CHECKPOINT", .offset = offsetof(arguments, checkpoint), "a CHECKPOINT"},
    {CLI_MORE, NULL, NULL, .offset = offsetof(arguments, files)},
    {CLI_LIST, "data", "FILE...", .offset = offsetof(arguments, files),
     "Text files; " PATHS_LINES " files, .csv and .jsonl ones hold documents", .required = true},
    {CLI_FLAG, "exact", NULL, .offset = offsetof(arguments, exact),
     "Score in a single stripe, which approximates nothing and is slow"},
    {CLI_INTEGER, "limit", "BYTES", .offset = offsetof(arguments, limit),
     "Score only the first BYTES bytes", 2, INT64_MAX},
    {CLI_FLAG, "dynamic", NULL, .offset = offsetof(arguments, dynamic),
     "Go on learning from the text that is scored, 32 bytes of every stripe at a time; the "
     "checkpoint stays as it is. One stripe a MiB unless --batch says otherwise: fewer learn more, "
     "and take longer",
     .group = 1},
    {CLI_TEXT, "dynamic-tune", "FILE", .offset = offsetof(arguments, tune),
     "Find the rate, the decay and the usual size of gradients on the first 128 KiB of FILE",
     .group = 1},
    {CLI_NUMBER, "dynamic-rate", "X", .offset = offsetof(arguments, rate),
     "What a weight changes by where its gradient is of the usual size (3e-4)", 0, 1, .group = 1},
    {CLI_NUMBER, "dynamic-decay", "X", .offset = offsetof(arguments, decay),
     "The share of the way back to the trained weights after 32 bytes (1e-3)", 0, 1, .group = 1},
    CLI_JSON(offsetof(arguments, json)),
    CLI_MODEL(offsetof(arguments, model)),
    CLI_COLUMNS(offsetof(arguments, columns)),
    CLI_GPUS(offsetof(arguments, gpus)),
};

static void check(struct argp_state *state, void *input) {
    const arguments *a = input;
    if (a->exact && a->model.batch)
        cli_refuse(state, "--batch: not together with --exact, which has one stripe");
    if (!a->dynamic && (a->tune || !isnan(a->rate) || !isnan(a->decay)))
        cli_refuse(state, "--dynamic-...: expected --dynamic beside it");
}

/* What is printed at the end. */
typedef struct outcome {
    evaluation result;
    dynamic_rates rates;
    int stripes; /* of dynamic evaluation */
} outcome;

static bool tune(const arguments *a, loaded_model *loaded, recording *segment, dynamic_rates *rates,
                 error *err) {
    const corpus_options how = cli_reading(&a->columns, &loaded->checkpoint.options);
    evaluation untuned, tuned;
    corpus *text = corpus_read((char **)&a->tune, 1, &how, err);
    if (!text) return false;
    sequence *s = sequence_in_order(text);
    bool done = evaluate_tune(loaded->m, segment, s, !a->json, rates, &untuned, &tuned, err);
    if (done) {
        log_line("%s: %.4f bits, with learning %.4f, at rate %g and decay %g", a->tune, untuned.bpc,
                 tuned.bpc, rates->rate, rates->decay);
    }
    sequence_free(s);
    corpus_free(text);
    return done;
}

/* Makes the model that learns, with as many streams as stripes. */
static bool make_dynamic(const arguments *a, loaded_model *loaded, uint64_t size, error *err) {
    options *o = &loaded->checkpoint.options;
    const int64_t usual = (int64_t)((size + dynamic_stripe - 1) / dynamic_stripe);
    int64_t stripes = o->train.batch;
    if (!loaded->batch_given) stripes = integer_min(stripes, a->exact ? 1 : usual);
    const text_limits most = {evaluate_stripes(size), (int64_t)size};
    loaded->use = MODEL_TRAINING;
    o->model.dropout = 0;
    return loaded_make(loaded, (int)stripes, EVALUATE_SEGMENT, most, err);
}

static bool score_dynamic(const arguments *a, loaded_model *loaded, const sequence *s,
                          uint64_t size, outcome *out, error *err) {
    dynamic_rates *rates = &out->rates;
    *rates = (dynamic_rates){.rate = isnan(a->rate) ? usual_rate : a->rate,
                             .decay = isnan(a->decay) ? usual_decay : a->decay};
    recording *segment = evaluate_record_dynamic(loaded->m);
    out->stripes = loaded->m->batch;
    bool done = (!a->tune || tune(a, loaded, segment, rates, err)) &&
                evaluate_dynamic(loaded->m, segment, s, size, rates, !a->json, &out->result, err);
    loaded->be->memory->recording_free(loaded->be, segment);
    return done;
}

static bool score_static(const arguments *a, loaded_model *loaded, ranks *r, const sequence *s,
                         uint64_t size, outcome *out, error *err) {
    model *m = loaded->m;
    evaluation *e = &out->result;
    cli_warn_of_idle(r, evaluate_minibatches(size, m->batch), m->batch);
    recording *forward = evaluate_record(m);
    bool done = a->exact ? evaluate(m, forward, s, size, true, !a->json, e, err)
                         : evaluate_text(m, forward, s, size, r, !a->json, e, err);
    loaded->be->memory->recording_free(loaded->be, forward);
    return done;
}

static bool score_text(const arguments *a, loaded_model *loaded, ranks *r, const corpus *text,
                       outcome *out, error *err) {
    uint64_t size = a->limit && (uint64_t)a->limit < text->size ? (uint64_t)a->limit : text->size;
    if (size < 2) {
        return error_set(err, "%s: nothing to score: expected at least 2 bytes, found 1",
                         a->files.items[0]);
    }
    const text_limits most = {evaluate_stripes(size), (int64_t)size};
    if (!(a->dynamic ? make_dynamic(a, loaded, size, err)
                     : loaded_make(loaded, a->exact ? 1 : 0, 0, most, err))) {
        return false;
    }
    sequence *s = sequence_in_order(text);
    bool done = a->dynamic ? score_dynamic(a, loaded, s, size, out, err)
                           : score_static(a, loaded, r, s, size, out, err);
    if (!done) {
        error reason = *err;
        error_set(err, "%s: %s", a->checkpoint, reason.text);
    }
    sequence_free(s);
    return done;
}

/* Refuses what ranks cannot share. */
static bool check_ranks(const arguments *a, const ranks *r, error *err) {
    if (ranks_count(r) == 1) return true;
    if (a->exact) return error_usage(err, "--exact: has one stripe, which ranks cannot share");
    if (a->dynamic) return error_usage(err, "--dynamic: learns as it goes, so expected one GPU");
    return !paths_read_input((const char *const *)a->files.items, a->files.count) ||
           error_usage(err, "--data: ranks cannot share standard input: expected files");
}

static bool same_checkpoint(const loaded_model *loaded, ranks *r, error *err) {
    uint64_t number = 0;
    const char *sum = checkpoint_checksum(&loaded->checkpoint);
    for (; sum && *sum; sum++) number = number * 0x100000001b3 + (unsigned char)*sum;
    return ranks_same(r, (int64_t)number, "the checkpoint", err) &&
           ranks_same(r, loaded->checkpoint.options.train.batch, "--batch", err);
}

static bool score(const arguments *a, outcome *out, error *err) {
    loaded_model loaded;
    ranks *r = a->model.ranks;
    if (!check_ranks(a, r, err) || !loaded_open(&loaded, a->checkpoint, &a->model, err))
        return false;
    corpus_options how = cli_reading(&a->columns, &loaded.checkpoint.options);
    corpus *text = corpus_read(a->files.items, a->files.count, &how, err);
    bool done = text && ranks_same(r, corpus_hash(text), "the text", err) &&
                same_checkpoint(&loaded, r, err) && score_text(a, &loaded, r, text, out, err);
    corpus_free(text);
    loaded_free(&loaded);
    return done;
}

int cmd_eval(int argc, char **argv) {
    static const cli_command command = {
        "CHECKPOINT --data FILE...",
        "Score text in bits per character. The files in order form one sequence; every byte but "
        "the first is predicted once. The sequence is cut into --batch stripes, each warmed up on "
        "the 1,024 bytes before it; of a long text, into as many times that as make stripes of 32 "
        "KiB and more, which --gpus shares out."
        "\vExample:\n  smallworld eval runs/quickstart/last.safetensors \\\n"
        "      --data data/reviews_test.tsv.gz --json",
        CLI_ROWS(rows), check, NULL};
    arguments a = {.rate = NAN, .decay = NAN};
    cli_parse(&command, argc, argv, &a);
    error err;
    outcome out = {0};
    ranks **r = &a.model.ranks;
    if (!ranks_start(r, (int)a.gpus, &err)) return cli_fail(&err, "eval");
    bool done = score(&a, &out, &err);
    free(a.files.items);
    if (!done) return cli_fail_rank(*r, &err, "eval");
    ranks_end(*r);
    log_end();
    const evaluation e = out.result;
    if (a.json) {
        json_writer w = {stdout, false};
        json_object_begin(&w, NULL);
        json_number(&w, "bpc", e.bpc);
        json_integer(&w, "bytes", (int64_t)e.bytes);
        json_number(&w, "seconds", e.seconds);
        json_number(&w, "bytes_per_second", (double)e.bytes / e.seconds);
        if (a.dynamic) {
            json_integer(&w, "stripes", out.stripes);
            json_number(&w, "dynamic_rate", out.rates.rate);
            json_number(&w, "dynamic_decay", out.rates.decay);
        }
        json_object_end(&w);
        putchar('\n');
    } else {
        printf("%.4f bits per character over %llu bytes (%.0f bytes/s)", e.bpc,
               (unsigned long long)e.bytes, (double)e.bytes / e.seconds);
        if (a.dynamic) {
            printf(", learning in %d stripe%s at rate %g and decay %g", out.stripes,
                   out.stripes > 1 ? "s" : "", out.rates.rate, out.rates.decay);
        }
        putchar('\n');
    }
    return STATUS_OK;
}
