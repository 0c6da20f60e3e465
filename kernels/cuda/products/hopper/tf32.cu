/* hopper_tf32: fprop and dgrad in tf32 on Hopper, of 128 columns and more, blocks of 32 and more;
 * of 64 columns where products/portable/tf32.cu would take longer: dense patterns, and long lists.
 *
 *   y' [columns][32 units of a node] = sum over its sources  x' [columns][32] W [32][32]
 *
 * Floors are those of products/portable/bf16.cu with 4 bytes an element. What L2 delivers decides:
 * at block 32 and 128 columns every block of 4 KB gathers 16 KB of activations. So a thread block
 * makes a part of up to six nodes times 128 columns, or 64, with all sums in registers, and the
 * union of their sources goes by once: of each, 32 rows of activations, which every node that has a
 * block for them shares, and those blocks. Nodes with like sources are put together. Nodes and
 * sources are pieces of 32 here, so that larger blocks, and gates of one pattern, are nodes with
 * equal lists.
 *
 * Parts are fewer than multiprocessors, so where there is one tile of columns a cluster of two
 * thread blocks shares a part: its sources are two lists, and each goes through one, then adds up
 * half of the nodes, in a fixed order. Where there are more tiles, thread blocks go through both
 * lists and make one tile after the other, whose first sources come while the last one's results
 * leave.
 *
 * Boxes of 32 x 32 lie in shared memory one after another, round and round: a source takes four, or
 * two, for its activations, together, as one copy brings them, and one a block, so that little is
 * left empty and 224 KB are on their way, across tiles. The copy engine rounds them to tf32 (the
 * type of its maps says so). Activations are the left operand, from registers, which is wgmma's
 * full rate also for 32 units; their columns are dealt to lanes such that these find different
 * banks. The right operand must lie along k: so weights do for fprop, and for dgrad two warps turn
 * them over. A warpgroup has a third of the nodes and all of the columns: so it waits once, for two
 * products of 64 columns, for each block, and warpgroups fill each other's gaps.
 *
 * On an H200, 12,288 units at density 0.1 and 128 columns, 231 MB come into the multiprocessors;
 * with products that takes 33 us, and dgrad 37, of which 6 go before the first and after the last
 * product; at density 0.03 these 6 are of 15.5. At density 0.5 fprop takes 103 and dgrad 119 us,
 * where memory alone takes 73; 64 columns take 79 and 110 us of memory's 72. 512 columns take 22 us
 * at density 0.01 and 43 at 0.03. What did not help: docs/kernels/fprop-dgrad.md. */
#include "products/hopper/float_tiles.cuh"
#include "products/hopper/tf32.cuh"

enum {
    TEAMS = 3,           /* warpgroups, for a third of the nodes each: */
    OWN = SLOTS / TEAMS, /* of each */
    HALF = 64,           /* columns of a product */
    WORKERS = TEAMS * 4, /* warps that multiply */
    HELPERS = 4,         /* warps that do not */
    ALL_THREADS = (WORKERS + HELPERS) * 32,
    WORKER_REGISTERS = 144,
    HELPER_REGISTERS = 80,
    PLACES = 56, /* for boxes, in shared memory */
    STAGES = 16, /* sources that lie there at most */
    BARRIERS = PLACES * TILE_BYTES,
    /* WORDS: of each stage, its first place, and which nodes have blocks. */
    WORDS = BARRIERS + 3 * STAGES * 8,
    BYTES = WORDS + STAGES * 4 + 1024
};

/* Of tiles of 64 or 128 columns; SHARED: by clusters, whose thread blocks go through a list
 * each. */
template <bool FORWARD_, int COLUMNS_, bool SHARED_> struct tf32_shape {
    static const bool FORWARD = FORWARD_, SHARED = SHARED_;
    static const int CLUSTER = SHARED ? SHARES : 1, LISTS = SHARES / CLUSTER;
    static const int COLUMNS = COLUMNS_, BOXES = COLUMNS / TILE; /* of a source's activations */
    static const int HALVES = COLUMNS / HALF;
    static const int TURNERS = FORWARD ? 0 : 2;     /* warps that turn weights over */
    static const int PRODUCERS = HELPERS - TURNERS; /* ... that bring in sources */
    /* Else a producer might be so far ahead of another that it takes a stage's phase for the one
     * after. */
    static_assert(PLACES / (2 * BOXES - 1 + SLOTS) >= PRODUCERS, "room for the sources of all");
};

typedef struct tf32_arguments {
    const tf32_part *part;
    const tf32_source *source;
    const uint32_t *block; /* where those lie that the sources have, one after another */
    int window, blocks;    /* see tf32_parts */
    int tiles, items;      /* tiles: of the columns; items: of all parts */
    int columns;
    int overlap; /* weights may be read before the kernel before this one ends */
    float *y;
} tf32_arguments;

/* Barriers of the ring: stages that have arrived, that are transposed, that are released. */
struct barriers {
    uint32_t full, turned, empty;
};

/* The item that a thread block computes in a turn: a part's tile of columns. The costliest come
 * first, so every second turn runs backwards. */
template <typename S> static __device__ inline int item_of(int turn) {
    const int mine = blockIdx.x / S::CLUSTER, all = gridDim.x / S::CLUSTER;
    return turn % 2 ? (turn + 1) * all - 1 - mine : turn * all + mine;
}

/* The first of the lists of an item that this thread block goes through. */
template <typename S> static __device__ inline int list_of(const tf32_arguments &p, int item) {
    return item / p.tiles * SHARES + blockIdx.x % S::CLUSTER;
}

/* Their sources. */
template <typename S> static __device__ inline int count_of(const tf32_arguments &p, int item) {
    const tf32_part *part = p.part + list_of<S>(p, item);
    return part->count + (S::LISTS > 1 ? part[1].count : 0);
}

/* Where the box lies that is `after` boxes on. */
static __device__ inline uint32_t place_after(uint32_t place, int after) {
    const uint32_t next = place + after;
    return (next < PLACES ? next : next - PLACES) * TILE_BYTES;
}

/* Places of sources in shared memory: one after another in a ring, with a source's activations
 * contiguous. Places are counted without wrapping. */
template <typename S> struct places {
    int source = 0, place = 0; /* the next source's number, and place in the ring */
    int begins = 0;            /* how many places were taken before it */
    int before = -PLACES;      /* lane i: the same of the latest source in stage i */

    /* Moves the next source to where its activations are contiguous. */
    __device__ void begin() {
        if (place + S::BOXES <= PLACES) return;
        begins += PLACES - place;
        place = 0;
    }

    /* The last source that must be released before the next one, of `boxes` boxes, is fetched: it,
     * and all before it, overlap the next one's places or have its stage. */
    __device__ int source_before(int boxes) const {
        const bool overlaps = (int)threadIdx.x % 32 < STAGES && before < begins + boxes - PLACES;
        return source - STAGES + max(__popc(__ballot_sync(~0u, overlaps)) - 1, 0);
    }

    __device__ void next(int boxes) {
        if ((int)threadIdx.x % 32 == source % STAGES) before = begins;
        source++;
        begins += boxes;
        place += boxes;
        if (place >= PLACES) place -= PLACES;
    }
};

/* Each lane brings in a block, the last lane the activations. */
template <typename S>
static __device__ __forceinline__ void
produce_list(const CUtensorMap &w_map, const CUtensorMap &x_map, const tf32_arguments &p, int list,
             int column0, uint32_t base, barriers ring, places<S> &at) {
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 - WORKERS;
    const tf32_part *part = p.part + list;
    const int count = part->count, first = part->first;
    const uint32_t *block = p.block + part->block + lane;
    /* Lanes' windows, of sources and blocks; the next ones are looked up before they are used. */
    const tf32_source *source = p.source + first + lane % WINDOW;
    tf32_source window = p.source[list * p.window + lane % WINDOW], next = source[WINDOW];
    uint32_t blocks = __ldg(p.block + list * p.blocks + lane), next_blocks = __ldg(block + BLOCKS);
    int used = 0; /* of these blocks */
    for (int i = 0; i < count; i++) {
        if (i && i % WINDOW == 0) {
            window = next;
            next = source[i + WINDOW];
        }
        const uint32_t node = __shfl_sync(~0u, window, i % WINDOW);
        const uint32_t mask = node & ((1 << SLOTS) - 1);
        const int has = __popc(mask), number = at.source;
        at.begin();
        if (number % S::PRODUCERS == mine) {
            const int stage = number % STAGES, before = at.source_before(S::BOXES + has);
            const uint32_t barrier = ring.full + stage * 8;
            uint32_t of = __shfl_sync(~0u, blocks, (used + lane) % BLOCKS);
            if (used + has > BLOCKS) {
                const uint32_t later = __shfl_sync(~0u, next_blocks, (used + lane) % BLOCKS);
                if (used + lane >= BLOCKS) of = later;
            }
            if (before >= 0) {
                barrier_wait(ring.empty + before % STAGES * 8, before / STAGES & 1);
            }
            if (lane == 0) {
                shared_store(base + WORDS + stage * 4, at.place << SLOTS | mask);
                barrier_expect(barrier, (S::BOXES + has) * TILE_BYTES);
            }
            __syncwarp();
            if (lane < has) {
                tensor_load(base + place_after(at.place, S::BOXES + lane), &w_map, barrier,
                            (int)(of % 4) * TILE, (int)(of / 4) * TILE, 0);
            }
            if (p.overlap && number < S::PRODUCERS) wait_for_earlier();
            if (lane == 31) {
                tensor_load(base + at.place * TILE_BYTES, &x_map, barrier, 0,
                            (node >> SLOTS) * TILE, column0 / TILE);
            }
        }
        at.next(S::BOXES + has);
        used += has;
        if (used >= BLOCKS) {
            used -= BLOCKS;
            block += BLOCKS;
            blocks = next_blocks;
            next_blocks = __ldg(block + BLOCKS);
        }
    }
}

template <typename S>
static __device__ __forceinline__ void produce(const CUtensorMap &w_map, const CUtensorMap &x_map,
                                               const tf32_arguments &p, uint32_t base,
                                               barriers ring) {
    places<S> at;
    if (!p.overlap) wait_for_earlier();
    for (int turn = 0, item; (item = item_of<S>(turn)) < p.items; turn++) {
        for (int i = 0; i < S::LISTS; i++) {
            produce_list<S>(w_map, x_map, p, list_of<S>(p, item) + i, item % p.tiles * S::COLUMNS,
                            base, ring, at);
        }
    }
}

/* Transposes the sources' blocks, which are dealt out to the turners. */
template <typename S>
static __device__ __forceinline__ void turn(const tf32_arguments &p, uint32_t base, barriers ring) {
    const int mine = threadIdx.x / 32 - WORKERS - S::PRODUCERS;
    const turning own;
    int i = 0, last = 0;
    for (int turn = 0, item; (item = item_of<S>(turn)) < p.items; turn++) {
        for (last += count_of<S>(p, item); i < last; i++) {
            const int stage = i % STAGES;
            barrier_wait(ring.full + stage * 8, i / STAGES & 1);
            const uint32_t word = shared_load(base + WORDS + stage * 4);
            const int blocks = __popc(word & ((1 << SLOTS) - 1));
            for (int block = (mine + i) % S::TURNERS; block < blocks; block += S::TURNERS) {
                own.turn(base + place_after(word >> SLOTS, S::BOXES + block));
            }
            shared_fence();
            __syncwarp();
            barrier_arrive_warp(ring.turned + stage * 8);
            barrier_arrive_warp(ring.empty + stage * 8);
        }
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
template <int HALVES>
static __device__ __forceinline__ void multiply(float (&sum)[HALVES][16],
                                                const uint32_t (&a)[HALVES][4][4], uint32_t block) {
    product_fence();
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint64_t w = matrix_descriptor(block + k * 32, SWIZZLE_128, 16, 8 * TILE_ROW);
#pragma unroll
        for (int half = 0; half < HALVES; half++) warpgroup_multiply_tf32(sum[half], a[half][k], w);
    }
    product_commit();
    product_wait<0>(); /* in this branch, lest the compiler wait after every product */
}

/* Stores a thread's results of a node, from its first column on: its own sums, and those of the
 * cluster's other thread block at `other`, if there is one. */
template <typename S>
static __device__ __forceinline__ void store_node(const tf32_arguments &p, int node, int column,
                                                  const float (&sum)[S::HALVES][16],
                                                  uint32_t other) {
    float *y = p.y + (size_t)(node * TILE + threadIdx.x % 4 * 2) * p.columns + column;
#pragma unroll
    for (int j = 0; j < 4 * S::HALVES; j++) {
        const float *d = &sum[j / 4][j % 4 * 4];
        if (column + j / 4 * HALF >= p.columns) continue;
        float4 v = make_float4(0, 0, 0, 0);
        if (S::SHARED) v = cluster_load4(other + j * WORKERS * 32 * 16);
        float *to = y + (size_t)(j % 4 * 8) * p.columns + j / 4 * HALF;
        *(float2 *)to = make_float2(d[0] + v.x, d[2] + v.z);
        *(float2 *)(to + p.columns) = make_float2(d[1] + v.y, d[3] + v.w);
    }
}

/* Stores a part's results: each of a cluster's thread blocks adds up the sums of both for half of
 * the nodes. */
template <typename S>
static __device__ __forceinline__ void finish(const tf32_arguments &p, int item, uint32_t base,
                                              const float (&sum)[OWN][S::HALVES][16]) {
    const tf32_part *part = p.part + list_of<S>(p, item);
    const int first = threadIdx.x / GROUP * OWN, nodes = part->nodes;
    const int rank = S::SHARED ? cluster_rank() : 0, slot_bytes = 4 * S::HALVES * WORKERS * 512;
    const int column = item % p.tiles * S::COLUMNS + threadIdx.x / 64 % 2 * TILE + own_column();
    const uint32_t mine = base + threadIdx.x * 16;
    uint32_t other = 0;
    if (S::SHARED) {
        other = cluster_address(mine, rank ^ 1);
        group_sync(1, WORKERS * 32); /* the ring is done with */
#pragma unroll
        for (int slot = 0; slot < OWN; slot++) {
            if ((first + slot) % SHARES == rank || first + slot >= nodes) continue;
#pragma unroll
            for (int j = 0; j < 4 * S::HALVES; j++) {
                const float *d = &sum[slot][j / 4][j % 4 * 4];
                shared_store4(mine + slot * slot_bytes + j * WORKERS * 512,
                              make_float4(d[0], d[1], d[2], d[3]));
            }
        }
        cluster_sync();
    }
#pragma unroll
    for (int slot = 0; slot < OWN; slot++) {
        if (S::SHARED && (first + slot) % SHARES != rank) continue;
        if (first + slot >= nodes) continue;
        store_node<S>(p, part->node[first + slot], column, sum[slot], other + slot * slot_bytes);
    }
}

/* A warp's share of an item: two nodes, and of 64 columns each 16. */
template <typename S>
static __device__ __forceinline__ void multiply_item(int count, uint32_t base, barriers ring,
                                                     int &stage, int &phase,
                                                     float (&sum)[OWN][S::HALVES][16]) {
    const int first = threadIdx.x / GROUP * OWN, box = threadIdx.x / 64 % 2;
    for (int i = 0; i < count; i++) {
        barrier_wait(ring.full + stage * 8, phase);
        uint32_t word = shared_load(base + WORDS + stage * 4);
        word = __reduce_or_sync(~0u, word); /* the same in all lanes */
        const uint32_t mine = word >> first & ((1 << OWN) - 1);
        if (mine) {
            uint32_t a[S::HALVES][4][4];
#pragma unroll
            for (int half = 0; half < S::HALVES; half++) {
                load_left(a[half], base + ((word >> SLOTS) + 2 * half + box) * TILE_BYTES);
            }
            int after = S::BOXES + __popc(word & ((1 << first) - 1));
            if (!S::FORWARD) barrier_wait(ring.turned + stage * 8, phase);
#pragma unroll
            for (int slot = 0; slot < OWN; slot++) {
                if (mine >> slot & 1) {
                    multiply(sum[slot], a, base + place_after(word >> SLOTS, after++));
                }
            }
        }
        __syncwarp(); /* all lanes have read */
        barrier_arrive_warp(ring.empty + stage * 8);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
        if (stage == 0) phase ^= 1;
    }
}

template <typename S>
static __global__ void __launch_bounds__(ALL_THREADS, 1)
    hopper_tf32(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ tf32_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    const int warp = threadIdx.x / 32;
    const barriers ring = {base + BARRIERS, base + BARRIERS + STAGES * 8,
                           base + BARRIERS + 2 * STAGES * 8};
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(ring.full + s * 8, 1);
            barrier_init_warps(ring.turned + s * 8, S::TURNERS);
            barrier_init_warps(ring.empty + s * 8, WORKERS + S::TURNERS);
        }
    }
    barrier_init_done();
    __syncthreads();

    if (warp >= WORKERS) {
        registers_shrink<HELPER_REGISTERS>();
        if (warp < WORKERS + S::PRODUCERS) {
            produce<S>(w_map, x_map, p, base, ring);
        } else if constexpr (!S::FORWARD) {
            turn<S>(p, base, ring);
        }
        if (S::SHARED) cluster_sync();
    } else {
        registers_grow<WORKER_REGISTERS>();
        wait_for_earlier(); /* also for kernels that read y */
        let_next_start();
        int stage = 0, phase = 0;
        for (int turn = 0, item; (item = item_of<S>(turn)) < p.items; turn++) {
            float sum[OWN][S::HALVES][16] = {};
            multiply_item<S>(count_of<S>(p, item), base, ring, stage, phase, sum);
            finish<S>(p, item, base, sum);
        }
    }
    if (S::SHARED) cluster_sync(); /* neither ends while the other reads its sums */
#endif
}

/* ----------------------------------------------------------------------------------- launches */

bool hopper_tf32_takes(const device_layout *, const void *plan, const product_call *c) {
    const tf32_tables *tables = (const tf32_tables *)plan;
    const tf32_parts *parts = c->op == FPROP ? tables->forward : tables->backward;
    if (c->steps > 1) return false;
    if (c->columns == HALF) return parts[0].part != NULL;
    return c->columns >= 2 * HALF && parts[1].part;
}

/* Activations as boxes of 32 columns side by side, of which one copy brings `boxes`. */
static bool map_boxes(backend *be, CUtensorMap *map, CUtensorMapDataType type, const void *x,
                      size_t rows, int columns, int boxes) {
    const uint64_t extent[3] = {TILE, rows, (uint64_t)columns / TILE};
    const uint64_t stride[2] = {(uint64_t)columns * 4, TILE_ROW};
    const uint32_t box[3] = {TILE, TILE, (uint32_t)boxes};
    return make_map_of(type, be, map, x, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <bool FORWARD, int COLUMNS, bool SHARED>
static void launch(backend *be, const device_layout *device, const tf32_parts *made,
                   const product_call *c) {
    typedef tf32_shape<FORWARD, COLUMNS, SHARED> S;
    const layout *l = &device->host;
    const tf32_parts *parts = &made[COLUMNS > HALF];
    const int columns = c->columns, tiles = (columns + COLUMNS - 1) / COLUMNS;
    const int items = parts->count * tiles;
    const int grid = SHARED ? SHARES * items : min(items, cuda_of(be)->processors);
    const tf32_arguments p = {parts->part,    parts->source, parts->block,
                              parts->window,  parts->blocks, tiles,
                              items,          columns,       cuda_of(be)->weights_settled,
                              (float *)c->out};
    const CUtensorMapDataType rounded = CU_TENSOR_MAP_DATA_TYPE_TFLOAT32;
    CUtensorMap w_map, x_map;
    const size_t in = FORWARD ? layout_inputs(l) : layout_rows(l);
    const size_t rows = (size_t)l->blocks * l->gates * l->in_block;
    if (!map_floats(be, &w_map, rounded, c->left, rows, l->in_block, 1) ||
        !map_boxes(be, &x_map, rounded, c->right, in, columns, S::BOXES))
        return;
    cuda_launch_clusters(be, "hopper_tf32", true, S::CLUSTER, hopper_tf32<S>, dim3(grid),
                         ALL_THREADS, BYTES, w_map, x_map, p);
    cuda_of(be)->weights_settled = true;
}

template <bool FORWARD>
static void launch_columns(backend *be, const device_layout *device, const tf32_parts *made,
                           const product_call *c) {
    if (c->columns == HALF) {
        launch<FORWARD, HALF, true>(be, device, made, c);
    } else if (c->columns <= 2 * HALF) {
        launch<FORWARD, 2 * HALF, true>(be, device, made, c);
    } else {
        launch<FORWARD, 2 * HALF, false>(be, device, made, c);
    }
}

void hopper_tf32_run(backend *be, const device_layout *device, const void *plan,
                     const product_call *c) {
    const tf32_tables *tables = (const tf32_tables *)plan;
    if (c->op == FPROP) {
        launch_columns<true>(be, device, tables->forward, c);
    } else {
        launch_columns<false>(be, device, tables->backward, c);
    }
}
