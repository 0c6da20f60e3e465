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
 * Activations are the left operand and come from registers: that is wgmma's full rate also for 32
 * units, and ldmatrix turns them over on the way. They lie with their blocks of weights in the
 * stages of a ring, which warps fill in turn. Nodes that have no block for a source are skipped by
 * branches, so the compiler waits for what was multiplied before; the other warpgroup fills this
 * gap.
 *
 * With few column tiles, parts are cut, and dealt out to thread blocks, by their cost. A hub's list
 * then takes longer than all else, so it is cut into parts, too, whose sums the last one takes. At
 * 12,288 units, densities .05, .03 and .01, Barabasi-Albert, 128 columns took 21.9, 18.1 and
 * 12.0 us without, and take 12.2, 9.6 and 7.8; 256 took 27.2, 22.9 and 15.7, and take 22.1, 15.0
 * and 9.3. Where no list is cut there is a kernel without this: all was 3 to 8 % slower with it. */
#include "products/hopper/one_gate.cuh"

enum { CONSUMER_REGISTERS = 240, PRODUCER_REGISTERS = 24 };

/* B: units of a node. SLOTS: nodes whose sums a warpgroup has registers for. TILES: of 64 columns
 * that it has of each. A stage is KS rows of a source's activations, and its blocks of weights, as
 * many as there are, one after another. */
template <int B, int SLOTS_, int TILES> struct one_gate_shape {
    static const int SLOTS = SLOTS_, SHARES = 1; /* SHARES: thread blocks that share a part */
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

template <int B, bool FORWARD, int SLOTS, int TILES, bool HUBS>
static __global__ void __launch_bounds__(THREADS, 1)
    one_gate(const __grid_constant__ CUtensorMap w_map, const __grid_constant__ CUtensorMap x_map,
             const __grid_constant__ CUtensorMap y_map,
             const __grid_constant__ one_gate_arguments p) {
#if ON_HOPPER
    typedef one_gate_shape<B, SLOTS, TILES> S;
    typedef weights_in_shared<B, FORWARD> layout_of;
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t full = base + S::BARRIERS, empty = full + S::STAGES * 8;
    const int KS = S::KS, HALVES = KS / 32;
    cursor<S::STAGES>().create(full);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<PRODUCER_REGISTERS>();
        produce_one_gate<B, FORWARD, S>(w_map, x_map, p, base);
    } else {
        registers_grow<CONSUMER_REGISTERS>();
        wait_for_earlier();
        let_next_start();
        const int group = warp / 4, lane = threadIdx.x % 32;
        const uint32_t out = base + S::Y + group * S::OUTS * S::OUT;
        const uint32_t weights = (base + S::X_BYTES) >> 4 | (layout_of::LEADING >> 4) << 16;
        const uint64_t above = (uint64_t)(layout_of::STRIDE >> 4 | layout_of::SWIZZLE << 30) << 32;
        const uint32_t left = base + group * TILES * KS * BOX_ROW;
        const bool leader = threadIdx.x % GROUP == 0;
        int stage = 0, phase = 0, stored = 0;
        for (int turn = 0;; turn++) {
            const one_gate_tile tile = tile_of<1>(p, turn);
            if (tile.part < 0) break;
            const auto *part = part_at<SLOTS>(p, tile.part);
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
                    const uint32_t w = weights + stage * (S::STAGE / 16) +
                                       (HALVES == 2 && parity ? layout_of::HALF : 0);
                    multiply_nodes<FORWARD, layout_of::NEXT, S::W_BYTES>(
                        sum, a[S::AHEAD ? parity : 0], now, w, above);
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
                        barrier_arrive_warp(empty + stage * 8);
                        stage = next;
                        stages--;
                    }
                }
            }
            if (HUBS && !gather_hub(p, part, tile.column, sum[0])) continue;
            const int column = tile.column * S::COLUMNS + group * TILES * 64;
#pragma unroll
            for (int slot = 0; slot < SLOTS; slot++) {
                if (part->node[slot] == NO_NODE) break;
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

/* ----------------------------------------------------------------------------------- launches */

template <int B, bool FORWARD, int SLOTS, int TILES, bool HUBS>
static void launch(backend *be, const device_layout *device, const one_gate_parts *parts,
                   const product_call *c) {
    typedef one_gate_shape<B, SLOTS, TILES> S;
    const layout *l = &device->host;
    CUtensorMap w_map, x_map, y_map;
    const int columns = c->columns,
              tiles = (columns + S::COLUMNS - 1) / S::COLUMNS; /* of columns */
    const one_gate_arguments p = {parts->part,   parts->source, FORWARD ? NULL : l->column_block,
                                  parts->count,  tiles,         0,
                                  parts->partial};
    const size_t in = FORWARD ? layout_inputs(l) : layout_rows(l);
    const size_t out = FORWARD ? layout_rows(l) : layout_inputs(l);
    if (!map_one_gate_weights(be, &w_map, l, c->left, FORWARD) ||
        !map_activations(be, &x_map, 2, c->right, in, columns, 1, S::KS) ||
        !map_activations(be, &y_map, 2, c->out, out, columns, 1, S::KS))
        return;
    cuda_launch(be, FORWARD ? "fprop" : "dgrad", true, one_gate<B, FORWARD, SLOTS, TILES, HUBS>,
                min(cuda_of(be)->processors, tiles * parts->count), THREADS, S::BYTES, w_map, x_map,
                y_map, p);
}

template <int B, bool FORWARD, bool HUBS>
static void launch_by_boxes(backend *be, const device_layout *device, const one_gate_parts *parts,
                            const product_call *c) {
    enum { SLOTS = one_gate_slots(B) };
    if (parts->boxes == 1) {
        launch<B, FORWARD, SLOTS, 1, HUBS>(be, device, parts, c);
    } else {
        launch<B, FORWARD, SLOTS, 2, HUBS>(be, device, parts, c);
    }
}

template <int B, bool FORWARD>
static void launch_by_columns(backend *be, const device_layout *device, const one_gate_parts *parts,
                              const product_call *c) {
    const int columns = c->columns;
    parts += columns <= 2 * BOX ? 0 : min((columns + 4 * BOX - 1) / (4 * BOX), ONE_GATE_CUTS - 1);
    if (parts->shares > 1 || parts->slots < one_gate_slots(B)) {
        one_gate_split_run(be, device, parts, c);
    } else if (parts->hubs) {
        launch_by_boxes<B, FORWARD, true>(be, device, parts, c);
    } else {
        launch_by_boxes<B, FORWARD, false>(be, device, parts, c);
    }
}

template <bool FORWARD>
static void launch_by_block(backend *be, const device_layout *device, const one_gate_parts *parts,
                            const product_call *c) {
    switch (device->host.in_block) {
    case 32: launch_by_columns<32, FORWARD>(be, device, parts, c); break;
    case 64: launch_by_columns<64, FORWARD>(be, device, parts, c); break;
    default: launch_by_columns<128, FORWARD>(be, device, parts, c);
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
