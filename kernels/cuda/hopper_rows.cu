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
 * At 18,432 units, block 32, 22,064 blocks, layer norm's sums included, on an H200, in us at 128,
 * 256 and 512 columns: 65, 87, 150; without handing sums on 61, 77, 141; nor finishing tiles 56,
 * 66, 122. Finished tiles must cost their bytes alone: registers give layer norm's sums, and a
 * thread block adds them up over all its tiles; staged in shared memory for each tile they took 77,
 * 109, 186. */
#include "hopper_tiles.cuh"

enum {
    UNITS = 32,
    TILE_ROWS = GATES * UNITS,
    MOST_PARTS = 160,
    STAGED_ROWS = 16, /* a warp stages 16 rows of 64 columns for storing ... */
    WARP_STAGED = 2 * STAGED_ROWS * BOX_ROW /* ... and the next while it stores these */
};

typedef struct rows_arguments {
    const rows_source *source;
    const rows_band *band;
    bf16 *y;
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
    static const int STAGED = CONSUMER_WARPS * WARP_STAGED;
    static const int FIT = (MOST_SHARED - 2048 - STAGED) / STAGE, MOST = 12 / TILES;
    static const int STAGES = FIT < MOST ? FIT : MOST;
    static const int BARRIERS = STAGES * STAGE + STAGED, PRESENT = BARRIERS + 256;
    static const int BYTES = PRESENT + 64 + 1024;
};

/* --------------------------------------------------------------------------------- the producer */

/* Sources are read 32 at a time, a lane each, a batch ahead; `present` tells the consumers of each
 * stage which of the band's tiles have weights there. Unrolled, these loops cost fprop 1 to 2 %. */
template <int KC, int N, int TILES>
static __device__ void produce_rows(const CUtensorMap &w_map, const CUtensorMap &x_map,
                                    const rows_arguments &p, uint32_t base, int *present,
                                    ring<rows_shape<KC, N, TILES>::STAGES> &stages) {
    typedef rows_shape<KC, N, TILES> S;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1], lane = threadIdx.x % 32;
    const int slices = p.b / KC, parts = p.b / UNITS;
    rows_source next = p.source[max(end - 1 - lane, 0)];
    int use = 0;
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
            if (lane > 0) continue;
#pragma unroll 1
            for (int slice = 0; slice < slices; slice++, use++) {
                stages.wait_empty(use);
                if (TILES > 1) present[stages.stage(use)] = mask;
                uint32_t barrier = stages.announce(use, S::X_BYTES + count * S::W_BYTES);
                uint32_t to = base + stages.stage(use) * S::STAGE;
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

template <int TILES, int K>
static __device__ __forceinline__ void take_tile(const exchange &e, int slot,
                                                 float (&sum)[TILES][K]) {
    const float4 *from =
        (const float4 *)(e.sums + (size_t)slot * TILES * K * GROUP) + threadIdx.x % GROUP;
#pragma unroll
    for (int j = 0; j < TILES * K; j += 4) {
        float4 v = __ldcg(from + j / 4 * GROUP);
        float *s = &sum[j / K][j % K];
        s[0] += v.x;
        s[1] += v.y;
        s[2] += v.z;
        s[3] += v.w;
    }
}

/* A warpgroup's helper: a warp that says that its sums are there once they are, and waits for those
 * of parts before. */
static __device__ void pass_sums(const rows_arguments &p, int group) {
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1];
    const int slots = gridDim.x * 2, slot = blockIdx.x * 2 + group, lane = threadIdx.x % 32;
    if (end < p.band[p.last[blockIdx.y] + 1].first) {
        group_sync(1 + group, GROUP + 32);
        if (lane == 0) {
            __threadfence();
            atomicExch(&p.shared.full[blockIdx.y * slots + slot], 1);
        }
        __syncwarp();
    }
    if (blockIdx.y == 0) return;
    const int before = p.last[blockIdx.y - 1], band_end = p.band[before + 1].first;
    if (begin >= band_end || end < band_end) return;
    if (lane == 0) {
        for (int part = blockIdx.y; p.begin[part] > p.band[before].first; part--) {
            int *flag = &p.shared.full[(part - 1) * slots + slot];
            while (atomicAdd(flag, 0) == 0) __nanosleep(64);
            atomicExch(flag, 0);
        }
        __threadfence();
    }
    __syncwarp();
    group_sync(3 + group, GROUP + 32);
}

/* ------------------------------------------------------------------------------- finished tiles */

/* Adds up two lanes' values, of which either keeps half. */
template <int HALF> static __device__ __forceinline__ void fold(float (&v)[16], int step) {
    const bool upper = threadIdx.x & step;
#pragma unroll
    for (int i = 0; i < HALF; i++) {
        float mine = upper ? v[i + HALF] : v[i], theirs = upper ? v[i] : v[i + HALF];
        v[i] = mine + __shfl_xor_sync(~0u, theirs, step);
    }
}

/* Adds a tile's values to layer norm's sums of this thread block: a lane keeps of every 32 columns
 * two neighbouring ones' totals (lanes 0 to 15) or squares. The rows of a column lie in 8 lanes, 4
 * apart; at each step of the sum a lane hands half of its columns to another and keeps the other
 * half. */
template <int N, int TILES>
static __device__ __forceinline__ void sum_columns(const rows_arguments &p, int gate,
                                                   const uint32_t (&value)[TILES][N / 4],
                                                   fixed (&running)[N / 32][2]) {
    const int lane = threadIdx.x % 32;
    const bool squares = lane >= 16;
    const float scale = squares ? SCALE_SQUARE : SCALE_SUM;
    float scaled[N / 32][2];
    bool fits = true;
#pragma unroll
    for (int q = 0; q < N / 32; q++) {
        float v[16]; /* 8 totals, 8 squares */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float2 total = {}, square = {};
#pragma unroll
            for (int i = 0; i < 2 * TILES; i++) {
                uint32_t two = value[i / 2][(q * 4 + j) * 2 + i % 2];
                float one = __uint_as_float(two << 16);
                float other = __uint_as_float(two & 0xFFFF0000u);
                total.x += one;
                total.y += other;
                square.x += one * one;
                square.y += other * other;
            }
            v[j * 2] = total.x;
            v[j * 2 + 1] = total.y;
            v[j * 2 + 8] = square.x;
            v[j * 2 + 9] = square.y;
        }
        fold<8>(v, 16);
        fold<4>(v, 8);
        fold<2>(v, 4);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            scaled[q][e] = v[e] * scale;
            fits &= fabsf(scaled[q][e]) < FIXED_LIMIT;
        }
    }
    if (__all_sync(~0u, fits)) {
#pragma unroll
        for (int i = 0; i < N / 16; i++) {
            running[i / 2][i % 2] += (fixed)__float2ll_rn(scaled[i / 2][i % 2]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        int column = blockIdx.x * N + i / 2 * 32 + lane % 16 * 2 + i % 2;
        add_fixed(p.sums + gate * sums_gate(p.columns), p.columns, squares, column,
                  scaled[i / 2][i % 2] / scale, scale);
    }
}

/* Of a tile's rows [gate][unit] a warp holds one gate's: in a band of two its 32 units, first the
 * even ones, else every second unit. It stores them by itself, 16 rows of 64 columns at a time. */
template <int N, int TILES>
static __device__ __forceinline__ void finish_rows(const rows_arguments &p, int tile, char *staged,
                                                   const float (&sum)[TILES][N / 2],
                                                   fixed (&running)[N / 32][2]) {
    const int warp = threadIdx.x / 32, gate = warp % 4, lane = threadIdx.x % 32;
    const int parts = p.b / UNITS, node = tile / parts, unit0 = tile % parts * UNITS;
    uint32_t value[TILES][N / 4]; /* two neighbours in bf16 */
#pragma unroll
    for (int i = 0; i < TILES * N / 4; i++) {
        const float *two = &sum[i / (N / 4)][i % (N / 4) * 2];
        value[i / (N / 4)][i % (N / 4)] = pack(two[0], two[1]);
    }
    if (p.sums) sum_columns<N, TILES>(p, gate, value, running);
    bf16 *y = p.y + ((size_t)(node * GATES + gate) * p.b + unit0) * p.columns + blockIdx.x * N;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < N / BOX * TILES; i++) {
        char *half = staged + i % 2 * STAGED_ROWS * BOX_ROW;
        const int box = i / TILES, e = i % TILES, parity = TILES == 2 ? e : warp / 4;
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            const uint32_t *from = &value[e][(box * 8 + j) * 2];
            uint32_t r[4] = {from[0], from[1], from[2], from[3]};
            int row = lane % 16, chunk = (j + lane / 16) ^ (row & 7);
            store_matrices(shared_address(half) + row * BOX_ROW + chunk * 16, r);
        }
        __syncwarp();
#pragma unroll
        for (int row = lane / 8; row < STAGED_ROWS; row += 4) {
            *(uint4 *)(y + (size_t)(row * 2 + parity) * p.columns + box * BOX + lane % 8 * 8) =
                *(const uint4 *)(half + row * BOX_ROW + (lane % 8 ^ (row & 7)) * 16);
        }
    }
}

/* Adds what a thread block's tiles came to: first over its warpgroups, in shared memory. */
template <int N>
static __device__ __forceinline__ void add_sums(const rows_arguments &p, fixed *kept,
                                                const fixed (&running)[N / 32][2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    fixed *mine = kept + warp % 4 * N * 2 + lane % 16 * 2 + lane / 16 * N;
    group_sync(5, CONSUMERS); /* all stages have been read */
#pragma unroll
    for (int i = 0; i < N / 16; i++) {
        if (warp >= 4) mine[i / 2 * 32 + i % 2] = running[i / 2][i % 2];
    }
    group_sync(5, CONSUMERS);
    if (warp >= 4) return;
#pragma unroll
    for (int i = 0; i < N / 16; i++) mine[i / 2 * 32 + i % 2] += running[i / 2][i % 2];
    __syncwarp();
    fixed *sums = p.sums + warp * sums_gate(p.columns) + blockIdx.x * N;
    for (int i = lane; i < 2 * N; i += 32) { /* [total, square][N] */
        atomicAdd(sums + (size_t)(i / N) * 2 * p.columns + i % N, kept[warp * N * 2 + i]);
    }
}

/* ---------------------------------------------------------------------------------- the product */

template <int KC, int N, int TILES>
static __global__ void __launch_bounds__(THREADS, 1)
    rows_product(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ rows_arguments p) {
#if ON_HOPPER
    typedef rows_shape<KC, N, TILES> S;
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const int begin = p.begin[blockIdx.y], end = p.begin[blockIdx.y + 1];
    int *present = (int *)(tiles + S::PRESENT);
    ring<S::STAGES> stages;
    stages.create(base + S::BARRIERS);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<56>();
        if (warp == CONSUMER_WARPS) {
            produce_rows<KC, N, TILES>(w_map, x_map, p, base, present, stages);
        } else if (warp <= CONSUMER_WARPS + 2) {
            pass_sums(p, warp - CONSUMER_WARPS - 1);
        }
        return;
    }

    registers_grow<224>();
    const int group = __shfl_sync(~0u, warp / 4, 0), slices = p.b / KC;
    const int slots = gridDim.x * 2, slot = blockIdx.x * 2 + group;
    const int pending = TILES == 1; /* products may run while the next stage is waited for */
    fixed running[N / 32][2] = {};
    int use = 0;
    for (int at = end, which = p.last[blockIdx.y]; at > begin; which--) {
        const rows_band band = p.band[which];
        const int band_end = p.band[which + 1].first, first = max(band.first, begin);
        float sum[TILES][N / 2] = {};
#pragma unroll 1
        for (int i = (at - first) * slices, done = 0; done < i; done++, use++) {
            const uint32_t x = base + stages.stage(use) * S::STAGE, w = x + S::X_BYTES;
            stages.wait_full(use);
            /* read by the lane that releases the stage */
            int here = TILES > 1 && threadIdx.x % 32 == 0 ? present[stages.stage(use)] : 0;
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
            if (done >= pending) stages.release(use - pending);
        }
        if (pending) {
            product_wait<0>();
            stages.release(use - 1);
        }
        if (at == band_end && band.first < begin) {
            group_sync(3 + group, GROUP + 32);
            for (int part = blockIdx.y; p.begin[part] > band.first; part--) {
                take_tile(p.shared, (part - 1) * slots + slot, sum);
            }
        }
        const int tile = band.tile + (TILES == 2 ? group : 0);
        if (at < band_end) {
            give_tile(p.shared, blockIdx.y * slots + slot, sum);
            group_arrive(1 + group, GROUP + 32);
        } else if (tile < p.tiles) {
            finish_rows<N, TILES>(p, tile, tiles + S::STAGES * S::STAGE + warp * WARP_STAGED, sum,
                                  running);
        }
        at = first;
    }
    if (p.sums) add_sums<N>(p, (fixed *)tiles, running);
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
        int at[BAND_TILES] = {}, stop[BAND_TILES] = {}, first = bands.sources;
        for (int t = 0; t < tiles && tile + t < all; t++) {
            at[t] = l->row_start[(tile + t) / parts];
            stop[t] = l->row_start[(tile + t) / parts + 1];
        }
        for (;;) {
            rows_source next = {l->in_nodes, {-1, -1}};
            int cost = 1;
            for (int t = 0; t < tiles; t++) {
                if (at[t] < stop[t]) next.node = min(next.node, l->row_column[at[t]]);
            }
            if (next.node == l->in_nodes) break;
            for (int t = 0; t < tiles; t++) {
                if (at[t] == stop[t] || l->row_column[at[t]] != next.node) continue;
                next.block[t] = at[t]++ * parts + (tile + t) % parts;
                cost++;
            }
            bands.cost[bands.sources + 1] = bands.cost[bands.sources] + cost;
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

/* x [rows][columns] as [columns / 64][rows][64], so that one box is a whole tile. */
static bool map_tiles(backend *be, CUtensorMap *map, const void *x, size_t rows, int columns,
                      int box_rows, int box_columns) {
    const uint64_t extent[3] = {BOX, rows, (uint64_t)columns / BOX};
    const uint64_t stride[2] = {(uint64_t)columns * 2, BOX_ROW};
    const uint32_t box[3] = {BOX, (uint32_t)box_rows, (uint32_t)box_columns / BOX};
    return make_map(be, map, x, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <int KC, int N, int TILES>
static bool launch_rows(backend *be, const device_layout *device, const void *w, const void *x,
                        int columns, void *y, void *sums) {
    typedef rows_shape<KC, N, TILES> S;
    const layout *l = &device->host;
    const rows_bands *bands = TILES == 1 ? &device->single : &device->paired;
    CUtensorMap w_map, x_map;
    rows_arguments p = {bands->source,
                        bands->band,
                        (bf16 *)y,
                        (fixed *)sums,
                        columns,
                        l->in_block,
                        l->out_nodes * (l->out_block / UNITS),
                        exchange_of(be)};
    int parts = min(cuda_of(be)->processors, (int)MOST_PARTS) / (columns / N);
    parts = min(max(parts, 1), bands->sources);
    cut_bands(bands, parts, &p);
    if (!map_gates(be, &w_map, l, w)) return false;
    if (!map_tiles(be, &x_map, x, layout_inputs(l), columns, KC, N)) return false;
    if (device->empty_rows) be->zero(be, y, layout_rows(l) * columns * sizeof(bf16));
    cuda_allow_shared(be, (const void *)rows_product<KC, N, TILES>, S::BYTES);
    rows_product<KC, N, TILES>
        <<<dim3(columns / N, parts), THREADS, S::BYTES, cuda_of(be)->stream>>>(w_map, x_map, p);
    return true;
}

template <int KC>
static bool launch_rows_by_columns(backend *be, const device_layout *device, const void *w,
                                   const void *x, int columns, void *y, void *sums) {
    if (pairs_pay(be, device, columns)) {
        enum { WIDE = KC == 64 ? 128 : 64 }; /* blocks of 32 pair for odd multiples of 64 alone */
        return columns % WIDE == 0 ? launch_rows<KC, WIDE, 2>(be, device, w, x, columns, y, sums)
                                   : launch_rows<KC, 64, 2>(be, device, w, x, columns, y, sums);
    }
    if (columns % 256 == 0) return launch_rows<KC, 256, 1>(be, device, w, x, columns, y, sums);
    if (columns % 128 == 0) return launch_rows<KC, 128, 1>(be, device, w, x, columns, y, sums);
    return launch_rows<KC, 64, 1>(be, device, w, x, columns, y, sums);
}

bool rows_fprop(backend *be, const device_layout *device, const void *w, const void *x, int columns,
                void *y, void *sums) {
    return device->host.in_block == 32
               ? launch_rows_by_columns<32>(be, device, w, x, columns, y, sums)
               : launch_rows_by_columns<64>(be, device, w, x, columns, y, sums);
}
