/* rows_product: fprop of four gates that share a pattern, on Hopper.
 *
 *   y [128 rows: 4 gates x 32 units][N columns] = sum over blocks (i, j)  W_ij [128][b] x_j [b][N]
 *
 * A stage is one block's weights, or a part of them, and the activation tile it gathers. Each
 * thread block walks a part of the list of all blocks, as long as every other's; see hopper.cu. */
#include "hopper_tiles.cuh"

typedef struct rows_arguments {
    const int *start, *column, *row; /* row: of each block */
    bf16 *y;
    fixed *sums;
    int columns, b, blocks;
    exchange shared;
} rows_arguments;

/* KC: of a block's b columns, those in a stage. N: columns of the tile. One warpgroup has the even
 * units, one the odd: so rows of 32 weights can be read two at a time, as 128 bytes. */
template <int KC, int N> struct rows_shape {
    static const int W_BYTES = 128 * KC * 2, X_BYTES = KC * N * 2, STAGE = W_BYTES + X_BYTES;
    static const int PITCH = N * 2 + PADDING, STAGED = 128 * PITCH;
    static const int FIT = (MOST_SHARED - 2048 - STAGED) / STAGE;
    static const int STAGES = FIT < 12 ? FIT : 12;
    static const int BARRIERS = STAGES * STAGE + STAGED, BYTES = BARRIERS + 1024 + 256;
};

/* A stretch of one tile's list: blocks [begin, end) of those that stand from `row_begin`. A node of
 * b > 32 units is b / 32 tiles, whose lists are the same; blocks are counted over all of them. */
struct stretch {
    int node, part, first; /* first: the node's first block */
    int begin, end, row_begin, row_end;
};

static __device__ inline stretch stretch_before(const rows_arguments &p, int least, int end) {
    stretch s;
    int parts = p.b / 32, last = end - 1;
    s.node = p.row[last / parts];
    s.first = p.start[s.node];
    int length = p.start[s.node + 1] - s.first;
    s.part = (last - parts * s.first) / length;
    s.row_begin = parts * s.first + s.part * length;
    s.row_end = s.row_begin + length;
    s.begin = max(s.row_begin, least);
    s.end = end;
    return s;
}

static __device__ inline int part_begin(const rows_arguments &p, int part) {
    return (int)((long long)p.blocks * (p.b / 32) * part / gridDim.y);
}

/* A finished tile of 4 gates x 32 units: layer norm's sums, and the values in bf16. Of the rows
 * [gate][unit] a warp holds every second unit of one gate. */
template <int KC, int N>
static __device__ void finish_rows(const rows_arguments &p, const stretch &s, char *staged,
                                   const float (&sum)[N / 2]) {
    typedef rows_shape<KC, N> S;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, column0 = blockIdx.x * N;
    group_sync(1, CONSUMERS);
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
        const float *d = &sum[j * 4];
        uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]), pack(d[6], d[7])};
        int row = warp % 4 * 32 + lane % 16 * 2 + warp / 4, column = (j + lane / 16) * 8;
        store_matrices(shared_address(staged) + row * S::PITCH + column * 2, r);
    }
    group_sync(1, CONSUMERS);
    for (int i = threadIdx.x; i < 128 * N / 8; i += CONSUMERS) {
        int row = i / (N / 8), chunk = i % (N / 8), gate = row / 32, unit = s.part * 32 + row % 32;
        size_t to =
            ((size_t)(s.node * GATES + gate) * p.b + unit) * p.columns + column0 + chunk * 8;
        *(uint4 *)(p.y + to) = *(const uint4 *)(staged + row * S::PITCH + chunk * 16);
    }
    for (int i = threadIdx.x; p.sums && i < GATES * N / 2; i += CONSUMERS) {
        int gate = i / (N / 2), column = i % (N / 2) * 2;
        float total[2] = {}, square[2] = {};
#pragma unroll 8
        for (int unit = 0; unit < 32; unit++) {
            float2 v = __bfloat1622float2(
                *(__nv_bfloat162 *)(staged + (gate * 32 + unit) * S::PITCH + column * 2));
            total[0] += v.x;
            total[1] += v.y;
            square[0] += v.x * v.x;
            square[1] += v.y * v.y;
        }
        fixed *sums = p.sums + gate * sums_gate(p.columns);
        for (int e = 0; e < 2; e++) {
            add_fixed(sums, p.columns, 0, column0 + column + e, total[e], SCALE_SUM);
            add_fixed(sums, p.columns, 1, column0 + column + e, square[e], SCALE_SQUARE);
        }
    }
}

template <int KC, int N>
static __global__ void __launch_bounds__(THREADS, 1)
    rows_product(const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ rows_arguments p) {
#if ON_HOPPER
    typedef rows_shape<KC, N> S;
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const int begin = part_begin(p, blockIdx.y), end = part_begin(p, blockIdx.y + 1);
    const int chunks = p.b / KC;
    ring<S::STAGES> stages;
    stages.create(base + S::BARRIERS);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<40>();
        if (warp > CONSUMER_WARPS) return;
        const int lane = threadIdx.x % 32, column0 = blockIdx.x * N;
        int use = 0;
        for (int at = end; at > begin;) {
            stretch s = stretch_before(p, begin, at);
            int k0 = s.first + s.begin - s.row_begin, columns_of_32 = 0;
            for (int i = 0; i < s.end - s.begin; i++) {
                if (i % 32 == 0) {
                    columns_of_32 = i + lane < s.end - s.begin ? p.column[k0 + i + lane] : 0;
                }
                int column = __shfl_sync(~0u, columns_of_32, i % 32);
                for (int chunk = 0; chunk < chunks && lane == 0; chunk++, use++) {
                    stages.wait_empty(use);
                    uint32_t barrier = stages.announce(use, S::STAGE);
                    uint32_t to = base + stages.stage(use) * S::STAGE;
                    if (KC == 32) {
                        tensor_load(to, &w_map, barrier, 0, (k0 + i) * 64);
                    } else {
                        tensor_load(to, &w_map, barrier, chunk * KC, s.part * 16, GATES * (k0 + i),
                                    0);
                    }
                    for (int box = 0; box < N / BOX; box++) {
                        tensor_load(to + S::W_BYTES + box * KC * BOX_ROW, &x_map, barrier,
                                    column0 + box * BOX, column * p.b + chunk * KC);
                    }
                }
            }
            at = s.begin;
        }
        return;
    }

    registers_grow<232>();
    const int block = blockIdx.y * gridDim.x + blockIdx.x;
    int use = 0;
    for (int at = end; at > begin;) {
        stretch s = stretch_before(p, begin, at);
        float sum[N / 2] = {};
        for (int i = 0; i < (s.end - s.begin) * chunks; i++, use++) {
            uint32_t w = base + stages.stage(use) * S::STAGE, x = w + S::W_BYTES;
            w += warp / 4 * (KC == 32 ? 64 : S::W_BYTES / 2);
            stages.wait_full(use);
            product_fence();
#pragma unroll
            for (int k = 0; k < KC; k += 16) {
                warpgroup_multiply<0, 1>(
                    sum, matrix_descriptor(w + k * 2, SWIZZLE_128, 16, 1024),
                    matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, KC * BOX_ROW, 1024));
            }
            product_commit();
            product_wait<1>();
            if (i > 0) stages.release(use - 1);
        }
        product_wait<0>();
        stages.release(use - 1);
        if (s.end < s.row_end) {
            give_sums(p.shared, block, sum);
        } else {
            for (int part = blockIdx.y; part_begin(p, part) > s.row_begin; part--) {
                take_sums(p.shared, (part - 1) * gridDim.x + blockIdx.x, sum);
            }
            finish_rows<KC, N>(p, s, tiles + S::STAGES * S::STAGE, sum);
        }
        at = s.begin;
    }
#endif
}

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

template <int KC, int N>
static bool launch_rows(backend *be, const device_layout *device, const CUtensorMap &w_map,
                        const void *x, int columns, void *y, void *sums) {
    typedef rows_shape<KC, N> S;
    const layout *l = &device->host;
    CUtensorMap x_map;
    rows_arguments p = {l->row_start, l->row_column, device->block_row,
                        (bf16 *)y,    (fixed *)sums, columns,
                        l->in_block,  l->blocks,     exchange_of(be)};
    int tiles = columns / N, parts = cuda_of(be)->processors / tiles;
    int most = l->blocks * (l->in_block / 32); /* a block each */
    dim3 grid(tiles, parts < 1 ? 1 : parts < most ? parts : most);
    if (!map_activations(be, &x_map, 2, x, layout_inputs(l), columns, 1, KC)) return false;
    if (device->empty_rows) be->zero(be, y, layout_rows(l) * columns * sizeof(bf16));
    cuda_allow_shared(be, (const void *)rows_product<KC, N>, S::BYTES);
    rows_product<KC, N><<<grid, THREADS, S::BYTES, cuda_of(be)->stream>>>(w_map, x_map, p);
    return true;
}

template <int KC>
static bool launch_rows_by_columns(backend *be, const device_layout *device, const void *w,
                                   const void *x, int columns, void *y, void *sums) {
    CUtensorMap w_map;
    if (!map_gates(be, &w_map, &device->host, w)) return false;
    if (columns % 256 == 0) return launch_rows<KC, 256>(be, device, w_map, x, columns, y, sums);
    if (columns % 128 == 0) return launch_rows<KC, 128>(be, device, w_map, x, columns, y, sums);
    return launch_rows<KC, 64>(be, device, w_map, x, columns, y, sums);
}

bool rows_fprop(backend *be, const device_layout *device, const void *w, const void *x, int columns,
                void *y, void *sums) {
    return device->host.in_block == 32
               ? launch_rows_by_columns<32>(be, device, w, x, columns, y, sums)
               : launch_rows_by_columns<64>(be, device, w, x, columns, y, sums);
}
