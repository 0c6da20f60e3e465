/* What the library's files share. Exported names are those of smallworld.h alone; see
 * library.map. */
#ifndef SMALLWORLD_LIBRARY_INTERNAL_H
#define SMALLWORLD_LIBRARY_INTERNAL_H

#include "library/smallworld.h"
#include "train/options.h"

/* Keeps the message for smallworld_error; returns false. */
bool library_fail(const error *err);

/* Sets run.* from what the caller gave, which may be NULL. */
bool library_options(options *o, const smallworld_options *given, error *err);

#endif
