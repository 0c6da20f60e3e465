/* What the kernels of hubs.cu take, how their shared memory is shared out, and the warps that load
 * and copy. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_HUBS_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_HUBS_CUH

#include "cell/gates.cuh"
#include "cell/hubs.h"
#include "device/waits.cuh"
#include "products/hopper/hopper.cuh"

enum {
    KC = 64,                   /* hubs of a chunk */
    COUNTER_WORDS = 32,        /* of which the first one counts */
    COUNTERS = 4,              /* kinds times groups of columns */
    MOST_CHUNKS = 16,          /* of KC hubs */
    TILE_BYTES = 64 * BOX_ROW, /* 64 rows of 128 bytes */
    X_SLOTS = 4,               /* 64 columns of a chunk of m or dv */
    V_SLOTS = 3,               /* 64 hubs by 64 cells, of which a thread block has U */
    MORE_SLOTS = 2,            /* of x forward, see x_use */
    V_MORE = X_SLOTS,          /* forward, where x was */
    HUB_GATES = COUPLED_GATES, /* f o u */
    MOST_COLUMNS = 2 * BOX,    /* of a thread block: 64 for a warpgroup */
    PARTS_AHEAD = 22,          /* that are on their way together */
    WIDE = 3,                  /* chunks, see leave_wide_parts */
    PACE = 300,                /* nanoseconds, see keep_columns */
    VECTOR = 8                 /* hubs of a thread that adds parts, see hub_of */
};

/* What is planned for gates that read hubs: how many cells a thread block of hubs.cu has, and a
 * piece of hub_steps.cu (0: these kernels do not take them), and the memory of both, with room for
 * the most columns. */
struct hub_plan {
    int cells, step_cells;
    uint32_t *counters;     /* [COUNTERS][COUNTER_WORDS] */
    bf16 *exchange, *aside; /* [columns][hubs]: m or dv; backward, the gradient at entries */
    void *parts;            /* of sums for hubs */
    bf16 *first_z;          /* [HUB_GATES][hidden][columns], see z_of */
    float4 *dc;             /* [hidden * columns / 4], by steps */
    float *gradients;       /* of the hubs' gains and biases: [thread blocks or columns][2][hubs] */
    float *more_biases;     /* by steps, of spans after the first: see gates_back */
    bf16 *hub_table;        /* [VOCABULARY][hubs] */
    bf16 *gates_table;      /* [VOCABULARY][hidden][GATES] */
};

typedef struct hub_arguments {
    CUtensorMap w, v;                            /* [HUB_GATES][hidden][hubs], [hubs][hidden] */
    CUtensorMap x;                               /* exchange */
    CUtensorMap out;                             /* rows of columns: h of all steps, or dpre */
    int steps, hidden, columns, hubs, no_column; /* no_column: 0, see hub_gates */
    int x_slots, chunks, held; /* x_slots: see x_use; held: chunks of W that stay */
    bool keep, norm, norm_last, later, earlier;
    uint32_t *counters, *stuck;
    bf16 *exchange, *aside;
    void *parts;
    const uint8_t *bytes;
    const bf16 *below, *hub_table, *gates_table;
    const float *hub_gain, *hub_bias, *bias;
    fixed *sums;
    bf16 *hub_raw, *hub_out, *hub_entry, *hub_gradient; /* as in struct stage */
    bf16 *raw, *first_z;                                /* see z_of */
    size_t z_step;                                      /* elements of a step, ... */
    uint32_t z_box, z_piece;                            /* ... of its 64 columns, of U cells */
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

/* Kinds of counters: of thread blocks that have left their parts, of columns of m or dv. */
enum { COUNT_PARTS, COUNT_COLUMNS };

/* A counter of one kind and group, on a line of its own. One word for all and one poll by each
 * thread block: where everybody polled everybody's flag, it took thrice as long. */
static __device__ inline uint32_t *counter_of(uint32_t *counters, int kind, int group) {
    return counters + (kind * 2 + group) * COUNTER_WORDS;
}

/* What the thread wrote, or has seen written, is there for whoever has awaited the count. */
static __device__ inline void count_up(uint32_t *counter) {
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

/* Waits until the counter has reached `count`. One thread calls this. */
static __device__ inline void await_count(const uint32_t *counter, uint32_t count,
                                          uint32_t *stuck) {
    for (patience patience; (int)(load_flag(counter) - count) < 0;) patience.lose(stuck);
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
            await_count(counter_of(p.counters, COUNT_COLUMNS, group), (r + 1) * BOX, p.stuck);
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
                await_count(counter_of(p.counters, COUNT_COLUMNS, lane), (r + 1) * BOX, p.stuck);
            }
            __syncwarp();
        }
        for (int n = blockIdx.x; n < S::GROUPS * BOX; n += gridDim.x) {
            const size_t at = (size_t)n * p.hubs;
            size_t to = ((size_t)t * p.hubs + lane) * p.columns + n;
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

/* ------------------------------------------------------------------------------ on the host */

/* Calls `what`<cells of a thread block>. */
#define WITH_CELLS(cells, what, ...)                                                               \
    ((cells) == 40   ? what<40>(__VA_ARGS__)                                                       \
     : (cells) == 48 ? what<48>(__VA_ARGS__)                                                       \
     : (cells) == 56 ? what<56>(__VA_ARGS__)                                                       \
                     : what<64>(__VA_ARGS__))

/* How many cells a thread block of hubs.cu has; 0: it does not take the layout. */
int hubs_cells(backend *be, const layout *l);

/* What a cell lacks to be kernels of hubs, whatever was planned for its layouts; NULL: nothing. */
const char *hub_cell_lacks(backend *be, const cell *c);

/* Fills what the cell and its plan tell kernels of hubs that have U cells each, and turns its
 * tables. */
void hubs_prepare(backend *be, const cell *c, bool backward, int U, hub_arguments *p);

/* [planes][rows][width], or without planes [rows][width], in boxes of box_rows by box_width, of all
 * planes. */
bool hubs_map_rows(backend *be, CUtensorMap *map, const void *base, int width, int rows, int planes,
                   int box_width, int box_rows);

/* Adds up what `blocks` thread blocks have of dgain and dbias, from [blocks][2][width]. */
void hubs_add_gradients(backend *be, const stage *hubs, const float *from, int blocks, int width);

#endif
