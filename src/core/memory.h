/* Host memory for tables and strings. If there is none left, the program ends with one line. The
 * model's own memory is planned and refused before training instead, see model/plan.h. */
#ifndef SMALLWORLD_CORE_MEMORY_H
#define SMALLWORLD_CORE_MEMORY_H

#include <stddef.h>
#include <stdio.h>

/* `count` zeroed elements of `size` bytes. */
void *mem_alloc(size_t count, size_t size);

/* Like realloc for `count` elements of `size` bytes; what is added is not zeroed. */
void *mem_resize(void *block, size_t count, size_t size);

/* Grows a dynamic array so that it holds at least `needed` elements; doubles `*capacity`. */
void *mem_grow(void *block, size_t *capacity, size_t needed, size_t size);

/* A stream that writes to memory. Its end closes it; `*text`, with a 0 behind its `*size` bytes, is
 * then the caller's to free. Both must outlive the stream. */
FILE *mem_stream(char **text, size_t *size);
void mem_stream_end(FILE *stream);

char *mem_string(const char *text);
char *mem_format(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
