/* Cuts the output nodes' lists into parts of equal work, for the products that make a part's results
 * in one thread block. A part has few nodes, of which the first may begin in an earlier part and the
 * last continue in the next, so that a hub's list is shared out too. */
#include "hopper_tiles.cuh"

/* Merges entries [begin, end), which are those of nodes [node, node + nodes), by source in
 * ascending order; returns how many sources there are. */
static int merge_sources(const layout *l, int node, int nodes, int begin, int end,
                         hopper_source *sources) {
    int at[PART_NODES], stop[PART_NODES], count = 0;
    for (int m = 0; m < nodes; m++) {
        at[m] = l->column_start[node + m] > begin ? l->column_start[node + m] : begin;
        stop[m] = l->column_start[node + m + 1] < end ? l->column_start[node + m + 1] : end;
    }
    for (;; count++) {
        hopper_source next = {};
        next.node = -1;
        for (int m = 0; m < nodes; m++) {
            bool left = at[m] < stop[m];
            if (left && (next.node < 0 || l->column_row[at[m]] < next.node))
                next.node = l->column_row[at[m]];
        }
        if (next.node < 0) return count;
        for (int m = 0; m < nodes; m++) {
            if (at[m] >= stop[m] || l->column_row[at[m]] != next.node) continue;
            next.mask |= 1 << m;
            next.block[m] = l->column_block[at[m]];
            at[m]++;
        }
        sources[count] = next;
    }
}

/* Cuts the lists into about `count` parts of equally many entries and at most `slots` nodes, and
 * returns how many it took; without `parts`, only counts. */
static int cut_parts(const layout *l, int count, int slots, hopper_part *parts,
                     hopper_source *sources) {
    int total = l->column_start[l->in_nodes], made = 0, used = 0, node = 0, node_part = 0;
    for (int begin = 0, end; node < l->in_nodes; begin = end, made++) {
        int target = (int)((long long)total * (made + 1) / count), last = node;
        while (last + 1 < l->in_nodes && last + 1 < node + slots &&
               l->column_start[last + 1] < target)
            last++;
        end = l->column_start[last + 1] < target || target <= begin ? l->column_start[last + 1]
                                                                    : target;
        bool continues = end < l->column_start[last + 1];
        if (parts) {
            hopper_part part = {used, 0, node, last - node + 1, node_part, continues};
            part.count = merge_sources(l, node, part.nodes, begin, end, sources + used);
            used += part.count;
            parts[made] = part;
        }
        if (!continues) {
            node_part = made + 1;
        } else if (last > node || begin == l->column_start[node]) {
            node_part = made;
        }
        node = continues ? last : last + 1;
    }
    return made;
}

/* As many parts as keep every multiprocessor equally busy. */
void parts_create(backend *be, hopper_parts *parts, const layout *l, int slots) {
    int processors = cuda_of(be)->processors, total = l->column_start[l->in_nodes],
        count = processors;
    int made = cut_parts(l, count, slots, NULL, NULL);
    while (count < total && made > count) {
        count += processors;
        made = cut_parts(l, count, slots, NULL, NULL);
    }
    hopper_part *part = (hopper_part *)calloc((size_t)made, sizeof *part);
    hopper_source *source = (hopper_source *)calloc((size_t)total + 1, sizeof *source);
    if (!part || !source) abort();
    parts->count = cut_parts(l, count, slots, part, source);
    parts->span = 1;
    for (int i = 0; i < parts->count; i++) {
        parts->span = max(parts->span, i - part[i].first_part + 1);
    }
    int used = parts->count ? part[parts->count - 1].first + part[parts->count - 1].count : 0;
    parts->part = (hopper_part *)cuda_table(be, part, (size_t)made * sizeof *part);
    parts->source = (hopper_source *)cuda_table(be, source, ((size_t)used + 1) * sizeof *source);
    free(part);
    free(source);
}
