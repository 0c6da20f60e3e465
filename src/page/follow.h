/* The curves of a run that goes on in this process, kept on a page by a thread of its own. */
#ifndef SMALLWORLD_PAGE_FOLLOW_H
#define SMALLWORLD_PAGE_FOLLOW_H

#include "page/curves.h"

/* A page is written so often, and again only after so many times the time that writing took. */
enum { FOLLOW_SECONDS = 10, FOLLOW_FACTOR = 20 };

typedef struct follower follower;

/* Writes FOLDER/plot.html as soon as there are metrics, and again as they come. The folder's name
 * must live until follow_stop. */
follower *follow_start(const char *folder);

/* Ends the thread, and frees it. With `err`, writes the page a last time, which no longer loads
 * itself again; without, it stays as it is. */
bool follow_stop(follower *f, error *err);

#endif
