/* Shared by all tests: the backend under test, arrays that move between backends of different
 * types, random numbers, files, and assertions about them. */
#ifndef SMALLWORLD_TESTS_SUPPORT_H
#define SMALLWORLD_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/philox.h"
#include "ops.h"

/* Makes the backend that SMALLWORLD_TEST_DEVICE names, "cpu" by default. If cuda is asked for and
 * there is no GPU, exits with 77, which ctest counts as skipped. */
backend *test_backend(precision precision);
bool test_device_is_cuda(void);

/* Doubles on the host, and the same numbers as an array of a backend. A new array without values
 * is poisoned with NaNs. */
double *random_values(size_t count, double low, double high);
void *put(backend *be, const double *values, size_t count, element type);
void *put_poison(backend *be, size_t count, element type);
double *get(backend *be, const void *array, size_t count, element type);
void release_all(backend *be, void *const *arrays, size_t count); /* skips NULL */

/* Returns |a - b| / |b| in the Euclidean norm, or infinity if either has a NaN. */
double relative_error(const double *a, const double *b, size_t count);

/* Draw a uniform integer below `bound`, a uniform number from 0 to 1, and a normal one. Every
 * process draws the same numbers; `random_restart` starts them again. */
uint64_t random_below(uint64_t bound);
double random_uniform(void);
double random_normal(void);
void random_restart(uint64_t seed);

/* Whether a test takes its next case: of many like ones each SMALLWORLD_TEST_EVERYth, which is
 * enough where other tests run the same code, without a sanitizer or at another level. */
bool takes_case(void);
bool is_watched(void); /* whether that is set: a sanitizer slows the tests down */

void assert_contains(const char *text, const char *part);

/* Returns a new folder, which is removed with its content when the program ends, and the path of a
 * file in it. The caller frees neither. */
const char *temporary_folder(void);
char *path_of(const char *name);
void write_bytes(const char *path, const void *bytes, size_t size);
void write_text(const char *path, const char *text);
char *read_text(const char *path, size_t *size);
void assert_file(const char *path, const char *expected);
void assert_no_temporary(const char *path); /* the temporary file of file_begin */

/* Runs `body` in a process of its own and asserts its exit status and its output on stderr. */
void assert_ends(void (*body)(void *argument), void *argument, int status, const char *expected);

/* After this call files cannot grow past `size`, as on a full disk. SIZE_MAX removes the limit. */
void limit_file_size(size_t size);

#endif
