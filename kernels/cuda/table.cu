/* The gradient of an input table: by unit and byte, the sum over steps and columns where that byte
 * stands.
 *
 *   dtable = D onehot,   D [rows][steps columns], onehot [steps columns][256]
 *
 * Floor: D once, 2 bytes an element. On tensor cores: 512 rows operations a position, of which one
 * in 256 counts, yet five times faster than adding into tables in shared memory, where each
 * addition waits for the last. A thread block makes 128 rows x 256 bytes and walks the positions 64
 * at a time; the one-hot panels in shared memory, two in turn, change by 64 ones cleared and 64
 * set. On Hopper wgmma multiplies a panel while the next is made. Sums are exact products with 1 in
 * fp32, in a fixed order. True fp32 adds into tables. */
#include "cuda.h"
#include "hopper.cuh"
#include "ptx.cuh"

enum {
    ROWS = 128,
    PANEL = 64,
    STAGES = 5,
    AHEAD = STAGES - 2, /* panels on their way; one more is being multiplied */
    HOTS = 2,
    THREADS = 256,
    CHUNK = 8,
    LEFT_BYTES = ROWS * PANEL * 2,
    HOT_BYTES = VOCABULARY * PANEL * 2,
    TILE_BYTES = STAGES * LEFT_BYTES + HOTS * HOT_BYTES + 1024
};

/* What a kernel needs of a stage. Row r of the table is row source(r) of a step's gradient. */
typedef struct table_view {
    const void *gradient;
    const uint8_t *bytes;
    void *dtable;
    int rows, entries, gates, block, hidden, stride, columns, steps;
} table_view;

static __device__ inline size_t source_row(const table_view &v, int row) {
    int gate = row / v.entries, unit = row % v.entries * v.stride;
    return (size_t)(unit / v.block * v.gates + gate) * v.block + unit % v.block;
}

/* Tiles of rows of 64 bf16: 8 chunks of 16 bytes, swizzled so that ldmatrix meets no conflicts. */
static __device__ inline uint32_t chunk_at(int row, int chunk) {
    return (row * 8 + (chunk ^ (row & 7))) * 16;
}

/* How the 128 sums of a thread lie: 16 x 8 tiles, as mma.sync and wgmma leave them, `WIDE` of them
 * beside each other. */
template <bool HOPPER> struct warp_tile {
    static const int WIDE = HOPPER ? 32 : 8;
    int row, column;

    __device__ warp_tile() {
        int warp = threadIdx.x / 32;
        row = HOPPER ? warp * 16 : warp / 4 * 64;
        column = HOPPER ? 0 : warp % 4 * 64;
    }
};

static __device__ inline void multiply_portable(float (&sum)[128], uint32_t tile, uint32_t hot) {
    const warp_tile<false> at;
    const int lane = threadIdx.x % 32, in = lane % 8, matrix = lane / 8;
    for (int k = 0; k < PANEL; k += 16) {
        uint32_t a[4][4], b[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = at.row + i * 16 + matrix % 2 * 8 + in;
            load_matrices(a[i], tile + chunk_at(row, (k + matrix / 2 * 8) / CHUNK));
        }
#pragma unroll
        for (int j = 0; j < 4; j++) {
            int column = at.column + j * 16 + matrix / 2 * 8 + in;
            load_matrices(b[j], hot + chunk_at(column, (k + matrix % 2 * 8) / CHUNK));
        }
#pragma unroll
        for (int i = 0; i < 32; i++) {
            float(&d)[4] = *(float(*)[4]) & sum[i * 4];
            multiply_add(d, a[i / 8], b[i % 8 / 2][i % 2 * 2], b[i % 8 / 2][i % 2 * 2 + 1]);
        }
    }
}

static __device__ inline void multiply_hopper(float (&sum)[128], uint32_t tile, uint32_t hot) {
#if ON_HOPPER
    tile += threadIdx.x / 128 * 64 * PANEL * 2;
    product_fence();
#pragma unroll
    for (int k = 0; k < PANEL; k += 16) {
        warpgroup_multiply<0, 0>(sum, matrix_descriptor(tile + k * 2, SWIZZLE_128, 16, 1024),
                                 matrix_descriptor(hot + k * 2, SWIZZLE_128, 16, 1024));
    }
    product_commit();
#endif
}

template <bool HOPPER>
static __global__ void __launch_bounds__(THREADS, 1)
    one_hot_kernel(const __grid_constant__ table_view v) {
    extern __shared__ char unaligned[];
    char *shared = aligned_tiles(unaligned);
    bf16 *hots = (bf16 *)(shared + STAGES * LEFT_BYTES); /* [HOTS][byte][position], swizzled */
    const uint32_t left = shared_address(shared), hot_address = shared_address(hots);
    const int panels = v.steps * v.columns / PANEL, spans = v.columns / PANEL;
    const bf16 *gradient = (const bf16 *)v.gradient;
    constexpr bool WGMMA = HOPPER && ON_HOPPER;
    float sum[128] = {};

    /* Each thread copies 4 chunks of a panel, always of the same rows. */
    size_t from[4];
    for (int i = 0; i < 4; i++) {
        int row = blockIdx.x * ROWS + threadIdx.x / 8 + i * 32;
        from[i] = (row < v.rows ? source_row(v, row) : 0) * v.columns + threadIdx.x % 8 * CHUNK;
    }
    auto load_panel = [&](int panel) {
        size_t at =
            (size_t)(panel / spans) * v.gates * v.hidden * v.columns + panel % spans * PANEL;
        uint32_t to = left + panel % STAGES * LEFT_BYTES;
        for (int i = 0; i < 4; i++) {
            copy_async(to + chunk_at(threadIdx.x / 8 + i * 32, threadIdx.x % 8),
                       gradient + at + from[i]);
        }
    };

    for (int i = threadIdx.x; i < HOTS * HOT_BYTES / 16; i += THREADS) {
        ((uint4 *)hots)[i] = make_uint4(0, 0, 0, 0);
    }
    for (int s = 0; s < AHEAD; s++) {
        if (s < panels) load_panel(s);
        copy_commit();
    }
    int set = -1, before = -1; /* where this thread's ones of the last panels stand */
    for (int p = 0; p < panels; p++) {
        bf16 *hot = hots + p % HOTS * HOT_BYTES / 2;
        copy_wait<AHEAD - 1>();
        if (WGMMA) product_wait<1>();
        __syncthreads(); /* all have multiplied panel p - 2 */
        if (p + AHEAD < panels) load_panel(p + AHEAD);
        copy_commit();
        if (threadIdx.x < PANEL) {
            int byte = v.bytes[(size_t)p * PANEL + threadIdx.x];
            if (before >= 0) hot[before] = __float2bfloat16_rn(0);
            before = set;
            set = chunk_at(byte, threadIdx.x / CHUNK) / 2 + threadIdx.x % CHUNK;
            hot[set] = __float2bfloat16_rn(1);
        }
        if (WGMMA) shared_fence();
        __syncthreads();
        uint32_t tile = left + p % STAGES * LEFT_BYTES;
        if (WGMMA) {
            multiply_hopper(sum, tile, hot_address + p % HOTS * HOT_BYTES);
        } else {
            multiply_portable(sum, tile, hot_address + p % HOTS * HOT_BYTES);
        }
    }
    if (WGMMA) product_wait<0>();
    const warp_tile<HOPPER> at;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 32; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = blockIdx.x * ROWS + at.row + i / at.WIDE * 16 + half * 8 + lane / 4;
            int column = at.column + i % at.WIDE * 8 + lane % 4 * 2;
            if (row >= v.rows) continue;
            *(__nv_bfloat162 *)((bf16 *)v.dtable + (size_t)row * VOCABULARY + column) =
                __floats2bfloat162_rn(sum[i * 4 + half * 2], sum[i * 4 + half * 2 + 1]);
        }
    }
}

/* True fp32: a lane keeps one row's 256 sums in shared memory and adds its row's values one after
 * another; no two lanes share a sum, and a warp's lanes hit different banks. */

enum { PLAIN_WARPS = 4, PLAIN_VEC = 4, PLAIN_BYTES = PLAIN_WARPS * VOCABULARY * 32 * 4 };

static __global__ void plain_kernel(const __grid_constant__ table_view v) {
    extern __shared__ __align__(16) float sums[]; /* [PLAIN_WARPS][VOCABULARY][32] */
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float *mine = sums + warp * VOCABULARY * 32 + lane;
    int row = (blockIdx.x * PLAIN_WARPS + warp) * 32 + lane;
    for (int byte = 0; byte < VOCABULARY; byte++) mine[byte * 32] = 0;
    if (row >= v.rows) return;
    size_t from = source_row(v, row);
    for (int t = 0; t < v.steps; t++) {
        const float *in =
            (const float *)v.gradient + ((size_t)t * v.gates * v.hidden + from) * v.columns;
        const uint8_t *bytes = v.bytes + (size_t)t * v.columns;
        for (int n = 0; n < v.columns; n += PLAIN_VEC) {
            float4 values = *(const float4 *)(in + n);
            uchar4 at = *(const uchar4 *)(bytes + n);
            mine[at.x * 32] += values.x;
            mine[at.y * 32] += values.y;
            mine[at.z * 32] += values.z;
            mine[at.w * 32] += values.w;
        }
    }
    float *out = (float *)v.dtable + (size_t)row * VOCABULARY;
    for (int byte = 0; byte < VOCABULARY; byte++) out[byte] = mine[byte * 32];
}

void cuda_table_backward(backend *be, const cell *c, int s) {
    const stage *g = &c->stage[s];
    cudaStream_t stream = cuda_of(be)->stream;
    table_view v = {};
    v.gradient = g->table_use == TABLE_MULTIPLY ? g->dentry : g->dpre;
    v.bytes = c->bytes;
    v.dtable = g->dtable;
    v.entries = c->hidden / g->table_stride;
    v.rows = g->gates * v.entries;
    v.gates = g->gates;
    v.block = g->block;
    v.hidden = c->hidden;
    v.stride = g->table_stride;
    v.columns = c->columns;
    v.steps = c->steps;
    bool tensor = be->precision == BF16;
    int bytes = tensor ? (int)TILE_BYTES : (int)PLAIN_BYTES;
    bool hopper = cuda_of(be)->hopper;
    const void *kernel = !tensor  ? (const void *)plain_kernel
                         : hopper ? (const void *)one_hot_kernel<true>
                                  : (const void *)one_hot_kernel<false>;
    cuda_allow_shared(be, kernel, bytes);
    int tiles = (v.rows + ROWS - 1) / ROWS;
    if (tensor && hopper) {
        one_hot_kernel<true><<<tiles, THREADS, bytes, stream>>>(v);
    } else if (tensor) {
        one_hot_kernel<false><<<tiles, THREADS, bytes, stream>>>(v);
    } else {
        int rows = PLAIN_WARPS * 32;
        plain_kernel<<<(v.rows + rows - 1) / rows, rows, bytes, stream>>>(v);
    }
    cuda_launched(be, "table_backward");
}
