/* Turns SIGINT, SIGTERM, SIGHUP and SIGPIPE into requests to stop soon and in good order. */
#ifndef SMALLWORLD_CORE_STOP_H
#define SMALLWORLD_CORE_STOP_H

#include "core/error.h"

/* After this call the first such signal is only remembered. A SIGINT, SIGTERM or SIGHUP that comes
 * two seconds later or more ends the program; an earlier one is part of the same request, as
 * timeout(1) and job schedulers send a signal to the process and at once to its group. A signal
 * that was ignored stays ignored, so that nohup works. */
void stop_catch(void);

/* Sets what handles SIGINT, SIGTERM and SIGHUP, but for those that are ignored. `flags` are
 * sigaction's. */
void stop_handle(void (*handler)(int number), int flags);

/* The signal remembered since stop_catch, or 0. */
int stop_signal(void);

/* As if the signal had come. */
void stop_remember(int number);

/* Fails if a signal has been remembered, with a message and the exit status 128 + its number. */
bool stop_check(error *err);

/* Waits until `file`, which may be a pipe or a terminal, can be read from, or fails as stop_check
 * does. */
bool stop_wait_readable(int file, error *err);

#endif
