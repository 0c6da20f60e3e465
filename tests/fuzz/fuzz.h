/* What the fuzz targets share. A target is one file. Its LLVMFuzzerTestOneInput reads an input as
 * the program would. Its LLVMFuzzerCustomMutator changes the structure of an input (a tensor's
 * shape, a key of YAML, a line) and then corrects what depends on it (offsets, checksums, lengths),
 * so that inputs pass the first checks. If it is built by clang with SMALLWORLD_FUZZ, libFuzzer
 * drives the targets (run.sh); otherwise replay.c does. */
#ifndef SMALLWORLD_TESTS_FUZZ_H
#define SMALLWORLD_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned seed);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size,
                        size_t capacity); /* libFuzzer's or replay.c's */

/* Random numbers for mutators: uniform below `bound`; true once in `times`; integers at which
 * arithmetic often goes wrong. */
void draw_seed(unsigned seed);
uint64_t draw(uint64_t bound);
bool draw_once_in(uint64_t times);
int64_t draw_integer(void);

/* Text that a parser of numbers or names may stumble over. */
const char *draw_text(void);

/* The path, which stays valid, of a file in a folder that is removed at the end; writing and
 * reading a file. */
const char *scratch_path(const char *name);
void scratch_write(const char *path, const void *data, size_t size);
uint8_t *scratch_read(const char *path, size_t *size); /* the caller frees */

/* Ends the program if `holds` is false: the target has found a wrong result. */
void require(bool holds, const char *what);

/* Reads all bytes, so that a sanitizer checks each. */
void touch(const void *data, size_t size);

/* A growing text or file, for mutators. */
typedef struct buffer {
    uint8_t *bytes;
    size_t size, capacity;
} buffer;

void buffer_add(buffer *b, const void *bytes, size_t size);
void buffer_text(buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Moves the buffer's content to `data`, cut to `capacity`, and frees the buffer. Returns the size
 * there. */
size_t buffer_take(buffer *b, uint8_t *data, size_t capacity);

#endif
