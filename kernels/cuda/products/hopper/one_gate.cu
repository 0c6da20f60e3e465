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
 * Activations are the left operand and come from registers: wgmma then runs at its full rate even
 * for 32 units, and ldmatrix transposes them on the way. They lie with their blocks of weights in
 * the stages of a ring, which producer warps fill in turn. Nodes that have no block for a source
 * are skipped by branches, so the compiler waits for the products before; the other warpgroup
 * fills this gap.
 *
 * With few column tiles, parts are cut, and dealt out to thread blocks, by their cost. A hub's list
 * would then take longer than all else, so it is cut into parts, too (split-K), whose sums the last
 * one adds up: at 12,288 units, densities .05, .03 and .01, Barabasi-Albert, 128 columns take 12.2,
 * 9.6 and 7.8 us, and 256 take 22.1, 15.0 and 9.3. Where no list is cut, an instance without this
 * runs, which is 3 to 8 % faster.
 *
 * Blocks of 32 and up to 512 columns may leave too little for 132 multiprocessors to do. Then parts
 * are split in one of two ways, which one_gate_plan.cu chooses between:
 *
 *   Shared parts. Six nodes gather less than twice three: of 12,288 units and 128 columns, 342
 *   instead of 484 MB at density 0.5, 193 instead of 240 at 0.2. So the two thread blocks of a
 *   cluster take half of a part's sources each; in the end each gives the other its sums of three
 *   nodes, and finishes the other three. Equally many sources matter, see order_in_turns. At
 *   density 0.1 128 columns take 21.7 us.
 *
 *   Small parts. Where lists are short, a kernel mostly waits: for the kernel before, for tables,
 *   for the first weights. Two thread blocks a multiprocessor, for one to three nodes each, overlap
 *   these waits, and their first weights are on their way before the kernel before has ended. At
 *   density .01 256 columns take 7.2 us so, in tiles of 128.
 *
 * What did not help: docs/kernels/fprop-dgrad.md. */
#include "products/hopper/one_gate_ring.cuh"

/* ----------------------------------------------------------------------------------- products */

/* Loads 32 rows of source tiles [KS rows][64 columns] into registers, for products. */
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

/* sum += a W over 32 of k, for the nodes in the mask. w, above: the halves of a descriptor of the
 * first node's block; the other blocks follow BYTES apart. */
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

/* ------------------------------------------------------------------------------- hubs' sums */

/* Where a warpgroup stores its partial sums of column tile `column`, TILES boxes, and their
 * flag. */
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

/* Adds the sums of several giving parts at a time, as many as registers hold, since each time waits
 * for the L2 once. */
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

/* If the part gives, stores its partial sums and returns false. Otherwise adds the partial sums
 * that were given to it and returns true: its nodes are then complete. */
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

/* ------------------------------------------------------------------------------------- results */

/* Each of a cluster's two thread blocks has sums over half of the sources. Each sends the other the
 * sums of the nodes that the other finishes, to the memory that was the ring. */
template <typename S>
static __device__ __forceinline__ void trade_sums(float (&sum)[S::SLOTS][S::TILES][S::SUMS],
                                                  uint32_t base, int rank) {
    const uint32_t there = cluster_address(base + threadIdx.x * 16, rank ^ 1);
    const uint32_t barrier = cluster_address(base + S::INBOXES, rank ^ 1);
    cluster_sync();
#pragma unroll
    for (int k = 0; k < S::KEPT; k++) {
#pragma unroll
        for (int t = 0; t < S::TILES; t++) {
#pragma unroll
            for (int j = 0; j < S::SUMS; j += 4) {
                float give[4];
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float &low = sum[k][t][j + e], high = sum[S::SLOTS - S::KEPT + k][t][j + e];
                    give[e] = rank ? low : high;
                    low = rank ? high : low;
                }
                cluster_send4(there + ((k * S::TILES + t) * S::SUMS / 4 + j / 4) * CONSUMERS * 16,
                              make_float4(give[0], give[1], give[2], give[3]), barrier + k * 8);
            }
        }
    }
}

template <typename S>
static __device__ __forceinline__ void take_sums(float (&sum)[S::TILES][S::SUMS], uint32_t base,
                                                 int k) {
    cluster_receive(base + S::INBOXES + k * 8);
#pragma unroll
    for (int t = 0; t < S::TILES; t++) {
#pragma unroll
        for (int j = 0; j < S::SUMS; j += 4) {
            const int row = (k * S::TILES + t) * S::SUMS / 4 + j / 4;
            add_four_sums(&sum[t][j], shared_load4(base + threadIdx.x * 16 + row * CONSUMERS * 16));
        }
    }
}

/* Stores a node's results of 64 columns, by way of shared memory. */
template <typename S>
static __device__ __forceinline__ void store_node(const CUtensorMap &y_map,
                                                  const float (&sum)[S::SUMS], uint32_t out,
                                                  int column, int row, int &stored) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = warp / 4;
    const bool leader = threadIdx.x % GROUP == 0;
#pragma unroll
    for (int slice = 0; slice < S::SLICES; slice++, stored++) {
        const uint32_t to = out + stored % S::OUTS * S::BOX_BYTES;
        if (leader) store_wait<S::OUTS - 1>();
        group_sync(1 + group, GROUP);
#pragma unroll
        for (int j = 0; j < S::KS / 8; j += 2) {
            const float *d = &sum[(slice * S::KS / 8 + j) * 4];
            uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]),
                             pack(d[6], d[7])};
            int unit = (j + lane / 16) * 8 + lane % 8;
            int piece = warp % 4 * 2 + lane / 8 % 2;
            store_matrices_transposed(to + unit * BOX_ROW + ((piece ^ (unit % 8)) * 16), r);
        }
        shared_fence();
        group_sync(1 + group, GROUP);
        if (leader) {
            tensor_store(&y_map, to, column, row + slice * S::KS);
            store_commit();
        }
    }
}

/* ------------------------------------------------------------------------------------ kernel */

template <bool FORWARD, typename S>
static __global__ void __launch_bounds__(THREADS, S::RESIDENT)
    one_gate(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
             const __grid_constant__ CUtensorMap y_map,
             const __grid_constant__ one_gate_arguments p) {
#if ON_HOPPER
    typedef weights_in_shared<S::B, FORWARD> layout_of;
    const int TILES = S::TILES, KS = S::KS, HALVES = KS / 32;
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    cursor<S::STAGES>().create(full);
    if ((S::SHARES > 1 || S::EARLY) && threadIdx.x == CONSUMERS) {
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
        if constexpr (S::EARLY) {
            produce_early<FORWARD, S>(w_map, x_map, p, base);
        } else {
            produce<FORWARD, S>(w_map, x_map, p, base);
        }
        if (S::SHARES > 1) cluster_sync();
    } else {
        registers_grow<S::CONSUMER_REGISTERS>();
        wait_for_earlier();
        let_next_start();
        const int group = warp / 4, rank = blockIdx.x % S::SHARES;
        const uint32_t out = base + S::Y + group * S::OUTS * S::BOX_BYTES;
        const uint32_t weights = (base + S::X_BYTES) >> 4 | (layout_of::LEADING >> 4) << 16;
        const uint64_t above = (uint64_t)(layout_of::STRIDE >> 4 | layout_of::SWIZZLE << 30) << 32;
        const uint32_t left = base + group * TILES * S::BOX_BYTES;
        const bool leader = threadIdx.x % GROUP == 0;
        int stage = 0, phase = 0, stored = 0;
        for (int turn = 0;; turn++) {
            const one_gate_tile tile = tile_of<S::SHARES>(p, turn);
            if (tile.part < 0) break;
            const auto *part = part_at<S::SLOTS>(p, tile.part * S::SHARES + rank);
            int stages = part->count * S::SLICES;
            float sum[S::SLOTS][TILES][S::SUMS] = {};
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
                    /* The mask is the same in all lanes, which the compiler only knows of a
                     * reduction's result. */
                    const uint32_t now = __reduce_or_sync(~0u, mask);
                    const uint32_t w = weights + stage * (S::STAGE / 16) +
                                       (HALVES == 2 && parity ? layout_of::HALF : 0);
                    multiply_nodes<FORWARD, layout_of::NEXT, S::W_BYTES>(
                        sum, a[S::AHEAD ? parity : 0], now, w, above);
                    /* The next rows are loaded during these products if there are registers for
                     * both, else afterwards. */
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
            if (S::SHARES > 1) trade_sums<S>(sum, base, rank);
            if (S::HUBS && !gather_hub(p, part, tile.column, sum[0])) continue;
            const int column = tile.column * S::COLUMNS + group * TILES * BOX;
#pragma unroll
            for (int k = 0; k < S::KEPT; k++) {
                const int slot = rank * S::KEPT + k;
                if (S::SHARES > 1) take_sums<S>(sum[k], base, k);
                if (part->node[slot] == NO_NODE) {
                    if (S::SHARES == 1) break;
                    /* The sums that the other thread block sends must still be received. */
                    continue;
                }
#pragma unroll
                for (int t = 0; t < TILES; t++) {
                    store_node<S>(y_map, sum[k][t], out, column + t * BOX, part->node[slot] * S::B,
                                  stored);
                }
            }
        }
        if (leader) store_wait<0>();
    }
#endif
}

/* ----------------------------------------------------------------------------------- launches */

/* W in boxes, each a slice of a block's rows. */
static bool map_weights(backend *be, CUtensorMap *map, const layout *l, const void *w,
                        bool forward) {
    const uint64_t b = (uint64_t)l->in_block, rows = b * (uint64_t)l->blocks;
    const uint64_t extent[2] = {b, rows}, stride[1] = {b * 2};
    const uint32_t ks = (uint32_t)rows_of_slice(l->in_block);
    const uint32_t box[2] = {forward ? ks : b < 64 ? 32 : 64, forward ? (uint32_t)b : ks};
    if (b == 32 && !forward) return map_pairs(be, map, w, rows / 2, 16);
    return make_map(be, map, w, 2, extent, stride, box,
                    box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

template <bool FORWARD, typename S>
static void launch(backend *be, const device_layout *device, const one_gate_parts *parts,
                   const product_call *c) {
    const layout *l = &device->host;
    CUtensorMap w_map, x_map, y_map;
    const int columns = c->columns, tiles = (columns + S::COLUMNS - 1) / S::COLUMNS;
    const one_gate_arguments p = {parts->part,   parts->source, FORWARD ? NULL : l->column_block,
                                  parts->count,  tiles,         cuda_of(be)->weights_settled,
                                  parts->partial};
    const size_t in = FORWARD ? layout_inputs(l) : layout_rows(l);
    const size_t out = FORWARD ? layout_rows(l) : layout_inputs(l);
    if (!map_weights(be, &w_map, l, c->left, FORWARD) ||
        !map_activations(be, &x_map, 2, c->right, in, columns, 1, S::KS) ||
        !map_activations(be, &y_map, 2, c->out, out, columns, 1, S::KS))
        return;
    const int grid = min(cuda_of(be)->processors * S::RESIDENT, tiles * parts->count * S::SHARES);
    cuda_launch_clusters(be, FORWARD ? "fprop" : "dgrad", true, S::SHARES, one_gate<FORWARD, S>,
                         grid, THREADS, S::BYTES, w_map, x_map, y_map, p);
    cuda_of(be)->weights_settled = true;
}

/* Runs whole parts, one for each thread block. */
template <int B, bool FORWARD, bool HUBS>
static void launch_whole(backend *be, const device_layout *device, const one_gate_parts *parts,
                         const product_call *c) {
    enum { SLOTS = one_gate_slots(B) };
    if (parts->boxes == 1) {
        launch<FORWARD, one_gate_shape<B, SLOTS, 1, 1, 1, HUBS>>(be, device, parts, c);
    } else {
        launch<FORWARD, one_gate_shape<B, SLOTS, 2, 1, 1, HUBS>>(be, device, parts, c);
    }
}

/* Runs parts of half as many nodes, or parts that two thread blocks share. */
template <bool FORWARD>
static void launch_split(backend *be, const device_layout *device, const one_gate_parts *parts,
                         const product_call *c) {
    enum { B = 32, SLOTS = one_gate_slots(B) };
    if (parts->hubs) {
        launch<FORWARD, one_gate_shape<B, SLOTS / 2, 1, 1, 2, true>>(be, device, parts, c);
    } else if (parts->shares == 1) {
        launch<FORWARD, one_gate_shape<B, SLOTS / 2, 1, 1, 2, false>>(be, device, parts, c);
    } else if (parts->boxes == 1) {
        launch<FORWARD, one_gate_shape<B, SLOTS, 1, 2, 1, false>>(be, device, parts, c);
    } else {
        launch<FORWARD, one_gate_shape<B, SLOTS, 2, 2, 1, false>>(be, device, parts, c);
    }
}

template <int B, bool FORWARD>
static void launch_parts(backend *be, const device_layout *device, const one_gate_parts *parts,
                         const product_call *c) {
    const int columns = c->columns;
    parts += columns <= 2 * BOX ? 0 : min((columns + 4 * BOX - 1) / (4 * BOX), ONE_GATE_CUTS - 1);
    if (parts->shares > 1 || parts->slots < one_gate_slots(B)) {
        launch_split<FORWARD>(be, device, parts, c);
    } else if (parts->hubs) {
        launch_whole<B, FORWARD, true>(be, device, parts, c);
    } else {
        launch_whole<B, FORWARD, false>(be, device, parts, c);
    }
}

template <bool FORWARD>
static void launch_by_block(backend *be, const device_layout *device, const one_gate_parts *parts,
                            const product_call *c) {
    switch (device->host.in_block) {
    case 32: launch_parts<32, FORWARD>(be, device, parts, c); break;
    case 64: launch_parts<64, FORWARD>(be, device, parts, c); break;
    default: launch_parts<128, FORWARD>(be, device, parts, c);
    }
}

void one_gate_run(backend *be, const device_layout *device, const void *plan,
                  const product_call *c) {
    const one_gate_tables *tables = (const one_gate_tables *)plan;
    if (c->op == FPROP) {
        launch_by_block<true>(be, device, tables->forward, c);
    } else {
        launch_by_block<false>(be, device, tables->backward, c);
    }
}
