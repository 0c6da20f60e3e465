/* wgrad_gates: wgrad on Hopper in bf16, of three or four gates, of one in blocks of 128, and of
 * dense layers over several steps, which cuBLAS would have packed side by side first. A node's rows
 * are cut into tiles of 128; what the last one has of the next node is not stored.
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
 *
 * A dense W is one node of all rows, cut into blocks that are as wide as a tile. */
#include "products/hopper/hopper.cuh"

typedef struct wgrad_gates_arguments {
    const int *start, *row, *column; /* first block of each tile; each block's nodes; NULL: dense */
    float *dw;
    int columns, steps, b, rows; /* rows: gates b, or all of a dense W's */
    int inputs;                  /* of a dense W, else b: floats from a row of dW to the next */
    size_t block;                /* floats from a block of dW to the next */
    int tiles, down;             /* side by side; below each other, of a node's rows */
    int band;                    /* of these, how many come before the next ones to the right */
} wgrad_gates_arguments;

typedef struct deep_tile {
    int first, count, down; /* its blocks, and its place among the tiles of its node's rows */
} deep_tile;

enum {
    DEEP_M = 128,
    DEEP_N = 256,
    DEEP_LEFT = DEEP_M * BOX_ROW,
    DEEP_STAGE = DEEP_LEFT + DEEP_N * BOX_ROW,
    DEEP_STAGES = 4,
    DEEP_BYTES = DEEP_STAGES * DEEP_STAGE + 1024 + 256
};

static __device__ inline deep_tile find_tile(const wgrad_gates_arguments &p) {
    const int band = blockIdx.x / (p.tiles * p.band), at = blockIdx.x % (p.tiles * p.band);
    const int tile = at / p.band, down = band * p.band + at % p.band;
    if (!p.start) return {tile, 1, down};
    return {p.start[tile], p.start[tile + 1] - p.start[tile], down};
}

/* N: columns of W in a tile; the last ones may belong to no block. */
template <int N, int SHARES>
static __device__ inline void deep_consume(const wgrad_gates_arguments &p,
                                           cursor<DEEP_STAGES> &stages, uint32_t base,
                                           const deep_tile &tile) {
    const int warp = threadIdx.x / 32, group = warp / 4, lane = threadIdx.x % 32;
    float sum[N / 2] = {};
    multiply_stages<SHARES, BOX>(stages, p.steps * (p.columns / BOX), [&](int at, int k) {
        const uint32_t left = base + at * DEEP_STAGE + group * 64 * BOX_ROW + k * 2;
        const uint32_t right = base + at * DEEP_STAGE + DEEP_LEFT + k * 2;
        warpgroup_multiply<0, 0>(sum, matrix_descriptor(left, SWIZZLE_128, 16, 1024),
                                 matrix_descriptor(right, SWIZZLE_128, 16, 1024));
    });
    const int row = tile.down * DEEP_M + group * 64 + warp % 4 * 16 + lane / 4;
    const int units = p.start ? tile.count * p.b : min(N, p.inputs - tile.first * N);
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        const int column = j * 8 + lane % 4 * 2;
        if (column >= units) break;
        float *to = p.dw + (tile.first + column / p.b) * p.block + (size_t)row * p.inputs;
        to += column % p.b;
        if (row < p.rows) *(float2 *)to = make_float2(sum[j * 4], sum[j * 4 + 1]);
        to += 8 * p.inputs;
        if (row + 8 < p.rows) *(float2 *)to = make_float2(sum[j * 4 + 2], sum[j * 4 + 3]);
    }
}

/* Its own rows of dy, and its share of x for all of the cluster. One thread calls this. */
template <int SHARES>
static __device__ inline void
deep_produce(const CUtensorMap &dy_map, const CUtensorMap &x_map, const wgrad_gates_arguments &p,
             cursor<DEEP_STAGES> &stages, uint32_t base, const deep_tile &tile) {
    const int units = p.b / SHARES, share = SHARES > 1 ? cluster_rank() * units : 0;
    const int first = tile.first, count = tile.count, bytes = DEEP_LEFT + count * p.b * BOX_ROW;
    const int row = (p.row ? p.row[first] * p.rows : 0) + tile.down * DEEP_M;
    int unit[DEEP_N / 32];
    for (int q = 0; q < DEEP_N / 32; q++) {
        unit[q] = q < count ? (p.column ? p.column[first + q] : first) * p.b + share : 0;
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
    const deep_tile tile = find_tile(p);
    const int width = tile.count * p.b;
    cursor<DEEP_STAGES> stages;
    stages.create(base + DEEP_STAGES * DEEP_STAGE, SHARES * CONSUMER_WARPS);
    barrier_init_done();
    __syncthreads();
    if (SHARES > 1) cluster_sync();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<40>();
        if (threadIdx.x == CONSUMERS) {
            deep_produce<SHARES>(dy_map, x_map, p, stages, base, tile);
        }
    } else {
        registers_grow<232>();
        if (width > 144) {
            deep_consume<256, SHARES>(p, stages, base, tile);
        } else if (width > 128) {
            deep_consume<144, SHARES>(p, stages, base, tile);
        } else if (width > 64) {
            deep_consume<128, SHARES>(p, stages, base, tile);
        } else {
            deep_consume<64, SHARES>(p, stages, base, tile);
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
static void launch(backend *be, const layout *l, const product_call *c,
                   const wgrad_gates_arguments &p) {
    const int inputs =
        l->in_nodes * l->in_block; /* of all steps; what a stride skips is not read */
    CUtensorMap dy_map, x_map;
    if (!map_activations(be, &dy_map, 3, c->left, layout_rows(l), p.columns, p.steps, DEEP_M) ||
        !map_activations(be, &x_map, 3, c->right, inputs, p.columns * l->in_stride, p.steps,
                         p.b / SHARES))
        return;
    cuda_launch_clusters(be, "wgrad", false, SHARES, wgrad_gates<SHARES>, dim3(p.tiles * p.down),
                         THREADS, DEEP_BYTES, dy_map, x_map, p);
}

/* The width of a dense W's tiles whose rounds on all multiprocessors take least: shared memory
 * brings each warpgroup 64 rows of dy and all of x for a product. */
static int dense_width(int inputs, int down, int processors) {
    static const int widths[] = {256, 144, 128, 64};
    int best = 0, least = INT_MAX;
    for (int width : widths) {
        const int tiles = (inputs + width - 1) / width * down;
        const int cost = (tiles + processors - 1) / processors * (width + 64);
        if (cost < least) best = width, least = cost;
    }
    return best;
}

void *wgrad_gates_plan(planner *gpu, const layout *l) {
    return row_groups_plan(gpu, l, DEEP_N);
}

void wgrad_gates_run(backend *be, const device_layout *device, const void *plan,
                     const product_call *c) {
    const layout *l = &device->host;
    const row_groups *tables = (const row_groups *)plan;
    wgrad_gates_arguments p = {};
    p.dw = (float *)c->out;
    p.columns = c->columns;
    p.steps = c->steps;
    p.inputs = l->in_block;
    p.rows = layout_is_dense(l) ? (int)layout_rows(l) : l->gates * p.inputs;
    p.down = (p.rows + DEEP_M - 1) / DEEP_M;
    if (layout_is_dense(l)) {
        p.b = dense_width(p.inputs, p.down, cuda_of(be)->processors);
        p.block = (size_t)p.b;
        p.tiles = (p.inputs + p.b - 1) / p.b;
    } else {
        p.start = tables->first;
        p.row = tables->row;
        p.column = l->row_column;
        p.b = p.inputs;
        p.block = (size_t)p.rows * p.b;
        p.tiles = tables->count;
    }
    const int shares = p.down % 2 ? 1 : 2;
    /* Whichever of dy and x is larger comes from memory once. */
    p.band = p.start || p.rows < p.inputs ? p.down : shares;
    if (shares == 2) {
        launch<2>(be, l, c, p);
    } else {
        launch<1>(be, l, c, p);
    }
}
