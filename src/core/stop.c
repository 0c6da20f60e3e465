#include "core/stop.h"

#include "core/clock.h"
#include "core/file.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

enum { REPEAT = 1 }; /* seconds in which signals are one request: stop.h */

/* The number; when, in whole seconds. Two signals may come in two threads. */
static atomic_int caught, caught_at;

static void on_signal(int number) {
    if (caught && caught != SIGPIPE) {
        if ((int)clock_seconds() - caught_at <= REPEAT) return;
        file_remove_temporaries();
        signal(number, SIG_DFL);
        raise(number);
    }
    stop_remember(number);
}

/* Each further write to the closed pipe brings another one. */
static void on_pipe(int number) {
    int none = 0;
    atomic_compare_exchange_strong(&caught, &none, number);
}

void stop_handle(void (*handler)(int number), int flags) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction before, action = {.sa_handler = handler, .sa_flags = flags};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        sigaction(numbers[i], NULL, &before);
        if (before.sa_handler != SIG_IGN) sigaction(numbers[i], &action, NULL);
    }
}

void stop_catch(void) {
    const struct sigaction pipe = {.sa_handler = on_pipe, .sa_flags = SA_RESTART};
    caught = 0;
    stop_handle(on_signal, SA_RESTART | SA_NODEFER);
    sigaction(SIGPIPE, &pipe, NULL);
}

int stop_signal(void) {
    return caught;
}

void stop_remember(int number) {
    caught_at = (int)clock_seconds();
    caught = number;
}

bool stop_check(error *err) {
    const int number = caught;
    if (!number) return true;
    error_set(err, "stopped by a signal (%s)", strsignal(number));
    err->status = 128 + number;
    return false;
}

bool stop_wait_readable(int file, error *err) {
    enum { MILLISECONDS = 200 }; /* a signal may come just before the wait, and not end it */
    struct pollfd wait = {.fd = file, .events = POLLIN};
    for (;;) {
        if (!stop_check(err)) return false;
        int ready = poll(&wait, 1, MILLISECONDS);
        if (ready > 0) return true;
        if (ready < 0 && errno != EINTR) return true; /* reading says what is wrong */
    }
}
