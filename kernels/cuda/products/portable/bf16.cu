/* The three products with a block-sparse W on tensor cores, for any GPU from sm_80 on.
 *
 *   fprop  y_i   = sum over blocks (i, j)  W_ij  x_j       M = gates b rows, K = b a block
 *   dgrad  dx_j  = sum over blocks (i, j)  W_ij' dy_i      M = b rows,       K = gates b a block
 *   wgrad  dW_ij = sum over t              dy_i[t] x_j[t]' M = gates b rows, K = columns a step
 *
 * Floors: 2 blocks gates b^2 columns operations; the blocks' weights, x and y once through memory;
 * and the tiles that every block gathers from L2: b x columns (fprop), gates b x columns (dgrad).
 *
 * All three are one kernel: four warps make an M x N tile of the result; they walk K in panels, of
 * which all but one of an operation's SLOTS are in flight by cp.async, and multiply with mma.sync.
 * An operation (panels.cuh) says where a panel comes from, and what to do with the sums.
 *
 * Where there are few tiles, as in a recurrence, thread blocks take even parts of all panels of
 * fprop and dgrad. Tiles are numbered, and a thread block goes through its own from the last one to
 * the first. So it begins with the tile that it has not to the end, whose sums it passes on, and
 * ends with the one whose other sums come from thread blocks before it, which have long passed them
 * on. It waits only for these, and the GPU starts thread blocks in the order of their numbers, so
 * no two need to run at once. */
#include "device/waits.cuh"
#include "products/kernels.h"
#include "products/portable/panels.cuh"

enum { PASSED = 2 * 128 * 128 /* floats that thread blocks of a multiprocessor pass on */ };

/* How the panels of fprop and dgrad are cut. `parts`: of the panels of each tile of columns; 0: a
 * thread block makes one whole tile. */
typedef struct cut {
    int parts, panels;
    float *sums;     /* [thread blocks][M N] that they pass on */
    uint32_t *flags; /* [thread blocks]: whether they are there; 0 before and after a launch */
    uint32_t *stuck;
} cut;

/* ------------------------------------------------------------------------------ tensor cores */

template <int M, int N> struct shape {
    static const int WARP_ROWS = M >= 64 ? 2 : 1, WARP_COLUMNS = WARPS / WARP_ROWS;
    static const int ROWS = M / WARP_ROWS, COLUMNS = N / WARP_COLUMNS; /* of a warp */
    static const int TALL = ROWS / 16, WIDE = COLUMNS / 8;             /* mma tiles */
    static_assert(blocks_of_processor(M) * M * N <= PASSED, "there is room");
};

/* A panel of an operation in shared memory: chunks, and bytes. */
template <int M, int N, typename Tile> struct panel_shape {
    static const int LEFT = M * Tile::DEPTH / CHUNK, RIGHT = N * Tile::DEPTH / CHUNK;
    static const int STAGE = (LEFT + RIGHT) * 16;
};

template <int M, int N> using sums = float[shape<M, N>::TALL][shape<M, N>::WIDE][4];

/* Starts the copies of a thread's chunks into a tile with `WIDE` chunks in a line. Its lines are
 * apart by a multiple of 8, so they are permuted alike. */
template <int CHUNKS, int WIDE, typename From>
static __device__ inline void load_tile(uint32_t to, From from) {
    typedef lines<WIDE> L;
    static_assert(L::STEP % 8 == 0, "the permutation repeats after 8 lines");
    if (CHUNKS < THREADS && threadIdx.x >= CHUNKS) return;
    to += swizzle<WIDE>(L::line(0), L::chunk()) * 16;
#pragma unroll
    for (int i = 0; i < (CHUNKS + THREADS - 1) / THREADS; i++) {
        const chunk c = from(i);
        copy_async_part(to + i * L::STEP * WIDE * 16, c.from, c.bytes);
    }
}

/* The panel that was aimed at. */
template <int M, int N, typename Tile>
static __device__ inline void load_panel(Tile &tile, uint32_t to) {
    typedef panel_shape<M, N, Tile> S;
    tile.come();
    load_tile<S::LEFT, (Tile::LEFT_BY_K ? Tile::DEPTH : M) / CHUNK>(
        to, [&](int i) { return tile.left(i); });
    load_tile<S::RIGHT, (Tile::RIGHT_BY_K ? Tile::DEPTH : N) / CHUNK>(
        to + S::LEFT * 16, [&](int i) { return tile.right(i); });
}

/* What a lane gives to ldmatrix for the 16 x 16 parts of a warp's share of a tile: COUNT of them
 * along its EXTENT rows or columns, DEPTH / 16 along k. The permutation repeats after 8 lines, so
 * one place serves all parts that lie in one direction. */
template <bool BY_K, int DEPTH, int EXTENT, int COUNT> struct parts_of_tile {
    static const int KEPT = BY_K ? DEPTH / 16 : COUNT;
    uint32_t at[KEPT];

    /* `first`: of the share; `along`, `k`: of the 8 x 8 matrix that the lane addresses a row of. */
    __device__ parts_of_tile(uint32_t tile, int first, int along, int k) {
        const int in = threadIdx.x % 8;
        for (int i = 0; i < KEPT; i++) {
            const int chunk =
                BY_K ? swizzle<DEPTH / CHUNK>(first + along + in, i * 2 + k / CHUNK)
                     : swizzle<EXTENT / CHUNK>(k + in, (first + along) / CHUNK + i * 2);
            at[i] = tile + chunk * 16;
        }
    }

    __device__ void load(uint32_t (&r)[4], int i, int k, uint32_t stage) const {
        if (BY_K) {
            load_matrices(r, at[k] + stage + i * 16 * DEPTH * (int)sizeof(bf16));
        } else {
            load_matrices_transposed(r, at[i] + stage + k * 16 * EXTENT * (int)sizeof(bf16));
        }
    }
};

/* A warp's share of a tile. */
template <int M, int N, typename Tile> struct share {
    typedef shape<M, N> S;
    parts_of_tile<Tile::LEFT_BY_K, Tile::DEPTH, M, S::TALL> left;
    parts_of_tile<Tile::RIGHT_BY_K, Tile::DEPTH, N, S::WIDE / 2> right;

    /* Lane i addresses row i % 8 of matrix i / 8. */
    __device__ share(uint32_t base, int row0, int column0)
        : left(base, row0, threadIdx.x / 8 % 2 * 8, threadIdx.x % 32 / 16 * 8),
          right(base + panel_shape<M, N, Tile>::LEFT * 16, column0, threadIdx.x % 32 / 16 * 8,
                threadIdx.x / 8 % 2 * 8) {}

    /* Multiplies one panel that has arrived, `stage` bytes from the first one; a part's operands
     * are loaded while the part before is multiplied. */
    __device__ void multiply(uint32_t stage, sums<M, N> &sum) const {
        const int PARTS = Tile::DEPTH / 16;
        uint32_t a[2][S::TALL][4], b[2][S::WIDE / 2][4];
#pragma unroll
        for (int k = -1; k < PARTS; k++) {
            if (k + 1 < PARTS) {
#pragma unroll
                for (int i = 0; i < S::TALL; i++) left.load(a[(k + 1) % 2][i], i, k + 1, stage);
#pragma unroll
                for (int j = 0; j < S::WIDE / 2; j++)
                    right.load(b[(k + 1) % 2][j], j, k + 1, stage);
            }
#pragma unroll
            for (int i = 0; k >= 0 && i < S::TALL; i++) {
#pragma unroll
                for (int j = 0; j < S::WIDE; j++) {
                    const uint32_t *pair = &b[k % 2][j / 2][j % 2 * 2];
                    multiply_add(sum[i][j], a[k % 2][i], pair[0], pair[1]);
                }
            }
        }
    }
};

/* ------------------------------------------------------------------------------------- parts */

/* The first panel of a part, counted over all tiles. */
static __device__ inline int first_panel(const cut &c, int part) {
    return (int)((long long)c.panels * part / c.parts);
}

/* A tile's sums as this thread has them, four by four. */
template <int M, int N>
static __device__ inline float4 *place_of_sums(const cut &c, int part, int number) {
    const size_t block = (size_t)blockIdx.y * c.parts + part;
    return (float4 *)(c.sums + block * (M * N)) + number * THREADS + threadIdx.x;
}

template <int M, int N> static __device__ void pass_on(const cut &c, const sums<M, N> &sum) {
    typedef shape<M, N> S;
#pragma unroll
    for (int i = 0; i < S::TALL * S::WIDE; i++) {
        const float *s = sum[i / S::WIDE][i % S::WIDE];
        *place_of_sums<M, N>(c, blockIdx.x, i) = make_float4(s[0], s[1], s[2], s[3]);
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        store_flag(&c.flags[blockIdx.y * c.parts + blockIdx.x], 1);
    }
}

/* Adds what the parts before this one have of a tile that begins with panel `begin`. They come by
 * way of shared memory, which no panel needs any more, as registers for all at once are lacking;
 * each thread reads what it copied itself. */
template <int M, int N>
static __device__ void add_others(const cut &c, int begin, uint32_t base, float4 *shared,
                                  sums<M, N> &sum) {
    typedef shape<M, N> S;
    const int part = blockIdx.x;
    int others = 1;
    while (first_panel(c, part - others) > begin) others++;
    for (int i = 1 + threadIdx.x; i <= others; i += THREADS) {
        uint32_t *flag = &c.flags[blockIdx.y * c.parts + part - i];
        patience polls;
        while (!load_flag(flag)) polls.lose(c.stuck);
        *flag = 0; /* nobody else reads it */
    }
    __syncthreads();
    for (int other = 1; other <= others; other++) {
#pragma unroll
        for (int i = 0; i < S::TALL * S::WIDE; i++) {
            copy_async_whole(base + (i * THREADS + threadIdx.x) * 16,
                             place_of_sums<M, N>(c, part - other, i));
        }
        copy_commit();
        copy_wait<0>();
#pragma unroll
        for (int i = 0; i < S::TALL * S::WIDE; i++) {
            const float4 s = shared[i * THREADS + threadIdx.x];
            float(&to)[4] = sum[i / S::WIDE][i % S::WIDE];
            to[0] += s.x, to[1] += s.y, to[2] += s.z, to[3] += s.w;
        }
    }
}

/* ------------------------------------------------------------------------------------ kernel */

template <int M, int N> static __device__ inline void clear(sums<M, N> &sum) {
#pragma unroll
    for (int i = 0; i < shape<M, N>::TALL; i++) {
#pragma unroll
        for (int j = 0; j < shape<M, N>::WIDE; j++) {
            sum[i][j][0] = sum[i][j][1] = sum[i][j][2] = sum[i][j][3] = 0;
        }
    }
}

template <int M, int N, typename Tile>
static __device__ inline void store_tile(const Tile &tile, int row0, int column0,
                                         const sums<M, N> &sum) {
    typedef shape<M, N> S;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::TALL; i++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int row = row0 + i * 16 + half * 8 + lane / 4;
            if (!tile.valid(row)) continue;
#pragma unroll
            for (int j = 0; j < S::WIDE; j++) {
                tile.store(row, column0 + j * 8 + lane % 4 * 2, sum[i][j][half * 2],
                           sum[i][j][half * 2 + 1]);
            }
        }
    }
}

/* What a thread block works on, span by span, from the last to the first. */
template <typename Tile> struct walk {
    Tile tile;
    span at;
    int first, before; /* of all panels: its own first one, and those of tiles before this one */

    __device__ walk(const product &p, const cut &c, int nodes) : tile(p), first(0), before(0) {
        if (!c.parts) {
            at = tile.open(blockIdx.x);
            return;
        }
        first = first_panel(c, blockIdx.x);
        const int end = first_panel(c, blockIdx.x + 1), number = tile.tile_with(end - 1, nodes);
        before = tile.panels_before(number);
        at = tile.open(number);
        at.begin = max(first - before, 0);
        at.end = end - before;
    }

    /* Goes on to the next span; there is one. */
    __device__ void next() {
        at = tile.open(at.tile - 1);
        before -= at.panels;
        at.begin = max(first - before, 0);
    }

    __device__ bool is_last() const {
        return before <= first;
    }
};

template <int M, int N, typename Tile>
__global__ void __launch_bounds__(THREADS, Tile::BLOCKS)
    portable_bf16(const __grid_constant__ product p, const __grid_constant__ cut c, int nodes) {
    typedef shape<M, N> S;
    typedef panel_shape<M, N, Tile> P;
    const int SLOTS = Tile::SLOTS;
    static_assert(M * N * (int)sizeof(float) <= P::STAGE * SLOTS, "others' sums have room");
    extern __shared__ __align__(128) char shared[];
    const uint32_t base = shared_address(shared);
    const int warp = threadIdx.x / 32;
    const int row0 = warp / S::WARP_COLUMNS * S::ROWS;
    const int column0 = warp % S::WARP_COLUMNS * S::COLUMNS;
    sums<M, N> sum;
    clear<M, N>(sum);
    const share<M, N, Tile> mine(base, row0, column0);

    walk<Tile> load(p, c, nodes); /* where copies are */
    walk<Tile> make = load;       /* and products */
    int panel = load.at.begin;
    bool more = panel < load.at.end;
    if (more) load.tile.aim(panel);
    wait_for_earlier();
    const auto load_next = [&](int stage) {
        if (more) {
            load_panel<M, N>(load.tile, base + stage * P::STAGE);
            if (++panel == load.at.end) {
                more = !load.is_last();
                if (more) {
                    load.next();
                    panel = load.at.begin;
                }
            }
            if (more) load.tile.aim(panel);
        }
        copy_commit();
    };
    for (int s = 0; s < SLOTS - 1; s++) load_next(s);
    for (int i = 0;;) {
        for (int k = make.at.begin; k < make.at.end; k++, i++) {
            copy_wait<SLOTS - 2>();
            __syncthreads();
            load_next((i + SLOTS - 1) % SLOTS);
            mine.multiply(i % SLOTS * P::STAGE, sum);
        }
        const bool last = make.is_last();
        if (last) let_next_start();
        if (make.at.end < make.at.panels) {
            pass_on<M, N>(c, sum);
        } else {
            if (make.at.begin) add_others<M, N>(c, make.before, base, (float4 *)shared, sum);
            store_tile<M, N>(make.tile, row0, column0, sum);
        }
        if (last) break;
        make.next();
        clear<M, N>(sum);
    }
}

/* ------------------------------------------------------------------------------------ launches */

/* Also of fp32. */
void *portable_wgrad_plan(planner *gpu, const layout *l) {
    return row_groups_plan(gpu, l, WGRAD_COLUMNS);
}

static bool has_empty_list(const int *start, int nodes) {
    for (int i = 0; i < nodes; i++) {
        if (start[i] == start[i + 1]) return true;
    }
    return false;
}

/* Whether the panels of fprop and of dgrad may be cut, and where parts of sums go. */
typedef struct cuts {
    bool rows, columns;
    uint32_t *stuck;
} cuts;

void *portable_bf16_plan(planner *gpu, const layout *l) {
    backend *be = ((cuda_planner *)gpu)->be;
    cuda_backend *cuda = cuda_of(be);
    const size_t flags = (size_t)cuda->processors * TOGETHER * sizeof *cuda->part_flags;
    if (!cuda->part_flags) {
        cuda_ok(be, cudaMalloc(&cuda->part_sums, (size_t)cuda->processors * PASSED * sizeof(float)),
                "memory") &&
            cuda_ok(be, cudaMalloc(&cuda->part_flags, flags), "memory") &&
            cuda_ok(be, cudaMemsetAsync(cuda->part_flags, 0, flags, cuda->stream), "memory");
    }
    cuts *made = (cuts *)gpu->host(gpu, sizeof *made);
    made->rows = !l->taps && l->in_block >= PANEL && !has_empty_list(l->row_start, l->out_nodes);
    made->columns = !l->taps && l->gates * l->in_block % PANEL == 0 &&
                    !has_empty_list(l->column_start, l->in_nodes);
    made->stuck = cuda_stuck_word(be, "portable_bf16");
    return made;
}

/* Few tiles are cut, so that all multiprocessors have as much to do. */
template <int M, int N>
static cut cut_of(backend *be, const device_layout *device, const cuts *plan, const product_call *c,
                  int tiles, int column_tiles) {
    const layout *l = &device->host;
    const int slots = blocks_of_processor(M) * cuda_of(be)->processors,
              parts = slots / column_tiles;
    const long long depth =
        (long long)l->blocks * l->in_block *
        (c->op == FPROP ? max(l->gates * l->in_block / M, 1) : l->gates * max(l->in_block / M, 1));
    const bool may = c->op == FPROP ? plan->rows : plan->columns;
    cut made = {};
    if (!may || c->steps > 1 || c->type != OPERAND || !parts) return made;
    if (tiles * column_tiles >= 8 * slots || depth / PANEL > 1 << 30) return made;
    made.panels = (int)(depth / PANEL);
    made.parts = min(parts, made.panels);
    made.sums = cuda_of(be)->part_sums;
    made.flags = cuda_of(be)->part_flags;
    made.stuck = plan->stuck;
    return made;
}

template <int M, int N, typename Tile>
static void launch_tensor(backend *be, const product &p, const cut &c, int nodes, dim3 grid) {
    const size_t shared = (size_t)panel_shape<M, N, Tile>::STAGE * Tile::SLOTS;
    cuda_launch(be, "portable_bf16", true, portable_bf16<M, N, Tile>, grid, THREADS, shared, p, c,
                nodes);
}

template <bool FORWARD, bool SMALL, int M, int N>
static void launch_sparse(backend *be, const device_layout *device, const cuts *plan,
                          const product_call *c) {
    int nodes;
    const product p = product_of(be, device, NULL, c, &nodes);
    const int tiles = nodes * (((FORWARD ? p.rows : p.b) + M - 1) / M);
    const int column_tiles = (p.columns + N - 1) / N;
    const cut made = cut_of<M, N>(be, device, plan, c, tiles, column_tiles);
    const dim3 grid(made.parts ? made.parts : tiles, column_tiles, p.steps);
    launch_tensor<M, N, sparse_tile<FORWARD, SMALL, M, N>>(be, p, made, nodes, grid);
}

template <int M, int N>
static void launch_wgrad(backend *be, const device_layout *device, const void *plan,
                         const product_call *c) {
    int tiles;
    const product p = product_of(be, device, plan, c, &tiles);
    const dim3 grid(tiles, (p.rows + M - 1) / M, p.taps);
    launch_tensor<M, N, wgrad_tile<M, N>>(be, p, cut{}, tiles, grid);
}

/* Small blocks, of which a panel has several, make tiles of few rows. */
template <int M, int N>
static void launch(backend *be, const device_layout *device, const void *plan,
                   const product_call *c) {
    const layout *l = &device->host;
    const cuts *cut = (const cuts *)plan;
    const bool small = l->in_block * (c->op == DGRAD ? l->gates : 1) % PANEL != 0;
    if (c->op == WGRAD) {
        if constexpr (N == WGRAD_COLUMNS) launch_wgrad<M, N>(be, device, plan, c);
    } else if (c->op == FPROP && small) {
        if constexpr (M <= 64) launch_sparse<true, true, M, N>(be, device, cut, c);
    } else if (c->op == FPROP) {
        if constexpr (M >= 32) launch_sparse<true, false, M, N>(be, device, cut, c);
    } else if (small) {
        if constexpr (M == 16) launch_sparse<false, true, M, N>(be, device, cut, c);
    } else {
        launch_sparse<false, false, M, N>(be, device, cut, c);
    }
}

/* Tiles share a node's rows, at most 128 each; they have 128 columns, of which half would be left
 * where there are fewer than 65. */
template <int M>
static void launch_columns(backend *be, const device_layout *device, const void *plan,
                           const product_call *c) {
    if (c->op == WGRAD || c->columns > 64) {
        launch<M, 128>(be, device, plan, c);
    } else {
        launch<M, 64>(be, device, plan, c);
    }
}

void portable_bf16_run(backend *be, const device_layout *device, const void *plan,
                       const product_call *c) {
    const int rows = device->host.in_block * (c->op == DGRAD ? 1 : device->host.gates);
    if (rows % 128 == 0) {
        launch_columns<128>(be, device, plan, c);
    } else if (rows % 64 == 0) {
        launch_columns<64>(be, device, plan, c);
    } else if (rows % 32 == 0) {
        launch_columns<32>(be, device, plan, c);
    } else {
        launch_columns<16>(be, device, plan, c);
    }
}
