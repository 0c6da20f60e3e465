/* Preloaded into the program under test (LD_PRELOAD), this library counts its allocations and its
 * system calls on files, and makes one of them fail, or kills the process there. campaign.py drives
 * it.
 *
 *   FAULT_MODE=MODE FAULT_AT=N FAULT_TRACE=FILE FAULT_REPORT=FILE
 *
 *   count  nothing fails; FAULT_TRACE gets a line a call:
 *          io N NAME STACK FILE PATH PATH RESULT, or alloc N STACK, with tabs between; STACK is a
 *          hash of the return addresses, so that calls from one place in the program can be told
 *   alloc  allocation N returns NULL            alloc+  and so does every later one
 *   io     call N fails, with an errno of its own
 *   full   from call N on the disk is full: what writes or creates fails with ENOSPC
 *   short  call N, a read or write, moves half of its bytes
 *   kill   SIGKILL before call N                torn    in the middle of call N, a write
 *
 * Allocations are counted where malloc, calloc, realloc, aligned allocation and pthread_create
 * enter the C library, which its own functions (strdup, fopen, open_memstream ...) go through as
 * well. System calls are trapped by a seccomp filter, whoever makes them: stdio's writes do not
 * pass a symbol that could be replaced.
 * Both counts begin with main. Where a fault struck, FAULT_REPORT gets the stack. */
#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

/* ------------------------------------------------------------------------- architecture
 * shim_syscall(arguments[6], number) makes a system call; its instruction ends at shim_gate, which
 * is the one address that the filter lets pass. */

long shim_syscall(const long arguments[6], long number);
extern char shim_gate[];

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl shim_syscall\n"
        ".hidden shim_syscall\n"
        ".globl shim_gate\n"
        ".hidden shim_gate\n"
        "shim_syscall:\n"
        "  mov %rsi, %rax\n"
        "  mov %rdi, %r11\n"
        "  mov 0(%r11), %rdi\n"
        "  mov 8(%r11), %rsi\n"
        "  mov 16(%r11), %rdx\n"
        "  mov 24(%r11), %r10\n"
        "  mov 32(%r11), %r8\n"
        "  mov 40(%r11), %r9\n"
        "  syscall\n"
        "shim_gate:\n"
        "  ret\n");

static void get_arguments(const ucontext_t *context, long arguments[6]) {
    static const int registers[6] = {REG_RDI, REG_RSI, REG_RDX, REG_R10, REG_R8, REG_R9};
    for (int i = 0; i < 6; i++) arguments[i] = (long)context->uc_mcontext.gregs[registers[i]];
}

static void set_result(ucontext_t *context, long result) {
    context->uc_mcontext.gregs[REG_RAX] = result;
}
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl shim_syscall\n"
        ".hidden shim_syscall\n"
        ".globl shim_gate\n"
        ".hidden shim_gate\n"
        "shim_syscall:\n"
        "  mov x8, x1\n"
        "  mov x9, x0\n"
        "  ldp x0, x1, [x9]\n"
        "  ldp x2, x3, [x9, 16]\n"
        "  ldp x4, x5, [x9, 32]\n"
        "  svc 0\n"
        "shim_gate:\n"
        "  ret\n");

static void get_arguments(const ucontext_t *context, long arguments[6]) {
    for (int i = 0; i < 6; i++) arguments[i] = (long)context->uc_mcontext.regs[i];
}

static void set_result(ucontext_t *context, long result) {
    context->uc_mcontext.regs[0] = (unsigned long)result;
}
#else
#error "shim.c knows x86-64 and 64-bit ARM only"
#endif

/* ------------------------------------------------------------------------- system calls */

enum { WRITES = 1, MOVES = 2, ALWAYS_DONE = 4, PATH0 = 8, PATH1 = 16, PATH3 = 32, CREATES = 64 };

typedef struct call {
    long number;
    const char *name;
    int failure; /* errno of mode `io` */
    int flags;
} call;

static const call calls[] = {
#ifdef SYS_open
    {SYS_open, "open", EMFILE, PATH0 | CREATES},
    {SYS_stat, "stat", EACCES, PATH0},
    {SYS_lstat, "lstat", EACCES, PATH0},
    {SYS_access, "access", EACCES, PATH0},
    {SYS_rename, "rename", EIO, PATH0 | PATH1},
    {SYS_link, "link", EIO, PATH0 | PATH1},
    {SYS_unlink, "unlink", EIO, PATH0},
    {SYS_mkdir, "mkdir", EIO, PATH0 | WRITES},
#endif
    {SYS_openat, "openat", EMFILE, PATH1 | CREATES},
    {SYS_newfstatat, "newfstatat", EACCES, PATH1},
    {SYS_statx, "statx", EACCES, PATH1},
    {SYS_faccessat, "faccessat", EACCES, PATH1},
    {SYS_renameat, "renameat", EIO, PATH1 | PATH3},
    {SYS_renameat2, "renameat2", EIO, PATH1 | PATH3},
    {SYS_linkat, "linkat", EIO, PATH1 | PATH3},
    {SYS_unlinkat, "unlinkat", EIO, PATH1},
    {SYS_mkdirat, "mkdirat", EIO, PATH1 | WRITES},
    {SYS_fstat, "fstat", EIO, 0},
    {SYS_read, "read", EIO, MOVES},
    {SYS_pread64, "pread", EIO, MOVES},
    {SYS_write, "write", EIO, MOVES | WRITES},
    {SYS_pwrite64, "pwrite", EIO, MOVES | WRITES},
    {SYS_writev, "writev", EIO, WRITES},
    {SYS_lseek, "lseek", EIO, 0},
    {SYS_ftruncate, "ftruncate", EIO, WRITES},
    {SYS_fallocate, "fallocate", EIO, WRITES},
    {SYS_fsync, "fsync", EIO, WRITES},
    {SYS_fdatasync, "fdatasync", EIO, WRITES},
    {SYS_flock, "flock", EINTR, 0},
    {SYS_getdents64, "getdents", EIO, 0},
    {SYS_close, "close", EIO, ALWAYS_DONE},
    {SYS_mmap, "mmap", ENOMEM, 0}, /* only those that map a file, see install_filter */
};
enum { CALLS = sizeof calls / sizeof calls[0] };

static enum { COUNT, ALLOC, ALLOC_ONWARD, IO, FULL, SHORT, KILL, TORN } mode;
static const char *const modes[] = {"count", "alloc", "alloc+", "io",
                                    "full",  "short", "kill",   "torn"};
enum { MODES = sizeof modes / sizeof modes[0] };

static long fault_at;
static int trace_file = -1, report_file = -1;
static atomic_long io_count, alloc_count;
static atomic_bool counting, reported;
static _Thread_local bool inside; /* in the shim's own allocations */

static long make(long number, long a, long b, long c) {
    const long arguments[6] = {a, b, c, 0, 0, 0};
    return shim_syscall(arguments, number);
}

static void report_stack(const char *what) {
    if (report_file < 0 || atomic_exchange(&reported, true)) return;
    void *frames[24];
    inside = true;
    int count = backtrace(frames, 24);
    dprintf(report_file, "%s\n", what);
    backtrace_symbols_fd(frames, count, report_file);
    inside = false;
}

/* The same in each run: addresses count from where their library lies. */
static uint64_t hash_stack(void) {
    void *frames[48];
    inside = true;
    const int count = backtrace(frames, 48);
    uint64_t hash = 14695981039346656037u; /* FNV-1a */
    for (int i = 0; i < count; i++) {
        Dl_info where = {.dli_fbase = NULL};
        dladdr(frames[i], &where);
        hash = (hash ^ (uintptr_t)((char *)frames[i] - (char *)where.dli_fbase)) * 1099511628211u;
    }
    inside = false;
    return hash;
}

static void write_trace(const char *line, int length, size_t size) {
    if (length >= (int)size) length = (int)size - 1;
    make(SYS_write, trace_file, (long)line, length);
}

static void trace_call(long n, const char *name, int flags, const long arguments[6], long result) {
    if (trace_file < 0) return;
    char line[1024];
    const char *first = flags & PATH0   ? (const char *)arguments[0]
                        : flags & PATH1 ? (const char *)arguments[1]
                                        : "";
    const char *second = flags & PATH3                        ? (const char *)arguments[3]
                         : (flags & PATH0) && (flags & PATH1) ? (const char *)arguments[1]
                                                              : "";
    const int length =
        snprintf(line, sizeof line, "io\t%ld\t%s\t%lx\t%d\t%s\t%s\t%ld\n", n, name, hash_stack(),
                 flags & PATH0 ? AT_FDCWD : (int)arguments[0], first, second, result);
    write_trace(line, length, sizeof line);
}

static void end_here(void) {
    make(SYS_kill, getpid(), SIGKILL, 0);
}

static bool creates(const call *c, const long arguments[6]) {
    if (!(c->flags & CREATES)) return false;
    long flags = c->flags & PATH0 ? arguments[1] : arguments[2];
    return (flags & (O_CREAT | O_TMPFILE)) != 0 && (flags & O_ACCMODE) != O_RDONLY;
}

static long perform(const call *c, long arguments[6]) {
    const bool own = (int)arguments[0] == report_file || (int)arguments[0] == trace_file;
    if (inside || (own && !(c->flags & (PATH0 | PATH1)))) return shim_syscall(arguments, c->number);
    const long n = atomic_fetch_add(&io_count, 1) + 1;
    const bool here = n == fault_at;
    long result = 0;
    if (mode == KILL && here) end_here();
    if (mode == TORN && here && arguments[2] > 1) {
        arguments[2] /= 2;
        shim_syscall(arguments, c->number);
        end_here();
    }
    if (mode == FULL && n >= fault_at && ((c->flags & WRITES) || creates(c, arguments))) {
        const bool terminal = (c->flags & MOVES) && arguments[0] <= STDERR_FILENO;
        if (!terminal) {
            report_stack(c->name);
            return -ENOSPC;
        }
    }
    if (mode == IO && here) {
        if (c->flags & ALWAYS_DONE) shim_syscall(arguments, c->number);
        report_stack(c->name);
        return -c->failure;
    }
    if (mode == SHORT && here && (c->flags & MOVES) && arguments[2] > 1) arguments[2] /= 2;
    result = shim_syscall(arguments, c->number);
    if (mode == COUNT) trace_call(n, c->name, c->flags, arguments, result);
    return result;
}

static void on_trap(int number, siginfo_t *info, void *context) {
    (void)number;
    const int saved = errno;
    long arguments[6];
    get_arguments(context, arguments);
    for (int i = 0; i < CALLS; i++) {
        if (calls[i].number != info->si_syscall) continue;
        set_result(context, perform(&calls[i], arguments));
        break;
    }
    errno = saved;
}

/* Traps the calls of the table, except from the gate. mmap is trapped only if it maps a file. */
static bool install_filter(void) {
    struct sock_filter filter[2 * CALLS + 16], *f = filter;
    const uint64_t gate = (uintptr_t)shim_gate;
    const struct sock_filter load_low =
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer));
    const struct sock_filter load_high =
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4);
    const struct sock_filter load_number =
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    const struct sock_filter load_file =
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[4]));
    const struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    const struct sock_filter trap = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP);
    *f++ = load_low;
    *f++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)gate, 0, 3);
    *f++ = load_high;
    *f++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(gate >> 32), 0, 1);
    *f++ = allow;
    *f++ = load_number;
    *f++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 4);
    *f++ = load_file;
    *f++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, UINT32_MAX, 0, 1);
    *f++ = allow;
    *f++ = trap;
    for (int i = 0; i < CALLS; i++) {
        if (calls[i].number == SYS_mmap) continue;
        *f++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)calls[i].number, 0,
                                            1);
        *f++ = trap;
    }
    *f++ = allow;
    const struct sock_fprog program = {(unsigned short)(f - filter), filter};
    const struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO | SA_NODEFER};
    return sigaction(SIGSYS, &action, NULL) == 0 && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* A blocked SIGSYS would end the process at its next trapped call. */
int pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    sigset_t open;
    if (set) {
        open = *set;
        sigdelset(&open, SIGSYS);
        set = &open;
    }
    return sigprocmask(how, set, old) == 0 ? 0 : errno;
}

/* ------------------------------------------------------------------------- allocations */

void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *block, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

static bool refuse(void) {
    if (inside || !counting) return false;
    const long n = atomic_fetch_add(&alloc_count, 1) + 1;
    if (mode == COUNT && trace_file >= 0) {
        char line[64];
        const uint64_t stack = hash_stack();
        write_trace(line, snprintf(line, sizeof line, "alloc\t%ld\t%lx\n", n, stack), sizeof line);
    }
    if (!((mode == ALLOC && n == fault_at) || (mode == ALLOC_ONWARD && n >= fault_at)))
        return false;
    report_stack("alloc");
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size) {
    return refuse() ? NULL : __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
    return refuse() ? NULL : __libc_calloc(count, size);
}

void *realloc(void *block, size_t size) {
    return refuse() ? NULL : __libc_realloc(block, size);
}

void *memalign(size_t alignment, size_t size) {
    return refuse() ? NULL : __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
    return refuse() ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **block, size_t alignment, size_t size) {
    if (refuse()) return ENOMEM;
    void *made = __libc_memalign(alignment, size);
    if (made) *block = made;
    return made ? 0 : ENOMEM;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *argument) {
    static int (*next)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "pthread_create");
    return refuse() ? EAGAIN : next(thread, attributes, run, argument);
}

/* ------------------------------------------------------------------------- start and end */

static int open_log(const char *variable) {
    const char *path = getenv(variable);
    if (!path) return -1;
    const int opened = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    const int high = opened < 0 ? -1 : fcntl(opened, F_DUPFD_CLOEXEC, 500);
    if (opened >= 0) close(opened);
    return high;
}

static int (*program_main)(int, char **, char **);

static int start(int argc, char **argv, char **environment) {
    const char *name = getenv("FAULT_MODE"), *at = getenv("FAULT_AT");
    if (!name) return program_main(argc, argv, environment);
    int found = 0;
    while (found < MODES && strcmp(name, modes[found]) != 0) found++;
    fault_at = at ? strtol(at, NULL, 10) : 0;
    void *frame[1];
    backtrace(frame, 1); /* loads now what it needs later */
    trace_file = open_log("FAULT_TRACE");
    report_file = open_log("FAULT_REPORT");
    mode = found < MODES ? found : 0;
    if (found == MODES || !install_filter()) {
        fprintf(stderr, "shim.c: cannot start: FAULT_MODE=%s: %m\n", name);
        return 99;
    }
    counting = true;
    return program_main(argc, argv, environment);
}

typedef int main_function(int, char **, char **);

int __libc_start_main(main_function *main, int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*unload)(void), void *stack_end) {
    int (*next)(main_function *, int, char **, void (*)(void), void (*)(void), void (*)(void),
                void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    program_main = main;
    return next(start, argc, argv, init, fini, unload, stack_end);
}
