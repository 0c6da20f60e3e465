/* The CPU backend's table. */
#include "cpu.h"

#include "core/clock.h"
#include "core/memory.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* -------------------------------------------------------------------------------- denormals */

#if defined __x86_64__ && !defined SMALLWORLD_REFERENCE
enum { FLUSH = 1 << 15 /* results become zero */ | 1 << 6 /* operands are read as zero */ };

static uint64_t read_mode(void) {
    return __builtin_ia32_stmxcsr();
}

static void write_mode(uint64_t mode) {
    __builtin_ia32_ldmxcsr((unsigned)mode);
}
#elif defined __aarch64__ && !defined SMALLWORLD_REFERENCE
enum { FLUSH = 1 << 24 };

static uint64_t read_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}

static void write_mode(uint64_t mode) {
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#else
enum { FLUSH = 0 };

static uint64_t read_mode(void) {
    return 0;
}

static void write_mode(uint64_t mode) {
    (void)mode;
}
#endif

static void set_modes(const cpu_backend *cpu, uint64_t mode) {
    if (cpu->threads == 1) {
        write_mode(mode);
        return;
    }
#pragma omp parallel num_threads(cpu->threads)
    write_mode(mode);
}

void CPU(flush_begin)(cpu_backend *cpu) {
    if (cpu->deadline > 0 && cpu->flushing == 0 && clock_seconds() > cpu->deadline) {
        cpu->threads = cpu->threads_after;
        cpu->deadline = 0;
    }
    if (FLUSH == 0 || cpu->flushing++ > 0) return;
    cpu->saved_mode = read_mode();
    set_modes(cpu, cpu->saved_mode | FLUSH);
}

void CPU(flush_end)(cpu_backend **cpu) {
    if (FLUSH == 0 || --(*cpu)->flushing > 0) return;
    set_modes(*cpu, (*cpu)->saved_mode);
}

/* ----------------------------------------------------------------------------------- memory */

static void *allocate(backend *be, size_t bytes) {
    (void)be;
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
}

static void release(backend *be, void *block) {
    (void)be;
    free(block);
}

static void zero(backend *be, void *block, size_t bytes) {
    (void)be;
    memset(block, 0, bytes);
}

static void copy(backend *be, void *target, const void *source, size_t bytes) {
    (void)be;
    memcpy(target, source, bytes);
}

static void copy_rows(backend *be, void *target, size_t target_pitch, const void *source,
                      size_t source_pitch, size_t bytes, size_t rows) {
    (void)be;
    for (size_t r = 0; r < rows; r++) {
        memcpy((char *)target + r * target_pitch, (const char *)source + r * source_pitch, bytes);
    }
}

static void transpose(backend *be, void *target, const void *source, int rows, int columns) {
    const real *from = source;
    real *to = target;
    (void)be;
    for (int c = 0; c < columns; c++) {
        for (int r = 0; r < rows; r++) {
            to[(size_t)c * (size_t)rows + (size_t)r] =
                from[(size_t)r * (size_t)columns + (size_t)c];
        }
    }
}

static bool finish(backend *be, error *err) {
    (void)be, (void)err;
    return true;
}

static recording *record(backend *be, void (*issue)(void *argument), void *argument) {
    recording *r = mem_alloc(1, sizeof *r);
    *r = (recording){issue, argument, {.threads = cpu_of(be)->first_threads, .fewer = true}};
    return r;
}

/* ---------------------------------------------------------------------------------- threads
 * Threads meet after each operation, thousands of times a second. On processors that are busy with
 * other work, each meeting waits for whichever thread does not run just then, and two threads can
 * take ten times as long as one; small models gain nothing from a second one anyway. So replays are
 * timed, and from time to time one is tried with half or twice as many threads. They start with as
 * many as there are processors without other work, and a replay that takes far longer than usual
 * goes on with fewer: beside eight busy loops on two processors, two threads can take 40 times as
 * long as one. */

enum { FIRST_PAUSE = 2, TRIES = 3, TRIAL_COST = 20 };

/* The time of a replay has grown so much that the processors must have become busier. */
static const double slower = 1.3;

/* A replay has so much more time than usual, unless it is a trial. */
static const double far_slower = 3;

static const double longest_pause = 10; /* seconds */

/* The processors that nothing else runs on just now, of `most`; all, where it is not known. */
static int idle_processors(int most) {
    int running = 1; /* this thread */
    FILE *load = fopen("/proc/loadavg", "re");
    if (load) {
        if (fscanf(load, "%*s %*s %*s %d/", &running) != 1) running = 1;
        fclose(load);
    }
    const int idle = (int)sysconf(_SC_NPROCESSORS_ONLN) - (running - 1);
    return idle < 1 ? 1 : idle < most ? idle : most;
}

static void begin_trial(thread_choice *c, int most) {
    if (c->threads == 1) c->fewer = false;
    if (c->threads == most) c->fewer = true;
    c->trial = c->fewer ? c->threads / 2 : c->threads * 2 < most ? c->threads * 2 : most;
    c->fewer = !c->fewer;
    c->tries = 0;
    c->trial_seconds = 0;
}

/* Judges a trial after TRIES replays, or after one that was far slower. After a trial that succeeds
 * the next one goes on in the same direction, and soon; where it could only go back, it waits as
 * if going back had failed. Each trial that fails doubles the pause before the next, which is at
 * least TRIAL_COST times as long as the trial. */
static void go_on_with_trial(thread_choice *c, double seconds, int most) {
    c->trial_seconds += seconds;
    if (++c->tries < TRIES && seconds < slower * c->seconds) return;
    const double each = c->trial_seconds / c->tries;
    if (each < 0.95 * c->seconds) {
        const bool last = c->trial == 1 || c->trial == most;
        c->pause = last ? (int)fmin(1e6, TRIAL_COST * c->seconds / each) : FIRST_PAUSE;
        c->fewer = c->trial < c->threads;
        c->threads = c->trial;
        c->seconds = each;
        c->replays = 0;
    } else {
        const double pause = fmin(2 * c->pause, longest_pause / c->seconds);
        c->pause = (int)fmin(1e6, fmax(pause, TRIAL_COST * c->trial_seconds / c->seconds));
    }
    c->left = c->pause;
    c->settled = c->seconds;
    c->trial = 0;
}

/* Takes the time of a replay. The first one of all touches memory for the first time. */
static void take_time(thread_choice *c, double seconds, int most) {
    if (c->trial) {
        go_on_with_trial(c, seconds, most);
        return;
    }
    const bool first = c->replays++ < FIRST_PAUSE;
    c->seconds = c->seconds == 0 || (first && seconds < c->seconds)
                     ? seconds
                     : 0.8 * c->seconds + 0.2 * seconds;
    if (c->settled > 0 && c->seconds > slower * c->settled) c->left = 0;
    if (c->replays >= FIRST_PAUSE && c->left-- <= 0) begin_trial(c, most);
}

static void replay(backend *be, recording *r) {
    cpu_backend *cpu = cpu_of(be);
    if (!cpu->adapts) {
        r->issue(r->argument);
        return;
    }
    thread_choice *c = &r->choice;
    const bool more = c->trial > c->threads;
    const double start = clock_seconds(), usual = c->seconds;
    cpu->threads = c->trial ? c->trial : c->threads;
    cpu->threads_after = more ? c->threads : (cpu->threads + 1) / 2;
    cpu->deadline =
        usual > 0 && cpu->threads > 1 ? start + (more ? slower : far_slower) * usual : 0;
    r->issue(r->argument);
    take_time(c, clock_seconds() - start, cpu->most_threads);
    cpu->deadline = 0;
    cpu->threads = cpu->first_threads = c->threads;
}

static void recording_free(backend *be, recording *r) {
    (void)be;
    free(r);
}

static void mark(backend *be, int number) {
    cpu_backend *cpu = cpu_of(be);
    cpu->marks = mem_grow(cpu->marks, &cpu->mark_count, (size_t)number + 1, sizeof *cpu->marks);
    cpu->marks[number] = clock_seconds();
}

static double elapsed(backend *be, int from, int to) {
    return cpu_of(be)->marks[to] - cpu_of(be)->marks[from];
}

static int *copy_table(const int *table, size_t count) {
    int *copied = mem_alloc(count, sizeof *copied);
    memcpy(copied, table, count * sizeof *copied);
    return copied;
}

static device_layout *layout_create(backend *be, const layout *l) {
    (void)be;
    device_layout *device = mem_alloc(1, sizeof *device);
    size_t blocks = (size_t)l->blocks;
    device->host = *l;
    device->host.row_start = copy_table(l->row_start, (size_t)l->out_nodes + 1);
    device->host.row_column = copy_table(l->row_column, blocks);
    device->host.column_start = copy_table(l->column_start, (size_t)l->in_nodes + 1);
    device->host.column_row = copy_table(l->column_row, blocks);
    device->host.column_block = copy_table(l->column_block, blocks);
    return device;
}

static tap_table *taps_create(backend *be, const tap_table *host) {
    (void)be;
    tap_table *made = mem_alloc(1, sizeof *made);
    *made = *host;
    made->source = copy_table(host->source, (size_t)host->out_positions * (size_t)host->taps);
    made->target = copy_table(host->target, (size_t)host->in_positions * (size_t)host->taps);
    return made;
}

static void free_taps(backend *be, tap_table *made) {
    (void)be;
    if (!made) return;
    free(made->source);
    free(made->target);
    free(made);
}

static size_t layout_bytes(const device_layout *device) {
    const layout *l = &device->host;
    return ((size_t)l->out_nodes + (size_t)l->in_nodes + 2 + 3 * (size_t)l->blocks) * sizeof(int);
}

static void free_layout(backend *be, device_layout *device) {
    (void)be;
    if (!device) return;
    free(device->host.row_start);
    free(device->host.row_column);
    free(device->host.column_start);
    free(device->host.column_row);
    free(device->host.column_block);
    free(device);
}

static size_t sums_bytes(backend *be, int gates, int columns) {
    (void)be;
    return sizeof(real) * 2 * (size_t)gates * (size_t)columns;
}

static void destroy(backend *be) {
    free(cpu_of(be)->partial);
    free(cpu_of(be)->statistics);
    free(cpu_of(be)->marks);
    free(be);
}

/* What the kernel thinks can be had without swapping. */
static size_t available_memory(void) {
    unsigned long long kilobytes = 0;
    char line[128];
    FILE *in = fopen("/proc/meminfo", "r");
    if (!in) return SIZE_MAX;
    while (fgets(line, sizeof line, in)) {
        if (sscanf(line, "MemAvailable: %llu kB", &kilobytes) == 1) break;
    }
    fclose(in);
    return kilobytes ? (size_t)kilobytes * 1024 : SIZE_MAX;
}

static bool join(backend *be, ranks *ranks, error *err) {
    (void)err;
    be->ranks = ranks;
    return true;
}

static const memory_operations memory = {
    .allocate = allocate,
    .release = release,
    .zero = zero,
    .copy = copy,
    .copy_rows = copy_rows,
    .transpose = transpose,
    .upload = copy,
    .download = copy,
    .finish = finish,
    .record = record,
    .replay = replay,
    .recording_free = recording_free,
    .mark = mark,
    .elapsed = elapsed,
    .layout_create = layout_create,
    .layout_free = free_layout,
    .layout_bytes = layout_bytes,
    .taps_create = taps_create,
    .taps_free = free_taps,
    .destroy = destroy,
};

static const product_operations products = {
    .fprop = CPU(fprop),
    .dgrad = CPU(dgrad),
    .wgrad = CPU(wgrad),
    .conv_fprop = CPU(conv_fprop),
    .conv_dgrad = CPU(conv_dgrad),
    .conv_wgrad = CPU(conv_wgrad),
    .wgrad_workspace = CPU(wgrad_workspace),
};

static const cell_operations cell_table = {
    .forward = CPU(cell_forward),
    .backward = CPU(cell_backward),
    .prepare_entries = CPU(prepare_entries),
    .activate = CPU(activate),
    .activate_backward = CPU(activate_backward),
    .gates = CPU(gates),
    .gates_backward = CPU(gates_backward),
    .table_backward = CPU(table_backward),
    .add_rows = CPU(add_rows),
    .sums_bytes = sums_bytes,
};

static const update_operations update = {
    .softmax_cross_entropy = CPU(softmax_cross_entropy),
    .sample = CPU(sample),
    .row_sums = CPU(row_sums),
    .add = CPU(add),
    .sum = CPU(sum),
    .pool = CPU(pool),
    .norm_rows = CPU(norm_rows),
    .norm_rows_backward = CPU(norm_rows_backward),
    .adam = CPU(adam),
    .muon_direction = CPU(muon_direction),
    .muon_polynomial = CPU(muon_polynomial),
    .muon_apply = CPU(muon_apply),
    .adapt = CPU(adapt),
    .join = join,
    .sum_ranks = CPU(sum_ranks),
    .round = CPU(round),
};

#define TEXT_OF(name)     #name
#define LEVEL_TEXT(level) TEXT_OF(level)
#define LEVEL_NAME        LEVEL_TEXT(SMALLWORLD_LEVEL)

backend *CPU(backend)(precision precision, int threads) {
    cpu_backend *cpu = mem_alloc(1, sizeof *cpu);
    cpu->most_threads = cpu->threads = threads > 0 ? threads : omp_get_max_threads();
    cpu->adapts = threads == 0 && cpu->most_threads > 1;
    cpu->first_threads = cpu->adapts ? idle_processors(cpu->most_threads) : cpu->threads;
    cpu->table = (backend){
        .memory = &memory,
        .products = &products,
        .cell = &cell_table,
        .update = &update,
        .name = "cpu",
        .precision = precision,
        .real_size = sizeof(real),
        .operand_size = sizeof(real),
        .column_multiple = COLUMN_GROUP,
        .product_multiple = COLUMN_GROUP,
        .available = available_memory(),
        .limits = {SIZE_MAX, SIZE_MAX, SIZE_MAX, SIZE_MAX}, /* memory ends first */
    };
    snprintf(cpu->table.device, sizeof cpu->table.device, "CPU (%s), %s%d thread%s", LEVEL_NAME,
             cpu->adapts ? "up to " : "", cpu->threads, cpu->threads == 1 ? "" : "s");
    return &cpu->table;
}

#ifdef SMALLWORLD_REFERENCE
backend *backend_cpu_reference(int threads) {
    return CPU(backend)(FP64, threads);
}
#endif
