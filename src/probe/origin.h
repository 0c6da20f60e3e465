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

/* PREFIX.json says that PREFIX.npy and PREFIX.labels.npy may be of two runs, until origin_write says how
 * both were made, or origin_remove takes it away. */
bool origin_mark(const char *prefix, error *err);
bool origin_write(const origin *o, const char *prefix, error *err);
bool origin_remove(const char *prefix, error *err);

/* Refuses features with that mark, and no others. */
bool origin_check_complete(const char *prefix, error *err);

/* Without the file, `known` is false. Refuses what is not one of ours, and features with the mark. */
bool origin_read(origin *o, const char *prefix, error *err);

/* Refuses features that are known to be another checkpoint's. */
bool origin_check(const char *prefix, const char *checksum, error *err);

/* The names of choices, as in commands' options. */
const char *origin_state_name(feature_state state);
const char *origin_pool_name(pooling pool);
bool origin_parse_state(const char *name, feature_state *state);
bool origin_parse_pool(const char *name, pooling *pool);

#endif
