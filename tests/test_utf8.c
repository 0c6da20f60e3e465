/* UTF-8: every character, and bytes that only look like one. */
#include "support.h"

#include "core/utf8.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_characters),
                                       cmocka_unit_test(test_bytes),
                                       cmocka_unit_test(test_printable)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
