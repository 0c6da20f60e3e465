/* wgrad_gates: wgrad on Hopper, in bf16 and tf32, where a node's rows fill tiles of 128: of four
 * gates, and of one in blocks of 128.
 *
 *   dW [128 rows][up to 256 units of x]
 *       = sum over steps  dy[t] [128][columns]  x[t]' [columns][units]
 *
 * Floors: 2 blocks gates b^2 depth operations; dy, x and dW once through memory; and what L2 brings
 * into the multiprocessors. A tile of 128 x 256 brings 768 bytes of dy and x a column, in bf16, for
 * 65,536 operations, 85 a byte, at which L2 and the matrix rate are about even; tf32 has half of
 * both. Hence the largest tile there is room for: each of two warpgroups has 64 of its rows, 128
 * sums a thread. Up to 256 / b blocks of a row lie side by side, so that one tile of dy serves them
 * all, and thread blocks walk the depth at the same pace. 88 % of the matrix rate at 18,432 units
 * and a depth of 16,384.
 *
 * Tiles below each other, of blocks of 64 and 128, read the same x. Thread blocks with two of them
 * make a cluster, and each brings half of x to both. At 18,432 units, blocks of 128 and a depth of
 * 65,536 that took 17.2 to 17.7 ms in three runs; without clusters 17.2 to 18.9; and 27.5 where a
 * node's tiles did not run at the same time.
 *
 * Patterns of blocks of 8 and 16 that are about half full leave no part of dW as large as a tile
 * empty: all of it is made, by such clusters that go from tile to tile so that the next one's loads
 * begin while results are stored, and only blocks that are there are stored. */
#include "products/hopper/hopper.cuh"

typedef struct wgrad_gates_arguments {
    const int *start, *row, *column; /* first block of each tile; each block's nodes */
    float *dw;
    int columns, steps, b, rows; /* rows: gates b */
    int box;                     /* columns of a stage */
    int down;                    /* tiles of a node's rows */
    const deep_span *span;       /* of small blocks: what is stored */
    int spans, spans_down;       /* of 256 units: those of a row of W, and of its columns */
    int block, gates;            /* the layout's */
} wgrad_gates_arguments;

enum {
    DEEP_M = 128,
    DEEP_N = 256,
    DEEP_LEFT = DEEP_M * BOX_ROW,
    DEEP_STAGE = DEEP_LEFT + DEEP_N * BOX_ROW,
    DEEP_STAGES = 4,
    DEEP_BYTES = DEEP_STAGES * DEEP_STAGE + 1024 + 256,
    SPAN_SHARES = DEEP_N / DEEP_M /* thread blocks that make a tile of spans */
};

/* Of a pattern of small blocks, all tiles are made, in bands of some of their rows, so that thread
 * blocks that run together share both operands in the L2. */
static __device__ inline void place_span(const wgrad_gates_arguments &p, int tile, int *row,
                                         int *column) {
    const int BAND = 8, before = tile / (BAND * p.spans) * BAND, within = tile % (BAND * p.spans);
    const int height = min(BAND, p.spans_down - before);
    *row = before + within % height;
    *column = within / height;
}

/* Eight rows of a tile, from `row` on: those blocks of them that there are. */
static __device__ inline void store_span(const wgrad_gates_arguments &p, int row, int column,
                                         const float (&sum)[DEEP_N / 2], int half) {
    const int b = p.block, lane = threadIdx.x % 32, gate = row / b % p.gates;
    if (row / b >= p.rows) return;
    const deep_span span = p.span[(size_t)(row / b) * p.spans + column];
    float *to = p.dw + ((size_t)span.first * p.gates + gate) * (b * b);
    to += (row % b + lane / 4) * b + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < DEEP_N / 8; j++) {
        const bool ends = b == 8 || j % 2, has = span.mask >> (b == 8 ? j : j / 2) & 1;
        if (has) *(float2 *)to = make_float2(sum[j * 4 + half * 2], sum[j * 4 + half * 2 + 1]);
        if (has) to += ends ? p.gates * (b * b) - (b - 8) : 8;
    }
}

/* N: columns of W that a tile has, of which the last may be nobody's. */
template <typename T, int N, int SHARES, bool SPANS>
static __device__ inline void deep_consume(const wgrad_gates_arguments &p,
                                           cursor<DEEP_STAGES> &stages, uint32_t base, int first,
                                           int count) {
    const int warp = threadIdx.x / 32, group = warp / 4, lane = threadIdx.x % 32;
    float sum[N / 2] = {};
    int before = -1; /* the stage before */
    for (int use = p.steps * (p.columns / p.box); use > 0; use--, stages.next()) {
        uint32_t left = base + stages.at * DEEP_STAGE + group * 64 * BOX_ROW;
        uint32_t right = base + stages.at * DEEP_STAGE + DEEP_LEFT;
        stages.wait_full();
        product_fence();
#pragma unroll
        for (int k = 0; k < BOX_ROW; k += 32) {
            const uint64_t a = matrix_descriptor(left + k, SWIZZLE_128, 16, 1024);
            const uint64_t b = matrix_descriptor(right + k, SWIZZLE_128, 16, 1024);
            if constexpr (sizeof(T) == 2) {
                warpgroup_multiply<0, 0>(sum, a, b);
            } else {
                warpgroup_multiply_tf32(sum, a, b);
            }
        }
        product_commit();
        product_wait<1>();
        if (before >= 0) release_everywhere<SHARES>(stages, before);
        before = stages.at;
    }
    product_wait<0>();
    if constexpr (SPANS) {
        release_everywhere<SHARES>(stages, before); /* for the next tile */
        int row, column;
        place_span(p, first, &row, &column);
        row = row * DEEP_N + blockIdx.x % p.down * DEEP_M + group * 64 + warp % 4 * 16;
        store_span(p, row, column, sum, 0);
        store_span(p, row + 8, column, sum, 1);
        return;
    }
    int row = blockIdx.x % p.down * DEEP_M + group * 64 + warp % 4 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < N / 8; j++) {
        int column = j * 8 + lane % 4 * 2, q = column / p.b;
        if (q >= count) continue;
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
        for (int n = 0; n < p.columns; n += p.box, stages.next()) {
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

template <typename T, int SHARES>
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
            deep_consume<T, 256, SHARES, false>(p, stages, base, first, count);
        } else if (count * p.b > 64) {
            deep_consume<T, 128, SHARES, false>(p, stages, base, first, count);
        } else {
            deep_consume<T, 64, SHARES, false>(p, stages, base, first, count);
        }
    }
    if (SHARES > 1) cluster_sync(); /* the other may still fill, or ask for, a stage here */
#endif
}

/* Likewise of a tile of spans. */
static __device__ inline void produce_span(const CUtensorMap &dy_map, const CUtensorMap &x_map,
                                           const wgrad_gates_arguments &p,
                                           cursor<DEEP_STAGES> &stages, uint32_t base, int tile) {
    const int share = cluster_rank() * (DEEP_N / SPAN_SHARES);
    int row, column;
    place_span(p, tile, &row, &column);
    row = row * DEEP_N + blockIdx.x % SPAN_SHARES * DEEP_M;
    for (int t = 0; t < p.steps; t++) {
        for (int n = 0; n < p.columns; n += BOX, stages.next()) {
            stages.wait_empty();
            const uint32_t barrier = stages.announce(DEEP_STAGE);
            const uint32_t to = base + stages.at * DEEP_STAGE;
            tensor_load(to, &dy_map, barrier, n, row, t);
            tensor_load_all(to + DEEP_LEFT + share * BOX_ROW, &x_map, barrier, n,
                            column * DEEP_N + share, t, (1 << SPAN_SHARES) - 1);
        }
    }
}

/* All tiles of a pattern of small blocks, one after the other. */
static __global__ void __launch_bounds__(THREADS, 1)
    wgrad_gates_of_spans(const __grid_constant__ CUtensorMap dy_map,
                         const __grid_constant__ CUtensorMap x_map,
                         const __grid_constant__ wgrad_gates_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t base = shared_address(aligned_tiles(unaligned)), warp = threadIdx.x / 32;
    const int tiles = p.spans * p.spans_down, stride = gridDim.x / p.down;
    cursor<DEEP_STAGES> stages;
    stages.create(base + DEEP_STAGES * DEEP_STAGE, SPAN_SHARES * CONSUMER_WARPS);
    barrier_init_done();
    __syncthreads();
    cluster_sync();

    if (warp >= CONSUMER_WARPS) {
        registers_shrink<40>();
        if (threadIdx.x == CONSUMERS) {
            for (int i = blockIdx.x / p.down; i < tiles; i += stride) {
                produce_span(dy_map, x_map, p, stages, base, i);
            }
        }
    } else {
        registers_grow<232>();
        for (int i = blockIdx.x / p.down; i < tiles; i += stride) {
            deep_consume<bf16, DEEP_N, SPAN_SHARES, true>(p, stages, base, i, 1);
        }
    }
    cluster_sync(); /* as above */
#endif
}

void wgrad_gates_plan(backend *be, device_layout *device, const layout *l) {
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
    if (cudaFuncGetAttributes(&attributes, wgrad_gates<bf16, 1>) == cudaSuccess) {
        return attributes.numRegs > 100; /* an empty kernel has few */
    }
    cudaGetLastError();
    return false;
}

/* SHARES: thread blocks of a cluster; `grid` of them in all. */
template <int SHARES>
static void launch_deep(backend *be, const device_layout *device, const void *dy, const void *x,
                        const wgrad_gates_arguments &p, int grid,
                        void (*kernel)(CUtensorMap, CUtensorMap, wgrad_gates_arguments)) {
    const layout *l = &device->host;
    CUtensorMap dy_map, x_map;
    if (!map_activations(be, &dy_map, 3, dy, layout_rows(l), p.columns, p.steps, DEEP_M)) return;
    if (!map_activations(be, &x_map, 3, x, layout_inputs(l), p.columns, p.steps, p.b / SHARES)) {
        return;
    }
    cuda_launch_clusters(be, "wgrad", false, SHARES, kernel, dim3(grid), THREADS, DEEP_BYTES,
                         dy_map, x_map, p);
}

template <typename T>
static void launch_shares(backend *be, const device_layout *device, const void *dy, const void *x,
                          const wgrad_gates_arguments &p) {
    const int grid = device->deep_tiles * p.down;
    if (p.down % 2 == 0) {
        launch_deep<2>(be, device, dy, x, p, grid, wgrad_gates<T, 2>);
    } else {
        launch_deep<1>(be, device, dy, x, p, grid, wgrad_gates<T, 1>);
    }
}

void wgrad_gates_run(backend *be, const device_layout *device, const void *dy, const void *x,
                     int steps, int columns, void *dw) {
    const layout *l = &device->host;
    wgrad_gates_arguments p = {};
    p.start = device->deep_start;
    p.row = device->block_row;
    p.column = l->row_column;
    p.dw = (float *)dw;
    p.columns = columns;
    p.steps = steps;
    p.b = l->in_block;
    p.rows = l->gates * l->in_block;
    p.box = BOX_ROW / (int)be->operand_size;
    p.down = p.rows / DEEP_M;
    if (be->precision == TF32) {
        launch_shares<float>(be, device, dy, x, p);
    } else {
        launch_shares<bf16>(be, device, dy, x, p);
    }
}

/* Tiles of 256 x 256, two of a thread block each, and how many make a row of them. */
static int span_tiles(const layout *l, int *across) {
    *across = (int)((layout_inputs(l) + DEEP_N - 1) / DEEP_N);
    return (int)((layout_rows(l) + DEEP_N - 1) / DEEP_N) * *across;
}

int deep_span_tiles(const layout *l) {
    int across;
    return span_tiles(l, &across) * SPAN_SHARES;
}

void deep_create_spans(backend *be, device_layout *device, const layout *l) {
    const int b = l->in_block, rows = l->out_nodes * l->gates, wide = DEEP_N / b;
    int spans;
    device->deep_tiles = span_tiles(l, &spans);
    deep_span *table = (deep_span *)calloc((size_t)rows * (size_t)spans, sizeof *table);
    if (!table) abort();
    for (int r = 0; r < rows; r++) {
        int k = l->row_start[r / l->gates];
        const int end = l->row_start[r / l->gates + 1];
        for (int s = 0; s < spans; s++) {
            deep_span *span = &table[(size_t)r * (size_t)spans + (size_t)s];
            for (span->first = k; k < end && l->row_column[k] / wide == s; k++) {
                span->mask |= 1u << l->row_column[k] % wide;
            }
        }
    }
    const size_t bytes = (size_t)rows * (size_t)spans * sizeof *table;
    device->deep_spans = (deep_span *)cuda_table(be, table, bytes);
    free(table);
}

void deep_wgrad_spans(backend *be, const device_layout *device, const void *dy, const void *x,
                      int steps, int columns, void *dw) {
    const layout *l = &device->host;
    wgrad_gates_arguments p = {};
    p.dw = (float *)dw;
    p.columns = columns;
    p.steps = steps;
    p.b = DEEP_N;
    p.rows = l->out_nodes * l->gates;
    p.box = BOX;
    p.down = SPAN_SHARES;
    p.span = device->deep_spans;
    p.spans_down = span_tiles(l, &p.spans) / p.spans;
    p.block = l->in_block;
    p.gates = l->gates;
    const int most = cuda_of(be)->processors / SPAN_SHARES * SPAN_SHARES;
    const int grid = min(device->deep_tiles * SPAN_SHARES, most);
    launch_deep<SPAN_SHARES>(be, device, dy, x, p, grid, wgrad_gates_of_spans);
}
