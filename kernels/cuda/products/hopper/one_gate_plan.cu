/* The parts of one_gate: which nodes a thread block makes together, the union of their sources, and
 * whether parts are whole, small, or shared by two thread blocks. */
#include "products/hopper/one_gate.cuh"
#include "products/node_lists.h"

#include <string.h>

typedef struct one_gate_part {
    int first, count;                                /* sources */
    int start[ONE_GATE_NODES], stop[ONE_GATE_NODES]; /* where the nodes' lists begin and end */
    uint16_t nodes, node[ONE_GATE_NODES];
    uint8_t given, takes; /* see packed_part */
    bool gives;
} one_gate_part;

/* Measured relative times of a part, a source, a block, and of giving partial sums. */
enum { PART_COST = 40, SOURCE_COST = 3, BLOCK_COST = 1, GIVING_COST = 30 };

enum { MOST_PIECES = 8 /* of a hub's list */ };

/* The largest distance of a one_gate_source's node from the previous one. */
static int longest_way(int slots) {
    return 0xFFFF >> slots;
}

/* Merges the lists of a part's nodes by source, in ascending order, starting at `at`, until their
 * cost reaches `most_cost`. `at` is then the place where it stopped. Returns the number of sources.
 */
static int merge_lists(const node_lists *l, const one_gate_part *part, int *at, int slots,
                       int most_cost, one_gate_source *sources) {
    const int most = longest_way(slots);
    int count = 0, last = 0, cost = 0, next;
    uint32_t mask;
    while (cost < most_cost &&
           (next = next_source(l->other, part->nodes, at, part->stop, &mask)) >= 0) {
        step_past(mask, part->nodes, at);
        cost += SOURCE_COST + BLOCK_COST * __builtin_popcount(mask);
        for (; next - last > most; last += most)
            sources[count++] = (one_gate_source)(most << slots);
        sources[count++] = (one_gate_source)((next - last) << slots | (int)mask);
        last = next;
    }
    return count;
}

typedef struct costed_part {
    part_rank rank; /* first, for sort_by_cost */
    one_gate_part part;
} costed_part;

static costed_part *add_part(costed_part *parts, int *made, int cost) {
    costed_part *added = &parts[*made];
    memset(added, 0, sizeof *added);
    added->rank.cost = cost;
    added->rank.number = (*made)++;
    return added;
}

static void add_node(one_gate_part *part, int node, int start, int stop) {
    part->node[part->nodes] = (uint16_t)node;
    part->start[part->nodes] = start;
    part->stop[part->nodes++] = stop;
}

/* The number of parts for a list of `sources` sources, if none may cost more than `most`. */
static int pieces_of(int sources, int most) {
    const int cost = sources * (BLOCK_COST + SOURCE_COST), room = most - PART_COST - GIVING_COST;
    if (PART_COST + cost <= most || room <= 0) return 1;
    return min((cost + room - 1) / room, (int)MOST_PIECES);
}

/* Cuts a hub's list into parts. `given`: the number of giving parts so far. */
static void cut_hub(const node_lists *l, int node, int pieces, costed_part *parts, int *made,
                    int *given) {
    const int first = l->begin[node], sources = l->end[node] - first;
    const int longest = (sources + pieces - 1) / pieces;
    const int cost = PART_COST + GIVING_COST + longest * (BLOCK_COST + SOURCE_COST);
    for (int i = 0; i < pieces; i++) {
        one_gate_part *part = &add_part(parts, made, cost)->part;
        add_node(part, node, first + sources * i / pieces, first + sources * (i + 1) / pieces);
        part->gives = i < pieces - 1;
        part->given = (uint8_t)(*given + (part->gives ? i : 0));
        part->takes = (uint8_t)(part->gives ? 0 : i);
    }
    *given += pieces - 1;
}

/* A way to cut the nodes into parts, and a measure of its time. */
typedef struct one_gate_cut {
    int slots, shares, boxes; /* see one_gate_parts */
    const int *order;         /* of the nodes */
    int most;                 /* cost of a part of several nodes, and of hubs' parts */
    bool hubs;                /* whether their lists are cut */
    int time;
} one_gate_cut;

/* Returns the number of parts. The most expensive come first; those of a hub keep their order. */
static int cut_nodes(const node_lists *l, const one_gate_cut *plan, costed_part *parts) {
    int *seen = host_array<int>(l->sources), made = 0, given = 0;
    costed_part *latest = NULL;
    for (int i = 0; i < l->nodes; i++) {
        const int node = plan->order[i], first = l->begin[node], last = l->end[node];
        const int pieces = plan->hubs ? pieces_of(last - first, plan->most) : 1;
        if (pieces > 1 && given + pieces - 1 <= MOST_GIVEN) {
            cut_hub(l, node, pieces, parts, &made, &given);
            latest = NULL;
            continue;
        }
        int more = (last - first) * BLOCK_COST;
        for (int k = first; k < last; k++) more += seen[l->other[k]] == made ? 0 : SOURCE_COST;
        if (!latest || latest->part.nodes == plan->slots || latest->rank.cost + more > plan->most) {
            latest = add_part(parts, &made, PART_COST);
            more = (last - first) * (BLOCK_COST + SOURCE_COST);
        }
        add_node(&latest->part, node, first, last);
        latest->rank.cost += more;
        for (int k = first; k < last; k++) seen[l->other[k]] = made;
    }
    free(seen);
    sort_by_cost(parts, made, sizeof *parts);
    return made;
}

/* The time of all parts of `columns` column tiles, in the order in which thread blocks take them;
 * see tile_of. */
static int time_of(const costed_part *parts, int count, int columns, int processors) {
    const int tiles = count * columns, grid = min(tiles, processors);
    int *load = host_array<int>((size_t)grid), longest = 0;
    for (int i = 0; i < tiles; i++) {
        int *at = &load[i / grid % 2 ? grid - 1 - i % grid : i % grid];
        *at += (int)parts[i / columns].rank.cost;
        longest = max(longest, *at);
    }
    free(load);
    return longest;
}

/* The lists of nodes, and orders in which `group` successive nodes share many sources; each order
 * is made when it is first needed. */
typedef struct ordered_lists {
    node_lists lists;
    int *order[ONE_GATE_NODES + 1];
} ordered_lists;

static const int *order_of(ordered_lists *l, int group) {
    group = max(1, min(group, ONE_GATE_NODES));
    if (!l->order[group]) {
        l->order[group] = host_array<int>(l->lists.nodes);
        order_in_turns(&l->lists, group, l->order[group]);
        keep_if_fewer(&l->lists, group, l->order[group]);
    }
    return l->order[group];
}

static int longest_list(const node_lists *l) {
    int longest = 0;
    for (int i = 0; i < l->nodes; i++) longest = max(longest, l->end[i] - l->begin[i]);
    return longest;
}

/* Bounds the cost of the plan's parts if that takes less time. Tries bounds from the cost of the
 * most expensive part down, unless more column tiles may come. */
static void bound_parts(const node_lists *l, one_gate_cut *plan, int columns, bool exact,
                        int blocks, costed_part *parts) {
    plan->most = INT32_MAX; /* no list is cut either */
    plan->time = time_of(parts, cut_nodes(l, plan, parts), columns, blocks);
    const int most = (int)parts[0].rank.cost;
    one_gate_cut tried = *plan;
    for (int bound = most; exact && bound > most / 8; bound -= bound / 32 + 1) {
        tried.most = bound;
        tried.time = time_of(parts, cut_nodes(l, &tried, parts), columns, blocks);
        if (tried.time < plan->time) *plan = tried;
    }
}

/* Plans parts of as many nodes as keep all thread blocks busy, or fewer. Hubs' lists are cut only
 * if that saves much, since partial sums cost more than is counted here. */
static one_gate_cut plan_parts(ordered_lists *l, int slots, int boxes, int columns, bool exact,
                               int blocks, costed_part *parts) {
    const int even = (l->lists.nodes * columns + blocks - 1) / blocks;
    one_gate_cut plan = {slots, 1, boxes, order_of(l, min(slots, even)), INT32_MAX, false, 0};
    bound_parts(&l->lists, &plan, columns, exact, blocks, parts);
    const int longest = longest_list(&l->lists) * (BLOCK_COST + SOURCE_COST);
    if (!exact || longest < plan.time / 2) return plan;
    one_gate_cut cut = plan;
    cut.hubs = true;
    bound_parts(&l->lists, &cut, columns, exact, blocks, parts);
    return cut.time < 0.85 * plan.time ? cut : plan;
}

/* Blocks of 32 may be split (split-K): where lists are long, whole parts, each for two thread
 * blocks, if all of these are resident at once, since two that exchange sums must run together;
 * where lists are short, small parts, unless these gather too much more, or with 512 columns only
 * for hubs' sake. Blocks of 128 whose tiles would fill the multiprocessors once, and then in part,
 * come in tiles of half as many columns: 512 columns at densities .5, .1 and .05 took 153, 35 and
 * 22.6 us in whole ones, and take 124, 32 and 19.5. The bounds are as measured on an H200 with
 * 12,288 units at densities from 0.5 to 0.01, random, Watts-Strogatz and Barabasi-Albert. */
static one_gate_cut choose_plan(ordered_lists *l, int b, int columns, bool few, int processors,
                                costed_part *parts) {
    const node_lists *lists = &l->lists;
    const int slots = one_gate_slots(b), boxes = few ? 1 : 2;
    const int long_list = few ? 32 : 64, short_list = few ? 24 : 8, shortest_list = few ? 16 : 8;
    const int whole = (lists->nodes + slots - 1) / slots;
    int blocks = 0;
    for (int i = 0; i < lists->nodes; i++) blocks += lists->end[i] - lists->begin[i];
    const int mean = blocks / lists->nodes;
    /* Otherwise the cut also serves more column tiles. */
    const bool exact = columns < ONE_GATE_CUTS - 1;
    if (b == 32 && mean >= long_list && exact && 2 * whole * columns <= processors) {
        return {slots, 2, boxes, order_of(l, slots), INT32_MAX, false, 0};
    }
    if (b == 128 && columns == 2 && lists->nodes * columns > processors &&
        lists->nodes * columns < 2 * processors) {
        return plan_parts(l, slots, 1, 2 * columns, exact, processors, parts);
    }
    const one_gate_cut plan = plan_parts(l, slots, boxes, columns, exact, processors, parts);
    if (b != 32 || !exact || mean >= short_list || whole > processors) return plan;
    if (columns > 1 && !plan.hubs) return plan;
    const one_gate_cut small =
        plan_parts(l, slots / 2, 1, boxes * columns, exact, 2 * processors, parts);
    return mean < shortest_list || small.time < 0.77 * plan.time ? small : plan;
}

template <int SLOTS>
static void *pack_parts(backend *be, device_layout *device, const one_gate_part *part, int count) {
    packed_part<SLOTS> *packed = host_array<packed_part<SLOTS>>((size_t)count);
    for (int i = 0; i < count; i++) {
        packed[i].first = part[i].first;
        packed[i].count = (uint16_t)part[i].count;
        for (int m = 0; m < SLOTS; m++) {
            packed[i].start[m] = part[i].start[m];
            packed[i].node[m] = m < part[i].nodes ? part[i].node[m] : (uint16_t)NO_NODE;
        }
        packed[i].given = part[i].given;
        packed[i].takes = part[i].takes;
        packed[i].gives = part[i].gives;
    }
    void *table = layout_table(be, device, packed, (size_t)count);
    free(packed);
    return table;
}

/* Makes the parts for products of `columns` column tiles. `few`: the products have half a tile. */
static void build_cut(backend *be, device_layout *device, one_gate_parts *made, ordered_lists *l,
                      int b, int columns, bool few) {
    const node_lists *lists = &l->lists;
    costed_part *cut = host_array<costed_part>((size_t)lists->nodes + MOST_GIVEN);
    const one_gate_cut plan = choose_plan(l, b, columns, few, cuda_of(be)->processors, cut);
    const int count = cut_nodes(lists, &plan, cut);
    if (columns == ONE_GATE_CUTS - 1 && made[-1].count == count && made[-1].shares == plan.shares &&
        made[-1].boxes == plan.boxes && !made[-1].hubs) {
        *made = made[-1]; /* whole parts, too */
        free(cut);
        return;
    }
    const size_t most_sources =
        (size_t)lists->end[lists->nodes - 1] + 1 +
        (size_t)(count * plan.shares) * (size_t)(lists->sources / longest_way(plan.slots));
    one_gate_part *part = host_array<one_gate_part>((size_t)(count * plan.shares));
    one_gate_source *source = host_array<one_gate_source>(most_sources);
    int used = 0;
    for (int i = 0; i < count * plan.shares; i++) {
        const costed_part *of = &cut[i / plan.shares];
        const bool last = i % plan.shares == plan.shares - 1;
        int at[ONE_GATE_NODES];
        memcpy(at, i % plan.shares ? part[i].start : of->part.start, sizeof at);
        part[i] = of->part;
        memcpy(part[i].start, at, sizeof at);
        part[i].first = used;
        part[i].count = merge_lists(
            lists, &part[i], at, plan.slots,
            last ? INT32_MAX : ((int)of->rank.cost - PART_COST) / plan.shares, source + used);
        if (!last) memcpy(part[i + 1].start, at, sizeof at);
        used += part[i].count;
    }
    made->count = count;
    made->slots = plan.slots;
    made->shares = plan.shares;
    made->boxes = plan.boxes;
    made->hubs = plan.hubs;
    const int parts = count * plan.shares;
    made->part = plan.slots == 6   ? pack_parts<6>(be, device, part, parts)
                 : plan.slots == 3 ? pack_parts<3>(be, device, part, parts)
                                   : pack_parts<1>(be, device, part, parts);
    made->source = layout_table(be, device, source, (size_t)used + 1);
    free(cut);
    free(part);
    free(source);
}

static void build_parts(backend *be, device_layout *device, one_gate_parts *parts,
                        const node_lists *lists, int b) {
    ordered_lists l = {*lists};
    bool hubs = false;
    for (int i = 0; i < ONE_GATE_CUTS; i++) {
        build_cut(be, device, &parts[i], &l, b, max(i, 1), i == 0);
        hubs |= parts[i].hubs;
    }
    for (int i = 0; i <= ONE_GATE_NODES; i++) free(l.order[i]);
    if (!hubs) return;
    const partial_sums partial = partial_sums_create(
        be, device, "one_gate", MOST_GIVEN * (MOST_CUT_COLUMNS / BOX), (size_t)b * BOX);
    for (int i = 0; i < ONE_GATE_CUTS; i++) parts[i].partial = partial;
}

void *one_gate_plan(backend *be, device_layout *device, const layout *l) {
    one_gate_tables *tables = layout_plan<one_gate_tables>(device);
    const node_lists rows = row_lists(l), columns = column_lists(l);
    build_parts(be, device, tables->forward, &rows, l->in_block);
    if (layout_is_symmetric(l)) {
        memcpy(tables->backward, tables->forward, sizeof tables->backward);
    } else {
        build_parts(be, device, tables->backward, &columns, l->in_block);
    }
    return tables;
}
