/* Error messages. */
#include "support.h"

#include "core/error.h"
#include "core/log.h"
#include "core/memory.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_log_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
