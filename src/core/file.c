#include "core/file.h"

#include "core/log.h"
#include "core/memory.h"
#include "core/overwrite.h"
#include "core/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

/* -------------------------------------------------------------------------- temporary files
 * The names of those in use, where a signal handler can find them. */

enum { MAX_TEMPORARIES = 64 };

static _Atomic(char *) temporaries[MAX_TEMPORARIES];

static void remember(char *path) {
    for (int i = 0; i < MAX_TEMPORARIES; i++) {
        char *none = NULL;
        if (atomic_compare_exchange_strong(&temporaries[i], &none, path)) return;
    }
}

static void forget(char *path) {
    for (int i = 0; i < MAX_TEMPORARIES; i++) {
        char *found = path;
        if (atomic_compare_exchange_strong(&temporaries[i], &found, NULL)) return;
    }
}

void file_remove_temporaries(void) {
    for (int i = 0; i < MAX_TEMPORARIES; i++) {
        const char *path = atomic_load(&temporaries[i]);
        if (path) unlink(path);
    }
}

/* Whether `path` still names the open file. */
static bool is_at(int file, const char *path) {
    struct stat opened, named;
    return fstat(file, &opened) == 0 && lstat(path, &named) == 0 && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

/* Whether `path` names another file or none. Returns false if this cannot be determined. */
static bool is_elsewhere(int file, const char *path) {
    struct stat opened, named;
    if (fstat(file, &opened) != 0) return false;
    if (lstat(path, &named) != 0) return errno == ENOENT;
    return opened.st_dev != named.st_dev || opened.st_ino != named.st_ino;
}

/* Locks a file. Returns false if another program has the lock. On file systems without locks
 * everyone gets it. */
static bool lock(int file) {
    return flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

/* Removes the temporary file of a killed writer. Returns false with a message if it is something
 * else. */
static bool remove_stale(const char *path, const char *target, error *err) {
    struct stat status;
    int file = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (file < 0 && errno == ENOENT) return true; /* its writer has just finished */
    bool regular = file >= 0 && fstat(file, &status) == 0 && S_ISREG(status.st_mode);
    bool removed = false;
    if (!regular) {
        error_set(err, "cannot write %s: %s is in the way", target, path);
    } else if (!lock(file)) {
        error_set(err, "cannot write %s: another program is writing it", target);
    } else { /* between opening and locking it, its writer may have finished */
        removed = !is_at(file, path) || unlink(path) == 0 || error_system(err, "remove", path);
    }
    if (file >= 0) close(file);
    return removed;
}

/* Creates a new, locked file. Returns -1 if that is not possible. */
static int create_temporary(const char *path, const char *target, error *err) {
    enum { ATTEMPTS = 100 };
    for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
        int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (file >= 0) {
            if (lock(file) && is_at(file, path)) return file;
            close(file); /* before the lock, another writer took it for a leftover */
        } else if (errno != EEXIST) {
            error_system(err, "write", path);
            return -1;
        } else if (!remove_stale(path, target, err)) {
            return -1;
        }
    }
    error_set(err, "cannot write %s: another program is writing it", target);
    return -1;
}

/* -------------------------------------------------------------------------- atomic writing */

static void release(file_writer *writer) {
    free(writer->path);
    free(writer->temporary);
    *writer = (file_writer){0};
}

bool file_begin(file_writer *writer, const char *path, error *err) {
    struct stat there;
    *writer = (file_writer){0};
    if (stat(path, &there) == 0 && !S_ISREG(there.st_mode)) {
        return error_set(err, "cannot write %s: it exists and is not a regular file", path);
    }
    if (!overwrite_allowed(path, NULL, err)) return false;
    *writer = (file_writer){.path = mem_string(path), .temporary = mem_format("%s.tmp", path)};
    int file = -1;
    if (overwrite_allowed(writer->temporary, NULL, err)) {
        sigset_t all, before; /* a signal that came between the two lines would leave the file */
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, &before);
        file = create_temporary(writer->temporary, path, err);
        if (file >= 0) remember(writer->temporary);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    if (file >= 0) {
        writer->stream = fdopen(file, "wb");
        if (writer->stream) return true;
        error_system(err, "write", writer->temporary);
        unlink(writer->temporary);
        forget(writer->temporary);
        close(file);
    }
    release(writer);
    return false;
}

bool file_write(file_writer *writer, const void *bytes, size_t count, error *err) {
    if (count == 0 || fwrite(bytes, 1, count, writer->stream) == count) return true;
    return error_system(err, "write", writer->temporary);
}

/* Flushes a folder's entries to the disk. */
static bool flush_entries(const char *path) {
    int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return false;
    bool done = fsync(folder) == 0 || errno == EINVAL;
    close(folder);
    return done;
}

bool file_flush_folder(const char *path, error *err) {
    return flush_entries(path) || error_system(err, "flush folder", path);
}

/* Flushes the folder that `path` lies in. */
static bool flush_parent(const char *path) {
    char *copy = mem_string(path);
    bool done = flush_entries(dirname(copy));
    free(copy);
    return done;
}

void file_begin_flush(file_writer *writer) {
    if (fflush(writer->stream) != 0) return; /* the stream keeps the error for file_flush */
    sync_file_range(fileno(writer->stream), 0, 0, SYNC_FILE_RANGE_WRITE);
}

bool file_flush(file_writer *writer, error *err) {
    FILE *stream = writer->stream;
    bool written = fflush(stream) == 0 && fsync(fileno(stream)) == 0;
    if (written && ferror(stream)) { /* an earlier write failed, and its errno is lost */
        errno = EIO;
        written = false;
    }
    return written || error_system(err, "write", writer->temporary);
}

/* Closes the stream but keeps the lock, which a second descriptor holds; -1: failed. */
static int close_stream(file_writer *writer, error *err) {
    int file = fcntl(fileno(writer->stream), F_DUPFD_CLOEXEC, 0);
    bool closed = fclose(writer->stream) == 0 && file >= 0;
    writer->stream = NULL;
    if (closed) return file;
    error_system(err, "write", writer->temporary);
    if (file >= 0) close(file);
    return -1;
}

bool file_commit(file_writer *writer, error *err) {
    int file = file_flush(writer, err) ? close_stream(writer, err) : -1;
    if (file >= 0 && is_elsewhere(file, writer->temporary)) {
        error_set(err, "cannot write %s: another program removed %s", writer->path,
                  writer->temporary);
        close(file);
        forget(writer->temporary);
        release(writer);
        return false;
    }
    if (file >= 0 && !overwrite_allowed(writer->path, writer->temporary, err)) {
        close(file);
        file = -1;
    }
    if (file < 0) {
        file_abort(writer);
        return false;
    }
    forget(writer->temporary);
    bool written = rename(writer->temporary, writer->path) == 0;
    if (!written) {
        error_system(err, "rename to", writer->path);
        unlink(writer->temporary);
    } else if (!flush_parent(writer->path)) {
        written = error_system(err, "flush the folder of", writer->path);
    }
    if (written) overwrite_note_output(file);
    close(file);
    release(writer);
    return written;
}

void file_abort(file_writer *writer) {
    if (writer->temporary) {
        bool ours = !writer->stream || !is_elsewhere(fileno(writer->stream), writer->temporary);
        if (ours) unlink(writer->temporary); /* while it is locked */
        forget(writer->temporary);
    }
    if (writer->stream) fclose(writer->stream);
    release(writer);
}

bool file_write_whole(const char *folder, const char *name, const void *bytes, size_t count,
                      error *err) {
    char *path = mem_format("%s/%s", folder, name);
    file_writer writer;
    bool written = file_begin(&writer, path, err);
    free(path);
    if (!written) return false;
    if (file_write(&writer, bytes, count, err)) return file_commit(&writer, err);
    file_abort(&writer);
    return false;
}

bool file_join(file_writer *writer, const char *path, error *err) {
    *writer = (file_writer){.path = mem_string(path), .temporary = mem_format("%s.tmp", path)};
    int file = open(writer->temporary, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    writer->stream = file < 0 ? NULL : fdopen(file, "wb"); /* which does not truncate it */
    if (writer->stream) return true;
    error_system(err, "write", writer->temporary);
    if (file >= 0) close(file);
    release(writer);
    return false;
}

bool file_leave(file_writer *writer, error *err) {
    if (!writer->stream) return true;
    bool written = file_flush(writer, err);
    fclose(writer->stream);
    release(writer);
    return written;
}

/* ---------------------------------------------------------------------------------- mapping */

enum { MAX_GUARDS = 256 };

/* Mapped files. `begin` is set last and reset first, because the signal handler may run in between.
 */
static struct guard {
    _Atomic(const char *) begin;
    size_t size;
    char *path;
} guards[MAX_GUARDS];
static pthread_mutex_t guards_lock = PTHREAD_MUTEX_INITIALIZER;

void file_guard(const void *bytes, size_t size, const char *path) {
    pthread_mutex_lock(&guards_lock);
    for (int i = 0; i < MAX_GUARDS && size > 0; i++) {
        if (atomic_load(&guards[i].begin)) continue;
        guards[i].size = size;
        guards[i].path = mem_string(path);
        atomic_store(&guards[i].begin, (const char *)bytes);
        break;
    }
    pthread_mutex_unlock(&guards_lock);
}

void file_unguard(const void *bytes) {
    pthread_mutex_lock(&guards_lock);
    for (int i = 0; i < MAX_GUARDS; i++) {
        if (!bytes || atomic_load(&guards[i].begin) != (const char *)bytes) continue;
        atomic_store(&guards[i].begin, NULL);
        free(guards[i].path);
        break;
    }
    pthread_mutex_unlock(&guards_lock);
}

static void put(const char *text) {
    if (write(STDERR_FILENO, text, strlen(text)) < 0) return; /* nothing else can be done */
}

/* Handles an access to a part of a mapped file that the file no longer has. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    (void)context;
    const char *at = info->si_addr;
    for (int i = 0; i < MAX_GUARDS; i++) {
        const char *begin = atomic_load(&guards[i].begin);
        if (!begin || at < begin || at >= begin + guards[i].size) continue;
        put("smallworld: cannot read ");
        put(guards[i].path);
        put(": it was cut short while it was read\n");
        file_remove_temporaries();
        _exit(STATUS_FAILED);
    }
    signal(number, SIG_DFL); /* not one of our mappings: repeating the access ends the program */
}

void file_guard_maps(void) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigaction(SIGBUS, &action, NULL);
}

bool file_map_open(file_map *map, const char *path, error *err) {
    *map = (file_map){(const uint8_t *)"", 0};
    int file = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC); /* does not wait at a pipe */
    if (file < 0) return error_system(err, "open", path);
    overwrite_note_input(file);
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
            file_guard(map->bytes, map->size, path);
        }
    }
    close(file);
    return opened;
}

void file_map_close(file_map *map) {
    if (map->size) {
        file_unguard(map->bytes);
        munmap((void *)map->bytes, map->size);
    }
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
        if (mkdir(copy, 0777) == 0) {
            if (!flush_parent(copy)) made = error_system(err, "flush the folder of", copy);
        } else if (errno != EEXIST) {
            made = error_system(err, "make folder", copy);
        }
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
    if (folder >= 0) overwrite_note_folder(folder);
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
    return access(path, F_OK) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

bool file_check_space(const char *folder, double bytes, const char *what, const char *way_out,
                      error *err) {
    struct statvfs disk;
    char needed[16], there[16];
    if (statvfs(folder, &disk) != 0) return true;
    const double room = (double)disk.f_bavail * (double)disk.f_frsize;
    return bytes <= room ||
           error_set(err, "%s: %s takes %s, and the disk has %s left; %s", folder, what,
                     log_bytes(needed, bytes), log_bytes(there, room), way_out);
}

bool file_is_same(const char *path, const char *other) {
    struct stat one, two;
    return stat(path, &one) == 0 && stat(other, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino;
}

bool file_is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

const char *file_scratch_folder(void) {
    const char *folder = getenv("TMPDIR");
    if (folder && *folder) return folder;
    return access("/var/tmp", W_OK) == 0 ? "/var/tmp" : "/tmp";
}

char *file_shell_word(const char *text) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    if (text[strspn(text, plain)] == '\0' && *text != '-') return mem_string(text);
    char *printable = mem_string(text), *word;
    size_t size;
    utf8_make_printable(printable);
    const bool escapes = strcmp(printable, text) != 0;
    free(printable);
    FILE *out = mem_stream(&word, &size);
    fprintf(out, "%s'%s", escapes ? "$" : "", *text == '-' ? "./" : "");
    for (; *text; text++) {
        const uint8_t byte = (uint8_t)*text;
        if (escapes && (byte < 0x20 || byte >= 0x7F || byte == '\\' || byte == '\'')) {
            fprintf(out, "\\x%02x", byte);
        } else if (byte == '\'') {
            fputs("'\\''", out);
        } else {
            fputc(byte, out);
        }
    }
    fputc('\'', out);
    mem_stream_end(out);
    return word;
}
