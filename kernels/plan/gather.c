/* The parts of gather: which nodes' results a thread block makes together, and the union of their
 * sources.
 *
 * Parts are cut evenly, have whole nodes with like sources, or share such nodes, see gather.cu. The
 * plan tries each way, for several numbers of tiles of columns, and takes what should be the
 * fastest. */
#include "plan/gather.h"
#include "core/memory.h"
#include "plan/node_lists.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PHASES = 16 }; /* of the order in which all thread blocks go through sources */

/* The lists of sources of all nodes, and the block of weights of each entry. */
typedef struct gather_lists {
    node_lists of;
    const int *block; /* NULL: in order */
    int b, gates, taps;
} gather_lists;

/* A part: it has the sources of entries [begin, end) of its nodes' lists, or its share of them if
 * several parts share the nodes. */
typedef struct cut_part {
    double cost; /* a measure of the time that it takes */
    int number;  /* of parts that were cut before */
    gather_part part;
    int begin, end;
} cut_part;

/* The costliest parts first; those of equal cost in the order in which they were cut. */
static int by_cost(const void *one, const void *two) {
    const cut_part *a = one, *b = two;
    if (a->cost != b->cost) return a->cost < b->cost ? 1 : -1;
    return a->number - b->number;
}

/* A source, which nodes of the part have a block for it, and these blocks. */
typedef struct merged_source {
    int node, mask, block[PART_NODES];
} merged_source;

/* Sorts sources by their number modulo PHASES, then by their number. */
static int by_phase(const void *one, const void *two) {
    const int a = ((const merged_source *)one)->node, b = ((const merged_source *)two)->node;
    return a % PHASES != b % PHASES ? a % PHASES - b % PHASES : a - b;
}

/* One step of a merge. Returns the smallest source at the fronts of `count` lists, other[at[m]],
 * ..., other[stop[m] - 1], or -1 once all lists have ended. Bit m of `mask` says whether it is at
 * the front of list m. */
static int next_source(const int *other, int count, const int *at, const int *stop,
                       uint32_t *mask) {
    int next = -1;
    *mask = 0;
    for (int m = 0; m < count; m++) {
        if (at[m] >= stop[m]) continue;
        const int source = other[at[m]];
        if (next < 0 || source < next) {
            next = source;
            *mask = 0;
        }
        if (source == next) *mask |= 1u << m;
    }
    return next;
}

/* A part's sources from `first` to `end` - 1, in the order of the union of its nodes' lists. */
typedef struct source_range {
    int first, end;
} source_range;

/* Merges a part's lists by source, and returns the part's share. */
static source_range merge_sources(const gather_lists *l, const cut_part *cut,
                                  merged_source *sources) {
    int at[PART_NODES], stop[PART_NODES], count = 0, next;
    uint32_t mask;
    for (int m = 0; m < cut->part.nodes; m++) {
        at[m] = max(l->of.begin[cut->part.node[m]], cut->begin);
        stop[m] = min(l->of.end[cut->part.node[m]], cut->end);
    }
    while ((next = next_source(l->of.other, cut->part.nodes, at, stop, &mask)) >= 0) {
        merged_source *source = &sources[count++];
        source->node = next;
        source->mask = (int)mask;
        for (int m = 0, k = 0; m < cut->part.nodes; m++) {
            if (mask >> m & 1) source->block[k++] = l->block ? l->block[at[m]] : at[m];
        }
        for (int m = 0; m < cut->part.nodes; m++) at[m] += mask >> m & 1;
    }
    qsort(sources, (size_t)count, sizeof *sources, by_phase);
    const int shares = max((int)cut->part.shares, 1);
    return (source_range){count * cut->part.share / shares, count * (cut->part.share + 1) / shares};
}

/* Cuts the lists into about `count` parts of equally many entries and at most `slots` nodes, and
 * returns how many it took; without `parts`, only counts. */
static int cut_evenly(const gather_lists *l, int count, int slots, cut_part *parts) {
    int total = l->of.begin[l->of.nodes], made = 0, node = 0, node_part = 0;
    for (int begin = 0, end; node < l->of.nodes; begin = end, made++) {
        int target = (int)((long long)total * (made + 1) / count), last = node;
        while (last + 1 < l->of.nodes && last + 1 < node + slots &&
               l->of.begin[last + 1] < target) {
            last++;
        }
        end = l->of.begin[last + 1] < target || target <= begin ? l->of.begin[last + 1] : target;
        bool continues = end < l->of.begin[last + 1];
        if (parts) {
            cut_part *cut = &parts[made];
            *cut = (cut_part){.begin = begin, .end = end};
            cut->part.nodes = (unsigned char)(last - node + 1);
            for (int m = 0; node + m <= last; m++) cut->part.node[m] = (uint16_t)(node + m);
            cut->part.first_part = node_part;
            cut->part.continues = continues;
        }
        if (!continues) {
            node_part = made + 1;
        } else if (last > node || begin == l->of.begin[node]) {
            node_part = made;
        }
        node = continues ? last : last + 1;
    }
    return made;
}

/* The number of parts to aim at: a multiple of the multiprocessors. */
static int even_parts(const gather_lists *l, int slots, int processors) {
    int total = l->of.begin[l->of.nodes], count = processors;
    int made = cut_evenly(l, count, slots, NULL);
    while (count < total && made > count) {
        count += processors;
        made = cut_evenly(l, count, slots, NULL);
    }
    return count;
}

/* Cuts whole nodes in this order into parts of `slots` nodes; returns how many parts there are. */
static int cut_whole(const gather_lists *l, const int *order, int slots, cut_part *parts) {
    int made = 0;
    for (int i = 0; i < l->of.nodes; i += slots, made++) {
        cut_part cut = {.end = l->of.begin[l->of.nodes]};
        cut.part.nodes = (unsigned char)min(slots, l->of.nodes - i);
        for (int m = 0; m < cut.part.nodes; m++) cut.part.node[m] = (uint16_t)order[i + m];
        parts[made] = cut;
    }
    return made;
}

/* A way to cut the nodes, and a measure of the time it takes. */
typedef struct gather_cut {
    const int *order; /* NULL: evenly */
    int slots, count; /* nodes of a part; parts */
    double most;      /* the most that a part may cost if nodes are shared; else 0 */
    double time;
} gather_cut;

/* What a part gathers, in elements of a row of x or W. Handing partial sums on takes as long as
 * gathering eight sources of one gate, since the owner waits for them. Sharing nodes costs their
 * sums, once stored and once read, and waiting for the slowest part, as measured. `columns`: of a
 * tile. */
static double cost_of(const gather_lists *l, const cut_part *cut, int columns,
                      merged_source *merged) {
    const double row_bytes = 2.0 * l->b * l->gates, waiting = 100e3 * l->gates; /* in bytes */
    const int handing = 8 / l->gates;
    const source_range mine = merge_sources(l, cut, merged);
    double cost = (double)(mine.end - mine.first + cut->part.continues * handing) * columns;
    for (int k = mine.first; k < mine.end; k++) {
        cost += (double)l->b * __builtin_popcount(merged[k].mask);
    }
    if (cut->part.shares > 1) {
        cost += (8.0 * cut->part.nodes * l->b * columns + waiting) / row_bytes;
    }
    return cost;
}

/* Shares out each of `count` whole parts over as many as make none cost more than `most`; returns
 * how many there are. With `shared` NULL only counts. */
static int share_parts(const cut_part *parts, int count, double most, cut_part *shared) {
    int made = 0;
    for (int i = 0; i < count; i++) {
        const int shares = max(1, min((int)ceil(parts[i].cost / most), MOST_SHARES));
        for (int k = 0; k < shares && shared; k++) {
            cut_part *cut = &shared[made + k];
            *cut = parts[i];
            cut->part.share = (unsigned char)k;
            cut->part.shares = (unsigned char)shares;
        }
        made += shares;
    }
    return made;
}

/* Cuts the nodes and returns how many parts there are; whole parts are sorted by cost. */
static int cut_parts(const gather_lists *l, const gather_cut *plan, int columns, cut_part *parts,
                     merged_source *merged) {
    int made = plan->order ? cut_whole(l, plan->order, plan->slots, parts)
                           : cut_evenly(l, plan->count, plan->slots, parts);
    for (int i = 0; i < made; i++) {
        parts[i].cost = cost_of(l, &parts[i], columns, merged);
        parts[i].number = i;
    }
    if (plan->order) qsort(parts, (size_t)made, sizeof *parts, by_cost);
    if (plan->most > 0) {
        cut_part *groups = mem_alloc((size_t)made, sizeof *groups);
        memcpy(groups, parts, (size_t)made * sizeof *groups);
        made = share_parts(groups, made, plan->most, parts);
        for (int i = 0; i < made; i++) parts[i].cost = cost_of(l, &parts[i], columns, merged);
        free(groups);
    }
    return made;
}

/* The time of all parts of `tiles` tiles of columns. Even parts keep all thread blocks equally
 * busy. With whole parts the time is nearer to the busiest thread block's than to the mean, as
 * those that end early leave more of the L2 to the others. */
static double time_of(const cut_part *parts, int count, int tiles, int processors, bool whole) {
    double *load = mem_alloc((size_t)processors, sizeof *load), sum = 0, most = 0;
    const int works = count * tiles, grid = max(1, min(works, processors));
    for (int i = 0; i < works; i++) {
        const double cost = parts[i % count].cost;
        double *of = &load[i / grid % 2 ? grid - 1 - i % grid : i % grid];
        *of += cost;
        sum += cost;
        most = fmax(most, *of);
    }
    free(load);
    return whole ? (sum / processors + 3 * most) / 4 : sum / processors;
}

/* The most successive parts in which one node's list lies, if parts are cut evenly. */
static int longest_span(const cut_part *parts, int count) {
    int longest = 1;
    for (int i = 0; i < count; i++) longest = max(longest, i - parts[i].part.first_part + 1);
    return longest;
}

/* Chooses even parts, or the number of whole nodes to a part, by the least time. There must be
 * enough slots for the partial sums of one node's parts; otherwise a part would wait for a later
 * one. */
static gather_cut choose_plan(const gather_lists *l, int cut, int *const *orders, int processors,
                              cut_part *parts, merged_source *merged) {
    const int boxes = boxes_of_cut(l->b, l->gates, cut);
    const int columns = 2 * boxes * BOX; /* of a tile */
    const int slots = l->taps ? nodes_of_taps(l->b) : nodes_of_part(l->b, l->gates, boxes);
    const int tiles = (l->taps ? TAPS_COLUMNS : columns_of_cut[cut]) / columns;
    gather_cut best = {.slots = slots, .count = even_parts(l, slots, processors)};
    int made = cut_parts(l, &best, columns, parts, merged);
    best.time = time_of(parts, made, tiles, processors, false);
    if (longest_span(parts, made) > PARTIAL_FLOATS / (l->b * columns)) best.time = INFINITY;
    for (int nodes = 1; nodes <= slots; nodes++) {
        gather_cut plan = {.order = orders[nodes], .slots = nodes};
        made = cut_parts(l, &plan, columns, parts, merged);
        plan.time = time_of(parts, made, tiles, processors, true);
        if (plan.time < best.time) best = plan;
        /* All parts that share nodes run at once, each with a slot for all its sums. */
        const int most = min(processors, PARTIAL_FLOATS / (slots * l->b * columns)) / tiles;
        if (boxes > 1 || made >= most) continue;
        for (int i = 0; i < made; i++) plan.most += parts[i].cost / most;
        while (share_parts(parts, made, plan.most, NULL) > most) plan.most *= 1.01;
        made = cut_parts(l, &plan, columns, parts, merged);
        plan.time = time_of(parts, made, tiles, processors, true);
        if (plan.time < 0.96 * best.time) best = plan; /* less is no gain */
    }
    return best;
}

/* Makes the tables of the parts and their lists. */
static void build_lists(planner *gpu, gather_parts *made, const gather_lists *l,
                        const gather_cut *plan, const cut_part *cut, merged_source *merged) {
    const bool whole = plan->order != NULL;
    const size_t total = (size_t)l->of.begin[l->of.nodes];
    gather_part *part = mem_alloc((size_t)made->count, sizeof *part);
    uint32_t *source = mem_alloc(total + 1, sizeof *source);
    int *block = mem_alloc(total + LOOK_UP, sizeof *block), used = 0, blocks = 0;
    made->whole = whole;
    made->shared = plan->most > 0;
    made->span = whole ? 1 : longest_span(cut, made->count);
    for (int i = 0; i < made->count; i++) {
        const source_range mine = merge_sources(l, &cut[i], merged);
        part[i] = cut[i].part;
        part[i].first = used;
        part[i].block = blocks;
        part[i].count = (uint16_t)(mine.end - mine.first);
        if (whole) part[i].first_part = i;
        for (int k = mine.first; k < mine.end; k++) {
            source[used++] = (uint32_t)(merged[k].node << PART_NODES | merged[k].mask);
            for (int m = 0; m < __builtin_popcount(merged[k].mask); m++) {
                block[blocks++] = merged[k].block[m];
            }
        }
    }
    made->part = PLAN_TABLE(gpu, part, (size_t)made->count);
    made->source = PLAN_TABLE(gpu, source, (size_t)used + 1);
    made->block = PLAN_TABLE(gpu, block, (size_t)blocks + LOOK_UP);
    free(part);
    free(source);
    free(block);
}

/* Orders in which as many successive nodes as a part may have share many sources. */
static void make_orders(const node_lists *l, int most, int **orders) {
    for (int nodes = 1; nodes <= most; nodes++) {
        orders[nodes] = mem_alloc((size_t)l->nodes, sizeof *orders[nodes]);
        order_nodes(l, nodes, orders[nodes]);
    }
}

static void plan_direction(planner *gpu, gather_direction *tables, const gather_lists *l,
                           int *const *orders) {
    const int processors = gpu->processors;
    int most = max(l->of.nodes, processors);
    for (int slots = 1; slots <= nodes_of_part(l->b, l->gates, 1); slots++) {
        most = max(most, cut_evenly(l, even_parts(l, slots, processors), slots, NULL));
    }
    cut_part *cut = mem_alloc((size_t)most, sizeof *cut);
    merged_source *merged = mem_alloc((size_t)l->of.sources, sizeof *merged);
    gather_cut plan[GATHER_CUTS];
    size_t floats = 0;                               /* of partial sums */
    const int first = l->taps ? GATHER_CUTS - 1 : 0; /* a convolution has many columns */
    for (int i = first; i < GATHER_CUTS; i++) {
        gather_parts *made = &tables->cut[i];
        plan[i] = choose_plan(l, i, orders, processors, cut, merged);
        if (!plan[i].order) floats = PARTIAL_FLOATS;
        if (plan[i].most > 0) { /* at most a part for each multiprocessor */
            const int nodes = nodes_of_part(l->b, l->gates, 1);
            const size_t all = (size_t)(processors * nodes * l->b) * 2 * BOX;
            if (all > floats) floats = all;
        }
        if (i > first && plan[i].order == plan[i - 1].order && plan[i].slots == plan[i - 1].slots &&
            plan[i].most == 0 && plan[i - 1].most == 0) {
            *made = made[-1];
            continue;
        }
        made->count = cut_parts(l, &plan[i], 2 * BOX, cut, merged);
        build_lists(gpu, made, l, &plan[i], cut, merged);
    }
    free(cut);
    free(merged);
    if (floats) { /* slots of any size; the smallest holds a node of 32 units and 128 columns */
        const size_t least = 32 * 2 * BOX;
        tables->partial = gpu->partial(gpu, "gather", floats / least, least);
    }
}

/* An order of nodes as one of their gates, which follow each other. */
static int *spread_order(const int *order, int nodes, int gates) {
    int *made = mem_alloc((size_t)nodes * gates, sizeof *made);
    for (int i = 0; i < nodes * gates; i++) made[i] = order[i / gates] * gates + i % gates;
    return made;
}

/* The lists where gates are nodes, and taps sources, of their own: for each node as many, with the
 * same sources, as there are gates; for each source as many as there are taps. The caller frees
 * what is in `arrays`. */
static gather_lists spread(const gather_lists *l, int gates, int taps, int *arrays[3]) {
    const int nodes = l->of.nodes * gates;
    const size_t total = (size_t)l->of.begin[l->of.nodes] * gates * taps;
    int *start = arrays[0] = mem_alloc((size_t)nodes + 1, sizeof *arrays[0]);
    int *other = arrays[1] = mem_alloc(total, sizeof *arrays[1]);
    int *block = arrays[2] = mem_alloc(total, sizeof *arrays[2]);
    for (int i = 0, made = 0; i < nodes; i++) {
        const int first = l->of.begin[i / gates], end = l->of.end[i / gates];
        for (int k = first * taps; k < end * taps; k++, made++) {
            const int entry = k / taps, tap = k % taps;
            other[made] = l->of.other[entry] * taps + tap;
            block[made] = ((l->block ? l->block[entry] : entry) * taps + tap) * gates + i % gates;
        }
        start[i + 1] = made;
    }
    return (gather_lists){{nodes, l->of.sources * taps, start, start + 1, other},
                          block,
                          l->b,
                          l->gates / gates,
                          l->taps};
}

void *gather_plan(planner *gpu, const layout *l) {
    gather_tables *tables = gpu->host(gpu, sizeof(gather_tables));
    gather_lists columns = {column_lists(l), l->column_block, l->in_block, l->gates, l->taps};
    gather_lists rows = {row_lists(l), NULL, l->in_block, l->gates, l->taps};
    int *arrays[2][3] = {{NULL}};
    if (l->taps) {
        columns = spread(&columns, 1, l->taps, arrays[0]);
        rows = spread(&rows, 1, l->taps, arrays[1]);
    }
    int *orders[PART_NODES + 1] = {NULL}, *own[PART_NODES + 1] = {NULL};
    int *of_gates[PART_NODES + 1] = {NULL};
    const bool alike = layout_is_symmetric(l);
    make_orders(&columns.of, nodes_of_part(l->in_block, l->gates, 1), orders);
    plan_direction(gpu, &tables->backward, &columns, orders);
    const int most = nodes_of_part(l->in_block, 1, 1);
    if (!alike) make_orders(&rows.of, (most + l->gates - 1) / l->gates, own);
    for (int nodes = 1; nodes <= most; nodes++) {
        const int whole = (nodes + l->gates - 1) / l->gates;
        of_gates[nodes] = spread_order((alike ? orders : own)[whole], rows.of.nodes, l->gates);
    }
    if (l->gates > 1) rows = spread(&rows, l->gates, 1, arrays[1]);
    plan_direction(gpu, &tables->forward, &rows, of_gates);
    for (int nodes = 1; nodes <= PART_NODES; nodes++) {
        free(orders[nodes]);
        free(own[nodes]);
        free(of_gates[nodes]);
    }
    for (int i = 0; i < 6; i++) free(arrays[i / 3][i % 3]);
    return tables;
}
