/* The operations of portable_bf16: where the 16-byte chunks of a panel's left and right tile come
 * from, and where sums go. A panel takes its chunks from a part of a block, or of small blocks from
 * several; chunks never straddle a block, as b is a multiple of 8. wgrad puts up to 128 / b blocks
 * of a row side by side, so that one tile of dy serves them all. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_PANELS_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_PANELS_CUH

#include "device/ptx.cuh"
#include "products/portable/product.cuh"

enum {
    PANEL = 32, /* of k */
    STAGES = 4,
    WGRAD_PANEL = 64, /* whole lines of 128 bytes of x and dy, which come from far away */
    WGRAD_STAGES = 3,
    CHUNK = 8, /* bf16 in 16 bytes */
    WARPS = 4,
    THREADS = WARPS * 32,
    TOGETHER = 5 /* thread blocks of a multiprocessor at most */
};

/* Thread blocks of a multiprocessor, by the rows of their tiles. */
static constexpr int blocks_of_processor(int m) {
    return m > 64 ? 2 : m > 32 ? 3 : TOGETHER;
}

/* The panels `begin` to `end` of a tile of rows that has `panels`. */
struct span {
    int tile, begin, end, panels;
};

/* --------------------------------------------------------------------------------- operations
 * An operation is of one tile of rows, after `open`. `aim` looks up, ahead of time, where a panel's
 * chunks lie, `come` computes it; left(i) and right(i) are then the i-th chunks of this thread,
 * whose lines in the tile are as far apart as all threads fill. LEFT_BY_K: chunks run along k, else
 * along the rows; RIGHT_BY_K likewise. A thread computes few addresses for each panel, without a
 * branch: with a choice for each chunk the kernel takes three times as long. */

struct chunk {
    const bf16 *from;
    int bytes; /* 16; 0: zeros */
};

static __device__ inline void store_pair(float *to, float one, float two) {
    *(float2 *)to = make_float2(one, two);
}

static __device__ inline void store_pair(bf16 *to, float one, float two) {
    *(__nv_bfloat162 *)to = __floats2bfloat162_rn(one, two);
}

/* Where a tile's chunks lie: `WIDE` of them in a line. */
template <int WIDE> struct lines {
    static const int STEP = THREADS / WIDE; /* between the lines of a thread's chunks */

    static __device__ int line(int i) {
        return threadIdx.x / WIDE + i * STEP;
    }

    static __device__ int chunk() {
        return threadIdx.x % WIDE;
    }
};

/* fprop (FORWARD) and dgrad: the rows of one node's result; k runs over the blocks in its list.
 * SMALL: a panel has several blocks. */
template <bool FORWARD, bool SMALL, int M, int N> struct sparse_tile {
    static const bool LEFT_BY_K = FORWARD, RIGHT_BY_K = false;
    static const int DEPTH = PANEL, SLOTS = STAGES, BLOCKS = blocks_of_processor(M);
    typedef lines<FORWARD ? PANEL / CHUNK : M / CHUNK> left_lines;
    typedef lines<N / CHUNK> right_lines;

    /* One block of the list, and the step of `right` that its tap reads; -1: none. */
    struct source {
        int block, other, step;
    };

    const product &p;
    int tiles, column0; /* tiles: of a node's rows */
    int node, row0, first, count;
    int k0;
    source all; /* of the whole panel, unless SMALL */
    chunk first_left, first_right;

    __device__ sparse_tile(const product &p_)
        : p(p_), tiles((rows() + M - 1) / M), column0(blockIdx.y * N) {}

    __device__ int rows() const { /* of a node's result */
        return FORWARD ? p.rows : p.b;
    }

    __device__ int depth() const { /* k of a block */
        return FORWARD ? p.b : p.rows;
    }

    /* The number of the block in the list that has this k. */
    __device__ int block_of(int k) const {
        return FORWARD ? k >> p.log_b : block_with(p, k);
    }

    /* The place of k in its block. */
    __device__ int in_block(int k) const {
        return FORWARD ? k & (p.b - 1) : k - block_with(p, k) * p.rows;
    }

    __device__ int panels_of(int entries) const {
        return (entries * p.taps * depth() + PANEL - 1) / PANEL;
    }

    __device__ span open(int tile) {
        node = tile / tiles;
        row0 = tile % tiles * M;
        first = p.start[node];
        const int entries = p.start[node + 1] - first, panels = panels_of(entries);
        count = entries * p.taps;
        return {tile, 0, panels, panels};
    }

    /* The first panel of a tile, counted over all tiles before it. */
    __device__ int panels_before(int tile) const {
        const int i = tile / tiles, from = p.start[i];
        return tiles * panels_of(from) + tile % tiles * panels_of(p.start[i + 1] - from);
    }

    /* The tile with this panel, counted over all tiles: each lane tries a node, then another. */
    __device__ int tile_with(int panel, int nodes) const {
        int low = 0, high = nodes; /* the node is one of low, ..., high - 1 */
        while (high - low > 1) {
            const int step = (high - low + 31) / 32, i = low + (threadIdx.x % 32) * step;
            const bool begins = i < high && tiles * panels_of(p.start[i]) <= panel;
            low += (__popc(__ballot_sync(~0u, begins)) - 1) * step;
            high = min(high, low + step);
        }
        const int from = p.start[low], panels = panels_of(p.start[low + 1] - from);
        return low * tiles + (panel - tiles * panels_of(from)) / panels;
    }

    /* Of the list's blocks, a block's taps one after another, number q. */
    __device__ source look_up(int q) const {
        const int tap = p.taps > 1 ? q % p.taps : 0, entry = first + (p.taps > 1 ? q / p.taps : q);
        source s = {FORWARD ? first * p.taps + q : 0, 0, -1};
        if (q >= count) return s;
        if (!FORWARD) s.block = p.block[entry] * p.taps + tap;
        s.other = p.other[entry];
        s.step = step_read(p, blockIdx.z, tap);
        return s;
    }

    __device__ void aim(int panel) {
        k0 = panel * PANEL;
        if (!SMALL) all = look_up(block_of(k0));
    }

    __device__ chunk left_of(const source &s, int line, int along) const {
        const int row = FORWARD ? line : along, k = in_block(k0 + (FORWARD ? along : line));
        const size_t at = (size_t)s.block * p.rows + (FORWARD ? row0 + row : k);
        return {(const bf16 *)p.left + (at << p.log_b) + (FORWARD ? k : row0 + row),
                s.step >= 0 && row0 + row < rows() ? 16 : 0};
    }

    __device__ chunk right_of(const source &s, int line, int along) const {
        const size_t row = (size_t)s.other * depth() + in_block(k0 + line);
        return {(const bf16 *)p.right + s.step * p.right_step + row * p.columns + column0 + along,
                s.step >= 0 && column0 + along < p.columns ? 16 : 0};
    }

    __device__ void come() {
        if (SMALL) return;
        first_left = left_of(all, left_lines::line(0), left_lines::chunk() * CHUNK);
        first_right = right_of(all, right_lines::line(0), right_lines::chunk() * CHUNK);
    }

    __device__ chunk left(int i) const {
        if (!SMALL) return {first_left.from + (i * left_lines::STEP << p.log_b), first_left.bytes};
        const int line = left_lines::line(i), along = left_lines::chunk() * CHUNK;
        return left_of(look_up(block_of(k0 + (FORWARD ? along : line))), line, along);
    }

    __device__ chunk right(int i) const {
        if (!SMALL)
            return {first_right.from + i * right_lines::STEP * p.columns, first_right.bytes};
        const int line = right_lines::line(i);
        return right_of(look_up(block_of(k0 + line)), line, right_lines::chunk() * CHUNK);
    }

    __device__ bool valid(int row) const {
        return row0 + row < rows();
    }

    __device__ void store(int row, int column, float one, float two) const {
        if (column0 + column >= p.columns) return;
        const size_t at = blockIdx.z * p.out_step +
                          ((size_t)node * rows() + row0 + row) * p.columns + column0 + column;
        if (p.real) {
            store_pair((float *)p.out + at, one, two);
        } else {
            store_pair((bf16 *)p.out + at, one, two);
        }
    }
};

/* Tables: `start` the first block of each tile, `block` each block's output node, `other` its input
 * node. A panel lies within one step, with zeros where columns end before it. A tile is of one
 * tap. */
template <int M, int N> struct wgrad_tile {
    static const bool LEFT_BY_K = true, RIGHT_BY_K = true;
    static const int DEPTH = WGRAD_PANEL, SLOTS = WGRAD_STAGES, BLOCKS = M > 64 ? 2 : 3;
    typedef lines<DEPTH / CHUNK> left_lines, right_lines;
    static const int RIGHT = N / right_lines::STEP; /* chunks of a thread */

    const product &p;
    int each; /* panels of a step */
    int first, count, node, row0;
    int row[RIGHT]; /* of x, that this thread's chunks belong to; -1: none */
    int n, step;    /* of the chunks; -1: there are none */
    const bf16 *left_from, *right_from;

    __device__ wgrad_tile(const product &p_) : p(p_), each((p.columns + DEPTH - 1) / DEPTH) {}

    __device__ span open(int tile) {
        first = p.start[tile];
        count = p.start[tile + 1] - first;
        node = p.block[first];
        row0 = blockIdx.y * M;
        for (int i = 0; i < RIGHT; i++) {
            const int column = right_lines::line(i), q = column >> p.log_b;
            row[i] = q < count ? (p.other[first + q] << p.log_b) + (column & (p.b - 1)) : -1;
        }
        return {tile, 0, p.steps * each, p.steps * each};
    }

    __device__ void aim(int panel) {
        const int t = panel / each;
        n = (panel - t * each) * DEPTH + left_lines::chunk() * CHUNK;
        step = n < p.columns ? step_read(p, t, blockIdx.z) : -1;
        left_from = (const bf16 *)p.left + t * p.left_step + n +
                    ((size_t)node * p.rows + row0 + left_lines::line(0)) * p.columns;
    }

    __device__ void come() {
        right_from = (const bf16 *)p.right + step * p.right_step + n;
    }

    __device__ chunk left(int i) const {
        return {left_from + (size_t)(i * left_lines::STEP) * p.columns,
                step >= 0 && valid(left_lines::line(0)) ? 16 : 0};
    }

    __device__ chunk right(int i) const {
        return {right_from + (size_t)row[i] * p.columns, step >= 0 && row[i] >= 0 ? 16 : 0};
    }

    __device__ bool valid(int line) const {
        return row0 + line < p.rows;
    }

    __device__ void store(int line, int column, float one, float two) const {
        const int q = column >> p.log_b;
        if (q >= count) return;
        const size_t block = (size_t)(first + q) * p.taps + blockIdx.z;
        const size_t at = ((block * p.rows + row0 + line) << p.log_b) + (column & (p.b - 1));
        store_pair((float *)p.out + at, one, two);
    }

    /* A tile is whole. */
    __device__ int panels_before(int) const {
        return 0;
    }

    __device__ int tile_with(int, int) const {
        return 0;
    }
};

#endif
