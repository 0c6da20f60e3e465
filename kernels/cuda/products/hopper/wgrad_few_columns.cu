/* wgrad_few_columns: wgrad on Hopper of few columns, in bf16 and tf32, for blocks of 32 and more.
 *
 *   dW_ij [32][32] = sum over steps  dy_i[t] [32][columns]  x_j[t]' [columns][32]
 *
 * Floor: dW's own bytes, 4 KB a tile, through memory. Of x a tile brings 4 KB for each panel of 128
 * bytes a row, from the L2, which takes less time than dW for up to two; so only dy is shared, by the
 * tiles of a row. What counts is that stores never stop: each warp has a run of dW's tiles, in their
 * order, and a ring of its own that the copy engine fills; results go to the copy engine too, a whole
 * tile at a time. No warp waits for another.
 *
 * Items of the ring are tiles of x, and where a new row of tiles begins, of dy, whose fragments then
 * stay in registers.
 *
 * On an H200, 12,288 units and blocks of 32, one panel takes 82 us at density 0.5, where memory takes
 * 71, 19 of 15 at 0.1 and 5.0 of 2.2 at 0.01; two panels take 93, 23 and 7.1. Kernels that share x,
 * see wgrad_one_gate.cu, take 101 us for two panels at density 0.5; for four 137, where this takes
 * 154, but 75 and 42 at 0.2 and 0.1, where this takes 67 and 38. */
#include "products/hopper/wgrad_runs.cuh"

enum { NO_ITEM = 0x7FFFFFFF, ROW_ITEM = 0x7FFFFFFE };

/* Of so many panels of depth. */
template <int PANELS_> struct shallow_shape {
    static const int PANELS = PANELS_, STEPS = 4 * PANELS; /* STEPS: of 32 bytes */
    static const int WARPS = PANELS == 4 ? 4 : 11, ITEMS = PANELS == 2 ? 2 : 3;
    static const int RESULTS = PANELS == 2 ? 1 : 2; /* of a warp, on their way out */
    static const int ITEM = PANELS * TILE_BYTES;
    static const int ROOM = ITEMS * ITEM + RESULTS * TILE_BYTES; /* of a warp */
    static const int BARRIERS = WARPS * ROOM;
    static const int WORDS = BARRIERS + WARPS * ITEMS * 8; /* what each item is */
    static const int BYTES = WORDS + WARPS * ITEMS * 4 + 1024;
    static_assert(BYTES <= MOST_SHARED, "room for the rings");
};

/* Fills a slot with the next item of a warp's list. */
template <typename T, typename S>
static __device__ inline void fill(tile_walker &walk, int &row, const CUtensorMap &dy_map,
                                   const CUtensorMap &x_map, uint32_t slot, uint32_t full,
                                   uint32_t word) {
    const run_arguments &p = walk.p;
    int what = NO_ITEM;
    if (walk.next < walk.end) {
        walk.reach(1);
        const int new_row = walk.of_next(walk.row), column = walk.of_next(walk.column);
        const bool starts = new_row != row;
        what = starts ? (int)ROW_ITEM : walk.of_next(walk.place);
        if (elected()) {
            barrier_expect(full, S::ITEM);
#pragma unroll
            for (int i = 0; i < S::PANELS; i++) {
                int n = i * (TILE_ROW / (int)sizeof(T)), t = 0;
                for (; n >= p.columns; n -= p.columns) t++;
                tensor_load(slot + i * TILE_BYTES, starts ? &dy_map : &x_map, full, n,
                            (starts ? new_row : column) * TILE, t);
            }
        }
        row = new_row;
        walk.next += !starts;
    }
    if (threadIdx.x % 32 == 0) shared_store(word, what);
    __syncwarp();
}

template <typename T, typename S>
static __device__ inline void multiply_tile(const uint32_t (&a)[S::STEPS][2][4], uint32_t x,
                                            float (&sum)[2][4][4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t from = x + chunk_at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
    for (int k = 0; k < S::STEPS; k++) {
        uint32_t b[2][4];
        const uint32_t at = (from ^ k % 4 * 32) + k / 4 * TILE_BYTES;
        load_matrices(b[0], at);
        load_matrices(b[1], at + 16 * TILE_ROW);
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t(&half)[4] = b[j / 2];
                multiply_single<T>(sum[m][j], a[k][m], half[j % 2 * 2], half[j % 2 * 2 + 1]);
            }
        }
    }
}

template <typename T, typename S>
static __global__ void __launch_bounds__(S::WARPS * 32, 1)
    wgrad_few_columns(const __grid_constant__ CUtensorMap dy_map,
                      const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ CUtensorMap dw_map,
                      const __grid_constant__ run_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t base = shared_address(aligned_tiles(unaligned));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ring = base + warp * S::ROOM, results = ring + S::ITEMS * S::ITEM;
    const uint32_t full = base + S::BARRIERS + warp * S::ITEMS * 8;
    const uint32_t words = base + S::WORDS + warp * S::ITEMS * 4;
    create_ring(full, S::ITEMS);
    tile_walker walk(p, blockIdx.x * S::WARPS + warp, gridDim.x * S::WARPS);
    wait_for_earlier();
    let_next_start();
    int row = -1;
    for (int s = 0; s < S::ITEMS; s++) {
        fill<T, S>(walk, row, dy_map, x_map, ring + s * S::ITEM, full + s * 8, words + s * 4);
    }
    const uint32_t dy_lane = chunk_at(own_row(lane % 8) + lane / 8 % 2 * 8, lane / 16);
    uint32_t a[S::STEPS][2][4];
    for (int slot = 0, phase = 0, result = 0;;) {
        const uint32_t item = ring + slot * S::ITEM;
        const int what = __shfl_sync(~0u, (int)shared_load(words + slot * 4), 0);
        if (what == NO_ITEM) break;
        barrier_wait(full + slot * 8, phase);
        if (what == ROW_ITEM) {
#pragma unroll
            for (int k = 0; k < S::STEPS; k++) {
                const uint32_t at = ((item + dy_lane) ^ k % 4 * 32) + k / 4 * TILE_BYTES;
                load_matrices(a[k][0], at);
                load_matrices(a[k][1], at + 16 * TILE_ROW);
            }
            finish_loads();
        } else {
            float sum[2][4][4] = {};
            multiply_tile<T, S>(a, item, sum);
            if (lane == 0) store_wait<S::RESULTS - 1>();
            __syncwarp();
            const uint32_t staged = results + result * TILE_BYTES;
            stage_rows(staged, sum[0]);
            stage_rows(staged + STAGED_BYTES, sum[1]);
            shared_fence();
            __syncwarp();
            if (lane == 0) {
                store_tile(&dw_map, p, staged, what);
                store_commit();
            }
            result = result + 1 == S::RESULTS ? 0 : result + 1;
        }
        fill<T, S>(walk, row, dy_map, x_map, item, full + slot * 8, words + slot * 4);
        if (++slot == S::ITEMS) {
            slot = 0;
            phase ^= 1;
        }
    }
    if (lane == 0) store_finish();
#endif
}

/* ------------------------------------------------------------------------------------- launch */

void runs_create(backend *be, device_layout *device, const layout *l) {
    const size_t count = (size_t)l->blocks / RUN_BLOCKS + 1;
    uint16_t *row = (uint16_t *)calloc(count, sizeof *row);
    if (!row) abort();
    for (int i = 0; i < l->out_nodes; i++) {
        for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
            if (k % RUN_BLOCKS == 0) row[k / RUN_BLOCKS] = (uint16_t)i;
        }
    }
    device->run_row = (uint16_t *)cuda_table(be, row, count * sizeof *row);
    free(row);
}

static int panels_of(const backend *be, int steps, int columns) {
    return steps * (columns * (int)be->operand_size / TILE_ROW);
}

/* Four panels where tasks are of single tiles, and of more than one batch of them: patterns that are
 * neither so dense that tiles have partners nor so sparse that there is little to do. */
bool wgrad_few_columns_takes(const backend *be, const device_layout *device, int steps,
                             int columns) {
    const int panels = panels_of(be, steps, columns);
    return panels <= 2 || (panels == 4 && device->sampled.batches > 1);
}

template <typename T, int PANELS>
static void launch(backend *be, const device_layout *device, const void *dy, const void *x,
                   const run_arguments &p, void *dw) {
    typedef shallow_shape<PANELS> S;
    const layout *l = &device->host;
    CUtensorMap dy_map, x_map, dw_map;
    if (!map_activations(be, &dy_map, 3, dy, layout_rows(l), p.columns, p.steps, TILE) ||
        !map_activations(be, &x_map, 3, x, layout_inputs(l), p.columns, p.steps, TILE) ||
        !map_results(be, &dw_map, l, dw, TILE))
        return;
    const int grid = min((p.tiles + S::WARPS - 1) / S::WARPS, cuda_of(be)->processors);
    cuda_launch(be, "wgrad", true, wgrad_few_columns<T, S>, dim3(grid), S::WARPS * 32,
                (size_t)S::BYTES, dy_map, x_map, dw_map, p);
}

template <typename T>
static void launch_panels(backend *be, const device_layout *device, const void *dy, const void *x,
                          const run_arguments &p, void *dw) {
    const int panels = panels_of(be, p.steps, p.columns);
    if (panels == 1) launch<T, 1>(be, device, dy, x, p, dw);
    if (panels == 2) launch<T, 2>(be, device, dy, x, p, dw);
    if (panels == 4) launch<T, 4>(be, device, dy, x, p, dw);
}

void wgrad_few_columns_run(backend *be, const device_layout *device, const void *dy, const void *x,
                           int steps, int columns, void *dw) {
    const run_arguments p = runs_of(device, steps, columns);
    if (p.tiles == 0) return;
    if (be->precision == TF32) {
        launch_panels<float>(be, device, dy, x, p, dw);
    } else {
        launch_panels<bf16>(be, device, dy, x, p, dw);
    }
}
