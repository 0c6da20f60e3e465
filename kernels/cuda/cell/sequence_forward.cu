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
#include "cell/sequence.cuh"
#include "cell/sequence_forward.h"

/* The number of thread blocks in a cluster. They have units of the same node, so that the x they
 * read is loaded once for all. */
static constexpr int cluster_of(int units) {
    return units == 24 ? 3 : 2;
}

/* U: units of a thread block. GROUPS: warpgroups, of 64 columns each. ABOVE: whether a layer below
 * adds to the first stage. */
template <int U, int GROUPS, bool ABOVE_> struct sequence_shape {
    static const int UNITS = U, CLUSTER = cluster_of(U);
    static const bool ABOVE = ABOVE_, BY_ROWS = true;
    static const int W_BYTES = GATES * U * KC * 2, X_BYTES = KC * BOX_ROW;
    static const int STAGED_PITCH = (GATES + 1) * U * BOX_ROW; /* raw and out of a group */
    static const int X_SLOTS = 4;
    static const int X = 0, RAW = X + GROUPS * X_SLOTS * X_BYTES;
    static const int OUT = RAW + GATES * U * BOX_ROW, W = RAW + GROUPS * STAGED_PITCH;
    static const int SMALL = 25 << 10; /* for what is below, and alignment */
    static const int FIT = (MOST_SHARED - SMALL - W) / W_BYTES, W_SLOTS = FIT < 16 ? FIT : 16;
    static const int HELD = W, MOST_HELD = 0; /* W is loaded anew for each step */
    static const int BARRIERS = W + W_SLOTS * W_BYTES;
    static const int LISTS = BARRIERS + 16 * (W_SLOTS + GROUPS * X_SLOTS);
    static const int GAINS = LISTS + SEQUENCE_STAGES * SEQUENCE_NODES * 2;
    static const int STATISTICS = GAINS + SEQUENCE_STAGES * U * 2 * GATES * 4;
    static const int SCRATCH = STATISTICS + GROUPS * GATES * 2 * BOX * 4;
    static const int BYTES = SCRATCH + GROUPS * 4 * GATES * 2 * 4 + 1024;
    static_assert(BYTES <= MOST_SHARED, "it all fits");
};

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

/* Loads the x of a group's columns, for each stage once all thread blocks have written their
 * part. */
template <typename S>
static __device__ void produce_sequence_inputs(const sequence_arguments &p, uint32_t base,
                                               const uint16_t (*list)[SEQUENCE_NODES],
                                               const int (&count)[SEQUENCE_STAGES], int group,
                                               cursor<S::X_SLOTS> &ring) {
    const int slices = p.block / KC, rank = (int)cluster_rank();
    const int column = p.first_column + group * BOX;
    const uint32_t *counter = counter_of(p, COUNT_OUT, group);
    const uint32_t to = base + S::X + group * S::X_SLOTS * S::X_BYTES;
    uint32_t number = 0; /* stages that are done before this one */
    int turn = 0;
    for (int t = 0; t < p.steps; t++) {
        for (int s = 0; s < p.stages; s++, number++) {
            if (threadIdx.x % 32 == 0) await_count(counter, number * gridDim.x, p.stuck);
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
                    if (mine) {
                        tensor_load_all(at, &p.stage[s].source, full, column, row + slice * KC,
                                        (1 << S::CLUSTER) - 1);
                    }
                }
            }
        }
    }
}

/* ----------------------------------------------------------------------------------- the kernel */

template <int U, int GROUPS, bool ABOVE>
static __global__ void __launch_bounds__((GROUPS + 1) * GROUP, 1)
    sequence_forward(const __grid_constant__ sequence_arguments p) {
#if ON_HOPPER
    typedef sequence_shape<U, GROUPS, ABOVE> S;
    extern __shared__ char unaligned[];
    char *shared = aligned_tiles(unaligned);
    const uint32_t base = shared_address(shared);
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
    my.weights.create(base + S::BARRIERS, GROUPS * 4);
    for (int group = 0; group < GROUPS; group++) {
        cursor<S::X_SLOTS> ring;
        ring.create(base + S::BARRIERS + 16 * (S::W_SLOTS + group * S::X_SLOTS), 4 * S::CLUSTER);
        if (group == of) my.inputs = ring;
    }
    barrier_init_done();
    __syncthreads();
    cluster_sync(); /* the others' barriers are there */

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
    cluster_sync(); /* no thread block ends while another one writes to it */
#endif
}

/* ------------------------------------------------------------------------------------- launches */

/* The thread blocks of a node, whole clusters of them. */
static int parts_of_node(int block, int units) {
    const int cluster = cluster_of(units), parts = (block + units - 1) / units;
    return (parts + cluster - 1) / cluster * cluster;
}

template <int U, int GROUPS, bool ABOVE>
static void launch_sequence_above(backend *be, const sequence_arguments &p) {
    typedef sequence_shape<U, GROUPS, ABOVE> S;
    be->zero(be, p.counters, SEQUENCE_BYTES);
    cuda_launch_clusters(be, "cell forward", false, S::CLUSTER, sequence_forward<U, GROUPS, ABOVE>,
                         dim3(p.nodes * p.parts), (GROUPS + 1) * GROUP, (size_t)S::BYTES, p);
}

template <int U, int GROUPS> static void launch_sequence(backend *be, const sequence_arguments &p) {
    if (p.below) {
        launch_sequence_above<U, GROUPS, true>(be, p);
    } else {
        launch_sequence_above<U, GROUPS, false>(be, p);
    }
}

template <int U> static int count_sequence(backend *be) {
    typedef sequence_shape<U, 2, false> S;
    return count_together(be, (const void *)sequence_forward<U, 2, false>, S::CLUSTER, 3 * GROUP,
                          S::BYTES);
}

/* The smallest number of units of a thread block with which all thread blocks run at once; 0: the
 * GPU has too few multiprocessors. */
static int sequence_units(backend *be, const layout *l) {
    for (int units = 16; units <= 32; units += 8) {
        const int blocks = l->in_nodes * parts_of_node(l->in_block, units);
        if (blocks > cuda_of(be)->processors) continue;
        const int room = units == 16   ? count_sequence<16>(be)
                         : units == 24 ? count_sequence<24>(be)
                                       : count_sequence<32>(be);
        if (blocks <= room) return units;
    }
    return 0;
}

sequence_tables *sequence_forward_plan(backend *be, device_layout *device, const layout *l) {
    if (!cuda_of(be)->hopper || be->precision != BF16 || layout_is_dense(l)) return NULL;
    if (l->gates == COUPLED_GATES) return NULL;
    if (l->in_block % KC || l->in_nodes > SEQUENCE_NODES) return NULL;
    for (int i = 0; i < l->out_nodes; i++) { /* a part without x would not wait for the others */
        if (l->row_start[i] == l->row_start[i + 1]) return NULL;
    }
    const int units = sequence_units(be, l);
    if (!units) return NULL;
    sequence_tables *tables = layout_plan<sequence_tables>(device);
    tables->units = units;
    tables->counters = (uint32_t *)layout_device_block(be, device, SEQUENCE_BYTES);
    tables->table = (bf16 *)layout_device_block(be, device, sequence_table_bytes(l));
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

template <int U>
static void launch_sequence_columns(backend *be, const cell *c, sequence_arguments *p) {
    for (p->first_column = 0; p->first_column < c->columns; p->first_column += 2 * BOX) {
        if (c->columns - p->first_column >= 2 * BOX) {
            launch_sequence<U, 2>(be, *p);
        } else {
            launch_sequence<U, 1>(be, *p);
        }
    }
}

void sequence_forward_run(backend *be, const cell *c) {
    const sequence_tables *tables = c->stage[c->stages - 1].layout->sequence;
    const int block = c->stage[0].layout->host.in_block;
    sequence_arguments p = {};
    sequence_set(be, c, "sequence_forward", tables->counters, &p);
    p.stages = c->stages;
    p.block = block;
    p.nodes = c->hidden / block;
    p.parts = parts_of_node(block, tables->units);
    for (int s = 0; s < c->stages; s++) {
        sequence_set_stage(be, c, s, c->stage[s].layout->sequence->table, &p.stage[s]);
        if (!map_sequence_stage(be, c, s, tables->units, &p.stage[s])) return;
    }
    switch (tables->units) {
    case 16: launch_sequence_columns<16>(be, c, &p); return;
    case 24: launch_sequence_columns<24>(be, c, &p); return;
    default: launch_sequence_columns<32>(be, c, &p);
    }
}
