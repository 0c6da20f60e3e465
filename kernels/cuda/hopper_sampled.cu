/* sampled_product: wgrad of one gate on Hopper, for blocks of 32 and 64.
 *
 *   dW_ij [32][32] = sum over steps  dy_i[t] [32][columns]  x_j[t]' [columns][32]
 *
 * in tiles of 32 x 32; a block of 64 is four of them. With one gate no tile of dy is tall enough
 * for a warpgroup's product (64 rows), and pairing rows wastes up to half of it. So warps multiply
 * by themselves (mma.sync), each its own few tiles, whose sums stay in registers for the whole
 * depth.
 *
 * Floors: 2 tiles 32^2 depth operations, at about 0.6 of wgmma's rate; and what L2 brings into the
 * multiprocessors. A tile that had to bring both its operands by itself would bring 64 bytes for
 * 32^2 operations of a column, so a thread block makes up to 48 at a time, a task, chosen to share
 * rows of dy and of x: it reads each once. Tasks of random patterns bring 0.4 / 0.6 / 0.8 / 1.0
 * operand tiles for each tile they make at density 0.5 / 0.2 / 0.1 / 0.05. All thread blocks walk
 * the depth at the same pace, so that memory is read once for each round of tasks.
 *
 * Operands are tiles of 32 rows x 64 columns, 4 KB, in two rings: a stage of the one has a task's
 * rows of dy, a stage of the other the rows of x that one batch of the task's tiles needs. In a
 * batch, a warp makes `SLOTS` tiles, mostly of the same row, and loads dy's fragments once for
 * them. */
#include "hopper_tiles.cuh"

#include <math.h>
#include <string.h>

enum {
    PANEL = 64,              /* columns of a tile */
    TILE = EDGE * PANEL * 2, /* bytes */
    TILES = 56,              /* in shared memory */
    MOST_STAGES = 16,        /* of a ring */
    BARRIERS = TILES * TILE, /* where they are */
    BYTES = BARRIERS + 4 * MOST_STAGES * 8 + 1024,
    SLOTS = 2, /* tiles that a warp makes in a batch */
    BATCH = CONSUMER_WARPS * SLOTS,
    MOST_GROUP = 16 /* rows a task may have */
};

typedef struct sampled_arguments {
    const sampled_task *task;
    const int *tile;
    const sampled_slot *slot;
    float *dw;
    int tasks, columns, steps, b;
    int rows, inputs; /* tiles of a stage */
    int row_stages, input_stages;
} sampled_arguments;

/* ------------------------------------------------------------------------------------- kernel */

/* A ring whose number of stages is known at run time; see ring. */
struct runtime_ring {
    uint32_t full; /* barriers of full stages, then of empty ones */
    int stage, phase;

    __device__ explicit runtime_ring(uint32_t at) : full(at), stage(0), phase(0) {
        if (threadIdx.x < MOST_STAGES) {
            barrier_init(full + threadIdx.x * 8, 1);
            barrier_init(full + (MOST_STAGES + threadIdx.x) * 8, CONSUMER_WARPS);
        }
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
        if (threadIdx.x % 32 == 0) barrier_arrive(full + (MOST_STAGES + stage) * 8);
    }

    /* Fills the stage at `to` with `count` tiles from the list; all lanes of a warp. */
    __device__ void fill(uint32_t to, const CUtensorMap *map, const int *list, int count, int n,
                         int t) const {
        const uint32_t barrier = full + stage * 8, lane = threadIdx.x % 32;
        barrier_wait(full + (MOST_STAGES + stage) * 8, phase ^ 1);
        if (lane == 0) barrier_expect(barrier, count * TILE);
        __syncwarp();
        for (int q = lane; q < count; q += 32) {
            tensor_load(to + q * TILE, map, barrier, n, list[q] * EDGE, t);
        }
    }
};

/* Where TMA put a row's chunk of 16 bytes. */
static __device__ inline uint32_t chunk_at(int row, int chunk) {
    return row * BOX_ROW + (chunk ^ (row & 7)) * 16;
}

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
    for (int i = 0; i < PANEL / 16 * SLOTS; i++) {
        const int s = i % SLOTS, next = (i + 1) % SLOTS, turn = (i + 1) / SLOTS * 32;
        const bool more = i + 1 < PANEL / 16 * SLOTS;
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

static __device__ inline void store_tile(float *to, int b, const float (&sum)[2][4][4]) {
#pragma unroll
    for (int m = 0; m < 2; m++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *d = sum[m][j];
            float *row = to + m * 16 * b + j * 8;
            *(float2 *)row = make_float2(d[0], d[1]);
            *(float2 *)(row + 8 * b) = make_float2(d[2], d[3]);
        }
    }
}

template <int BATCHES>
static __global__ void __launch_bounds__(THREADS, 1)
    sampled_product(const __grid_constant__ CUtensorMap dy_map,
                    const __grid_constant__ CUtensorMap x_map,
                    const __grid_constant__ sampled_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t dy = shared_address(aligned_tiles(unaligned));
    const uint32_t x = dy + p.row_stages * p.rows * TILE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    runtime_ring rows(dy + BARRIERS);
    runtime_ring inputs(dy + BARRIERS + 2 * MOST_STAGES * 8);
    barrier_init_done();
    __syncthreads();

    if (warp >= CONSUMER_WARPS) { /* the producer */
        registers_shrink<24>();
        if (warp > CONSUMER_WARPS) return;
        for (int i = blockIdx.x; i < p.tasks; i += gridDim.x) {
            const sampled_task task = p.task[i];
            const int *list = p.tile + task.first;
            for (int t = 0; t < p.steps; t++) {
                for (int n = 0; n < p.columns; n += PANEL) {
                    rows.fill(dy + rows.stage * p.rows * TILE, &dy_map, list, task.rows, n, t);
                    rows.next(p.row_stages);
                    int from = task.rows;
#pragma unroll
                    for (int h = 0; h < BATCHES; h++) {
                        inputs.fill(x + inputs.stage * p.inputs * TILE, &x_map, list + from,
                                    task.inputs[h], n, t);
                        inputs.next(p.input_stages);
                        from += task.inputs[h];
                    }
                }
            }
        }
        return;
    }

    registers_grow<240>();
    const int panels = p.steps * ((p.columns + PANEL - 1) / PANEL);
    const uint32_t dy_lane = dy + chunk_at(lane % 16, lane / 16);
    const uint32_t x_lane = x + chunk_at(lane % 8 + lane / 16 * 8, lane / 8 % 2);
    for (int i = blockIdx.x; i < p.tasks; i += gridDim.x) {
        const sampled_slot *slot = p.slot + ((size_t)i * BATCHES * CONSUMER_WARPS + warp) * SLOTS;
        float sum[BATCHES][SLOTS][2][4][4] = {};
        uint32_t place[BATCHES][SLOTS];
#pragma unroll
        for (int h = 0; h < BATCHES; h++) {
#pragma unroll
            for (int s = 0; s < SLOTS; s++) place[h][s] = slot[h * BATCH + s].place;
        }
        for (int panel = 0; panel < panels; panel++) {
            rows.wait_full();
            const uint32_t dy_stage = dy_lane + rows.stage * p.rows * TILE;
#pragma unroll
            for (int h = 0; h < BATCHES; h++) {
                inputs.wait_full();
                const uint32_t x_stage = x_lane + inputs.stage * p.inputs * TILE;
                uint32_t left[SLOTS], right[SLOTS];
#pragma unroll
                for (int s = 0; s < SLOTS; s++) {
                    left[s] = dy_stage + (place[h][s] >> 16) * TILE;
                    right[s] = x_stage + (place[h][s] & 0xFFFF) * TILE;
                }
                multiply_batch(sum[h], left, right);
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
                int out = slot[h * BATCH + s].out;
                if (out < 0) continue;
                float *to = p.dw + (size_t)out * EDGE + lane / 4 * p.b + lane % 4 * 2;
                store_tile(to, p.b, sum[h][s]);
            }
        }
    }
#endif
}

/* ------------------------------------------------------------------------------------- tables
 *
 * Tasks are cut from groups of neighbouring rows, whose columns are sorted by how many of the rows
 * they have. Taken in this order, the first tasks have few inputs, and those of single tiles, which
 * come last and by row, few rows: fewest operands in all. Spread over the tasks instead, they give
 * every batch about as many inputs, so that the rings have more stages and no multiprocessor gets
 * more than its share. Dense patterns and those of neighbours need hardly more operands then. */

/* The pattern in tiles: row r has tiles start[r] <= k < start[r + 1]. */
typedef struct tile_lists {
    int rows, columns;
    int *start, *column, *out; /* out: where in dW it begins, in units of EDGE */
} tile_lists;

typedef struct tile_column {
    int column;
    unsigned mask; /* bit r: there is a tile in the group's row r */
} tile_column;

/* How to cut, and what was cut; without tables it only counts. */
typedef struct sampled_plan {
    int group, batches, target;     /* rows of a group; tiles of a task, at most */
    bool spread;                    /* a group's columns over its tasks */
    int tasks, tiles, rows, inputs; /* tiles: listed; rows, inputs: the most of a stage */
    int *listed;                    /* by each task */
    sampled_task *task;
    int *tile;
    sampled_slot *slot;
} sampled_plan;

static tile_lists list_tiles(const layout *l) {
    const int across = l->in_block / EDGE, down = l->gates * across;
    const int blocks = l->blocks * across * down;
    tile_lists t = {l->out_nodes * down, l->in_nodes * across};
    t.start = host_table((size_t)t.rows + 1);
    t.column = host_table((size_t)blocks);
    t.out = host_table((size_t)blocks);
    for (int r = 0, made = 0; r < t.rows; r++) {
        for (int k = l->row_start[r / down]; k < l->row_start[r / down + 1]; k++) {
            for (int c = 0; c < across; c++, made++) {
                t.column[made] = l->row_column[k] * across + c;
                t.out[made] = (k * down + r % down) * l->in_block + c;
            }
        }
        t.start[r + 1] = made;
    }
    return t;
}

static int by_count(const void *one, const void *two) {
    const tile_column *a = (const tile_column *)one, *b = (const tile_column *)two;
    int more = __builtin_popcount(b->mask) - __builtin_popcount(a->mask);
    if (more) return more;
    if (a->mask != b->mask) return a->mask < b->mask ? -1 : 1;
    return a->column - b->column;
}

/* Takes up to `room` tiles from the columns into `taken`: whole columns, then a part of one.
 * Returns how many columns; lowers *room. */
static int take_columns(tile_column *columns, int count, int most, int *room, tile_column *taken) {
    int made = 0, part = -1;
    for (int i = 0; *room > 0 && i < count && made < most; i++) {
        int tiles = __builtin_popcount(columns[i].mask);
        if (tiles > *room) part = i;
        if (tiles == 0 || tiles > *room) continue;
        taken[made++] = columns[i];
        columns[i].mask = 0;
        *room -= tiles;
    }
    if (*room == 0 || made == most || part < 0) return made;
    taken[made] = (tile_column){columns[part].column, 0};
    for (; *room > 0; --*room) {
        unsigned lowest = columns[part].mask & -columns[part].mask;
        taken[made].mask |= lowest;
        columns[part].mask ^= lowest;
    }
    return made + 1;
}

/* Deals a batch's tiles to warps, row by row. */
static void deal_slots(const tile_lists *l, int row0, unsigned rows, const tile_column *taken,
                       int count, sampled_slot *slot) {
    sampled_slot list[BATCH];
    int made = 0;
    for (unsigned left = rows; left; left &= left - 1) {
        const int r = __builtin_ctz(left), place = __builtin_popcount(rows & ((1u << r) - 1));
        for (int q = 0; q < count; q++) {
            if (!(taken[q].mask >> r & 1)) continue;
            int k = l->start[row0 + r];
            while (l->column[k] != taken[q].column) k++;
            list[made++] = (sampled_slot){l->out[k], (uint32_t)(place << 16 | q)};
        }
    }
    for (int w = 0; w < CONSUMER_WARPS; w++) {
        int from = made * w / CONSUMER_WARPS, past = made * (w + 1) / CONSUMER_WARPS;
        for (int s = 0; s < SLOTS; s++) {
            sampled_slot none = {-1, past > from ? list[past - 1].place : 0};
            slot[w * SLOTS + s] = from + s < past ? list[from + s] : none;
        }
    }
}

/* Makes a task of at most `room` tiles; returns how many it has. */
static int cut_task(sampled_plan *p, const tile_lists *l, int row0, tile_column *columns, int count,
                    int room) {
    const int most = (TILES - 2 * p->group) / p->batches;
    tile_column taken[SAMPLED_BATCHES][BATCH];
    sampled_task task = {p->tiles, 0, {0}};
    unsigned rows = 0;
    int made = 0;
    for (int h = 0; h < p->batches; h++) {
        const int wanted = room * (h + 1) / p->batches - room * h / p->batches;
        int left = wanted;
        task.inputs[h] = take_columns(columns, count, min(most, BATCH), &left, taken[h]);
        for (int q = 0; q < task.inputs[h]; q++) rows |= taken[h][q].mask;
        made += wanted - left;
        p->inputs = max(p->inputs, task.inputs[h]);
    }
    task.rows = __builtin_popcount(rows);
    p->rows = max(p->rows, task.rows);
    if (p->task) {
        p->task[p->tasks] = task;
        int *tile = p->tile + p->tiles;
        for (unsigned left = rows; left; left &= left - 1) *tile++ = row0 + __builtin_ctz(left);
        for (int h = 0; h < p->batches; h++) {
            for (int q = 0; q < task.inputs[h]; q++) *tile++ = taken[h][q].column;
            sampled_slot *slot = p->slot + ((size_t)p->tasks * p->batches + h) * BATCH;
            deal_slots(l, row0, rows, taken[h], task.inputs[h], slot);
        }
    }
    int listed = task.rows;
    for (int h = 0; h < p->batches; h++) listed += task.inputs[h];
    p->tiles += listed;
    p->listed[p->tasks++] = listed;
    return made;
}

/* Deals columns out to as many hands. */
static void spread_columns(tile_column *columns, int count, int hands) {
    tile_column *dealt = (tile_column *)malloc((size_t)count * sizeof *dealt);
    if (!dealt) abort();
    for (int hand = 0, made = 0; hand < hands; hand++) {
        for (int c = hand; c < count; c += hands) dealt[made++] = columns[c];
    }
    memcpy(columns, dealt, (size_t)count * sizeof *dealt);
    free(dealt);
}

static void cut_tasks(sampled_plan *p, const tile_lists *l) {
    tile_column *columns = (tile_column *)calloc((size_t)l->columns, sizeof *columns);
    if (!columns) abort();
    p->tasks = p->tiles = p->rows = p->inputs = 0;
    for (int row0 = 0; row0 < l->rows; row0 += p->group) {
        const int rows = min(p->group, l->rows - row0);
        int left = l->start[row0 + rows] - l->start[row0], count = 0;
        int tasks = (left + p->target - 1) / p->target;
        for (int c = 0; c < l->columns; c++) columns[c] = (tile_column){c, 0};
        for (int r = 0; r < rows; r++) {
            for (int k = l->start[row0 + r]; k < l->start[row0 + r + 1]; k++) {
                columns[l->column[k]].mask |= 1u << r;
            }
        }
        for (int c = 0; c < l->columns; c++) {
            if (columns[c].mask) columns[count++] = columns[c];
        }
        qsort(columns, (size_t)count, sizeof *columns, by_count);
        if (p->spread && tasks > 0) spread_columns(columns, count, tasks * p->batches);
        for (tile_column *first = columns; left > 0; tasks--) {
            while (first->mask == 0) first++, count--;
            int room = tasks > 1 ? (left + tasks - 1) / tasks : min(left, p->target);
            left -= cut_task(p, l, row0, first, count, room);
        }
    }
    free(columns);
}

/* How long a plan takes, in units of a multiprocessor's time for one operand tile from L2. In each
 * task loads and multiplications go on side by side, and where both take equally long, that is a
 * fifth more than either. The more rows, the fewer warps have two tiles of one. Halfway between the
 * average multiprocessor and the busiest, as those that end early leave more of L2 to the others.
 * Measured on an H200: about 9 TB/s from L2, 450 TFLOP/s. */
static double plan_cost(const sampled_plan *p, int processors) {
    const double multiplication = 0.6 * (1 + p->group / 200.0), turn = 1;
    const double products = pow(p->batches * BATCH * multiplication, 4);
    double sum = 0, most = 0;
    for (int processor = 0; processor < processors; processor++) {
        double cost = 0;
        for (int i = processor; i < p->tasks; i += processors) {
            cost += pow(pow(p->listed[i], 4) + products, 0.25) + turn;
        }
        sum += cost;
        most = fmax(most, cost);
    }
    return (sum / processors + most) / 2;
}

/* The best of plans with groups of different size and tasks for whole rounds of all
 * multiprocessors, with some room as no group's tiles divide evenly. */
static sampled_plan choose_plan(const tile_lists *l, int processors, int *listed) {
    static const int groups[] = {2, 4, 6, 8, 12, 16};
    const int tiles = l->start[l->rows];
    sampled_plan best = {};
    double least = 0;
    for (int batches = 1; batches <= SAMPLED_BATCHES; batches++) {
        const int full = batches * BATCH, rounds = tiles / (full * processors) + 1;
        for (size_t g = 0; g < sizeof groups / sizeof groups[0] * 2; g++) {
            for (int attempt = 0, target = 0; attempt < 6 && target < full; attempt++) {
                double even = (double)tiles / ((rounds + attempt / 3) * processors);
                int next = min(full, (int)(even * (1 + 0.04 * (attempt % 3)) + 1));
                if (next == target) continue;
                target = next;
                sampled_plan plan = {groups[g / 2], batches, target, g % 2 == 1};
                plan.listed = listed;
                cut_tasks(&plan, l);
                double cost = plan_cost(&plan, processors);
                if (best.tasks && cost >= least) continue;
                best = plan;
                least = cost;
            }
        }
    }
    return best;
}

void sampled_create(backend *be, device_layout *device, const layout *l) {
    tile_lists lists = list_tiles(l);
    if (lists.start[lists.rows] == 0) return;
    int *listed = host_table((size_t)lists.start[lists.rows]);
    sampled_plan p = choose_plan(&lists, cuda_of(be)->processors, listed);
    size_t slots = (size_t)p.tasks * p.batches * BATCH;
    p.task = (sampled_task *)calloc((size_t)p.tasks, sizeof *p.task);
    p.tile = host_table((size_t)p.tiles);
    p.slot = (sampled_slot *)calloc(slots, sizeof *p.slot);
    if (!p.task || !p.slot) abort();
    size_t tiles = (size_t)p.tiles;
    cut_tasks(&p, &lists);
    sampled_tables *t = &device->sampled;
    t->task = (sampled_task *)cuda_table(be, p.task, (size_t)p.tasks * sizeof *p.task);
    t->tile = (int *)cuda_table(be, p.tile, tiles * sizeof *p.tile);
    t->slot = (sampled_slot *)cuda_table(be, p.slot, slots * sizeof *p.slot);
    t->tasks = p.tasks;
    t->batches = p.batches;
    t->rows = p.rows;
    t->inputs = p.inputs;
    void *tables[] = {lists.start, lists.column, lists.out, p.task, p.tile, p.slot, listed};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) free(tables[i]);
}

/* ------------------------------------------------------------------------------------- launch */

template <int BATCHES>
static void launch_sampled(backend *be, int grid, const CUtensorMap &dy_map,
                           const CUtensorMap &x_map, const sampled_arguments &p) {
    cuda_allow_shared(be, (const void *)sampled_product<BATCHES>, BYTES);
    sampled_product<BATCHES><<<grid, THREADS, BYTES, cuda_of(be)->stream>>>(dy_map, x_map, p);
}

bool sampled_wgrad(backend *be, const device_layout *device, const void *dy, const void *x,
                   int steps, int columns, void *dw) {
    const layout *l = &device->host;
    const sampled_tables *t = &device->sampled;
    if (t->tasks == 0) return true;
    CUtensorMap dy_map, x_map;
    sampled_arguments p = {t->task, t->tile, t->slot,     (float *)dw, t->tasks,
                           columns, steps,   l->in_block, t->rows,     t->inputs};
    p.row_stages = max(2, min(TILES / (t->rows + t->batches * t->inputs), MOST_STAGES));
    p.input_stages = min((TILES - p.row_stages * t->rows) / t->inputs, MOST_STAGES);
    if (!map_activations(be, &dy_map, 3, dy, layout_rows(l), columns, steps, EDGE)) return false;
    if (!map_activations(be, &x_map, 3, x, layout_inputs(l), columns, steps, EDGE)) return false;
    const int grid = min(t->tasks, cuda_of(be)->processors);
    switch (t->batches) {
    case 1: launch_sampled<1>(be, grid, dy_map, x_map, p); break;
    case 2: launch_sampled<2>(be, grid, dy_map, x_map, p); break;
    default: launch_sampled<3>(be, grid, dy_map, x_map, p);
    }
    return true;
}
