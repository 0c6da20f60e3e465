#include "fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------- random numbers */

static uint64_t state;

void draw_seed(unsigned seed) {
    state = seed;
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
uint64_t draw(uint64_t bound) {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return bound ? (z ^ (z >> 31)) % bound : 0;
}

bool draw_once_in(uint64_t times) {
    return draw(times) == 0;
}

int64_t draw_integer(void) {
    static const int64_t odd[] = {0,         1,         -1,        2,          3,
                                  4,         8,         255,       256,        65535,
                                  65536,     INT32_MAX, INT32_MIN, UINT32_MAX, INT64_MAX,
                                  INT64_MIN, 1LL << 61, 1LL << 62, 1LL << 33,  1LL << 40};
    const int64_t value = odd[draw(sizeof odd / sizeof odd[0])];
    if (draw_once_in(3)) return (int64_t)draw(64);
    return draw_once_in(4) ? (int64_t)((uint64_t)value + draw(5) - 2) : value;
}

const char *draw_text(void) {
    static const char *const odd[] = {"",
                                      "x",
                                      "-",
                                      "0x10",
                                      "1e400",
                                      "-1e400",
                                      "nan",
                                      "inf",
                                      "-0",
                                      "1e-320",
                                      "0.1",
                                      "9223372036854775808",
                                      "-9223372036854775808",
                                      "18446744073709551616",
                                      "1 2",
                                      " 1",
                                      "1 ",
                                      "null",
                                      "~",
                                      "true",
                                      "yes",
                                      "{}",
                                      "[]",
                                      "[1, 2]",
                                      "a: b",
                                      "%n%s",
                                      "\t",
                                      "\"",
                                      "\\",
                                      "'",
                                      "é",
                                      "🌍",
                                      "(null)",
                                      "../../x",
                                      "/dev/null",
                                      "!!int 3",
                                      "&a 1",
                                      "*a",
                                      "lstm",
                                      "mlstm",
                                      "deep",
                                      "file",
                                      "dense",
                                      "barabasi_albert",
                                      "1.",
                                      ".5",
                                      "1_000",
                                      "0o17",
                                      "2:30",
                                      "100000000000000000000",
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
                                      "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
    static char number[32];
    if (draw_once_in(2)) return odd[draw(sizeof odd / sizeof odd[0])];
    snprintf(number, sizeof number, "%lld", (long long)draw_integer());
    return number;
}

/* ------------------------------------------------------------------------------- scratch files */

enum { MAX_SCRATCH = 8 };

static char folder[256], *paths[MAX_SCRATCH];
static int path_count;

static void fail(const char *what) {
    perror(what);
    abort();
}

static void remove_scratch(void) {
    for (int i = 0; i < path_count; i++) {
        unlink(paths[i]);
        free(paths[i]);
    }
    rmdir(folder);
}

const char *scratch_path(const char *name) {
    if (!*folder) {
        const char *place = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/fuzz-XXXXXX", place && *place ? place : "/tmp");
        if (!mkdtemp(folder)) fail(folder);
        atexit(remove_scratch);
    }
    if (path_count == MAX_SCRATCH) abort();
    if (asprintf(&paths[path_count], "%s/%s", folder, name) < 0) abort();
    return paths[path_count++];
}

void scratch_write(const char *path, const void *data, size_t size) {
    FILE *out = fopen(path, "wb");
    if (!out || fwrite(data, 1, size, out) != size || fclose(out) != 0) fail(path);
}

uint8_t *scratch_read(const char *path, size_t *size) {
    FILE *in = fopen(path, "rb");
    if (!in) fail(path);
    buffer all = {0};
    uint8_t part[4096];
    size_t count;
    while ((count = fread(part, 1, sizeof part, in)) > 0) buffer_add(&all, part, count);
    fclose(in);
    *size = all.size;
    return all.bytes;
}

/* -------------------------------------------------------------------------------------- buffers */

void buffer_add(buffer *b, const void *bytes, size_t size) {
    if (size == 0) return;
    if (b->size + size > b->capacity) {
        b->capacity = 2 * (b->size + size);
        b->bytes = realloc(b->bytes, b->capacity);
        if (!b->bytes) abort();
    }
    memcpy(b->bytes + b->size, bytes, size);
    b->size += size;
}

void buffer_text(buffer *b, const char *format, ...) {
    char text[2048];
    va_list arguments;
    va_start(arguments, format);
    const int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    buffer_add(b, text, length < (int)sizeof text ? (size_t)length : sizeof text - 1);
}

size_t buffer_take(buffer *b, uint8_t *data, size_t capacity) {
    const size_t size = b->size < capacity ? b->size : capacity;
    if (size > 0) memcpy(data, b->bytes, size);
    free(b->bytes);
    *b = (buffer){0};
    return size;
}

/* --------------------------------------------------------------------------------------- checks */

void require(bool holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "fuzz: wrong: %s\n", what);
    abort();
}

void touch(const void *data, size_t size) {
    uint8_t total = 0;
    for (size_t i = 0; i < size; i++) total ^= ((const uint8_t *)data)[i];
    __asm__ volatile("" ::"r"(total)); /* otherwise the compiler would drop the loop */
}
