/* Runs a fuzz target without libFuzzer, built by any compiler:
 *
 *     fuzz_TARGET [--rounds N] [--seed S] [--keep FILE] [FILE|FOLDER...]
 *
 * Every file given is an input. After them come N rounds, each with an input that the target's
 * mutator makes of one of them, in one to four steps; the same S gives the same inputs. The input
 * of a round is written to the kept FILE before it is tried. */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CAPACITY = 1 << 16 };

typedef struct input {
    uint8_t *bytes;
    size_t size;
} input;

static input *inputs;
static size_t input_count;

static void run(const uint8_t *bytes, size_t size) {
    /* Copies the input to exactly as many bytes, so that a sanitizer sees reads past its end. */
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) abort();
    memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
}

static void add(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) {
        perror(path);
        exit(1);
    }
    if (S_ISDIR(status.st_mode)) {
        struct dirent **names;
        const int count = scandir(path, &names, NULL, alphasort);
        for (int i = 0; i < count; i++) {
            char *inner = NULL;
            if (names[i]->d_name[0] != '.' &&
                asprintf(&inner, "%s/%s", path, names[i]->d_name) > 0) {
                add(inner);
            }
            free(inner);
            free(names[i]);
        }
        if (count >= 0) free(names);
        return;
    }
    inputs = realloc(inputs, (input_count + 1) * sizeof *inputs);
    if (!inputs) abort();
    input *in = &inputs[input_count++];
    in->bytes = scratch_read(path, &in->size);
    run(in->bytes, in->size);
}

/* Sets, inserts, removes or copies bytes. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity) {
    const size_t at = draw(size + 1), count = 1 + draw(8);
    switch (draw(4)) {
    case 0:
        if (at < size) data[at] = (uint8_t)draw(256);
        return size;
    case 1:
        if (size + count > capacity) return size;
        memmove(data + at + count, data + at, size - at);
        for (size_t i = 0; i < count; i++) data[at + i] = (uint8_t)draw(256);
        return size + count;
    case 2:
        if (at + count > size) return size;
        memmove(data + at, data + at + count, size - at - count);
        return size - count;
    default:
        if (size > count && at + count <= size) {
            memmove(data + at, data + draw(size - count), count);
        }
        return size;
    }
}

static size_t make(uint8_t *data, unsigned seed) {
    draw_seed(seed);
    size_t size = 0;
    const uint64_t steps = 1 + draw(4);
    if (input_count > 0) {
        const input *from = &inputs[draw(input_count)];
        size = from->size < CAPACITY ? from->size : CAPACITY;
        if (size > 0) memcpy(data, from->bytes, size);
    }
    for (uint64_t i = 0; i < steps; i++) {
        size = LLVMFuzzerCustomMutator(data, size, CAPACITY, seed * 4 + (unsigned)i);
    }
    return size;
}

int main(int argc, char **argv) {
    unsigned rounds = 0, seed = 1;
    const char *keep = NULL;
    /* On a disk, most of the time would go to writing inputs. */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
    if (LLVMFuzzerInitialize(&argc, &argv) != 0) return 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc) {
            rounds = (unsigned)atoi(argv[++i]);
        } else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
            seed = (unsigned)atoi(argv[++i]);
        } else if (strcmp(argv[i], "--keep") == 0 && i + 1 < argc) {
            keep = argv[++i];
        } else {
            add(argv[i]);
        }
    }
    uint8_t *data = malloc(CAPACITY);
    if (!data) return 1;
    for (unsigned round = 0; round < rounds; round++) {
        const size_t size = make(data, seed + round);
        if (keep) scratch_write(keep, data, size);
        run(data, size);
    }
    printf("%zu inputs, %u rounds from seed %u\n", input_count, rounds, seed);
    for (size_t i = 0; i < input_count; i++) free(inputs[i].bytes);
    free(inputs);
    free(data);
    return 0;
}
