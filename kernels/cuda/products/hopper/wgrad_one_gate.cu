/* wgrad_one_gate: wgrad of one gate on Hopper in bf16, for blocks of 32 and 64.
 *
 *   dW_ij [32][32] = sum over steps  dy_i[t] [32][columns]  x_j[t]' [columns][32]
 *
 * in tiles of 32 x 32; a block of 64 is four of them. Floors: 2 tiles 32^2 depth operations; and
 * what L2 brings into the multiprocessors. A tile that had to bring both its operands by itself
 * would bring 64 bytes for 32^2 operations of a column, so a thread block makes up to 48 at a time,
 * a task, chosen to share rows of dy and of x: it reads each once. Their sums stay in registers for
 * the whole depth, which is why there are no more. Tasks of random patterns bring 0.4 / 0.6 / 0.9 /
 * 1.0 operand tiles for each tile they make at density 0.5 / 0.2 / 0.1 / 0.05. All thread blocks
 * walk the depth at about the same pace, so that memory is read once for each round of tasks.
 *
 * Operands are tiles of 32 rows x 64 columns, 128 bytes a row, in two rings: a slot of the one has
 * a task's rows of dy, a slot of the other the rows of x that one batch of the task's tiles needs.
 *
 * Of a convolution a tap is a block of its own, whose x is read at other steps than dy. It has few
 * blocks and many steps, so these are split among several times as many thread blocks, and another
 * kernel adds up what they store.
 *
 * TMA stores the results, 16 rows of 32 at a time: it writes whole lines, and the warp need not
 * wait. At few columns the results are most of the bytes.
 *
 * The products are mma.sync, at about 0.6 of wgmma's rate: each warp makes its own few tiles, in a
 * batch `SLOTS` of them, mostly of the same row, and loads dy's fragments once for these. wgmma's
 * products have 64 rows, so tiles would need partners, which sparse patterns rarely have.
 *
 * plan/wgrad_one_gate.c makes the tasks. */
#include "plan/wgrad_one_gate.h"
#include "products/hopper/hopper.cuh"

enum {
    STEPS = 4, /* products of a tile, of 16 columns each */
    TILE_BYTES = EDGE * BOX_ROW,
    BARRIERS = TILES * TILE_BYTES, /* where they are */
    RING_BARRIERS = 2 * RING_BATCHES * 8,
    STAGED = BARRIERS + 2 * RING_BARRIERS + 512, /* results; tiles begin at multiples of 1024 */
    TARGETS = STAGED + CONSUMER_WARPS * STAGED_BYTES, /* where these go, two words each */
    WARP_TILES = SAMPLED_BATCHES * SLOTS,
    BYTES = TARGETS + CONSUMER_WARPS * WARP_TILES * 8 + 1024
};

typedef struct wgrad_one_gate_arguments {
    wgrad_one_gate_tables tables;
    const int *start;            /* of the layout's rows */
    int columns, steps, b, down; /* down: tiles of a node's rows */
    const int *positions;        /* of a convolution: [steps][taps] what is read */
    int taps;                    /* at least 1 */
    int works;                   /* tasks, times the number of splits */
    int all_rows;                /* of dW; each split has a copy of it */
    int row_stages, input_stages;
} wgrad_one_gate_arguments;

/* What a thread block computes at a time: a task, over all steps or a split of them. */
struct task_work {
    int task, first, end, row0; /* row0: where its results begin */

    __device__ task_work(const wgrad_one_gate_arguments &p, int work)
        : task(work), first(0), end(p.steps), row0(0) {
        if (p.works == p.tables.tasks) return;
        const int split = work / p.tables.tasks, splits = p.works / p.tables.tasks;
        task = work % p.tables.tasks;
        first = (int)((long long)p.steps * split / splits);
        end = (int)((long long)p.steps * (split + 1) / splits);
        row0 = split * p.all_rows;
    }

    __device__ int panels(int columns) const {
        return (end - first) * ((columns + BOX - 1) / BOX);
    }
};

/* Stages a warp's results on their way to global memory, 16 rows at a time. */
struct way_out {
    const CUtensorMap *map;
    uint32_t staged, targets;

    __device__ way_out(const CUtensorMap *map_, uint32_t base)
        : map(map_), staged(base + STAGED + threadIdx.x / 32 * STAGED_BYTES),
          targets(base + TARGETS + threadIdx.x / 32 * WARP_TILES * 8) {}

    /* The place of a task's tile in dW, from its row and column in tiles and its block's position
     * in the row's list. */
    __device__ void aim(int number, const wgrad_one_gate_arguments &p, int row0, int row,
                        int column, int position) const {
        const int block = p.start[row / p.down] * p.taps + position;
        shared_store(targets + number * 8, column % (p.b / EDGE) * EDGE);
        shared_store(targets + number * 8 + 4, row0 + (block * p.down + row % p.down) * EDGE);
    }

    __device__ void aim_nowhere(int number) const {
        shared_store(targets + number * 8, ~0u);
    }

    /* A tile's 16 rows from `below` on. */
    __device__ void store(int number, int below, const float (&d)[4][4]) const {
        const uint2 target = shared_load2(targets + number * 8);
        if (__shfl_sync(~0u, target.x, 0) == ~0u) return; /* the same in all lanes */
        if (threadIdx.x % 32 == 0) store_wait<0>();       /* until what went before is read */
        __syncwarp();
        stage_rows(staged, d);
        shared_fence();
        __syncwarp();
        if (threadIdx.x % 32 == 0) {
            tensor_store(map, staged, (int)target.x, (int)target.y + below);
            store_commit();
        }
    }
};

/* Where a tile of x comes from. Those of a convolution are numbered by node and tap, and read at
 * another position than the result's, or beyond the columns, which TMA fills with zeros. */
template <bool TAPS> struct tile_source {
    int row, tap;

    __device__ tile_source(const wgrad_one_gate_arguments &p, int tile, bool inputs)
        : row(tile * EDGE), tap(-1) {
        if (!TAPS || !inputs) return;
        const int across = p.b / EDGE, source = tile / across;
        row = (source / p.taps * across + tile % across) * EDGE;
        tap = source % p.taps;
    }

    __device__ int position(const wgrad_one_gate_arguments &p, int step) const {
        return !TAPS || tap < 0 || step >= p.steps ? step : p.positions[step * p.taps + tap];
    }

    __device__ void load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column,
                         int columns, int position) const {
        if (TAPS && position < 0) column = columns;
        tensor_load(to, map, barrier, column, row, TAPS ? max(position, 0) : position);
    }
};

/* A ring of stages of equal size, whose number, at most RING_BATCHES, is known at run time. */
struct runtime_ring {
    uint32_t full; /* barriers of full stages, then of empty ones */
    int stage, phase;

    __device__ explicit runtime_ring(uint32_t at) : full(at), stage(0), phase(0) {
        if (threadIdx.x < RING_BATCHES) {
            barrier_init(full + threadIdx.x * 8, 1);
            barrier_init_warps(empty(threadIdx.x), CONSUMER_WARPS);
        }
    }

    __device__ uint32_t empty(int at) const {
        return full + (RING_BATCHES + at) * 8;
    }

    __device__ void next(int stages) {
        if (++stage < stages) return;
        stage = 0;
        phase ^= 1;
    }

    __device__ void wait_full() const {
        barrier_wait(full + stage * 8, phase);
    }

    __device__ void release() const {
        barrier_arrive_warp(empty(stage));
        __syncwarp(); /* lanes that wait for the next stage might hold lane 0 up */
    }

    /* Fills the stage at `to` with `count` tiles from the list, of dy or of x; all lanes of a
     * warp. */
    template <bool TAPS>
    __device__ void fill(uint32_t to, const CUtensorMap *map, const wgrad_one_gate_arguments &p,
                         const uint16_t *list, int count, int n, int t, bool inputs) const {
        const uint32_t barrier = full + stage * 8, lane = threadIdx.x % 32;
        barrier_wait(empty(stage), phase ^ 1);
        if (lane == 0) barrier_expect(barrier, count * TILE_BYTES);
        __syncwarp();
        if ((int)lane < count) {
            const tile_source<TAPS> source(p, list[lane], inputs);
            source.load(to + lane * TILE_BYTES, map, barrier, n, p.columns, source.position(p, t));
        }
    }
};

/* Rows 0 - 31, and 16 columns; `address` is the lane's in the tile's upper half. */
static __device__ inline void load_half_tiles(uint32_t (&r)[2][4], uint32_t address) {
    load_matrices(r[0], address);
    load_matrices(r[1], address + 16 * BOX_ROW);
}

/* One batch's panel: sum[s] += dy x' for the warp's tiles; left and right say where. Fragments of
 * the next product are loaded before this one's multiplications, those of dy only where the row
 * changes. */
static __device__ inline void multiply_batch(float (&sum)[SLOTS][2][4][4],
                                             const uint32_t (&left)[SLOTS],
                                             const uint32_t (&right)[SLOTS]) {
    uint32_t a[2][4], b[2][2][4];
    load_half_tiles(b[0], right[0]);
    load_half_tiles(a, left[0]);
#pragma unroll
    for (int i = 0; i < STEPS * SLOTS; i++) {
        const int s = i % SLOTS, next = (i + 1) % SLOTS, turn = (i + 1) / SLOTS * 32;
        const bool more = i + 1 < STEPS * SLOTS;
        if (more) load_half_tiles(b[(i + 1) % 2], right[next] ^ turn);
#pragma unroll
        for (int m = 0; m < 2; m++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const uint32_t(&half)[4] = b[i % 2][j / 2];
                multiply_add(sum[s][m][j], a[m], half[j % 2 * 2], half[j % 2 * 2 + 1]);
            }
            uint32_t from = (left[next] ^ turn) + m * 16 * BOX_ROW;
            if (more) load_matrices_if(a[m], from, next == 0 || left[next] != left[s]);
        }
    }
}

template <int BATCHES, bool TAPS>
static __global__ void __launch_bounds__(THREADS, 1)
    wgrad_one_gate(const __grid_constant__ CUtensorMap dy_map,
                   const __grid_constant__ CUtensorMap x_map,
                   const __grid_constant__ CUtensorMap dw_map,
                   const __grid_constant__ wgrad_one_gate_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t dy = kept(shared_address(aligned_tiles(unaligned)));
    const uint32_t x = dy + p.tables.row_tiles * TILE_BYTES;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    runtime_ring rows(dy + BARRIERS);
    runtime_ring inputs(dy + BARRIERS + RING_BARRIERS);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<24>();
        if (warp > CONSUMER_WARPS) return;
        wait_for_earlier();
        for (int i = blockIdx.x; i < p.works; i += gridDim.x) {
            const task_work work(p, i);
            const sampled_task task = p.tables.task[work.task];
            const uint16_t *list = p.tables.tile + task.first;
            for (int t = work.first; t < work.end; t++) {
                for (int n = 0; n < p.columns; n += BOX) {
                    rows.fill<TAPS>(dy + rows.stage * p.tables.rows * TILE_BYTES, &dy_map, p, list,
                                    task.rows, n, t, false);
                    rows.next(p.row_stages);
                    int from = task.rows;
#pragma unroll
                    for (int h = 0; h < BATCHES; h++) {
                        inputs.fill<TAPS>(x + inputs.stage * p.tables.inputs * TILE_BYTES, &x_map,
                                          p, list + from, task.inputs[h], n, t, true);
                        inputs.next(p.input_stages);
                        from += task.inputs[h];
                    }
                }
            }
        }
        return;
    }

    registers_grow<240>();
    wait_for_earlier();
    let_next_start();
    const uint32_t dy_lane = dy + chunk_at(lane / 8 % 2 * 8 + own_row(lane % 8), lane / 16);
    way_out out(&dw_map, dy);
    const uint32_t x_lane = x + chunk_at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    for (int i = blockIdx.x; i < p.works; i += gridDim.x) {
        const task_work work(p, i);
        const int panels = work.panels(p.columns);
        const sampled_slot *slot =
            p.tables.slot + ((size_t)work.task * BATCHES * CONSUMER_WARPS + warp) * SLOTS;
        float sum[BATCHES][SLOTS][2][4][4] = {};
        uint32_t places[BATCHES] = {}; /* of each slot: row, column; a byte each */
#pragma unroll
        for (int h = 0; h < BATCHES; h++) {
#pragma unroll
            for (int s = 0; s < SLOTS; s++) {
                const sampled_slot &c = slot[h * BATCH + s];
                places[h] |= (uint32_t)(c.row << 8 | c.column) << s * 16;
            }
        }
        const sampled_task &task = p.tables.task[work.task];
        __syncwarp(); /* all lanes have read the previous task's targets */
        if (lane < BATCHES * SLOTS) {
            const sampled_slot c = slot[lane / SLOTS * BATCH + lane % SLOTS];
            const uint16_t *row = p.tables.tile + task.first, *column = row + task.rows;
            for (int h = 0; h < lane / SLOTS; h++) column += task.inputs[h];
            if (c.position == NO_TILE) {
                out.aim_nowhere(lane);
            } else {
                out.aim(lane, p, work.row0, row[c.row], column[c.column], c.position);
            }
        }
        __syncwarp();
        for (int panel = 0; panel < panels; panel++) {
            rows.wait_full();
            const uint32_t dy_stage = dy_lane + rows.stage * p.tables.rows * TILE_BYTES;
#pragma unroll
            for (int h = 0; h < BATCHES; h++) {
                inputs.wait_full();
                const uint32_t x_stage = x_lane + inputs.stage * p.tables.inputs * TILE_BYTES;
                uint32_t left[SLOTS], right[SLOTS];
#pragma unroll
                for (int s = 0; s < SLOTS; s++) {
                    const uint32_t place = places[h] >> s * 16;
                    left[s] = dy_stage + (place >> 8 & 255) * TILE_BYTES;
                    right[s] = x_stage + (place & 255) * TILE_BYTES;
                }
                multiply_batch(sum[h], left, right);
                finish_loads();
                inputs.release();
                inputs.next(p.input_stages);
            }
            rows.release();
            rows.next(p.row_stages);
        }
#pragma unroll
        for (int h = 0; h < BATCHES; h++) {
#pragma unroll
            for (int s = 0; s < SLOTS; s++) {
#pragma unroll
                for (int m = 0; m < 2; m++) out.store(h * SLOTS + s, m * 16, sum[h][s][m]);
            }
        }
    }
    if (lane == 0) store_finish();
#endif
}

/* Adds up the results of the splits. */
static __global__ void add_splits(const float4 *from, int splits, size_t count, float4 *to) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float4 sum = from[i];
    for (int split = 1; split < splits; split++) add_four_sums(&sum.x, from[split * count + i]);
    to[i] = sum;
}

/* ------------------------------------------------------------------------------------- launch */

typedef void wgrad_one_gate_kernel(CUtensorMap dy_map, CUtensorMap x_map, CUtensorMap dw_map,
                                   wgrad_one_gate_arguments p);

void wgrad_one_gate_run(backend *be, const device_layout *device, const void *plan,
                        const product_call *c) {
    const layout *l = &device->host;
    const wgrad_one_gate_tables *t = (const wgrad_one_gate_tables *)plan;
    const int steps = c->steps, columns = c->columns;
    if (t->tasks == 0) return;
    CUtensorMap dy_map, x_map, dw_map;
    const int read = c->taps ? c->taps->in_positions : steps;
    const int splits = max(1, min(t->splits, steps));
    const size_t weights = layout_weights(l);
    float *out = splits > 1 ? t->partial : (float *)c->out;
    const wgrad_one_gate_arguments p = {*t,
                                        l->row_start,
                                        columns,
                                        steps,
                                        l->in_block,
                                        l->gates * l->in_block / EDGE,
                                        c->taps ? c->taps->source : NULL,
                                        max(l->taps, 1),
                                        t->tasks * splits,
                                        (int)(weights / (size_t)l->in_block),
                                        t->row_tiles / t->rows,
                                        min((TILES - t->row_tiles) / t->inputs, (int)RING_BATCHES)};
    if (!map_activations(be, &dy_map, 3, c->left, layout_rows(l), columns, steps, EDGE) ||
        !map_activations(be, &x_map, 3, c->right, layout_inputs(l), columns, read, EDGE) ||
        !map_results(be, &dw_map, l, out, STAGED_BYTES / STAGED_ROW, splits))
        return;
    static wgrad_one_gate_kernel *const kernels[2][SAMPLED_BATCHES] = {
        {wgrad_one_gate<1, false>, wgrad_one_gate<2, false>, wgrad_one_gate<3, false>},
        {wgrad_one_gate<1, true>, wgrad_one_gate<2, true>, wgrad_one_gate<3, true>}};
    wgrad_one_gate_kernel *kernel = kernels[c->taps != NULL][t->batches - 1];
    const int grid = min(p.works, cuda_of(be)->processors);
    cuda_launch(be, "wgrad", true, kernel, dim3(grid), THREADS, (size_t)BYTES, dy_map, x_map,
                dw_map, p);
    if (splits > 1) {
        const size_t fours = weights / 4;
        add_splits<<<(uint32_t)((fours + 255) / 256), 256, 0, cuda_of(be)->stream>>>(
            (const float4 *)out, splits, fours, (float4 *)c->out);
    }
}
