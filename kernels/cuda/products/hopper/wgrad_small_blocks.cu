/* wgrad_small_blocks: wgrad of blocks of 8 and 16 on Hopper.
 *
 *   dW_ij [b][b] = sum over steps  dy_i[t] [b][columns]  x_j[t]' [columns][b]
 *
 * in strips of b rows x 16 units: a block of 16, or any two blocks of 8 of a row. Floors: 2 blocks
 * b^2 depth operations; dy, x and dW once through memory; and what L2 brings into the
 * multiprocessors.
 *
 * A product of wgmma has 64 rows, of which small blocks would fill a few: strips are what mma.sync
 * multiplies, 16 units of x from the left with the rows of dy from the right, so that sums come out
 * turned over. x's fragments are read anew for each strip, dy's where the row changes, and shared
 * memory's rate is what holds this: 512 bytes for a strip's 16 columns, four cycles, in which
 * tensor cores could multiply 1.2 strips of 16 rows, or 2.4 of 8. At twelve warps it comes to 5
 * cycles. So blocks of 8 take about twice as long as as many weights in blocks of 16.
 *
 * A thread block makes up to 168 strips of 16 rows, or 336 of 8, at a time, a task, of some rows
 * and columns of blocks, whose operands it brings once for all of them; their sums stay in
 * registers for the whole depth. With random blocks of 8 a task brings 0.2 / 0.3 / 0.4 / 0.7 / 1.0
 * blocks' rows for each block it makes at density 0.2 / 0.1 / 0.05 / 0.03 / 0.01; below 0.05 that
 * sets the pace. plan/wgrad_small_blocks.c makes the tasks.
 *
 * A stage of the ring has all that a task needs of 64 columns, or of 32, as two must find room: TMA
 * takes as long for a row of 64 bytes as for two thirds of one of 128. Boxes have eight
 * neighbouring blocks' rows or one's. */
#include "plan/wgrad_small_blocks.h"
#include "products/hopper/hopper.cuh"

enum {
    STRIP_CONSUMERS = STRIP_WARPS * 32,
    PRODUCERS = 4, /* warps */
    STRIP_THREADS = STRIP_CONSUMERS + PRODUCERS * 32,
    LOADS = STRIP_BOXES / (PRODUCERS * 32), /* boxes of a stage that a producer's lane loads */
    MOST_STAGES = 12,
    STRIP_BARRIERS = STRIP_TILES * 8 * 64 * 2,
    STRIP_WORDS = STRIP_BARRIERS + 2 * MOST_STAGES * 8 + 64, /* each warp's strips ... */
    STRIP_BLOCKS = 32 * 4,                                   /* ... and then their blocks */
    STRIP_NOTES = STRIP_BLOCKS + 64 * 4,
    STRIP_BYTES = STRIP_WORDS + STRIP_WARPS * STRIP_NOTES + 1024
};

static_assert((int)STRIP_BYTES <= (int)MOST_SHARED, "fits");

typedef struct strip_arguments {
    strip_tables tables;
    const int *start; /* of the layout's rows */
    float *dw;
    int columns, steps, b, gates;
    int panels, stages, stage_bytes;
} strip_arguments;

/* A ring of stages. Each has everything that a task needs of a panel of columns. */
struct strip_ring {
    uint32_t full;
    int at, phase;

    __device__ uint32_t empty() const {
        return full + (MOST_STAGES + at) * 8;
    }

    __device__ void next(int stages) {
        if (++at < stages) return;
        at = 0;
        phase ^= 1;
    }
};

/* Tiles of 8 rows x PANEL columns, as TMA stores them. */
template <int PANEL> struct strip_tile {
    static const int ROW = PANEL * 2, BYTES = 8 * ROW;

    static __device__ uint32_t chunk_at(int row, int chunk) {
        return PANEL == 64 ? ::chunk_at(row, chunk) : row * ROW + (chunk ^ (row >> 1 & 3)) * 16;
    }
};

/* ---------------------------------------------------------------------------------- producers */

/* The operands' tensor maps: large and single boxes of rows of dy, then of x. */
typedef struct strip_maps {
    CUtensorMap of[4];
} strip_maps;

/* A lane loads up to LOADS of a stage's boxes. */
template <int PANEL, int B>
static __device__ inline void strip_produce(const strip_maps &maps, const strip_arguments &p,
                                            strip_ring ring, uint32_t base) {
    const int BOX_BYTES = strip_tile<PANEL>::BYTES * (B / 8);
    const int mine = threadIdx.x - STRIP_CONSUMERS, lane = threadIdx.x % 32;
    for (int i = blockIdx.x; i < p.tables.tasks; i += gridDim.x) {
        const strip_task &task = p.tables.task[i];
        int row[LOADS], kinds = 0, bytes = 0;
        uint32_t to[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++) {
            row[k] = -1;
            int e = mine + k * PRODUCERS * 32, at = 0;
#pragma unroll
            for (int kind = 0; kind < 4; kind++) {
                const int count = task.boxes[kind], size = kind % 2 ? 1 : LARGE_BOX;
                if (e >= 0 && e < count) {
                    row[k] = p.tables.box[task.first + mine + k * PRODUCERS * 32] * B;
                    to[k] = (at + e * size) * BOX_BYTES;
                    kinds |= kind << k * 8;
                    bytes += size * BOX_BYTES;
                }
                e -= count;
                at += count * size;
            }
        }
        bytes = __reduce_add_sync(~0u, bytes);
        for (int t = 0; t < p.steps; t++) {
            for (int n = 0; n < p.columns; n += PANEL, ring.next(p.stages)) {
                const uint32_t barrier = ring.full + ring.at * 8;
                const uint32_t stage = base + ring.at * p.stage_bytes;
                barrier_wait(ring.empty(), ring.phase ^ 1);
                if (lane == 0) barrier_expect(barrier, bytes);
                __syncwarp();
#pragma unroll
                for (int k = 0; k < LOADS; k++) {
                    if (row[k] < 0) continue;
                    tensor_load(stage + to[k], &maps.of[kinds >> k * 8 & 3], barrier, n, row[k], t);
                }
            }
        }
    }
}

/* ---------------------------------------------------------------------------------- consumers */

/* The addresses of a strip's operands for this lane, from a word that has the strip's row and its
 * two tiles of inputs. */
template <int PANEL, int B> struct strip_operands {
    uint32_t rows, inputs; /* of the stage, and the lane's place */
    int shift;             /* of the lane's tile within a word */

    __device__ uint32_t dy(uint32_t word) const {
        return rows + (word & 255) * (strip_tile<PANEL>::BYTES * (B / 8));
    }

    __device__ uint32_t x(uint32_t word) const {
        return inputs + (word >> shift & 255) * strip_tile<PANEL>::BYTES;
    }
};

/* Whether a kernel for `slots` strips a warp skips strips that its warps do not have. */
static __device__ constexpr bool leaves_out(int b, int slots) {
    return b == 8 && slots > SOME_STRIPS;
}

/* Word s of those that lie in fours. */
static __device__ inline uint32_t word_of(const uint4 &four, int s) {
    return s % 4 == 0 ? four.x : s % 4 == 1 ? four.y : s % 4 == 2 ? four.z : four.w;
}

/* `HALVES` times 32 columns of all strips, from `turn` on: sum[s] += x dy', turned over.
 * Fragments of x are loaded before the multiplications of the strip before, those of dy only
 * where the row changes. */
template <int PANEL, int B, int SLOTS, int HALVES>
static __device__ inline void multiply_strips(float (&sum)[SLOTS][B / 8][4], int count,
                                              uint32_t words, const strip_operands<PANEL, B> &from,
                                              uint32_t turn) {
    uint32_t x[2][2][4], dy[B / 8][4];
    uint4 four = shared_words(words);
    uint32_t right = from.x(four.x) ^ turn, left = from.dy(four.x) ^ turn;
#pragma unroll
    for (int k = 0; k < 2; k++) load_matrices(x[0][k], right ^ k * 32);
#pragma unroll
    for (int k = 0; k < B / 8; k++) load_matrices(dy[k], left ^ k * 32);
#pragma unroll
    for (int i = 0; i < SLOTS * HALVES; i++) {
        const int s = i % SLOTS, next = (i + 1) % SLOTS;
        const bool more = i + 1 < SLOTS * HALVES;
        const uint32_t before = left;
        if (leaves_out(B, SLOTS) && s % STRIP_STEP == 0 && s >= count) break;
        if (more) {
            if (next % 4 == 0) four = shared_words(words + next * 4);
            const uint32_t word = word_of(four, next), half = turn ^ (i + 1) / SLOTS * 64;
            right = from.x(word) ^ half;
            left = from.dy(word) ^ half;
#pragma unroll
            for (int k = 0; k < 2; k++) load_matrices(x[(i + 1) % 2][k], right ^ k * 32);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
#pragma unroll
            for (int j = 0; j < B / 8; j++) {
                const uint32_t(&r)[4] = dy[B == 8 ? 0 : k];
                const int e = B == 8 ? k * 2 : j * 2;
                multiply_add(sum[s][j], x[i % 2][k], r[e], r[e + 1]);
            }
        }
#pragma unroll
        for (int k = 0; k < B / 8; k++) {
            if (more) load_matrices_if(dy[k], left ^ k * 32, left != before);
        }
    }
}

/* Notes the numbers of the blocks that a warp's strips make, of blocks of 8 two to a strip. */
template <int B, int SLOTS>
static __device__ inline void find_blocks(const strip_arguments &p, const strip_task &task,
                                          int from, int count, uint32_t words) {
    const int lane = threadIdx.x % 32, PARTS = 16 / B;
#pragma unroll
    for (int e = lane; e < SLOTS * PARTS; e += 32) {
        uint32_t number = NO_BLOCK;
        int position = NO_POSITION;
        if (e < count * PARTS) {
            position = p.tables.position[(size_t)(task.slot + from) * PARTS + e];
        }
        if (position != NO_POSITION) {
            const int place = shared_load(words + e / PARTS * 4) & 255, large = task.boxes[0];
            const uint16_t *box = p.tables.box + task.first;
            const int single = place - large * LARGE_BOX;
            const int row =
                single >= 0 ? box[large + single] : box[place / LARGE_BOX] + place % LARGE_BOX;
            number = (p.start[row / p.gates] + position) * p.gates + row % p.gates;
        }
        shared_store(words + STRIP_BLOCKS + e * 4, number);
    }
}

/* Each lane holds two rows of a unit. Neighbours exchange values, so that each then holds one row
 * of two units. */
template <int B, int SLOTS>
static __device__ inline void store_blocks(const strip_arguments &p, int count, uint32_t words,
                                           const float (&sum)[SLOTS][B / 8][4]) {
    const int lane = threadIdx.x % 32, odd = lane / 4 % 2;
    const int place = (lane % 4 * 2 + odd) * B + lane / 8 * 2;
#pragma unroll
    for (int s = 0; s < SLOTS; s++) {
        if (s % STRIP_STEP == 0 && s >= count) break;
#pragma unroll
        for (int j = 0; j < B / 8; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int e = B == 8 ? s * 2 + half : s;
                const uint32_t block = shared_load(words + STRIP_BLOCKS + e * 4);
                const float *d = &sum[s][j][half * 2];
                const float other = __shfl_xor_sync(~0u, odd ? d[0] : d[1], 4);
                if (block == NO_BLOCK) continue;
                float *to = p.dw + (size_t)block * (B * B) + place;
                if (B == 16) to += j * 8 * B + half * 8;
                *(float2 *)to = odd ? make_float2(other, d[1]) : make_float2(d[0], other);
            }
        }
    }
}

template <int PANEL, int B, int SLOTS>
static __device__ inline void strip_consume(const strip_arguments &p, strip_ring ring,
                                            uint32_t base) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int HALVES = SLOTS <= SOME_STRIPS ? PANEL / 32 : 1; /* of a panel, without a pause */
    const uint32_t words = base + STRIP_WORDS + warp * STRIP_NOTES;
    strip_operands<PANEL, B> at;
    at.shift = lane & 8 ? 16 : 8;
    const uint32_t x_lane = base + strip_tile<PANEL>::chunk_at(lane % 8, lane / 16);
    const uint32_t dy_lane =
        base + (B == 8 ? strip_tile<PANEL>::chunk_at(lane % 8, lane / 8)
                       : strip_tile<PANEL>::chunk_at(lane % 8 + lane / 16 * 8, lane / 8 % 2));
    for (int i = blockIdx.x; i < p.tables.tasks; i += gridDim.x) {
        const strip_task task = p.tables.task[i];
        const int from = task.slots * warp / STRIP_WARPS;
        const int count = task.slots * (warp + 1) / STRIP_WARPS - from;
        const int mine = min(from + min(lane, max(count - 1, 0)), task.slots - 1);
        shared_store(words + lane * 4, p.tables.place[task.slot + mine]);
        __syncwarp();
        const int row_bytes =
            (task.boxes[0] * LARGE_BOX + task.boxes[1]) * (strip_tile<PANEL>::BYTES * (B / 8));
        find_blocks<B, SLOTS>(p, task, from, count, words);
        float sum[SLOTS][B / 8][4] = {};
        for (int panel = p.panels; panel > 0; panel--, ring.next(p.stages)) {
            barrier_wait(ring.full + ring.at * 8, ring.phase);
            at.rows = dy_lane + ring.at * p.stage_bytes;
            at.inputs = x_lane + ring.at * p.stage_bytes + row_bytes;
#pragma unroll 1
            for (int half = 0; half < PANEL / 32; half += HALVES) {
                multiply_strips<PANEL, B, SLOTS, HALVES>(sum, count, words, at, half * 64);
            }
            finish_loads();
            barrier_arrive_warp(ring.empty());
            __syncwarp();
        }
        __syncwarp();
        store_blocks<B, SLOTS>(p, count, words, sum);
    }
}

template <int PANEL, int B, int SLOTS>
static __global__ void __launch_bounds__(STRIP_THREADS, 1)
    wgrad_small_blocks(const __grid_constant__ strip_maps maps,
                       const __grid_constant__ strip_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    const uint32_t base = kept(shared_address(aligned_tiles(unaligned)));
    strip_ring ring = {base + STRIP_BARRIERS, 0, 0};
    if (threadIdx.x < MOST_STAGES) {
        barrier_init(ring.full + threadIdx.x * 8, PRODUCERS);
        barrier_init_warps(ring.full + (MOST_STAGES + threadIdx.x) * 8, STRIP_WARPS);
    }
    barrier_init_done();
    __syncthreads();
    if (threadIdx.x >= STRIP_CONSUMERS) {
        registers_shrink<32>();
        strip_produce<PANEL, B>(maps, p, ring, base);
    } else {
        registers_grow<160>();
        strip_consume<PANEL, B, SLOTS>(p, ring, base);
    }
#endif
}

/* ------------------------------------------------------------------------------------- launch */

/* The map of boxes with the rows of `blocks` blocks. */
static bool map_panels(backend *be, CUtensorMap *map, const void *x, size_t rows,
                       const strip_arguments *p, int panel, int blocks) {
    const uint64_t extent[3] = {(uint64_t)p->columns, rows, (uint64_t)p->steps};
    const uint64_t stride[2] = {(uint64_t)p->columns * 2, (uint64_t)p->columns * rows * 2};
    const uint32_t box[3] = {(uint32_t)panel, (uint32_t)(p->b * blocks), 1};
    return make_map(be, map, x, 3, extent, stride, box,
                    panel == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B);
}

template <int PANEL, int B, int SLOTS>
static void launch_strips(backend *be, const layout *l, strip_arguments p, const void *dy,
                          const void *x) {
    strip_maps maps;
    for (int kind = 0; kind < 4; kind++) {
        const size_t rows = kind < 2 ? layout_rows(l) : layout_inputs(l);
        if (!map_panels(be, &maps.of[kind], kind < 2 ? dy : x, rows, &p, PANEL,
                        kind % 2 ? 1 : LARGE_BOX)) {
            return;
        }
    }
    p.panels = p.steps * (p.columns / PANEL);
    p.stages = min(STRIP_TILES * (64 / PANEL) / p.tables.tiles, (int)MOST_STAGES);
    p.stage_bytes = p.tables.tiles * strip_tile<PANEL>::BYTES;
    void (*kernel)(strip_maps, strip_arguments) = wgrad_small_blocks<PANEL, B, SLOTS>;
    const int grid = min(p.tables.tasks, cuda_of(be)->processors);
    cuda_allow_shared(be, (const void *)kernel, STRIP_BYTES);
    kernel<<<grid, STRIP_THREADS, STRIP_BYTES, cuda_of(be)->stream>>>(maps, p);
}

template <int PANEL, int B>
static void launch_slots(backend *be, const layout *l, const strip_arguments &p, const void *dy,
                         const void *x) {
    if (p.tables.slots <= FEW_STRIPS) {
        launch_strips<PANEL, B, FEW_STRIPS>(be, l, p, dy, x);
    } else if (p.tables.slots <= SOME_STRIPS) {
        launch_strips<PANEL, B, SOME_STRIPS>(be, l, p, dy, x);
    } else {
        launch_strips<PANEL, B, strip_slots(B)>(be, l, p, dy, x);
    }
}

template <int B>
static void launch_panels(backend *be, const layout *l, const strip_arguments &p, const void *dy,
                          const void *x) {
    if (p.tables.panel == 64) {
        launch_slots<64, B>(be, l, p, dy, x);
    } else {
        launch_slots<32, B>(be, l, p, dy, x);
    }
}

void wgrad_small_blocks_run(backend *be, const device_layout *device, const void *plan,
                            const product_call *c) {
    const layout *l = &device->host;
    const strip_arguments p = {*(const strip_tables *)plan,
                               l->row_start,
                               (float *)c->out,
                               c->columns,
                               c->steps,
                               l->in_block,
                               l->gates};
    if (p.tables.tasks == 0) return;
    if (p.b == 8) {
        launch_panels<8>(be, l, p, c->left, c->right);
    } else {
        launch_panels<16>(be, l, p, c->left, c->right);
    }
}
