#include "core/stop.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t caught;

static void on_signal(int number) {
    if (caught) {
        signal(number, SIG_DFL);
        raise(number);
    }
    caught = number;
}

void stop_catch(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_NODEFER};
    caught = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int stop_signal(void) {
    return caught;
}
