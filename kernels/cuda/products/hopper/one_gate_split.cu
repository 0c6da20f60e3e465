/* one_gate_split_run: fprop and dgrad of one gate in blocks of 32 on Hopper, of up to 512 columns.
 *
 * What one_gate does, where its parts leave too little for 132 multiprocessors to do. In both
 * ways here the ring, and what goes through it, are one_gate's.
 *
 * Shares: a part of six nodes gathers less than two of three nodes: of 12,288 units and 128
 * columns, 342 instead of 484 MB at density 0.5, 193 instead of 240 at 0.2. So two thread blocks of
 * a cluster take half of a part's sources each; in the end each gives the other its sums of three
 * nodes, and finishes the other three. Parts of equally many sources matter, see order_in_turns: by
 * likeness alone the costliest takes 10 % more than the mean, which all others wait for. At density
 * 0.1 and 128 columns it takes 21.7 us. Without gain: first weights that do not wait for the kernel
 * before (22.5), and with these an inbox beside the ring, which spares a barrier of the cluster
 * (22.4).
 *
 * Small parts: where lists are short, a kernel is mostly waiting: for the kernel before, for
 * tables, for the first weights. Thread blocks of half a multiprocessor, for one to three nodes
 * each, wait beside each other, and their first weights are on their way before the kernel before
 * has ended. With 256 and 512 columns they make tiles of 128: at density .01 256 columns take 7.2
 * us so, and 7.9 in whole parts; 512 take 12.5 instead of 11.5, but where a hub holds up all
 * others, 15.4 instead of 17.5.
 *
 * Clusters of four, with twelve nodes, would gather less still: but of those only 30 fit on an H200
 * at a time, for 32 parts. */
#include "products/hopper/one_gate.cuh"

enum { UNITS = 32, SUMS = UNITS / 2 /* a thread's, of a node and 64 columns */ };

/* SLOTS: nodes of a part, of which a thread block finishes KEPT; TILES: of 64 columns that a
 * warpgroup has; SHARES: thread blocks of a part; RESIDENT: those of a multiprocessor; HUBS:
 * whether there are parts that give. A stage is a source's activations, and its blocks of
 * weights, as many as there are, one after another. */
template <int SLOTS_, int TILES_, int SHARES_, int RESIDENT_, bool HUBS_> struct split_shape {
    static const int SLOTS = SLOTS_, TILES = TILES_, SHARES = SHARES_, RESIDENT = RESIDENT_;
    static const bool HUBS = HUBS_;
    static const int KEPT = SLOTS / SHARES;
    static const int CONSUMER_REGISTERS = RESIDENT == 2 ? 104 : TILES == 2 ? 240 : 232;
    static const int PRODUCER_REGISTERS = RESIDENT == 2 ? 32 : TILES == 2 ? 24 : 40;
    static const int KS = UNITS, SLICES = 1; /* see produce_one_gate */
    static const int BOXES = 2 * TILES, COLUMNS = BOXES * BOX, BOX_BYTES = UNITS * BOX_ROW;
    static const int X_BYTES = BOXES * BOX_BYTES, W_BYTES = UNITS * UNITS * 2;
    static const int STAGE = X_BYTES + SLOTS * W_BYTES;
    static const int OUTS = 2; /* of a warpgroup's boxes on their way out */
    static const int MOST = RESIDENT == 2 ? 113 << 10 : MOST_SHARED;
    static const int STAGES = (MOST - 2048 - 2 * OUTS * BOX_BYTES) / STAGE;
    static const int Y = STAGES * STAGE, BARRIERS = Y + 2 * OUTS * BOX_BYTES;
    static const int MASKS = BARRIERS + STAGES * 16, INBOXES = (MASKS + STAGES * 4 + 7) / 8 * 8;
    static const int SUM_BYTES = TILES * SUMS * CONSUMERS * 4; /* of a node, to another's inbox */
    static const int BYTES = INBOXES + KEPT * 8 + 1024;
    static_assert(SHARES == 1 || KEPT * SUM_BYTES <= STAGES * STAGE, "an inbox in the ring");
    static_assert(STAGES >= PRODUCERS && STAGES <= 32, "a stage for each, of the first window");
    /* Whether there are registers for two sources' activations. */
    static const bool AHEAD = SLOTS * TILES * SUMS + TILES * 16 < 200;
};

/* A list's next 32 sources, one to a lane. */
template <int SLOTS> struct source_window {
    const one_gate_source *list;
    int count, from, last; /* of the list; the window's first; the node of the last source so far */
    uint32_t next;         /* a lane's of the window after this */
    uint32_t source;       /* a lane's: its node, and in the low bits who has a block for it */

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

/* Of small parts, the first stages' weights do not wait for the kernel before: their sources are
 * all in the list's first window. Shares, which have many more stages, do better without what
 * that takes. */
template <bool FORWARD, typename S>
static __device__ __forceinline__ void produce_small(const CUtensorMap &w_map,
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
        int entry = lane < SLOTS ? part->start[lane] : 0; /* of a lane's node, the window's first */
        int block[SLOTS];                                 /* of a lane's source and each node */
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
                        tensor_load_once(to, &w_map, barrier, 0, now[slot] * UNITS);
                    } else {
                        tensor_load_once(to, &w_map, barrier, 0, now[slot] * (UNITS / 2));
                    }
                    to += S::W_BYTES;
                }
            }
            __syncwarp();
        };
        auto bring_activations = [&](int use, uint32_t source) {
            const int stage = (done + use) % S::STAGES, row = (source >> SLOTS) * UNITS;
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

/* A node's results of 64 columns, by way of shared memory. */
template <typename S>
static __device__ __forceinline__ void store_split(const CUtensorMap &y_map,
                                                   const float (&sum)[SUMS], uint32_t out,
                                                   int column, int row, int &stored) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4;
    const bool leader = threadIdx.x % GROUP == 0;
    const uint32_t to = out + stored++ % S::OUTS * S::BOX_BYTES;
    if (leader) store_wait<S::OUTS - 1>();
    group_sync(1 + group, GROUP);
#pragma unroll
    for (int j = 0; j < UNITS / 8; j += 2) {
        const float *d = &sum[j * 4];
        uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]), pack(d[6], d[7])};
        int unit = (j + lane / 16) * 8 + lane % 8;
        int piece = warp % 4 * 2 + lane / 8 % 2;
        store_matrices_transposed(to + unit * BOX_ROW + ((piece ^ (unit % 8)) * 16), r);
    }
    shared_fence();
    group_sync(1 + group, GROUP);
    if (leader) {
        tensor_store(&y_map, to, column, row);
        store_commit();
    }
}

/* Two thread blocks of a cluster, each with sums of half of the sources, give each other those of
 * the nodes that the other finishes. They lie where the ring was. */
template <typename S>
static __device__ __forceinline__ void trade_sums(float (&sum)[S::SLOTS][S::TILES][SUMS],
                                                  uint32_t base, int rank) {
    const uint32_t there = cluster_address(base + threadIdx.x * 16, rank ^ 1);
    const uint32_t barrier = cluster_address(base + S::INBOXES, rank ^ 1);
    cluster_sync();
#pragma unroll
    for (int k = 0; k < S::KEPT; k++) {
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
#pragma unroll
            for (int j = 0; j < SUMS; j += 4) {
                float give[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float &low = sum[k][t][j + e], high = sum[S::SLOTS - S::KEPT + k][t][j + e];
                    give[e] = rank ? low : high;
                    low = rank ? high : low;
                }
                cluster_send4(there + ((k * S::TILES + t) * SUMS / 4 + j / 4) * CONSUMERS * 16,
                              make_float4(give[0], give[1], give[2], give[3]), barrier + k * 8);
            }
        }
    }
}

template <typename S>
static __device__ __forceinline__ void take_sums(float (&sum)[S::TILES][SUMS], uint32_t base,
                                                 int k) {
    cluster_receive(base + S::INBOXES + k * 8);
#pragma unroll
    for (int t = 0; t < S::TILES; t++) {
#pragma unroll
        for (int j = 0; j < SUMS; j += 4) {
            const int row = (k * S::TILES + t) * SUMS / 4 + j / 4;
            add_four_sums(&sum[t][j], shared_load4(base + threadIdx.x * 16 + row * CONSUMERS * 16));
        }
    }
}

template <bool FORWARD, typename S>
static __global__ void __launch_bounds__(THREADS, S::RESIDENT)
    one_gate_split(const __grid_constant__ CUtensorMap w_map,
                   const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ CUtensorMap y_map,
                   const __grid_constant__ one_gate_arguments p) {
#if ON_HOPPER
    typedef weights_in_shared<UNITS, FORWARD> layout_of;
    const int TILES = S::TILES;
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    cursor<S::STAGES>().create(full);
    if (threadIdx.x == CONSUMERS) {
        map_prefetch(&w_map);
        map_prefetch(&x_map);
        map_prefetch(&y_map);
    }
    if (S::SHARES > 1 && threadIdx.x == 0) {
        for (int k = 0; k < S::KEPT; k++) barrier_init(base + S::INBOXES + k * 8, 1);
    }
    barrier_init_done();
    __syncthreads();
    if (S::SHARES > 1 && threadIdx.x == 0) {
        for (int k = 0; k < S::KEPT; k++) barrier_expect(base + S::INBOXES + k * 8, S::SUM_BYTES);
    }

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<S::PRODUCER_REGISTERS>();
        if (S::SHARES > 1) {
            produce_one_gate<UNITS, FORWARD, S>(w_map, x_map, p, base);
            cluster_sync();
        } else {
            produce_small<FORWARD, S>(w_map, x_map, p, base);
        }
    } else {
        registers_grow<S::CONSUMER_REGISTERS>();
        wait_for_earlier();
        let_next_start();
        const int group = warp / 4, lane = threadIdx.x % 32;
        const uint32_t out = base + S::Y + group * S::OUTS * S::BOX_BYTES;
        const uint32_t weights = (base + S::X_BYTES) >> 4 | (layout_of::LEADING >> 4) << 16;
        const uint64_t above = (uint64_t)(layout_of::STRIDE >> 4 | layout_of::SWIZZLE << 30) << 32;
        const uint32_t left = base + group * TILES * S::BOX_BYTES;
        const bool leader = threadIdx.x % GROUP == 0;
        int stage = 0, phase = 0, stored = 0;
        for (int turn = 0;; turn++) {
            const one_gate_tile tile = tile_of<S::SHARES>(p, turn);
            if (tile.part < 0) break;
            const int rank = blockIdx.x % S::SHARES;
            const auto *part = part_at<S::SLOTS>(p, tile.part * S::SHARES + rank);
            int stages = part->count;
            float sum[S::SLOTS][TILES][SUMS] = {};
            uint32_t a[1 + S::AHEAD][TILES][2][4], mask = 0;
            if (stages) {
                barrier_wait(full + stage * 8, phase);
                mask = shared_load(base + S::MASKS + stage * 4);
                load_left<TILES, UNITS, layout_of::PAIRED>(a[0], left + stage * S::STAGE);
            }
            while (stages) {
#pragma unroll
                for (int parity = 0; parity < 2; parity++) {
                    if (parity && !stages) break;
                    /* The same in all lanes, which the compiler knows of a reduction. */
                    const uint32_t now = __reduce_or_sync(~0u, mask);
                    const uint32_t w = weights + stage * (S::STAGE / 16);
                    multiply_nodes<FORWARD, layout_of::NEXT, S::W_BYTES>(
                        sum, a[S::AHEAD ? parity : 0], now, w, above);
                    /* The next rows: beside these products where registers allow it, else after. */
                    const int next = stage + 1 == S::STAGES ? 0 : stage + 1;
                    const bool more = stages > 1;
                    if (next == 0) phase ^= 1;
                    if (more) {
                        barrier_wait(full + next * 8, phase);
                        mask = shared_load(base + S::MASKS + next * 4);
                    }
                    if (!S::AHEAD) product_wait<0>();
                    if (more) {
                        load_left<TILES, UNITS, layout_of::PAIRED>(a[S::AHEAD ? parity ^ 1 : 0],
                                                                   left + next * S::STAGE);
                    }
                    if (S::AHEAD) product_wait<0>();
                    __syncwarp(); /* all lanes have read */
                    barrier_arrive_warp(empty + stage * 8);
                    stage = next;
                    stages--;
                }
            }
            const int column = tile.column * S::COLUMNS + group * TILES * BOX;
            if (S::SHARES > 1) trade_sums<S>(sum, base, rank);
            if (S::HUBS && !gather_hub(p, part, tile.column, sum[0])) continue;
#pragma unroll
            for (int k = 0; k < S::KEPT; k++) {
                const int slot = rank * S::KEPT + k;
                if (S::SHARES > 1) take_sums<S>(sum[k], base, k);
                if (part->node[slot] == NO_NODE) continue;
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    store_split<S>(y_map, sum[k][t], out, column + t * BOX,
                                   part->node[slot] * UNITS, stored);
                }
            }
        }
        if (leader) store_wait<0>();
    }
#endif
}

/* ----------------------------------------------------------------------------------- launches */

template <bool FORWARD, typename S>
static void launch_split(backend *be, const device_layout *device, const one_gate_parts *parts,
                         const product_call *c) {
    const layout *l = &device->host;
    CUtensorMap w_map, x_map, y_map;
    const int columns = c->columns,
              tiles = (columns + S::COLUMNS - 1) / S::COLUMNS; /* of columns */
    const one_gate_arguments p = {parts->part,   parts->source, FORWARD ? NULL : l->column_block,
                                  parts->count,  tiles,         cuda_of(be)->weights_settled,
                                  parts->partial};
    const size_t in = FORWARD ? layout_inputs(l) : layout_rows(l);
    const size_t out = FORWARD ? layout_rows(l) : layout_inputs(l);
    if (!map_one_gate_weights(be, &w_map, l, c->left, FORWARD) ||
        !map_activations(be, &x_map, 2, c->right, in, columns, 1, UNITS) ||
        !map_activations(be, &y_map, 2, c->out, out, columns, 1, UNITS))
        return;
    const int grid = min(cuda_of(be)->processors * S::RESIDENT, tiles * parts->count * S::SHARES);
    cuda_launch_clusters(be, FORWARD ? "fprop" : "dgrad", true, S::SHARES,
                         one_gate_split<FORWARD, S>, grid, THREADS, S::BYTES, w_map, x_map, y_map,
                         p);
    cuda_of(be)->weights_settled = true;
}

template <bool FORWARD>
static void launch_by_parts(backend *be, const device_layout *device, const one_gate_parts *parts,
                            const product_call *c) {
    enum { SLOTS = one_gate_slots(UNITS) };
    if (parts->hubs) {
        launch_split<FORWARD, split_shape<SLOTS / 2, 1, 1, 2, true>>(be, device, parts, c);
    } else if (parts->shares == 1) {
        launch_split<FORWARD, split_shape<SLOTS / 2, 1, 1, 2, false>>(be, device, parts, c);
    } else if (parts->boxes == 1) {
        launch_split<FORWARD, split_shape<SLOTS, 1, 2, 1, false>>(be, device, parts, c);
    } else {
        launch_split<FORWARD, split_shape<SLOTS, 2, 2, 1, false>>(be, device, parts, c);
    }
}

void one_gate_split_run(backend *be, const device_layout *device, const one_gate_parts *parts,
                        const product_call *c) {
    if (c->op == FPROP) {
        launch_by_parts<true>(be, device, parts, c);
    } else {
        launch_by_parts<false>(be, device, parts, c);
    }
}
