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
