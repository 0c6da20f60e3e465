#include "probe/split.h"

#include "core/memory.h"
#include "core/philox.h"

#include <stdlib.h>
#include <string.h>

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
