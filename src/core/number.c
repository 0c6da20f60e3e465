#include "core/number.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t c_locale;

static void make_locale(void) {
    c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

/* What this returns is to be restored by uselocale. */
static locale_t use_c_locale(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_locale);
    return uselocale(c_locale);
}

double number_scan(const char *text, char **stop) {
    const locale_t before = use_c_locale();
    const double value = strtod(text, stop);
    uselocale(before);
    return value;
}

void number_format(char *text, double value) {
    const locale_t before = use_c_locale();
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, 32, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    uselocale(before);
}

bool number_integer(const char *text, int64_t *value) {
    const char *digits = text + (*text == '-');
    if (*digits == '\0' || digits[strspn(digits, "0123456789")] != '\0') return false;
    errno = 0;
    long long number = strtoll(text, NULL, 10);
    if (errno) return false;
    *value = number;
    return true;
}

bool number_real(const char *text, double *value) {
    char *stop;
    if (text[strspn(text, "0123456789+-.eE")] != '\0') return false;
    double number = number_scan(text, &stop);
    if (stop == text || *stop != '\0' || !isfinite(number)) return false;
    *value = number;
    return true;
}
