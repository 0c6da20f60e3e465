/* wgrad_dense: wgrad of a dense layer over several steps, on Hopper.
 *
 *   dW [256 rows][144 or 64 inputs]
 *       = sum over steps  dy[t] [256][columns]  x[t]' [columns][inputs]
 *
 * cuBLAS sums over one dimension only, so the steps would have to be packed side by side first.
 * Here TMA takes them where they are.
 *
 * Floors: 2 rows inputs steps columns operations; dy, x and dW once through memory; and what L2
 * brings into the multiprocessors, 800 bytes a column for 73,728 operations. All of the head's 256
 * rows are one tile, so that x comes once, and 18,432 inputs are 128 tiles for 132 multiprocessors;
 * so are 8,192 by 64. Each of two warpgroups has 128 rows, 144 sums a thread. Thread blocks walk
 * the depth at the same pace, so that dy stays in the L2. 18,432 units and 16,384 columns in all
 * take 0.2 ms. */
#include "products/hopper/hopper.cuh"

typedef struct dense_arguments {
    float *dw; /* [rows][inputs] */
    int rows, inputs;
    int columns, steps;
} dense_arguments;

enum {
    DENSE_M = 256,
    DENSE_HALF = 64 * BOX_ROW, /* of a warpgroup's rows of dy */
    DENSE_LEFT = DENSE_M * BOX_ROW,
    DENSE_STAGES = 4
};

/* N: inputs of a tile. */
template <int N> struct dense_shape {
    static const int STAGE = DENSE_LEFT + N * BOX_ROW, BARRIERS = DENSE_STAGES * STAGE;
    static const int BYTES = BARRIERS + DENSE_STAGES * 16 + 1024;
};

template <int N>
static __device__ inline void dense_consume(const dense_arguments &p, cursor<DENSE_STAGES> &stages,
                                            uint32_t base) {
    const int warp = threadIdx.x / 32, group = warp / 4, lane = threadIdx.x % 32;
    float sum[2][N / 2] = {};
    multiply_stages<1, BOX>(stages, p.steps * (p.columns / BOX), [&](int at, int k) {
        const uint32_t stage = base + at * dense_shape<N>::STAGE + k * 2;
        const uint64_t right = matrix_descriptor(stage + DENSE_LEFT, SWIZZLE_128, 16, 1024);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t left = stage + (group * 2 + half) * DENSE_HALF;
            warpgroup_multiply<0, 0>(sum[half], matrix_descriptor(left, SWIZZLE_128, 16, 1024),
                                     right);
        }
    });
#pragma unroll
    for (int half = 0; half < 4; half++) { /* of 64 rows, then of a warp's 16 */
        const int row = blockIdx.y * DENSE_M + group * 128 + half / 2 * 64 + warp % 4 * 16 +
                        half % 2 * 8 + lane / 4;
        if (row >= p.rows) continue;
#pragma unroll
        for (int j = 0; j < N / 8; j++) {
            const int input = blockIdx.x * N + j * 8 + lane % 4 * 2;
            const float *v = &sum[half / 2][j * 4 + half % 2 * 2];
            if (input >= p.inputs) continue;
            *(float2 *)(p.dw + (size_t)row * p.inputs + input) = make_float2(v[0], v[1]);
        }
    }
}

template <int N>
static __global__ void __launch_bounds__(THREADS, 1)
    wgrad_dense(const __grid_constant__ CUtensorMap dy_map,
                const __grid_constant__ CUtensorMap x_map,
                const __grid_constant__ dense_arguments p) {
#if ON_HOPPER
    typedef dense_shape<N> S;
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles), warp = threadIdx.x / 32;
    cursor<DENSE_STAGES> stages;
    stages.create(base + S::BARRIERS);
    barrier_init_done();
    __syncthreads();

    if (warp < CONSUMER_WARPS) {
        registers_grow<232>();
        dense_consume<N>(p, stages, base);
        return;
    }
    registers_shrink<40>();
    if (warp > CONSUMER_WARPS) return;
    for (int t = 0; t < p.steps; t++) { /* the producer */
        for (int n = 0; n < p.columns; n += BOX, stages.next()) {
            stages.wait_empty();
            if (!elected()) continue;
            const uint32_t to = base + stages.at * S::STAGE;
            const uint32_t barrier = stages.announce(S::STAGE);
            tensor_load(to, &dy_map, barrier, n, blockIdx.y * DENSE_M, t);
            tensor_load(to + DENSE_LEFT, &x_map, barrier, n, blockIdx.x * N, t);
        }
    }
#endif
}

static int tiles_of(int extent, int tile) {
    return (extent + tile - 1) / tile;
}

template <int N> static void launch(backend *be, const layout *l, const product_call *c) {
    const int rows = (int)layout_rows(l), inputs = l->in_block;
    const uint64_t row = (uint64_t)c->columns * 2 * (uint64_t)l->in_stride;
    const uint64_t extent[3] = {(uint64_t)c->columns, (uint64_t)inputs, (uint64_t)c->steps};
    const uint64_t stride[2] = {row, row * (uint64_t)inputs};
    const uint32_t box[3] = {BOX, N, 1};
    CUtensorMap dy_map, x_map;
    if (!map_activations(be, &dy_map, 3, c->left, (size_t)rows, c->columns, c->steps, DENSE_M) ||
        !make_map(be, &x_map, c->right, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B)) {
        return;
    }
    const dense_arguments p = {(float *)c->out, rows, inputs, c->columns, c->steps};
    const dim3 grid(tiles_of(inputs, N), tiles_of(rows, DENSE_M));
    cuda_allow_shared(be, (const void *)wgrad_dense<N>, dense_shape<N>::BYTES);
    wgrad_dense<N><<<grid, THREADS, dense_shape<N>::BYTES, cuda_of(be)->stream>>>(dy_map, x_map, p);
}

/* Narrow tiles where there is a multiprocessor for each. */
void wgrad_dense_run(backend *be, const device_layout *device, const void *,
                     const product_call *c) {
    const layout *l = &device->host;
    const int tiles = tiles_of(l->in_block, 64) * tiles_of((int)layout_rows(l), DENSE_M);
    if (tiles <= cuda_of(be)->processors) {
        launch<64>(be, l, c);
    } else {
        launch<144>(be, l, c);
    }
}
