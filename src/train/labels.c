#include "train/labels.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* The labels of a corpus, in order. */
typedef struct label_list {
    int32_t *label;
    size_t count, capacity;
} label_list;

static int by_number(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return (i > j) - (i < j);
}

/* Whether a document's class is asked for. */
static bool has_label(const document *d) {
    return !d->raw && d->label != LABEL_NONE;
}

static void add_labels(label_list *l, const corpus *c) {
    for (size_t i = 0; c && i < c->count; i++) {
        const document *d = &c->documents[i];
        if (!has_label(d)) continue;
        if (l->count && bsearch(&d->label, l->label, l->count, sizeof *l->label, by_number)) {
            continue;
        }
        l->label = mem_grow(l->label, &l->capacity, l->count + 1, sizeof *l->label);
        l->label[l->count++] = d->label;
        qsort(l->label, l->count, sizeof *l->label, by_number);
        if (l->count > MOST_CLASSES) return;
    }
}

/* The label as text; `room` has 16 bytes. */
static const char *text_of(const corpus *c, int32_t label, char *room) {
    if (c->names) return c->names[label];
    snprintf(room, 16, "%d", label);
    return room;
}

/* Names are in their alphabetical order in a corpus, so both kinds are by number. */
static void name_classes(options *o, const corpus *c, const label_list *l) {
    char room[16];
    for (size_t k = 0; k < l->count; k++) {
        o->classes.name[k] = mem_string(text_of(c, l->label[k], room));
    }
    o->classes.count = (int)l->count;
    o->model.classes = o->classes.count;
}

static int class_named(const options *o, const char *name) {
    int k = 0;
    while (k < o->classes.count && strcmp(o->classes.name[k], name) != 0) k++;
    return k < o->classes.count ? k : -1;
}

/* Gives each document its class. Of the same label as the one before it is the same. */
static bool number_documents(const options *o, corpus *c, error *err) {
    int32_t latest = LABEL_NONE;
    int16_t class = -1;
    char room[16];
    free(c->classes);
    c->classes = mem_alloc(c->count, sizeof *c->classes);
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        c->classes[i] = -1;
        if (!has_label(d)) continue;
        if (d->label != latest) class = (int16_t)class_named(o, text_of(c, d->label, room));
        if (class < 0) {
            return error_set(err, "data.valid: no document of data.train has its label '%s'",
                             text_of(c, d->label, room));
        }
        latest = d->label;
        c->classes[i] = class;
    }
    return true;
}

bool labels_find(options *o, corpus *train, corpus *valid, bool is_share, error *err) {
    label_list l = {0};
    add_labels(&l, train);
    if (is_share) add_labels(&l, valid);
    const bool fits = l.count >= 2 && l.count <= MOST_CLASSES;
    if (fits) name_classes(o, train, &l);
    free(l.label);
    if (!fits) {
        return error_set(err,
                         "data.train: expected documents with 2 to %d different labels for "
                         "train.label_weight, found %s%zu",
                         MOST_CLASSES, l.count > MOST_CLASSES ? "at least " : "", l.count);
    }
    return number_documents(o, train, err) && (!valid || number_documents(o, valid, err));
}

int64_t labels_hash(const options *o, const corpus *c) {
    uint64_t hash = hash_start;
    for (int k = 0; k < o->classes.count; k++) {
        const char *name = o->classes.name[k];
        hash = hash_bytes(hash, (const uint8_t *)name, strlen(name) + 1);
    }
    for (size_t i = 0; c->classes && i < c->count; i++) {
        const uint64_t class = (uint64_t)(c->classes[i] + 1);
        hash = hash_words(hash, &class, 1);
    }
    return (int64_t)(hash_end(hash) >> 1);
}
