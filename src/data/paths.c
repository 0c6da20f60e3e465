#include "data/paths.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/overwrite.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef struct each {
    paths_visit *visit;
    void *data;
} each;

enum { MOST_NESTED = 16 };

static bool visit_path(each *e, const char *path, int depth, error *err);

static int is_shown(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* in any locale */
}

/* A folder's pipes and sockets would be waited for without a word. */
static bool check_entry(const char *path, error *err) {
    struct stat status;
    if (stat(path, &status) != 0) return error_system(err, "read", path);
    return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) ||
           error_set(err, "%s: expected a file or a folder, found a pipe or a device", path);
}

static bool visit_folder(each *e, const char *folder, int depth, error *err) {
    struct dirent **entries;
    const int count = scandir(folder, &entries, is_shown, by_bytes);
    if (count < 0) return error_system(err, "read", folder);
    bool read = count > 0 || error_set(err, "%s: expected a folder with files, found none", folder);
    for (int i = 0; i < count; i++) {
        char *path = mem_format("%s/%s", folder, entries[i]->d_name);
        read = read && check_entry(path, err) && visit_path(e, path, depth + 1, err);
        free(path);
        free(entries[i]);
    }
    free(entries);
    return read;
}

/* A file that a list names, relative to the list's own folder. */
static bool visit_listed(each *e, const char *list, const char *name, int depth, error *err) {
    const char *slash = strrchr(list, '/');
    const int folder = *name != '/' && slash ? (int)(slash - list) + 1 : 0;
    char *path = mem_format("%.*s%s", folder, list, name);
    const bool read = visit_path(e, path, depth + 1, err);
    free(path);
    return read;
}

static bool visit_list(each *e, const char *list, int depth, error *err) {
    FILE *in = fopen(list, "re");
    if (!in) return error_system(err, "open", list);
    overwrite_note_input(fileno(in));
    char *line = NULL;
    size_t room = 0, files = 0;
    ssize_t length;
    bool read = true;
    while (read && (length = getline(&line, &room, in)) > 0) {
        if (memchr(line, '\0', (size_t)length)) {
            read = error_set(err, "%s: expected names of files, found a NUL byte", list);
            break;
        }
        while (length > 0 && strchr("\r\n", line[length - 1])) line[--length] = '\0';
        if (length == 0) continue;
        read = visit_listed(e, list, line, depth, err);
        files++;
    }
    if (read && ferror(in)) read = error_system(err, "read", list);
    if (read && files == 0)
        read = error_set(err, "%s: expected a file on each line, found none", list);
    free(line);
    fclose(in);
    return read;
}

static bool visit_path(each *e, const char *path, int depth, error *err) {
    if (depth > MOST_NESTED) {
        return error_set(err, "%s: folders and lists more than %d deep", path, MOST_NESTED);
    }
    if (strcmp(path, "-") != 0 && file_is_folder(path)) return visit_folder(e, path, depth, err);
    if (file_ends_in(path, ".list")) return visit_list(e, path, depth, err);
    return e->visit(e->data, path, err);
}

bool paths_each(char *const *paths, int count, paths_visit *visit, void *data, error *err) {
    each e = {visit, data};
    for (int i = 0; i < count; i++) {
        if (!visit_path(&e, paths[i], 0, err)) return false;
    }
    return true;
}

bool paths_read_input(const char *const *paths, int count) {
    for (int i = 0; i < count; i++) {
        if (paths[i] && strcmp(paths[i], "-") == 0) return true;
    }
    return false;
}

bool paths_has_folders(const char *path) {
    DIR *folder = file_is_folder(path) ? opendir(path) : NULL;
    bool found = false;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        char *name = mem_format("%s/%s", path, entry->d_name);
        found = is_shown(entry) && file_is_folder(name);
        free(name);
    }
    if (folder) closedir(folder);
    return found;
}

bool paths_is_lines(const char *path) {
    return file_ends_in(path, ".tsv") || file_ends_in(path, ".tsv.gz") ||
           file_ends_in(path, ".tsv.xz");
}
