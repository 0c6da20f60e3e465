/* Declarations that the library's files share. Only the names of smallworld.h are exported, see
 * library.map. */
#ifndef SMALLWORLD_LIBRARY_INTERNAL_H
#define SMALLWORLD_LIBRARY_INTERNAL_H

#include "library/smallworld.h"
#include "train/options.h"

/* Keeps the message for smallworld_error and returns false. */
bool library_fail(const error *err);

/* Refuses NULL. */
bool library_needs(const void *argument, const char *name, error *err);

/* Refuses to go on in a process that was forked after a backend with several threads was made:
 * OpenMP's threads are not there any more, and it would wait for them for ever. */
bool library_here(error *err);

/* Makes a backend as the options say. */
backend *library_backend(const options *o, error *err);

/* Whether the caller's function, see smallworld_on_wait, asks to stop. */
bool library_is_interrupted(error *err);

/* Sets run.* from the caller's options, which may be NULL. */
bool library_options(options *o, const smallworld_options *given, error *err);

#endif
