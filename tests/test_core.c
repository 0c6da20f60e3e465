/* The smallest parts of src/core: numbers, UTF-8, JSON and messages. */
#include "support.h"

#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/number.h"
#include "core/utf8.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void test_integers(void **state) {
    (void)state;
    static const char *const bad[] = {"",   "-",   "x",   " 1",  "1 ",  "+1",
                                      "1x", "0x1", "1.0", "1e3", "--1", "9223372036854775808"};
    int64_t value = 5;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (number_integer(bad[i], &value)) fail_msg("taken: '%s'", bad[i]);
        assert_int_equal(value, 5);
    }
    assert_true(number_integer("-9223372036854775808", &value));
    assert_true(value == INT64_MIN);
    assert_true(number_integer("0012", &value));
    assert_int_equal(value, 12);
}

static void test_reals(void **state) {
    (void)state;
    static const char *const bad[] = {"",     " 1",    "1 ",     "nan",   "inf", "0x1p3",
                                      "1e9x", "1e999", "-1e999", "1.2.3", "e"};
    double value = 5;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (number_real(bad[i], &value)) fail_msg("taken: '%s'", bad[i]);
        assert_true(value == 5);
    }
    assert_true(number_real("-12.5e-1", &value));
    assert_true(value == -1.25);
}

static size_t encode(uint32_t code, int more, uint8_t *out) {
    static const uint8_t lead[] = {0, 0xC0, 0xE0, 0xF0};
    out[0] = (uint8_t)(lead[more] | code >> 6 * more);
    for (int i = 1; i <= more; i++) out[i] = (uint8_t)(0x80 | (code >> 6 * (more - i) & 0x3F));
    return (size_t)more + 1;
}

static void test_characters(void **state) {
    (void)state;
    for (uint32_t code = 0; code < 0x200000; code++) {
        bool surrogate = code >= 0xD800 && code <= 0xDFFF;
        int least = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
        for (int more = least; more < 4; more++) { /* overlong forms are not allowed */
            uint8_t bytes[5] = {0};
            size_t length = encode(code, more, bytes);
            bool good = more == least && !surrogate && code <= 0x10FFFF;
            assert_int_equal(utf8_length(bytes, 5), good ? length : 0);
            if (good) assert_int_equal(utf8_code(bytes, length), code);
            if (more > 0) assert_int_equal(utf8_length(bytes, length - 1), 0);
        }
    }
}

static void test_bytes(void **state) {
    (void)state;
    assert_int_equal(utf8_length((const uint8_t *)"", 0), 0);
    for (int byte = 0x80; byte < 0x100; byte++) {
        const uint8_t bytes[] = {(uint8_t)byte, 'a', 'a', 'a'};
        assert_int_equal(utf8_length(bytes, 4), 0);
        assert_false(utf8_valid(bytes, 4));
    }
    assert_true(utf8_valid((const uint8_t *)"a\xc3\xa9\xf0\x9f\x98\x80", 7));
    assert_false(utf8_valid((const uint8_t *)"a\xc3\xa9\xf0\x9f\x98\x80", 6));
    assert_true(utf8_valid(NULL, 0));
}

/* What a terminal would obey: C1 controls, directions, line breaks, and bytes that are no text. */
static void test_printable(void **state) {
    (void)state;
    char text[] =
        "a\x1b \xc2\x9b \xe2\x80\xae \xe2\x81\xa6 \xe2\x80\xa8 \x9b \xc3\xa9\xf0\x9f\x98\x80";
    utf8_make_printable(text);
    assert_string_equal(text, "a? ? ? ? ? ? \xc3\xa9\xf0\x9f\x98\x80");
}

static void test_json_writing(void **state) {
    (void)state;
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_string(&w, "quo\"te", "back\\slash\nline\x01");
    json_text(&w, "text", (const uint8_t *)"a\0\xff\"\xc3\xa9", 6);
    json_base64(&w, "bytes", (const uint8_t *)"a\0\xff\"", 4);
    json_base64(&w, "three", (const uint8_t *)"abc", 3);
    json_base64(&w, "none", (const uint8_t *)"", 0);
    json_integer(&w, "integer", INT64_MIN);
    json_array_begin(&w, "array");
    json_number(&w, NULL, 0.1);
    json_number(&w, NULL, NAN);
    json_number(&w, NULL, -INFINITY);
    json_object_begin(&w, NULL);
    json_object_end(&w);
    json_array_end(&w);
    json_number(&w, "after", 1);
    json_object_end(&w);
    fclose(out);
    assert_string_equal(text, "{\"quo\\\"te\": \"back\\\\slash\\u000aline\\u0001\", "
                              "\"text\": \"a\\u0000\\ufffd\\\"\xc3\xa9\", \"bytes\": \"YQD/Ig==\", "
                              "\"three\": \"YWJj\", \"none\": \"\", "
                              "\"integer\": -9223372036854775808, "
                              "\"array\": [0.1, null, null, {}], \"after\": 1}");
    free(text);
}

static void test_json_numbers(void **state) {
    (void)state;
    const double values[] = {0,           -0.0,    1,       0.1,  1.0 / 3, 1e-300,
                             4.9406e-324, 1.5e308, -123456, M_PI, 0x1p53,  1234567.875};
    char text[32];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        number_format(text, values[i]);
        double back = strtod(text, NULL);
        assert_memory_equal(&back, &values[i], sizeof back);
    }
    number_format(text, 0.1);
    assert_string_equal(text, "0.1");
}

static void test_error(void **state) {
    (void)state;
    error err;
    assert_false(error_set(&err, "%s:%d: wrong", "file", 7));
    assert_int_equal(err.status, STATUS_FAILED);
    assert_string_equal(err.text, "file:7: wrong");
    assert_false(error_usage(&err, "wrong"));
    assert_int_equal(err.status, STATUS_USAGE);
    errno = ENOENT;
    assert_false(error_system(&err, "open", "some/file"));
    assert_int_equal(err.status, STATUS_FAILED);
    assert_string_equal(err.text, "cannot open some/file: No such file or directory");

    assert_string_equal(err.key, "");
    assert_string_equal(error_message(&err), err.text);
    assert_false(error_key(&err, "model.degree", "expected below %d", 7));
    assert_int_equal(err.status, STATUS_FAILED);
    assert_string_equal(err.key, "model.degree");
    assert_string_equal(err.text, "model.degree: expected below 7");
    assert_string_equal(error_message(&err), "expected below 7");

    char *longer = mem_alloc(2 * ERROR_TEXT, 1);
    memset(longer, 'x', 2 * ERROR_TEXT - 1);
    error_set(&err, "%s", longer);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    free(longer);

    /* A message is one line, whatever the name of a file or a key. */
    error_set(&err, "%s: not found", "a\nb\tc\x1b[1m\x7f");
    assert_string_equal(err.text, "a?b?c?[1m?: not found");
    error_set(&err, "%s: not found", "Größe");
    assert_string_equal(err.text, "Größe: not found");
}

static void test_log_texts(void **state) {
    (void)state;
    char text[32];
    assert_string_equal(log_bytes(text, 0), "0 B");
    assert_string_equal(log_bytes(text, 1023), "1023 B");
    assert_string_equal(log_bytes(text, 1536), "1.5 KiB");
    assert_string_equal(log_bytes(text, 3.0 * (1 << 30)), "3.0 GiB");
    assert_string_equal(log_bytes(text, 1e18), "888.2 PiB");
    assert_string_equal(log_duration(text, 0), "0:00");
    assert_string_equal(log_duration(text, 59.6), "1:00");
    assert_string_equal(log_duration(text, 3723), "1:02:03");
    assert_string_equal(log_duration(text, -1), "0:00");
    assert_string_equal(log_duration(text, NAN), "0:00");
    assert_string_equal(log_duration(text, INFINITY), "0:00");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers),     cmocka_unit_test(test_reals),
        cmocka_unit_test(test_characters),   cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_printable),    cmocka_unit_test(test_json_writing),
        cmocka_unit_test(test_json_numbers), cmocka_unit_test(test_error),
        cmocka_unit_test(test_log_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
