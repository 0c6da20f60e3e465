/* A cell with hubs and coupled gates by steps, where hubs.cu does not take it: more hubs, cells or
 * columns than its thread blocks have room for, or too few cells for enough of them. A step is
 *
 *   forward    parts of v = V h, over slices of the cells
 *              m = norm(v) and the table's entries, by the owner of a column, which adds them up
 *              z = W m, and from it gates, c and h
 *   backward   dz from dh and V' dv
 *              parts of dm = W' dz, over slices of the cells' gates
 *              dv, by the owner of a column
 *
 * There are few hubs, so these products stream weights once for every span of 128 columns, and are
 * one pipeline: tiles of weights and of activations come by TMA, and two warpgroups with 64 columns
 * each multiply them. Forward, gates are an epilogue, as in hubs.cu, and keep what backward reads
 * in the order of their threads. A kernel's first weights are on their way before the one before it
 * ends. V' dv is cuBLAS's: with so few warps backward's gates took longer as its epilogue than both
 * do apart, and this pipeline for it alone is no faster.
 *
 * Floor: a step of 100 M reads and writes 220 MB forward and 240 backward. What it takes, and what
 * did not help: docs/kernels/cell.md. */
#include "cell/hubs.h"
#include "cell/hubs_gates.cuh"

enum {
    SPAN = MOST_COLUMNS, /* columns of a thread block */
    MOST_SPANS = 4,
    TILE_HUBS = 128,  /* of parts */
    MOST_CELLS = 512, /* of a thread block, whose biases are in shared memory */
    MOST_STAGES = 8,  /* of a ring */
    MOST_HUBS = 4096, /* the owner of a column has four a thread */
    FEW_HUBS = 768,   /* whose weights a thread block of hubs.cu keeps, if that takes them */
    OWNERS = 1024,    /* threads of the owner of a column */
    TURN_HUBS = 8     /* that a warp turns at once */
};

typedef struct step_arguments {
    hub_arguments of;   /* x: activations; w: weights, or V */
    int t, chunks;      /* chunks: of the sum's depth */
    int spans;          /* of columns */
    int pieces, blocks; /* of gates: a thread block has one in every `blocks` pieces */
    int tiles, splits;  /* of.parts [splits][columns][hubs], fp32: tiles of hubs */
    bool asked;         /* backward: dx asks something of h */
    float4 *kept_dc;
    float *more_biases;
    const bf16 *turned[2]; /* [columns][hubs], copied to ... */
    bf16 *kept[2];         /* ... [hubs][columns]; NULL: not */
} step_arguments;

/* ------------------------------------------------------------------------------------ products */

enum product_kind { PARTS, PARTS_BACK, GATES_OF };

/* SIZE: hubs of a tile of parts, or cells of a piece of gates. */
template <product_kind KIND_, int SIZE_> struct step_shape {
    static const product_kind KIND = KIND_;
    static const int SIZE = SIZE_, N = KIND == GATES_OF ? HUB_GATES * SIZE : SIZE;
    static const int W_BYTES = N * BOX_ROW;
    static const int STAGE = W_BYTES + 2 * TILE_BYTES; /* weights, then x of either group */
    static const int STAGING = KIND == GATES_OF ? 4 * TILE_BYTES : 0, NOTES = 1024;
    static const int BIASES = KIND == GATES_OF ? MOST_CELLS * 16 : 0;
    static const int ROOM = (MOST_SHARED - 1024 - NOTES - BIASES - STAGING) / STAGE;
    static const int STAGES = ROOM < MOST_STAGES ? ROOM : (int)MOST_STAGES;
    static const int STAGED = STAGES * STAGE, BIAS = STAGED + STAGING, NOTE = BIAS + BIASES;
    static const int BYTES = NOTE + NOTES + 1024;
};

/* Thread blocks of parts are [splits][spans][tiles]. The first chunk that one sums over. */
static __device__ inline int first_chunk(const step_arguments &p, int block) {
    return block / (p.tiles * p.spans) * p.chunks / p.splits;
}

/* How many chunks: of its part, or of all its pieces in all spans. */
template <typename S> static __device__ inline int count_uses(const step_arguments &p) {
    const int pieces = (p.pieces - 1 - (int)blockIdx.x) / p.blocks + 1;
    if (S::KIND == GATES_OF) return pieces * p.spans * p.chunks;
    return first_chunk(p, blockIdx.x + p.tiles * p.spans) - first_chunk(p, blockIdx.x);
}

/* The first column of a use. Of gates, a piece's spans follow each other, so that its weights are
 * in the L2 for all but the first one. */
template <typename S> static __device__ inline int span_of(const step_arguments &p, int use) {
    const int span = S::KIND == GATES_OF ? use / p.chunks : (int)blockIdx.x / p.tiles;
    return span % p.spans * SPAN;
}

/* Where the chunk of a use begins. Of gates, thread blocks begin with different ones, as not all
 * shall ask the L2 for the same lines at once. */
template <typename S> static __device__ inline int chunk_of(const step_arguments &p, int use) {
    if (S::KIND != GATES_OF) return (first_chunk(p, blockIdx.x) + use) * KC;
    return (use + (int)blockIdx.x) % p.chunks * KC;
}

template <typename S>
static __device__ inline void load_weights(const step_arguments &p, uint32_t to, uint32_t full,
                                           int use) {
    const int chunk = chunk_of<S>(p, use), tile = (int)blockIdx.x % p.tiles * S::SIZE;
    const int cell = ((int)blockIdx.x + use / (p.chunks * p.spans) * p.blocks) * S::SIZE;
    if (S::KIND == PARTS) tensor_load(to, &p.of.w, full, chunk, tile);
    if (S::KIND == GATES_OF) tensor_load(to, &p.of.w, full, chunk, cell, 0);
    for (int i = 0; S::KIND == PARTS_BACK && i < S::SIZE; i += 64) {
        tensor_load_once(to + i * BOX_ROW, &p.of.w, full, tile + i, chunk); /* the L2 keeps x */
    }
}

template <typename S>
static __device__ inline void load_x(const step_arguments &p, uint32_t to, uint32_t full, int use) {
    const int chunk = chunk_of<S>(p, use);
    const bool of_gates = S::KIND == GATES_OF;
    for (int group = 0; group < 2; group++) {
        const uint32_t at = to + S::W_BYTES + group * TILE_BYTES;
        const int column = span_of<S>(p, use) + group * BOX;
        const int x = of_gates ? chunk : column, y = of_gates ? column : chunk;
        const int z = of_gates ? 0 : p.t;
        tensor_load(at, &p.of.x, full, x, y, z);
    }
}

/* Loads what all uses need. Weights do not change in a sequence, so the first ones come before the
 * kernel before has ended. */
template <typename S>
static __device__ void produce(const step_arguments &p, uint32_t base, cursor<S::STAGES> &stages) {
    const int uses = count_uses<S>(p), ahead = min(uses, (int)S::STAGES);
    for (int use = 0; use < ahead; use++) {
        load_weights<S>(p, base + use * S::STAGE, stages.announce(S::STAGE), use);
        stages.next();
    }
    wait_for_earlier();
    let_next_start();
    for (int use = 0; use < ahead; use++) {
        load_x<S>(p, base + use * S::STAGE, stages.full + use * 8, use);
    }
    for (int use = ahead; use < uses; use++) {
        stages.wait_empty();
        const uint32_t full = stages.announce(S::STAGE), to = base + stages.at * S::STAGE;
        load_weights<S>(p, to, full, use);
        load_x<S>(p, to, full, use);
        stages.next();
    }
}

/* [columns][hubs] -> [hubs][columns], of TURN_HUBS hubs, by a warp. */
static __device__ void turn_columns(const bf16 *from, bf16 *to, int hubs, int columns, int hub) {
    enum { OWN = SPAN / 32 };
    for (int first = threadIdx.x % 32 * OWN; first < columns; first += SPAN) {
        uint4 x[OWN];
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            x[i] = __ldcg((const uint4 *)(from + (size_t)(first + i) * hubs + hub));
        }
#pragma unroll
        for (int k = 0; k < TURN_HUBS; k++) {
            uint32_t own[OWN];
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const uint32_t words[4] = {x[i].x, x[i].y, x[i].z, x[i].w};
                own[i] = words[k / 2] >> k % 2 * 16 & 0xFFFF;
            }
            *(uint2 *)(to + (size_t)(hub + k) * columns + first) =
                make_uint2(own[0] | own[1] << 16, own[2] | own[3] << 16);
        }
    }
}

/* Turns what the owners have left, by one warp of each thread block. */
static __device__ void turn_share(const step_arguments &p) {
    for (int i = 0; i < 2; i++) {
        for (int hub = blockIdx.x * TURN_HUBS; p.kept[i] && hub < p.of.hubs;
             hub += gridDim.x * TURN_HUBS) {
            turn_columns(p.turned[i], p.kept[i], p.of.hubs, p.of.columns, hub);
        }
    }
}

/* sum [64 columns][N] += x' weights', over `uses` chunks. */
template <typename S>
static __device__ __forceinline__ void multiply(uint32_t base, cursor<S::STAGES> &stages, int uses,
                                                float (&sum)[S::N / 2]) {
    const uint32_t group = __shfl_sync(~0u, threadIdx.x / GROUP, 0) * TILE_BYTES;
    const int a_major = S::KIND != GATES_OF, b_major = S::KIND == PARTS_BACK;
    multiply_stages<1, KC>(stages, uses, [&](int stage, int k) {
        const uint32_t w = base + stage * S::STAGE, x = w + S::W_BYTES + group;
        const uint32_t a = x + (a_major ? k * BOX_ROW : k * 2);
        const uint32_t b = w + (b_major ? k * BOX_ROW : k * 2);
        warpgroup_multiply<a_major, b_major>(
            sum, matrix_descriptor(a, SWIZZLE_128, a_major ? TILE_BYTES : 16, 1024),
            matrix_descriptor(b, SWIZZLE_128, b_major ? TILE_BYTES : 16, 1024));
    });
}

/* ------------------------------------------------------------------------- what becomes of sums */

template <typename S>
static __device__ __forceinline__ void leave_parts(const step_arguments &p, uint32_t base,
                                                   cursor<S::STAGES> &stages) {
    const int own = threadIdx.x % GROUP, lane = threadIdx.x % 32, hubs = p.of.hubs;
    const int in_span = threadIdx.x / GROUP * BOX + own / 32 * 16 + lane / 4;
    const int column = span_of<S>(p, 0) + in_span, split = blockIdx.x / (p.tiles * p.spans);
    const int first = blockIdx.x % p.tiles * S::SIZE;
    float sum[S::N / 2] = {};
    multiply<S>(base, stages, count_uses<S>(p), sum);
    if (column >= p.of.columns) return;
    float *to = (float *)p.of.parts + ((size_t)split * p.of.columns + column) * hubs;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++) {
        const int hub = first + j * 8 + lane % 4 * 2;
        if (hub >= hubs) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float *of = sum + j * 4 + half * 2;
            __stcg((float2 *)(to + (size_t)half * 8 * hubs + hub), make_float2(of[0], of[1]));
        }
    }
}

/* The gates of pieces, each warpgroup of its columns, of which the last span may have none for the
 * second one; what they read is on its way while their sums are multiplied. */
template <typename S>
static __device__ __forceinline__ void make_pieces(const step_arguments &p, uint32_t base,
                                                   char *shared, cursor<S::STAGES> &stages) {
    static const int U = S::SIZE, J = U / 8;
    const int t = p.t;
    const char *biases = shared + S::BIAS;
#pragma unroll 1
    for (int piece = blockIdx.x, span = 0; piece < p.pieces;) {
        hub_gates<U, 2, true> my(p.of, base + S::STAGED, biases, piece, p.pieces, span);
        span += SPAN;
        if (span >= p.of.columns) {
            span = 0;
            piece += p.blocks;
            biases += U * 16;
        }
        float sum[HUB_GATES * U / 2] = {}, c[U / 2];
        uint4 entry[J][2];
        uint32_t h[J * 2];
        const int2 bytes = my.bytes_of(t);
#pragma unroll
        for (int j = 0; j < J; j++) {
            my.load_gates_entries(bytes, j, entry[j]);
            my.load_c(t, j, t > 0 && p.of.keep, c + j * 4);
        }
        const uint32_t dropped = p.of.dropout_threshold > 0 ? my.draw_dropout(t) : 0;
        multiply<S>(base, stages, p.chunks, sum);
        if (!my.has_columns) continue;
#pragma unroll
        for (int j = 0; j < J; j++) {
            my.make_gates(j, t, sum, entry[j], dropped, c + j * 4, h + j * 2);
            my.store_c(t + 1, j, c + j * 4);
        }
        my.sync_half(); /* what was staged has been read */
        my.store_h(t + 1, h);
    }
}

template <typename S>
static __global__ void __launch_bounds__(3 * GROUP, 1)
    hub_step_kernel(const __grid_constant__ step_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    char *shared = aligned_tiles(unaligned);
    const uint32_t base = shared_address(shared);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    cursor<S::STAGES> stages;
    stages.create(base + S::NOTE);
    for (int i = threadIdx.x; S::KIND == GATES_OF && i < MOST_CELLS * 4; i += blockDim.x) {
        const int piece = blockIdx.x + i / 4 / S::SIZE * p.blocks;
        const int cell = piece * S::SIZE + i / 4 % S::SIZE;
        ((float *)(shared + S::BIAS))[i] = gate_bias(p.of, i % 4, cell);
    }
    barrier_init_done();
    __syncthreads();
    if (warp >= CONSUMER_WARPS) {
        registers_shrink<40>();
        if (warp == CONSUMER_WARPS && elected()) produce<S>(p, base, stages);
        if (S::KIND != PARTS && warp == CONSUMER_WARPS + 1) {
            wait_for_earlier();
            turn_share(p);
        }
        __syncwarp();
    } else {
        registers_grow<232>();
        if constexpr (S::KIND != GATES_OF) leave_parts<S>(p, base, stages);
        if constexpr (S::KIND == GATES_OF) make_pieces<S>(p, base, shared, stages);
        if (threadIdx.x % GROUP == 0) store_finish();
    }
#endif
}

/* ------------------------------------------------------------------------------ gates backward */

/* A thread's share of a piece backward. */
template <int U> struct piece_back : hub_gates<U, 2, true> {
    typedef hub_gates<U, 2, true> gates;
    float4 *kept; /* the gradient at c, between steps, in the order of threads */

    /* What it reads of eight cells; dh: the head's gradient at h, by twos. */
    struct inputs {
        typename gates::gates_inputs of_gates;
        uint32_t dh[2];
        float4 dc;
    };

    __device__ piece_back(const step_arguments &p, uint32_t staging)
        : gates(p.of, staging, NULL, blockIdx.x, p.pieces, blockIdx.y * SPAN) {
        const size_t box =
            (size_t)this->piece * (p.of.columns / BOX) + this->before() / BOX + this->group;
        kept = p.kept_dc + box * gates::J * GROUP + this->thread % GROUP;
    }

    /* dh or dx of eight cells, by twos. */
    __device__ __forceinline__ void load_twos(const bf16 *from, int j, uint32_t (&two)[2]) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint16_t *one = (const uint16_t *)from + this->place_of(j * 4 + i * 2);
            two[i] = one[0] | (uint32_t)one[this->p.columns] << 16;
        }
    }

    __device__ __forceinline__ void load(int t, bool start, int j, inputs &in) const {
        const hub_arguments &p = this->p;
        this->load_inputs(t, j, in.of_gates);
        load_twos(p.dh + (size_t)t * p.hidden * p.columns, j, in.dh);
        if (!start) {
            in.dc = __ldcs(kept + j * GROUP);
        } else if (!p.later) {
            in.dc = make_float4(0, 0, 0, 0);
        } else {
            in.dc = make_float4(p.dc[this->place_of(j * 4)], p.dc[this->place_of(j * 4 + 1)],
                                p.dc[this->place_of(j * 4 + 2)], p.dc[this->place_of(j * 4 + 3)]);
        }
    }

    /* dz of eight cells, and the next dc. */
    __device__ __forceinline__ void differentiate(int t, bool asks, int j, const inputs &in,
                                                  uint32_t dropped,
                                                  uint32_t (&dz)[gates::PAIRS]) const {
        const hub_arguments &p = this->p;
        typename gates::gates_factors factors;
        float c[U / 2], dc[U / 2], dh[U / 2];
        uint32_t asked[2] = {};
        if (asks) load_twos(p.dx, j, asked);
        dc[j * 4] = in.dc.x;
        dc[j * 4 + 1] = in.dc.y;
        dc[j * 4 + 2] = in.dc.z;
        dc[j * 4 + 3] = in.dc.w;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            dh[j * 4 + i * 2] = low(in.dh[i]) + low(asked[i]);
            dh[j * 4 + i * 2 + 1] = high(in.dh[i]) + high(asked[i]);
        }
        this->template find_factors<false>(in.of_gates, j, dropped, c, factors);
        gates::differentiate(j, dh, factors, dc, dz);
        if (t > 0) {
            __stcs(kept + j * GROUP,
                   make_float4(dc[j * 4], dc[j * 4 + 1], dc[j * 4 + 2], dc[j * 4 + 3]));
        } else {
#pragma unroll
            for (int i = 0; i < 4; i++) p.dc[this->place_of(j * 4 + i)] = dc[j * 4 + i];
        }
    }
};

/* A thread block has a piece and a span of columns. Spans after the first sum biases' gradients in
 * more_biases, [spans - 1][HUB_GATES][hidden]. */
template <int U>
static __global__ void __launch_bounds__(2 * GROUP, U > 56 ? 2 : 3)
    gates_back(const __grid_constant__ step_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    char *shared = aligned_tiles(unaligned);
    const int t = p.t;
    const bool start = t + 1 == p.of.steps;
    wait_for_earlier();
    let_next_start();
    piece_back<U> my(p, shared_address(shared));
    if (my.has_columns) {
        typename piece_back<U>::inputs in, next;
        uint32_t dz[piece_back<U>::gates::PAIRS];
        const uint32_t dropped = p.of.dropout_threshold > 0 ? my.draw_dropout(t) : 0;
        my.load(t, start, 0, next);
#pragma unroll
        for (int j = 0; j < U / 8; j++) {
            in = next;
            if (j + 1 < U / 8) my.load(t, start, j + 1, next);
            my.differentiate(t, p.asked, j, in, dropped, dz);
        }
        my.store_gradients(t, dz);
    }
    float *more = p.more_biases + (size_t)(blockIdx.y - 1) * HUB_GATES * p.of.hidden;
    my.store_biases((float *)(shared + 4 * TILE_BYTES), blockIdx.y ? more : p.of.dbias, !start);
    if (threadIdx.x % GROUP == 0) store_finish();
#endif
}

/* ---------------------------------------------------------------------------- owners of columns */

enum { FOUR = 4 }; /* hubs of a thread that owns them */

/* The hubs of the column of a thread block. Several threads add up their parts, of which one then
 * goes on. */
struct owned {
    const step_arguments &p;
    float4 *scratch;
    int hub, of, shares;
    size_t at; /* of arrays [columns][hubs] */
    bool mine;

    __device__ owned(const step_arguments &p_, float4 *scratch_) : p(p_), scratch(scratch_) {
        const int vectors = p.of.hubs / FOUR;
        hub = (int)threadIdx.x % vectors * FOUR;
        of = (int)threadIdx.x / vectors;
        shares = (int)blockDim.x / vectors;
        at = (size_t)blockIdx.x * p.of.hubs + hub;
        mine = of == 0;
    }

    __device__ void load_four(const float *from, float otherwise, float (&to)[FOUR]) const {
#pragma unroll
        for (int i = 0; i < FOUR; i++) to[i] = otherwise;
        if (mine && from) load(to, from + hub);
    }

    __device__ void load_entry(float (&entry)[FOUR]) const {
        const int byte = p.of.bytes[(size_t)p.t * p.of.columns + blockIdx.x];
#pragma unroll
        for (int i = 0; i < FOUR; i++) entry[i] = 0;
        if (mine) load(entry, p.of.hub_table + (size_t)byte * p.of.hubs + hub);
    }

    /* The sums of all parts, in the threads that go on. */
    __device__ void add_parts(float (&x)[FOUR]) const {
        const size_t part = (size_t)p.of.columns * p.of.hubs;
        const int splits = of < shares ? p.splits : 0;
#pragma unroll
        for (int i = 0; i < FOUR; i++) x[i] = 0;
#pragma unroll 8
        for (int s = of; s < splits; s += shares) {
            const float4 more = __ldcg((const float4 *)((float *)p.of.parts + s * part + at));
            add_four_sums(x, more);
        }
        if (of > 0 && of < shares) {
            scratch[threadIdx.x - p.of.hubs / FOUR] = make_float4(x[0], x[1], x[2], x[3]);
        }
        __syncthreads();
        for (int k = 1; mine && k < shares; k++) {
            add_four_sums(x, scratch[threadIdx.x + (k - 1) * (p.of.hubs / FOUR)]);
        }
    }

    /* Two sums over all threads. */
    __device__ void add_threads(float (&x)[2]) const {
        __shared__ float2 part[OWNERS / 32];
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            x[0] += __shfl_xor_sync(~0u, x[0], step);
            x[1] += __shfl_xor_sync(~0u, x[1], step);
        }
        if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = make_float2(x[0], x[1]);
        __syncthreads();
        const bool has = threadIdx.x % 32 < blockDim.x / 32;
        x[0] = has ? part[threadIdx.x % 32].x : 0;
        x[1] = has ? part[threadIdx.x % 32].y : 0;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            x[0] += __shfl_xor_sync(~0u, x[0], step);
            x[1] += __shfl_xor_sync(~0u, x[1], step);
        }
    }

    __device__ float *statistics() const {
        fixed *sums = p.of.sums + (size_t)p.t * sums_gate(p.of.columns);
        return kept_statistics(sums, p.of.columns) + blockIdx.x;
    }

    /* V h, kept for backward in the order [columns][hubs]. */
    __device__ bf16 *kept() const {
        return p.of.hub_raw + (size_t)p.t * p.of.hubs * p.of.columns + at;
    }
};

static __global__ void __launch_bounds__(OWNERS, 1)
    own_hubs(const __grid_constant__ step_arguments p) {
    extern __shared__ __align__(16) float4 scratch[];
    const owned own(p, scratch);
    float x[FOUR], v[FOUR], y[FOUR], entry[FOUR], gain[FOUR], bias[FOUR], sums[2] = {};
    float shift = 0, scale = 1;
    own.load_entry(entry);
    own.load_four(p.of.hub_gain, 1, gain);
    own.load_four(p.of.hub_bias, 0, bias);
    wait_for_earlier();
    let_next_start();
    own.add_parts(v);
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        if (!own.mine) continue;
        if (p.of.below) {
            const size_t row = (size_t)p.t * p.of.hubs + own.hub + i;
            v[i] += to_float(p.of.below[row * p.of.columns + blockIdx.x]);
        }
        v[i] = rounded(v[i]);
        x[i] = p.of.norm_last ? rounded(v[i] * entry[i]) : v[i];
        sums[0] += x[i];
        sums[1] += x[i] * x[i];
    }
    if (p.of.norm) {
        own.add_threads(sums);
        find_statistics(sums[0] / p.of.hubs, sums[1] / p.of.hubs, shift, scale);
        if (threadIdx.x == 0) {
            own.statistics()[0] = shift;
            own.statistics()[p.of.columns] = scale;
        }
    }
    if (!own.mine) return;
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        y[i] = gain[i] * (x[i] * scale + shift) + bias[i];
        if (!p.of.norm_last) y[i] *= entry[i];
    }
    store(p.of.exchange + own.at, y);
    if (p.of.keep) store(own.kept(), v);
}

/* kernels/cpu/stages.c has the equations. */
static __global__ void __launch_bounds__(OWNERS, 1)
    own_hubs_backward(const __grid_constant__ step_arguments p) {
    extern __shared__ __align__(16) float4 scratch[];
    const owned own(p, scratch);
    const bool start = p.t + 1 == p.of.steps;
    float d[FOUR], v[FOUR] = {}, value[FOUR], entry[FOUR], gain[FOUR], bias[FOUR], sums[2] = {};
    float dgain[FOUR] = {}, dbias[FOUR] = {};
    float *gradients = p.of.gradients + (size_t)blockIdx.x * 2 * p.of.hubs + own.hub;
    own.load_entry(entry);
    own.load_four(p.of.hub_gain, 1, gain);
    own.load_four(p.of.hub_bias, 0, bias);
    if (own.mine) load(v, own.kept());
    if (own.mine && !start) {
        load(dgain, gradients);
        load(dbias, gradients + p.of.hubs);
    }
    const float shift = p.of.norm ? own.statistics()[0] : 0;
    const float scale = p.of.norm ? own.statistics()[p.of.columns] : 1;
    wait_for_earlier();
    let_next_start();
    own.add_parts(d);
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        if (!own.mine) continue;
        value[i] = (p.of.norm_last ? rounded(v[i] * entry[i]) : v[i]) * scale + shift;
        d[i] = rounded(d[i]);
        if (!p.of.norm_last) {
            v[i] = d[i] * (gain[i] * value[i] + bias[i]);
            d[i] = rounded(d[i] * entry[i]);
        }
        dbias[i] += d[i];
        dgain[i] += d[i] * value[i];
        sums[0] += gain[i] * d[i];
        sums[1] += gain[i] * d[i] * value[i];
    }
    if (p.of.norm) own.add_threads(sums);
    if (!own.mine) return;
    const float mean = sums[0] / p.of.hubs, product = sums[1] / p.of.hubs;
#pragma unroll
    for (int i = 0; i < FOUR; i++) {
        if (p.of.norm) d[i] = (gain[i] * d[i] - mean - value[i] * product) * scale;
        if (!p.of.norm_last) continue;
        d[i] = rounded(d[i]);
        v[i] *= d[i];
        d[i] *= entry[i];
    }
    store(p.of.exchange + own.at, d);
    store(p.of.aside + own.at, v);
    store(gradients, dgain);
    store(gradients + p.of.hubs, dbias);
}

static __global__ void __launch_bounds__(32) turn_last(const __grid_constant__ step_arguments p) {
    turn_share(p);
}

static __global__ void add_biases(float *dbias, const float *more, int rows, int count) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    for (int k = 0; i < rows && k < count; k++) dbias[i] += more[(size_t)k * rows + i];
}

/* ------------------------------------------------------------------------------------- launches */

/* Pieces of as many cells as leave the busiest multiprocessor the fewest; 0: not by steps. */
static int find_piece(int processors, int hidden, int hubs) {
    const int cells[] = {32, 40, 48, 56, 64};
    int best = 0, least = MOST_CELLS + 1;
    for (int i = 0; hubs <= MOST_HUBS && i < 5; i++) {
        const int pieces = hidden / cells[i], most = (pieces + processors - 1) / processors;
        if (hidden % cells[i] || most * cells[i] > least) continue;
        best = cells[i];
        least = most * cells[i];
    }
    return best;
}

static int count_splits(backend *be, int hidden, int hubs, int spans) {
    const int tiles = (hubs + TILE_HUBS - 1) / TILE_HUBS * spans;
    return max(min((hidden + KC - 1) / KC, cuda_of(be)->processors / tiles), 1);
}

hub_plan *hubs_plan(backend *be, device_layout *device, const layout *l) {
    const size_t hidden = l->out_block, hubs = l->in_block;
    if (!cuda_of(be)->hopper || be->precision != BF16 || !layout_is_dense(l)) return NULL;
    if (l->gates != HUB_GATES || hubs == hidden || hubs % 8 || l->in_stride > 1) return NULL;
    const int cells = hubs_cells(be, l), spans = MOST_SPANS;
    const int step_cells = find_piece(cuda_of(be)->processors, l->out_block, l->in_block);
    if (!cells && !step_cells) return NULL;
    const size_t columns = step_cells ? spans * SPAN : MOST_COLUMNS;
    size_t parts = 0, gradients = step_cells ? columns * 2 * hubs : 0;
    for (int i = 1; step_cells && i <= spans; i++) {
        const size_t splits = count_splits(be, l->out_block, l->in_block, i);
        parts = max(parts, splits * i * SPAN * hubs * sizeof(float));
    }
    if (cells) {
        const size_t blocks = hidden / cells, width = (hubs + KC - 1) / KC * KC;
        parts = max(parts, blocks * MOST_COLUMNS * width * sizeof(bf16));
        gradients = max(gradients, blocks * 2 * MOST_CHUNKS * KC);
    }
    hub_plan *plan = (hub_plan *)layout_host_block(device, sizeof *plan);
    plan->cells = cells;
    plan->step_cells = step_cells;
    plan->parts = layout_device_block(be, device, parts);
#define TAKE(field, count)                                                                         \
    *(void **)&plan->field = layout_device_block(be, device, (count) * sizeof *plan->field)
    TAKE(counters, COUNTERS * COUNTER_WORDS);
    TAKE(exchange, columns * hubs);
    TAKE(aside, columns * hubs);
    TAKE(first_z, HUB_GATES * hidden * columns);
    TAKE(gradients, gradients);
    TAKE(hub_table, VOCABULARY * hubs);
    TAKE(gates_table, VOCABULARY * hidden * GATES);
    if (!step_cells) return plan;
    TAKE(dc, hidden * columns / 4);
    TAKE(more_biases, (spans - 1) * HUB_GATES * hidden);
#undef TAKE
    return plan;
}

const char *hub_steps_lack(backend *be, const cell *c) {
    const char *lacks = hub_cell_lacks(be, c);
    if (lacks) return lacks;
    const hub_plan *plan = c->stage[1].layout->hubs;
    if (!plan || !plan->step_cells || c->stage[0].layout->host.in_stride > 1) {
        return "Hopper, bf16, at most 4,096 hubs, a multiple of 8, and a multiple of 32, 40, 48, "
               "56 or 64 cells";
    }
    const int blocks = plan->cells ? c->hidden / plan->cells : 0;
    const bool busy = 4 * blocks >= 3 * cuda_of(be)->processors && blocks >= c->columns;
    if (busy && c->stage[0].units <= FEW_HUBS && c->columns <= MOST_COLUMNS) {
        return "more than 768 hubs, more than 128 columns, or fewer cells, where one kernel that "
               "takes the cell keeps most multiprocessors busy, with a thread block to each column";
    }
    return c->columns <= MOST_SPANS * SPAN ? NULL : "at most 512 columns";
}

template <typename S> static void launch_step(backend *be, const step_arguments &p) {
    const int blocks = S::KIND == GATES_OF ? p.blocks : p.tiles * p.spans * p.splits;
    cuda_launch(be, S::KIND == PARTS_BACK ? "cell backward" : "cell forward", true,
                hub_step_kernel<S>, dim3(blocks), 3 * GROUP, (size_t)S::BYTES, p);
}

template <int U> static void launch_gates(backend *be, const step_arguments &p) {
    launch_step<step_shape<GATES_OF, U>>(be, p);
}

template <int U> static void launch_gates_back(backend *be, const step_arguments &p) {
    cuda_launch(be, "cell backward", true, gates_back<U>, dim3(p.pieces, p.spans), 2 * GROUP,
                (size_t)4 * TILE_BYTES + 2048, p);
}

static void launch_owners(backend *be, const char *what, void (*kernel)(const step_arguments),
                          const step_arguments &p) {
    const bool all = p.of.columns <= cuda_of(be)->processors || p.of.hubs > OWNERS / 2 * FOUR;
    const int threads = all ? OWNERS : OWNERS / 2;
    cuda_launch(be, what, true, kernel, dim3(p.of.columns), threads, threads * sizeof(float4), p);
}

/* dx = V' dv. */
static void ask_back(backend *be, const step_arguments &p, const cell *c) {
    const stage *hubs = &c->stage[0];
    const float one = 1, zero = 0;
    cublasStatus_t status = cublasGemmEx(
        cuda_of(be)->blas, CUBLAS_OP_T, CUBLAS_OP_T, c->columns, c->hidden, hubs->units, &one,
        p.of.exchange, CUDA_R_16BF, hubs->units, hubs->weight, CUDA_R_16BF, c->hidden, &zero, c->dx,
        CUDA_R_16BF, c->columns, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    cuda_blas_ok(be, status, "hubs backward");
}

/* The two kernels of products in one direction: `parts` and `gates`, whose pieces have U cells. */
typedef struct step_kernels {
    int U;
    step_arguments parts, gates;
} step_kernels;

static bool prepare_steps(backend *be, const cell *c, bool backward, step_kernels *k) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[1];
    const int hidden = c->hidden, rows = HUB_GATES * hidden, columns = c->columns;
    const hub_plan *plan = gates->layout->hubs;
    const int U = plan->step_cells, processors = cuda_of(be)->processors;
    step_arguments p = {};
    hubs_prepare(be, c, backward, U, &p.of);
    p.spans = (columns + SPAN - 1) / SPAN;
    p.pieces = hidden / U;
    const int rounds = (p.pieces + processors - 1) / processors;
    p.blocks = (p.pieces + rounds - 1) / rounds;
    p.tiles = (hubs->units + TILE_HUBS - 1) / TILE_HUBS;
    p.splits = count_splits(be, hidden, hubs->units, p.spans);
    p.kept_dc = plan->dc;
    p.more_biases = plan->more_biases;
    k->U = U;
    k->parts = k->gates = p;
    k->parts.chunks = ((backward ? rows : hidden) + KC - 1) / KC;
    k->gates.chunks = (hubs->units + KC - 1) / KC;
    const void *x = backward ? gates->dpre : c->h;
    const int steps = backward ? c->steps : c->steps + 1, of_step = backward ? rows : hidden;
    if (!hubs_map_rows(be, &k->gates.of.out, x, columns, of_step * steps, 0, BOX, U) ||
        !map_activations(be, &k->parts.of.x, 3, x, (size_t)of_step, columns, steps, KC)) {
        return false;
    }
    if (backward) {
        return hubs_map_rows(be, &k->parts.of.w, gates->weight, hubs->units, rows, 0, 64, KC);
    }
    return hubs_map_rows(be, &k->parts.of.w, hubs->weight, hidden, hubs->units, 0, KC, TILE_HUBS) &&
           hubs_map_rows(be, &k->gates.of.w, gates->weight, hubs->units, hidden, HUB_GATES, KC,
                         U) &&
           hubs_map_rows(be, &k->gates.of.x, plan->exchange, hubs->units, columns, 1, KC, BOX);
}

void hub_steps_forward(backend *be, const cell *c) {
    const size_t state = (size_t)c->stage[0].units * c->columns;
    step_kernels k;
    if (!prepare_steps(be, c, false, &k)) return;
    for (int t = 0; t < c->steps; t++) {
        k.parts.t = k.gates.t = t;
        launch_step<step_shape<PARTS, TILE_HUBS>>(be, k.parts);
        launch_owners(be, "cell forward", own_hubs, k.parts);
        k.gates.turned[0] = k.gates.of.exchange;
        k.gates.kept[0] = c->keep ? k.gates.of.hub_out + t * state : NULL;
        k.U == 32 ? launch_gates<32>(be, k.gates) : WITH_CELLS(k.U, launch_gates, be, k.gates);
    }
}

/* Has `p` turn what the owners left of step t. */
static void keep_gradients(int t, step_arguments *p) {
    const size_t at = (size_t)t * p->of.hubs * p->of.columns;
    p->turned[0] = p->of.exchange;
    p->turned[1] = p->of.aside;
    p->kept[0] = p->of.hub_gradient + at;
    p->kept[1] = p->of.hub_entry + at;
}

void hub_steps_backward(backend *be, const cell *c) {
    const stage *hubs = &c->stage[0];
    const int rows = HUB_GATES * c->hidden;
    step_kernels k;
    if (!prepare_steps(be, c, true, &k)) return;
    for (int t = c->steps - 1; t >= 0; t--) {
        const bool last = t + 1 == c->steps;
        k.parts.t = k.gates.t = t;
        k.gates.asked = !last || c->has_later_steps;
        if (!last) {
            keep_gradients(t + 1, &k.parts);
            ask_back(be, k.parts, c);
        }
        k.U == 32 ? launch_gates_back<32>(be, k.gates)
                  : WITH_CELLS(k.U, launch_gates_back, be, k.gates);
        launch_step<step_shape<PARTS_BACK, TILE_HUBS>>(be, k.parts);
        launch_owners(be, "cell backward", own_hubs_backward, k.parts);
    }
    keep_gradients(0, &k.parts);
    cudaStream_t stream = cuda_of(be)->stream;
    turn_last<<<hubs->units / TURN_HUBS, 32, 0, stream>>>(k.parts);
    cuda_launched(be, "gradients of hubs");
    hubs_add_gradients(be, hubs, k.parts.of.gradients, c->columns, hubs->units);
    if (k.parts.spans > 1 && k.gates.of.dbias) {
        add_biases<<<(rows + 255) / 256, 256, 0, stream>>>(k.gates.of.dbias, k.gates.more_biases,
                                                           rows, k.parts.spans - 1);
        cuda_launched(be, "gradients of biases");
    }
    if (c->has_earlier_steps) ask_back(be, k.parts, c);
}
