/* A cell with hubs and coupled gates over its whole sequence, one kernel for each direction.
 *
 *   forward    z [3 U] = W m, gates, c and h of own cells     v = V h: sums over all cells
 *              m = norm(v) and the table's entries, by the owner of a column
 *   backward   dh [U] = V' dv, dz of own cells                dm = W' dz: likewise
 *              dv, by the owner of a column
 *
 * Without layer norm at the gates a thread block needs nobody else's sums for its U cells: what it
 * takes from all others is m or dv, and what it gives is its part of V h or W' dz for every hub. So
 * a step has two exchanges: these parts, and m or dv. The gates are an epilogue of the first
 * product, and its results, in registers as a product's sums lie, are the second product's operand.
 * Both directions multiply by the same weights, W and V of own cells, so most of these stay in
 * shared memory from step to step.
 *
 * A column belongs to a thread block, which adds up the parts of all its hubs, always in the same
 * order. Parts are rounded to bf16: there are about 128 of them, so their errors average out to
 * those of one more rounding of the sum.
 *
 * What forward keeps for backward of the gates lies as its threads have it. */
#include "cell/hubs.h"
#include "cell/sequence.cuh"

enum {
    MOST_CHUNKS = 16,          /* of KC hubs */
    TILE_BYTES = 64 * BOX_ROW, /* 64 rows of 128 bytes */
    X_SLOTS = 4,               /* 64 columns of a chunk of m or dv */
    V_SLOTS = 3,               /* 64 hubs by 64 cells, of which a thread block has U */
    MORE_SLOTS = 2,            /* of x forward, see x_use */
    V_MORE = X_SLOTS,          /* forward, where x was */
    HUB_GATES = COUPLED_GATES, /* f o u */
    MOST_COLUMNS = 2 * BOX,    /* of a launch */
    PARTS_AHEAD = 22,          /* that are on their way together */
    WIDE = 3,                  /* chunks, see leave_wide_parts */
    PACE = 300,                /* nanoseconds, see keep_columns */
    VECTOR = 8                 /* hubs of a thread that adds parts, see hub_of */
};

struct hub_tables {
    int cells;          /* of a thread block: U */
    uint32_t *counters; /* [SEQUENCE_COUNTERS][COUNTER_WORDS] */
    bf16 *exchange;     /* [MOST_COLUMNS][hubs]: m or dv */
    bf16 *aside;        /* [MOST_COLUMNS][hubs]: backward, the gradient at entries */
    uint4 *parts;       /* [thread blocks][MOST_COLUMNS][hubs, in whole chunks] in bf16 */
    float *gradients;   /* [thread blocks][dgain, dbias][MOST_CHUNKS * KC] */
    bf16 *hub_table;    /* [VOCABULARY][hubs] */
    bf16 *gates_table;  /* [VOCABULARY][hidden][GATES] */
};

typedef struct hub_arguments {
    CUtensorMap w, v; /* [HUB_GATES][hidden][hubs], [hubs][hidden] */
    CUtensorMap x;    /* exchange */
    CUtensorMap out;  /* rows of columns: h of all steps, or dpre */
    int steps, hidden, columns, first_column, hubs;
    int x_slots;
    int chunks, held; /* held: chunks of W that stay */
    bool keep, norm, norm_last, later, earlier;
    uint32_t *counters, *stuck;
    bf16 *exchange, *aside;
    uint4 *parts;
    const uint8_t *bytes;
    const bf16 *below, *hub_table, *gates_table;
    const float *hub_gain, *hub_bias, *bias;
    fixed *sums;
    bf16 *hub_raw, *hub_out, *hub_entry, *hub_gradient; /* as in struct stage */
    uint2 *z; /* the gates' arguments: [step][64 columns][thread block][3 U / 8][thread] */
    bf16 *h, *dh, *dx;
    float *c, *dc, *dbias, *gradients;
    uint32_t dropout_threshold;
    float dropout_scale;
    uint64_t dropout_seed;
    uint32_t dropout_stream;
    const update_arguments *arguments;
    int first_step;
} hub_arguments;

template <int CELLS, int COLUMN_GROUPS> struct hub_shape {
    static const int U = CELLS, GROUPS = COLUMN_GROUPS, THREADS = GROUPS * GROUP;
    static const int W_BYTES = HUB_GATES * U * BOX_ROW; /* of a chunk */
    static const int NOTES = 320 + U * 16 + 128, V_BYTES = V_SLOTS * TILE_BYTES;
    static const int X = 0, W = X_SLOTS * TILE_BYTES;
    static const int ROOM = (MOST_SHARED - 1024 - NOTES - V_BYTES - W) / W_BYTES;
    static const int MOST_HELD = ROOM < MOST_CHUNKS ? ROOM : MOST_CHUNKS;
    /* A chunk of W is multiplied in steps of 16 rows; what follows it is read, too, times zeros. */
    static const int V = W + MOST_HELD * W_BYTES; /* or a chunk of W that does not stay */
    static const int BARRIERS = V + V_BYTES, BIAS = BARRIERS + 320, SCRATCH = BIAS + U * 16;
    static const int BYTES = SCRATCH + 128 + 1024;
    static_assert(W_BYTES <= V_BYTES && BYTES <= MOST_SHARED, "it all fits");
};

/* Barriers: of the ring of V; of the slots of x, full and empty; of W that stays, of W that does
 * not, full and empty; all V of a step multiplied; nothing else uses the slots of x any more; all x
 * of a step multiplied; an owned column copied. */
template <bool BACK> struct hub_barriers {
    static const int SLOTS = V_SLOTS + (BACK ? 0 : V_MORE);
    cursor<SLOTS> v;
    uint32_t x, held, w_full, w_empty, v_done, x_free, x_done, kept;

    template <typename S> __device__ void create(uint32_t at) {
        v.create(at, S::GROUPS * 4);
        x = at + 16 * SLOTS;
        held = x + 16 * (X_SLOTS + MORE_SLOTS);
        w_full = held + 8;
        w_empty = held + 16;
        v_done = held + 24;
        x_free = held + 32;
        x_done = held + 40;
        kept = held + 48;
        if (threadIdx.x > 0) return;
        for (int i = 0; i < X_SLOTS + MORE_SLOTS; i++) {
            barrier_init(x + 16 * i, 1);
            barrier_init_warps(x + 16 * i + 8, 4);
        }
        barrier_init(held, 1);
        barrier_init(w_full, 1);
        barrier_init_warps(w_empty, S::GROUPS * 4);
        barrier_init_warps(v_done, S::GROUPS * 4);
        barrier_init(x_free, 1);
        barrier_init_warps(x_done, S::GROUPS * 4);
        barrier_init_warps(kept, 1);
    }
};

/* A chunk of m or dv in a slot of x: the groups take turns, so each has every GROUPS-th use. Where
 * only one chunk of W is in the way, forward has two more slots where that one was. */
struct x_use {
    uint32_t full;
    int at, parity;

    __device__ x_use(uint32_t barriers, int use, int slots)
        : full(barriers + use % slots * 16), at(use % slots), parity(use / slots % 2) {}

    __device__ uint32_t empty() const {
        return full + 8;
    }

    template <typename S> __device__ uint32_t address(uint32_t base) const {
        const int more = at - X_SLOTS;
        return base + (more < 0 ? S::X + at * TILE_BYTES : S::V + more * TILE_BYTES);
    }
};

/* ------------------------------------------------------------------------------------ producers */

static __device__ inline uint32_t *counter_of_hubs(uint32_t *counters, int kind, int group) {
    return counters + (kind * 2 + group) * COUNTER_WORDS;
}

/* The chunk of hubs that is multiplied i-th. Thread blocks begin with different ones, as not all
 * shall ask the L2 for the same lines at once. Forward, W that does not stay is first, since it
 * comes early. */
template <bool BACK> static __device__ inline int chunk_of(const hub_arguments &p, int i) {
    const int streamed = BACK ? 0 : p.chunks - p.held, others = p.chunks - streamed;
    return i < streamed ? p.held + i : (i - streamed + (int)blockIdx.x) % others;
}

/* Where a slot of V is. */
template <typename S> static __device__ inline uint32_t v_slot(uint32_t base, int slot) {
    const int more = slot - V_SLOTS;
    return base + (more < 0 ? S::V + slot * TILE_BYTES : S::X + more * TILE_BYTES);
}

/* Loads W that stays; then, in turn, V of a step and W of a step that does not stay. */
template <typename S, bool BACK>
static __device__ void produce_weights(const hub_arguments &p, uint32_t base,
                                       hub_barriers<BACK> &b) {
    const int first = blockIdx.x * S::U;
    const int phases = BACK ? 2 * p.steps - 1 + p.earlier : 2 * p.steps;
    int streamed = 0, v_phases = 0;
    if (elected()) {
        barrier_expect(b.held, p.held * S::W_BYTES);
        for (int i = 0; i < p.held; i++) {
            tensor_load(base + S::W + i * S::W_BYTES, &p.w, b.held, i * KC, first, 0);
        }
    }
    __syncwarp();
#pragma unroll 1
    for (int k = 0; k < phases; k++) {
        if (k % 2 == BACK) {
            bool waits = !BACK && v_phases > 0;
            if (streamed) barrier_wait(b.w_empty, (streamed - 1) % 2);
#pragma unroll 1
            for (int i = 0; i < p.chunks; i++, b.v.next()) {
                b.v.wait_empty();
                if (waits) {
                    barrier_wait(b.x_done, (v_phases - 1) % 2);
                    waits = false;
                }
                if (!elected()) continue;
                tensor_load(v_slot<S>(base, b.v.at), &p.v, b.v.announce(TILE_BYTES), first,
                            (BACK ? chunk_of<BACK>(p, i) : i) * KC);
            }
            if (waits) barrier_wait(b.x_done, (v_phases - 1) % 2); /* no phase is left out */
            v_phases++;
        } else {
#pragma unroll 1
            for (int i = p.held; i < p.chunks; i++, streamed++) {
                if (i == p.held && v_phases) barrier_wait(b.v_done, (v_phases - 1) % 2);
                if (streamed) barrier_wait(b.w_empty, (streamed - 1) % 2);
                if (!elected()) continue;
                barrier_expect(b.w_full, S::W_BYTES);
                tensor_load(base + S::V, &p.w, b.w_full, i * KC, first, 0);
            }
        }
    }
}

/* Loads a group's columns of m or dv of each step, as soon as their owners have stored them. */
template <typename S, bool BACK>
static __device__ void produce_exchanged(const hub_arguments &p, uint32_t base, int group,
                                         hub_barriers<BACK> &b) {
    const int rounds = BACK ? p.steps - 1 + p.earlier : p.steps;
#pragma unroll 1
    for (int r = 0; r < rounds; r++) {
        barrier_wait(b.x_free, r % 2);
        if (threadIdx.x % 32 == 0) {
            await_count(counter_of_hubs(p.counters, COUNT_M, group), (r + 1) * BOX, p.stuck);
        }
        __syncwarp();
        global_fence();
        bool waits = !BACK && p.held < p.chunks && p.x_slots > X_SLOTS;
#pragma unroll 1
        for (int i = 0; i < p.chunks; i++) {
            const x_use x(b.x, (r * p.chunks + i) * S::GROUPS + group, p.x_slots);
            if (x.at >= X_SLOTS && waits) {
                barrier_wait(b.w_empty, r % 2);
                waits = false;
            }
            barrier_wait(x.empty(), x.parity ^ 1);
            if (!elected()) continue;
            barrier_expect(x.full, TILE_BYTES);
            tensor_load(x.template address<S>(base), &p.x, x.full, chunk_of<BACK>(p, i) * KC,
                        group * BOX);
        }
    }
}

/* Copies what the owner of columns has left of a step to where the gradients of weights and tables
 * read it, [hub][columns], which takes hundreds of stores of two bytes. */
template <typename S, bool BACK>
static __device__ void keep_columns(const hub_arguments &p, hub_barriers<BACK> &b) {
    const int lane = threadIdx.x % 32;
    bf16 *out = BACK ? p.hub_gradient : p.hub_out;
#pragma unroll 1
    for (int r = 0; r < p.steps; r++) {
        const int t = BACK ? p.steps - 1 - r : r;
        barrier_wait(b.x_free, r % 2);
        if (BACK) { /* until all have read what lies where these stores go */
            if (lane < S::GROUPS) {
                await_count(counter_of_hubs(p.counters, COUNT_M, lane), (r + 1) * BOX, p.stuck);
            }
            __syncwarp();
        }
        for (int n = blockIdx.x; n < S::GROUPS * BOX; n += gridDim.x) {
            const size_t at = (size_t)n * p.hubs;
            size_t to = ((size_t)t * p.hubs + lane) * p.columns + p.first_column + n;
#pragma unroll 1
            for (int hub = lane; hub < p.hubs; hub += 32, to += (size_t)32 * p.columns) {
                out[to] = p.exchange[at + hub];
                if (BACK) p.hub_entry[to] = p.aside[at + hub];
                __nanosleep(PACE); /* the consumers' loads shall not queue behind these */
            }
        }
        __syncwarp();
        barrier_arrive_warp(b.kept);
    }
}

/* ------------------------------------------------------------------------------------ consumers */

/* The hub of a part's vector of 16 bytes: as a product's sums lie in a thread, of which four
 * neighbours so store 64 bytes. w: of its four words; each has this hub and the next one. */
static __device__ inline int hub_of(int vector, int w) {
    return vector / 8 * KC + (vector / 4 % 2 * 4 + w) * 8 + vector % 4 * 2;
}

static __device__ inline float low(uint32_t two) {
    return __uint_as_float(two << 16);
}

static __device__ inline float high(uint32_t two) {
    return __uint_as_float(two & 0xFFFF0000u);
}

static __device__ inline float rounded(float x) {
    return to_float(from_float<bf16>(x));
}

template <typename S, bool BACK> struct hub_consumer {
    static const int U = S::U, J = U / 8, PAIRS = HUB_GATES * J * 2; /* of z or dz */
    static const int ROWS = BACK ? HUB_GATES * J : J; /* eights of rows of what is multiplied */
    const hub_arguments &p;
    uint32_t base;
    char *shared;
    hub_barriers<BACK> &b;
    int thread, group, warp, lane; /* thread: of all consumers; warp: of the group */
    int first, column;             /* the first cell; this thread's first column of a launch */
    int streamed = 0, v_done = 0;  /* uses of W that does not stay; the slot of V to release next */
    float hub_dgain[VECTOR] = {}, hub_dbias[VECTOR] = {}; /* backward */
    float dbias[HUB_GATES] = {};                          /* likewise, of half of the columns */

    __device__ hub_consumer(const hub_arguments &p_, uint32_t base_, char *shared_,
                            hub_barriers<BACK> &b_)
        : p(p_), base(base_), shared(shared_), b(b_) {
        thread = threadIdx.x;
        group = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
        warp = thread % GROUP / 32;
        lane = thread % 32;
        first = blockIdx.x * U;
        column = group * BOX + warp * 16 + lane / 4;
    }

    __device__ void sync() const {
        group_sync(1, S::THREADS);
    }

    __device__ void sync_half() const {
        group_sync(2 + group, GROUP);
    }

    /* Cells are numbered in a thread as sums lie: [J][half of the columns][neighbour]. */
    __device__ int cell_of(int k) const {
        return first + k / 4 * 8 + lane % 4 * 2 + k % 2;
    }

    __device__ size_t place_of(int k) const {
        return (size_t)cell_of(k) * p.columns + p.first_column + column + k / 2 % 2 * 8;
    }

    /* One of two slots of x for this group to stage rows in. */
    __device__ uint32_t slot(int i) const {
        return base + S::X + (group * 2 + i) * TILE_BYTES;
    }

    /* The group's i-th chunk of round r, see x_use. */
    __device__ x_use x_of(int r, int i) const {
        return x_use(b.x, (r * p.chunks + i) * S::GROUPS + group, p.x_slots);
    }

    /* Where W's chunk i is, once it is there. Without a branch, which products under way would not
     * survive. */
    __device__ __forceinline__ uint32_t await_w(int i) const {
        const bool stays = i < p.held;
        barrier_wait(stays ? b.held : b.w_full, stays ? 0 : streamed % 2);
        return stays ? base + S::W + i * S::W_BYTES : base + S::V;
    }

    __device__ __forceinline__ void release_w(int i) {
        const bool stays = i < p.held;
        barrier_arrive_warp_if(b.w_empty, !stays);
        streamed += !stays;
    }

    /* One chunk of multiply_w. Returns the use of x. */
    __device__ __forceinline__ x_use start_w(float (&sum)[HUB_GATES * U / 2], int round, int i) {
        const x_use x = x_of(round, i);
        const uint32_t w = await_w(chunk_of<BACK>(p, i)), from = x.template address<S>(base);
        barrier_wait(x.full, x.parity);
        product_fence();
#pragma unroll
        for (int k = 0; k < KC; k += 16) {
            warpgroup_multiply<0, 0>(sum, matrix_descriptor(from + k * 2, SWIZZLE_128, 16, 1024),
                                     matrix_descriptor(w + k * 2, SWIZZLE_128, 16, 1024));
        }
        product_commit();
        return x;
    }

    /* sum [64 columns][rows] += x' W' of a group's columns, over all hubs. */
    __device__ __forceinline__ void multiply_w(float (&sum)[HUB_GATES * U / 2], int round) {
        const int streamed_chunks = p.chunks - p.held;
        uint32_t before = 0;
#pragma unroll 1
        for (int i = 0; i < streamed_chunks; i++) {
            const x_use x = start_w(sum, round, i);
            product_wait<0>();
            barrier_arrive_warp(x.empty());
            release_w(p.held);
        }
#pragma unroll 1
        for (int i = streamed_chunks; i < p.chunks; i++) {
            const x_use x = start_w(sum, round, i);
            product_wait<1>();
            barrier_arrive_warp_if(before, i > streamed_chunks);
            before = x.empty();
        }
        product_wait<0>();
        barrier_arrive_warp(before);
        barrier_arrive_warp(b.x_done);
    }

    /* sum [64 columns][U] += x' V. ptxas would make a product of few rows wait for each of its
     * steps if the next chunk's began before its end. */
    __device__ __forceinline__ void multiply_v(float (&sum)[U / 2], int round) {
#pragma unroll 1
        for (int i = 0; i < p.chunks; i++, b.v.next()) {
            const x_use x = x_of(round, i);
            const uint32_t v = base + S::V + b.v.at * TILE_BYTES;
            const uint32_t from = x.template address<S>(base);
            b.v.wait_full();
            barrier_wait(x.full, x.parity);
            product_fence();
#pragma unroll
            for (int k = 0; k < KC; k += 16) {
                warpgroup_multiply<0, 1>(
                    sum, matrix_descriptor(from + k * 2, SWIZZLE_128, 16, 1024),
                    matrix_descriptor(v + k * BOX_ROW, SWIZZLE_128, TILE_BYTES, 1024));
            }
            product_commit();
            product_wait<0>();
            barrier_arrive_warp(x.empty());
            b.v.release(b.v.at);
        }
        barrier_arrive_warp(b.v_done);
    }

    /* Begins a chunk of leave_parts. */
    __device__ __forceinline__ void start_part(const uint32_t (&rows)[ROWS * 2], int i,
                                               float (&sum)[KC / 2]) {
        uint32_t of;
        if (BACK) {
            of = await_w(i);
        } else {
            of = v_slot<S>(base, b.v.at);
            b.v.wait_full();
            b.v.next();
        }
        product_fence();
#pragma unroll
        for (int k = 0; k < ROWS; k += 2) {
            const bool two = k + 1 < ROWS;
            const uint32_t a[4] = {rows[k * 2], rows[k * 2 + 1], two ? rows[(k + two) * 2] : 0,
                                   two ? rows[(k + two) * 2 + 1] : 0};
            const uint64_t w = BACK
                                   ? matrix_descriptor(of + k * 1024, SWIZZLE_128, TILE_BYTES, 1024)
                                   : matrix_descriptor(of + k * 16, SWIZZLE_128, 16, 1024);
            if (k == 0) warpgroup_multiply<BACK, false>(sum, a, w);
            if (k > 0) warpgroup_multiply<BACK, true>(sum, a, w);
        }
        product_commit();
    }

    __device__ __forceinline__ void store_part(uint4 *to, int i, const float *sum) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const float *s = sum + j * 4 + half * 2;
                const uint4 four = make_uint4(pack(s[0], s[1]), pack(s[4], s[5]), pack(s[8], s[9]),
                                              pack(s[12], s[13]));
                __stcg(to + (half * 8 * p.chunks + i) * 8 + j + lane % 4, four);
            }
        }
    }

    /* Stores it, once its product is done. */
    __device__ __forceinline__ void finish_part(uint4 *to, int i, const float (&sum)[KC / 2]) {
        if (BACK) {
            release_w(i);
        } else {
            b.v.release(v_done);
            v_done = v_done + 1 == b.SLOTS ? 0 : v_done + 1;
        }
        store_part(to, i, sum);
    }

    /* Backward: leaves the parts of chunks that lie side by side, WIDE at once, since a product's
     * operand in registers should serve as many as it can. Returns the number of chunks done. */
    __device__ __forceinline__ int leave_wide_parts(const uint32_t (&rows)[ROWS * 2], uint4 *to) {
        const bool beside = p.held == S::MOST_HELD && p.chunks == p.held + 1;
        const int last = p.held + beside;
        int i = 0;
#pragma unroll 1
        for (; i + WIDE <= last; i += WIDE) {
            float sum[WIDE * KC / 2];
            const uint32_t w = base + S::W + i * S::W_BYTES;
            await_w(i);
            await_w(i + WIDE - 1);
            product_fence();
#pragma unroll
            for (int k = 0; k < ROWS; k += 2) {
                const bool two = k + 1 < ROWS;
                const uint32_t a[4] = {rows[k * 2], rows[k * 2 + 1], two ? rows[(k + two) * 2] : 0,
                                       two ? rows[(k + two) * 2 + 1] : 0};
                const uint64_t of = matrix_descriptor(w + k * 1024, SWIZZLE_128, S::W_BYTES, 1024);
                if (k == 0) warpgroup_multiply<1, false>(sum, a, of);
                if (k > 0) warpgroup_multiply<1, true>(sum, a, of);
            }
            product_commit();
            product_wait<0>();
            release_w(i + WIDE - 1);
#pragma unroll
            for (int k = 0; k < WIDE; k++) store_part(to, i + k, sum + k * KC / 2);
        }
        return i;
    }

    /* Leaves this thread block's part of V h or W' dz for all hubs, and says so. `rows`: pairs of
     * neighbouring rows, [ROWS][half of the columns]. A chunk is stored while the next one is
     * multiplied. */
    __device__ __forceinline__ void leave_parts(const uint32_t (&rows)[ROWS * 2]) {
        uint4 *to = p.parts + ((size_t)blockIdx.x * MOST_COLUMNS + column) * p.chunks * 8;
        float one[KC / 2], two[KC / 2];
        int i = 0;
        if (BACK) i = leave_wide_parts(rows, to);
#pragma unroll 1
        for (; i + 1 < (BACK ? p.held : p.chunks); i += 2) {
            start_part(rows, i, one);
            start_part(rows, i + 1, two);
            product_wait<1>();
            finish_part(to, i, one);
            product_wait<0>();
            finish_part(to, i + 1, two);
        }
#pragma unroll 1
        for (; i < p.chunks; i++) {
            start_part(rows, i, one);
            product_wait<0>();
            finish_part(to, i, one);
        }
        if (!BACK) barrier_arrive_warp(b.v_done);
        sync();
        if (thread == 0) count_up(counter_of_hubs(p.counters, COUNT_SUMS, 0));
        __syncwarp();
    }

    /* ------------------------------------------------------------------------ a column's hubs */

    __device__ bool has_hub(int w) const {
        return hub_of(thread, w) < p.hubs;
    }

    __device__ void load_pairs(const bf16 *from, uint32_t (&to)[4]) const {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            to[w] = has_hub(w) ? *(const uint32_t *)(from + hub_of(thread, w)) : 0;
        }
    }

    __device__ void load_floats(const float *from, float otherwise, float (&to)[VECTOR]) const {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const bool has = from && has_hub(i / 2);
            to[i] = has ? from[hub_of(thread, i / 2) + i % 2] : otherwise;
        }
    }

    /* Of arrays [step][hub][columns]. */
    __device__ size_t kept_place(int n, int t, int i) const {
        const size_t row = (size_t)t * p.hubs + hub_of(thread, i / 2) + i % 2;
        return row * p.columns + p.first_column + n;
    }

    __device__ __forceinline__ void store_column(bf16 *to, int n, const float (&x)[VECTOR],
                                                 bool mine) const {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            if (!mine || !has_hub(w)) continue;
            *(uint32_t *)(to + (size_t)n * p.hubs + hub_of(thread, w)) =
                pack(x[2 * w], x[2 * w + 1]);
        }
    }

    /* Adds up the parts of a column. The threads that have hubs then have their sums. */
    __device__ __forceinline__ void add_parts(int n, float (&x)[VECTOR]) const {
        const int vectors = p.chunks * 8, of = thread / vectors, shares = S::THREADS / vectors;
        const uint4 *from = p.parts + (size_t)n * vectors + thread % vectors;
        const int blocks = of < shares ? gridDim.x : 0;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) x[i] = 0;
#pragma unroll 1
        for (int s = of; s < blocks; s += PARTS_AHEAD * shares) {
            uint4 more[PARTS_AHEAD];
#pragma unroll
            for (int k = 0; k < PARTS_AHEAD; k++) {
                const int part = s + k * shares;
                more[k] = make_uint4(0, 0, 0, 0);
                if (part < blocks) {
                    more[k] = __ldcg(from + (size_t)part * MOST_COLUMNS * vectors);
                }
            }
#pragma unroll
            for (int k = 0; k < PARTS_AHEAD; k++) {
                const uint32_t words[4] = {more[k].x, more[k].y, more[k].z, more[k].w};
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    x[2 * w] += low(words[w]);
                    x[2 * w + 1] += high(words[w]);
                }
            }
        }
        /* where x will be */
        float4 *scratch = (float4 *)(shared + S::X);
        if (of > 0 && of < shares) {
            scratch[thread * 2] = make_float4(x[0], x[1], x[2], x[3]);
            scratch[thread * 2 + 1] = make_float4(x[4], x[5], x[6], x[7]);
        }
        sync();
        if (of == 0) {
            for (int k = 1; k < shares; k++) {
                const float4 one = scratch[(thread + k * vectors) * 2];
                const float4 two = scratch[(thread + k * vectors) * 2 + 1];
                const float more[VECTOR] = {one.x, one.y, one.z, one.w, two.x, two.y, two.z, two.w};
#pragma unroll
                for (int i = 0; i < VECTOR; i++) x[i] += more[i];
            }
        }
    }

    /* Two sums over all consumers. */
    __device__ __forceinline__ void add_threads(float &one, float &two) const {
        float2 *scratch = (float2 *)(shared + S::SCRATCH);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            one += __shfl_xor_sync(~0u, one, step);
            two += __shfl_xor_sync(~0u, two, step);
        }
        if (lane == 0) scratch[thread / 32] = make_float2(one, two);
        sync();
        one = two = 0;
#pragma unroll
        for (int i = 0; i < S::GROUPS * 4; i++) {
            one += scratch[i].x;
            two += scratch[i].y;
        }
    }

    /* Gives all others a column of m or dv. */
    __device__ __forceinline__ void publish(int n, const float (&x)[VECTOR], bool mine) {
        store_column(p.exchange, n, x, mine);
        global_fence();
        sync();
        if (thread == 0) count_up(counter_of_hubs(p.counters, COUNT_M, n / BOX));
        __syncwarp();
    }

    /* Where V h of a column's hubs is kept for backward: in the order [column][hub], but in the
     * places of this launch's columns alone, as backward stores gradients in these. */
    __device__ uint32_t *kept_hubs(int t, int n, int w) const {
        const int width = S::GROUPS * BOX, at = n * p.hubs + hub_of(thread, w);
        const size_t row = (size_t)t * p.hubs + at / width;
        return (uint32_t *)(p.hub_raw + row * p.columns + p.first_column + at % width);
    }

    __device__ float *kept_sums(int t) const {
        return kept_statistics(p.sums + (size_t)t * sums_gate(p.columns), p.columns) +
               p.first_column;
    }

    /* m of the columns that this thread block owns, at step t. */
    __device__ __forceinline__ void finish_hubs(int t) {
        const bool mine = thread < p.chunks * 8;
        sync(); /* what was staged has been read */
        if (p.keep && t > 0) barrier_wait(b.kept, (t - 1) % 2);
        for (int n = blockIdx.x; n < S::GROUPS * BOX; n += gridDim.x) {
            float x[VECTOR], v[VECTOR] = {}, y[VECTOR] = {}, gain[VECTOR], bias[VECTOR];
            float total = 0, square = 0, shift = 0, scale = 1;
            uint32_t entry[4] = {};
            if (mine) {
                const int byte = p.bytes[(size_t)t * p.columns + p.first_column + n];
                load_pairs(p.hub_table + (size_t)byte * p.hubs, entry);
                load_floats(p.hub_gain, 1, gain);
                load_floats(p.hub_bias, 0, bias);
            }
            await_parts(t);
            add_parts(n, x);
            if (mine) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    const float from = i % 2 ? high(entry[i / 2]) : low(entry[i / 2]);
                    if (p.below && has_hub(i / 2)) x[i] += to_float(p.below[kept_place(n, t, i)]);
                    v[i] = rounded(x[i]);
                    x[i] = p.norm_last ? rounded(v[i] * from) : v[i];
                    total += x[i];
                    square += x[i] * x[i];
                }
            }
            if (p.norm) {
                add_threads(total, square);
                find_statistics(total / p.hubs, square / p.hubs, shift, scale);
                if (thread == 0) {
                    kept_sums(t)[n] = shift;
                    kept_sums(t)[p.columns + n] = scale;
                }
            }
            if (mine) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    const float from = i % 2 ? high(entry[i / 2]) : low(entry[i / 2]);
                    y[i] = gain[i] * (x[i] * scale + shift) + bias[i];
                    if (!p.norm_last) y[i] *= from;
                }
            }
            publish(n, y, mine);
#pragma unroll
            for (int w = 0; w < 4; w++) {
                if (!p.keep || !mine || !has_hub(w)) continue;
                *kept_hubs(t, n, w) = pack(v[2 * w], v[2 * w + 1]);
            }
        }
        if (thread == 0) barrier_arrive(b.x_free);
        __syncwarp();
    }

    /* dv of the columns that this thread block owns; kernels/cpu/stages.c has the equations. */
    __device__ __forceinline__ void finish_hubs_backward(int t, int round) {
        const bool mine = thread < p.chunks * 8;
        sync(); /* what was staged has been read */
        if (round > 0) barrier_wait(b.kept, (round - 1) % 2);
        for (int n = blockIdx.x; n < S::GROUPS * BOX; n += gridDim.x) {
            float d[VECTOR] = {}, raw[VECTOR], v[VECTOR] = {}, gain[VECTOR], bias[VECTOR];
            float mean = 0, product = 0, shift = 0, scale = 1;
            uint32_t entry[4] = {}, kept[4] = {};
            if (mine) {
                const int byte = p.bytes[(size_t)t * p.columns + p.first_column + n];
                load_pairs(p.hub_table + (size_t)byte * p.hubs, entry);
#pragma unroll
                for (int w = 0; w < 4; w++) kept[w] = has_hub(w) ? *kept_hubs(t, n, w) : 0;
                load_floats(p.hub_gain, 1, gain);
                load_floats(p.hub_bias, 0, bias);
                if (p.norm) {
                    shift = kept_sums(t)[n];
                    scale = kept_sums(t)[p.columns + n];
                }
            }
            await_parts(round);
            add_parts(n, d);
            if (mine) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    const float from = i % 2 ? high(entry[i / 2]) : low(entry[i / 2]);
                    v[i] = i % 2 ? high(kept[i / 2]) : low(kept[i / 2]);
                    raw[i] = (p.norm_last ? rounded(v[i] * from) : v[i]) * scale + shift;
                    d[i] = rounded(d[i]);
                    if (!p.norm_last) {
                        v[i] = d[i] * (gain[i] * raw[i] + bias[i]);
                        d[i] = rounded(d[i] * from);
                    }
                    if (!has_hub(i / 2)) continue;
                    hub_dbias[i] += d[i];
                    hub_dgain[i] += d[i] * raw[i];
                    mean += gain[i] * d[i];
                    product += gain[i] * d[i] * raw[i];
                }
            }
            if (p.norm) add_threads(mean, product);
            mean /= p.hubs;
            product /= p.hubs;
            if (mine) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    const float from = i % 2 ? high(entry[i / 2]) : low(entry[i / 2]);
                    if (p.norm) d[i] = (gain[i] * d[i] - mean - raw[i] * product) * scale;
                    if (p.norm_last) {
                        d[i] = rounded(d[i]);
                        v[i] *= d[i];
                        d[i] *= from;
                    }
                }
            }
            store_column(p.aside, n, v, mine);
            publish(n, d, mine);
        }
        if (thread == 0) barrier_arrive(b.x_free);
        __syncwarp();
    }

    /* Waits for all thread blocks' parts. */
    __device__ __forceinline__ void await_parts(int round) {
        if (thread == 0) {
            await_count(counter_of_hubs(p.counters, COUNT_SUMS, 0), (round + 1) * gridDim.x,
                        p.stuck);
        }
        sync();
    }

    /* ----------------------------------------------------------------------------- the gates */

    /* Which of this thread's updates are dropped, a bit for each. */
    __device__ uint32_t draw_dropout(int t) const {
        uint32_t dropped = 0;
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            const int n = p.first_column + column + k / 2 % 2 * 8, which = n % 4;
            const uint4 four = philox_draw(
                p.dropout_seed, (uint32_t)cell_of(k), (p.dropout_stream + (uint32_t)n) / 4,
                (uint32_t)p.arguments->update, PHILOX_PURPOSE(PHILOX_DROPOUT, p.first_step + t));
            const uint32_t one = which % 2 ? four.y : four.x, two = which % 2 ? four.w : four.z;
            if ((which < 2 ? one : two) < p.dropout_threshold) dropped |= 1u << k;
        }
        return dropped;
    }

    /* What dropout multiplies an update by. */
    __device__ float kept_share(uint32_t dropped, int k) const {
        if (p.dropout_threshold == 0) return 1;
        return dropped >> k & 1 ? 0 : p.dropout_scale;
    }

    /* Where c of a step is kept for backward, after the first step and before the last; in vectors
     * of four. */
    __device__ float4 *c_of(int t) const {
        const size_t box = (size_t)t * (p.columns / BOX) + p.first_column / BOX + group;
        return (float4 *)p.c + (box * gridDim.x + blockIdx.x) * (U / 8) * GROUP + thread % GROUP;
    }

    __device__ uint2 *z_of(int t) const {
        const size_t box = (size_t)t * (p.columns / BOX) + p.first_column / BOX + group;
        return p.z + (box * gridDim.x + blockIdx.x) * (HUB_GATES * J) * GROUP + thread % GROUP;
    }

    /* Stages rows of a group's columns, pairs of neighbours as leave_parts has them, in a slot of
     * its x, for TMA to store. */
    __device__ __forceinline__ void stage(uint32_t to, const uint32_t *pair) const {
        const int chunk = warp * 2 + lane / 8 % 2;
        to += lane % 8 * BOX_ROW + (chunk ^ (lane % 8)) * 16;
#pragma unroll
        for (int j = 0; j < J * 2; j += 4) {
            const int other = j + 4 <= J * 2 ? 2 : 0; /* the last eight rows once more */
            const uint32_t four[4] = {pair[j], pair[j + 1], pair[j + other], pair[j + other + 1]};
            store_matrices_transposed(to + (j + lane / 16 * other) / 2 * 8 * BOX_ROW, four);
        }
        shared_fence();
    }

    /* The gates of a step; h as pairs of neighbouring cells, [J][half of the columns]. */
    __device__ __forceinline__ void run_gates(int t, float (&c)[U / 2], uint32_t (&h)[J * 2]) {
        const float4 *biases = (const float4 *)(shared + S::BIAS);
        const uint8_t *text = p.bytes + (size_t)t * p.columns + p.first_column + column;
        const int byte[2] = {text[0], text[8]};
        float sum[HUB_GATES * U / 2] = {};
        uint4 entry[J][2];
        uint32_t dropped = 0;
#pragma unroll
        for (int k = 0; k < J * 2; k++) {
            entry[k / 2][k % 2] = make_uint4(0, 0, 0, 0);
            if (!p.gates_table) continue;
            const size_t at = (size_t)byte[k % 2] * p.hidden + cell_of(k / 2 * 4);
            entry[k / 2][k % 2] = *(const uint4 *)(p.gates_table + at * GATES);
        }
        if (p.dropout_threshold > 0) dropped = draw_dropout(t);
        multiply_w(sum, t);
#pragma unroll
        for (int j = 0; j < J; j++) {
            uint32_t z[HUB_GATES][2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4 e = entry[j][half];
                float x[2][GATES], y[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int k = (j * 2 + half) * 2 + i;
                    const float4 bias = biases[cell_of(k) - first];
                    const uint32_t one = i ? e.z : e.x, two = i ? e.w : e.y;
                    const float from[HUB_GATES] = {high(one), low(two), high(two)};
                    const float own[HUB_GATES] = {bias.x, bias.y, bias.z};
#pragma unroll
                    for (int gate = 0; gate < HUB_GATES; gate++) {
                        x[i][gate + 1] =
                            sum[(gate * J + j) * 4 + half * 2 + i] + from[gate] + own[gate];
                    }
                }
#pragma unroll
                for (int gate = 0; gate < HUB_GATES; gate++) {
                    z[gate][half] = pack(x[0][gate + 1], x[1][gate + 1]);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int k = (j * 2 + half) * 2 + i;
#pragma unroll
                    for (int gate = 1; gate < GATES; gate++) x[i][gate] *= slope<bf16>(gate);
                    x[i][GATE_U] *= kept_share(dropped, k);
                    y[i] = update_cell<bf16>(x[i], c[k], true);
                }
                h[j * 2 + half] = pack(y[0], y[1]);
            }
            if (!p.keep) continue;
#pragma unroll
            for (int gate = 0; gate < HUB_GATES; gate++) {
                __stcs(z_of(t) + (gate * J + j) * GROUP, make_uint2(z[gate][0], z[gate][1]));
            }
        }
    }

    __device__ __forceinline__ void store_state(int t, const float (&c)[U / 2],
                                                const uint32_t (&h)[J * 2]) {
        stage(slot(0), h);
        sync_half();
        if (thread % GROUP == 0) {
            tensor_store(&p.out, slot(0), p.first_column + group * BOX, t * p.hidden + first);
            store_commit();
            store_wait<0>();
        }
        __syncwarp();
        if (p.keep && t < p.steps) {
#pragma unroll
            for (int k = 0; k < U / 2; k += 4) {
                __stcs(c_of(t) + k / 4 * GROUP, make_float4(c[k], c[k + 1], c[k + 2], c[k + 3]));
            }
            return;
        }
        float *to = p.c + (size_t)t * p.hidden * p.columns;
#pragma unroll
        for (int k = 0; k < U / 2; k++) __stcs(to + place_of(k), c[k]);
    }

    __device__ void run_forward() {
        float c[U / 2];
        uint32_t h[J * 2];
#pragma unroll
        for (int k = 0; k < U / 2; k += 2) {
            h[k / 2] = pack(to_float(p.h[place_of(k)]), to_float(p.h[place_of(k + 1)]));
            c[k] = p.c[place_of(k)];
            c[k + 1] = p.c[place_of(k + 1)];
        }
        leave_parts(h);
#pragma unroll 1
        for (int t = 0; t < p.steps; t++) {
            finish_hubs(t);
            run_gates(t, c, h);
            if (t + 1 < p.steps) {
                leave_parts(h);
            } else {
                sync(); /* all have multiplied, so slots of x are free */
            }
            store_state(t + 1, c, h);
        }
    }

    /* Has the L2 fetch what the gates of a step will read. */
    __device__ __forceinline__ void fetch_ahead(int t) const {
        if (thread % GROUP) return;
        prefetch(z_of(t), HUB_GATES * J * GROUP * sizeof(uint2));
        prefetch(c_of(t), U / 8 * GROUP * sizeof(float4));
        if (group) return;
        const bf16 *dh = p.dh + ((size_t)t * p.hidden + first) * p.columns;
        if (p.columns <= MOST_COLUMNS) prefetch(dh, U * p.columns * sizeof(bf16));
    }

    /* What backward reads of eight cells: the gates' arguments, c before the step, the head's
     * gradient at h. */
    struct gates_inputs {
        uint2 z[HUB_GATES];
        float before[4];
        bf16 dh[4];
    };

    __device__ __forceinline__ void load_inputs(int t, int j, gates_inputs &in) const {
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            in.z[gate] = __ldcs(z_of(t) + (gate * J + j) * GROUP);
        }
        if (t > 0) {
            const float4 four = __ldcs(c_of(t) + j * GROUP);
            in.before[0] = four.x;
            in.before[1] = four.y;
            in.before[2] = four.z;
            in.before[3] = four.w;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (t == 0) in.before[k] = p.c[place_of(j * 4 + k)];
            in.dh[k] = p.dh[(size_t)t * p.hidden * p.columns + place_of(j * 4 + k)];
        }
    }

    /* The gates of a step backward: from dh, V' dv or what is given included, and the c of the
     * step, which becomes the one before, to dz and the next dc. */
    __device__ __forceinline__ void run_gates_backward(int t, int round, bool asked,
                                                       float (&c)[U / 2], float (&dc)[U / 2],
                                                       uint32_t (&dz)[PAIRS]) {
        float sum[U / 2] = {};
        gates_inputs in[J];
        uint32_t dropped = 0;
#pragma unroll
        for (int j = 0; j < J; j++) load_inputs(t, j, in[j]);
        if (p.dropout_threshold > 0) dropped = draw_dropout(t);
        if (round >= 0) multiply_v(sum, round);
        if (asked) {
#pragma unroll
            for (int k = 0; k < U / 2; k++) sum[k] = to_float(p.dx[place_of(k)]);
        }
#pragma unroll
        for (int j = 0; j < J; j++) {
            const float *before = in[j].before;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float d[HUB_GATES][2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int k = (j * 2 + half) * 2 + i, own = half * 2 + i;
                    float x[HUB_GATES];
#pragma unroll
                    for (int gate = 0; gate < HUB_GATES; gate++) {
                        const uint2 of = in[j].z[gate];
                        const uint32_t two = half ? of.y : of.x;
                        x[gate] = (i ? high(two) : low(two)) * slope<bf16>(gate + 1);
                    }
                    const float share = kept_share(dropped, k);
                    const float f = squash_sigmoid<bf16>(x[0]), o = squash_sigmoid<bf16>(x[1]);
                    const float u = squash_tanh<bf16>(x[2] * share);
                    const float of_c = squash_tanh<bf16>(slope<bf16>(GATE_U) * c[k]);
                    const float of_h = sum[k] + to_float(in[j].dh[own]);
                    const float of_next = dc[k] + of_h * o * (1 - of_c * of_c);
                    d[0][i] = of_next * (before[own] - u) * f * (1 - f);
                    d[1][i] = of_h * of_c * o * (1 - o);
                    d[2][i] = of_next * (1 - f) * (1 - u * u) * share;
                    dc[k] = of_next * f;
                    c[k] = before[own];
                }
#pragma unroll
                for (int gate = 0; gate < HUB_GATES; gate++) {
                    dz[(gate * J + j) * 2 + half] = pack(d[gate][0], d[gate][1]);
                }
            }
        }
    }

    /* Stores dz for the gradients of weights and tables, and adds it to those of biases: a thread
     * has a row's half of the group's columns. */
    __device__ __forceinline__ void store_gradients(int t, const uint32_t (&dz)[PAIRS]) {
        const int row = thread % GROUP / 2, half = thread % 2;
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            const uint32_t at = slot(gate % 2);
            if (gate >= 2) {
                if (thread % GROUP == 0) store_wait<0>();
                sync_half();
            }
            stage(at, dz + gate * J * 2);
            sync_half();
            if (thread % GROUP == 0) {
                tensor_store(&p.out, at, p.first_column + group * BOX,
                             (t * HUB_GATES + gate) * p.hidden + first);
                store_commit();
            }
            __syncwarp();
            float total = 0;
            for (int i = 0; row < U && i < 4; i++) {
                const uint4 eight =
                    shared_words(at + row * BOX_ROW + half * 64 + (i + row) % 4 * 16);
                const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
                for (int w = 0; w < 4; w++) total += low(words[w]) + high(words[w]);
            }
            dbias[gate] += total;
        }
        if (thread % GROUP == 0) store_wait<0>();
        __syncwarp();
    }

    /* Stores the gradients of the gates' biases, and this thread block's of the hubs' gains. */
    __device__ void store_sums() {
        float *scratch = (float *)(shared + S::X);
        const int row = thread % GROUP / 2;
        if (thread < p.chunks * 8) {
            float *to = p.gradients + (size_t)blockIdx.x * 2 * MOST_CHUNKS * KC;
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const int hub = hub_of(thread, i / 2) + i % 2;
                to[hub] = hub_dgain[i];
                to[MOST_CHUNKS * KC + hub] = hub_dbias[i];
            }
        }
        sync();
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            dbias[gate] += __shfl_xor_sync(~0u, dbias[gate], 1);
            if (group) scratch[gate * 64 + row] = dbias[gate];
        }
        sync();
        if (group || row >= U || thread % 2 || !p.dbias) return;
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            float *to = p.dbias + (size_t)gate * p.hidden + first + row;
            if (S::GROUPS > 1) dbias[gate] += scratch[gate * 64 + row];
            *to = dbias[gate] + (p.first_column ? *to : 0);
        }
    }

    __device__ void run_backward() {
        const float *last = p.c + (size_t)p.steps * p.hidden * p.columns;
        float c[U / 2], dc[U / 2];
        uint32_t dz[PAIRS];
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            c[k] = last[place_of(k)];
            dc[k] = p.later ? p.dc[place_of(k)] : 0;
        }
#pragma unroll 1
        for (int t = p.steps - 1; t >= 0; t--) {
            const bool start = t == p.steps - 1;
            run_gates_backward(t, p.steps - 2 - t, start && p.later, c, dc, dz);
            if (t > 1) fetch_ahead(t - 1);
            leave_parts(dz);
            store_gradients(t, dz);
            finish_hubs_backward(t, p.steps - 1 - t);
        }
        if (p.earlier) {
            float sum[U / 2] = {};
            multiply_v(sum, p.steps - 1);
#pragma unroll
            for (int k = 0; k < U / 2; k++) {
                p.dx[place_of(k)] = from_float<bf16>(sum[k]);
                p.dc[place_of(k)] = dc[k];
            }
        }
        store_sums();
    }
};

/* ---------------------------------------------------------------------------------- the kernels */

template <typename S, bool BACK>
static __global__ void __launch_bounds__(S::THREADS + GROUP, 1)
    hubs_kernel(const __grid_constant__ hub_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    char *shared = aligned_tiles(unaligned);
    const uint32_t base = shared_address(shared);
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const bool consumes = warp < S::GROUPS * 4;
    const int role = warp - S::GROUPS * 4; /* of others: 0 loads weights, 1 and 2 x, 3 copies */
    for (int i = threadIdx.x; i < S::BARRIERS / 16; i += blockDim.x) {
        ((uint4 *)shared)[i] = make_uint4(0, 0, 0, 0);
    }
    for (int i = threadIdx.x; i < S::U * 4; i += blockDim.x) {
        const int gate = i % 4;
        const bool has = p.bias && gate < HUB_GATES;
        const size_t at = (size_t)gate * p.hidden + blockIdx.x * S::U + i / 4;
        ((float *)(shared + S::BIAS))[i] = has ? p.bias[at] : 0;
    }
    hub_barriers<BACK> b;
    b.template create<S>(base + S::BARRIERS);
    shared_fence();
    barrier_init_done();
    __syncthreads();
    if (!consumes) {
        if (S::GROUPS == 2) registers_shrink<40>();
        if (role == 0) produce_weights<S, BACK>(p, base, b);
        if (role > 0 && role <= S::GROUPS) produce_exchanged<S, BACK>(p, base, role - 1, b);
        if (role == 3 && p.keep) keep_columns<S, BACK>(p, b);
        __syncwarp();
    } else {
        if (S::GROUPS == 2) registers_grow<232>();
        hub_consumer<S, BACK> my(p, base, shared, b);
        if constexpr (BACK) my.run_backward();
        if constexpr (!BACK) my.run_forward();
        if (threadIdx.x % GROUP == 0) store_finish();
    }
#endif
}

/* Adds up what thread blocks have of the gradients of hubs' gains and biases. */
static __global__ void add_hub_gradients(const float *from, int blocks, int hubs, bool more,
                                         float *dgain, float *dbias) {
    const int hub = blockIdx.x * blockDim.x + threadIdx.x;
    float *to = blockIdx.y ? dbias : dgain;
    if (hub >= hubs || !to) return;
    float total = more ? to[hub] : 0;
    for (int i = 0; i < blocks; i++) {
        total += from[((size_t)i * 2 + blockIdx.y) * MOST_CHUNKS * KC + hub];
    }
    to[hub] = total;
}

/* ------------------------------------------------------------------------------------- launches */

/* Calls `what`<cells of a thread block, groups of columns, backward>. */
#define WITH_CELLS(cells, what, ...)                                                               \
    ((cells) == 40   ? what<40>(__VA_ARGS__)                                                       \
     : (cells) == 48 ? what<48>(__VA_ARGS__)                                                       \
     : (cells) == 56 ? what<56>(__VA_ARGS__)                                                       \
                     : what<64>(__VA_ARGS__))

template <int U> static int hubs_together(backend *be) {
    typedef hub_shape<U, 2> S;
    return min(
        count_together(be, (const void *)hubs_kernel<S, false>, 1, S::THREADS + GROUP, S::BYTES),
        count_together(be, (const void *)hubs_kernel<S, true>, 1, S::THREADS + GROUP, S::BYTES));
}

template <typename S> static void launch_shape(backend *be, hub_arguments &p, bool backward) {
    p.held = min(p.chunks, (int)S::MOST_HELD);
    const int all = X_SLOTS + MORE_SLOTS, streamed = p.chunks - p.held;
    const bool more = streamed == 0 || (streamed == 1 && p.chunks * S::GROUPS % all == 0);
    p.x_slots = !backward && more ? all : X_SLOTS;
    be->zero(be, p.counters, SEQUENCE_COUNTERS * COUNTER_WORDS * sizeof *p.counters);
    cuda_launch(be, backward ? "cell backward" : "cell forward", false,
                backward ? hubs_kernel<S, true> : hubs_kernel<S, false>, dim3(p.hidden / S::U),
                S::THREADS + GROUP, (size_t)S::BYTES, p);
}

template <int U> static void launch_hubs(backend *be, hub_arguments &p, bool backward) {
    if (p.columns - p.first_column > BOX) launch_shape<hub_shape<U, 2>>(be, p, backward);
    if (p.columns - p.first_column <= BOX) launch_shape<hub_shape<U, 1>>(be, p, backward);
}

hub_tables *hubs_plan(backend *be, device_layout *device, const layout *l) {
    const int cells[] = {40, 48, 56, 64}, hidden = l->out_block, hubs = l->in_block;
    if (!cuda_of(be)->hopper || be->precision != BF16 || !layout_is_dense(l)) return NULL;
    if (l->gates != HUB_GATES || hubs == hidden || l->in_stride > 1) return NULL;
    if (hubs > MOST_CHUNKS * KC || hubs % 8) return NULL;
    for (int i = 0; i < 4; i++) {
        const int blocks = hidden / cells[i], chunks = (hubs + KC - 1) / KC;
        if (hidden % cells[i] || blocks > WITH_CELLS(cells[i], hubs_together, be)) continue;
        const size_t width = (size_t)chunks * KC;
        hub_tables *t = layout_plan<hub_tables>(device);
        t->cells = cells[i];
        t->counters = (uint32_t *)layout_device_block(
            be, device, SEQUENCE_COUNTERS * COUNTER_WORDS * sizeof *t->counters);
        t->exchange = (bf16 *)layout_device_block(be, device, MOST_COLUMNS * hubs * sizeof(bf16));
        t->aside = (bf16 *)layout_device_block(be, device, MOST_COLUMNS * hubs * sizeof(bf16));
        t->parts =
            (uint4 *)layout_device_block(be, device, blocks * MOST_COLUMNS * width * sizeof(bf16));
        t->gradients = (float *)layout_device_block(
            be, device, (size_t)blocks * 2 * MOST_CHUNKS * KC * sizeof(float));
        t->hub_table = (bf16 *)layout_device_block(be, device, VOCABULARY * hubs * sizeof(bf16));
        t->gates_table = (bf16 *)layout_device_block(
            be, device, (size_t)VOCABULARY * hidden * GATES * sizeof(bf16));
        return t;
    }
    return NULL;
}

const char *hubs_lack(backend *be, const cell *c) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[c->stages - 1];
    if (cuda_of(be)->kernel) return "no kernel in SMALLWORLD_KERNEL";
    if (gates->gates != HUB_GATES || gates->layer_norm) {
        return "coupled gates without layer norm";
    }
    if (c->stages != 2 || !layout_is_dense(&hubs->layout->host) || hubs->relu ||
        hubs->table_use != TABLE_MULTIPLY) {
        return "one dense stage whose table multiplies, besides the gates";
    }
    if (!gates->layout->hubs) {
        return "Hopper, bf16, at most 1,024 hubs, a multiple of 8, and a multiple of 40, 48, 56 or "
               "64 cells, few enough for as many to each multiprocessor";
    }
    return NULL;
}

/* Rows of `width` elements in boxes of `box_width` by `box_rows`. */
static bool map_rows(backend *be, CUtensorMap *map, const void *base, int width, int rows,
                     int planes, int box_width, int box_rows, int box_planes) {
    const uint64_t row = (uint64_t)width * sizeof(bf16);
    const uint64_t extent[3] = {(uint64_t)width, (uint64_t)rows, (uint64_t)planes};
    const uint64_t stride[2] = {row, row * (uint64_t)rows};
    const uint32_t box[3] = {(uint32_t)box_width, (uint32_t)box_rows, (uint32_t)box_planes};
    return make_map(be, map, base, planes ? 3 : 2, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

static void run_hubs(backend *be, const cell *c, bool backward) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[1];
    hub_tables *t = gates->layout->hubs;
    const int hidden = c->hidden, columns = c->columns, U = t->cells;
    const void *out = backward ? gates->dpre : c->h;
    const int rows = backward ? HUB_GATES * c->steps : c->steps + 1;
    hub_arguments p = {};
    p.steps = c->steps;
    p.hidden = hidden;
    p.columns = columns;
    p.hubs = hubs->units;
    p.chunks = (hubs->units + KC - 1) / KC;
    p.keep = c->keep;
    p.norm = hubs->layer_norm;
    p.norm_last = hubs->norm_last;
    p.later = c->has_later_steps;
    p.earlier = c->has_earlier_steps;
    p.counters = t->counters;
    p.stuck = cuda_stuck_word(be, "hubs");
    p.exchange = t->exchange;
    p.aside = t->aside;
    p.parts = t->parts;
    p.bytes = c->bytes;
    p.below = (const bf16 *)c->below;
    p.hub_table = t->hub_table;
    p.gates_table = gates->table_use == TABLE_ADD ? t->gates_table : NULL;
    p.hub_gain = (const float *)hubs->gain;
    p.hub_bias = (const float *)hubs->bias;
    p.bias = (const float *)gates->bias;
    p.sums = (fixed *)hubs->sums;
    p.hub_raw = (bf16 *)hubs->raw;
    p.hub_out = (bf16 *)hubs->out;
    p.hub_entry = (bf16 *)hubs->dentry;
    p.hub_gradient = (bf16 *)stage_raw_gradient(hubs);
    p.z = (uint2 *)gates->raw;
    p.h = (bf16 *)c->h;
    p.dh = (bf16 *)c->dh;
    p.dx = (bf16 *)c->dx;
    p.c = (float *)c->c;
    p.dc = (float *)c->dc;
    p.dbias = (float *)gates->dbias;
    p.gradients = t->gradients;
    p.dropout_threshold = c->dropout.threshold;
    p.dropout_scale = (float)c->dropout.scale;
    p.dropout_seed = c->dropout.seed;
    p.dropout_stream = c->dropout.first_stream;
    p.arguments = c->arguments;
    p.first_step = c->first_step;
    turn_table(be, hubs, (const uint16_t *)hubs->table, (uint16_t)0x3F80, (uint16_t *)t->hub_table);
    if (p.gates_table && !backward) {
        turn_table(be, gates, (const uint2 *)c->entries, make_uint2(0, 0), (uint2 *)t->gates_table);
    }
    if (!map_rows(be, &p.w, gates->weight, p.hubs, hidden, HUB_GATES, KC, U, HUB_GATES) ||
        !map_rows(be, &p.v, hubs->weight, hidden, p.hubs, 0, 64, KC, 0) ||
        !map_rows(be, &p.x, t->exchange, p.hubs, MOST_COLUMNS, 0, KC, BOX, 0) ||
        !map_rows(be, &p.out, out, columns, rows * hidden, 0, BOX, U, 0)) {
        return;
    }
    for (; p.first_column < columns; p.first_column += MOST_COLUMNS) {
        WITH_CELLS(U, launch_hubs, be, p, backward);
        if (!backward) continue;
        add_hub_gradients<<<dim3((p.hubs + 127) / 128, 2), 128, 0, cuda_of(be)->stream>>>(
            t->gradients, hidden / U, p.hubs, p.first_column > 0, (float *)hubs->dgain,
            (float *)hubs->dbias);
        cuda_launched(be, "gradients of hubs");
    }
}

void hubs_forward(backend *be, const cell *c) {
    run_hubs(be, c, false);
}

void hubs_backward(backend *be, const cell *c) {
    run_hubs(be, c, true);
}
