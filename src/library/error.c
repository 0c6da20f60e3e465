#include "library/internal.h"

#include <pthread.h>
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

static bool has_threads, is_forked;

static void note_fork(void) {
    is_forked = has_threads;
}

static void watch_forks(void) {
    pthread_atfork(NULL, NULL, note_fork);
}

bool library_here(error *err) {
    return !is_forked ||
           error_set(err, "this process was forked after its parent had used smallworld with "
                          "several threads; start it by spawn, or use threads = 1 in the parent");
}

backend *library_backend(const options *o, error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    if (!library_here(err)) return NULL;
    backend *be = options_backend(&o->run, err);
    pthread_once(&once, watch_forks);
    if (be && o->run.threads != 1) has_threads = true;
    return be;
}

static bool (*wants_to_stop)(void);

void smallworld_on_wait(bool (*stop)(void)) {
    wants_to_stop = stop;
}

bool library_is_interrupted(error *err) {
    if (!wants_to_stop || !wants_to_stop()) return false;
    error_set(err, "interrupted");
    return true;
}
