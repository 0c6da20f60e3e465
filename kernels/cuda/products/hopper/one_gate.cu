/* one_gate: fprop and dgrad of one gate on Hopper, of 128 columns and more.
 *
 *   y' [columns][b units of a node] = sum over its sources  x' [columns][b] W [b][b]
 *
 * Floors: 2 blocks b^2 columns operations; the weights, x and y once through memory; and what the
 * thread blocks gather from L2, which decides. A part of 192 units (six nodes of 32) times 256
 * columns has all its sums in the registers of two warpgroups. The union of its nodes' sources goes
 * by once: of each, 32 rows of activations (16 KB), which every node that has a block for them
 * shares, and those blocks (2 KB each). Of 12,288 units at density 0.1, a part of six random rows
 * has 230 blocks of 155 sources: 3 MB for 0.12 GFLOP, so that 9.3 TB/s out of L2 hold it at 370
 * TFLOP/s. Larger parts would gather less, but sums have no more room; so nodes with like sources
 * are put together instead.
 *
 * Activations are the left operand and come from registers: that is wgmma's full rate also for 32
 * units, and ldmatrix turns them over on the way. They lie with their blocks of weights in the
 * stages of a ring, which warps fill in turn. Nodes that have no block for a source are skipped by
 * branches, so the compiler waits for what was multiplied before; the other warpgroup fills this
 * gap.
 *
 * With few column tiles, parts are cut, and dealt out to thread blocks, by their cost. A hub's list
 * then takes longer than all else, so it is cut into parts, too, whose sums the last one takes. At
 * 12,288 units, densities .05, .03 and .01, Barabasi-Albert, 128 columns took 21.9, 18.1 and 12.0 us
 * without, and take 12.2, 9.6 and 7.8; 256 took 27.2, 22.9 and 15.7, and take 22.1, 15.0 and 9.3. Where
 * no list is cut there is a kernel without this: all was 3 to 8 % slower with it. */
#include "products/hopper/one_gate.cuh"
#include "products/node_lists.h"

#include <string.h>

enum { CONSUMER_REGISTERS = 240, PRODUCER_REGISTERS = 24 };

/* B: units of a node. SLOTS: nodes whose sums a warpgroup has registers for. TILES: of 64 columns
 * that it has of each. A stage is KS rows of a source's activations, and its blocks of weights, as
 * many as there are, one after another. */
template <int B, int SLOTS_, int TILES> struct one_gate_shape {
    static const int SLOTS = SLOTS_, SHARES = 1; /* SHARES: thread blocks that share a part */
    static const int KS = rows_of_slice(B), SLICES = B / KS;
    static const int BOXES = 2 * TILES, COLUMNS = BOXES * BOX;
    static const int X_BYTES = KS * COLUMNS * 2, W_BYTES = KS * B * 2;
    static const int STAGE = X_BYTES + SLOTS * W_BYTES;
    static const int OUT = KS * BOX_ROW, OUTS = KS == 32 ? 2 : 1; /* results on their way out */
    static const int STAGES = (MOST_SHARED - 2048 - 2 * OUTS * OUT) / STAGE;
    static const int Y = STAGES * STAGE, BARRIERS = Y + 2 * OUTS * OUT;
    static const int MASKS = BARRIERS + STAGES * 16, BYTES = MASKS + STAGES * 4 + 1024;
    /* Whether there are registers for two sources' activations. */
    static const bool AHEAD = SLOTS * TILES * B / 2 + TILES * 16 < 200;
    /* Else a producer might be so far ahead of another that it takes a stage's phase for the one
     * after. */
    static_assert(STAGES >= PRODUCERS, "a stage for each");
};

template <int B, bool FORWARD, int SLOTS, int TILES, bool HUBS>
static __global__ void __launch_bounds__(THREADS, 1)
    one_gate(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
             const __grid_constant__ CUtensorMap y_map,
             const __grid_constant__ one_gate_arguments p) {
#if ON_HOPPER
    typedef one_gate_shape<B, SLOTS, TILES> S;
    typedef weights_in_shared<B, FORWARD> layout_of;
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    const int KS = S::KS, HALVES = KS / 32;
    cursor<S::STAGES>().create(full);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<PRODUCER_REGISTERS>();
        produce_one_gate<B, FORWARD, S>(w_map, x_map, p, base);
    } else {
        registers_grow<CONSUMER_REGISTERS>();
        wait_for_earlier();
        let_next_start();
        const int group = warp / 4, lane = threadIdx.x % 32;
        const uint32_t out = base + S::Y + group * S::OUTS * S::OUT;
        const uint32_t weights = (base + S::X_BYTES) >> 4 | (layout_of::LEADING >> 4) << 16;
        const uint64_t above = (uint64_t)(layout_of::STRIDE >> 4 | layout_of::SWIZZLE << 30) << 32;
        const uint32_t left = base + group * TILES * KS * BOX_ROW;
        const bool leader = threadIdx.x % GROUP == 0;
        int stage = 0, phase = 0, stored = 0;
        for (int turn = 0;; turn++) {
            const one_gate_tile tile = tile_of<1>(p, turn);
            if (tile.part < 0) break;
            const auto *part = part_at<SLOTS>(p, tile.part);
            int stages = part->count * S::SLICES;
            float sum[SLOTS][TILES][B / 2] = {};
            uint32_t a[1 + S::AHEAD][TILES][2][4], mask = 0;
            if (stages) {
                barrier_wait(full + stage * 8, phase);
                mask = shared_load(base + S::MASKS + stage * 4);
                load_left<TILES, KS, layout_of::PAIRED>(a[0], left + stage * S::STAGE);
            }
            while (stages) {
#pragma unroll
                for (int parity = 0; parity < 2; parity++) {
                    if (HALVES == 1 && parity && !stages) break;
                    const bool whole = HALVES == 1 || parity;
                    const uint32_t now = __reduce_or_sync(~0u, mask); /* the same in all lanes */
                    const uint32_t w = weights + stage * (S::STAGE / 16) +
                                       (HALVES == 2 && parity ? layout_of::HALF : 0);
                    multiply_nodes<FORWARD, layout_of::NEXT, S::W_BYTES>(
                        sum, a[S::AHEAD ? parity : 0], now, w, above);
                    /* The next rows: beside these products where registers allow it, else after. */
                    const bool wraps = stage + 1 == S::STAGES, more = stages > 1;
                    const int next = !whole ? stage : wraps ? 0 : stage + 1;
                    if (whole && wraps) phase ^= 1;
                    if (whole && more) {
                        barrier_wait(full + next * 8, phase);
                        mask = shared_load(base + S::MASKS + next * 4);
                    }
                    if (!S::AHEAD) product_wait<0>();
                    if (!whole || more) {
                        load_left<TILES, KS, layout_of::PAIRED>(a[S::AHEAD ? parity ^ 1 : 0],
                                                                left + next * S::STAGE +
                                                                    (whole ? 0 : 32 * BOX_ROW));
                    }
                    if (S::AHEAD) product_wait<0>();
                    if (whole) {
                        __syncwarp(); /* all lanes have read */
                        barrier_arrive_warp(empty + stage * 8);
                        stage = next;
                        stages--;
                    }
                }
            }
            if (HUBS && !gather_hub(p, part, tile.column, sum[0])) continue;
            const int column = tile.column * S::COLUMNS + group * TILES * 64;
#pragma unroll
            for (int slot = 0; slot < SLOTS; slot++) {
                if (part->node[slot] == NO_NODE) break;
                const int row = part->node[slot] * B;
#pragma unroll
                for (int t = 0; t < TILES; t++) {
#pragma unroll
                    for (int slice = 0; slice < S::SLICES; slice++, stored++) {
                        const uint32_t to = out + stored % S::OUTS * S::OUT;
                        if (leader) store_wait<S::OUTS - 1>();
                        group_sync(1 + group, GROUP);
#pragma unroll
                        for (int j = 0; j < KS / 8; j += 2) {
                            const float *d = &sum[slot][t][(slice * KS / 8 + j) * 4];
                            uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]),
                                             pack(d[6], d[7])};
                            int unit = (j + lane / 16) * 8 + lane % 8;
                            int piece = warp % 4 * 2 + lane / 8 % 2;
                            store_matrices_transposed(
                                to + unit * BOX_ROW + ((piece ^ (unit % 8)) * 16), r);
                        }
                        shared_fence();
                        group_sync(1 + group, GROUP);
                        if (leader) {
                            tensor_store(&y_map, to, column + t * 64, row + slice * KS);
                            store_commit();
                        }
                    }
                }
            }
        }
        if (leader) store_finish();
    }
#endif
}

/* ------------------------------------------------------------------------------------- tables */

typedef struct one_gate_part {
    int first, count;                                /* sources */
    int start[ONE_GATE_NODES], stop[ONE_GATE_NODES]; /* where the nodes' lists begin and end */
    uint16_t nodes, node[ONE_GATE_NODES];
    uint8_t given, takes; /* see packed_part */
    bool gives;
} one_gate_part;

/* Shares of the time that a part takes, as measured. */
enum { PART_COST = 40, SOURCE_COST = 3, BLOCK_COST = 1, GIVING_COST = 30 };

enum { MOST_PIECES = 8 /* of a hub's list */ };

/* The furthest that a one_gate_source's node may be from the one before. */
static int longest_way(int slots) {
    return 0xFFFF >> slots;
}

/* Merges the lists of a part's nodes by source, in ascending order, from where it starts, up to a
 * measure of the time that takes; leaves in `at` where it stopped. Returns how many there are. */
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

/* A part, and a measure of the time it takes. */
typedef struct costed_part {
    one_gate_part part;
    int cost, number; /* number: how many were cut before it */
} costed_part;

/* Those of a hub stay in their order. */
static int by_cost(const void *one, const void *two) {
    const costed_part *a = (const costed_part *)one, *b = (const costed_part *)two;
    return a->cost != b->cost ? b->cost - a->cost : a->number - b->number;
}

static costed_part *add_part(costed_part *parts, int *made, int cost) {
    costed_part *added = &parts[*made];
    memset(added, 0, sizeof *added);
    added->cost = cost;
    added->number = (*made)++;
    return added;
}

static void add_node(one_gate_part *part, int node, int start, int stop) {
    part->node[part->nodes] = (uint16_t)node;
    part->start[part->nodes] = start;
    part->stop[part->nodes++] = stop;
}

/* How many parts a list of so many sources should be, for none to be above cost `most`. */
static int pieces_of(int sources, int most) {
    const int cost = sources * (BLOCK_COST + SOURCE_COST), room = most - PART_COST - GIVING_COST;
    if (PART_COST + cost <= most || room <= 0) return 1;
    return min((cost + room - 1) / room, (int)MOST_PIECES);
}

/* Cuts a hub's list; `given`: the parts so far that give. */
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

/* A way to cut the nodes, and a measure of the time it takes. */
typedef struct one_gate_cut {
    int slots, shares, boxes; /* see one_gate_parts */
    const int *order;         /* of the nodes */
    int most;                 /* cost of a part of several nodes, and of hubs' parts */
    bool hubs;                /* whether their lists are cut */
    int time;
} one_gate_cut;

/* Returns how many parts there are. The costliest come first. */
static int cut_nodes(const node_lists *l, const one_gate_cut *plan, costed_part *parts) {
    int *seen = host_table(l->sources), made = 0, given = 0;
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
        if (!latest || latest->part.nodes == plan->slots || latest->cost + more > plan->most) {
            latest = add_part(parts, &made, PART_COST);
            more = (last - first) * (BLOCK_COST + SOURCE_COST);
        }
        add_node(&latest->part, node, first, last);
        latest->cost += more;
        for (int k = first; k < last; k++) seen[l->other[k]] = made;
    }
    free(seen);
    qsort(parts, (size_t)made, sizeof *parts, by_cost);
    return made;
}

/* The time of all parts of `columns` column tiles, as thread blocks take them; see tile_of. */
static int time_of(const costed_part *parts, int count, int columns, int processors) {
    const int tiles = count * columns, grid = min(tiles, processors);
    int *load = host_table((size_t)grid), longest = 0;
    for (int i = 0; i < tiles; i++) {
        int *at = &load[i / grid % 2 ? grid - 1 - i % grid : i % grid];
        *at += parts[i / columns].cost;
        longest = max(longest, *at);
    }
    free(load);
    return longest;
}

/* The lists of nodes, and orders of them in which so many successive ones have many sources in
 * common, each made when it is first asked for. */
typedef struct ordered_lists {
    node_lists lists;
    int *order[ONE_GATE_NODES + 1];
} ordered_lists;

static const int *order_of(ordered_lists *l, int group) {
    group = max(1, min(group, ONE_GATE_NODES));
    if (!l->order[group]) {
        l->order[group] = host_table(l->lists.nodes);
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

/* Bounds the cost of the plan's parts by what takes the least time, if at all: tries bounds from the
 * cost of the costliest down, unless more column tiles may come. */
static void bound_parts(const node_lists *l, one_gate_cut *plan, int columns, bool exact,
                        int blocks, costed_part *parts) {
    plan->most = INT32_MAX; /* no list is cut either */
    plan->time = time_of(parts, cut_nodes(l, plan, parts), columns, blocks);
    const int most = parts[0].cost;
    one_gate_cut tried = *plan;
    for (int bound = most; exact && bound > most / 8; bound -= bound / 32 + 1) {
        tried.most = bound;
        tried.time = time_of(parts, cut_nodes(l, &tried, parts), columns, blocks);
        if (tried.time < plan->time) *plan = tried;
    }
}

/* As many nodes to a part as there are thread blocks for, or fewer. Hubs' lists are cut where that saves
 * much: what is handed on costs more than is counted. */
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

/* Blocks of 32 may be for one_gate_split_run: where lists are long, whole parts, each for two thread
 * blocks, if all find room at once, as they must to trade sums but once; where lists are short, small
 * parts, unless these gather too much more, or with 512 columns only for hubs' sake. Blocks of 128
 * whose tiles would fill the multiprocessors once, and then in part, come in tiles of half as many
 * columns: 512 columns at densities .5, .1 and .05 took 153, 35 and 22.6 us in whole ones, and take
 * 124, 32 and 19.5. The bounds are as measured on an H200 with 12,288 units at densities from 0.5 to
 * 0.01, random, Watts-Strogatz and Barabasi-Albert. */
static one_gate_cut choose_plan(ordered_lists *l, int b, int columns, bool few, int processors,
                                costed_part *parts) {
    const node_lists *lists = &l->lists;
    const int slots = one_gate_slots(b), boxes = few ? 1 : 2;
    const int long_list = few ? 32 : 64, short_list = few ? 24 : 8, shortest_list = few ? 16 : 8;
    const int whole = (lists->nodes + slots - 1) / slots;
    int blocks = 0;
    for (int i = 0; i < lists->nodes; i++) blocks += lists->end[i] - lists->begin[i];
    const int mean = blocks / lists->nodes;
    const bool exact = columns < ONE_GATE_CUTS - 1; /* else for more column tiles, too */
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

template <int SLOTS> static void *pack_parts(backend *be, const one_gate_part *part, int count) {
    packed_part<SLOTS> *packed = (packed_part<SLOTS> *)calloc((size_t)count, sizeof *packed);
    if (!packed) abort();
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
    void *table = cuda_table(be, packed, (size_t)count * sizeof *packed);
    free(packed);
    return table;
}

/* Parts for products of this many column tiles; few: of half as many columns. */
static void build_wide(backend *be, one_gate_parts *made, ordered_lists *l, int b, int columns,
                       bool few) {
    const node_lists *lists = &l->lists;
    costed_part *cut = (costed_part *)calloc((size_t)lists->nodes + MOST_GIVEN, sizeof *cut);
    if (!cut) abort();
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
    one_gate_part *part = (one_gate_part *)calloc((size_t)(count * plan.shares), sizeof *part);
    one_gate_source *source = (one_gate_source *)calloc(most_sources, sizeof *source);
    if (!part || !source) abort();
    int used = 0;
    for (int i = 0; i < count * plan.shares; i++) {
        const costed_part *of = &cut[i / plan.shares];
        const bool last = i % plan.shares == plan.shares - 1;
        int at[ONE_GATE_NODES];
        memcpy(at, i % plan.shares ? part[i].start : of->part.start, sizeof at);
        part[i] = of->part;
        memcpy(part[i].start, at, sizeof at);
        part[i].first = used;
        part[i].count =
            merge_lists(lists, &part[i], at, plan.slots,
                        last ? INT32_MAX : (of->cost - PART_COST) / plan.shares, source + used);
        if (!last) memcpy(part[i + 1].start, at, sizeof at);
        used += part[i].count;
    }
    made->count = count;
    made->slots = plan.slots;
    made->shares = plan.shares;
    made->boxes = plan.boxes;
    made->hubs = plan.hubs;
    const int parts = count * plan.shares;
    made->part = plan.slots == 6   ? pack_parts<6>(be, part, parts)
                 : plan.slots == 3 ? pack_parts<3>(be, part, parts)
                                   : pack_parts<1>(be, part, parts);
    made->source = (one_gate_source *)cuda_table(be, source, ((size_t)used + 1) * sizeof *source);
    free(cut);
    free(part);
    free(source);
}

static void build_side(backend *be, one_gate_parts *parts, const node_lists *lists, int b) {
    ordered_lists l = {*lists};
    for (int i = 0; i < ONE_GATE_CUTS; i++) build_wide(be, &parts[i], &l, b, max(i, 1), i == 0);
    for (int i = 0; i <= ONE_GATE_NODES; i++) free(l.order[i]);
}

void one_gate_plan(backend *be, device_layout *device, const layout *l) {
    const node_lists rows = row_lists(l), columns = column_lists(l);
    build_side(be, device->one_gate_forward, &rows, l->in_block);
    if (layout_is_symmetric(l)) {
        memcpy(device->one_gate_backward, device->one_gate_forward,
               sizeof device->one_gate_backward);
    } else {
        build_side(be, device->one_gate_backward, &columns, l->in_block);
    }
}

/* ----------------------------------------------------------------------------------- launches */

template <int B, bool FORWARD, int SLOTS, int TILES, bool HUBS>
static void launch_wide(backend *be, const device_layout *device, const one_gate_parts *parts,
                        const void *w, const void *x, int columns, void *y) {
    typedef one_gate_shape<B, SLOTS, TILES> S;
    const layout *l = &device->host;
    CUtensorMap w_map, x_map, y_map;
    const int tiles = (columns + S::COLUMNS - 1) / S::COLUMNS; /* of columns */
    const one_gate_arguments p = {parts->part,    parts->source, FORWARD ? NULL : l->column_block,
                                  parts->count,   tiles,         0,
                                  exchange_of(be)};
    const size_t in = FORWARD ? layout_inputs(l) : layout_rows(l);
    const size_t out = FORWARD ? layout_rows(l) : layout_inputs(l);
    if (!map_one_gate_weights(be, &w_map, l, w, FORWARD) ||
        !map_activations(be, &x_map, 2, x, in, columns, 1, S::KS) ||
        !map_activations(be, &y_map, 2, y, out, columns, 1, S::KS))
        return;
    cuda_launch(be, FORWARD ? "fprop" : "dgrad", true, one_gate<B, FORWARD, SLOTS, TILES, HUBS>,
                min(cuda_of(be)->processors, tiles * parts->count), THREADS, S::BYTES, w_map, x_map,
                y_map, p);
}

template <int B, bool FORWARD, bool HUBS>
static void launch_by_boxes(backend *be, const device_layout *device, const one_gate_parts *parts,
                            const void *w, const void *x, int columns, void *y) {
    enum { SLOTS = one_gate_slots(B) };
    if (parts->boxes == 1) {
        launch_wide<B, FORWARD, SLOTS, 1, HUBS>(be, device, parts, w, x, columns, y);
    } else {
        launch_wide<B, FORWARD, SLOTS, 2, HUBS>(be, device, parts, w, x, columns, y);
    }
}

template <int B, bool FORWARD>
static void launch_by_columns(backend *be, const device_layout *device, const void *w,
                              const void *x, int columns, void *y) {
    const one_gate_parts *parts = FORWARD ? device->one_gate_forward : device->one_gate_backward;
    parts += columns <= 2 * BOX ? 0 : min((columns + 4 * BOX - 1) / (4 * BOX), ONE_GATE_CUTS - 1);
    if (parts->shares > 1 || parts->slots < one_gate_slots(B)) {
        one_gate_split_run(be, device, parts, FORWARD, w, x, columns, y);
    } else if (parts->hubs) {
        launch_by_boxes<B, FORWARD, true>(be, device, parts, w, x, columns, y);
    } else {
        launch_by_boxes<B, FORWARD, false>(be, device, parts, w, x, columns, y);
    }
}

template <bool FORWARD>
static void launch_by_block(backend *be, const device_layout *device, const void *w, const void *x,
                            int columns, void *y) {
    switch (device->host.in_block) {
    case 32: launch_by_columns<32, FORWARD>(be, device, w, x, columns, y); break;
    case 64: launch_by_columns<64, FORWARD>(be, device, w, x, columns, y); break;
    default: launch_by_columns<128, FORWARD>(be, device, w, x, columns, y);
    }
}

void one_gate_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                    int columns, void *y) {
    launch_by_block<true>(be, device, w, x, columns, y);
}

void one_gate_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                    int columns, void *dx) {
    launch_by_block<false>(be, device, w, dy, columns, dx);
}
