/* fprop and dgrad in true fp32 on Hopper, blocks of 32 and more.
 *
 * Arithmetic rules here, see products/portable/fp32.cu: a multiprocessor issues four instructions a clock, and all
 * that are not multiply-adds are lost. So this does products/portable/fp32.cu's work with fewer others. The copy
 * engine brings in tiles, a block of weights and its activations, at one lane's word. A lane has 8 x
 * 8 sums, and loads 16 numbers from shared memory for 64 multiply-adds, at addresses a constant from
 * registers that move on by one addition a stage. Of fprop's weights it loads four of k at a time,
 * so that they need not be turned over.
 *
 * A multiply-add also takes a clock more where its three operands lie in one of the register file's
 * two banks, the even and the odd registers. Numbers come from shared memory in fours that begin at
 * an even register, so a sum whose column is even wants an odd one: sums end up in shared memory in
 * fours with neighbours exchanged, and ptxas keeps them so.
 *
 * A warp makes 32 rows by 64 columns, or by 32, where its halves have different k; the warps of a
 * thread block have shares of a node's list. Their sums meet at the end, in a fixed order.
 *
 * On an H200, block 32 and density 0.5, this does 43 TFLOP/s at 32 columns and up to 47 at 128,
 * where cuBLAS on large matrices does 51; of 100 instructions 13 are not multiply-adds. */
#include "products/hopper/float_tiles.cuh"
#include "products/portable/warp_tiles.cuh"

enum {
    PLAIN_WARPS = 4,
    PLAIN_BLOCKS = 3, /* a multiprocessor */
    SUMS = 8          /* of a lane in each direction */
};

/* A stage: DEPTH of k, of the left tile [32 rows][DEPTH], or for dgrad [DEPTH][32], and of the right
 * one, boxes [DEPTH][32 columns]. */
template <int WIDE_> struct plain_shape {
    static const int WIDE = WIDE_;               /* boxes of 32 columns */
    static const int HALVES = WIDE == 1 ? 2 : 1; /* of a warp, on their own k */
    static const int OWN_DEPTH = 16, DEPTH = OWN_DEPTH * HALVES;
    static const int ACROSS = 4 * WIDE; /* lanes along the columns */
    static const int LEFT = TILE * DEPTH * 4, BOX_BYTES = DEPTH * TILE_ROW;
    static const int STAGE = LEFT + WIDE * BOX_BYTES, STAGES = WIDE == 1 ? 2 : 3;
    static const int RING = STAGES * STAGE; /* of a warp */
    static const int BARRIERS = PLAIN_WARPS * RING;
    static const int BYTES = BARRIERS + PLAIN_WARPS * STAGES * 8 + 1024;
    static_assert(RING >= SUMS * SUMS * 32 * 4, "sums lie where the stages did");
    typedef split<WIDE, 1, 1, PLAIN_WARPS> spread;

    /* A lane's place. */
    static __device__ int half() {
        return threadIdx.x % 32 / (4 * ACROSS);
    }
    static __device__ int rows() {
        return threadIdx.x % 32 / ACROSS % 4;
    }
    static __device__ int columns() {
        return threadIdx.x % ACROSS;
    }
};

/* A warp's stages: a share of its list. */
template <operation OP, typename S> struct stage_walker {
    typedef task<OP, typename S::spread> whole_task;
    const whole_task &of;
    int lane, log_k, begin, end;
    int window, other = 0, block = 0; /* a lane's entry: window + lane */

    __device__ stage_walker(const whole_task &task_)
        : of(task_), lane(threadIdx.x % 32), log_k(OP == FPROP ? of.p.log_b : of.p.log_rows) {
        const int stages = of.k / S::DEPTH;
        begin = stages * of.turn / PLAIN_WARPS;
        end = stages * (of.turn + 1) / PLAIN_WARPS;
        window = begin * S::DEPTH >> log_k;
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
        if ((i * S::DEPTH >> log_k) - window < 32) return;
        window += 32;
        look_up();
    }

    __device__ int of_entry(int value, int i) const {
        return __shfl_sync(~0u, value, (i * S::DEPTH >> log_k) - window);
    }

    __device__ int offset(int i) const { /* in its block */
        return i * S::DEPTH & ((1 << log_k) - 1);
    }

    /* What a stage brings, or only one operand of it. */
    template <bool WEIGHTS, bool ACTIVATIONS>
    __device__ void load(const CUtensorMap &w_map, const CUtensorMap &x_map, int i, uint32_t to,
                         uint32_t full) const {
        const int in = offset(i), row = WEIGHTS ? of_entry(block, i) * of.p.rows : 0;
        const int x_row = ACTIVATIONS ? (of_entry(other, i) << log_k) + in : 0;
        if (!elected()) return;
        if (WEIGHTS) {
            barrier_expect(full, S::STAGE);
            tensor_load(to, &w_map, full, OP == FPROP ? in : of.row0,
                        row + (OP == FPROP ? of.row0 : in), 0);
        }
#pragma unroll
        for (int box = 0; box < S::WIDE && ACTIVATIONS; box++) {
            tensor_load(to + S::LEFT + box * S::BOX_BYTES, &x_map, full, of.column0 + box * TILE,
                        x_row, of.step);
        }
    }
};

/* Registers that a lane's addresses in a tile lie a constant from. */
template <int COUNT> struct addresses {
    uint32_t from[COUNT];

    __device__ void move(int by) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) from[i] += by;
    }
};

/* What lane `own` of four needs of a box whose lines are k: chunks `own` and `own` + 4 of each line,
 * which are swizzled: from[q] is for lines whose number ends in the bits q. */
template <typename S> struct pair_of_chunks : addresses<4> {
    __device__ pair_of_chunks(uint32_t box, int own) {
#pragma unroll
        for (int q = 0; q < 4; q++) {
            from[q] = kept(box + S::half() * S::OWN_DEPTH * TILE_ROW + (own ^ q) * 16);
        }
    }

    __device__ void load(int line, float (&to)[SUMS]) const {
#pragma unroll
        for (int part = 0; part < 2; part++) {
            load_four(to + 4 * part, from[line % 4] + line * TILE_ROW + (line / 4 % 2 ^ part) * 64);
        }
    }
};

/* Lane `own` of eight: chunk `own` of each line of two boxes. */
template <typename S> struct chunks_of_two : addresses<8> {
    __device__ chunks_of_two(uint32_t box, int own) {
#pragma unroll
        for (int q = 0; q < 8; q++) from[q] = kept(box + (own ^ q) * 16);
    }

    __device__ void load(int line, float (&to)[SUMS]) const {
#pragma unroll
        for (int box = 0; box < 2; box++) {
            load_four(to + 4 * box, from[line % 8] + line * TILE_ROW + box * S::BOX_BYTES);
        }
    }
};

/* Of a tile whose lines are rows: rows `own` + 4 r, four of k at a time. */
template <typename S> struct rows_of_four : addresses<8> {
    static const int ROW = S::DEPTH * 4;

    __device__ rows_of_four(uint32_t tile, int own) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int row = own + i / 4 * 4, chunk = S::half() * 4 + i % 4;
            from[i] = kept(tile + row * ROW + (chunk ^ row * ROW / TILE_ROW % (ROW / 16)) * 16);
        }
    }

    __device__ void load(int k, int r, float (&to)[4]) const {
        load_four(to, from[r % 2 * 4 + k / 4] + r / 2 * 8 * ROW);
    }
};

template <typename S, typename R>
static __device__ inline void multiply(const rows_of_four<S> &left, const R &right,
                                       float (&sum)[SUMS][SUMS]) {
#pragma unroll
    for (int k = 0; k < S::OWN_DEPTH; k += 4) {
        float u[SUMS][4];
#pragma unroll
        for (int r = 0; r < SUMS; r++) left.load(k, r, u[r]);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float v[SUMS];
            right.load(k + e, v);
#pragma unroll
            for (int r = 0; r < SUMS; r++) {
#pragma unroll
                for (int c = 0; c < SUMS; c++) sum[r][c] += u[r][e] * v[c];
            }
        }
    }
}

template <typename S, typename R>
static __device__ inline void multiply(const pair_of_chunks<S> &left, const R &right,
                                       float (&sum)[SUMS][SUMS]) {
#pragma unroll
    for (int k = 0; k < S::OWN_DEPTH; k++) {
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

template <operation OP, typename S> struct left_tile : rows_of_four<S> {
    using rows_of_four<S>::rows_of_four;
};
template <typename S> struct left_tile<DGRAD, S> : pair_of_chunks<S> {
    using pair_of_chunks<S>::pair_of_chunks;
};

template <typename S, int WIDE = S::WIDE> struct right_tile : pair_of_chunks<S> {
    using pair_of_chunks<S>::pair_of_chunks;
};
template <typename S> struct right_tile<S, 2> : chunks_of_two<S> {
    using chunks_of_two<S>::chunks_of_two;
};

/* Adds up the sums of the warps, and their halves: pieces of four of a row, of which a lane has 16.
 * In a piece, neighbours are exchanged. */
template <operation OP, typename S>
static __device__ inline void finish(const task<OP, typename S::spread> &task, float4 *shared,
                                     const float (&sum)[SUMS][SUMS]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, pieces = SUMS * SUMS / 4;
    __syncthreads(); /* the rings are done with */
#pragma unroll
    for (int piece = 0; piece < pieces; piece++) {
        const float *v = &sum[piece / 2][piece % 2 * 4];
        shared[(warp * pieces + piece) * 32 + lane] = make_float4(v[1], v[0], v[3], v[2]);
    }
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < pieces / PLAIN_WARPS / S::HALVES; turn++) {
        const int piece = (turn * PLAIN_WARPS + warp) * S::HALVES + S::half(), r = piece / 2;
        float4 total = {};
#pragma unroll
        for (int from = 0; from < PLAIN_WARPS * S::HALVES; from++) {
            const int other = from / S::HALVES * pieces + piece;
            const float4 v = shared[other * 32 + lane % (32 / S::HALVES) + from % S::HALVES * 16];
            total.x += v.y;
            total.y += v.x;
            total.z += v.w;
            total.w += v.z;
        }
        const int row = OP == FPROP ? S::rows() + 4 * r : r / 4 * 16 + S::rows() * 4 + r % 4;
        const int column = piece % 2 * (S::ACROSS * 4) + S::columns() * 4;
        if (task.has_column(column)) *(float4 *)task.result(row, column) = total;
    }
}

template <operation OP, int WIDE>
static __global__ void __launch_bounds__(PLAIN_WARPS * 32, PLAIN_BLOCKS)
    hopper_fp32(const __grid_constant__ CUtensorMap w_map,
                const __grid_constant__ CUtensorMap x_map, const __grid_constant__ product p) {
#if ON_HOPPER
    typedef plain_shape<WIDE> S;
    extern __shared__ char unaligned[];
    char *tiles = aligned_tiles(unaligned);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const uint32_t ring = shared_address(tiles + warp * S::RING);
    const uint32_t full = shared_address(tiles + S::BARRIERS) + warp * S::STAGES * 8;
    if (lane == 0) {
        for (int s = 0; s < S::STAGES; s++) barrier_init(full + s * 8, 1);
        barrier_init_done();
    }
    __syncwarp();
    const task<OP, typename S::spread> task(p);
    stage_walker<OP, S> walk(task);

    /* The first stages lie in the first window of 32 entries. */
    const int first = min(walk.end - walk.begin, (int)S::STAGES);
    for (int s = 0; s < first && p.overlap; s++) {
        walk.template load<true, false>(w_map, x_map, walk.begin + s, ring + s * S::STAGE,
                                        full + s * 8);
    }
    wait_for_earlier();
    let_next_start();
    for (int s = 0; s < first; s++) {
        const uint32_t to = ring + s * S::STAGE, barrier = full + s * 8;
        if (p.overlap) {
            walk.template load<false, true>(w_map, x_map, walk.begin + s, to, barrier);
        } else {
            walk.template load<true, true>(w_map, x_map, walk.begin + s, to, barrier);
        }
    }
    float sum[SUMS][SUMS] = {};
    left_tile<OP, S> left(ring, S::rows());
    right_tile<S> right(ring + S::LEFT, S::columns());
    for (int i = walk.begin, slot = 0, phase = 0; i < walk.end; i++) {
        const int ahead = i + S::STAGES, last = slot + 1 == S::STAGES;
        barrier_wait(full + slot * 8, phase);
        multiply<S>(left, right, sum);
        __syncwarp();
        if (ahead < walk.end) {
            walk.reach(ahead);
            walk.template load<true, true>(w_map, x_map, ahead, ring + slot * S::STAGE,
                                           full + slot * 8);
        }
        left.move(last ? S::STAGE - S::RING : S::STAGE);
        right.move(last ? S::STAGE - S::RING : S::STAGE);
        slot = last ? 0 : slot + 1;
        phase ^= last;
    }
    finish<OP, S>(task, (float4 *)tiles, sum);
#endif
}

template <operation OP, int WIDE>
static void launch(backend *be, const product &p, int tiles, int blocks) {
    typedef plain_shape<WIDE> S;
    CUtensorMap w_map, x_map;
    const size_t in = p.right_step / (size_t)p.columns;
    const CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    const int across = OP == FPROP ? S::DEPTH : TILE, down = OP == FPROP ? TILE : S::DEPTH;
    if (!map_floats(be, &w_map, type, p.left, (size_t)blocks * (size_t)p.rows, p.b, 1, across,
                    down) ||
        !map_floats(be, &x_map, type, p.right, in, p.columns, p.steps, TILE, S::DEPTH))
        return;
    cuda_launch(be, "product", true, hopper_fp32<OP, WIDE>,
                grid_of<OP, typename S::spread>(p, tiles), PLAIN_WARPS * 32, (size_t)S::BYTES,
                w_map, x_map, p);
}

template <operation OP>
static void launch_columns(backend *be, const product &p, int tiles, int blocks) {
    if (p.columns > TILE) {
        launch<OP, 2>(be, p, tiles, blocks);
    } else {
        launch<OP, 1>(be, p, tiles, blocks);
    }
}

bool hopper_fp32_takes(backend *be, const product &p, operation op) {
    return cuda_of(be)->hopper && op != WGRAD && p.b >= TILE;
}

void hopper_fp32_run(backend *be, const product &p, operation op, int tiles, int blocks) {
    if (op == FPROP) launch_columns<FPROP>(be, p, tiles, blocks);
    if (op == DGRAD) launch_columns<DGRAD>(be, p, tiles, blocks);
}
