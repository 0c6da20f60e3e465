/* gather: fprop and dgrad of one gate, and of three or four that share a pattern, on Hopper; and
 * both of a convolution.
 *
 *   y' [N columns][b units of a node] = sum over sources  x' [N][rows of the source]  W [rows][b]
 *
 * with a source for each block of the node: for fprop the b rows of an input node, with W_ij
 * transposed; for dgrad the rows of an output node, of all gates. Of several gates fprop sees as
 * many nodes with the same sources. A stage of the ring brings 32 or 64 of these rows. Nodes are
 * cut into parts of a few nodes each. A thread block loads the union of a part's sources once,
 * while the sums of all its nodes stay in registers. plan/gather.c cuts the parts in the way that
 * should be faster:
 *
 *   evenly: neighbouring nodes' lists, one after another, into as many equal parts as there are
 *   thread blocks. A node whose list is cut (split-K) has partial sums. This suits small worlds,
 *   where neighbours have the most in common, patterns with hubs, and narrow layers.
 *   whole: nodes with like sources. Of 384 random nodes, five so gather 37 % less than they would
 *   alone at density 0.01, 29 % less at 0.1, and there are no partial sums.
 *   shared: nodes with like sources, which several thread blocks divide among them (split-K). Each
 *   then adds up the others' sums for a share of the results. This suits wide dense cores and high
 *   density, up to 128 columns.
 *
 * Floors of four gates' dgrad, at 18,432 units, block 32, 22,064 blocks, 128 columns on an H200: W
 * is 181 MB out of memory, 42 us. Patterns of small worlds, in parts of five nodes, gather 246 MB
 * of dy from the L2, which with the weights is 427 MB into the multiprocessors, 56 us at the 7.6
 * TB/s that L2 gives to plain reads. It takes 63; 256 and 512 columns take 94 and 180.
 *
 *   The left operand, activations, lies in registers: products from there run at the full rate,
 *   from shared memory at two thirds of it. ldmatrix transposes it on the way, once for all nodes.
 *   A branch leaves out nodes that the source has no block for. The other warpgroup fills the gap,
 *   since products on either side of a branch wait for each other. Straight code for each set of
 *   nodes is up to a third slower, because 63 sets overflow the instruction cache.
 *   The producers run on into the thread block's next part while this one's sums are stored.
 *   Weights do not wait for the kernel before, so that the first stages have theirs while that one
 *   still ends: hence producers for them alone, two where a stage has little to multiply.
 *   Partial sums arrive as further stages, and a warp beside the producers looks after the flags.
 *
 * With more than 128 columns, blocks of 32 and one gate's have two boxes of columns a warpgroup, so
 * that weights enter half as often. 512 columns of four gates' dy are 75 MB, more than the L2
 * holds. So weights leave it first, and all thread blocks go through the sources in an order of
 * phases, at the same pace: those whose nodes are near each other in a small world, and so have
 * sources in common, ask for them at the same time. For the same reason all parts of a tile of
 * columns come before the next tile where there are many, unless weights are, too; see
 * tiles_abreast.
 *
 * A convolution is the same sum at every position, where a source is a node and a tap, and its rows
 * are read at the position that the tap reads from there. Its columns are the images of all
 * positions, one after another, and a box of 64 has those of one position or 32 each of two, which
 * then lie one after the other in shared memory.
 *
 * Each warp stages 1 KB for storing, which leaves room for one more stage than a part's sums would.
 *
 * Blocks of 64 and of 128 take, at 128, 256 and 512 columns, 60, 98, 175 and 60, 95, 167 us; loads
 * hold these. What did not help: docs/kernels/fprop-dgrad.md. */
#include "plan/gather.h"
#include "products/hopper/hopper.cuh"

static_assert(nodes_of_part(32, 1, 1) <= PART_NODES, "a source has a bit for each");

enum {
    CONSUMER_SUMS = 160, /* a thread's, beyond which producers must leave it registers */
    SLAB = 32,           /* units that a warp stages for storing ... */
    SLAB_COLUMNS = 16,   /* ... of these columns */
    SLAB_ROW = SLAB_COLUMNS * 2,
    SHARING = 1024,          /* columns whose tiles share weights, if they do */
    SUM_ROW = CONSUMERS * 16 /* a row of partial sums: four of each thread */
};

typedef struct gather_arguments {
    const gather_part *part;
    const uint32_t *source;
    const int *block;
    bf16 *y;
    int columns, tiles; /* tiles of columns; of a convolution, of all positions */
    int parts, works;   /* works: tiles x parts */
    int abreast;        /* tiles whose parts take turns */
    bool whole;         /* parts cost more or less, the costliest first */
    int overlap;        /* see cuda_weights_change */
    partial_sums partial;
    const int *positions;   /* of a convolution: [positions of y][taps] what is read, -1: zero */
    int taps, images, rows; /* images: columns of a position; rows: of y */
    int span;               /* columns that TMA brings at once: BOX, or half of it */
} gather_arguments;

/* The least number of stages among which `rows` are divided equally, at most `most` to each. */
static constexpr int equal_stages(int rows, int most) {
    int stages = 1;
    while (rows % stages || rows / stages > most) stages++;
    return stages;
}

/* B: units of a node. BOXES: boxes of columns that a warpgroup makes. SHARED: whether parts share
 * nodes; one kernel for both would take 3 to 13 % longer where they do not. TAPS: whether it is a
 * convolution, whose sources are pairs of a node and a tap. Shared memory holds the stages, a slab
 * of results for each warp, and the barriers. A node's sums from another part take SUM_STAGES
 * stages. */
template <int B_, int GATES_, bool FORWARD_, int BOXES_, bool SHARED_ = false, bool TAPS_ = false>
struct gather_shape {
    static const int B = B_, BOXES = BOXES_;
    static const bool TAPS = TAPS_;
    static const bool FORWARD = FORWARD_, PAIRED = B == 32 && !FORWARD, SHARED = SHARED_;
    /* Rows of a source in a stage. */
    static const int DEPTH = (GATES_ == 1 && B < 128) || GATES_ * B % 64 ? 32 : 64;
    static const int NODES = TAPS ? nodes_of_taps(B) : nodes_of_part(B, GATES_, BOXES);
    static const int SLICES = GATES_ * B / DEPTH;
    static const int ALL_BOXES = CONSUMERS / GROUP * BOXES, TILE = ALL_BOXES * BOX;
    static const int SUMS = BOXES * B / 2; /* a thread's, of a node */
    static const int BOX_BYTES = DEPTH * BOX_ROW, W_BYTES = DEPTH * B * 2;
    static const int X_BYTES = ALL_BOXES * BOX_BYTES, STAGE = X_BYTES + NODES * W_BYTES;
    static const int OUT_BYTES = CONSUMER_WARPS * SLAB * SLAB_ROW;
    static const int STAGES = (MOST_SHARED - RING_ROOM - OUT_BYTES) / STAGE;
    static const int SUM_STAGES = equal_stages(SUMS / 4, STAGE / SUM_ROW);
    static const int SUM_ROWS = SUMS / 4 / SUM_STAGES, SUM_BYTES = SUM_ROWS * SUM_ROW;
    /* Where weights lie in shared memory, as a descriptor says it: see device/hopper_ptx.cuh. A
     * block's rows run along k in fprop, along the units in dgrad. */
    static const int SWIZZLE = FORWARD && DEPTH == 32 ? SWIZZLE_64 : SWIZZLE_128;
    static const int STRIDE = SWIZZLE == SWIZZLE_64 ? 512 : 1024;
    static const int LEADING = FORWARD ? 16 : DEPTH * 128;

    static __device__ uint32_t weights_of(uint32_t w, int k) {
        if (FORWARD) return w + k * 2;
        return w + (PAIRED ? k % (DEPTH / 2) * 128 + k / (DEPTH / 2) * 64 : k * 128);
    }

    /* Whether a warpgroup leaves out a box beyond the last column; elsewhere the branch costs
     * more. */
    static const bool SKIPS = B == 32 && GATES_ > 1 && BOXES == 1;
    static const int WEIGHT_WARPS = GATES_ == 1 ? 2 : 1;
    static const bool FULL = NODES * SUMS > CONSUMER_SUMS; /* they take most registers */
    static const int PRODUCER_REGISTERS = FULL ? 24 : 40, CONSUMER_REGISTERS = FULL ? 240 : 232;
    static const int OUT = STAGES * STAGE, BARRIERS = OUT + OUT_BYTES;
    static const int BYTES = BARRIERS + STAGES * 16 + 1024;
};

/* What a thread block computes in one turn: a part of the nodes, for one tile of columns. Tiles are
 * taken `abreast` at a time: among these, a part's tiles come before those of the next part. With
 * whole parts, every second turn runs backwards, so that a thread block that had a costly part gets
 * a cheap one next, or none. */
template <typename S> struct gather_work {
    int number;         /* of all */
    int stride;         /* from this work's number to the next part's */
    int place;          /* which part */
    int column0, boxes; /* boxes: those of its columns that there are */
    gather_part part;

    __device__ gather_work(const gather_arguments &p, int turn) {
        const bool backwards = p.whole && turn % 2;
        number = turn * gridDim.x + (backwards ? gridDim.x - 1 - blockIdx.x : blockIdx.x);
        if (!exists(p)) return;
        const int tile0 = number / (p.abreast * p.parts) * p.abreast;
        const int within = number - tile0 * p.parts;
        stride = min(p.abreast, p.tiles - tile0);
        place = within / stride;
        column0 = (tile0 + within % stride) * S::TILE;
        boxes = min(S::ALL_BOXES, (p.columns - column0 + BOX - 1) / BOX);
        part = p.part[place];
    }

    __device__ bool exists(const gather_arguments &p) const {
        return number < p.works;
    }

    /* The number of earlier parts whose partial sums of its first node this part adds up. */
    __device__ int takes() const {
        const bool owns = !S::SHARED && part.nodes > part.continues;
        return owns ? place - part.first_part : 0;
    }
};

/* Partial sums lie in a ring of slots, each with a node's sums for all consumers. The slot of a
 * work follows from the work's number; its flag is that number plus 1 while the sums are there,
 * else 0. The number of slots: */
template <typename S> static constexpr __host__ __device__ int partial_slots() {
    return PARTIAL_FLOATS / (S::SUMS * CONSUMERS);
}

template <typename S> static __device__ inline int *flag_of(const gather_arguments &p, int number) {
    return &p.partial.full[number % partial_slots<S>()];
}

template <typename S>
static __device__ inline float *slot_of(const gather_arguments &p, int number) {
    return p.partial.sums + (size_t)(number % partial_slots<S>()) * S::SUMS * CONSUMERS;
}

/* One warp or two issue the copies of W, and another warp those of x, into the same stages.
 * Unrolled, these loops are slower. `warp` says which of S::WEIGHT_WARPS this is; they take the
 * stages in turn. */
template <typename S>
static __device__ void produce_weights(const CUtensorMap &w_map, const gather_arguments &p,
                                       uint32_t base, cursor<S::STAGES> &stages, int warp) {
    int until_mine = warp;
    auto is_mine = [&]() {
        const bool now = until_mine == 0;
        until_mine = now ? S::WEIGHT_WARPS - 1 : until_mine - 1;
        return now;
    };
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const gather_work<S> work(p, turn);
        if (!work.exists(p)) break;
        const int takes = work.takes() * S::SUM_STAGES, lane = threadIdx.x % 32;
        int source = work.part.first, block = work.part.block + lane, ahead = p.block[block];
        uint32_t next = p.source[source];
#pragma unroll 1
        for (int i = 0; i < work.part.count; i++) {
            const uint32_t mask = next % (1 << PART_NODES);
            int now[S::NODES];
#pragma unroll
            for (int k = 0; k < S::NODES; k++) now[k] = __shfl_sync(~0u, ahead, k);
            block += __popc(mask);
            if (i + 1 < work.part.count) {
                next = p.source[++source];
                ahead = p.block[block];
            }
            const int bytes = __popc(mask) * S::W_BYTES;
#pragma unroll 1
            for (int slice = 0; slice < S::SLICES; slice++, stages.next()) {
                if (!is_mine()) continue;
                stages.wait_empty();
                if (!elected()) continue;
                const uint32_t barrier = stages.announce(bytes);
                const uint32_t w = base + stages.at * S::STAGE + S::X_BYTES;
                uint32_t left = mask;
#pragma unroll
                for (int k = 0; k < S::NODES; k++, left &= left - 1) {
                    if (!left) break;
                    const int node = __ffs(left) - 1;
                    const uint32_t to = w + node * S::W_BYTES;
                    if constexpr (S::FORWARD) {
                        tensor_load_once(to, &w_map, barrier, slice * S::DEPTH, now[k] * S::B);
                    } else {
                        const int from = (now[k] * S::SLICES + slice) * S::DEPTH;
#pragma unroll
                        for (int unit = 0; unit < S::B; unit += 64) {
                            tensor_load_once(to + unit * S::DEPTH * 2, &w_map, barrier, unit,
                                             S::PAIRED ? from / 2 : from);
                        }
                    }
                }
            }
        }
        /* To the stages of partial sums this warp adds nothing. */
#pragma unroll 1
        for (int i = 0; i < takes; i++, stages.next()) {
            if (!is_mine()) continue;
            stages.wait_empty();
            if (elected()) stages.announce(0);
        }
    }
}

/* Brings another part's partial sums, as further stages. */
template <typename S>
static __device__ void produce_sums(const gather_arguments &p, int number, uint32_t base,
                                    cursor<S::STAGES> &stages) {
    const char *from = (const char *)slot_of<S>(p, number);
    if (elected()) {
        await_flag(p.partial, flag_of<S>(p, number), number + 1, 64);
        __threadfence();
        global_fence();
    }
    __syncwarp();
#pragma unroll 1
    for (int i = 0; i < S::SUM_STAGES; i++, stages.next(), from += S::SUM_BYTES) {
        stages.wait_empty();
        if (!elected()) continue;
        bulk_load(base + stages.at * S::STAGE, from, S::SUM_BYTES, stages.announce(S::SUM_BYTES));
    }
}

/* Those of all earlier parts that have some of the first node's. */
template <typename S>
static __device__ void produce_handed_on(const gather_arguments &p, const gather_work<S> &work,
                                         uint32_t base, cursor<S::STAGES> &stages) {
    const int takes = work.takes();
#pragma unroll 1
    for (int k = 1; k <= takes; k++) {
        produce_sums<S>(p, work.number - k * work.stride, base, stages);
    }
}

template <typename S>
static __device__ void produce_activations(const CUtensorMap &x_map, const gather_arguments &p,
                                           uint32_t base, cursor<S::STAGES> &stages) {
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const gather_work<S> work(p, turn);
        if (!work.exists(p)) break;
        const uint32_t *source = p.source + work.part.first;
        uint32_t next = *source;
        if (turn == 0) wait_for_earlier(); /* tables do not wait */
#pragma unroll 1
        for (int i = 0; i < work.part.count; i++) {
            const int now = (int)(next >> PART_NODES);
            if (i + 1 < work.part.count) next = *++source;
#pragma unroll 1
            for (int slice = 0; slice < S::SLICES; slice++, stages.next()) {
                stages.wait_empty();
                if (!elected()) continue;
                const uint32_t barrier = stages.announce(work.boxes * S::BOX_BYTES);
                const uint32_t x = base + stages.at * S::STAGE;
                const int row = (now * S::SLICES + slice) * S::DEPTH;
#pragma unroll
                for (int box = 0; box < S::ALL_BOXES; box++) {
                    uint32_t to = x + box * S::BOX_BYTES;
                    int column = work.column0 + box * BOX;
                    if (box >= work.boxes) break;
                    if (S::PAIRED) {
                        tensor_load(to, &x_map, barrier, column, row / 2, 0);
                    } else {
                        tensor_load(to, &x_map, barrier, column, row);
                    }
                }
            }
        }
        produce_handed_on(p, work, base, stages);
    }
}

/* The same for a convolution. Lane i of four issues box i, or lane i of eight a half box. Meanwhile
 * all 32 lanes look ahead: at which positions the next eight or four sources are read, and which
 * sources come after those. A position outside the image is loaded from beyond the last image,
 * where TMA fills in zeros. */
template <typename S>
static __device__ void produce_taps(const CUtensorMap &x_map, const gather_arguments &p,
                                    uint32_t base, cursor<S::STAGES> &stages) {
    const int boxes = S::TILE / p.span, at_once = 32 / boxes, lane = threadIdx.x % 32;
    const int box = lane % boxes, of_position = p.images / p.span;
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const gather_work<S> work(p, turn);
        if (!work.exists(p)) break;
        const int count = work.part.count;
        const int place = min(work.column0 / p.span + box, p.columns / p.span - 1);
        const int *positions = p.positions + place / of_position * p.taps;
        const int inside = place % of_position * p.span;
        const uint32_t *source = p.source + work.part.first;
        auto source_of = [&](int first) {
            const int at = first + lane / boxes;
            return (int)(source[max(min(at, count - 1), 0)] >> PART_NODES);
        };
        if (turn == 0) wait_for_earlier();
        int now = source_of(0), next = source_of(at_once), read = positions[now % p.taps];
#pragma unroll 1
        for (int first = 0; first < count; first += at_once) {
            const int node = now / p.taps, position = read;
            now = next;
            read = positions[now % p.taps];
            next = source_of(first + 2 * at_once);
#pragma unroll 1
            for (int i = 0; i < min(at_once, count - first); i++) {
                const int from = i * boxes + box;
                const int mine = __shfl_sync(~0u, position, from);
                const int column = mine < 0 ? p.images : inside;
                int row = __shfl_sync(~0u, node, from) * S::SLICES * S::DEPTH;
#pragma unroll 1
                for (int slice = 0; slice < S::SLICES; slice++, stages.next(), row += S::DEPTH) {
                    stages.wait_empty();
                    const uint32_t barrier = stages.full + stages.at * 8;
                    if (lane == 0) stages.announce(S::X_BYTES);
                    __syncwarp();
                    if (lane >= boxes) continue;
                    const uint32_t to =
                        base + stages.at * S::STAGE + lane * p.span * (S::DEPTH * 2);
                    if (S::PAIRED) {
                        tensor_load(to, &x_map, barrier, column, row / 2, 0, max(mine, 0));
                    } else {
                        tensor_load(to, &x_map, barrier, column, row, max(mine, 0));
                    }
                }
                __syncwarp();
            }
        }
        produce_handed_on(p, work, base, stages);
    }
}

/* Barriers between a warpgroup and the warp that watches the flags, and one of both warpgroups. */
enum { SLOT_FREE = 1, SUMS_LEFT = 3, BOTH = 5, WATCHERS = GROUP + 32 };

/* Tells the other parts that share these nodes when this part's sums are there, and this part's
 * consumers when theirs are. A flag is 1 once the sums are there and then counts the parts that
 * have read them; the last of these clears it. */
template <typename S>
static __device__ void watch_shares(const gather_arguments &p, const gather_work<S> &work) {
    const int lane = threadIdx.x % 32, share = work.part.share, shares = work.part.shares;
    for (int group = 0; group < 2; group++) group_sync(SUMS_LEFT + group, WATCHERS);
    int *flag = flag_of<S>(p, work.number + (lane - share) * work.stride);
    if (lane == share) raise_flag(flag);
    if (lane != share && lane < shares) {
        for (patience patience; atomicAdd(flag, 0) == 0;) patience.lose(p.partial.stuck);
        __threadfence();
    }
    __syncwarp();
    for (int group = 0; group < 2; group++) group_arrive(SLOT_FREE + group, WATCHERS);
    for (int group = 0; group < 2; group++) group_sync(SUMS_LEFT + group, WATCHERS);
    if (lane == share || lane >= shares) return;
    if (atomicAdd(flag, 1) == shares - 1) atomicExch(flag, 0);
}

template <typename S> static __device__ void watch_flags(const gather_arguments &p) {
    const bool one = threadIdx.x % 32 == 0;
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const gather_work<S> work(p, turn);
        if (!work.exists(p)) break;
        if (S::SHARED) watch_shares<S>(p, work);
        if (S::SHARED || !work.part.continues) continue;
        int *flag = flag_of<S>(p, work.number);
        if (one) await_flag(p.partial, flag, 0, 64);
        __syncwarp();
        for (int group = 0; group < 2; group++) group_arrive(SLOT_FREE + group, WATCHERS);
        for (int group = 0; group < 2; group++) group_sync(SUMS_LEFT + group, WATCHERS);
        if (one) raise_flag(flag, work.number + 1);
        __syncwarp();
    }
}

/* Where a lane's rows of this warp's 16 columns begin in a box [DEPTH][64 columns], or in two
 * halves of one, [DEPTH][32 columns] each. Columns run along a swizzled row of chunks of eight. */
static __device__ inline uint32_t place_of_columns(int span, int depth) {
    const int lane = threadIdx.x % 32, line = lane / 16 * 8 + lane % 8;
    const int chunk = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2, chunks = span / 8, row = span * 2;
    const int swizzled = chunk % chunks ^ line * row / BOX_ROW % chunks;
    return (chunk / chunks * depth + line) * row + (swizzled << 4);
}

/* a = those columns, 16 rows at a time, which are `step` bytes apart. */
template <int STEPS>
static __device__ inline void load_columns(uint32_t (&a)[STEPS][4], uint32_t at, int step) {
#pragma unroll
    for (int k = 0; k < STEPS; k++) load_matrices_transposed(a[k], at + k * step);
}

/* sum += X' W for the nodes that have a block for the source. */
template <typename S>
static __device__ __forceinline__ void
multiply_nodes(float (&sum)[S::NODES][S::BOXES][S::B / 2],
               const uint32_t (&a)[S::BOXES][S::DEPTH / 16][4], uint32_t w, int mask) {
#pragma unroll
    for (int node = 0; node < S::NODES; node++, w += S::W_BYTES) {
        if (!(mask >> node & 1)) continue;
        product_fence();
#pragma unroll
        for (int box = 0; box < S::BOXES; box++) {
#pragma unroll
            for (int k = 0; k < S::DEPTH; k += 16) {
                warpgroup_multiply<!S::FORWARD>(
                    sum[node][box], a[box][k / 16],
                    matrix_descriptor(S::weights_of(w, k), S::SWIZZLE, S::LEADING, S::STRIDE));
            }
        }
        product_commit();
    }
}

template <typename S>
static __device__ __forceinline__ void give_sums(const gather_arguments &p, int number,
                                                 const float (&sum)[S::SUMS]) {
    const int group = threadIdx.x / GROUP;
    float4 *to = (float4 *)slot_of<S>(p, number) + threadIdx.x;
    group_sync(SLOT_FREE + group, WATCHERS);
    leave_sums<CONSUMERS>(to, sum);
    group_arrive(SUMS_LEFT + group, WATCHERS);
}

/* Adds another part's sums. They arrive as SUM_STAGES stages of SUM_ROWS rows, four sums of each
 * thread in a row. */
template <typename S>
static __device__ __forceinline__ void take_sums(const gather_arguments &p, int number,
                                                 uint32_t base, cursor<S::STAGES> &stages,
                                                 float (&sum)[S::SUMS]) {
#pragma unroll
    for (int i = 0; i < S::SUM_STAGES; i++, stages.next()) {
        const uint32_t from = base + stages.at * S::STAGE + threadIdx.x * 16;
        stages.wait_full();
#pragma unroll
        for (int j = 0; j < S::SUM_ROWS; j++) {
            add_four_sums(&sum[(i * S::SUM_ROWS + j) * 4], shared_load4(from + j * SUM_ROW));
        }
        finish_loads();
        stages.release(stages.at);
    }
    if (threadIdx.x == 0) atomicExch(flag_of<S>(p, number), 0);
}

/* Finished sums leave in bf16, in slabs of 32 units by the warp's 16 columns, 16 units at a time. A
 * thread holds columns, so matrices are transposed on the way to shared memory. There the halves of
 * a row swap places every four rows, so that eight rows fill all banks. */
static __device__ __forceinline__ void stage_units(uint32_t staged, const float4 &one,
                                                   const float4 &two) {
    const uint32_t r[4] = {pack(one.x, one.y), pack(one.z, one.w), pack(two.x, two.y),
                           pack(two.z, two.w)};
    const int lane = threadIdx.x % 32, unit = lane / 16 * 8 + lane % 8;
    store_matrices_transposed(staged + unit * SLAB_ROW + (lane / 8 % 2 ^ unit / 4 % 2) * 16, r);
}

template <bool TAPS>
static __device__ __forceinline__ void store_units(const gather_arguments &p, size_t row,
                                                   int column, uint32_t staged) {
    const int lane = threadIdx.x % 32, unit = lane / 2, half = lane % 2, at = column + half * 8;
    if (at >= p.columns) return;
    size_t to = (row + unit) * p.columns + at;
    if (TAPS) to = ((size_t)(at / p.images) * p.rows + row + unit) * p.images + at % p.images;
    *(float4 *)(p.y + to) = shared_load4(staged + unit * SLAB_ROW + (half ^ unit / 4 % 2) * 16);
}

/* Stores a node's finished sums of one box. */
template <int B, bool TAPS>
static __device__ __forceinline__ void store_node(const gather_arguments &p, int node, int column,
                                                  uint32_t staged, const float (&sum)[B / 2]) {
#pragma unroll
    for (int slab = 0; slab < B / SLAB; slab++) {
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 *d = (const float4 *)&sum[slab * SLAB / 2 + i * 8];
            stage_units(staged + i * 16 * SLAB_ROW, d[0], d[1]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            store_units<TAPS>(p, (size_t)node * B + slab * SLAB + i * 16, column,
                              staged + i * 16 * SLAB_ROW);
        }
    }
}

/* Adds up the sums of parts that share nodes, in pieces of 16 units, two rows of four sums of each
 * thread. The pieces are dealt out to the parts in turn. A part keeps its own pieces in shared
 * memory, writes those of other parts to global memory, and adds what the others have written of
 * its own, always in the same order. */
template <typename S>
static __device__ __forceinline__ void
finish_share(const gather_arguments &p, const gather_work<S> &work, uint32_t base,
             const float (&sum)[S::NODES][S::BOXES][S::B / 2]) {
    const int PIECES = S::NODES * S::B / 16, AT_ONCE = 4, ALL = CONSUMERS * S::NODES * S::SUMS;
    static_assert(PIECES * 2 * SUM_ROW <= S::OUT, "the pieces fit where the ring was");
    const int warp = threadIdx.x / 32, group = warp / 4, shares = work.part.shares;
    const int share = work.part.share, column = work.column0 + group * BOX + warp % 4 * 16;
    const uint32_t staged = base + S::OUT + warp * SLAB * SLAB_ROW;
    const uint32_t mine = base + threadIdx.x * 16;
    float4 *to = (float4 *)(p.partial.sums + (size_t)work.number * ALL) + threadIdx.x;
    group_sync(BOTH, CONSUMERS); /* all have multiplied: the ring is free for this part's pieces */
    int owner = 0;
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const float4 *d = (const float4 *)&sum[piece * 16 / S::B][0][piece * 16 % S::B / 2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = piece * 2 + i;
            if (owner == share) {
                shared_store4(mine + row * SUM_ROW, d[i]);
            } else {
                __stcg(to + row * CONSUMERS, d[i]);
            }
        }
        if (++owner == shares) owner = 0;
    }
    group_arrive(SUMS_LEFT + group, WATCHERS);
    group_sync(SLOT_FREE + group, WATCHERS); /* the others' sums are there */
    /* Of each of `together` pieces, `abreast` other parts' sums are loaded at once. */
    const int abreast = max(min(shares - 1, AT_ONCE), 1), together = AT_ONCE / abreast;
#pragma unroll 1
    for (int first = share; first < PIECES; first += together * shares) {
#pragma unroll 1
        for (int other = 0; other < shares - 1; other += abreast) {
            float4 more[AT_ONCE][2];
            auto piece_of = [&](int i) { return first + i / abreast * shares; };
            auto other_of = [&](int i) { return other + i % abreast; };
            auto exists = [&](int i) {
                return i < together * abreast && piece_of(i) < PIECES && other_of(i) < shares - 1;
            };
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (!exists(i)) continue;
                const int away = other_of(i) + (other_of(i) >= share) - share; /* in parts */
                const float4 *from =
                    to + (ptrdiff_t)away * work.stride * (ALL / 4) + piece_of(i) * 2 * CONSUMERS;
                more[i][0] = __ldcg(from);
                more[i][1] = __ldcg(from + CONSUMERS);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE * 2; i++) {
                if (!exists(i / 2)) continue;
                const uint32_t at = mine + (piece_of(i / 2) * 2 + i % 2) * SUM_ROW;
                float4 sums = shared_load4(at);
                add_four_sums(&sums.x, more[i / 2][i % 2]);
                shared_store4(at, sums);
            }
        }
    }
    group_arrive(SUMS_LEFT + group, WATCHERS);
#pragma unroll 1
    for (int piece = share; piece < PIECES; piece += shares) {
        const int node = p.part[work.place].node[piece * 16 / S::B];
        if (piece * 16 / S::B >= work.part.nodes) break;
        const uint32_t at = mine + piece * 2 * SUM_ROW;
        __syncwarp();
        stage_units(staged, shared_load4(at), shared_load4(at + SUM_ROW));
        __syncwarp();
        store_units<false>(p, (size_t)node * S::B + piece * 16 % S::B, column, staged);
    }
}

/* The first and the last node may have partial sums in other parts. A part first hands on the sums
 * that it does not own, then stores the nodes that it computed alone, and last waits for the sums
 * of earlier parts. */
template <typename S>
static __device__ __forceinline__ void
finish_part(const gather_arguments &p, const gather_work<S> &work, uint32_t base,
            cursor<S::STAGES> &stages, float (&sum)[S::NODES][S::BOXES][S::B / 2]) {
    typedef float sums[S::SUMS];
    const int warp = threadIdx.x / 32, takes = work.takes();
    const int column = work.column0 + warp / 4 * S::BOXES * BOX + warp % 4 * SLAB_COLUMNS;
    const int whole = work.part.nodes - work.part.continues;
    const uint32_t staged = base + S::OUT + warp * SLAB * SLAB_ROW;
    if (work.part.continues) {
        float last[S::SUMS];
#pragma unroll
        for (int node = 0; node < S::NODES; node++) {
#pragma unroll
            for (int j = 0; j < S::SUMS; j++) {
                if (node == 0 || node == work.part.nodes - 1)
                    last[j] = sum[node][j / (S::B / 2)][j % (S::B / 2)];
            }
        }
        give_sums<S>(p, work.number, last);
    }
#pragma unroll
    for (int i = 1; i <= S::NODES; i++) {
        const int node = i % S::NODES; /* the first one last */
        if (node >= whole) continue;
        for (int k = 1; node == 0 && k <= takes; k++) {
            take_sums<S>(p, work.number - k * work.stride, base, stages, *(sums *)&sum[0][0][0]);
        }
#pragma unroll
        for (int box = 0; box < S::BOXES; box++) {
            store_node<S::B, S::TAPS>(p, work.part.node[node], column + box * BOX, staged,
                                      sum[node][box]);
        }
    }
}

template <typename S>
static __global__ void __launch_bounds__(THREADS, 1)
    gather(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
           const __grid_constant__ gather_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    cursor<S::STAGES> stages;
    stages.create(base + S::BARRIERS, CONSUMER_WARPS, 2);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<S::PRODUCER_REGISTERS>();
        const int role = warp - CONSUMER_WARPS;
        if (role == 1 || (role > 1 && !p.overlap)) wait_for_earlier();
        if (role == 0 && !S::TAPS) produce_activations<S>(x_map, p, base, stages);
        if (role == 0 && S::TAPS) produce_taps<S>(x_map, p, base, stages);
        if (role == 1) watch_flags<S>(p);
        if (role > 1 && role - 2 < S::WEIGHT_WARPS) {
            produce_weights<S>(w_map, p, base, stages, role - 2);
        }
        return;
    }

    registers_grow<S::CONSUMER_REGISTERS>();
    const int box0 = warp / 4 * S::BOXES; /* this warpgroup's */
    const int span = S::TAPS ? p.span : BOX;
    const uint32_t place = place_of_columns(span, S::DEPTH);
    for (int turn = 0;; turn++) {
        const gather_work<S> work(p, turn);
        if (!work.exists(p)) break;
        const uint32_t *source = p.source + work.part.first;
        float sum[S::NODES][S::BOXES][S::B / 2] = {};
        uint32_t next = *source;
        if (turn == 0) {
            wait_for_earlier();
            let_next_start();
        }
        for (int i = 0; i < work.part.count; i++) {
            const int mask = (int)(next % (1 << PART_NODES));
            if (i + 1 < work.part.count) next = *++source;
            for (int slice = 0; slice < S::SLICES; slice++, stages.next()) {
                const uint32_t x = base + stages.at * S::STAGE, w = x + S::X_BYTES;
                uint32_t a[S::BOXES][S::DEPTH / 16][4];
                stages.wait_full();
                if (!S::SKIPS || box0 < work.boxes) {
#pragma unroll
                    for (int box = 0; box < S::BOXES; box++) {
                        load_columns(a[box], x + place + (box0 + box) * S::BOX_BYTES, span * 32);
                    }
                    /* A box beyond the last column is undefined, and not stored. */
                    multiply_nodes<S>(sum, a, w, mask);
                }
                product_wait<0>();
                stages.release(stages.at);
            }
        }
        if constexpr (S::SHARED) {
            finish_share<S>(p, work, base, sum);
        } else {
            finish_part<S>(p, work, base, stages, sum);
        }
    }
#endif
}

/* ------------------------------------------------------------------------------------ launches */

/* W: for fprop, blocks of DEPTH columns; for dgrad, all rows of all blocks in boxes of DEPTH rows,
 * and rows of 32 two at a time, as 128 bytes. */
template <typename S>
static bool map_blocks(backend *be, CUtensorMap *map, const layout *l, const void *w) {
    const uint64_t b = S::PAIRED ? 64 : S::B, rows = layout_weights(l) / b;
    const uint64_t extent[2] = {b, rows}, stride[1] = {b * 2};
    const uint32_t across = S::FORWARD ? S::DEPTH : 64;
    const uint32_t box[2] = {across, S::FORWARD ? S::B : S::PAIRED ? S::DEPTH / 2 : S::DEPTH};
    return make_map(be, map, w, 2, extent, stride, box,
                    across == 32 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B);
}

/* Of a convolution's images those that TMA brings at once. */
static int span_of(int images) {
    return images % BOX ? BOX / 2 : BOX;
}

/* x or dy of `steps` positions; where rows of W come in pairs, first the even rows of a box, then
 * the odd ones. */
template <typename S>
static bool map_sources(backend *be, CUtensorMap *map, const layout *l, const void *x, int columns,
                        int steps) {
    const int rank = S::TAPS ? 3 : 2, span = S::TAPS ? span_of(columns) : BOX;
    const CUtensorMapSwizzle swizzle =
        span == BOX ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B;
    const uint64_t rows = S::FORWARD ? layout_inputs(l) : layout_rows(l);
    const uint64_t row = (uint64_t)columns * 2;
    if (S::PAIRED) {
        const uint64_t extent[4] = {(uint64_t)columns, rows / 2, 2, (uint64_t)steps};
        const uint64_t stride[3] = {2 * row, row, rows * row};
        const uint32_t box[4] = {(uint32_t)span, S::DEPTH / 2, 2, 1};
        return make_map(be, map, x, rank + 1, extent, stride, box, swizzle);
    }
    const uint64_t extent[3] = {(uint64_t)columns, rows, (uint64_t)steps};
    const uint64_t stride[2] = {row, rows * row};
    const uint32_t box[3] = {(uint32_t)span, S::DEPTH, 1};
    return make_map(be, map, x, rank, extent, stride, box, swizzle);
}

/* Tiles of columns that are taken abreast share weights; tiles taken one after the other have more
 * of their activations in the L2. The former pays where the L2 is nearly large enough for all
 * activations, or where there are many weights. Measured with 12,288 units at densities from 0.5 to
 * 0.01, and 18,432. */
static int tiles_abreast(backend *be, const layout *l, int columns, int tile) {
    const double l2 = (double)cuda_of(be)->l2_bytes;
    const double NEARLY_FITS = 1.5, MANY = 8; /* times the L2 */
    const double activations = (double)layout_rows(l) * columns * sizeof(bf16);
    const double weights = (double)layout_weights(l) * sizeof(bf16);
    return activations <= NEARLY_FITS * l2 || weights > MANY * l2 ? SHARING / tile : 1;
}

template <typename S>
static void launch(backend *be, const device_layout *device, const gather_parts *parts,
                   const partial_sums *partial, const product_call *c) {
    const layout *l = &device->host;
    const int columns = c->columns * c->steps, tiles = (columns + S::TILE - 1) / S::TILE;
    const int read = !S::TAPS ? 1 : S::FORWARD ? c->taps->in_positions : c->taps->out_positions;
    CUtensorMap w_map, x_map;
    if (!map_blocks<S>(be, &w_map, l, c->left)) return;
    if (!map_sources<S>(be, &x_map, l, c->right, c->columns, read)) return;
    const int most = partial_slots<S>() / parts->span; /* tiles that there are slots for */
    const int abreast = min(most, tiles_abreast(be, l, columns, S::TILE));
    gather_arguments p = {parts->part,
                          parts->source,
                          parts->block,
                          (bf16 *)c->out,
                          columns,
                          tiles,
                          parts->count,
                          tiles * parts->count,
                          abreast,
                          parts->whole,
                          cuda_of(be)->weights_settled,
                          *partial};
    if (S::TAPS) {
        p.positions = S::FORWARD ? c->taps->source : c->taps->target;
        p.taps = l->taps;
        p.images = c->columns;
        p.rows = (int)(S::FORWARD ? layout_rows(l) : layout_inputs(l));
        p.span = span_of(c->columns);
    }
    cuda_launch(be, S::FORWARD ? "fprop" : "dgrad", true, gather<S>,
                min(p.works, cuda_of(be)->processors), THREADS, S::BYTES, w_map, x_map, p);
    cuda_of(be)->weights_settled = true;
}

template <int B, int G, bool FORWARD>
static void launch_cut(backend *be, const device_layout *device, const gather_direction *tables,
                       const product_call *c) {
    const int cut = cut_of(c->columns);
    if constexpr (G == 1) {
        if (c->taps) { /* columns of all positions: many */
            launch<gather_shape<B, G, FORWARD, 2, false, true>>(
                be, device, &tables->cut[GATHER_CUTS - 1], &tables->partial, c);
            return;
        }
    }
    if (tables->cut[cut].shared) {
        launch<gather_shape<B, G, FORWARD, 1, true>>(be, device, &tables->cut[cut],
                                                     &tables->partial, c);
    } else if (boxes_of_cut(B, G, cut) == 1) {
        launch<gather_shape<B, G, FORWARD, 1>>(be, device, &tables->cut[cut], &tables->partial, c);
    } else {
        launch<gather_shape<B, G, FORWARD, boxes_of_cut(B, G, 1)>>(be, device, &tables->cut[cut],
                                                                   &tables->partial, c);
    }
}

template <int G, bool FORWARD>
static void launch_by_block(backend *be, const device_layout *device,
                            const gather_direction *tables, const product_call *c) {
    switch (device->host.in_block) {
    case 128: launch_cut<128, G, FORWARD>(be, device, tables, c); return;
    case 64: launch_cut<64, G, FORWARD>(be, device, tables, c); return;
    default: launch_cut<32, G, FORWARD>(be, device, tables, c);
    }
}

void gather_run(backend *be, const device_layout *device, const void *plan, const product_call *c) {
    const gather_tables *tables = (const gather_tables *)plan;
    if (c->op == FPROP) {
        launch_by_block<1, true>(be, device, &tables->forward, c);
    } else if (device->host.gates == 1) {
        launch_by_block<1, false>(be, device, &tables->backward, c);
    } else if (device->host.gates == COUPLED_GATES) {
        launch_by_block<COUPLED_GATES, false>(be, device, &tables->backward, c);
    } else {
        launch_by_block<GATES, false>(be, device, &tables->backward, c);
    }
}
