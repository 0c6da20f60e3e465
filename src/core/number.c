#include "core/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    double number = strtod(text, &stop);
    if (stop == text || *stop != '\0' || !isfinite(number)) return false;
    *value = number;
    return true;
}
