/* Writing and reading JSON. */
#include "support.h"

#include "core/json.h"
#include "core/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static json_reader reader_of(const char *text) {
    return (json_reader){text, text + strlen(text), false};
}

static void test_json_reading(void **state) {
    (void)state;
    json_reader r = reader_of(" { \"a\" : [ 1 , -2,3 ] ,\"b\":\"x\\n\\\"\\/\\u0041\\u00e9\\u20AC\" "
                              ", \"c\": {} , \"d\": [] } ");
    char key[8], text[32];
    int64_t number, expected[] = {1, -2, 3};
    assert_true(json_read_object(&r));
    assert_true(json_read_member(&r, key, sizeof key));
    assert_string_equal(key, "a");
    assert_true(json_read_array(&r));
    for (int i = 0; i < 3; i++) {
        assert_true(json_read_element(&r));
        assert_true(json_read_integer(&r, &number));
        assert_int_equal(number, expected[i]);
    }
    assert_false(json_read_element(&r));
    assert_true(json_read_member(&r, key, sizeof key));
    assert_true(json_read_string(&r, text, sizeof text));
    assert_string_equal(text, "x\n\"/A\xc3\xa9\xe2\x82\xac");
    assert_true(json_read_member(&r, key, sizeof key));
    assert_true(json_read_object(&r));
    assert_false(json_read_member(&r, key, sizeof key));
    assert_true(json_read_member(&r, key, sizeof key));
    assert_string_equal(key, "d");
    assert_true(json_read_array(&r));
    assert_false(json_read_element(&r));
    assert_false(json_read_member(&r, key, sizeof key));
    assert_false(r.failed);
}

static void test_json_refusals(void **state) {
    (void)state;
    static const char *const strings[] = {
        "",          "x",           "\"open",      "\"\\",          "\"\\x\"",
        "\"\\u12\"", "\"\\u12g4\"", "\"\\u0000\"", "\"new\nline\"", "\"too long\"",
        "\"\\u",     "\"7 chars\"",
    };
    char text[7];
    for (size_t i = 0; i < sizeof strings / sizeof strings[0]; i++) {
        json_reader r = reader_of(strings[i]);
        if (json_read_string(&r, text, sizeof text)) fail_msg("accepted: %s", strings[i]);
        assert_true(r.failed);
        assert_false(json_read_string(&r, text, sizeof text)); /* a failed reader stays failed */
    }
    static const char *const integers[] = {
        "", "x", "-", "1-2", "--1", "9223372036854775808", "99999999999999999999999999", "\"1\"",
    };
    for (size_t i = 0; i < sizeof integers / sizeof integers[0]; i++) {
        int64_t number;
        json_reader r = reader_of(integers[i]);
        if (json_read_integer(&r, &number)) fail_msg("accepted: %s", integers[i]);
        assert_true(r.failed);
    }
    static const char *const members[] = {
        "{", "{,", "{\"a\"}", "{\"a\" 1}", "{1:2}", "{\"a\":1 \"b\":2}", "{\"a\":1,}", "{\"a\":1",
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        int64_t number;
        json_reader r = reader_of(members[i]);
        json_read_object(&r);
        while (json_read_member(&r, text, sizeof text) && json_read_integer(&r, &number)) continue;
        if (!r.failed) fail_msg("accepted: %s", members[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_writing),
        cmocka_unit_test(test_json_numbers),
        cmocka_unit_test(test_json_reading),
        cmocka_unit_test(test_json_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
