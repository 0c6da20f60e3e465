#include "cpu_levels.h"

#include "core/log.h"

#include <stdlib.h>
#include <string.h>

typedef struct level {
    const char *name;
    bool (*runs_here)(void);
    backend *(*create)(precision precision, int threads);
} level;

static bool anywhere(void) {
    return true;
}

#if defined __x86_64__
static inline bool has_v3(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi") &&
           __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("fma");
}

static inline bool has_v4(void) {
    return has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
#endif

static const level levels[] = {
#if defined SMALLWORLD_HAS_v4
    {"v4", has_v4, CPU_OF(v4, backend)},
#endif
#if defined SMALLWORLD_HAS_v3
    {"v3", has_v3, CPU_OF(v3, backend)},
#endif
    {"portable", anywhere, CPU_OF(portable, backend)},
};

enum { LEVELS = sizeof levels / sizeof *levels };

/* The first level that runs here, or the one that SMALLWORLD_CPU names. */
static const level *choose(void) {
    const char *wanted = getenv("SMALLWORLD_CPU");
    const level *best = NULL;
    for (int i = 0; i < LEVELS; i++) {
        if (!levels[i].runs_here()) continue;
        if (wanted && strcmp(levels[i].name, wanted) == 0) return &levels[i];
        if (!best) best = &levels[i];
    }
    if (wanted) {
        log_warning("SMALLWORLD_CPU: expected a level that this processor has, %s%s, got '%s'; "
                    "taking %s",
                    best->name, LEVELS > 1 ? " or a lower one" : "", wanted, best->name);
    }
    return best;
}

backend *backend_cpu(precision precision, int threads) {
    return choose()->create(precision, threads);
}
