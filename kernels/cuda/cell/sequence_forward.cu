/* The cell forward over its whole sequence as one kernel, for layers narrow enough that a thread
 * block of at most 32 units fits on each multiprocessor.
 *
 *   stage      raw' [columns][rows] = x' [columns][k] W' [k][rows]    rows: U units of each gate
 *              y = what ops.h says of raw, layer norm's statistics and the table
 *   sequence   steps x stages of these, each of which reads all that the one before it wrote
 *
 * A thread block keeps the same U units through all steps, for all columns. So there are no partial
 * sums, c stays in registers, and the gates take raw from the accumulators. A step's weights are
 * loaded while the previous step's h is exchanged.
 *
 * The product is transposed, so that units are its narrow side: the tensor cores take 64 columns by
 * any multiple of 8 rows. A thread then holds all four gates of a unit and column. Each of two
 * warpgroups has 64 columns. Columns do not depend on each other, so the warpgroups exchange sums
 * and states separately, and share the weights alone.
 *
 * Two exchanges follow each product. The first makes layer norm's statistics. In the second,
 * TMA stores the stage's output, and a flag says so; the warps that load x wait for the
 * flags of all thread blocks. Therefore all thread blocks must run at once.
 *
 * Floor: a multiprocessor takes 64 bytes a cycle from the L2, and a chunk of 64 inputs brings 16 KB
 * of weights for 32 units and 16 KB of x for 128 columns. On an H200, with 3,072 units in blocks of
 * 64, 20 M parameters and 128 columns, a step takes 19.2 us, of which by the clock of a
 * multiprocessor the product takes 51 %, the statistics 20 %, the gates 8 %, and storing h, the
 * flags and the first x of the next step 21 %. As kernels of their own the product and the gates
 * took 24.8. What did not help is in docs/kernels/cell.md. */
#include "cell/gates.cuh"
#include "cell/sequence_forward.h"
#include "device/waits.cuh"
#include "products/hopper/hopper.cuh"

enum {
    KC = 64,              /* inputs of a chunk, of which a block has one or more */
    SEQUENCE_STAGES = 8,  /* of a cell, at most */
    SEQUENCE_NODES = 160, /* that a row reads, at most */
    SEQUENCE_PARTS = 160, /* thread blocks, at most */
    SEQUENCE_PARTIALS = 2 * BOX * SEQUENCE_PARTS * GATES * 2, /* words of 64 bits, see below */
    SEQUENCE_RESULTS = 2 * BOX * GATES * 2,
    SEQUENCE_BYTES = 2 * SEQUENCE_PARTS * 4 + (SEQUENCE_PARTIALS + SEQUENCE_RESULTS) * 8
};

typedef struct sequence_stage {
    CUtensorMap weights, source, raw, out;
    const int *row_start, *row_column;
    const float *gain, *bias;
    const bf16 *table; /* of the gates: entries */
    fixed *sums;
    table_use use;
    int stride;
    bool layer_norm, relu;
} sequence_stage;

typedef struct sequence_arguments {
    sequence_stage stage[SEQUENCE_STAGES]; /* the last one makes the gates */
    int stages, steps, hidden, columns, first_column;
    int block, nodes, parts; /* parts: thread blocks of a node */
    bool keep;
    uint32_t *flags;    /* [2][SEQUENCE_PARTS] */
    uint64_t *partials; /* [2][BOX][SEQUENCE_PARTS][GATES][2] */
    uint64_t *results;  /* [2][BOX][GATES][2] */
    const uint8_t *bytes;
    const bf16 *below; /* what the layer below adds to raw of the first stage; NULL: nothing */
    float *c;
    uint32_t dropout_threshold;
    float dropout_scale;
    uint64_t dropout_seed;
    uint32_t dropout_stream; /* dropout.first_stream */
    const update_arguments *arguments;
    int first_step;
    uint32_t *stuck; /* see device/waits.cuh */
} sequence_arguments;

/* U: units of a thread block. GROUPS: warpgroups, of 64 columns each. SHARES: thread blocks of a
 * cluster, which have units of the same node, so that the x they read is loaded once for all.
 * ABOVE: whether a layer below adds to the first stage. */
template <int U, int GROUPS, int SHARES, bool ABOVE_> struct sequence_shape {
    static const int UNITS = U, CLUSTER = SHARES;
    static const bool ABOVE = ABOVE_;
    static const int W_BYTES = GATES * U * KC * 2, X_BYTES = KC * BOX_ROW;
    static const int RAW_BYTES = GATES * U * BOX_ROW, OUT_BYTES = U * BOX_ROW;
    static const int X_SLOTS = 4;
    static const int X = 0, RAW = X + GROUPS * X_SLOTS * X_BYTES;
    static const int OUT = RAW + GROUPS * RAW_BYTES, W = OUT + GROUPS * OUT_BYTES;
    static const int SMALL = 25 << 10; /* for what is below, and alignment */
    static const int FIT = (MOST_SHARED - SMALL - W) / W_BYTES, W_SLOTS = FIT < 16 ? FIT : 16;
    static const int BARRIERS = W + W_SLOTS * W_BYTES;
    static const int LISTS = BARRIERS + 16 * (W_SLOTS + GROUPS * X_SLOTS);
    static const int GAINS = LISTS + SEQUENCE_STAGES * SEQUENCE_NODES * 2;
    static const int STATISTICS = GAINS + SEQUENCE_STAGES * U * 2 * GATES * 4;
    static const int SCRATCH = STATISTICS + GROUPS * GATES * 2 * BOX * 4;
    static const int BYTES = SCRATCH + GROUPS * 4 * GATES * 2 * 4 + 1024;
    static_assert(BYTES <= MOST_SHARED, "it all fits");
};

/* The thread block's first unit. Where a node's units are no whole number of parts, its last part
 * begins earlier: it shares units with the part before, and both write the same. */
template <int U> static __device__ inline int first_unit(const sequence_arguments &p) {
    const int node = blockIdx.x / p.parts, part = blockIdx.x % p.parts;
    return node * p.block + min(part * U, p.block - U);
}

/* ----------------------------------------------------------------------------------------- sums
 *
 * Layer norm's sums over all thread blocks' units take two trips through the L2. Each thread block
 * leaves its part of a column's sums with that column's owner; the owner adds them up, always in
 * the same order, and leaves the statistics for all. What is left are words of a value and a tag,
 * the number of the exchange, so a reader polls the word itself and needs no flag. A thread block
 * leaves its next part only after it has read the last statistics, so nothing is overwritten early.
 *
 * Atomic sums, as gates_backward has them, took 6 thousand cycles here, of which the thread blocks'
 * 1,024 atomics each were 2.4. */

/* Writes two values, each in a word with this tag. */
static __device__ inline void leave_words(uint64_t *to, float one, float two, uint32_t tag) {
    const uint64_t high = (uint64_t)tag << 32;
    asm volatile("st.relaxed.gpu.global.v2.u64 [%0], {%1, %2};" ::"l"(to),
                 "l"(high | __float_as_uint(one)), "l"(high | __float_as_uint(two))
                 : "memory");
}

/* Reads two such words. Returns whether both have this tag. */
static __device__ inline bool find_words(const uint64_t *from, uint32_t tag, float &one,
                                         float &two) {
    uint64_t word[2];
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(word[0]), "=l"(word[1])
                 : "l"(from)
                 : "memory");
    one = __uint_as_float((uint32_t)word[0]);
    two = __uint_as_float((uint32_t)word[1]);
    return word[0] >> 32 == tag && word[1] >> 32 == tag;
}

/* ------------------------------------------------------------------------------------ producers */

/* Loads the weights of the thread block's rows, chunk after chunk. It waits for empty slots alone,
 * so it runs ahead of the exchanges. */
template <typename S>
static __device__ void produce_sequence_weights(const sequence_arguments &p, uint32_t base,
                                                const int (&count)[SEQUENCE_STAGES],
                                                const int (&begin)[SEQUENCE_STAGES],
                                                cursor<S::W_SLOTS> &ring) {
    const int U = S::UNITS, slices = p.block / KC, inside = first_unit<U>(p) % p.block;
    for (int t = 0; t < p.steps; t++) {
        for (int s = 0; s < p.stages; s++) {
            const int gates = s + 1 == p.stages ? GATES : 1;
            for (int i = 0; i < count[s]; i++) {
                const int block = begin[s] + i;
#pragma unroll 1
                for (int slice = 0; slice < slices; slice++, ring.next()) {
                    ring.wait_empty();
                    if (!elected()) continue;
                    const uint32_t full = ring.announce(gates * U * KC * 2);
                    tensor_load(base + S::W + ring.at * S::W_BYTES, &p.stage[s].weights, full,
                                slice * KC, inside, block * gates);
                }
            }
        }
    }
}

/* Waits until the flags of all thread blocks have reached `number`. One warp calls this. A lane
 * polls several flags at once, since a trip to the L2 takes most of a microsecond. */
static __device__ void wait_for_parts(const uint32_t *flags, uint32_t number, uint32_t *stuck) {
    const int lane = threadIdx.x % 32, rounds = SEQUENCE_PARTS / 32;
    for (patience patience;; patience.lose(stuck)) {
        uint32_t flag[rounds];
        bool all = true;
#pragma unroll
        for (int i = 0; i < rounds; i++) {
            const int part = lane + i * 32;
            flag[i] = part < (int)gridDim.x ? load_flag(flags + part) : number;
        }
#pragma unroll
        for (int i = 0; i < rounds; i++) all &= (int)(flag[i] - number) >= 0;
        if (__all_sync(~0u, all)) return;
    }
}

/* Loads the x of a group's columns, for each stage once all thread blocks have written their
 * part. */
template <typename S>
static __device__ void produce_sequence_inputs(const sequence_arguments &p, uint32_t base,
                                               const uint16_t (*list)[SEQUENCE_NODES],
                                               const int (&count)[SEQUENCE_STAGES], int group,
                                               cursor<S::X_SLOTS> &ring) {
    const int slices = p.block / KC, rank = S::CLUSTER > 1 ? (int)cluster_rank() : 0;
    const int column = p.first_column + group * BOX;
    const uint32_t *flags = p.flags + group * SEQUENCE_PARTS;
    const uint32_t to = base + S::X + group * S::X_SLOTS * S::X_BYTES;
    uint32_t number = 0; /* stages that are done before this one */
    int turn = 0;
    for (int t = 0; t < p.steps; t++) {
        for (int s = 0; s < p.stages; s++, number++) {
            wait_for_parts(flags, number, p.stuck);
            __syncwarp();
            global_fence();
            const int plane = s == 0 ? t : p.keep ? t : 0;
            for (int i = 0; i < count[s]; i++) {
                const int row = plane * p.hidden + list[s][i] * p.block;
#pragma unroll 1
                for (int slice = 0; slice < slices; slice++, ring.next()) {
                    const bool mine = turn == rank; /* a cluster's thread blocks take turns */
                    turn = turn + 1 == S::CLUSTER ? 0 : turn + 1;
                    ring.wait_empty();
                    if (!elected()) continue;
                    const uint32_t full = ring.announce(S::X_BYTES);
                    const uint32_t at = to + ring.at * S::X_BYTES;
                    if (S::CLUSTER == 1) {
                        tensor_load(at, &p.stage[s].source, full, column, row + slice * KC);
                    } else if (mine) {
                        tensor_load_all(at, &p.stage[s].source, full, column, row + slice * KC,
                                        (1 << S::CLUSTER) - 1);
                    }
                }
            }
        }
    }
}

/* ------------------------------------------------------------------------------------ consumers */

/* The smaller; NaN if either is. */
static __device__ inline float smaller_or_nan(float a, float b) {
    float x;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(x) : "f"(a), "f"(b));
    return x;
}

/* sigmoid times tanh of arguments that slope has multiplied, with one reciprocal for both. The
 * exponents are limited to 60, beyond which neither function changes in fp32. */
static __device__ inline float squash_product(float of_sigmoid, float of_tanh) {
    const float a = exponential2(smaller_or_nan(of_sigmoid, 60));
    const float b = exponential2(smaller_or_nan(of_tanh, 60));
    return (b - 1) * reciprocal((1 + a) * (1 + b));
}

/* A consumer thread's place in the work, and its state from step to step. */
template <typename S> struct sequence_consumer {
    static const int U = S::UNITS;
    const sequence_arguments &p;
    uint32_t base;
    char *shared;
    int group, warp, lane, thread; /* warp and thread: within the group */
    int twice;                     /* units that the previous thread block has too */
    int first, column; /* first: unit of the thread block; column: this thread's first */
    cursor<S::W_SLOTS> weights;
    cursor<S::X_SLOTS> inputs;
    uint32_t number = 0, text = 0; /* number: stages done; text: bytes of both columns */

    __device__ sequence_consumer(const sequence_arguments &p_, uint32_t base_, char *shared_)
        : p(p_), base(base_), shared(shared_) {
        group = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
        thread = threadIdx.x % GROUP;
        warp = thread / 32;
        lane = thread % 32;
        first = first_unit<U>(p);
        twice = (int)blockIdx.x % p.parts * U - first % p.block;
        column = p.first_column + group * BOX + warp * 16 + lane / 4;
    }

    /* Where layer norm's statistics of the group's columns are: [gates][2][BOX]. */
    __device__ float *statistics() const {
        return (float *)(shared + S::STATISTICS) + group * GATES * 2 * BOX;
    }

    __device__ int unit(int j, int e) const {
        return 8 * j + lane % 4 * 2 + e;
    }

    /* Adds what comes from the layer below. Sums that are loaded before the product would make
     * ptxas wait for each multiplication. */
    template <int G> __device__ __forceinline__ void add_below(int t, float (&sum)[G * U / 2]) {
        const size_t row = (size_t)(t * p.nodes + first / p.block) * G * p.block + first % p.block;
        const bf16 *from = p.below + row * p.columns + column;
#pragma unroll
        for (int i = 0; i < G * U / 2; i++) { /* [gate][U / 8][half][neighbour] */
            const int at = i / (U / 2) * p.block + unit(i / 4 % (U / 8), i % 2);
            sum[i] += to_float(from[(size_t)at * p.columns + i / 2 % 2 * 8]);
        }
    }

    /* raw' += x' W' over a row's chunks. */
    template <int K> __device__ __forceinline__ void multiply(float (&sum)[K], int chunks) {
        const uint32_t x0 = base + S::X + group * S::X_SLOTS * S::X_BYTES, w0 = base + S::W;
        int used_w = 0, used_x = 0;
#pragma unroll 1
        for (int i = 0; i < chunks; i++, weights.next(), inputs.next()) {
            const uint32_t w = w0 + weights.at * S::W_BYTES, x = x0 + inputs.at * S::X_BYTES;
            weights.wait_full();
            inputs.wait_full();
            product_fence();
#pragma unroll
            for (int k = 0; k < KC; k += 16) {
                warpgroup_multiply<1, 0>(
                    sum, matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, KC * BOX_ROW, 1024),
                    matrix_descriptor(w + k * 2, SWIZZLE_128, 16, 1024));
            }
            product_commit();
            if (K < 32) { /* ptxas would make a stage of few rows wait for each product */
                product_wait<0>();
                weights.release(weights.at);
                release_everywhere<S::CLUSTER>(inputs, inputs.at);
                continue;
            }
            product_wait<1>(); /* the previous chunk's ran during the wait */
            if (i > 0) {
                weights.release(used_w);
                release_everywhere<S::CLUSTER>(inputs, used_x);
            }
            used_w = weights.at;
            used_x = inputs.at;
        }
        if (K < 32) return;
        product_wait<0>();
        weights.release(used_w);
        release_everywhere<S::CLUSTER>(inputs, used_x);
    }

    /* Writes pairs of neighbouring units, [COUNT units / 8][half], to rows of 64 columns in shared
     * memory, swizzled as TMA expects them. */
    template <int COUNT>
    __device__ __forceinline__ void stage_rows_of(uint32_t to, const uint32_t (&pair)[COUNT]) {
        const int chunk = warp * 2 + lane / 8 % 2;
        to += lane % 8 * BOX_ROW + (chunk ^ (lane % 8)) * 16;
#pragma unroll
        for (int j = 0; j < COUNT; j += 4) {
            const int other = j + 4 <= COUNT ? 2 : 0; /* the last eight units once more */
            const uint32_t four[4] = {pair[j], pair[j + 1], pair[j + other], pair[j + other + 1]};
            store_matrices_transposed(to + (j + lane / 16 * other) / 2 * 8 * BOX_ROW, four);
        }
    }

    __device__ void sync() const {
        group_sync(1 + group, GROUP);
    }

    /* Stores what is staged, and tells all thread blocks. */
    __device__ __forceinline__ void publish(const CUtensorMap *map, uint32_t from, int row) {
        shared_fence();
        sync();
        number++;
        if (thread == 0) {
            tensor_store(map, from, p.first_column + group * BOX, row);
            store_commit();
            store_finish();
            global_fence();
            store_flag(p.flags + group * SEQUENCE_PARTS + blockIdx.x, number);
        }
        __syncwarp();
    }

    /* Rounds raw, keeps it for backward, and makes layer norm's statistics of it with all other
     * thread blocks. */
    template <int G>
    __device__ __forceinline__ void take_raw(int s, int t, const float (&sum)[G * U / 2],
                                             uint32_t (&raw)[G * U / 4]) {
        const sequence_stage &g = p.stage[s];
        float *st = statistics();
#pragma unroll
        for (int i = 0; i < G * U / 4; i++) raw[i] = pack(sum[2 * i], sum[2 * i + 1]);
        if (g.layer_norm) leave_parts<G>(raw);
        if (p.keep) {
            const uint32_t to = base + S::RAW + group * S::RAW_BYTES;
            stage_rows_of(to, raw);
            shared_fence();
            sync();
            if (thread == 0) {
                tensor_store(&g.raw, to, p.first_column + group * BOX, first % p.block,
                             (t * p.nodes + first / p.block) * G);
                store_commit();
            }
            __syncwarp();
        }
        if (!g.layer_norm) {
            for (int i = thread; i < G * 2 * BOX; i += GROUP) st[i] = i / BOX % 2;
            sync();
            return;
        }
        add_columns<G>(g.sums + (size_t)t * G * sums_gate(p.columns));
        take_statistics<G>(st);
        sync();
    }

    /* Where a part of a column's sums is left. */
    __device__ uint64_t *partial(int n, int part, int gate) const {
        const int column = group * BOX + n;
        return p.partials + (((size_t)column * SEQUENCE_PARTS + part) * GATES + gate) * 2;
    }

    __device__ uint64_t *result(int n, int gate) const {
        return p.results + ((group * BOX + n) * GATES + gate) * 2;
    }

    /* Leaves this thread block's parts of the sums. The four lanes of a quad have units of the same
     * two columns. They exchange values until each lane has the sums of one gate for both columns,
     * or, in a stage of one gate, until two of the lanes have its sums for one column each. */
    template <int G> __device__ __forceinline__ void leave_parts(const uint32_t (&raw)[G * U / 4]) {
        float x[4 * G]; /* [gate][half][total, square] */
#pragma unroll
        for (int i = 0; i < 2 * G; i++) {
            float total = 0, square = 0;
#pragma unroll
            for (int j = 0; j < U / 8; j++) {
                if (8 * j < twice) continue;
                const uint32_t two = raw[(i / 2 * (U / 8) + j) * 2 + i % 2];
                const float one = __uint_as_float(two << 16);
                const float other = __uint_as_float(two & 0xFFFF0000u);
                total += one + other;
                square += one * one + other * other;
            }
            x[2 * i] = total;
            x[2 * i + 1] = square;
        }
        if (G == 1) {
#pragma unroll
            for (int i = 0; i < 4; i++) x[i] += __shfl_xor_sync(~0u, x[i], 2);
        }
#pragma unroll
        for (int bit = G == 1 ? 1 : 2, half = 2 * G; bit > 0; bit /= 2, half /= 2) {
            const bool upper = lane & bit;
#pragma unroll
            for (int i = 0; i < half; i++) {
                const float mine = upper ? x[half + i] : x[i], given = upper ? x[i] : x[half + i];
                x[i] = mine + __shfl_xor_sync(~0u, given, bit);
            }
        }
        const int n = warp * 16 + lane / 4, q = lane % 4;
        if (G == 1) {
            if (q < 2) leave_words(partial(n + 8 * q, blockIdx.x, 0), x[0], x[1], number + 1);
        } else {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                leave_words(partial(n + 8 * half, blockIdx.x, q), x[2 * half], x[2 * half + 1],
                            number + 1);
            }
        }
    }

    /* Adds up the sums of the columns that this thread block owns, of which it has one or none on a
     * large GPU. Leaves their statistics for the other thread blocks and for backward. */
    template <int G> __device__ __forceinline__ void add_columns(fixed *sums) {
        const int parts = gridDim.x, rounds = (SEQUENCE_PARTS * G + GROUP - 1) / GROUP;
        const int gate = thread % G;
        float *scratch = (float *)(shared + S::SCRATCH) + group * 4 * GATES * 2;
        for (int n = group ? parts - 1 - blockIdx.x : blockIdx.x; n < BOX; n += parts) {
            float part[rounds][2] = {};
            for (patience patience;; patience.lose(p.stuck)) {
                bool all = true;
#pragma unroll
                for (int i = 0; i < rounds; i++) {
                    const int from = (i * GROUP + thread) / G;
                    if (from >= parts) continue;
                    all &= find_words(partial(n, from, gate), number + 1, part[i][0], part[i][1]);
                }
                if (all) break;
            }
            float total[2] = {};
#pragma unroll
            for (int i = 0; i < 2 * rounds; i++) total[i % 2] += part[i / 2][i % 2];
            __syncwarp();
#pragma unroll
            for (int step = 16; step >= G; step /= 2) {
                total[0] += __shfl_xor_sync(~0u, total[0], step);
                total[1] += __shfl_xor_sync(~0u, total[1], step);
            }
            if (lane < G) {
                *(float2 *)(scratch + (warp * GATES + lane) * 2) = make_float2(total[0], total[1]);
            }
            sync();
            if (thread < G) {
                float shift, scale;
                total[0] = total[1] = 0;
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    total[i % 2] += scratch[(i / 2 * GATES + thread) * 2 + i % 2];
                }
                find_statistics(total[0] / p.hidden, total[1] / p.hidden, shift, scale);
                leave_words(result(n, thread), shift, scale, number + 1);
                const int column = p.first_column + group * BOX + n;
                float *kept = kept_statistics(sums + thread * sums_gate(p.columns), p.columns);
                kept[column] = shift;
                kept[p.columns + column] = scale;
            }
            if (n + parts < BOX) sync(); /* the next column uses the same scratch */
        }
    }

    /* Waits for the statistics of all columns of the group and stores them in shared memory. */
    template <int G> __device__ __forceinline__ void take_statistics(float *st) {
        const int each = G == 1 ? 1 : G * BOX / GROUP;
        if (thread >= G * BOX) return;
        float found[each][2];
        for (patience patience;; patience.lose(p.stuck)) {
            bool all = true;
#pragma unroll
            for (int i = 0; i < each; i++) {
                const int at = i * GROUP + thread;
                all &= find_words(result(at / G, at % G), number + 1, found[i][0], found[i][1]);
            }
            if (all) break;
        }
#pragma unroll
        for (int i = 0; i < each; i++) {
            const int n = (i * GROUP + thread) / G, gate = thread % G;
            st[gate * 2 * BOX + n] = found[i][0];
            st[(gate * 2 + 1) * BOX + n] = found[i][1];
        }
    }

    /* The bytes of this thread's two columns, fetched a step ahead. */
    __device__ void fetch_text(int t) {
        if (t == p.steps) return;
        const uint8_t *from = p.bytes + (size_t)t * p.columns + column;
        text = from[0] | from[8] << 8;
    }

    /* A unit's row of its table; -1: it has none. */
    __device__ static int entry_of(const sequence_stage &g, int unit) {
        if (g.stride == 1) return unit;
        return unit % g.stride ? -1 : unit / g.stride;
    }

    /* Draws which updates are dropped, a bit for each in the order of c. */
    __device__ uint32_t draw_dropout(int t) const {
        uint32_t dropped = 0;
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            const int n = column + k / 2 % 2 * 8, which = n % 4;
            const uint4 four =
                philox_draw(p.dropout_seed, (uint32_t)(first + unit(k / 4, k % 2)),
                            (p.dropout_stream + (uint32_t)n) / 4, (uint32_t)p.arguments->update,
                            PHILOX_PURPOSE(PHILOX_DROPOUT, p.first_step + t));
            const uint32_t low = which % 2 ? four.y : four.x, high = which % 2 ? four.w : four.z;
            if ((which < 2 ? low : high) < p.dropout_threshold) dropped |= 1u << k;
        }
        return dropped;
    }

    /* An internal stage of a step. */
    __device__ __forceinline__ void run_internal(int s, int t, int chunks) {
        const sequence_stage &g = p.stage[s];
        const float *gains = (const float *)(shared + S::GAINS) + s * U * 2 * GATES;
        const float *st = statistics() + warp * 16 + lane / 4;
        float sum[U / 2] = {};
        uint32_t raw[U / 4];
        float entry[2][U / 8][2];
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            const int at = entry_of(g, first + unit(k / 4, k % 2));
            const int byte = byte_of(text, k / 2 % 2);
            entry[k / 2 % 2][k / 4][k % 2] = g.use == TABLE_MULTIPLY ? 1 : 0;
            if (g.use != TABLE_NONE && at >= 0) {
                entry[k / 2 % 2][k / 4][k % 2] = to_float(g.table[(size_t)at * VOCABULARY + byte]);
            }
        }
        multiply(sum, chunks);
        if (S::ABOVE && s == 0) add_below<1>(t, sum);
        take_raw<1>(s, t, sum, raw);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float shift = st[8 * half], scale = st[BOX + 8 * half];
#pragma unroll
            for (int j = 0; j < U / 8; j++) {
                float y[2];
#pragma unroll
                for (int e = 0; e < 2; e++) {
                    const uint32_t two = raw[j * 2 + half];
                    const float value =
                        __uint_as_float(e ? two & 0xFFFF0000u : two << 16) * scale + shift;
                    const float2 of = *(const float2 *)(gains + unit(j, e) * 2 * GATES);
                    y[e] = of.x * value + of.y;
                    if (g.use == TABLE_ADD) y[e] += entry[half][j][e];
                    if (g.use == TABLE_MULTIPLY) y[e] *= entry[half][j][e];
                    if (g.relu && y[e] < 0) y[e] = 0;
                }
                raw[j * 2 + half] = pack(y[0], y[1]);
            }
        }
        const uint32_t to = base + S::OUT + group * S::OUT_BYTES;
        stage_rows_of(to, raw);
        publish(&g.out, to, (p.keep ? t : 0) * p.hidden + first);
    }

    /* The gates of a step. c: [U / 8][half][neighbour]. */
    __device__ __forceinline__ void run_gates(int t, int chunks, float (&c)[U / 2]) {
        const int s = p.stages - 1;
        const sequence_stage &g = p.stage[s];
        const float *gains = (const float *)(shared + S::GAINS) + s * U * 2 * GATES;
        const float *st = statistics() + warp * 16 + lane / 4;
        float sum[GATES * U / 2] = {};
        uint32_t raw[GATES * U / 4], h[U / 4];
        uint2 entry[U / 2] = {};
        uint32_t dropped = 0;
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            const int at = entry_of(g, first + unit(k / 4, k % 2));
            if (g.use != TABLE_ADD || at < 0) continue;
            const size_t row = (size_t)at * VOCABULARY + byte_of(text, k / 2 % 2);
            entry[k] = *(const uint2 *)(g.table + row * GATES);
        }
        if (p.dropout_threshold > 0) dropped = draw_dropout(t);
        fetch_text(t + 1);
        multiply(sum, chunks);
        if (S::ABOVE && s == 0) add_below<GATES>(t, sum);
        take_raw<GATES>(s, t, sum, raw);
        float shift[2][GATES], scale[2][GATES];
#pragma unroll
        for (int i = 0; i < 2 * GATES; i++) {
            shift[i % 2][i / 2] = st[i / 2 * 2 * BOX + i % 2 * 8];
            scale[i % 2][i / 2] = st[(i / 2 * 2 + 1) * BOX + i % 2 * 8];
        }
#pragma unroll
        for (int j = 0; j < U / 8; j++) {
            float y[2][2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float4 gain4 = *(const float4 *)(gains + unit(j, e) * 2 * GATES);
                const float4 bias4 = *(const float4 *)(gains + unit(j, e) * 2 * GATES + GATES);
                const float gain[GATES] = {gain4.x, gain4.y, gain4.z, gain4.w};
                const float bias[GATES] = {bias4.x, bias4.y, bias4.z, bias4.w};
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int k = (j * 2 + half) * 2 + e;
                    float z[GATES];
#pragma unroll
                    for (int gate = 0; gate < GATES; gate++) {
                        const uint32_t two = raw[(gate * (U / 8) + j) * 2 + half];
                        const uint32_t pair = gate < 2 ? entry[k].x : entry[k].y;
                        const float value =
                            __uint_as_float(e ? two & 0xFFFF0000u : two << 16) * scale[half][gate] +
                            shift[half][gate];
                        const float from =
                            __uint_as_float(gate % 2 ? pair & 0xFFFF0000u : pair << 16);
                        z[gate] = gain[gate] * value + (from * slope<bf16>(gate) + bias[gate]);
                    }
                    if (p.dropout_threshold > 0) {
                        z[GATE_U] *= dropped >> k & 1 ? 0 : p.dropout_scale;
                    }
                    c[k] = squash_sigmoid<bf16>(z[GATE_F]) * c[k] +
                           squash_product(z[GATE_I], z[GATE_U]);
                    y[half][e] = squash_product(z[GATE_O], slope<bf16>(GATE_U) * c[k]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) h[j * 2 + half] = pack(y[half][0], y[half][1]);
        }
        const uint32_t to = base + S::OUT + group * S::OUT_BYTES;
        stage_rows_of(to, h);
        publish(&g.out, to, (t + 1) * p.hidden + first);
        store_c(t + 1, c);
    }

    __device__ __forceinline__ size_t c_at(int t, int k) const {
        const int at = first + unit(k / 4, k % 2);
        return ((size_t)t * p.hidden + at) * p.columns + column + k / 2 % 2 * 8;
    }

    __device__ __forceinline__ void load_c(float (&c)[U / 2]) const {
#pragma unroll
        for (int k = 0; k < U / 2; k++) c[k] = p.c[c_at(0, k)];
    }

    __device__ __forceinline__ void store_c(int t, const float (&c)[U / 2]) const {
#pragma unroll
        for (int k = 0; k < U / 2; k++) p.c[c_at(t, k)] = c[k];
    }
};

/* ----------------------------------------------------------------------------------- the kernel */

/* Gains and biases of the thread block's units, [stage][unit][2 GATES]. The last stage has a gain
 * and a bias for each gate, times the slope of the gate's tanh; the others have one of each. */
template <int U> static __device__ void load_gains(const sequence_arguments &p, float *gains) {
    for (int i = threadIdx.x; i < p.stages * U * 2 * GATES; i += blockDim.x) {
        const int s = i / (U * 2 * GATES), unit = i / (2 * GATES) % U, k = i % (2 * GATES);
        const int count = s + 1 == p.stages ? GATES : 1;
        const float *from = k < count ? p.stage[s].gain : p.stage[s].bias;
        float value = k < count;
        if (from) value = from[(size_t)(k % count) * p.hidden + first_unit<U>(p) + unit];
        if (count == GATES) value *= slope<bf16>(k % GATES);
        if (k < 2 * count) gains[i] = value;
    }
}

template <int U, int GROUPS, int SHARES, bool ABOVE>
static __global__ void __launch_bounds__((GROUPS + 1) * GROUP, 1)
    sequence_forward(const __grid_constant__ sequence_arguments p) {
#if ON_HOPPER
    typedef sequence_shape<U, GROUPS, SHARES, ABOVE> S;
    extern __shared__ char unaligned[];
    char *shared = aligned_tiles(unaligned);
    const uint32_t base = shared_address(shared), barriers = base + S::BARRIERS;
    const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), node = blockIdx.x / p.parts;
    uint16_t(*list)[SEQUENCE_NODES] = (uint16_t(*)[SEQUENCE_NODES])(shared + S::LISTS);
    sequence_consumer<S> my(p, base, shared);
    int begin[SEQUENCE_STAGES], count[SEQUENCE_STAGES];
    const int role = max(warp - GROUPS * 4, 0); /* of a producer: 0 loads weights, others x */
    const int of = warp < GROUPS * 4 ? warp / 4 : role - 1; /* the group that a warp serves */
#pragma unroll
    for (int s = 0; s < SEQUENCE_STAGES; s++) {
        begin[s] = count[s] = 0;
        if (s >= p.stages) continue;
        const int *start = p.stage[s].row_start + node;
        begin[s] = start[0];
        count[s] = start[1] - begin[s];
        for (int i = threadIdx.x; i < count[s]; i += blockDim.x) {
            list[s][i] = (uint16_t)p.stage[s].row_column[begin[s] + i];
        }
    }
    load_gains<U>(p, (float *)(shared + S::GAINS));
    my.weights.create(barriers, GROUPS * 4);
    for (int group = 0; group < GROUPS; group++) {
        cursor<S::X_SLOTS> ring;
        ring.create(barriers + 16 * (S::W_SLOTS + group * S::X_SLOTS), 4 * SHARES);
        if (group == of) my.inputs = ring;
    }
    barrier_init_done();
    __syncthreads();
    if (SHARES > 1) cluster_sync(); /* the others' barriers are there */

    if (warp >= GROUPS * 4) {
        if (GROUPS == 2) registers_shrink<40>();
        if (role == 0) {
            produce_sequence_weights<S>(p, base, count, begin, my.weights);
        } else if (role <= GROUPS) {
            produce_sequence_inputs<S>(p, base, list, count, of, my.inputs);
        }
        __syncwarp();
    } else {
        if (GROUPS == 2) registers_grow<232>();
        float c[U / 2];
        my.load_c(c);
        my.fetch_text(0);
        for (int t = 0; t < p.steps; t++) {
#pragma unroll 1
            for (int s = 0; s + 1 < p.stages; s++) {
                my.run_internal(s, t, count[s] * (p.block / KC));
            }
            my.run_gates(t, count[p.stages - 1] * (p.block / KC), c);
        }
    }
    if (SHARES > 1) cluster_sync(); /* no thread block ends while another one writes to it */
#endif
}

/* ------------------------------------------------------------------------------------- launches */

static int parts_of_node(int block, int units) {
    return (block + units - 1) / units;
}

/* The number of thread blocks in a cluster, which divides a node's. */
static int cluster_of(int parts) {
    return parts % 3 == 0 ? 3 : parts % 2 == 0 ? 2 : 1;
}

template <int U, int GROUPS, int SHARES, bool ABOVE>
static void launch_sequence_above(backend *be, const sequence_arguments &p) {
    typedef sequence_shape<U, GROUPS, SHARES, ABOVE> S;
    be->zero(be, p.flags, SEQUENCE_BYTES);
    cuda_launch_clusters(be, "cell forward", false, SHARES,
                         sequence_forward<U, GROUPS, SHARES, ABOVE>, dim3(p.nodes * p.parts),
                         (GROUPS + 1) * GROUP, (size_t)S::BYTES, p);
}

template <int U, int GROUPS, int SHARES>
static void launch_sequence(backend *be, const sequence_arguments &p) {
    if (p.below) {
        launch_sequence_above<U, GROUPS, SHARES, true>(be, p);
    } else {
        launch_sequence_above<U, GROUPS, SHARES, false>(be, p);
    }
}

/* How many thread blocks run at once. */
template <int U, int SHARES> static int count_sequence(backend *be) {
    const auto kernel = sequence_forward<U, 2, SHARES, false>;
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t config = {};
    int clusters = 0;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {SHARES, 1, 1};
    config.gridDim = SHARES;
    config.blockDim = 3 * GROUP;
    config.dynamicSmemBytes = sequence_shape<U, 2, SHARES, false>::BYTES;
    config.attrs = &cluster;
    config.numAttrs = 1;
    cuda_allow_shared(be, (const void *)kernel, config.dynamicSmemBytes);
    cuda_ok(be, cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cell forward");
    return min(clusters * SHARES, (int)SEQUENCE_PARTS);
}

template <int U> static int count_sequence_blocks(backend *be, int shares) {
    return shares == 3   ? count_sequence<U, 3>(be)
           : shares == 2 ? count_sequence<U, 2>(be)
                         : count_sequence<U, 1>(be);
}

/* The smallest number of units of a thread block with which all thread blocks run at once; 0: the
 * GPU has too few multiprocessors. */
static int sequence_units(backend *be, const layout *l) {
    for (int units = 16; units <= 32; units += 8) {
        const int parts = parts_of_node(l->in_block, units), shares = cluster_of(parts);
        if (l->in_nodes * parts > cuda_of(be)->processors) continue;
        const int room = units == 16   ? count_sequence_blocks<16>(be, shares)
                         : units == 24 ? count_sequence_blocks<24>(be, shares)
                                       : count_sequence_blocks<32>(be, shares);
        if (l->in_nodes * parts <= room) return units;
    }
    return 0;
}

sequence_tables *sequence_forward_plan(backend *be, device_layout *device, const layout *l) {
    if (!cuda_of(be)->hopper || be->precision != BF16 || layout_is_dense(l)) return NULL;
    if (l->in_block % KC || l->in_nodes > SEQUENCE_NODES) return NULL;
    for (int i = 0; i < l->out_nodes; i++) { /* a part without x would not wait for the others */
        if (l->row_start[i] == l->row_start[i + 1]) return NULL;
    }
    const int units = sequence_units(be, l);
    if (!units) return NULL;
    sequence_tables *tables = layout_plan<sequence_tables>(device);
    tables->units = units;
    tables->flags = (uint32_t *)layout_device_block(be, device, SEQUENCE_BYTES);
    return tables;
}

const char *sequence_forward_lacks(backend *be, const cell *c) {
    if (cuda_of(be)->kernel) return "no kernel in SMALLWORLD_KERNEL";
    if (c->stages > SEQUENCE_STAGES) return "at most eight stages";
    static_assert(SEQUENCE_STAGES == 8, "as the message says");
    if (c->columns % COLUMN_MULTIPLE) return "multiples of 64 columns";
    for (int s = 0; s < c->stages; s++) {
        const device_layout *d = c->stage[s].layout;
        if (!d->sequence) return "Hopper, bf16, and blocks of few enough units to be there at once";
        if (d->host.in_block != c->stage[0].layout->host.in_block) return "stages of equal blocks";
        if (c->stage[s].units != c->hidden) return "stages as wide as the cell";
    }
    return NULL;
}

/* W as [blocks][rows][k]; x and y as rows of columns; raw as [nodes and gates][rows][columns]. */
static bool map_sequence_stage(backend *be, const cell *c, int s, int units, sequence_stage *to) {
    const stage *g = &c->stage[s];
    const layout *l = &g->layout->host;
    const bool last = s + 1 == c->stages;
    const uint64_t b = (uint64_t)l->in_block, columns = (uint64_t)c->columns;
    const uint64_t steps = (uint64_t)c->steps, kept = c->keep ? steps : 1;
    const uint64_t gates = (uint64_t)g->gates, hidden = (uint64_t)c->hidden;
    const uint64_t w_extent[3] = {b, b, gates * (uint64_t)l->blocks};
    const uint64_t w_stride[2] = {b * 2, b * b * 2}, row[1] = {columns * 2};
    const uint64_t x_extent[2] = {columns, hidden * (s ? kept : steps + 1)};
    const uint64_t y_extent[2] = {columns, hidden * (last ? steps + 1 : kept)};
    const uint64_t raw_extent[3] = {columns, b, kept * hidden / b * gates};
    const uint64_t raw_stride[2] = {columns * 2, columns * b * 2};
    const uint32_t w_box[3] = {KC, (uint32_t)units, (uint32_t)g->gates};
    const uint32_t x_box[2] = {BOX, KC}, y_box[2] = {BOX, (uint32_t)units};
    const uint32_t raw_box[3] = {BOX, (uint32_t)units, (uint32_t)g->gates};
    const CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
    return make_map(be, &to->weights, g->weight, 3, w_extent, w_stride, w_box, swizzle) &&
           make_map(be, &to->source, s ? c->stage[s - 1].out : c->h, 2, x_extent, row, x_box,
                    swizzle) &&
           make_map(be, &to->out, last ? c->h : g->out, 2, y_extent, row, y_box, swizzle) &&
           make_map(be, &to->raw, g->raw, 3, raw_extent, raw_stride, raw_box, swizzle);
}

template <int U, int SHARES>
static void launch_sequence_columns(backend *be, const cell *c, sequence_arguments *p) {
    for (p->first_column = 0; p->first_column < c->columns; p->first_column += 2 * BOX) {
        if (c->columns - p->first_column >= 2 * BOX) {
            launch_sequence<U, 2, SHARES>(be, *p);
        } else {
            launch_sequence<U, 1, SHARES>(be, *p);
        }
    }
}

template <int U>
static void launch_sequence_shares(backend *be, const cell *c, sequence_arguments *p) {
    switch (cluster_of(p->parts)) {
    case 3: launch_sequence_columns<U, 3>(be, c, p); return;
    case 2: launch_sequence_columns<U, 2>(be, c, p); return;
    default: launch_sequence_columns<U, 1>(be, c, p);
    }
}

void sequence_forward_run(backend *be, const cell *c) {
    const sequence_tables *tables = c->stage[c->stages - 1].layout->sequence;
    const int block = c->stage[0].layout->host.in_block;
    sequence_arguments p = {};
    p.stages = c->stages;
    p.steps = c->steps;
    p.hidden = c->hidden;
    p.columns = c->columns;
    p.block = block;
    p.nodes = c->hidden / block;
    p.parts = parts_of_node(block, tables->units);
    p.keep = c->keep;
    p.stuck = cuda_stuck_word(be, "sequence_forward");
    p.flags = tables->flags;
    p.partials = (uint64_t *)(p.flags + 2 * SEQUENCE_PARTS);
    p.results = p.partials + SEQUENCE_PARTIALS;
    p.bytes = c->bytes;
    p.below = (const bf16 *)c->below;
    p.c = (float *)c->c;
    p.dropout_threshold = c->dropout.threshold;
    p.dropout_scale = (float)c->dropout.scale;
    p.dropout_seed = c->dropout.seed;
    p.dropout_stream = c->dropout.first_stream;
    p.arguments = c->arguments;
    p.first_step = c->first_step;
    for (int s = 0; s < c->stages; s++) {
        const stage *g = &c->stage[s];
        sequence_stage *to = &p.stage[s];
        if (!map_sequence_stage(be, c, s, tables->units, to)) return;
        to->row_start = g->layout->host.row_start;
        to->row_column = g->layout->host.row_column;
        to->gain = (const float *)g->gain;
        to->bias = (const float *)g->bias;
        to->table = (const bf16 *)(s + 1 == c->stages ? c->entries : g->table);
        to->sums = (fixed *)g->sums;
        to->use = g->table_use;
        to->stride = g->table_stride;
        to->layer_norm = g->layer_norm;
        to->relu = g->relu;
    }
    switch (tables->units) {
    case 16: launch_sequence_shares<16>(be, c, &p); return;
    case 24: launch_sequence_shares<24>(be, c, &p); return;
    default: launch_sequence_shares<32>(be, c, &p);
    }
}
