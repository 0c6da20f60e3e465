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

enum { KEY_PROMPT = 1, KEY_BYTES, KEY_TEMPERATURE, KEY_TOP_K, KEY_TOP_P, KEY_SEED, KEY_JSON };

static const struct argp_option option_table[] = {
    {"prompt", KEY_PROMPT, "TEXT", 0, "Continue TEXT; default: start a new document", 0},
    {"bytes", KEY_BYTES, "N", 0, "Number of bytes to write; default 500", 0},
    {"temperature", KEY_TEMPERATURE, "T", 0,
     "Divide the logits by T; 0 always writes the likeliest byte; default 1", 0},
    {"top-k", KEY_TOP_K, "K", 0, "Draw from the K likeliest bytes only", 0},
    {"top-p", KEY_TOP_P, "P", 0,
     "Draw from the fewest likeliest bytes whose probabilities add up to P", 0},
    {"seed", KEY_SEED, "S", 0, "Seed of the draws; default 1", 0},
    CLI_JSON(KEY_JSON),
    {0},
};

static error_t parse(int key, char *text, struct argp_state *state) {
    arguments *a = state->input;
    switch (key) {
    case KEY_PROMPT:
        if (*text == '\0') cli_refuse(state, "--prompt: expected at least one byte");
        a->prompt = text;
        return 0;
    case KEY_BYTES:
        a->how.bytes = (size_t)cli_integer(state, "--bytes", text, 0, INT32_MAX);
        return 0;
    case KEY_TEMPERATURE:
        a->how.temperature = cli_number(state, "--temperature", text, 0, 1e6);
        return 0;
    case KEY_TOP_K:
        a->how.top_k = (int)cli_integer(state, "--top-k", text, 1, VOCABULARY);
        return 0;
    case KEY_TOP_P: a->how.top_p = cli_number(state, "--top-p", text, 1e-9, 1); return 0;
    case KEY_SEED:
        a->how.seed = (uint64_t)cli_integer(state, "--seed", text, 0, INT64_MAX);
        return 0;
    case KEY_JSON: a->json = true; return 0;
    case ARGP_KEY_INIT: state->child_inputs[0] = &a->model; return 0;
    case ARGP_KEY_ARG: cli_take(state, "CHECKPOINT", &a->checkpoint, text); return 0;
    case ARGP_KEY_END:
        if (!a->checkpoint) cli_refuse(state, "expected a CHECKPOINT");
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

int cmd_generate(int argc, char **argv) {
    static const struct argp_child children[] = {{&cli_device_argp, 0, "Device:", 0}, {0}};
    static const struct argp argp = {
        option_table,
        parse,
        "CHECKPOINT",
        "Write text from the model, starting from a zero state and the prompt."
        "\vExample:\n  smallworld generate runs/quickstart/last.safetensors \\\n"
        "      --bytes 300 --temperature 0.7\n\nWith --json, `text` has U+FFFD in place of bytes "
        "that are not UTF-8; `base64` holds all bytes as they are.",
        children,
        NULL,
        NULL};
    arguments a = {.how = {.bytes = 500, .temperature = 1, .top_p = 1, .seed = 1}};
    cli_parse(&argp, argc, argv, &a);
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
