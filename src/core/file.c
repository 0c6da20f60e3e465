#include "core/file.h"

#include "core/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* -------------------------------------------------------------------------- atomic writing */

static void release(file_writer *writer) {
    free(writer->path);
    free(writer->temporary);
    *writer = (file_writer){0};
}

bool file_begin(file_writer *writer, const char *path, error *err) {
    struct stat there;
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) {
        return error_set(err, "cannot write %s: it exists and is not a regular file", path);
    }
    *writer = (file_writer){.path = mem_string(path), .temporary = mem_format("%s.tmp", path)};
    writer->stream = fopen(writer->temporary, "wb");
    if (writer->stream) return true;
    error_system(err, "write", writer->temporary);
    release(writer);
    return false;
}

bool file_write(file_writer *writer, const void *bytes, size_t count, error *err) {
    if (count == 0 || fwrite(bytes, 1, count, writer->stream) == count) return true;
    return error_system(err, "write", writer->temporary);
}

static bool flush_folder(const char *path) {
    char *copy = mem_string(path);
    int folder = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(copy);
    if (folder < 0) return false;
    bool done = fsync(folder) == 0 || errno == EINVAL;
    close(folder);
    return done;
}

bool file_flush(file_writer *writer, error *err) {
    FILE *stream = writer->stream;
    bool written = fflush(stream) == 0 && fsync(fileno(stream)) == 0;
    if (written && ferror(stream)) { /* of an earlier write, whose errno is gone */
        errno = EIO;
        written = false;
    }
    return written || error_system(err, "write", writer->temporary);
}

bool file_commit(file_writer *writer, error *err) {
    bool written = file_flush(writer, err);
    if (fclose(writer->stream) != 0 && written) {
        written = error_system(err, "write", writer->temporary);
    }
    writer->stream = NULL;
    if (written && rename(writer->temporary, writer->path) != 0) {
        written = error_system(err, "rename to", writer->path);
    }
    if (!written) {
        file_abort(writer);
        return false;
    }
    if (!flush_folder(writer->path)) {
        written = error_system(err, "flush the folder of", writer->path);
    }
    release(writer);
    return written;
}

void file_abort(file_writer *writer) {
    if (writer->stream) fclose(writer->stream);
    if (writer->temporary) unlink(writer->temporary);
    release(writer);
}

/* ---------------------------------------------------------------------------------- mapping */

bool file_map_open(file_map *map, const char *path, error *err) {
    *map = (file_map){(const uint8_t *)"", 0};
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return error_system(err, "open", path);
    struct stat status;
    bool opened = fstat(file, &status) == 0;
    if (!opened) {
        error_system(err, "read", path);
    } else if (!S_ISREG(status.st_mode)) {
        opened = error_set(err, "cannot read %s: not a regular file", path);
    } else if (status.st_size > 0) {
        void *bytes = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (bytes == MAP_FAILED) {
            opened = error_system(err, "map", path);
        } else {
            *map = (file_map){bytes, (size_t)status.st_size};
        }
    }
    close(file);
    return opened;
}

void file_map_close(file_map *map) {
    if (map->size) munmap((void *)map->bytes, map->size);
    *map = (file_map){(const uint8_t *)"", 0};
}

/* ---------------------------------------------------------------------------------- folders */

bool file_make_folder(const char *path, error *err) {
    char *copy = mem_string(path);
    bool made = true;
    for (char *end = copy + 1; made && *copy; end++) {
        if (*end != '/' && *end != '\0') continue;
        char kept = *end;
        *end = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            made = error_system(err, "make folder", copy);
        *end = kept;
        if (kept == '\0') break;
    }
    free(copy);
    struct stat status;
    if (made && (stat(path, &status) != 0 || !S_ISDIR(status.st_mode))) {
        made = error_set(err, "%s: not a folder", path);
    }
    return made;
}

int file_lock_folder(const char *path, error *err) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0 && errno == ENOTDIR) {
        error_set(err, "%s: not a folder", path);
    } else if (folder < 0) {
        error_system(err, "open", path);
    } else if (flock(folder, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        error_set(err, "%s: another run is using it", path);
        close(folder);
        folder = -1;
    }
    return folder;
}

bool file_folder_is_locked(const char *path) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return false;
    bool locked = flock(folder, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
    close(folder);
    return locked;
}

bool file_ends_in(const char *path, const char *ending) {
    size_t length = strlen(path), tail = strlen(ending);
    return length >= tail && strcmp(path + length - tail, ending) == 0;
}

bool file_exists(const char *path) {
    return access(path, F_OK) == 0;
}

const char *file_scratch_folder(void) {
    const char *folder = getenv("TMPDIR");
    if (folder && *folder) return folder;
    return access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}
