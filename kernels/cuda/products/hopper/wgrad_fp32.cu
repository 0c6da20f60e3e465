/* wgrad_fp32: wgrad in true fp32 on Hopper, of blocks of 32 and more.
 *
 *   dW_ij [32][32] = sum over steps  dy_i[t] [32][columns]  x_j[t]' [columns][32]
 *
 * Arithmetic rules, as in fp32.cu, whose multiply-adds these are: a lane has 8 x 8 sums, of
 * two tiles of a row, and loads four of k at a time of 8 rows and 8 units for 256 multiply-adds. At
 * 32 columns dW's own bytes take nearly as long. So each warp has a run of dW's tiles, one pair
 * after the other: the copy engine brings 16 columns of a pair's operands at a time into a ring of
 * the warp's own, across pairs, and takes the results out again. No warp waits for another.
 *
 * On an H200, 12,288 units, blocks of 32 and density 0.5: 32 columns take 151 us, where arithmetic
 * takes 94 and memory 71; 512 columns run at 37 TFLOP/s. Runs of whole pairs gained nothing: 533 us
 * where runs of tiles take 486, of 512 columns at density 0.1. */
#include "products/hopper/wgrad_runs.cuh"

enum {
    DEPTH = 16, /* columns of a stage */
    WARPS = 11,
    STAGES = 2,
    SUMS = 8, /* of a lane in each direction */
    ROW = DEPTH * 4,
    OPERAND_BYTES = TILE * ROW, /* of a tile */
    STAGE = 3 * OPERAND_BYTES,  /* of dy, then two of x */
    ROOM = STAGES * STAGE + 2 * TILE_BYTES,
    BARRIERS = WARPS * ROOM,
    WORDS = BARRIERS + WARPS * STAGES * 8, /* of each stage, two */
    BYTES = WORDS + WARPS * STAGES * 8 + 1024
};

/* A stage's words: the places of the tiles it ends, or NOT_YET where a pair goes on; of a tile that
 * has no second one, NO_TILE; and after the last stage, NO_STAGE. */
enum { NOT_YET = -1, NO_TILE = -2, NO_STAGE = -3 };

/* What comes next into a warp's ring. */
struct plain_cursor {
    tile_walker walk;
    int n = 0, t = 0; /* column and step */

    __device__ plain_cursor(const run_arguments &p)
        : walk(p, blockIdx.x * WARPS + threadIdx.x / 32, gridDim.x * WARPS) {}

    __device__ void fill(const CUtensorMap &dy_map, const CUtensorMap &x_map, uint32_t stage,
                         uint32_t full, uint32_t words) {
        const run_arguments &p = walk.p;
        int one = NO_STAGE, two = NO_TILE;
        if (walk.next < walk.end) {
            walk.reach(2);
            const int row = walk.of_next(walk.row), last = walk.next + 1 == walk.end;
            const bool paired = !last && walk.of_next(walk.row, !last) == row;
            const int column = walk.of_next(walk.column);
            const int second = walk.of_next(walk.column, paired);
            if (elected()) {
                barrier_expect(full, STAGE);
                tensor_load(stage, &dy_map, full, n, row * TILE, t);
                tensor_load(stage + OPERAND_BYTES, &x_map, full, n, column * TILE, t);
                tensor_load(stage + 2 * OPERAND_BYTES, &x_map, full, n, second * TILE, t);
            }
            one = NOT_YET;
            n += DEPTH;
            if (n == p.columns) n = 0, t++;
            if (t == p.steps) {
                t = 0;
                one = walk.of_next(walk.place);
                if (paired) two = walk.of_next(walk.place, 1);
                walk.next += 1 + paired;
            }
        }
        if (threadIdx.x % 32 == 0) {
            shared_store(words, one);
            shared_store(words + 4, two);
        }
        __syncwarp();
    }
};

/* A lane's eight rows of a tile of dy: 2 own, 2 own + 1, and so on every 8; and of two tiles of x
 * every eighth from `own` on. Chunks of four columns are swizzled. */
static __device__ inline void multiply(uint32_t stage, float (&sum)[SUMS][SUMS]) {
    const int i = threadIdx.x % 32 / 8, j = threadIdx.x % 8;
    const uint32_t dy = stage + 2 * i * ROW, x = stage + OPERAND_BYTES + j * ROW;
#pragma unroll
    for (int k = 0; k < DEPTH / 4; k++) {
        const uint32_t left = dy + (k ^ i) * 16, right = x + (k ^ j / 2) * 16;
        float u[SUMS][4], v[SUMS][4];
#pragma unroll
        for (int r = 0; r < SUMS; r++) load_four(u[r], left + (r % 2 + r / 2 * 8) * ROW);
#pragma unroll
        for (int c = 0; c < SUMS; c++) load_four(v[c], right + c * 8 * ROW);
#pragma unroll
        for (int e = 0; e < 4; e++) {
#pragma unroll
            for (int r = 0; r < SUMS; r++) {
#pragma unroll
                for (int c = 0; c < SUMS; c++) sum[r][c] += u[r][e] * v[c][e];
            }
        }
    }
}

/* Leaves two tiles as the copy engine takes them; lanes that store together find different banks. */
static __device__ inline void stage_tiles(uint32_t to, const float (&sum)[SUMS][SUMS]) {
    const int i = threadIdx.x % 32 / 8, j = threadIdx.x % 8;
#pragma unroll
    for (int r = 0; r < SUMS; r++) {
        const int row = 2 * i + r % 2 + r / 2 * 8;
        const uint32_t line = to + row * TILE_ROW + j % 4 * 4;
#pragma unroll
        for (int c = 0; c < SUMS; c++) {
            const int chunk = (c % 4 * 2 + j / 4) ^ row % 8;
            shared_store(line + c / 4 * TILE_BYTES + chunk * 16, __float_as_uint(sum[r][c]));
        }
    }
}

static __global__ void __launch_bounds__(WARPS * 32, 1)
    wgrad_fp32(const __grid_constant__ CUtensorMap dy_map,
               const __grid_constant__ CUtensorMap x_map,
               const __grid_constant__ CUtensorMap dw_map,
               const __grid_constant__ run_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t base = shared_address(aligned_tiles(unaligned));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t results = base + warp * 2 * TILE_BYTES;
    const uint32_t ring = base + WARPS * 2 * TILE_BYTES + warp * STAGES * STAGE;
    const uint32_t full = base + BARRIERS + warp * STAGES * 8;
    const uint32_t words = base + WORDS + warp * STAGES * 8;
    create_ring(full, STAGES);
    plain_cursor cursor(p);
    wait_for_earlier();
    let_next_start();
    for (int s = 0; s < STAGES; s++) {
        cursor.fill(dy_map, x_map, ring + s * STAGE, full + s * 8, words + s * 8);
    }
    float sum[SUMS][SUMS] = {};
    for (int slot = 0, phase = 0;;) {
        const uint32_t stage = ring + slot * STAGE;
        const int one = __shfl_sync(~0u, (int)shared_load(words + slot * 8), 0);
        const int two = __shfl_sync(~0u, (int)shared_load(words + slot * 8 + 4), 0);
        if (one == NO_STAGE) break;
        barrier_wait(full + slot * 8, phase);
        multiply(stage, sum);
        finish_loads();
        cursor.fill(dy_map, x_map, stage, full + slot * 8, words + slot * 8);
        if (one != NOT_YET) {
            if (lane == 0) store_wait<0>(); /* those before */
            __syncwarp();
            stage_tiles(results, sum);
            shared_fence();
            __syncwarp();
            if (lane == 0) {
                store_tile(&dw_map, p, results, one);
                if (two != NO_TILE) store_tile(&dw_map, p, results + TILE_BYTES, two);
                store_commit();
            }
#pragma unroll
            for (int i = 0; i < SUMS * SUMS; i++) sum[i / SUMS][i % SUMS] = 0;
        }
        if (++slot == STAGES) {
            slot = 0;
            phase ^= 1;
        }
    }
    if (lane == 0) store_finish();
#endif
}

bool wgrad_fp32_fits(const backend *be, const layout *l) {
    return cuda_of((backend *)(uintptr_t)be)->hopper && be->precision == FP32 &&
           l->in_block >= TILE && l->out_nodes <= 1 << 16;
}

/* Of few tiles products/portable/fp32.cu, which has a tile's warps share the depth, is faster: the more so, the deeper
 * they are. */
bool wgrad_fp32_takes(const backend *be, const layout *l, int steps, int columns) {
    const int shallow = 128, warps = cuda_of((backend *)(uintptr_t)be)->processors * WARPS;
    const size_t tiles = layout_weights(l) / (TILE * TILE);
    return wgrad_fp32_fits(be, l) && tiles >= (size_t)warps * (steps * columns <= shallow ? 2 : 4);
}

void wgrad_fp32_run(backend *be, const device_layout *device, const void *dy, const void *x,
                    int steps, int columns, void *dw) {
    const layout *l = &device->host;
    const run_arguments p = runs_of(device, steps, columns);
    CUtensorMap dy_map, x_map, dw_map;
    const CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    if (!map_floats(be, &dy_map, type, dy, layout_rows(l), columns, steps, DEPTH) ||
        !map_floats(be, &x_map, type, x, layout_inputs(l), columns, steps, DEPTH) ||
        !map_results(be, &dw_map, l, dw, TILE))
        return;
    const int grid = cuda_of(be)->processors;
    cuda_launch(be, "wgrad", true, wgrad_fp32, dim3(grid), WARPS * 32, (size_t)BYTES, dy_map, x_map,
                dw_map, p);
}
