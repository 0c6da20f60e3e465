#include "library/internal.h"

#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[sizeof((error){0}).text];

bool library_fail(const error *err) {
    snprintf(last_error, sizeof last_error, "%s", err->text);
    return false;
}

const char *smallworld_error(void) {
    return last_error;
}

const char *smallworld_version(void) {
    return SMALLWORLD_VERSION;
}

bool library_needs(const void *argument, const char *name, error *err) {
    return argument || error_set(err, "%s: expected a pointer, got NULL", name);
}

static bool assign(options *o, const char *path, const char *value, error *err) {
    return !value || config_set(&o->config, path, value, "smallworld_options", err);
}

bool library_options(options *o, const smallworld_options *given, error *err) {
    if (!given) return true;
    char threads[16];
    snprintf(threads, sizeof threads, "%d", given->threads);
    return assign(o, "run.device", given->device, err) &&
           assign(o, "run.precision", given->precision, err) &&
           assign(o, "run.threads", threads, err);
}
