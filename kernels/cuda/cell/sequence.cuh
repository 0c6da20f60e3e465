/* What kernels over a whole sequence share: how their thread blocks exchange sums and states, and
 * the consumer that keeps its units through all steps. See sequence_forward.cu and hubs.cu.
 */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_SEQUENCE_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_SEQUENCE_CUH

#include "cell/gates.cuh"
#include "device/waits.cuh"
#include "products/hopper/hopper.cuh"

enum {
    KC = 64,              /* inputs of a chunk, of which a block has one or more */
    SEQUENCE_STAGES = 8,  /* of a cell, at most */
    SEQUENCE_NODES = 160, /* that a row reads, at most */
    SEQUENCE_PARTS = 160, /* thread blocks, at most */
    SEQUENCE_PARTIALS = 2 * BOX * SEQUENCE_PARTS * GATES * 2, /* words of 64 bits, see below */
    SEQUENCE_RESULTS = 2 * BOX * GATES * 2,
    COUNTER_WORDS = 32,    /* of which the first one counts */
    SEQUENCE_COUNTERS = 6, /* kinds times groups */
    SEQUENCE_BYTES =
        SEQUENCE_COUNTERS * COUNTER_WORDS * 4 + (SEQUENCE_PARTIALS + SEQUENCE_RESULTS) * 8
};

/* Kinds of counters: of thread blocks that have stored what a stage makes (with hubs, h), and with
 * hubs their partial sums, and m. */
enum { COUNT_OUT, COUNT_SUMS, COUNT_M };

typedef struct sequence_stage {
    CUtensorMap weights, source, raw, out;
    const int *row_start, *row_column;
    const float *gain, *bias;
    const bf16 *table; /* [VOCABULARY][units], of the gates by [GATES] more; NULL: none */
    fixed *sums;
    table_use use;
    bool layer_norm, relu;
} sequence_stage;

typedef struct sequence_arguments {
    sequence_stage stage[SEQUENCE_STAGES]; /* the last one makes the gates */
    int stages, steps, hidden, columns, first_column;
    int block, nodes, parts; /* parts: thread blocks of a node */
    bool keep;
    uint32_t *counters; /* [SEQUENCE_COUNTERS][COUNTER_WORDS] */
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

/* A counter of what thread blocks have done, of one kind and group, on a line of its own. One word
 * for all of them and one poll by each: where everybody polled everybody's flag, a trip to the L2
 * took thrice as long. */
static __device__ inline uint32_t *counter_of(const sequence_arguments &p, int kind, int group) {
    return p.counters + (kind * 2 + group) * COUNTER_WORDS;
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

/* ------------------------------------------------------------------------------------ consumers */

/* How many of so many chunks stay in shared memory. */
template <typename S> static __device__ inline int held_chunks(int chunks) {
    return S::MOST_HELD ? max(0, min(chunks - S::W_SLOTS, (int)S::MOST_HELD)) : 0;
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
    uint32_t held_full = 0;        /* the barrier of weights that stay */
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

    /* The first of the group's columns whose sums this thread block adds up. */
    __device__ int first_owned() const {
        return group ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
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

    /* raw' += x' W' over a row's chunks; x lies as rows of columns, or if not BY_ROWS as columns of
     * rows. A slot of weights has PER chunks; `held` chunks, after as many as there are slots, stay
     * where they are: these slots are filled again meanwhile. */
    template <bool BY_ROWS, int PER, int K>
    __device__ __forceinline__ void multiply(float (&sum)[K], int chunks, int held) {
        const uint32_t x0 = base + S::X + group * S::X_SLOTS * S::X_BYTES, w0 = base + S::W;
        int used_w = 0, used_x = 0;
        bool used_up = false; /* all chunks of the slot of weights that was used last */
#pragma unroll 1
        for (int i = 0; i < chunks; i++, inputs.next()) {
            const int inside = i % PER, stay = i - S::W_SLOTS;
            const bool loaded = held == 0 || stay < 0 || stay >= held;
            const uint32_t x = x0 + inputs.at * S::X_BYTES;
            const uint32_t w = loaded ? w0 + weights.at * S::W_BYTES + inside * (S::W_BYTES / PER)
                                      : base + S::HELD + stay * S::W_BYTES;
            barrier_wait(loaded ? weights.full + weights.at * 8 : held_full,
                         loaded ? weights.parity : 0);
            inputs.wait_full();
            product_fence();
#pragma unroll
            for (int k = 0; k < KC; k += 16) {
                const uint64_t rows = matrix_descriptor(w + k * 2, SWIZZLE_128, 16, 1024);
                warpgroup_multiply<BY_ROWS, 0>(
                    sum,
                    BY_ROWS ? matrix_descriptor(x + k * BOX_ROW, SWIZZLE_128, KC * BOX_ROW, 1024)
                            : matrix_descriptor(x + k * 2, SWIZZLE_128, 16, 1024),
                    rows);
            }
            product_commit();
            if (K < 32) { /* ptxas would make a stage of few rows wait for each product */
                product_wait<0>();
                weights.release(weights.at);
                weights.next();
                release_everywhere<S::CLUSTER>(inputs, inputs.at);
                continue;
            }
            product_wait<1>(); /* the previous chunk's ran during the wait */
            if (i > 0) weights.release_if(used_w, used_up);
            if (i > 0) release_everywhere<S::CLUSTER>(inputs, used_x);
            used_up = loaded && (inside == PER - 1 || i + 1 == chunks);
            used_w = weights.at;
            used_x = inputs.at;
            weights.advance(used_up);
        }
        if (K < 32) return;
        product_wait<0>();
        weights.release_if(used_w, used_up);
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
            count_up(counter_of(p, COUNT_OUT, group));
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
            const uint32_t to = base + S::RAW + group * S::STAGED_PITCH;
            if (S::RAW == S::X) sync(); /* no warp multiplies by x any more */
            stage_rows_of(to, raw);
            shared_fence();
            sync();
            if (thread == 0) {
                tensor_store_once(&g.raw, to, p.first_column + group * BOX, first % p.block,
                                  (t * p.nodes + first / p.block) * G);
                store_commit();
            }
            __syncwarp();
        }
        if (!g.layer_norm) {
            for (int i = thread; i < G * 2 * BOX; i += GROUP) st[i] = i / BOX % 2;
            if (S::OUT == S::RAW && thread == 0) store_wait<0>();
            sync();
            return;
        }
        add_columns<G>(g.sums + (size_t)t * G * sums_gate(p.columns));
        take_statistics<G>(st);
        if (S::OUT == S::RAW && thread == 0) store_wait<0>(); /* raw has left its place */
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
        for (int n = first_owned(); n < BOX; n += parts) {
            float part[rounds][2] = {};
            uint32_t found = 0; /* bits */
            for (patience patience;; patience.lose(p.stuck)) {
                bool all = true;
#pragma unroll
                for (int i = 0; i < rounds; i++) {
                    const int from = (i * GROUP + thread) / G;
                    if (found >> i & 1 || from >= parts) continue;
                    const bool there =
                        find_words(partial(n, from, gate), number + 1, part[i][0], part[i][1]);
                    found |= there << i;
                    all &= there;
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
        for (int k = 0; k < U / 2; k += 2) {
            if (!g.table) continue;
            const size_t at = (size_t)byte_of(text, k / 2 % 2) * p.hidden + first + unit(k / 4, 0);
            const uint32_t two = *(const uint32_t *)(g.table + at);
            entry[k / 2 % 2][k / 4][0] = __uint_as_float(two << 16);
            entry[k / 2 % 2][k / 4][1] = __uint_as_float(two & 0xFFFF0000u);
        }
        multiply<true, 1>(sum, chunks, 0);
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
        const uint32_t to = base + S::OUT + group * S::STAGED_PITCH;
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
        for (int k = 0; k < U / 2; k += 2) {
            if (!g.table) continue;
            const size_t at = (size_t)byte_of(text, k / 2 % 2) * p.hidden + first + unit(k / 4, 0);
            const uint4 two = *(const uint4 *)(g.table + at * GATES);
            entry[k] = make_uint2(two.x, two.y);
            entry[k + 1] = make_uint2(two.z, two.w);
        }
        if (p.dropout_threshold > 0) dropped = draw_dropout(t);
        fetch_text(t + 1);
        multiply<S::BY_ROWS, 1>(sum, chunks, held_chunks<S>(chunks));
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
                    y[half][e] = update_cell<bf16>(z, c[k]);
                }
            }
#pragma unroll
            for (int half = 0; half < 2; half++) h[j * 2 + half] = pack(y[half][0], y[half][1]);
        }
        const uint32_t to = base + S::OUT + group * S::STAGED_PITCH;
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
        for (int k = 0; k < U / 2; k++) __stcs(p.c + c_at(t, k), c[k]);
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

/* ----------------------------------------------------------------------------------- the tables
 *
 * A thread block reads of a table the rows of its few units in the columns of all bytes. In the
 * order [unit][byte] each of these is a sector of the L2 of its own; turned they lie together. */

enum { TURN = 32 };

/* from [entries][VOCABULARY] -> to [VOCABULARY][units], of which every stride-th has an entry. */
template <typename T>
static __global__ void turn_kernel(const T *from, int units, int stride, T none, T *to) {
    __shared__ T tile[TURN][TURN + 1];
    const int unit0 = blockIdx.x * TURN, byte0 = blockIdx.y * TURN;
    const int x = threadIdx.x % TURN, y = threadIdx.x / TURN, step = blockDim.x / TURN;
    for (int i = y; i < TURN; i += step) {
        const int unit = unit0 + i;
        const bool has = unit < units && unit % stride == 0;
        tile[i][x] = has ? from[(size_t)(unit / stride) * VOCABULARY + byte0 + x] : none;
    }
    __syncthreads();
    for (int i = y; i < TURN; i += step) {
        if (unit0 + x < units) to[(size_t)(byte0 + i) * units + unit0 + x] = tile[x][i];
    }
}

template <typename T>
static void turn_table(backend *be, const stage *g, const T *from, T none, T *to) {
    cuda_launch(be, "turn a table", false, turn_kernel<T>,
                dim3((g->units + TURN - 1) / TURN, VOCABULARY / TURN), 8 * TURN, 0, from, g->units,
                g->table_stride, none, to);
}

static inline size_t sequence_table_bytes(const layout *l) {
    return VOCABULARY * layout_rows(l) * sizeof(bf16);
}

/* What does not depend on the kernel. `counters`: SEQUENCE_BYTES bytes. */
static inline void sequence_set(backend *be, const cell *c, const char *kernel, uint32_t *counters,
                                sequence_arguments *p) {
    p->steps = c->steps;
    p->hidden = c->hidden;
    p->columns = c->columns;
    p->keep = c->keep;
    p->stuck = cuda_stuck_word(be, kernel);
    p->counters = counters;
    p->partials = (uint64_t *)(counters + SEQUENCE_COUNTERS * COUNTER_WORDS);
    p->results = p->partials + SEQUENCE_PARTIALS;
    p->bytes = c->bytes;
    p->below = (const bf16 *)c->below;
    p->c = (float *)c->c;
    p->dropout_threshold = c->dropout.threshold;
    p->dropout_scale = (float)c->dropout.scale;
    p->dropout_seed = c->dropout.seed;
    p->dropout_stream = c->dropout.first_stream;
    p->arguments = c->arguments;
    p->first_step = c->first_step;
}

/* `turned`: room for the stage's table, sequence_table_bytes. */
static inline void sequence_set_stage(backend *be, const cell *c, int s, bf16 *turned,
                                      sequence_stage *to) {
    const stage *g = &c->stage[s];
    if (s + 1 < c->stages) {
        const uint16_t none = g->table_use == TABLE_MULTIPLY ? 0x3F80 : 0; /* 1 and 0 */
        if (!g->table || g->table_use == TABLE_NONE) turned = NULL;
        if (turned) turn_table(be, g, (const uint16_t *)g->table, none, (uint16_t *)turned);
    } else {
        if (g->table_use != TABLE_ADD) turned = NULL;
        if (turned) turn_table(be, g, (const uint2 *)c->entries, make_uint2(0, 0), (uint2 *)turned);
    }
    to->row_start = g->layout->host.row_start;
    to->row_column = g->layout->host.row_column;
    to->gain = (const float *)g->gain;
    to->bias = (const float *)g->bias;
    to->table = turned;
    to->sums = (fixed *)g->sums;
    to->use = g->table_use;
    to->layer_norm = g->layer_norm;
    to->relu = g->relu;
}

/* How many thread blocks of a kernel run at once, in clusters of `cluster`. */
static inline int count_together(backend *be, const void *kernel, int cluster, int threads,
                                 size_t shared) {
    cudaLaunchAttribute shape = {};
    cudaLaunchConfig_t config = {};
    int clusters = 0;
    shape.id = cudaLaunchAttributeClusterDimension;
    shape.val.clusterDim = {(unsigned)cluster, 1, 1};
    config.gridDim = cluster;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.attrs = &shape;
    config.numAttrs = 1;
    cuda_allow_shared(be, kernel, shared);
    cuda_ok(be, cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "cell forward");
    return min(clusters * cluster, (int)SEQUENCE_PARTS);
}

#endif
