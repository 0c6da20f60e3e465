#include "core/memory.h"

#include "core/error.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Only the functions of at_quick_exit run, because other threads may still be running. */
void mem_give_up(size_t count, size_t size) {
    fprintf(stderr, "smallworld: out of memory: %zu x %zu bytes\n", count, size);
    quick_exit(STATUS_FAILED);
}

static void *check(void *block, size_t count, size_t size) {
    if (!block && count > 0 && size > 0) mem_give_up(count, size);
    return block;
}

void *mem_alloc(size_t count, size_t size) {
    return check(calloc(count, size), count, size);
}

void *mem_resize(void *block, size_t count, size_t size) {
    return check(reallocarray(block, count, size), count, size);
}

void *mem_grow(void *block, size_t *capacity, size_t needed, size_t size) {
    if (needed <= *capacity) return block;
    size_t grown = *capacity ? *capacity : 16;
    while (grown < needed) grown = grown > SIZE_MAX / 2 ? needed : 2 * grown;
    *capacity = grown;
    return mem_resize(block, grown, size);
}

/* open_memstream's streams silently drop output if memory is lacking. These streams end the program
 * instead. */
typedef struct memory_stream {
    char **text;
    size_t *size, capacity;
} memory_stream;

static ssize_t stream_write(void *cookie, const char *bytes, size_t count) {
    memory_stream *s = cookie;
    *s->text = mem_grow(*s->text, &s->capacity, *s->size + count + 1, 1);
    memcpy(*s->text + *s->size, bytes, count);
    *s->size += count;
    (*s->text)[*s->size] = '\0';
    return (ssize_t)count;
}

/* Returns the position, for ftell. Cannot move. */
static int stream_seek(void *cookie, off64_t *offset, int from) {
    const memory_stream *s = cookie;
    if (from != SEEK_CUR || *offset != 0) return -1;
    *offset = (off64_t)*s->size;
    return 0;
}

static int stream_close(void *cookie) {
    free(cookie);
    return 0;
}

FILE *mem_stream(char **text, size_t *size) {
    memory_stream *s = mem_alloc(1, sizeof *s);
    *text = NULL;
    *size = 0;
    *s = (memory_stream){text, size, 0};
    stream_write(s, "", 0);
    const cookie_io_functions_t functions = {
        .write = stream_write, .seek = stream_seek, .close = stream_close};
    return check(fopencookie(s, "w", functions), 1, BUFSIZ);
}

void mem_stream_end(FILE *stream) {
    if (fclose(stream) != 0) mem_give_up(1, BUFSIZ);
}

char *mem_string(const char *text) {
    return check(strdup(text), strlen(text) + 1, 1);
}

char *mem_format(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = mem_format_list(format, arguments);
    va_end(arguments);
    return text;
}

char *mem_format_list(const char *format, va_list arguments) {
    char *text = NULL;
    if (vasprintf(&text, format, arguments) < 0) text = NULL;
    return check(text, strlen(format), 1);
}
