/* The files that names stand for: a folder stands for the files in it and in its subfolders, in the
 * order of their names' bytes, hidden ones left out; a file whose name ends in .list names a file
 * on each line, relative to the list's own folder; any other name, and "-", stands for itself. */
#ifndef SMALLWORLD_DATA_PATHS_H
#define SMALLWORLD_DATA_PATHS_H

#include "core/error.h"

typedef bool paths_visit(void *data, const char *path, error *err);

/* Visits each file in order, until a visit fails. Refuses folders and lists without files. */
bool paths_each(char *const *paths, int count, paths_visit *visit, void *data, error *err);

/* Whether one of them, which may be NULL, is "-": standard input, which one process alone can
 * read. */
bool paths_read_input(const char *const *paths, int count);

/* Whether a folder has folders in it that are not hidden. */
bool paths_has_folders(const char *path);

/* The endings of names of files whose lines are documents, for people; and whether a name has one
 * of them. Tables have other endings, see data/table.h. */
#define PATHS_LINES ".tsv, .tsv.gz or .tsv.xz"

bool paths_is_lines(const char *path);

#endif
