/* Allocations, above all those that fail. */
#include "support.h"

#include "core/memory.h"

#include <stdlib.h>

/* AddressSanitizer's allocator would end the program before ours can. */
const char *__asan_default_options(void);

const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

static void take_too_much(void *argument) {
    const int how = *(const int *)argument;
    size_t capacity = 0;
    if (how == 0) mem_alloc(SIZE_MAX / 2, 16);
    if (how == 1) mem_resize(NULL, SIZE_MAX / 8, 16);
    if (how == 2) mem_grow(NULL, &capacity, SIZE_MAX / 2 + 2, 1);
}

/* An allocation that fails ends the program with one line, also if its size overflows. */
static void test_too_much_memory(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        assert_ends(take_too_much, &how, 1, "smallworld: out of memory: ");
    }
}

/* The linker puts these in front of the C library's (--wrap). */
FILE *__real_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions);
FILE *__wrap_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions);
void *__real_reallocarray(void *block, size_t count, size_t size);
void *__wrap_reallocarray(void *block, size_t count, size_t size);

static bool no_stream, no_room;

FILE *__wrap_fopencookie(void *cookie, const char *mode, cookie_io_functions_t functions) {
    return no_stream ? NULL : __real_fopencookie(cookie, mode, functions);
}

void *__wrap_reallocarray(void *block, size_t count, size_t size) {
    return no_room ? NULL : __real_reallocarray(block, count, size);
}

static void write_stream(void *how) {
    no_stream = !how;
    char *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    no_room = true;
    fprintf(out, "%1000s", "text");
    mem_stream_end(out);
}

static void test_stream(void **state) {
    (void)state;
    char *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    fputs("some text", out);
    assert_int_equal(ftell(out), 9);
    mem_stream_end(out);
    assert_int_equal(size, 9);
    assert_string_equal(text, "some text");
    free(text);
    assert_ends(write_stream, NULL, 1, "smallworld: out of memory: ");
    assert_ends(write_stream, &size, 1, "smallworld: out of memory: ");
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_too_much_memory),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
