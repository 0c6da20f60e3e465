/* PREFIX.json beside features: how they were made, which a probe on them must know to be used on
 * other documents. Features that other programs made have none. */
#ifndef SMALLWORLD_PROBE_ORIGIN_H
#define SMALLWORLD_PROBE_ORIGIN_H

#include "core/file.h"
#include "probe/features.h"

typedef struct origin {
    bool known;
    feature_state state;
    pooling pool;
    char model[16]; /* the checkpoint's checksum */
} origin;

/* Begins PREFIX.json and brings it to the disk; the caller commits or aborts. */
bool origin_begin(const origin *o, const char *prefix, file_writer *writer, error *err);

/* Without the file, `known` is false. Refuses what is not one of ours. */
bool origin_read(origin *o, const char *prefix, error *err);

/* Refuses features that are known to be another checkpoint's. */
bool origin_check(const char *prefix, const char *checksum, error *err);

/* The names of choices, as in commands' options. */
const char *origin_state_name(feature_state state);
const char *origin_pool_name(pooling pool);
bool origin_parse_state(const char *name, feature_state *state);
bool origin_parse_pool(const char *name, pooling *pool);

#endif
