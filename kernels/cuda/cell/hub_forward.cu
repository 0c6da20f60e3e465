/* An mlstm with hubs forward over its whole sequence as one kernel.
 *
 *   hubs    v' [columns][P] = h' V'     P hubs, whose inputs are all H cells
 *           m = norm(v) times the table's entries
 *   gates   raw' [columns][4 H] = m' W'
 *
 * A thread block keeps U cells through all steps, as in sequence_forward.cu, whose consumer makes
 * the gates. V has few rows and long k, so for the hubs a thread block is a tile of HUB_TILE hubs
 * and a part of k, and leaves partial sums. Each column belongs to a thread block, which adds the
 * sums of all its hubs, so layer norm needs no exchange of its own, and stores m for all.
 *
 * Floor: a step has four exchanges, of h, partial sums, m and the statistics of the gates, of 1.2
 * us each, and the L2 keeps nothing from one step to the next, as raw, c and h stream through it:
 * what is loaded of V and W comes from memory. Therefore some chunks of W stay in shared memory,
 * as many as leave room for two slots of weights and three of x. */
#include "cell/hub_forward.h"
#include "cell/sequence.cuh"

enum {
    HUB_UNITS = 48, /* cells of a thread block */
    V_CHUNKS = 2,   /* chunks of V in a slot */
    HUB_TILE = 96,  /* hubs of a tile */
    MOST_HUBS = 1024,
    HUB_COLUMNS = 2 * BOX /* at most */
};

struct hub_tables {
    uint32_t *counters;      /* of sequence_arguments, with what follows them */
    float *hub_sums;         /* [splits][HUB_COLUMNS][hubs] */
    bf16 *hub_table, *table; /* of both stages, turned, see sequence.cuh */
    bf16 *hubs;              /* [HUB_COLUMNS][hubs]: m of the step */
};

/* Its stage of sequence_arguments makes the gates of m. */
typedef struct hub_arguments : sequence_arguments {
    sequence_stage hub;
    int hubs, tiles, splits, chunks; /* chunks of a split's k */
    float *hub_sums;
    bf16 *m, *raw, *out; /* m as in hub_tables; of the stage: [steps][hubs][columns] */
} hub_arguments;

template <int GROUPS> struct hub_shape {
    static const int UNITS = HUB_UNITS, CLUSTER = 1;
    static const bool ABOVE = false, BY_ROWS = false;
    static const int W_BYTES = GATES * UNITS * KC * 2, X_BYTES = KC * BOX_ROW;
    static const int X_SLOTS = 3, W_SLOTS = 2, STAGED_PITCH = X_SLOTS * X_BYTES;
    static const int X = 0, RAW = X, OUT = X; /* staged where x was */
    static_assert(GATES * UNITS * BOX_ROW <= STAGED_PITCH, "raw has room");
    static const int W = X + GROUPS * X_SLOTS * X_BYTES;
    static const int HELD = W + W_SLOTS * W_BYTES, MOST_HELD = 5; /* chunks of W */
    static const int BARRIERS = HELD + MOST_HELD * W_BYTES;
    static const int HELD_FULL = BARRIERS + 16 * (W_SLOTS + GROUPS * X_SLOTS); /* a barrier */
    static const int GAINS = HELD_FULL + 16;
    static const int STATISTICS = GAINS + UNITS * 2 * GATES * 4;
    static const int SCRATCH = STATISTICS + GROUPS * GATES * 2 * BOX * 4;
    static const int BYTES = SCRATCH + GROUPS * 4 * GATES * 2 * 4 + 1024;
    static_assert(BYTES <= MOST_SHARED, "it all fits");
    static_assert(V_CHUNKS * HUB_TILE * KC * 2 == W_BYTES, "they fill a slot of W");
};

/* ------------------------------------------------------------------------------------ producers */

/* Where a thread block's part of V h lies. */
struct hub_part {
    int tile, split, begin, count; /* chunks of k */

    __device__ hub_part(const hub_arguments &p) {
        tile = blockIdx.x % p.tiles;
        split = blockIdx.x / p.tiles;
        begin = split * p.chunks;
        count = split < p.splits ? min(p.chunks, (p.hidden + KC - 1) / KC - begin) : 0;
    }
};

static __device__ inline int hub_chunks(const hub_arguments &p) {
    return (p.hubs + KC - 1) / KC;
}

/* Loads the chunks of W that stay once, and the others and V for each step. */
template <typename S>
static __device__ void produce_hub_weights(const hub_arguments &p, uint32_t base, uint32_t held,
                                           cursor<S::W_SLOTS> &ring) {
    const hub_part part(p);
    const int first = first_unit<S::UNITS>(p), chunks = hub_chunks(p);
    const int stay = held_chunks<S>(chunks), before = S::W_SLOTS;
    if (elected()) { /* where nothing stays, nobody waits for it */
        barrier_expect(held, stay * S::W_BYTES);
        for (int i = 0; i < stay; i++) {
            tensor_load(base + S::HELD + i * S::W_BYTES, &p.stage[0].weights, held,
                        (before + i) * KC, first, 0);
        }
    }
    __syncwarp();
    for (int t = 0; t < p.steps; t++) {
#pragma unroll 1
        for (int i = 0; i < part.count; i += V_CHUNKS, ring.next()) {
            ring.wait_empty();
            if (!elected()) continue;
            const int count = min((int)V_CHUNKS, part.count - i);
            const uint32_t full = ring.announce(count * HUB_TILE * KC * 2);
            const uint32_t to = base + S::W + ring.at * S::W_BYTES;
            for (int k = 0; k < count; k++) {
                tensor_load(to + k * HUB_TILE * KC * 2, &p.hub.weights, full,
                            (part.begin + i + k) * KC, part.tile * HUB_TILE);
            }
        }
#pragma unroll 1
        for (int i = 0; i < chunks; i++, ring.next()) {
            if (i == before) i += stay;
            if (i == chunks) break;
            ring.wait_empty();
            if (!elected()) continue;
            tensor_load(base + S::W + ring.at * S::W_BYTES, &p.stage[0].weights,
                        ring.announce(S::W_BYTES), i * KC, first, 0);
        }
    }
}

/* Loads the h of a group's columns, then their m, as soon as all thread blocks have stored it. */
template <typename S>
static __device__ void produce_hub_inputs(const hub_arguments &p, uint32_t base, int group,
                                          cursor<S::X_SLOTS> &ring) {
    const hub_part part(p);
    const int column = group * BOX, chunks = part.count + hub_chunks(p);
    const uint32_t to = base + S::X + group * S::X_SLOTS * S::X_BYTES;
    for (int t = 0; t < p.steps; t++) {
#pragma unroll 1
        for (int i = 0; i < chunks; i++, ring.next()) {
            if (i == 0 || i == part.count) {
                if (threadIdx.x % 32 == 0) {
                    const bool m = i == part.count;
                    await_count(counter_of(p, m ? COUNT_M : COUNT_OUT, group),
                                m ? (t + 1) * BOX : t * gridDim.x, p.stuck);
                }
                __syncwarp();
                global_fence();
            }
            ring.wait_empty();
            if (!elected()) continue;
            const uint32_t full = ring.announce(S::X_BYTES), at = to + ring.at * S::X_BYTES;
            if (i < part.count) {
                tensor_load(at, &p.hub.source, full, column, (part.begin + i) * KC, t);
            } else {
                tensor_load(at, &p.stage[0].source, full, (i - part.count) * KC, column);
            }
        }
    }
}

/* ------------------------------------------------------------------------------------ consumers */

/* What makes m of v, of a thread's hubs: four neighbours of each round. */
enum { ROUNDS = MOST_HUBS / (4 * GROUP) };

struct hub_inputs {
    float4 gain[ROUNDS], bias[ROUNDS];
    uint2 entry[ROUNDS];
};

template <typename S> struct hub_consumer : sequence_consumer<S> {
    const hub_arguments &h;
    hub_part part;
    uint2 raw[ROUNDS] = {}, m[ROUNDS] = {}; /* of its column, until they are kept */

    __device__ hub_consumer(const hub_arguments &p, uint32_t base, char *shared)
        : sequence_consumer<S>(p, base, shared), h(p), part(p) {}

    /* Leaves this thread block's part of V h. */
    __device__ __forceinline__ void leave_hub_sums() {
        if (part.count == 0) return;
        float sum[HUB_TILE / 2] = {};
        this->template multiply<true, V_CHUNKS>(sum, part.count, 0);
        const int n = this->group * BOX + this->warp * 16 + this->lane / 4;
        const int hub = part.tile * HUB_TILE + this->lane % 4 * 2;
        float *to = h.hub_sums + (size_t)(part.split * HUB_COLUMNS + n) * h.hubs + hub;
#pragma unroll
        for (int j = 0; j < HUB_TILE / 8; j++) {
            if (hub + 8 * j >= h.hubs) break;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const float *of = sum + j * 4 + half * 2;
                __stcg((float2 *)(to + (size_t)half * 8 * h.hubs + 8 * j),
                       make_float2(of[0], of[1]));
            }
        }
    }

    __device__ __forceinline__ void load_inputs(int t, hub_inputs &in) {
        const int byte = h.bytes[(size_t)t * h.columns + this->group * BOX + this->first_owned()];
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const int hub = (i * GROUP + this->thread) * 4;
            if (hub >= h.hubs) return;
            const bf16 *entries = h.hub.table + (size_t)byte * h.hubs + hub;
            const float4 ones = make_float4(1, 1, 1, 1), zeros = make_float4(0, 0, 0, 0);
            in.gain[i] = h.hub.gain ? *(const float4 *)(h.hub.gain + hub) : ones;
            in.bias[i] = h.hub.bias ? *(const float4 *)(h.hub.bias + hub) : zeros;
            in.entry[i] = *(const uint2 *)entries;
        }
    }

    /* Adds up all hubs of the column that this thread block owns, and stores their m. A thread has
     * four neighbouring hubs of each round. */
    __device__ __forceinline__ void finish_hubs(int t, const hub_inputs &in) {
        const int batch = 20;
        const int local = this->group * BOX + this->first_owned();
        float x[ROUNDS][4] = {}, total = 0, square = 0;
        if (this->thread == 0) {
            await_count(counter_of(h, COUNT_SUMS, this->group), (t + 1) * h.tiles * h.splits,
                        h.stuck);
        }
        this->sync();
        for (int s = 0; s < h.splits; s += batch) {
            float4 more[ROUNDS][batch]; /* on their way together */
#pragma unroll
            for (int i = 0; i < ROUNDS * batch; i++) {
                const int hub = (i / batch * GROUP + this->thread) * 4, split = s + i % batch;
                const size_t at = (size_t)(split * HUB_COLUMNS + local) * h.hubs + hub;
                more[i / batch][i % batch] = make_float4(0, 0, 0, 0);
                if (hub < h.hubs && split < h.splits) {
                    more[i / batch][i % batch] = __ldcg((const float4 *)(h.hub_sums + at));
                }
            }
#pragma unroll
            for (int i = 0; i < ROUNDS * batch; i++) {
                add_four_sums(x[i / batch], more[i / batch][i % batch]);
            }
        }
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const int hub = (i * GROUP + this->thread) * 4;
            if (hub >= h.hubs) break;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                if (h.below) {
                    const size_t row = (size_t)t * h.hubs + hub + e;
                    x[i][e] += to_float(h.below[row * h.columns + local]);
                }
                x[i][e] = to_float(from_float<bf16>(x[i][e]));
                total += x[i][e];
                square += x[i][e] * x[i][e];
            }
        }
        float shift = 0, scale = 1;
        if (h.hub.layer_norm) add_hubs(t, local, total, square, shift, scale);
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const float gain[4] = {in.gain[i].x, in.gain[i].y, in.gain[i].z, in.gain[i].w};
            const float bias[4] = {in.bias[i].x, in.bias[i].y, in.bias[i].z, in.bias[i].w};
            const int hub = (i * GROUP + this->thread) * 4;
            float y[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t two = e < 2 ? in.entry[i].x : in.entry[i].y;
                y[e] = gain[e] * (x[i][e] * scale + shift) + bias[e];
                y[e] *= __uint_as_float(e % 2 ? two & 0xFFFF0000u : two << 16);
            }
            raw[i] = make_uint2(pack(x[i][0], x[i][1]), pack(x[i][2], x[i][3]));
            m[i] = make_uint2(pack(y[0], y[1]), pack(y[2], y[3]));
            if (hub < h.hubs) *(uint2 *)(h.m + (size_t)local * h.hubs + hub) = m[i];
        }
        global_fence();
        this->sync();
        if (this->thread == 0) count_up(counter_of(h, COUNT_M, this->group));
    }

    /* Stores raw and m of a step as backward reads them. */
    __device__ __forceinline__ void keep_hubs(int t) const {
        if (!h.keep || this->first_owned() >= BOX) return;
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            const int hub = (i * GROUP + this->thread) * 4,
                      column = this->group * BOX + this->first_owned();
            const size_t at = ((size_t)t * h.hubs + hub) * h.columns + column;
            if (hub >= h.hubs) return;
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int shift = e % 2 * 16;
                const uint32_t one = e < 2 ? raw[i].x : raw[i].y, two = e < 2 ? m[i].x : m[i].y;
                ((uint16_t *)h.raw)[at + (size_t)e * h.columns] = (uint16_t)(one >> shift);
                ((uint16_t *)h.out)[at + (size_t)e * h.columns] = (uint16_t)(two >> shift);
            }
        }
    }

    /* A column's statistics, from its threads' sums. */
    __device__ __forceinline__ void add_hubs(int t, int column, float total, float square,
                                             float &shift, float &scale) {
        float *scratch = (float *)(this->shared + S::SCRATCH) + this->group * 4 * GATES * 2;
        float sums[2] = {total, square};
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sums[0] += __shfl_xor_sync(~0u, sums[0], step);
            sums[1] += __shfl_xor_sync(~0u, sums[1], step);
        }
        this->sync(); /* the scratch is free */
        if (this->lane == 0) *(float2 *)(scratch + this->warp * 2) = make_float2(sums[0], sums[1]);
        this->sync();
        sums[0] = sums[1] = 0;
#pragma unroll
        for (int i = 0; i < 8; i++) sums[i % 2] += scratch[i];
        find_statistics(sums[0] / h.hubs, sums[1] / h.hubs, shift, scale);
        if (this->thread == 0) {
            float *kept = kept_statistics(h.hub.sums + (size_t)t * sums_gate(h.columns), h.columns);
            kept[column] = shift;
            kept[h.columns + column] = scale;
        }
    }

    /* The hubs of a step. */
    __device__ __forceinline__ void run_hubs(int t) {
        const bool owner = this->first_owned() < BOX;
        hub_inputs in = {};
        if (owner) load_inputs(t, in);
        if (t > 0) keep_hubs(t - 1); /* now, as nothing is there to multiply yet */
        leave_hub_sums();
        this->sync();
        if (this->thread == 0 && part.count) count_up(counter_of(h, COUNT_SUMS, this->group));
        __syncwarp();
        if (owner) finish_hubs(t, in);
    }
};

/* ----------------------------------------------------------------------------------- the kernel */

template <int GROUPS>
static __global__ void __launch_bounds__((GROUPS + 1) * GROUP, 1)
    hub_forward(const __grid_constant__ hub_arguments p) {
#if ON_HOPPER
    typedef hub_shape<GROUPS> S;
    extern __shared__ char unaligned[];
    char *shared = aligned_tiles(unaligned);
    const uint32_t base = shared_address(shared), held = base + S::HELD_FULL;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0);
    const int role = max(warp - GROUPS * 4, 0); /* of a producer: 0 loads weights, others x */
    const int of = warp < GROUPS * 4 ? warp / 4 : role - 1; /* the group that a warp serves */
    hub_consumer<S> my(p, base, shared);
    load_gains<S::UNITS>(p, (float *)(shared + S::GAINS));
    my.weights.create(base + S::BARRIERS, GROUPS * 4);
    for (int group = 0; group < GROUPS; group++) {
        cursor<S::X_SLOTS> ring;
        ring.create(base + S::BARRIERS + 16 * (S::W_SLOTS + group * S::X_SLOTS), 4);
        if (group == of) my.inputs = ring;
    }
    if (threadIdx.x == 0) barrier_init(held, 1);
    barrier_init_done();
    __syncthreads();
    if (warp >= GROUPS * 4) {
        if (GROUPS == 2) registers_shrink<40>();
        if (role == 0) {
            produce_hub_weights<S>(p, base, held, my.weights);
        } else if (role <= GROUPS) {
            produce_hub_inputs<S>(p, base, of, my.inputs);
        }
        __syncwarp();
    } else {
        if (GROUPS == 2) registers_grow<232>();
        float c[S::UNITS / 2];
        my.load_c(c);
        my.fetch_text(0);
        my.held_full = held;
        for (int t = 0; t < p.steps; t++) {
            my.run_hubs(t);
            my.run_gates(t, hub_chunks(p), c);
        }
        my.keep_hubs(p.steps - 1);
    }
#endif
}

/* ------------------------------------------------------------------------------------- launches */

/* Thread blocks, or tiles, of this size. */
static int hub_parts(int size, int part) {
    return (size + part - 1) / part;
}

template <int GROUPS> static void launch_hubs(backend *be, const hub_arguments &p) {
    be->zero(be, p.counters, SEQUENCE_BYTES);
    cuda_launch(be, "cell forward", false, hub_forward<GROUPS>, dim3(p.parts), (GROUPS + 1) * GROUP,
                (size_t)hub_shape<GROUPS>::BYTES, p);
}

hub_tables *hub_forward_plan(backend *be, device_layout *device, const layout *l) {
    if (!cuda_of(be)->hopper || be->precision != BF16 || !layout_is_dense(l)) return NULL;
    if (l->gates != GATES || l->in_block == l->out_block || l->in_block > MOST_HUBS) return NULL;
    if (l->in_stride > 1) return NULL;
    const int parts = hub_parts(l->out_block, HUB_UNITS);
    if (parts < BOX) return NULL; /* a step is then faster by other kernels */
    if (parts >
        count_together(be, (const void *)hub_forward<2>, 1, 3 * GROUP, hub_shape<2>::BYTES)) {
        return NULL;
    }
    const size_t values = (size_t)HUB_COLUMNS * (size_t)l->in_block;
    const int splits = parts / hub_parts(l->in_block, HUB_TILE);
    hub_tables *tables = layout_plan<hub_tables>(device);
    tables->counters = (uint32_t *)layout_device_block(be, device, SEQUENCE_BYTES);
    tables->hub_sums = (float *)layout_device_block(be, device, splits * values * sizeof(float));
    tables->hub_table =
        (bf16 *)layout_device_block(be, device, VOCABULARY * l->in_block * sizeof(bf16));
    tables->table = (bf16 *)layout_device_block(be, device, sequence_table_bytes(l));
    tables->hubs = (bf16 *)layout_device_block(be, device, values * sizeof(bf16));
    return tables;
}

const char *hub_forward_lacks(backend *be, const cell *c) {
    const stage *hubs = &c->stage[0];
    if (cuda_of(be)->kernel) return "no kernel in SMALLWORLD_KERNEL";
    if (c->stages != 2 || !layout_is_dense(&hubs->layout->host) || hubs->relu ||
        hubs->table_use != TABLE_MULTIPLY) {
        return "one dense stage whose table multiplies, besides the gates";
    }
    if (c->columns > HUB_COLUMNS || c->columns % COLUMN_MULTIPLE) return "64 or 128 columns";
    if (!c->stage[1].layout->hubs) {
        return "Hopper, bf16, at most 1,024 hubs, and thread blocks of 48 cells, one or more for "
               "each of 64 columns and few enough to be there at once";
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

void hub_forward_run(backend *be, const cell *c) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[1];
    const hub_tables *tables = gates->layout->hubs;
    const int hidden = c->hidden, width = hubs->units, columns = c->columns;
    const int kept = c->keep ? c->steps : 1, all = (hidden + KC - 1) / KC;
    hub_arguments p = {};
    sequence_set(be, c, "hub_forward", tables->counters, &p);
    p.stages = 1;
    p.block = hidden;
    p.nodes = 1;
    p.parts = hub_parts(hidden, HUB_UNITS);
    p.hubs = width;
    p.tiles = hub_parts(width, HUB_TILE);
    p.chunks = (all + p.parts / p.tiles - 1) / (p.parts / p.tiles);
    p.splits = (all + p.chunks - 1) / p.chunks;
    p.hub_sums = tables->hub_sums;
    p.m = tables->hubs;
    p.raw = (bf16 *)hubs->raw;
    p.out = (bf16 *)hubs->out;
    sequence_set_stage(be, c, 0, tables->hub_table, &p.hub);
    sequence_set_stage(be, c, 1, tables->table, &p.stage[0]);
    sequence_stage *to = &p.stage[0];
    if (!map_rows(be, &p.hub.weights, hubs->weight, hidden, width, 0, KC, HUB_TILE, 0) ||
        !map_rows(be, &p.hub.source, c->h, columns, hidden, c->steps + 1, BOX, KC, 1) ||
        !map_rows(be, &to->weights, gates->weight, width, hidden, GATES, KC, HUB_UNITS, GATES) ||
        !map_rows(be, &to->source, p.m, width, HUB_COLUMNS, 0, KC, BOX, 0) ||
        !map_rows(be, &to->raw, gates->raw, columns, hidden, GATES * kept, BOX, HUB_UNITS, GATES) ||
        !map_rows(be, &to->out, c->h, columns, hidden * (c->steps + 1), 0, BOX, HUB_UNITS, 0)) {
        return;
    }
    columns > BOX ? launch_hubs<2>(be, p) : launch_hubs<1>(be, p);
}
