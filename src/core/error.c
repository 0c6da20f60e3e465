#include "core/error.h"

#include "core/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static bool set(error *err, int status, const char *key, const char *format, va_list arguments) {
    err->status = status;
    snprintf(err->key, sizeof err->key, "%s", key);
    int used = *key ? snprintf(err->text, sizeof err->text, "%s: ", err->key) : 0;
    vsnprintf(err->text + used, sizeof err->text - (size_t)used, format, arguments);
    utf8_make_printable(err->text);
    return false;
}

bool error_set_list(error *err, const char *format, va_list arguments) {
    return set(err, STATUS_FAILED, "", format, arguments);
}

bool error_set(error *err, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    error_set_list(err, format, arguments);
    va_end(arguments);
    return false;
}

bool error_usage(error *err, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    set(err, STATUS_USAGE, "", format, arguments);
    va_end(arguments);
    return false;
}

bool error_key(error *err, const char *key, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    set(err, STATUS_FAILED, key, format, arguments);
    va_end(arguments);
    return false;
}

const char *error_message(const error *err) {
    return *err->key ? err->text + strlen(err->key) + 2 : err->text;
}

bool error_system(error *err, const char *what, const char *path) {
    return error_set(err, "cannot %s %s: %s", what, path, strerror(errno));
}
