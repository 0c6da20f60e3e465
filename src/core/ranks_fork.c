/* Ranks as processes of one host, which share memory. */
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/ranks_start.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Seconds: a mistake of all ranks is left to rank 0 to say; a rank that waits for a dead one
 * elsewhere than in an exchange is killed. */
static const double grace = 0.5, patience = 5;

typedef struct board {
    atomic_int failed;      /* a rank died or failed: the others are to end */
    atomic_int arrived;     /* ranks that wait in the current exchange */
    atomic_uint generation; /* exchanges that all ranks have come to */
    struct {
        atomic_uint exchanges; /* that it has come to */
        char failure[512];     /* what ranks_fail was told */
    } of[];                    /* [rank] */
} board;

typedef struct forked {
    ranks ranks; /* first */
    board *board;
    char *slots; /* [2][count][RANKS_EXCHANGE] */
} forked;

static size_t board_bytes(int count) {
    const size_t bytes = sizeof(board) + (size_t)count * sizeof((board *)NULL)->of[0];
    return (bytes + 4095) / 4096 * 4096;
}

static void sleep_for(double seconds) {
    const struct timespec time = {0, (long)(seconds * 1e9)};
    nanosleep(&time, NULL);
}

/* ------------------------------------------------------------------------------------- a rank */

/* Slots take turns: a rank that is through an exchange may write for the next one while others
 * still read. */
static bool exchange(ranks *r, const void *mine, size_t bytes) {
    enum { SPINS = 2000 };
    forked *f = (forked *)r;
    const unsigned turn = atomic_load(&f->board->generation);
    char *slots = f->slots + (size_t)(turn % 2) * (size_t)r->count * RANKS_EXCHANGE;
    memcpy(slots + (size_t)r->rank * RANKS_EXCHANGE, mine, bytes);
    atomic_store(&f->board->of[r->rank].exchanges, turn + 1);
    if (atomic_fetch_add(&f->board->arrived, 1) == r->count - 1) {
        atomic_store(&f->board->arrived, 0);
        atomic_fetch_add(&f->board->generation, 1);
    }
    for (int i = 0; atomic_load(&f->board->generation) == turn; i++) {
        if (atomic_load(&f->board->failed)) return false;
        if (i > SPINS) sleep_for(50e-6);
    }
    r->all = slots;
    return true;
}

static void fail(ranks *r, const error *err) {
    board *b = ((forked *)r)->board;
    snprintf(b->of[r->rank].failure, sizeof b->of[0].failure, "%.511s", err->text);
}

static void end(ranks *r) {
    free(r);
}

/* ---------------------------------------------------------------------------- the first process */

static volatile sig_atomic_t caught;

static void on_signal(int number) {
    caught = number;
}

enum { STOPPING = 3 };
static const int stopping[STOPPING] = {SIGINT, SIGTERM, SIGHUP};

/* Keeps in `before` what the ranks are to do at these signals. */
static void catch_signals(struct sigaction before[STOPPING]) {
    const struct sigaction action = {.sa_handler = on_signal};
    for (int i = 0; i < STOPPING; i++) {
        sigaction(stopping[i], NULL, &before[i]);
        if (before[i].sa_handler != SIG_IGN) sigaction(stopping[i], &action, NULL);
    }
}

typedef struct watched {
    int count, left;
    pid_t *process;    /* [count]; 0 once it has ended */
    int passed_on;     /* the signal to stop that all ranks were last sent, or 0 */
    int first, status; /* the first rank that failed or that a signal ended, or -1; its status */
    double failed_at;
    unsigned exchanges; /* that all ranks had come to, and when they last came to another */
    double exchanged_at;
} watched;

/* Also continues a rank that is suspended, which would take the signal only then. */
static void signal_all(const watched *w, int number) {
    for (int k = 0; k < w->count; k++) {
        if (!w->process[k]) continue;
        kill(w->process[k], number);
        kill(w->process[k], SIGCONT);
    }
}

/* Stopping by a signal that all ranks were sent is no failure: they save and exit, or end as the
 * signal ends a process, and then the others need not go on either. */
static void note_end(watched *w, pid_t process, int status) {
    int k = 0;
    while (k < w->count && w->process[k] != process) k++;
    if (k == w->count) return;
    w->process[k] = 0;
    w->left--;
    const bool stopped = WIFSIGNALED(status) && WTERMSIG(status) == w->passed_on;
    const bool well = WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) > 128);
    if (w->first < 0 && well) w->status = WEXITSTATUS(status);
    if (w->first >= 0 || well) return;
    w->first = k;
    w->status = WIFEXITED(status) ? WEXITSTATUS(status) : stopped ? 128 + w->passed_on : 1;
    w->failed_at = clock_seconds();
    if (!WIFSIGNALED(status) || stopped) return;
    w->failed_at -= grace;
    log_end();
    fprintf(stderr, "smallworld: rank %d (process %d) was killed by signal %d (%s); all end\n", k,
            (int)process, WTERMSIG(status), strsignal(WTERMSIG(status)));
}

/* Names the ranks that do not come to an exchange in which others wait, once in a silence. */
static void watch_silence(watched *w, board *b, double now) {
    const unsigned all = atomic_load(&b->generation);
    if (all != w->exchanges || atomic_load(&b->arrived) == 0 || w->exchanged_at == 0) {
        w->exchanges = all;
        w->exchanged_at = now;
        return;
    }
    const double silence = ranks_longest_silence();
    if (now - w->exchanged_at < silence || w->exchanged_at == INFINITY) return;
    w->exchanged_at = INFINITY;
    log_end();
    for (int k = 0; k < w->count; k++) {
        if (!w->process[k] || atomic_load(&b->of[k].exchanges) > all) continue;
        fprintf(stderr,
                "smallworld: rank %d (process %d) has been silent for %g seconds; the others wait "
                "for it\n",
                k, (int)w->process[k], silence);
    }
}

static void watch(watched *w, board *b) {
    bool told = false, killed = false;
    while (w->left > 0) {
        int status;
        pid_t process = waitpid(-1, &status, WNOHANG);
        if (process > 0) {
            note_end(w, process, status);
            continue;
        }
        const double now = clock_seconds();
        if (caught) { /* the ranks tell a second request from one that comes twice: stop.h */
            signal_all(w, caught);
            w->passed_on = caught;
            caught = 0;
        }
        if (w->first >= 0 && now - w->failed_at >= grace && !told) {
            atomic_store(&b->failed, 1);
            signal_all(w, SIGTERM); /* for a rank that is not in an exchange for long */
            told = true;
        }
        if (w->first >= 0 && now - w->failed_at >= patience && !killed) {
            signal_all(w, SIGKILL);
            killed = true;
        }
        watch_silence(w, b, now);
        sleep_for(0.01);
    }
    if (w->first > 0 && !*b->of[0].failure && *b->of[w->first].failure) {
        fprintf(stderr, "smallworld: rank %d: %s\n", w->first, b->of[w->first].failure);
    }
}

/* A rank is out of the terminal's foreground group, so that it gets each signal once. */
static void begin_rank(forked *f, int rank, const struct sigaction before[STOPPING]) {
    for (int i = 0; i < STOPPING; i++) sigaction(stopping[i], &before[i], NULL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    f->ranks.rank = f->ranks.local = f->ranks.gpu = rank;
    if (rank > 0) ranks_be_quiet();
}

bool ranks_fork(ranks **r, int count, error *err) {
    const size_t slots = 2 * (size_t)count * RANKS_EXCHANGE;
    char *shared = mmap(NULL, board_bytes(count) + slots, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED) {
        return error_set(err, "no memory for %d processes to share: %s", count, strerror(errno));
    }
    forked *f = mem_alloc(1, sizeof *f);
    *f = (forked){.ranks = {.count = count,
                            .local_count = count,
                            .stride = RANKS_EXCHANGE,
                            .exchange = exchange,
                            .fail = fail,
                            .end = end},
                  .board = (board *)shared,
                  .slots = shared + board_bytes(count)};
    watched w = {
        .count = count, .process = mem_alloc((size_t)count, sizeof *w.process), .first = -1};
    memset(w.process, 0, (size_t)count * sizeof *w.process);
    fflush(NULL);
    struct sigaction before[STOPPING];
    catch_signals(before);
    for (int k = 0; k < count; k++) {
        pid_t process = fork();
        if (process == 0) {
            free(w.process);
            begin_rank(f, k, before);
            *r = &f->ranks;
            return true;
        }
        if (process < 0) {
            signal_all(&w, SIGKILL);
            return error_set(err, "cannot start process %d of %d: %s", k + 1, count,
                             strerror(errno));
        }
        w.process[k] = process;
        w.left++;
    }
    watch(&w, f->board);
    exit(w.status);
}
