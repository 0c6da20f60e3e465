/* wide_product: fprop and dgrad of one gate on Hopper, of 128 columns and more.
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
 * With few column tiles, parts are cut, and dealt out to thread blocks, by their cost. */
#include "hopper_tiles.cuh"
#include "node_lists.h"

#include <string.h>

typedef struct wide_arguments {
    const wide_part *part;
    const wide_source *source;
    const int *block;   /* of each entry of the lists; NULL: in order */
    int parts, columns; /* columns: tiles of them */
} wide_arguments;

enum {
    CONSUMER_REGISTERS = 240,
    PRODUCER_REGISTERS = 24,
    PRODUCERS = 4, /* warps */
    ABREAST = 4
};

/* How many nodes' sums a warpgroup has registers for. */
static constexpr __host__ __device__ int wide_slots(int b) {
    return WIDE_NODES * 32 / b;
}

/* How many rows of a source are brought in at a time. */
static constexpr __host__ __device__ int rows_of_slice(int b) {
    return b < 128 ? 32 : 64;
}

/* The tile that a thread block makes in a turn: which part and which column tile; part < 0: none.
 * Costly parts come first, side by side for ABREAST column tiles, so that these share weights in L2.
 * Every other turn runs backwards: who had a costly part gets a cheap one, or none. */
typedef struct wide_tile {
    int part, column;
} wide_tile;

static __device__ inline wide_tile tile_of(const wide_arguments &p, int turn) {
    const int place = turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
    const int i = turn * gridDim.x + place, first = i / (ABREAST * p.parts) * ABREAST;
    const int within = i - first * p.parts, abreast = min(ABREAST, p.columns - first);
    if (abreast <= 0 || within >= p.parts * abreast) return {-1, 0};
    return {within / abreast, first + within % abreast};
}

/* B: units of a node. SLOTS: nodes whose sums a warpgroup has registers for. TILES: of 64 columns
 * that it has of each. A stage is KS rows of a source's activations, and its blocks of weights, as
 * many as there are, one after another. */
template <int B, int SLOTS, int TILES> struct wide_shape {
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

/* The next 32 of `left` sources, one to a lane: its node, and in the low bits who has a block for
 * it. `last`: the last node so far. */
template <int SLOTS>
static __device__ __forceinline__ uint32_t read_sources(const wide_arguments &p, int from, int left,
                                                        int *last) {
    const int lane = threadIdx.x % 32;
    const uint32_t mine = lane < left ? p.source[from + lane] : 0;
    int node = mine >> SLOTS;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        int before = __shfl_up_sync(~0u, node, step);
        if (lane >= step) node += before;
    }
    node += *last;
    *last = __shfl_sync(~0u, node, 31);
    return node << SLOTS | (mine & ((1 << SLOTS) - 1));
}

/* Lanes bring in their blocks, the last lanes the activations. */
template <int B, bool FORWARD, int SLOTS, int TILES>
static __device__ __forceinline__ void produce_wide(const CUtensorMap &w_map,
                                                    const CUtensorMap &x_map,
                                                    const wide_arguments &p, uint32_t base) {
    typedef wide_shape<B, SLOTS, TILES> S;
    const int lane = threadIdx.x % 32, box = 31 - lane, mine = threadIdx.x / 32 - CONSUMER_WARPS;
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    int use = 0;
    for (int turn = 0;; turn++) {
        const wide_tile tile = tile_of(p, turn);
        if (tile.part < 0) break;
        const wide_part *part = p.part + tile.part;
        const int column = tile.column * S::COLUMNS + box * BOX;
        const int first = part->first, count = part->count;
        int entry = lane < SLOTS ? part->start[lane] : 0, last = 0;
        uint32_t sources = 0;
        for (int i = 0; i < count; i++) {
            if (i % 32 == 0) sources = read_sources<SLOTS>(p, first + i, count - i, &last);
            const uint32_t source = __shfl_sync(~0u, sources, i % 32);
            const uint32_t mask = source & ((1 << SLOTS) - 1);
            const bool weights = mask >> lane & 1;
            for (int slice = 0; slice < S::SLICES; slice++, use++) {
                if (use % PRODUCERS != mine) continue;
                const int stage = use % S::STAGES;
                const uint32_t barrier = full + stage * 8, to = base + stage * S::STAGE;
                barrier_wait(empty + stage * 8, (use / S::STAGES & 1) ^ 1);
                if (lane == 0) {
                    shared_store(base + S::MASKS + stage * 4, mask);
                    barrier_expect(barrier, S::X_BYTES + __popc(mask) * S::W_BYTES);
                }
                __syncwarp();
                if (box < S::BOXES) {
                    tensor_load(to + box * S::KS * BOX_ROW, &x_map, barrier, column,
                                (source >> SLOTS) * B + slice * S::KS);
                } else if (weights) {
                    const int before = __popc(mask & ((1u << lane) - 1));
                    const uint32_t block = to + S::X_BYTES + before * S::W_BYTES;
                    if (FORWARD) {
                        tensor_load(block, &w_map, barrier, slice * S::KS, entry * B);
                    } else {
                        const int row = __ldg(p.block + entry) * B + slice * S::KS;
                        tensor_load(block, &w_map, barrier, 0, B == 32 ? row / 2 : row);
                        if (B == 128)
                            tensor_load(block + S::KS * BOX_ROW, &w_map, barrier, 64, row);
                    }
                }
            }
            entry += weights;
        }
    }
}

/* Of source tiles [KS rows][64 columns], 32 rows for products from registers. */
template <int TILES, int KS, bool PAIRED>
static __device__ __forceinline__ void load_left(uint32_t (&a)[TILES][2][4], uint32_t x) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int piece = warp * 2 + lane / 8 % 2;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int row = lane / 16 * 8 + lane % 8;
        row = PAIRED ? row * 2 + k : row + k * 16;
        const uint32_t at = x + row * BOX_ROW + ((piece ^ (row % 8)) * 16);
#pragma unroll
        for (int t = 0; t < TILES; t++) load_matrices_transposed(a[t][k], at + t * KS * BOX_ROW);
    }
}

/* How a block of weights lies in shared memory: a descriptor's words, and how far on the next 16
 * and 32 of k are, in 16 bytes. */
template <int B, bool FORWARD> struct weights_in_shared {
    static const bool PAIRED = B == 32 && !FORWARD; /* [16][row % 2][32 units] */
    static const int KS = rows_of_slice(B);
    static const int SWIZZLE = KS == 32 && FORWARD ? SWIZZLE_64 : SWIZZLE_128;
    static const int STRIDE = SWIZZLE == SWIZZLE_64 ? 512 : 1024;
    static const int LEADING = FORWARD || PAIRED ? 16 : KS * 128;
    static const int NEXT = FORWARD ? 2 : PAIRED ? 4 : 128, HALF = FORWARD ? 4 : 256;
};

template <int B, bool FORWARD, int SLOTS, int TILES>
static __global__ void __launch_bounds__(THREADS, 1)
    wide_product(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap y_map,
                 const __grid_constant__ wide_arguments p) {
#if ON_HOPPER
    typedef wide_shape<B, SLOTS, TILES> S;
    typedef weights_in_shared<B, FORWARD> layout_of;
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    const int KS = S::KS, HALVES = KS / 32;
    cursor<S::STAGES>().create(full);
    barrier_init_done();
    __syncthreads();
    wait_for_earlier();
    let_next_start();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<PRODUCER_REGISTERS>();
        produce_wide<B, FORWARD, SLOTS, TILES>(w_map, x_map, p, base);
    } else {
        registers_grow<CONSUMER_REGISTERS>();
        const int group = warp / 4, lane = threadIdx.x % 32;
        const uint32_t out = base + S::Y + group * S::OUTS * S::OUT;
        const uint32_t weights = (base + S::X_BYTES) >> 4 | (layout_of::LEADING >> 4) << 16;
        const uint64_t above = (uint64_t)(layout_of::STRIDE >> 4 | layout_of::SWIZZLE << 30) << 32;
        const uint32_t left = base + group * TILES * KS * BOX_ROW;
        const bool leader = threadIdx.x % GROUP == 0;
        int stage = 0, phase = 0, stored = 0;
        for (int turn = 0;; turn++) {
            const wide_tile tile = tile_of(p, turn);
            if (tile.part < 0) break;
            const wide_part *part = p.part + tile.part;
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
                    uint32_t w = weights + stage * (S::STAGE / 16) +
                                 (HALVES == 2 && parity ? layout_of::HALF : 0);
#pragma unroll
                    for (int slot = 0; slot < SLOTS; slot++) {
                        if (SLOTS == 1 || (now >> slot & 1)) {
                            product_fence();
#pragma unroll
                            for (int t = 0; t < TILES; t++) {
#pragma unroll
                                for (int k = 0; k < 2; k++) {
                                    warpgroup_multiply<!FORWARD>(sum[slot][t],
                                                                 a[S::AHEAD ? parity : 0][t][k],
                                                                 above | (w + k * layout_of::NEXT));
                                }
                            }
                            product_commit();
                            w += S::W_BYTES / 16;
                        }
                    }
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
                        if (lane == 0) barrier_arrive(empty + stage * 8);
                        stage = next;
                        stages--;
                    }
                }
            }
            const int column = tile.column * S::COLUMNS + group * TILES * 64;
            const int nodes = part->nodes;
#pragma unroll
            for (int slot = 0; slot < SLOTS; slot++) {
                if (slot >= nodes) break;
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

/* The furthest that a wide_source's node may be from the one before. */
static int longest_way(int slots) {
    return 0xFFFF >> slots;
}

/* Merges the lists of a part's nodes by source, in ascending order; returns how many there are. */
static int merge_lists(const node_lists *l, const wide_part *part, int slots,
                       wide_source *sources) {
    const int most = longest_way(slots);
    int at[WIDE_NODES], stop[WIDE_NODES], count = 0, last = 0, next;
    uint32_t mask;
    memcpy(at, part->start, sizeof at);
    for (int m = 0; m < part->nodes; m++) stop[m] = l->end[part->node[m]];
    while ((next = next_source(l->other, part->nodes, at, stop, &mask)) >= 0) {
        step_past(mask, part->nodes, at);
        for (; next - last > most; last += most) sources[count++] = (wide_source)(most << slots);
        sources[count++] = (wide_source)((next - last) << slots | (int)mask);
        last = next;
    }
    return count;
}

/* A part, and a measure of the time it takes. */
typedef struct costed_part {
    wide_part part;
    int cost;
} costed_part;

static int by_cost(const void *one, const void *two) {
    return ((const costed_part *)two)->cost - ((const costed_part *)one)->cost;
}

/* Cuts the nodes in this order into parts of at most `slots`, none above cost `most` unless it is
 * one node's; returns how many. The costliest come first. */
static int cut_nodes(const node_lists *l, const int *order, int slots, int most,
                     costed_part *parts) {
    enum { PART_COST = 40, SOURCE_COST = 3, BLOCK_COST = 1 }; /* as measured */
    int *seen = host_table(l->sources), made = 0;
    costed_part *latest = NULL;
    for (int i = 0; i < l->nodes; i++) {
        const int node = order[i], first = l->begin[node], last = l->end[node];
        int more = (last - first) * BLOCK_COST;
        for (int k = first; k < last; k++) more += seen[l->other[k]] == made ? 0 : SOURCE_COST;
        if (!made || latest->part.nodes == slots || latest->cost + more > most) {
            latest = &parts[made++];
            memset(latest, 0, sizeof *latest);
            latest->cost = PART_COST;
            more = (last - first) * (BLOCK_COST + SOURCE_COST);
        }
        wide_part *part = &latest->part;
        part->node[part->nodes] = (uint16_t)node;
        part->start[part->nodes++] = first;
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

/* Parts for products of this many column tiles; from WIDE_CUTS on, the whole ones, as then there
 * are enough to go round. Else smaller ones may be better, although they have fewer sources in
 * common: bounds on their cost are tried from high to low. */
static void build_wide(backend *be, wide_parts *made, const node_lists *l, const int *order,
                       int slots, int columns) {
    const int processors = cuda_of(be)->processors;
    const size_t most_sources = (size_t)l->end[l->nodes - 1] + 1 +
                                (size_t)l->nodes * (size_t)(l->sources / longest_way(slots));
    costed_part *cut = (costed_part *)calloc((size_t)l->nodes, sizeof *cut);
    wide_part *part = (wide_part *)calloc((size_t)l->nodes, sizeof *part);
    wide_source *source = (wide_source *)calloc(most_sources, sizeof *source);
    if (!cut || !part || !source) abort();
    int count = cut_nodes(l, order, slots, INT32_MAX, cut), most = cut[0].cost;
    int best = time_of(cut, count, columns, processors), used = 0;
    for (int bound = most; columns < WIDE_CUTS && bound > most / 8; bound -= bound / 32 + 1) {
        int time = time_of(cut, cut_nodes(l, order, slots, bound, cut), columns, processors);
        if (time >= best) continue;
        best = time;
        most = bound;
    }
    made->count = cut_nodes(l, order, slots, most, cut);
    for (int i = 0; i < made->count; i++) {
        part[i] = cut[i].part;
        part[i].first = used;
        part[i].count = merge_lists(l, &part[i], slots, source + used);
        used += part[i].count;
    }
    made->part = (wide_part *)cuda_table(be, part, (size_t)made->count * sizeof *part);
    made->source = (wide_source *)cuda_table(be, source, ((size_t)used + 1) * sizeof *source);
    free(cut);
    free(part);
    free(source);
}

static void build_side(backend *be, wide_parts *parts, const node_lists *l, int slots) {
    int *order = host_table(l->nodes);
    order_nodes(l, slots, order);
    for (int i = 0; i < WIDE_CUTS; i++) build_wide(be, &parts[i], l, order, slots, i + 1);
    free(order);
}

void wide_create(backend *be, device_layout *device, const layout *l) {
    int slots = wide_slots(l->in_block);
    const node_lists rows = row_lists(l), columns = column_lists(l);
    build_side(be, device->wide_forward, &rows, slots);
    if (layout_is_symmetric(l)) {
        memcpy(device->wide_backward, device->wide_forward, sizeof device->wide_backward);
    } else {
        build_side(be, device->wide_backward, &columns, slots);
    }
}

/* ----------------------------------------------------------------------------------- launches */

static bool map_wide(backend *be, CUtensorMap *map, const layout *l, const void *w, bool forward) {
    const uint64_t b = (uint64_t)l->in_block, rows = b * (uint64_t)l->blocks;
    const uint64_t extent[2] = {b, rows}, stride[1] = {b * 2};
    const uint32_t ks = (uint32_t)rows_of_slice(l->in_block);
    const uint32_t box[2] = {forward ? ks : b < 64 ? 32 : 64, forward ? (uint32_t)b : ks};
    if (b == 32 && !forward) return map_pairs(be, map, w, rows / 2, 16);
    return make_map(be, map, w, 2, extent, stride, box,
                    box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

template <int B, bool FORWARD, int SLOTS, int TILES>
static void launch_wide(backend *be, const device_layout *device, const void *w, const void *x,
                        int columns, void *y) {
    typedef wide_shape<B, SLOTS, TILES> S;
    const layout *l = &device->host;
    CUtensorMap w_map, x_map, y_map;
    const int tiles = (columns + S::COLUMNS - 1) / S::COLUMNS; /* of columns */
    const wide_parts *parts = FORWARD ? device->wide_forward : device->wide_backward;
    parts += min(tiles, WIDE_CUTS) - 1;
    const wide_arguments p = {parts->part, parts->source, FORWARD ? NULL : l->column_block,
                              parts->count, tiles};
    const size_t in = FORWARD ? layout_inputs(l) : layout_rows(l);
    const size_t out = FORWARD ? layout_rows(l) : layout_inputs(l);
    if (!map_wide(be, &w_map, l, w, FORWARD) ||
        !map_activations(be, &x_map, 2, x, in, columns, 1, S::KS) ||
        !map_activations(be, &y_map, 2, y, out, columns, 1, S::KS))
        return;
    cuda_launch(be, FORWARD ? "fprop" : "dgrad", true, wide_product<B, FORWARD, SLOTS, TILES>,
                min(cuda_of(be)->processors, tiles * parts->count), THREADS, S::BYTES, w_map, x_map,
                y_map, p);
}

template <int B, bool FORWARD>
static void launch_by_columns(backend *be, const device_layout *device, const void *w,
                              const void *x, int columns, void *y) {
    enum { SLOTS = wide_slots(B) };
    if (columns <= 2 * BOX) {
        launch_wide<B, FORWARD, SLOTS, 1>(be, device, w, x, columns, y);
    } else {
        launch_wide<B, FORWARD, SLOTS, 2>(be, device, w, x, columns, y);
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

void wide_fprop(backend *be, const device_layout *device, const void *w, const void *x, int columns,
                void *y) {
    launch_by_block<true>(be, device, w, x, columns, y);
}

void wide_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                int columns, void *dx) {
    launch_by_block<false>(be, device, w, dy, columns, dx);
}
