/* JSON files: the origin of features, PREFIX.json, and a run's metrics.jsonl. The lowest bit of an
 * input's first byte chooses; the rest is the file. */
#include "fuzz.h"

#include "core/file.h"
#include "probe/origin.h"
#include "train/run_log.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *origin_path, *log_path;
static char prefix[512], folder[512];

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    origin_path = scratch_path("f.json");
    log_path = scratch_path("metrics.jsonl");
    snprintf(prefix, sizeof prefix, "%.*s", (int)(strlen(origin_path) - strlen(".json")),
             origin_path);
    snprintf(folder, sizeof folder, "%.*s", (int)(strlen(log_path) - strlen("/metrics.jsonl")),
             log_path);
    return 0;
}

static void read_origin(void) {
    origin o;
    error err;
    char text[ORIGIN_POOLS_TEXT];
    if (!origin_read(&o, prefix, &err)) {
        require(strstr(err.text, origin_path) != NULL, "an error that does not name the file");
        return;
    }
    if (o.known) {
        touch(o.model, strlen(o.model) + 1);
        require(*origin_state_name(o.state), "a state without a name");
        require(*origin_pools_text(&o.pools, text), "pools without a name");
    }
    for (int k = 0; k < o.name_count; k++) touch(o.names[k], strlen(o.names[k]) + 1);
    origin_free(&o);
}

static void read_log(void) {
    run_log log;
    error err;
    if (!run_log_read(&log, folder, &err)) {
        require(strstr(err.text, log_path) != NULL, "an error that does not name the file");
        return;
    }
    for (int k = 0; k < LOG_COLUMNS && log.count > 0; k++) {
        touch(log.value[k], log.count * sizeof *log.value[k]);
        run_log_last(&log, (log_column)k);
        run_log_least(&log, (log_column)k);
    }
    run_log_free(&log);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    const bool is_log = data[0] & 1;
    scratch_write(is_log ? log_path : origin_path, data + 1, size - 1);
    if (is_log) {
        read_log();
    } else {
        read_origin();
    }
    return 0;
}

/* -------------------------------------------------------------------------------------- mutator */

static void add_value(buffer *b) {
    static const char *const values[] = {"\"cell\"", "\"last,mean\"", "\"features\"",   "null",
                                         "1.5",      "-3e2",          "[\"a\", \"b\"]", "[]",
                                         "{}",       "\"\\u00e9\"",   "\"\\ud83c\"",    "true",
                                         "1e999",    "\"0123abcd\"",  "\"max\""};
    if (draw_once_in(6)) {
        buffer_text(b, "%lld", (long long)draw_integer());
    } else if (draw_once_in(6)) {
        buffer_text(b, draw_once_in(2) ? "\"%s\"" : "%s", draw_text());
    } else {
        buffer_text(b, "%s", values[draw(sizeof values / sizeof values[0])]);
    }
}

static void add_object(buffer *b, bool is_log) {
    static const char *const members[] = {"kind", "state", "pool", "model", "names"};
    buffer_text(b, "{");
    for (uint64_t k = 0, count = draw(8); k < count; k++) {
        const char *key = is_log ? run_log_names[draw(LOG_COLUMNS)] : members[draw(5)];
        buffer_text(b, "%s\"%s\":", k ? "," : "", draw_once_in(8) ? draw_text() : key);
        if (draw_once_in(2)) buffer_text(b, " ");
        add_value(b);
    }
    buffer_text(b, draw_once_in(16) ? "" : "}");
}

static void add_origin(buffer *b) {
    static const char *const pools[] = {"last", "mean", "max", "last,mean,max", "last,last"};
    buffer_text(b,
                "{\"kind\": \"features\", \"state\": \"%s\", \"pool\": \"%s\", \"model\": \"%s\"",
                draw_once_in(2) ? "cell" : "hidden", pools[draw(5)],
                draw_once_in(4) ? draw_text() : "0123abcd");
    if (draw_once_in(2)) {
        buffer_text(b, ", \"names\": [");
        for (uint64_t k = 0, count = draw(draw_once_in(8) ? 300 : 4); k < count; k++) {
            buffer_text(b, "%s\"%s\"", k ? ", " : "", draw_once_in(4) ? draw_text() : "name");
        }
        buffer_text(b, "]");
    }
    buffer_text(b, "}\n");
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed) {
    draw_seed(seed);
    if (size > 0 && draw_once_in(3)) return LLVMFuzzerMutate(data, size, capacity);
    buffer b = {0};
    const uint8_t kind = (uint8_t)draw(2);
    buffer_add(&b, &kind, 1);
    if (kind == 0 && draw_once_in(2)) {
        add_origin(&b);
    } else {
        for (uint64_t lines = 1 + (kind ? draw(4) : 0); lines > 0; lines--) {
            add_object(&b, kind);
            buffer_text(&b, draw_once_in(8) ? "\r\n" : "\n");
        }
    }
    if (draw_once_in(8)) b.size = 1 + draw(b.size);
    return buffer_take(&b, data, capacity);
}
