/* Config files and --set: every type, what is refused with which message, and that a written config
 * reads back the same. The first tests use a table of keys of their own, the others the program's.
 */
#include "support.h"

#include "core/config.h"
#include "core/memory.h"
#include "train/options.h"

#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct target {
    int64_t integer, optional;
    double number, optional_number;
    bool boolean;
    char *string, *name;
    int choice;
    config_list list;
} target;

#define AT(member) offsetof(target, member)

/* clang-format off */
static const config_key keys[] = {
    {"a.integer", CONFIG_INTEGER, AT(integer), "5", 1, 100, NULL, "an integer", 0},
    {"a.optional", CONFIG_INTEGER, AT(optional), NULL, 0, HUGE_VAL, NULL, "a nullable one", 0},
    {"a.number", CONFIG_NUMBER, AT(number), "0.5", 0, 1, NULL, "a number",
     CONFIG_ABOVE_MINIMUM | CONFIG_BELOW_MAXIMUM},
    {"a.optional_number", CONFIG_NUMBER, AT(optional_number), NULL, -HUGE_VAL, HUGE_VAL, NULL,
     "any number", 0},
    {"b.boolean", CONFIG_BOOLEAN, AT(boolean), "true", 0, 0, NULL, "a switch", 0},
    {"b.string", CONFIG_STRING, AT(string), NULL, 0, 0, NULL, "some text", 0},
    {"b.name", CONFIG_STRING, AT(name), "nobody", 0, 0, NULL, "text with a default", 0},
    {"b.choice", CONFIG_CHOICE, AT(choice), "two", 0, 0, "one two three", "one of three", 0},
    {"b.list", CONFIG_LIST, AT(list), NULL, 0, 0, NULL, "some files", 0},
};
enum { KEYS = sizeof keys / sizeof keys[0] };
/* clang-format on */

static target t;
static config c;

static int begin(void **state) {
    (void)state;
    memset(&t, 0, sizeof t);
    config_begin(&c, keys, KEYS, &t);
    return 0;
}

static int end(void **state) {
    (void)state;
    config_end(&c);
    return 0;
}

static char *file_of(const char *text) {
    char *path = path_of("config.yaml");
    write_text(path, text);
    return path;
}

static void load(const char *text) {
    error err;
    if (!config_load(&c, file_of(text), &err)) fail_msg("%s", err.text);
}

/* `expected` follows the file's name. */
static void refused(const char *text, const char *expected) {
    error err;
    char *path = file_of(text), *whole = mem_format("%s%s", path, expected);
    if (config_load(&c, path, &err)) fail_msg("not refused: %s", text);
    if (strncmp(err.text, whole, strlen(whole)) != 0) {
        fail_msg("expected '%s' at the start of: %s", whole, err.text);
    }
    assert_int_equal(err.status, STATUS_FAILED);
    assert_null(strchr(err.text, '\n'));
    free(whole);
    config_end(&c);
    config_begin(&c, keys, KEYS, &t);
}

static void assign(const char *assignment) {
    error err;
    if (!config_assign(&c, assignment, &err)) fail_msg("%s", err.text);
}

static void assign_refused(const char *assignment, const char *expected) {
    error err;
    if (config_assign(&c, assignment, &err)) fail_msg("not refused: %s", assignment);
    assert_contains(err.text, expected);
    assert_int_equal(err.status, STATUS_USAGE);
}

/* ------------------------------------------------------------------------------------ values */

static void test_defaults(void **state) {
    (void)state;
    assert_int_equal(t.integer, 5);
    assert_int_equal(t.optional, 0);
    assert_true(t.number == 0.5 && t.optional_number == 0);
    assert_true(t.boolean);
    assert_string_equal(t.string, "");
    assert_string_equal(t.name, "nobody");
    assert_int_equal(t.choice, 1);
    assert_int_equal(t.list.count, 0);
    for (int i = 0; i < KEYS; i++) assert_false(config_is_set(&c, keys[i].path));
}

static void test_every_type(void **state) {
    (void)state;
    load("# a comment\n"
         "a:\n  integer: 7\n  optional: -0\n  number: 2.5e-1\n  optional_number: -1e300\n"
         "b:\n  boolean: false\n  string: some text here # not this\n  name: 'it''s'\n"
         "  choice: three\n  list:\n  - one.txt\n  - \"two\\t.txt\"\n  - 3\n");
    assert_int_equal(t.integer, 7);
    assert_true(t.number == 0.25 && t.optional_number == -1e300);
    assert_false(t.boolean);
    assert_string_equal(t.string, "some text here");
    assert_string_equal(t.name, "it's");
    assert_int_equal(t.choice, 2);
    assert_int_equal(t.list.count, 3);
    assert_string_equal(t.list.items[0], "one.txt");
    assert_string_equal(t.list.items[1], "two\t.txt");
    assert_string_equal(t.list.items[2], "3");
    for (int i = 0; i < KEYS; i++) assert_true(config_is_set(&c, keys[i].path));
    assert_string_equal(c.source[0] + strlen(c.source[0]) - strlen("config.yaml:3"),
                        "config.yaml:3");
}

static void test_other_ways(void **state) {
    (void)state;
    load("{a: {integer: 9}, b: {list: alone.txt, string: \"\"}}");
    assert_int_equal(t.integer, 9);
    assert_int_equal(t.list.count, 1);
    assert_string_equal(t.list.items[0], "alone.txt");
    assert_string_equal(t.string, "");
    config_end(&c);
    config_begin(&c, keys, KEYS, &t);
    /* Keys given as paths, and a section given twice. */
    load("a.integer: 11\nb: {list: [x, y]}\na: {number: 0.75}\n");
    assert_int_equal(t.integer, 11);
    assert_int_equal(t.list.count, 2);
    assert_true(t.number == 0.75);
    config_end(&c);
    config_begin(&c, keys, KEYS, &t);
    load("\xef\xbb\xbf"
         "---\r\na:\r\n  integer: 12\r\n...\r\n"); /* a byte-order mark, and Windows' line ends */
    assert_int_equal(t.integer, 12);
}

static void test_null(void **state) {
    (void)state;
    load("a: {optional: 3, optional_number: 4}\nb: {string: x, list: [y]}\n");
    assert_int_equal(t.optional, 3);
    assign("a.optional=null");
    assign("a.optional_number=~");
    assign("b.string=null");
    assign("b.list=null");
    assert_int_equal(t.optional, 0);
    assert_true(t.optional_number == 0);
    assert_string_equal(t.string, "");
    assert_int_equal(t.list.count, 0);
    config_end(&c);
    config_begin(&c, keys, KEYS, &t);
    load("a:\n  optional:\nb:\n  string: ~\n  list: []\n");
    assert_int_equal(t.list.count, 0);
    refused("a:\n  integer: null\n", ":2: a.integer: expected an integer at least 1, at most 100, "
                                     "got 'null'");
    refused("a:\n  integer:\n", ":2: a.integer: expected an integer");
    refused("b:\n  boolean: ~\n", ":2: b.boolean: expected true or false, got '~'");
    refused("b:\n  choice:\n", ":2: b.choice: expected one of: one two three, got ''");
}

static void test_assignments(void **state) {
    (void)state;
    assign("a.integer=8");
    assign("a.number=0.125");
    assign("b.list=[one, \"two words\"]");
    assign("b.string=has=equals");
    assign("b.name=");
    assert_int_equal(t.integer, 8);
    assert_true(t.number == 0.125);
    assert_int_equal(t.list.count, 2);
    assert_string_equal(t.list.items[1], "two words");
    assert_string_equal(t.string, "has=equals");
    assert_string_equal(t.name, "");
    assign("a.integer=10"); /* the last one holds */
    assert_int_equal(t.integer, 10);
    assert_string_equal(c.source[0], "--set");
    assign_refused("a.integer", "--set a.integer: expected key.path=value");
    assign_refused("=5", "expected key.path=value");
    assign_refused("a.integr=5", "--set: a.integr: unknown key; the nearest is a.integer");
    assign_refused("a.integer=x", "--set: a.integer: expected an integer");
    assign_refused("a.integer=", "expected an integer");
    assign_refused("a.integer={x: 1}", "unknown key");
    assign_refused("b.list=[open", "--set: b.list: not valid YAML");
    assert_int_equal(t.integer, 10);
}

/* ---------------------------------------------------------------------------------- refusals */

static void test_numbers_refused(void **state) {
    (void)state;
    static const char *const integers[] = {
        "0",  "101", "1.5", "1e2",  "0x10", "x", "5 5", "'5'", "5k", "true", "99999999999999999999",
        "-1", "[5]", "[]",  ".inf", "1_000"};
    static const char *const numbers[] = {"0",     "1",    "-0.5",      "nan",   ".nan",
                                          "inf",   ".inf", "-infinity", "1e999", "x",
                                          "'0.5'", "0.5x", "[0.5]",     "0,5",   "1e-999"};
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        char *text = mem_format("a:\n  integer: %s\n", integers[i]);
        refused(text, ":2: a.integer: expected an integer at least 1, at most 100, got ");
        free(text);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char *text = mem_format("a:\n  number: %s\n", numbers[i]);
        refused(text, ":2: a.number: expected a finite number above 0, below 1, got ");
        free(text);
    }
    refused("a: {optional: 9223372036854775808}\n",
            ":1: a.optional: expected an integer at least 0, at most 2^63 - 1");
    refused("a: {optional_number: .inf}\n", ":1: a.optional_number: expected a finite number");
}

static void test_others_refused(void **state) {
    (void)state;
    refused("b: {boolean: yes}\n", ":1: b.boolean: expected true or false, got 'yes'");
    refused("b: {boolean: 1}\n", ":1: b.boolean: expected true or false, got '1'");
    refused("b: {boolean: 'true'}\n", ":1: b.boolean: expected true or false");
    refused("b: {choice: four}\n", ":1: b.choice: expected one of: one two three, got 'four'");
    refused("b: {choice: 'one two'}\n", ":1: b.choice: expected one of");
    refused("b: {choice: [one]}\n", ":1: b.choice: expected one of: one two three, got a list");
    refused("b: {choice: on}\n", ":1: b.choice: expected one of");
    refused("b: {string: [x]}\n", ":1: b.string: expected a string, got a list");
    refused("b: {list: [[x]]}\n", ":1: b.list: expected a list of plain values");
    refused("b:\n  list:\n  - {x: 1}\n", ":3: b.list: expected a list of plain values");
    refused("b: {list: {x: y}}\n", ":1: b.list.x: unknown key; the nearest is b.list");
}

static void test_keys_refused(void **state) {
    (void)state;
    refused("a:\n  integer: 5\n  nunber: 1\n",
            ":3: a.nunber: unknown key; the nearest is a.number");
    refused("choice: one\n", ":1: choice: unknown key; the nearest is b.choice");
    refused("a: 5\n", ":1: a: expected keys of this section, such as integer");
    refused("list: [x]\n", ":1: list: unknown key; the nearest is b.list");
    refused("a: {integer: \"5\"}\n",
            ":1: a.integer: expected an integer at least 1, at most 100, got '5' in quotes");
    refused("a:\n  integer:\n    deeper: 5\n", ":3: a.integer.deeper: unknown key");
    refused("a:\n  integer: 5\n  number: 0.1\n  integer: 6\n",
            ":4: a.integer: given twice, first at ");
    refused("a: {integer: 5}\na.integer: 5\n", ":2: a.integer: given twice, first at ");
    refused("a: {optional: null, optional: 1}\n", ":1: a.optional: given twice");
    refused("b: {list: [x], list: [y]}\n", ":1: b.list: given twice");
    refused("\"a\\nb\": 1\n", ":1: a?b: unknown key");
    refused("[a]: 1\n", ":1: expected a key");
    char *deep = mem_alloc(1000, 1);
    memset(deep, '{', 5);
    for (int i = 0; i < 100; i++) memcpy(deep + 3 * i, "{a:", 3);
    refused(deep, ":1: ");
    free(deep);
}

static void test_files_refused(void **state) {
    (void)state;
    refused("", ": empty: expected keys such as data.train");
    refused("# nothing but a comment\n", ": empty: expected keys such as data.train");
    refused("---\n", ":2: expected keys such as data: {train: FILE}");
    refused("just text\n", ":1: expected keys such as data: {train: FILE}");
    refused("- a\n- b\n", ":1: expected keys");
    refused("a: {integer: 5\n", ":2: not valid YAML: ");
    refused("a:\n\tinteger: 5\n", ":2: not valid YAML: ");
    refused("a: \xff\xfe\n", ":1: not valid YAML: ");
    refused("a: {integer: 5}\n---\na: {integer: 6}\n", ":2: expected one YAML document");
    refused("a: &x {integer: 5}\nb: *x\n", ":2: b: YAML aliases are not supported");
    error err;
    assert_false(config_load(&c, "absent.yaml", &err));
    assert_string_equal(err.text, "cannot open absent.yaml: No such file or directory");
    assert_false(config_load(&c, temporary_folder(), &err));
    assert_contains(err.text, "cannot read ");
    assert_contains(err.text, "Is a directory");
}

/* -------------------------------------------------------------------------------- write, help */

static void test_round_trip(void **state) {
    (void)state;
    assign("a.number=0.1");
    assign("a.optional_number=-1.7976931348623157e308");
    assign("b.string='quotes \" and \\ and # and \xc3\xa9'");
    assign("b.name=\"line\\nbreak\\ttab\\x7f \\x85\\x90\\x9f\\xa0 \\u2027\\u2028\\u2029 "
           "\\ufeff\\uffff\"");
    assign("b.list=[a b, 'null', \"~\", '']");
    char *text, *again;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    config_write(&c, out);
    fclose(out);
    assert_contains(text, "a:\n  integer: 5\n  optional: null\n  number: 0.1\n");
    config_end(&c);
    config_begin(&c, keys, KEYS, &t);
    load(text);
    assert_true(t.number == 0.1 && t.optional_number == -1.7976931348623157e308);
    assert_string_equal(t.string, "quotes \" and \\ and # and \xc3\xa9");
    assert_string_equal(t.name, "line\nbreak\ttab\x7f \xc2\x85\xc2\x90\xc2\x9f\xc2\xa0 "
                                "\xe2\x80\xa7\xe2\x80\xa8\xe2\x80\xa9 \xef\xbb\xbf\xef\xbf\xbf");
    assert_int_equal(t.list.count, 4);
    assert_string_equal(t.list.items[1], "null");
    assert_string_equal(t.list.items[3], "");
    out = open_memstream(&again, &size);
    config_write(&c, out);
    fclose(out);
    assert_string_equal(text, again);
    free(text);
    free(again);
}

static void test_help(void **state) {
    (void)state;
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    config_help(keys, KEYS, out);
    fclose(out);
    assert_contains(text, "a:\n  integer (integer, 5): an integer [at least 1, at most 100]\n");
    assert_contains(text, "  optional (integer, unset): a nullable one [at least 0]\n");
    assert_contains(text, "  number (number, 0.5): a number [above 0, below 1]\n");
    assert_contains(text, "b:\n  boolean (true or false, true): a switch\n");
    assert_contains(text, "  choice (choice, two): one of three [one two three]\n");
    assert_contains(text, "  list (string or list of strings, unset): some files\n");
    free(text);
}

/* ------------------------------------------------------------------------------ the program's */

/* Loads a config with `settings`, separated by spaces. */
static bool load_options(options *o, const char *text, const char *settings, error *err) {
    char *words = mem_string(settings), *items[16];
    int count = 0;
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " ")) items[count++] = word;
    options_begin(o);
    bool loaded = options_load(o, file_of(text), items, count, err);
    free(words);
    return loaded;
}

static void options_refused(const char *settings, const char *expected) {
    options o;
    error err;
    if (load_options(&o, "data: {train: x.txt}\n", settings, &err)) {
        fail_msg("not refused: %s", settings);
    }
    assert_contains(err.text, expected);
    options_free(&o);
}

static void options_accepted(const char *settings) {
    options o;
    error err;
    if (!load_options(&o, "data: {train: x.txt}\n", settings, &err)) fail_msg("%s", err.text);
    options_free(&o);
}

static void test_minimal(void **state) {
    (void)state;
    options o;
    error err;
    assert_true(load_options(&o, "data: {train: x.txt}\n", "", &err));
    assert_true(o.train.epochs == 1); /* without any limit */
    assert_true(o.model.density == 0.1);
    assert_int_equal(o.data.train.count, 1);
    options_free(&o);
    assert_true(load_options(&o, "data: {train: x.txt}\n", "train.steps=5 model.degree=4", &err));
    assert_true(o.train.epochs == 0 && o.model.density == 0);
    options_free(&o);
}

/* One override makes a config's dense twin. model.parameters finds the size that is left open, and
 * the run's own config holds what it found. */
static void test_twins(void **state) {
    (void)state;
    static const char text[] = "data: {train: x.txt}\n"
                               "model: {hidden: 512, graph: random, density: 0.25}\n";
    options o;
    error err;
    assert_true(load_options(&o, text, "model.graph=dense", &err));
    assert_true(o.model.density == 0 && o.model.hidden == 512);
    options_free(&o);
    assert_true(load_options(&o, text, "model.graph=dense model.parameters=2e6", &err));
    assert_int_equal(o.model.hidden, 640);
    assert_true(o.parameters == 0 && !config_is_set(&o.config, "model.parameters"));
    options_free(&o);
    assert_true(load_options(&o, "data: {train: x.txt}\n",
                             "model.density=0.25 model.parameters=2e6", &err));
    assert_int_equal(o.model.hidden, 1184);
    options_free(&o);
    assert_true(
        load_options(&o, "data: {train: x.txt}\n", "model.hidden=2048 model.parameters=2e6", &err));
    assert_int_equal(o.model.hidden, 2048);
    assert_true(fabs(o.model.density - 0.055) < 0.01);
    options_free(&o);
    assert_false(load_options(&o, text, "model.parameters=2e6", &err));
    assert_contains(err.text, "--set: model.parameters: expected model.hidden or model.density "
                              "to be left open, but both are set");
    options_free(&o);
    options_refused("model.hidden=256 model.parameters=1e9",
                    "--set: model.parameters: expected from ");
    options_refused("model.graph=dense model.parameters=1e15", "of the widest model");
    options_refused("model.graph=file model.graph_file=x model.parameters=1e6", "no meaning");
}

static void test_combinations(void **state) {
    (void)state;
    options_refused("model.hidden=100",
                    "--set: model.hidden: expected a multiple of model.block 32");
    options_refused("model.block=24", "--set: model.block: expected 8, 16, 32, 64 or 128, got 24");
    options_refused("model.hidden=1048576 model.block=8",
                    "model.hidden: expected at most 32768 blocks");
    options_refused("model.degree=4 model.density=0.1",
                    "set model.degree or model.density, not both");
    options_refused("model.graph=dense model.density=0.5", "no meaning for model.graph: dense");
    options_refused("model.graph=file", "model.graph: file: expected model.graph_file to name it");
    options_refused("model.graph_file=x", "model.graph_file: has a meaning only for");
    options_refused("model.graph=file model.graph_file=x model.degree=3", "no meaning");
    options_refused("model.input_stride=3",
                    "model.input_stride: expected a divisor of model.hidden");
    options_refused("model.output_stride=7", "model.output_stride: expected a divisor");
    options_refused("data.valid=y.txt data.valid_fraction=0.1",
                    "cannot be set together with data.valid");
    options_refused("data.train=", "data.train: expected names of files");
    options_refused("train.valid_bytes=1", "train.valid_bytes: expected 0 or at least 2");
    options_refused("train.bptt=16 train.recompute=17",
                    "train.recompute: expected at most train.bptt = 16, got 17");
    options_refused("model.cell=mlstm model.layers=7", "model.layers: expected at most 6");
    options_accepted("model.cell=mlstm model.layers=6");
    options_accepted("model.cell=lstm model.layers=9");
    options_refused("model.cell=deep model.internal_steps=16 model.layers=2",
                    "model.layers: expected at most 1");
    options_accepted("model.density=1");
    options_accepted("model.graph=dense");
    options_accepted("data.valid=y.txt data.valid_fraction=0");
    options_accepted("model.cell=deep model.internal_steps=16");
    options_accepted("run.seed=9223372036854775807");
}

static bool try_model(const char *settings, error *err) {
    options o;
    if (!load_options(&o, "data: {train: x.txt}\n", settings, err)) fail_msg("%s", err->text);
    backend *be = backend_cpu(FP32, 1);
    be->available = (size_t)64 << 30;
    model *m = model_create(be, &o.model, NULL, (int)o.train.batch, (int)o.train.bptt, 1,
                            MODEL_TRAINING, err);
    if (m) model_free(m);
    be->memory->destroy(be);
    options_free(&o);
    return m != NULL;
}

/* The largest sizes of a config are refused by their sum, before any memory is allocated. */
static void test_does_not_fit(void **state) {
    (void)state;
    error err;
    assert_false(
        try_model("model.hidden=131072 model.block=128 model.graph=dense train.batch=65536 "
                  "train.bptt=65536",
                  &err));
    assert_contains(err.text, "does not fit");
    assert_contains(err.text, "64.0 GiB free");
    assert_false(try_model("model.hidden=1048576 model.block=128 model.degree=2 train.batch=65536 "
                           "train.bptt=65536 model.cell=deep model.internal_steps=16 "
                           "model.embedding=4096",
                           &err));
    assert_contains(err.text, "does not fit");
    assert_contains(err.text, "PiB");
}

/* A resolved config loads as the same config, with the defaults that depend on other keys. */
static void test_resolved(void **state) {
    (void)state;
    static const char *const settings[] = {
        "",
        "model.degree=6 model.cell=deep train.steps=7",
        "model.graph=dense data.valid=[y.txt,z.tsv] train.minutes=2.5",
        "model.graph=file model.graph_file=e.txt data.exclude=t.tsv train.init=a.safetensors",
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        options o, again;
        error err;
        char *text[2];
        size_t size;
        if (!load_options(&o, "data: {train: [x.txt, 'a: b']}\n", settings[i], &err)) {
            fail_msg("%s", err.text);
        }
        FILE *out = open_memstream(&text[0], &size);
        config_write(&o.config, out);
        fclose(out);
        if (!load_options(&again, text[0], "", &err)) fail_msg("%s", err.text);
        out = open_memstream(&text[1], &size);
        config_write(&again.config, out);
        fclose(out);
        assert_string_equal(text[0], text[1]);
        options_free(&o);
        options_free(&again);
        free(text[0]);
        free(text[1]);
    }
}

/* Every config in configs/ is accepted. */
static void test_shipped(void **state) {
    (void)state;
    glob_t found;
    assert_int_equal(glob("configs/*.yaml", 0, NULL, &found), 0);
    assert_true(found.gl_pathc > 5);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        options o;
        error err;
        options_begin(&o);
        if (!options_load(&o, found.gl_pathv[i], NULL, 0, &err)) fail_msg("%s", err.text);
        options_free(&o);
    }
    globfree(&found);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, begin, end)

static void test_hostile_files(void **state) {
    (void)state;
    refused("\"a\\0b\": 1\n", ":1: a key or value with a NUL byte");
    refused("\n\na: {\"b\": \"x\\0y\"}\n", ":3: a key or value with a NUL byte");
    char *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    for (int i = 0; i < 100000; i++) fprintf(out, "%%TAG !t%d! tag:x,2000:%d\n", i, i);
    mem_stream_end(out);
    text[1000000] = '\0';
    refused(text, ": more than 8 YAML directives");
    free(text);
    text = mem_alloc((1 << 20) + 2, 1);
    memset(text, '#', (1 << 20) + 1);
    refused(text, ": more than 1048576 bytes");
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_defaults),
        TEST(test_every_type),
        TEST(test_other_ways),
        TEST(test_null),
        TEST(test_assignments),
        TEST(test_numbers_refused),
        TEST(test_others_refused),
        TEST(test_keys_refused),
        TEST(test_files_refused),
        TEST(test_round_trip),
        TEST(test_help),
        cmocka_unit_test(test_minimal),
        cmocka_unit_test(test_twins),
        cmocka_unit_test(test_combinations),
        cmocka_unit_test(test_does_not_fit),
        cmocka_unit_test(test_resolved),
        cmocka_unit_test(test_shipped),
        cmocka_unit_test(test_hostile_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
