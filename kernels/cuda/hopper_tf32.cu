/* shared_product: fprop and dgrad in tf32 on Hopper, of 128 columns and more, blocks of 32 and more.
 *
 *   y' [columns][32 units of a node] = sum over its sources  x' [columns][32] W [32][32]
 *
 * Floors are those of products.cu with 4 bytes an element. What L2 delivers decides: at block 32 and
 * 128 columns every block of 4 KB gathers 16 KB of activations. So a thread block makes a part of up
 * to six nodes times 128 columns, with all sums in registers, and the union of their sources goes by
 * once: of each, 32 rows of activations, which every node that has a block for them shares, and
 * those blocks. Nodes with like sources are put together. Nodes and sources are pieces of 32 here,
 * so that larger blocks, and gates of one pattern, are nodes with equal lists.
 *
 * Parts are fewer than multiprocessors, so a cluster of two thread blocks shares one: each goes
 * through half of the sources, then each adds up half of the nodes, in a fixed order.
 *
 * Boxes of 32 x 32 lie in shared memory one after another, round and round: a source takes four for
 * its activations and one a block, so that nothing is left empty and 224 KB are on their way. The
 * copy engine rounds them to tf32 (the type of its maps says so). Activations are the left operand,
 * from registers, which is wgmma's full rate also for 32 units; their columns are dealt to lanes
 * such that these find different banks. The right operand must lie along k: so weights do for fprop,
 * and for dgrad two warps turn them over. Four warpgroups, each with half of the columns and of the
 * nodes, fill each other's gaps.
 *
 * On an H200, 12,288 units at density 0.1 and 128 columns, 231 MB come into the multiprocessors; that
 * takes 28 us, and 32 with products. At density 0.5 these are 82 and 97 us, where memory alone takes
 * 73; dgrad's 145 there are 133 without turning, and 90 without products too. */
#include "hopper_floats.cuh"
#include "node_lists.h"

#include <string.h>

enum {
    SHARES = 2, /* of a part, a cluster */
    SLOTS = SHARED_NODES,
    TEAMS = 2,               /* of two warpgroups, for 64 columns each ... */
    OWN = SLOTS / TEAMS,     /* ... and so many nodes */
    WORKERS = TEAMS * 2 * 4, /* their warps */
    HELPERS = 4,             /* warps that bring in sources ... */
    TURNERS = 2,             /* ... or, these of dgrad, turn their weights over */
    ALL_THREADS = (WORKERS + HELPERS) * 32,
    WORKER_REGISTERS = 104,
    HELPER_REGISTERS = 64,
    COLUMNS = 128,
    BOXES = COLUMNS / TILE, /* of a source's activations */
    PLACES = 56,            /* for boxes, in shared memory */
    STAGES = 12,            /* sources that lie there at most */
    BARRIERS = PLACES * TILE_BYTES,
    WORDS = BARRIERS + 3 * STAGES * 8, /* of each stage: its first place, and who has blocks */
    BYTES = WORDS + STAGES * 4 + 1024
};

template <bool FORWARD> static constexpr __host__ __device__ int producers_of() {
    return FORWARD ? (int)HELPERS : HELPERS - TURNERS;
}

/* Else a producer might be so far ahead of another that it takes a stage's phase for the one
 * after. */
static_assert(PLACES / (BOXES + SLOTS) >= HELPERS, "room for the sources of all");

typedef struct shared_arguments {
    const shared_part *part;
    const shared_source *source;
    const int *block;    /* of each entry of the lists; NULL: in order */
    int log_k, log_side; /* how many sources and nodes a block has */
    int tiles, columns;  /* tiles: of the columns */
    int overlap;         /* weights may be read before the kernel before this one ends */
    float *y;
} shared_arguments;

/* Barriers of the ring: stages that have arrived, that are turned over, that are done with. */
struct barriers {
    uint32_t full, turned, empty;
};

/* d [64 x 32] += a [64 x 8] b [8 x 32], tf32 with fp32 sums. */
static __device__ inline void multiply_tf32(float (&d)[16], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k8.f32.tf32.tf32 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, 1, 1, 1;"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
                   "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]),
                   "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}

/* Where the box lies that is `after` boxes on. */
static __device__ inline uint32_t place_after(uint32_t place, int after) {
    const uint32_t next = place + after;
    return (next < PLACES ? next : next - PLACES) * TILE_BYTES;
}

/* Lanes bring in their blocks, the last lanes the activations. */
template <bool FORWARD>
static __device__ __forceinline__ void produce(const CUtensorMap &w_map, const CUtensorMap &x_map,
                                               const shared_arguments &p, const shared_part *part,
                                               int column0, uint32_t base, barriers ring) {
    const int lane = threadIdx.x % 32, box = 31 - lane, mine = threadIdx.x / 32 - WORKERS;
    const int producers = producers_of<FORWARD>();
    const int count = part->count, first = part->first;
    const int sides = 1 << p.log_side, piece = lane < SLOTS ? part->node[lane] & (sides - 1) : 0;
    int entry = lane < SLOTS ? part->start[lane] : 0;
    shared_source window = {}; /* a lane's, of 32 */
    if (!p.overlap) wait_for_earlier();
    for (int i = 0; i < count; i++) {
        if (i % 32 == 0 && lane < count - i) window = p.source[first + i + lane];
        const uint32_t node = __shfl_sync(~0u, window.node, i % 32);
        const uint32_t where = __shfl_sync(~0u, window.where, i % 32);
        const uint32_t mask = node & ((1 << SLOTS) - 1), place = where & 255;
        const bool weights = mask >> lane & 1;
        if (i % producers == mine) {
            const int stage = i % STAGES, along = entry & ((1 << p.log_k) - 1);
            const int before = i - (int)(where >> 8); /* who must be done with */
            const uint32_t barrier = ring.full + stage * 8;
            int block = entry >> p.log_k;
            if (!FORWARD && weights) block = __ldg(p.block + block);
            if (before >= 0) {
                barrier_wait(ring.empty + before % STAGES * 8, before / STAGES & 1);
            }
            if (lane == 0) {
                shared_store(base + WORDS + stage * 4, place << SLOTS | mask);
                barrier_expect(barrier, (BOXES + __popc(mask)) * TILE_BYTES);
            }
            __syncwarp();
            if (weights) {
                const int after = BOXES + __popc(mask & ((1u << lane) - 1));
                const int row =
                    FORWARD ? (block << p.log_side) + piece : (block << p.log_k) + along;
                tensor_load(base + place_after(place, after), &w_map, barrier,
                            (FORWARD ? along : piece) * TILE, row * TILE, 0);
            }
            if (p.overlap && i < producers) wait_for_earlier();
            if (box < BOXES) {
                tensor_load(base + place_after(place, box), &x_map, barrier, column0 + box * TILE,
                            (node >> SLOTS) * TILE, 0);
            }
        }
        entry += weights;
    }
}

/* Sources' blocks are dealt to the turners. */
static __device__ __forceinline__ void turn(int count, uint32_t base, barriers ring) {
    const int mine = threadIdx.x / 32 % TURNERS;
    for (int i = 0; i < count; i++) {
        const int stage = i % STAGES;
        barrier_wait(ring.full + stage * 8, i / STAGES & 1);
        const uint32_t word = shared_load(base + WORDS + stage * 4);
        const int blocks = __popc(word & ((1 << SLOTS) - 1));
        for (int block = (mine + i) % TURNERS; block < blocks; block += TURNERS) {
            turn_tile(base + place_after(word >> SLOTS, BOXES + block));
        }
        shared_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) barrier_arrive(ring.turned + stage * 8);
    }
}

/* A lane's two columns of a warp's 16, of the box that two warps share: neighbours, and such that
 * lanes that read together find different banks in four rows. */
static __device__ inline int own_column() {
    const int g = threadIdx.x % 32 / 4, half = threadIdx.x / 32 % 2;
    return 16 * (g / 2 % 2) + 8 * half + 4 * (g / 4) + 2 * (g % 2);
}

/* 32 rows of a warp's columns, for four products. */
static __device__ __forceinline__ void load_left(uint32_t (&a)[4][4], uint32_t x) {
    const int t = threadIdx.x % 4, column = own_column();
#pragma unroll
    for (int k = 0; k < 4; k++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = 8 * k + 4 * half + t, piece = column / 4 ^ row % 8;
            uint2 v = shared_load2(x + row * TILE_ROW + piece * 16 + column % 4 * 4);
            a[k][2 * half] = v.x;
            a[k][2 * half + 1] = v.y;
        }
    }
}

/* sum += a W, of a block of weights. */
static __device__ __forceinline__ void multiply(float (&sum)[16], const uint32_t (&a)[4][4],
                                                uint32_t block) {
    product_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        multiply_tf32(sum, a[k], matrix_descriptor(block + k * 32, SWIZZLE_128, 16, 8 * TILE_ROW));
    }
    product_commit();
    product_wait<0>(); /* in this branch, lest the compiler wait after every product */
}

/* Adds up what the cluster's thread blocks have of a part, each for half of the nodes. */
static __device__ __forceinline__ void finish(const shared_arguments &p, const shared_part *part,
                                              int column0, uint32_t base, float (&sum)[OWN][16]) {
    const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4, first = group / 2 * OWN;
    const int rank = cluster_rank(), t = threadIdx.x % 4, nodes = part->nodes;
    const uint32_t mine = base + threadIdx.x * 16, other = cluster_address(mine, rank ^ 1);
    group_sync(1, WORKERS * 32); /* the ring is done with */
#pragma unroll
    for (int slot = 0; slot < OWN; slot++) {
        if ((first + slot) % SHARES == rank || first + slot >= nodes) continue;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *d = &sum[slot][4 * j];
            shared_store4(mine + (slot * 4 + j) * WORKERS * 32 * 16,
                          make_float4(d[0], d[1], d[2], d[3]));
        }
    }
    cluster_sync();
    const int column = column0 + group % 2 * 64 + warp / 2 * TILE + own_column();
    if (column < p.columns) {
#pragma unroll
        for (int slot = 0; slot < OWN; slot++) {
            if ((first + slot) % SHARES != rank || first + slot >= nodes) continue;
            float *y = p.y + (size_t)(part->node[first + slot] * TILE + 2 * t) * p.columns + column;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float *d = &sum[slot][4 * j];
                float4 v = cluster_load4(other + (slot * 4 + j) * WORKERS * 32 * 16);
                float *to = y + (size_t)(8 * j) * p.columns;
                *(float2 *)to = make_float2(d[0] + v.x, d[2] + v.z);
                *(float2 *)(to + p.columns) = make_float2(d[1] + v.y, d[3] + v.w);
            }
        }
    }
}

#if ON_HOPPER
#define IN_CLUSTERS __cluster_dims__(SHARES, 1, 1)
#else
#define IN_CLUSTERS
#endif

template <bool FORWARD>
static __global__ void IN_CLUSTERS __launch_bounds__(ALL_THREADS, 1)
    shared_product(const __grid_constant__ CUtensorMap w_map,
                   const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ shared_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    const int warp = threadIdx.x / 32;
    const barriers ring = {base + BARRIERS, base + BARRIERS + STAGES * 8,
                           base + BARRIERS + 2 * STAGES * 8};
    const shared_part *part = p.part + blockIdx.x / SHARES / p.tiles * SHARES + blockIdx.x % SHARES;
    const int column0 = blockIdx.x / SHARES % p.tiles * COLUMNS;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(ring.full + s * 8, 1);
            barrier_init(ring.turned + s * 8, TURNERS);
            barrier_init(ring.empty + s * 8, WORKERS);
        }
    }
    barrier_init_done();
    __syncthreads();

    if (warp >= WORKERS) {
        registers_shrink<HELPER_REGISTERS>();
        if (warp < WORKERS + producers_of<FORWARD>()) {
            produce<FORWARD>(w_map, x_map, p, part, column0, base, ring);
        } else {
            turn(part->count, base, ring);
        }
        cluster_sync();
    } else {
        registers_grow<WORKER_REGISTERS>();
        wait_for_earlier(); /* who reads y, too */
        let_next_start();
        const int group = warp / 4, first = group / 2 * OWN, count = part->count;
        const int box = group % 2 * 2 + warp % 4 / 2;
        float sum[OWN][16] = {};
        for (int i = 0, stage = 0, phase = 0; i < count; i++) {
            barrier_wait(ring.full + stage * 8, phase);
            uint32_t word = shared_load(base + WORDS + stage * 4);
            word = __reduce_or_sync(~0u, word); /* the same in all lanes */
            const uint32_t mine = word >> first & ((1 << OWN) - 1);
            if (mine) {
                uint32_t a[4][4];
                load_left(a, base + place_after(word >> SLOTS, box));
                int after = BOXES + __popc(word & ((1 << first) - 1));
                if (!FORWARD) barrier_wait(ring.turned + stage * 8, phase);
#pragma unroll
                for (int slot = 0; slot < OWN; slot++) {
                    if (mine >> slot & 1) {
                        multiply(sum[slot], a, base + place_after(word >> SLOTS, after++));
                    }
                }
            }
            __syncwarp(); /* all lanes have read */
            if (threadIdx.x % 32 == 0) barrier_arrive(ring.empty + stage * 8);
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            if (stage == 0) phase ^= 1;
        }
        finish(p, part, column0, base, sum);
    }
    cluster_sync(); /* no thread block ends while the other reads its sums */
#endif
}

/* ------------------------------------------------------------------------------------- tables */

/* A part, and a measure of the time it takes: boxes, besides its beginning and end. */
typedef struct whole_part {
    int nodes, node[SLOTS], sources, cost;
} whole_part;

static int by_cost(const void *one, const void *two) {
    return ((const whole_part *)two)->cost - ((const whole_part *)one)->cost;
}

static int boxes_of(uint32_t mask) {
    return BOXES + __builtin_popcount(mask & ((1 << SLOTS) - 1));
}

/* Where sources lie in shared memory, one after another, round and round; and how many places in
 * the list before each the one is that must be done with first. */
static void place_sources(shared_source *sources, int count) {
    for (int i = 0, oldest = 0, place = 0, taken = 0; i < count; i++) {
        int boxes = boxes_of(sources[i].node);
        for (; taken + boxes > PLACES || i - oldest == STAGES; oldest++) {
            taken -= boxes_of(sources[oldest].node);
        }
        sources[i].where = (uint32_t)(place | (i - oldest + 1) << 8);
        taken += boxes;
        place = (place + boxes) % PLACES;
    }
}

/* Merges the lists of a part's nodes by source, in ascending order. */
static int merge_lists(const node_lists *l, const whole_part *part, shared_part *shares,
                       shared_source *sources, int used) {
    int at[SLOTS], stop[SLOTS];
    int boxes = 0, made = used, share = 0, all = BOXES * part->sources;
    for (int m = 0; m < part->nodes; m++) {
        at[m] = l->begin[part->node[m]];
        stop[m] = l->end[part->node[m]];
        all += stop[m] - at[m];
    }
    for (;;) {
        uint32_t mask;
        const int next = next_source(l->other, part->nodes, at, stop, &mask);
        for (; share < SHARES && (!mask || boxes * SHARES >= all * share); share++) {
            shares[share].first = made;
            shares[share].nodes = part->nodes;
            for (int m = 0; m < part->nodes; m++) {
                shares[share].node[m] = part->node[m];
                shares[share].start[m] = at[m];
            }
        }
        if (!mask) break;
        step_past(mask, part->nodes, at);
        sources[made++].node = (uint32_t)next << SLOTS | mask;
        boxes += boxes_of(mask);
    }
    for (share = 0; share < SHARES; share++) {
        int end = share + 1 < SHARES ? shares[share + 1].first : made;
        shares[share].count = end - shares[share].first;
        place_sources(sources + shares[share].first, shares[share].count);
    }
    return made;
}

/* Cuts the nodes in this order into parts of at most SLOTS, none above cost `most` unless it is one
 * node's; returns how many. The costliest come first. */
static int cut_nodes(const node_lists *l, const int *order, int most, whole_part *parts) {
    enum { PART_COST = 100 }; /* as measured */
    int *seen = host_table((size_t)l->sources), made = 0;
    whole_part *part = NULL;
    for (int i = 0; i < l->nodes; i++) {
        const int first = l->begin[order[i]], last = l->end[order[i]];
        int fresh = 0;
        for (int k = first; k < last; k++) fresh += seen[l->other[k]] != made;
        int more = BOXES * fresh + last - first;
        if (!made || part->nodes == SLOTS || part->cost + more > most) {
            part = &parts[made++];
            memset(part, 0, sizeof *part);
            fresh = last - first;
            more = PART_COST + BOXES * fresh + last - first;
        }
        part->node[part->nodes++] = order[i];
        part->sources += fresh;
        part->cost += more;
        for (int k = first; k < last; k++) seen[l->other[k]] = made;
    }
    free(seen);
    qsort(parts, (size_t)made, sizeof *parts, by_cost);
    return made;
}

/* About how long these parts take, of as many column tiles: each goes to the cluster that is free
 * first. */
static int time_of(const whole_part *parts, int count, int tiles, int clusters) {
    int *busy = host_table((size_t)clusters), longest = 0;
    for (int i = 0; i < count * tiles; i++) {
        int next = 0;
        for (int c = 1; c < clusters; c++) next = busy[c] < busy[next] ? c : next;
        busy[next] += parts[i / tiles].cost;
        longest = max(longest, busy[next]);
    }
    free(busy);
    return longest;
}

/* Large parts share most; smaller ones may be better dealt out. Bounds on their cost are tried from
 * high to low. */
static void build_parts(backend *be, shared_parts *made, const node_lists *l, const int *order,
                        int tiles) {
    whole_part *whole = (whole_part *)calloc((size_t)l->nodes, sizeof *whole);
    shared_part *part = (shared_part *)calloc((size_t)l->nodes * SHARES, sizeof *part);
    if (!whole || !part) abort();
    const int clusters = cuda_of(be)->processors / SHARES;
    int count = cut_nodes(l, order, INT32_MAX, whole), bound = whole[0].cost, used = 0;
    int best = time_of(whole, count, tiles, clusters);
    for (int most = bound, least = most / 16; most > least; most -= most / 32 + 1) {
        int time = time_of(whole, cut_nodes(l, order, most, whole), tiles, clusters);
        if (time >= best) continue;
        best = time;
        bound = most;
    }
    made->count = cut_nodes(l, order, bound, whole);
    size_t sources = 1;
    for (int i = 0; i < made->count; i++) sources += (size_t)whole[i].sources;
    shared_source *source = (shared_source *)calloc(sources, sizeof *source);
    if (!source) abort();
    for (int i = 0; i < made->count; i++) {
        used = merge_lists(l, &whole[i], part + i * SHARES, source, used);
    }
    made->part = (shared_part *)cuda_table(be, part, (size_t)made->count * SHARES * sizeof *part);
    made->source = (shared_source *)cuda_table(be, source, ((size_t)used + 1) * sizeof *source);
    free(whole);
    free(part);
    free(source);
}

/* Of nodes in `side` pieces, sources in `depth`. */
static void build_side(backend *be, shared_parts *made, const node_lists *whole, int side,
                       int depth) {
    const int nodes = whole->nodes * side, entries = whole->end[whole->nodes - 1] * depth;
    int *begin = host_table((size_t)nodes), *end = host_table((size_t)nodes);
    int *other = host_table((size_t)entries), *order = host_table((size_t)nodes);
    for (int i = 0; i < nodes; i++) {
        begin[i] = whole->begin[i / side] * depth;
        end[i] = whole->end[i / side] * depth;
    }
    for (int k = 0; k < entries; k++) other[k] = whole->other[k / depth] * depth + k % depth;
    const node_lists pieces = {nodes, whole->sources * depth, begin, end, other};
    order_nodes(&pieces, SLOTS, order);
    for (int i = 0; i < SHARED_CUTS; i++) build_parts(be, &made[i], &pieces, order, i + 1);
    free(begin);
    free(end);
    free(other);
    free(order);
}

void shared_create(backend *be, device_layout *device, const layout *l) {
    const int side = l->gates * l->in_block / TILE, depth = l->in_block / TILE;
    const node_lists rows = row_lists(l), columns = column_lists(l);
    build_side(be, device->shared_forward, &rows, side, depth);
    build_side(be, device->shared_backward, &columns, depth, side);
}

/* ----------------------------------------------------------------------------------- launches */

bool shared_fits(const backend *be, const layout *l) {
    return cuda_of((backend *)(uintptr_t)be)->hopper && be->precision == TF32 &&
           l->in_block >= TILE && !layout_is_dense(l);
}

bool shared_takes(const backend *be, const layout *l, int columns) {
    return shared_fits(be, l) && columns >= COLUMNS;
}

template <bool FORWARD>
static void launch(backend *be, const device_layout *device, const void *w, const void *x,
                   int columns, void *y) {
    const layout *l = &device->host;
    const int side = l->gates * l->in_block / TILE, depth = l->in_block / TILE;
    const int tiles = (columns + COLUMNS - 1) / COLUMNS;
    const shared_parts *parts = FORWARD ? device->shared_forward : device->shared_backward;
    parts += min(tiles, SHARED_CUTS) - 1;
    const shared_arguments p = {parts->part,
                                parts->source,
                                FORWARD ? NULL : l->column_block,
                                log2_of(FORWARD ? depth : side),
                                log2_of(FORWARD ? side : depth),
                                tiles,
                                columns,
                                cuda_of(be)->weights_settled,
                                (float *)y};
    const CUtensorMapDataType rounded = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    CUtensorMap w_map, x_map;
    const size_t in = FORWARD ? layout_inputs(l) : layout_rows(l);
    if (!map_floats(be, &w_map, rounded, w, (size_t)l->blocks * l->gates * l->in_block, l->in_block,
                    1) ||
        !map_floats(be, &x_map, rounded, x, in, columns, 1))
        return;
    cuda_launch(be, "shared product", true, shared_product<FORWARD>,
                dim3((unsigned)(SHARES * parts->count * tiles)), ALL_THREADS, BYTES, w_map, x_map,
                p);
    cuda_of(be)->weights_settled = true;
}

void shared_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                  int columns, void *y) {
    launch<true>(be, device, w, x, columns, y);
}

void shared_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                  int columns, void *dx) {
    launch<false>(be, device, w, dy, columns, dx);
}
