/* fprop_gates: fprop of three or four gates that share a pattern, on Hopper.
 *
 *   y [tiles of 128 rows: 4 gates x 32 units][N columns]
 *       = sum over blocks (i, j)  W_ij [128][b] x_j [b][N]
 *
 * Of three gates the rows of a fourth are whatever lies behind the others in shared memory. They
 * are multiplied, since the tensor cores take 64 rows at once, and not stored.
 *
 * Floors: W, x and y once through memory; into the multiprocessors W once for each N columns, and a
 * tile of x for every tile of W. A stage is one block's weights, or a part of them, and the tile of
 * x that it gathers. Each thread block walks an equal part of the list of all blocks (split-K). N
 * is 256 where that fits, so that W comes in once.
 *
 * One warp issues every copy, so it must be quick: its loops are rolled, it counts stages instead
 * of dividing, and an elected lane issues the copies.
 *
 * The warps that multiply only round a finished tile and leave it in shared memory. Three warps
 * beside the producer store it. Partial sums of other parts arrive as further stages of the ring,
 * loaded ahead as weights are.
 *
 * More than 1,024 columns come 1,024 at a time, so that the L2 keeps their x.
 *
 * Up to 128 columns the kernel starts while the one before ends, and lets the next one do the same:
 * with the gates' kernel a step of 128 columns takes 76.4 us, of 64 columns 61.
 *
 * At 18,432 units, block 32, 22,064 blocks, on an H200, when it also made layer norm's sums, in us
 * at 128, 256 and 512 columns: 60, 87, 147; without partial sums 56, 81, 141; without finishing
 * tiles either 50, 68, 124. What did not help: docs/kernels/fprop-dgrad.md. */
#include "products/hopper/hopper.cuh"

enum {
    UNITS = 32, /* of a tile, of each gate */
    TILE_ROWS = GATES * UNITS,
    MOST_COLUMNS = 256, /* of a tile */
    MOST_PARTS = 160,   /* of the list of all sources, as many as thread blocks */
    FINISHERS = 3,      /* warps beside the producer */
    OVERLAPPING = 128,  /* the most columns of a launch that starts early */
    /* The part of a finished tile that is a gate's units and 64 columns. */
    BOX_BYTES = UNITS * BOX_ROW,
    SUM_ROW = GROUP * 16 /* a row of partial sums: four of each thread */
};

/* The tiles of 128 rows that have blocks, and the sources that each reads. */
typedef struct fprop_gates_source {
    int node, block; /* block: the tile's part of it */
} fprop_gates_source;

typedef struct fprop_gates_tile {
    int first, number; /* first: of its sources */
} fprop_gates_tile;

typedef struct fprop_gates_tables {
    int count, sources; /* count: of tiles */
    fprop_gates_source *source;
    fprop_gates_tile *tile;      /* [count + 1] */
    fprop_gates_tile *host_tile; /* the same, on the host */
    bool empty_rows;             /* whether there are rows without blocks, which no tile covers */
    partial_sums partial;        /* of tiles that are cut */
} fprop_gates_tables;

/* The tiles of 128 rows, and the sources of each. */
void *fprop_gates_plan(backend *be, device_layout *device, const layout *l) {
    fprop_gates_tables *made = layout_plan<fprop_gates_tables>(device);
    const int parts = l->out_block / UNITS,
              tiles = l->out_nodes * parts; /* parts: tiles of a node */
    fprop_gates_source *source = host_array<fprop_gates_source>((size_t)l->blocks * parts + 1);
    made->host_tile = (fprop_gates_tile *)layout_host_block(device, ((size_t)tiles + 1) *
                                                                        sizeof *made->host_tile);
    for (int number = 0; number < tiles; number++) {
        const int first = l->row_start[number / parts], end = l->row_start[number / parts + 1];
        made->empty_rows |= first == end;
        if (first == end) continue;
        made->host_tile[made->count++] = {made->sources, number};
        for (int k = first; k < end; k++) {
            source[made->sources++] = {l->row_column[k], k * parts + number % parts};
        }
    }
    made->host_tile[made->count].first = made->sources;
    made->source = layout_table(be, device, source, (size_t)made->sources + 1);
    made->tile = layout_table(be, device, made->host_tile, (size_t)made->count + 1);
    const size_t blocks = (size_t)max(16, min(cuda_of(be)->processors, (int)MOST_PARTS));
    made->partial =
        partial_sums_create(be, device, "fprop_gates", 2 * blocks, TILE_ROWS / 2 * MOST_COLUMNS);
    free(source);
    return made;
}

typedef struct fprop_gates_arguments {
    const fprop_gates_source *source;
    const fprop_gates_tile *tile;
    int columns, b, gates;
    bool overlaps; /* whether it overlaps the previous and the next kernel */
    partial_sums partial;
    int begin[MOST_PARTS + 1]; /* a part's sources ... */
    int last[MOST_PARTS];      /* ... and the tile of the last of them */
} fprop_gates_arguments;

/* KC: the number of a block's b columns that a stage has. N: columns of a tile. */
template <int KC, int N> struct fprop_gates_shape {
    static const int W_BYTES = TILE_ROWS * KC * 2, X_BYTES = KC * N * 2;
    static const int STAGE = X_BYTES + W_BYTES;
    static const int SLOTS = N / BOX; /* of each gate's ring of finished boxes */
    static const int STAGED = GATES * SLOTS * BOX_BYTES;
    static const int FIT = (MOST_SHARED - RING_ROOM - STAGED) / STAGE, MOST = 12;
    static const int STAGES = FIT < MOST ? FIT : MOST;
    static const int BOXES = STAGES * STAGE, BARRIERS = BOXES + STAGED;
    static const int BOX_BARRIERS = BARRIERS + STAGES * 16;
    static const int BYTES = BOX_BARRIERS + GATES * SLOTS * 16 + 1024;
    /* Rows of partial sums in a stage, for both warpgroups, and the number of stages that a tile's
     * sums take. */
    static const int SUM_ROWS = STAGE < 8 * SUM_ROW ? 2 : 4;
    static const int SUM_BYTES = SUM_ROWS * SUM_ROW, SUM_STAGES = N / 8 / SUM_ROWS;
};

/* A gate's ring of finished boxes. */
template <int SLOTS> struct outlet {
    uint32_t full, empty, boxes;

    __device__ void create() {
        for (int s = 0; s < SLOTS; s++) {
            barrier_init(full + s * 8, 2); /* a warp of each warpgroup writes */
            barrier_init(empty + s * 8, 1);
        }
    }

    __device__ uint32_t box(int use) {
        return boxes + use % SLOTS * BOX_BYTES;
    }

    __device__ void wait_empty(int use) {
        barrier_wait(empty + use % SLOTS * 8, (use / SLOTS & 1) ^ 1);
    }

    __device__ void fill(int use) {
        barrier_arrive(full + use % SLOTS * 8);
    }

    __device__ void wait_full(int use) {
        barrier_wait(full + use % SLOTS * 8, use / SLOTS & 1);
    }

    __device__ void release(int use) {
        barrier_arrive(empty + use % SLOTS * 8);
    }
};

template <typename S> static __device__ inline outlet<S::SLOTS> outlet_of(uint32_t base, int gate) {
    const uint32_t barriers = base + S::BOX_BARRIERS + gate * S::SLOTS * 16;
    return {barriers, barriers + S::SLOTS * 8, base + S::BOXES + gate * S::SLOTS * BOX_BYTES};
}

/* ------------------------------------------------------------------- sums of tiles that are cut */

template <int K>
static __device__ __forceinline__ void give_tile(const partial_sums &e, int slot,
                                                 const float (&sum)[K]) {
    leave_sums<GROUP>((float4 *)(e.sums + (size_t)slot * K * GROUP) + threadIdx.x % GROUP, sum);
}

/* Marks a warpgroup's partial sums as stored, once they are. A finisher calls this. */
static __device__ void pass_sums(const fprop_gates_arguments &p, int group) {
    const int slot = (blockIdx.y * gridDim.x + blockIdx.x) * 2 + group;
    if (p.begin[blockIdx.y + 1] == p.tile[p.last[blockIdx.y] + 1].first) return;
    group_sync(1 + group, GROUP + 32);
    if (threadIdx.x % 32 == 0) raise_flag(&p.partial.full[slot]);
    __syncwarp();
}

/* Loads the partial sums of earlier parts as further stages, after all others. One lane
 * calls this. */
template <int KC, int N>
static __device__ void produce_sums(const fprop_gates_arguments &p, uint32_t base,
                                    cursor<fprop_gates_shape<KC, N>::STAGES> &stages) {
    typedef fprop_gates_shape<KC, N> S;
    if (blockIdx.y == 0) return;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1];
    const int before = p.last[blockIdx.y - 1], tile_end = p.tile[before + 1].first;
    if (begin >= tile_end || end < tile_end) return;
    for (int part = blockIdx.y; p.begin[part] > p.tile[before].first; part--) {
        const int slot = ((part - 1) * gridDim.x + blockIdx.x) * 2;
        for (int group = 0; group < 2; group++) {
            int *flag = &p.partial.full[slot + group];
            await_flag(p.partial, flag, 1, 64);
            atomicExch(flag, 0);
        }
        __threadfence();
        global_fence();
        const char *from =
            (const char *)p.partial.sums + (size_t)slot * S::SUM_STAGES * S::SUM_BYTES;
#pragma unroll 1
        for (int i = 0; i < S::SUM_STAGES; i++, stages.next(), from += S::SUM_BYTES) {
            stages.wait_empty();
            uint32_t to = base + stages.at * S::STAGE, full = stages.announce(2 * S::SUM_BYTES);
            bulk_load(to, from, S::SUM_BYTES, full);
            bulk_load(to + S::SUM_BYTES, from + S::SUM_STAGES * S::SUM_BYTES, S::SUM_BYTES, full);
        }
    }
}

/* Adds another part's partial sums. */
template <int KC, int N>
static __device__ __forceinline__ void take_tile(uint32_t base, int group,
                                                 cursor<fprop_gates_shape<KC, N>::STAGES> &stages,
                                                 float (&sum)[N / 2]) {
    typedef fprop_gates_shape<KC, N> S;
    const uint32_t mine = group * S::SUM_BYTES + threadIdx.x % GROUP * 16;
    add_handed_on<S::STAGE, S::SUM_STAGES, S::SUM_ROWS, SUM_ROW>(base, mine, stages, sum);
}

/* --------------------------------------------------------------------------------- the producer */

/* Sources are read 32 at a time, one in each lane and a batch ahead. These loops are slower if
 * unrolled. */
template <int KC, int N>
static __device__ void produce_rows(const CUtensorMap &w_map, const CUtensorMap &x_map,
                                    const fprop_gates_arguments &p, uint32_t base,
                                    cursor<fprop_gates_shape<KC, N>::STAGES> &stages) {
    typedef fprop_gates_shape<KC, N> S;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1], lane = threadIdx.x % 32;
    const int slices = p.b / KC, parts = p.b / UNITS;
    const int bytes = S::X_BYTES + p.gates * UNITS * KC * 2;    /* of a stage */
    fprop_gates_source next = p.source[max(end - 1 - lane, 0)]; /* tables do not wait */
    wait_for_earlier();
#pragma unroll 1
    for (int at = end; at > begin; at -= 32) {
        fprop_gates_source mine = next;
        next = p.source[max(at - 33 - lane, 0)];
#pragma unroll 1
        for (int i = 0; i < min(32, at - begin); i++) {
            const int node = __shfl_sync(~0u, mine.node, i);
            const int block = __shfl_sync(~0u, mine.block, i);
#pragma unroll 1
            for (int slice = 0; slice < slices; slice++, stages.next()) {
                stages.wait_empty();
                if (!elected()) continue;
                const uint32_t barrier = stages.announce(bytes);
                const uint32_t x = base + stages.at * S::STAGE, w = x + S::X_BYTES;
                tensor_load(x, &x_map, barrier, 0, node * p.b + slice * KC, blockIdx.x * (N / BOX));
                if (KC == 32) {
                    tensor_load(w, &w_map, barrier, 0, block * p.gates * 16);
                } else {
                    tensor_load(w, &w_map, barrier, slice * KC, block % parts * 16,
                                p.gates * (block / parts), 0);
                }
            }
        }
    }
    if (lane == 0) produce_sums<KC, N>(p, base, stages);
}

/* ------------------------------------------------------------------------------- finished tiles */

/* Leaves a finished tile in shared memory. Of its rows [gate][unit] a warp holds every second unit
 * of one gate. In a box the even units come first, so that stores fall into different banks.
 *
 * Each box of a tile has a place of its own, so a warp waits here only until the previous tile's
 * box is stored, whose products both warpgroups have finished. A warp must not wait here for
 * products that are still to be made: the other warps of its warpgroup would go on to the next
 * product, which then blocks the tensor cores until all four have come. */
template <int KC, int N>
static __device__ __forceinline__ void hand_out(uint32_t base, int &use,
                                                const float (&sum)[N / 2]) {
    typedef fprop_gates_shape<KC, N> S;
    const int warp = threadIdx.x / 32, gate = warp % 4, parity = warp / 4;
    const int lane = threadIdx.x % 32, row = lane % 16;
    outlet<S::SLOTS> out = outlet_of<S>(base, gate);
#pragma unroll
    for (int box = 0; box < N / BOX; box++, use++) {
        out.wait_empty(use);
        const uint32_t to = out.box(use) + (parity * UNITS / 2 + row) * BOX_ROW;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const float *v = &sum[(box * 8 + j) * 4];
            uint32_t r[4] = {pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]),
                             pack(v[6], v[7])};
            store_matrices(to + ((j + lane / 16) ^ (row & 7)) * 16, r);
        }
        shared_fence();
        __syncwarp();
        if (lane == 0) out.fill(use);
    }
}

/* A finisher stores every third finished box. */
template <int KC, int N>
static __device__ void finish_rows(const CUtensorMap &y_map, const fprop_gates_arguments &p,
                                   char *tiles, int finisher) {
    typedef fprop_gates_shape<KC, N> S;
    const int boxes = p.gates * N / BOX;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1], lane = threadIdx.x % 32;
    const int parts = p.b / UNITS;
    const uint32_t base = shared_address(tiles);
    int use = 0;
    for (int at = end, which = p.last[blockIdx.y]; at > begin; which--) {
        const fprop_gates_tile tile = p.tile[which];
        const bool finished = at == p.tile[which + 1].first;
        at = max(tile.first, begin);
        if (!finished) continue;
        for (int i = finisher; i < boxes; i += FINISHERS) {
            const int gate = i % p.gates, turn = use + i / p.gates;
            const int column = blockIdx.x * N + i / p.gates * BOX;
            outlet<S::SLOTS> out = outlet_of<S>(base, gate);
            out.wait_full(turn);
            if (lane == 0) {
                int row =
                    (tile.number / parts * p.gates + gate) * p.b + tile.number % parts * UNITS;
                tensor_store(&y_map, out.box(turn), column, row / 2, 0);
                store_commit();
                store_wait<0>();
                out.release(turn);
            }
            __syncwarp(); /* lanes that wait for the next box should not hold up lane 0 */
        }
        use += N / BOX;
    }
}

/* ---------------------------------------------------------------------------------- the product */

template <int KC, int N>
static __global__ void __launch_bounds__(THREADS, 1)
    fprop_gates(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ CUtensorMap y_map,
                const __grid_constant__ fprop_gates_arguments p) {
#if ON_HOPPER
    typedef fprop_gates_shape<KC, N> S;
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1];
    cursor<S::STAGES> stages;
    stages.create(base + S::BARRIERS);
    if (threadIdx.x < GATES) outlet_of<S>(base, threadIdx.x).create();
    barrier_init_done();
    __syncthreads();

    if (warp == CONSUMER_WARPS + FINISHERS) {
        produce_rows<KC, N>(w_map, x_map, p, base, stages);
        return;
    }
    if (warp >= CONSUMER_WARPS) {
        const int finisher = __shfl_sync(~0u, warp - CONSUMER_WARPS, 0);
        if (finisher < 2) pass_sums(p, finisher);
        finish_rows<KC, N>(y_map, p, tiles, finisher);
        return;
    }

    if (p.overlaps) {
        wait_for_earlier();
        let_next_start();
    }
    const int group = __shfl_sync(~0u, warp / 4, 0), slices = p.b / KC; /* group: even, odd units */
    const int slot = (blockIdx.y * gridDim.x + blockIdx.x) * 2 + group;
    const bool has_gate = (int)(warp % 4) < p.gates;
    const int odd_units = KC == 32 ? 64 : p.gates * UNITS / 2 * KC * 2; /* where they begin */
    int boxes = 0;
    for (int at = end, which = p.last[blockIdx.y]; at > begin; which--) {
        const fprop_gates_tile tile = p.tile[which];
        const int tile_end = p.tile[which + 1].first, first = max(tile.first, begin);
        float sum[N / 2] = {};
        multiply_stages<1, KC>(stages, (at - first) * slices, [&](int stage, int k) {
            const uint32_t x = base + stage * S::STAGE;
            const uint32_t w = x + S::X_BYTES + group * odd_units;
            warpgroup_multiply<0, 1>(
                sum, matrix_descriptor(w + k * 2, SWIZZLE_128, 16, 1024),
                matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, KC * BOX_ROW, 1024));
        });
        if (at == tile_end && tile.first < begin) {
            for (int part = blockIdx.y; p.begin[part] > tile.first; part--) {
                take_tile<KC, N>(base, group, stages, sum);
            }
        }
        if (at < tile_end) {
            give_tile(p.partial, slot, sum);
            group_arrive(1 + group, GROUP + 32);
        } else if (has_gate) {
            hand_out<KC, N>(base, boxes, sum);
        }
        at = first;
    }
#endif
}

/* Cuts the list of sources into `parts` parts, none of them empty. */
static void cut_lists(const fprop_gates_tables *lists, int parts, fprop_gates_arguments *p) {
    for (int i = 0, tile = 0; i < parts; i++) {
        p->begin[i + 1] = (int)((long long)lists->sources * (i + 1) / parts);
        while (lists->host_tile[tile + 1].first < p->begin[i + 1]) tile++;
        p->last[i] = tile;
    }
}

/* ----------------------------------------------------------------------------------- launches */

/* The columns of a launch: `count` from `first` on, of `columns`. */
typedef struct column_range {
    int columns, first, count;
} column_range;

/* W for fprop_gates, 32 units of all gates at a time: for b = 32 a whole block, [gate][unit / 2]
 * [unit % 2][32 of k]; else [unit % 2][gate][unit / 2][64 of k]. */
static bool map_gates(backend *be, CUtensorMap *map, const layout *l, const void *w) {
    const uint64_t b = (uint64_t)l->in_block, gates = (uint64_t)l->gates * l->blocks;
    const uint32_t here = (uint32_t)l->gates; /* gates of a block */
    if (b == 32) return map_pairs(be, map, w, gates * 16, here * 16);
    const uint64_t extent[4] = {b, b / 2, gates, 2};
    const uint64_t stride[3] = {b * 4, b * b * 2, b * 2};
    const uint32_t box[4] = {64, 16, here, 2};
    return make_map(be, map, w, 4, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* Some columns of x [rows][columns] as [box][rows][64], so that one box is a whole tile. */
static bool map_tiles(backend *be, CUtensorMap *map, const bf16 *x, size_t rows, column_range of,
                      int box_rows, int box_columns) {
    const uint64_t extent[3] = {BOX, rows, (uint64_t)of.count / BOX};
    const uint64_t stride[2] = {(uint64_t)of.columns * 2, BOX_ROW};
    const uint32_t box[3] = {BOX, (uint32_t)box_rows, (uint32_t)box_columns / BOX};
    return make_map(be, map, x + of.first, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

/* The same for y, with a gate's even units before its odd ones. */
static bool map_finished(backend *be, CUtensorMap *map, const bf16 *y, size_t rows,
                         column_range of) {
    const uint64_t extent[3] = {(uint64_t)of.count, rows / 2, 2};
    const uint64_t stride[2] = {(uint64_t)of.columns * 4, (uint64_t)of.columns * 2};
    const uint32_t box[3] = {BOX, UNITS / 2, 2};
    return make_map(be, map, y + of.first, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <int KC, int N>
static void launch_rows(backend *be, const device_layout *device, const fprop_gates_tables *lists,
                        const product_call *c, column_range of) {
    typedef fprop_gates_shape<KC, N> S;
    const layout *l = &device->host;
    CUtensorMap w_map, x_map, y_map;
    fprop_gates_arguments p = {lists->source, lists->tile, of.columns,
                               l->in_block,   l->gates,    of.count <= OVERLAPPING,
                               lists->partial};
    int parts = min(cuda_of(be)->processors, (int)MOST_PARTS) / (of.count / N);
    parts = min(max(parts, 1), lists->sources);
    cut_lists(lists, parts, &p);
    if (!map_gates(be, &w_map, l, c->left)) return;
    if (!map_tiles(be, &x_map, (const bf16 *)c->right, layout_inputs(l), of, KC, N)) return;
    if (!map_finished(be, &y_map, (const bf16 *)c->out, layout_rows(l), of)) return;
    cuda_launch(be, "fprop", p.overlaps, fprop_gates<KC, N>, dim3(of.count / N, parts), THREADS,
                S::BYTES, w_map, x_map, y_map, p);
}

template <int KC>
static void launch_by_columns(backend *be, const device_layout *device,
                              const fprop_gates_tables *lists, const product_call *c,
                              column_range of) {
    if (of.count % 256 == 0) {
        launch_rows<KC, 256>(be, device, lists, c, of);
    } else if (of.count % 128 == 0) {
        launch_rows<KC, 128>(be, device, lists, c, of);
    } else {
        launch_rows<KC, 64>(be, device, lists, c, of);
    }
}

/* The columns of the next launch: as many as leave room in the L2 for their activations. The last
 * 64 columns of an odd multiple of 64 have a launch of their own, because wider tiles are faster.
 */
static int columns_at_once(int left) {
    return left < 128 ? left : min(left / 128 * 128, 1024);
}

void fprop_gates_run(backend *be, const device_layout *device, const void *plan,
                     const product_call *c) {
    const layout *l = &device->host;
    const fprop_gates_tables *lists = (const fprop_gates_tables *)plan;
    if (lists->empty_rows) be->zero(be, c->out, layout_rows(l) * c->columns * sizeof(bf16));
    for (int first = 0, count; first < c->columns; first += count) {
        count = columns_at_once(c->columns - first);
        const column_range of = {c->columns, first, count};
        if (l->in_block == 32) {
            launch_by_columns<32>(be, device, lists, c, of);
        } else {
            launch_by_columns<64>(be, device, lists, c, of);
        }
    }
}
