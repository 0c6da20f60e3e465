#include "core/log.h"
#include "core/memory.h"
#include "core/ranks_start.h"
#include "mpi/smallworld_mpi.h"

#include <dlfcn.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* srun sets its variable also where MPI is not asked for; there each task would be a run of its
 * own. */
int ranks_launched(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *text = getenv(names[i]);
        if (text && atoi(text) > 0) return atoi(text);
    }
    return 1;
}

void ranks_be_quiet(void) {
    log_silence();
    if (!freopen("/dev/null", "w", stdout)) fclose(stdout);
}

/* ------------------------------------------------------------------------------- the module */

static const mpi_module *module;

/* Beside the program, or where it is installed. MPI opens components that look for its symbols. */
static bool load_module(error *err) {
    static const char *const folders[] = {".", SMALLWORLD_MODULES};
    char program[PATH_MAX] = "";
    const char *why = NULL;
    if (module) return true;
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) program[0] = '\0';
    const char *folder = dirname(program);
    for (size_t i = 0; i < sizeof folders / sizeof folders[0] && !module; i++) {
        char *path = mem_format("%s/%s/" MPI_MODULE, folder, folders[i]);
        void *opened = access(path, F_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
        if (opened) module = dlsym(opened, "smallworld_mpi");
        if (!module && access(path, F_OK) == 0) why = dlerror();
        free(path);
    }
    return module || error_set(err, "%s", why ? why : "this program was built without MPI");
}

const char *ranks_mpi_version(void) {
    static error err;
    return load_module(&err) ? module->version() : err.text;
}

/* ------------------------------------------------------------------------------------- ranks */

static double longest_silence; /* seconds */

static void name_silent(int rank) {
    log_end();
    fprintf(stderr, "smallworld: rank %d has been silent for %g seconds; the others wait for it\n",
            rank, longest_silence);
}

/* Gathering needs no order: every rank adds up what it gathered by itself. */
static bool exchange(ranks *r, const void *mine, size_t bytes) {
    r->stride = bytes;
    return module->gather(mine, bytes, (char *)r->all, longest_silence, name_silent);
}

/* A mistake in the config is found by all ranks at once: the others leave it to rank 0 to say. */
static void fail(ranks *r, const error *err) {
    if (r->rank > 0) {
        sleep(1);
        fprintf(stderr, "smallworld: rank %d: %s\n", r->rank, err->text);
    }
    fflush(NULL);
    module->abort(err->status);
}

static void end(ranks *r) {
    module->end();
    free((char *)r->all);
    free(r);
}

/* Slurm may show each rank a GPU of its own. */
static bool one_gpu_visible(void) {
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    return visible && *visible && !strchr(visible, ',');
}

bool ranks_join_mpi(ranks **joined, int started, error *err) {
    error why;
    if (!load_module(&why)) {
        return error_set(err, "started as one of %d processes, which takes MPI: %s", started,
                         why.text);
    }
    ranks *r = mem_alloc(1, sizeof *r);
    *r = (ranks){.exchange = exchange, .fail = fail, .end = end};
    bool done = module->start(&r->rank, &r->count, &r->local, &r->local_count);
    if (!done) {
        error_set(err, "MPI does not start");
    } else if (r->count != started) {
        done = error_set(err,
                         "started as one of %d processes, but MPI knows of %d: expected the "
                         "launcher of the MPI that this program was built with (srun: --mpi=pmix)",
                         started, r->count);
    }
    if (!done) {
        free(r);
        return false;
    }
    longest_silence = ranks_longest_silence();
    r->gpu = one_gpu_visible() ? 0 : r->local;
    r->all = mem_alloc((size_t)r->count, RANKS_EXCHANGE);
    if (r->rank > 0) ranks_be_quiet();
    *joined = r;
    return true;
}
