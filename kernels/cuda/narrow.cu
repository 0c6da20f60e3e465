/* fprop and dgrad of few columns in bf16, on any GPU from sm_80 on, for all block sizes: up to 128
 * of one gate (on Hopper, blocks of 32 and more leave 128 to wide_product), 32 of four.
 *
 *   y' [N columns][units] = sum over k  x' [N][k]  A [k][units],  A = W' for fprop, W for dgrad
 *
 * Floors: weights, x and y once through memory; and what L2 delivers to the multiprocessors, where
 * every block of b x b weights gathers b x N activations: at block 32 and N = 32 as many bytes as
 * the weights, at block 8 or N = 128 four times as many. Arithmetic is a tenth of that.
 *
 * So the tiling keeps loads on their way. A task is a node's list, or a share of a long one; it
 * belongs to a thread block and makes up to 32 units. The list is cut evenly among the warps, and
 * each warp walks its share alone, in stages of a few blocks: a ring of its own in shared memory
 * that it fills by cp.async and empties by ldmatrix and mma.sync, with no barrier but its own. All
 * of the ring is on its way before the first product, which is all there is at low density. Columns
 * are the rows of the matrix product, so that 8 units fill its width and small blocks waste
 * nothing. Warps' sums meet in shared memory at the end, in a fixed order; shares of a list meet in
 * global memory, likewise in order.
 *
 * Products of one step take a few microseconds, of which launching, looking up lists and the first
 * weights from memory are half. On Hopper these overlap with the kernel before: a thread block
 * begins while that one ends, looks up its list and fetches weights, and only then waits for it.
 *
 * On an H200, block 32 and density 0.5, N = 32 is at 96 % of memory's floor; N = 64 and 128 are at
 * 97 and 83 % of L2's measured bandwidth, 9.3 TB/s. To go beyond, rows would have to share
 * activations. */
#include "cuda.h"
#include "ptx.cuh"

#include <stdlib.h>

enum {
    WARPS = 4,
    THREADS = WARPS * 32,
    MOST_UNITS = 32,    /* of a task */
    LEAST_DEPTH = 512,  /* of k, that is worth a task of its own */
    MOST_COUNT = 65535, /* entries of a task */
    MOST_PARTS = 255,   /* tasks that share a list */
    AT_ONCE = 8         /* of whose sums so many are fetched at a time */
};

typedef struct narrow_arguments {
    const bf16 *w, *x;
    bf16 *y;
    const narrow_task *task;
    const int *other, *block; /* the lists; block: NULL in order */
    int b, gates, columns;
    int log_k;   /* of k a block: b, or for dgrad gates b */
    int weights; /* of a block */
    int overlap; /* weights may be read before the kernel before this one ends */
    float *sums; /* of tasks that share a list */
} narrow_arguments;

/* B: units of a task. A stage is DEPTH of k: W [DEPTH / SLICE][B][SLICE], or for dgrad
 * [..][SLICE][B], and x [DEPTH][N]. What comes from one block is SLICE deep. SMALL: a ring that is
 * one stage smaller, see has_small_rings. */
template <int B, int N, bool SMALL> struct narrow_shape {
    static const int DEPTH = B < 32 && N == 32 ? 64 : 32, SLICE = B, SLICES = DEPTH / SLICE;
    static const int MOST = N == 128 ? 2 : N == 64 ? 3 : B == 32 ? 4 : B == 16 ? 3 : 2;
    static const int STAGES = MOST - SMALL;
    static const int W_BYTES = DEPTH * B * 2, X_BYTES = DEPTH * N * 2, STAGE = W_BYTES + X_BYTES;
    static const int TILES = B / 8 * (N / 16), SUMS = TILES * 512; /* of sums: [B / 8][N / 16] */
    static const int FULL = STAGES * STAGE, RING = FULL > SUMS ? FULL : SUMS; /* of a warp */
    static const int BYTES = WARPS * RING;
    static const int RESIDENT = N == 128 ? 2 : B == 8 ? 4 : 3; /* thread blocks a multiprocessor */
};

/* ------------------------------------------------------------------------------------- a share
 * of a list, as a warp walks it. */

template <int B, int N, bool SMALL, bool FORWARD> struct walker {
    typedef narrow_shape<B, N, SMALL> S;
    const narrow_arguments &p;
    const narrow_task &task;
    uint32_t ring;
    int lane, depth, begin, end;      /* stages [begin, end) of the list's `depth` of k */
    int window, other = 0, block = 0; /* a lane's entry: window + lane */

    __device__ walker(const narrow_arguments &p_, const narrow_task &task_, uint32_t ring_)
        : p(p_), task(task_), ring(ring_), lane(threadIdx.x % 32) {
        const int warp = threadIdx.x / 32;
        depth = task.count << p.log_k;
        int stages = (depth + S::DEPTH - 1) / S::DEPTH;
        begin = stages * warp / WARPS;
        end = stages * (warp + 1) / WARPS;
        window = begin * S::DEPTH >> p.log_k;
        look_up();
    }

    __device__ void look_up() {
        int entry = window + lane;
        if (entry >= task.count) return;
        other = __ldg(p.other + task.first + entry);
        block = p.block ? __ldg(p.block + task.first + entry) : task.first + entry;
    }

    /* A short list waits for little but the first activations: have them come into L2. */
    __device__ void prefetch_activations() const {
        const int entry = window + lane, rows = 1 << p.log_k;
        if (end - begin > 2 || entry * rows >= min(end * S::DEPTH, depth)) return;
        prefetch(p.x + (size_t)other * rows * p.columns, rows * p.columns * 2);
    }

    /* Before what follows is asked about stage i. */
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

    __device__ bool is_there(int k) const { /* lists end at whole blocks */
        return S::SLICES == 1 || k < depth;
    }

    /* Lanes take neighbouring chunks of 8: those of a line, then of the next lines. */
    __device__ void load_weights(int i, int slot) const {
        const int width = (FORWARD ? S::SLICE : B) / 8, chunks = B * S::SLICE / 8; /* of a slice */
        const int row = task.row % (FORWARD ? p.gates * p.b : p.b);
        const uint32_t to = ring + slot * S::STAGE;
#pragma unroll
        for (int j = 0; j < S::W_BYTES / 512; j++) {
            const int in = j * 32 % chunks + lane % chunks;
            const int slice = j * 32 / chunks + lane / chunks, line = in / width, c = in % width;
            const int k = i * S::DEPTH + slice * S::SLICE;
            const bf16 *from = p.w + (size_t)of_entry(block, k) * p.weights;
            from += FORWARD ? offset(k) + (row + line) * p.b : (offset(k) + line) * p.b + row;
            const int at = slice * chunks + swizzle<width>(line, c);
            copy_async(to + at * 16, is_there(k) ? from + c * 8 : NULL);
        }
    }

    __device__ void load_activations(int i, int slot) const {
        const int width = N / 8;
        const uint32_t to = ring + slot * S::STAGE + S::W_BYTES;
#pragma unroll
        for (int j = 0; j < S::X_BYTES / 512; j++) {
            const int first = j * 32 / width, line = first + lane / width, c = lane % width;
            const int k = i * S::DEPTH + first / S::SLICE * S::SLICE;
            const int row = (of_entry(other, k) << p.log_k) + offset(k);
            const bf16 *from = p.x + (size_t)row * p.columns + blockIdx.y * N;
            from += line % S::SLICE * p.columns + c * 8;
            copy_async(to + swizzle<width>(line, c) * 16, is_there(k) ? from : NULL);
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
                const int width = (FORWARD ? S::SLICE : B) / 8;
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

/* Of 16 columns and 8 units, as multiply_add leaves them: of columns g and g + 8 the units 2 t and
 * 2 t + 1. */
static __device__ inline void write_tile(bf16 *y, int columns, float4 sums) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    __nv_bfloat162 low = __floats2bfloat162_rn(sums.x, sums.y);
    __nv_bfloat162 high = __floats2bfloat162_rn(sums.z, sums.w);
    y += (size_t)g * columns + t * 2;
    *(uint32_t *)y = transpose_matrix(*(uint32_t *)&low);
    *(uint32_t *)(y + 8) = transpose_matrix(*(uint32_t *)&high);
}

/* What is handed on says itself that it is there: before, all bits are set, which sums never have,
 * not even those that are no number. */
static __device__ inline float4 nothing_yet() {
    const float none = __int_as_float(-1);
    return make_float4(none, none, none, none);
}

static __device__ inline bool is_there(float4 v) {
    return __float_as_int(v.x) != -1 && __float_as_int(v.y) != -1 && __float_as_int(v.z) != -1 &&
           __float_as_int(v.w) != -1;
}

/* A task's sums: handed on by all but the last of a list's tasks, which adds them up. */
template <int B, int N, bool SMALL>
static __device__ void finish(const narrow_arguments &p, const narrow_task &task,
                              const char *staged) {
    typedef narrow_shape<B, N, SMALL> S;
    const int slot0 = task.slot * gridDim.y + blockIdx.y; /* those of a list: gridDim.y apart */
    const int share = (S::TILES + WARPS - 1) / WARPS, first = threadIdx.x / 32 * share;
    const size_t step = (size_t)gridDim.y * B * N / 4;
#pragma unroll
    for (int tile = first; tile < first + share; tile++) {
        if (tile >= S::TILES) break;
        const int at = tile * 32 + threadIdx.x % 32;
        float4 total = {};
#pragma unroll
        for (int w = 0; w < WARPS; w++) add(total, ((const float4 *)(staged + w * S::RING))[at]);
        float4 *slot = (float4 *)(p.sums + (size_t)slot0 * B * N) + at;
        if (task.part + 1 < task.parts) {
            __stcg(slot + task.part * step, total);
            continue;
        }
        for (int part = 0; part + 1 < task.parts; part += AT_ONCE) {
            float4 more[AT_ONCE];
            const int parts = min(task.parts - 1 - part, (int)AT_ONCE);
            for (bool all = false; !all;) {
                all = true;
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) {
                    if (i < parts) more[i] = load_relaxed(slot + (part + i) * step);
                }
#pragma unroll
                for (int i = 0; i < AT_ONCE; i++) all &= i >= parts || is_there(more[i]);
            }
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                if (i >= parts) break;
                add(total, more[i]);
                __stcg(slot + (part + i) * step, nothing_yet());
            }
        }
        const int unit = task.row + tile / (N / 16) * 8, column = tile % (N / 16) * 16;
        write_tile(p.y + (size_t)unit * p.columns + blockIdx.y * N + column, p.columns, total);
    }
}

template <int B, int N, bool SMALL, bool FORWARD>
static __global__ void __launch_bounds__(THREADS, narrow_shape<B, N, SMALL>::RESIDENT)
    narrow_kernel(const __grid_constant__ narrow_arguments p) {
    typedef narrow_shape<B, N, SMALL> S;
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const narrow_task task = p.task[blockIdx.x];
    walker<B, N, SMALL, FORWARD> walk(p, task, shared_address(shared) + warp * S::RING);

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
    finish<B, N, SMALL>(p, task, shared);
}

/* --------------------------------------------------------------------------------------- tasks */

/* The longest first; tasks of a list one after another. */
static int by_count(const void *a, const void *b) {
    const narrow_task *x = (const narrow_task *)a, *y = (const narrow_task *)b;
    if (x->count != y->count) return y->count - x->count;
    if (x->row != y->row) return x->row < y->row ? -1 : 1;
    return x->first - y->first;
}

static int tasks_of_list(int count, int most) {
    return count ? (count + most - 1) / most : 1;
}

/* How many tasks hand their sums on where none has more than `most` entries. */
static int count_handed_on(const int *start, int nodes, int tiles, int most) {
    int handed = 0;
    for (int i = 0; i < nodes; i++) handed += tasks_of_list(start[i + 1] - start[i], most) - 1;
    return handed * tiles;
}

/* Whether rings one stage smaller are faster. They leave room on a multiprocessor for a thread block
 * of the kernel after, or of a hub, which pays where a warp's share is at most a few stages; with
 * more of them the larger ring keeps more on its way. On an H200, 12,288 units in blocks of 32 and
 * 32 columns, at density 0.1, 0.05, 0.03 and 0.01, in us: 10.3, 5.6, 4.3, 2.7, and with the larger
 * rings 9.0, 6.0, 4.5, 2.7; at 64 columns 12.3, 7.6, 5.9, 3.9 and 12.1, 7.8, 6.1, 3.9. */
static bool has_small_rings(long long depth, int tasks) {
    return (double)depth / tasks / WARPS / 32 < 6;
}

/* Of nodes whose results are `tiles` tiles of `units` each; an entry is 2^log_k of k. */
static void build_tasks(backend *be, narrow_tasks *made, const int *start, int nodes, int tiles,
                        int units, int log_k) {
    int longest = 0, most = start[nodes] / (2 * cuda_of(be)->processors) * tiles;
    for (int i = 0; i < nodes; i++) longest = max(longest, start[i + 1] - start[i]);
    most = max(max(most, LEAST_DEPTH >> log_k), (longest + MOST_PARTS - 1) / MOST_PARTS);
    most = min(max(most, 1), MOST_COUNT);
    while (count_handed_on(start, nodes, tiles, most) > HANDED_SLOTS) most *= 2;
    int handed = count_handed_on(start, nodes, tiles, most), count = nodes * tiles + handed, at = 0;
    narrow_task *task = (narrow_task *)calloc((size_t)count, sizeof *task);
    if (!task) abort();
    for (int tile = 0, slot = 0; tile < nodes * tiles; tile++) {
        int first = start[tile / tiles], entries = start[tile / tiles + 1] - first;
        int parts = tasks_of_list(entries, most);
        for (int part = 0; part < parts; part++) {
            int begin = (int)((long long)entries * part / parts);
            int end = (int)((long long)entries * (part + 1) / parts);
            narrow_task next = {first + begin,       tile * units, slot, (uint16_t)(end - begin), 0,
                                (unsigned char)parts};
            task[at++] = next;
        }
        slot += parts - 1;
    }
    qsort(task, (size_t)count, sizeof *task, by_count);
    /* Who waits for others comes last: its thread block begins after theirs. */
    unsigned char *parts = (unsigned char *)calloc((size_t)(nodes * tiles), 1);
    if (!parts) abort();
    for (int i = 0; i < count; i++) task[i].part = parts[task[i].row / units]++;
    made->count = count;
    made->small_rings = has_small_rings(((long long)start[nodes] * tiles) << log_k, count);
    made->task = (narrow_task *)cuda_table(be, task, (size_t)count * sizeof *task);
    free(parts);
    free(task);
}

void narrow_create(backend *be, device_layout *device, const layout *l) {
    int units = min(l->in_block, MOST_UNITS), parts = l->in_block / units;
    build_tasks(be, &device->narrow_rows, l->row_start, l->out_nodes, l->gates * parts, units,
                log2_of(l->in_block));
    if (l->gates == 1 && layout_is_symmetric(l)) {
        device->narrow_columns = device->narrow_rows;
        return;
    }
    build_tasks(be, &device->narrow_columns, l->column_start, l->in_nodes, parts, units,
                log2_of(l->gates * l->in_block));
}

/* ------------------------------------------------------------------------------------ launches */

bool narrow_fits(const backend *be, const layout *l, int columns) {
    const int most = l->gates == 1 ? 128 : 32; /* beyond, tiles are worth sharing */
    return be->precision == BF16 && columns <= most && !layout_is_dense(l);
}

template <int B, int N, bool SMALL, bool FORWARD>
static void launch(backend *be, const narrow_arguments &p, int tasks) {
    void (*kernel)(narrow_arguments) = narrow_kernel<B, N, SMALL, FORWARD>;
    cuda_ok(be,
            cudaFuncSetAttribute((const void *)kernel,
                                 cudaFuncAttributePreferredSharedMemoryCarveout, 100),
            "prefer shared memory");
    cuda_launch(be, "narrow product", true, kernel, dim3(tasks, p.columns / N), THREADS,
                narrow_shape<B, N, SMALL>::BYTES, p);
}

template <int B, bool SMALL, bool FORWARD>
static void launch_by_columns(backend *be, const narrow_arguments &p, int tasks) {
    if (p.columns % 128 == 0) {
        launch<B, 128, false, FORWARD>(be, p, tasks);
    } else if (p.columns % 64 == 0) {
        launch<B, 64, SMALL, FORWARD>(be, p, tasks);
    } else {
        launch<B, 32, SMALL, FORWARD>(be, p, tasks);
    }
}

template <bool FORWARD>
static void narrow_product(backend *be, const device_layout *device, const void *w, const void *x,
                           int columns, void *y) {
    cuda_backend *cuda = cuda_of(be);
    const layout *l = &device->host;
    const narrow_tasks *tasks = FORWARD ? &device->narrow_rows : &device->narrow_columns;
    narrow_arguments p = {};
    p.w = (const bf16 *)w;
    p.x = (const bf16 *)x;
    p.y = (bf16 *)y;
    p.other = FORWARD ? l->row_column : l->column_row;
    p.block = FORWARD ? NULL : l->column_block;
    p.b = l->in_block;
    p.gates = l->gates;
    p.columns = columns;
    p.log_k = log2_of(FORWARD ? p.b : p.b * p.gates);
    p.weights = p.b * p.b * p.gates;
    p.task = tasks->task;
    p.sums = cuda->handed_on;
    p.overlap = cuda->hopper && cuda->weights_settled;
    if (p.b == 8) {
        launch_by_columns<8, false, FORWARD>(be, p, tasks->count);
    } else if (p.b == 16) {
        launch_by_columns<16, false, FORWARD>(be, p, tasks->count);
    } else if (tasks->small_rings) {
        launch_by_columns<32, true, FORWARD>(be, p, tasks->count);
    } else {
        launch_by_columns<32, false, FORWARD>(be, p, tasks->count);
    }
    cuda->weights_settled = true;
}

void narrow_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                  int columns, void *y) {
    narrow_product<true>(be, device, w, x, columns, y);
}

void narrow_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                  int columns, void *dx) {
    narrow_product<false>(be, device, w, dy, columns, dx);
}
