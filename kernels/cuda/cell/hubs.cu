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
 * A step of 7,168 cells, 576 hubs and 128 columns takes 21.0 us forward and 33.2 backward on an
 * H200; where they go, and what did not help: docs/kernels/cell.md. */
#include "cell/hubs.h"
#include "cell/hubs_consumer.cuh"

struct hub_tables {
    int cells;          /* of a thread block: U */
    uint32_t *counters; /* [COUNTERS][COUNTER_WORDS] */
    bf16 *exchange;     /* [MOST_COLUMNS][hubs]: m or dv */
    bf16 *aside;        /* [MOST_COLUMNS][hubs]: backward, the gradient at entries */
    uint4 *parts;       /* [thread blocks][MOST_COLUMNS][hubs, in whole chunks] in bf16 */
    bf16 *first_z;      /* [HUB_GATES][hidden][MOST_COLUMNS]: see hub_places */
    float *gradients;   /* [thread blocks][dgain, dbias][MOST_CHUNKS * KC] */
    bf16 *hub_table;    /* [VOCABULARY][hubs] */
    bf16 *gates_table;  /* [VOCABULARY][hidden][GATES] */
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
static __global__ void add_hub_gradients(const float *from, int blocks, int width, int hubs,
                                         bool more, float *dgain, float *dbias) {
    const int hub = blockIdx.x * blockDim.x + threadIdx.x;
    float *to = blockIdx.y ? dbias : dgain;
    if (hub >= hubs || !to) return;
    float total = more ? to[hub] : 0;
    for (int i = 0; i < blocks; i++) {
        total += from[((size_t)i * 2 + blockIdx.y) * width + hub];
    }
    to[hub] = total;
}

void hubs_add_gradients(backend *be, const stage *hubs, const float *from, int blocks, int width,
                        bool more) {
    add_hub_gradients<<<dim3((hubs->units + 127) / 128, 2), 128, 0, cuda_of(be)->stream>>>(
        from, blocks, width, hubs->units, more, (float *)hubs->dgain, (float *)hubs->dbias);
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

void hubs_turn_tables(backend *be, const cell *c, void *hub_table, void *gates_table) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[1];
    const uint16_t one = 0x3F80;
    turn_table(be, hubs, (const uint16_t *)hubs->table, one, (uint16_t *)hub_table);
    if (!gates_table || gates->table_use != TABLE_ADD) return;
    turn_table(be, gates, (const uint2 *)c->entries, make_uint2(0, 0), (uint2 *)gates_table);
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

/* Calls `what`<cells of a thread block>. */
#define WITH_CELLS(cells, what, ...)                                                               \
    ((cells) == 40   ? what<40>(__VA_ARGS__)                                                       \
     : (cells) == 48 ? what<48>(__VA_ARGS__)                                                       \
     : (cells) == 56 ? what<56>(__VA_ARGS__)                                                       \
                     : what<64>(__VA_ARGS__))

template <int U> static int hubs_together(backend *be) {
    typedef hub_shape<U, 2> S;
    const int threads = S::THREADS + GROUP;
    return min(count_together(be, (const void *)hubs_kernel<S, false>, threads, S::BYTES),
               count_together(be, (const void *)hubs_kernel<S, true>, threads, S::BYTES));
}

hub_places hubs_places(const hub_arguments *p, int U, bf16 *raw, bf16 *first) {
    const size_t step = (size_t)HUB_GATES * p->hidden * p->columns;
    const uint32_t box = U * BOX, columns = p->columns, hidden = p->hidden;
    if (p->columns <= MOST_COLUMNS) {
        return {first, raw, step, HUB_GATES * box, HUB_GATES * hidden * BOX, box, BOX};
    }
    raw += p->first_column;
    return {raw, raw + step, step, U * columns, BOX, hidden * columns, columns};
}

template <int U> static void launch_hubs(backend *be, hub_arguments &p, bool backward) {
    typedef hub_shape<U, 1> one; /* where their numbers are used, both shapes have the same */
    typedef hub_shape<U, 2> two;
    const int groups = p.columns - p.first_column > BOX ? 2 : 1, all = X_SLOTS + MORE_SLOTS;
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

hub_tables *hubs_plan(backend *be, device_layout *device, const layout *l) {
    const int cells[] = {40, 48, 56, 64}, hidden = l->out_block, hubs = l->in_block;
    if (!cuda_of(be)->hopper || be->precision != BF16 || !layout_is_dense(l)) return NULL;
    if (l->gates != HUB_GATES || hubs == hidden || l->in_stride > 1) return NULL;
    if (hubs > MOST_CHUNKS * KC || hubs % 8) return NULL;
    for (int i = 0; i < 4; i++) {
        const int blocks = hidden / cells[i], chunks = (hubs + KC - 1) / KC;
        if (hidden % cells[i] || blocks > WITH_CELLS(cells[i], hubs_together, be)) continue;
        const size_t width = (size_t)chunks * KC;
        hub_tables *t = (hub_tables *)layout_host_block(device, sizeof *t);
        t->cells = cells[i];
        t->counters = (uint32_t *)layout_device_block(
            be, device, COUNTERS * COUNTER_WORDS * sizeof *t->counters);
        t->exchange = (bf16 *)layout_device_block(be, device, MOST_COLUMNS * hubs * sizeof(bf16));
        t->aside = (bf16 *)layout_device_block(be, device, MOST_COLUMNS * hubs * sizeof(bf16));
        t->parts =
            (uint4 *)layout_device_block(be, device, blocks * MOST_COLUMNS * width * sizeof(bf16));
        t->first_z = (bf16 *)layout_device_block(
            be, device, (size_t)HUB_GATES * hidden * MOST_COLUMNS * sizeof(bf16));
        t->gradients = (float *)layout_device_block(
            be, device, (size_t)blocks * 2 * MOST_CHUNKS * KC * sizeof(float));
        t->hub_table = (bf16 *)layout_device_block(be, device, VOCABULARY * hubs * sizeof(bf16));
        t->gates_table = (bf16 *)layout_device_block(
            be, device, (size_t)VOCABULARY * hidden * GATES * sizeof(bf16));
        return t;
    }
    return NULL;
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
    if (!lacks && !c->stage[1].layout->hubs) {
        lacks = "Hopper, bf16, at most 1,024 hubs, a multiple of 8, and a multiple of 40, 48, 56 "
                "or 64 cells, few enough for as many to each multiprocessor";
    }
    return lacks;
}

/* What cells with hubs ask of either kernel. */
void hubs_fill(const cell *c, hub_arguments *p) {
    const stage *hubs = &c->stage[0], *gates = &c->stage[1];
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
    hub_tables *t = gates->layout->hubs;
    const int hidden = c->hidden, columns = c->columns, U = t->cells;
    const void *out = backward ? gates->dpre : c->h;
    const int rows = backward ? HUB_GATES * c->steps : c->steps + 1;
    hub_arguments p = {};
    hubs_fill(c, &p);
    p.chunks = (hubs->units + KC - 1) / KC;
    p.counters = t->counters;
    p.stuck = cuda_stuck_word(be, "hubs");
    p.exchange = t->exchange;
    p.aside = t->aside;
    p.parts = t->parts;
    p.hub_table = t->hub_table;
    p.gates_table = gates->table_use == TABLE_ADD ? t->gates_table : NULL;
    p.gradients = t->gradients;
    hubs_turn_tables(be, c, t->hub_table, backward ? NULL : t->gates_table);
    if (!hubs_map_rows(be, &p.w, gates->weight, p.hubs, hidden, HUB_GATES, KC, U) ||
        !hubs_map_rows(be, &p.v, hubs->weight, hidden, p.hubs, 0, 64, KC) ||
        !hubs_map_rows(be, &p.x, t->exchange, p.hubs, MOST_COLUMNS, 0, KC, BOX) ||
        !hubs_map_rows(be, &p.out, out, columns, rows * hidden, 0, BOX, U)) {
        return;
    }
    for (; p.first_column < columns; p.first_column += MOST_COLUMNS) {
        p.z = hubs_places(&p, U, (bf16 *)gates->raw, t->first_z);
        WITH_CELLS(U, launch_hubs, be, p, backward);
        if (!backward) continue;
        hubs_add_gradients(be, hubs, t->gradients, hidden / U, MOST_CHUNKS * KC,
                           p.first_column > 0);
    }
}
