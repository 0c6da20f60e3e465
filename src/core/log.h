/* Messages for people on stderr. Commands print their results on stdout themselves. */
#ifndef SMALLWORLD_CORE_LOG_H
#define SMALLWORLD_CORE_LOG_H

#include <stdbool.h>

/* Prints one line after clearing the progress line. */
void log_line(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* "smallworld: warning: ..." */
void log_warning(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Replaces the progress line on a terminal; elsewhere prints a line. */
void log_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* From here on no line, warning or progress is printed. */
void log_silence(void);

/* Ends the progress line with a line break. Call it before anything else is printed. */
void log_end(void);

/* Whether stderr is a terminal, where progress may be shown often. */
bool log_is_terminal(void);

/* Writes a size for people, such as "1.5 GiB", to `text`, which has room for 16 bytes, and returns
 * it. */
const char *log_bytes(char *text, double bytes);

/* Writes a duration for people, "1:02:03" or "2:03", to `text`, which has room for 32 bytes, and
 * returns it. */
const char *log_duration(char *text, double seconds);

#endif
