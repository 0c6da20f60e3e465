/* What the fuzz targets share. A target is one file, whose LLVMFuzzerTestOneInput reads an input as
 * the program would. If it is built by clang with SMALLWORLD_FUZZ, libFuzzer drives it (run.sh),
 * with words.dict, and checksums hold whatever they are; otherwise replay.c does. */
#ifndef SMALLWORLD_TESTS_FUZZ_H
#define SMALLWORLD_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The path, which stays valid, of a file in a folder that is removed at the end; writing and
 * reading a file. */
const char *scratch_path(const char *name);
void scratch_write(const char *path, const void *data, size_t size);
uint8_t *scratch_read(const char *path, size_t *size); /* the caller frees */

/* Makes this file an input to begin with; with $FUZZ_SEEDS, a file in that folder. */
void add_seed(const char *path);

typedef struct input {
    uint8_t *bytes;
    size_t size;
} input;

enum { MOST_SEEDS = 8 };
extern input seeds[MOST_SEEDS];
extern int seed_count;

/* Ends the program if `holds` is false: the target has found a wrong result. */
void require(bool holds, const char *what);

/* Reads all bytes, so that a sanitizer checks each. */
void touch(const void *data, size_t size);

#endif
