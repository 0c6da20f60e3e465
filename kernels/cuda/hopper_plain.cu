/* fprop and dgrad in true fp32 on Hopper, of 32 columns, blocks of 32 and more.
 *
 * Arithmetic rules here, see plain.cu: a multiprocessor issues four instructions a clock, and all
 * that are not multiply-adds are lost. So this does plain.cu's work with fewer others. The copy
 * engine brings in tiles of 32 x 32, a block of weights and its activations, at one lane's word. A
 * lane has 8 x 8 sums, for which it loads 16 numbers from shared memory in four instructions, at
 * addresses that lie a constant from few registers. Both tiles have lines of k for that, so fprop
 * turns its weights over; loaded along k they would also all lie in the same banks of registers.
 *
 * A warp's two halves have different k, and the warps of a thread block shares of a node's list.
 * Their sums meet at the end, in a fixed order. */
#include "floats.cuh"
#include "hopper_floats.cuh"

enum {
    PLAIN_WARPS = 4,
    PLAIN_BLOCKS = 3, /* a multiprocessor */
    PLAIN_STAGES = 2,
    SUMS = 8, /* of a lane in each direction */
    STAGE = 2 * TILE_BYTES,
    RING = PLAIN_STAGES * STAGE, /* of a warp */
    BARRIERS = PLAIN_WARPS * RING,
    BYTES = BARRIERS + PLAIN_WARPS * PLAIN_STAGES * 8 + 1024
};

static_assert(RING >= SUMS * SUMS * 32 * 4, "sums lie where the stages did");

typedef split<1, 1, 1, PLAIN_WARPS> plain_split;

/* A warp's stages, each with 32 of k: a share of its list. */
template <operation OP> struct stage_walker {
    const task<OP, plain_split> &of;
    int lane, log_k, begin, end;
    int window, other = 0, block = 0; /* a lane's entry: window + lane */

    __device__ stage_walker(const task<OP, plain_split> &task_)
        : of(task_), lane(threadIdx.x % 32), log_k(OP == FPROP ? of.p.log_b : of.p.log_rows) {
        const int stages = of.k / TILE;
        begin = stages * of.turn / PLAIN_WARPS;
        end = stages * (of.turn + 1) / PLAIN_WARPS;
        window = begin * TILE >> log_k;
        look_up();
    }

    __device__ void look_up() {
        const int entry = window + lane;
        if (entry >= of.count) return;
        other = __ldg(of.p.other + of.first + entry);
        block = OP == FPROP ? of.first + entry : __ldg(of.p.block + of.first + entry);
    }

    /* Before what follows is asked about stage i. */
    __device__ void reach(int i) {
        if ((i * TILE >> log_k) - window < 32) return;
        window += 32;
        look_up();
    }

    __device__ int of_entry(int value, int i) const {
        return __shfl_sync(~0u, value, (i * TILE >> log_k) - window);
    }

    __device__ int offset(int i) const { /* in its block */
        return i * TILE & ((1 << log_k) - 1);
    }

    __device__ void load_weights(const CUtensorMap &map, int i, uint32_t to, uint32_t full) const {
        const int row = of_entry(block, i) * of.p.rows;
        if (lane > 0) return;
        barrier_expect(full, STAGE);
        tensor_load(to, &map, full, OP == FPROP ? offset(i) : of.row0,
                    row + (OP == FPROP ? of.row0 : offset(i)), 0);
    }

    __device__ void load_activations(const CUtensorMap &map, int i, uint32_t to,
                                     uint32_t full) const {
        const int row = (of_entry(other, i) << log_k) + offset(i);
        if (lane == 0) tensor_load(to + TILE_BYTES, &map, full, 0, row, of.step);
    }
};

/* A lane's place: which half of the warp, of the tile's rows, of its columns. */
static __device__ inline int own_half() {
    return threadIdx.x % 32 / 16;
}
static __device__ inline int own_rows() {
    return threadIdx.x % 16 / 4;
}
static __device__ inline int own_columns() {
    return threadIdx.x % 4;
}

/* What lane `own` of four needs of a tile: chunks `own` and `own` + 4 of each line, which are
 * swizzled: from[q] is where it finds those of lines whose number ends in the bits q. */
struct lines {
    const float4 *from[4];

    __device__ lines(const float4 *tile, int own) {
#pragma unroll
        for (int q = 0; q < 4; q++) from[q] = tile + own_half() * 16 * 8 + (own ^ q);
    }

    __device__ void load(int line, float (&to)[SUMS]) const {
#pragma unroll
        for (int part = 0; part < 2; part++) {
            const float4 v = from[line % 4][line * 8 + (line / 4 % 2 ^ part) * 4];
            to[4 * part] = v.x;
            to[4 * part + 1] = v.y;
            to[4 * part + 2] = v.z;
            to[4 * part + 3] = v.w;
        }
    }
};

static __device__ inline void multiply(const float4 *stage, float (&sum)[SUMS][SUMS]) {
    const lines left(stage, own_rows()), right(stage + TILE_BYTES / 16, own_columns());
#pragma unroll
    for (int k = 0; k < TILE / 2; k++) {
        float u[SUMS], v[SUMS];
        left.load(k, u);
        right.load(k, v);
#pragma unroll
        for (int r = 0; r < SUMS; r++) {
#pragma unroll
            for (int c = 0; c < SUMS; c++) sum[r][c] += u[r] * v[c];
        }
    }
}

/* Adds up the sums of the warps, and their halves. */
template <operation OP>
static __device__ inline void finish(const task<OP, plain_split> &task, float *shared,
                                     const float (&sum)[SUMS][SUMS]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads(); /* the rings are done with */
#pragma unroll
    for (int e = 0; e < 64; e++) shared[(warp * 64 + e) * 32 + lane] = sum[e / 8][e % 8];
    __syncthreads();
#pragma unroll
    for (int piece = 0; piece < 2; piece++) { /* four neighbours in a row, of 16 such a lane */
        const int which = (piece * PLAIN_WARPS + warp) * 2 + own_half(), r = which / 2;
        float v[4] = {};
#pragma unroll
        for (int w = 0; w < PLAIN_WARPS; w++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    v[e] += shared[(w * 64 + which * 4 + e) * 32 + lane % 16 + half * 16];
                }
            }
        }
        const int row = r / 4 * 16 + own_rows() * 4 + r % 4;
        const int column = which % 2 * 16 + own_columns() * 4;
        *(float4 *)task.result(row, column) = make_float4(v[0], v[1], v[2], v[3]);
    }
}

template <operation OP>
static __global__ void __launch_bounds__(PLAIN_WARPS * 32, PLAIN_BLOCKS)
    hopper_plain_kernel(const __grid_constant__ CUtensorMap w_map,
                        const __grid_constant__ CUtensorMap x_map,
                        const __grid_constant__ product p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float4 *ring = (const float4 *)(tiles + warp * RING);
    const uint32_t ring_at = shared_address(ring);
    const uint32_t full = shared_address(tiles + BARRIERS) + warp * PLAIN_STAGES * 8;
    if (lane == 0) {
        for (int s = 0; s < PLAIN_STAGES; s++) barrier_init(full + s * 8, 1);
        barrier_init_done();
    }
    __syncwarp();
    const task<OP, plain_split> task(p);
    stage_walker<OP> walk(task);
    auto load_weights = [&](int i, int slot) {
        walk.load_weights(w_map, i, ring_at + slot * STAGE, full + slot * 8);
    };
    auto load_activations = [&](int i, int slot) {
        walk.load_activations(x_map, i, ring_at + slot * STAGE, full + slot * 8);
    };

    /* The first stages lie in the first window of 32 entries. */
    const int first = min(walk.end - walk.begin, (int)PLAIN_STAGES);
    for (int s = 0; s < first && p.overlap; s++) load_weights(walk.begin + s, s);
    wait_for_earlier();
    let_next_start();
    for (int s = 0; s < first; s++) {
        if (!p.overlap) load_weights(walk.begin + s, s);
        load_activations(walk.begin + s, s);
    }
    float sum[SUMS][SUMS] = {};
    for (int i = walk.begin, slot = 0, phase = 0; i < walk.end; i++) {
        const int ahead = i + PLAIN_STAGES;
        barrier_wait(full + slot * 8, phase);
        if (OP == FPROP) {
            turn_tile(ring_at + slot * STAGE);
            shared_fence(); /* before the next tile is brought in */
            __syncwarp();
        }
        multiply(ring + slot * (STAGE / 16), sum);
        __syncwarp();
        if (ahead < walk.end) {
            walk.reach(ahead);
            load_weights(ahead, slot);
            load_activations(ahead, slot);
        }
        slot = slot + 1 == PLAIN_STAGES ? 0 : slot + 1;
        if (slot == 0) phase ^= 1;
    }
    finish(task, (float *)tiles, sum);
#endif
}

template <operation OP> static void launch(backend *be, const product &p, int tiles, int blocks) {
    CUtensorMap w_map, x_map;
    const size_t in = p.right_step / (size_t)p.columns;
    if (!map_floats(be, &w_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.left,
                    (size_t)blocks * (size_t)p.rows, p.b, 1) ||
        !map_floats(be, &x_map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, p.right, in, p.columns, p.steps))
        return;
    cuda_launch(be, "product", true, hopper_plain_kernel<OP>, grid_of<OP, plain_split>(p, tiles),
                PLAIN_WARPS * 32, (size_t)BYTES, w_map, x_map, p);
}

bool hopper_plain_takes(backend *be, const product &p, operation op) {
    return cuda_of(be)->hopper && op != WGRAD && p.b >= TILE && p.columns == TILE;
}

void hopper_plain_product(backend *be, const product &p, operation op, int tiles, int blocks) {
    if (op == FPROP) launch<FPROP>(be, p, tiles, blocks);
    if (op == DGRAD) launch<DGRAD>(be, p, tiles, blocks);
}
