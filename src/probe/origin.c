#include "probe/origin.h"

#include "core/json.h"
#include "core/memory.h"
#include "core/overwrite.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const states[] = {"cell", "hidden"};
static const char *const pool_names[POOL_KINDS] = {"last", "mean", "max"};

static int find(const char *name, const char *const *names, int count) {
    for (int i = 0; i < count; i++) {
        if (strcmp(name, names[i]) == 0) return i;
    }
    return -1;
}

const char *origin_state_name(feature_state state) {
    return states[state];
}

const char *origin_pools_text(const pool_list *pools, char *text) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < pools->count; i++) {
        used += (size_t)snprintf(text + used, ORIGIN_POOLS_TEXT - used, "%s%s", i ? "," : "",
                                 pool_names[pools->kinds[i]]);
    }
    return text;
}

bool origin_parse_state(const char *name, feature_state *state) {
    int found = find(name, states, 2);
    *state = (feature_state)(found < 0 ? 0 : found);
    return found >= 0;
}

bool origin_parse_pools(const char *text, pool_list *pools) {
    pools->count = 0;
    for (const char *at = text;; at++) {
        char name[8];
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", length < 7 ? (int)length : 7, at);
        int found = find(name, pool_names, POOL_KINDS);
        for (int i = 0; i < pools->count; i++) {
            if ((int)pools->kinds[i] == found) return false;
        }
        if (found < 0) return false;
        pools->kinds[pools->count++] = (pooling)found;
        at += length;
        if (*at == '\0') return true;
    }
}

static const char complete[] = "features", incomplete[] = "incomplete features";

static bool write_file(const origin *o, const char *kind, const char *prefix, error *err) {
    char *path = mem_format("%s.json", prefix);
    file_writer writer;
    overwrite_release(path); /* which the same command has marked as incomplete */
    bool written = file_begin(&writer, path, err);
    free(path);
    if (!written) return false;
    char text[ORIGIN_POOLS_TEXT];
    json_writer w = {writer.stream, false};
    json_object_begin(&w, NULL);
    json_string(&w, "kind", kind);
    if (o) {
        json_string(&w, "state", states[o->state]);
        json_string(&w, "pool", origin_pools_text(&o->pools, text));
        json_string(&w, "model", o->model);
        if (o->names) {
            json_array_begin(&w, "names");
            for (int k = 0; k < o->name_count; k++) json_string(&w, NULL, o->names[k]);
            json_array_end(&w);
        }
    }
    json_object_end(&w);
    fputc('\n', writer.stream);
    return file_commit(&writer, err);
}

bool origin_mark(const char *prefix, error *err) {
    return write_file(NULL, incomplete, prefix, err);
}

bool origin_write(const origin *o, const char *prefix, error *err) {
    return write_file(o, complete, prefix, err);
}

bool origin_remove(const char *prefix, error *err) {
    char *path = mem_format("%s.json", prefix);
    bool removed = unlink(path) == 0 || error_system(err, "remove", path);
    free(path);
    return removed;
}

static bool parse_names(origin *o, const cJSON *names) {
    const cJSON *name;
    if (!cJSON_IsArray(names)) return false;
    cJSON_ArrayForEach(name, names) {
        const char *text = cJSON_GetStringValue(name);
        if (!text || strlen(text) > CORPUS_NAME_BYTES) return false;
        o->names = mem_resize(o->names, (size_t)o->name_count + 1, sizeof *o->names);
        o->names[o->name_count++] = mem_string(text);
    }
    return true;
}

/* Without members, features are the last state of the cell. */
static bool parse_members(origin *o, const cJSON *object, bool *marked) {
    const cJSON *member;
    bool known = false;
    o->pools = (pool_list){1, {POOL_LAST}};
    cJSON_ArrayForEach(member, object) {
        const char *key = member->string, *value = cJSON_GetStringValue(member);
        if (strcmp(key, "names") == 0) {
            if (!parse_names(o, member)) return false;
            continue;
        }
        if (!value) return false;
        if (strcmp(key, "kind") == 0) {
            *marked = strcmp(value, incomplete) == 0;
            known = strcmp(value, complete) == 0;
        } else if (strcmp(key, "model") == 0) {
            snprintf(o->model, sizeof o->model, "%.15s", value);
        } else if ((strcmp(key, "state") == 0 && !origin_parse_state(value, &o->state)) ||
                   (strcmp(key, "pool") == 0 && !origin_parse_pools(value, &o->pools))) {
            return false;
        }
    }
    return known;
}

static bool parse(origin *o, const file_map *map, bool *marked) {
    cJSON *object = cJSON_ParseWithLength((const char *)map->bytes, map->size);
    const bool known = cJSON_IsObject(object) && parse_members(o, object, marked);
    cJSON_Delete(object);
    return known;
}

/* Reads PREFIX.json. With `any`, accepts another program's file. */
static bool read_file(origin *o, const char *prefix, bool any, error *err) {
    char *path = mem_format("%s.json", prefix);
    file_map map;
    *o = (origin){0};
    bool read = true;
    if (file_exists(path)) {
        bool marked = false;
        read = file_map_open(&map, path, err);
        if (read) {
            o->known = parse(o, &map, &marked);
            file_map_close(&map);
            read = o->known || (any && !marked);
            if (marked) {
                error_set(err,
                          "%s: says that the features are incomplete: expected those of a "
                          "whole run of smallworld features",
                          path);
            } else if (!read) {
                error_set(err, "%s: expected what smallworld features writes beside features",
                          path);
            }
        }
    }
    free(path);
    if (!read) origin_free(o);
    return read;
}

bool origin_read(origin *o, const char *prefix, error *err) {
    return read_file(o, prefix, false, err);
}

bool origin_check_complete(const char *prefix, error *err) {
    origin o;
    bool whole = read_file(&o, prefix, true, err);
    origin_free(&o);
    return whole;
}

void origin_free(origin *o) {
    for (int k = 0; k < o->name_count; k++) free(o->names[k]);
    free(o->names);
    *o = (origin){0};
}

bool origin_check(const char *prefix, const char *checksum, error *err) {
    origin o;
    if (!origin_read(&o, prefix, err)) return false;
    bool same =
        !o.known || strcmp(o.model, checksum) == 0 ||
        error_set(err, "%s.json: features of another checkpoint (checksum %s; this one's is %s)",
                  prefix, o.model, checksum);
    origin_free(&o);
    return same;
}
