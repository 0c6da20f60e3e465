#include "fuzz.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    if (!in || fseek(in, 0, SEEK_END) != 0) fail(path);
    *size = (size_t)ftell(in);
    rewind(in);
    uint8_t *bytes = malloc(*size + 1);
    if (!bytes || fread(bytes, 1, *size, in) != *size) fail(path);
    fclose(in);
    return bytes;
}

input seeds[MOST_SEEDS];
int seed_count;

static void free_seeds(void) {
    for (int i = 0; i < seed_count; i++) free(seeds[i].bytes);
}

void add_seed(const char *path) {
    const char *target = getenv("FUZZ_SEEDS");
    char *name = NULL;
    if (seed_count == MOST_SEEDS) abort();
    if (seed_count == 0) atexit(free_seeds);
    input *s = &seeds[seed_count++];
    s->bytes = scratch_read(path, &s->size);
    if (target && asprintf(&name, "%s/seed%d", target, seed_count) > 0) {
        scratch_write(name, s->bytes, s->size);
    }
    free(name);
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
