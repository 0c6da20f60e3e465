#include "core/log.h"

#include "core/error.h"
#include "core/utf8.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool progress_shown; /* the cursor stands at the end of a progress line */
static bool silent;

static void clear_progress(void) {
    if (progress_shown) fputs("\r\033[K", stderr);
    progress_shown = false;
}

void log_silence(void) {
    silent = true;
}

void log_end(void) {
    flockfile(stderr); /* which also guards progress_shown */
    if (progress_shown) fputc('\n', stderr);
    progress_shown = false;
    funlockfile(stderr);
}

void log_line(const char *format, ...) {
    va_list arguments;
    if (silent) return;
    char *line;
    va_start(arguments, format);
    if (vasprintf(&line, format, arguments) < 0) line = NULL;
    va_end(arguments);
    if (!line) return;
    utf8_make_printable(line);
    flockfile(stderr);
    clear_progress();
    fprintf(stderr, "%s\n", line);
    funlockfile(stderr);
    free(line);
}

void log_warning(const char *format, ...) {
    error line; /* which holds no control characters */
    va_list arguments;
    if (silent) return;
    va_start(arguments, format);
    error_set_list(&line, format, arguments);
    va_end(arguments);
    flockfile(stderr);
    clear_progress();
    fprintf(stderr, "smallworld: warning: %s\n", line.text);
    funlockfile(stderr);
}

/* Columns that a line may take without wrapping, which \r could not take back. */
static int terminal_width(void) {
    struct winsize size;
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col < 2) return INT_MAX;
    return size.ws_col - 1;
}

void log_progress(const char *format, ...) {
    char line[512];
    va_list arguments;
    if (silent) return;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    utf8_make_printable(line);
    flockfile(stderr);
    clear_progress();
    progress_shown = log_is_terminal();
    fprintf(stderr, "%.*s", progress_shown ? terminal_width() : INT_MAX, line);
    if (!progress_shown) fputc('\n', stderr);
    fflush(stderr);
    funlockfile(stderr);
    va_end(arguments);
}

bool log_is_terminal(void) {
    static int known = -1;
    if (known < 0) known = isatty(STDERR_FILENO);
    return known;
}

const char *log_bytes(char *text, double bytes) {
    static const char *units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    int unit = 0;
    for (; bytes >= 1024 && unit < 5; unit++) bytes /= 1024;
    snprintf(text, 16, unit ? "%.1f %s" : "%.0f %s", bytes, units[unit]);
    return text;
}

const char *log_duration(char *text, double seconds) {
    long long whole = seconds > 0 && seconds < 1e12 ? (long long)(seconds + 0.5) : 0;
    long long hours = whole / 3600, minutes = whole / 60 % 60;
    if (hours) {
        snprintf(text, 32, "%lld:%02lld:%02lld", hours, minutes, whole % 60);
    } else {
        snprintf(text, 32, "%lld:%02lld", minutes, whole % 60);
    }
    return text;
}
