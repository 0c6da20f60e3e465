/* What everything stands on: errors, memory, files, JSON, .npy, PNG, Philox and safetensors, above
 * all where they fail. */
#include "support.h"

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/npy.h"
#include "core/png.h"
#include "core/safetensors.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

/* AddressSanitizer's allocator would end the program before ours can. */
const char *__asan_default_options(void);

const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

static void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("expected '%s' in: %s", part, text);
}

/* Files cannot grow past `size` from now on, as on a disk that is full. */
static void limit_file_size(rlim_t size) {
    struct rlimit limit;
    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = size;
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, size == RLIM_INFINITY ? SIG_DFL : SIG_IGN);
}

/* ----------------------------------------------------------------------------------- errors */

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

    char *longer = mem_alloc(2000, 1);
    memset(longer, 'x', 1999);
    error_set(&err, "%s", longer);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
    free(longer);

    /* One line, whatever a file or a key is called. */
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

/* ----------------------------------------------------------------------------------- memory */

static void take_too_much(int how) {
    size_t capacity = 0;
    if (how == 0) mem_alloc(SIZE_MAX / 2, 16);
    if (how == 1) mem_resize(NULL, SIZE_MAX / 8, 16);
    if (how == 2) mem_grow(NULL, &capacity, SIZE_MAX / 2 + 2, 1);
}

/* Too much ends the program with one line, also where the size would overflow. */
static void test_too_much_memory(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        int ends[2], status;
        assert_int_equal(pipe(ends), 0);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            dup2(ends[1], STDERR_FILENO);
            alarm(10);
            take_too_much(how);
            _exit(77);
        }
        close(ends[1]);
        char text[4096];
        ssize_t count, size = 0;
        while ((count = read(ends[0], text + size, sizeof text - 1 - (size_t)size)) > 0) {
            size += count;
        }
        text[size] = '\0';
        close(ends[0]);
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 1) {
            fail_msg("way %d: status %x, '%s'", how, status, text);
        }
        char *line =
            strstr(text, "smallworld: out of memory: "); /* after AddressSanitizer's warning */
        assert_non_null(line);
        assert_ptr_equal(strchr(line, '\n'), text + size - 1);
    }
}

static void test_memory(void **state) {
    (void)state;
    char *zeroed = mem_alloc(3, 5);
    for (int i = 0; i < 15; i++) assert_int_equal(zeroed[i], 0);
    free(zeroed);
    size_t capacity = 0;
    int *numbers = NULL;
    for (size_t i = 0; i < 100; i++) {
        numbers = mem_grow(numbers, &capacity, i + 1, sizeof *numbers);
        numbers[i] = (int)i;
    }
    assert_in_range(capacity, 100, 200);
    for (int i = 0; i < 100; i++) assert_int_equal(numbers[i], i);
    free(numbers);
    char *text = mem_format("%s %d", "number", 5);
    assert_string_equal(text, "number 5");
    free(text);
}

/* ------------------------------------------------------------------------------------ files */

static void assert_file(const char *path, const char *expected) {
    size_t size;
    char *text = read_text(path, &size);
    assert_int_equal(size, strlen(expected));
    assert_memory_equal(text, expected, size);
    free(text);
}

static void assert_no_file(const char *format, const char *path) {
    char name[600];
    snprintf(name, sizeof name, format, path);
    if (file_exists(name)) fail_msg("%s was left behind", name);
}

static void test_atomic_write(void **state) {
    (void)state;
    char *path = temporary_path("written");
    file_writer writer;
    error err;
    write_text(path, "old");
    assert_true(file_begin(&writer, path, &err));
    assert_true(file_write(&writer, "new text", 8, &err));
    assert_file(path, "old");
    assert_true(file_flush(&writer, &err));
    assert_file(path, "old");
    assert_true(file_commit(&writer, &err));
    assert_file(path, "new text");
    assert_no_file("%s.tmp", path);

    assert_true(file_begin(&writer, path, &err));
    assert_true(file_write(&writer, "newer", 5, &err));
    file_abort(&writer);
    assert_file(path, "new text");
    assert_no_file("%s.tmp", path);
    free(path);
}

static void test_write_failures(void **state) {
    (void)state;
    char *path = temporary_path("kept"), *temporary = mem_format("%s.tmp", path);
    file_writer writer;
    error err;
    write_text(path, "kept");

    /* No room: found by a write, and, as the text is short, only by the commit. */
    static char block[1 << 16];
    for (size_t size = sizeof block; size > 0; size = size > 100 ? 100 : 0) {
        limit_file_size(50);
        bool begun = file_begin(&writer, path, &err);
        bool written = begun && file_write(&writer, block, size, &err);
        if (size == 100) assert_true(written);
        bool committed = file_commit(&writer, &err);
        limit_file_size(RLIM_INFINITY);
        assert_true(begun);
        assert_false(committed);
        assert_contains(err.text, "cannot write ");
        assert_contains(err.text, path);
        assert_file(path, "kept");
        assert_no_file("%s.tmp", path);
    }
    assert_int_equal(symlink("/dev/full", temporary), 0);
    assert_true(file_begin(&writer, path, &err));
    fputs("text", writer.stream);
    assert_false(file_commit(&writer, &err));
    assert_contains(err.text, "No space left on device");
    assert_file(path, "kept");
    assert_no_file("%s.tmp", path);

    /* No such folder, and a target that is one. */
    char *absent = temporary_path("absent/file"), *folder = temporary_path("a.folder");
    assert_false(file_begin(&writer, absent, &err));
    assert_contains(err.text, absent);
    assert_contains(err.text, "No such file or directory");
    assert_true(file_make_folder(folder, &err));
    assert_true(file_begin(&writer, folder, &err));
    assert_false(file_commit(&writer, &err));
    assert_contains(err.text, "cannot rename to ");
    assert_no_file("%s.tmp", folder);
    free(folder);
    free(absent);
    free(temporary);
    free(path);
}

static void test_map(void **state) {
    (void)state;
    char *path = temporary_path("mapped"), *absent = temporary_path("absent");
    file_map map;
    error err;
    write_text(path, "some bytes");
    assert_true(file_map_open(&map, path, &err));
    assert_int_equal(map.size, 10);
    assert_memory_equal(map.bytes, "some bytes", 10);
    file_map_close(&map);
    write_text(path, "");
    assert_true(file_map_open(&map, path, &err));
    assert_int_equal(map.size, 0);
    assert_non_null(map.bytes);
    file_map_close(&map);
    assert_false(file_map_open(&map, absent, &err));
    assert_contains(err.text, "No such file or directory");
    assert_false(file_map_open(&map, temporary_folder(), &err));
    assert_contains(err.text, "not a regular file");
    assert_false(file_map_open(&map, "/dev/zero", &err));
    assert_contains(err.text, "not a regular file");
    free(absent);
    free(path);
}

static void test_make_folder(void **state) {
    (void)state;
    char *deep = temporary_path("one/two/three"), *file = temporary_path("one/file");
    char *below = temporary_path("one/file/folder"), *slash = temporary_path("one/four/");
    error err;
    assert_true(file_make_folder(deep, &err));
    assert_true(file_make_folder(deep, &err));
    assert_true(file_exists(deep));
    assert_true(file_make_folder(slash, &err));
    assert_true(file_exists(slash));
    write_text(file, "");
    assert_false(file_make_folder(file, &err));
    assert_contains(err.text, "not a folder");
    assert_false(file_make_folder(below, &err));
    assert_contains(err.text, file);
    assert_false(file_make_folder("/proc/absent/run", &err));
    assert_contains(err.text, "cannot make folder /proc/absent");
    free(deep);
    free(file);
    free(below);
    free(slash);
}

/* ------------------------------------------------------------------------------------- JSON */

static void test_json_writing(void **state) {
    (void)state;
    char *text;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_string(&w, "quo\"te", "back\\slash\nline\x01");
    json_bytes(&w, "bytes", (const uint8_t *)"a\0\xff\"\x7f", 5);
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
                              "\"bytes\": \"a\\u0000\\u00ff\\\"\\u007f\", "
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
        json_format_number(text, values[i]);
        double back = strtod(text, NULL);
        assert_memory_equal(&back, &values[i], sizeof back);
    }
    json_format_number(text, 0.1);
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
        assert_false(json_read_string(&r, text, sizeof text)); /* and so it stays */
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

/* -------------------------------------------------------------------------------------- npy */

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
    char *path = temporary_path("array.npy");
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

    const int32_t labels[3] = {1, -1, 0};
    write_array(path, "<i4", 3, 0, labels, sizeof labels);
    assert_true(npy_open(&array, path, &err));
    assert_int_equal(array.rows, 3);
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
    limit_file_size(RLIM_INFINITY);
    assert_false(written);
    free(path);
}

/* A file with this header dictionary, padded as the format wants, and `bytes` of zeros. */
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
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4), }", 1, 24,
         false},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 3), }", 1, 24, false},
        {"{'descr': '<U99', 'fortran_order': False, 'shape': (2, 3), }", 1, 1000, false},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (2, 3), }", 1, 96, false},
        {"{'fortran_order': False, 'shape': (2, 3), }", 1, 24, false},
        {"{'descr': '<f4', 'shape': (2, 3), }", 1, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, }", 1, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 4, 24, false},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", 0, 24, false},
    };
    char *path = temporary_path("header.npy");
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
    free(path);
}

static void test_npy_truncated(void **state) {
    (void)state;
    char *path = temporary_path("cut.npy");
    const float values[4] = {1, 2, 3, 4};
    size_t size;
    write_array(path, "<f4", 4, 0, values, sizeof values);
    char *whole = read_text(path, &size);
    for (size_t length = 0; length < size; length++) {
        npy array;
        error err;
        write_bytes(path, whole, length);
        assert_false(npy_open(&array, path, &err));
    }
    free(whole);
    free(path);
}

/* -------------------------------------------------------------------------------------- PNG */

static uint32_t big_endian(const char *bytes) {
    const uint8_t *b = (const uint8_t *)bytes;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Reads the chunk at `*at`: checks its sum, returns its length. */
static uint32_t read_chunk(const char *file, size_t size, size_t *at, const char *type,
                           const char **data) {
    assert_true(*at + 12 <= size);
    uint32_t length = big_endian(file + *at);
    assert_true(*at + 12 + length <= size);
    assert_memory_equal(file + *at + 4, type, 4);
    *data = file + *at + 8;
    assert_int_equal(crc32(0, (const Bytef *)file + *at + 4, length + 4),
                     big_endian(*data + length));
    *at += 12 + length;
    return length;
}

static void test_png(void **state) {
    (void)state;
    enum { WIDTH = 5, HEIGHT = 3 };
    char *path = temporary_path("picture.png");
    const char *data;
    uint8_t pixels[HEIGHT * WIDTH], lines[HEIGHT][WIDTH + 1];
    size_t size, at = 8;
    uLongf expanded = sizeof lines;
    error err;
    for (int i = 0; i < WIDTH * HEIGHT; i++) pixels[i] = (uint8_t)(17 * i);
    assert_true(png_write(path, pixels, WIDTH, HEIGHT, &err));
    char *file = read_text(path, &size);
    assert_memory_equal(file, "\x89PNG\r\n\x1a\n", 8);
    assert_int_equal(read_chunk(file, size, &at, "IHDR", &data), 13);
    assert_int_equal(big_endian(data), WIDTH);
    assert_int_equal(big_endian(data + 4), HEIGHT);
    assert_memory_equal(data + 8, "\x08\0\0\0\0", 5); /* 8 bits of grey, nothing unusual */
    uint32_t length = read_chunk(file, size, &at, "IDAT", &data);
    assert_int_equal(uncompress(lines[0], &expanded, (const Bytef *)data, length), Z_OK);
    assert_int_equal(expanded, sizeof lines);
    for (int y = 0; y < HEIGHT; y++) {
        assert_int_equal(lines[y][0], 0);
        assert_memory_equal(lines[y] + 1, pixels + y * WIDTH, WIDTH);
    }
    assert_int_equal(read_chunk(file, size, &at, "IEND", &data), 0);
    assert_int_equal(at, size);

    assert_false(png_write(path, pixels, 0, 3, &err));
    assert_false(png_write(path, pixels, 5, -1, &err));
    assert_false(png_write(path, pixels, 1 << 20, 1 << 20, &err));
    assert_contains(err.text, "cannot write an image of 1048576 x 1048576 pixels");
    limit_file_size(20);
    bool written = png_write(path, pixels, WIDTH, HEIGHT, &err);
    limit_file_size(RLIM_INFINITY);
    assert_false(written);
    assert_no_file("%s.tmp", path);
    char *again = read_text(path, &size);
    assert_memory_equal(again, file, size);
    free(again);
    free(file);
    free(path);
}

/* ----------------------------------------------------------------------------------- Philox */

/* The known answers that come with the authors' Random123 library. */
static void test_philox_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t key;
        uint32_t counter[4], answer[4];
    } known[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const uint32_t *c = known[i].counter;
        philox_block block = philox(known[i].key, c[0], c[1], c[2], c[3]);
        assert_memory_equal(block.word, known[i].answer, sizeof block.word);
    }
}

static void test_philox_streams(void **state) {
    (void)state;
    philox_stream a = philox_start(5, PHILOX_TEST, 1, 2), b = a;
    for (int i = 0; i < 100; i++) assert_int_equal(philox_next(&a), philox_next(&b));
    b = philox_start(5, PHILOX_TEST, 2, 2);
    assert_int_not_equal(philox_next(&a), philox_next(&b));

    /* philox_next is the block's first two words at the draw's number, in both halves of it. */
    philox_stream far = {7, 0x123456789abcdef0, 3, PHILOX_PURPOSE(PHILOX_TEST, 4)};
    philox_block block = philox(7, 0x9abcdef0, 0x12345678, 3, 8u << 24 | 4);
    assert_int_equal(philox_next(&far), (uint64_t)block.word[1] << 32 | block.word[0]);

    enum { DRAWS = 30000, SIDES = 6 };
    int seen[SIDES] = {0};
    double sum = 0;
    for (int i = 0; i < DRAWS; i++) {
        seen[philox_below(&a, SIDES)]++;
        double u = philox_uniform(&a);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    for (int i = 0; i < SIDES; i++)
        assert_in_range(seen[i], DRAWS / SIDES - 300, DRAWS / SIDES + 300);
    assert_true(fabs(sum / DRAWS - 0.5) < 0.01);
    assert_int_equal(philox_below(&a, 1), 0);
    for (int i = 0; i < 100; i++) assert_true(philox_below(&a, UINT64_MAX) < UINT64_MAX);
}

/* ------------------------------------------------------------------------------ safetensors */

static const float sample_floats[6] = {1, -2.5f, 3, 0, 1e-20f, 7};
static const int32_t sample_blocks[4] = {0, 1, -5, INT32_MAX};
static const uint8_t sample_bytes[3] = {0, 128, 255};
static const double sample_doubles[2] = {M_PI, -0.0};

/* Writes one tensor of each type; the doubles last but one, the bytes where they unalign nothing.
 */
static void write_sample(const char *path) {
    const tensor tensors[] = {
        {"weights", TENSOR_F32, 2, {2, 3}, sample_floats},
        {"doubles", TENSOR_F64, 1, {2}, sample_doubles},
        {"blocks", TENSOR_I32, 2, {2, 2}, sample_blocks},
        {"nothing", TENSOR_F32, 2, {0, 7}, ""},
        {"bytes", TENSOR_U8, 3, {1, 3, 1}, sample_bytes},
    };
    const metadata entries[] = {{"format", "sample"}, {"quoted", "a \"b\" \\ \n c"}};
    error err;
    if (!safetensors_write(path, tensors, 5, entries, 2, &err)) fail_msg("%s", err.text);
}

static void assert_tensor(const safetensors *file, const char *name, tensor_type type,
                          const void *data, size_t bytes) {
    const tensor *t = safetensors_find(file, name);
    assert_non_null(t);
    assert_int_equal(t->type, type);
    assert_int_equal(tensor_bytes(t), bytes);
    assert_memory_equal(t->data, data, bytes);
}

static void test_safetensors(void **state) {
    (void)state;
    char *path = temporary_path("sample.safetensors"), *twin = temporary_path("twin.safetensors");
    safetensors file;
    error err;
    write_sample(path);
    if (!safetensors_open(&file, path, &err)) fail_msg("%s", err.text);
    assert_int_equal(file.tensor_count, 5);
    assert_tensor(&file, "weights", TENSOR_F32, sample_floats, sizeof sample_floats);
    assert_tensor(&file, "doubles", TENSOR_F64, sample_doubles, sizeof sample_doubles);
    assert_tensor(&file, "blocks", TENSOR_I32, sample_blocks, sizeof sample_blocks);
    assert_tensor(&file, "bytes", TENSOR_U8, sample_bytes, sizeof sample_bytes);
    assert_int_equal(tensor_bytes(safetensors_find(&file, "nothing")), 0);
    assert_int_equal(safetensors_find(&file, "weights")->shape[1], 3);
    assert_null(safetensors_find(&file, "weight"));
    assert_string_equal(safetensors_metadata(&file, "format"), "sample");
    assert_string_equal(safetensors_metadata(&file, "quoted"), "a \"b\" \\ \n c");
    assert_null(safetensors_metadata(&file, "form"));
    assert_int_equal(strlen(safetensors_metadata(&file, "checksum")), 8);
    safetensors_close(&file);

    size_t size, twin_size;
    write_sample(twin);
    char *a = read_text(path, &size), *b = read_text(twin, &twin_size);
    assert_int_equal(size, twin_size);
    assert_memory_equal(a, b, size);
    free(a);
    free(b);
    free(path);
    free(twin);
}

static bool opens(const char *path, const char *bytes, size_t size, error *err) {
    safetensors file;
    write_bytes(path, bytes, size);
    bool opened = safetensors_open(&file, path, err);
    if (opened) {
        safetensors_close(&file);
    } else {
        assert_contains(err->text, path);
    }
    return opened;
}

/* Every bit that is flipped and every length that is cut to is noticed; but in the name of the
 * checksum, without which a file is another program's: train/checkpoint.h refuses those. */
static void test_safetensors_damage(void **state) {
    (void)state;
    char *path = temporary_path("damaged.safetensors");
    size_t size;
    error err;
    write_sample(path);
    char *whole = read_text(path, &size);
    const char *name = memmem(whole, size, "checksum", 8);
    for (size_t i = 0; i < size; i++) {
        if (whole + i >= name && whole + i < name + 8) continue;
        for (int bit = 0; bit < 8; bit++) {
            whole[i] ^= (char)(1 << bit);
            if (opens(path, whole, size, &err)) fail_msg("bit %d of byte %zu", bit, i);
            whole[i] ^= (char)(1 << bit);
        }
    }
    for (size_t length = 0; length < size; length++) {
        if (opens(path, whole, length, &err)) fail_msg("cut to %zu bytes", length);
    }
    whole = mem_resize(whole, size + 1, 1);
    whole[size] = '\0';
    assert_false(opens(path, whole, size + 1, &err));
    assert_true(opens(path, whole, size, &err));
    free(whole);
    free(path);
}

/* A file with this header, padded to 8 bytes, and `bytes` of zeros. */
static bool opens_header(const char *path, const char *header, size_t bytes, error *err) {
    char file[2048] = {0};
    size_t length = (strlen(header) + 7) / 8 * 8;
    memset(file + 8, ' ', length);
    memcpy(file + 8, header, strlen(header));
    file[0] = (char)(length & 255);
    file[1] = (char)(length >> 8);
    return opens(path, file, 8 + length + bytes, err);
}

static void test_safetensors_headers(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t bytes;
        bool good;
    } cases[] = {
        {"{}", 0, true}, /* another program's need no checksum */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, true},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4],\"dtype\":\"I32\"}}", 4, true},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 12, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
         false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0,
         false},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"more\":1}}", 8, false},
        /* A field given twice would leave shape and bytes at odds. */
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"data_offsets\":[0,0]}}", 0, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9],\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         false},
        /* A name given twice, or one that is no string. */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, false},
        {"{\"__metadata__\":{\"a\":1}}", 0, false},
        {"{\"__metadata__\":{\"a\":\"b\"}}", 0, true},
        {"{\"__metadata__\":{\"checksum\":\"00000000\"}}", 0, false},
        {"{\"__metadata__\":{\"checksum\": \"00000000\"}}", 0, false},
        /* F64 after one byte of U8 is not aligned. */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[1,9]}}",
         9, false},
        {"{\"a\":", 0, false},
        {"[]", 0, false},
        {"", 0, false},
    };
    char *path = temporary_path("header.safetensors");
    error err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (opens_header(path, cases[i].header, cases[i].bytes, &err) != cases[i].good) {
            fail_msg("%s with %zu bytes", cases[i].header, cases[i].bytes);
        }
    }
    assert_false(opens(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &err));
    assert_false(opens(path, "\x09\0\0\0\0\0\0\0{}", 10, &err));
    assert_contains(err.text, "truncated");
    free(path);
}

static void test_safetensors_full_disk(void **state) {
    (void)state;
    char *path = temporary_path("full.safetensors");
    static float values[1 << 16];
    const tensor large = {"values", TENSOR_F32, 1, {1 << 16}, values};
    size_t size, again;
    error err;
    write_sample(path);
    char *before = read_text(path, &size);
    limit_file_size(1 << 16);
    bool written = safetensors_write(path, &large, 1, NULL, 0, &err);
    limit_file_size(RLIM_INFINITY);
    assert_false(written);
    assert_contains(err.text, "cannot write");
    char *after = read_text(path, &again);
    assert_int_equal(size, again);
    assert_memory_equal(before, after, size);
    assert_no_file("%s.tmp", path);
    free(before);
    free(after);
    free(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_log_texts),
        cmocka_unit_test(test_too_much_memory),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_atomic_write),
        cmocka_unit_test(test_write_failures),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_make_folder),
        cmocka_unit_test(test_json_writing),
        cmocka_unit_test(test_json_numbers),
        cmocka_unit_test(test_json_reading),
        cmocka_unit_test(test_json_refusals),
        cmocka_unit_test(test_npy),
        cmocka_unit_test(test_npy_headers),
        cmocka_unit_test(test_npy_truncated),
        cmocka_unit_test(test_png),
        cmocka_unit_test(test_philox_answers),
        cmocka_unit_test(test_philox_streams),
        cmocka_unit_test(test_safetensors),
        cmocka_unit_test(test_safetensors_damage),
        cmocka_unit_test(test_safetensors_headers),
        cmocka_unit_test(test_safetensors_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
