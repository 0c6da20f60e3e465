/* Keeps a page of the curves of a run in this process, by a thread of its own. */
#ifndef SMALLWORLD_PAGE_FOLLOW_H
#define SMALLWORLD_PAGE_FOLLOW_H

#include "page/curves.h"

/* The page is written this often, and no sooner than this many times the duration of the last
 * write. */
enum { FOLLOW_SECONDS = 10, FOLLOW_FACTOR = 20 };

typedef struct follower follower;

/* Starts the thread, which writes FOLDER/plot.html as soon as there are metrics and whenever there
 * are more. The folder's name must live until follow_stop. */
follower *follow_start(const char *folder);

/* Ends the thread and frees it. With `err`, writes the page a last time, now without reloading.
 * Without `err`, leaves the page as it is. */
bool follow_stop(follower *f, error *err);

#endif
