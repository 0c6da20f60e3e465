/* Configuration: a table of keys that parses YAML files and `key.path=value` settings into a
 * struct, refuses everything else by file, line and key, writes the resolved file, and prints its
 * own help. The table is the only place that knows a key's name, type, default, range and
 * meaning. */
#ifndef SMALLWORLD_CORE_CONFIG_H
#define SMALLWORLD_CORE_CONFIG_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

typedef enum config_type {
    CONFIG_INTEGER, /* int64_t */
    CONFIG_NUMBER,  /* double */
    CONFIG_BOOLEAN, /* bool */
    CONFIG_STRING,  /* char *, owned; never NULL */
    CONFIG_CHOICE,  /* int: index into `choices` */
    CONFIG_LIST     /* config_list of strings; a single string is a list of one */
} config_type;

typedef struct config_list {
    char **items;
    int count;
} config_list;

enum {
    CONFIG_ABOVE_MINIMUM = 1, /* the minimum itself is refused */
    CONFIG_BELOW_MAXIMUM = 2, /* the maximum itself is refused */
    CONFIG_RESUMABLE = 4,     /* may change when a run is resumed */
    CONFIG_IN_MODEL = 8,      /* part of the model: kept in checkpoints */
    CONFIG_LATER = 16,        /* some checkpoints were written before there was this key */
    CONFIG_STRUCTURE = 32     /* part of what weights belong to: the cell and its patterns */
};

typedef struct config_key {
    const char *path; /* "train.lr" */
    config_type type;
    size_t offset;        /* of the value in the target struct */
    const char *fallback; /* the default, as text; NULL: null, stored as 0, "" or an empty list */
    double minimum, maximum;
    const char *choices; /* "lstm mlstm deep" */
    const char *help;    /* what the value means, its unit included */
    unsigned flags;
} config_key;

typedef struct config {
    const config_key *keys;
    int count;
    void *target;
    char **source; /* [count]: "FILE:LINE" or "--set", where a key was set; NULL: by default */
} config;

/* Sets every value to its default. */
void config_begin(config *c, const config_key *keys, int count, void *target);
void config_end(config *c); /* also frees the strings and lists in the target */

bool config_load(config *c, const char *file, error *err);

/* `assignment` is "key.path=value", the value in YAML: `data.train=[a.txt, b.txt]`. */
bool config_assign(config *c, const char *assignment, error *err);

/* The same of a string, which need not be YAML; NULL assigns nothing. */
bool config_assign_string(config *c, const char *path, const char *value, error *err);

/* Sets one value from YAML text. `source` is as in config.source. */
bool config_set(config *c, const char *path, const char *text, const char *source, error *err);

bool config_is_set(const config *c, const char *path);

/* Whether an assignment set it, which counts more than a file. */
bool config_is_assigned(const config *c, const char *path);

/* Sets the key back to its default. */
void config_unset(config *c, const char *path);

/* Fails with "SOURCE: PATH: MESSAGE". Use it for conditions that the range of one key cannot
 * express. */
bool config_refuse(const config *c, error *err, const char *path, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

/* Writes items as a list of quoted texts in YAML. */
void config_write_list(char *const *items, int count, FILE *out);

/* Returns the items of a list joined by ", ", which the caller frees. */
char *config_join(const config_list *list);

/* Returns the value as YAML text, which the caller frees. */
char *config_text(const config *c, const config_key *key);

/* Copies word number `index` of `choices`, which are separated by spaces, to `name`. Returns
 * `name`, or NULL past the last word. */
const char *config_choice(const char *choices, int index, char *name, size_t size);

void config_write(const config *c, FILE *out);
/* Prints each key as "KEY (TYPE, DEFAULT): HELP [RANGE]", by sections, in lines of at most 98
 * columns. */
void config_help(const config_key *keys, int count, FILE *out);

/* Returns the name nearest to `wrong` in edit distance, or NULL if more than half of the letters
 * differ and neither name begins with the other. */
const char *nearest_name(const char *wrong, const char *const *names, int count);

#endif
