/* Writing JSON. */
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_writing),
        cmocka_unit_test(test_json_numbers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
