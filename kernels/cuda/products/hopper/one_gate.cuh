/* What one_gate and one_gate_split_run share. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_ONE_GATE_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_HOPPER_ONE_GATE_CUH

#include "products/hopper/hopper.cuh"

/* Work for Hopper's one_gate: parts of the output nodes, whose results a thread block makes
 * together, and the union of their sources. The nodes are cut in several ways: for up to half of
 * 256 columns, for 256, for 512, and for more. Where thread blocks share a part, each has an
 * entry of its own for its share of the sources. */
enum { ONE_GATE_NODES = 6, ONE_GATE_CUTS = 4 };

/* How far its node is from that of the source before it (from 0 for a part's first), and in the low
 * bits which of the part's nodes have a block for it. Longer ways are gone in several steps, to
 * sources that no node has a block for. */
typedef uint16_t one_gate_source;

typedef struct one_gate_parts {
    int count;           /* of whole parts */
    short slots, shares; /* the most nodes of a part; thread blocks that share one */
    short boxes;         /* of 64 columns, that a warpgroup makes */
    bool hubs;           /* whose lists are cut */
    void *part;          /* packed_part of as many slots */
    one_gate_source *source;
    partial_sums partial; /* of hubs */
} one_gate_parts;

typedef struct one_gate_tables {
    one_gate_parts forward[ONE_GATE_CUTS], backward[ONE_GATE_CUTS];
} one_gate_tables;

/* A part as it lies in memory, of as many nodes as there are slots; NO_NODE: none.
 *
 * A hub's list may be cut into several parts, of this node alone. All but the last give their sums
 * to that one, which adds them to its own in their order and finishes the node. They come before
 * it, so that who waits for them never keeps them waiting. */
enum { NO_NODE = 0xFFFF, MOST_GIVEN = 128 /* parts that give */ };

template <int SLOTS> struct packed_part {
    int first, start[SLOTS];     /* its sources; where the nodes' lists begin */
    uint16_t count, node[SLOTS]; /* count: of sources */
    uint8_t given, takes; /* its place among all that give, or of the first that it takes from */
    bool gives;           /* takes: from how many */
};

typedef struct one_gate_arguments {
    const void *part; /* packed_part */
    const one_gate_source *source;
    const int *block;     /* of each entry of the lists; NULL: in order */
    int parts, columns;   /* columns: tiles of them */
    int overlap;          /* see cuda_weights_change */
    partial_sums partial; /* of hubs' sums */
} one_gate_arguments;

enum {
    PRODUCERS = 4, /* warps */
    ABREAST = 4
};

/* How many nodes' sums a warpgroup has registers for. */
static constexpr __host__ __device__ int one_gate_slots(int b) {
    return ONE_GATE_NODES * 32 / b;
}

/* How many rows of a source are brought in at a time. */
static constexpr __host__ __device__ int rows_of_slice(int b) {
    return b < 128 ? 32 : 64;
}

/* The tile that a thread block makes in a turn: which part and which column tile; part < 0: none.
 * Costly parts come first, side by side for ABREAST column tiles, so that these share weights in
 * L2. Every other turn runs backwards: who had a costly part gets a cheap one, or none. */
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

/* Of 32 successive sources, one to a lane, as the list has them: the lane's node, and in the low
 * bits who has a block for it. `last`: the last node so far. */
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

/* The next 32 of `left` sources. */
template <int SLOTS>
static __device__ __forceinline__ uint32_t read_sources(const one_gate_arguments &p, int from,
                                                        int left, int *last) {
    const int lane = threadIdx.x % 32;
    return decode_sources<SLOTS>(lane < left ? p.source[from + lane] : 0, last);
}

/* Lanes bring in their blocks, the last lanes the activations. */
template <int B, bool FORWARD, typename S>
static __device__ __forceinline__ void
produce_one_gate(const CUtensorMap &w_map, const CUtensorMap &x_map, const one_gate_arguments &p,
                 uint32_t base) {
    const int SLOTS = S::SLOTS;
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

/* sum += a W of the nodes in the mask, of one 32 of k. w, above: a descriptor's halves, of the
 * first node's block; the others' follow BYTES apart. */
template <bool FORWARD, int NEXT, int BYTES, int SLOTS, int TILES, int SUMS>
static __device__ __forceinline__ void multiply_nodes(float (&sum)[SLOTS][TILES][SUMS],
                                                      const uint32_t (&a)[TILES][2][4],
                                                      uint32_t mask, uint32_t w, uint64_t above) {
#pragma unroll
    for (int slot = 0; slot < SLOTS; slot++) {
        if (SLOTS == 1 || (mask >> slot & 1)) {
            product_fence();
#pragma unroll
            for (int t = 0; t < TILES; t++) {
#pragma unroll
                for (int k = 0; k < 2; k++) {
                    warpgroup_multiply<!FORWARD>(sum[slot][t], a[t][k], above | (w + k * NEXT));
                }
            }
            product_commit();
            w += BYTES / 16;
        }
    }
}

/* ----------------------------------------------------------------------------------- hubs' sums */

/* Lists are cut for at most so many columns; every 64 of them take a slot of b x 64 sums a
 * giver. */
enum { MOST_CUT_COLUMNS = 512 };

/* Where a warpgroup leaves its sums of column tile `column`, TILES boxes, and their flag. */
template <int TILES, int SUMS> struct hub_slot {
    float4 *sums; /* this thread's first */
    int *flag;

    __device__ hub_slot(const one_gate_arguments &p, int given, int column) {
        const int slot = (given * p.columns + column) * 2 + threadIdx.x / GROUP;
        sums = (float4 *)p.partial.sums + slot * (TILES * SUMS / 4 * GROUP) + threadIdx.x % GROUP;
        flag = &p.partial.full[slot];
    }
};

template <int TILES, int SUMS>
static __device__ __forceinline__ void give_hub(const one_gate_arguments &p, int given, int column,
                                                const float (&sum)[TILES][SUMS]) {
    const hub_slot<TILES, SUMS> to(p, given, column);
#pragma unroll
    for (int t = 0; t < TILES; t++) leave_sums<GROUP>(to.sums + t * SUMS / 4 * GROUP, sum[t]);
    group_sync(1 + threadIdx.x / GROUP, GROUP);
    if (threadIdx.x % GROUP == 0) raise_flag(to.flag);
}

/* Several givers' at a time, as registers allow: each time takes as long as the L2 does. */
template <int TILES, int SUMS>
static __device__ __forceinline__ void take_hub(const one_gate_arguments &p, int given, int takes,
                                                int column, float (&sum)[TILES][SUMS]) {
    typedef hub_slot<TILES, SUMS> slot;
    const int ALL = TILES * SUMS, AT_ONCE = ALL < 64 ? 64 / ALL : 1;
    const int thread = threadIdx.x % GROUP;
    if (thread < takes) {
        int *flag = slot(p, given + thread, column).flag;
        await_flag(p.partial, flag, 1, 32);
        __threadfence();
        atomicExch(flag, 0);
    }
    group_sync(1 + threadIdx.x / GROUP, GROUP);
    for (int i = 0; i < takes; i += AT_ONCE) {
        float4 v[AT_ONCE][ALL / 4];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            const float4 *from = slot(p, given + i + k, column).sums;
#pragma unroll
            for (int j = 0; j < ALL / 4; j++) {
                v[k][j] = i + k < takes ? __ldcg(from + j * GROUP) : make_float4(0, 0, 0, 0);
            }
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
#pragma unroll
            for (int j = 0; j < ALL / 4; j++) {
                add_four_sums(&sum[j * 4 / SUMS][j * 4 % SUMS], v[k][j]);
            }
        }
    }
}

/* Whether a part's sums, with what was given to it, are all of its nodes'; else it gives them. */
template <typename Part, int TILES, int SUMS>
static __device__ __forceinline__ bool gather_hub(const one_gate_arguments &p, const Part *part,
                                                  int column, float (&sum)[TILES][SUMS]) {
    if (part->gives) {
        give_hub(p, part->given, column, sum);
    } else if (part->takes) {
        take_hub(p, part->given, part->takes, column, sum);
    }
    return !part->gives;
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

/* W, in boxes of a slice of a block's rows. */
static inline bool map_one_gate_weights(backend *be, CUtensorMap *map, const layout *l,
                                        const void *w, bool forward) {
    const uint64_t b = (uint64_t)l->in_block, rows = b * (uint64_t)l->blocks;
    const uint64_t extent[2] = {b, rows}, stride[1] = {b * 2};
    const uint32_t ks = (uint32_t)rows_of_slice(l->in_block);
    const uint32_t box[2] = {forward ? ks : b < 64 ? 32 : 64, forward ? (uint32_t)b : ks};
    if (b == 32 && !forward) return map_pairs(be, map, w, rows / 2, 16);
    return make_map(be, map, w, 2, extent, stride, box,
                    box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

/* Products of 32 units whose parts are shared by two thread blocks, or half as large. */
void one_gate_split_run(backend *be, const device_layout *device, const one_gate_parts *parts,
                        const product_call *c);

#endif
