/* Errors are values. A function that can fail takes `error *err` last, returns false (or NULL), and
 * leaves one line of text that names the file, line, key or value at fault and what was expected.
 * Only main turns an error into an exit status. */
#ifndef SMALLWORLD_CORE_ERROR_H
#define SMALLWORLD_CORE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>

enum { STATUS_OK = 0, STATUS_FAILED = 1, STATUS_USAGE = 2 };

/* Room for two names as long as they may be. */
enum { ERROR_TEXT = 9 << 10 };

typedef struct error {
    int status;   /* the exit status this error asks for: STATUS_FAILED or STATUS_USAGE */
    char key[48]; /* the config key at fault, "model.degree", or "" */
    char text[ERROR_TEXT];
} error;

/* Each sets the error and returns false, so that a caller can write `return error_set(...)`. With
 * error_key the text is "KEY: MESSAGE". */
bool error_set(error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool error_usage(error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool error_key(error *err, const char *key, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* error_set with the arguments of a function that takes a format itself. */
bool error_set_list(error *err, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* The text without its key, for a caller that knows where the key was set. */
const char *error_message(const error *err);

/* "cannot WHAT PATH: <strerror(errno)>", e.g. error_system(err, "open", path). */
bool error_system(error *err, const char *what, const char *path);

#endif
