#include "core/overwrite.h"

#include "core/memory.h"

#include <errno.h>
#include <libgen.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

typedef enum role { INPUT, OUTPUT, FOLDER } role;

typedef struct noted {
    role role;
    dev_t device;
    ino_t inode;
} noted;

static bool watching;
static noted *all;
static size_t count, capacity;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void overwrite_watch(void) {
    watching = true;
}

/* ------------------------------------------------------------------------------------- inodes */

/* The caller has the mutex. */
static bool find(role role, const struct stat *status) {
    for (size_t i = 0; i < count; i++) {
        if (all[i].role == role && all[i].device == status->st_dev &&
            all[i].inode == status->st_ino) {
            return true;
        }
    }
    return false;
}

static bool is_noted(role role, const struct stat *status) {
    pthread_mutex_lock(&mutex);
    const bool found = find(role, status);
    pthread_mutex_unlock(&mutex);
    return found;
}

static void note(role role, int file) {
    struct stat status;
    if (!watching || fstat(file, &status) != 0) return;
    if (role != FOLDER && !S_ISREG(status.st_mode)) return;
    pthread_mutex_lock(&mutex);
    if (!find(role, &status)) {
        all = mem_grow(all, &capacity, count + 1, sizeof *all);
        all[count++] = (noted){role, status.st_dev, status.st_ino};
    }
    pthread_mutex_unlock(&mutex);
}

void overwrite_note_input(int file) {
    note(INPUT, file);
}

void overwrite_note_output(int file) {
    note(OUTPUT, file);
}

void overwrite_note_folder(int folder) {
    note(FOLDER, folder);
}

void overwrite_release(const char *path) {
    struct stat status;
    if (!watching || stat(path, &status) != 0) return;
    pthread_mutex_lock(&mutex);
    for (size_t i = 0; i < count; i++) {
        const noted *n = &all[i];
        if (n->role == FOLDER || n->device != status.st_dev || n->inode != status.st_ino) continue;
        all[i--] = all[--count];
    }
    pthread_mutex_unlock(&mutex);
}

/* Whether `path` lies in a folder that this process has locked. */
static bool is_ours(const char *path) {
    struct stat status;
    char *copy = mem_string(path);
    const bool ours = stat(dirname(copy), &status) == 0 && is_noted(FOLDER, &status);
    free(copy);
    return ours;
}

/* ----------------------------------------------------------------------------------- purposes */

enum { SAFETENSORS_LENGTH = 8, BEGINNING = 512, MARKED = 2048 };

/* What smallworld's files begin with. Those in safetensors name their kind in the header. */
static const struct {
    size_t offset;
    const char *text, *purpose;
} purposes[] = {
    {SAFETENSORS_LENGTH, "\"format\": \"smallworld\", \"version\": \"1\", \"kind\": \"model\"",
     "a checkpoint"},
    {SAFETENSORS_LENGTH, "\"format\": \"smallworld\", \"version\": \"1\", \"kind\": \"state\"",
     "the state of a run"},
    {SAFETENSORS_LENGTH, "\"format\": \"smallworld\"", "a probe"},
    {0, "\x93NUMPY", "an array"},
    {0, "\x89PNG", "a picture"},
    {0, "<svg ", "a drawing"},
    {0, "<!doctype html>", "a page"},
    {0, "---\n# <!-- Written by smallworld report", "a model card"},
    {0, "<!-- Written by smallworld report", "a model card"}, /* of versions before 0.2 */
    {0, "# The resolved config of the run", "the config of a run"},
    {0, "{\"step\": ", "the metrics of a run"},
    {0, "{\"kind\": \"", "the description of features"},
};

/* What a file is for, if smallworld wrote it, or may have; else NULL. */
static const char *purpose_of(const char *path) {
    char bytes[BEGINNING + 1] = "";
    FILE *in = fopen(path, "rbe");
    if (!in) return NULL;
    const size_t size = fread(bytes, 1, BEGINNING, in);
    fclose(in);
    for (size_t i = 0; i < sizeof purposes / sizeof *purposes; i++) {
        const char *text = purposes[i].text;
        const size_t from = purposes[i].offset;
        if (size <= from) continue;
        const char *found = memmem(bytes + from, size - from, text, strlen(text));
        if (found && (from > 0 || found == bytes)) return purposes[i].purpose;
    }
    return NULL;
}

static bool check_purpose(const char *path, const char *temporary, error *err) {
    const char *there = purpose_of(path), *ours = there ? purpose_of(temporary) : NULL;
    if (!there || (ours && strcmp(there, ours) == 0)) return true;
    return error_set(err, "%s: it holds %s, which would be lost; expected another file to write",
                     path, there);
}

bool overwrite_check_mark(const char *path, const char *mark, const char *whose,
                          const char *way_out, error *err) {
    char bytes[MARKED];
    FILE *in = fopen(path, "rbe");
    if (!in) return errno == ENOENT || errno == ENOTDIR || error_system(err, "open", path);
    const size_t size = fread(bytes, 1, MARKED, in);
    fclose(in);
    const bool ours = memmem(bytes, size, mark, strlen(mark)) != NULL;
    if (ours) overwrite_release(path);
    return ours ||
           error_set(err, "%s: not written by %s, and left as it is; %s", path, whose, way_out);
}

/* -------------------------------------------------------------------------------------- rules */

bool overwrite_allowed(const char *path, const char *temporary, error *err) {
    struct stat status;
    if (!watching || stat(path, &status) != 0 || is_ours(path)) return true;
    if (is_noted(INPUT, &status)) {
        return error_set(err, "%s: this command reads it; expected another file to write", path);
    }
    if (is_noted(OUTPUT, &status)) {
        return error_set(err, "%s: this command has written it already; expected another file",
                         path);
    }
    return !temporary || check_purpose(path, temporary, err);
}
