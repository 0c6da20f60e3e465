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
 * What forward keeps for backward of the gates lies as its threads have it.
 *
 * A step of 7,168 cells, 576 hubs and 128 columns takes 20.8 us forward and 31.0 backward on an
 * H200; where they go, and what did not help: docs/kernels/cell.md. */
#include "cell/hubs.h"
#include "cell/hubs_consumer.cuh"

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
        ((float *)(shared + S::BIAS))[i] = gate_bias(p, i % 4, blockIdx.x * S::U + i / 4);
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
static __global__ void add_hub_gradients(const float *from, int blocks, int width, int hubs,
                                         float *dgain, float *dbias) {
    const int hub = blockIdx.x * blockDim.x + threadIdx.x;
    float *to = blockIdx.y ? dbias : dgain, total = 0;
    if (hub >= hubs || !to) return;
    for (int i = 0; i < blocks; i++) {
        total += from[((size_t)i * 2 + blockIdx.y) * width + hub];
    }
    to[hub] = total;
}

void hubs_add_gradients(backend *be, const stage *hubs, const float *from, int blocks, int width) {
    add_hub_gradients<<<dim3((hubs->units + 127) / 128, 2), 128, 0, cuda_of(be)->stream>>>(
        from, blocks, width, hubs->units, (float *)hubs->dgain, (float *)hubs->dbias);
    cuda_launched(be, "gradients of hubs");
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

/* ------------------------------------------------------------------------------------- launches */

/* How many thread blocks of a kernel run at once. */
static int count_together(backend *be, const void *kernel, int threads, int shared) {
    int each = 0;
    cuda_allow_shared(be, kernel, (size_t)shared);
    cuda_ok(be, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, shared),
            "cell forward");
    return each * cuda_of(be)->processors;
}

template <int U> static int hubs_together(backend *be) {
    typedef hub_shape<U, 2> S;
    const int threads = S::THREADS + GROUP;
    return min(count_together(be, (const void *)hubs_kernel<S, false>, threads, S::BYTES),
               count_together(be, (const void *)hubs_kernel<S, true>, threads, S::BYTES));
}

template <int U> static void launch_hubs(backend *be, hub_arguments &p, bool backward) {
    typedef hub_shape<U, 1> one; /* where their numbers are used, both shapes have the same */
    typedef hub_shape<U, 2> two;
    const int groups = p.columns > BOX ? 2 : 1, all = X_SLOTS + MORE_SLOTS;
    p.held = min(p.chunks, (int)two::MOST_HELD);
    const int streamed = p.chunks - p.held;
    const bool more = streamed == 0 || (streamed == 1 && p.chunks * groups % all == 0);
    p.x_slots = !backward && more ? all : X_SLOTS;
    be->memory->zero(be, p.counters, COUNTERS * COUNTER_WORDS * sizeof *p.counters);
    void (*forward)(const hub_arguments) = hubs_kernel<one, false>;
    void (*back)(const hub_arguments) = hubs_kernel<one, true>;
    if (groups == 2) {
        forward = hubs_kernel<two, false>;
        back = hubs_kernel<two, true>;
    }
    cuda_launch(be, backward ? "cell backward" : "cell forward", false, backward ? back : forward,
                dim3(p.hidden / U), (groups + 1) * GROUP, (size_t)two::BYTES, p);
}

int hubs_cells(backend *be, const layout *l) {
    const int cells[] = {40, 48, 56, 64}, hidden = l->out_block, hubs = l->in_block;
    if (hubs > MOST_CHUNKS * KC) return 0;
    for (int i = 0; i < 4; i++) {
        const int blocks = hidden / cells[i];
        if (hidden % cells[i] == 0 && blocks <= WITH_CELLS(cells[i], hubs_together, be)) {
            return cells[i];
        }
    }
    return 0;
}

const char *hub_cell_lacks(backend *be, const cell *c) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[c->stages - 1];
    if (cuda_of(be)->kernel) return "no kernel in SMALLWORLD_KERNEL";
    if (gates->gates != HUB_GATES || gates->layer_norm) {
        return "coupled gates without layer norm";
    }
    if (c->stages != 2 || !layout_is_dense(&hubs->layout->host) || hubs->relu ||
        hubs->table_use != TABLE_MULTIPLY) {
        return "one dense stage whose table multiplies, besides the gates";
    }
    return NULL;
}

const char *hubs_lack(backend *be, const cell *c) {
    const char *lacks = hub_cell_lacks(be, c);
    const hub_plan *plan = c->stage[c->stages - 1].layout->hubs;
    if (lacks) return lacks;
    if (!plan || !plan->cells) {
        return "Hopper, bf16, at most 1,024 hubs, a multiple of 8, and a multiple of 40, 48, 56 "
               "or 64 cells, few enough for as many to each multiprocessor";
    }
    return c->columns <= MOST_COLUMNS ? NULL : "at most 128 columns";
}

void hubs_prepare(backend *be, const cell *c, bool backward, int U, hub_arguments *p) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[1];
    const hub_plan *plan = gates->layout->hubs;
    const bool adds = gates->table_use == TABLE_ADD;
    const uint16_t one = 0x3F80; /* of hubs without an entry */
    p->steps = c->steps;
    p->hidden = c->hidden;
    p->columns = c->columns;
    p->hubs = hubs->units;
    p->keep = c->keep;
    p->norm = hubs->layer_norm;
    p->norm_last = hubs->norm_last;
    p->later = c->has_later_steps;
    p->earlier = c->has_earlier_steps;
    p->bytes = c->bytes;
    p->below = (const bf16 *)c->below;
    p->hub_gain = (const float *)hubs->gain;
    p->hub_bias = (const float *)hubs->bias;
    p->bias = (const float *)gates->bias;
    p->sums = (fixed *)hubs->sums;
    p->hub_raw = (bf16 *)hubs->raw;
    p->hub_out = (bf16 *)hubs->out;
    p->hub_entry = (bf16 *)hubs->dentry;
    p->hub_gradient = (bf16 *)stage_raw_gradient(hubs);
    p->raw = (bf16 *)gates->raw;
    p->h = (bf16 *)c->h;
    p->dh = (bf16 *)c->dh;
    p->dx = (bf16 *)c->dx;
    p->c = (float *)c->c;
    p->dc = (float *)c->dc;
    p->dbias = (float *)gates->dbias;
    p->dropout_threshold = c->dropout.threshold;
    p->dropout_scale = (float)c->dropout.scale;
    p->dropout_seed = c->dropout.seed;
    p->dropout_stream = c->dropout.first_stream;
    p->arguments = c->arguments;
    p->first_step = c->first_step;
    p->counters = plan->counters;
    p->exchange = plan->exchange;
    p->aside = plan->aside;
    p->parts = plan->parts;
    p->first_z = plan->first_z;
    p->z_step = (size_t)HUB_GATES * c->hidden * c->columns;
    p->z_box = (uint32_t)(HUB_GATES * c->hidden * BOX);
    p->z_piece = (uint32_t)(HUB_GATES * U * BOX);
    p->gradients = plan->gradients;
    p->hub_table = plan->hub_table;
    p->gates_table = adds ? plan->gates_table : NULL;
    turn_table(be, hubs, (const uint16_t *)hubs->table, one, (uint16_t *)plan->hub_table);
    if (adds && !backward) {
        turn_table(be, gates, (const uint2 *)c->entries, make_uint2(0, 0),
                   (uint2 *)plan->gates_table);
    }
}

bool hubs_map_rows(backend *be, CUtensorMap *map, const void *base, int width, int rows, int planes,
                   int box_width, int box_rows) {
    const uint64_t row = (uint64_t)width * sizeof(bf16);
    const uint64_t extent[3] = {(uint64_t)width, (uint64_t)rows, (uint64_t)planes};
    const uint64_t stride[2] = {row, row * (uint64_t)rows};
    const uint32_t box[3] = {(uint32_t)box_width, (uint32_t)box_rows, (uint32_t)planes};
    return make_map(be, map, base, planes ? 3 : 2, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B);
}

void hubs_run(backend *be, const cell *c, bool backward) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[1];
    const void *out = backward ? gates->dpre : c->h;
    const int rows = backward ? HUB_GATES * c->steps : c->steps + 1;
    const int hidden = c->hidden, U = gates->layout->hubs->cells;
    hub_arguments p = {};
    hubs_prepare(be, c, backward, U, &p);
    p.chunks = (hubs->units + KC - 1) / KC;
    p.stuck = cuda_stuck_word(be, "hubs");
    if (!hubs_map_rows(be, &p.w, gates->weight, p.hubs, hidden, HUB_GATES, KC, U) ||
        !hubs_map_rows(be, &p.v, hubs->weight, hidden, p.hubs, 0, 64, KC) ||
        !hubs_map_rows(be, &p.x, p.exchange, p.hubs, MOST_COLUMNS, 0, KC, BOX) ||
        !hubs_map_rows(be, &p.out, out, c->columns, rows * hidden, 0, BOX, U)) {
        return;
    }
    WITH_CELLS(U, launch_hubs, be, p, backward);
    if (backward) hubs_add_gradients(be, hubs, p.gradients, hidden / U, MOST_CHUNKS * KC);
}
