#include "data/classes.h"

#include "core/memory.h"
#include "core/philox.h"

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

void classes_drop_others(const class_names *k, corpus *c) {
    char room[16];
    for (size_t i = 0; i < c->count; i++) {
        document *d = &c->documents[i];
        if (!document_has_label(d)) continue;
        const char *label = text_of(c, d->label, room);
        if (classes_index((const char *const *)k->name, k->count, label) < 0) {
            d->label = LABEL_NONE;
        }
    }
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

/* ------------------------------------------------------------------------------------ held out */

enum {
    HELD_OUT = 5,       /* one row in five is held out */
    SHARE_OF_GROUP = 10 /* a group that is held out is at most this part of them */
};

/* A row, and what it is sorted by: its group, or, of a group's first row, the group's size. */
typedef struct member {
    uint64_t key;
    size_t row;
} member;

static int by_key(const void *a, const void *b) {
    const member *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->row > y->row) - (x->row < y->row);
}

/* Finds for each labelled row the first row of its group, and how many rows that one stands for. */
static void find_groups(const int16_t *class, const uint64_t *group, size_t rows, size_t *first,
                        size_t *size) {
    member *all = mem_alloc(rows, sizeof *all);
    size_t count = 0, head = 0;
    for (size_t i = 0; i < rows; i++) {
        if (class[i] >= 0) all[count++] = (member){group[i], i};
    }
    qsort(all, count, sizeof *all, by_key);
    for (size_t i = 0; i < count; i++) {
        if (all[i].key != all[head].key) head = i;
        first[all[i].row] = all[head].row;
        size[all[head].row]++;
    }
    free(all);
}

/* Holds groups of one class out: Fisher-Yates among the smaller ones, stopped once enough rows are
 * drawn. Returns whether there are two groups or more. */
static bool split_class(const int16_t *class, const size_t *first, const size_t *size, size_t rows,
                        uint64_t seed, int number, bool *held) {
    member *heads = mem_alloc(rows, sizeof *heads);
    size_t count = 0, total = 0, few = 0, among = 0, drawn = 0;
    for (size_t i = 0; i < rows; i++) {
        if (class[i] != number || first[i] != i) continue;
        heads[count++] = (member){size[i], i};
        total += size[i];
    }
    qsort(heads, count, sizeof *heads, by_key);
    const size_t fifth = (total + HELD_OUT / 2) / HELD_OUT, wanted = fifth ? fifth : 1;
    const uint64_t most = wanted / SHARE_OF_GROUP;
    while (few < count &&
           (among < wanted || heads[few].key <= most || heads[few].key == heads[few - 1].key)) {
        among += heads[few++].key;
    }
    philox_stream draws = philox_start(seed, PHILOX_SPLIT, 0, (uint32_t)number);
    for (size_t i = 0; drawn < wanted && i < few && i + 1 < count; i++) {
        const size_t j = i + (size_t)philox_below(&draws, few - i);
        const member chosen = heads[j];
        heads[j] = heads[i];
        held[chosen.row] = true;
        drawn += chosen.key;
    }
    free(heads);
    return count >= 2;
}

int split_by_group(const int16_t *class, const uint64_t *group, size_t rows, int classes,
                   uint64_t seed, bool *held) {
    size_t *first = mem_alloc(rows, sizeof *first), *size = mem_alloc(rows, sizeof *size);
    int lacking = -1;
    memset(held, 0, rows * sizeof *held);
    find_groups(class, group, rows, first, size);
    for (int k = 0; k < classes && lacking < 0; k++) {
        if (!split_class(class, first, size, rows, seed, k, held)) lacking = k;
    }
    for (size_t i = 0; i < rows; i++) {
        if (class[i] >= 0) held[i] = held[first[i]];
    }
    free(first);
    free(size);
    return lacking;
}
