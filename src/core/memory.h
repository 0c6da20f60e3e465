/* Host memory for tables and strings. If memory is lacking, the program ends with one line. The
 * model's own memory is planned, and refused before training instead, see model/plan.h. */
#ifndef SMALLWORLD_CORE_MEMORY_H
#define SMALLWORLD_CORE_MEMORY_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

/* `count` zeroed elements of `size` bytes. */
void *mem_alloc(size_t count, size_t size);

/* Like realloc for `count` elements of `size` bytes; what is added is not zeroed. */
void *mem_resize(void *block, size_t count, size_t size);

/* Grows a dynamic array so that it holds at least `needed` elements; doubles `*capacity`. */
void *mem_grow(void *block, size_t *capacity, size_t needed, size_t size);

/* Opens a stream that writes to memory. After mem_stream_end the caller frees `*text`, which has a
 * NUL after its `*size` bytes. Both variables must outlive the stream. */
FILE *mem_stream(char **text, size_t *size);
void mem_stream_end(FILE *stream);

char *mem_string(const char *text);
char *mem_format(const char *format, ...) __attribute__((format(printf, 1, 2)));
char *mem_format_list(const char *format, va_list arguments) __attribute__((format(printf, 1, 0)));

/* Ends the program as they all do, for a library that could not allocate. */
void mem_give_up(size_t count, size_t size) __attribute__((noreturn));

#endif
