/* What the tests share: the backend under test, arrays that move between backends of different
 * types, random numbers, files and what is asserted of them. */
#ifndef SMALLWORLD_TESTS_SUPPORT_H
#define SMALLWORLD_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/philox.h"
#include "ops.h"

/* The backend that SMALLWORLD_TEST_DEVICE names, "cpu" unless set. Exits with 77, which ctest
 * counts as skipped, where that is cuda and there is no GPU. */
backend *test_backend(precision precision);
bool test_device_is_cuda(void);

/* Doubles on the host, and the same numbers as an array of a backend. A new array without values
 * is poisoned with NaNs. */
double *random_values(size_t count, double low, double high);
void *put(backend *be, const double *values, size_t count, element type);
void *put_poison(backend *be, size_t count, element type);
double *get(backend *be, const void *array, size_t count, element type);
void release_all(backend *be, void *const *arrays, size_t count); /* but NULL */

/* |a - b| / |b| in the Euclidean norm; infinite where either has a NaN. */
double relative_error(const double *a, const double *b, size_t count);

/* Uniform integer below `bound`. Draws repeat from run to run; `random_restart` starts over. */
uint64_t random_below(uint64_t bound);
double random_uniform(void);
void random_restart(uint64_t seed);

void assert_contains(const char *text, const char *part);

/* A fresh folder, removed with all it holds when the program ends, and the path of a file in it,
 * which is not for the caller to free. */
const char *temporary_folder(void);
char *path_of(const char *name);
void write_bytes(const char *path, const void *bytes, size_t size);
void write_text(const char *path, const char *text);
char *read_text(const char *path, size_t *size);
void assert_file(const char *path, const char *expected);
void assert_no_temporary(const char *path); /* that file_begin would have made for it */

/* Runs `body` in a process of its own, which must end with this status and write this to stderr. */
void assert_ends(void (*body)(void *argument), void *argument, int status, const char *expected);

/* Files cannot grow past `size` from now on, as on a disk that is full. SIZE_MAX: they can. */
void limit_file_size(size_t size);

#endif
