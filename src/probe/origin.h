/* PREFIX.json beside features records how they were made. A probe needs this to be used on other
 * documents. Features made by other programs have no such file. */
#ifndef SMALLWORLD_PROBE_ORIGIN_H
#define SMALLWORLD_PROBE_ORIGIN_H

#include "core/file.h"
#include "data/corpus.h"
#include "model/model.h"

#define FEATURE_STATES "cell hidden"
typedef enum feature_state { FEATURE_CELL, FEATURE_HIDDEN } feature_state;

/* How the states after a document's bytes become features: by one pooling, or by several different
 * ones whose features are joined. */
enum { POOL_KINDS = 3 };

typedef struct pool_list {
    int count;
    pooling kinds[POOL_KINDS];
} pool_list;

typedef struct origin {
    bool known;
    feature_state state;
    pool_list pools;
    char model[16]; /* the checkpoint's checksum */
    char **names; /* [name_count] the labels' names, as in corpus.h; NULL if labels are integers */
    int name_count;
} origin;

/* origin_mark writes a PREFIX.json that marks PREFIX.npy and PREFIX.labels.npy as incomplete: they
 * may be of two runs. origin_write replaces it by the record of how both were made; origin_remove
 * removes it. */
bool origin_mark(const char *prefix, error *err);
bool origin_write(const origin *o, const char *prefix, error *err);
bool origin_remove(const char *prefix, error *err);

/* Refuses features that have this mark. Accepts all others. */
bool origin_check_complete(const char *prefix, error *err);

/* Reads PREFIX.json; without the file, `known` is false. Refuses other programs' files and marked
 * features. The caller frees the origin. */
bool origin_read(origin *o, const char *prefix, error *err);
void origin_free(origin *o);

/* Refuses features that are known to be another checkpoint's. */
bool origin_check(const char *prefix, const char *checksum, error *err);

/* Converts states and pools to and from the names that commands use. */
const char *origin_state_name(feature_state state);
bool origin_parse_state(const char *name, feature_state *state);

/* Pools are joined by commas: "last,mean". `text` has room for ORIGIN_POOLS_TEXT bytes. */
enum { ORIGIN_POOLS_TEXT = 16 };
const char *origin_pools_text(const pool_list *pools, char *text);
bool origin_parse_pools(const char *text, pool_list *pools);

#endif
