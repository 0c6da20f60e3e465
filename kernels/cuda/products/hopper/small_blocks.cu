/* small_blocks: fprop and dgrad of blocks of 8 and 16 on Hopper, of many columns.
 *
 *   y [64 units][columns] = sum over the units' sources  A [64 units][b] x [b][columns],
 *   A = W for fprop, W' for dgrad
 *
 * Floors: 2 blocks b^2 columns operations; the weights, x and y once through memory; and what the
 * thread blocks gather from L2. A product of tensor cores has 64 rows and a depth of 16, which is
 * more than a block: tiles of 64 units are made of 8 or 4 nodes, and a step of two sources of 8 or
 * one of 16 is done if any node of the tile has a block for one of them, with zeros for those that
 * have none. So arithmetic is that of a dense product times the share of sources that a tile has:
 * of 12,288 units in random blocks of 8, 59 % at density 0.1, 23 % at 0.03.
 *
 * A part of 192 units times up to 256 columns has its sums in the registers of three warpgroups, a
 * tile each. The union of its nodes' sources goes by once, in stages of 64 rows of activations,
 * which are the right operand and lie as TMA leaves them: two sources of 8 need not be neighbours,
 * the distance of two groups of 8 rows is part of an operand's description. Weights are the left
 * operand and come from registers. An 8 x 8 block is one of ldmatrix's, which also turns it over
 * for dgrad, so that blocks lie as they come from memory, and where there is none, lanes read a row
 * of zeros instead: nothing is cleared or rearranged. All blocks of a part are listed in the order
 * in which they are used; four warps take stages in turn and fetch blocks by cp.async, x by TMA.
 *
 * Four gates are nodes of their own for fprop, and sources of their own for dgrad.
 *
 * Whole tiles of 192 units and 256 or 128 columns are dealt out to thread blocks as long as there
 * are enough; the rest is cut into shares of equally many stages (split-K).
 *
 * What holds it, on an H200 with blocks of 8 and 512 columns: at density 0.5, 241 us, of which the
 * loads alone take 157 and the products alone 213, and 0.03, 68 us, 44 and 64. A warpgroup waits
 * for each step's products before it loads the next weights, as registers for both are not to be
 * had; the other two fill only part of this gap. */
#include "plan/small_blocks.h"
#include "products/hopper/hopper.cuh"

enum {
    SMALL_GROUPS = 3, /* warpgroups that multiply, of 64 units each */
    SMALL_CONSUMERS = SMALL_GROUPS * GROUP,
    SMALL_THREADS = SMALL_CONSUMERS + GROUP,
    FETCHERS = 4, /* warps */
    SMALL_CONSUMER_REGISTERS = 160,
    FETCHER_REGISTERS = 32
};

/* Rows of activations, for each that a stage brings, that nodes must use to make this kernel faster
 * than few_columns at 128 columns; measured. */
static const double WORTH_GATHERING = 3.5;

typedef struct small_blocks_arguments {
    small_blocks_parts parts;
    const char *w;
    bf16 *y;
    partial_sums partial;
    int columns, tiles; /* tiles: of columns */
    int grid;           /* thread blocks */
    int boxes;          /* TMA boxes of a source's activations: 1, or one for each 64 columns */
    /* Each thread block takes so many whole tiles; after them a share of the rest, if there is
     * one. */
    int turns;
    int rest, end;           /* the stages cut into shares, counted over all tiles */
    int shares, each, extra; /* stages of each share; the first shares have one more */
} small_blocks_arguments;

/* N: columns of a tile. A stage is DEPTH / B sources' activations, each [N / 64][B][64 columns]
 * with a swizzle, and a place for each block of W that a node may have for one of these sources. */
template <int B, int N> struct small_shape {
    static const int SOURCES = DEPTH / B, NODES = SMALL_UNITS / B;
    static const int SOURCE_BYTES = B * N * 2, X_BYTES = DEPTH * N * 2;
    static const int BLOCK_BYTES = B * B * 2, STAGE = X_BYTES + SOURCES * NODES * BLOCK_BYTES;
    static const int STAGES = (MOST_SHARED - RING_ROOM) / STAGE;
    static const int HAS = STAGES * STAGE, ZERO = HAS + STAGES * 32;
    static const int BARRIERS = ZERO + 16, PARKED = BARRIERS + STAGES * 16;
    static const int BYTES = PARKED + SMALL_THREADS + 1024;
    static_assert(SOURCES * NODES <= 1 << PLACE_BITS, "a place's bits");
    /* Otherwise a fetcher could mistake a stage's phase for the next one. */
    static_assert(STAGES >= FETCHERS, "a stage for each");
};

/* --------------------------------------------------------------------------------------- tiles
 * in the order in which they are dealt out: parts from long to short, each for two column tiles,
 * so that thread blocks which run together share weights and activations in L2. */

typedef struct small_tile {
    int part, column;
    int begin, end; /* the part's stages that are still to be computed */
    int stages;     /* that the part has */
} small_tile;

/* The part and the column of tile i, if there are `parts` parts and `tiles` column tiles. */
static __host__ __device__ inline void find_tile(int parts, int tiles, int i, int *part,
                                                 int *column) {
    const int pair = i / (2 * parts), within = i % (2 * parts);
    const bool single = 2 * pair + 1 == tiles;
    *part = single ? within : within / 2;
    *column = 2 * pair + (single ? 0 : within % 2);
}

struct small_walk {
    const small_blocks_arguments &p;
    int turn;
    int end, start; /* where the rest of the share ends; where its latest tile starts */

    __device__ small_walk(const small_blocks_arguments &p_) : p(p_), turn(0), start(0) {
        end = share(blockIdx.x + 1);
    }

    /* The first stage of a thread block's share of the rest. */
    __device__ int share(int i) const {
        i = min(i, p.shares);
        return p.rest + i * p.each + min(i, p.extra);
    }

    __device__ void whole(small_tile *tile, int i) const {
        find_tile(p.parts.count, p.tiles, i, &tile->part, &tile->column);
        tile->begin = 0;
        tile->end = tile->stages =
            __ldg(p.parts.stage + tile->part + 1) - __ldg(p.parts.stage + tile->part);
    }

    /* The part to which a stage belongs; all lanes of a warp call this and get it. */
    __device__ int part_of(int stage) const {
        const int lane = threadIdx.x % 32;
        int before = 0;
        for (int i = lane; i - lane < p.parts.count; i += 32) {
            bool is = i < p.parts.count && __ldg(p.parts.stage + i) <= stage;
            before += __popc(__ballot_sync(~0u, is));
        }
        return before - 1;
    }

    /* Finds the tile, or the share of it, that ends at `end`. Returns where this tile begins. */
    __device__ int locate(small_tile *tile, int begin) const {
        const int latest = end - 1, pair = latest / (2 * p.parts.stages);
        const int within = latest % (2 * p.parts.stages);
        const bool single = 2 * pair + 1 == p.tiles;
        tile->part = part_of(single ? within : within / 2);
        const int first = __ldg(p.parts.stage + tile->part);
        tile->stages = __ldg(p.parts.stage + tile->part + 1) - first;
        tile->end = within - (single ? 1 : 2) * first + 1;
        const bool second = tile->end > tile->stages;
        if (second) tile->end -= tile->stages;
        tile->column = 2 * pair + second;
        tile->begin = max(0, tile->end - (end - begin));
        return end - tile->end;
    }

    /* Moves to the next tile or share of a tile, if there is one. A thread block's last share comes
     * first, since others wait for it. */
    __device__ bool next(small_tile *tile) {
        if (turn < p.turns) {
            const int place = turn % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
            const int i = turn++ * gridDim.x + place;
            if (i >= p.parts.count * p.tiles) return false;
            whole(tile, i);
            return true;
        }
        const int begin = share(blockIdx.x);
        if (begin >= end) return false;
        start = locate(tile, begin);
        end -= tile->end - tile->begin;
        return true;
    }
};

/* While a warp computes a tile, its position waits in shared memory, since registers are scarce. */
static __device__ __forceinline__ void park(uint32_t to, const small_walk &walk,
                                            const small_tile &tile) {
    __syncwarp();
    shared_store(to, walk.turn);
    shared_store(to + 4, walk.end);
    shared_store(to + 8, walk.start);
    shared_store(to + 12, tile.part);
    shared_store(to + 16, tile.column);
    shared_store(to + 20, tile.begin);
    shared_store(to + 24, tile.end);
    shared_store(to + 28, tile.stages);
    __syncwarp();
}

static __device__ __forceinline__ void unpark(uint32_t from, small_walk *walk, small_tile *tile) {
    walk->turn = shared_load(from);
    walk->end = shared_load(from + 4);
    walk->start = shared_load(from + 8);
    tile->part = shared_load(from + 12);
    tile->column = shared_load(from + 16);
    tile->begin = shared_load(from + 20);
    tile->end = shared_load(from + 24);
    tile->stages = shared_load(from + 28);
}

/* ------------------------------------------------------------------------------------- fetchers */

/* Makes this thread's copies so far arrive at a barrier, which counts them, once they are
 * complete. */
static __device__ inline void copies_arrive(uint32_t barrier) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* What a fetcher reads of a stage before it fetches it. */
struct small_lookup {
    uint32_t list;  /* the stage's entries: the first, and in the low bits how many */
    uint32_t entry; /* a lane's of the first 32 */
    uint32_t info;  /* the first lanes': their source; lanes from 16 on: four nodes' `has` */
};

template <int B>
static __device__ __forceinline__ void look_up(const small_blocks_arguments &p, int stage,
                                               small_lookup *s) {
    const int lane = threadIdx.x % 32, sources = DEPTH / B, words = SMALL_UNITS / B / 4;
    const int count = s->list & ((1 << PLACE_BITS) - 1);
    if (lane < count) s->entry = __ldg(p.parts.entry + (s->list >> PLACE_BITS) + lane);
    if (lane < sources) s->info = __ldg(p.parts.source + stage * sources + lane);
    if (lane >= 16 && lane < 16 + words)
        s->info = __ldg((const uint32_t *)p.parts.has + stage * words + lane - 16);
}

/* Fetches a stage's blocks. An entry has a place and the number of a block; several lanes fetch a
 * block, 16 bytes each. */
template <int B>
static __device__ __forceinline__ void fetch_blocks(const small_blocks_arguments &p, const char *w,
                                                    const small_lookup &s, uint32_t to) {
    const int LANES = B * B * 2 / 16, AT_ONCE = 32 / LANES, lane = threadIdx.x % 32;
    const int count = s.list & ((1 << PLACE_BITS) - 1);
    const uint32_t *list = p.parts.entry + (s.list >> PLACE_BITS) + lane;
    uint32_t entry = s.entry;
    for (int from = 0; from < count; from += 32) {
        const uint32_t next = from + 32 + lane < count ? __ldg(list + from + 32) : 0;
#pragma unroll 4
        for (int i = 0; i < min(32, count - from); i += AT_ONCE) {
            const uint32_t mine = __shfl_sync(~0u, entry, i + lane / LANES);
            const uint32_t place = mine & ((1 << PLACE_BITS) - 1), block = mine >> PLACE_BITS;
            if (from + i + lane / LANES < count)
                copy_async(to + place * (B * B * 2), w + (size_t)block * (B * B * 2));
        }
        entry = next;
    }
}

/* Prefetches into the L2 the bytes of a table between these two. */
static __device__ inline void prefetch_table(const void *from, const void *to) {
    const uintptr_t begin = (uintptr_t)from & ~(uintptr_t)15, end = (uintptr_t)to & ~(uintptr_t)15;
    if (end > begin) prefetch((const void *)begin, (uint32_t)(end - begin));
}

/* Fetchers take stages in turn. */
template <int B, int N>
static __device__ __forceinline__ void fetch(const CUtensorMap &x_map,
                                             const small_blocks_arguments &p, uint32_t base) {
    typedef small_shape<B, N> S;
    const int lane = threadIdx.x % 32, mine = threadIdx.x / 32 % FETCHERS;
    const int chunk = lane % (B * B * 2 / 16); /* of a block */
    const char *w = p.w + chunk * 16;
    const uint32_t to_chunk = (B == 8 ? chunk : swizzle<2>(chunk / 2, chunk % 2)) * 16;
    const uint32_t parked = base + S::PARKED + threadIdx.x / 32 * 32;
    int use = mine; /* of all stages of this thread block */
    int before = 0; /* tiles' */
    small_walk walk(p);
    small_tile tile;
    while (walk.next(&tile)) {
        const int first = __ldg(p.parts.stage + tile.part) + tile.begin, column = tile.column * N;
        const int last = first + tile.end - tile.begin;
        const uint32_t *lists = p.parts.list;
        int stage = first + use - before;
        before += last - first;
        park(parked, walk, tile);
        small_lookup now = {}, next = {};
        if (stage < last) {
            now.list = __ldg(lists + stage);
            look_up<B>(p, stage, &now);
        }
        if (stage + FETCHERS < last) next.list = __ldg(lists + stage + FETCHERS);
        if (mine == 0 && elected()) {
            prefetch_table(p.parts.entry + (__ldg(lists + first) >> PLACE_BITS),
                           p.parts.entry + (__ldg(lists + last - 1) >> PLACE_BITS));
            prefetch_table(p.parts.source + first * S::SOURCES, p.parts.source + last * S::SOURCES);
            prefetch_table(p.parts.has + first * S::NODES, p.parts.has + last * S::NODES);
        }
        for (; stage < last; stage += FETCHERS, use += FETCHERS) {
            uint32_t list_after = 0;
            if (stage + FETCHERS < last) look_up<B>(p, stage + FETCHERS, &next);
            if (stage + 2 * FETCHERS < last) list_after = __ldg(lists + stage + 2 * FETCHERS);
            const int slot = use % S::STAGES;
            const uint32_t barrier = base + S::BARRIERS + slot * 8, to = base + slot * S::STAGE;
            barrier_wait(barrier + S::STAGES * 8, (use / S::STAGES & 1) ^ 1);
            if (lane >= 16 && lane < 16 + S::NODES / 4)
                shared_store(base + S::HAS + slot * 32 + (lane - 16) * 4, now.info);
            __syncwarp();
            if (elected()) barrier_expect(barrier, S::X_BYTES);
            __syncwarp();
            fetch_blocks<B>(p, w, now, to + S::X_BYTES + to_chunk);
            copies_arrive(barrier);
            if (p.boxes == 1) {
#pragma unroll
                for (int i = 0; i < S::SOURCES; i++) {
                    const int row = __shfl_sync(~0u, now.info, i) * B;
                    if (elected())
                        tensor_load(to + i * S::SOURCE_BYTES, &x_map, barrier, 0, row,
                                    column / BOX);
                }
            } else {
                const int boxes = N / BOX;
                const int row = __shfl_sync(~0u, now.info, lane / boxes) * B;
                if (lane < S::SOURCES * boxes)
                    tensor_load(to + lane * B * BOX_ROW, &x_map, barrier,
                                column + lane % boxes * BOX, row, 0);
            }
            now = next;
            next.list = list_after;
        }
        unpark(parked, &walk, &tile);
    }
    copy_wait<0>();
}

/* -------------------------------------------------------------------------------------- results */

/* Each of the four lanes that share a row has words i of columns 8 i ...; afterwards lane i has the
 * words of its own eight columns. */
static __device__ __forceinline__ uint4 gather_words(const uint32_t (&w)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
    uint32_t b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    const uint32_t w0 = odd ? a : w[0], w1 = odd ? w[1] : a;
    const uint32_t w2 = odd ? b : w[2], w3 = odd ? w[3] : b;
    a = __shfl_xor_sync(~0u, high ? w0 : w2, 2);
    b = __shfl_xor_sync(~0u, high ? w1 : w3, 2);
    return high ? make_uint4(a, b, w2, w3) : make_uint4(w0, w1, a, b);
}

template <int B, int N>
static __device__ __forceinline__ void write_results(const small_blocks_arguments &p,
                                                     const small_tile &tile,
                                                     const float (&sum)[N / 128][64]) {
    const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const uint16_t *node = p.parts.node + (size_t)tile.part * (SMALL_UNITS / B) + group * (64 / B);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int to = __ldg(node + (B == 8 ? warp * 2 + half : warp));
        const size_t row = (size_t)to * B + lane / 4 + (B == 8 ? 0 : half * 8);
#pragma unroll
        for (int m = 0; m < N / 32; m++) {
            uint32_t words[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float *d = &sum[m / 4][(m % 4 * 4 + k) * 4 + half * 2];
                words[k] = pack(d[0], d[1]);
            }
            const uint4 chunk = gather_words(words);
            const int column = tile.column * N + (m * 4 + lane % 4) * 8;
            if (to != NO_SOURCE && column < p.columns)
                *(uint4 *)(p.y + row * p.columns + column) = chunk;
        }
    }
}

/* Stores the partial sums of a share that does not end its tile. */
template <int N>
static __device__ __forceinline__ void hand_on(const partial_sums &e,
                                               const float (&sum)[N / 128][64]) {
    float4 *to = (float4 *)e.sums + (size_t)blockIdx.x * (SMALL_UNITS * N / 4) + threadIdx.x;
#pragma unroll
    for (int i = 0; i < N / 128; i++) {
        leave_sums<SMALL_CONSUMERS>(to + i * 16 * SMALL_CONSUMERS, sum[i]);
    }
    group_sync(1, SMALL_CONSUMERS);
    if (threadIdx.x == 0) raise_flag(e.full + blockIdx.x);
}

/* Adds the partial sums of all earlier shares of the latest tile, nearest first. */
template <int N>
static __device__ __forceinline__ void take_over(const partial_sums &e, const small_walk &walk,
                                                 float (&sum)[N / 128][64]) {
    for (int i = blockIdx.x - 1;; i--) {
        if (threadIdx.x == 0) {
            await_flag(e, e.full + i, 1, 0);
            __threadfence();
        }
        group_sync(1, SMALL_CONSUMERS);
        const float4 *from = (float4 *)e.sums + (size_t)i * (SMALL_UNITS * N / 4) + threadIdx.x;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            add_four_sums(&sum[j / 16][j % 16 * 4], __ldcg(from + j * SMALL_CONSUMERS));
        }
        group_sync(1, SMALL_CONSUMERS);
        if (threadIdx.x == 0) e.full[i] = 0;
        if (walk.share(i) <= walk.start) break;
    }
}

/* ------------------------------------------------------------------------------------- products */

/* The sources of a stage that a warpgroup has still to multiply for its tile. Lane i gives the
 * address of row i % 8 of the left operand's matrix i / 8; the second and fourth matrix are 8 rows
 * further, the third and fourth 8 of depth. */
template <int B, int N, bool FORWARD> struct small_steps {
    typedef small_shape<B, N> S;
    uint32_t x, w;      /* the right operand's description, low word; this lane's row of W */
    uint32_t left, has; /* a bit a source: still to do; the lane's node has a block */

    __device__ void open(uint32_t base, int slot) {
        const int group = threadIdx.x / GROUP, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
        const int node = B == 8 ? warp * 2 + lane / 8 % 2 : warp; /* of the tile */
        const uint32_t of_tile = base + S::HAS + slot * 32 + group * (64 / B),
                       at = base + slot * S::STAGE;
        uint2 nodes = {};
        if (B == 8) {
            nodes = shared_load2(of_tile);
        } else {
            nodes.x = shared_load(of_tile);
        }
        left = __reduce_or_sync(~0u, nodes.x | nodes.y); /* the same in all lanes */
        left |= left >> 16;
        left = (left | left >> 8) & 0xFF;
        has = (node < 4 ? nodes.x : nodes.y) >> node % 4 * 8;
        uint32_t row = lane % 8;
        if (B == 16) {
            row = FORWARD ? swizzle<2>(row + lane / 8 % 2 * 8, lane / 16)
                          : swizzle<2>(row + lane / 16 * 8, lane / 8 % 2);
        }
        x = at >> 4 | (B * BOX_ROW >> 4) << 16;
        w = at + S::X_BYTES + (group * (64 / B) + node) * S::BLOCK_BYTES + row * 16;
    }

    /* Takes the next source, or with blocks of 8 the next two: the addresses of the left operand,
     * and the description of the right one. */
    __device__ __forceinline__ uint32_t take(uint32_t base, uint64_t *right) {
        const bool behind = B == 8 && threadIdx.x % 32 >= 16;
        const uint32_t bit = left & (0 - left), rest = left ^ bit;
        const uint32_t second = B == 8 ? rest & (0 - rest) : 0;
        const int one = 31 - __clz(bit), two = second ? 31 - __clz(second) : one;
        left = rest ^ second;
        const uint32_t stride = B == 8 ? (two - one) * S::SOURCE_BYTES : 8 * BOX_ROW;
        *right =
            (uint64_t)(stride >> 4 | SWIZZLE_128 << 30) << 32 | (x + one * (S::SOURCE_BYTES / 16));
        const bool is = has & (behind ? second : bit);
        return is ? w + (behind ? two : one) * (S::NODES * S::BLOCK_BYTES) : base + S::ZERO;
    }
};

template <int B, int N, bool FORWARD>
static __global__ void __launch_bounds__(SMALL_THREADS, 1)
    small_blocks(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ small_blocks_arguments p) {
#if ON_HOPPER
    typedef small_shape<B, N> S;
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    if (threadIdx.x == 0) {
        for (int s = 0; s < S::STAGES; s++) {
            barrier_init(full + s * 8, 32 + 1);
            barrier_init_warps(empty + s * 8, SMALL_CONSUMERS / 32);
        }
    }
    if (threadIdx.x < 4) shared_store(base + S::ZERO + threadIdx.x * 4, 0);
    barrier_init_done();
    __syncthreads();

    if (threadIdx.x >= SMALL_CONSUMERS) {
        if (N > 128) registers_shrink<FETCHER_REGISTERS>();
        fetch<B, N>(x_map, p, base);
    } else {
        if (N > 128) registers_grow<SMALL_CONSUMER_REGISTERS>();
        const uint32_t parked = base + S::PARKED + threadIdx.x / 32 * 32;
        int slot = 0, phase = 0;
        small_walk walk(p);
        small_tile tile;
        while (walk.next(&tile)) {
            float sum[N / 128][64] = {};
            int stages = tile.end - tile.begin;
            park(parked, walk, tile);
            for (; stages; stages--) {
                small_steps<B, N, FORWARD> steps;
                barrier_wait(full + slot * 8, phase);
                steps.open(base, slot);
                bool more = steps.left;
                uint64_t x;
                uint32_t from;
                if (more) from = steps.take(base, &x);
                while (more) {
                    uint32_t a[4];
                    if (FORWARD) {
                        load_matrices(a, from);
                    } else {
                        load_matrices_transposed(a, from);
                    }
                    product_fence();
#pragma unroll
                    for (int i = 0; i < N / 128; i++)
                        warpgroup_multiply<1>(sum[i], a, x + i * (2 * B * BOX_ROW / 16));
                    product_commit();
                    more = steps.left;
                    if (more) from = steps.take(base, &x);
                    product_wait<0>();
                }
                __syncwarp(); /* all lanes have read */
                barrier_arrive_warp(empty + slot * 8);
                slot = slot + 1 == S::STAGES ? 0 : slot + 1;
                phase ^= slot == 0;
            }
            unpark(parked, &walk, &tile);
            if (tile.end < tile.stages) {
                hand_on<N>(p.partial, sum);
            } else {
                if (tile.begin > 0) take_over<N>(p.partial, walk, sum);
                write_results<B, N>(p, tile, sum);
            }
        }
    }
#endif
}

/* ------------------------------------------------------------------------------------- launches */

/* Returns the number of stages of tile i; `*before` is that of all earlier tiles. */
static int stages_of(const small_blocks_arguments *p, int i, int *before) {
    const small_blocks_parts *parts = &p->parts;
    int part, column;
    find_tile(parts->count, p->tiles, i, &part, &column);
    const int first = parts->host_stage[part], stages = parts->host_stage[part + 1] - first;
    const bool single = column + 1 == p->tiles && column % 2 == 0;
    *before = column / 2 * 2 * parts->stages + (single ? first : 2 * first + column % 2 * stages);
    return stages;
}

/* Tiles of n columns, and how they are distributed: in turns of whole tiles, and the rest whole or
 * in shares, whichever takes less time. Returns this time in stages. */
static int plan(small_blocks_arguments *p, int n, int processors) {
    /* The time of passing on a tile's partial sums, or of adding them, in stages. */
    enum { HAND_ON = 6 };
    p->tiles = (p->columns + n - 1) / n;
    p->turns = p->parts.count * p->tiles / processors;
    p->rest = p->end = p->each = p->extra = 0;
    p->shares = 1;
    int time = 0, before;
    for (int i = 0; i < p->turns; i++) time += stages_of(p, i * processors, &before);
    const int rest = p->parts.count * p->tiles - p->turns * processors;
    p->grid = p->turns ? processors : rest;
    if (!rest) return time;

    const int longest = stages_of(p, p->turns * processors, &before);
    const int stages = p->tiles * p->parts.stages - before;
    int best = longest;
    for (int shares = rest; shares <= min(processors, stages); shares++) {
        const int share = (stages + shares - 1) / shares;
        const int with_sums = share + HAND_ON * (1 + (longest + share - 1) / share);
        if (with_sums >= best) continue;
        best = with_sums;
        p->shares = shares;
        p->rest = before;
        p->end = before + stages;
        p->each = stages / shares;
        p->extra = stages % shares;
    }
    if (best == longest) {
        p->turns++;
    } else if (p->turns == 0) {
        p->grid = p->shares;
    }
    return time + best;
}

/* Activations in boxes of B rows and, if they end at a whole 64 columns, N columns, else 64. */
static bool map_small(backend *be, CUtensorMap *map, const void *x, size_t rows, int columns, int b,
                      int n) {
    const bool ragged = columns % BOX;
    const uint64_t pitch = (uint64_t)columns * 2;
    const uint64_t extent[3] = {(uint64_t)(ragged ? columns : BOX), rows,
                                (uint64_t)(ragged ? 1 : columns / BOX)};
    const uint64_t stride[2] = {pitch, ragged ? pitch * rows : BOX_ROW};
    const uint32_t box[3] = {BOX, (uint32_t)b, (uint32_t)(ragged ? 1 : n / BOX)};
    return make_map(be, map, x, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <int B, int N, bool FORWARD>
static void launch_small(backend *be, const small_blocks_arguments &p, const CUtensorMap &x_map) {
    typedef small_shape<B, N> S;
    void (*kernel)(CUtensorMap, small_blocks_arguments) = small_blocks<B, N, FORWARD>;
    cuda_allow_shared(be, (const void *)kernel, S::BYTES);
    kernel<<<p.grid, SMALL_THREADS, S::BYTES, cuda_of(be)->stream>>>(x_map, p);
}

/* Uses tiles of 256 or of 128 columns, whichever take less time. A stage of 256 columns was
 * measured to take 7 / 5 as long as one of 128. */
template <int B, bool FORWARD>
static void multiply(backend *be, const device_layout *device, const small_blocks_tables *tables,
                     const product_call *c) {
    const layout *l = &device->host;
    const int processors = cuda_of(be)->processors;
    small_blocks_arguments p = {}, half;
    CUtensorMap x_map;
    p.parts = FORWARD ? tables->forward : tables->backward;
    p.w = (const char *)c->left;
    p.y = (bf16 *)c->out;
    p.partial = tables->partial;
    p.columns = c->columns;
    half = p;
    const int n = plan(&p, 256, processors) * 7 <= plan(&half, 128, processors) * 5 ? 256 : 128;
    const size_t rows = FORWARD ? layout_inputs(l) : layout_rows(l);
    if (n == 128) p = half;
    p.boxes = c->columns % BOX ? n / BOX : 1;
    if (!map_small(be, &x_map, c->right, rows, c->columns, B, n)) return;
    if (n == 256) {
        launch_small<B, 256, FORWARD>(be, p, x_map);
    } else {
        launch_small<B, 128, FORWARD>(be, p, x_map);
    }
}

template <int B>
static void multiply_by_operation(backend *be, const device_layout *device,
                                  const small_blocks_tables *tables, const product_call *c) {
    if (c->op == FPROP) {
        multiply<B, true>(be, device, tables, c);
    } else {
        multiply<B, false>(be, device, tables, c);
    }
}

/* Up to 128 columns of one gate, few_columns is faster unless a source's activations, once they are
 * there, serve several nodes. */
bool small_blocks_prefers(const device_layout *device, const void *plan, const product_call *c) {
    const layout *l = &device->host;
    const small_blocks_tables *tables = (const small_blocks_tables *)plan;
    const small_blocks_parts *parts = c->op == FPROP ? &tables->forward : &tables->backward;
    const double gathered = (double)l->blocks * l->gates * l->in_block; /* rows */
    return l->gates > 1 || c->columns > 128 || gathered > WORTH_GATHERING * DEPTH * parts->stages;
}

void small_blocks_run(backend *be, const device_layout *device, const void *plan,
                      const product_call *c) {
    const small_blocks_tables *tables = (const small_blocks_tables *)plan;
    if (device->host.in_block == 8) {
        multiply_by_operation<8>(be, device, tables, c);
    } else {
        multiply_by_operation<16>(be, device, tables, c);
    }
}
