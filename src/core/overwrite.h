/* What a command must not overwrite: its own inputs and outputs, and files that smallworld wrote
 * for something else. Names do not matter: a file is known by its inode, its purpose by its first
 * bytes. Files in a folder that this process has locked are its own, and may always be replaced.
 *
 * Nothing is refused until overwrite_watch is called, which the program does and the library does
 * not. All functions may be called by several threads. */
#ifndef SMALLWORLD_CORE_OVERWRITE_H
#define SMALLWORLD_CORE_OVERWRITE_H

#include "core/error.h"

void overwrite_watch(void);

/* Notes an open file that is read, one that has been written, and a folder that is locked. */
void overwrite_note_input(int file);
void overwrite_note_output(int file);
void overwrite_note_folder(int folder);

/* Lets this process replace a file that it has written, or looked into for that purpose. */
void overwrite_release(const char *path);

/* Refuses a file that is there, unless `mark`, which `whose` command writes, is among its first
 * bytes; this process may then replace it. `way_out` ends the message. */
bool overwrite_check_mark(const char *path, const char *mark, const char *whose,
                          const char *way_out, error *err);

/* Whether `path` may be replaced by the file `temporary`; NULL where nothing is written yet. */
bool overwrite_allowed(const char *path, const char *temporary, error *err);

#endif
