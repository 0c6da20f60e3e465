/* smallworld generate: write text, byte by byte from the model's distribution. */
#include "train/generate.h"
#include "cmd/cli.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    overrides model;
    const char *checkpoint, *prompt;
    generation how;
    bool json;
} arguments;

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "CHECKPOINT", .offset = offsetof(arguments, checkpoint), "a CHECKPOINT"},
    {CLI_TEXT, "prompt", "TEXT", .offset = offsetof(arguments, prompt),
     "Continue TEXT; default: start a new document"},
    {CLI_INTEGER, "bytes", "N", .offset = offsetof(arguments, how.bytes),
     "Number of bytes to write; default 500", 0, INT32_MAX},
    {CLI_NUMBER, "temperature", "T", .offset = offsetof(arguments, how.temperature),
     "Divide the logits by T; 0 always writes the likeliest byte; default 1", 0, 1e6},
    {CLI_COUNT, "top-k", "K", .offset = offsetof(arguments, how.top_k),
     "Draw from the K likeliest bytes only", 1, VOCABULARY},
    {CLI_NUMBER, "top-p", "P", .offset = offsetof(arguments, how.top_p),
     "Draw from the fewest likeliest bytes whose probabilities add up to P", 1e-9, 1},
    {CLI_INTEGER, "seed", "S", .offset = offsetof(arguments, how.seed),
     "Seed of the draws; default 1", 0, INT64_MAX},
    CLI_JSON(offsetof(arguments, json)),
    CLI_ONE_MODEL(offsetof(arguments, model)),
};

static void check(struct argp_state *state, void *input) {
    const arguments *a = input;
    if (a->prompt && !*a->prompt) cli_refuse(state, "--prompt: expected at least one byte");
}

int cmd_generate(int argc, char **argv) {
    static const cli_command command = {
        "CHECKPOINT",
        "Write text from the model, starting from a zero state and the prompt."
        "\vExample:\n  smallworld generate runs/quickstart/last.safetensors \\\n"
        "      --bytes 300 --temperature 0.7\n\nWith --json, `text` has U+FFFD in place of bytes "
        "that are not UTF-8; `base64` holds all bytes as they are.",
        CLI_ROWS(rows), check, NULL};
    arguments a = {.how = {.bytes = 500, .temperature = 1, .top_p = 1, .seed = 1}};
    cli_parse(&command, argc, argv, &a);
    error err;
    loaded_model loaded;
    if (!loaded_load(&loaded, a.checkpoint, &a.model, 1, 1, &err))
        return cli_fail(&err, "generate");
    const char *prompt = a.prompt ? a.prompt : "\n ";
    a.how.prompt = (const uint8_t *)prompt;
    a.how.given = strlen(prompt);
    size_t total = a.how.given + a.how.bytes;
    uint8_t *text = mem_alloc(total, 1);
    bool done = generate(loaded.m, &a.how, text, &err);
    loaded_free(&loaded);
    if (done && a.json) {
        json_writer w = {stdout, false};
        json_object_begin(&w, NULL);
        json_text(&w, "text", text, total);
        json_base64(&w, "base64", text, total);
        json_integer(&w, "bytes", (int64_t)a.how.bytes);
        json_object_end(&w);
        putchar('\n');
    } else if (done) {
        fwrite(text, 1, total, stdout);
        putchar('\n');
    }
    free(text);
    return done ? STATUS_OK : cli_fail(&err, "generate");
}
