#include "page/follow.h"

#include "core/clock.h"
#include "core/memory.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>

struct follower {
    char *folder, *path;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool running, end;
};

/* Waits this long or until the end. Returns whether the end came. */
static bool wait_for_end(follower *f, double seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += (time_t)seconds;
    pthread_mutex_lock(&f->lock);
    while (!f->end && pthread_cond_timedwait(&f->ended, &f->lock, &until) == 0) continue;
    bool end = f->end;
    pthread_mutex_unlock(&f->lock);
    return end;
}

/* Writes the page again and again. A failure is not reported here: the next write may succeed, and
 * follow_stop reports the last one. */
static void *run(void *argument) {
    follower *f = argument;
    double pause = 1;
    while (!wait_for_end(f, pause)) {
        error ignored;
        double start = clock_seconds();
        bool written = curves_plot(&f->folder, 1, f->path, FOLLOW_SECONDS, &ignored);
        double most = written ? FOLLOW_SECONDS : 1;
        pause = fmax(most, FOLLOW_FACTOR * (clock_seconds() - start));
    }
    return NULL;
}

follower *follow_start(const char *folder) {
    follower *f = mem_alloc(1, sizeof *f);
    f->folder = mem_string(folder);
    f->path = mem_format("%s/plot.html", folder);
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->ended, NULL);
    f->running = pthread_create(&f->thread, NULL, run, f) == 0;
    return f;
}

bool follow_stop(follower *f, error *err) {
    pthread_mutex_lock(&f->lock);
    f->end = true;
    pthread_cond_signal(&f->ended);
    pthread_mutex_unlock(&f->lock);
    if (f->running) pthread_join(f->thread, NULL);
    bool written = !err || curves_plot(&f->folder, 1, f->path, 0, err);
    pthread_cond_destroy(&f->ended);
    pthread_mutex_destroy(&f->lock);
    free(f->path);
    free(f->folder);
    free(f);
    return written;
}
