/* PNG files, decoded by the rules of the specification. */
#include "support.h"

#include "core/png.h"

#include <stdlib.h>
#include <zlib.h>

static uint32_t big_endian(const char *bytes) {
    const uint8_t *b = (const uint8_t *)bytes;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Checks the chunk at `*at` and its sum, and returns its length. */
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
    const char *data;
    uint8_t pixels[HEIGHT * WIDTH], lines[HEIGHT][WIDTH + 1];
    size_t size, at = 8;
    uLongf expanded = sizeof lines;
    for (int i = 0; i < WIDTH * HEIGHT; i++) pixels[i] = (uint8_t)(17 * i);
    char *file = (char *)png_encode(pixels, WIDTH, HEIGHT, &size);
    assert_memory_equal(file, "\x89PNG\r\n\x1a\n", 8);
    assert_int_equal(read_chunk(file, size, &at, "IHDR", &data), 13);
    assert_int_equal(big_endian(data), WIDTH);
    assert_int_equal(big_endian(data + 4), HEIGHT);
    assert_memory_equal(data + 8, "\x08\0\0\0\0", 5); /* 8 bits of grey, no interlacing */
    uint32_t length = read_chunk(file, size, &at, "IDAT", &data);
    assert_int_equal(uncompress(lines[0], &expanded, (const Bytef *)data, length), Z_OK);
    assert_int_equal(expanded, sizeof lines);
    for (int y = 0; y < HEIGHT; y++) {
        assert_int_equal(lines[y][0], 0);
        assert_memory_equal(lines[y] + 1, pixels + y * WIDTH, WIDTH);
    }
    assert_int_equal(read_chunk(file, size, &at, "IEND", &data), 0);
    assert_int_equal(at, size);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_png),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
