/* Config files are parsed, checked and written. The written file must read back as the
 * same config. */
#include "fuzz.h"

#include "train/options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *path;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    path = scratch_path("config.yaml");
    return 0;
}

/* Returns the resolved config as text, which the caller frees. */
static char *resolve(const options *o, size_t *size) {
    char *text = NULL;
    FILE *out = open_memstream(&text, size);
    if (!out) abort();
    config_write(&o->config, out);
    fclose(out);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    options o, again;
    error err;
    scratch_write(path, data, size);
    options_begin(&o);
    if (options_load(&o, path, NULL, 0, &err)) {
        const bool fits = options_check(&o, &err);
        size_t length, length_again;
        char *text = resolve(&o, &length);
        scratch_write(path, text, length);
        options_begin(&again);
        require(options_load(&again, path, NULL, 0, &err), err.text);
        require(!fits || options_check(&again, &err), err.text);
        char *text_again = resolve(&again, &length_again);
        require(length == length_again && memcmp(text, text_again, length) == 0,
                "a resolved config that reads back as another");
        options_free(&again);
        free(text);
        free(text_again);
    } else {
        require(strstr(err.text, path) != NULL, "an error that does not name the file");
    }
    options_free(&o);
    return 0;
}
