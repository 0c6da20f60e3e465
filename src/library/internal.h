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

/* Sets run.* from the caller's options, which may be NULL. */
bool library_options(options *o, const smallworld_options *given, error *err);

#endif
