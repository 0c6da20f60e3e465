/* NumPy's array files. */
#include "support.h"

#include "core/npy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_array(const char *path, const char *type, int64_t rows, int64_t columns,
                        const void *values, size_t bytes) {
    file_writer writer;
    error err;
    int64_t start;
    assert_true(npy_begin(&writer, path, type, rows, columns, &start, &err));
    assert_int_equal(start % 64, 0);
    assert_int_equal(ftell(writer.stream), start);
    assert_true(file_write(&writer, values, bytes, &err));
    assert_true(file_commit(&writer, &err));
}

static void test_npy(void **state) {
    (void)state;
    const char *path = path_of("array.npy");
    const float values[6] = {1, -2, 3.5f, 0, 1e-30f, 6};
    npy array;
    error err;
    write_array(path, "<f4", 2, 3, values, sizeof values);
    assert_true(npy_open(&array, path, &err));
    assert_int_equal(array.rows, 2);
    assert_int_equal(array.columns, 3);
    assert_string_equal(array.type, "<f4");
    assert_memory_equal(array.data, values, sizeof values);
    npy_close(&array);

    file_writer set_writer;
    int64_t set_start;
    assert_true(
        npy_begin_in_set(&set_writer, path, "<f4", 2, 3, 0xfedcba9876543210, &set_start, &err));
    assert_int_equal(set_start % 64, 0);
    assert_true(file_write(&set_writer, values, sizeof values, &err));
    assert_true(file_commit(&set_writer, &err));
    assert_true(npy_open(&array, path, &err));
    assert_true(array.set == 0xfedcba9876543210);
    assert_memory_equal(array.data, values, sizeof values);
    npy_close(&array);

    const int32_t labels[3] = {1, -1, 0};
    write_array(path, "<i4", 3, 0, labels, sizeof labels);
    assert_true(npy_open(&array, path, &err));
    assert_int_equal(array.rows, 3);
    assert_true(array.set == 0);
    assert_int_equal(array.columns, 0);
    assert_memory_equal(array.data, labels, sizeof labels);
    npy_close(&array);

    write_array(path, "<f4", 0, 5, NULL, 0);
    assert_true(npy_open(&array, path, &err));
    assert_int_equal(array.rows, 0);
    assert_int_equal(array.columns, 5);
    npy_close(&array);

    limit_file_size(100);
    file_writer writer;
    int64_t start;
    bool written = npy_begin(&writer, path, "<f4", 5, 5, &start, &err) &&
                   file_write(&writer, values, sizeof values, &err);
    written = file_commit(&writer, &err) && written;
    limit_file_size(SIZE_MAX);
    assert_false(written);
}

/* Writes a file with this header dictionary, padded as the format asks, and `bytes` zeros. */
static void write_header(const char *path, const char *dictionary, int version, size_t bytes) {
    char file[2048] = "\x93NUMPY";
    size_t preamble = version == 1 ? 10 : 12, length = strlen(dictionary);
    size_t padded = (preamble + length + 64) / 64 * 64 - preamble;
    file[6] = (char)version;
    file[8] = (char)(padded & 255);
    file[9] = (char)(padded >> 8);
    memset(file + preamble, ' ', padded);
    memcpy(file + preamble, dictionary, length);
    file[preamble + padded - 1] = '\n';
    write_bytes(path, file, preamble + padded + bytes);
}

static void test_npy_headers(void **state) {
    (void)state;
    static const struct {
        const char *dictionary;
        int version;
        size_t bytes;
        bool good;
    } cases[] = {
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 1, 24, true},
        {"{'shape': (2,3), 'fortran_order': False, 'descr': '<f8'}", 1, 48, true},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (7,), }", 2, 7, true},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (7,), }", 3, 7, true},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 1, 23, false},
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }", 1, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 1), }", 1, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 0), }", 1, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (), }", 1, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3), }", 1, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904, 4), }", 1, 24,
         false},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3), }", 1, 24, false},
        {"{'descr': '<U99', 'fortran_order': False, 'shape': (2, 3), }", 1, 1000, false},
        {"{'fortran_order': False, 'shape': (2, 3), }", 1, 24, false},
        {"{'descr': '<f4', 'shape': (2, 3), }", 1, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 4, 24, false},
    };
    const char *path = path_of("header.npy");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        npy array;
        error err;
        write_header(path, cases[i].dictionary, cases[i].version, cases[i].bytes);
        bool opened = npy_open(&array, path, &err);
        if (opened != cases[i].good) fail_msg("%zu: %s", i, cases[i].dictionary);
        if (opened) {
            npy_close(&array);
        } else {
            assert_contains(err.text, path);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_npy),
        cmocka_unit_test(test_npy_headers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
