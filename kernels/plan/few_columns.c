/* The tasks of few_columns: a node's list each, or a share of a long one. */
#include "plan/few_columns.h"
#include "core/memory.h"

#include <stdlib.h>

enum {
    LEAST_DEPTH = 512, /* of k, that is worth a task of its own ... */
    LEAST_SMALL = 2048 /* ... of small blocks, of which there are many */
};

/* Lists with most parts come first, so that each lies within a cluster; then the longest. */
static int by_length(const void *a, const void *b) {
    const few_columns_task *x = a, *y = b;
    if (x->log_parts != y->log_parts) return y->log_parts - x->log_parts;
    if (x->count != y->count) return y->count - x->count;
    return x->row - y->row;
}

/* Makes the tasks of nodes whose results are `tiles` tiles of `units` units each; an entry is
 * `depth` of k. A list above `most` entries is cut into parts, a power of two of them. A cluster
 * has as many tasks as the most parts of a list, and the last cluster is filled up. */
static void build_tasks(planner *gpu, few_columns_tasks *made, const int *start, int nodes,
                        int tiles, int units, int depth) {
    const int lists = nodes * tiles, share = start[nodes] * tiles / (2 * gpu->processors);
    const int most = max(max(share, (units < 32 ? LEAST_SMALL : LEAST_DEPTH) / depth), 1);
    const int most_parts = gpu->clusters ? MOST_PARTS : 1;
    few_columns_task *list = mem_alloc((size_t)lists, sizeof *list);
    few_columns_task *task = mem_alloc((size_t)(lists + 1) * MOST_PARTS, sizeof *task);
    for (int i = 0; i < lists; i++) {
        const int first = start[i / tiles], count = start[i / tiles + 1] - first;
        int parts = 1;
        while (parts < most_parts && count > parts * most) parts *= 2;
        list[i] = (few_columns_task){first, i * units, count, __builtin_ctz((unsigned)parts)};
    }
    qsort(list, (size_t)lists, sizeof *list, by_length);
    const int cluster = 1 << list[0].log_parts;
    int count = 0;
    for (int i = 0; i < lists; i++) {
        const int parts = 1 << list[i].log_parts;
        for (int part = 0; part < parts; part++) {
            const int begin = (int)((long long)list[i].count * part / parts);
            const int end = (int)((long long)list[i].count * (part + 1) / parts);
            task[count] = list[i];
            task[count].first += begin;
            task[count++].count = end - begin;
        }
    }
    made->depth = (int)(((long long)start[nodes] * tiles * depth) / max(count, 1));
    made->cluster = cluster;
    while (count % cluster) task[count++].log_parts = -1;
    made->count = count;
    made->task = PLAN_TABLE(gpu, task, (size_t)count);
    free(list);
    free(task);
}

void *few_columns_plan(planner *gpu, const layout *l) {
    few_columns_tables *made = gpu->host(gpu, sizeof(few_columns_tables));
    const int units = min(l->in_block, MOST_UNITS), parts = l->in_block / units;
    build_tasks(gpu, &made->rows, l->row_start, l->out_nodes, l->gates * parts, units, l->in_block);
    made->columns = made->rows;
    if (l->gates == 1 && layout_is_symmetric(l)) return made;
    build_tasks(gpu, &made->columns, l->column_start, l->in_nodes, parts, units,
                l->gates * l->in_block);
    return made;
}
