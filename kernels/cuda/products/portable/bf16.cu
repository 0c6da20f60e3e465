/* The three products with a block-sparse W on tensor cores, for any GPU from sm_80 on.
 *
 *   fprop  y_i   = sum over blocks (i, j)  W_ij  x_j       M = gates b rows, K = b a block
 *   dgrad  dx_j  = sum over blocks (i, j)  W_ij' dy_i      M = b rows,       K = gates b a block
 *   wgrad  dW_ij = sum over t              dy_i[t] x_j[t]' M = gates b rows, K = columns a step
 *
 * Floors: 2 blocks gates b^2 columns operations; the blocks' weights, x and y once through memory;
 * and the tiles that every block gathers from L2: b x columns (fprop), gates b x columns (dgrad).
 *
 * All three are one kernel: a thread block makes an M x N tile of the result; it walks K in panels
 * of 64, STAGES - 1 of them in flight by cp.async, and multiplies with mma.sync. An operation says
 * where the 16-byte chunks of the left and right tile of a panel come from, and what to do with the
 * sums. A panel may take its chunks from several blocks (b = 8, 16, 32) or from a part of one (b =
 * 128); chunks never straddle a block, as b is a multiple of 8. wgrad puts up to 128 / b blocks of
 * a row side by side, so that one tile of dy serves them all.
 */
#include "device/ptx.cuh"
#include "products/kernels.h"
#include "products/portable/product.cuh"

enum { PANEL = 64, STAGES = 3, CHUNK = 8 /* bf16 in 16 bytes */ };

/* --------------------------------------------------------------------------------- operations
 * An operation's tile: after seek(k0), left(row, k) is where the left tile's chunk with element
 * (row, k0 + k) comes from, and right(k, column) the right one's; NULL means zeros. LEFT_BY_K:
 * chunks run along k, else along the rows; RIGHT_BY_K likewise. */

static __device__ inline void store_pair(float *to, float one, float two) {
    *(float2 *)to = make_float2(one, two);
}

static __device__ inline void store_pair(bf16 *to, float one, float two) {
    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(one, two);
}

/* Two neighbours in a row of the result, in bf16 or fp32. */
static __device__ inline void store_result(const product &p, size_t at, float one, float two) {
    if (p.real) {
        store_pair((float *)p.out + at, one, two);
    } else {
        store_pair((bf16 *)p.out + at, one, two);
    }
}

/* fprop (FORWARD) and dgrad: the rows of one node's result; k runs over the blocks in its list. */
template <bool FORWARD> struct sparse_tile {
    static const bool LEFT_BY_K = FORWARD, RIGHT_BY_K = false;
    const product &p;
    int first, count, row0, column0, k0;
    size_t node;

    __device__ sparse_tile(const product &p_, int m_tile, int n_tile) : p(p_), k0(0) {
        int tiles = max(rows() / m_tile, 1);
        node = blockIdx.x / tiles;
        row0 = blockIdx.x % tiles * m_tile;
        column0 = blockIdx.y * n_tile;
        first = p.start[node];
        count = (p.start[node + 1] - first) * p.taps;
    }

    /* Of the list's weights, a block's taps one after another, number q: its tap, its entry. */
    __device__ int tap_of(int q) const {
        return p.taps > 1 ? q % p.taps : 0;
    }

    __device__ int entry_of(int q) const {
        return first + (p.taps > 1 ? q / p.taps : q);
    }

    __device__ int rows() const { /* of a node's result */
        return FORWARD ? p.rows : p.b;
    }

    __device__ int log_k() const { /* of a block */
        return FORWARD ? p.log_b : p.log_rows;
    }

    __device__ int within(int k) const { /* its block */
        return (k0 + k) & ((FORWARD ? p.b : p.rows) - 1);
    }

    __device__ int depth() const {
        return count << log_k();
    }

    __device__ void seek(int k) {
        k0 = k;
    }

    __device__ const bf16 *left(int row, int k) const {
        int q = (k0 + k) >> log_k();
        if (q >= count || !valid(row)) return NULL;
        if (FORWARD) {
            const size_t block = (size_t)first * p.taps + q;
            return (const bf16 *)p.left + ((block * p.rows + row0 + row) << p.log_b) + within(k);
        }
        const size_t block = (size_t)p.block[entry_of(q)] * p.taps + tap_of(q);
        size_t at = (block << p.log_rows) + within(k);
        return (const bf16 *)p.left + (at << p.log_b) + row0 + row;
    }

    __device__ const bf16 *right(int k, int column) const {
        int q = (k0 + k) >> log_k();
        if (q >= count || column0 + column >= p.columns) return NULL;
        const int step = step_read(p, blockIdx.z, tap_of(q));
        if (step < 0) return NULL;
        size_t row = ((size_t)p.other[entry_of(q)] << log_k()) + within(k);
        return (const bf16 *)p.right + step * p.right_step + row * p.columns + column0 + column;
    }

    __device__ bool valid(int row) const {
        return row0 + row < rows();
    }

    __device__ void store(int row, int column, float one, float two) const {
        size_t at = (node * rows() + row0 + row) * p.columns + column0 + column;
        if (column0 + column >= p.columns) return;
        store_result(p, blockIdx.z * p.out_step + at, one, two);
    }
};

/* Tables: `start` the first block of each tile, `block` each block's output node, `other` its input
 * node. A panel lies within one step, with zeros where columns end before it. A tile is of one
 * tap. */
struct wgrad_tile {
    static const bool LEFT_BY_K = true, RIGHT_BY_K = true;
    const product &p;
    int first, count, row0, column0, step;
    int panels, columns; /* of a step; of this panel */
    size_t node, left_at, right_at;

    __device__ wgrad_tile(const product &p_, int m_tile, int) : p(p_) {
        first = p.start[blockIdx.x];
        count = p.start[blockIdx.x + 1] - first;
        node = p.block[first];
        row0 = blockIdx.y * m_tile;
        column0 = step = columns = 0;
        panels = (p.columns + PANEL - 1) / PANEL;
        left_at = right_at = 0;
    }

    __device__ int depth() const {
        return p.steps * panels * PANEL;
    }

    __device__ void seek(int k) {
        size_t t = k / PANEL / panels, n = k / PANEL % panels * PANEL;
        columns = p.columns - (int)n;
        left_at = t * p.left_step + (node * p.rows + row0) * p.columns + n;
        step = step_read(p, t, blockIdx.z);
        right_at = step * p.right_step + n;
    }

    __device__ const bf16 *left(int row, int k) const {
        if (row0 + row >= p.rows || k >= columns) return NULL;
        return (const bf16 *)p.left + left_at + (size_t)row * p.columns + k;
    }

    __device__ const bf16 *right(int k, int column) const {
        int q = (column0 + column) >> p.log_b;
        if (q >= count || step < 0 || k >= columns) return NULL;
        size_t row = ((size_t)p.other[first + q] << p.log_b) + ((column0 + column) & (p.b - 1));
        return (const bf16 *)p.right + right_at + row * p.columns + k;
    }

    __device__ bool valid(int row) const {
        return row0 + row < p.rows;
    }

    __device__ void store(int row, int column, float one, float two) const {
        int q = (column0 + column) >> p.log_b;
        if (q >= count) return;
        const size_t block = (size_t)(first + q) * p.taps + blockIdx.z;
        size_t at = ((block * p.rows + row0 + row) << p.log_b) + ((column0 + column) & (p.b - 1));
        store_pair((float *)p.out + at, one, two);
    }
};

/* ------------------------------------------------------------------------------ tensor cores */

template <int M, int N> struct shape {
    static const int THREADS = 2 * N, WARPS = THREADS / 32;
    static const int WARP_ROWS = M >= 64 ? 2 : 1, WARP_COLUMNS = WARPS / WARP_ROWS;
    static const int ROWS = M / WARP_ROWS, COLUMNS = N / WARP_COLUMNS;    /* of a warp */
    static const int TALL = ROWS / 16, WIDE = COLUMNS / 8;                /* mma tiles */
    static const int LEFT = M * PANEL / CHUNK, RIGHT = N * PANEL / CHUNK; /* chunks */
    static const size_t BYTES = (size_t)STAGES * (LEFT + RIGHT) * 16;
};

/* Starts the copies of one panel into a stage's tiles. */
template <int M, int N, typename Tile>
static __device__ inline void load_panel(Tile &tile, int k0, uint32_t left, uint32_t right) {
    typedef shape<M, N> S;
    tile.seek(k0);
    for (int i = threadIdx.x; i < S::LEFT; i += S::THREADS) {
        const int width = Tile::LEFT_BY_K ? PANEL / CHUNK : M / CHUNK;
        int line = i / width, c = i % width;
        const bf16 *from =
            Tile::LEFT_BY_K ? tile.left(line, c * CHUNK) : tile.left(c * CHUNK, line);
        copy_async(left + swizzle<width>(line, c) * 16, from);
    }
    for (int i = threadIdx.x; i < S::RIGHT; i += S::THREADS) {
        const int width = Tile::RIGHT_BY_K ? PANEL / CHUNK : N / CHUNK;
        int line = i / width, c = i % width;
        const bf16 *from =
            Tile::RIGHT_BY_K ? tile.right(c * CHUNK, line) : tile.right(line, c * CHUNK);
        copy_async(right + swizzle<width>(line, c) * 16, from);
    }
}

/* Multiplies one panel that has arrived. Lane i of a warp addresses row i % 8 of matrix i / 8. */
template <int M, int N, typename Tile>
static __device__ inline void
multiply_panel(uint32_t left, uint32_t right, int row0, int column0,
               float (&sum)[shape<M, N>::TALL][shape<M, N>::WIDE][4]) {
    typedef shape<M, N> S;
    int lane = threadIdx.x % 32, in = lane % 8, matrix = lane / 8;
    for (int k = 0; k < PANEL; k += 16) {
        uint32_t a[S::TALL][4], b[S::WIDE / 2][4];
#pragma unroll
        for (int i = 0; i < S::TALL; i++) {
            int row = row0 + i * 16 + matrix % 2 * 8, at = k + matrix / 2 * 8;
            if (Tile::LEFT_BY_K) {
                load_matrices(a[i], left + swizzle<PANEL / CHUNK>(row + in, at / CHUNK) * 16);
            } else {
                load_matrices_transposed(a[i],
                                         left + swizzle<M / CHUNK>(at + in, row / CHUNK) * 16);
            }
        }
#pragma unroll
        for (int j = 0; j < S::WIDE / 2; j++) {
            int column = column0 + j * 16 + matrix / 2 * 8, at = k + matrix % 2 * 8;
            if (Tile::RIGHT_BY_K) {
                load_matrices(b[j], right + swizzle<PANEL / CHUNK>(column + in, at / CHUNK) * 16);
            } else {
                load_matrices_transposed(b[j],
                                         right + swizzle<N / CHUNK>(at + in, column / CHUNK) * 16);
            }
        }
#pragma unroll
        for (int i = 0; i < S::TALL; i++) {
#pragma unroll
            for (int j = 0; j < S::WIDE; j++) {
                multiply_add(sum[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
            }
        }
    }
}

template <int M, int N, typename Tile>
__global__ void __launch_bounds__(shape<M, N>::THREADS)
    portable_bf16(const __grid_constant__ product p) {
    typedef shape<M, N> S;
    extern __shared__ __align__(128) char shared[];
    const uint32_t base = shared_address(shared), stage_bytes = (S::LEFT + S::RIGHT) * 16;
    Tile tile(p, M, N);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int row0 = warp / S::WARP_COLUMNS * S::ROWS;
    const int column0 = warp % S::WARP_COLUMNS * S::COLUMNS;
    const int panels = (tile.depth() + PANEL - 1) / PANEL;
    float sum[S::TALL][S::WIDE][4] = {};

    for (int s = 0; s < STAGES - 1; s++) {
        uint32_t at = base + s * stage_bytes;
        if (s < panels) load_panel<M, N>(tile, s * PANEL, at, at + S::LEFT * 16);
        copy_commit();
    }
    for (int i = 0; i < panels; i++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        int ahead = i + STAGES - 1;
        uint32_t at = base + ahead % STAGES * stage_bytes;
        if (ahead < panels) load_panel<M, N>(tile, ahead * PANEL, at, at + S::LEFT * 16);
        copy_commit();
        at = base + i % STAGES * stage_bytes;
        multiply_panel<M, N, Tile>(at, at + S::LEFT * 16, row0, column0, sum);
    }
#pragma unroll
    for (int i = 0; i < S::TALL; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = row0 + i * 16 + half * 8 + lane / 4;
            if (!tile.valid(row)) continue;
#pragma unroll
            for (int j = 0; j < S::WIDE; j++) {
                tile.store(row, column0 + j * 8 + lane % 4 * 2, sum[i][j][half * 2],
                           sum[i][j][half * 2 + 1]);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------ launches */

template <int M, int N, typename Tile>
static void launch_tensor(backend *be, const product &p, dim3 grid) {
    typedef shape<M, N> S;
    cuda_allow_shared(be, (const void *)portable_bf16<M, N, Tile>, S::BYTES);
    portable_bf16<M, N, Tile><<<grid, S::THREADS, S::BYTES, cuda_of(be)->stream>>>(p);
}

/* `m`: the rows that a node has, tiled by at most 128. */
template <int N, typename Tile>
static void launch_rows(backend *be, const product &p, int m, dim3 grid) {
    if (m >= 128) {
        launch_tensor<128, N, Tile>(be, p, grid);
    } else if (m == 64) {
        launch_tensor<64, N, Tile>(be, p, grid);
    } else if (m == 32) {
        launch_tensor<32, N, Tile>(be, p, grid);
    } else {
        launch_tensor<16, N, Tile>(be, p, grid);
    }
}

template <typename Tile>
static void launch_columns(backend *be, const product &p, int m, int nodes) {
    int tiles = m > 128 ? m / 128 : 1;
    if (p.columns % 128 == 0) {
        launch_rows<128, Tile>(be, p, m, dim3(nodes * tiles, p.columns / 128, p.steps));
    } else {
        launch_rows<64, Tile>(be, p, m, dim3(nodes * tiles, (p.columns + 63) / 64, p.steps));
    }
}

/* Also of fp32. */
void *portable_wgrad_plan(backend *be, device_layout *device, const layout *l) {
    return row_groups_create(be, device, l, WGRAD_COLUMNS);
}

void portable_bf16_run(backend *be, const device_layout *device, const void *plan,
                       const product_call *c) {
    int tiles;
    const product p = product_of(be, device, plan, c, &tiles);
    if (c->op == FPROP) {
        launch_columns<sparse_tile<true>>(be, p, p.rows, tiles);
    } else if (c->op == DGRAD) {
        launch_columns<sparse_tile<false>>(be, p, p.b, tiles);
    } else {
        launch_rows<WGRAD_COLUMNS, wgrad_tile>(be, p, p.rows,
                                               dim3(tiles, max(p.rows / 128, 1), p.taps));
    }
}
