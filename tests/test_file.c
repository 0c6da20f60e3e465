/* Files, which are written whole or not at all; mapped files; folders. */
#include "support.h"

#include "core/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The linker puts this in front of the C library's (--wrap). */
static int flushed;

int __real_fsync(int file);
int __wrap_fsync(int file);

int __wrap_fsync(int file) {
    flushed++;
    return __real_fsync(file);
}

static void test_atomic_write(void **state) {
    (void)state;
    const char *path = path_of("written");
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
    assert_no_temporary(path);

    assert_true(file_begin(&writer, path, &err));
    assert_true(file_write(&writer, "newer", 5, &err));
    file_abort(&writer);
    assert_file(path, "new text");
    assert_no_temporary(path);
}

static void test_write_failures(void **state) {
    (void)state;
    const char *path = path_of("kept");
    file_writer writer;
    error err;
    write_text(path, "kept");

    /* The disk is full. A long text finds this in a write, a short one only in the commit. */
    static char block[1 << 16];
    for (size_t size = sizeof block; size > 0; size = size > 100 ? 100 : 0) {
        limit_file_size(50);
        bool begun = file_begin(&writer, path, &err);
        bool written = begun && file_write(&writer, block, size, &err);
        if (size == 100) assert_true(written);
        bool committed = file_commit(&writer, &err);
        limit_file_size(SIZE_MAX);
        assert_true(begun);
        assert_false(committed);
        assert_contains(err.text, "cannot write ");
        assert_contains(err.text, path);
        assert_file(path, "kept");
        assert_no_temporary(path);
    }
    /* The folder is missing, or the target is a folder. */
    const char *absent = path_of("absent/file"), *folder = path_of("a.folder");
    assert_false(file_begin(&writer, absent, &err));
    assert_contains(err.text, absent);
    assert_contains(err.text, "No such file or directory");
    assert_true(file_make_folder(folder, &err));
    assert_false(file_begin(&writer, folder, &err));
    assert_contains(err.text, "not a regular file");
    assert_no_temporary(folder);
    assert_false(file_begin(&writer, "/dev/null", &err));
    assert_contains(err.text, "cannot write /dev/null: ");
}

/* A file at the temporary name is never written to. It is only removed if a killed writer
 * left it. */
static void test_temporary(void **state) {
    (void)state;
    const char *path = path_of("target"), *temporary = path_of("target.tmp");
    const char *other = path_of("other");
    file_writer writer, second;
    error err;
    write_text(other, "another's");

    assert_int_equal(symlink(other, temporary), 0);
    assert_false(file_begin(&writer, path, &err));
    assert_contains(err.text, "target.tmp is in the way");
    assert_int_equal(unlink(temporary), 0);
    assert_int_equal(mkfifo(temporary, 0600), 0);
    assert_false(file_begin(&writer, path, &err));
    assert_contains(err.text, "is in the way");
    assert_int_equal(unlink(temporary), 0);
    assert_int_equal(link(other, temporary), 0);
    assert_true(file_begin(&writer, path, &err));
    assert_true(file_write(&writer, "mine", 4, &err));
    assert_true(file_commit(&writer, &err));
    assert_file(path, "mine");
    assert_file(other, "another's");

    write_text(temporary, "left by a writer that was killed");
    assert_true(file_begin(&writer, path, &err));
    assert_false(file_begin(&second, path, &err));
    assert_contains(err.text, "another program is writing it");
    assert_true(file_write(&writer, "new", 3, &err));
    assert_true(file_commit(&writer, &err));
    assert_file(path, "new");
    assert_no_temporary(path);

    /* Another process removes the temporary file, and another writer begins. */
    assert_true(file_begin(&writer, path, &err));
    assert_int_equal(unlink(temporary), 0);
    assert_true(file_begin(&second, path, &err));
    assert_true(file_write(&second, "second", 6, &err));
    assert_false(file_commit(&writer, &err));
    assert_contains(err.text, "another program removed");
    assert_true(file_commit(&second, &err));
    assert_file(path, "second");

    assert_true(file_begin(&writer, path, &err));
    file_remove_temporaries();
    assert_no_temporary(path);
    file_abort(&writer);
    assert_file(path, "second");
}

static void read_what_was_cut(void *argument) {
    file_map map;
    error err;
    file_guard_maps();
    if (!file_map_open(&map, argument, &err) || truncate(argument, 10) != 0) _exit(78);
    volatile uint8_t last = map.bytes[map.size - 1];
    _exit(79 + (last != 0));
}

static void test_cut_while_mapped(void **state) {
    (void)state;
    static char zeros[3 << 16];
    char *path = path_of("cut");
    write_bytes(path, zeros, sizeof zeros);
    assert_ends(read_what_was_cut, path, 1, "cut: it was cut short while it was read\n");
}

static void test_map(void **state) {
    (void)state;
    const char *path = path_of("mapped"), *absent = path_of("absent");
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
    const char *waiting = path_of("pipe");
    assert_int_equal(mkfifo(waiting, 0600), 0);
    assert_false(file_map_open(&map, waiting, &err));
    assert_contains(err.text, "not a regular file");
}

static void test_make_folder(void **state) {
    (void)state;
    const char *deep = path_of("one/two/three"), *file = path_of("one/file");
    const char *below = path_of("one/file/folder"), *slash = path_of("one/four/");
    error err;
    flushed = 0;
    assert_true(file_make_folder(deep, &err));
    assert_int_equal(flushed, 3); /* the folders in which the three were made */
    assert_true(file_make_folder(deep, &err));
    assert_int_equal(flushed, 3);
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
}

static void test_space(void **state) {
    (void)state;
    error err;
    const char *folder = path_of("");
    assert_true(file_check_space(folder, 1, "a byte", "", &err));
    assert_true(file_check_space("/nowhere", 1e30, "all", "", &err));
    assert_false(file_check_space(folder, 0x1p60, "the run", "expected another disk", &err));
    assert_non_null(strstr(err.text, ": the run takes 1024.0 PiB, and the disk has "));
    assert_non_null(strstr(err.text, " left; expected another disk"));
}

static void assert_word(const char *path, const char *expected) {
    char *word = file_shell_word(path);
    assert_string_equal(word, expected);
    free(word);
}

static void test_shell_words(void **state) {
    (void)state;
    assert_word("runs/a_1.x", "runs/a_1.x");
    assert_word("a b'c", "'a b'\\''c'");
    assert_word("-x", "'./-x'");
    assert_word("\xff\n'\\ a\xc3\xa9", "$'\\xff\\x0a\\x27\\x5c a\\xc3\\xa9'");
    assert_word("\xc3\xa9", "'\xc3\xa9'");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_space),
        cmocka_unit_test(test_atomic_write),
        cmocka_unit_test(test_write_failures),
        cmocka_unit_test(test_temporary),
        cmocka_unit_test(test_cut_while_mapped),
        cmocka_unit_test(test_map),
        cmocka_unit_test(test_make_folder),
        cmocka_unit_test(test_shell_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
