#include "train/run_folder.h"

#include "core/file.h"
#include "core/integer.h"
#include "core/log.h"
#include "core/memory.h"
#include "train/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------ files */

static char *path_in(const char *folder, const char *name) {
    return mem_format("%s/%s", folder, name);
}

static bool folder_has(const char *folder, const char *name) {
    char *path = path_in(folder, name);
    bool exists = file_exists(path);
    free(path);
    return exists;
}

/* In the order in which they are moved: last.state completes the replacement. */
static const char *const run_files[] = {"config.yaml", "metrics.jsonl", "best.safetensors",
                                        "last.safetensors", "last.state"};
enum { RUN_FILES = sizeof run_files / sizeof run_files[0] };

static bool holds_run(const char *folder) {
    for (int i = 0; i < RUN_FILES; i++) {
        if (folder_has(folder, run_files[i])) return true;
    }
    return false;
}

static bool remove_file(const char *folder, const char *name, error *err) {
    char *path = path_in(folder, name);
    bool removed = unlink(path) == 0 || errno == ENOENT || error_system(err, "remove", path);
    free(path);
    return removed;
}

static bool move_file(const char *from, const char *to, const char *name, error *err) {
    char *source = path_in(from, name), *target = path_in(to, name);
    bool moved =
        rename(source, target) == 0 || errno == ENOENT || error_system(err, "rename to", target);
    free(source);
    free(target);
    return moved;
}

/* A run that starts over writes this file into `next` before anything else. A `next` without it is
 * somebody's folder. */
static const char next_mark[] = ".overwrite";

static bool is_real_folder(const char *path) {
    struct stat status;
    return lstat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

static bool is_marked(const char *folder) {
    return is_real_folder(folder) && folder_has(folder, next_mark);
}

static bool holds_finished_next(const run_folder *run) {
    return is_marked(run->next) && folder_has(run->next, "last.state");
}

/* Removes the temporary files that a killed run left in `next`. */
static bool remove_temporaries(const run_folder *run, error *err) {
    bool done = true;
    for (int i = 0; i < RUN_FILES && done; i++) {
        char *name = mem_format("%s.tmp", run_files[i]);
        done = remove_file(run->next, name, err);
        free(name);
    }
    return done;
}

/* Removes what a run that started over left in `next`, and `next` if nothing else is there. */
static bool remove_next(const run_folder *run, error *err) {
    if (!remove_temporaries(run, err)) return false;
    for (int i = 0; i < RUN_FILES; i++) {
        if (!remove_file(run->next, run_files[i], err)) return false;
    }
    if (!remove_file(run->next, next_mark, err)) return false;
    rmdir(run->next);
    return true;
}

void run_folder_begin(run_folder *run, const char *path, train_start start) {
    *run = (run_folder){.path = path, .place = path, .start = start, .lock = -1};
    run->next = path_in(path, "next");
}

void run_folder_end(run_folder *run) {
    error ignored;
    if (run->prepared && run_folder_keeps_earlier(run)) remove_next(run, &ignored);
    if (run->lock >= 0) close(run->lock);
    free(run->next);
}

char *run_folder_file(const run_folder *run, const char *name) {
    return path_in(run->place, name);
}

/* ------------------------------------------------------------------ replacing an earlier run */

bool run_folder_keeps_earlier(const run_folder *run) {
    return run->place != run->path;
}

bool run_folder_replace(run_folder *run, bool validated, error *err) {
    bool done = validated || remove_file(run->path, "best.safetensors", err);
    for (int i = 0; i < RUN_FILES && done; i++) {
        bool last = i == RUN_FILES - 1;
        if (last) done = file_flush_folder(run->path, err);
        done = done && move_file(run->next, run->path, run_files[i], err);
    }
    done = done && file_flush_folder(run->path, err);
    done = done && remove_next(run, err);
    run->place = run->path;
    run->replaced = true;
    return done;
}

static bool finish_replacing(run_folder *run, error *err) {
    if (!holds_finished_next(run)) return true;
    char *path = path_in(run->next, "last.state");
    safetensors file;
    run_state state;
    bool done = checkpoint_open_state(&file, &state, path, err);
    if (done) {
        safetensors_close(&file);
        done = run_folder_replace(run, !isnan(state.best_bpc), err);
    }
    free(path);
    return done;
}

/* ----------------------------------------------------------------------------------- checks */

/* Options that differ from config.yaml are refused, unless their keys may change on resuming; a
 * default may have changed since. */
bool run_folder_keep(run_folder *run, options *o, error *err) {
    char *path = run_folder_file(run, "config.yaml");
    options before;
    options_begin(&before);
    bool same = options_load(&before, path, NULL, 0, err);
    for (int i = 0; i < option_count && same; i++) {
        const config_key *key = &option_keys[i];
        if (key->flags & CONFIG_RESUMABLE) continue;
        char *old = config_text(&before.config, key), *new = config_text(&o->config, key);
        const bool differs = strcmp(old, new) != 0;
        if (differs && !config_is_set(&o->config, key->path)) {
            log_line("%s: %s, as the run was begun with", key->path, old);
            same = config_set(&o->config, key->path, old, path, err);
        } else if (differs) {
            same = error_set(err, "%s: cannot change on resuming: %s in %s, now %s", key->path, old,
                             path, new);
        }
        free(old);
        free(new);
    }
    run->steps_before = before.train.steps;
    run->epochs_before = before.train.epochs;
    options_free(&before);
    free(path);
    return same;
}

static bool lock_folder(run_folder *run, error *err) {
    if (run->lock < 0) run->lock = file_lock_folder(run->path, err);
    return run->lock >= 0;
}

static bool check_no_run(const run_folder *run, error *err) {
    if (!holds_run(run->path) && !holds_finished_next(run)) return true;
    return error_set(err, "%s: already holds a run; --resume continues it, --overwrite starts over",
                     run->path);
}

/* Refuses to replace a config.yaml that no run wrote: it is the user's own. */
static bool check_config_file(const run_folder *run, error *err) {
    char *path = path_in(run->path, "config.yaml"), line[sizeof RUN_CONFIG_HEAD] = "";
    bool replaceable = !file_exists(path) || folder_has(run->path, "last.state");
    FILE *in = replaceable ? NULL : fopen(path, "re");
    if (in) {
        replaceable = fgets(line, sizeof line, in) && strcmp(line, RUN_CONFIG_HEAD) == 0;
        fclose(in);
    }
    if (!replaceable) {
        error_set(err,
                  "%s: this file was not written by a run, and a run would replace it; name "
                  "another folder",
                  path);
    }
    free(path);
    return replaceable;
}

/* A run that was stopped before its first checkpoint begins again, which loses nothing. A folder
 * with models but without a state is refused. */
static bool check_resumable(run_folder *run, options *o, error *err) {
    static const char *const models[] = {"last.safetensors", "best.safetensors"};
    run->resumed = folder_has(run->path, "last.state");
    for (int i = 0; i < 2 && !run->resumed; i++) {
        if (!folder_has(run->path, models[i])) continue;
        return error_set(err,
                         "%s/last.state: missing, though there is %s: nothing to go on from; "
                         "--overwrite starts over",
                         run->path, models[i]);
    }
    if (folder_has(run->path, "config.yaml")) return run_folder_keep(run, o, err);
    return !run->resumed ||
           error_set(err,
                     "%s/config.yaml: missing, but resuming compares the config with it; "
                     "--overwrite starts over",
                     run->path);
}

static bool check_not_next(const run_folder *run, error *err) {
    return !is_marked(run->path) ||
           error_set(err,
                     "%s: belongs to an unfinished overwrite of the run in the folder above; "
                     "--resume or --overwrite that run",
                     run->path);
}

/* A new run's files go to `next`, which must be absent, empty or marked. */
static bool check_next(const run_folder *run, error *err) {
    struct stat status;
    if (is_marked(run->next)) return true;
    if (is_real_folder(run->next)) rmdir(run->next);
    return lstat(run->next, &status) != 0 ||
           error_set(err, "%s: --overwrite needs this name for itself; move what is there",
                     run->next);
}

bool run_folder_check(run_folder *run, options *o, error *err) {
    if (!check_not_next(run, err)) return false;
    if (file_exists(run->path) && !lock_folder(run, err)) return false;
    if (run->start == TRAIN_FRESH) return check_config_file(run, err) && check_no_run(run, err);
    if (!finish_replacing(run, err) || !check_config_file(run, err)) return false;
    if (run->start == TRAIN_RESUME) {
        /* What never reached a checkpoint is given up. */
        return check_resumable(run, o, err) && (!is_marked(run->next) || remove_next(run, err));
    }
    if (!holds_run(run->path)) return true;
    run->place = run->next;
    return check_next(run, err);
}

/* ---------------------------------------------------------------------------------- writing */

static bool write_config(const run_folder *run, const options *o, error *err) {
    char *path = run_folder_file(run, "config.yaml");
    file_writer writer;
    bool written = file_begin(&writer, path, err);
    if (written) {
        fputs(RUN_CONFIG_HEAD, writer.stream);
        config_write(&o->config, writer.stream);
        written = file_commit(&writer, err);
    }
    free(path);
    return written;
}

/* An empty file, which is there at once. */
static bool write_mark(const run_folder *run, error *err) {
    char *path = path_in(run->next, next_mark);
    const int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    bool written = file >= 0 || error_system(err, "write", path);
    if (file >= 0) close(file);
    free(path);
    return written && file_flush_folder(run->next, err);
}

/* Makes and marks `next`. */
static bool prepare_next(run_folder *run, error *err) {
    if (!run_folder_keeps_earlier(run)) return true;
    if (is_marked(run->next) && !remove_next(run, err)) return false;
    run->prepared = check_next(run, err) && file_make_folder(run->next, err);
    return run->prepared && write_mark(run, err);
}

/* Another process may have started a run here since run_folder_check, so check again once the
 * folder is locked. */
bool run_folder_prepare(run_folder *run, const options *o, error *err) {
    return file_make_folder(run->path, err) && lock_folder(run, err) &&
           (run->start != TRAIN_FRESH || check_no_run(run, err)) && prepare_next(run, err) &&
           write_config(run, o, err);
}

/* Cuts the file after its last line break within the first `bytes` bytes. */
static bool cut_metrics(FILE *file, int64_t bytes) {
    struct stat status;
    if (fstat(fileno(file), &status) != 0) return false;
    int64_t length = integer_min(status.st_size, bytes);
    for (; length > 0; length--) {
        if (fseek(file, length - 1, SEEK_SET) != 0) return false;
        const int last = fgetc(file);
        if (last == EOF) return false;
        if (last == '\n') break;
    }
    return ftruncate(fileno(file), length) == 0 && fseek(file, 0, SEEK_END) == 0;
}

FILE *run_folder_metrics(const run_folder *run, int64_t bytes, error *err) {
    char *path = run_folder_file(run, "metrics.jsonl");
    struct stat status;
    int64_t missing = bytes;
    if (stat(path, &status) == 0) missing -= status.st_size;
    if (missing > 0) {
        log_warning("%s: %" PRId64 " of its %" PRId64 " bytes are missing; going on without them",
                    path, missing, bytes);
    }
    FILE *file = fopen(path, run->resumed ? "r+e" : "we");
    if (!file && run->resumed && errno == ENOENT) file = fopen(path, "we");
    if (!file || !cut_metrics(file, bytes)) {
        error_system(err, "write", path);
        if (file) fclose(file);
        file = NULL;
    }
    free(path);
    return file;
}
