/* Writing text: one kernel for many bytes of one text, and the draw alone for several texts.
 *
 * Floor: all weights once a byte, from the L2 if they fit. But each byte needs the one before, and
 * all thread blocks wait for each other twice a byte for an lstm, and twice more for each internal
 * stage:
 *
 *   products of a stage, layer norm's sums  | wait |  outputs, or gates and h  | wait |  ...
 *
 * The first stage's product needs h but not the byte, so it runs together with the head's. All
 * thread blocks then draw the byte from the same logits, which saves a wait.
 *
 * A thread block computes the same units of a stage at every byte, so many that their weights are
 * its share of the stage's. mma.sync multiplies them in groups of 16 rows and steps of 32 inputs.
 * The list of these steps is made once, before the first byte, and cut evenly among the warps. Of
 * a dense matrix warps take batches of steps in turn: what a thread block loads at a time then lies
 * together, which memory answers faster. Sums of warps and of thread blocks are added in a fixed
 * order, so a text is the same at every run.
 *
 * What limits it, and what did not help: docs/kernels/cell.md. */
#include "cell/gates.cuh"
#include "training/sample.cuh"

enum {
    WARPS = 16,
    THREADS = WARPS * 32,
    MOST_BLOCKS = 192,
    ROWS = 16,            /* of a group: 4 units of all gates, or 8 of one gate twice */
    DEPTH = 32,           /* k of a step, of each row */
    CHUNK = 8,            /* weights of a load */
    SLOT = 1024,          /* bytes of a step's weights */
    BATCH = 4,            /* steps of a group that a warp takes together; it has two under way */
    UNIT_COST = 2048,     /* what a unit costs besides its weights, in weights */
    STATIC_SHARED = 9216, /* at most */
    SAMPLE_WARPS = 8
};
static_assert(MOST_BLOCKS * (4 + 2 * GATES * 4) + VOCABULARY * 4 <=
                  REDUCTION_BLOCKS * sizeof(double),
              "flags, sums and logits lie where reductions have their sums");

/* A block-sparse or dense matrix. */
struct matrix {
    const bf16 *w;
    const int *row_start, *row_column; /* NULL of a dense matrix, which is one block */
    int log_rows;     /* of a block's rows; 31 if dense: all units are in block 0 */
    int rows, chunks; /* of a block, and of its rows */
    int gates, stride;
    int units; /* of a group */
    int depth; /* k of a step: DEPTH; 2 DEPTH where rows 8 ... 15 are the further half of k */
};

/* A stage of a layer: one or two products, and what makes its output of them. */
struct pass {
    matrix own, below; /* below.w: NULL in stages that read no layer below */
    int units, inputs; /* of the stage, and of its own product */
    int blocks;        /* thread blocks that share it, the first ones */
    size_t weights;    /* of both products */
    const bf16 *x, *x_below;
    bf16 *y; /* out, or h */
    bf16 *h0;
    float *c0; /* the state [hidden][columns] before and after; NULL but for gates */
    const float *gain, *bias;
    const bf16 *table; /* or entries */
    table_use use;
    int table_stride;
    bool layer_norm, relu;
};

/* The first batch of a group of rows, and the first of the parts of its sums. Each warp that has
 * batches of the group makes a part. */
struct span {
    int start, part;
};

/* What a thread block multiplies between two waits: `count` groups of a stage's own rows, then
 * `more` groups of the rows of another matrix. */
struct work {
    int first, last; /* units */
    int count, other_first, more;
    int x_other;        /* where the other matrix's x begins */
    int list, spans;    /* where its batches and groups lie */
    int batches, turns; /* turns: a warp's batches are WARPS apart, else one after the other */
};

/* A step of a product: where its weights begin, in chunks, and where its x begins, which also holds
 * these flags. The last batch of a group may have EMPTY steps, which have no weights. */
struct alignas(8) step {
    uint32_t w;
    int x;
};
enum { OF_OTHER = 1, EMPTY = 2 };

/* After its last batch of a group, a warp writes its sums to a part; after others it goes on. */
enum { GOES_ON = -1 };

struct program {
    pass stage[CELL_MAX_STAGES];
    matrix head; /* a group for each thread block from `head_block` on, until all have one */
    int head_block;
    const bf16 *head_x;
    int passes, hidden, columns, count;
    int most_units;              /* of a thread block in a stage */
    int most_parts;              /* in a stage */
    int all_groups, all_batches; /* of a thread block, at most */
    int vectors;                 /* vectors x that are held at a time */
    const float *head_bias;
    float *logits; /* [VOCABULARY] */
    float *last;   /* [VOCABULARY][columns]: those of the last byte */
    sampling *state;
    uint8_t *text, *byte;
    uint32_t *flags; /* [MOST_BLOCKS] */
    float *sums;     /* [MOST_BLOCKS][2 GATES] */
    uint32_t *stuck;
};

/* Shared memory, in this order: where slots begin decides a fifth of the time (cell.md). */
struct places {
    char *slots;  /* [WARPS][2][BATCH][SLOT] */
    bf16 *x;      /* [vectors][hidden] */
    float *raw;   /* [most_units][GATES] */
    float *parts; /* [most_parts][ROWS] */
    float *c;     /* [layers][most_units] */
    step *steps;  /* [all_batches][BATCH] */
    int *ends;    /* [all_batches] the part that is whole after a batch, or GOES_ON */
    span *spans;  /* [all_groups] */
    span *end;

    __host__ __device__ places(const program &p, char *shared, int layers) {
        slots = shared;
        x = (bf16 *)(slots + WARPS * 2 * BATCH * SLOT);
        raw = (float *)(x + p.vectors * p.hidden);
        parts = raw + p.most_units * GATES;
        c = parts + p.most_parts * ROWS;
        steps = (step *)(c + layers * p.most_units);
        ends = (int *)(steps + p.all_batches * BATCH);
        spans = (span *)(ends + p.all_batches);
        end = spans + p.all_groups;
    }
};

/* ------------------------------------------------------------------------------------- shares */

/* The first block in a row of blocks. */
static __device__ inline int row_start(const matrix &m, int node) {
    return m.row_start ? __ldg(m.row_start + node) : node;
}

/* The weights of all units before this one. */
static __device__ int64_t weights_before(const matrix &m, int unit) {
    if (!m.w) return 0;
    const int node = unit >> m.log_rows, begin = row_start(m, node);
    const int inside = unit - node * m.rows;
    int64_t blocks = (int64_t)begin * m.rows;
    if (inside) blocks += (int64_t)inside * (row_start(m, node + 1) - begin);
    return blocks * m.gates * m.chunks * CHUNK;
}

/* The first unit of a thread block: the groups before it have their share of the cost. */
static __device__ int first_unit(const pass &s, int block) {
    const auto cost = [&](int unit) {
        return weights_before(s.own, unit) + weights_before(s.below, unit) +
               (int64_t)unit * UNIT_COST;
    };
    const int64_t wanted = cost(s.units) * min(block, s.blocks);
    int low = 0, high = s.units / s.own.units;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (cost(middle * s.own.units) * s.blocks < wanted) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low * s.own.units;
}

/* The first unit of group `i`, and the matrix it is of. */
static __device__ inline const matrix &group_at(const program &p, const pass &s, const work &w,
                                                int i, int &unit) {
    const matrix &other = s.below.w ? s.below : p.head;
    const bool own = i < w.count;
    unit = own ? w.first + i * s.own.units : w.other_first + (i - w.count) * other.units;
    return own ? s.own : other;
}

/* The batches of a stage that a warp takes: `count` from `first` on, `stride` apart. */
struct turns {
    int first, stride, count;

    __device__ turns(const work &w, int warp) {
        const int warps = max(min(w.batches, (int)WARPS), 1);
        first = w.turns ? warp : w.batches * min(warp, warps) / warps;
        stride = w.turns ? WARPS : 1;
        count = w.turns ? (w.batches - warp + WARPS - 1) / WARPS
                        : w.batches * min(warp + 1, warps) / warps - first;
    }

    /* The warp that takes a batch. */
    static __device__ int owner(const work &w, int batch) {
        const int warps = min(w.batches, (int)WARPS);
        return w.turns ? batch % WARPS : ((batch + 1) * warps - 1) / w.batches;
    }
};

/* Lists a stage's steps and groups. All threads call it. */
static __device__ void list_steps(const program &p, const pass &s, work &w, const places &at) {
    const int groups = w.count + w.more, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    span *spans = at.spans + w.spans;
    for (int i = threadIdx.x; i < groups; i += THREADS) {
        int unit;
        const matrix &m = group_at(p, s, w, i, unit);
        const int node = unit >> m.log_rows;
        const int blocks = row_start(m, node + 1) - row_start(m, node);
        spans[i + 1].start = (blocks * (m.chunks * CHUNK / m.depth) + BATCH - 1) / BATCH;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        spans[0].start = spans[0].part = 0;
        for (int i = 0; i < groups; i++) spans[i + 1].start += spans[i].start;
        w.batches = spans[groups].start;
        w.turns = !s.own.row_start;
        for (int i = 0; i < groups; i++) {
            const int first = spans[i].start, last = spans[i + 1].start - 1;
            const int parts = w.turns ? min(last - first + 1, (int)WARPS)
                                      : turns::owner(w, last) - turns::owner(w, first) + 1;
            spans[i + 1].part = spans[i].part + parts;
        }
    }
    __syncthreads();
    for (int i = warp; i < groups; i += WARPS) {
        int unit;
        const matrix &m = group_at(p, s, w, i, unit);
        const int node = unit >> m.log_rows, first = row_start(m, node);
        const int each = m.chunks * CHUNK / m.depth, flags = i < w.count ? 0 : OF_OTHER;
        const int count = (row_start(m, node + 1) - first) * each;
        const int begin = spans[i].start, end = spans[i + 1].start;
        step *to = at.steps + (w.list + begin) * BATCH;
        for (int k = lane; k < (end - begin) * BATCH; k += 32) {
            const int entry = min(k, count - 1) / each, slice = min(k, count - 1) % each;
            const int block = m.row_column ? __ldg(m.row_column + first + entry) : 0;
            const size_t row = (size_t)(first + entry) * m.gates * m.rows + (unit - node * m.rows);
            to[k] = {(uint32_t)(row * m.chunks) + slice * (m.depth / CHUNK),
                     (i < w.count ? 0 : w.x_other) + (block * each + slice) * m.depth | flags |
                         (k < count ? 0 : EMPTY)};
        }
        for (int k = begin + lane; k < end; k += 32) {
            const int owner = turns::owner(w, k), after = k + (w.turns ? WARPS : 1);
            const bool last = after >= end || turns::owner(w, after) != owner;
            const int part = w.turns ? (k - begin) % WARPS : owner - turns::owner(w, begin);
            at.ends[w.list + k] = last ? spans[i].part + part : GOES_ON;
        }
    }
    __syncthreads();
}

/* ----------------------------------------------------------------------------------- products */

struct words {
    uint32_t word[4];
};

static __device__ inline words shared_load(uint32_t from) {
    words x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
                 : "r"(from)
                 : "memory");
    return x;
}

/* Copies every `stride`-th element of what other thread blocks wrote. */
static __device__ void load_vector(bf16 *to, const bf16 *from, int count, int stride) {
    if (stride == 1) {
        for (int i = threadIdx.x; i < count / CHUNK; i += THREADS) {
            ((uint4 *)to)[i] = __ldcg((const uint4 *)from + i);
        }
    } else {
        for (int i = threadIdx.x; i < count / stride; i += THREADS) {
            ((uint16_t *)to)[i] = __ldcg((const uint16_t *)from + i * stride);
        }
    }
}

/* Where a lane reads the rows of a group: one of the first eight, and the one eight rows further
 * on, which may be the rest of the first. */
struct lane_rows {
    const uint4 *from;
    uint32_t second; /* distance to the second row; 0: there is none */
    int bytes;       /* 16, or 0 where there is no such row */

    __device__ lane_rows(const matrix &m) {
        const int line = threadIdx.x % 32 / 4;
        const int plane = m.rows * m.chunks;
        const bool gates = m.gates == GATES;
        from = (const uint4 *)m.w + threadIdx.x % 4;
        from += gates ? line / 4 * plane + line % 4 * m.chunks : line * m.chunks;
        second = gates ? 2 * plane : m.depth > DEPTH ? DEPTH / CHUNK : 0;
        bytes = gates || line < m.units ? 16 : 0;
    }
};

/* Multiplies this warp's batches.
 *
 * A lane reads back what it copied itself, so it waits for nothing but its own copies. The order of
 * k in a sum is free, so words 0 to 3 of a row go to mma.sync as they lie: 0 and 2 as row g of A, 1
 * and 3 as row g + 8. Even columns of B have words 0 and 2 of x, odd ones 1 and 3, so the sum of a
 * row is that of two results, [g][0] and [g + 8][1].
 *
 * HALVES: of matrices whose depth is 2 DEPTH. AHEAD: the L2 fetches more than is asked for, which
 * serves weights that it does not hold. */
template <bool HALVES, bool AHEAD>
static __device__ void multiply_groups(const matrix &own, const matrix &other, const work &w,
                                       const places &at) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const turns own_turns(w, warp);
    if (own_turns.count <= 0) return;
    const lane_rows mine(own), others(other);
    const step *steps = at.steps + (w.list + own_turns.first) * BATCH;
    const int *ends = at.ends + w.list + own_turns.first, stride = own_turns.stride;
    const uint32_t slots = shared_address(at.slots) + warp * 2 * BATCH * SLOT + lane * 16;
    const bf16 *x = at.x + lane % 4 * CHUNK;
    const bool odd = lane / 4 % 2;
    float sum[2][4] = {};
    for (int i = 0; i <= own_turns.count; i++) {
        if (i < own_turns.count) {
#pragma unroll
            for (int k = 0; k < BATCH; k++) {
                const step s = steps[i * stride * BATCH + k];
                const uint32_t slot = slots + ((i & 1) * BATCH + k) * SLOT;
                const bool is_other = s.x & OF_OTHER;
                const uint4 *from = (is_other ? others.from : mine.from) + s.w;
                const uint32_t second = is_other ? others.second : mine.second;
                const int bytes = s.x & EMPTY ? 0 : is_other ? others.bytes : mine.bytes;
                copy_async_part<AHEAD>(slot, from, bytes);
                copy_async_part<AHEAD>(slot + SLOT / 2, from + second, second ? bytes : 0);
            }
        }
        copy_commit();
        if (i == 0) continue;
        copy_wait<1>();
#pragma unroll
        for (int k = 0; k < BATCH; k++) {
            const uint32_t slot = slots + ((~i & 1) * BATCH + k) * SLOT;
            const int from = steps[(i - 1) * stride * BATCH + k].x & -DEPTH;
            uint4 in = *(const uint4 *)(x + from);
#pragma unroll
            for (int row = 0; row < 2; row++) {
                if (HALVES && row) in = *(const uint4 *)(x + from + DEPTH);
                const uint32_t b0 = odd ? in.y : in.x, b1 = odd ? in.w : in.z;
                multiply_add(sum[row], shared_load(slot + row * (SLOT / 2)).word, b0, b1);
            }
        }
        const int part = ends[(i - 1) * stride];
        if (part != GOES_ON) {
            if (lane % 4 == 0) {
                float *to = at.parts + part * ROWS + lane / 4;
                const float first = sum[0][0] + sum[0][3], second = sum[1][0] + sum[1][3];
                to[0] = HALVES ? first + second : first;
                if (!HALVES) to[ROWS / 2] = second;
            }
#pragma unroll
            for (int k = 0; k < 4; k++) sum[0][k] = sum[1][k] = 0;
        }
    }
    copy_wait<0>();
}

/* The sum of a row of a group over its parts. */
static __device__ inline float add_parts(const work &w, const places &at, int group, int row) {
    const span *of = at.spans + w.spans + group;
    float sum = 0;
    for (int i = of[0].part; i < of[1].part; i++) sum += at.parts[i * ROWS + row];
    return sum;
}

/* The rows of a stage's units into raw [unit][gate], their sums for layer norm and, with the head,
 * this thread block's logits. */
template <bool AHEAD>
static __device__ void multiply(const program &p, const pass &s, const work &w, const places &at,
                                bool head) {
    const int gates = s.own.gates, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int units = w.last - w.first;
    const bf16 *x = head ? p.head_x : s.x_below;
    const matrix &other = head ? p.head : s.below;
    load_vector(at.x, s.x, s.inputs, 1);
    if (w.x_other) load_vector(at.x + w.x_other, x, p.hidden, other.stride);
    __syncthreads();
    if (s.own.depth > DEPTH) {
        multiply_groups<true, AHEAD>(s.own, other, w, at);
    } else {
        multiply_groups<false, AHEAD>(s.own, other, w, at);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < units * gates; i += THREADS) {
        const int unit = gates == 1 ? i : i / GATES, gate = gates == 1 ? 0 : i % GATES;
        const int group = unit / s.own.units;
        const int row = gate * s.own.units + unit - group * s.own.units;
        float sum = add_parts(w, at, group, row);
        if (!head && w.more) sum += add_parts(w, at, w.count + group, row);
        at.raw[i] = to_float(from_float<bf16>(sum));
    }
    if (head && w.more && threadIdx.x < p.head.units) {
        const int logit = w.other_first + threadIdx.x;
        const float sum = add_parts(w, at, w.count, threadIdx.x);
        __stcg(p.logits + logit, sum);
        p.last[(size_t)logit * p.columns] = sum;
    }
    __syncthreads();
    if (s.layer_norm && warp < 2 * gates) {
        float sum[1] = {};
        for (int unit = lane; unit < units; unit += 32) {
            const float value = at.raw[unit * gates + warp / 2];
            sum[0] += warp % 2 ? value * value : value;
        }
        warp_sums(sum);
        if (lane == 0) __stcg(p.sums + blockIdx.x * 2 * GATES + warp, sum[0]);
    }
}

/* Waits until every thread block has called this `number` times. */
static __device__ void wait_for_all(const program &p, uint32_t number) {
    __syncthreads();
    if (threadIdx.x == 0) store_flag(p.flags + blockIdx.x, number);
    if (threadIdx.x < gridDim.x) {
        for (patience patience; load_flag(p.flags + threadIdx.x) < number;) patience.lose(p.stuck);
    }
    __syncthreads();
}

/* ------------------------------------------------------------------------------------ outputs */

/* Computes layer norm's means of each gate's values and of their squares from the sums of all
 * thread blocks, which must be there. Each of the last warps computes one mean. */
static __device__ void find_means(const program &p, const pass &s, float *means) {
    const int value = WARPS - 1 - threadIdx.x / 32, lane = threadIdx.x % 32;
    if (value >= 2 * s.own.gates) return;
    float sum[1] = {};
#pragma unroll
    for (int i = 0; i < MOST_BLOCKS; i += 32) {
        const bool there = i + lane < gridDim.x;
        sum[0] += there ? __ldcg(p.sums + (i + lane) * 2 * GATES + value) : 0;
    }
    warp_sums(sum);
    if (lane == 0) means[value] = sum[0] / s.units;
}

/* Draws byte `next` of the text, by as many threads as there are bytes. All threads call it. */
static __device__ void draw_next(const program &p, const sampling *how, uint64_t next, int *byte) {
    __shared__ double z[VOCABULARY];
    const int v = threadIdx.x, lane = v % 32;
    double mine[PER_LANE], most;
    if (v < VOCABULARY) z[v] = (double)__ldcg(p.logits + v) + p.head_bias[v];
    __syncthreads();
    if (v < VOCABULARY) take_share(mine, z);
    const int best = v < VOCABULARY ? likeliest(mine, most) : 0;
    __syncthreads();
    if (v < VOCABULARY && how->temperature) z[v] = weight_of(z[v] - most, how);
    __syncthreads();
    if (v >= 32) return;
    int found = best;
    if (next < how->prompt) {
        found = p.text[next];
    } else if (how->temperature) {
        take_share(mine, z);
        found = pick(mine, best, how, 0, next - how->prompt);
    }
    if (lane > 0) return;
    *byte = found;
    if (blockIdx.x == 0) p.text[next] = (uint8_t)found;
}

/* From the rows' sums to the stage's output, or to c and h. */
template <int G>
static __device__ void finish(const program &p, const pass &s, const work &w, int byte,
                              const float *means, const float *raw, float *c) {
    float norm[G][2];
#pragma unroll
    for (int g = 0; g < G; g++) {
        find_statistics(means[2 * g], means[2 * g + 1], norm[g][0], norm[g][1]);
    }
    for (int unit = w.first + threadIdx.x; unit < w.last; unit += THREADS) {
        const bool fed = s.use != TABLE_NONE && unit % s.table_stride == 0;
        const bf16 *from = s.table + ((size_t)(unit / s.table_stride) * VOCABULARY + byte) * G;
        float z[G];
#pragma unroll
        for (int g = 0; g < G; g++) {
            z[g] = raw[(unit - w.first) * G + g];
            if (s.layer_norm) z[g] = z[g] * norm[g][1] + norm[g][0];
            if (s.gain) z[g] *= s.gain[g * s.units + unit];
            if (s.bias) z[g] += s.bias[g * s.units + unit];
            const float entry = fed ? to_float(from[g]) : 0;
            if (fed) z[g] = s.use == TABLE_MULTIPLY ? z[g] * entry : z[g] + entry;
        }
        float y = s.relu && z[0] < 0 ? 0 : z[0];
        if (G == GATES) {
            float of[GATES];
#pragma unroll
            for (int g = 0; g < GATES; g++) of[g] = z[g % G] * slope<bf16>(g);
            y = update_cell<bf16>(of, c[unit - w.first]);
        }
        s.y[unit] = from_float<bf16>(y);
    }
}

/* ------------------------------------------------------------------------------------- kernel */

/* Copies column 0 of the state to where this kernel keeps the thread block's units, or back. */
static __device__ void move_state(const program &p, const work *works, float *c, bool back) {
    for (int q = 0; q < p.passes; q++) {
        const pass &s = p.stage[q];
        const work &w = works[q];
        if (!s.c0) continue;
        for (int unit = w.first + threadIdx.x; unit < w.last; unit += THREADS) {
            const size_t column = (size_t)unit * p.columns;
            if (back) {
                s.h0[column] = s.y[unit];
                s.c0[column] = c[unit - w.first];
            } else {
                s.y[unit] = s.h0[column];
                c[unit - w.first] = s.c0[column];
            }
        }
        c += p.most_units;
    }
}

/* Finds what this thread block computes of each stage, with a thread for each. */
static __device__ void share_out(const program &p, work *works) {
    if (threadIdx.x < p.passes) {
        const pass &s = p.stage[threadIdx.x];
        work &w = works[threadIdx.x];
        w.first = first_unit(s, blockIdx.x);
        w.last = first_unit(s, blockIdx.x + 1);
        w.count = (w.last - w.first) / s.own.units;
        w.other_first = threadIdx.x                 ? w.first
                        : blockIdx.x < p.head_block ? VOCABULARY
                                                    : (blockIdx.x - p.head_block) * p.head.units;
        w.more = threadIdx.x ? (s.below.w ? w.count : 0) : w.other_first < VOCABULARY;
        const bool same = threadIdx.x == 0 && p.head_x == s.x && p.head.stride == 1;
        w.x_other = w.more && !same ? s.inputs : 0;
    }
    __syncthreads();
}

template <bool AHEAD>
static __global__ void __launch_bounds__(THREADS, 1)
    write_kernel(const __grid_constant__ program given, int layers) {
    extern __shared__ __align__(128) char shared[];
    __shared__ program p; /* the constant cache holds less than half of it */
    __shared__ work works[CELL_MAX_STAGES];
    __shared__ sampling how;
    __shared__ float means[2 * GATES];
    __shared__ int byte;
    for (int i = threadIdx.x; i < sizeof p / 4; i += THREADS) {
        ((uint32_t *)&p)[i] = ((const uint32_t *)&given)[i];
    }
    if (threadIdx.x == 0) {
        how = *given.state;
        byte = *given.byte;
    }
    __syncthreads();
    const places at(p, shared, layers);
    uint32_t waits = 0;
    share_out(p, works);
    for (int q = 0, list = 0, spans = 0; q < p.passes; q++) {
        work &w = works[q];
        if (threadIdx.x == 0) {
            w.list = list;
            w.spans = spans;
        }
        __syncthreads();
        list_steps(p, p.stage[q], w, at);
        list += w.batches;
        spans += w.count + w.more + 1;
    }
    move_state(p, works, at.c, false);
    wait_for_all(p, ++waits);
    for (int k = 0;; k++) { /* bytes read so far, and drawn */
        float *c = at.c;
        for (int q = 0; q < p.passes; q++) {
            const pass &s = p.stage[q];
            const bool gates = s.own.gates == GATES;
            multiply<AHEAD>(p, s, works[q], at, q == 0);
            wait_for_all(p, ++waits);
            if (s.layer_norm) find_means(p, s, means);
            if (q == 0 && k > 0) draw_next(p, &how, how.position + k, &byte);
            if (q == 0 && k == p.count) break;
            __syncthreads();
            gates ? finish<GATES>(p, s, works[q], byte, means, at.raw, c)
                  : finish<1>(p, s, works[q], byte, means, at.raw, c);
            if (gates) c += p.most_units;
            wait_for_all(p, ++waits);
        }
        if (k == p.count) break;
    }
    move_state(p, works, at.c, true);
    if (blockIdx.x > 0 || threadIdx.x > 0) return;
    *p.byte = (uint8_t)byte;
    p.state->position = how.position + p.count;
}

/* --------------------------------------------------------------------------------------- host */

/* `units` of the matrix make a group. */
static matrix matrix_of(const device_layout *device, const void *w, int units, bool *fits) {
    const layout *l = &device->host;
    matrix m = {(const bf16 *)w, l->row_start, l->row_column, 31};
    m.rows = l->out_block;
    m.chunks = l->in_block / CHUNK;
    m.gates = l->gates;
    m.stride = l->in_stride;
    m.units = units;
    m.depth = DEPTH;
    if (!layout_is_dense(l)) m.log_rows = log2_of(m.rows);
    *fits = *fits && l->in_block % DEPTH == 0 && m.units <= ROWS / 2;
    return m;
}

/* Lets matrices of one gate, which are multiplied together, take two halves of k in a step. */
static void take_halves(matrix *own, matrix *other) {
    const int chunks = own->chunks | (other ? other->chunks : 0);
    if (own->gates == 1 && chunks % (2 * DEPTH / CHUNK) == 0) {
        own->depth = 2 * DEPTH;
        if (other) other->depth = own->depth;
    }
}

/* Adds the stages of a layer; `x_below` is the h of the layer below. Returns its h. */
static const bf16 *add_layer(program *p, const writer *w, int layer, const bf16 *x_below,
                             bool *fits) {
    const cell *c = w->cell[layer];
    bf16 *h = (bf16 *)c->h + (size_t)c->hidden * c->columns;
    const bf16 *x = h;
    for (int i = 0; i < c->stages; i++) {
        const stage *g = &c->stage[i];
        const bool gates = g->gates == GATES;
        pass *s = &p->stage[p->passes++];
        s->units = g->units;
        s->inputs = (int)layout_inputs(&g->layout->host);
        s->own = matrix_of(g->layout, g->weight, ROWS / (gates ? GATES : 2), fits);
        s->weights = layout_weights(&g->layout->host);
        if (i == 0 && layer > 0) {
            s->below = matrix_of(w->below[layer], w->below_weight[layer], s->own.units, fits);
            s->weights += layout_weights(&w->below[layer]->host);
        }
        if (i > 0 || layer > 0) take_halves(&s->own, s->below.w ? &s->below : NULL);
        *fits = *fits && g->units % s->own.units == 0;
        s->x = x;
        s->x_below = x_below;
        s->y = gates ? h : (bf16 *)g->out;
        s->h0 = (bf16 *)c->h;
        s->c0 = gates ? (float *)c->c : NULL;
        s->gain = (const float *)g->gain;
        s->bias = (const float *)g->bias;
        s->table = (const bf16 *)(gates ? c->entries : g->table);
        s->use = g->table_use;
        s->table_stride = g->table_stride;
        s->layer_norm = g->layer_norm;
        s->relu = g->relu;
        x = s->y;
    }
    return h;
}

/* Shares the head and the first stage among `blocks` thread blocks: where these are enough, a group
 * of either has one to itself. */
static void place_head(program *p, const writer *w, int blocks, bool *fits) {
    pass *first = &p->stage[0];
    for (int q = 1; q < p->passes; q++) p->stage[q].blocks = blocks;
    const int groups = first->units / first->own.units, heads = VOCABULARY / (ROWS / 2);
    const bool apart = first->own.gates == 1 && groups + heads <= blocks;
    int units = apart ? ROWS / 2 : 1;
    while (units * blocks < VOCABULARY) units *= 2;
    p->head = matrix_of(w->head, w->head_weight, units, fits);
    p->head_block = apart ? blocks - heads : 0;
    first->blocks = apart ? p->head_block : blocks;
    take_halves(&first->own, &p->head);
}

/* Finds how much of everything a thread block has of each stage, at most. */
static void count_shares(program *p) {
    for (int q = 0; q < p->passes; q++) {
        pass *s = &p->stage[q];
        const int all = s->units / s->own.units, reads = s->below.w != NULL;
        int units, groups, batches, parts;
        if (s->own.row_start) {
            const size_t cost = s->weights + (size_t)s->units * UNIT_COST;
            units = (int)(cost / UNIT_COST / s->blocks) + 2 * s->own.units;
            groups = units / s->own.units + 1;
            batches = (int)(cost / s->blocks / (s->own.units * s->own.gates * DEPTH * BATCH)) +
                      (2 + reads) * (p->hidden / DEPTH / BATCH) + 2 * groups;
            parts = groups * (1 + reads) + 1 + WARPS;
        } else {
            groups = (all + s->blocks - 1) / s->blocks;
            units = groups * s->own.units;
            const int each = (s->inputs / s->own.depth + BATCH - 1) / BATCH;
            const int below = reads ? (p->hidden / s->below.depth + BATCH - 1) / BATCH : 0;
            batches = groups * (each + below);
            parts = groups * (min(each, (int)WARPS) + min(below, (int)WARPS));
        }
        if (q == 0) {
            const int each = (p->hidden / p->head.depth + BATCH - 1) / BATCH;
            batches += each;
            parts += min(each, (int)WARPS);
        }
        groups = groups * (1 + reads) + 1;
        p->most_units = max(p->most_units, (units + 3) / 4 * 4);
        p->most_parts = max(p->most_parts, parts);
        p->all_groups += groups + 1;
        p->all_batches += batches;
    }
}

bool cuda_write(backend *be, const writer *w, int count) {
    cuda_backend *cuda = cuda_of(be);
    const int blocks = min(cuda->processors, (int)MOST_BLOCKS);
    const bf16 *x = NULL;
    bool fits = be->precision == BF16;
    program p = {};
    p.hidden = w->cell[0]->hidden;
    p.columns = w->cell[0]->columns;
    for (int i = 0; i < w->layers && fits; i++) x = add_layer(&p, w, i, x, &fits);
    if (!fits) return false;
    place_head(&p, w, blocks, &fits);
    count_shares(&p);
    p.head_x = x;
    p.vectors = w->layers > 1 || p.head.stride > 1 ? 2 : 1;
    p.count = count;
    p.head_bias = (const float *)w->head_bias;
    p.last = (float *)w->logits;
    p.state = w->state;
    p.text = w->text;
    p.byte = (uint8_t *)w->cell[0]->bytes;
    p.flags = (uint32_t *)cuda->partial;
    p.sums = (float *)(p.flags + MOST_BLOCKS);
    p.logits = p.sums + MOST_BLOCKS * 2 * GATES;
    p.stuck = cuda_stuck_word(be, "write");
    const size_t shared = (char *)places(p, NULL, w->layers).end - (char *)NULL;
    if (!fits || shared + STATIC_SHARED > cuda->shared_limit) return false;
    be->zero(be, p.flags, MOST_BLOCKS * sizeof *p.flags);
    size_t weights = layout_weights(&w->head->host);
    for (int q = 0; q < p.passes; q++) weights += p.stage[q].weights;
    const bool ahead = weights * sizeof(bf16) > cuda->l2_bytes;
    cuda_launch_together(be, "write", false, ahead ? write_kernel<true> : write_kernel<false>,
                         blocks, THREADS, shared, p, w->layers);
    return true;
}

/* -------------------------------------------------------------------------------------- draws */

static __global__ void __launch_bounds__(32 * SAMPLE_WARPS)
    sample_kernel(const float *logits, const float *bias, int streams, int columns, sampling *s,
                  uint8_t *text, uint8_t *bytes) {
    const uint64_t next = s->position + 1;
    for (int n = threadIdx.y; n < streams; n += SAMPLE_WARPS) {
        uint8_t *to = text + next * streams + n;
        int byte;
        if (next >= s->prompt) {
            byte = draw_byte(logits + n, columns, bias, s, n, next - s->prompt);
        } else {
            byte = *to;
        }
        if (threadIdx.x == 0) *to = bytes[n] = (uint8_t)byte;
    }
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) s->position = next;
}

void cuda_sample(backend *be, const void *logits, const void *bias, int streams, int columns,
                 sampling *state, uint8_t *text, uint8_t *bytes) {
    sample_kernel<<<1, dim3(32, SAMPLE_WARPS), 0, cuda_of(be)->stream>>>(
        (const float *)logits, (const float *)bias, streams, columns, state, text, bytes);
    cuda_launched(be, "sample");
}
