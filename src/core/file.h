/* Files that are mapped, files that are written so that a crash leaves either the old or the new
 * file, and paths. */
#ifndef SMALLWORLD_CORE_FILE_H
#define SMALLWORLD_CORE_FILE_H

#include "core/error.h"

#include <stdint.h>
#include <stdio.h>

/* An atomic write: everything goes to PATH.tmp, which file_commit flushes to the disk and renames
 * to PATH, then flushes the folder. Until then PATH is untouched; file_abort removes the temporary
 * file, and so does a commit that fails. Write to `stream` with stdio, whose errors the commit
 * finds, or with file_write for the error check at once.
 *
 * PATH.tmp is made anew and locked, so that a second writer of PATH is refused while there is one,
 * and never through a link. What a killed writer left of it is removed by the next one. Both
 * file_begin and file_commit refuse what must not be overwritten, see overwrite.h. */
typedef struct file_writer {
    FILE *stream;
    char *path, *temporary;
} file_writer;

bool file_begin(file_writer *writer, const char *path,
                error *err); /* refuses a device, a folder and the like */
bool file_write(file_writer *writer, const void *bytes, size_t count, error *err);
void file_begin_flush(file_writer *writer); /* the system begins; file_flush then waits for less */
bool file_flush(file_writer *writer,
                error *err); /* flushes the file to the disk, as a commit does first */
bool file_commit(file_writer *writer, error *err);
void file_abort(file_writer *writer);

/* Writes these bytes to FOLDER/NAME in that way. */
bool file_write_whole(const char *folder, const char *name, const void *bytes, size_t count,
                      error *err);

/* A process that writes parts of the file that another one began, and will commit or abort once
 * this one has left. `path` is PATH, not its temporary name. file_leave flushes what this one wrote
 * to the disk. */
bool file_join(file_writer *writer, const char *path, error *err);
bool file_leave(file_writer *writer, error *err);

/* Removes the temporary files of all writers that are neither committed nor aborted, for a program
 * that ends at once. May be called from a signal handler. */
void file_remove_temporaries(void);

/* A file mapped read-only, empty files included. */
typedef struct file_map {
    const uint8_t *bytes;
    size_t size;
} file_map;

bool file_map_open(file_map *map, const char *path, error *err);
void file_map_close(file_map *map);

/* After file_guard_maps, if another program cuts a mapped file short, this program ends with a line
 * that names the file instead of SIGBUS. `file_guard` adds a mapping made elsewhere, until
 * `file_unguard`. */
void file_guard_maps(void);
void file_guard(const void *bytes, size_t size, const char *path);
void file_unguard(const void *bytes);

/* Makes the folder and its parents, and flushes each to the disk. A folder that exists is fine. */
bool file_make_folder(const char *path, error *err);
bool file_flush_folder(const char *path, error *err);

/* Also returns true if this cannot be determined, so that opening the file gives the reason. */
bool file_exists(const char *path);
bool file_is_folder(const char *path);

/* Whether two paths name the same file. */
bool file_is_same(const char *path, const char *other);

/* Refuses to put so many bytes of `what` into a folder whose disk has fewer left; the error ends
 * with `way_out`. Where that cannot be known, writing will tell. */
bool file_check_space(const char *folder, double bytes, const char *what, const char *way_out,
                      error *err);

bool file_ends_in(const char *path, const char *ending);

/* Locks a folder against other processes until the returned descriptor is closed or this process
 * ends. Returns -1 if another process has locked it. On a file system without locks it succeeds
 * without locking. */
int file_lock_folder(const char *path, error *err);

/* Whether another process, or another part of this one, holds such a lock. */
bool file_folder_is_locked(const char *path);

/* The folder for large scratch files: $TMPDIR, else /var/tmp, else /tmp. $TMPDIR is used even if it
 * does not work, so that no other disk is filled instead. */
const char *file_scratch_folder(void);

/* A word that a shell reads as the path `text`: as it is, in quotes, or in $'...' with escapes of
 * what must not be printed. A path that begins with '-' gets './' in front. The caller frees it. */
char *file_shell_word(const char *text);

#endif
