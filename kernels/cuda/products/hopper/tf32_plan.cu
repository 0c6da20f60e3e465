/* The parts of hopper_tf32: nodes of like sources, whose merged lists the thread blocks of a
 * cluster share, or have one of them each where that should be faster. */
#include "products/hopper/float_tiles.cuh"
#include "products/hopper/tf32.cuh"
#include "products/node_lists.h"

#include <string.h>

/* The lists of nodes and sources in pieces of 32, of blocks in side x depth of them, and how many
 * boxes a source's activations take. */
typedef struct pieces {
    node_lists lists;
    const int *block; /* of each entry of the whole lists; NULL: in order */
    int side, depth;  /* pieces of a node, of a source */
    bool forward;
    int boxes;
} pieces;

/* Where an entry of a node's list lies among the weights: its 32 rows, and 32 columns of four. */
static uint32_t place_of(const pieces *l, int node, int entry) {
    const int whole = entry / l->depth, along = entry % l->depth, piece = node % l->side;
    const uint32_t block = (uint32_t)(l->block ? l->block[whole] : whole);
    return l->forward ? (block * l->side + piece) * 4 + along
                      : (block * l->depth + along) * 4 + piece;
}

/* A part. Its cost is boxes, and its beginning and end. */
typedef struct whole_part {
    part_rank rank; /* first, for sort_by_cost */
    int nodes, node[SLOTS], sources;
} whole_part;

static int boxes_of(const pieces *l, uint32_t mask) {
    return l->boxes + __builtin_popcount(mask & ((1 << SLOTS) - 1));
}

/* What parts are made of, as it grows. */
typedef struct part_tables {
    tf32_part *part;
    tf32_source *source;
    uint32_t *block;
    int parts, sources, blocks; /* so far */
    int longest, most;          /* sources of a share, blocks of one */
} part_tables;

/* Merges the lists of a part's nodes by source, in ascending order. */
static void share_lists(const pieces *l, const whole_part *part, part_tables *made) {
    tf32_part *shares = made->part + made->parts * SHARES;
    int at[SLOTS], stop[SLOTS];
    int boxes = 0, share = 0, all = l->boxes * part->sources;
    for (int m = 0; m < part->nodes; m++) {
        at[m] = l->lists.begin[part->node[m]];
        stop[m] = l->lists.end[part->node[m]];
        all += stop[m] - at[m];
    }
    for (;;) {
        uint32_t mask;
        const int next = next_source(l->lists.other, part->nodes, at, stop, &mask);
        for (; share < SHARES && (!mask || boxes * SHARES >= all * share); share++) {
            shares[share].first = made->sources;
            shares[share].block = made->blocks;
            shares[share].nodes = part->nodes;
            for (int m = 0; m < part->nodes; m++) shares[share].node[m] = part->node[m];
        }
        if (!mask) break;
        for (int m = 0; m < part->nodes; m++) {
            if (mask >> m & 1) made->block[made->blocks++] = place_of(l, part->node[m], at[m]);
        }
        step_past(mask, part->nodes, at);
        made->source[made->sources++] = (uint32_t)next << SLOTS | mask;
        boxes += boxes_of(l, mask);
    }
    for (share = 0; share < SHARES; share++) {
        int end = share + 1 < SHARES ? shares[share + 1].first : made->sources;
        const int past = share + 1 < SHARES ? shares[share + 1].block : made->blocks;
        shares[share].count = end - shares[share].first;
        made->longest = max(made->longest, shares[share].count);
        made->most = max(made->most, past - shares[share].block);
    }
    made->parts++;
}

/* Places the first window of a share's list by the share's number, so that it can be looked up at
 * once, and the rest of the list after all windows. Returns the place of the rest. */
template <typename T>
static int place_list(T *placed, const T *list, int count, int share, int window, int *used) {
    const int first = min(count, window), rest = count - first, at = *used;
    memcpy(placed + share * window, list, (size_t)first * sizeof *list);
    memcpy(placed + at, list + first, (size_t)rest * sizeof *list);
    *used += rest;
    return at;
}

/* Places all lists, with room for reads beyond their ends. Windows are no longer than the longest
 * list. */
static void place_lists(part_tables *made) {
    const int shares = made->parts * SHARES;
    made->longest = min(made->longest, (int)WINDOW);
    made->most = min(made->most, (int)BLOCKS);
    int sources = shares * made->longest, blocks = shares * made->most;
    tf32_source *source = host_array<tf32_source>((size_t)(sources + made->sources + 2 * WINDOW));
    uint32_t *block = host_array<uint32_t>((size_t)(blocks + made->blocks + 2 * BLOCKS));
    for (int i = 0; i < shares; i++) {
        tf32_part *share = &made->part[i];
        const int end = i + 1 < shares ? share[1].block : made->blocks;
        share->first = place_list(source, made->source + share->first, share->count, i,
                                  made->longest, &sources) -
                       WINDOW;
        share->block = place_list(block, made->block + share->block, end - share->block, i,
                                  made->most, &blocks) -
                       BLOCKS;
    }
    free(made->source);
    free(made->block);
    made->source = source;
    made->block = block;
    made->sources = sources + 2 * WINDOW;
    made->blocks = blocks + 2 * BLOCKS;
}

/* Cuts the nodes in this order into parts of at most SLOTS, none above cost `most` unless it is one
 * node's; returns how many. The costliest come first. */
static int cut_nodes(const pieces *pieces, const int *order, int most, whole_part *parts) {
    enum { PART_COST = 100 }; /* as measured */
    const node_lists *l = &pieces->lists;
    int *seen = host_array<int>((size_t)l->sources), made = 0;
    whole_part *part = NULL;
    for (int i = 0; i < l->nodes; i++) {
        const int first = l->begin[order[i]], last = l->end[order[i]];
        int fresh = 0;
        for (int k = first; k < last; k++) fresh += seen[l->other[k]] != made;
        int more = pieces->boxes * fresh + last - first;
        if (!made || part->nodes == SLOTS || part->rank.cost + more > most) {
            part = &parts[made];
            memset(part, 0, sizeof *part);
            part->rank.number = made++;
            fresh = last - first;
            more = PART_COST + pieces->boxes * fresh + last - first;
        }
        part->node[part->nodes++] = order[i];
        part->sources += fresh;
        part->rank.cost += more;
        for (int k = first; k < last; k++) seen[l->other[k]] = made;
    }
    free(seen);
    sort_by_cost(parts, made, sizeof *parts);
    return made;
}

/* The time of these parts, about: each goes to the cluster that is free first. */
static int time_of(const whole_part *parts, int count, int clusters) {
    int *busy = host_array<int>((size_t)clusters), longest = 0;
    for (int i = 0; i < count; i++) {
        int next = 0;
        for (int c = 1; c < clusters; c++) next = busy[c] < busy[next] ? c : next;
        busy[next] += (int)parts[i].rank.cost;
        longest = max(longest, busy[next]);
    }
    free(busy);
    return longest;
}

/* Whether portable_tf32, which shares no tile and gives a list to one thread block, would take less
 * time by the same measure, as it may for few columns. An entry of a long list takes it as long as
 * eleven boxes take a cluster. Transposing weights takes half as long as fetching them. */
static bool is_faster_apart(const pieces *l, int entries, int longest, int clusters, int time) {
    if (l->boxes > 2) return false;
    if (!l->forward) time += entries / 2 / clusters;
    return time + time / 6 >= max(entries * (l->boxes + 1) / clusters, longest * 11);
}

/* The bound on parts' cost, or 0 if portable_tf32 is faster. Large parts share most; smaller ones
 * may balance better. Bounds are tried from high to low. */
static int choose_bound(backend *be, const pieces *l, const int *order, whole_part *whole) {
    const int clusters = cuda_of(be)->processors / SHARES;
    int entries = 0, longest = 0;
    for (int i = 0; i < l->lists.nodes; i++) {
        const int list = l->lists.end[i] - l->lists.begin[i];
        entries += list;
        longest = max(longest, list);
    }
    int count = cut_nodes(l, order, INT32_MAX, whole), bound = (int)whole[0].rank.cost;
    int best = time_of(whole, count, clusters);
    for (int most = bound, least = most / 16; most > least; most -= most / 32 + 1) {
        int time = time_of(whole, cut_nodes(l, order, most, whole), clusters);
        if (time >= best) continue;
        best = time;
        bound = most;
    }
    return is_faster_apart(l, entries, longest, clusters, best) ? 0 : bound;
}

static void build_parts(backend *be, device_layout *device, tf32_parts *made, const pieces *l,
                        const int *order, int bound, whole_part *whole) {
    if (!bound) return;
    made->count = cut_nodes(l, order, bound, whole);
    size_t sources = 1, entries = 1, shares = (size_t)made->count * SHARES;
    for (int i = 0; i < made->count; i++) sources += (size_t)whole[i].sources;
    for (int i = 0; i < l->lists.nodes; i++)
        entries += (size_t)(l->lists.end[i] - l->lists.begin[i]);
    part_tables t = {host_array<tf32_part>(shares), host_array<tf32_source>(sources),
                     host_array<uint32_t>(entries)};
    for (int i = 0; i < made->count; i++) share_lists(l, &whole[i], &t);
    place_lists(&t);
    made->window = (short)t.longest;
    made->blocks = (short)t.most;
    made->part = layout_table(be, device, t.part, shares);
    made->source = layout_table(be, device, t.source, (size_t)t.sources);
    made->block = layout_table(be, device, t.block, (size_t)t.blocks);
    free(t.part);
    free(t.source);
    free(t.block);
}

/* Makes the parts of one operation, with nodes in `side` pieces and sources in `depth`. */
static void build_pieces(backend *be, device_layout *device, tf32_parts *made,
                         const node_lists *whole, const int *block, int side, int depth,
                         bool forward) {
    const int nodes = whole->nodes * side, entries = whole->end[whole->nodes - 1] * depth;
    int *begin = host_array<int>((size_t)nodes), *end = host_array<int>((size_t)nodes);
    int *other = host_array<int>((size_t)entries), *order = host_array<int>((size_t)nodes);
    for (int i = 0; i < nodes; i++) {
        begin[i] = whole->begin[i / side] * depth;
        end[i] = whole->end[i / side] * depth;
    }
    for (int k = 0; k < entries; k++) other[k] = whole->other[k / depth] * depth + k % depth;
    pieces l = {{nodes, whole->sources * depth, begin, end, other}, block, side, depth, forward, 4};
    order_nodes(&l.lists, SLOTS, order);
    whole_part *parts = host_array<whole_part>((size_t)nodes);
    build_parts(be, device, &made[1], &l, order, choose_bound(be, &l, order, parts), parts);
    l.boxes = 2;
    build_parts(be, device, &made[0], &l, order, choose_bound(be, &l, order, parts), parts);
    free(parts);
    free(begin);
    free(end);
    free(other);
    free(order);
}

void *hopper_tf32_plan(backend *be, device_layout *device, const layout *l) {
    tf32_tables *tables = layout_plan<tf32_tables>(device);
    const int side = l->gates * l->in_block / TILE, depth = l->in_block / TILE;
    const node_lists rows = row_lists(l), columns = column_lists(l);
    build_pieces(be, device, tables->forward, &rows, NULL, side, depth, true);
    build_pieces(be, device, tables->backward, &columns, l->column_block, depth, side, false);
    return tables;
}
