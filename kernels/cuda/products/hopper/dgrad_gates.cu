/* dgrad_gates: dgrad of four gates that share a pattern, on Hopper.
 *
 *   dx' [N columns][b units of a node] = sum over sources  dy' [N][4 b rows]  W [4 b rows][b]
 *
 * with a source for each block in the node's column of W: the four gates' rows of an output node,
 * 64 at a time. A part of a few nodes shares what they gather: their sums stay in registers while
 * the union of their sources goes by once. dgrad_gates_plan.cu cuts the parts in the way that
 * should be faster:
 *
 *   evenly: neighbouring nodes' lists, one after another, into as many equal parts as there are
 *   thread blocks. A node whose list is cut (split-K) has partial sums. So in small
 *   worlds, where neighbours have the most in common, and where there are hubs.
 *   whole: nodes with like sources. Of 384 random nodes, five so gather 37 % less than they would
 *   alone at density 0.01, 29 % less at 0.1, and there are no partial sums.
 *
 * Floors, at 18,432 units, block 32, 22,064 blocks, 128 columns on an H200: W is 181 MB out of
 * memory, 42 us. Patterns of small worlds, in parts of five nodes, gather 246 MB of dy from the L2,
 * which with the weights is 427 MB into the multiprocessors, 56 us at the 7.6 TB/s that L2 gives to
 * plain reads. It takes 63; 256 and 512 columns take 94 and 180.
 *
 *   The left operand, activations, lies in registers: products from there run at the full rate,
 *   from shared memory at two thirds of it. ldmatrix transposes it on the way, once for all nodes.
 *   A branch leaves out nodes that the source has no block for.
 *   The producers run on into the thread block's next part while this one's sums are stored.
 *   Weights do not wait for the kernel before, so that the first stages have theirs while that one
 *   still ends: hence a producer for them alone.
 *   Partial sums arrive as further stages, and a warp beside the producers looks after the flags.
 *
 * With more columns a warpgroup makes two boxes of them, so that weights enter half as often:
 *
 *   One branch leads to straight code for each set of nodes, where no product waits for another.
 *   512 columns of dy are 75 MB, more than the L2 holds. So weights leave it first, and all thread
 *   blocks go through the sources in an order of phases, at the same pace: those whose nodes are
 *   near each other in a small world, and so have sources in common, ask for them at the same time.
 *   For the same reason all parts of a tile of columns come before the next tile where there are
 *   many, unless weights are, too; see tiles_abreast.
 *
 * Each warp stages 1 KB for storing, which leaves room for one more stage than a part's sums would.
 *
 * Blocks of 64 and of 128 take, at 128, 256 and 512 columns, 60, 98, 175 and 60, 95, 167 us; loads
 * hold these. What did not help: docs/kernels/fprop-dgrad.md. */
#include "products/hopper/dgrad_gates.cuh"

enum {
    DEPTH = 64,        /* rows of a source that a stage brings */
    SLAB = 32,         /* units that a warp stages for storing ... */
    SLAB_COLUMNS = 16, /* ... of these columns */
    SLAB_ROW = SLAB_COLUMNS * 2,
    SHARING = 1024,          /* columns whose tiles share weights, if they do */
    SUM_ROW = CONSUMERS * 16 /* a row of partial sums: four of each thread */
};

typedef struct dgrad_gates_arguments {
    const dgrad_gates_part *part;
    const uint32_t *source;
    const int *block;
    bf16 *dx;
    int columns, tiles; /* tiles of columns */
    int parts, works;   /* works: tiles x parts */
    int abreast;        /* tiles whose parts take turns */
    bool whole;         /* parts cost more or less, the costliest first */
    int overlap;        /* see cuda_weights_change */
    partial_sums partial;
} dgrad_gates_arguments;

/* B: units of a node. BOXES: of columns, that a warpgroup makes. Shared memory: stages, each
 * warp's slab on its way out, barriers. A node's sums from another part take SUM_STAGES. */
template <int B, int BOXES> struct dgrad_gates_shape {
    static const int NODES = nodes_of_part(B), SLICES = GATES * B / DEPTH;
    static const int ALL_BOXES = CONSUMERS / GROUP * BOXES, TILE = ALL_BOXES * BOX;
    static const int SUMS = BOXES * B / 2; /* a thread's, of a node */
    static const int BOX_BYTES = DEPTH * BOX_ROW, W_BYTES = DEPTH * B * 2;
    static const int X_BYTES = ALL_BOXES * BOX_BYTES, STAGE = X_BYTES + NODES * W_BYTES;
    static const int OUT_BYTES = CONSUMER_WARPS * SLAB * SLAB_ROW;
    static const int STAGES = (MOST_SHARED - 2048 - OUT_BYTES) / STAGE;
    static const int SUM_STAGES = (SUMS * CONSUMERS * 4 + STAGE - 1) / STAGE;
    static const int SUM_ROWS = SUMS / 4 / SUM_STAGES, SUM_BYTES = SUM_ROWS * SUM_ROW;
    static_assert(SUM_ROWS * SUM_STAGES * 4 == SUMS, "equal stages");
    static const int OUT = STAGES * STAGE, BARRIERS = OUT + OUT_BYTES;
    static const int BYTES = BARRIERS + STAGES * 16 + 1024;
};

/* The work of a thread block in a turn: a part of the nodes, in one tile of columns. Tiles are
 * taken `abreast` at a time: a part's tiles among these come before the next part's. With whole
 * parts, every other turn runs backwards, so a thread block that had a costly part gets a cheap
 * one, or none. */
template <typename S> struct dgrad_gates_work {
    int number;         /* of all */
    int stride;         /* the next part's is so far on */
    int place;          /* which part */
    int column0, boxes; /* boxes: those of its columns that there are */
    dgrad_gates_part part;

    __device__ dgrad_gates_work(const dgrad_gates_arguments &p, int turn) {
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

    __device__ bool exists(const dgrad_gates_arguments &p) const {
        return number < p.works;
    }

    /* The number of earlier parts whose partial sums of its first node this part adds up. */
    __device__ int takes() const {
        const bool owns = part.nodes > part.continues;
        return owns ? place - part.first_part : 0;
    }
};

/* Partial sums lie in a ring of slots, each with a node's sums for all consumers. The slot of a
 * work follows from the work's number; its flag is that number plus 1 while the sums are there,
 * else 0. The number of slots: */
template <typename S> static constexpr __host__ __device__ int partial_slots() {
    return PARTIAL_FLOATS / (S::SUMS * CONSUMERS);
}

template <typename S>
static __device__ inline int *flag_of(const dgrad_gates_arguments &p, int number) {
    return &p.partial.full[number % partial_slots<S>()];
}

template <typename S>
static __device__ inline float *slot_of(const dgrad_gates_arguments &p, int number) {
    return p.partial.sums + (size_t)(number % partial_slots<S>()) * S::SUMS * CONSUMERS;
}

/* One warp issues the copies of W, another those of dy, into the same stages. Unrolled, these loops
 * are slower. */
template <int B, int BOXES>
static __device__ void produce_weights(const CUtensorMap &w_map, const dgrad_gates_arguments &p,
                                       uint32_t base,
                                       cursor<dgrad_gates_shape<B, BOXES>::STAGES> &stages) {
    typedef dgrad_gates_shape<B, BOXES> S;
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const dgrad_gates_work<S> work(p, turn);
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
                stages.wait_empty();
                if (!elected()) continue;
                const uint32_t barrier = stages.announce(bytes);
                const uint32_t w = base + stages.at * S::STAGE + S::X_BYTES;
                uint32_t left = mask;
#pragma unroll
                for (int k = 0; k < S::NODES; k++, left &= left - 1) {
                    if (!left) break;
                    const int node = __ffs(left) - 1;
                    int from = (now[k] * S::SLICES + slice) * DEPTH;
                    if (B == 32) from /= 2;
#pragma unroll
                    for (int unit = 0; unit < B; unit += 64) {
                        uint32_t to = w + node * S::W_BYTES + unit * DEPTH * 2;
                        tensor_load_once(to, &w_map, barrier, unit, from);
                    }
                }
            }
        }
        /* To the stages of partial sums this warp adds nothing. */
#pragma unroll 1
        for (int i = 0; i < takes; i++, stages.next()) {
            stages.wait_empty();
            if (elected()) stages.announce(0);
        }
    }
}

/* Brings another part's partial sums, as further stages. */
template <typename S>
static __device__ void produce_sums(const dgrad_gates_arguments &p, int number, uint32_t base,
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

template <int B, int BOXES>
static __device__ void produce_activations(const CUtensorMap &x_map, const dgrad_gates_arguments &p,
                                           uint32_t base,
                                           cursor<dgrad_gates_shape<B, BOXES>::STAGES> &stages) {
    typedef dgrad_gates_shape<B, BOXES> S;
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const dgrad_gates_work<S> work(p, turn);
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
                const int row = (now * S::SLICES + slice) * DEPTH;
#pragma unroll
                for (int box = 0; box < S::ALL_BOXES; box++) {
                    uint32_t to = x + box * S::BOX_BYTES;
                    int column = work.column0 + box * BOX;
                    if (box >= work.boxes) break;
                    if (B == 32) {
                        tensor_load(to, &x_map, barrier, column, row / 2, 0);
                    } else {
                        tensor_load(to, &x_map, barrier, column, row);
                    }
                }
            }
        }
        const int takes = work.takes();
#pragma unroll 1
        for (int k = 1; k <= takes; k++) {
            produce_sums<S>(p, work.number - k * work.stride, base, stages);
        }
    }
}

/* Barriers of a warpgroup and the warp that looks after the flags: */
enum { SLOT_FREE = 1, SUMS_LEFT = 3, WATCHERS = GROUP + 32 };

template <typename S> static __device__ void watch_flags(const dgrad_gates_arguments &p) {
    const bool one = threadIdx.x % 32 == 0;
#pragma unroll 1
    for (int turn = 0;; turn++) {
        const dgrad_gates_work<S> work(p, turn);
        if (!work.exists(p)) break;
        if (!work.part.continues) continue;
        int *flag = flag_of<S>(p, work.number);
        if (one) await_flag(p.partial, flag, 0, 64);
        __syncwarp();
        for (int group = 0; group < 2; group++) group_arrive(SLOT_FREE + group, WATCHERS);
        for (int group = 0; group < 2; group++) group_sync(SUMS_LEFT + group, WATCHERS);
        if (one) raise_flag(flag, work.number + 1);
        __syncwarp();
    }
}

/* a = this warp's 16 columns of a box [DEPTH][64 columns]. Columns run along a swizzled row: those
 * 16 are two of its eight chunks. */
static __device__ inline void load_columns(uint32_t (&a)[DEPTH / 16][4], uint32_t x) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    uint32_t at =
        x + (lane / 16 * 8 + lane % 8) * BOX_ROW + (((warp * 2 + lane / 8 % 2) ^ (lane % 8)) << 4);
#pragma unroll
    for (int k = 0; k < DEPTH / 16; k++) load_matrices_transposed(a[k], at + k * 16 * BOX_ROW);
}

/* sum += X' W of one box, for the nodes that have a block for the source. */
template <int B, int BOXES>
static __device__ inline void
multiply_box(float (&sum)[dgrad_gates_shape<B, BOXES>::NODES][BOXES][B / 2], int box,
             const uint32_t (&a)[DEPTH / 16][4], uint32_t w, int mask) {
    typedef dgrad_gates_shape<B, BOXES> S;
#pragma unroll
    for (int node = 0; node < S::NODES; node++, w += S::W_BYTES) {
        if (!(mask >> node & 1)) continue;
        product_fence();
#pragma unroll
        for (int k = 0; k < DEPTH; k += 16) { /* [DEPTH / 2][row % 2][32 units], or [DEPTH][64] */
            uint32_t from = w + (B == 32 ? k % (DEPTH / 2) * 128 + k / (DEPTH / 2) * 64 : k * 128);
            warpgroup_multiply<1>(sum[node][box], a[k / 16],
                                  matrix_descriptor(from, SWIZZLE_128, DEPTH * 128, 1024));
        }
        product_commit();
    }
}

/* The same of all boxes, for the nodes of MASK, which is known when compiling, so no product waits
 * for another. */
template <int B, int BOXES, int MASK>
static __device__ __forceinline__ void
multiply_mask(float (&sum)[dgrad_gates_shape<B, BOXES>::NODES][BOXES][B / 2],
              const uint32_t (&a)[BOXES][DEPTH / 16][4], uint32_t w) {
    typedef dgrad_gates_shape<B, BOXES> S;
    product_fence();
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
#pragma unroll
        for (int node = 0; node < S::NODES; node++) {
            if (!(MASK >> node & 1)) continue;
            uint32_t from = w + node * S::W_BYTES +
                            (B == 32 ? k % (DEPTH / 2) * 128 + k / (DEPTH / 2) * 64 : k * 128);
#pragma unroll
            for (int box = 0; box < BOXES; box++) {
                warpgroup_multiply<1>(sum[node][box], a[box][k / 16],
                                      matrix_descriptor(from, SWIZZLE_128, DEPTH * 128, 1024));
            }
        }
    }
    product_commit();
    product_wait<0>();
}

/* One branch leads to straight code for each mask. */
template <int B, int BOXES>
static __device__ __forceinline__ void
multiply_boxes(float (&sum)[dgrad_gates_shape<B, BOXES>::NODES][BOXES][B / 2],
               const uint32_t (&a)[BOXES][DEPTH / 16][4], uint32_t w, int mask) {
    const int nodes = dgrad_gates_shape<B, BOXES>::NODES;
    static_assert(nodes <= 5, "31 masks");
#define CASE(m)                                                                                    \
    case m:                                                                                        \
        if constexpr (m < 1 << nodes) multiply_mask<B, BOXES, m>(sum, a, w);                       \
        break;
#define CASES(m) CASE(m) CASE(m + 1) CASE(m + 2) CASE(m + 3)
    switch (mask) {
        CASE(1) CASE(2) CASE(3) CASES(4) CASES(8) CASES(12) CASES(16) CASES(20) CASES(24) CASES(28)
    }
#undef CASE
#undef CASES
}

template <typename S>
static __device__ __forceinline__ void give_sums(const dgrad_gates_arguments &p, int number,
                                                 const float (&sum)[S::SUMS]) {
    const int group = threadIdx.x / GROUP;
    float4 *to = (float4 *)slot_of<S>(p, number) + threadIdx.x;
    group_sync(SLOT_FREE + group, WATCHERS);
    leave_sums<CONSUMERS>(to, sum);
    group_arrive(SUMS_LEFT + group, WATCHERS);
}

template <typename S>
static __device__ __forceinline__ void take_sums(const dgrad_gates_arguments &p, int number,
                                                 uint32_t base, cursor<S::STAGES> &stages,
                                                 float (&sum)[S::SUMS]) {
    add_handed_on<S::STAGE, S::SUM_STAGES, S::SUM_ROWS, SUM_ROW>(base, threadIdx.x * 16, stages,
                                                                 sum);
    if (threadIdx.x == 0) atomicExch(flag_of<S>(p, number), 0);
}

/* Stores a node's finished sums of one box in bf16, in slabs of 32 units by the warp's 16 columns.
 * A thread holds columns, so matrices are transposed on the way to shared memory. There the halves
 * of a row swap places every four rows, so that eight rows fill all banks. */
template <int B>
static __device__ __forceinline__ void store_node(const dgrad_gates_arguments &p, int node,
                                                  int column, uint32_t staged,
                                                  const float (&sum)[B / 2]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int slab = 0; slab < B / SLAB; slab++) {
        __syncwarp();
#pragma unroll
        for (int j = 0; j < SLAB / 8; j += 2) {
            const float *d = &sum[slab * SLAB / 2 + j * 4];
            uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]),
                             pack(d[6], d[7])};
            int unit = (j + lane / 16) * 8 + lane % 8, half = lane / 8 % 2 ^ unit / 4 % 2;
            store_matrices_transposed(staged + unit * SLAB_ROW + half * 16, r);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int unit = i * 16 + lane / 2, half = lane % 2, at = column + half * 8;
            if (at >= p.columns) continue;
            *(float4 *)(p.dx + ((size_t)node * B + slab * SLAB + unit) * p.columns + at) =
                shared_load4(staged + unit * SLAB_ROW + (half ^ unit / 4 % 2) * 16);
        }
    }
}

/* The first and the last node may have partial sums in other parts. A part hands on its own first,
 * then stores its whole nodes, and waits for others' last. */
template <int B, int BOXES>
static __device__ __forceinline__ void
finish_part(const dgrad_gates_arguments &p,
            const dgrad_gates_work<dgrad_gates_shape<B, BOXES>> &work, uint32_t base,
            cursor<dgrad_gates_shape<B, BOXES>::STAGES> &stages,
            float (&sum)[dgrad_gates_shape<B, BOXES>::NODES][BOXES][B / 2]) {
    typedef dgrad_gates_shape<B, BOXES> S;
    typedef float sums[S::SUMS];
    const int warp = threadIdx.x / 32, takes = work.takes();
    const int column = work.column0 + warp / 4 * BOXES * BOX + warp % 4 * SLAB_COLUMNS;
    const int whole = work.part.nodes - work.part.continues;
    const uint32_t staged = base + S::OUT + warp * SLAB * SLAB_ROW;
    if (work.part.continues) {
        float last[S::SUMS];
#pragma unroll
        for (int node = 0; node < S::NODES; node++) {
#pragma unroll
            for (int j = 0; j < S::SUMS; j++) {
                if (node == 0 || node == work.part.nodes - 1)
                    last[j] = sum[node][j / (B / 2)][j % (B / 2)];
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
        for (int box = 0; box < BOXES; box++) {
            store_node<B>(p, work.part.node[node], column + box * BOX, staged, sum[node][box]);
        }
    }
}

template <int B, int BOXES>
static __global__ void __launch_bounds__(THREADS, 1)
    dgrad_gates(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ dgrad_gates_arguments p) {
#if ON_HOPPER
    typedef dgrad_gates_shape<B, BOXES> S;
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    cursor<S::STAGES> stages;
    stages.create(base + S::BARRIERS, CONSUMER_WARPS, 2);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<40>();
        if (warp > CONSUMER_WARPS + 1 || (warp == CONSUMER_WARPS && !p.overlap)) wait_for_earlier();
        if (warp == CONSUMER_WARPS) produce_weights<B, BOXES>(w_map, p, base, stages);
        if (warp == CONSUMER_WARPS + 1) produce_activations<B, BOXES>(x_map, p, base, stages);
        if (warp == CONSUMER_WARPS + 2) watch_flags<S>(p);
        return;
    }

    registers_grow<232>();
    const int box0 = warp / 4 * BOXES; /* this warpgroup's */
    for (int turn = 0;; turn++) {
        const dgrad_gates_work<S> work(p, turn);
        if (!work.exists(p)) break;
        const uint32_t *source = p.source + work.part.first;
        float sum[S::NODES][BOXES][B / 2] = {};
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
                uint32_t a[BOXES][DEPTH / 16][4];
                stages.wait_full();
                if constexpr (B == 32 && BOXES == 1) {
                    if (box0 < work.boxes) {
                        load_columns(a[0], x + box0 * S::BOX_BYTES);
                        multiply_box<B, BOXES>(sum, 0, a[0], w, mask);
                    }
                    product_wait<0>();
                } else { /* columns beyond the last are undefined and not stored */
#pragma unroll
                    for (int box = 0; box < BOXES; box++) {
                        load_columns(a[box], x + (box0 + box) * S::BOX_BYTES);
                    }
                    multiply_boxes<B, BOXES>(sum, a, w, mask);
                }
                stages.release(stages.at);
            }
        }
        finish_part<B, BOXES>(p, work, base, stages, sum);
    }
#endif
}

/* ------------------------------------------------------------------------------------ launches */

/* W: all rows of all blocks, in boxes of DEPTH rows; rows of 32 two at a time, as 128 bytes. */
static bool map_blocks(backend *be, CUtensorMap *map, const layout *l, const void *w) {
    const uint64_t b = (uint64_t)l->in_block, rows = b * GATES * (uint64_t)l->blocks;
    const uint64_t extent[2] = {b, rows}, stride[1] = {b * 2};
    const uint32_t box[2] = {64, DEPTH};
    if (b == 32) return map_pairs(be, map, w, rows / 2, DEPTH / 2);
    return make_map(be, map, w, 2, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* dy; where rows of W come in pairs, first the even rows of a box, then the odd ones. */
static bool map_sources(backend *be, CUtensorMap *map, const layout *l, const void *dy,
                        int columns) {
    const uint64_t rows = layout_rows(l), row = (uint64_t)columns * 2;
    const uint64_t extent[3] = {(uint64_t)columns, rows / 2, 2}, stride[2] = {2 * row, row};
    const uint32_t box[3] = {BOX, DEPTH / 2, 2};
    if (l->in_block > 32) return map_activations(be, map, 2, dy, rows, columns, 1, DEPTH);
    return make_map(be, map, dy, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* Tiles of columns that are taken abreast share weights; tiles taken one after the other have more
 * of their activations in the L2. The former pays where the L2 is nearly large enough for all
 * activations, or where there are many weights. Measured with 12,288 units at densities from 0.5 to
 * 0.01, and 18,432. */
static int tiles_abreast(backend *be, const layout *l, int columns, int tile) {
    const double l2 = (double)cuda_of(be)->l2_bytes;
    const double activations = (double)layout_rows(l) * columns * sizeof(bf16);
    const double weights = (double)layout_weights(l) * sizeof(bf16);
    return activations <= 1.5 * l2 || weights > 8 * l2 ? SHARING / tile : 1;
}

template <int B, int BOXES>
static void launch(backend *be, const device_layout *device, const dgrad_gates_tables *tables,
                   const product_call *c) {
    typedef dgrad_gates_shape<B, BOXES> S;
    const int columns = c->columns, tiles = (columns + S::TILE - 1) / S::TILE;
    const int cut = tiles <= 2 ? tiles - 1 : tiles <= 4 ? 2 : 3;
    const dgrad_gates_parts *parts = &tables->cut[cut];
    CUtensorMap w_map, x_map;
    if (!map_blocks(be, &w_map, &device->host, c->left)) return;
    if (!map_sources(be, &x_map, &device->host, c->right, columns)) return;
    const int most = partial_slots<S>() / parts->span; /* tiles that there are slots for */
    const int abreast = min(most, tiles_abreast(be, &device->host, columns, S::TILE));
    const dgrad_gates_arguments p = {parts->part,
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
                                     tables->partial};
    cuda_launch(be, "dgrad", true, dgrad_gates<B, BOXES>, min(p.works, cuda_of(be)->processors),
                THREADS, S::BYTES, w_map, x_map, p);
    cuda_of(be)->weights_settled = true;
}

void dgrad_gates_run(backend *be, const device_layout *device, const void *plan,
                     const product_call *c) {
    const dgrad_gates_tables *tables = (const dgrad_gates_tables *)plan;
    switch (device->host.in_block) {
    case 128: launch<128, 1>(be, device, tables, c); return;
    case 64: launch<64, 1>(be, device, tables, c); return;
    default:
        if (c->columns <= 128) {
            launch<32, 1>(be, device, tables, c);
        } else {
            launch<32, 2>(be, device, tables, c);
        }
    }
}
