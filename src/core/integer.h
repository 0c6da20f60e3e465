/* The smaller and the larger of two integers. */
#ifndef SMALLWORLD_CORE_INTEGER_H
#define SMALLWORLD_CORE_INTEGER_H

#include <stdint.h>

static inline int64_t integer_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t integer_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

#endif
