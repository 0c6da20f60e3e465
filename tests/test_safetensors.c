/* safetensors files: writing and reading, and damaged files, which are refused. */
#include "support.h"

#include "core/memory.h"
#include "core/safetensors.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float sample_floats[6] = {1, -2.5f, 3, 0, 1e-20f, 7};
static const int32_t sample_blocks[4] = {0, 1, -5, INT32_MAX};
static const uint8_t sample_bytes[3] = {0, 128, 255};
static const double sample_doubles[2] = {M_PI, -0.0};

/* Writes one tensor of each type. Doubles are last but one and bytes are last, so that all are
 * aligned. */
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
    const char *path = path_of("sample.safetensors"), *twin = path_of("twin.safetensors");
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

/* Every flipped bit and every shorter length is noticed. The only exception is the name of the
 * checksum: without it the file counts as another program's, which train/checkpoint.h refuses. */
static void test_safetensors_damage(void **state) {
    (void)state;
    const char *path = path_of("damaged.safetensors");
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
}

/* Writes a file with this header, padded to 8 bytes, and `bytes` zeros. */
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
        {"{}", 0, true}, /* other programs' files need no checksum */
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, true},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,4],\"dtype\":\"I32\"}}", 4, true},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 12, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 4, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0,
         false},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"shape\":[2],\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,8]}}", 8, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8],\"more\":1}}", 8, false},
        /* A field given twice could make shape and bytes disagree. */
        {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"data_offsets\":[0,0]}}", 0, false},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[9],\"shape\":[2],\"data_offsets\":[0,8]}}", 8,
         false},
        /* A name given twice, and one that is no string, are refused. */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, false},
        {"{\"__metadata__\":{\"a\":1}}", 0, false},
        {"{\"__metadata__\":{\"a\":\"b\"}}", 0, true},
        {"{\"__metadata__\":{\"checksum\":\"00000000\"}}", 0, false},
        /* F64 after one byte of U8 is not aligned. */
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"b\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[1,9]}}",
         9, false},
        {"{\"a\":", 0, false},
        {"[]", 0, false},
        {"", 0, false},
    };
    const char *path = path_of("header.safetensors");
    error err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (opens_header(path, cases[i].header, cases[i].bytes, &err) != cases[i].good) {
            fail_msg("%s with %zu bytes", cases[i].header, cases[i].bytes);
        }
    }
    assert_false(opens(path, "\xff\xff\xff\xff\xff\xff\xff\xff{}", 10, &err));
    assert_false(opens(path, "\x09\0\0\0\0\0\0\0{}", 10, &err));
    assert_contains(err.text, "truncated");
}

/* Returns a header of so many members, each made from its number. */
static bool opens_many(const char *path, const char *begin, const char *member, int count,
                       const char *end, error *err) {
    char *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    fwrite("\0\0\0\0\0\0\0", 1, 8, out);
    fputs(begin, out);
    for (int i = 0; i < count; i++) {
        if (i) fputc(',', out);
        fprintf(out, member, i);
    }
    fputs(end, out);
    mem_stream_end(out);
    for (int i = 0; i < 8; i++) text[i] = (char)((size - 8) >> 8 * i & 255);
    bool opened = opens(path, text, size, err);
    free(text);
    return opened;
}

/* A stranger's large headers take neither much time nor much memory. */
static void test_safetensors_limits(void **state) {
    (void)state;
    static const char tensor_text[] =
        "\"%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
    static const char entry_text[] = "\"%d\":\"\"";
    static const char metadata_text[] = "{\"__metadata__\":{";
    const char *path = path_of("many.safetensors");
    error err;
    assert_true(opens_many(path, "{", tensor_text, SAFETENSORS_MAX_TENSORS, "}", &err));
    assert_false(opens_many(path, "{", tensor_text, SAFETENSORS_MAX_TENSORS + 1, "}", &err));
    assert_true(opens_many(path, metadata_text, entry_text, SAFETENSORS_MAX_ENTRIES, "}}", &err));
    assert_false(
        opens_many(path, metadata_text, entry_text, SAFETENSORS_MAX_ENTRIES + 1, "}}", &err));
    assert_false(opens_many(path, "{", tensor_text, 200000, "}", &err));
    assert_contains(err.text, "a header of ");
    assert_contains(err.text, "at most 1048576 are read");
}

/* The linker puts this in front of the C library's function (--wrap), so that other bytes reach the
 * disk. */
static bool spoil;

size_t __real_fwrite(const void *bytes, size_t size, size_t count, FILE *out);
size_t __wrap_fwrite(const void *bytes, size_t size, size_t count, FILE *out);

size_t __wrap_fwrite(const void *bytes, size_t size, size_t count, FILE *out) {
    size_t written = __real_fwrite(bytes, size, count, out);
    if (spoil && fileno(out) >= 0 && ftell(out) > 8) {
        fseek(out, -1, SEEK_CUR);
        fputc(0x55, out);
    }
    return written;
}

static void test_safetensors_verified(void **state) {
    (void)state;
    const char *path = path_of("verified.safetensors");
    const tensor other = {"weights", TENSOR_F32, 1, {6}, sample_floats};
    size_t size, again;
    error err;
    write_sample(path);
    char *before = read_text(path, &size);
    spoil = true;
    bool written = safetensors_write(path, &other, 1, NULL, 0, &err);
    spoil = false;
    assert_false(written);
    assert_contains(err.text, "what was written reads as: ");
    char *after = read_text(path, &again);
    assert_int_equal(size, again);
    assert_memory_equal(before, after, size);
    assert_no_temporary(path);
    free(before);
    free(after);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors),          cmocka_unit_test(test_safetensors_damage),
        cmocka_unit_test(test_safetensors_headers),  cmocka_unit_test(test_safetensors_limits),
        cmocka_unit_test(test_safetensors_verified),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
