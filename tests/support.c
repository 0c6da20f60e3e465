#include "support.h"

#include "core/file.h"
#include "core/memory.h"

#include <ftw.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* --------------------------------------------------------------------------------- backends */

bool test_device_is_cuda(void) {
    const char *device = getenv("SMALLWORLD_TEST_DEVICE");
    return device && strcmp(device, "cuda") == 0;
}

backend *test_backend(precision precision) {
    if (precision == FP64) return backend_cpu_reference(0);
    if (!test_device_is_cuda()) return backend_cpu(precision, 0);
    error err;
    backend *be = backend_cuda(precision, 0, &err);
    if (be) return be;
    fprintf(stderr, "skipped: %s\n", err.text);
    exit(77);
}

/* SMALLWORLD_TEST, in which * stands for anything, names the test functions to run. */
__attribute__((constructor)) static void choose_tests(void) {
    const char *pattern = getenv("SMALLWORLD_TEST");
    if (pattern) cmocka_set_test_filter(pattern);
}

bool is_watched(void) {
    return getenv("SMALLWORLD_TEST_EVERY") != NULL;
}

bool takes_case(void) {
    static int cases;
    const char *every = getenv("SMALLWORLD_TEST_EVERY");
    return cases++ % (every ? atoi(every) : 1) == 0;
}

/* ----------------------------------------------------------------------------------- arrays */

static size_t element_bytes(const backend *be, element type) {
    return type == REAL ? be->real_size : be->operand_size;
}

static uint16_t to_bf16(double value) {
    float single = (float)value;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    if ((bits & 0x7FFFFFFF) > 0x7F800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

static double from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

void *put(backend *be, const double *values, size_t count, element type) {
    size_t size = element_bytes(be, type);
    char *host = mem_alloc(count ? count : 1, size);
    bool round = type == OPERAND && be->precision == BF16;
    for (size_t i = 0; i < count; i++) {
        double value = round ? from_bf16(to_bf16(values[i])) : values[i];
        float single = (float)value;
        uint16_t half = to_bf16(value);
        const void *source = size == 8 ? (void *)&value : size == 4 ? (void *)&single : &half;
        memcpy(host + i * size, source, size);
    }
    void *array = be->memory->allocate(be, count * size);
    assert_non_null(array);
    be->memory->upload(be, array, host, count * size);
    free(host);
    return array;
}

void *put_poison(backend *be, size_t count, element type) {
    double *values = mem_alloc(count, sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = NAN;
    void *array = put(be, values, count, type);
    free(values);
    return array;
}

double *get(backend *be, const void *array, size_t count, element type) {
    size_t size = element_bytes(be, type);
    char *host = mem_alloc(count ? count : 1, size);
    double *values = mem_alloc(count ? count : 1, sizeof *values);
    be->memory->download(be, host, array, count * size);
    error err;
    if (!be->memory->finish(be, &err)) fail_msg("%s", err.text);
    for (size_t i = 0; i < count; i++) {
        const void *source = host + i * size;
        values[i] = size == 8   ? *(const double *)source
                    : size == 4 ? *(const float *)source
                                : from_bf16(*(const uint16_t *)source);
    }
    free(host);
    return values;
}

void release_all(backend *be, void *const *arrays, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (arrays[i]) be->memory->release(be, arrays[i]);
    }
}

double relative_error(const double *a, const double *b, size_t count) {
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    double error = norm > 0 ? sqrt(difference / norm) : sqrt(difference);
    return isfinite(error) ? error : INFINITY;
}

void assert_contains(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("expected '%s' in: %s", part, text);
}

/* ----------------------------------------------------------------------------------- random */

static philox_stream draws = {1, 0, 0, PHILOX_PURPOSE(PHILOX_TEST, 0)};

void random_restart(uint64_t seed) {
    draws = philox_start(seed, PHILOX_TEST, 0, 0);
}

uint64_t random_below(uint64_t bound) {
    return philox_below(&draws, bound);
}

double random_uniform(void) {
    return philox_uniform(&draws);
}

double random_normal(void) {
    return sqrt(-2 * log(1 - random_uniform())) * cos(2 * M_PI * random_uniform());
}

double *random_values(size_t count, double low, double high) {
    double *values = mem_alloc(count ? count : 1, sizeof *values);
    for (size_t i = 0; i < count; i++) values[i] = low + (high - low) * random_uniform();
    return values;
}

/* ------------------------------------------------------------------------------------ files */

static char folder[256];

static int remove_entry(const char *path, const struct stat *status, int type, struct FTW *at) {
    (void)status, (void)type, (void)at;
    return remove(path);
}

static void remove_folder(void) {
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

const char *temporary_folder(void) {
    if (*folder) return folder;
    const char *parent = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/smallworld-test-XXXXXX", parent ? parent : "/tmp");
    assert_non_null(mkdtemp(folder));
    atexit(remove_folder);
    return folder;
}

char *path_of(const char *name) {
    static char **paths;
    static size_t count, capacity;
    paths = mem_grow(paths, &capacity, count + 1, sizeof *paths);
    return paths[count++] = mem_format("%s/%s", temporary_folder(), name);
}

void write_bytes(const char *path, const void *bytes, size_t size) {
    remove(path); /* some file systems flush a file that is overwritten */
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(bytes, 1, size, out), size);
    assert_int_equal(fclose(out), 0);
}

void write_text(const char *path, const char *text) {
    write_bytes(path, text, strlen(text));
}

char *read_text(const char *path, size_t *size) {
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    fseek(in, 0, SEEK_END);
    *size = (size_t)ftell(in);
    rewind(in);
    char *text = mem_alloc(*size + 1, 1);
    assert_int_equal(fread(text, 1, *size, in), *size);
    fclose(in);
    return text;
}

void assert_file(const char *path, const char *expected) {
    size_t size;
    char *text = read_text(path, &size);
    assert_int_equal(size, strlen(expected));
    assert_memory_equal(text, expected, size);
    free(text);
}

void assert_no_temporary(const char *path) {
    char *name = mem_format("%s.tmp", path);
    if (file_exists(name)) fail_msg("%s was left behind", name);
    free(name);
}

void assert_ends(void (*body)(void *argument), void *argument, int status, const char *expected) {
    int ends[2], ended;
    char text[8192];
    ssize_t count, size = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        alarm(30);
        body(argument);
        _exit(77);
    }
    close(ends[1]);
    while ((count = read(ends[0], text + size, sizeof text - 1 - (size_t)size)) > 0) size += count;
    text[size] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &ended, 0), child);
    if (!WIFEXITED(ended) || WEXITSTATUS(ended) != status) {
        fail_msg("ended with %x, expected %d: %s", ended, status, text);
    }
    assert_contains(text, expected);
}

void limit_file_size(size_t size) {
    struct rlimit limit;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    limit.rlim_cur = size == SIZE_MAX ? limit.rlim_max : (rlim_t)size;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, size == SIZE_MAX ? SIG_DFL : SIG_IGN);
}
