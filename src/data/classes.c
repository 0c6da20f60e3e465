#include "data/classes.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

/* The labels of a corpus, in order. */
typedef struct label_list {
    int32_t label[MOST_CLASSES + 1];
    size_t count;
} label_list;

static int by_number(const void *a, const void *b) {
    const int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    return (i > j) - (i < j);
}

static void add_labels(label_list *l, const corpus *c) {
    for (size_t i = 0; i < c->count && l->count <= MOST_CLASSES; i++) {
        const document *d = &c->documents[i];
        if (!document_has_label(d)) continue;
        if (bsearch(&d->label, l->label, l->count, sizeof *l->label, by_number)) continue;
        l->label[l->count++] = d->label;
        qsort(l->label, l->count, sizeof *l->label, by_number);
    }
}

/* The label as text; `room` has 16 bytes. */
static const char *text_of(const corpus *c, int32_t label, char *room) {
    if (c->names) return c->names[label];
    snprintf(room, 16, "%d", label);
    return room;
}

/* Names are in their alphabetical order in a corpus, so both kinds are by number. */
size_t classes_find(class_names *k, const corpus *c, const corpus *share) {
    label_list l = {.count = 0};
    char room[16];
    *k = (class_names){.count = 0};
    add_labels(&l, c);
    if (share) add_labels(&l, share);
    if (l.count < 2 || l.count > MOST_CLASSES) return l.count;
    for (size_t i = 0; i < l.count; i++) k->name[i] = mem_string(text_of(c, l.label[i], room));
    k->count = (int)l.count;
    return l.count;
}

void classes_free(class_names *k) {
    for (int i = 0; i < k->count; i++) free(k->name[i]);
    k->count = 0;
}

int classes_index(const char *const *name, int count, const char *label) {
    for (int k = 0; k < count; k++) {
        if (strcmp(name[k], label) == 0) return k;
    }
    const size_t digits = label_whole(label);
    int same = -1;
    for (int k = 0; digits > 0 && k < count; k++) {
        const size_t of = label_whole(name[k]);
        if (of == 0) return -1;
        if (of == digits && memcmp(name[k], label, of) == 0) same = k;
    }
    return same;
}

/* Of the same label as the document before, the class is the same. */
const char *classes_number(const class_names *k, const corpus *c, int16_t *class, char *room) {
    const char *const *name = (const char *const *)k->name;
    int32_t latest = LABEL_NONE;
    int at = -1;
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        class[i] = -1;
        if (!document_has_label(d)) continue;
        if (d->label != latest) {
            const char *label = text_of(c, d->label, room);
            at = classes_index(name, k->count, label);
            if (at < 0) return label;
        }
        latest = d->label;
        class[i] = (int16_t)at;
    }
    return NULL;
}

/* A document's place among those of equal labels side by side. */
static int by_label(const void *a, const void *b, void *of) {
    const document *documents = of;
    const int32_t i = documents[*(const size_t *)a].label, j = documents[*(const size_t *)b].label;
    return (i > j) - (i < j);
}

size_t classes_drop_rare(corpus *c, size_t least) {
    if (least < 2) return 0;
    size_t *order = mem_alloc(c->count, sizeof *order), labelled = 0, dropped = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (document_has_label(&c->documents[i])) order[labelled++] = i;
    }
    qsort_r(order, labelled, sizeof *order, by_label, c->documents);
    for (size_t first = 0, end; first < labelled; first = end) {
        const int32_t label = c->documents[order[first]].label;
        for (end = first; end < labelled && c->documents[order[end]].label == label;) end++;
        if (end - first >= least) continue;
        for (size_t i = first; i < end; i++) c->documents[order[i]].label = LABEL_NONE;
        dropped += end - first;
    }
    free(order);
    return dropped;
}

size_t classes_drop_others(const class_names *k, corpus *c) {
    char room[16];
    size_t dropped = 0;
    for (size_t i = 0; i < c->count; i++) {
        document *d = &c->documents[i];
        if (!document_has_label(d)) continue;
        const char *label = text_of(c, d->label, room);
        if (classes_index((const char *const *)k->name, k->count, label) >= 0) continue;
        d->label = LABEL_NONE;
        dropped++;
    }
    return dropped;
}

void classes_balance(const int16_t *class, size_t rows, int classes, double *weight) {
    size_t of[MOST_CLASSES] = {0}, all = 0;
    for (size_t i = 0; i < rows; i++) {
        if (class[i] < 0) continue;
        of[class[i]]++;
        all++;
    }
    for (int k = 0; k < classes; k++) {
        weight[k] = of[k] ? (double)all / ((double)classes * (double)of[k]) : 0;
    }
}
