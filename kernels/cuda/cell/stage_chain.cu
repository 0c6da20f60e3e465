/* The internal stages of a step as one kernel, forward or backward, for layers whose blocks of a
 * thread block fit into its shared memory.
 *
 *   forward    raw = W x;  out = act(combine(norm(raw), table));  out is the next stage's x
 *   backward   dpre, dentry, draw from the gradient at out;  W' draw is that of the stage before
 *
 * What a stage computes is small: 8,192 units, 1,992 blocks of 32 and 128 columns are 0.5 GFLOP,
 * and the 16 MB that the blocks gather come out of the L2 in 2 us. What takes time is that each
 * stage needs all of the one before, and its sums over all units: two waits for the whole device.
 * Besides, a hub of a scale-free graph has 50 to 70 of these blocks, where a multiprocessor's share
 * is 15.
 *
 * So a slice of 32 columns has as many thread blocks as there are multiprocessors for, which wait
 * for each other alone. A part is what one of them makes: nodes with about equally many blocks
 * together; a hub is a part by itself, as 32 columns of it are hardly more than the mean of all
 * parts. The blocks of a part are brought into shared memory while the stage before still waits.
 * Each of the 16 warps takes a task: an equal share of a node's blocks, by halves of 16 inputs,
 * whose x it gathers through a small ring of its own. A node has as many tasks as its share of the
 * part's blocks. Their sums are added up in order and stay in registers until layer norm's sums of
 * the whole slice are known: nothing of a stage is read twice.
 *
 * The exchange of sums: each part leaves its own in words with a tag, the number of the exchange,
 * and reads all others' until they have it, which takes no barrier; all add them up in the same
 * order. A stage's end is a flag of each part with the same number.
 *
 * All thread blocks must run at once: there are no more of them than multiprocessors, and a kernel
 * that starts early does so once all of this one have.
 *
 * With five internal stages a step takes 95 us forward and 133 backward; a stage takes 12 and 17 of
 * that, its product 4. The rest is mostly straight code that runs once a stage, and waits for the
 * last thread block. What did not help: docs/kernels/cell.md. */
#include "cell/cell.h"
#include "cell/stage_chain.cuh"
#include "cell/stages.cuh"
#include "device/ptx.cuh"

enum {
    THREADS = WARPS * 32,
    HALF = UNITS / 2, /* inputs that a piece of a task brings */
    DEPTH = 4,        /* pieces of a warp under way */
    PIECE_BYTES = HALF * SLICE * 2,
    BLOCK_BYTES = UNITS * UNITS * 2,
    RING_BYTES = UNITS * SLICE * 4, /* a task's sums lie where its pieces did */
    ROUNDS = CHAIN_NODES / 2,       /* rows of a part that a warp has, by fours */
    COLUMNS = 4                     /* of a lane, of those */
};

static_assert(DEPTH * PIECE_BYTES <= RING_BYTES, "pieces lie in the ring");

typedef struct chain_stage {
    view<bf16> v;
    const bf16 *weight, *x; /* x: what the product reads: the stage's input, or draw */
    const chain_part *part;
    const int *other, *block; /* the lists of the layout; block: NULL if in order */
    float *unit_sums;         /* [slices][2][hidden]: of dpre, and dpre times the normalised raw */
} chain_stage;

typedef struct chain_arguments {
    int stages, columns;
    int keep;        /* forward: raw is */
    int overlap;     /* see cuda_weights_change */
    int asked;       /* backward: dx is asked for */
    uint32_t number; /* of the first exchange */
    fixed *sums;     /* [parts of all slices][2][SLICE] */
    uint32_t *flags; /* [parts of all slices] */
    uint32_t *stuck; /* see device/waits.cuh */
    bf16 *dx;
    chain_stage stage[CHAIN_STAGES];
} chain_arguments;

/* Shared memory. */
struct chain_shared {
    float column_sums[2][WARPS][2][SLICE]; /* of warps; of parts, by READERS */
    chain_part part[CHAIN_STAGES];
    uint16_t source[CHAIN_SLOTS]; /* of the blocks that are there */
    char rings[WARPS][RING_BYTES] __attribute__((aligned(128)));
    char blocks[];
};

static __device__ inline uint32_t load_acquire(const uint32_t *from) {
    uint32_t x;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}

static __device__ inline void store_release(uint32_t *to, uint32_t x) {
    asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}

/* Where column c of row r of a task's sums lies. */
static __device__ inline int tile_at(int row, int column) {
    return row * SLICE + (column ^ (row & 3) << 3);
}

template <bool FORWARD> struct chain {
    const chain_arguments &p;
    chain_shared *shared;
    int warp, lane, slice, slices, number, parts; /* number: of this part in its slice */

    __device__ chain(const chain_arguments &p_, chain_shared *shared_) : p(p_), shared(shared_) {
        warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        slices = p.columns / SLICE;
        slice = blockIdx.x % slices;
        number = blockIdx.x / slices;
        parts = gridDim.x / slices;
        for (int i = threadIdx.x; i < p.stages * (int)(sizeof(chain_part) / 4); i += THREADS) {
            const int words = sizeof(chain_part) / 4, s = i / words;
            ((uint32_t *)&shared->part[s])[i % words] =
                ((const uint32_t *)&p.stage[s].part[number])[i % words];
        }
        __syncthreads();
    }

    /* Each lane looks up the source node and the number of a block that its warp fetches. */
    __device__ void find_blocks(int s, int &source, int &block) {
        const chain_stage &g = p.stage[s];
        const chain_part &part = shared->part[s];
        const int slot = warp + lane * WARPS;
        source = block = 0;
        if (slot >= part.slot[part.nodes]) return;
        int node = 0;
        while (slot >= part.slot[node + 1]) node++;
        const int entry = (int)part.first[node] + slot - part.slot[node];
        source = g.other[entry];
        block = g.block ? g.block[entry] : entry;
    }

    __device__ void fetch_blocks(int s, int source, int block) {
        const chain_part &part = shared->part[s];
        const bf16 *from = p.stage[s].weight + lane * 8;
        const uint32_t to = shared_address(shared->blocks) + swizzle<4>(lane / 4, lane % 4) * 16;
        if (warp + lane * WARPS < part.slot[part.nodes]) {
            shared->source[warp + lane * WARPS] = (uint16_t)source;
        }
        for (int i = 0, slot = warp; slot < part.slot[part.nodes]; i++, slot += WARPS) {
            const bf16 *mine = from + (size_t)__shfl_sync(~0u, block, i) * UNITS * UNITS;
#pragma unroll
            for (int k = 0; k < BLOCK_BYTES / 512; k++) { /* 8 rows each, by swizzle's period */
                copy_async_whole(to + slot * BLOCK_BYTES + k * 512, mine + k * 256);
            }
        }
        copy_commit();
    }

    /* This warp's task: its share of a node's blocks. */
    __device__ void multiply(int s) {
        const chain_stage &g = p.stage[s];
        const chain_part &part = shared->part[s];
        const uint32_t blocks = shared_address(shared->blocks);
        const uint32_t ring = shared_address(shared->rings[warp]);
        int node = 0;
        while (node + 1 < part.nodes && warp >= part.task[node + 1]) node++;
        const int slot = part.slot[node], pieces = 2 * (part.slot[node + 1] - slot);
        const int share = warp - part.task[node], shares = part.task[node + 1] - part.task[node];
        const bool any = share < shares;
        const int begin = any ? pieces * share / shares : 0;
        const int end = any ? pieces * (share + 1) / shares : 0;
        const bf16 *x = g.x + slice * SLICE + lane % 4 * 8;
        auto fetch = [&](int j) {
            if (j < end) {
                const uint32_t to = ring + (j - begin) % DEPTH * PIECE_BYTES;
                const int row = shared->source[slot + j / 2] * UNITS + j % 2 * HALF + lane / 4;
                const bf16 *from = x + (size_t)row * p.columns;
                copy_async_whole(to + swizzle<4>(lane / 4, lane % 4) * 16, from);
                copy_async_whole(to + swizzle<4>(lane / 4 + 8, lane % 4) * 16,
                                 from + (size_t)8 * p.columns);
            }
            copy_commit();
        };
        float sum[2][4][4] = {};
#pragma unroll
        for (int i = 0; i < DEPTH; i++) fetch(begin + i);
        const int in = lane % 8, matrix = lane / 8;
#pragma unroll 1
        for (int j = begin; j < end; j++) {
            const uint32_t at = ring + (j - begin) % DEPTH * PIECE_BYTES;
            const uint32_t w = blocks + (slot + j / 2) * BLOCK_BYTES;
            uint32_t a[2][4], b[2][4];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                if (FORWARD) {
                    const int row = i * 16 + matrix % 2 * 8 + in, chunk = j % 2 * 2 + matrix / 2;
                    load_matrices(a[i], w + swizzle<4>(row, chunk) * 16);
                } else {
                    const int row = j % 2 * HALF + matrix / 2 * 8 + in, chunk = i * 2 + matrix % 2;
                    load_matrices_transposed(a[i], w + swizzle<4>(row, chunk) * 16);
                }
            }
            copy_wait<DEPTH - 1>();
            __syncwarp();
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int row = matrix % 2 * 8 + in, chunk = i * 2 + matrix / 2;
                load_matrices_transposed(b[i], at + swizzle<4>(row, chunk) * 16);
            }
#pragma unroll
            for (int i = 0; i < 2; i++) {
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    multiply_add(sum[i][k], a[i], b[k / 2][k % 2 * 2], b[k / 2][k % 2 * 2 + 1]);
                }
            }
            __syncwarp();
            fetch(j + DEPTH);
        }
        copy_wait<0>();
        __syncwarp();
        float *tile = (float *)shared->rings[warp];
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    const int row = i * 16 + half * 8 + lane / 4, n = k * 8 + lane % 4 * 2;
                    *(float2 *)(tile + tile_at(row, n)) =
                        make_float2(sum[i][k][half * 2], sum[i][k][half * 2 + 1]);
                }
            }
        }
    }

    /* Rows are dealt out by fours: a warp has four rows of every second node, and a lane four
     * columns of one of these rows. The node of round i: */
    __device__ int node_of(int i) {
        return warp / 8 + 2 * i;
    }

    __device__ int unit_of(const chain_part &part, int i) {
        return part.node[node_of(i)] * UNITS + warp % 8 * 4 + lane / 8;
    }

    __device__ uint32_t place_of(int unit) {
        return (uint32_t)unit * (uint32_t)p.columns + slice * SLICE + lane % 8 * COLUMNS;
    }

    /* Adds up the sums of all tasks of a row's node, and rounds them as if they were stored. */
    __device__ void take_sums(const chain_part &part, int i, float (&value)[COLUMNS]) {
        const int at = tile_at(warp % 8 * 4 + lane / 8, lane % 8 * COLUMNS), node = node_of(i);
        float total[COLUMNS] = {};
        for (int task = part.task[node]; task < part.task[node + 1]; task++) {
            float more[COLUMNS];
            load(more, (const float *)shared->rings[task] + at);
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) total[k] += more[k];
        }
        packet<bf16, COLUMNS> rounded;
        pack(rounded, total);
        unpack(rounded, value);
    }

    /* The totals of two values over all units, for each column of the slice. First leave this
     * part's sums; sum: of a lane's four columns. */
    __device__ void leave_sums(uint32_t tag, float (&sum)[2][COLUMNS]) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) {
                sum[i][k] += __shfl_xor_sync(~0u, sum[i][k], 8);
                sum[i][k] += __shfl_xor_sync(~0u, sum[i][k], 16);
            }
            if (lane < 8) store_shared(&shared->column_sums[0][warp][i][lane * COLUMNS], sum[i]);
        }
        __syncthreads();
        if (warp >= 2) return;
        float total = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++) total += shared->column_sums[0][w][warp][lane];
        fixed *to = p.sums + ((size_t)blockIdx.x * 2 + warp) * SLICE + lane;
        *(volatile fixed *)to = (fixed)tag << 32 | __float_as_uint(total);
    }

    /* Then take the totals; total: of column `lane` of the slice. */
    __device__ void take_totals(uint32_t tag, float (&total)[2]) {
        const int which = warp % 2, reader = warp / 2;
        fixed word[PARTS_OF_WARP] = {};
        patience patience;
        for (bool all = false; !all;) {
            all = true;
#pragma unroll
            for (int k = 0; k < PARTS_OF_WARP; k++) {
                const int part = reader + k * READERS;
                if (part >= parts) break;
                const int of = part * slices + slice;
                word[k] = *(const volatile fixed *)(p.sums + (of * 2 + which) * SLICE + lane);
            }
#pragma unroll
            for (int k = 0; k < PARTS_OF_WARP; k++) {
                if (reader + k * READERS >= parts) break;
                all &= (uint32_t)(word[k] >> 32) == tag;
            }
            if (!all) patience.lose(p.stuck);
        }
        float sum = 0;
#pragma unroll
        for (int k = 0; k < PARTS_OF_WARP; k++) sum += __uint_as_float((uint32_t)word[k]);
        shared->column_sums[1][reader][which][lane] = sum;
        __syncthreads();
        total[0] = total[1] = 0;
#pragma unroll
        for (int w = 0; w < READERS; w++) {
            total[0] += shared->column_sums[1][w][0][lane];
            total[1] += shared->column_sums[1][w][1][lane];
        }
    }

    /* From one value for each lane's column to those of a lane's four columns. */
    __device__ void spread(float mine, float (&x)[COLUMNS]) {
#pragma unroll
        for (int k = 0; k < COLUMNS; k++) {
            x[k] = __shfl_sync(~0u, mine, lane % 8 * COLUMNS + k);
        }
    }

    /* A barrier of this slice's thread blocks: afterwards each sees what all of them have
     * stored. */
    __device__ void meet(uint32_t tag) {
        __syncthreads();
        if (threadIdx.x == 0) store_release(&p.flags[blockIdx.x], tag);
        if ((int)threadIdx.x < parts) {
            const uint32_t *flag = &p.flags[threadIdx.x * slices + slice];
            for (patience patience; (int)(load_acquire(flag) - tag) < 0;) patience.lose(p.stuck);
        }
        copy_wait<0>(); /* blocks */
        __syncthreads();
    }
};

/* The entry of a unit that the stride leaves out. */
enum : uint32_t { NO_ENTRY = 0x10000 };

/* The bits of a bf16, in a register of its own. */
static __device__ inline uint32_t load_entry(const bf16 *from) {
    uint32_t bits;
    asm volatile("ld.global.u16 %0, [%1];" : "=r"(bits) : "l"(from));
    return bits;
}

/* A lane's inputs for a stage's units, other than sums, fetched while these are computed. */
template <bool FORWARD> struct chain_inputs {
    float gain[ROUNDS], bias[ROUNDS];
    uint32_t entry[ROUNDS][COLUMNS];   /* of the table; or backward, with relu, two words of out */
    packet<bf16, COLUMNS> raw[ROUNDS]; /* backward */
    bool enters;

    __device__ void fetch(chain<FORWARD> &c, const view<bf16> &v, const chain_part &part,
                          uint32_t bytes) {
        enters = v.use == TABLE_MULTIPLY || (FORWARD && v.use == TABLE_ADD);
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (c.node_of(i) >= part.nodes) break;
            const int unit = c.unit_of(part, i);
            const uint32_t at = c.place_of(unit);
            if (!FORWARD) load_packet(raw[i], v.raw + at);
            if (!FORWARD && v.relu) {
                packet<bf16, COLUMNS> out;
                load_packet(out, v.out + at);
                entry[i][0] = out.word[0];
                entry[i][1] = out.word[1];
            } else if (enters) {
                const bf16 *table = unit_table(v, unit);
#pragma unroll
                for (int k = 0; k < COLUMNS; k++) {
                    entry[i][k] = table ? load_entry(table + byte_of(bytes, k)) : NO_ENTRY;
                }
            }
        }
    }

    /* These are fetched later, as they would only take registers. */
    __device__ void fetch_factors(chain<FORWARD> &c, const view<bf16> &v, const chain_part &part) {
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (c.node_of(i) >= part.nodes) break;
            const int unit = c.unit_of(part, i);
            gain[i] = gain_of(v, 0, unit);
            bias[i] = bias_of(v, 0, unit);
        }
    }
};

static __device__ inline float entry_of(uint32_t bits) {
    return __uint_as_float(bits << 16);
}

/* ------------------------------------------------------------------------------------- forward */

static __global__ void __launch_bounds__(THREADS, 1)
    stage_chain_forward(const __grid_constant__ chain_arguments p) {
    extern __shared__ __align__(128) char shared_bytes[];
    chain<true> c(p, (chain_shared *)shared_bytes);
    int source, block;
    c.find_blocks(0, source, block);
    if (p.overlap) c.fetch_blocks(0, source, block);
    const uint32_t bytes = load_bytes<COLUMNS>(p.stage[0].v.bytes + c.place_of(0));
    wait_for_earlier();
    let_next_start();
    if (!p.overlap) c.fetch_blocks(0, source, block);
    copy_wait<0>();
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < p.stages; s++) {
        const view<bf16> &v = p.stage[s].v;
        const chain_part &part = c.shared->part[s];
        const uint32_t tag = p.number + s;
        const bool more = s + 1 < p.stages;
        chain_inputs<true> in;
        float value[ROUNDS][COLUMNS], sum[2][COLUMNS] = {};
        if (more) c.find_blocks(s + 1, source, block);
        in.fetch(c, v, part, bytes);
        c.multiply(s);
        in.fetch_factors(c, v, part);
        __syncthreads();
        if (more) c.fetch_blocks(s + 1, source, block);
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (c.node_of(i) >= part.nodes) break;
            c.take_sums(part, i, value[i]);
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) {
                sum[0][k] += value[i][k];
                sum[1][k] += value[i][k] * value[i][k];
            }
        }
        float shift[COLUMNS] = {}, scale[COLUMNS] = {1, 1, 1, 1};
        if (v.layer_norm) c.leave_sums(tag, sum);
        if (p.keep) {
#pragma unroll
            for (int i = 0; i < ROUNDS; i++) {
                if (c.node_of(i) >= part.nodes) break;
                store(v.raw + c.place_of(c.unit_of(part, i)), value[i]);
            }
        }
        if (v.layer_norm) {
            float total[2];
            c.take_totals(tag, total);
            float mine[2];
            find_statistics(total[0] / v.hidden, total[1] / v.hidden, mine[0], mine[1]);
            c.spread(mine[0], shift);
            c.spread(mine[1], scale);
            if (c.number == 0 && c.warp == 0) {
                float *kept = kept_statistics(v.sums, v.columns) + c.slice * SLICE + c.lane;
                kept[0] = mine[0];
                kept[v.columns] = mine[1];
            }
        }
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (c.node_of(i) >= part.nodes) break;
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) {
                float &y = value[i][k];
                y = in.gain[i] * (y * scale[k] + shift[k]) + in.bias[i];
                if (in.enters && in.entry[i][k] != NO_ENTRY) {
                    const float entry = entry_of(in.entry[i][k]);
                    y = v.use == TABLE_ADD ? y + entry : y * entry;
                }
                if (v.relu && y < 0) y = 0;
            }
            store(v.out + c.place_of(c.unit_of(part, i)), value[i]);
        }
        if (more) c.meet(tag);
    }
}

/* ------------------------------------------------------------------------------------ backward */

/* Adds sums over a slice's columns to those of units: eight lanes have a unit's columns. */
static __device__ __forceinline__ void add_unit(const chain<false> &c, const chain_stage &g,
                                                int unit, float (&x)[2]) {
    float *to = g.unit_sums + ((size_t)c.slice * 2 + c.lane % 8) * g.v.hidden + unit;
#pragma unroll
    for (int step = 1; step < 8; step *= 2) {
        x[0] += __shfl_xor_sync(~0u, x[0], step);
        x[1] += __shfl_xor_sync(~0u, x[1], step);
    }
    if (c.lane % 8 < 2) {
        const float mine = c.lane % 8 ? x[1] : x[0];
        if (g.v.start) {
            *to = mine;
        } else {
            atomicAdd(to, mine); /* no other thread adds here; the result is not waited for */
        }
    }
}

static __global__ void __launch_bounds__(THREADS, 1)
    stage_chain_backward(const __grid_constant__ chain_arguments p) {
    extern __shared__ __align__(128) char shared_bytes[];
    chain<false> c(p, (chain_shared *)shared_bytes);
    int source, block;
    c.find_blocks(p.stages - 1, source, block);
    if (p.overlap) c.fetch_blocks(p.stages - 1, source, block);
    const uint32_t bytes = load_bytes<COLUMNS>(p.stage[0].v.bytes + c.place_of(0));
    float d[ROUNDS][COLUMNS];
#pragma unroll 1
    for (int s = p.stages - 1; s >= 0; s--) {
        const chain_stage &g = p.stage[s];
        const view<bf16> &v = g.v;
        const bool first = s == p.stages - 1;
        const chain_part &part = c.shared->part[first ? s : s + 1];
        const uint32_t tag = p.number + p.stages - 1 - s;
        chain_inputs<false> in;
        float value[ROUNDS][COLUMNS], shift[COLUMNS] = {}, scale[COLUMNS] = {1, 1, 1, 1};
        if (!first) c.find_blocks(s, source, block);
        in.fetch(c, v, part, bytes);
        if (first) {
            wait_for_earlier();
            let_next_start();
            if (!p.overlap) c.fetch_blocks(s, source, block);
        } else {
            c.multiply(s + 1);
        }
        in.fetch_factors(c, v, part);
        if (v.layer_norm) {
            const float *kept = kept_statistics(v.sums, v.columns) + c.place_of(0);
            load(shift, kept);
            load(scale, kept + v.columns);
        }
        if (!first) {
            __syncthreads();
            c.fetch_blocks(s, source, block);
        }
        float sum[2][COLUMNS] = {};
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (c.node_of(i) >= part.nodes) break;
            const int unit = c.unit_of(part, i);
            const uint32_t at = c.place_of(unit);
            float of_unit[2] = {};
            if (first) {
                load(d[i], p.dx + at);
            } else {
                c.take_sums(part, i, d[i]);
            }
            unpack(in.raw[i], value[i]);
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) {
                value[i][k] = value[i][k] * scale[k] + shift[k];
                const uint32_t out = in.entry[i][k / 2];
                if (v.relu && !(entry_of(k % 2 ? out >> 16 : out) > 0)) d[i][k] = 0;
            }
            if (in.enters) {
                float asked[COLUMNS];
#pragma unroll
                for (int k = 0; k < COLUMNS; k++) {
                    const bool fed = in.entry[i][k] != NO_ENTRY;
                    asked[k] = fed ? d[i][k] * (in.gain[i] * value[i][k] + in.bias[i]) : 0;
                    if (fed) d[i][k] *= entry_of(in.entry[i][k]);
                }
                store(v.dentry + at, asked);
            }
            packet<bf16, COLUMNS> rounded;
            pack(rounded, d[i]);
            store_packet(v.dpre + at, rounded);
            unpack(rounded, d[i]);
#pragma unroll
            for (int k = 0; k < COLUMNS; k++) {
                const float product = d[i][k] * value[i][k];
                of_unit[0] += d[i][k];
                of_unit[1] += product;
                sum[0][k] += in.gain[i] * d[i][k];
                sum[1][k] += in.gain[i] * product;
            }
            add_unit(c, g, unit, of_unit);
        }
        if (v.layer_norm) {
            float total[2], mean[COLUMNS], product[COLUMNS];
            c.leave_sums(tag, sum);
            c.take_totals(tag, total);
            c.spread(total[0] / v.hidden, mean);
            c.spread(total[1] / v.hidden, product);
#pragma unroll
            for (int i = 0; i < ROUNDS; i++) {
                if (c.node_of(i) >= part.nodes) break;
#pragma unroll
                for (int k = 0; k < COLUMNS; k++) {
                    d[i][k] =
                        (in.gain[i] * d[i][k] - mean[k] - value[i][k] * product[k]) * scale[k];
                }
                store(v.raw + c.place_of(c.unit_of(part, i)), d[i]);
            }
        }
        if (s > 0 || p.asked) c.meet(tag);
    }
    if (p.asked) {
        const chain_part &part = c.shared->part[0];
        c.multiply(0);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < ROUNDS; i++) {
            if (c.node_of(i) >= part.nodes) break;
            c.take_sums(part, i, d[i]);
            store(p.dx + c.place_of(c.unit_of(part, i)), d[i]);
        }
    }
}

/* The gradients of gain and bias: sums over the slices. */
static __global__ void finish_units_kernel(const float *sums, int slices, int hidden, float *dgain,
                                           float *dbias) {
    const int unit = blockIdx.x * blockDim.x + threadIdx.x;
    float total[2] = {};
    if (unit >= hidden) return;
    for (int slice = 0; slice < slices; slice++) {
        for (int i = 0; i < 2; i++) total[i] += sums[((size_t)slice * 2 + i) * hidden + unit];
    }
    if (dbias) dbias[unit] = total[0];
    if (dgain) dgain[unit] = total[1];
}

/* ----------------------------------------------------------------------------------- launches */

static size_t bytes_of(int slots) {
    return sizeof(chain_shared) + (size_t)slots * BLOCK_BYTES;
}

static const chain_parts *parts_of(const stage *g, int columns, bool forward) {
    const int cut = columns / COLUMN_MULTIPLE - 1;
    return forward ? &g->layout->chain->forward[cut] : &g->layout->chain->backward[cut];
}

static int most_slots(const cell *c, bool forward) {
    int most = 0;
    for (int s = 0; s + 1 < c->stages; s++) {
        most = max(most, parts_of(&c->stage[s], c->columns, forward)->slots);
    }
    return most;
}

bool stage_chain_takes(backend *be, const cell *c) {
    if (be->precision != BF16 || c->stages < 2 || c->stages - 1 > CHAIN_STAGES ||
        c->columns % COLUMN_MULTIPLE || c->columns > CHAIN_CUTS * COLUMN_MULTIPLE)
        return false;
    if (c->below) return false; /* what the layer below adds comes between product and norm */
    for (int s = 0; s + 1 < c->stages; s++) {
        const stage *g = &c->stage[s];
        if (!g->layout->chain || g->gates != 1 || (g->relu && g->table_use == TABLE_MULTIPLY) ||
            !parts_of(g, c->columns, true)->count || !parts_of(g, c->columns, false)->count)
            return false;
    }
    return bytes_of(max(most_slots(c, true), most_slots(c, false))) <= cuda_of(be)->shared_limit;
}

/* Where the thread blocks of a step leave their sums and flags. */
static unsigned long long *words_of(const cell *c) {
    return c->stage[0].layout->chain->words;
}

static void launch_chain(backend *be, const cell *c, int t, bool forward) {
    cuda_backend *cuda = cuda_of(be);
    const int slices = c->columns / SLICE, stages = c->stages - 1;
    const int index = forward ? t : c->steps - 1 - t;
    const size_t plane = (size_t)c->hidden * c->columns;
    const char *name = forward ? "stages" : "stages backward";
    chain_arguments p = {};
    p.stages = stages;
    p.columns = c->columns;
    p.keep = c->keep;
    p.overlap = cuda->weights_settled && cuda->hopper;
    p.asked = t > 0 || c->has_earlier_steps;
    p.number = 1 + (uint32_t)index * stages;
    p.sums = words_of(c);
    p.flags = (uint32_t *)(p.sums + CHAIN_WORDS - CHAIN_PARTS);
    p.stuck = cuda_stuck_word(be, name);
    p.dx = (bf16 *)c->dx;
    for (int s = 0; s < stages; s++) {
        const stage *g = &c->stage[s];
        const layout *l = &g->layout->host;
        chain_stage *to = &p.stage[s];
        to->v = view_step<bf16>(be, c, s, t);
        to->weight = (const bf16 *)g->weight;
        to->part = parts_of(g, c->columns, forward)->part;
        to->unit_sums = g->layout->chain->unit_sums;
        if (forward) {
            to->other = l->row_column;
            to->x = s ? offset<bf16>(c->stage[s - 1].out, (c->keep ? t : 0) * plane)
                      : offset<bf16>(c->h, t * plane);
        } else {
            to->other = l->column_row;
            to->block = l->column_block;
            to->x = to->v.layer_norm ? to->v.raw : to->v.dpre;
        }
    }
    const int grid = slices * parts_of(&c->stage[0], c->columns, forward)->count;
    cuda_launch_together(be, name, true, forward ? stage_chain_forward : stage_chain_backward, grid,
                         THREADS, bytes_of(most_slots(c, forward)), p);
    cuda->weights_settled = true;
}

void stage_chain_start(backend *be, const cell *c) {
    be->zero(be, words_of(c), CHAIN_WORDS * sizeof(fixed)); /* no exchange has this number */
}

void stage_chain_forward_run(backend *be, const cell *c, int t) {
    launch_chain(be, c, t, true);
}

void stage_chain_backward_run(backend *be, const cell *c, int t) {
    launch_chain(be, c, t, false);
}

void stage_chain_finish(backend *be, const cell *c) {
    for (int s = 0; s + 1 < c->stages; s++) {
        const stage *g = &c->stage[s];
        finish_units_kernel<<<(c->hidden + 255) / 256, 256, 0, cuda_of(be)->stream>>>(
            g->layout->chain->unit_sums, c->columns / SLICE, c->hidden, (float *)g->dgain,
            (float *)g->dbias);
        cuda_launched(be, "stages' gains");
    }
}
