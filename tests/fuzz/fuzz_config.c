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

/* -------------------------------------------------------------------------------------- mutator */

static void add_value(buffer *b, const config_key *key) {
    if (draw_once_in(3) && key->fallback) {
        buffer_text(b, "%s", key->fallback);
    } else if (draw_once_in(3) && key->choices) {
        const char *choice = key->choices;
        for (uint64_t skip = draw(6); skip > 0 && strchr(choice, ' '); skip--) {
            choice = strchr(choice, ' ') + 1;
        }
        buffer_text(b, "%.*s", (int)strcspn(choice, " "), choice);
    } else if (key->type == CONFIG_LIST && draw_once_in(2)) {
        buffer_text(b, "[%s, '%s', \"%s\"]", "a.txt", draw_text(), "b\\x00c");
    } else {
        static const char *const forms[] = {"%s",   "'%s'",    "\"%s\"",     "!!str %s",   "&a %s",
                                            "[%s]", "{%s: 1}", "|\n   %s\n", ">-\n   %s\n"};
        buffer_text(b, forms[draw(sizeof forms / sizeof forms[0])], draw_text());
    }
}

/* Adds a document with keys of the table, section by section, and now and then odd ones. */
static size_t build(uint8_t *data, size_t capacity) {
    static const char *const before[] = {"",
                                         "",
                                         "",
                                         "%YAML 1.1\n---\n",
                                         "---\n",
                                         "%TAG ! !x\n---\n",
                                         "\xEF\xBB\xBF",
                                         "# comment\n",
                                         "- 1\n",
                                         "? a\n: b\n"};
    static const char *const after[] = {"", "", "", "...\n", "---\n", "x", "\t", "*a\n"};
    buffer b = {0};
    buffer_text(&b, "%s", before[draw(sizeof before / sizeof before[0])]);
    const bool flow = draw_once_in(4);
    const char *section = "";
    size_t length = 0;
    if (flow) buffer_text(&b, "{");
    for (int i = 0; i < option_count; i++) {
        const config_key *key = &option_keys[i];
        if (!draw_once_in(4)) continue;
        const size_t prefix = strcspn(key->path, ".");
        if (prefix != length || strncmp(section, key->path, prefix) != 0) {
            if (flow && length > 0) buffer_text(&b, "}, ");
            section = key->path;
            length = prefix;
            buffer_text(&b, flow ? "%.*s: {" : "%.*s:\n", (int)prefix, section);
        }
        buffer_text(
            &b, flow ? "%s: " : "  %s: ", draw_once_in(32) ? draw_text() : key->path + prefix + 1);
        add_value(&b, key);
        buffer_text(&b, flow ? ", " : "\n");
    }
    if (flow) buffer_text(&b, length > 0 ? "}}\n" : "}\n");
    buffer_text(&b, "%s", after[draw(sizeof after / sizeof after[0])]);
    return buffer_take(&b, data, capacity);
}

/* Removes a line, repeats it, or changes its value. */
static size_t change_line(uint8_t *data, size_t size, size_t capacity) {
    const size_t at = draw(size + 1);
    size_t begin = at, end = at;
    while (begin > 0 && data[begin - 1] != '\n') begin--;
    while (end < size && data[end] != '\n') end++;
    if (end < size) end++;
    buffer b = {0};
    buffer_add(&b, data, begin);
    switch (draw(4)) {
    case 0: break;
    case 1:
        buffer_add(&b, data + begin, end - begin);
        buffer_add(&b, data + begin, end - begin);
        break;
    default: {
        const uint8_t *colon = memchr(data + begin, ':', end - begin);
        if (colon) buffer_add(&b, data + begin, (size_t)(colon - data) - begin);
        add_value(&b, &option_keys[draw((uint64_t)option_count)]);
        buffer_text(&b, "\n");
    }
    }
    buffer_add(&b, data + end, size - end);
    return buffer_take(&b, data, capacity);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed) {
    draw_seed(seed);
    if (size == 0 || draw_once_in(8)) return build(data, capacity);
    if (draw_once_in(4)) return LLVMFuzzerMutate(data, size, capacity);
    return change_line(data, size, capacity);
}
