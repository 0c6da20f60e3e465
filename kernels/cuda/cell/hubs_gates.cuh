/* What kernels of hubs with coupled gates make of their cells' sums: the gates, forward and
 * backward, in registers as a product's sums lie. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_HUBS_GATES_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_HUBS_GATES_CUH

#include "cell/hubs.cuh"

#include <cuda_fp16.h>

static __device__ inline float low(uint32_t two) {
    return __uint_as_float(two << 16);
}

static __device__ inline float high(uint32_t two) {
    return __uint_as_float(two & 0xFFFF0000u);
}

static __device__ inline float rounded(float x) {
    return to_float(from_float<bf16>(x));
}

/* The bias of a cell's gate; 0 if it has none. */
static __device__ inline float gate_bias(const hub_arguments &p, int gate, int cell) {
    const bool has = p.bias && gate < HUB_GATES && cell < p.hidden;
    return has ? p.bias[(size_t)gate * p.hidden + cell] : 0;
}

/* A thread of GROUPS warpgroups, one for each 64 columns, that has a share of U cells. With SPANS
 * its columns are not all that there are. */
template <int U_, int GROUPS_, bool SPANS = false> struct hub_gates {
    static const int U = U_, GROUPS = GROUPS_, J = U / 8;
    static const int PAIRS = HUB_GATES * J * 2; /* of z or dz */
    const hub_arguments &p;
    uint32_t staging;              /* shared memory for rows that TMA stores, see slot */
    const float4 *biases;          /* [U] */
    int piece, pieces;             /* which U cells, and of how many */
    int thread, group, warp, lane; /* thread: of all consumers; warp: of the group */
    int first, span, column;       /* the first cell; columns before; this thread's of these */
    bool has_columns;              /* the last span may have none for the last group */
    float dbias[HUB_GATES] = {};   /* backward, of half of the columns */

    __device__ hub_gates(const hub_arguments &p_, uint32_t staging_, const void *biases_,
                         int piece_, int pieces_, int span_ = 0)
        : p(p_), staging(staging_), biases((const float4 *)biases_), piece(piece_), pieces(pieces_),
          span(span_) {
        thread = threadIdx.x;
        group = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
        warp = thread % GROUP / 32;
        lane = thread % 32;
        first = piece * U;
        has_columns = !SPANS || span + group * BOX < p.columns;
        if (!has_columns) span -= BOX; /* what it reads there is of no use */
        column = group * BOX + warp * 16 + lane / 4;
    }

    __device__ void sync_groups() const {
        group_sync(1, GROUPS * GROUP);
    }

    __device__ void sync_half() const {
        group_sync(2 + group, GROUP);
    }

    /* The columns before the first group's. Without spans it is an argument, 0: were it known to
     * the compiler, backward of hubs.cu would spill more registers. */
    __device__ int before() const {
        return SPANS ? span : p.no_column;
    }

    /* Cells are numbered in a thread as sums lie: [J][half of the columns][neighbour]. */
    __device__ int cell_of(int k) const {
        return first + k / 4 * 8 + lane % 4 * 2 + k % 2;
    }

    __device__ size_t place_of(int k) const {
        return (size_t)cell_of(k) * p.columns + before() + column + k / 2 % 2 * 8;
    }

    /* One of two slots for this group to stage rows in. */
    __device__ uint32_t slot(int i) const {
        return staging + (group * 2 + i) * TILE_BYTES;
    }

    /* Which of this thread's updates are dropped, a bit for each. */
    __device__ uint32_t draw_dropout(int t) const {
        uint32_t dropped = 0;
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            const int n = before() + column + k / 2 % 2 * 8, which = n % 4;
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
        const size_t box = (size_t)t * (p.columns / BOX) + before() / BOX + group;
        return (float4 *)p.c + (box * pieces + piece) * (U / 8) * GROUP + thread % GROUP;
    }

    /* Where a thread keeps eight cells' arguments of a gate: in raw, where their own gradients will
     * lie. Those of a step lie one step before it, where gradients come once all thread blocks have
     * read them, and so they can lie as threads have them: [64 columns][thread block][gate][U / 8]
     * [thread], which backward reads 4 us a step faster than any order within a gate's rows. */
    __device__ uint2 *z_of(int t, int gate, int j) const {
        const uint32_t box = before() / BOX + group;
        bf16 *step = t == 0 ? p.first_z : p.raw + (size_t)(t - 1) * p.z_step;
        return (uint2 *)(step + piece * p.z_piece + box * p.z_box + gate * U * BOX) + j * GROUP +
               thread % GROUP;
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

    /* The bytes of this thread's two columns. */
    __device__ int2 bytes_of(int t) const {
        const uint8_t *text = p.bytes + (size_t)t * p.columns + before() + column;
        return make_int2(text[0], text[8]);
    }

    /* The table's entries of eight cells. */
    __device__ __forceinline__ void load_gates_entries(int2 bytes, int j, uint4 (&entry)[2]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const size_t at = (size_t)(half ? bytes.y : bytes.x) * p.hidden + cell_of(j * 4);
            entry[half] = make_uint4(0, 0, 0, 0);
            if (p.gates_table) entry[half] = *(const uint4 *)(p.gates_table + at * GATES);
        }
    }

    /* The gates of eight cells, from all sums of W m; c of these, and h as pairs of neighbouring
     * cells, [half of the columns]. */
    __device__ __forceinline__ void make_gates(int j, int t, const float (&sum)[HUB_GATES * U / 2],
                                               const uint4 (&entry)[2], uint32_t dropped, float *c,
                                               uint32_t *h) const {
        uint32_t z[HUB_GATES][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint4 e = entry[half];
            float x[2][GATES], y[2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float4 bias = biases[cell_of(j * 4 + i) - first];
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
                const int own = half * 2 + i;
#pragma unroll
                for (int gate = 1; gate < GATES; gate++) x[i][gate] *= slope<bf16>(gate);
                x[i][GATE_U] *= kept_share(dropped, j * 4 + own);
                y[i] = update_cell<bf16>(x[i], c[own], true);
            }
            h[half] = pack(y[0], y[1]);
        }
        if (!p.keep) return;
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            __stcs(z_of(t, gate, j), make_uint2(z[gate][0], z[gate][1]));
        }
    }

    /* h of a step; the last 64 columns that were staged have been read. */
    __device__ __forceinline__ void store_h(int t, const uint32_t (&h)[J * 2]) const {
        stage(slot(0), h);
        sync_half();
        if (thread % GROUP == 0) {
            tensor_store(&p.out, slot(0), before() + group * BOX, t * p.hidden + first);
            store_commit();
            store_wait<0>();
        }
        __syncwarp();
    }

    __device__ __forceinline__ void store_c(int t, int j, const float *c) const {
        if (p.keep && t < p.steps) {
            __stcs(c_of(t) + j * GROUP, make_float4(c[0], c[1], c[2], c[3]));
            return;
        }
        float *to = p.c + (size_t)t * p.hidden * p.columns;
#pragma unroll
        for (int k = 0; k < 4; k++) __stcs(to + place_of(j * 4 + k), c[k]);
    }

    /* c of eight cells before a step, kept for backward or not. */
    __device__ __forceinline__ void load_c(int t, int j, bool kept, float *c) const {
        if (kept) {
            const float4 four = __ldcs(c_of(t) + j * GROUP);
            c[0] = four.x;
            c[1] = four.y;
            c[2] = four.z;
            c[3] = four.w;
            return;
        }
        const float *from = p.c + (size_t)t * p.hidden * p.columns;
#pragma unroll
        for (int k = 0; k < 4; k++) c[k] = from[place_of(j * 4 + k)];
    }

    /* What backward reads of eight cells: the gates' arguments and c before the step. */
    struct gates_inputs {
        uint2 z[HUB_GATES];
        float before[4];
    };

    /* What it makes of these before it has the gradient at h. With n = dc + dh h[0], the gradient
     * at c: dz = n h[2], dh h[1], n h[3] of f, o, u, and the next dc is n f. Numbers of about 1 at
     * most, in fp16, whose rounding is an eighth of that of dz. */
    struct gates_factors {
        __half2 h[4][2]; /* of h[0] and h[1], then of h[2] and h[3] */
        float f[4];
    };

    __device__ __forceinline__ void load_inputs(int t, int j, gates_inputs &in) const {
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            in.z[gate] = __ldcs(z_of(t, gate, j));
        }
        load_c(t, j, t > 0, in.before);
    }

    /* The factors of eight cells, from the c of the step, which becomes the one before. Unless it
     * is CARRIED from the step after, that c is made once more. */
    template <bool CARRIED>
    __device__ __forceinline__ void find_factors(const gates_inputs &in, int j, uint32_t dropped,
                                                 float (&c)[U / 2], gates_factors &to) const {
#pragma unroll
        for (int own = 0; own < 4; own++) {
            const int k = j * 4 + own;
            float x[HUB_GATES];
#pragma unroll
            for (int gate = 0; gate < HUB_GATES; gate++) {
                const uint32_t two = own / 2 ? in.z[gate].y : in.z[gate].x;
                x[gate] = (own % 2 ? high(two) : low(two)) * slope<bf16>(gate + 1);
            }
            const float share = kept_share(dropped, k);
            const float f = squash_sigmoid<bf16>(x[0]), o = squash_sigmoid<bf16>(x[1]);
            const float u = squash_tanh<bf16>(x[2] * share);
            const float state = CARRIED ? c[k] : f * in.before[own] + (1 - f) * u;
            const float of_c = squash_tanh<bf16>(slope<bf16>(GATE_U) * state);
            c[k] = in.before[own];
            to.f[own] = f;
            to.h[own][0] = __floats2half2_rn(o * (1 - of_c * of_c), of_c * o * (1 - o));
            to.h[own][1] =
                __floats2half2_rn((c[k] - u) * f * (1 - f), (1 - f) * (1 - u * u) * share);
        }
    }

    /* dz and the next dc of eight cells, from the gradient at h. */
    __device__ __forceinline__ void differentiate(int j, const float (&sum)[U / 2],
                                                  const gates_factors &factors, float (&dc)[U / 2],
                                                  uint32_t (&dz)[PAIRS]) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float d[HUB_GATES][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int k = (j * 2 + half) * 2 + i, own = half * 2 + i;
                const float2 one = __half22float2(factors.h[own][0]);
                const float2 two = __half22float2(factors.h[own][1]);
                const float of_next = dc[k] + sum[k] * one.x;
                d[0][i] = of_next * two.x;
                d[1][i] = sum[k] * one.y;
                d[2][i] = of_next * two.y;
                dc[k] = of_next * factors.f[own];
            }
#pragma unroll
            for (int gate = 0; gate < HUB_GATES; gate++) {
                dz[(gate * J + j) * 2 + half] = pack(d[gate][0], d[gate][1]);
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
                tensor_store(&p.out, at, before() + group * BOX,
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

    /* Stores the gradients of the gates' biases in `all`, with `more` added to what is there. All
     * consumers call this; scratch: HUB_GATES * 64 floats. */
    __device__ void store_biases(float *scratch, float *all, bool more) {
        const int row = thread % GROUP / 2;
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            dbias[gate] += __shfl_xor_sync(~0u, dbias[gate], 1);
            if (group) scratch[gate * 64 + row] = dbias[gate];
        }
        sync_groups();
        if (group || row >= U || thread % 2 || !all) return;
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            float *to = all + (size_t)gate * p.hidden + first + row;
            if (GROUPS > 1) dbias[gate] += scratch[gate * 64 + row];
            *to = dbias[gate] + (more ? *to : 0);
        }
    }
};

#endif
