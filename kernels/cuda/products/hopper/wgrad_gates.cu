/* wgrad_gates: wgrad on Hopper in bf16, of three or four gates, and of one in blocks of 128. A
 * node's rows are cut into tiles of 128; what the last one has of the next node is not stored.
 *
 *   dW [128 rows][up to 256 units of x]
 *       = sum over steps  dy[t] [128][columns]  x[t]' [columns][units]
 *
 * Floors: 2 blocks gates b^2 depth operations; dy, x and dW once through memory; and what L2 brings
 * into the multiprocessors. A tile of 128 x 256 brings 768 bytes of dy and x a column for 65,536
 * operations, 85 a byte, at which L2 and the matrix rate are about even. Hence the largest tile
 * there is room for: each of two warpgroups has 64 of its rows, 128 sums a thread. Up to 256 / b
 * blocks of a row lie side by side, so that one tile of dy serves them all, and thread blocks walk
 * the depth at the same pace. 88 % of the matrix rate at 18,432 units and a depth of 16,384.
 *
 * Tiles below each other, of blocks of 64 and 128, read the same x. Thread blocks with two of them
 * make a cluster, and each brings half of x to both: 17.2 to 17.7 ms at 18,432 units, blocks of 128
 * and a depth of 65,536. See docs/kernels/wgrad.md for what that replaced.
 */
#include "products/hopper/hopper.cuh"

typedef struct wgrad_gates_arguments {
    const int *start, *row, *column; /* first block of each tile; each block's nodes */
    float *dw;
    int columns, steps, b, rows; /* rows: gates b */
    int down;                    /* tiles of a node's rows */
} wgrad_gates_arguments;

enum {
    DEEP_M = 128,
    DEEP_N = 256,
    DEEP_LEFT = DEEP_M * BOX_ROW,
    DEEP_STAGE = DEEP_LEFT + DEEP_N * BOX_ROW,
    DEEP_STAGES = 4,
    DEEP_BYTES = DEEP_STAGES * DEEP_STAGE + 1024 + 256
};

/* N: columns of W in a tile; the last ones may belong to no block. */
template <int N, int SHARES>
static __device__ inline void deep_consume(const wgrad_gates_arguments &p,
                                           cursor<DEEP_STAGES> &stages, uint32_t base, int first,
                                           int count) {
    const int warp = threadIdx.x / 32, group = warp / 4, lane = threadIdx.x % 32;
    float sum[N / 2] = {};
    multiply_stages<SHARES, BOX>(stages, p.steps * (p.columns / BOX), [&](int at, int k) {
        const uint32_t left = base + at * DEEP_STAGE + group * 64 * BOX_ROW + k * 2;
        const uint32_t right = base + at * DEEP_STAGE + DEEP_LEFT + k * 2;
        warpgroup_multiply<0, 0>(sum, matrix_descriptor(left, SWIZZLE_128, 16, 1024),
                                 matrix_descriptor(right, SWIZZLE_128, 16, 1024));
    });
    int row = blockIdx.x % p.down * DEEP_M + group * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        int column = j * 8 + lane % 4 * 2, q = column / p.b;
        if (q >= count || row >= p.rows) continue;
        float *to = p.dw + ((size_t)(first + q) * p.rows + row) * p.b + column % p.b;
        *(float2 *)to = make_float2(sum[j * 4], sum[j * 4 + 1]);
        *(float2 *)(to + 8 * p.b) = make_float2(sum[j * 4 + 2], sum[j * 4 + 3]);
    }
}

/* Its own rows of dy, and its share of x for all of the cluster. One thread calls this. */
template <int SHARES>
static __device__ inline void
deep_produce(const CUtensorMap &dy_map, const CUtensorMap &x_map, const wgrad_gates_arguments &p,
             cursor<DEEP_STAGES> &stages, uint32_t base, int first, int count) {
    const int units = p.b / SHARES, share = SHARES > 1 ? cluster_rank() * units : 0;
    const int row = p.row[first] * p.rows + blockIdx.x % p.down * DEEP_M;
    const int bytes = DEEP_LEFT + count * p.b * BOX_ROW;
    int unit[DEEP_N / 32];
    for (int q = 0; q < DEEP_N / 32; q++) {
        unit[q] = q < count ? p.column[first + q] * p.b + share : 0;
    }
    for (int t = 0; t < p.steps; t++) {
        for (int n = 0; n < p.columns; n += BOX, stages.next()) {
            stages.wait_empty();
            const uint32_t barrier = stages.announce(bytes), to = base + stages.at * DEEP_STAGE;
            tensor_load(to, &dy_map, barrier, n, row, t);
#pragma unroll
            for (int q = 0; q < DEEP_N / 32; q++) {
                if (q >= count) break;
                const uint32_t right = to + DEEP_LEFT + (q * p.b + share) * BOX_ROW;
                if (SHARES == 1) {
                    tensor_load(right, &x_map, barrier, n, unit[q], t);
                } else {
                    tensor_load_all(right, &x_map, barrier, n, unit[q], t, (1 << SHARES) - 1);
                }
            }
        }
    }
}

template <int SHARES>
static __global__ void __launch_bounds__(THREADS, 1)
    wgrad_gates(const __grid_constant__ CUtensorMap dy_map,
                const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ wgrad_gates_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t base = shared_address(aligned_tiles(unaligned)), warp = threadIdx.x / 32;
    const int tile = blockIdx.x / p.down, first = p.start[tile], count = p.start[tile + 1] - first;
    cursor<DEEP_STAGES> stages;
    stages.create(base + DEEP_STAGES * DEEP_STAGE, SHARES * CONSUMER_WARPS);
    barrier_init_done();
    __syncthreads();
    if (SHARES > 1) cluster_sync();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<40>();
        if (threadIdx.x == CONSUMERS) {
            deep_produce<SHARES>(dy_map, x_map, p, stages, base, first, count);
        }
    } else {
        registers_grow<232>();
        if (count * p.b > 128) {
            deep_consume<256, SHARES>(p, stages, base, first, count);
        } else if (count * p.b > 64) {
            deep_consume<128, SHARES>(p, stages, base, first, count);
        } else {
            deep_consume<64, SHARES>(p, stages, base, first, count);
        }
    }
    if (SHARES > 1) cluster_sync(); /* the other may still fill, or ask for, a stage here */
#endif
}

/* Here, as a kernel must be asked. */
bool hopper_compiled(void) {
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, wgrad_gates<1>) == cudaSuccess) {
        return attributes.numRegs > 100; /* an empty kernel has few */
    }
    cudaGetLastError();
    return false;
}

template <int SHARES>
static void launch(backend *be, const device_layout *device, const product_call *c,
                   const wgrad_gates_arguments &p, int grid) {
    const layout *l = &device->host;
    CUtensorMap dy_map, x_map;
    if (!map_activations(be, &dy_map, 3, c->left, layout_rows(l), p.columns, p.steps, DEEP_M) ||
        !map_activations(be, &x_map, 3, c->right, layout_inputs(l), p.columns, p.steps,
                         p.b / SHARES))
        return;
    cuda_launch_clusters(be, "wgrad", false, SHARES, wgrad_gates<SHARES>, dim3(grid), THREADS,
                         DEEP_BYTES, dy_map, x_map, p);
}

void *wgrad_gates_plan(planner *gpu, const layout *l) {
    return row_groups_plan(gpu, l, DEEP_N);
}

void wgrad_gates_run(backend *be, const device_layout *device, const void *plan,
                     const product_call *c) {
    const layout *l = &device->host;
    const row_groups *tables = (const row_groups *)plan;
    wgrad_gates_arguments p = {};
    p.start = tables->first;
    p.row = tables->row;
    p.column = l->row_column;
    p.dw = (float *)c->out;
    p.columns = c->columns;
    p.steps = c->steps;
    p.b = l->in_block;
    p.rows = l->gates * l->in_block;
    p.down = (p.rows + DEEP_M - 1) / DEEP_M;
    if (p.down % 2 == 0) {
        launch<2>(be, device, c, p, tables->count * p.down);
    } else {
        launch<1>(be, device, c, p, tables->count * p.down);
    }
}
