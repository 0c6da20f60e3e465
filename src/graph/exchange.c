#include "graph/exchange.h"

#include "core/memory.h"

#include <stdlib.h>

/* Selection sampling (Knuth, The Art of Computer Programming 2, 3.4.2, algorithm S) over the blocks
 * that are absent, in their order. */
int graph_draw_absent(const graph *g, int count, philox_stream *random, int32_t (*absent)[2]) {
    int64_t left = (int64_t)g->nodes * g->nodes - graph_blocks(g);
    int drawn = 0;
    if (count > left) count = (int)left;
    for (int i = 0; i < g->nodes && drawn < count; i++) {
        int k = g->start[i];
        for (int j = 0; j < g->nodes && drawn < count; j++) {
            if (k < g->start[i + 1] && g->column[k] == j) {
                k++;
                continue;
            }
            if (philox_below(random, (uint64_t)left--) >= (uint64_t)(count - drawn)) continue;
            absent[drawn][0] = i;
            absent[drawn++][1] = j;
        }
    }
    return drawn;
}

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

graph *graph_of_absent(int nodes, const int32_t (*absent)[2], int count) {
    graph *made = mem_alloc(1, sizeof *made);
    made->nodes = nodes;
    made->start = mem_alloc((size_t)nodes + 1, sizeof *made->start);
    made->column = mem_alloc((size_t)count + 1, sizeof *made->column);
    for (int k = 0; k < count; k++) {
        made->start[absent[k][0] + 1]++;
        made->column[k] = absent[k][1];
    }
    for (int i = 0; i < nodes; i++) made->start[i + 1] += made->start[i];
    return made;
}

void graph_keep_strongest(int32_t (*absent)[2], const double *norms, int count, int keep,
                          philox_stream *random) {
    ranked_block *ranked = mem_alloc((size_t)count + 1, sizeof *ranked);
    uint8_t *weak = mem_alloc((size_t)count + 1, 1);
    for (int k = 0; k < count; k++) ranked[k] = (ranked_block){norms[k], philox_next(random), k};
    qsort(ranked, (size_t)count, sizeof *ranked, by_norm);
    for (int k = 0; k < count - keep; k++) weak[ranked[k].block] = 1;
    int kept = 0;
    for (int k = 0; k < count; k++) {
        if (weak[k]) continue;
        absent[kept][0] = absent[k][0];
        absent[kept++][1] = absent[k][1];
    }
    free(ranked);
    free(weak);
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

graph *graph_exchange(const graph *g, const double *norms, int drop, const int32_t (*grown)[2],
                      int grow, philox_stream *random) {
    uint8_t *dropped = mark_weakest(g, norms, drop, random);
    graph *made = mem_alloc(1, sizeof *made);
    made->nodes = g->nodes;
    made->start = mem_alloc((size_t)g->nodes + 1, sizeof *made->start);
    size_t count = (size_t)graph_blocks(g) - (size_t)drop + (size_t)grow;
    made->column = mem_alloc(count, sizeof *made->column);
    int blocks = 0, next = 0;
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            for (; next < grow && grown[next][0] == i && grown[next][1] < g->column[k]; next++) {
                made->column[blocks++] = grown[next][1];
            }
            if (!dropped[k]) made->column[blocks++] = g->column[k];
        }
        for (; next < grow && grown[next][0] == i; next++) {
            made->column[blocks++] = grown[next][1];
        }
        made->start[i + 1] = blocks;
    }
    free(dropped);
    return made;
}
