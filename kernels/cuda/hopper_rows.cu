/* rows_product: fprop of four gates that share a pattern, on Hopper.
 *
 *   y [tiles of 128 rows: 4 gates x 32 units][N columns]
 *       = sum over blocks (i, j)  W_ij [128][b] x_j [b][N]
 *
 * Floors: W, x and y once through memory; into the multiprocessors W once for each N columns, and a
 * tile of x for every tile of W. A stage is one block's weights, or a part of them, and the tile of
 * x that it gathers; each thread block walks a part of the list of all blocks, as long as every
 * other's. N is 256 where that fits, so that W comes in once.
 *
 * Two neighbouring tiles may go together, in a band: one tile of x then serves both where both have
 * a block for it. That pays for tiles of one node, or of nodes beside each other in a small world,
 * but leaves registers for half the columns, and makes the sums that parts hand on twice as large:
 * so it is for columns that are no multiple of 128, and for blocks of 64.
 *
 * One warp issues every copy, so it must be quick: with its loops rolled, stages counted instead of
 * divided, and an elected lane, the product alone takes 47 us at 128 columns instead of 58.
 *
 * Those who multiply only round a finished tile and leave it in shared memory. Three warps beside
 * the producer store it and add it to layer norm's sums, which they keep over all tiles. What other
 * parts hand on arrives as further stages, ahead of time as weights do.
 *
 * More than 1,024 columns come so many at a time, so that the L2 keeps their x: at 12,288 units and
 * 8,192 columns, density .1, that takes 1.67 ms instead of 2.17.
 *
 * At 18,432 units, block 32, 22,064 blocks, layer norm's sums included, on an H200, in us at 128,
 * 256 and 512 columns: 60, 87, 147; without handing sums on 56, 81, 141; nor finishing tiles 50,
 * 68, 124. */
#include "hopper_tiles.cuh"
#include "node_lists.h"

enum {
    UNITS = 32,
    TILE_ROWS = GATES * UNITS,
    MOST_PARTS = 160,
    FINISHERS = 3,               /* warps beside the producer */
    BOX_BYTES = UNITS * BOX_ROW, /* of a finished tile, a gate's units and 64 columns */
    SUM_ROW = GROUP * 16         /* sums that parts hand on: four of each thread */
};

typedef struct rows_arguments {
    const rows_source *source;
    const rows_band *band;
    fixed *sums;
    int columns, b;
    int tiles; /* of rows: the last band of two may have but one */
    exchange shared;
    int begin[MOST_PARTS + 1]; /* a part's sources ... */
    int last[MOST_PARTS];      /* ... and the band of the last of them */
} rows_arguments;

/* KC: of a block's b columns, those in a stage. N: columns of a tile. TILES: of a band. */
template <int KC, int N, int TILES> struct rows_shape {
    static const int W_BYTES = TILE_ROWS * KC * 2, X_BYTES = KC * N * 2;
    static const int STAGE = TILES * W_BYTES + X_BYTES;
    /* An outlet is a ring of finished boxes of one gate and one of the band's tiles. */
    static const int OUTLETS = GATES * TILES, SLOTS = TILES == 1 ? N / BOX : 1;
    static const int STAGED = OUTLETS * SLOTS * BOX_BYTES;
    static const int FIT = (MOST_SHARED - 2048 - STAGED) / STAGE, MOST = 12 / TILES;
    static const int STAGES = FIT < MOST ? FIT : MOST;
    static const int BOXES = STAGES * STAGE, BARRIERS = BOXES + STAGED;
    static const int BOX_BARRIERS = BARRIERS + STAGES * 16;
    static const int PRESENT = BOX_BARRIERS + OUTLETS * SLOTS * 16, BYTES = PRESENT + 64 + 1024;
    /* Rows of sums in a stage, for either warpgroup, and stages that a tile's take. */
    static const int SUM_ROWS = STAGE < 8 * SUM_ROW ? 2 : 4;
    static const int SUM_BYTES = SUM_ROWS * SUM_ROW, SUM_STAGES = TILES * N / 8 / SUM_ROWS;
};

template <int SLOTS> struct outlet {
    uint32_t full, empty, boxes;

    __device__ void create(int writers) {
        for (int s = 0; s < SLOTS; s++) {
            barrier_init(full + s * 8, writers);
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

template <typename S>
static __device__ inline outlet<S::SLOTS> outlet_of(uint32_t base, int tile, int gate) {
    const int number = tile * GATES + gate;
    const uint32_t barriers = base + S::BOX_BARRIERS + number * S::SLOTS * 16;
    return {barriers, barriers + S::SLOTS * 8, base + S::BOXES + number * S::SLOTS * BOX_BYTES};
}

/* ------------------------------------------------------------------- sums of bands that are cut */

template <int TILES, int K>
static __device__ __forceinline__ void give_tile(const exchange &e, int slot,
                                                 const float (&sum)[TILES][K]) {
    float4 *to = (float4 *)(e.sums + (size_t)slot * TILES * K * GROUP) + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < TILES * K; j += 4) {
        const float *v = &sum[j / K][j % K];
        __stcg(to + j / 4 * GROUP, make_float4(v[0], v[1], v[2], v[3]));
    }
}

/* A finisher says that a warpgroup's sums are there, once they are. */
static __device__ void pass_sums(const rows_arguments &p, int group) {
    const int slot = (blockIdx.y * gridDim.x + blockIdx.x) * 2 + group;
    if (p.begin[blockIdx.y + 1] == p.band[p.last[blockIdx.y] + 1].first) return;
    group_sync(1 + group, GROUP + 32);
    if (threadIdx.x % 32 == 0) {
        __threadfence();
        atomicExch(&p.shared.full[slot], 1);
    }
    __syncwarp();
}

/* The sums of parts before this one come last, as further stages. One lane calls this. */
template <int KC, int N, int TILES>
static __device__ void produce_sums(const rows_arguments &p, uint32_t base,
                                    cursor<rows_shape<KC, N, TILES>::STAGES> &stages) {
    typedef rows_shape<KC, N, TILES> S;
    if (blockIdx.y == 0) return;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1];
    const int before = p.last[blockIdx.y - 1], band_end = p.band[before + 1].first;
    if (begin >= band_end || end < band_end) return;
    for (int part = blockIdx.y; p.begin[part] > p.band[before].first; part--) {
        const int slot = ((part - 1) * gridDim.x + blockIdx.x) * 2;
        for (int group = 0; group < 2; group++) {
            int *flag = &p.shared.full[slot + group];
            while (atomicAdd(flag, 0) == 0) __nanosleep(64);
            atomicExch(flag, 0);
        }
        __threadfence();
        global_fence();
        const char *from =
            (const char *)p.shared.sums + (size_t)slot * S::SUM_STAGES * S::SUM_BYTES;
#pragma unroll 1
        for (int i = 0; i < S::SUM_STAGES; i++, stages.next(), from += S::SUM_BYTES) {
            stages.wait_empty();
            uint32_t to = base + stages.at * S::STAGE, full = stages.announce(2 * S::SUM_BYTES);
            bulk_load(to, from, S::SUM_BYTES, full);
            bulk_load(to + S::SUM_BYTES, from + S::SUM_STAGES * S::SUM_BYTES, S::SUM_BYTES, full);
        }
    }
}

/* Adds what another part gave. */
template <int KC, int N, int TILES>
static __device__ __forceinline__ void take_tile(uint32_t base, int group,
                                                 cursor<rows_shape<KC, N, TILES>::STAGES> &stages,
                                                 float (&sum)[TILES][N / 2]) {
    typedef rows_shape<KC, N, TILES> S;
#pragma unroll
    for (int i = 0; i < S::SUM_STAGES; i++, stages.next()) {
        const uint32_t from = base + stages.at * S::STAGE + group * S::SUM_BYTES;
        stages.wait_full();
#pragma unroll
        for (int j = 0; j < S::SUM_ROWS; j++) {
            const int at = (i * S::SUM_ROWS + j) * 4;
            float *s = &sum[at / (N / 2)][at % (N / 2)];
            float4 v = shared_load4(from + j * SUM_ROW + threadIdx.x % GROUP * 16);
            s[0] += v.x;
            s[1] += v.y;
            s[2] += v.z;
            s[3] += v.w;
        }
        __syncwarp();
        stages.release(stages.at);
    }
}

/* --------------------------------------------------------------------------------- the producer */

/* Sources are read 32 at a time, a lane each, a batch ahead; `present` tells the consumers of each
 * stage which of the band's tiles have weights there. Unrolled, these loops are slower. */
template <int KC, int N, int TILES>
static __device__ void produce_rows(const CUtensorMap &w_map, const CUtensorMap &x_map,
                                    const rows_arguments &p, uint32_t base, int *present,
                                    cursor<rows_shape<KC, N, TILES>::STAGES> &stages) {
    typedef rows_shape<KC, N, TILES> S;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1], lane = threadIdx.x % 32;
    const int slices = p.b / KC, parts = p.b / UNITS;
    rows_source next = p.source[max(end - 1 - lane, 0)];
#pragma unroll 1
    for (int at = end; at > begin; at -= 32) {
        rows_source mine = next;
        next = p.source[max(at - 33 - lane, 0)];
#pragma unroll 1
        for (int i = 0; i < min(32, at - begin); i++) {
            int node = __shfl_sync(~0u, mine.node, i), block[TILES], count = 0, mask = 0;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                block[t] = __shfl_sync(~0u, mine.block[t], i);
                count += block[t] >= 0;
                mask |= (block[t] >= 0) << t;
            }
#pragma unroll 1
            for (int slice = 0; slice < slices; slice++, stages.next()) {
                stages.wait_empty();
                if (!elected()) continue;
                if (TILES > 1) present[stages.at] = mask;
                uint32_t barrier = stages.announce(S::X_BYTES + count * S::W_BYTES);
                uint32_t to = base + stages.at * S::STAGE;
                tensor_load(to, &x_map, barrier, 0, node * p.b + slice * KC,
                            blockIdx.x * (N / BOX));
                to += S::X_BYTES;
#pragma unroll
                for (int t = 0; t < TILES; t++, to += S::W_BYTES) {
                    if (block[t] < 0) continue;
                    if (KC == 32) {
                        tensor_load(to, &w_map, barrier, 0, block[t] * 64);
                    } else {
                        tensor_load(to, &w_map, barrier, slice * KC, block[t] % parts * 16,
                                    GATES * (block[t] / parts), 0);
                    }
                }
            }
        }
    }
    if (lane == 0) produce_sums<KC, N, TILES>(p, base, stages);
}

/* ------------------------------------------------------------------------------- finished tiles */

/* Of a tile's rows [gate][unit] a warp holds one gate's: in a band of two its 32 units, else every
 * second one. In a box the even units come first, so that stores fall into different banks. */
template <int KC, int N, int TILES>
static __device__ __forceinline__ void hand_out(uint32_t base, int &use,
                                                const float (&sum)[TILES][N / 2]) {
    typedef rows_shape<KC, N, TILES> S;
    const int warp = threadIdx.x / 32, gate = warp % 4, lane = threadIdx.x % 32, row = lane % 16;
    outlet<S::SLOTS> out = outlet_of<S>(base, TILES == 2 ? warp / 4 : 0, gate);
#pragma unroll
    for (int box = 0; box < N / BOX; box++, use++) {
        out.wait_empty(use);
#pragma unroll
        for (int e = 0; e < TILES; e++) {
            const int parity = TILES == 2 ? e : warp / 4;
            const uint32_t to = out.box(use) + (parity * UNITS / 2 + row) * BOX_ROW;
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                const float *v = &sum[e][(box * 8 + j) * 4];
                uint32_t r[4] = {pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]),
                                 pack(v[6], v[7])};
                store_matrices(to + ((j + lane / 16) ^ (row & 7)) * 16, r);
            }
        }
        shared_fence();
        __syncwarp();
        if (lane == 0) out.fill(use);
    }
}

/* Totals of four columns and of their squares, over the rows ROW, ROW + STEP, ... of 16: always in
 * the same order, by halves. */
template <int ROW, int STEP>
static __device__ __forceinline__ void add_rows(uint32_t rows, float (&sum)[8]) {
    if constexpr (STEP == UNITS / 2) {
        uint2 four = shared_load2((rows ^ (ROW & 7) << 4) + ROW * BOX_ROW);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            uint32_t two = i < 2 ? four.x : four.y;
            float v = __uint_as_float(i % 2 ? two & 0xFFFF0000u : two << 16);
            sum[i] = v;
            sum[4 + i] = v * v;
        }
    } else {
        float other[8];
        add_rows<ROW, STEP * 2>(rows, sum);
        add_rows<ROW + STEP, STEP * 2>(rows, other);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += other[i];
    }
}

/* Adds a box to what a warp keeps of layer norm's sums: half of the lanes add up the even units,
 * half the odd ones, each of four columns. */
static __device__ __forceinline__ void sum_box(uint32_t box, fixed *sums, int columns,
                                               fixed (&kept)[8]) {
    const int lane = threadIdx.x % 32;
    float sum[8];
    bool fits = true;
    add_rows<0, 1>(box + lane / 16 * (BOX_BYTES / 2) + lane % 16 * 8, sum);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        sum[i] *= i < 4 ? SCALE_SUM : SCALE_SQUARE;
        fits &= fabsf(sum[i]) < FIXED_LIMIT;
    }
    if (fits) {
#pragma unroll
        for (int i = 0; i < 8; i++) kept[i] += (fixed)__float2ll_rn(sum[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float scale = i < 4 ? SCALE_SUM : SCALE_SQUARE;
        add_fixed(sums, columns, i / 4, lane % 16 * 4 + i % 4, sum[i] / scale, scale);
    }
}

/* Adds what a warp kept of a gate's 64 columns, through shared memory: lanes in the order of the
 * columns. */
static __device__ __forceinline__ void add_sums(fixed *sums, int columns, fixed *shared,
                                                const fixed (&kept)[8]) {
    const int lane = threadIdx.x % 32;
    for (int odd = 0; odd < 2; odd++) {
        if (lane / 16 == odd) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                fixed *to = shared + i / 4 * BOX + lane % 16 * 4 + i % 4;
                *to = kept[i] + (odd ? *to : 0);
            }
        }
        __syncwarp();
    }
#pragma unroll
    for (int i = 0; i < 2 * BOX; i += 32) { /* [total, square][column] */
        atomicAdd(sums + (size_t)(i / BOX) * 2 * columns + i % BOX + lane, shared[i + lane]);
    }
    __syncwarp();
}

/* A finisher stores every third box of those that come out, and adds up its columns. */
template <int KC, int N, int TILES>
static __device__ void finish_rows(const CUtensorMap &y_map, const rows_arguments &p, char *tiles,
                                   int finisher) {
    typedef rows_shape<KC, N, TILES> S;
    const int boxes = GATES * N / BOX, mine = (boxes + FINISHERS - 1) / FINISHERS;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1], lane = threadIdx.x % 32;
    const int parts = p.b / UNITS;
    const uint32_t base = shared_address(tiles);
    uint32_t box = base + S::BOXES + finisher * S::SLOTS * BOX_BYTES; /* the last of this warp */
    fixed kept[mine][8] = {};
    int use[TILES] = {};
    for (int at = end, which = p.last[blockIdx.y]; at > begin; which--) {
        const rows_band band = p.band[which];
        const bool finished = at == p.band[which + 1].first;
        at = max(band.first, begin);
        if (!finished) continue;
#pragma unroll
        for (int k = 0; k < mine; k++) {
            const int i = k * FINISHERS + finisher, gate = i % GATES;
            const int column = blockIdx.x * N + i / GATES * BOX;
            if (i >= boxes) break;
#pragma unroll
            for (int t = 0; t < TILES; t++) {
                const int tile = band.tile + t, turn = use[t] + i / GATES;
                if (tile >= p.tiles) continue;
                outlet<S::SLOTS> out = outlet_of<S>(base, t, gate);
                box = out.box(turn);
                out.wait_full(turn);
                if (lane == 0) {
                    int row = (tile / parts * GATES + gate) * p.b + tile % parts * UNITS;
                    tensor_store(&y_map, box, column, row / 2, 0);
                    store_commit();
                }
                if (p.sums) {
                    sum_box(box, p.sums + gate * sums_gate(p.columns) + column, p.columns, kept[k]);
                }
                __syncwarp();
                if (lane == 0) {
                    store_wait<0>();
                    out.release(turn);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < TILES; t++) use[t] += band.tile + t < p.tiles ? N / BOX : 0;
    }
    __syncwarp();
    if (!p.sums) return;
    fixed *shared = (fixed *)(tiles + (box - base)); /* has been stored, and is filled no more */
#pragma unroll
    for (int k = 0; k < mine; k++) {
        const int i = k * FINISHERS + finisher;
        if (i >= boxes) break;
        add_sums(p.sums + i % GATES * sums_gate(p.columns) + blockIdx.x * N + i / GATES * BOX,
                 p.columns, shared, kept[k]);
    }
}

/* ---------------------------------------------------------------------------------- the product */

template <int KC, int N, int TILES>
static __global__ void __launch_bounds__(THREADS, 1)
    rows_product(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap y_map,
                 const __grid_constant__ rows_arguments p) {
#if ON_HOPPER
    typedef rows_shape<KC, N, TILES> S;
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1];
    int *present = (int *)(tiles + S::PRESENT);
    cursor<S::STAGES> stages;
    stages.create(base + S::BARRIERS);
    if (threadIdx.x < S::OUTLETS) {
        outlet_of<S>(base, threadIdx.x / GATES, threadIdx.x % GATES).create(TILES == 2 ? 1 : 2);
    }
    barrier_init_done();
    __syncthreads();

    if (warp == CONSUMER_WARPS + FINISHERS) {
        produce_rows<KC, N, TILES>(w_map, x_map, p, base, present, stages);
        return;
    }
    if (warp >= CONSUMER_WARPS) {
        const int finisher = __shfl_sync(~0u, warp - CONSUMER_WARPS, 0);
        if (finisher < 2) pass_sums(p, finisher);
        finish_rows<KC, N, TILES>(y_map, p, tiles, finisher);
        return;
    }

    const int group = __shfl_sync(~0u, warp / 4, 0), slices = p.b / KC;
    const int slot = (blockIdx.y * gridDim.x + blockIdx.x) * 2 + group;
    const int pending = TILES == 1; /* products may run while the next stage is waited for */
    int boxes = 0;
    for (int at = end, which = p.last[blockIdx.y]; at > begin; which--) {
        const rows_band band = p.band[which];
        const int band_end = p.band[which + 1].first, first = max(band.first, begin);
        float sum[TILES][N / 2] = {};
        int before = 0; /* the stage before */
#pragma unroll 1
        for (int i = (at - first) * slices, done = 0; done < i; done++, stages.next()) {
            const uint32_t x = base + stages.at * S::STAGE, w = x + S::X_BYTES;
            stages.wait_full();
            /* read by the lane that releases the stage */
            int here = TILES > 1 && threadIdx.x % 32 == 0 ? present[stages.at] : 0;
            if (TILES == 1 || (__shfl_sync(~0u, here, 0) >> group & 1)) {
                product_fence();
#pragma unroll
                for (int k = 0; k < KC; k += 16) {
#pragma unroll
                    for (int e = 0; e < TILES; e++) {
                        int half = group * TILES + e; /* even and odd units of the tiles */
                        uint32_t from = w + half / 2 * S::W_BYTES +
                                        half % 2 * (KC == 32 ? 64 : S::W_BYTES / 2) + k * 2;
                        warpgroup_multiply<0, 1>(
                            sum[e], matrix_descriptor(from, SWIZZLE_128, 16, 1024),
                            matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, KC * BOX_ROW, 1024));
                    }
                }
                product_commit();
                product_wait<pending>();
            }
            if (done >= pending) stages.release(pending ? before : stages.at);
            before = stages.at;
        }
        if (pending) {
            product_wait<0>();
            stages.release(before);
        }
        if (at == band_end && band.first < begin) {
            for (int part = blockIdx.y; p.begin[part] > band.first; part--) {
                take_tile<KC, N, TILES>(base, group, stages, sum);
            }
        }
        if (at < band_end) {
            give_tile(p.shared, slot, sum);
            group_arrive(1 + group, GROUP + 32);
        } else if (band.tile + (TILES == 2 ? group : 0) < p.tiles) {
            hand_out<KC, N, TILES>(base, boxes, sum);
        }
        at = first;
    }
#endif
}

/* ------------------------------------------------------------------------------------- tables */

/* Tiles of the same node, or neighbours, in bands of `tiles`. */
static rows_bands build_bands(backend *be, const layout *l, int tiles) {
    const int parts = l->out_block / UNITS, all = l->out_nodes * parts;
    const size_t most = (size_t)l->blocks * (size_t)parts + 1;
    rows_source *source = (rows_source *)calloc(most, sizeof *source);
    rows_bands bands = {};
    bands.host_band = (rows_band *)calloc((size_t)all + 1, sizeof *bands.host_band);
    if (!source || !bands.host_band) abort();
    bands.cost = host_table(most);
    for (int tile = 0; tile < all; tile += tiles) {
        int at[BAND_TILES] = {}, stop[BAND_TILES] = {}, first = bands.sources, node;
        uint32_t mask;
        for (int t = 0; t < tiles && tile + t < all; t++) {
            at[t] = l->row_start[(tile + t) / parts];
            stop[t] = l->row_start[(tile + t) / parts + 1];
        }
        while ((node = next_source(l->row_column, tiles, at, stop, &mask)) >= 0) {
            rows_source next = {node, {-1, -1}};
            for (int t = 0; t < tiles; t++) {
                if (mask >> t & 1) next.block[t] = at[t] * parts + (tile + t) % parts;
            }
            step_past(mask, tiles, at);
            bands.cost[bands.sources + 1] =
                bands.cost[bands.sources] + 1 + __builtin_popcount(mask);
            source[bands.sources++] = next;
        }
        if (bands.sources == first) continue;
        rows_band band = {first, tile};
        bands.host_band[bands.count++] = band;
    }
    bands.host_band[bands.count].first = bands.sources;
    bands.source =
        (rows_source *)cuda_table(be, source, (size_t)(bands.sources + 1) * sizeof *source);
    bands.band = (rows_band *)cuda_table(be, bands.host_band,
                                         (size_t)(bands.count + 1) * sizeof *bands.band);
    free(source);
    return bands;
}

void rows_create(backend *be, device_layout *device, const layout *l) {
    device->single = build_bands(be, l, 1);
    device->paired = build_bands(be, l, 2);
}

/* Whether bands of two tiles are faster: tiles share sources, there are bands enough that most are
 * not cut, and the band's columns are no loss. */
static bool pairs_pay(backend *be, const device_layout *device, int columns) {
    const rows_bands *single = &device->single, *paired = &device->paired;
    const int tiles = columns % 128 == 0 ? columns / 128 : columns / 64;
    return paired->sources < 0.7 * single->sources &&
           paired->count * tiles > 2 * cuda_of(be)->processors &&
           (columns % 128 != 0 || device->host.in_block == 64);
}

/* The first entry of an ascending table, of those in [from, to], that is at least `value`. */
static int first_from(const int *table, int from, int to, long long value) {
    while (from < to) {
        int middle = (from + to) / 2;
        if (table[middle] < value) {
            from = middle + 1;
        } else {
            to = middle;
        }
    }
    return from;
}

/* Cuts the sources into `parts` of equal cost, none of them empty. */
static void cut_bands(const rows_bands *bands, int parts, rows_arguments *p) {
    const long long whole = bands->cost[bands->sources];
    for (int i = 0, band = 0; i < parts; i++) {
        p->begin[i + 1] = first_from(bands->cost, p->begin[i] + 1, bands->sources - (parts - 1 - i),
                                     whole * (i + 1) / parts);
        while (bands->host_band[band + 1].first < p->begin[i + 1]) band++;
        p->last[i] = band;
    }
}

/* ----------------------------------------------------------------------------------- launches */

/* Columns that a launch makes: `count` from `first` on, of `columns`. */
typedef struct column_range {
    int columns, first, count;
} column_range;

/* W for rows_product, 32 units of four gates at a time: for b = 32 a whole block, [gate][unit / 2]
 * [unit % 2][32 of k]; else [unit % 2][gate][unit / 2][64 of k]. */
static bool map_gates(backend *be, CUtensorMap *map, const layout *l, const void *w) {
    const uint64_t b = (uint64_t)l->in_block, gates = GATES * (uint64_t)l->blocks;
    if (b == 32) return map_pairs(be, map, w, gates * 16, 64);
    const uint64_t extent[4] = {b, b / 2, gates, 2};
    const uint64_t stride[3] = {b * 4, b * b * 2, b * 2};
    const uint32_t box[4] = {64, 16, GATES, 2};
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

/* Of y too, a gate's even units before its odd ones. */
static bool map_finished(backend *be, CUtensorMap *map, const bf16 *y, size_t rows,
                         column_range of) {
    const uint64_t extent[3] = {(uint64_t)of.count, rows / 2, 2};
    const uint64_t stride[2] = {(uint64_t)of.columns * 4, (uint64_t)of.columns * 2};
    const uint32_t box[3] = {BOX, UNITS / 2, 2};
    return make_map(be, map, y + of.first, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <int KC, int N, int TILES>
static void launch_rows(backend *be, const device_layout *device, const void *w, const void *x,
                        column_range of, void *y, void *sums) {
    typedef rows_shape<KC, N, TILES> S;
    const layout *l = &device->host;
    const rows_bands *bands = TILES == 1 ? &device->single : &device->paired;
    CUtensorMap w_map, x_map, y_map;
    rows_arguments p = {bands->source,  bands->band, sums ? (fixed *)sums + of.first : NULL,
                        of.columns,     l->in_block, l->out_nodes * (l->out_block / UNITS),
                        exchange_of(be)};
    int parts = min(cuda_of(be)->processors, (int)MOST_PARTS) / (of.count / N);
    parts = min(max(parts, 1), bands->sources);
    cut_bands(bands, parts, &p);
    if (!map_gates(be, &w_map, l, w)) return;
    if (!map_tiles(be, &x_map, (const bf16 *)x, layout_inputs(l), of, KC, N)) return;
    if (!map_finished(be, &y_map, (const bf16 *)y, layout_rows(l), of)) return;
    cuda_allow_shared(be, (const void *)rows_product<KC, N, TILES>, S::BYTES);
    rows_product<KC, N, TILES>
        <<<dim3(of.count / N, parts), THREADS, S::BYTES, cuda_of(be)->stream>>>(w_map, x_map, y_map,
                                                                                p);
}

template <int KC>
static void launch_rows_by_columns(backend *be, const device_layout *device, const void *w,
                                   const void *x, column_range of, void *y, void *sums) {
    if (pairs_pay(be, device, of.count)) {
        enum { WIDE = KC == 64 ? 128 : 64 }; /* blocks of 32 pair for odd multiples of 64 alone */
        if (of.count % WIDE == 0) {
            launch_rows<KC, WIDE, 2>(be, device, w, x, of, y, sums);
        } else {
            launch_rows<KC, 64, 2>(be, device, w, x, of, y, sums);
        }
    } else if (of.count % 256 == 0) {
        launch_rows<KC, 256, 1>(be, device, w, x, of, y, sums);
    } else if (of.count % 128 == 0) {
        launch_rows<KC, 128, 1>(be, device, w, x, of, y, sums);
    } else {
        launch_rows<KC, 64, 1>(be, device, w, x, of, y, sums);
    }
}

void rows_fprop(backend *be, const device_layout *device, const void *w, const void *x, int columns,
                void *y, void *sums) {
    const layout *l = &device->host;
    if (device->empty_rows) be->zero(be, y, layout_rows(l) * columns * sizeof(bf16));
    for (int first = 0; first < columns; first += COLUMNS_AT_ONCE) {
        const column_range of = {columns, first, min(columns - first, (int)COLUMNS_AT_ONCE)};
        if (l->in_block == 32) {
            launch_rows_by_columns<32>(be, device, w, x, of, y, sums);
        } else {
            launch_rows_by_columns<64>(be, device, w, x, of, y, sums);
        }
    }
}
