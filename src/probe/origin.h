/* PREFIX.json beside features records how they were made; a probe needs this to be used on other
 * documents. Features of other programs have no such file. */
#ifndef SMALLWORLD_PROBE_ORIGIN_H
#define SMALLWORLD_PROBE_ORIGIN_H

#include "core/file.h"
#include "probe/features.h"

typedef struct origin {
    bool known;
    feature_state state;
    pool_list pools;
    char model[16]; /* the checkpoint's checksum */
    char **names;   /* [name_count] of labels, as in corpus.h; NULL where they are integers */
    int name_count;
} origin;

/* PREFIX.json says that PREFIX.npy and PREFIX.labels.npy may be of two runs, until origin_write
 * says how both were made, or origin_remove takes it away. */
bool origin_mark(const char *prefix, error *err);
bool origin_write(const origin *o, const char *prefix, error *err);
bool origin_remove(const char *prefix, error *err);

/* Refuses features with that mark, and no others. */
bool origin_check_complete(const char *prefix, error *err);

/* Without the file, `known` is false. Refuses what is not one of ours, and features with the mark.
 * The caller frees. */
bool origin_read(origin *o, const char *prefix, error *err);
void origin_free(origin *o);

/* Refuses features that are known to be another checkpoint's. */
bool origin_check(const char *prefix, const char *checksum, error *err);

/* The names of choices, as in commands' options. */
const char *origin_state_name(feature_state state);
bool origin_parse_state(const char *name, feature_state *state);

/* Of pools, joined by commas: "last,mean". `text` holds ORIGIN_POOLS_TEXT bytes. */
enum { ORIGIN_POOLS_TEXT = 16 };
const char *origin_pools_text(const pool_list *pools, char *text);
bool origin_parse_pools(const char *text, pool_list *pools);

#endif
