/* fprop and dgrad of few columns in bf16, on any GPU from sm_80 on, for all block sizes: up to 128
 * columns of one gate and 32 of four. On Hopper other kernels take some of these; see dispatch.cu.
 *
 *   y' [N columns][units] = sum over k  x' [N][k]  A [k][units],  A = W' for fprop, W for dgrad
 *
 * Floors: weights, x and y once through memory; and what L2 delivers to the multiprocessors, where
 * every block of b x b weights gathers b x N activations: at block 32 and N = 32 as many bytes as
 * the weights, at block 8 or N = 128 four times as many. Arithmetic is a tenth of that.
 *
 * So the tiling keeps many loads in flight. A task is a node's list, or a part of a long one; it
 * belongs to one thread block and computes up to 32 units. The list is cut evenly among the warps,
 * and each warp walks its share alone, in stages of a few blocks: a ring of its own in shared
 * memory that it fills by cp.async and empties by ldmatrix and mma.sync, with no barrier but its
 * own. The whole ring is being loaded before the first product; at low density nothing more
 * follows. Columns are the rows of the matrix product, so that 8 units fill its width and small
 * blocks waste nothing. At the end the sums of all warps are added in shared memory, in a fixed
 * order. The parts of a hub's list are thread blocks of one cluster: each sends its sums directly
 * to the thread block that finishes them.
 *
 * Products of one step take a few microseconds, of which launching, looking up lists and the first
 * weights from memory are half. On Hopper these overlap with the kernel before: a thread block
 * begins while that one ends, looks up its list and fetches weights, and only then waits for it.
 * Instructions count, too: at density 0.01 a warp has one block to multiply.
 *
 * On an H200, block 32 and density 0.5, N = 32 is at 97 % of memory's floor; N = 64, 96 and 128 get
 * 9.0, 10.3 and 7.7 TB/s out of the L2, which gives 9.3 to plain reads. To be faster, rows would
 * have to share activations. What did not help: docs/kernels/fprop-dgrad.md. */
#include "device/hopper_ptx.cuh"
#include "device/ptx.cuh"
#include "plan/few_columns.h"
#include "products/kernels.h"

enum {
    MOST_WARPS = 4, /* of a thread block */
    PAIR = 1024     /* bytes of sums of 8 units and 32 columns */
};

typedef struct few_columns_arguments {
    const bf16 *w, *x;
    bf16 *y;
    const few_columns_task *task;
    const int *other, *block; /* the lists; block: NULL in order */
    int b, gates, columns;
    int log_k;   /* of k a block: b, or for dgrad gates b */
    int weights; /* of a block */
    int overlap; /* weights may be read before the kernel before this one ends */
    int cluster; /* thread blocks of one */
} few_columns_arguments;

/* B: units of a task. A stage is DEPTH of k: W [DEPTH / SLICE][B][SLICE], or for dgrad
 * [..][SLICE][B], and x [DEPTH][N]. What comes from one block is SLICE deep. */
template <int B, int N, int WARPS_, int STAGES_> struct few_columns_shape {
    static const int DEPTH = B < 32 && N == 32 ? 64 : 32, SLICE = B, SLICES = DEPTH / SLICE;
    static const int WARPS = WARPS_, STAGES = STAGES_;
    static const int WIDTH = B / 8, CHUNKS = B * WIDTH; /* of 8 weights: of a line, of a slice */
    static const int X_WIDTH = N / 8;                   /* of 8 activations: of a row */
    /* A warp loads 32 chunks at a time; after so many times it begins a new row. */
    static const int X_TIMES = X_WIDTH % 3 ? 1 : 3, X_ROWS = X_TIMES * 32 / X_WIDTH;
    static const int W_BYTES = DEPTH * B * 2, X_BYTES = DEPTH * N * 2, STAGE = W_BYTES + X_BYTES;
    static const int PAIRS = B / 8 * (N / 32); /* of tiles of 8 x 16 sums */
    static const int SUMS = PAIRS * PAIR;      /* [B / 8][N / 16] tiles */
    static const int FULL = STAGES * STAGE, RING = FULL > SUMS ? FULL : SUMS; /* of a warp */
    static const int BYTES = WARPS * RING;
    static const int INBOX = (PAIRS > MOST_PARTS ? SUMS : MOST_PARTS * PAIR) / 4 * 3; /* at most */
};

/* ------------------------------------------------------------------------------------- a share
 * of a list, as a warp walks it. */

template <int B, int N, int WARPS, int STAGES, bool FORWARD> struct walker {
    typedef few_columns_shape<B, N, WARPS, STAGES> S;
    const few_columns_arguments &p;
    const few_columns_task &task;
    uint32_t ring;
    int lane, depth, begin, end;      /* stages [begin, end) of the list's `depth` of k */
    int window, other = 0, block = 0; /* a lane's entry: window + lane */
    int in_block, in_x[S::X_TIMES];   /* where a lane's first chunks lie there */

    __device__ walker(const few_columns_arguments &p_, const few_columns_task &task_,
                      uint32_t ring_)
        : p(p_), task(task_), ring(ring_), lane(threadIdx.x % 32) {
        const int warp = threadIdx.x / 32, rows = FORWARD ? p.gates * p.b : p.b;
        const int row = task.row & (rows - 1), line = lane % S::CHUNKS / S::WIDTH;
        depth = task.count << p.log_k;
        int stages = (depth + S::DEPTH - 1) / S::DEPTH;
        begin = stages * warp / WARPS;
        end = stages * (warp + 1) / WARPS;
        window = begin * S::DEPTH >> p.log_k;
        look_up();
        in_block = FORWARD ? (row + line) * p.b : line * p.b + row;
        in_block += lane % S::WIDTH * 8;
#pragma unroll
        for (int i = 0; i < S::X_TIMES; i++) {
            in_x[i] = x_row(i) * p.columns + blockIdx.y * N + x_chunk(i) * 8;
        }
    }

    __device__ void look_up() {
        int entry = window + lane;
        if (entry >= task.count) return;
        other = __ldg(p.other + task.first + entry);
        block = p.block ? __ldg(p.block + task.first + entry) : task.first + entry;
    }

    /* A short list mostly waits for its first activations, so the L2 fetches them ahead. For small
     * blocks they are too many pieces. */
    __device__ void prefetch_activations() const {
        const int entry = window + lane, rows = 1 << p.log_k;
        if (B < 32 || end - begin > 2 || entry * rows >= min(end * S::DEPTH, depth)) return;
        prefetch(p.x + (size_t)other * rows * p.columns, rows * p.columns * 2);
    }

    /* Looks up further entries if stage i needs them; call it before the others. */
    __device__ void reach(int i) {
        if ((i * S::DEPTH >> p.log_k) - window < 32) return;
        window += 32;
        look_up();
    }

    __device__ int of_entry(int value, int k) const {
        return __shfl_sync(~0u, value, (k >> p.log_k) - window);
    }

    __device__ int offset(int k) const { /* in its block */
        return k & ((1 << p.log_k) - 1);
    }

    /* A list ends at a whole block; a stage of several slices may end within one. */
    __device__ void load(uint32_t to, const bf16 *from, int k) const {
        if (S::SLICES == 1) {
            copy_async_whole(to, from);
        } else {
            copy_async(to, k < depth ? from : NULL);
        }
    }

    /* Neighbouring lanes load neighbouring chunks of 8 weights: along a line, then in the next
     * lines of the slice, then in the next slices. */
    __device__ void load_weights(int i, int slot) const {
        const int width = S::WIDTH, at_once = S::CHUNKS < 32 ? 32 / S::CHUNKS : 1;
        const int line = lane % S::CHUNKS / width, c = lane % width;
#pragma unroll
        for (int s = 0; s < S::SLICES; s += at_once) {
            const int slice = s + lane / S::CHUNKS, k = i * S::DEPTH + slice * S::SLICE;
            const bf16 *from = p.w + (size_t)of_entry(block, k) * p.weights + in_block;
            const uint32_t to = ring + slot * S::STAGE + slice * S::CHUNKS * 16;
            from += FORWARD ? offset(k) : offset(k) * p.b;
#pragma unroll
            for (int l = 0; l < S::SLICE; l += 32 * at_once / width) {
                load(to + swizzle<width>(l + line, c) * 16, from + l * p.b, k);
            }
        }
    }

    /* The row of the chunk that this lane loads when the warp loads for the i-th time. */
    __device__ int x_row(int i) const {
        return (i * 32 + lane) / S::X_WIDTH;
    }

    __device__ int x_chunk(int i) const {
        return (i * 32 + lane) % S::X_WIDTH;
    }

    __device__ void load_activations(int i, int slot) const {
        const uint32_t to = ring + slot * S::STAGE + S::W_BYTES;
#pragma unroll
        for (int s = 0; s < S::SLICES; s++) {
            const int k = i * S::DEPTH + s * S::SLICE, first = s * S::SLICE;
            const int row = (of_entry(other, k) << p.log_k) + offset(k);
            const bf16 *from = p.x + (size_t)row * p.columns;
#pragma unroll
            for (int l = 0; l < S::SLICE; l += S::X_ROWS) {
#pragma unroll
                for (int t = 0; t < S::X_TIMES; t++) {
                    const int at = swizzle<S::X_WIDTH>(first + l + x_row(t), x_chunk(t));
                    load(to + at * 16, from + l * p.columns + in_x[t], k);
                }
            }
        }
    }

    /* Lane i of a warp gives the address of row i % 8 of matrix i / 8. */
    __device__ void multiply(int slot, float (&sum)[N / 16][B / 8][4]) const {
        const uint32_t w = ring + slot * S::STAGE, x = w + S::W_BYTES;
        const int in = lane % 8, matrix = lane / 8;
#pragma unroll
        for (int k = 0; k < S::DEPTH; k += 16) {
            uint32_t right[B / 8][2];
#pragma unroll
            for (int u = 0; u < B / 8; u += 2) {
                uint32_t r[4];
                const int width = S::WIDTH;
                int along = B == 8 ? in : matrix / 2 * 8 + in, by_k = k % S::SLICE + matrix % 2 * 8;
                int at = k / S::SLICE * B * width;
                if (B == 8) { /* k of two slices; the other two matrices are spare */
                    at += matrix % 2 * 8 + in;
                } else if (FORWARD) {
                    at += swizzle<width>(u * 8 + along, by_k / 8);
                } else {
                    at += swizzle<width>(by_k + in, u + matrix / 2);
                }
                if (FORWARD) {
                    load_matrices(r, w + at * 16);
                } else {
                    load_matrices_transposed(r, w + at * 16);
                }
#pragma unroll
                for (int e = 0; e < (B == 8 ? 2 : 4); e++) right[u + e / 2][e % 2] = r[e];
            }
#pragma unroll
            for (int c = 0; c < N / 16; c++) {
                uint32_t left[4];
                int at = swizzle<N / 8>(k + matrix / 2 * 8 + in, c * 2 + matrix % 2);
                load_matrices_transposed(left, x + at * 16);
#pragma unroll
                for (int u = 0; u < B / 8; u++) {
                    multiply_add(sum[c][u], left, right[u][0], right[u][1]);
                }
            }
        }
    }
};

/* ---------------------------------------------------------------------------------- the kernel */

static __device__ inline void add(float4 &sum, float4 more) {
    sum.x += more.x;
    sum.y += more.y;
    sum.z += more.z;
    sum.w += more.w;
}

/* Lanes `distance` apart trade values: the lower lane keeps `low` and gives `high` for the other's
 * `low`. */
static __device__ inline void trade(bool above, int distance, uint32_t &low, uint32_t &high) {
    const uint32_t other = __shfl_xor_sync(~0u, above ? low : high, distance);
    if (above) {
        low = other;
    } else {
        high = other;
    }
}

/* From two tiles of 16 columns and 8 units, as multiply_add leaves them: of columns g and g + 8 the
 * units 2 t and 2 t + 1. Transposed, a lane has columns 2 t and 2 t + 1 of each 8, of unit g; the
 * four lanes of a unit then trade, so that each has all columns of one 8. */
static __device__ inline void write_pair(bf16 *y, int columns, float4 one, float4 two) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float2 sums[4] = {{one.x, one.y}, {one.z, one.w}, {two.x, two.y}, {two.z, two.w}};
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const __nv_bfloat162 rounded = __floats2bfloat162_rn(sums[i].x, sums[i].y);
        r[i] = transpose_matrix(*(const uint32_t *)&rounded);
    }
    trade(t & 1, 1, r[0], r[1]);
    trade(t & 1, 1, r[2], r[3]);
    trade(t & 2, 2, r[0], r[2]);
    trade(t & 2, 2, r[1], r[3]);
    *(uint4 *)(y + (size_t)g * columns + t * 8) = make_uint4(r[0], r[1], r[2], r[3]);
}

/* Adds up all warps' sums of a thread's share of tile `tile`. */
template <typename S> static __device__ inline float4 add_warps(const char *shared, int tile) {
    float4 total = {};
#pragma unroll
    for (int w = 0; w < S::WARPS; w++) {
        add(total, ((const float4 *)(shared + w * S::RING))[tile * 32 + threadIdx.x % 32]);
    }
    return total;
}

/* ------------------------------------------------------------------- parts of a list, in a cluster
 *
 * Part i finishes every pair of tiles that is i mod `parts`, and is sent what the others have of
 * these. Warps are a multiple of the parts, so that one warp's pairs are all its own or all
 * another's, and none waits before it has sent: two warps are for lists that are whole. */

#if ON_HOPPER
static_assert(MOST_WARPS % MOST_PARTS == 0, "a warp sends or receives");

static __device__ inline int part_of(const few_columns_task &task) {
    return cluster_rank() & ((1 << task.log_parts) - 1);
}

/* The index of a pair of tiles in its part's inbox; the sums of the next part come first. */
static __device__ inline int place_in_inbox(const few_columns_task &task, int pair) {
    return (pair >> task.log_parts) * ((1 << task.log_parts) - 1) * PAIR + threadIdx.x % 32 * 16;
}

template <typename S>
static __device__ inline void open_inbox(const few_columns_task &task, uint32_t barrier) {
    if (threadIdx.x == 0 && task.log_parts) {
        const int others = (1 << task.log_parts) - 1;
        const int pairs = (S::PAIRS - part_of(task) + others) >> task.log_parts;
        barrier_init(barrier, 1);
        barrier_expect(barrier, pairs * others * PAIR);
    }
    cluster_arrive();
}

static __device__ inline void send(const few_columns_task &task, int pair, uint32_t inbox,
                                   uint32_t barrier, float4 one, float4 two) {
    const int others = (1 << task.log_parts) - 1, part = part_of(task), to = pair & others;
    const int at = place_in_inbox(task, pair) + ((part - to - 1) & others) * PAIR;
    const int rank = cluster_rank() - part + to;
    const uint32_t there = cluster_address(inbox + at, rank);
    barrier = cluster_address(barrier, rank);
    cluster_send4(there, one, barrier);
    cluster_send4(there + PAIR / 2, two, barrier);
}

static __device__ inline void receive(const few_columns_task &task, int pair, uint32_t inbox,
                                      uint32_t barrier, float4 &one, float4 &two) {
    const uint32_t at = inbox + place_in_inbox(task, pair);
    cluster_receive(barrier);
    for (int i = 0; i < (1 << task.log_parts) - 1; i++) {
        add(one, shared_load4(at + i * PAIR));
        add(two, shared_load4(at + i * PAIR + PAIR / 2));
    }
}
#endif

/* Adds up the sums and writes the result. */
template <typename S, int N>
static __device__ void finish(const few_columns_arguments &p, const few_columns_task &task,
                              const char *shared) {
    const int warp = threadIdx.x / 32;
#if ON_HOPPER
    const uint32_t inbox = shared_address(shared) + S::BYTES, barrier = inbox + S::INBOX;
    const bool alone = task.log_parts == 0;
    const bool mine = alone || (warp & ((1 << task.log_parts) - 1)) == part_of(task);
    if (!alone) cluster_wait();
#endif
#pragma unroll
    for (int pair = warp; pair < S::PAIRS; pair += S::WARPS) {
        float4 one = add_warps<S>(shared, pair * 2), two = add_warps<S>(shared, pair * 2 + 1);
#if ON_HOPPER
        if (!mine) {
            send(task, pair, inbox, barrier, one, two);
            continue;
        }
        if (!alone) receive(task, pair, inbox, barrier, one, two);
#endif
        const int unit = task.row + pair / (N / 32) * 8, column = pair % (N / 32) * 32;
        write_pair(p.y + (size_t)unit * p.columns + blockIdx.y * N + column, p.columns, one, two);
    }
}

template <int B, int N, int WARPS, int STAGES, int RESIDENT, bool FORWARD>
static __global__ void __launch_bounds__(WARPS * 32, RESIDENT)
    few_columns(const __grid_constant__ few_columns_arguments p) {
    typedef few_columns_shape<B, N, WARPS, STAGES> S;
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const few_columns_task task = p.task[blockIdx.x];
    if (task.log_parts < 0) return;
#if ON_HOPPER
    if (p.cluster > 1) open_inbox<S>(task, shared_address(shared) + S::BYTES + S::INBOX);
#endif
    walker<B, N, WARPS, STAGES, FORWARD> walk(p, task, shared_address(shared) + warp * S::RING);

    /* The first stages lie in the first window of 32 entries. */
    if (p.overlap) {
#pragma unroll
        for (int s = 0; s < S::STAGES; s++) {
            if (walk.begin + s < walk.end) walk.load_weights(walk.begin + s, s);
        }
    }
    walk.prefetch_activations();
    wait_for_earlier();
    let_next_start();
#pragma unroll
    for (int s = 0; s < S::STAGES; s++) {
        if (walk.begin + s < walk.end) {
            if (!p.overlap) walk.load_weights(walk.begin + s, s);
            walk.load_activations(walk.begin + s, s);
        }
        copy_commit();
    }

    float sum[N / 16][B / 8][4] = {};
    for (int i = walk.begin, slot = 0; i < walk.end; i++) {
        const int ahead = i + S::STAGES;
        copy_wait<S::STAGES - 1>();
        __syncwarp();
        walk.multiply(slot, sum);
        __syncwarp();
        if (ahead < walk.end) {
            walk.reach(ahead);
            walk.load_weights(ahead, slot);
            walk.load_activations(ahead, slot);
        }
        copy_commit();
        slot = slot + 1 == S::STAGES ? 0 : slot + 1;
    }

    copy_wait<0>();
    __syncwarp();
    float4 *staged = (float4 *)(shared + warp * S::RING) + lane;
#pragma unroll
    for (int c = 0; c < N / 16; c++) {
#pragma unroll
        for (int u = 0; u < B / 8; u++) {
            const float *of = sum[c][u];
            staged[(u * (N / 16) + c) * 32] = make_float4(of[0], of[1], of[2], of[3]);
        }
    }
    __syncthreads();
    finish<S, N>(p, task, shared);
}

/* ------------------------------------------------------------------------------------ launches */

template <int B, int N, int WARPS, int STAGES, int RESIDENT, bool FORWARD>
static void launch(backend *be, const few_columns_arguments &p, const few_columns_tasks *tasks) {
    typedef few_columns_shape<B, N, WARPS, STAGES> S;
    void (*kernel)(few_columns_arguments) = few_columns<B, N, WARPS, STAGES, RESIDENT, FORWARD>;
    cuda_ok(be,
            cudaFuncSetAttribute((const void *)kernel,
                                 cudaFuncAttributePreferredSharedMemoryCarveout, 100),
            "prefer shared memory");
    cuda_launch_clusters(be, "few_columns", true, tasks->cluster, kernel,
                         dim3(tasks->count, p.columns / N), WARPS * 32,
                         S::BYTES + (tasks->cluster > 1 ? S::INBOX + 8 : 0), p);
}

/* Small rings leave room on a multiprocessor for more thread blocks, of hubs or of the next kernel;
 * with long lists larger rings keep more loads in flight. At 64 columns the sums of four warps take
 * so many registers that the next kernel finds no room, so short lists have two warps. The bounds
 * were measured on an H200 with 12,288 units at densities from 0.5 to 0.01, random and
 * Barabasi-Albert. */
template <int B, bool FORWARD>
static void launch_by_columns(backend *be, const few_columns_arguments &p,
                              const few_columns_tasks *tasks) {
    const int depth = tasks->depth / MOST_WARPS; /* of a warp */
    const bool many = tasks->cluster > 1 || tasks->count > 3 * cuda_of(be)->processors;
    const bool by_64 = p.columns % 64 == 0;
    if (p.columns % 128 == 0) {
        launch<B, 128, 4, 2, 2, FORWARD>(be, p, tasks);
    } else if (p.columns % 96 == 0) {
        launch<B, 96, 4, 2, 3, FORWARD>(be, p, tasks);
    } else if constexpr (B == 8) {
        if (by_64) {
            launch<B, 64, 4, 3, 3, FORWARD>(be, p, tasks);
        } else {
            launch<B, 32, 4, 2, 4, FORWARD>(be, p, tasks);
        }
    } else if constexpr (B == 16) {
        if (by_64) {
            launch<B, 64, 4, 3, 3, FORWARD>(be, p, tasks);
        } else if (depth < 6 * 64) {
            launch<B, 32, 4, 2, 6, FORWARD>(be, p, tasks);
        } else {
            launch<B, 32, 4, 3, 3, FORWARD>(be, p, tasks);
        }
    } else if (by_64) {
        if (tasks->cluster == 1 && depth < 3 * 32) {
            launch<B, 64, 2, 4, 6, FORWARD>(be, p, tasks);
        } else if (many && depth < 6 * 32) {
            launch<B, 64, 4, 2, 4, FORWARD>(be, p, tasks);
        } else {
            launch<B, 64, 4, 2, 3, FORWARD>(be, p, tasks);
        }
    } else if (depth >= 6 * 32) {
        launch<B, 32, 4, 4, 3, FORWARD>(be, p, tasks);
    } else if (depth >= 2 * 32 && depth < 4 * 32 && !many) {
        launch<B, 32, 4, 2, 6, FORWARD>(be, p, tasks);
    } else {
        launch<B, 32, 4, 3, 4, FORWARD>(be, p, tasks);
    }
}

template <bool FORWARD>
static void launch_by_block(backend *be, const device_layout *device,
                            const few_columns_tasks *tasks, const product_call *c) {
    cuda_backend *cuda = cuda_of(be);
    const layout *l = &device->host;
    few_columns_arguments p = {};
    p.w = (const bf16 *)c->left;
    p.x = (const bf16 *)c->right;
    p.y = (bf16 *)c->out;
    p.other = FORWARD ? l->row_column : l->column_row;
    p.block = FORWARD ? NULL : l->column_block;
    p.b = l->in_block;
    p.gates = l->gates;
    p.columns = c->columns;
    p.log_k = log2_of(FORWARD ? p.b : p.b * p.gates);
    p.weights = p.b * p.b * p.gates;
    p.task = tasks->task;
    p.overlap = cuda->hopper && cuda->weights_settled;
    p.cluster = tasks->cluster;
    if (p.b == 8) {
        launch_by_columns<8, FORWARD>(be, p, tasks);
    } else if (p.b == 16) {
        launch_by_columns<16, FORWARD>(be, p, tasks);
    } else {
        launch_by_columns<32, FORWARD>(be, p, tasks);
    }
    cuda->weights_settled = true;
}

void few_columns_run(backend *be, const device_layout *device, const void *plan,
                     const product_call *c) {
    const few_columns_tables *tables = (const few_columns_tables *)plan;
    if (c->op == FPROP) {
        launch_by_block<true>(be, device, &tables->rows, c);
    } else {
        launch_by_block<false>(be, device, &tables->columns, c);
    }
}
