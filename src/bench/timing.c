#include "bench/timing.h"

#include "core/clock.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_OPERATIONS = 4096 }; /* limit of a recording */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}

typedef struct rotation {
    void (*issue)(void *argument, int set);
    void *argument;
    int sets, passes;
} rotation;

static void issue_passes(void *argument) {
    const rotation *r = argument;
    for (int pass = 0; pass < r->passes; pass++) {
        for (int set = 0; set < r->sets; set++) r->issue(r->argument, set);
    }
}

/* Returns the median time of a replay over `replays`, without the first one. Queues all replays
 * before it waits, so that the host stays ahead of a GPU. */
static double time_rotation(backend *be, rotation *r, int replays) {
    recording *recorded = be->memory->record(be, issue_passes, r);
    double *seconds = mem_alloc((size_t)replays, sizeof *seconds);
    for (int i = 0; i <= replays; i++) {
        be->memory->replay(be, recorded);
        be->memory->mark(be, i);
    }
    for (int i = 0; i < replays; i++) seconds[i] = be->memory->elapsed(be, i, i + 1);
    double typical = median(seconds, replays);
    be->memory->recording_free(be, recorded);
    free(seconds);
    return typical;
}

/* Times one run by the wall clock, without a recording. */
static bool time_once(backend *be, rotation *r, double *seconds, error *err) {
    double start = clock_seconds();
    r->issue(r->argument, 0);
    bool done = be->memory->finish(be, err);
    *seconds = clock_seconds() - start;
    return done;
}

bool time_operation(backend *be, const timing *how, void (*issue)(void *argument, int set),
                    void *argument, int sets, double *seconds, error *err) {
    rotation r = {issue, argument, sets, 1};
    /* The first run loads code and finds errors. The second one shows how long a run takes. */
    if (!time_once(be, &r, seconds, err)) return false;
    if (!time_once(be, &r, seconds, err)) return false;
    if (*seconds > how->most) return true;
    double pass = time_rotation(be, &r, 1);
    double wanted = pass > 0 ? ceil(how->least / pass) : MOST_OPERATIONS;
    int most = MOST_OPERATIONS / sets;
    r.passes = wanted < most ? (int)wanted : most;
    if (r.passes < 1) r.passes = 1;
    *seconds = time_rotation(be, &r, how->replays) / ((double)r.passes * sets);
    return be->memory->finish(be, err);
}
