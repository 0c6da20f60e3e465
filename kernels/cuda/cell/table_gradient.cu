/* The gradient of an input table: by unit and byte, the sum over steps and columns where that byte
 * stands.
 *
 *   dtable [row][byte] = sum over positions p with bytes[p] = byte of D [row][p];  p: step, column
 *
 * Floor: D once. All rows share one string of bytes, so it is cut into chunks of positions, and
 * those of each chunk are put in the order of their bytes, once. A thread block has 64 rows and
 * keeps their 256 sums each in shared memory. It turns a chunk of D over, so that a lane holds two
 * rows at one position, while the next chunk is on its way; then its warps share the list: each
 * adds up runs of equal bytes in registers and adds them to the sums. No byte of a chunk belongs to
 * two warps, so the order of every sum is fixed. On Hopper, table_gradient_hopper.cu does bf16. */
#include "cell/cell.h"
#include "device/layout.h"
#include "device/ptx.cuh"

enum {
    WARPS = 8,
    THREADS = WARPS * 32,
    ROWS = 64,        /* of a thread block: two a lane */
    LOADS = 4,        /* of 16 bytes, a thread, row and chunk */
    PITCH = ROWS + 2, /* floats between the sums of two bytes */
    BATCH = 4         /* positions read at once */
};

/* What a kernel needs of a stage. Row r of the table is row source_row(r) of a step's gradient. */
typedef struct table_view {
    const void *gradient;
    const uint8_t *bytes;
    void *dtable, *order;
    int rows, entries, gates, block, units, stride, columns, steps;
} table_view;

/* The positions of a chunk by ascending byte, and where each warp's share begins. */
template <typename T> struct alignas(16) chunk_order {
    static const int PIECE = 16 / sizeof(T), POSITIONS = WARPS * LOADS * PIECE;
    uint16_t entry[POSITIONS]; /* byte << 8 | position in the chunk */
    uint16_t start[WARPS + 1];
};

template <typename T>
static __global__ void order_kernel(const uint8_t *bytes, int positions, chunk_order<T> *orders) {
    const int MOST = chunk_order<T>::POSITIONS, i = threadIdx.x, first = blockIdx.x * MOST;
    const int count = min(positions - first, MOST);
    __shared__ uint16_t key[MOST], sorted[MOST];
    chunk_order<T> &order = orders[blockIdx.x];
    if (i < count) key[i] = (uint16_t)(bytes[first + i] << 8 | i);
    __syncthreads();
    if (i < count) {
        int rank = 0;
        for (int k = 0; k < count; k++) rank += key[k] < key[i];
        sorted[rank] = key[i];
        order.entry[rank] = key[i];
    }
    __syncthreads();
    if (i > WARPS) return;
    int at = count * i / WARPS;
    while (at > 0 && at < count && sorted[at] >> 8 == sorted[at - 1] >> 8) at++;
    order.start[i] = (uint16_t)at;
}

static __device__ inline size_t source_row(const table_view &v, int row) {
    int gate = row / v.entries, unit = row % v.entries * v.stride;
    return (size_t)(unit / v.block * v.gates + gate) * v.block + unit % v.block;
}

/* The values of two rows at one position. */
template <typename T> struct pair_of;

template <> struct pair_of<bf16> {
    uint32_t both;

    __device__ void set(const uint4 &one, const uint4 &two, int i) {
        const uint32_t a[4] = {one.x, one.y, one.z, one.w}, b[4] = {two.x, two.y, two.z, two.w};
        both = __byte_perm(a[i / 2], b[i / 2], i % 2 ? 0x7632 : 0x5410);
    }

    __device__ float2 get() const {
        return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xFFFF0000u));
    }
};

template <> struct pair_of<float> {
    float2 both;

    __device__ void set(const uint4 &one, const uint4 &two, int i) {
        const uint32_t a[4] = {one.x, one.y, one.z, one.w}, b[4] = {two.x, two.y, two.z, two.w};
        both = make_float2(__uint_as_float(a[i]), __uint_as_float(b[i]));
    }

    __device__ float2 get() const {
        return both;
    }
};

/* A chunk that is being fetched: LOADS neighbouring pieces of each of a lane's two rows, and a
 * piece of the order. */
template <typename T> struct chunk_loads {
    typedef chunk_order<T> order_type;
    static const int ORDER_PIECES = sizeof(order_type) / 16;
    uint4 one[LOADS], two[LOADS], order;

    __device__ void fetch(const table_view &v, const T *const (&row)[2], int chunk) {
        const int positions = v.steps * v.columns, warp = threadIdx.x / 32;
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
            int p = chunk * order_type::POSITIONS + (warp * LOADS + j) * order_type::PIECE;
            if (p >= positions) continue;
            size_t at = (size_t)(p / v.columns) * v.gates * v.units * v.columns + p % v.columns;
            one[j] = *(const uint4 *)(row[0] + at);
            two[j] = *(const uint4 *)(row[1] + at);
        }
        const uint4 *orders = (const uint4 *)v.order + (size_t)chunk * ORDER_PIECES;
        if (threadIdx.x < ORDER_PIECES) order = orders[threadIdx.x];
    }

    __device__ void turn_over(pair_of<T> *turned, order_type *to) const {
        const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
        for (int j = 0; j < LOADS; j++) {
#pragma unroll
            for (int i = 0; i < order_type::PIECE; i++) {
                int position = (warp * LOADS + j) * order_type::PIECE + i;
                turned[position * 32 + lane].set(one[j], two[j], i);
            }
        }
        if (threadIdx.x < ORDER_PIECES) ((uint4 *)to)[threadIdx.x] = order;
    }
};

static __device__ inline void add_run(float *sums, int byte, float2 run) {
    float2 *at = (float2 *)(sums + byte * PITCH) + threadIdx.x % 32, sum = *at;
    *at = make_float2(sum.x + run.x, sum.y + run.y);
}

/* Adds a warp's share of a chunk to the sums. */
template <typename T>
static __device__ void add_chunk(const pair_of<T> *turned, const chunk_order<T> &order,
                                 float *sums) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int begin = order.start[warp], end = order.start[warp + 1];
    if (begin == end) return;
    int byte = order.entry[begin] >> 8;
    float2 run = make_float2(0, 0);
    for (int i = begin; i < end; i += BATCH) {
        int entry[BATCH];
        float2 value[BATCH];
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            entry[k] = order.entry[min(i + k, end - 1)];
            value[k] = turned[(entry[k] & 255) * 32 + lane].get();
        }
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            if (i + k >= end) break;
            if (entry[k] >> 8 != byte) {
                add_run(sums, byte, run);
                run = make_float2(0, 0);
                byte = entry[k] >> 8;
            }
            run.x += value[k].x;
            run.y += value[k].y;
        }
    }
    add_run(sums, byte, run);
}

template <typename T> struct table_arrays {
    static const int SUMS = VOCABULARY * PITCH * sizeof(float);
    static const int TURNED = chunk_order<T>::POSITIONS * 32 * sizeof(pair_of<T>);
    static const int BYTES = SUMS + TURNED + sizeof(chunk_order<T>);
};

template <typename T>
static __global__ void __launch_bounds__(THREADS, 2)
    table_gradient(const __grid_constant__ table_view v) {
    typedef table_arrays<T> arrays;
    extern __shared__ __align__(16) char shared[];
    float *sums = (float *)shared; /* [VOCABULARY][PITCH], a row and that 32 below it together */
    pair_of<T> *turned = (pair_of<T> *)(shared + arrays::SUMS); /* [POSITIONS][32] */
    chunk_order<T> *order = (chunk_order<T> *)(shared + arrays::SUMS + arrays::TURNED);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * ROWS;
    const int positions = v.steps * v.columns;
    const int chunks = (positions + chunk_order<T>::POSITIONS - 1) / chunk_order<T>::POSITIONS;
    const T *row[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int r = min(first + half * 32 + lane, v.rows - 1);
        row[half] = (const T *)v.gradient + source_row(v, r) * v.columns;
    }
    chunk_loads<T> next;
    next.fetch(v, row, 0);
    for (int i = threadIdx.x; i < VOCABULARY * PITCH; i += THREADS) sums[i] = 0;
    for (int chunk = 0; chunk < chunks; chunk++) {
        __syncthreads();
        next.turn_over(turned, order);
        __syncthreads();
        if (chunk + 1 < chunks) next.fetch(v, row, chunk + 1);
        add_chunk(turned, *order, sums);
    }
    __syncthreads();
    for (int r = warp; r < ROWS && first + r < v.rows; r += WARPS) {
        T *out = (T *)v.dtable + (size_t)(first + r) * VOCABULARY;
        for (int byte = lane; byte < VOCABULARY; byte += 32) {
            out[byte] = from_float<T>(sums[byte * PITCH + r % 32 * 2 + r / 32]);
        }
    }
}

template <typename T> static void run_table(backend *be, const table_view &v) {
    typedef chunk_order<T> order_type;
    cudaStream_t stream = cuda_of(be)->stream;
    int positions = v.steps * v.columns;
    order_kernel<T>
        <<<(positions + order_type::POSITIONS - 1) / order_type::POSITIONS, order_type::POSITIONS,
           0, stream>>>(v.bytes, positions, (order_type *)v.order);
    cuda_launched(be, "order of bytes");
    cuda_allow_shared(be, (const void *)table_gradient<T>, table_arrays<T>::BYTES);
    table_gradient<T><<<(v.rows + ROWS - 1) / ROWS, THREADS, table_arrays<T>::BYTES, stream>>>(v);
    cuda_launched(be, "table_backward");
}

static_assert(sizeof(chunk_order<bf16>) <= TABLE_WORKSPACE * COLUMN_MULTIPLE,
              "the smallest sequence's order fits");

void cuda_table_backward(backend *be, const cell *c, int s) {
    const stage *g = &c->stage[s];
    const void *gradient = g->table_use == TABLE_MULTIPLY ? g->dentry : g->dpre;
    const bool hopper = table_gradient_hopper_takes(be, g);
    if (cuda_of(be)->explained) {
        cuda_explain(be, hopper ? "gradient of a table: table_gradient_hopper\n"
                                : "gradient of a table: table_gradient\n"
                                  "    not table_gradient_hopper, which needs Hopper, bf16 and "
                                  "blocks of whole strides\n");
    }
    if (hopper) {
        table_gradient_hopper_run(be, c, s, gradient);
        cuda_launched(be, "table_backward");
        return;
    }
    table_view v = {};
    v.gradient = gradient;
    v.bytes = c->bytes;
    v.dtable = g->dtable;
    v.order = c->workspace;
    v.entries = g->units / g->table_stride;
    v.rows = g->gates * v.entries;
    v.gates = g->gates;
    v.block = g->block;
    v.units = g->units;
    v.stride = g->table_stride;
    v.columns = c->columns;
    v.steps = c->steps;
    DISPATCH(be, run_table, be, v);
}
