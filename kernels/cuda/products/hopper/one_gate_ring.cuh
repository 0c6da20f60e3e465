/* The ring in shared memory from which one_gate.cu multiplies: its shape, and the producer warps
 * that fill its stages. A stage has 32 or 64 rows of a source's activations, and the blocks of
 * weights that nodes of the part have for it. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_ONE_GATE_RING_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_ONE_GATE_RING_CUH

#include "products/hopper/one_gate.cuh"

enum { PRODUCERS = 4 /* warps */ };

typedef struct one_gate_arguments {
    const void *part; /* packed_part */
    const one_gate_source *source;
    const int *block;     /* the block of each entry of the lists; NULL: in order */
    int parts, columns;   /* columns: tiles of them */
    int overlap;          /* see cuda_weights_change */
    partial_sums partial; /* of hubs' sums */
} one_gate_arguments;

/* The rows of a source that a stage has. */
static constexpr __host__ __device__ int rows_of_slice(int b) {
    return b < 128 ? 32 : 64;
}

/* B: units of a node. SLOTS: nodes of a part. TILES: tiles of 64 columns that a warpgroup has for
 * each node. SHARES: thread blocks of a cluster that share a part; each finishes KEPT nodes.
 * RESIDENT: thread blocks of a multiprocessor. HUBS: whether some parts give partial sums. A stage
 * has KS rows of a source's activations and the existing blocks of weights for them, one after
 * another. */
template <int B_, int SLOTS_, int TILES_, int SHARES_, int RESIDENT_, bool HUBS_>
struct one_gate_shape {
    static const int B = B_, SLOTS = SLOTS_, TILES = TILES_;
    static const int SHARES = SHARES_, RESIDENT = RESIDENT_, KEPT = SLOTS / SHARES;
    static const bool HUBS = HUBS_, EARLY = RESIDENT > 1; /* EARLY: see produce_early */
    static const int CONSUMER_REGISTERS = RESIDENT == 2               ? 104
                                          : SHARES == 2 && TILES == 1 ? 232
                                                                      : 240;
    static const int PRODUCER_REGISTERS = RESIDENT == 2 ? 32 : SHARES == 2 && TILES == 1 ? 40 : 24;
    static const int SUMS = B / 2; /* a thread's sums, of a node and 64 columns */
    static const int KS = rows_of_slice(B), SLICES = B / KS;
    static const int BOXES = 2 * TILES, COLUMNS = BOXES * BOX, BOX_BYTES = KS * BOX_ROW;
    static const int X_BYTES = BOXES * BOX_BYTES, W_BYTES = KS * B * 2;
    static const int STAGE = X_BYTES + SLOTS * W_BYTES;
    static const int OUTS = KS == 32 ? 2 : 1; /* boxes of a warpgroup that are being stored */
    static const int MOST = RESIDENT == 2 ? 113 << 10 : MOST_SHARED;
    static const int STAGES = (MOST - 2048 - 2 * OUTS * BOX_BYTES) / STAGE;
    static const int Y = STAGES * STAGE, BARRIERS = Y + 2 * OUTS * BOX_BYTES;
    static const int MASKS = BARRIERS + STAGES * 16, INBOXES = (MASKS + STAGES * 4 + 7) / 8 * 8;
    /* A node's sums, for another thread block's inbox. */
    static const int SUM_BYTES = TILES * SUMS * CONSUMERS * 4;
    static const int BYTES = INBOXES + (SHARES > 1 ? KEPT * 8 : 0) + 1024;
    /* Whether registers can hold two sources' activations. */
    static const bool AHEAD = SLOTS * TILES * SUMS + TILES * 16 < 200;
    static_assert(SHARES == 1 || KEPT * SUM_BYTES <= STAGES * STAGE, "an inbox in the ring");
    static_assert(!EARLY || (B == 32 && STAGES <= 32), "a stage for each of the first window");
    /* Otherwise a producer could be a whole round ahead of another, and mistake a stage's phase for
     * the next one. */
    static_assert(STAGES >= PRODUCERS, "a stage for each");
};

/* The layout of a block of weights in shared memory: the words of a descriptor, and the distances
 * of the next 16 and the next 32 of k, in units of 16 bytes. */
template <int B, bool FORWARD> struct weights_in_shared {
    static const bool PAIRED = B == 32 && !FORWARD; /* [16][row % 2][32 units] */
    static const int KS = rows_of_slice(B);
    static const int SWIZZLE = KS == 32 && FORWARD ? SWIZZLE_64 : SWIZZLE_128;
    static const int STRIDE = SWIZZLE == SWIZZLE_64 ? 512 : 1024;
    static const int LEADING = FORWARD || PAIRED ? 16 : KS * 128;
    static const int NEXT = FORWARD ? 2 : PAIRED ? 4 : 128, HALF = FORWARD ? 4 : 256;
};

/* ---------------------------------------------------------------------------------- producers */

/* The tile that a thread block computes in a turn: a part and a column tile; part < 0: none.
 * Expensive parts come first. ABREAST column tiles of a part run side by side, so that they share
 * weights in the L2. Every other turn runs backwards, so a thread block that had an expensive part
 * gets a cheap one, or none. */
typedef struct one_gate_tile {
    int part, column;
} one_gate_tile;

template <int SHARES>
static __device__ inline one_gate_tile tile_of(const one_gate_arguments &p, int turn) {
    const int grid = gridDim.x / SHARES, at = blockIdx.x / SHARES;
    const int i = turn * grid + (turn % 2 ? grid - 1 - at : at),
              first = i / (ABREAST * p.parts) * ABREAST;
    const int within = i - first * p.parts, abreast = min(ABREAST, p.columns - first);
    if (abreast <= 0 || within >= p.parts * abreast) return {-1, 0};
    return {within / abreast, first + within % abreast};
}

template <int SLOTS>
static __device__ inline const packed_part<SLOTS> *part_at(const one_gate_arguments &p,
                                                           int number) {
    return (const packed_part<SLOTS> *)p.part + number;
}

/* Decodes 32 successive sources, one in each lane. Returns the lane's node and, in the low bits,
 * which nodes have a block for it. `last` is the last node so far. */
template <int SLOTS>
static __device__ __forceinline__ uint32_t decode_sources(uint32_t mine, int *last) {
    const int lane = threadIdx.x % 32;
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

/* Reads and decodes the next 32 of `left` sources. */
template <int SLOTS>
static __device__ __forceinline__ uint32_t read_sources(const one_gate_arguments &p, int from,
                                                        int left, int *last) {
    const int lane = threadIdx.x % 32;
    return decode_sources<SLOTS>(lane < left ? p.source[from + lane] : 0, last);
}

/* A producer warp. Each of the first lanes loads a node's blocks; the last lanes load the
 * activations. */
template <bool FORWARD, typename S>
static __device__ __forceinline__ void produce(const CUtensorMap &w_map, const CUtensorMap &x_map,
                                               const one_gate_arguments &p, uint32_t base) {
    const int B = S::B, SLOTS = S::SLOTS;
    const int lane = threadIdx.x % 32, box = 31 - lane, mine = threadIdx.x / 32 - CONSUMER_WARPS;
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    int use = 0;
    for (int turn = 0;; turn++) {
        const one_gate_tile tile = tile_of<S::SHARES>(p, turn);
        if (tile.part < 0) break;
        const auto *part = part_at<SLOTS>(p, tile.part * S::SHARES + blockIdx.x % S::SHARES);
        const int column = tile.column * S::COLUMNS + box * BOX;
        const int first = part->first, count = part->count;
        int entry = lane < SLOTS ? part->start[lane] : 0, last = 0;
        uint32_t sources = read_sources<SLOTS>(p, first, count, &last);
        if (turn == 0) wait_for_earlier(); /* tables do not wait */
        for (int i = 0; i < count; i++) {
            if (i && i % 32 == 0) sources = read_sources<SLOTS>(p, first + i, count - i, &last);
            const uint32_t source = __shfl_sync(~0u, sources, i % 32);
            const uint32_t mask = source & ((1 << SLOTS) - 1);
            const bool weights = mask >> lane & 1;
            for (int slice = 0; slice < S::SLICES; slice++, use++) {
                if (use % PRODUCERS != mine) continue;
                const int stage = use % S::STAGES;
                const uint32_t barrier = full + stage * 8, to = base + stage * S::STAGE;
                int row = entry;
                if (!FORWARD && weights) row = __ldg(p.block + entry);
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
                        row = row * B + slice * S::KS;
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

/* The next 32 sources of a list, one in each lane. */
template <int SLOTS> struct source_window {
    const one_gate_source *list;
    int count, from, last; /* of the list; the window's first; the node of the last source so far */
    uint32_t next;         /* the lane's source of the next window */
    uint32_t source; /* the lane's node, and in the low bits which nodes have a block for it */

    __device__ source_window(const one_gate_arguments &p, const packed_part<SLOTS> *part)
        : from(0), last(0) {
        const int lane = threadIdx.x % 32;
        count = part->count;
        list = p.source + part->first + lane;
        const uint32_t first = lane < count ? list[0] : 0;
        next = 32 + lane < count ? list[32] : 0;
        source = decode_sources<SLOTS>(first, &last);
    }

    __device__ void advance() {
        const uint32_t mine = next;
        from += 32;
        next = 0;
        if (from + 32 + (int)(threadIdx.x % 32) < count) next = list[from + 32];
        source = decode_sources<SLOTS>(mine, &last);
    }
};

/* For small parts. The weights of the first stages, whose sources are all in the list's first
 * window, are loaded without waiting for the previous kernel. Shared parts, which have many more
 * stages, are faster without this. */
template <bool FORWARD, typename S>
static __device__ __forceinline__ void produce_early(const CUtensorMap &w_map,
                                                     const CUtensorMap &x_map,
                                                     const one_gate_arguments &p, uint32_t base) {
    const int SLOTS = S::SLOTS, lane = threadIdx.x % 32, mine = threadIdx.x / 32 % PRODUCERS;
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    int done = 0; /* stages */
    if (!p.overlap) wait_for_earlier();
    for (int turn = 0;; turn++) {
        const one_gate_tile tile = tile_of<S::SHARES>(p, turn);
        if (tile.part < 0) break;
        const auto *part = part_at<SLOTS>(p, tile.part * S::SHARES + blockIdx.x % S::SHARES);
        /* Of the lane's node: its first entry of the window. */
        int entry = lane < SLOTS ? part->start[lane] : 0;
        /* The blocks of the lane's source, for each node. */
        int block[SLOTS];
        source_window<SLOTS> window(p, part);
        auto look_up = [&]() {
#pragma unroll
            for (int slot = 0; slot < SLOTS; slot++) {
                const uint32_t has = __ballot_sync(~0u, window.source >> slot & 1);
                block[slot] = __shfl_sync(~0u, entry, slot) + __popc(has & ((1u << lane) - 1));
                if (!FORWARD && has >> lane & 1) block[slot] = __ldg(p.block + block[slot]);
                if (lane == slot) entry += __popc(has);
            }
        };
        look_up();
        const int uses = window.count, column = tile.column * S::COLUMNS;
        auto bring_weights = [&](int use, uint32_t source) {
            const int stage = (done + use) % S::STAGES;
            const uint32_t barrier = full + stage * 8, mask = source & ((1 << SLOTS) - 1);
            int now[SLOTS];
#pragma unroll
            for (int slot = 0; slot < SLOTS; slot++)
                now[slot] = __shfl_sync(~0u, block[slot], use % 32);
            barrier_wait(empty + stage * 8, ((done + use) / S::STAGES & 1) ^ 1);
            if (elected()) {
                uint32_t to = base + stage * S::STAGE + S::X_BYTES;
                shared_store(base + S::MASKS + stage * 4, mask);
                barrier_expect(barrier, S::X_BYTES + __popc(mask) * S::W_BYTES);
#pragma unroll
                for (int slot = 0; slot < SLOTS; slot++) {
                    if (!(mask >> slot & 1)) continue;
                    if (FORWARD) {
                        tensor_load_once(to, &w_map, barrier, 0, now[slot] * S::B);
                    } else {
                        tensor_load_once(to, &w_map, barrier, 0, now[slot] * (S::B / 2));
                    }
                    to += S::W_BYTES;
                }
            }
            __syncwarp();
        };
        auto bring_activations = [&](int use, uint32_t source) {
            const int stage = (done + use) % S::STAGES, row = (source >> SLOTS) * S::B;
            if (elected()) {
#pragma unroll
                for (int box = 0; box < S::BOXES; box++) {
                    tensor_load(base + stage * S::STAGE + box * S::BOX_BYTES, &x_map,
                                full + stage * 8, column + box * BOX, row);
                }
            }
            __syncwarp();
        };
        int use = (mine - done) & (PRODUCERS - 1);
        if (turn == 0 && p.overlap) {
            const int early = min(uses, S::STAGES);
#pragma unroll 1
            for (int i = use; i < early; i += PRODUCERS)
                bring_weights(i, __shfl_sync(~0u, window.source, i));
            wait_for_earlier();
#pragma unroll 1
            for (; use < early; use += PRODUCERS) {
                bring_activations(use, __shfl_sync(~0u, window.source, use));
            }
        }
#pragma unroll 1
        for (; use < uses; use += PRODUCERS) {
            if (use - window.from >= 32) {
                window.advance();
                look_up();
            }
            const uint32_t source = __shfl_sync(~0u, window.source, use % 32);
            bring_weights(use, source);
            bring_activations(use, source);
        }
        done += uses;
    }
}

#endif
