#include "plan/node_lists.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

node_lists row_lists(const layout *l) {
    return (node_lists){l->out_nodes, l->in_nodes, l->row_start, l->row_start + 1, l->row_column};
}

node_lists column_lists(const layout *l) {
    return (node_lists){l->in_nodes, l->out_nodes, l->column_start, l->column_start + 1,
                        l->column_row};
}

/* The number of sources of each `group` successive nodes together, summed over all groups. */
static int count_sources(const node_lists *l, const int *order, int group) {
    int *seen = mem_alloc((size_t)l->sources, sizeof *seen),
        count = 0; /* by source: the latest group + 1 */
    for (int i = 0; i < l->nodes; i++) {
        for (int k = l->begin[order[i]]; k < l->end[order[i]]; k++) {
            int *latest = &seen[l->other[k]];
            count += *latest != i / group + 1;
            *latest = i / group + 1;
        }
    }
    free(seen);
    return count;
}

/* The groups take turns: each takes the node that shares most sources with it, so the last nodes,
 * which share few, are spread over all groups. */
static void order_in_turns(const node_lists *l, int group, int *order) {
    enum { MOST_WINDOW = 1024, MOST_WORK = 1 << 27 }; /* nodes looked at; sources, in all */
    const int nodes = l->nodes, *other = l->other;
    const int window = max(1, min(MOST_WINDOW, MOST_WORK / max(1, l->end[nodes - 1])));
    const int groups = (nodes + group - 1) / group, words = (l->sources + 31) / 32;
    uint32_t *seen = mem_alloc((size_t)groups * (size_t)words, sizeof *seen);
    int *left = mem_alloc((size_t)nodes, sizeof *left), count = nodes;
    for (int i = 0; i < nodes; i++) left[i] = i;
    for (int k = 0; k < group; k++) {
        for (int g = 0; g < groups && g * group + k < nodes; g++) {
            uint32_t *of_group = seen + (size_t)g * (size_t)words;
            int best = 0, best_gain = INT32_MIN;
            for (int m = 0; m < min(count, window); m++) {
                const int first = l->begin[left[m]], last = l->end[left[m]];
                int shared = 0;
                for (int i = first; i < last; i++) {
                    shared += of_group[other[i] / 32] >> other[i] % 32 & 1;
                }
                const int gain = k ? 2 * shared - (last - first) : last - first;
                if (gain <= best_gain) continue;
                best_gain = gain;
                best = m;
            }
            const int node = left[best];
            left[best] = left[--count];
            order[g * group + k] = node;
            for (int i = l->begin[node]; i < l->end[node]; i++) {
                of_group[other[i] / 32] |= 1u << other[i] % 32;
            }
        }
    }
    free(seen);
    free(left);
}

void order_nodes(const node_lists *l, int group, int *order) {
    int *turns = mem_alloc((size_t)l->nodes, sizeof *turns);
    for (int i = 0; i < l->nodes; i++) order[i] = i;
    if (group > 1) {
        order_in_turns(l, group, turns);
        if (count_sources(l, turns, group) < count_sources(l, order, group)) {
            memcpy(order, turns, (size_t)l->nodes * sizeof *order);
        }
    }
    free(turns);
}

row_groups *row_groups_plan(planner *gpu, const layout *l, int width) {
    row_groups *made = gpu->host(gpu, sizeof(row_groups));
    const int most = width / l->in_block;
    int *first = mem_alloc((size_t)l->blocks + 1, sizeof *first),
        *row = mem_alloc((size_t)l->blocks, sizeof *row);
    for (int i = 0; i < l->out_nodes; i++) {
        const int from = l->row_start[i], blocks = l->row_start[i + 1] - from;
        const int parts = (blocks + most - 1) / most;
        for (int part = 0; part < parts; part++)
            first[made->count++] = from + blocks * part / parts;
        for (int k = 0; k < blocks; k++) row[from + k] = i;
    }
    first[made->count] = l->blocks;
    made->first = PLAN_TABLE(gpu, first, (size_t)made->count + 1);
    made->row = PLAN_TABLE(gpu, row, (size_t)l->blocks);
    free(first);
    free(row);
    return made;
}
