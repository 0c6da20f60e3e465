/* smallworld prune: remove blocks from a checkpoint. */
#include "cmd/cli.h"
#include "core/log.h"
#include "train/checkpoint.h"

#include <stdlib.h>

typedef struct arguments {
    const char *checkpoint, *out;
    double density;
    bool json;
} arguments;

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "CHECKPOINT", .offset = offsetof(arguments, checkpoint), "a CHECKPOINT"},
    {CLI_NUMBER, "density", "SHARE", .offset = offsetof(arguments, density),
     "Share of blocks to keep, self-blocks included", 0, 1, .required = true},
    {CLI_TEXT, "out", "FILE", .offset = offsetof(arguments, out), "Checkpoint to write",
     .required = true},
    CLI_JSON(offsetof(arguments, json)),
};

/* Refuses a density that is not below the checkpoint's. */
static bool check_density(const arguments *a, const model *m, error *err) {
    double now = model_density(m), least = 1 / (double)m->graphs[0]->nodes;
    if (m->config.hubs) {
        return error_set(err, "%s: a model with hubs, whose rectangles cannot be pruned",
                         a->checkpoint);
    }
    if (a->density >= least && a->density < now) return true;
    return error_set(err,
                     "--density: expected at least %.6g, the share of self-blocks, and below %.6g, "
                     "the density of %s, got %.6g",
                     least, now, a->checkpoint, a->density);
}

/* Prunes. Only a model for training has all that a checkpoint holds; with one stream and one step
 * it stays small. */
static bool prune(const arguments *a, backend *be, double *density, size_t *parameters,
                  error *err) {
    checkpoint c;
    if (!checkpoint_open(&c, a->checkpoint, err)) return false;
    model *m = checkpoint_model(&c, be, 1, 1, MODEL_TRAINING, err), *pruned = NULL;
    if (m && check_density(a, m, err)) pruned = model_prune(m, a->density, err);
    if (pruned) {
        *density = model_density(pruned);
        *parameters = parameter_scalars(&pruned->parameters);
    }
    const bool done =
        pruned && checkpoint_save_model(pruned, NULL, &c.options, checkpoint_step(&c), a->out, err);
    model_free(pruned);
    model_free(m);
    checkpoint_close(&c);
    return done;
}

int cmd_prune(int argc, char **argv) {
    static const cli_command command = {
        "CHECKPOINT --density SHARE --out FILE",
        "Write a checkpoint without its weakest recurrent blocks, those of smallest Euclidean "
        "norm. Fine-tune it with train.init."
        "\vExample:\n  smallworld prune runs/quickstart/last.safetensors --density 0.05 \\\n"
        "      --out runs/pruned.safetensors",
        CLI_ROWS(rows), NULL, NULL};
    arguments a = {0};
    cli_parse(&command, argc, argv, &a);
    error err;
    double density = 0;
    size_t parameters = 0;
    backend *be = backend_cpu(FP32, 0);
    bool done = prune(&a, be, &density, &parameters, &err);
    be->memory->destroy(be);
    if (!done) return cli_fail(&err, "prune");
    log_end();
    if (a.json) {
        json_writer w = {stdout, false};
        json_object_begin(&w, NULL);
        json_number(&w, "density", density);
        json_integer(&w, "parameters", (int64_t)parameters);
        json_string(&w, "checkpoint", a.out);
        json_object_end(&w);
        putchar('\n');
    } else {
        printf("%s: density %.6g, %zu parameters\n", a.out, density, parameters);
    }
    return STATUS_OK;
}
