#include "graph/prune.h"

#include "core/memory.h"

#include <stdlib.h>

typedef struct ranked_block {
    double norm;
    uint64_t tie;
    int block;
} ranked_block;

static int by_norm(const void *a, const void *b) {
    const ranked_block *one = a, *two = b;
    if (one->norm != two->norm) return one->norm < two->norm ? -1 : 1;
    return one->tie < two->tie ? -1 : one->tie > two->tie;
}

/* Marks the `count` blocks of smallest norm by 1, never self-blocks: [blocks]. */
static uint8_t *mark_weakest(const graph *g, const double *norms, int count,
                             philox_stream *random) {
    size_t blocks = (size_t)graph_blocks(g);
    ranked_block *others = mem_alloc(blocks, sizeof *others);
    uint8_t *marks = mem_alloc(blocks, 1);
    int found = 0;
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            if (g->column[k] == i) continue;
            others[found++] = (ranked_block){norms[k], philox_next(random), k};
        }
    }
    qsort(others, (size_t)found, sizeof *others, by_norm);
    for (int k = 0; k < count; k++) marks[others[k].block] = 1;
    free(others);
    return marks;
}

graph *graph_prune(const graph *g, const double *norms, int drop, philox_stream *random) {
    uint8_t *dropped = mark_weakest(g, norms, drop, random);
    graph *made = mem_alloc(1, sizeof *made);
    made->nodes = g->nodes;
    made->inputs = g->inputs;
    made->start = mem_alloc((size_t)g->nodes + 1, sizeof *made->start);
    made->column = mem_alloc((size_t)(graph_blocks(g) - drop), sizeof *made->column);
    int blocks = 0;
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            if (!dropped[k]) made->column[blocks++] = g->column[k];
        }
        made->start[i + 1] = blocks;
    }
    free(dropped);
    return made;
}
