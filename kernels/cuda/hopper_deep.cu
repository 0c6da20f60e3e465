/* deep_product: wgrad on Hopper where a node's rows fill tiles of 128: of four gates, and of one in
 * blocks of 128.
 *
 *   dW [128 rows][up to 256 units of x]
 *       = sum over steps  dy[t] [128][columns]  x[t]' [columns][units]
 *
 * Floors: 2 blocks gates b^2 depth operations; dy, x and dW once through memory; and what L2 brings
 * into the multiprocessors. A tile of 128 x 256 brings 768 bytes of dy and x a column for 65,536
 * operations, 85 a byte, at which L2 and the matrix rate are about even. Hence the largest tile
 * there is room for: each of two warpgroups has 64 of its rows, 128 sums a thread. Up to 256 / b
 * blocks of a row lie side by side, so that one tile of dy serves them all, and thread blocks walk
 * the depth at the same pace. 88 % of the matrix rate at 18,432 units and a depth of 16,384. */
#include "hopper_tiles.cuh"

typedef struct deep_arguments {
    const int *start, *row, *column; /* first block of each tile; each block's nodes */
    float *dw;
    int columns, steps, b, rows; /* rows: gates b */
} deep_arguments;

enum {
    DEEP_M = 128,
    DEEP_N = 256,
    DEEP_LEFT = DEEP_M * BOX_ROW,
    DEEP_STAGE = DEEP_LEFT + DEEP_N * BOX_ROW,
    DEEP_STAGES = 4,
    DEEP_BYTES = DEEP_STAGES * DEEP_STAGE + 1024 + 256
};

/* N: columns of W that a tile has, of which the last may be nobody's. */
template <int N>
static __device__ inline void deep_consume(const deep_arguments &p, ring<DEEP_STAGES> &stages,
                                           uint32_t base, int uses, int first, int count) {
    const int warp = threadIdx.x / 32, group = warp / 4, lane = threadIdx.x % 32;
    float sum[N / 2] = {};
    for (int use = 0; use < uses; use++) {
        uint32_t left = base + stages.stage(use) * DEEP_STAGE + group * 64 * BOX_ROW;
        uint32_t right = base + stages.stage(use) * DEEP_STAGE + DEEP_LEFT;
        stages.wait_full(use);
        product_fence();
#pragma unroll
        for (int k = 0; k < BOX; k += 16) {
            warpgroup_multiply<0, 0>(sum, matrix_descriptor(left + k * 2, SWIZZLE_128, 16, 1024),
                                     matrix_descriptor(right + k * 2, SWIZZLE_128, 16, 1024));
        }
        product_commit();
        product_wait<1>();
        if (use > 0) stages.release(use - 1);
    }
    product_wait<0>();
    int row = blockIdx.y * DEEP_M + group * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        int column = j * 8 + lane % 4 * 2, q = column / p.b;
        if (q >= count) continue;
        float *to = p.dw + ((size_t)(first + q) * p.rows + row) * p.b + column % p.b;
        *(float2 *)to = make_float2(sum[j * 4], sum[j * 4 + 1]);
        *(float2 *)(to + 8 * p.b) = make_float2(sum[j * 4 + 2], sum[j * 4 + 3]);
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    deep_product(const __grid_constant__ CUtensorMap dy_map,
                 const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ deep_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    const int first = p.start[blockIdx.x], count = p.start[blockIdx.x + 1] - first;
    const int node = p.row[first], spans = p.columns / BOX, uses = p.steps * spans;
    ring<DEEP_STAGES> stages;
    stages.create(base + DEEP_STAGES * DEEP_STAGE);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<40>();
        if (threadIdx.x != CONSUMERS) return;
        int bytes = DEEP_LEFT + count * p.b * BOX_ROW, column[DEEP_N / 32];
        for (int q = 0; q < DEEP_N / 32; q++) column[q] = q < count ? p.column[first + q] : 0;
        int row = node * p.rows + blockIdx.y * DEEP_M;
        for (int use = 0; use < uses; use++) {
            int t = use / spans, n = use % spans * BOX;
            stages.wait_empty(use);
            uint32_t barrier = stages.announce(use, bytes);
            uint32_t to = base + stages.stage(use) * DEEP_STAGE;
            tensor_load(to, &dy_map, barrier, n, row, t);
#pragma unroll
            for (int q = 0; q < DEEP_N / 32; q++) {
                if (q >= count) break;
                tensor_load(to + DEEP_LEFT + q * p.b * BOX_ROW, &x_map, barrier, n, column[q] * p.b,
                            t);
            }
        }
        return;
    }
    registers_grow<232>();
    if (count * p.b > 128) {
        deep_consume<256>(p, stages, base, uses, first, count);
    } else if (count * p.b > 64) {
        deep_consume<128>(p, stages, base, uses, first, count);
    } else {
        deep_consume<64>(p, stages, base, uses, first, count);
    }
#endif
}

void deep_create(backend *be, device_layout *device, const layout *l) {
    int most = DEEP_N / l->in_block, tiles = 0;
    int *first = host_table((size_t)l->blocks + 1);
    for (int i = 0; i < l->out_nodes; i++) {
        int from = l->row_start[i], count = l->row_start[i + 1] - from;
        int parts = (count + most - 1) / most; /* of nearly equal size */
        for (int part = 0; part < parts; part++) first[tiles++] = from + count * part / parts;
    }
    first[tiles] = l->blocks;
    device->deep_tiles = tiles;
    device->deep_start = (int *)cuda_table(be, first, ((size_t)tiles + 1) * sizeof *first);
    device->block_row = cuda_block_rows(be, l);
    free(first);
}

/* Here, as a kernel must be asked. */
bool hopper_compiled(void) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, deep_product) == cudaSuccess) {
        return attributes.numRegs > 100; /* an empty kernel has few */
    }
    cudaGetLastError();
    return false;
}

void deep_wgrad(backend *be, const device_layout *device, const void *dy, const void *x, int steps,
                int columns, void *dw) {
    const layout *l = &device->host;
    int rows = l->gates * l->in_block;
    CUtensorMap dy_map, x_map;
    deep_arguments p = {device->deep_start,
                        device->block_row,
                        l->row_column,
                        (float *)dw,
                        columns,
                        steps,
                        l->in_block,
                        rows};
    if (!map_activations(be, &dy_map, 3, dy, layout_rows(l), columns, steps, DEEP_M)) return;
    if (!map_activations(be, &x_map, 3, x, layout_inputs(l), columns, steps, l->in_block)) return;
    cuda_allow_shared(be, (const void *)deep_product, DEEP_BYTES);
    deep_product<<<dim3(device->deep_tiles, rows / DEEP_M), THREADS, DEEP_BYTES,
                   cuda_of(be)->stream>>>(dy_map, x_map, p);
}
