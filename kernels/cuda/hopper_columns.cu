/* columns_product: fprop and dgrad of one matrix, on Hopper.
 *
 *   y' [N columns][b units of a node] = sum over sources  x' [N][rows]  W [rows][b]
 *
 * With activations as the left operand, one gathered tile serves every node of a part: their sums
 * stay in registers while the union of their sources goes by once. Where a source has no block for
 * a node, that node's multiplications are predicated off; see hopper.cu. */
#include "hopper_tiles.cuh"

typedef struct columns_arguments {
    const hopper_part *part;
    const hopper_source *source;
    bf16 *y;
    int columns, rows, slices; /* rows: of a source node, `slices` times KS */
    int tile0;                 /* of columns, the launch's first */
    exchange shared;
} columns_arguments;

/* How many nodes' sums a thread block has registers for. */
static constexpr __host__ __device__ int nodes_of_part(int b) {
    return b == 32 ? PART_NODES : b == 64 ? 4 : 2;
}

/* KS: rows of a source tile. B: units of a node. FORWARD: W is [B][rows], else [rows][B]. PAIRED:
 * rows of 32 weights are read two at a time, as 128 bytes, so the even rows of a source come before
 * the odd. */
template <int KS, int B, bool FORWARD> struct columns_shape {
    static const bool PAIRED = B == 32 && !FORWARD;
    static const int N = 128, SLOTS = nodes_of_part(B); /* columns, most nodes */
    static const int X_BYTES = KS * N * 2, W_BYTES = KS * B * 2, STAGE = X_BYTES + SLOTS * W_BYTES;
    static const int FIT = (MOST_SHARED - 2048) / STAGE, STAGES = FIT < 10 ? FIT : 10;
    static const int PITCH = N * 2 + PADDING, STAGED = SLOTS * B * PITCH;
    static const int BARRIERS = STAGES * STAGE > STAGED ? STAGES *STAGE : STAGED;
    static const int BYTES = BARRIERS + 1024 + 256;
};

/* sum += X' W over one block: X [KS][64 columns of a warpgroup], W as FORWARD says. */
template <int KS, int B, bool FORWARD>
static __device__ inline void multiply_block(float (&sum)[B / 2], uint32_t x, uint32_t w, int on) {
#pragma unroll
    for (int k = 0; k < KS; k += 16) {
        uint64_t a = matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, 16, 1024);
        if (FORWARD) { /* a box [B rows][KS] */
            const int row = KS * 2, swizzle = row == 128 ? SWIZZLE_128 : SWIZZLE_64;
            warpgroup_multiply<1, 0>(sum, a, matrix_descriptor(w + k * 2, swizzle, 16, 8 * row),
                                     on);
        } else if (columns_shape<KS, B, FORWARD>::PAIRED) { /* a box [KS / 2][row % 2][32 units] */
            uint32_t at = w + k % (KS / 2) * 128 + k / (KS / 2) * 64;
            warpgroup_multiply<1, 1>(sum, a, matrix_descriptor(at, SWIZZLE_128, 16, 1024), on);
        } else { /* boxes [KS rows][64 units] */
            uint64_t b = matrix_descriptor(w + k * 128, SWIZZLE_128, KS * 128, 1024);
            warpgroup_multiply<1, 1>(sum, a, b, on);
        }
    }
}

template <int KS, int B, bool FORWARD>
static __device__ void produce_columns(const CUtensorMap &w_map, const CUtensorMap &x_map,
                                       const columns_arguments &p, const hopper_part &part,
                                       uint32_t base,
                                       ring<columns_shape<KS, B, FORWARD>::STAGES> &stages) {
    typedef columns_shape<KS, B, FORWARD> S;
    const int column0 = (p.tile0 + blockIdx.x) * S::N;
    hopper_source next = p.source[part.first];
    for (int i = 0, use = 0; i < part.count; i++) {
        hopper_source source = next;
        if (i + 1 < part.count) next = p.source[part.first + i + 1];
        int bytes = S::X_BYTES + __popc(source.mask) * S::W_BYTES;
        for (int slice = 0; slice < p.slices; slice++, use++) {
            stages.wait_empty(use);
            uint32_t barrier = stages.announce(use, bytes);
            uint32_t to = base + stages.stage(use) * S::STAGE;
            for (int box = 0; box < S::N / BOX; box++) {
                int row = source.node * p.rows + slice * KS, at = to + box * KS * BOX_ROW;
                if (S::PAIRED) {
                    tensor_load(at, &x_map, barrier, column0 + box * BOX, row / 2, 0);
                } else {
                    tensor_load(at, &x_map, barrier, column0 + box * BOX, row);
                }
            }
            to += S::X_BYTES;
#pragma unroll
            for (int slot = 0; slot < S::SLOTS; slot++, to += S::W_BYTES) {
                if (!(source.mask >> slot & 1)) continue;
                int row = source.block[slot] * (FORWARD ? B : p.rows) + (FORWARD ? 0 : slice * KS);
                if (FORWARD) {
                    tensor_load(to, &w_map, barrier, slice * KS, row);
                } else if (S::PAIRED) {
                    tensor_load(to, &w_map, barrier, 0, row / 2);
                } else {
                    tensor_load(to, &w_map, barrier, 0, row);
                    if (B == 128) tensor_load(to + KS * BOX_ROW, &w_map, barrier, 64, row);
                }
            }
        }
    }
}

template <int KS, int B, bool FORWARD>
static __global__ void __launch_bounds__(THREADS, 1)
    columns_product(const __grid_constant__ CUtensorMap w_map,
                    const __grid_constant__ CUtensorMap x_map,
                    const __grid_constant__ columns_arguments p) {
#if ON_HOPPER
    typedef columns_shape<KS, B, FORWARD> S;
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const hopper_part part = p.part[blockIdx.y];
    ring<S::STAGES> stages;
    stages.create(base + S::BARRIERS);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<40>();
        if (threadIdx.x == CONSUMERS) {
            produce_columns<KS, B, FORWARD>(w_map, x_map, p, part, base, stages);
        }
        return;
    }

    registers_grow<232>();
    const int group = warp / 4, lane = threadIdx.x % 32;
    float sum[S::SLOTS][B / 2] = {};
    int next = p.source[part.first].mask;
    for (int i = 0, use = 0; i < part.count; i++) {
        int mask = next;
        if (i + 1 < part.count) next = p.source[part.first + i + 1].mask;
        for (int slice = 0; slice < p.slices; slice++, use++) {
            uint32_t x = base + stages.stage(use) * S::STAGE, w = x + S::X_BYTES;
            x += group * KS * BOX_ROW;
            stages.wait_full(use);
            product_fence();
#pragma unroll
            for (int slot = 0; slot < S::SLOTS; slot++) {
                multiply_block<KS, B, FORWARD>(sum[slot], x, w + slot * S::W_BYTES,
                                               mask >> slot & 1);
            }
            product_commit();
            product_wait<1>();
            if (use > 0) stages.release(use - 1);
        }
    }
    product_wait<0>();

    /* Sums of the first and the last node may be shared with other parts; give before waiting. */
    const int block = blockIdx.y * gridDim.x + blockIdx.x;
    if (part.continues) {
        float last[B / 2];
#pragma unroll
        for (int slot = 0; slot < S::SLOTS; slot++) {
#pragma unroll
            for (int j = 0; j < B / 2; j++) {
                if (slot == 0 || slot == part.nodes - 1) last[j] = sum[slot][j];
            }
        }
        give_sums(p.shared, block, last);
    }
    for (int before = blockIdx.y; !(part.continues && part.nodes == 1) && before > part.first_part;
         before--) {
        take_sums(p.shared, (before - 1) * gridDim.x + blockIdx.x, sum[0]);
    }

    /* Tiles are staged as [slot][unit][column]; a thread holds columns: matrices are turned over.
     */
    group_sync(1, CONSUMERS);
#pragma unroll
    for (int slot = 0; slot < S::SLOTS; slot++) {
#pragma unroll
        for (int j = 0; j < B / 8; j += 2) {
            const float *d = &sum[slot][j * 4];
            uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]),
                             pack(d[6], d[7])};
            int unit = slot * B + (j + lane / 16) * 8 + lane % 8;
            int column = group * 64 + warp % 4 * 16 + lane / 8 % 2 * 8;
            store_matrices_transposed(base + unit * S::PITCH + column * 2, r);
        }
    }
    group_sync(1, CONSUMERS);
    int whole = part.nodes - part.continues, column0 = (p.tile0 + blockIdx.x) * S::N;
    for (int i = threadIdx.x; i < whole * B * S::N / 8; i += CONSUMERS) {
        int unit = i / (S::N / 8), column = column0 + i % (S::N / 8) * 8;
        if (column >= p.columns) continue;
        *(uint4 *)(p.y + ((size_t)part.node * B + unit) * p.columns + column) =
            *(const uint4 *)(tiles + unit * S::PITCH + i % (S::N / 8) * 16);
    }
#endif
}

void columns_create(backend *be, device_layout *device, const layout *l) {
    const int slots = nodes_of_part(l->in_block);
    parts_of_columns(be, &device->backward, l, slots);
    parts_of_rows(be, &device->forward, l, slots);
}

/* ----------------------------------------------------------------------------------- launches */

/* W for columns_product: all rows of all blocks, in boxes of `box_rows`. */
static bool map_blocks(backend *be, CUtensorMap *map, const layout *l, const void *w, int box_rows,
                       bool paired) {
    const uint64_t b = (uint64_t)l->in_block, rows = b * (uint64_t)l->gates * (uint64_t)l->blocks;
    const uint64_t extent[2] = {b, rows}, stride[1] = {b * 2};
    const uint32_t box[2] = {b >= 64 ? 64u : 32u, (uint32_t)box_rows};
    if (paired) return map_pairs(be, map, w, rows / 2, box_rows / 2);
    return make_map(be, map, w, 2, extent, stride, box,
                    b >= 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

/* One step's activations for it; paired: first the even rows of a box, then the odd ones. */
static bool map_sources(backend *be, CUtensorMap *map, const void *x, size_t rows, int columns,
                        int box_rows, bool paired) {
    if (!paired) return map_activations(be, map, 2, x, rows, columns, 1, box_rows);
    const uint64_t row = (uint64_t)columns * 2, extent[3] = {(uint64_t)columns, rows / 2, 2};
    const uint64_t stride[2] = {2 * row, row};
    const uint32_t box[3] = {BOX, (uint32_t)box_rows / 2, 2};
    return make_map(be, map, x, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

template <int KS, int B, bool FORWARD>
static bool launch_columns(backend *be, const layout *l, const hopper_parts *parts, const void *w,
                           const void *x, int columns, void *y) {
    typedef columns_shape<KS, B, FORWARD> S;
    CUtensorMap w_map, x_map;
    int rows = FORWARD ? B : l->gates * B;
    size_t x_rows = FORWARD ? layout_inputs(l) : layout_rows(l);
    columns_arguments p = {parts->part, parts->source, (bf16 *)y, columns,
                           rows,        rows / KS,     0,         exchange_of(be)};
    /* With slots enough for all parts of a node, or a part might wait for one after it. */
    const int tiles = (columns + S::N - 1) / S::N;
    const int most = max(shared_slots(B / 2) / parts->span, 1);
    if (!map_blocks(be, &w_map, l, w, FORWARD ? B : KS, S::PAIRED)) return false;
    if (!map_sources(be, &x_map, x, x_rows, columns, KS, S::PAIRED)) return false;
    cuda_allow_shared(be, (const void *)columns_product<KS, B, FORWARD>, S::BYTES);
    for (; p.tile0 < tiles; p.tile0 += most) {
        dim3 grid(min(most, tiles - p.tile0), parts->count);
        columns_product<KS, B, FORWARD>
            <<<grid, THREADS, S::BYTES, cuda_of(be)->stream>>>(w_map, x_map, p);
    }
    return true;
}

bool columns_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                   int columns, void *y) {
    const layout *l = &device->host;
    const hopper_parts *parts = &device->forward;
    return l->in_block == 32   ? launch_columns<32, 32, true>(be, l, parts, w, x, columns, y)
           : l->in_block == 64 ? launch_columns<64, 64, true>(be, l, parts, w, x, columns, y)
                               : launch_columns<64, 128, true>(be, l, parts, w, x, columns, y);
}

bool columns_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                   int columns, void *dx) {
    const layout *l = &device->host;
    const hopper_parts *parts = &device->backward;
    if (l->in_block == 32 && l->gates == 1) {
        return launch_columns<32, 32, false>(be, l, parts, w, dy, columns, dx);
    }
    return l->in_block == 32   ? launch_columns<64, 32, false>(be, l, parts, w, dy, columns, dx)
           : l->in_block == 64 ? launch_columns<64, 64, false>(be, l, parts, w, dy, columns, dx)
                               : launch_columns<64, 128, false>(be, l, parts, w, dy, columns, dx);
}
